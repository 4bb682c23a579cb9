# Large numbers behind a dead or waiting head: others are not held up, the relay
# doesn't spin, and what comes back comes back in order while more arrives.
# And pending events that an operator gives up, wherever they are just then.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use POSIX qw(sysconf _SC_CLK_TCK);
use Test::More;
use Time::HiRes qw(sleep time);

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.poison_policy = block
outbox.retry_base_delay = '10min'
outbox.retry_max_delay = '10min'
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
my $relay = wait_relay($node, $db);
ok($relay, 'a relay');

# Seconds of processor time that the relay has taken.
sub cpu
{
	my @fields = split(' ', slurp_file("/proc/$relay/stat") =~ s/^.*\) //r);

	return ($fields[11] + $fields[12]) / sysconf(_SC_CLK_TCK);
}

# ------------------------------------------------------- a deep wait (B15)

# a head in back-off with many followers, many more such aggregates, dead heads
$node->safe_psql($db, q{
	SELECT outbox.enqueue_text('deep', 'H', 'e', 'x', subject => 'none.x');
	SELECT count(outbox.enqueue_text('deep', 'H', 'e', 'x')) FROM generate_series(1, 10000) i;
	SELECT count(outbox.enqueue_text('waits', i::text, 'e', 'x', subject => 'none.x')) FROM generate_series(1, 200) i;
	SELECT count(outbox.enqueue_text('waits', i::text, 'e', 'x')) FROM generate_series(1, 200) i;
	SELECT count(outbox.enqueue_text('dead', i::text, 'e', repeat('x', 3000))) FROM generate_series(1, 20) i;
	SELECT count(outbox.enqueue_text('dead', i::text, 'e', 'x')) FROM generate_series(1, 20) i});
ok(wait_for_query($node, $db, q{SELECT (SELECT count(*) FROM outbox.dead_letters) = 20 AND (SELECT count(*) FROM outbox.delivery WHERE state = 'r') = 201}, timeout => 20),
	'all wait, or are dead');
is($node->safe_psql($db, q{SELECT reason, count(*), max(depth) FROM outbox.blocked_aggregates GROUP BY 1 ORDER BY 1}), "blocked|20|1\nretrying|201|10000", 'all are shown');
my $start = time();
$node->safe_psql($db, q{SELECT outbox.enqueue_text('fresh', i::text, 'e', 'x') FROM generate_series(1, 5) i});
ok(wait_for_query($node, $db, q{SELECT count(*) = 5 FROM outbox.events WHERE aggregate_type = 'fresh' AND publish_state = 'published'}, timeout => 10), 'five fresh events are out');
cmp_ok(time() - $start, '<', slack(2), 'at once');
my $before = cpu();
sleep(3);
cmp_ok(cpu() - $before, '<', 0.3, 'the relay doesn\'t spin while all else waits');
$before = cpu();
# a restart finds it all again, and goes for no stream
$node->restart;
ok($relay = wait_relay($node, $db), 'a restart');
ok(wait_for_query($node, $db, q{SELECT backlog = 10441 FROM outbox.status()}, timeout => 20), 'the backlog is the same');
$nats->tool('update', 'OUTBOX', 'outbox.>,none.>', '--max-msg-size', 100_000);
alter_system($node, 'outbox.poison_policy = park', 'outbox.retry_base_delay = \'100ms\'', 'outbox.retry_max_delay = \'1s\'');
is($node->safe_psql($db, q{SELECT outbox.redrive()}), 20, 'the dead ones redriven');
$node->safe_psql($db, q{SELECT outbox.pause(aggregate_type => 'nobody')});
ok(wait_drained($node, $db, timeout => 60), 'all published');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');

# ------------------------------------------ twenty thousand parked, and writers

$nats->tool('update', 'OUTBOX', 'outbox.>,none.>', '--max-msg-size', 2000);
$node->safe_psql($db, q{
	SELECT outbox.enqueue_text('load', '1', 'e', repeat('x', 3000));
	SELECT count(outbox.enqueue_text('load', '1', 'e', 'x')) FROM generate_series(1, 20000) i});
