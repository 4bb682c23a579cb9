# Twenty starts and stops of the server at random moments, some of them while
# events are enqueued: each stop takes seconds, and nothing is lost.
#
# STOP_LOOPS and STOP_SEED: more of them; the same moments again.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

my $db = 'postgres';
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "jit = off\nlog_statement = none\noutbox.retry_max_delay = 400ms\n");
my $seed = $ENV{STOP_SEED} // time();
my $loops = $ENV{STOP_LOOPS} // 20;
my $worst = 0;

srand($seed);
$node->stop('fast');
foreach my $i (1 .. $loops)
{
	my $start;

	$node->start;
	burst($node, $db, 'loop', 300) if $i % 2;
	sleep(rand(0.4));    # any moment is as good as another
	$start = time();
	$node->stop($i % 5 ? 'fast' : 'immediate');
	$worst = time() - $start if time() - $start > $worst;
}
cmp_ok($worst, '<', slack(5), 'the server stops within 5 s each time') or diag("STOP_SEED=$seed");
$node->start;
ok(wait_drained($node, $db), 'everything is published');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.events'), 300 * int(($loops + 1) / 2), '... of each time');
check_stream($nats, $node, $db, 'in the end');
untouched_attempts($node, $db, 'in the end');
check_no_crash($node);
done_testing();
