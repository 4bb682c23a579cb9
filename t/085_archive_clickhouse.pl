# outbox.archive_url: a range is in ClickHouse before it goes, byte for byte and
# once, whatever happens to the connection, the server and the answer; and the
# password is nobody's business.

use strict;
use warnings;

use Digest::SHA;
use Encode;
use OutboxArchive;
use OutboxClickhouse;
use OutboxLife;
use OutboxProxy;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();
plan skip_all => 'no clickhouse-server' unless defined OutboxClickhouse::find();

my $db = 'postgres';
my $secret = qr/S3cret/;
my $home = PostgreSQL::Test::Utils::tempdir('home');
$ENV{HOME} = $home;
my $nats = OutboxNats->start;
my $clickhouse = OutboxClickhouse->start;
my $proxy = OutboxProxy->start(target => $clickhouse->{port}, delay_ms => 3000);
my $node = new_cluster('main', nats => $nats, initdb => ['--encoding=UTF8'], extra => <<"CONF");
outbox.retention = -1
outbox.dead_letter_retention = 0
outbox.archive_url = '@{[$clickhouse->url]}'
jit = off
log_statement = none
log_min_error_statement = panic
log_min_messages = debug1
restart_after_crash = on
CONF
create_test_points($node, $db);
ok(wait_relay($node, $db), 'a relay');
$node->safe_psql($db, 'CREATE TABLE sent (position bigint)');

# So many events, published; remembered in "sent".
sub fill
{
	my ($count) = @_;

	$node->safe_psql($db, qq{
		WITH new AS (SELECT outbox.enqueue_text('order', (i % 50)::text, 'E', repeat('x', 200)) AS id FROM generate_series(1, $count) i) SELECT count(*) FROM new});
	ok(wait_all_published($node, $db), 'published');
	$node->safe_psql($db, 'INSERT INTO sent SELECT position FROM outbox.events');
	return;
}

# What ClickHouse has got is what was sent, once.
sub check_complete
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($clickhouse->query(q{SELECT count(), sum(position) FROM outbox_events FINAL WHERE database = 'postgres'}) =~ s/\t/|/r,
		$node->safe_psql($db, 'SELECT count(DISTINCT position), sum(DISTINCT position) FROM sent'), "$name: ClickHouse has each event once");
}

sub is_kept
{
	my ($name, $reason) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return like(purge_all($node, $db), qr/^kept\|\d+\|\|it could not be archived \(\d+ failures since .*\): could not send to "http:\/\/127\.0\.0\.1:\d+\/\w+": $reason/m, $name);
}

sub begin_purge
{
	my $session = $node->background_psql($db, on_error_stop => 0);

	$session->query_until(qr/sent/, "\\echo sent\nSELECT action FROM outbox.purge(older_than => '0');\n\\echo over\n");
	return $session;
}

# ------------------------------------------------------------------- the bytes

$node->safe_psql(
	$db, q{
	SELECT outbox.enqueue('j', 'a', 'json', '{"k": "é \u2028 \\" \\\\ 12345678901234567890"}', headers => '{"h": "tab\\\\é"}', aggregate_version => -9223372036854775808);
	SELECT outbox.enqueue_text('t', E'a\t\\N', 'controls', string_agg(chr(i), '' ORDER BY i), subject => 'outbox.own', not_before => '2000-01-01') FROM generate_series(1, 300) i;
	SELECT outbox.enqueue_text('t', 'a', 'null', '\N');
	SELECT outbox.enqueue_text('t', 'a', 'empty', '');
	SELECT outbox.enqueue_bytes('x', 'a', 'all', string_agg(set_byte('\x00', 0, i % 256), '' ORDER BY i)) FROM generate_series(0, 300) i;
	SELECT outbox.enqueue_bytes('x', 'a', 'large', decode(repeat('00ff0a0d5c', 150000), 'hex'));
	SELECT outbox.enqueue('d', 'a', 'discarded', '1', event_id => '00000000-0000-4000-8000-000000000002', not_before => 'infinity');
	SELECT outbox.discard('no use', '00000000-0000-4000-8000-000000000002')});
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.delivery WHERE state = 'x'}, expected => 1), 'discarded');
ok(wait_all_published($node, $db), 'published');
my $all = $node->safe_psql($db, q{SELECT string_agg(concat_ws('|', position, event_id, encode(convert_to(aggregate_type || aggregate_id || event_type || coalesce(subject, '-'), 'UTF8'), 'hex'),
	encode(sha256(coalesce(payload_bytes, convert_to(coalesce(payload_text, payload::text), 'UTF8'))), 'hex'), coalesce(headers::text, '-'), coalesce(aggregate_version::text, '-'),
	to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), coalesce(to_char(published_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '-'), priority), E'\n' ORDER BY position) FROM outbox.events});