my $load = start_load($node, $db, rate => 150, aggregates => 3);
good_ones($node, $db, 'beside');
good_ones_pass($node, $db, 'beside', 5);
ok(wait_for_query($node, $db, q{SELECT count(*) > 20010 FROM outbox.delivery WHERE state = 'p'}, timeout => 60), 'all are parked, and those that come');
# too early
is($node->safe_psql($db, q{SELECT outbox.redrive(aggregate_type => 'load') > 20010}), 't', 'redriven too early');
ok(wait_for_query($node, $db, q{SELECT count(*) > 20010 AND min(failed_at) > now() - interval '1 min' FROM outbox.delivery WHERE state = 'p' AND attempts <= 1}, timeout => 60), 'all are parked again');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.delivery WHERE state = 'r'}), 0, 'each of them') if 0;
$nats->tool('update', 'OUTBOX', 'outbox.>,none.>', '--max-msg-size', 100_000);
is($node->safe_psql($db, q{SELECT outbox.redrive(aggregate_type => 'load', max_events => 1) > 20010}), 't', 'redriven');
ok(wait_for_query($node, $db, q{SELECT published > 1000 FROM outbox.status()}, timeout => 20), 'they go out, while more come');
ok(wait_until(60, sub { $node->safe_psql($db, q{SELECT count(*) FROM outbox.delivery WHERE state IN ('p', 'r')}) < 1000 }), 'most of them');
stop_load($load);
ok(wait_drained($node, $db, timeout => 60), 'all published');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.dead_letters}), 0, 'nothing is left parked');
check_stream($nats, $node, $db, 'parked');

# ------------------------------------------------- pending events given up

sub discard
{
	my ($aggregate, $type) = @_;

	return $node->safe_psql($db, "SELECT outbox.discard('given up', event_id => event_id) FROM outbox.events WHERE aggregate_id = '$aggregate' AND event_type = '$type'");
}

# waiting for a retry
enqueue($node, $db, 'retry', 'e1', subject => "'nowhere.x'");
enqueue($node, $db, 'retry', 'e2');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.blocked_aggregates WHERE aggregate_id = 'retry'}, timeout => 10), 'one waits for a stream');
is(discard('retry', 'e1'), 1, 'given up');
is_in_the_end($node, $db, 'retry', 'e1=failed e2=published', 'the next one goes out');
is(discard('retry', 'e2'), 0, 'a published one can\'t be given up');
# behind it
enqueue($node, $db, 'behind', 'e1', subject => "'nowhere.x'");
enqueue($node, $db, 'behind', "e$_") foreach 2, 3;
is(discard('behind', 'e2'), 1, 'one behind it given up');
is_in_the_end($node, $db, 'behind', 'e1=pending e2=failed e3=pending', 'before its turn');
is(discard('behind', 'e1'), 1, 'and that one');
is_in_the_end($node, $db, 'behind', 'e1=failed e2=failed e3=published', 'the third goes out');
# scheduled for never
enqueue($node, $db, 'never', 'e1', not_before => "'infinity'");
enqueue($node, $db, 'never', 'e2');
is_in_the_end($node, $db, 'never', 'e1=pending e2=pending', 'one scheduled for never');
is(discard('never', 'e1'), 1, 'given up');
is_in_the_end($node, $db, 'never', 'e1=failed e2=published', 'the next one goes out');
# with the broker just now
my $responder = respond($nats, 'core.mute', undef);
alter_system($node, 'outbox.ack_timeout = \'4s\'');
enqueue($node, $db, 'flight', 'e1', subject => "'core.mute'");
enqueue($node, $db, 'flight', 'e2');
ok(wait_until(10, sub { arrivals($responder) == 1 }), 'one is with the broker');
is(discard('flight', 'e1'), 1, 'given up');
is(states($node, $db, 'flight'), 'e1=processing e2=pending', 'it stays there');
good_ones($node, $db, 'flight');
good_ones_pass($node, $db, 'flight');
is_in_the_end($node, $db, 'flight', 'e1=failed e2=published', 'until the answer doesn\'t come');
is(scalar(arrivals($responder)), 1, 'it was not sent again');
stop_responding($responder);
# not read yet: more than the relay's memory is in front of it
alter_system($node, 'outbox.relay_memory = \'1MB\'');
$nats->freeze;
burst($node, $db, 'backlog', 20000, 500);
enqueue($node, $db, 'unread', "e$_") foreach 1 .. 3;
is($node->safe_psql($db, q{SELECT position > 20000 FROM outbox.events WHERE aggregate_id = 'unread' AND event_type = 'e1'}), 't', 'one is not read yet');
is(discard('unread', 'e2'), 1, 'given up');
is_in_the_end($node, $db, 'unread', 'e1=pending e2=failed e3=pending', 'before it is read');
$nats->thaw;
ok(wait_drained($node, $db, timeout => 60), 'all else is published');
is(states($node, $db, 'unread'), 'e1=published e2=failed e3=published', 'but that one');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.discarded_events WHERE discard_reason = 'given up'}), 6, 'six were given up');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.request}), 0, 'no request is left');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
check_no_crash($node);
done_testing();
