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
$node->safe_psql('postgres', join(';', map { q{SELECT outbox.enqueue('order', (i % 10)::text, 'order.placed', jsonb_build_object('i', i))}
	. " FROM generate_series($_ * 10 + 991, $_ * 10 + 1000) i" } 1 .. 20));
ok(wait_for_query($node, $db, 'SELECT count(*) = 1200 FROM app.effects'), 'and those that come later');
is($node->safe_psql($db, 'SELECT count(DISTINCT event_id), min(i), max(i), min(who), max(who), max(attempt) FROM app.effects'), '1200|1|1200|app|app|1',
	'each once, by the role who subscribed');
is($node->safe_psql($db, 'SELECT count(*) FROM (SELECT i < lag(i) OVER (PARTITION BY aggregate ORDER BY n) AS wrong FROM app.effects) x WHERE wrong'), 0,
	'in order within each aggregate');
ok(wait_for_query($node, $db, q{SELECT state = 'active' AND position = 1200 AND held = 0 AND applied = 1200 AND duplicates = 0 AND failures = 0
	AND last_error IS NULL AND run_as = 'app' AND handler = 'app.handle' FROM outbox.subscriptions}), 'the view says so') or diag(shown('*'));
# A bad message: its aggregate waits, others go on; then it is parked, and its aggregate goes on.
$node->safe_psql($db, q{INSERT INTO app.bad VALUES ('order.bad')});
# In one session: else a slow machine may have parked the first before the last is there.
my ($bad) = split(/\n/, $node->safe_psql('postgres', q{
	SELECT outbox.enqueue('order', '1', 'order.bad', '{"i": 2000}');
	SELECT outbox.enqueue('order', '1', 'order.behind', '{"i": 2001}');
	SELECT outbox.enqueue('order', '2', 'order.beside', '{"i": 2002}')}));
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

# Messages of others: no CloudEvents, no JSON, nothing valid, an id that is no UUID.
$nats->tool('update', 'OUTBOX', 'outbox.>,foreign.>');
$node->safe_psql($db, q{CREATE TABLE app.foreign_messages (n bigserial, m outbox.message); ALTER TABLE app.foreign_messages OWNER TO app;
	CREATE OR REPLACE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE sql AS $$ INSERT INTO app.foreign_messages (m) VALUES (m) $$});
$nats->tool('publish', 'foreign.plain', 'plain text');
$nats->tool('publish', 'foreign.broken', "\xff\xfe{", '-H', "X-Odd=\xff\xe9t\xc3\xa9", '-H', 'ce-id=number 1', '-H', 'ce-source=/s', '-H', 'ce-subject=%C3%A9%2', '-H', 'ce-aggregateversion=x');
$nats->tool('publish', 'foreign.again', '[1]', '-H', 'ce-id=number 1', '-H', 'ce-source=/s');
$nats->tool('publish', 'foreign.another', '[1, "\u00e9"]', '-H', 'ce-id=number 1', '-H', 'ce-source=/t', '-H', 'ce-datacontenttype=application/json', '-H', 'ce-aggregateversion=7');
$nats->tool('publish', 'foreign.empty', '', '-H', 'ce-datacontenttype=text/plain');
ok(wait_for_query($node, $db, q{SELECT position = 1208 FROM outbox.subscriptions}), 'foreign messages') or diag(shown('*'));
is($node->safe_psql($db, q{SELECT (m).subject, (m).payload, (m).aggregate_id, (m).aggregate_version, length((m).data), (m).event_id = md5('/s number 1')::uuid FROM app.foreign_messages ORDER BY n}),
	"foreign.plain||||10|f\nforeign.broken||\xc3\xa9%2||3|t\nforeign.another|[1, \"\xc3\xa9\"]||7|13|f\nforeign.empty||||0|f",
	'what can be told of them is told');
is($node->safe_psql($db, q{SELECT (m).headers ->> 'X-Odd', (m).stream, (m).stream_sequence, (m).published_at > now() - interval '10 minutes' FROM app.foreign_messages WHERE (m).subject = 'foreign.broken'}),
	'??t??|OUTBOX|1205|t', 'also of a broken one');
is(shown('duplicates'), 1, 'a repetition is a duplicate');

# What is not a message's fault doesn't count: a conflict, a handler that is missing or forbidden.
$node->safe_psql($db, q{CREATE OR REPLACE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS
	$$ BEGIN RAISE EXCEPTION 'conflict' USING ERRCODE = 'serialization_failure'; END $$});
