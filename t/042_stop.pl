# A fast shutdown takes seconds, however the broker hangs and whatever the
# server waits for; signals reach the relay's main thread only, and a storm of
# reloads and cancels doesn't disturb it. (A frozen broker, one that is mute, and
# one that works: t/034. At any moment: t/047.)

use strict;
use warnings;

use IO::Select;
use IO::Socket::INET;
use OutboxLife;
use OutboxProxy;
use OutboxTest;
use POSIX qw(SIGALRM SIGHUP SIGINT SIGQUIT SIGTERM SIGUSR1);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $db = 'postgres';
my $nats = OutboxNats->start;
my $proxy = OutboxProxy->start(target => $nats->port);
my $conf = <<"CONF";
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
outbox.nats_url = '@{[$proxy->url]}'
outbox.ack_timeout = 60s
outbox.connect_timeout = 60s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 400ms
CONF
my $node = new_cluster('main', extra => $conf);

sub stop_fast
{
	my ($name) = @_;
	my $start = time();
	my $relay = relay_pid($node, $db);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->stop('fast');
	cmp_ok(time() - $start, '<', slack(5), "$name: a fast shutdown takes less than 5 s");
	return ok(!runs($relay), "$name: the relay's process has ended");
}

# In front of everything else in the file, so that it can be changed back.
sub settings
{
	$node->append_conf('postgresql.conf', join("\n", @_) . "\n");
	return;
}

# A server that takes connections and says "greeting", then nothing; returns
# the listener, whose connections pile up in @connections.
my @connections;

sub wait_for_connection
{
	my ($listener, $greeting) = @_;

	IO::Select->new($listener)->can_read(10) or return 0;
	push @connections, scalar($listener->accept);
	syswrite($connections[-1], $greeting) if defined $greeting;
	return 1;
}

# The signals that the server's processes use, which a thread of a library must never take.
my %signal = (TERM => SIGTERM, INT => SIGINT, HUP => SIGHUP, USR1 => SIGUSR1, QUIT => SIGQUIT, ALRM => SIGALRM);

sub blocked
{
	my ($task) = @_;
	my $status = eval { slurp_file("$task/status") } // return undef;    # a thread that has just ended
	my ($mask) = $status =~ /^SigBlk:\s*([0-9a-f]+)$/m;

	return { map { $_ => (hex($mask) >> ($signal{$_} - 1)) & 1 } keys %signal };
}

