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

# ------------------------- the relay doesn't wait for an operator's open transaction

sub others_go_on
{
	my ($name) = @_;

	good_ones($node, $db, $name);
	return good_ones_pass($node, $db, $name);
}

# Requests that are there before the relay can take them up: it stands still meanwhile.
limit(2000);
park('open', 20);
my $holder = $node->background_psql($db);
arm($node, $db, 'drained');
enqueue($node, $db, 'wakes', 'e');
ok(wait_at_point($node, $db, 'drained'), 'the relay stands still');
limit(100_000);
$node->safe_psql($db, q{SELECT outbox.redrive(aggregate_id => 'open')});
# parked since: this one's row is in the hands of another redrive
$node->safe_psql($db, q{
	SELECT outbox.enqueue_text('a', 'open', 'e', 'late');
	INSERT INTO outbox.delivery (position, agg_hash, state, attempts, last_code, last_error, failed_at)
	SELECT position, agg_hash, 'p', 0, 0, 'late', now() FROM outbox.events WHERE payload_text = 'late'});
$holder->query_safe(q{BEGIN; SELECT outbox.redrive(error_code => 0)});
release($node, $db, 'drained');
others_go_on('redrive open');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.request}), 1, 'redrive open: the request waits');
$holder->query_safe('COMMIT');
all_published('open');
is(join(',', map { $_->{payload} } grep { length($_->{payload}) < 100 } $nats->dump('OUTBOX', 'outbox.a.open.>')), join(',', 1 .. 20, 'late'), 'redrive open: in order');

limit(2000);
alter_system($node, 'outbox.poison_policy = block');
enqueue($node, $db, 'head', 'e', payload => "repeat('x', 3000)");
enqueue($node, $db, 'head', 'e');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.dead_letters WHERE aggregate_id = 'head'}), 'a blocking head');
arm($node, $db, 'drained');
enqueue($node, $db, 'wakes', 'e');
ok(wait_at_point($node, $db, 'drained'), 'the relay stands still');
is($node->safe_psql($db, q{SELECT outbox.discard('too large', aggregate_id => 'head')}), 1, 'discarded');
$holder->query_safe(q{BEGIN; SELECT outbox.redrive(aggregate_id => 'head')});
release($node, $db, 'drained');
others_go_on('discard open');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.request}), 1, 'discard open: the request waits');
$holder->query_safe('ROLLBACK');
$holder->quit;
ok(wait_for_query($node, $db, q{SELECT string_agg(publish_state, ',' ORDER BY position) FROM outbox.events WHERE aggregate_id = 'head'}, expected => 'failed,published', timeout => 10),
	'discard open: then it is done');

# ---------------------------------------------- a call is no reason to try others again

alter_system($node, 'outbox.poison_policy = skip', 'outbox.retry_base_delay = \'1h\'', 'outbox.retry_max_delay = \'1h\'');
my $responder = respond($nats, 'core.no', refusal(400, 10999, 'no'));
enqueue($node, $db, 'slow', 'e', subject => "'core.no'");
ok(wait_for_query($node, $db, q{SELECT attempts = 1 FROM outbox.events WHERE aggregate_id = 'slow'}), 'an event waits for its retry');
limit(100_000);
foreach my $round (1 .. 5)
{
	$node->safe_psql($db, q{SELECT outbox.discard('gone', event_id => outbox.enqueue_text('a', 'later', 'e', 'x', not_before => 'infinity'))});
	ok(wait_for_query($node, $db, "SELECT count(*) = $round FROM outbox.discarded_events WHERE aggregate_id = 'later'", timeout => 10), "something else is discarded ($round)");
}
enqueue($node, $db, 'wakes', 'e');
ok(wait_for_query($node, $db, q{SELECT bool_and(publish_state = 'published') FROM outbox.events WHERE aggregate_id = 'wakes'}, timeout => 10), 'the relay is at work');
is($node->safe_psql($db, q{SELECT attempts FROM outbox.events WHERE aggregate_id = 'slow'}), 1, 'it still waits');
is(scalar(arrivals($responder)), 1, 'it was sent once');
stop_responding($responder);
is($node->safe_psql($db, q{SELECT outbox.pause(aggregate_type => 'nobody'), outbox.resume(aggregate_type => 'nobody')}), 't|t', 'a pause and its end');
is($node->safe_psql($db, q{SELECT attempts FROM outbox.events WHERE aggregate_id = 'slow'}), 1, 'are none either');
is($node->safe_psql($db, q{SELECT outbox.discard('enough', event_id => event_id) FROM outbox.events WHERE aggregate_id = 'slow'}), 1, 'discarded');
alter_system($node, 'outbox.retry_base_delay = \'100ms\'', 'outbox.retry_max_delay = \'1s\'');

# ------------------------------------ an announcement goes out with its verdict

my $announced = '';
my $listener = $nats->start_tool(\$announced, 'subscribe', 'dead.letters');
my $waited = 0;
limit(2000);
foreach my $round (1 .. 4)
{
	my $start;

	enqueue($node, $db, "told$round", 'e', payload => "repeat('x', 3000)");
	ok(wait_for_query($node, $db, "SELECT count(*) = 1 FROM outbox.dead_letters WHERE aggregate_id = 'told$round'", timeout => 10), "a dead letter ($round)");
	$start = time();
	ok(wait_until(10, sub { $listener->pump_nb; $announced =~ /"outbox\.a\.told$round\.e"/ }), "it is announced ($round)");
	$waited += time() - $start;
}
# the next one or a timer would have brought it, too, two seconds later at most
cmp_ok($waited, '<', slack(1), 'at once');
$listener->kill_kill(grace => 1);

check_no_crash($node);
done_testing();
