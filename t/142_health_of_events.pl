# outbox.health(): each reason that lies in events, transactions, retention,
# replays, captures, adoptions and subscriptions is provoked, named, and gone
# again, some by the remedy itself. The trace context of an event on all its way.

use strict;
use warnings;

use OutboxHealth;
use OutboxLife;
use OutboxReplay;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $trace = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
my $nats = OutboxNats->start(max_payload => 4096);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
max_worker_processes = 16
outbox.retry_base_delay = 20ms
outbox.retry_max_delay = 200ms
outbox.max_attempts = 1
outbox.poison_policy = block
CONF
create_health_waits($node, $db);

sub ask { return $node->safe_psql($db, $_[0]) }
sub enqueue { return ask("SELECT outbox.enqueue('order', '$_[0]', 'placed', '{}')") }
healthy('at the start');

# --- refused: blocks its aggregate, and is a dead letter; sent again, it has its trace still
ask(qq{SET outbox.traceparent = '$trace'; SET outbox.tracestate = 'a=1'; SELECT outbox.enqueue_text('big', '1', 'x', repeat('x', 9000))});
reason('critical', 'aggregates_blocked', '1 aggregates wait for a failed event, the first since \d');
reason('warning', 'dead_letters', '1 events are dead letters; the last error: .*payload');
$nats->write_config(max_payload => 65536);
$nats->restart;
ok(wait_for_query($node, $db, 'SELECT sum(connects) = 2 FROM outbox.stat_relays'), 'connected anew');
is(ask('SELECT outbox.redrive()'), '1', 'redriven');
healthy('published');
is_deeply([ map { join(' ', @{ $_->{headers} }{qw(traceparent tracestate ce-traceparent)}) } grep { $_->{subject} =~ /big/ } $nats->dump('OUTBOX') ], [ "$trace a=1 $trace" ],
	'with the trace context of the enqueue');

# --- put off, for as long as nothing takes its subject
my $id = ask(q{SELECT outbox.enqueue('order', 'lost', 'placed', '{}', subject => 'nowhere.at.all')});
reason('warning', 'events_retried', '1 events wait for another attempt; the last error: .');
ask("SELECT outbox.discard('a test', event_id => '$id')");
healthy('discarded');

# --- so many that health() doesn't count them all
ask(q{INSERT INTO outbox.delivery (position, agg_hash, state, attempts, last_code, last_error, failed_at)
	SELECT 1000000 + i, i, CASE WHEN i <= 1200 THEN 'b' ELSE 'f' END, 1, 0, 'one of many', now() FROM generate_series(1, 2500) i});
reason('critical', 'aggregates_blocked', 'at least 1000 aggregates wait for a failed event, the first since \d');
reason('warning', 'dead_letters', 'at least 1000 events are dead letters; the last error: one of many');
is(ask(q{SELECT dead_letters, blocked_aggregates, retried, last_error FROM outbox.trouble()}), '2500|1200|0|one of many', 'trouble() does');
ask(q{DELETE FROM outbox.delivery WHERE last_error = 'one of many'});
healthy('none of them');

# --- operators, and what their pause leads to
ask(q{SELECT outbox.pause(aggregate_type => 'order', reason => 'a test')});
reason('warning', 'paused', 'aggregate type "order" is paused since .*: a test');
is(remedy('paused', run => 1), q{SELECT outbox.resume(aggregate_type => 'order'); -- See docs/failures.md, "Paused".}, 'the remedy is a statement');
ask(q{SELECT outbox.pause()});
reason('warning', 'paused', 'publishing of everything');
enqueue(3);
alter_system($node, 'outbox.max_pending = 1');
reason('critical', 'max_pending_reached', 'and outbox.max_pending is 1');
alter_system($node, 'outbox.max_pending = 0');
remedy('paused', run => 1);
healthy('resumed');

# --- what refuses every event
ask(q{ALTER TABLE outbox.log_3 ENABLE ROW LEVEL SECURITY});
reason('critical', 'enqueue_refused', 'outbox.log_3: has triggers or row-level security');
ask(q{ALTER TABLE outbox.log_3 DISABLE ROW LEVEL SECURITY});
healthy('allowed');

# --- transactions that stay open
my $session = $node->background_psql($db);
alter_system($node, "outbox.lag_warning = '80ms'");
$session->query_safe(q{BEGIN; SELECT outbox.enqueue('order', 'open', 'placed', '{}')});
reason('warning', 'transaction_open', 'process \d+ .* has enqueued in a transaction that is open since');
reason('warning', 'snapshot_held', 'process \d+ .* holds a snapshot or an id since');
$session->query_safe(q{PREPARE TRANSACTION 'left behind'});
reason('warning', 'transaction_open', 'the prepared transaction "left behind"');
reason('warning', 'snapshot_held', 'the prepared transaction "left behind"');
$session->query_safe(q{COMMIT PREPARED 'left behind'});
$session->query_safe(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1});
reason('warning', 'snapshot_held', 'process \d+ .* holds a snapshot or an id since');
is(ask(q{SELECT count(*) FROM outbox.health() WHERE reason = 'transaction_open'}), '0', 'one that only reads holds up no event');
$session->query_safe('COMMIT');
alter_system($node, "outbox.lag_warning = '5min'");
healthy('committed');

