# The relay's memory is bounded by outbox.relay_memory, and finding the next
# events takes it a bounded time, whatever waits to be published: large events,
# one long aggregate, very many aggregates.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use constant MEMORY_MB => 8;

# Beyond the budget: the process itself, its caches, the client library, one event in each of several hands.
use constant BASE_MB => 32;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats,
	extra => "jit = off\noutbox.relay_memory = '" . MEMORY_MB . "MB'\noutbox.retry_max_delay = '300ms'\nmax_wal_size = '4GB'\nlog_min_messages = debug1");
my $total = 0;

# What the relay has for itself, in MB; shared buffers and the like don't count.
sub rss
{
	my $pid = own_status($node, 'postgres')->{pid};

	return slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 / 1024 : die 'no RssAnon';
}

# Looks at the relay again and again until the condition is true: (whether it came true, highest rss).
sub watch
{
	my ($seconds, $condition) = @_;
	my $pid = own_status($node, 'postgres')->{pid};
	my $end = time() + $seconds;
	my $highest = 0;

	while (time() < $end)
	{
		foreach my $sample (1 .. 30)
		{
			$highest = $1 / 1024 if slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m && $1 / 1024 > $highest;
			sleep(0.01);
		}
		return (1, $highest) if $condition->();
	}
	return ($condition->(), $highest);
}

# Milliseconds that 95 % of the relay's reads took at most, from its log since an offset.
sub read_p95
{
	my ($offset) = @_;
	my @times = sort { $a <=> $b } slurp_file($node->logfile, $offset) =~ /outbox relay read(?: again)? \d+ rows in (\d+) us/g;

	return @times ? $times[ int(@times * 0.95) ] / 1000 : die 'no reads in the log';
}

sub published
{
	return own_status($node, 'postgres')->{published} || 0;
}

ok(wait_state($node, 'postgres', 'active'), 'relay active');
diag(sprintf('at rest: %.1f MB', rss()));

foreach my $shape (
	[ '300 events of 900 kB', 300, q{outbox.enqueue_text('large', i::text, 'E', repeat('0123456789', 90000))} ],
	[ '60 events of 900 kB of one aggregate', 60, q{outbox.enqueue_text('large', 'one', 'E', repeat('0123456789', 90000))} ],
	[ '40,000 events of one aggregate', 40_000, q{outbox.enqueue('one', '1', 'E', to_jsonb(i))} ],
	[ '100,000 events of 100 aggregates', 100_000, q{outbox.enqueue('hundred', (i % 100)::text, 'E', to_jsonb(i))} ],
	[ '100,000 events of 100,000 aggregates', 100_000, q{outbox.enqueue('each', i::text, 'E', to_jsonb(i))} ])
{
	my ($name, $count, $call) = @$shape;
	my ($done, $highest);
	my $offset = -s $node->logfile;

	$nats->stop;
	ok(wait_state($node, 'postgres', 'not connected'), "$name: broker away");
	$node->safe_psql('postgres', "SELECT count($call) FROM generate_series(1, $count) i");

	# the relay has read ahead as far as it wants to when its CPU time stands still
	my $pid = own_status($node, 'postgres')->{pid};
	my $ticks = -1;
	($done, $highest) = watch(20, sub {
		my @stat = split(' ', slurp_file("/proc/$pid/stat") =~ s/^.*\) //r);
		my $same = $stat[11] + $stat[12] - $ticks < 2;

		$ticks = $stat[11] + $stat[12];
		return $same;
	});
	ok($done, "$name: the relay has read ahead, and rests");
	cmp_ok($highest, '<', MEMORY_MB + BASE_MB, "$name: within its bound while the broker is away");
	my $ahead = $highest;

	my $start = time();
	$nats->restart;
	$total += $count;
	($done, $highest) = watch(90, sub { published() >= $total });
	ok($done, "$name: all published") or diag(published() . " of $total");
	cmp_ok($highest, '<', MEMORY_MB + BASE_MB, "$name: within its bound while publishing");
	# large payloads are read from TOAST and cost what they weigh
	my $p95 = read_p95($offset);
	cmp_ok($p95, '<', slack(50), "$name: finding events stays quick") unless $name =~ /900 kB/;
	diag("$name: 95 % of the reads took at most $p95 ms");
	diag(sprintf('%s: %.1f MB read ahead, %.1f MB while publishing, %.0f events/s', $name, $ahead, $highest, $count / (time() - $start)));
}
is($nats->info('OUTBOX')->{messages}, $total, 'each event once in the stream');
is($node->safe_psql('postgres', q{SELECT count(DISTINCT pid) FROM outbox.status()}), 1, 'one relay');
ok(wait_until(10, sub { own_status($node, 'postgres')->{backlog} == 0 }), 'backlog empty');

# The bound is the setting's doing: with a larger one the same load takes more.
$node->safe_psql('postgres', q{ALTER SYSTEM SET outbox.relay_memory = '200MB'});
$node->reload;
$nats->stop;
$node->safe_psql('postgres', q{SELECT count(outbox.enqueue_text('large', i::text, 'E', repeat('0123456789', 90000))) FROM generate_series(1, 200) i});
my ($more) = watch(20, sub { rss() > MEMORY_MB + BASE_MB });
ok($more, 'a larger outbox.relay_memory is used') or diag(rss());

# ... and a lower one is kept to again, when what was read has been published.
$node->safe_psql('postgres', q{ALTER SYSTEM RESET outbox.relay_memory});
$node->reload;
$nats->restart;
my ($all) = watch(60, sub { published() >= $total + 200 });
ok($all, 'all published');
ok(wait_until(10, sub { rss() < MEMORY_MB + BASE_MB }), 'memory was given back') or diag(rss());

check_no_crash($node);
done_testing();