$node->safe_psql($db, 'INSERT INTO sent SELECT position FROM outbox.events');
is(purge_all($node, $db), 'removed|7|0|', 'sent, and removed');
my @rows;
foreach my $row (split(/\n/, $clickhouse->query(q{SELECT position, event_id, concat(aggregate_type, aggregate_id, event_type, ifNull(subject, '-')), payload, ifNull(headers, '-'),
	ifNull(toString(aggregate_version), '-'), occurred_at, ifNull(published_at, '-'), priority FROM outbox_events FINAL ORDER BY position FORMAT TabSeparated})))
{
	my @field = map { s/\\(.)/{ 0 => "\0", b => "\b", t => "\t", n => "\n", f => "\f", r => "\r" }->{$1} \/\/ $1/ger } split(/\t/, $row);

	$field[2] = unpack('H*', $field[2]);
	$field[3] = Digest::SHA::sha256_hex($field[3]);
	push @rows, join('|', @field);
}
is(join("\n", @rows), Encode::encode_utf8(Encode::decode_utf8($all)), 'each event, byte for byte');
is($clickhouse->query(q{SELECT arrayStringConcat(groupArray(concat(payload_kind, ' ', state, ' ', ifNull(not_before, '-'))), ', ') FROM (SELECT * FROM outbox_events FINAL ORDER BY position)}),
	'j published -, t published 2000-01-01T00:00:00.000000Z, t published -, t published -, x published -, x published -, j discarded infinity', 'kinds, states, times');
is($clickhouse->query('SELECT uniq(day), max(abs(archived_at - now())) < 600, min(day = toDate(now())) FROM outbox_events'), "1\t1\t1", 'and when');
is($node->safe_psql($db, 'SELECT kind, destination, events, file IS NULL, state, removed_at IS NOT NULL FROM outbox.archives'),
	'u|http://127.0.0.1:' . $clickhouse->{port} . '/outbox_events|7|t|d|t', 'outbox.archives has it, without the password');
check_complete('the bytes');

# -------------------------------------------------------------- what is in the way

fill(3000);
alter_system($node, "outbox.archive_url = '@{[$clickhouse->url(password => 'S3cretWrong')]}'");
is_kept('a wrong password', qr/the server answers with status (?:40[13]|500|516): .*/);
alter_system($node, "outbox.archive_url = '@{[$clickhouse->url(table => 'no_such_table')]}'");
is_kept('no such table', qr/the server answers with status (?:404|500): .*no_such_table/);
alter_system($node, "outbox.archive_url = 'http://archive\@127.0.0.1:1/outbox_events'");
is_kept('nobody listens', qr/.*onnect/);
alter_system($node, "outbox.archive_url = 'http://nowhere.invalid/outbox_events'");
like(purge_all($node, $db), qr/could not send to "http:\/\/nowhere\.invalid\/outbox_events": .*resolve/, 'no such host');
$clickhouse->query('CREATE TABLE other (position Int64) ENGINE = Memory');
alter_system($node, "outbox.archive_url = '@{[$clickhouse->url(table => 'default/other')]}'");
like(purge_all($node, $db), qr/the server answers with status \d+: .*/, 'another table');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events}), 3000, 'the range stays');
like($node->safe_psql($db, q{SELECT kept_because FROM outbox.ranges() WHERE closed_at IS NOT NULL}), qr/retention is off|could not be archived/, 'outbox.ranges() says so');
is($clickhouse->query('SELECT count() FROM outbox_events FINAL'), 7, 'nothing has got there');
my @warnings = log_lines($node, 0, qr/WARNING: .*outbox range \d+ could not be archived/);
is(scalar(@warnings), 5, 'a warning each') or diag(join("\n", @warnings));

# Credentials of the user's .netrc.
append_to_file("$home/.netrc", "machine 127.0.0.1 login archive password $clickhouse->{password}\n");
chmod(0600, "$home/.netrc");
alter_system($node, "outbox.archive_url = 'http://127.0.0.1:$clickhouse->{port}/outbox_events'");
is(purge_all($node, $db), 'removed|3000|0|', 'a password in .netrc');
unlink("$home/.netrc");
check_complete('.netrc');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.archive_troubles'), 0, 'no trouble is left');

# ------------------------------------------------- the answer is lost, and others

my $via = "outbox.archive_url = '@{[$clickhouse->url(port => $proxy->port)]}'";
alter_system($node, $via);
fill(2000);
arm($node, $db, 'archive-sending');
my $session = begin_purge();
ok(wait_at_point($node, $db, 'archive-sending'), 'it is on its way');
my ($cleaner) = $node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'});
is($node->safe_psql($db, qq{SELECT string_agg(locktype || ' ' || objsubid, ', ') FROM pg_locks WHERE pid = $cleaner}), 'advisory 104', 'without a lock');
is($node->safe_psql($db, qq{SELECT count(*) FROM pg_stat_activity WHERE pid = $cleaner AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)}), 0, 'or a transaction');
$proxy->mode('delay');
release($node, $db, 'archive-sending');
ok(wait_until(60, sub { $clickhouse->query('SELECT count() FROM outbox_events FINAL') == 5007 }), 'ClickHouse has it');
$proxy->mode('cut');
$session->query_until(qr/over/, '');
$session->quit;
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events}), 2000, 'the answer is lost: the range stays');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.archive_troubles}), 1, 'with a reason');
$proxy->mode('forward');
is(purge_all($node, $db), 'removed|2000|0|', 'sent again, and removed');
is($clickhouse->query('SELECT count() >= 5007 FROM outbox_events'), 1, 'perhaps twice as it is');
check_complete('a lost answer');

