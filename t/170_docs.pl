# The documentation is true: every SQL example of README.md and docs/*.md runs, in order,
# against a server and NATS; what it enqueues is published. Links and anchors lead
# somewhere. docs/reference.md is what the catalog says. Messages, and outbox.health()'s remedies, name sections of
# docs/failures.md that exist. OutboxDocs.pm tells how an example says what it needs.
# "prove t/170_docs.pl :: docs/producing.md" runs only the examples of that page.

use strict;
use warnings;

use IPC::Run;
use OutboxDocs;
use OutboxNode;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $root = checkout();
my @pages = pages();

# ------------------------------------------------------------- links, anchors

my %anchors;
foreach my $page (@pages)
{
	my %seen;

	foreach my $heading (headings($page))
	{
		my $anchor = anchor($heading->[1]);

		$anchors{$page}{ $seen{$anchor}++ ? "$anchor-" . ($seen{$anchor} - 1) : $anchor } = 1;
	}
}

# What is wrong with a link of a page; undef: nothing.
sub broken
{
	my ($page, $link) = @_;
	my ($path, $anchor) = $link =~ /^([^#]*)(?:#(.*))?$/;
	my $target = $path eq '' ? $page : ($page =~ m{^(.*/)} ? $1 : '') . $path;

	return undef if $link =~ /^[a-z]+:/;
	1 while $target =~ s{(^|/)[^/.][^/]*/\.\./}{$1};
	return "no such file" unless -e "$root/$target";
	return undef unless defined $anchor;
	return $anchors{$target} && $anchors{$target}{$anchor} ? undef : 'no such heading';
}

foreach my $page (@pages)
{
	my @broken = map { my $problem = broken($page, $_); $problem ? "$_: $problem" : () } links($page);

	is(join("\n", @broken), '', "$page: links lead somewhere");
}
cmp_ok(scalar(split(/\n/, page_text('README.md'))), '<=', 250, 'the README is short');
my %linked = map { m{^(?:\./)?([^#]+)} ? ("docs/$1" => 1) : () } links('docs/README.md');
is_deeply([ grep { m{^docs/} && $_ ne 'docs/README.md' && !$linked{$_} } @pages ], [], 'docs/README.md knows all pages');

# ------------------------------------------------- messages and docs/failures.md

sub sources { return map { slurp_file($_) } glob("$root/src/*.c $root/src/*.h $root/sql/install/*.sql") }

my %named = map { $_ => 1 } map { (/See docs\/failures\.md, \\?"([A-Z][^"\\]*)\\?"/g, /SEE\("([^"]+)"\)/g,
	/^ +\('[a-z_]+', '(?:critical|warning)', '([^']+)',/mg) } sources();
my ($section, %explained) = ('');
foreach my $heading (headings('docs/failures.md'))
{
	$section = $heading->[1] if $heading->[0] == 2;
	$explained{ $heading->[1] } = 1 if $heading->[0] == 3 && $section eq 'Messages of the extension';
}
is_deeply([ sort(keys %named) ], [ sort(keys %explained) ], 'messages name the sections of docs/failures.md, all of them');
cmp_ok(scalar(keys %explained), '>', 20, 'there are some');

# --------------------------------------------------------------- reference

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, create_extension => 0, extra => <<'CONF');
log_statement = none
max_worker_processes = 40
max_prepared_transactions = 10
outbox.retry_max_delay = 500ms
CONF

SKIP:
{
	skip 'docs/reference.md is of PostgreSQL 15', 1 if $node->safe_psql('postgres', 'SHOW server_version_num') !~ /^15/;
	local @ENV{qw(PGHOST PGPORT PGDATABASE)} = ($node->host, $node->port, 'reference');
	my ($made, $errors) = ('', '');

	$node->safe_psql('postgres', 'CREATE DATABASE reference');
	$node->safe_psql('reference', 'CREATE EXTENSION outbox');
	IPC::Run::run([ "$root/scripts/reference", '--print' ], '<', \'', '>', \$made, '2>', \$errors);
	my $committed = page_text('docs/reference.md');
	ok($made eq $committed, 'docs/reference.md is what the catalog says')
	  or diag("Run scripts/reference.\n$errors" . differences($committed, $made));
	$node->safe_psql('postgres', 'DROP DATABASE reference WITH (FORCE)');
}

sub differences
{
	my ($old, $new) = @_;
	my %old = map { $_ => 1 } split(/\n/, $old);
	my %new = map { $_ => 1 } split(/\n/, $new);

	return join('', map { "$_\n" } (map { "- $_" } grep { !$new{$_} } split(/\n/, $old)), (map { "+ $_" } grep { !$old{$_} } split(/\n/, $new)));
}

# ---------------------------------------------------------------- examples

my %made;

# A database of that name, with the extension unless it shall be bare.
sub ensure_database
{
	my ($database, $bare) = @_;

	return if $made{$database}++;
	$node->safe_psql('postgres', "CREATE DATABASE $database");
	$node->safe_psql($database, 'CREATE EXTENSION outbox') unless $bare;
	return;
}

# Runs SQL; the error with its SQLSTATE, or ''.
sub run_sql
{
	my ($database, $sql) = @_;
	my ($code, $out, $err) = $node->psql($database, "\\set VERBOSITY verbose\n$sql", on_error_stop => 1);

	return $code == 0 ? '' : $err;
}

# Runs one example; what is wrong with it, or ''.
sub run_example
{
	my ($block, $default) = @_;
	my ($database, $fails, $until) = ($default, '', undef);
	my $text = $block->{text};
	my %directory;

	foreach my $directive (@{ $block->{directives} })
	{
		my ($word, $rest) = @$directive;

		if ($word eq 'not') { return $rest =~ /^run: \S/ ? '' : 'a reason is missing' }
		elsif ($word eq 'database') { $database = $rest }
		elsif ($word eq 'new')
		{
			($database) = $rest =~ /^database (\w+)$/ or return "new what? $rest";
			ensure_database($database, 1);
		}
		elsif ($word eq 'directory') { $directory{$rest} //= PostgreSQL::Test::Utils::tempdir() }
		elsif ($word eq 'until') { $until = $rest }
		elsif ($word eq 'fails') { $fails = $rest }
		elsif ($word eq 'setup')
		{
			ensure_database($database);
			my $error = run_sql($database, $rest);
			return "setup: $error" if $error ne '';
		}
		else { return "unknown directive \"$word\"" }
	}
	$text =~ s/\Q$_\E/$directory{$_}/g foreach keys %directory;
	ensure_database($database);
	my $error = run_sql($database, $text);
	return "it isn't so: $until" if $error eq '' && defined $until && !wait_for_query($node, $database, $until);
	return '' if $fails ne '' && $error =~ /ERROR:  \Q$fails\E: /;
	return $fails ne '' && $error eq '' ? "it doesn't fail with $fails" : $error;
}

my ($run, $not_run) = (0, 0);
# These pages have tests of their own, which run all their blocks and look at more.
my %elsewhere = ('docs/wire-format.md' => '121_wire_format', 'docs/capture.md' => '100_capture', 'docs/migrating.md' => '122_adopt');
like(slurp_file("$root/t/$elsewhere{$_}.pl"), qr/\Q$_\E/, "$_ is tested by t/$elsewhere{$_}.pl") foreach sort keys %elsewhere;
my %only = map { $_ => 1 } @ARGV;
foreach my $page (grep { m{^(README\.md|docs/)} && !$elsewhere{$_} && (!%only || $only{$_}) } @pages)
{
	my $default = lc(($page =~ m{([^/]+)\.md$})[0]) =~ tr/-/_/r;
	my @blocks = blocks($page);

	%made = ();
	foreach my $block (@blocks)
	{
		my $name = "$page, line $block->{line}";

		if ($block->{language} =~ /^(sql|psql)$/)
		{
			is(run_example($block, $default), '', $name);
			if (grep { $_->[0] eq 'not' } @{ $block->{directives} }) { $not_run++ }
			else { $run++ }
		}
		elsif ($block->{language} eq '' && $block->{text} =~ /^(SELECT|INSERT|CREATE|ALTER|BEGIN|GRANT)\b.*;/m)
		{
			fail("$name: SQL that isn't said to be SQL, so it isn't tested");
		}
	}
	foreach my $database (sort keys %made)
	{
		is($node->safe_psql($database, q{SELECT outbox.flush('60 s')}), 't', "$page: what is enqueued in \"$database\" is published");
		$node->safe_psql('postgres', "DROP DATABASE $database WITH (FORCE)");
	}
}
cmp_ok($run, '>=', 28, 'examples were run') unless %only;
cmp_ok($not_run, '<', 10, 'few are not');
note("$run examples run, $not_run not");
check_no_crash($node);
done_testing();
