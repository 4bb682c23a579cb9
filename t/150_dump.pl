# Dump and restore of a living database: everything that matters comes back, whether
# or not the library is preloaded, by whatever way; the restore makes no event, and
# publishes none, until outbox.arm(); then what was pending is published once.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxCopies;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
$nats->tool('create', 'IN', 'in.>');
my $dir = PostgreSQL::Test::Utils::tempdir('dump');
my $node = new_cluster('main', nats => $nats, create_extension => 0, extra => <<"CONF");
outbox.stream_create = off
outbox.archive_directory = '$dir/archive'
outbox.retention = -1
max_worker_processes = 20
log_statement = none
CONF
mkdir("$dir/archive") or die "could not make $dir/archive: $!";

sub sql { return $node->safe_psql($_[0], $_[1]) }

##########################################################################
# A database with everything in it.

sql('postgres', q{CREATE DATABASE app; ALTER DATABASE app SET outbox.retry_max_delay = '7s'});
sql('app', <<'SQL');
CREATE EXTENSION outbox;
CREATE TABLE orders (id int PRIMARY KEY, v text);
SELECT outbox.capture('orders', 'order'), outbox.guard('orders', 'order');
CREATE TABLE legacy (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text, payload jsonb);
SELECT outbox.adopt('legacy', 'debezium', backlog => 'false');
CREATE TABLE effects (payload jsonb);
CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO public.effects VALUES (m.payload);
	IF m.subject = 'in.bad' THEN RAISE EXCEPTION 'bad'; END IF;
END $$;
SELECT outbox.subscribe('IN', 'app', 'public.handle', max_attempts => 1);
SELECT outbox.inbox_accept('consumer', md5(i::text)::uuid) FROM generate_series(1, 50) i;
SELECT outbox.inbox_accept_version('consumer', gen_random_uuid(), 'a', '1', 1), outbox.inbox_configure('consumer', '60 days');
SELECT count(outbox.enqueue_text('early', (i % 10)::text, 'e', i::text)) FROM generate_series(1, 100) i;
INSERT INTO orders SELECT i, 'v' FROM generate_series(1, 20) i;
SQL
$nats->tool('publish', 'in.good', '{"n": 1}');
$nats->tool('publish', 'in.bad', '{"n": 2}');
ok(wait_published($node, 'app'), 'some are published');
is(sql('app', q{SELECT action FROM outbox.purge(older_than => '0') WHERE action = 'removed'}), 'removed', 'a range is archived and removed');
sql('app', <<'SQL');
SELECT outbox.pause(aggregate_type => 'held', reason => 'for the dump');
SELECT count(outbox.enqueue_text('held', (i % 5)::text, 'e', i::text)) FROM generate_series(1, 30) i;
SELECT count(outbox.enqueue_text('published', (i % 10)::text, 'e', i::text)) FROM generate_series(1, 50) i;
SELECT outbox.enqueue_text('dead', '1', 'e', repeat('x', 3000));
SELECT outbox.enqueue_text('waits', '1', 'e', 'x', subject => 'elsewhere.x');
INSERT INTO legacy (aggregatetype, aggregateid, type, payload) VALUES ('old', '1', 'made', '{}');
SELECT outbox.discard('wrong', event_id => (SELECT max(event_id::text)::uuid FROM outbox.events WHERE aggregate_type = 'held'));
SQL
ok(wait_for_query($node, 'app', q{SELECT string_agg(publish_state || ' ' || n, ', ' ORDER BY publish_state) = 'failed 2, pending 30, published 51'
	FROM (SELECT publish_state, count(*) AS n FROM outbox.events GROUP BY 1) e}), 'some are pending, some failed') or diag(sql('app', 'SELECT publish_state, aggregate_type, count(*) FROM outbox.events GROUP BY 1, 2'));