# Each thread but the main one blocks them all; the main one none, unless it is
# just inside the library.
sub check_signals
{
	my ($pid, $name, $at_least) = @_;
	my (@open, $count);

	foreach my $task (glob("/proc/$pid/task/*"))
	{
		my $blocked = blocked($task);

		next if $task =~ m{/$pid$} || !$blocked;
		$count++;
		push @open, map { "SIG$_" } grep { !$blocked->{$_} } sort keys %$blocked;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($count // 0, '>=', $at_least, "$name: threads");
	is("@open", '', "$name: none of them takes a signal of the server's");
	return ok(wait_until(5, sub { !grep { $_ } values %{ blocked("/proc/$pid/task/$pid") } }), "$name: the main thread does");
}

# ------------------------------------------------------------- black holes

burst($node, $db, 'warm_up', 3000, 1000);
ok(wait_drained($node, $db), 'the window is wide');
check_signals(relay_pid($node, $db), 'connected', 1);
$proxy->mode('swallow');
burst($node, $db, 'black_hole', 3000, 1000);
ok(wait_for_query($node, $db, 'SELECT in_flight >= 500 FROM outbox.status()'), 'black hole: 500 acks are outstanding');
stop_fast('black hole');
$node->start;
ok(wait_until(5, sub { (relay_pid($node, $db) // '') ne '' }), 'black hole: a new relay connects to it');
ok(wait_for_query($node, $db, q{SELECT state = 'not connected' FROM outbox.status()}), 'black hole: ... in vain');
check_signals(relay_pid($node, $db), 'connecting', 1);
stop_fast('black hole before the connection');
$proxy->mode('forward');
$node->start;
ok(wait_drained($node, $db), 'black hole: everything is published');

# More than the buffers take waits for a socket that stands still.
$proxy->mode('stall');
$node->safe_psql($db, "SELECT count(outbox.enqueue_text('large', i::text, 'e', repeat('x', 400000))) FROM generate_series(1, 30) i");
ok(wait_for_query($node, $db, 'SELECT in_flight > 0 FROM outbox.status()'), 'full buffers: events are in flight');
stop_fast('full buffers');
$proxy->mode('forward');
$node->start;
ok(wait_drained($node, $db), 'full buffers: everything is published');

# ------------------------------------------------------------------- TLS

# The server asks for TLS and then leaves the handshake hanging.
my $mute = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', Proto => 'tcp') or die "could not listen: $!";
settings("outbox.nats_url = 'tls://127.0.0.1:" . $mute->sockport . "'");
$node->reload;
burst($node, $db, 'handshake', 100);
ok( wait_for_connection($mute, qq[INFO {"server_id":"X","version":"2.9.10","proto":1,"max_payload":1048576,"tls_required":true,"headers":true}\r\n]),
	'TLS handshake: the relay connects');
my $hello = '';
sysread($connections[-1], $hello, 1) if IO::Select->new($connections[-1])->can_read(10);
is(unpack('H*', $hello), '16', 'TLS handshake: it has begun');
ok(wait_for_query($node, $db, q{SELECT state = 'not connected' FROM outbox.status()}), 'TLS handshake: not connected');
check_signals(relay_pid($node, $db), 'TLS handshake', 1);
stop_fast('TLS handshake');

# TLS with a real server, which is frozen then.
my $dir = PostgreSQL::Test::Utils::tempdir('tls');
system_or_bail('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost',
	'-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', "$dir/key.pem", '-out', "$dir/cert.pem");
my $secure = OutboxNats->start(name => 'secure');
$secure->write_config(config => "tls { cert_file: \"$dir/cert.pem\", key_file: \"$dir/key.pem\" }");
$secure->restart;
settings("outbox.nats_url = 'tls://127.0.0.1:" . $secure->port . "'", "outbox.tls_ca_file = '$dir/cert.pem'");
$node->start;
ok(wait_drained($node, $db), 'TLS: everything is published');
check_signals(relay_pid($node, $db), 'TLS', 2);
$secure->freeze;
burst($node, $db, 'tls_frozen', 3000, 1000);
ok(wait_for_query($node, $db, 'SELECT in_flight > 15 FROM outbox.status()'), 'TLS, frozen: events are in flight');
stop_fast('TLS, frozen');
$secure->stop;
settings("outbox.nats_url = '@{[$proxy->url]}'", "outbox.tls_ca_file = ''");
$node->start;
ok(wait_drained($node, $db), 'plain again: everything is published');

# --------------------------------------------- a synchronous standby that never comes

settings("synchronous_standby_names = 'nobody'");
$node->reload;
ok(wait_for_query($node, $db, 'SHOW synchronous_standby_names', expected => 'nobody'), 'no standby: clients wait for it');
my $relay = relay_pid($node, $db);
$node->safe_psql($db, "SET synchronous_commit = local; SELECT outbox.enqueue_text('local', 'a', 'e', 'x')");
ok(wait_drained($node, $db), 'no standby: the relay publishes and doesn\'t wait');
ok(wait_for_query($node, $db, q{SELECT max(w.position) = (SELECT last_value FROM outbox.position) FROM outbox.watermark w}), 'no standby: ... and records it');
# idle: it writes nothing
my $lsn = $node->safe_psql($db, 'SELECT pg_current_wal_insert_lsn()');
stop_fast('no standby, idle');
$node->start;
$relay = wait_relay($node, $db);
my ($waiting, $err) = ('', '');
my $client = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr($db), '-c', "SELECT outbox.enqueue_text('waiting', 'a', 'e', 'x')" ],
	'<', \'', '>', \$waiting, '2>', \$err);
ok(wait_for_query($node, $db, q{SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ 'waiting'}, expected => 1), 'no standby: a client waits');
my $load = start_load($node, $db);    # four of them
$node->safe_psql($db, "SET synchronous_commit = local; SELECT count(outbox.enqueue_text('local', (i % 50)::text, 'e', 'x')) FROM generate_series(1, 2000) i");
is($node->safe_psql($db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox relay' AND wait_event = 'SyncRep'}), 0, 'no standby: the relay doesn\'t');
stop_fast('no standby, busy');
$client->finish;
eval { stop_load($load) };
settings("synchronous_standby_names = ''");
$node->start;
ok(wait_drained($node, $db), 'no standby: everything is published');

# ------------------------------------------------------- reloads and cancels

$relay = relay_pid($node, $db);
my $launcher = $node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'});
my $accepted = $proxy->accepted;
$load = start_load($node, $db, type => 'disturbed', rate => 300);
$node->safe_psql($db, <<"SQL");
DO \$\$
BEGIN
	FOR i IN 1..1000 LOOP
		PERFORM pg_reload_conf(), pg_cancel_backend($relay), pg_cancel_backend($launcher);
		PERFORM pg_sleep(0.001);
	END LOOP;
END \$\$;
SQL
stop_load($load);
ok(wait_drained($node, $db), 'reloads and cancels: everything is published');
is(relay_pid($node, $db), $relay, 'reloads and cancels: the same relay');
is($node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'}), $launcher, 'reloads and cancels: the same launcher');
is($proxy->accepted, $accepted, 'reloads and cancels: the same connection');

# --------------------------------------------------------------------- the end

# what the other server has it got before what the first one got next
$secure->write_config(config => undef);
$secure->restart;
my @messages = ($secure->dump('OUTBOX'), $nats->dump('OUTBOX'));
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db, messages => \@messages, copies => 1) ], [], 'in the end: the streams have all of it');
is_deeply([ check_order($nats, 'OUTBOX', \@messages) ], [], 'in the end: in order');
check_no_crash($node);
done_testing();
