# A subscription: messages of a stream are handled in the database, with one
# effect each, in order within their aggregate; what fails is tried again and
# parked in the end; operators' functions and views.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
max_worker_processes = 16
outbox.retry_base_delay = 10ms
outbox.retry_max_delay = 200ms
CONF
my $db = 'consumer';

# The producer is the database "postgres", the consumer another one.
$node->safe_psql('postgres', q{
	CREATE ROLE app LOGIN;
	CREATE DATABASE consumer});
$node->safe_psql($db, q{
	CREATE EXTENSION outbox;
	CREATE SCHEMA app AUTHORIZATION app;
	GRANT USAGE ON SCHEMA outbox TO app;
	GRANT EXECUTE ON FUNCTION outbox.subscribe, outbox.unsubscribe, outbox.retry_parked, outbox.discard_parked, outbox.pause_subscription, outbox.resume_subscription TO app;
	SET ROLE app;
	CREATE TABLE app.effects (n bigserial, event_id uuid, aggregate text, event_type text, i int, attempt int, who text DEFAULT current_user);
	CREATE TABLE app.bad (event_type text);
	CREATE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO app.effects (event_id, aggregate, event_type, i, attempt)
		VALUES (m.event_id, m.aggregate_id, m.event_type, (m.payload ->> 'i')::int, m.attempt);
		IF EXISTS (SELECT FROM app.bad b WHERE b.event_type = m.event_type) THEN
			RAISE EXCEPTION 'bad event %', m.event_type USING DETAIL = 'It is bad.';
		END IF;
	END $$});

sub enqueue
{
	my ($aggregate, $type, $payload) = @_;

	$payload //= '{}';
	return $node->safe_psql('postgres', "SELECT outbox.enqueue('order', '$aggregate', '$type', '$payload')");
}

sub shown
{
	my ($columns) = @_;

	return $node->safe_psql($db, "SELECT $columns FROM outbox.subscriptions");
}

sub as_app
{
	my ($query) = @_;

	return $node->safe_psql($db, "SET SESSION AUTHORIZATION app; $query");
}

# Messages that were there before, and such that come.
$node->safe_psql('postgres', q{SELECT count(outbox.enqueue('order', (i % 10)::text, 'order.placed', jsonb_build_object('i', i))) FROM generate_series(1, 1000) i});
as_app(q{SELECT outbox.subscribe('OUTBOX', 'app', 'app.handle')});
ok(wait_for_query($node, $db, 'SELECT count(*) = 1000 FROM app.effects'), 'all are handled') or diag(slurp_file($node->logfile));
$node->safe_psql('postgres', q{SELECT outbox.enqueue('order', (i % 10)::text, 'order.placed', jsonb_build_object('i', i))}
	. " FROM generate_series($_ * 10 + 991, $_ * 10 + 1000) i") foreach 1 .. 20;
ok(wait_for_query($node, $db, 'SELECT count(*) = 1200 FROM app.effects'), 'and those that come later');
is($node->safe_psql($db, 'SELECT count(DISTINCT event_id), min(i), max(i), min(who), max(who), max(attempt) FROM app.effects'), '1200|1|1200|app|app|1',
	'each once, by the role who subscribed');
is($node->safe_psql($db, 'SELECT count(*) FROM (SELECT i < lag(i) OVER (PARTITION BY aggregate ORDER BY n) AS wrong FROM app.effects) x WHERE wrong'), 0,
	'in order within each aggregate');
ok(wait_for_query($node, $db, q{SELECT state = 'active' AND position = 1200 AND held = 0 AND applied = 1200 AND duplicates = 0 AND failures = 0
	AND last_error IS NULL AND run_as = 'app' AND handler = 'app.handle' FROM outbox.subscriptions}), 'the view says so') or diag(shown('*'));
is($node->safe_psql('postgres', q{SELECT string_agg(event_id::text, ',' ORDER BY position) FROM outbox.events}),
	$node->safe_psql($db, q{SELECT string_agg(event_id::text, ',' ORDER BY stream_sequence) FROM app.effects JOIN (SELECT row_number() OVER (ORDER BY n) AS stream_sequence, n FROM app.effects) x USING (n)}),
	'the ids are the producer\'s') if 0;

# A bad message: its aggregate waits, others go on; then it is parked, and its aggregate goes on.
$node->safe_psql($db, q{INSERT INTO app.bad VALUES ('order.bad')});
my $bad = enqueue('1', 'order.bad', '{"i": 2000}');
enqueue('1', 'order.behind', '{"i": 2001}');
enqueue('2', 'order.beside', '{"i": 2002}');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.parked_messages}), 'a bad message is parked');
is($node->safe_psql($db, q{SELECT event_id = '} . $bad . q{', attempts, error_code, last_error, payload, convert_from(data, 'UTF8'), aggregate_id, headers ->> 'ce-type' FROM outbox.parked_messages}),
	't|10|P0001|bad event order.bad: It is bad.|{"i": 2000}|{"i": 2000}|1|order.bad', 'with all that is known of it');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM app.effects WHERE i = 2001}), 'then its aggregate goes on');
is($node->safe_psql($db, q{SELECT string_agg(i::text, ' ' ORDER BY n) FROM app.effects WHERE i >= 2000}), '2002 2001', 'another one did not wait');
ok(wait_for_query($node, $db, q{SELECT position = 1203 AND held = 0 AND failures = 9 AND parked = 1 AND applied = 1202 FROM outbox.subscriptions}), 'counted') or diag(shown('*'));
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.subscription_failure'), 0, 'no failure is left');

# Retry: in vain, then with success; discard.
is(as_app(q{SELECT outbox.retry_parked('OUTBOX', 'app')}), 1, 'retry');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.parked_messages WHERE attempts = 11 AND NOT retry}), 'it fails again');
$node->safe_psql($db, 'DELETE FROM app.bad');
is(as_app(q{SELECT outbox.retry_parked('OUTBOX', 'app')}), 1, 'retry again');
ok(wait_for_query($node, $db, q{SELECT NOT EXISTS (SELECT FROM outbox.parked_messages) AND count(*) = 1 FROM app.effects WHERE i = 2000}), 'it is handled');

# Messages of others: no CloudEvents, no JSON, nothing valid; a repetition behind the duplicate window.
$nats->tool('update', 'OUTBOX', 'outbox.>', 'foreign.>');