ok(wait_for_query($node, 'app', q{SELECT last_error ~ 'no stream' FROM outbox.events WHERE aggregate_type = 'waits'}), 'one is retried');
ok(wait_for_query($node, 'app', q{SELECT (SELECT count(*) FROM outbox.parked_messages) = 1 AND (SELECT count(*) FROM effects) = 1}), 'messages were handled, one is parked');
my $replay = sql('app', q{SELECT batch_id FROM outbox.replay(aggregate_type => 'published', target_stream => 'OUTBOX')});
ok(wait_for_query($node, 'app', "SELECT state = 'done' FROM outbox.replays WHERE batch_id = '$replay'"), 'there was a replay');

# ---- the dumps, of one moment

my $session = $node->background_psql('app', on_error_stop => 1);
my $snapshot = $session->query('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT pg_export_snapshot()');
my $expected = $session->query(contents());
my @dump = ('pg_dump', '-d', 'app', "--snapshot=$snapshot");
run_quietly($node, 'pg_dump, custom', @dump, '-Fc', '-C', '-f', "$dir/custom");
run_quietly($node, 'pg_dump, in parallel', @dump, '-Fd', '-j3', '-f', "$dir/directory");
$session->query('COMMIT');
$session->quit;
my @pending = ids_of($node, 'app', q{publish_state = 'pending'});
my $events = sql('app', 'SELECT count(*) FROM outbox.events');
# the original is lost
sql('postgres', 'DROP DATABASE app');
my $stored = $nats->info('OUTBOX')->{messages};
is(scalar(grep { /^(?:log_[0-7]|ledger_[0-7]|delivery|ring|purges|archives|pauses|inbox|subscription|capture_settings|guard_settings|parked_message)\|[1-9]/ } split(/\n/, $expected)),
	12, 'every kind of row is there') or diag($expected);

# What holds of any copy of it.
sub check_copy
{
	my ($db, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql($db, contents()), $expected, "$name: all tables and sequences");
	is(sql($db, 'SELECT count(*), bool_and(outbox.position_of(event_id) = position) FROM outbox.events'), "$events|t", "$name: no event was made, each is found by its id");
	is(sql($db, 'SELECT count(*), min(state) FROM outbox.captures'), '1|enabled', "$name: capture");
	is(sql($db, 'SELECT count(*), min(state) FROM outbox.guards'), '1|enabled', "$name: guard");
	is(sql($db, 'SELECT count(*), min(backlog) FROM outbox.adoptions'), '1|0', "$name: adoption");
	is(sql($db, 'SELECT count(*) FROM outbox.replays'), 0, "$name: no replay");
	isnt(why_not_armed($node, $db), '', "$name: not armed");
	return;
}

# Enqueueing, captures and adoptions work, one event each, at new positions.
sub check_enqueue
{
	my ($db, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql($db, <<'SQL'), 'made,order.created,own', "$name: new events, one each");
SET client_min_messages = error;
CREATE TEMP TABLE highest AS SELECT max(position) AS p FROM outbox.log;
BEGIN; INSERT INTO orders VALUES (100, 'new'); COMMIT;
INSERT INTO legacy (aggregatetype, aggregateid, type, payload) VALUES ('old', '2', 'made', '{}');
SELECT FROM outbox.enqueue('new', '1', 'own', '{}');
SELECT string_agg(event_type, ',' ORDER BY event_type) FROM outbox.events, highest WHERE position > p;
SQL
	return;
}

sub check_silence
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($nats->info('OUTBOX')->{messages}, $stored, "$name: nothing was published");
}

##########################################################################
# In parallel, while relays are at work as soon as the extension is there.

sql('postgres', 'CREATE DATABASE parallel');
run_quietly($node, 'pg_restore, in parallel', 'pg_restore', '-d', 'parallel', '-j3', "$dir/directory");
check_copy('parallel', 'in parallel');
check_enqueue('parallel', 'in parallel');
ok(wait_state($node, 'parallel', 'not armed', timeout => 60), 'the relay says so');
like(own_status($node, 'parallel')->{last_error}, qr/restore/, '... and why');
like(slurp_file($node->logfile), qr/outbox relay publishes nothing from database "parallel": .*\n.*HINT:.*outbox\.arm\(\)/, '... and the log what to do');
is(own_status($node, 'parallel')->{backlog}, '', 'what waits is unknown');
my @refused = ('SELECT outbox.claim()', q{SELECT outbox.purge(older_than => '0')}, 'SELECT outbox.flush()',
	q{SELECT outbox.replay(target_stream => 'OUTBOX')});