# --- old events that can't be removed, or not be archived
$session->query_safe(q{BEGIN; SELECT count(*) FROM outbox.log_0});
ask(q{INSERT INTO outbox.ring VALUES (0, 1, now() - interval '9 days', now() - interval '8 days', NULL), (1, 2, now() - interval '8 days', NULL, NULL)});
alter_system($node, "outbox.retention = '1h'");
reason('warning', 'retention_held_up', 'are still there: ');
$session->query_safe('COMMIT');
$session->quit;
ask('TRUNCATE outbox.ring');
# these rows came past enqueue(), like those of a restore
ask('SELECT outbox.arm()');
healthy('nothing is kept too long');
my $archive = PostgreSQL::Test::Utils::tempdir('archive');
alter_system($node, "outbox.retention = '7d'", "outbox.archive_directory = '$archive/missing'");
enqueue(5);
ok(wait_published($node, $db), 'published');
ask(q{SELECT outbox.purge(older_than => '0')});
reason('warning', 'archive_failing', 'range \d+, 1 failures since .*missing');
mkdir("$archive/missing");
ask(q{SELECT outbox.purge(older_than => '0')});
healthy('archived');

# --- replays: one that fails, one that nobody works on
$id = start_replay($node, $db, q{query => 'SELECT * FROM nothing', target_stream => 'OUTBOX'});
reason('warning', 'replay_stopped', "replay $id is stopped behind position 0, .*\"nothing\" does not exist");
like(remedy('replay_stopped'), qr/SELECT outbox.replay_resume\('$id'\)/, 'the remedy has its id');
ask("SELECT outbox.replay_cancel('$id')");
healthy('cancelled');
ask(qq{UPDATE outbox.replay_job SET state = 'queued', requested_at = now() - interval '2 min', updated_at = NULL, last_error = NULL WHERE batch_id = '$id'});
reason('warning', 'replay_stopped', "replay $id is queued");
ask("SELECT outbox.replay_cancel('$id')");
healthy('cancelled');

# --- captures, guards, adoptions
ask(q{
	CREATE TABLE item (id int PRIMARY KEY);
	SELECT outbox.capture('item');
	CREATE TABLE part (id int PRIMARY KEY) PARTITION BY LIST (id);
	CREATE TABLE part_1 PARTITION OF part DEFAULT;
	SELECT outbox.capture('part');
	CREATE TABLE watched (id int PRIMARY KEY);
	SELECT outbox.guard('watched');
	CREATE TABLE outboxevent (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload jsonb);
	SELECT outbox.adopt('outboxevent', 'debezium', backlog => 'false')});
healthy('all enabled');
foreach (
	[ 'item', 'critical', 'capture_broken', 'public.item: triggers of capture "main": disabled' ],
	[ 'part_1', 'critical', 'capture_broken', 'public.part_1: triggers of public.part are disabled in this partition' ],
	[ 'watched', 'warning', 'guard_broken', 'public.watched: triggers of guard "main": disabled' ],
	[ 'outboxevent', 'critical', 'adoption_disabled', 'the trigger of table public.outboxevent is disabled' ])
{
	my ($table, @expected) = @$_;

	ask("ALTER TABLE $table DISABLE TRIGGER USER");
	reason(@expected);
	ask("ALTER TABLE $table ENABLE TRIGGER USER");
}
healthy('all enabled again');

# --- subscriptions. Their messages have the trace context, too, however often they are handled
ask(q{
	CREATE TABLE handled (trace text);
	CREATE FUNCTION handle(m outbox.message) RETURNS void BEGIN ATOMIC INSERT INTO handled VALUES (m.headers ->> 'traceparent'); END;
	SELECT outbox.subscribe('OUTBOX', 'health', 'public.handle', subject => 'outbox.order.>', max_attempts => 1000)});
healthy('subscribed');
ok(wait_for_query($node, $db, 'SELECT pending + held = 0 AND applied > 0 FROM outbox.subscriptions'), 'what is there is handled');
ask(q{
	CREATE OR REPLACE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		RAISE EXCEPTION 'not today';
	END $$});
ask(qq{SELECT outbox.enqueue('order', 'traced', 'placed', '{}', headers => '{"traceparent": "$trace"}')});
reason('warning', 'subscription_failing', 'subscription OUTBOX/health: 1 messages wait for another attempt; the last error: .*not today');
ask(q{SELECT outbox.subscribe('OUTBOX', 'health', 'public.handle', subject => 'outbox.order.>', max_attempts => 1)});
reason('warning', 'messages_parked', 'subscription OUTBOX/health: 1 messages are parked');
ask(q{
	CREATE OR REPLACE FUNCTION handle(m outbox.message) RETURNS void BEGIN ATOMIC INSERT INTO handled VALUES (m.headers ->> 'traceparent'); END;
	SELECT outbox.retry_parked('OUTBOX', 'health')});
healthy('handled');
is(ask('SELECT string_agg(trace, $$,$$) FROM handled WHERE trace IS NOT NULL'), $trace, 'with the trace context of the enqueue');
ask(q{SELECT outbox.pause_subscription('OUTBOX', 'health')});
reason('warning', 'subscription_paused', 'subscription OUTBOX/health is paused');
is(remedy('subscription_paused', run => 1), q{SELECT outbox.resume_subscription('OUTBOX', 'health'); -- See docs/failures.md, "Paused".}, 'the remedy is a statement');
healthy('resumed');
$nats->stop;
reason('critical', 'subscription_stopped', 'subscription OUTBOX/health is not connected since');
$nats->restart;
healthy('connected');

is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
check_no_crash($node);
done_testing();
