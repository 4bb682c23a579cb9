# Idle costs nothing, a commit wakes the relay at once, and enqueueing depends
# on nobody who listens, sleeps or hangs. What it costs: test/instructions, bench/run enqueue.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $nats = OutboxNats->start;
# The lease is for the relay that stands still while enqueueing is measured.
my $node = new_cluster('main', nats => $nats,
	extra => "outbox.lease_ttl = '1min'\njit = off\nlog_statement = none\nautovacuum = off\nwal_level = minimal\nmax_wal_senders = 0\ncheckpoint_timeout = '1h'");

sub pgbench_script
{
	my ($name, $text) = @_;
	my $file = $node->basedir . "/$name.sql";

	append_to_file($file, $text);
	return $file;
}

# Runs it and yields pgbench's output, or dies.
sub pgbench
{
	my ($file, @options) = @_;
	my ($out, $err) = run_command([ 'pgbench', '-n', '-M', 'prepared', @options, '-f', $file, '-h', $node->host, '-p', $node->port, 'postgres' ]);

	die "pgbench: $err" if $err =~ /error/ || $out !~ /number of failed transactions: 0 /;
	return $out;
}

sub thread_count
{
	my ($pid) = @_;

	return scalar(() = glob("/proc/$pid/task/*"));
}

# Wake-ups of all threads of a process so far, and its CPU time in clock ticks.
sub effort
{
	my ($pid) = @_;
	my $switches = 0;

	foreach my $task (glob("/proc/$pid/task/*"))
	{
		$switches += $1 if slurp_file("$task/status") =~ /^voluntary_ctxt_switches:\s*(\d+)/m;
	}
	my @stat = split(' ', slurp_file("/proc/$pid/stat") =~ s/^.*\) //r);
	return ($switches, $stat[11] + $stat[12]);
}

# --------------------------------------------------------------------------- idle

# Read from another database, so that the reading does not count.
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('postgres', "SELECT outbox.enqueue('warm', i::text, 'E', '1') FROM generate_series(1, 2000) i");
ok(wait_published($node, 'postgres', 2000), 'something was done before');
my $relay = own_status($node, 'postgres')->{pid};
ok( wait_for_query($node, 'postgres', 'SELECT max(w.position) = (SELECT last_value FROM outbox.position) FROM outbox.watermark w'),
	'and all of it is done with');

my $observer = $node->background_psql('other');
my $look = q{SELECT xact_commit + xact_rollback || ' ' || pg_current_wal_insert_lsn() FROM pg_stat_database WHERE datname = 'postgres'};
my $before = '';
my $quiet_since;

# What was done is reported with some delay, so wait until nothing more comes in for a while.
ok( wait_until(30, sub {
		my $now = $observer->query_safe($look);

		$quiet_since = time() if $now ne $before;
		$before = $now;
		return time() - $quiet_since > 3;
	}), 'the relay comes to rest');
my ($switches, $ticks) = effort($relay);
my $threads = thread_count($relay);

# Nothing to wait for: that nothing happens is what is measured, over two and a half of its timer's periods.
sleep(12);
is($observer->query_safe($look), $before, 'idle for 12 s: no transaction in the database, and no WAL');
my ($switches_after, $ticks_after) = effort($relay);
cmp_ok($switches_after - $switches, '<=', 6 * $threads, 'hardly a wake-up')
  or diag(($switches_after - $switches) . " wake-ups of $threads threads");
cmp_ok($ticks_after - $ticks, '<=', 2, 'and no CPU time');
diag('idle for 12 s: ' . ($switches_after - $switches) . ' wake-ups, ' . ($ticks_after - $ticks) . ' ticks');

# The measurement can fail: one event is seen in it.
$node->safe_psql('postgres', "SELECT outbox.enqueue('warm', '1', 'E', '1')");
ok(wait_until(5, sub { $observer->query_safe($look) ne $before }), 'an event does show');
$observer->quit;

# ------------------------------------------------------------------------ wake-up

# A listener that sits in a transaction would make a notification queue grow.
my $listener = $node->background_psql('postgres');
$listener->query_safe('LISTEN outbox');
$listener->query_safe('BEGIN');
$listener->query_safe('SELECT 1');

my $out = '';
my $single = pgbench_script('single', q{
\sleep 4 ms
SELECT outbox.enqueue('wake', :client_id::text, 'E', '{"n": 1}');
});
my $arrivals = $nats->start_tool(\$out, 'subscribe', 'outbox.wake.>', '--count', 300, '--timeout', 60_000, '--latency');
pgbench($single, '-c', 1, '-t', 300);
$arrivals->finish;
my @latency = sort { $a <=> $b } map { (split(/\t/))[6] } split(/\n/, $out);
is(scalar(@latency), 300, 'every event has arrived');
cmp_ok($latency[149], '<', slack(100_000), 'median from enqueue to arrival below 100 ms');
diag(sprintf('enqueue to arrival: p50 %.2f ms, p99 %.2f ms', $latency[149] / 1000, $latency[296] / 1000));

is($listener->query_safe('SELECT pg_notification_queue_usage()'), 0, 'no notification was sent');
$listener->query_safe('COMMIT');
$listener->quit;

# ---------------------------------------------------------- a relay that stands still

ok(wait_until(30, sub { own_status($node, 'postgres')->{backlog} == 0 }), 'backlog worked off');
my $published = own_status($node, 'postgres')->{published};
my $enqueue = pgbench_script('enqueue', q{
\set a random(1, 1000000)
SELECT outbox.enqueue('order', (:a)::text, 'OrderPlaced', '{"total": 12.50, "currency": "EUR", "lines": [1, 2, 3]}');
});
kill('STOP', $relay) or die "could not stop the relay: $!";
my $start = time();
pgbench($enqueue, '-c', 4, '-j', 2, '-t', 2500);
my $seconds = time() - $start;
cmp_ok($seconds, '<', slack(30), '10,000 commits beside a stopped relay');
$node->safe_psql('postgres', "SET statement_timeout = '20s'; SELECT count(outbox.enqueue('order', i::text, 'E', '1')) FROM generate_series(1, 5000) i");
is(own_status($node, 'postgres')->{published}, $published, 'nothing was published meanwhile');
kill('CONT', $relay);
ok(wait_until(30, sub { own_status($node, 'postgres')->{published} == $published + 15_000 }), 'all of them when it goes on')
  or diag(own_status($node, 'postgres')->{published} - $published);
ok(wait_until(10, sub { own_status($node, 'postgres')->{backlog} == 0 }), 'backlog empty');
is(own_status($node, 'postgres')->{pid}, $relay, 'by the same relay');
is( $nats->info('OUTBOX')->{messages},
	$node->safe_psql('postgres', 'SELECT count(*) FROM outbox.log'),
	'each event once in the stream');

check_no_crash($node);
done_testing();
