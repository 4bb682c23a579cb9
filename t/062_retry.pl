# Scheduled events and retries by their times: not_before to the second, also
# over a restart, and a system clock that is set meanwhile. t/072 has attempts
# that survive restarts and crashes.

use strict;
use warnings;

use Cwd qw(abs_path);
use FindBin;
use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# The server's time of day is ours plus what this file says.
my $clock_file = PostgreSQL::Test::Utils::tempdir('clock') . '/shift';
my $preload = abs_path("$FindBin::RealBin/../test/tools/build/clockshift.so");
die "$preload is missing: make -C test/tools" unless -e $preload;

sub set_clock
{
	my ($seconds) = @_;

	open(my $handle, '+<', $clock_file) or die "could not open $clock_file: $!";
	syswrite($handle, pack('q', $seconds * 1_000_000)) == 8 or die "could not write $clock_file: $!";
	close($handle);
	return;
}

append_to_file($clock_file, pack('q', 0));
$ENV{CLOCKSHIFT_FILE} = $clock_file;
$ENV{LD_PRELOAD} = $preload;

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>');
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.max_attempts = 5
outbox.retry_base_delay = '1h'
outbox.retry_max_delay = '1h'
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
my $relay = wait_relay($node, $db);
ok($relay, 'a relay');

sub delays
{
	my ($base, $max) = @_;

	alter_system($node, "outbox.retry_base_delay = '$base'", "outbox.retry_max_delay = '$max'");
	return;
}

alter_system($node, 'outbox.max_attempts = 2147483647');
delays('100ms', '1s');

# ---------------------------------------------------------------- not_before

my $when = $node->safe_psql($db, q{SELECT clock_timestamp() + interval '3 s'});
$node->safe_psql($db, qq{
	SET timezone = 'Europe/Berlin';
	SELECT outbox.enqueue_text('time', 'never', 'e1', 'x', not_before => 'infinity');
	SELECT outbox.enqueue_text('time', 'far', 'e1', 'x', not_before => '294276-12-31 23:59:59.999999+00');
	SELECT outbox.enqueue_text('time', 'past', 'e1', 'x', not_before => '-infinity');
	SELECT outbox.enqueue_text('time', 'past', 'e2', 'x', not_before => '4713-01-01 00:00:00+00 BC');
	SELECT outbox.enqueue_text('time', 'null', 'e1', 'x', not_before => NULL);
	SELECT outbox.enqueue_text('time', 'dst', 'e' || n, 'x', not_before => t::timestamptz + interval '90 min')
	FROM (VALUES (1, '2024-10-27 01:30'), (2, '2024-03-31 01:30')) v (n, t);
	SELECT outbox.enqueue_text('time', 'soon', 'e1', 'x', not_before => '$when');
	SELECT outbox.enqueue_text('time', 'soon', 'e2', 'x')});
$node->restart;
ok(wait_for_query($node, $db, q{SELECT string_agg(aggregate_id || event_type, ' ' ORDER BY aggregate_id, event_type) FROM outbox.events WHERE aggregate_type = 'time' AND publish_state = 'published'},
		expected => 'dste1 dste2 nulle1 paste1 paste2 soone1 soone2', timeout => 20),
	'what is due goes out');
is($node->safe_psql($db, q{SELECT extract(epoch FROM published_at - not_before) BETWEEN 0 AND 1.5 FROM outbox.events WHERE aggregate_id = 'soon' AND event_type = 'e1'}), 't', 'to the second, with a restart in between')
  or diag($node->safe_psql($db, q{SELECT published_at - not_before FROM outbox.events WHERE aggregate_id = 'soon' AND event_type = 'e1'}));
is($node->safe_psql($db, q{SELECT string_agg((not_before AT TIME ZONE 'UTC')::text, ',' ORDER BY position) FROM outbox.events WHERE aggregate_id = 'dst'}),
	'2024-10-27 01:00:00,2024-03-31 02:00:00', 'ninety minutes are ninety minutes on every day');
is($node->safe_psql($db, q{SELECT string_agg(aggregate_id || ' ' || publish_state, ', ' ORDER BY position) FROM outbox.events WHERE aggregate_id IN ('never', 'far')}), 'never pending, far pending', 'the others wait');

# --------------------------------------------------------- the clock is set

$relay = wait_relay($node, $db);
$when = $node->safe_psql($db, q{SELECT clock_timestamp()});
my $responder = respond($nats, 'core.no', refusal(400, 10999, 'no'));
enqueue($node, $db, 'retried', 'e1', subject => "'core.no'");
ok(wait_until(10, sub { arrivals($responder) >= 3 }), 'one is retried each second');
enqueue($node, $db, 'hour', 'e1', not_before => "clock_timestamp() + interval '30 min'");
set_clock(3600);
is($node->safe_psql($db, "SELECT clock_timestamp() - '$when'::timestamptz > '59 min'"), 't', 'the clock is set forward');
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'hour'}, timeout => 10), 'forward: what is due now goes out');
enqueue($node, $db, 'short', 'e1', not_before => "clock_timestamp() + interval '30 s'");
my $seen = arrivals($responder);
set_clock(-3600);
ok(wait_until(10, sub { arrivals($responder) >= $seen + 4 }), 'back: retries go on each second');
is($node->safe_psql($db, q{SELECT publish_state FROM outbox.events WHERE aggregate_id = 'short'}), 'pending', 'back: what is due later waits');
is($node->safe_psql($db, q{SELECT next_attempt_at - clock_timestamp() < '3 s' FROM outbox.events WHERE aggregate_id = 'retried'}), 't', 'back: by the new time');
enqueue($node, $db, 'now', 'e1', not_before => "clock_timestamp() + interval '1 s'");
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'now'}, timeout => 10), 'back: what is due soon goes out');
is(relay_pid($node, $db), $relay, 'it is the same relay all the time');
# recorded by a clock that was an hour ahead; read by a relay that starts
set_clock(0);
$seen = arrivals($responder);
ok(wait_until(10, sub { arrivals($responder) >= $seen + 2 }), 'forward again: retries go on');
$node->stop;
set_clock(-3600);
$node->start;
$seen = arrivals($responder);
ok(wait_until(15, sub { arrivals($responder) >= $seen + 3 }), 'set back while the server was down: no retry is farther away than the longest delay');
set_clock(7200);
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'short'}, timeout => 10), 'forward: the last one goes out');
stop_responding($responder);
check_no_crash($node);
done_testing();
