# OutboxCopies.pm
#
# What the tests of dumps, copies and upgrades (t/15x) share.

use strict;
use warnings;

package OutboxCopies;

use Carp;
use Exporter 'import';
use File::Basename qw(basename dirname);
use File::Copy qw(copy);
use File::Path qw(make_path);
use IPC::Run;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(run_quietly contents ids_of is_stored_once why_not_armed private_install make_version);

# Runs a program; it must succeed and have nothing to say.
sub run_quietly
{
	my ($node, $name, @command) = @_;
	my $out = '';

	local $ENV{PGHOST} = $node->host;
	local $ENV{PGPORT} = $node->port;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $ok = IPC::Run::run(\@command, '<', \'', '>', \$out, '2>&1');

	return ok($ok && $out eq '', $name) || diag("@command: exit code " . ($? >> 8) . ": $out");
}

# What the tables have that a dump carries, and the sequences: a line for each. As SQL
# that psql runs, to be put behind others of a session.
sub contents
{
	return <<'SQL';
SELECT string_agg(CASE c.relkind WHEN 'S' THEN format('SELECT %L AS name, last_value AS n, is_called::text AS rows FROM outbox.%I', c.relname, c.relname)
	ELSE format('SELECT %L, count(*), md5(string_agg(t::text, E''\n'' ORDER BY t::text)) FROM outbox.%I t', c.relname, c.relname) END, ' UNION ALL ')
	|| ' ORDER BY 1'
FROM pg_class c JOIN pg_extension e ON c.oid = ANY (e.extconfig) WHERE e.extname = 'outbox' AND c.relname NOT IN ('identity', 'id_key')
\gexec
SQL
}

# The ids of events, sorted.
sub ids_of
{
	my ($node, $db, $condition) = @_;

	return split(/\n/, $node->safe_psql($db, "SELECT event_id FROM outbox.events WHERE $condition ORDER BY 1"));
}

# Each of these events is in the stream exactly once, and each database's are in order; what was replayed doesn't count.
sub is_stored_once
{
	my ($nats, $name, @ids) = @_;
	my @messages = grep { !defined $_->{headers}{'x-replay'} } $nats->dump('OUTBOX');
	my (%count, %of_source);

	foreach my $message (@messages)
	{
		$count{ $message->{msg_id} }++;
		push @{ $of_source{ $message->{headers}{'ce-source'} } }, $message;
	}
	my @wrong = grep { ($count{$_} // 0) != 1 } @ids;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(@ids > 0 && !@wrong, $name) or diag("of " . @ids . ":", map { " $_: " . ($count{$_} // 0) } @wrong);
	return is_deeply([ map { check_order($nats, 'OUTBOX', $_) } values %of_source ], [], "$name: in order");
}

sub why_not_armed
{
	my ($node, $db) = @_;

	return $node->safe_psql($db, 'SELECT outbox.not_armed_because()');
}

##########################################################################
# An installation of PostgreSQL with an outbox of its own, that a test may change.

sub _ask
{
	my ($what) = @_;
	my ($answer) = run_command([ 'pg_config', "--$what" ]);

	croak "pg_config --$what does not tell" unless defined $answer && $answer ne '';
	return $answer;
}

# Links to all files of a folder, but copies of those whose names match.
sub _mirror
{
	my ($from, $to, $copied) = @_;

	make_path($to);
	opendir(my $folder, $from) or croak "could not read $from: $!";
	foreach my $name (grep { !/^\.\.?$/ } readdir($folder))
	{
		next if -e "$to/$name";
		if ($name =~ $copied)
		{
			copy("$from/$name", "$to/$name") or croak "could not copy $from/$name: $!";
			chmod((stat("$from/$name"))[2] & oct('7777'), "$to/$name");
		}
		else
		{
			symlink("$from/$name", "$to/$name") or croak "could not link $from/$name: $!";
		}
	}
	closedir($folder);
	return;
}

# PostgreSQL finds its files from where its program is, so the folders are mirrored under another root.
# Yields { path => for PostgreSQL::Test::Cluster, library, scripts, version }.
sub private_install
{
	my $root = PostgreSQL::Test::Utils::tempdir('install');
	my ($bin, $lib, $share) = map { _ask($_) } qw(bindir pkglibdir sharedir);

	_mirror("$share/extension", "$root$share/extension", qr/^outbox/);
	_mirror($share, "$root$share", qr/^$/);
	_mirror($lib, "$root$lib", qr/^outbox/);
	_mirror($bin, "$root$bin", qr/^(?:postgres|initdb|pg_ctl)$/);
	my ($version) = slurp_file("$share/extension/outbox.control") =~ /^default_version *= *'(.*)'/m;
	return {
		path => $root . dirname($bin),
		library => "$root$lib/outbox.so",
		scripts => "$root$share/extension",
		version => $version
	};
}

# What "make install" of another version would leave, of as many characters: the same
# library by that name, the control file that makes it the default, and the script that
# leads there. parts: which of these (library, script, control).
sub make_version
{
	my ($install, $version, %opt) = @_;
	my $old = $install->{version};
	my %parts = map { $_ => 1 } @{ $opt{parts} };

	croak "$version must have as many characters as $old" if length($version) != length($old);
	if ($parts{library})
	{
		my $library = slurp_file($install->{library});

		$library =~ s/(outbox library version )[0-9.]+\0/$1$version\0/ or croak 'the library has no version';
		unlink($install->{library});
		append_to_file($install->{library}, $library);
		chmod(oct('755'), $install->{library});
	}
	append_to_file("$install->{scripts}/outbox--$old--$version.sql", $opt{script}) if $parts{script};
	if ($parts{control})
	{
		my $control = slurp_file("$install->{scripts}/outbox.control");

		$control =~ s/^(default_version *= *)'.*'/$1'$version'/m;
		unlink("$install->{scripts}/outbox.control");
		append_to_file("$install->{scripts}/outbox.control", $control);
	}
	return;
}

1;
