# No slot for a relay, or no process: the launcher survives and says once what is
# missing, clients don't notice, and relays come as soon as they can.

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
CONF
my $no_slot = qr/could not start an outbox relay, cleaner, consumer or replay: no background worker slot is free/;

sub worker_pids
{
	my ($node) = @_;

	return split(/\n/, $node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox %' ORDER BY backend_type}));
}

# --------------------------------------------------- slots that others have taken

# One for a relay, beside the launchers of the extension and of logical replication.
my $node = new_cluster('slots', nats => $nats, create_extension => 0, extra => $conf . "max_worker_processes = 3\nmax_parallel_workers = 3\n");
my $forced = $node->pg_version < 16 ? 'force_parallel_mode' : 'debug_parallel_query';
my $query = $node->background_psql($db);
$query->query_until(qr/begins/, "SET $forced = on;\n\\echo begins\nSELECT pg_sleep(1000);\n");
ok(wait_for_query($node, $db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'}, expected => 1), 'no slot: a parallel query has the last one');
my ($launcher) = worker_pids($node);
my $mark = log_mark($node);
$node->safe_psql($db, 'CREATE EXTENSION outbox');
ok(wait_until(10, sub { log_lines($node, $mark, $no_slot) }), 'no slot: the log says it');
like(join("\n", log_lines($node, $mark, qr/HINT/)), qr/Raise "max_worker_processes" and restart the server/, 'no slot: ... and what to do');
my $start = time();
burst($node, $db, 'no_slot', 500);
cmp_ok(time() - $start, '<', slack(3), 'no slot: enqueue doesn\'t mind');
my $status = own_status($node, $db);
is($status->{state}, 'not running', 'no slot: status() says that no relay runs');
ok(wait_for_query($node, $db, q{SELECT max(created_at) < now() - interval '3 s' FROM outbox.events}), 'no slot: for several tries of the launcher');
is(scalar(log_lines($node, $mark, $no_slot)), 1, 'no slot: one line in the log');
is((worker_pids($node))[0], $launcher, 'no slot: the launcher survives');
$start = time();
$node->safe_psql($db, q{SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep(1000)%'});
ok(wait_drained($node, $db), 'a slot: everything is published');
cmp_ok(time() - $start, '<', slack(10), 'a slot: within 10 s');
untouched_attempts($node, $db, 'a slot');
eval { $query->quit };

# More databases than slots: who has got one keeps it, and the next comes when it frees.
foreach my $name (qw(a b c))
{
	$node->safe_psql($db, "CREATE DATABASE $name");
	$node->safe_psql($name, "CREATE EXTENSION outbox; SELECT outbox.enqueue_text('$name', '1', 'e', 'x')");
}
my $relay = relay_pid($node, $db);
ok(wait_for_query($node, $db, q{SELECT max(created_at) < now() - interval '3 s' FROM outbox.events}), 'more databases than slots: some time passes');
burst($node, $db, 'more', 100);
ok(wait_drained($node, $db), 'more databases than slots: the first one is served');
is(relay_pid($node, $db), $relay, 'more databases than slots: ... by the same relay');
is($node->safe_psql($db, q{SELECT string_agg(database || ': ' || state, ', ' ORDER BY database) FROM outbox.status() WHERE pid IS NULL}),
	'a: not running, b: not running, c: not running', 'more databases than slots: status() names those that aren\'t');
$start = time();
$node->safe_psql($db, 'DROP EXTENSION outbox');
ok(wait_until(10, sub { $nats->info('OUTBOX')->{messages} > 600 }), 'a slot is free: another database is served within 10 s');
is(scalar(log_lines($node, $mark, $no_slot)), int((time() - $start) / 60) + 1, 'more databases than slots: still one line in the log');
check_no_crash($node);
$node->stop;

# ----------------------------------------------------------- no more processes

$nats->tool('delete', 'OUTBOX');
$node = new_cluster('main', nats => $nats, extra => $conf);
$relay = wait_relay($node, $db);

SKIP:
{
	skip 'no prlimit', 6 unless grep { -x "$_/prlimit" } split(/:/, $ENV{PATH});
	my $session = $node->background_psql($db);

	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my ($limit) = slurp_file("/proc/$postmaster/limits") =~ /^Max processes\s+(\w+)/m;

	($launcher) = worker_pids($node);
	$mark = log_mark($node);
	# ... in the words of PostgreSQL 15, and of 17
	my $no_fork = qr/could not fork (?:background )?worker process/;
	system_or_bail('prlimit', "--pid=$postmaster", '--nproc=1:');
	$session->query_safe("SELECT pg_terminate_backend($relay)");
	$session->query_safe(q{SELECT count(outbox.enqueue_text('no_process', i::text, 'e', 'x')) FROM generate_series(1, 100) i});
	ok(wait_until(10, sub { log_lines($node, $mark, $no_fork) > 2 }), 'no process: starting one fails');
	is($session->query_safe('SELECT state FROM outbox.status() WHERE database = current_database()'), 'not running', 'no process: status() says that no relay runs');
	system_or_bail('prlimit', "--pid=$postmaster", "--nproc=$limit:");
	$start = time();
	ok(wait_drained($node, $db), 'processes again: everything is published');
	cmp_ok(time() - $start, '<', slack(10), 'processes again: within 10 s');
	cmp_ok(scalar(log_lines($node, $mark, $no_fork)), '<', 10, 'no process: the launcher backs off');
	is((worker_pids($node))[0], $launcher, 'no process: it is still the same one');
	$session->quit;
}
check_stream($nats, $node, $db, 'processes again');
check_no_crash($node);
done_testing();
