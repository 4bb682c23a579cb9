# The launcher, the postmaster, the whole primary are killed: nobody stays behind,
# and others go on where they stopped. (Kills, terminates and cancels of relays:
# t/034; a quiet promotion: t/035; the launcher's end: t/038.)

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $db = 'postgres';
my $nats = OutboxNats->start;
my $conf = <<'CONF';
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
restart_after_crash = on
outbox.retry_max_delay = 1s
outbox.connect_timeout = 60s
CONF
sub worker_pids
{
	my ($node) = @_;

	return split(/\n/, $node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox %' ORDER BY backend_type}));
}

# ------------------------------------------------------- the launcher is killed

my $node = new_cluster('main', nats => $nats, extra => $conf);
my $start;

ok(wait_relay($node, $db), 'a relay');
my ($launcher, $relay) = worker_pids($node);
burst($node, $db, 'launcher', 1000);
kill('KILL', $launcher);
ok($relay = wait_new_relay($node, $db, $relay), 'launcher killed: the server restarts, with a relay');
ok(wait_drained($node, $db), 'launcher killed: everything is published');

# ------------------------------------- the postmaster is killed: nobody stays behind

foreach my $case ('publishing', 'frozen broker', 'connecting to a frozen broker')
{
	wait_relay($node, $db);
	$nats->freeze if $case ne 'publishing';
	if ($case eq 'connecting to a frozen broker')
	{
		$node->safe_psql($db, 'SELECT pg_terminate_backend(pid) FROM outbox.status()');
		ok(wait_for_query($node, $db, q{SELECT state = 'not connected' FROM outbox.status()}), "$case: it tries to");
	}
	burst($node, $db, 'postmaster', 1000);
	my @workers = worker_pids($node);
	my $postmaster = postmaster($node);
	my @others = children($postmaster);
	$start = time();
	$node->kill9;
	is(scalar(@workers), 2, "$case: a launcher and a relay");
	ok(wait_until(10, sub { !grep { runs($_) } @workers }), "$case, postmaster killed: they end");
	cmp_ok(time() - $start, '<', slack(1.5), "$case, postmaster killed: ... within a second");
	$nats->thaw if $case ne 'publishing';
	ok(wait_until(10, sub { !grep { runs($_) } @others }), "$case, postmaster killed: nobody is left");
	# another one starts only when this one's number is free
	wait_until(30, sub { !kill(0, $postmaster) });
	$node->start;
	ok(wait_drained($node, $db), "$case, postmaster killed: everything is published");
}
untouched_attempts($node, $db, 'kills');
check_stream($nats, $node, $db, 'kills', copies => 1);
check_no_crash($node, allow => qr/was terminated by signal 9/);
$node->stop;
$nats->tool('delete', 'OUTBOX');

# ---------------------------------------- the primary is killed in mid-batch

my $primary = new_cluster('primary', nats => $nats, allows_streaming => 1, extra => $conf);
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
# what is visible, and so published, is on the standby
$primary->append_conf('postgresql.conf', "synchronous_standby_names = 'standby'\nsynchronous_commit = remote_write\n");
$primary->reload;
burst($primary, $db, 'early', 100);
my $load = start_load($primary, $db, rate => 300);
ok(wait_for_query($primary, $db, 'SELECT published > 500 AND in_flight > 0 FROM outbox.status()'), 'promotion: the primary is publishing');
$primary->kill9;
eval { stop_load($load) };
is($standby->safe_psql($db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'}), 0, 'promotion: nobody publishes on the standby');
my $stored = $nats->info('OUTBOX')->{messages};
$standby->promote;
$start = time();
burst($standby, $db, 'new', 10);
ok(wait_until(10, sub { $nats->info('OUTBOX')->{messages} > $stored }), 'promotion: the first publish');
cmp_ok(time() - $start, '<', slack(5), 'promotion: ... within 5 s');
ok(wait_drained($standby, $db), 'promotion: everything is published');
check_stream($nats, $standby, $db, 'promotion');
untouched_attempts($standby, $db, 'promotion');
check_no_crash($standby);
done_testing();
