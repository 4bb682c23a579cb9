# When the broker as a whole takes nothing, by what it answers or by silence,
# one message at a time is tried, with pauses; the state says so; and all goes
# on at once when it answers in another way. One subject in trouble is not that.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>');
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.ack_timeout = 300ms
outbox.retry_base_delay = 200ms
outbox.retry_max_delay = 800ms
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

# Forty aggregates to one subject.
sub many
{
	my ($name, $subject) = @_;

	$node->safe_psql($db, "SELECT count(outbox.enqueue_text('$name', i::text, 'e', 'x', subject => '$subject')) FROM generate_series(1, 40) i");
	return;
}

sub all_published
{
	my ($name, $seconds) = @_;
	my $start = time();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_for_query($node, $db, "SELECT count(*) = 40 AND max(attempts) = 1 FROM outbox.events WHERE aggregate_type = '$name' AND publish_state = 'published'", timeout => 20),
		"$name: all published, no attempt was counted");
	return cmp_ok(time() - $start, '<', slack($seconds), "$name: soon");
}

# Of those that arrived later than the first burst: never two without a pause between them.
sub one_at_a_time
{
	my ($name, $responder) = @_;
	my $burst = arrivals($responder);
	my @gaps;
	my @times;

	# and a few probes
	cmp_ok($burst, '<=', 50, "$name: each was sent once at most, before that was known");
	ok(wait_until(20, sub { arrivals($responder) >= $burst + 6 }), "$name: it is tried again and again");
	@times = map { $_->[0] / 1e6 } (arrivals($responder))[ $burst .. $burst + 5 ];
	@gaps = map { $times[$_] - $times[ $_ - 1 ] } 1 .. 5;
	# a busy machine makes one pause longer and the next one shorter, never their sum
	is(scalar(grep { $_ < 0.05 } @gaps), 0, "$name: one at a time") or diag("@gaps");
	# three quarters of 200, 400 and three times 800 ms are 2.25 s, five times the first delay is 1 s
	cmp_ok($times[5] - $times[0], '>', 1.8, "$name: with longer and longer pauses") or diag("@gaps");
	cmp_ok($gaps[4], '<', slack(3), "$name: up to the longest");
	return;
}

my $mark = log_mark($node);
foreach my $code (10008, 10039)
{
	my $counts = error_counts($node, $db);
	my $responder = respond($nats, "core.$code", refusal(503, $code, 'not now'));
	my $status;

	many("refusal $code", "core.$code");
	ok(wait_state($node, $db, 'broker unavailable'), "refusal $code: the state");
	$status = own_status($node, $db);
	like($status->{last_error}, qr/^JetStream error $code: not now, publishing to "core\.$code" in stream "OUTBOX"$/, "refusal $code: the reason");
	one_at_a_time("refusal $code", $responder);
	is(own_status($node, $db)->{since}, $status->{since}, "refusal $code: since when");
	is(counts_since($node, $db, $counts), 'broker', "refusal $code: counted");
	# a stream takes the subject now
	$nats->tool('update', 'OUTBOX', "outbox.>,core.$code");
	stop_responding($responder);
	all_published("refusal $code", 4);
	ok(wait_state($node, $db, 'active'), "refusal $code: active again");
}
is(scalar(log_lines($node, $mark, qr/LOG:  outbox relay gets no acknowledgements/)), 2, 'each is one line in the log');
is(scalar(log_lines($node, $mark, qr/LOG:  outbox relay publishes to stream/)), 2, 'and so is its end');

# silence
my $responder = respond($nats, 'core.mute', undef);
many('silence', 'core.mute');
ok(wait_state($node, $db, 'broker unavailable'), 'silence: the state');
sleep(0.4);
one_at_a_time('silence', $responder);
$nats->tool('update', 'OUTBOX', 'outbox.>,core.mute');
stop_responding($responder);
all_published('silence', 4);
ok(wait_state($node, $db, 'active'), 'silence: active again');

# a refusal, and then silence: probes go on
$responder = respond($nats, 'core.both', refusal(503, 10008, 'not now'));
many('both', 'core.both');
ok(wait_state($node, $db, 'broker unavailable'), 'both: the state');
my $mute = respond($nats, 'core.both', undef);
stop_responding($responder);
ok(wait_until(15, sub { arrivals($mute) >= 3 }), 'both: probes that nobody answers are followed by others');
$nats->tool('update', 'OUTBOX', 'outbox.>,core.both');
stop_responding($mute);
all_published('both', 4);

# one mute subject beside others that are answered
$responder = respond($nats, 'core.one', undef);
enqueue($node, $db, 'mute one', 'e', subject => "'core.one'");
foreach my $round (1 .. 8)
{
	ok(wait_until(10, sub { arrivals($responder) >= 3 * $round }), "one mute subject: sent again ($round)");
	good_ones($node, $db, "mute $round");
	good_ones_pass($node, $db, "mute $round", 2);
	is(own_status($node, $db)->{state}, 'active', "one mute subject: that is not the broker ($round)");
}
# when nothing else is sent, one can't tell: the first other one waits for a probe, at most
ok(wait_state($node, $db, 'broker unavailable', timeout => 30), 'one mute subject alone: who knows');
good_ones($node, $db, 'mute alone');
good_ones_pass($node, $db, 'mute alone', 4);
is(own_status($node, $db)->{state}, 'active', 'one mute subject: it was not the broker');
stop_responding($responder);

check_no_crash($node);
done_testing();
