# What the views of counters, latencies and throughput say of a known load, with
# errors, across a reset; what reading them costs, and that it waits for nobody.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $nats = OutboxNats->start(max_payload => 4096);
my $node = new_cluster('main', nats => $nats, extra => "outbox.retry_base_delay = 20ms\noutbox.retry_max_delay = 200ms\noutbox.ack_timeout = 60s\n");

sub ask { return $node->safe_psql($db, $_[0]) }

sub figures
{
	my ($stage, $columns) = @_;

	return split(/\|/, ask("SELECT $columns FROM outbox.latency WHERE stage = '$stage'"));
}

wait_relay($node, $db);
ask(q{SELECT outbox.enqueue('order', i::text, 'placed', '{"n":1}') FROM generate_series(1, 30) i});
ask(q{SELECT outbox.enqueue('account', '1', 'opened', '{}')}) foreach 1 .. 10;
ask(q{SELECT outbox.enqueue_text('big', '1', 'x', repeat('x', 9000))});
ok(wait_published($node, $db), 'published');

# --- counters
is(ask(q{SELECT aggregate_type, published, bytes, failed, dead_letters, last_published IS NOT NULL FROM outbox.stat_aggregate_types ORDER BY 1}),
	"account|10|20|0|0|t\nbig|0|0|1|1|f\norder|30|240|0|0|t", 'per aggregate type');
is(ask(q{SELECT stream, published, bytes, failed, dead_letters FROM outbox.stat_streams}), 'OUTBOX|40|260|1|1', 'per stream');
is(ask(q{SELECT published, bytes, failed, dead_letters, connects, state, settles > 1, pid = (SELECT pid FROM outbox.status()) FROM outbox.stat_relays}),
	'40|260|1|1|1|active|t|t', 'per relay');
is(ask(q{SELECT class, source, code, count, last_error <> '' FROM outbox.stat_errors}), 'event, permanent|NATS client|0|1|t', 'errors by code');
is(ask(q{SELECT sum(enqueued), sum(published), sum(failed) FROM outbox.throughput}), '41|40|1', 'by minute');

# --- latencies: one sample per transaction, per event of sampled transactions, per event
is((figures('enqueue to commit', 'samples'))[0], 12, 'transactions are timed');
cmp_ok((figures('commit to ack', 'samples'))[0], '>=', 10, 'events are timed from commit to acknowledgement');
is((figures('ack to settle', 'samples'))[0], 40, 'and from there to the settle');

# a transaction of 300 ms, an answer that takes 1 s
ask(q{SELECT outbox.reset_stats()});
is(ask(q{SELECT sum(published) FROM outbox.stat_relays}), '0', 'a reset');
is(ask(q{SELECT count(*) FROM outbox.stat_errors}), '0', 'of errors, too');
is(ask(q{SELECT bool_and(stats_reset > now() - interval '1 min') FROM outbox.stat_aggregate_types}), 't', 'and the views know when');
is(ask(q{SELECT published FROM outbox.status()}), '40', 'status() goes on');
$nats->freeze;
ask(q{BEGIN; SELECT outbox.enqueue('order', 'slow', 'placed', '{}'); SELECT pg_sleep(0.3); COMMIT});
wait_for_query($node, $db, q{SELECT in_flight = 1 FROM outbox.status()}, timeout => 20) || diag(ask(q{SELECT (SELECT count(*) FROM outbox.in_flight_positions()), s.* FROM outbox.status() s}));
ask(q{SELECT pg_sleep(1)});
$nats->thaw;
ok(wait_published($node, $db), 'a slow one');
wait_until(60, sub { (figures('ack to settle', 'samples'))[0] == 1 });
{
	my ($samples, $p50, $max) = figures('enqueue to commit', 'samples, p50_ms, max_ms');

	ok($samples == 1 && $p50 >= 300 && $p50 <= $max && $max < 60000, "its transaction took $max ms");
	($samples, $p50, $max) = figures('commit to ack', 'samples, p50_ms, max_ms');
	ok($samples == 1 && $p50 >= 1000 && $p50 <= $max && $max < 60000, "its acknowledgement took $max ms");
	is(ask(q{SELECT count - bucket[10] FROM outbox.latency_buckets() WHERE stage = 'commit to ack'}), 1, 'the histogram has it above 66 ms');
}

# --- more types than there are places
ask(q{SELECT outbox.enqueue('type' || i, '1', 'placed', '{}') FROM generate_series(1, 200) i});
ok(wait_published($node, $db), 'many types');
is(ask(q{SELECT sum(published) FROM outbox.stat_aggregate_types}), '201', 'none is lost');
cmp_ok(ask(q{SELECT published FROM outbox.stat_aggregate_types WHERE aggregate_type = '(others)'}), '>=', 70, 'those without a place count together');

# --- the cost of reading
my %cost = map { split(/\|/) } split(/\n/, ask(q{
	CREATE FUNCTION cost(query text) RETURNS numeric LANGUAGE plpgsql AS $$
	DECLARE best numeric := 'infinity'; t timestamptz;
	BEGIN
		FOR i IN 1 .. 30 LOOP
			t := clock_timestamp();
			EXECUTE query;
			best := least(best, extract(epoch FROM clock_timestamp() - t) * 1000000);
		END LOOP;
		RETURN round(best);
	END $$;
	SELECT q, cost('SELECT * FROM ' || q) FROM unnest('{outbox.status(), outbox.stat_relays, outbox.stat_streams, outbox.stat_aggregate_types,
		outbox.stat_errors, outbox.latency, outbox.latency_buckets(), outbox.throughput, outbox.trouble(), outbox.health()}'::text[]) q;
}));
diag(join(', ', map { "$_ $cost{$_} us" } sort keys %cost));
ok(!(grep { $cost{$_} > 5000 && $_ !~ /health|trouble/ } keys %cost), 'microseconds');

# somebody who holds all of the tables is no hindrance
my $session = $node->background_psql($db);
$session->query_safe('BEGIN; LOCK TABLE outbox.log, outbox.ledger, outbox.delivery, outbox.ring, outbox.pauses, outbox.watermark');
is(ask(q{SET lock_timeout = '10s'; SELECT count(*) > 0 FROM outbox.stat_relays, outbox.stat_streams, outbox.stat_aggregate_types, outbox.latency, outbox.throughput, outbox.status()}),
	't', 'counters wait for no lock');
$session->query_safe('COMMIT');
$session->quit;

check_no_crash($node);
done_testing();
