# Without order each event goes for itself, by priority and arrival: a failing
# one is overtaken, little memory and a restart lose nothing. With and without
# order a priority is worth a bounded time; with it, it never breaks the order.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.preserve_aggregate_order = off
outbox.relay_memory = 1MB
outbox.poison_policy = park
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 300ms
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

sub read_up
{
	return ok(wait_for_query($node, $db, "SELECT backlog = (SELECT count(*) FROM outbox.events WHERE publish_state = 'pending') FROM outbox.status()", timeout => 10), $_[0]);
}

# The payloads of a type in the order in which the stream has them.
sub stored
{
	my ($type) = @_;

	return map { $_->{payload} } $nats->dump('OUTBOX', "outbox.$type.>");
}

# --------------------------------------------------- twenty thousand, and a restart

$node->safe_psql($db, q{SELECT count(outbox.enqueue_text('many', (i % 7)::text, 'e', repeat('x', 200) || i, priority => i % 201 - 100)) FROM generate_series(1, 20000) i});
ok(wait_for_query($node, $db, q{SELECT published BETWEEN 2000 AND 18000 FROM outbox.status()}, timeout => 30) || 1, 'under way');
$node->restart;
enqueue($node, $db, 'later', 'e');
ok(wait_drained($node, $db, timeout => 60), 'all published');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state = 'published'}), 20001, 'each of them');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db) ], [], 'the stream has them, once');

# ------------------------------------------------------------------- failures

foreach my $what (qw(none.x outbox.big))
{
	my $big = $what eq 'outbox.big' ? "repeat('x', 3000)" : "'x'";

	enqueue($node, $db, "behind $what", 'e1');
	enqueue($node, $db, "behind $what", 'e2', subject => "'$what'", payload => $big);
	enqueue($node, $db, "behind $what", "e$_") foreach 3 .. 5;
	ok(wait_for_query($node, $db, "SELECT count(*) = 4 FROM outbox.events WHERE aggregate_id = 'behind $what' AND publish_state = 'published'", timeout => 10),
		"$what: overtaken");
}
is(states($node, $db, 'behind outbox.big'), 'e1=published e2=failed e3=published e4=published e5=published', 'a dead letter holds up nobody');
is(dead_states($node, $db, 'behind outbox.big'), 'e2=skipped', 'nor parks anybody, whatever the policy');
is(states($node, $db, 'behind none.x'), 'e1=published e2=pending e3=published e4=published e5=published', 'nor does one without a stream');
$node->restart;
wait_relay($node, $db);
is($node->safe_psql($db, q{SELECT outbox.redrive()}), 1, 'redriven');
$nats->tool('update', 'OUTBOX', 'outbox.>,none.>', '--max-msg-size', 100_000);
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'behind none.x' AND event_type = 'e2'}, timeout => 10), 'published when there is a stream, after a restart');
$node->safe_psql($db, q{SELECT outbox.redrive()});
ok(wait_published($node, $db, undef, timeout => 10), 'and the redriven one');

# ------------------------------------------------------------------ not_before

$node->safe_psql($db, q{
	SELECT outbox.enqueue_text('time', 'a', 'later', 'x', not_before => clock_timestamp() + interval '1 s');
	SELECT outbox.enqueue_text('time', 'a', 'never', 'x', not_before => 'infinity');
	SELECT outbox.enqueue_text('time', 'a', 'now', 'x', not_before => '-infinity')});
ok(wait_for_query($node, $db, q{SELECT string_agg(event_type, ',' ORDER BY published_at) FROM outbox.events WHERE aggregate_type = 'time' AND publish_state = 'published'}, expected => 'now,later', timeout => 10),
	'each at its time');
