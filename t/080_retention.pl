# Retention removes what was published long enough ago, by whole ranges, and
# nothing else: what is pending, blocked, parked or a dead letter is carried over,
# and can still be published, redriven, discarded afterwards.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.retention = -1
jit = off
log_statement = none
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

# e1, e2, ... for each letter: g fits, b doesn't, p is paused.
sub events
{
	my ($aggregate, $letters) = @_;
	my $n = 0;

	$node->safe_psql($db, join('', map {
		$n++;
		"SELECT outbox.enqueue_text('" . ($_ eq 'p' ? 'later' : 'now') . "', '$aggregate', 'e$n', " . ($_ eq 'b' ? "repeat('x', 3000)" : "'x'") . ');'
	} split(//, $letters)));
	return;
}

sub state_of
{
	my ($aggregate) = @_;

	return $node->safe_psql($db,
		"SELECT coalesce(string_agg(event_type || '=' || publish_state, ' ' ORDER BY position), '') FROM outbox.events WHERE aggregate_id = '$aggregate'");
}

sub is_state
{
	my ($aggregate, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return 1 if wait_for_query($node, $db,
		"SELECT coalesce(string_agg(event_type || '=' || publish_state, ' ' ORDER BY position), '') FROM outbox.events WHERE aggregate_id = '$aggregate'",
		expected => $expected, timeout => 20) && pass("$aggregate: $name");
	return is(state_of($aggregate), $expected, "$aggregate: $name");
}

sub purge
{
	my ($arguments) = @_;

	return $node->safe_psql($db, "SELECT action, events, carried_over, reason FROM outbox.purge($arguments)");
}

sub current_child
{
	return $node->safe_psql($db, 'SELECT coalesce((SELECT child FROM outbox.ring WHERE closed_at IS NULL), 0)');
}

# --------------------------------------------------------------- nothing to do

is(purge("older_than => '0'"), '', 'an empty log: nothing is removed');
is($node->safe_psql($db, 'SELECT child, kept_because FROM outbox.ranges()'), '0|it takes new events', 'and one range, which says why');

# ------------------------------------------------------- a mix, and its preview

$node->safe_psql($db, "SELECT outbox.pause('later')");
alter_system($node, 'outbox.poison_policy = skip');
events('good', 'ggggg');
events('skipped', 'gbg');
is_state('skipped', 'e1=published e2=failed e3=published', 'a dead letter that is passed by');
alter_system($node, 'outbox.poison_policy = block');
events('blocked', 'gbg');
is_state('blocked', 'e1=published e2=failed e3=pending', 'a dead letter that blocks');
alter_system($node, 'outbox.poison_policy = park');
events('parked', 'gbg');
is_state('parked', 'e1=published e2=failed e3=failed', 'one that has its successors parked');
events('paused', 'gpp');
is_state('paused', 'e1=published e2=pending e3=pending', 'and what is paused');
events('discarded', 'gb');
is_state('discarded', 'e1=published e2=failed', 'and one to discard');
$node->safe_psql($db, "SELECT outbox.discard('useless', aggregate_id => 'discarded')");
is_state('good', 'e1=published e2=published e3=published e4=published e5=published', 'the rest is published');

is(purge("older_than => '1 hour', dry_run => true") =~ s/published at .*/published at/r,
	'kept|19||its newest event was published at', 'preview: too young');
my $preview = purge("older_than => '0', dry_run => true");
is($preview, 'would be removed|12|7|', 'preview: the published and discarded ones would go, seven others stay');
is(current_child(), 0, 'and it has changed nothing');

# ----------------------------------------------------------------------- purge

is(purge("older_than => '0'"), 'removed|12|7|' . "\n" . 'kept|7||it takes new events', 'purge does what the preview said');
is(current_child(), 1, 'new events go to the next child');
is_state('good', '', 'what was published has gone');
is_state('skipped', 'e2=failed', 'the dead letter stays');
is_state('blocked', 'e2=failed e3=pending', 'and the one that blocks, with its successor');
is_state('parked', 'e2=failed e3=failed', 'and the parked ones');
is_state('paused', 'e2=pending e3=pending', 'and what is pending');
is_state('discarded', '', 'what was discarded has gone');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.dead_letters'), 4, 'the dead letters can be seen');
is($node->safe_psql($db, "SELECT count(*) FROM outbox.delivery d WHERE NOT EXISTS (SELECT FROM outbox.log l WHERE l.position = d.position)"),
	0, 'nothing is left of those that have gone');
is($node->safe_psql($db, 'SELECT count(*), sum(events), sum(carried_over) FROM outbox.purges'), '1|12|7', 'and it is noted');
is(purge("older_than => '0'"), 'kept|7||it takes new events', 'a second call: they are not carried round');

# ------------------------------------------------- what was carried over lives on

$node->safe_psql($db, "SELECT outbox.resume('later')");
is_state('paused', 'e2=published e3=published', 'what was pending is published');
$node->safe_psql($db, "SELECT outbox.discard('useless', aggregate_id => 'blocked')");
is_state('blocked', 'e2=failed e3=published', 'a blocked aggregate goes on');
alter_system($node, 'outbox.poison_policy = skip');
is($node->safe_psql($db, "SELECT outbox.redrive(aggregate_id => 'skipped')"), 1, 'a dead letter is redriven');
is_state('skipped', 'e2=failed', 'and fails again');
is($node->safe_psql($db, "SELECT attempts FROM outbox.dead_letters WHERE aggregate_id = 'skipped'"), 1, 'with a new attempt');
events('parked', 'g');
is_state('parked', 'e2=failed e3=failed e1=failed', 'a parked aggregate stays parked');

# ----------------------------------------------------------- after a restart

$node->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$node->restart;
$node->safe_psql($db, q{SET client_min_messages = error; SELECT outbox.enqueue_text('now', 'unloaded', 'e1', 'x')});
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'");
$node->restart;
ok(wait_relay($node, $db), 'a relay after a restart');
is_state('unloaded', 'e1=published', 'what was enqueued without the library went into the right child');
events('after', 'ggg');
is_state('after', 'e1=published e2=published e3=published', 'it goes on');
is_state('skipped', 'e2=failed', 'and knows the old ones');
is(current_child(), 1, 'in the same child');
is(purge("older_than => '0'"), 'removed|8|4|' . "\n" . 'kept|4||it takes new events', 'and the next range goes the same way');

# ---------------------------------------------------------------- dead letters

alter_system($node, "outbox.dead_letter_retention = 0");
events('last', 'g');
is_state('last', 'e1=published', 'something published');
is(purge("older_than => '0'"), 'removed|2|3|' . "\n" . 'kept|3||it takes new events', 'dead letters have a time of their own');
is_state('skipped', '', 'the one whose aggregate went on has gone');
is_state('parked', 'e2=failed e3=failed e1=failed', 'those that hold up their aggregate stay');

# --------------------------------------------------------------- by themselves

alter_system($node, "outbox.retention = 1");
events('old', 'ggg');
is_state('old', '', 'outbox.retention removes what is old by itself');
ok($node->safe_psql($db, 'SELECT count(*) FROM outbox.purges') >= 4, 'and notes it');
is_state('parked', 'e2=failed e3=failed e1=failed', 'and nothing else');

# Each event of each aggregate came once, in order.
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'the stream is in order');
check_no_crash($node);
done_testing();
