# A replay that is refused, cancelled, killed, cut off, or loses its database: it
# stops with the position reached, goes on from there, and keeps the order.

use strict;
use warnings;

use OutboxLife;
use OutboxReplay;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "log_statement = none\noutbox.retention = -1\noutbox.ack_timeout = 2s\noutbox.retry_max_delay = 200ms");
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');
$node->safe_psql($db, q{
	SELECT outbox.enqueue_text('order', (i % 50)::text, 'placed', CASE WHEN i = 1500 THEN repeat('x', 3000) ELSE i::text END)
	FROM generate_series(1, 3000) i});
ok(wait_drained($node, $db), 'all is published');
my @original = $nats->dump('OUTBOX');

sub field
{
	my ($id, $expression) = @_;

	return $node->safe_psql($db, "SELECT $expression FROM outbox.replays WHERE batch_id = '$id'");
}

# ---------------------------------------------------------------- refused

$nats->tool('create', 'SMALL', 'small.>', '--max-msg-size', 2000);
my $id = start_replay($node, $db, "target_prefix => 'small', target_stream => 'SMALL'");
ok(wait_replay($node, $db, $id, 'stopped'), 'an event that the stream refuses stops the replay');
is(field($id, 'position_reached'), 1499, 'just before it');
like(field($id, 'last_error'), qr/^position 1500: JetStream error 10054: /, 'with the reason');
is(field($id, 'total'), 3000, 'the total is known');
my $ahead = $node->safe_psql($db, "SELECT ahead FROM outbox.replay_job WHERE batch_id = '$id'");
is($nats->info('SMALL')->{messages}, 1499 + $ahead, 'and so is what is stored behind it');
my ($code, $out, $err) = $node->psql($db, "SELECT outbox.replay_resume('$id')");
like($err, qr/goes on behind position 1499.*\n.*$ahead events behind it are stored already and are sent again/, 'a resume says what it repeats');
ok(wait_until(60, sub { field($id, 'runs || state') eq '2stopped' }), 'and meets the same refusal');
is(field($id, 'repeated'), $ahead, 'what was repeated is counted');
$nats->tool('delete', 'SMALL');
$nats->tool('create', 'SMALL', 'small.>');
$node->safe_psql($db, "SELECT outbox.replay_resume('$id')");
ok(wait_replay($node, $db, $id, 'done'), 'once the stream takes it, it goes on to the end');
is_deeply([ replay_problems($nats, 'SMALL', $id, [ @original[1499 .. 2999] ], prefix => 'small.') ], [], 'from there on, in order');
is($node->safe_psql($db, "SELECT outbox.replay_resume('$id')"), 'f', 'what is done can\'t be resumed');
is($node->safe_psql($db, "SELECT outbox.replay_cancel('$id')"), 'f', 'or cancelled');

$id = start_replay($node, $db, "target_prefix => 'nowhere', target_stream => 'SMALL'");
ok(wait_replay($node, $db, $id, 'stopped'), 'a stream that doesn\'t listen to the subjects');
is(field($id, 'done'), 0, 'gets nothing');

# ---------------------------------------------------------------- cancelled, resumed

$nats->tool('create', 'SLOW', 'slow.>');
$id = start_replay($node, $db, "target_prefix => 'slow', target_stream => 'SLOW', rate => 200");
ok(wait_until(60, sub { field($id, 'done') > 100 }), 'a slow one is on its way');
is($node->safe_psql($db, "SELECT rate BETWEEN 1 AND 300 AND eta BETWEEN '1 s' AND '1 min' AND state = 'running' AND updated_at > now() - interval '5 s' FROM outbox.replay_progress WHERE batch_id = '$id'"),
	't', 'and tells how long it will take');
$node->safe_psql($db, "SELECT outbox.replay_cancel('$id')");
ok(wait_for_query($node, $db, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox replay'", expected => 0), 'cancelled, it ends');
is(field($id, 'state'), 'cancelled', 'and stays so');
my $reached = field($id, 'done');
is($nats->info('SLOW')->{messages}, $reached, 'what it has sent is what it says');

# ---------------------------------------------------------------- cut off, killed, restarted

$node->safe_psql($db, "UPDATE outbox.replay_job SET rate = 40 WHERE batch_id = '$id'; SELECT outbox.replay_resume('$id')");
ok(wait_until(60, sub { field($id, 'done') > $reached }), 'resumed');
$nats->kill9;
$nats->restart;
my $cut = field($id, 'done');
ok(wait_until(60, sub { field($id, 'done') > $cut }), 'the broker\'s end is not the replay\'s');

$reached = field($id, 'done');
my $pid = $node->safe_psql($db, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox replay'");
$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
ok(wait_until(60, sub { field($id, 'done') > $reached }), 'a terminated one goes on by itself');
# The next run will be quick.
$node->safe_psql($db, "UPDATE outbox.replay_job SET rate = NULL WHERE batch_id = '$id'; CHECKPOINT");
$node->stop('immediate');
$node->start;
ok(wait_replay($node, $db, $id, 'done'), 'and so does one whose server crashed');
cmp_ok(field($id, 'runs'), '>=', 4, 'in several runs');
is(field($id, 'done'), 3000, 'all are done');
is_deeply([ replay_problems($nats, 'SLOW', $id, \@original, prefix => 'slow.') ], [], 'each is stored once, in order, although parts were sent twice');

# ---------------------------------------------------------------- paused

$node->safe_psql($db, 'SELECT outbox.pause()');
$id = start_replay($node, $db, "target_prefix => 'slow', target_stream => 'SLOW', to_position => 10");
ok(wait_until(60, sub { field($id, 'state') eq 'running' }), 'while publishing is paused');
is(field($id, 'done'), 0, 'a replay waits');
$node->safe_psql($db, 'SELECT outbox.resume()');
ok(wait_replay($node, $db, $id, 'done'), 'and goes on afterwards');

# ---------------------------------------------------------------- copies, and the end of databases

$node->safe_psql($db, q{CREATE DATABASE other});
$node->safe_psql('other', 'CREATE EXTENSION outbox');
ok(wait_relay($node, 'other'), 'another database');
$node->safe_psql('other', q{SELECT outbox.enqueue_text('a', i::text, 'e', '') FROM generate_series(1, 500) i});
ok(wait_drained($node, 'other'), 'with events');
start_replay($node, 'other', "target_stream => 'OUTBOX', rate => 10");
ok(wait_for_query($node, 'other', "SELECT done > 5 FROM outbox.replays"), 'and a replay');
$node->safe_psql($db, 'CREATE DATABASE copy TEMPLATE other');
ok(wait_state($node, 'copy', 'not armed'), 'a copy of it');
ok(wait_for_query($node, 'other', "SELECT state = 'running' AND runs = 2 FROM outbox.replays"), 'the original\'s replay gave way and goes on');
is($node->safe_psql('copy', "SELECT state, runs FROM outbox.replays"), 'running|1', 'the copy\'s stands still');
is($node->safe_psql($db, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox replay' AND datname = 'copy'"), 0, 'nobody does it');
$node->safe_psql('other', 'DROP EXTENSION outbox; CREATE EXTENSION outbox');
ok(wait_for_query($node, $db, "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox replay'", expected => 0), 'its extension\'s end is its end');
$node->safe_psql($db, 'DROP DATABASE copy');
$node->safe_psql($db, 'DROP DATABASE other');
pass('databases can be dropped');

check_no_crash($node, allow => qr/never/);
done_testing();
