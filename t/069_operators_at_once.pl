# Operators at the same time: two redrives of one parked aggregate, open
# transactions that hold the rows which the relay wants to write, calls beside
# events in retry, and under load.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

needs_test_points();

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.poison_policy = park
outbox.dead_letter_subject = 'dead.letters'
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
deadlock_timeout = 100ms
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');
create_test_points($node, $db);

sub park
{
	my ($aggregate, $followers) = @_;

	enqueue($node, $db, $aggregate, 'e', payload => "repeat('x', 3000)");
	$node->safe_psql($db, "SELECT count(outbox.enqueue_text('a', '$aggregate', 'e', i::text)) FROM generate_series(1, $followers) i");
	return ok(wait_for_query($node, $db, "SELECT count(*) = $followers + 1 FROM outbox.dead_letters WHERE aggregate_id = '$aggregate'", timeout => 30),
		"$aggregate: parked");
}

sub limit
{
	my ($bytes) = @_;

	$nats->tool('update', 'OUTBOX', '--max-msg-size', $bytes);
	return;
}

sub all_published
{
	my ($aggregate, %opt) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_for_query($node, $db, "SELECT bool_and(publish_state = 'published') FROM outbox.events WHERE aggregate_id = '$aggregate'", timeout => 30, %opt),
		"$aggregate: all published");
}

# ------------------------------------- two redrives, each of another part of one aggregate

park('two', 400);
limit(100_000);
foreach my $round (1 .. 3)
{
	my @ids = split(/\n/, $node->safe_psql($db, q{SELECT event_id FROM outbox.dead_letters WHERE aggregate_id = 'two' ORDER BY position}));
	my $first = $node->background_psql($db);
	my $second = $node->background_psql($db);
	my $third = $node->background_psql($db);

	# both know which rows they want and wait for the first one of all
	$third->query_safe(q{BEGIN; SELECT FROM outbox.delivery WHERE position = (SELECT min(position) FROM outbox.delivery) FOR UPDATE});
	$_->query_safe('BEGIN') foreach $first, $second;
	foreach my $waiting (1, 2)
	{
		($waiting == 1 ? $first : $second)->query_until(qr/sent/, "\\echo sent\nSELECT outbox.redrive(event_id => '$ids[300 - 100 * $waiting]');\n");
		ok(wait_for_query($node, $db, qq{SELECT count(*) = $waiting FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%outbox.redrive(%' AND pid <> pg_backend_pid()}, timeout => 10),
			"two redrives ($round): $waiting wait");
	}
	$third->query_safe('ROLLBACK');
	$third->quit;
	my @results;
	foreach my $session ($first, $second)
	{
		my ($out, $code) = $session->query($round < 3 ? 'ROLLBACK' : 'COMMIT');

		push @results, $code;
		$session->quit;
	}
	is_deeply(\@results, [ 0, 0 ], "two redrives ($round): no deadlock");
}
unlike(slurp_file($node->logfile), qr/deadlock detected/, 'two redrives: no deadlock');
all_published('two');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'two redrives: in order');

check_no_crash($node);
done_testing();
