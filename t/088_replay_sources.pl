# Every source of a replay gives the same messages, byte for byte: the log, a
# query, files of the archive, ClickHouse; in the server and through the command
# outbox-replay, whose arguments, exit codes and words are looked at as well.

use strict;
use warnings;

use OutboxArchive;
use OutboxClickhouse;
use OutboxLife;
use OutboxReplay;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no clickhouse-server' unless defined OutboxClickhouse::find();

my $db = 'postgres';
my $directory = archive_directory();
my $nats = OutboxNats->start;
my $clickhouse = OutboxClickhouse->start;
# before the relay makes one
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 900000);
my $node = new_cluster('main', nats => $nats, initdb => ['--encoding=UTF8'], extra => <<"CONF");
outbox.retention = -1
outbox.dead_letter_retention = 0
outbox.archive_directory = '$directory'
outbox.archive_url = '@{[$clickhouse->url]}'
log_statement = none
CONF
ok(wait_relay($node, $db), 'a relay');

# ---------------------------------------------------------------- events

enqueue_all_kinds($node, $db);
$node->safe_psql($db, q{SELECT outbox.enqueue_text('t', 'dead', 'refused', repeat('x', 950000))});
ok(wait_all_published($node, $db), 'published, but for one that is refused');
my @original = $nats->dump('OUTBOX');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.dead_letters'), 1, 'which is a dead letter');
my $conninfo = $node->connstr($db);
my $url = $nats->url;
my $count = @original;

# Runs the command: (exit code, stdout, stderr).
sub command
{
	my (@arguments) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'outbox-replay', @arguments ], '<', \'', '>', \$out, '2>', \$err);
	return ($? >> 8, $out, $err);
}

# Sends everything from a source by the command, into a stream of its own, and compares.
sub check_command
{
	my ($name, $stream, @arguments) = @_;
	my ($code, $out, $err) = command(@arguments, '--to-nats', $url, '--stream', uc $stream, '--subject-prefix', $stream, '--create-stream');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($code, 0, "$name: the command succeeds") or diag($err);
	my ($id) = $out =~ /^batch ([-0-9a-f]{36}): $count events, up to position \d+, in [\d.]+ s$/ or return fail("$name: says what it did: $out");
	return is_deeply([ replay_problems($nats, uc $stream, $id, \@original, prefix => "$stream.") ], [], "$name: the same messages");
}

sub check_server
{
	my ($name, $stream, $source) = @_;
	my $id = start_replay($node, $db, "$source target_prefix => '$stream', target_stream => '" . uc($stream) . "'");

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_replay($node, $db, $id, 'done'), "$name: done");
	return is_deeply([ replay_problems($nats, uc $stream, $id, \@original, prefix => "$stream.") ], [], "$name: the same messages");
}

# The answer of a dry run, but for the times.
sub dry
{
	my ($source) = @_;

	return $node->safe_psql($db, "SELECT of_type, events, bytes, first_position, last_position FROM outbox.replay($source)");
}

# ---------------------------------------------------------------- from the database

my $survey = dry('');
check_server('the log', 'a1', '');
check_command('a database', 'a2', '--from-database', $conninfo);
my ($code, $out, $err) = command('--from-database', $conninfo, '--topic', 'outbox.x.>');
is($code, 0, 'without a target the command only counts');
like($out, qr/^event type +events +bytes.*^all +11 +\d+ +\d+ +\d+ +\S+Z +\S+Z$/ms, 'the events that match');

# ---------------------------------------------------------------- from the archive