is_deeply([ map { $_->[0] . ($_->[1] =~ /not armed/ && $_->[1] =~ /outbox\.arm\(\)/ ? '' : $_->[1]) } sqlstates($node, 'parallel', @refused) ],
	[ ('55000') x @refused ], 'what would act is refused');
ok(wait_for_query($node, 'parallel', q{SELECT pid IS NULL AND last_error ~ 'not armed' FROM outbox.subscriptions}), 'the subscription waits, too');
check_silence('in parallel');

is(sql('parallel', 'SELECT outbox.arm()'), 't', 'outbox.arm()');
@pending = (@pending, ids_of($node, 'parallel', q{event_type IN ('own', 'order.created') AND aggregate_id IN ('1', '100')}));
sql('parallel', 'SELECT outbox.resume(aggregate_type => \'held\')');
$nats->tool('update', 'OUTBOX', 'outbox.>,elsewhere.>');
ok(wait_published($node, 'parallel'), 'then everything is published');
is_stored_once($nats, 'once', @pending);
is($nats->info('OUTBOX')->{messages}, $stored + 30 + 3, 'and nothing else');
$nats->tool('publish', 'in.good', '{"n": 3}');
ok(wait_for_query($node, 'parallel', 'SELECT count(*) = 2 FROM effects'), 'messages are handled again, only new ones');
is(sql('parallel', q{SELECT outbox.inbox_accept('consumer', md5('1')::uuid)}), 'f', 'the inbox remembers');
like(($node->psql('parallel', q{ALTER TABLE orders DISABLE TRIGGER USER; ALTER TABLE orders ENABLE TRIGGER outbox_guard_000001_row; INSERT INTO orders VALUES (200, '')}))[2],
	qr/without enqueuing an event/, 'the guard guards');
is(sql('parallel', q{SELECT outbox.redrive(aggregate_type => 'dead')}), 1, 'a dead letter can be redriven');
sql('parallel', 'SET client_min_messages = error; DROP EXTENSION outbox CASCADE');
$stored = $nats->info('OUTBOX')->{messages};

##########################################################################
# By sections, the data without triggers, onto relays at work.

sql('postgres', 'CREATE DATABASE sections');
run_quietly($node, 'pg_restore, sections', 'pg_restore', '-d', 'sections', '--section=pre-data', "$dir/custom");
ok(wait_relay($node, 'sections', timeout => 60), 'an empty one is a new installation');
run_quietly($node, 'pg_restore, data only', 'pg_restore', '-d', 'sections', '--data-only', '--disable-triggers', "$dir/custom");
run_quietly($node, 'pg_restore, post-data', 'pg_restore', '-d', 'sections', '--section=post-data', "$dir/custom");
check_copy('sections', 'sections');
check_silence('sections');

##########################################################################
# Into a server that hasn't preloaded the library.

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
run_quietly($node, 'pg_restore, not preloaded', 'pg_restore', '-d', 'postgres', '-C', "$dir/custom");
check_copy('app', 'not preloaded');
is(sql('postgres', q{SELECT setconfig FROM pg_db_role_setting s JOIN pg_database d ON d.oid = s.setdatabase WHERE datname = 'app'}), '{outbox.retry_max_delay=7s}', 'with the database, its settings');
check_enqueue('app', 'not preloaded');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'");
$node->restart;
ok(wait_state($node, 'app', 'not armed', timeout => 60), 'preloaded: not armed');
ok(wait_state($node, 'sections', 'not armed', timeout => 60), 'the one by sections neither');
check_silence('preloaded');
is(sql('app', 'SELECT outbox.arm()'), 't', 'armed');
ok(wait_for_query($node, 'app', q{SELECT publish_state = 'published' FROM outbox.events WHERE event_type = 'own'}), 'it publishes');
is(sql('app', q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'held' AND publish_state = 'pending'}), 29, 'but what is paused');

check_no_crash($node);
done_testing();