# The server is killed while it is being sent; and the cleaner.
foreach my $victim (qw(clickhouse cleaner))
{
	fill(12000);
	arm($node, $db, 'archive-sending');
	$session = begin_purge();
	ok(wait_at_point($node, $db, 'archive-sending'), "$victim: it is on its way");
	if ($victim eq 'clickhouse')
	{
		$clickhouse->kill9;
		release($node, $db, 'archive-sending');
		$session->query_until(qr/over/, '');
		$session->quit;
		is_kept('ClickHouse is down', qr/.*/);
		$clickhouse->restart;
	}
	else
	{
		kill('KILL', $node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}));
		$session->{run}->finish;
		ok(wait_for_query($node, $db, 'SELECT true'), 'the server is back');
	}
	is($node->safe_psql($db, 'SELECT count(*) FROM outbox.events'), 12000, "$victim: killed: the range stays");
	like(purge_all($node, $db), qr/^removed\|12000\|0\|/, "$victim: and goes in the end");
	check_complete($victim);
}

# A server that stands still is waited for, and the wait ends when it is told to.
ok(wait_relay($node, $db, timeout => 60), 'a relay');
fill(100);
$clickhouse->freeze;
$session = begin_purge();
ok(wait_for_query($node, $db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}, expected => 1), 'a server that stands still');
$node->safe_psql($db, q{SELECT outbox.enqueue('order', '1', 'meanwhile', '1')});
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE event_type = 'meanwhile' AND publish_state = 'published'}, expected => 1), 'events go on');
$node->safe_psql($db, q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'});
ok(wait_for_query($node, $db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}, expected => 0, timeout => 10), 'the cleaner obeys');
$session->query_until(qr/over/, '');
$session->quit;
$clickhouse->thaw;

# ----------------------------------------------------------------------- both

my $directory = archive_directory();
alter_system($node, "outbox.archive_directory = '$directory'", "outbox.archive_url = '@{[$clickhouse->url(table => 'no_such_table')]}'");
$node->safe_psql($db, 'INSERT INTO sent SELECT position FROM outbox.events');
like(purge_all($node, $db), qr/^kept.*no_such_table/, 'both: the file is written, ClickHouse refuses');
my @files = glob("$directory/*.gz");
cmp_ok(scalar(@files), '>=', 1, 'both: the file is there');
my %written = map { $_ => (stat($_))[9] . ' ' . (stat($_))[1] } @files;
like(purge_all($node, $db), qr/^kept.*no_such_table/, 'both: again');
is_deeply({ map { $_ => (stat($_))[9] . ' ' . (stat($_))[1] } glob("$directory/*.gz") }, \%written, 'both: the file is not written again');
alter_system($node, $via);
like(purge_all($node, $db), qr/^removed/, 'both: removed when both have it');
check_complete('both');
is(scalar(archived_events($directory)), 101, 'both: the files have the same');
is(problems($node, $db), '', 'both: verify_archive() is content');

# --------------------------------------------------------------------- secrets

$node->safe_psql($db, 'CREATE ROLE nobody LOGIN; GRANT USAGE ON SCHEMA outbox TO nobody; GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO nobody; GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO nobody');
my ($code, $out, $err) = $node->psql($db, "SHOW ALL;\nSELECT * FROM pg_settings;\nSHOW outbox.archive_url;\nSELECT * FROM outbox.archives;\nSELECT * FROM outbox.ranges();\nSET outbox.archive_url = 'http://x/y';\n",
	on_error_stop => 0, extra_params => [ '-U', 'nobody' ]);
is_deeply([ grep { $_ =~ $secret } split(/\n/, "$out\n$err") ], [], 'nobody sees the password');
like($err, qr/permission denied to set parameter "outbox\.archive_url"/, 'or changes the URL');
is_deeply([ grep { !/parameter "outbox\.archive_url" changed to/ } log_lines($node, 0, $secret) ], [], 'the log has it only where the postmaster tells of settings');
($code, $out, $err) = $node->psql($db, q{SET outbox.archive_url = 'ftp://u:S3cret@h/t'});
like($err, qr/invalid value for parameter "outbox\.archive_url"\n/, 'a refused URL is not repeated');
unlike($err =~ s/^LINE.*//mr, $secret, 'nor its password');

check_no_crash($node, allow => qr/was terminated by signal 9/);
done_testing();
