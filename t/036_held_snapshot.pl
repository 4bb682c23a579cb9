# Somebody else's old snapshot and an orphaned prepared transaction slow down
# nothing; many writers on one aggregate get through; the library's threads
# take no signals.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "max_connections = 60\nshared_buffers = 64MB\njit = off\nlog_statement = none");
my $db = 'postgres';

# Threads.
my $relay = wait_relay($node, $db);
$node->safe_psql($db, "SELECT outbox.enqueue_text('h', 'first', 'e', 'x')");
ok(wait_published($node, $db, 1), 'a first event: all threads are there');
my %signal = (HUP => 1, INT => 2, QUIT => 3, USR1 => 10, ALRM => 14, TERM => 15);
my @threads = grep { $_ != $relay } map { m{/(\d+)/status$} } glob("/proc/$relay/task/*/status");
cmp_ok(scalar(@threads), '>', 0, 'the library has threads: ' . @threads);
foreach my $thread (@threads)
{
	my ($blocked) = slurp_file("/proc/$relay/task/$thread/status") =~ /^SigBlk:\s*([0-9a-f]+)$/m;

	foreach my $name (sort keys %signal)
	{
		ok(hex(substr($blocked, -8)) & (1 << ($signal{$name} - 1)), "a thread blocks SIG$name") or diag("thread $thread: $blocked");
	}
}
my ($blocked) = slurp_file("/proc/$relay/task/$relay/status") =~ /^SigBlk:\s*([0-9a-f]+)$/m;
ok(!(hex(substr($blocked, -8)) & (1 << ($signal{TERM} - 1))), 'the main thread takes SIGTERM');

# The old snapshot, and the orphan, which has an event of its own.
my $reader = $node->background_psql($db);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.events');
$node->safe_psql($db, "BEGIN; SELECT outbox.enqueue_text('h', 'orphan', 'e', 'x'); PREPARE TRANSACTION 'orphan'");
my $orphan = $node->safe_psql($db, 'SELECT last_value FROM outbox.position');

my @seconds;
my $published = 1;
foreach my $part (1 .. 5)
{
	my $start = time();

	$node->safe_psql($db,
		"SELECT count(outbox.enqueue_text('h', 'a' || (i % 500), 'e', '$part')) FROM generate_series(1, 2500) i") foreach 1 .. 4;
	$published += 10_000;
	ok(wait_for_query($node, $db, "SELECT published >= $published FROM outbox.status()", timeout => 60),
		"part $part: 10,000 events are published");
	push @seconds, time() - $start;
}
cmp_ok($seconds[4], '<', 3 * $seconds[0] + slack(1), sprintf('the last part took %.1f s, the first one %.1f s', @seconds[ 4, 0 ]));
cmp_ok($node->safe_psql($db, 'SELECT max(position) FROM outbox.watermark'), '<', $orphan, 'the watermark waits for the orphan');
is($reader->query_safe('SELECT count(*) FROM outbox.events'), 1, 'the reader still reads its snapshot');

# A new relay reads on from the watermark, which has stood still.
$node->safe_psql($db, "SELECT pg_terminate_backend($relay)");
ok(wait_new_relay($node, $db, $relay), 'a new relay');
$node->safe_psql($db, "SELECT outbox.enqueue_text('h', 'a1', 'e', 'last')");
ok(wait_for_query($node, $db, "SELECT publish_state = 'published' FROM outbox.events WHERE payload_text = 'last'", timeout => 10),
	'the new relay gets through');
$node->safe_psql($db, "COMMIT PREPARED 'orphan'");
$reader->query_safe('COMMIT');
$reader->quit;
ok(wait_drained($node, $db, timeout => 10), 'everything is published, the orphan too');

# Twenty-four writers on one aggregate.
$node->pgbench(
	'-n -c 24 -j 2 -t 30', 0, [qr{processed: 720/720}], [qr{^$}], 'twenty-four writers on one aggregate',
	{
		'036_hot' => q{BEGIN;
SELECT outbox.enqueue_text('h', 'hot', 'e', 'x');
COMMIT;}
	});
ok(wait_drained($node, $db, timeout => 20), 'their events are published');
is($node->safe_psql($db, "SELECT count(*) FROM outbox.events WHERE aggregate_id = 'hot'"), 720, 'all of them');
is($node->safe_psql($db, q{SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 101}), 0, 'no lock is left');

my @messages = $nats->dump('OUTBOX');
is_deeply([ splice(@{ [ stream_differences($nats, 'OUTBOX', $node, $db, messages => \@messages) ] }, 0, 10) ], [], 'the stream has it, once');
is_deeply([ splice(@{ [ check_order($nats, 'OUTBOX', \@messages) ] }, 0, 10) ], [], 'in order');
ok(wait_for_query($node, $db, 'SELECT max(w.position) = (SELECT last_value FROM outbox.position) FROM outbox.watermark w', timeout => 15),
	'the watermark gets to the end');

check_no_crash($node);
done_testing();
