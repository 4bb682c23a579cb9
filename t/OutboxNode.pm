# OutboxNode.pm
#
# What tests with Node.js share: packages are installed by npm, as a folder's
# package-lock.json pins them, into a copy of the folder that is thrown away.
#
#   use OutboxNode;
#   needs_npm();
#   my $dir = npm_folder('examples/node');

package OutboxNode;

use strict;
use warnings;

use Carp;
use Cwd qw(abs_path);
use Exporter 'import';
use File::Basename qw(basename dirname);
use IPC::Run;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(needs_npm npm_folder checkout);

my $cache;

# The checkout that this file is in.
sub checkout { return abs_path(dirname(__FILE__) . '/..') }

# Ends the test file as skipped where there is no npm; scripts/test installs it.
sub needs_npm
{
	foreach my $program (qw(node npm))
	{
		plan skip_all => "no $program in PATH" unless grep { -x "$_/$program" } split(/:/, $ENV{PATH});
	}
	return;
}

# A copy of a folder of the checkout with its node_modules; its path.
sub npm_folder
{
	my ($name) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir(basename($name)) . '/' . basename($name);
	my $out = '';

	$cache //= PostgreSQL::Test::Utils::tempdir('npm');
	PostgreSQL::Test::RecursiveCopy::copypath(checkout() . "/$name", $dir, filterfn => sub { $_[0] !~ /node_modules/ });
	local $ENV{HOME} = $cache;
	IPC::Run::run(
		[ 'npm', '--prefix', $dir, '--cache', "$cache/cache", 'ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error' ],
		'<', \'', '>', \$out, '2>&1', IPC::Run::timeout(300)) or croak "npm ci in $name: exit $?: $out";
	return $dir;
}

1;