$nats->tool('publish', 'foreign.conflict', '1');
ok(wait_for_query($node, $db, q{SELECT failures >= 9 + 12 AND last_error = 'conflict' FROM outbox.subscriptions}), 'a conflict is tried again and again');
is($node->safe_psql($db, 'SELECT attempts FROM outbox.subscription_failure'), 0, '... and not counted');
$node->safe_psql($db, 'ALTER FUNCTION app.handle RENAME TO gone');
ok(wait_for_query($node, $db, q{SELECT failures >= 21 + 12 AND last_error ~ 'does not exist' FROM outbox.subscriptions}), 'nor is a handler that is missing') or diag(shown('*'));
$node->safe_psql($db, q{ALTER FUNCTION app.gone RENAME TO handle; ALTER FUNCTION app.handle OWNER TO CURRENT_USER; REVOKE EXECUTE ON FUNCTION app.handle FROM PUBLIC, app});
ok(wait_for_query($node, $db, q{SELECT last_error ~ 'permission denied' FROM outbox.subscriptions}), 'nor one that is forbidden') or diag(shown('*'));
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.parked_messages'), 0, 'nothing is parked for that');

# A deferred constraint, a timeout: the message's fault. Another one in the same transaction is not harmed.
$node->safe_psql($db, q{
	CREATE TABLE app.parent (id int PRIMARY KEY);
	CREATE TABLE app.child (id int REFERENCES app.parent DEFERRABLE INITIALLY DEFERRED, who text DEFAULT current_user);
	CREATE TABLE app.watch (who text, path text);
	CREATE FUNCTION app.watch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO app.watch VALUES (current_user, current_setting('search_path')); RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER w AFTER INSERT ON app.child DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.watch();
	ALTER TABLE app.parent OWNER TO app;
	ALTER TABLE app.child OWNER TO app;
	ALTER TABLE app.watch OWNER TO app;
	ALTER ROLE app SET statement_timeout = '500ms';
	CREATE OR REPLACE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		SET search_path = app;
		SET CONSTRAINTS ALL DEFERRED;
		IF m.subject ~ 'orphan' THEN
			INSERT INTO child VALUES (m.stream_sequence);
		ELSIF m.subject ~ 'slow' THEN
			PERFORM pg_sleep(60);
		ELSE
			INSERT INTO child VALUES (m.stream_sequence);
			INSERT INTO parent VALUES (m.stream_sequence);
		END IF;
	END $$;
	GRANT EXECUTE ON FUNCTION app.handle TO app});
as_app(q{SELECT outbox.subscribe('OUTBOX', 'app', 'app.handle', max_attempts => 2)});
$nats->tool('publish', "foreign.$_", '1') foreach qw(good1 orphan1 good2 slow1 good3);
ok(wait_for_query($node, $db, q{SELECT position = 1214 AND held = 0 FROM outbox.subscriptions}), 'constraints and timeouts') or diag(shown('*'));
is($node->safe_psql($db, q{SELECT subject, attempts, error_code FROM outbox.parked_messages ORDER BY 1}), "foreign.orphan1|2|23503\nforeign.slow1|2|57014", 'the right ones are parked');
is($node->safe_psql($db, 'SELECT count(*), min(who), max(who) FROM app.child JOIN app.parent USING (id)'), '4|app|app', 'the others are handled');
is($node->safe_psql($db, 'SELECT DISTINCT who FROM app.watch'), 'app', 'deferred triggers have the role\'s rights');
is(as_app(q{SELECT outbox.discard_parked('OUTBOX', 'app')}), 2, 'discarded');

# Pause and resume; another handler; unsubscribe.
is(as_app(q{SELECT outbox.pause_subscription('OUTBOX', 'app')}), 't', 'paused');
ok(wait_for_query($node, $db, q{SELECT state = 'paused' AND pid IS NULL FROM outbox.subscriptions}), 'no consumer is at work');
$nats->tool('publish', 'foreign.good4', '1');
is(as_app(q{SELECT outbox.resume_subscription('OUTBOX', 'app')}), 't', 'resumed');
ok(wait_for_query($node, $db, q{SELECT position = 1215 AND state = 'active' FROM outbox.subscriptions}), 'it goes on where it was');
is($node->safe_psql($db, 'SELECT count(*), count(DISTINCT id) FROM app.parent'), '5|5', 'nothing twice');
as_app(q{SELECT outbox.unsubscribe('OUTBOX', 'app')});
ok(wait_for_query($node, $db, q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'outbox consumer')}), 'unsubscribed: the consumer has gone');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.subscriptions, outbox.subscription_position'), 0, 'nothing is left of it');

# Subscribed again it goes on where it was; by a filter. From the beginning: the inbox knows.
as_app(q{SELECT outbox.subscribe('OUTBOX', 'app', 'app.handle', subject => 'foreign.>')});
$nats->tool('publish', 'foreign.good5', '1');
ok(wait_for_query($node, $db, q{SELECT position = 1216 AND applied = 1 AND duplicates = 0 FROM outbox.subscriptions}), 'subscribed again') or diag(shown('*'));
as_app(q{SELECT outbox.pause_subscription('OUTBOX', 'app')});
ok(wait_for_query($node, $db, q{SELECT pid IS NULL FROM outbox.subscriptions}), 'idle');
$node->safe_psql($db, 'UPDATE outbox.subscription_position SET stream_sequence = 0');
as_app(q{SELECT outbox.resume_subscription('OUTBOX', 'app')});
ok(wait_for_query($node, $db, q{SELECT position = 1216 AND applied = 1 AND duplicates = 13 FROM outbox.subscriptions}), 'from the beginning: all known') or diag(shown('*'));
as_app(q{SELECT outbox.unsubscribe('OUTBOX', 'app', forget => true); SELECT outbox.subscribe('OUTBOX', 'new', 'app.handle', from_now => true)});
ok(wait_for_query($node, $db, q{SELECT state = 'active' FROM outbox.subscriptions}), 'from now on');
$nats->tool('publish', 'foreign.good6', '1');
ok(wait_for_query($node, $db, q{SELECT position = 1217 AND applied = 1 AND duplicates = 0 FROM outbox.subscriptions}), 'only what is new') or diag(shown('*'));