is($node->safe_psql($db, "SELECT count(*) FROM outbox.purge(older_than => '0') WHERE action = 'removed'"), 1, 'now the events are in the archive');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.events'), 0, 'only');
is(dry("archive => '$directory'"), $survey, 'a dry run of the files says what that of the log said');
is(dry("clickhouse => '@{[$clickhouse->url]}'"), $survey, 'and so does one of ClickHouse');
check_server('files', 'b1', "archive => '$directory',");
check_command('files', 'b2', '--from-archive', $directory);
check_server('ClickHouse', 'c1', "clickhouse => '@{[$clickhouse->url]}',");
check_command('ClickHouse', 'c2', '--from-clickhouse', $clickhouse->url, '--database', $db);
is($node->safe_psql($db, "SELECT count(*) FROM outbox.replays WHERE source = 'clickhouse' AND source_text ~ 'S3cret'"), 0, 'no password is shown');
is(dry("archive => '$directory', event_type => 'empty', aggregate_type => 'x', aggregate_id => 'a'") =~ s/\n.*//sr =~ s/\|\d+\|\d+$//r, '|1|0', 'filters hold for files');
is(dry("clickhouse => '@{[$clickhouse->url]}', subject => 'outbox.own'") =~ s/\n.*//sr =~ s/\|\d+\|\d+$//r, '|1|2', 'and for ClickHouse');
is(dry("archive => '$directory', from_time => '2100-01-01'"), '|0|0||', 'nothing is from the future');

# Two files that overlap, as after an archive that was interrupted.
my ($file) = glob("$directory/*.jsonl.*");
my ($first, $last) = $file =~ /-(\d{20})-(\d{20})\./;
$node->safe_psql($db, q{SELECT outbox.enqueue_text('later', i::text, 'later', i::text) FROM generate_series(1, 5) i});
ok(wait_all_published($node, $db), 'more events');
$node->safe_psql($db, "SELECT outbox.purge(older_than => '0')");
is(scalar(my @files = glob("$directory/*.jsonl.*")), 2, 'and another file');
@original = grep { !$_->{headers}{'x-replay'} } $nats->dump('OUTBOX');
$count = @original;
check_command('two files', 'd1', '--from-archive', $directory);

# ---------------------------------------------------------------- resumed

$nats->tool('create', 'SMALL', 'small.>', '--max-msg-size', 100000);
my @to_small = ('--from-archive', $directory, '--to-nats', $url, '--stream', 'SMALL', '--subject-prefix', 'small');
($code, $out, $err) = command(@to_small);
is($code, 4, 'a refused event ends the command');
my ($position) = $err =~ /^outbox-replay: position (\d+): JetStream error 10054/ or fail("with the reason: $err");
my ($id, $behind) = $err =~ /to go on, add --batch-id (\S+) --behind (\d+); up to \d+ events are sent twice/ or fail("and how to go on: $err");
is($behind, $position - 1, 'just before it');
$nats->tool('delete', 'SMALL');
$nats->tool('create', 'SMALL', 'small.>');
($code, $out, $err) = command(@to_small, '--batch-id', $id, '--behind', $behind);
is($code, 0, 'and so it goes on');
is_deeply([ replay_problems($nats, 'SMALL', $id, [ grep { $_->{headers}{'ce-sequence'} > $behind } @original ], prefix => 'small.') ], [], 'to the end');
my $begun = time();
($code, $out, $err) = command(@to_small, '--rate', 20, '--to-position', $first + 59, '--quiet');
cmp_ok(time() - $begun, '>=', 1, 'a rate is kept');
is("$code$out$err", '0', 'and --quiet is quiet');

# On a terminal a bar shows how far it is.
$out = '';
IPC::Run::run([ 'script', '-qec', join(' ', 'outbox-replay', @to_small, '--to-position', $first + 9), '/dev/null' ], '<', '/dev/null', '>', \$out);
like($out, qr{replayed \[=+\] 100% 10/10 }, 'a progress bar');

# ---------------------------------------------------------------- errors

my @wrong = (
	[ 1, qr/exactly one of/ ],
	[ 1, qr/exactly one of/, '--from-archive', 'x', '--from-database', 'y' ],
	[ 1, qr/--from must be a time/, '--from-archive', 'x', '--from', 'yesterday' ],
	[ 1, qr/--to must be a time/, '--from-archive', 'x', '--to', '2023-02-29' ],
	[ 1, qr/ends before it begins/, '--from-archive', 'x', '--from', '2024-01-02', '--to', '2024-01-01T23:59:59Z' ],
	[ 1, qr/--rate must be a number from 1/, '--from-archive', 'x', '--rate', '0' ],
	[ 1, qr/needs --stream/, '--from-archive', 'x', '--to-nats', 'nats://127.0.0.1' ],
	[ 1, qr/not a valid pattern/, '--from-archive', 'x', '--topic', 'a.>.b' ],
	[ 1, qr/needs --database/, '--from-clickhouse', 'http://127.0.0.1/t' ],
	[ 1, qr/unrecognized option/, '--from-nowhere' ],
	[ 1, qr/no argument "x"/, '--from-archive', 'x', 'x' ],
	[ 2, qr/could not open archive directory ".*": No such file/, '--from-archive', "$directory/none" ],
	[ 2, qr/no archive files/, '--from-archive', '/' ],
	[ 2, qr/could not connect to the database/, '--from-database', 'host=/nowhere' ],
	[ 2, qr/could not read from ClickHouse/, '--from-clickhouse', 'http://127.0.0.1:1/t', '--database', 'x' ],
	[ 3, qr{could not connect to nats://127.0.0.1:1}, '--from-archive', $directory, '--to-nats', 'nats://127.0.0.1:1', '--stream', 'X', '--connect-timeout', '1' ],
);
foreach my $case (@wrong)
{
	my ($expected, $words, @arguments) = @$case;

	($code, $out, $err) = command(@arguments);
	is($code, $expected, "outbox-replay @arguments");
	like($err, $words, 'says why');
}
($code, $out, $err) = command('--help');
is($code, 0, '--help');
my $manual = slurp_file(PostgreSQL::Test::Utils::dirname(PostgreSQL::Test::Utils::dirname(__FILE__)) . '/docs/man/outbox-replay.1');
$manual =~ s/\\-/-/g;
ok(index($manual, "$_") >= 0, "the manual has $_") foreach $out =~ /(--[a-z][-a-z]+)/g;

# A damaged file is found before anything of it is sent.
chmod(0600, $file);
open(my $handle, '+<', $file) or die $!;
seek($handle, -30, 2);
print $handle 'damaged';
close($handle);
($code, $out, $err) = command('--from-archive', $directory, '--to-nats', $url, '--stream', 'SMALL', '--subject-prefix', 'small');
is($code, 2, 'a damaged file');
like($out, qr/: 0 events/, 'of which nothing is sent');
$id = start_replay($node, $db, "archive => '$directory', target_prefix => 'small', target_stream => 'SMALL'");
ok(wait_replay($node, $db, $id, 'stopped'), 'the server finds it, too');
like($node->safe_psql($db, "SELECT last_error FROM outbox.replays WHERE batch_id = '$id'"), qr/\Q$file\E/, 'and names it');

check_no_crash($node);
done_testing();
