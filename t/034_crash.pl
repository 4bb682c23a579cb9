# Processes are killed, terminated, cancelled, frozen; servers are stopped in
# all ways, with a broker that hangs. After each, everything committed is
# published, once within the duplicate window, in order.

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
restart_after_crash = on
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
outbox.ack_timeout = 1s
outbox.retry_max_delay = 2s
CONF
my $db = 'postgres';
my $round = 0;

# A thousand events in one transaction, and some small transactions.
sub burst
{
	my $small;

	$round++;
	$small = join("\n", map { "SELECT outbox.enqueue_text('c', 'a' || ($_ % 20), 'e', 'small $round');" } 1 .. 40);
	$node->safe_psql($db,
		"SELECT count(outbox.enqueue_text('c', 'a' || (i % 600), 'e', '$round')) FROM generate_series(1, 1000) i;\n$small");
	return;
}

# To find the relay at work; polls without SQL.
sub stored_more_than
{
	my ($count) = @_;

	return $nats->wait_until(20, sub { ($nats->info('OUTBOX') // { messages => 0 })->{messages} > $count });
}

sub stored
{
	return $nats->info('OUTBOX')->{messages};
}

sub all_published
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_drained($node, $db, timeout => 30), "$name: everything is published");
	return;
}

sub check_stream
{
	my ($name) = @_;
	my @messages = $nats->dump('OUTBOX');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ splice(@{ [ stream_differences($nats, 'OUTBOX', $node, $db, messages => \@messages) ] }, 0, 10) ], [], "$name: once");
	is_deeply([ splice(@{ [ check_order($nats, 'OUTBOX', \@messages) ] }, 0, 10) ], [], "$name: in order");
	return;
}

sub stop_fast
{
	my ($name) = @_;
	my $start = time();

	$node->stop('fast');
	cmp_ok(time() - $start, '<', slack(5), "$name: a fast shutdown takes less than 5 s");
	return;
}

my $relay = wait_relay($node, $db);
burst();
all_published('at first');

# The relay is killed: the server restarts.
my $before = stored();
burst();
stored_more_than($before + 50);
kill('KILL', $relay);
ok($relay = wait_new_relay($node, $db, $relay), 'relay killed: a new one');
all_published('relay killed');

# A client is killed in the middle of its transaction: the server restarts.
my $session = $node->background_psql($db, on_error_stop => 0);
my $pid = $session->query_safe('SELECT pg_backend_pid()');
$session->query_safe("BEGIN; SELECT outbox.enqueue_text('c', 'a1', 'e', 'never')");
$before = stored();
$node->safe_psql($db, "SELECT count(outbox.enqueue_text('c', 'b' || (i % 600), 'e', 'x')) FROM generate_series(1, 1000) i");
stored_more_than($before + 50);
kill('KILL', $pid);
ok($relay = wait_new_relay($node, $db, $relay), 'client killed: a new relay');
$session->{run}->kill_kill;
burst();
all_published('client killed');
is($node->safe_psql($db, "SELECT count(*) FROM outbox.events WHERE payload_text = 'never'"), 0, 'the client\'s event does not exist');

# The postmaster is killed.
$before = stored();
burst();
stored_more_than($before + 50);
$node->kill9;
ok(wait_until(3, sub { !kill(0, $relay) }), 'postmaster killed: the relay ends');
ok(wait_until(10, sub { $node->start(fail_ok => 1) }), 'postmaster killed: another one');
ok($relay = wait_relay($node, $db), 'postmaster killed: a relay');
all_published('postmaster killed');

# An immediate shutdown.
$before = stored();
burst();
stored_more_than($before + 50);
$node->stop('immediate');
$node->start;
ok($relay = wait_relay($node, $db), 'immediate shutdown: a relay');
all_published('immediate shutdown');
check_stream('after crashes');

# Cancelled: it stays. Terminated: it comes back, and soon, the fifth time, too.
$node->safe_psql($db, "SELECT count(pg_cancel_backend($relay)) FROM generate_series(1, 10)") foreach 1 .. 5;
burst();
all_published('cancelled 50 times');
is(relay_pid($node, $db), $relay, 'cancelled 50 times: the same relay');
$relay = wait_relay($node, $db, timeout => 20);
foreach my $i (1 .. 5)
{
	my $start = time();

	burst();
	is($node->safe_psql($db, "SELECT pg_terminate_backend($relay)"), 't', "terminated, time $i");
	$relay = wait_new_relay($node, $db, $relay, timeout => 20) // 0;
	cmp_ok(time() - $start, '<', slack(5), "terminated, time $i: back within 5 s");
}
all_published('terminated');
check_stream('terminated');

# A frozen relay.
$before = stored();
burst();
stored_more_than($before + 50);
kill('STOP', $relay);
burst();
ok(never_within(2.5, sub { !kill(0, $relay) }), 'relay frozen for longer than the ack timeout');
kill('CONT', $relay);
all_published('relay frozen');
is(relay_pid($node, $db), $relay, 'relay frozen: the same relay');

# A frozen broker: what it has got already it stores late, and again it is not.
$nats->freeze;
burst();
ok(wait_for_query($node, $db, 'SELECT in_flight > 0 FROM outbox.status()'), 'broker frozen: events are in flight');
ok(wait_for_query($node, $db, q{SELECT coalesce(last_error, '') <> '' FROM outbox.status()}), 'broker frozen: acks time out');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.events WHERE last_error IS NOT NULL OR attempts > 1'), 0,
	'broker frozen: no attempt is counted');
$nats->thaw;
all_published('broker frozen');

# A fast shutdown with the broker frozen and hundreds of acks outstanding. The
# window is wide when everything went well before.
$node->append_conf('postgresql.conf', "outbox.ack_timeout = 60s\n");
$node->reload;
burst() foreach 1 .. 3;
all_published('before the shutdown');
$nats->freeze;
burst();
ok(wait_for_query($node, $db, 'SELECT in_flight >= 500 FROM outbox.status()'), 'shutdown, broker frozen: 500 acks are outstanding');
stop_fast('shutdown, broker frozen');
$nats->thaw;
$node->start;
all_published('shutdown, broker frozen');

# A fast shutdown while a connection is being made to somebody who says nothing.
my $mute = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', Proto => 'tcp') or die "could not listen: $!";
my $url = $nats->url;
$node->append_conf('postgresql.conf', "outbox.nats_url = 'nats://127.0.0.1:" . $mute->sockport . "'\noutbox.connect_timeout = 60s\n");
$node->reload;
burst();
my $connection;
ok(IO::Select->new($mute)->can_read(10) && ($connection = $mute->accept), 'shutdown, mute broker: the relay connects');
ok(wait_for_query($node, $db, q{SELECT state = 'not connected' FROM outbox.status()}), 'shutdown, mute broker: not connected');
stop_fast('shutdown, mute broker');
$node->append_conf('postgresql.conf', "outbox.nats_url = '$url'\noutbox.connect_timeout = 2s\n");
$node->start;
all_published('shutdown, mute broker');

# A fast shutdown in the middle of publishing.
$before = stored();
burst();
stored_more_than($before + 50);
stop_fast('shutdown while publishing');
$node->start;
all_published('shutdown while publishing');
check_stream('after shutdowns');

check_no_crash($node, allow => qr/was terminated by signal 9/);
done_testing();
