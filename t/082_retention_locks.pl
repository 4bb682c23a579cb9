# Retention waits for nobody, and nobody waits for it: locks of others are gone
# round, its own keep off neither enqueue nor relay; it can be stopped anywhere,
# by kill -9 as well, and the next one goes on.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

needs_test_points();
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "outbox.retention = '1h'\njit = off\nrestart_after_crash = on\nsynchronous_commit = on");
my $db = 'postgres';
create_test_points($node, $db);
ok(wait_relay($node, $db), 'a relay');
$node->safe_psql($db, q{SELECT outbox.pause('held')});

my $n = 0;

# So many events that get published, and two that don't.
sub fill
{
	$n++;
	$node->safe_psql($db, qq{
		SELECT count(*) FROM (SELECT outbox.enqueue('order', i::text, 'E', '1') FROM generate_series(1, 50) i) t;
		SELECT outbox.enqueue('held', 'a', 'first $n', '1', event_id => md5('first $n')::uuid);
		SELECT outbox.enqueue('held', 'a', 'second $n', '1')});
	return wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'order' AND publish_state <> 'published'}, expected => 0);
}

sub purge
{
	return $node->safe_psql($db, q{SELECT action, events, carried_over, reason FROM outbox.purge(older_than => '0')});
}

# A purge in a session of its own, that is going to stop somewhere.
sub begin_purge
{
	my $session = $node->background_psql($db, on_error_stop => 0);

	$session->query_until(qr/sent/, "\\echo sent\nSELECT action, events, carried_over FROM outbox.purge(older_than => '0');\n\\echo over\n");
	return $session;
}

# Events can be enqueued, also by an id of one's own, at once, and are published.
sub is_free
{
	my ($name) = @_;
	my $from = time();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->safe_psql($db, qq{
		SET statement_timeout = '3s';
		SELECT outbox.enqueue('free', '1', '$name', '1', event_id => gen_random_uuid());
		SELECT outbox.enqueue('held', 'a', 'first', '1', event_id => md5('first $n')::uuid, on_conflict => 'return')});
	cmp_ok(time() - $from, '<', slack(3), "$name: nobody waits");
	my $published = $node->safe_psql($db, q{SELECT published FROM outbox.status() WHERE database = current_database()});
	$node->safe_psql($db, q{SELECT outbox.enqueue('free', '1', 'next', '1')});
	ok(wait_for_query($node, $db, "SELECT published > $published FROM outbox.status() WHERE database = current_database()", timeout => 10),
		"$name: the relay goes on");
	return;
}

# What is held is all there, once.
sub is_whole
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($node->safe_psql($db, q{SELECT count(*), count(DISTINCT position), count(DISTINCT event_id) FROM outbox.events
		WHERE aggregate_type = 'held' AND publish_state = 'pending'}), join('|', (2 * $n) x 3), "$name: what was pending is, once");
}

# -------------------------------------------------------------- others' locks

fill();
my $reader = $node->background_psql($db);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$reader->query_safe('SELECT count(*) FROM outbox.events');
like(purge(), qr/^kept\|52\|\|another session is using it/, 'a reader: the range is left alone');
is($reader->query_safe('SELECT count(*) FROM outbox.events'), 52, 'and the reader still sees it');
is_free('with a reader');
$reader->query_safe('COMMIT');

my $dump = $node->background_psql($db);
$dump->query_safe('BEGIN; LOCK TABLE outbox.ledger_0 IN ACCESS SHARE MODE');
like(purge(), qr/^kept\|52\|\|another session is using it/m, 'a dump: the range is left alone');
$dump->query_safe('COMMIT');

my $writer = $node->background_psql($db);
fill();
$writer->query_safe('BEGIN');
$writer->query_safe(q{SELECT outbox.enqueue('order', 'writer', 'E', '1')});
my $rest = purge();
like($rest, qr/^removed\|50\|2\|$/m, 'a writer: the range before goes');
like($rest, qr/^kept\|\d+\|\|a transaction that may have written into it is open/m, 'its own stays');
$writer->query_safe(q{SELECT outbox.enqueue('order', 'writer', 'E2', '1')});
$writer->query_safe('COMMIT');
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE aggregate_id = 'writer' AND publish_state = 'published'}, expected => 2),
	'what it wrote is published, in two ranges as it is');