# What "now" was stays so: for what came before the first connection, and when the subscription is changed before anything was handled.
$node->safe_psql($db, q{CREATE OR REPLACE FUNCTION app.handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'never'; END $$});
as_app(q{BEGIN; SELECT outbox.subscribe('OUTBOX', 'late', 'app.handle', from_now => true, max_attempts => 1000); SELECT outbox.pause_subscription('OUTBOX', 'late'); COMMIT});
$nats->tool('publish', 'foreign.late1', '1');
as_app(q{SELECT outbox.resume_subscription('OUTBOX', 'late')});
ok(wait_for_query($node, $db, q{SELECT failures > 0 AND position = 1217 FROM outbox.subscriptions WHERE durable = 'late'}), 'from the call on, though connected later')
  or diag(shown('*'));
$nats->tool('publish', 'foreign.late2', '1');
foreach my $change (q{max_attempts => 1000}, q{max_attempts => 1000, subject => 'foreign.>'}, q{max_attempts => 1})
{
	as_app("SELECT outbox.subscribe('OUTBOX', 'late', 'app.handle', $change)");
	ok(wait_for_query($node, $db, q{SELECT failures > 0 AND held > 0 OR position = 1219 FROM outbox.subscriptions WHERE durable = 'late'}), "changed: $change") or diag(shown('*'));
}
ok(wait_for_query($node, $db, q{SELECT position = 1219 FROM outbox.subscriptions WHERE durable = 'late'}), 'all is given up') or diag(shown('*'));
is($node->safe_psql($db, q{SELECT count(*), string_agg(subject, ' ' ORDER BY id) FILTER (WHERE id > (SELECT max(id) - 2 FROM outbox.parked_messages)) FROM outbox.parked_messages WHERE durable = 'late'}),
	'2|foreign.late1 foreign.late2', '... and nothing older');
as_app(q{SELECT outbox.unsubscribe('OUTBOX', 'late', forget => true)});

# Errors of the call.
my @refused = (
	[ q{'OUTBOX', 'x', 'app.none'} => '42883' ], [ q{'OUTBOX', 'x', 'pg_catalog.now'} => '42P13' ], [ q{'OUT.BOX', 'x', 'app.handle'} => '22023' ],
	[ q{'OUTBOX', 'x*', 'app.handle'} => '22023' ], [ q{'OUTBOX', 'x', 'app.handle', subject => 'a..b'} => '22023' ],
	[ q{'OUTBOX', 'x', 'app.handle', batch_size => 0} => '22023' ], [ q{'OUTBOX', 'x', 'app.handle', ack_wait => '1 ms'} => '22023' ],
	[ q{'OUTBOX', NULL, 'app.handle'} => '22004' ], [ q{'OUTBOX', 'x', 'app.handle', run_as => 'pg_monitor'} => '28000' ]);
my @states = sqlstates($node, $db, map { "SELECT outbox.subscribe($_->[0])" } @refused);
is_deeply([ map { $_->[0] } @states ], [ map { $_->[1] } @refused ], 'refused') or diag(explain(\@states));
my ($code, $out, $err) = $node->psql($db, q{SET SESSION AUTHORIZATION app; SELECT outbox.subscribe('OUTBOX', 'x', 'app.handle', run_as => 'postgres')});
like($err, qr/must be a member of role/, 'not as somebody else');
$node->safe_psql($db, q{CREATE ROLE other LOGIN; GRANT USAGE ON SCHEMA outbox TO other; GRANT EXECUTE ON FUNCTION outbox.unsubscribe TO other});
($code, $out, $err) = $node->psql($db, q{SET SESSION AUTHORIZATION other; SELECT outbox.unsubscribe('OUTBOX', 'new')});
like($err, qr/belongs to another role/, 'nor another role\'s');

# A copy of the database leaves the messages to the original.
as_app(q{SELECT outbox.pause_subscription('OUTBOX', 'new')});
ok(wait_for_query($node, $db, q{SELECT pid IS NULL FROM outbox.subscriptions}), 'idle');
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE consumer');
$node->safe_psql('copy', q{UPDATE outbox.subscription SET paused = false; SELECT outbox.tell_consumers(true)});
ok(wait_for_query($node, 'copy', q{SELECT pid IS NULL AND last_error ~ 'this database is a copy' FROM outbox.subscriptions}), 'a copy does not subscribe');
check_no_crash($node);
done_testing();
