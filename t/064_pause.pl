# Pauses: of everything, of a type, of subjects with wildcards, overlapping, over
# a restart, under load. What isn't paused flows; what is, waits without harm and
# goes on in order.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>,other.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 300ms
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

sub call
{
	my ($call) = @_;

	return $node->safe_psql($db, "SELECT outbox.$call");
}

# Types and the states of their events: "a:pending b:published".
sub type_states
{
	my ($expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(
		wait_for_query($node, $db,
			q{SELECT string_agg(DISTINCT aggregate_type || ':' || publish_state, ' ' ORDER BY aggregate_type || ':' || publish_state) FROM outbox.events},
			expected => $expected, timeout => 10),
		$name);
}

sub one_each
{
	my (@types) = @_;

	$node->safe_psql($db, join('', map { "SELECT outbox.enqueue_text('$_', i::text, 'e', 'x') FROM generate_series(1, 5) i;" } @types));
	return;
}

# ------------------------------------------------------------------ everything

my $mark = log_mark($node);
is(call(q{pause(reason => 'repair')}), 't', 'all paused');
is(call('pause()'), 'f', 'already');
ok(wait_state($node, $db, 'paused'), 'the state says so');
one_each('a', 'b');
good_ones($node, $db, 'paused');
ok(wait_for_query($node, $db, q{SELECT backlog = 50 FROM outbox.status()}), 'enqueueing goes on');
$node->restart;
ok(wait_state($node, $db, 'paused'), 'paused after a restart');
type_states('a:pending b:pending good paused:pending', 'nothing is published');
is($nats->info('OUTBOX')->{messages}, 0, 'nothing at all');
is($node->safe_psql($db, q{SELECT count(*), sum(attempts), count(last_error) FROM outbox.events}), '50|0|0', 'nothing is held against anybody');
is($node->safe_psql($db, q{SELECT aggregate_type IS NULL, subject IS NULL, reason, paused_by = session_user, paused_at < now() FROM outbox.pauses}), 't|t|repair|t|t', 'who, when, why');
# an open transaction changes nothing, nor one that is rolled back
is($node->safe_psql($db, 'BEGIN; SELECT outbox.resume(); ROLLBACK'), 't', 'resumed and rolled back');
my ($code, $out, $err) = $node->psql($db, q{BEGIN; SELECT outbox.resume(); PREPARE TRANSACTION 'x'});
like($err, qr/cannot PREPARE/, 'nor prepared');
one_each('a');
is(own_status($node, $db)->{state}, 'paused', 'still paused');
is(call('resume()'), 't', 'resumed');
is(call('resume()'), 'f', 'already');
type_states('a:published b:published good paused:published', 'all published');
ok(wait_state($node, $db, 'active'), 'active');
is(scalar(log_lines($node, $mark, qr/LOG:  outbox relay is paused/)), 2, 'one line in the log for each relay');

# ------------------------------------------------------------- types, subjects

is(call(q{pause(aggregate_type => 'a')}), 't', 'one type paused');
one_each('a', 'b');
type_states('a:pending a:published b:published good paused:published', 'the other one flows');
is(own_status($node, $db)->{state}, 'active', 'the state is active');
is(call(q{pause(subject => 'outbox.*.3.>')}), 't', 'a subject paused');
one_each('c');
ok(wait_for_query($node, $db, q{SELECT string_agg(aggregate_id, '' ORDER BY aggregate_id) FROM outbox.events WHERE aggregate_type = 'c' AND publish_state = 'published'}, expected => '1245', timeout => 10),
	'all but that one');
# both hold a:3
is(call(q{resume(aggregate_type => 'a')}), 't', 'the type resumed');
ok(wait_for_query($node, $db, q{SELECT string_agg(aggregate_type || aggregate_id, ' ' ORDER BY position) FROM outbox.events WHERE publish_state = 'pending'}, expected => 'a3 c3', timeout => 10),
	'what the other pause holds as well stays');
is(call(q{pause(aggregate_type => 'a', subject => 'outbox.a.3.e')}), 't', 'a type and a subject');
is(call(q{resume(subject => 'outbox.*.3.>')}), 't', 'the subject resumed');
ok(wait_for_query($node, $db, q{SELECT string_agg(aggregate_type || aggregate_id, ' ' ORDER BY position) FROM outbox.events WHERE publish_state = 'pending'}, expected => 'a3', timeout => 10),
	'the third one holds on');
is(call('pause()'), 't', 'and all');
one_each('b');
ok(wait_state($node, $db, 'paused'), 'paused');
is(call('resume()'), 't', 'resumed');
ok(wait_for_query($node, $db, q{SELECT string_agg(aggregate_type || aggregate_id, ' ' ORDER BY position) FROM outbox.events WHERE publish_state = 'pending'}, expected => 'a3', timeout => 10),
	'the third one still holds on');
$node->stop('immediate');
$node->start;
ok(wait_relay($node, $db), 'after a crash');
one_each('b');
ok(wait_for_query($node, $db, q{SELECT string_agg(aggregate_type || aggregate_id, ' ' ORDER BY position) FROM outbox.events WHERE publish_state = 'pending'}, expected => 'a3', timeout => 10),
	'even then');
is(call(q{resume(aggregate_type => 'a', subject => 'outbox.a.3.e')}), 't', 'resumed');
ok(wait_published($node, $db, undef, timeout => 10), 'all published');

# An explicit subject, and one that encodes its aggregate.
is(call(q{pause(subject => 'other.>')}), 't', 'subjects outside of the template');
is(call(q{pause(subject => 'outbox.a.x%20y.*')}), 't', 'an encoded subject');
enqueue($node, $db, 'x y', 'e');
enqueue($node, $db, 'x', 'e', subject => "'other.x'");
enqueue($node, $db, 'x', 'behind');
enqueue($node, $db, 'y', 'e');
ok(wait_for_query($node, $db, q{SELECT string_agg(aggregate_id || ' ' || event_type, ', ' ORDER BY position) FROM outbox.events WHERE publish_state = 'pending'}, expected => 'x y e, x e, x behind', timeout => 10)
	  && wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'y'}, timeout => 10),
	'they wait, and what is behind them');