like(purge(), qr/^removed/m, 'and goes then');
is_whole('locks');

$node->safe_psql($db, q{BEGIN; SELECT outbox.enqueue('order', 'prepared', 'E', '1'); PREPARE TRANSACTION 'p'});
fill();
like(purge(), qr/^kept\|\d+\|\|a transaction that may have written into it is open/m, 'a prepared transaction: its range stays');
$node->safe_psql($db, q{COMMIT PREPARED 'p'});
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE aggregate_id = 'prepared' AND publish_state = 'published'}, expected => 1),
	'and is published');
like(purge(), qr/^removed/m, 'and goes then');
is_whole('prepared');

# ------------------------------------------- in the middle, and killed there

foreach my $point (qw(rotate rotated seal retire-copied retire-emptied retired))
{
	fill();
	arm($node, $db, $point);
	my $first = begin_purge();
	ok(wait_at_point($node, $db, $point), "$point: a cleaner stands there");
	is_free($point);
	my $second = begin_purge() if $point eq 'retire-copied';
	my $pid = $node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox cleaner' AND query <> '' OR backend_type = 'outbox cleaner' ORDER BY backend_start LIMIT 1});
	kill('KILL', $pid);
	$first->{run}->finish;
	$second->{run}->finish if $second;
	ok(wait_for_query($node, $db, 'SELECT true'), "$point: the server is back");
	ok(wait_relay($node, $db, timeout => 60), "$point: and a relay");
	is_whole("$point: after kill -9");
	like(purge(), qr/^removed|^kept\|\d+\|\|it takes new events$/m, "$point: the next one goes on");
	is_whole("$point: after the next one");
}

# -------------------------------------------------------------- two at a time

fill();
arm($node, $db, 'retire-copied');
my $first = begin_purge();
ok(wait_at_point($node, $db, 'retire-copied'), 'one cleaner is at work');
my $second = begin_purge();
ok(wait_for_query($node, $db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}, expected => 2), 'another one waits for it');
is($node->safe_psql($db, q{SELECT test_waiting('retire-copied')}), 1, 'and does nothing');
release($node, $db, 'retire-copied');
my $removed = 0;
foreach my $session ($first, $second)
{
	$session->query_safe('SELECT 1');
	$session->quit;
}
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'order'}, expected => 0), 'what was published has gone');
is_whole('two at a time');

# A call that is cancelled takes its cleaner along.
fill();
arm($node, $db, 'retire-copied');
my ($code, $out, $err) = $node->psql($db, q{SET statement_timeout = '1s'; SELECT FROM outbox.purge(older_than => '0')});
like($err, qr/statement timeout/, 'a call that is cancelled');
release($node, $db, 'retire-copied');
ok(wait_for_query($node, $db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}, expected => 0), 'takes its cleaner along');
is_whole('cancelled');

# ------------------------------------------------- a redrive between the steps

$node->safe_psql($db, q{SELECT outbox.resume('held')});
ok(wait_drained($node, $db), 'what was held is published');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'held' AND publish_state <> 'published'}), 0, 'all of it');
like(purge(), qr/^removed/m, 'and goes');

# ------------------------------------------------------- a database for itself

fill();
arm($node, $db, 'retire-copied');
$first = begin_purge();
ok(wait_at_point($node, $db, 'retire-copied'), 'a cleaner at work');
$node->safe_psql('template1', 'ALTER DATABASE postgres SET outbox.retention = -1');
release($node, $db, 'retire-copied');
$first->quit;
ok(wait_for_query($node, $db, q{SELECT bool_and(kept_because IN ('outbox.retention is off', 'it takes new events')) FROM outbox.ranges()}), 'a setting of the database counts');
($code, $out, $err) = $node->psql('template1', 'ALTER DATABASE postgres RENAME TO other');
is($code, 0, 'no cleaner is in the way of a database that is renamed') or diag($err);
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
my @lines = grep { !/was terminated by signal 9/ } crash_lines($node);
is_deeply(\@lines, [], 'nothing crashed but what was killed');
done_testing();
