# A ring of four ranges that overflows all the time, under open transactions
# with early positions, while the relay stands still or goes on.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats,
	extra => "outbox.lease_ttl = '1min'\noutbox.test_feed_size = 4\nmax_connections = 60\nshared_buffers = 64MB\njit = off\nlog_statement = none");
my $db = 'postgres';
my %stop = (
	'at "drained"' => [ sub { arm($node, $db, 'drained') }, sub { release($node, $db, 'drained') } ],
	'by SIGSTOP' => [ sub { kill('STOP', $_[0]) }, sub { kill('CONT', $_[0]) } ],
	'not at all' => [ sub { }, sub { } ],
);
my $round = 0;
my $run = 0;

create_test_points($node, $db);

sub small_transactions
{
	my ($name, $count) = @_;
	my $total = 8 * $count;

	$run++;
	$node->pgbench(
		"-n -c 8 -j 2 -t $count", 0, [qr{processed: $total/$total}], [qr{^$}],
		"$name: $total small transactions",
		{
			"032_commit_$run\@4" => q{\set a random(1, 50)
SELECT outbox.enqueue_text('ring', 'a' || :a, 'e', 'small');},
			"032_rollback_$run\@1" => q{\set a random(1, 50)
BEGIN;
SELECT outbox.enqueue_text('ring', 'a' || :a, 'e', 'never');
ROLLBACK;}
		});
	return;
}

foreach my $how (sort keys %stop)
{
	my $name = "relay stopped $how";
	my ($halt, $go) = @{ $stop{$how} };
	my $relay = wait_relay($node, $db);
	my @open = map { $node->background_psql($db) } 1 .. 3;

	# Early positions: one transaction commits at the end, one rolls back, one has late positions, too.
	$round++;
	$_->query_safe("BEGIN; SELECT outbox.enqueue_text('ring', 'open $round $_', 'e', 'early');") foreach @open;
	small_transactions("$name, before", 50);
	ok(wait_for_query($node, $db, "SELECT count(*) > 0 FROM outbox.events WHERE payload_text = 'small'")
		&& wait_for_query($node, $db, "SELECT count(*) = 0 FROM outbox.events WHERE publish_state <> 'published'"),
		"$name: the relay is past the early positions");

	$halt->($relay);
	small_transactions($name, 400);
	$open[2]->query_safe("SELECT outbox.enqueue_text('ring', 'open $round $open[2]', 'e', 'late')");
	small_transactions("$name, after", 50);
	$open[0]->query_safe('COMMIT');
	$open[1]->query_safe('ROLLBACK');
	$open[2]->query_safe('COMMIT');
	$node->safe_psql($db, "SELECT outbox.enqueue_text('ring', 'open $round $_', 'e', 'successor')") foreach @open;
	$_->quit foreach @open;
	$go->($relay);

	ok(wait_drained($node, $db, timeout => 30), "$name: everything is published");
	is($node->safe_psql($db, "SELECT count(*) FROM outbox.events WHERE aggregate_id LIKE 'open $round %'"), 6, "$name: the late ones, too");
	is(relay_pid($node, $db), $relay, "$name: by the same relay");
}
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db) ], [], 'the stream has it, once');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
ok(wait_for_query($node, $db, 'SELECT max(w.position) = (SELECT last_value FROM outbox.position) FROM outbox.watermark w', timeout => 15),
	'the watermark gets to the end');

check_no_crash($node);
done_testing();
