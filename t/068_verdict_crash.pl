# The relay ends between a verdict and its record, and between the record and
# what follows from it, for each policy: no successor overtakes, the verdict is
# told once at most, what follows does follow. The same for operators' requests:
# whatever ends when, what was committed is done.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
restart_after_crash = on
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
create_test_points($node, $db);

my %after = (
	skip => [ 'e1=failed e2=published e3=published', 'e1=skipped' ],
	block => [ 'e1=failed e2=pending e3=pending', 'e1=blocks its aggregate' ],
	park => [ 'e1=failed e2=failed e3=failed', 'e1=parked e2=parked e3=parked' ],
);

sub end_relay
{
	my ($how, $pid) = @_;

	if ($how eq 'killed')
	{
		kill('KILL', $pid);
		wait_for_query($node, $db, 'SELECT true');
	}
	elsif ($how eq 'crash')
	{
		$node->stop('immediate');
		$node->start;
	}
	else
	{
		$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
	}
	return;
}

foreach my $policy (qw(skip block park))
{
	alter_system($node, "outbox.poison_policy = $policy");
	foreach my $case ([ 'settle', 'killed' ], [ 'settled', 'terminated' ], [ 'settled', 'crash' ])
	{
		my ($point, $how) = @$case;
		my $aggregate = "$policy-$point-$how";
		my $name = "$policy, at \"$point\", $how";
		my $relay = wait_relay($node, $db);
		my $mark = log_mark($node);
		my ($warnings, $id);

		arm($node, $db, $point);
		$node->safe_psql($db, "SELECT outbox.enqueue_text('a', '$aggregate', 'e1', repeat('x', 3000));"
			  . "SELECT outbox.enqueue_text('a', '$aggregate', 'e' || i, 'x') FROM generate_series(2, 3) i");
		ok(wait_at_point($node, $db, $point, 1, timeout => 10), "$name: it stands there");
		is(scalar($nats->dump('OUTBOX', "outbox.a.$aggregate.>")), 0, "$name: no successor was sent");
		is(dead_states($node, $db, $aggregate), $point eq 'settle' ? '' : $after{$policy}[1] =~ s/ .*//r =~ s/blocks.*/blocks its aggregate/r, "$name: the record");
		end_relay($how, $relay);
		release($node, $db, $point) if $how ne 'crash';
		ok(wait_new_relay($node, $db, $relay, timeout => 20), "$name: a new relay");
		is_in_the_end($node, $db, $aggregate, $after{$policy}[0], "$name: what follows");
		is(dead_states($node, $db, $aggregate), $after{$policy}[1], "$name: the dead letters");
		is($node->safe_psql($db, "SELECT attempts FROM outbox.dead_letters WHERE aggregate_id = '$aggregate' AND event_type = 'e1'"), 1, "$name: attempts that were recorded");
		$id = $node->safe_psql($db, "SELECT event_id FROM outbox.events WHERE aggregate_id = '$aggregate' AND event_type = 'e1'");
		$warnings = () = slurp_file($node->logfile, $mark) =~ /WARNING:  event $id can't be published/g;
		is($warnings, $how eq 'crash' ? 0 : 1, "$name: told once at most");
	}
}

# Redriven or discarded while the relay stands still; then it ends, or the server does.
$nats->tool('update', 'OUTBOX', 'outbox.>', '--max-msg-size', 100_000);
foreach my $how (qw(killed terminated crash))
{
	my $point = { killed => 'settle', terminated => 'settled', crash => 'settled' }->{$how};
	my $relay = wait_relay($node, $db);

	arm($node, $db, 'drained');
	enqueue($node, $db, 'wakes', 'e');
	ok(wait_at_point($node, $db, 'drained', 1, timeout => 10), "requests, $how: the relay stands still");
	is($node->safe_psql($db, "SELECT outbox.redrive(aggregate_id => '$_-$point-$how')"), { skip => 1, block => 1, park => 3 }->{$_}, "requests, $how: $_ redriven") foreach qw(skip block park);
	end_relay($how, $relay);
	release($node, $db, 'drained') if $how ne 'crash';
	ok(wait_new_relay($node, $db, $relay, timeout => 20), "requests, $how: a new relay");
	is_in_the_end($node, $db, "$_-$point-$how", 'e1=published e2=published e3=published', "requests, $how: $_ published") foreach qw(skip block park);
}
ok(wait_drained($node, $db), 'nothing is left to do');
is_deeply([ grep { !/: a skip-/ } check_order($nats, 'OUTBOX') ], [], 'in order, but for those that were skipped');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db) ], [], 'the stream has all, once');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.request'), 0, 'no request is left');
check_no_crash($node, allow => qr/background worker "outbox relay" \(PID \d+\) was terminated by signal 9/);
done_testing();