is(call(q{resume(subject => 'other.>')}), 't', 'resumed');
is(call(q{resume(subject => 'outbox.a.x%20y.*')}), 't', 'resumed');
ok(wait_published($node, $db, undef, timeout => 10), 'all published');

# ------------------------------------- while events are in flight, retried, dead

my $responder = respond($nats, 'core.mute', undef);
enqueue($node, $db, 'flight', 'e1', subject => "'core.mute'");
enqueue($node, $db, 'flight', 'e2');
ok(wait_until(10, sub { arrivals($responder) == 1 }), 'one is in flight');
is(call(q{pause(aggregate_type => 'a')}), 't', 'its type is paused');
is(event_row($node, $db, 'flight', 'e1'), 'processing|0|', 'it is not called back');
$nats->tool('update', 'OUTBOX', 'outbox.>,other.>,core.>');
stop_responding($responder);
ok(wait_for_query($node, $db, q{SELECT publish_state = 'pending' FROM outbox.events WHERE aggregate_id = 'flight' AND event_type = 'e1'}, timeout => 10), 'unanswered, it waits like the others');
good_ones($node, $db, 'flight');
good_ones_pass($node, $db, 'flight');
is(event_row($node, $db, 'flight', 'e1'), 'pending|0|', 'still');
is(call(q{resume(aggregate_type => 'a')}), 't', 'resumed');
ok(wait_published($node, $db, undef, timeout => 10), 'all published');

is(call(q{pause(aggregate_type => 'a')}), 't', 'paused');
enqueue($node, $db, 'dead', 'e1', payload => "repeat('x', 3000)");
enqueue($node, $db, 'dead', 'e2');
good_ones($node, $db, 'dead');
good_ones_pass($node, $db, 'dead');
is(states($node, $db, 'dead'), 'e1=pending e2=pending', 'what would fail waits, too');
is($node->safe_psql($db, q{SELECT outbox.discard('while paused', event_id => event_id) FROM outbox.events WHERE aggregate_id = 'dead' AND event_type = 'e1'}), 1, 'it can be discarded');
ok(wait_for_query($node, $db, q{SELECT publish_state = 'failed' FROM outbox.events WHERE aggregate_id = 'dead' AND event_type = 'e1'}, timeout => 10), 'now');
is(states($node, $db, 'dead'), 'e1=failed e2=pending', 'the next one is still paused');
is(call(q{resume(aggregate_type => 'a')}), 't', 'resumed');
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'dead' AND event_type = 'e2'}, timeout => 10), 'published');

# ------------------------------------------------------------------- under load

my $load = start_load($node, $db, rate => 200, aggregates => 20);
my $others = start_load($node, $db, rate => 100, aggregates => 20, type => 'others');
foreach my $round (1 .. 6)
{
	my $pause = (q{'load'}, 'NULL', q{NULL, subject => 'outbox.load.7.e'}, q{NULL, subject => 'outbox.*.1.e'})[ $round % 4 ];

	is(call("pause($pause)"), 't', "load: paused ($round)");
	ok(wait_for_query($node, $db, "SELECT count(*) > 50 FROM outbox.events WHERE created_at > (SELECT max(paused_at) FROM outbox.pauses) AND publish_state = '" . ($pause eq 'NULL' ? 'pending' : 'published') . "'", timeout => 20),
		"load: more events come ($round)");
	is(call("resume($pause)"), 't', "load: resumed ($round)");
}
stop_load($_) foreach $load, $others;
ok(wait_drained($node, $db, timeout => 30), 'load: all published');
check_stream($nats, $node, $db, 'load', pending => 1);
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.delivery WHERE state <> 'x'}), 0, 'load: no attempt was counted');
check_no_crash($node);
done_testing();