is($node->safe_psql($db, q{SELECT published_at >= not_before FROM outbox.events WHERE event_type = 'later'}), 't', 'not before');
is($node->safe_psql($db, q{SELECT outbox.discard('never', event_id => event_id) FROM outbox.events WHERE event_type = 'never'}), 1, 'the last one discarded');
ok(wait_for_query($node, $db, q{SELECT publish_state = 'failed' FROM outbox.events WHERE event_type = 'never'}, timeout => 10), 'done');

# ------------------------------------------------------------------ priorities

# low, then better ones within the time that they are better by, and some after it
sub priorities
{
	my ($type) = @_;
	my @stored;

	$node->safe_psql($db, 'SELECT outbox.pause()');
	ok(wait_state($node, $db, 'paused'), "$type: paused");
	$node->safe_psql($db, "SELECT outbox.enqueue_text('$type', 'low', 'e', 'low', priority => -2); SELECT count(outbox.enqueue_text('$type', 'same', 'e', 'same', priority => -2))");
	read_up("$type: read");
	$node->safe_psql($db, "SELECT count(outbox.enqueue_text('$type', 'early ' || i, 'e', 'early', priority => 1)) FROM generate_series(1, 100) i;"
		  . "SELECT outbox.enqueue_text('$type', 'best', 'e', 'best', priority => 100)");
	read_up("$type: read");
	ok(wait_for_query($node, $db, "SELECT clock_timestamp() > max(created_at) + interval '4 s' FROM outbox.events WHERE aggregate_type = '$type'"), "$type: later");
	$node->safe_psql($db, "SELECT count(outbox.enqueue_text('$type', 'late ' || i, 'e', 'late', priority => 1)) FROM generate_series(1, 100) i");
	read_up("$type: read");
	$node->safe_psql($db, 'SELECT outbox.resume()');
	ok(wait_published($node, $db, undef, timeout => 20), "$type: all published");
	@stored = stored($type);
	is_deeply(\@stored, [ 'best', ('early') x 100, 'low', 'same', ('late') x 100 ], "$type: a step of priority is one second")
	  or diag(join(' ', @stored));
	return;
}

priorities('throughput');

# ------------------------------------------------------- with order, live

alter_system($node, 'outbox.preserve_aggregate_order = on');
ok(wait_for_query($node, $db, q{SELECT true FROM outbox.status() WHERE state = 'active'}), 'order on');
$node->safe_psql($db, q{SELECT outbox.pause()});
$node->safe_psql($db, q{SELECT outbox.enqueue_text('inside', 'a', 'e', i::text, priority => (ARRAY[-100, 100, 0])[1 + i % 3]) FROM generate_series(1, 60) i});
read_up('read');
$node->safe_psql($db, q{SELECT outbox.resume()});
ok(wait_published($node, $db, undef, timeout => 20), 'all published');
is(join(',', stored('inside')), join(',', 1 .. 60), 'a priority never breaks the order of an aggregate');
priorities('ordered');

# ------------------- parked while there was order; redriven when there is none

$nats->tool('update', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
enqueue($node, $db, 'parked', 'e', payload => "repeat('x', 3000)");
enqueue($node, $db, 'parked', 'e') foreach 1 .. 5;
ok(wait_for_query($node, $db, q{SELECT count(*) = 6 FROM outbox.dead_letters}, timeout => 10), 'parked');
alter_system($node, 'outbox.preserve_aggregate_order = off');
$nats->tool('update', 'OUTBOX', 'outbox.>', '--max-msg-size', 100_000);
enqueue($node, $db, 'parked', 'e');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.events WHERE aggregate_id = 'parked' AND publish_state = 'published'}, timeout => 10), 'order off: the next one is not parked');
is($node->safe_psql($db, q{SELECT outbox.redrive(aggregate_id => 'parked')}), 6, 'redriven');
ok(wait_for_query($node, $db, q{SELECT count(*) = 7 FROM outbox.events WHERE aggregate_id = 'parked' AND publish_state = 'published'}, timeout => 10), 'all published');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db, pending => 1) ], [], 'the stream has all of them, once');
check_no_crash($node);
done_testing();
