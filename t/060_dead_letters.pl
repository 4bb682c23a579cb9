# An event that can never pass becomes a dead letter after one attempt; what
# becomes of its aggregate's later events is outbox.poison_policy's choice.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => "outbox.stream_create = off\n");

sub states
{
	my ($where) = @_;
	return $node->safe_psql('postgres',
		"SELECT string_agg(aggregate_id || ':' || event_type || '=' || publish_state, ' ' ORDER BY position) FROM outbox.events WHERE $where");
}

sub set_policy
{
	my ($policy) = @_;
	$node->safe_psql('postgres', "ALTER SYSTEM SET outbox.poison_policy = '$policy'");
	$node->reload;
	return;
}

# e1 fits, e2 doesn't, e3 and e4 would
sub enqueue_poisoned
{
	my ($aggregate) = @_;
	$node->safe_psql('postgres', qq{
		SELECT outbox.enqueue('a', '$aggregate', 'e1', '{}');
		SELECT outbox.enqueue('a', '$aggregate', 'e2', jsonb_build_object('x', repeat('x', 3000)));
		SELECT outbox.enqueue('a', '$aggregate', 'e3', '{}');
		SELECT outbox.enqueue('a', '$aggregate', 'e4', '{}')});
	return;
}

# skip
my $log_offset = -s $node->logfile;
enqueue_poisoned('s');
ok(wait_for_query($node, 'postgres', q{SELECT count(*) = 3 FROM outbox.events WHERE aggregate_id = 's' AND publish_state = 'published'}), 'skip: the others go on');
is(states(q{aggregate_id = 's'}), 's:e1=published s:e2=failed s:e3=published s:e4=published', 'skip: only the bad one failed');
is($node->safe_psql('postgres', q{SELECT event_type, attempts, error_code, state, last_error LIKE 'JetStream error 10054: %' FROM outbox.dead_letters}),
	'e2|1|10054|skipped|t', 'skip: dead letter after one attempt, with code and source');
my @warnings = slurp_file($node->logfile, $log_offset) =~ /WARNING:  event \S+ can't be published and becomes a dead letter/g;
is(scalar @warnings, 1, 'one warning');

# block
set_policy('block');
enqueue_poisoned('b');
ok(wait_for_query($node, 'postgres', q{SELECT count(*) = 1 FROM outbox.dead_letters WHERE aggregate_id = 'b'}), 'block: a dead letter');
is(states(q{aggregate_id = 'b'}), 'b:e1=published b:e2=failed b:e3=pending b:e4=pending', 'block: the others wait');
is($node->safe_psql('postgres', q{SELECT aggregate_id, reason, depth, error_code, age > '0' FROM outbox.blocked_aggregates}), 'b|blocked|2|10054|t', 'block: shown');

# park
set_policy('park');
enqueue_poisoned('p');
ok(wait_for_query($node, 'postgres', q{SELECT count(*) = 3 FROM outbox.dead_letters WHERE aggregate_id = 'p'}), 'park: dead letters');
is(states(q{aggregate_id = 'p'}), 'p:e1=published p:e2=failed p:e3=failed p:e4=failed', 'park: the others follow');
$node->safe_psql('postgres', q{SELECT outbox.enqueue('a', 'p', 'e5', '{}')});
ok(wait_for_query($node, 'postgres', q{SELECT count(*) = 4 FROM outbox.dead_letters WHERE aggregate_id = 'p'}), 'park: so do new ones');

# redrive while the cause persists: the same again
is($node->safe_psql('postgres', q{SELECT outbox.redrive(aggregate_type => 'a', aggregate_id => 'b')}), 1, 'redrive of the blocking one');
ok(wait_for_query($node, 'postgres', q{SELECT count(*) = 3 FROM outbox.dead_letters WHERE aggregate_id = 'b'}), 'it fails again, under the present policy');
my $since = $node->safe_psql('postgres', 'SELECT clock_timestamp()');
is($node->safe_psql('postgres', q{SELECT outbox.redrive(aggregate_type => 'a', aggregate_id => 'p')}), 4, 'redrive of the parked ones');
ok(wait_for_query($node, 'postgres', qq{SELECT count(*) = 4 FROM outbox.dead_letters WHERE aggregate_id = 'p' AND failed_at > '$since'}, timeout => 20),
	'the first one fails again, the others follow it again');
is(states(q{aggregate_id = 'p' AND event_type <> 'e1' AND publish_state <> 'failed'}), '', 'none of them was sent');

# restart keeps all that
$node->restart;
$node->safe_psql('postgres', q{SELECT outbox.enqueue('a', 'p', 'e6', '{}')});
ok(wait_for_query($node, 'postgres', q{SELECT count(*) = 5 FROM outbox.dead_letters WHERE aggregate_id = 'p'}), 'parked after a restart, too');

# the cause is removed
$nats->tool('update', 'OUTBOX', 'outbox.>', '--max-msg-size', 1000000);
is($node->safe_psql('postgres', q{SELECT outbox.redrive()}), 9, 'redrive of all');
is($node->safe_psql('postgres', q{SELECT outbox.redrive()}), 0, 'and no second time');
ok(wait_published($node, 'postgres', 14, timeout => 20), 'all published');
is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox.dead_letters}), 0, 'no dead letter is left');
is_deeply([ grep { !/: a s: / } check_order($nats, 'OUTBOX') ], [], 'in order, but for the skipped one');
is($node->safe_psql('postgres', q{SELECT count(*) FROM outbox.request}), 0, 'no request is left');
check_no_crash($node);
done_testing();
