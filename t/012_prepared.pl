# Two-phase commit: events of a prepared transaction are published when it is
# committed, by whomever, also after a crash; what follows in their aggregates
# waits for that; nobody else does.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => 'jit = off');
my @waiting;    # sessions

# SQL that enqueues one event
sub event
{
	my ($aggregate, $type) = @_;

	return "SELECT outbox.enqueue('order', '$aggregate', '$type', '1');";
}

sub prepare
{
	my ($gid, @events) = @_;

	return $node->safe_psql('postgres', "BEGIN;\n" . join("\n", @events) . "\nPREPARE TRANSACTION '$gid'");
}

# Sends SQL that is going to wait for a lock, and waits until it does.
sub waits
{
	my ($sql, $name, $db) = @_;
	my $session = $node->background_psql($db // 'postgres', on_error_stop => 0);
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	push @waiting, $session;
	$session->query_until(qr/sent/, "\\echo sent\n$sql;\n");
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_for_query($node, 'postgres', "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid", expected => 'Lock', timeout => 10), $name);
	return;
}

# Whatever waited is done now, without an error.
sub all_done
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $session (@waiting)
	{
		$session->query_safe('SELECT 1');
		$session->quit;
	}
	pass('the waiting ones went on');
	@waiting = ();
	return;
}

sub in_stream
{
	my ($aggregate) = @_;

	return join(' ', map { $_->{headers}{'ce-type'} } $nats->dump('OUTBOX', "outbox.order.$aggregate.>"));
}

sub arrives
{
	my ($aggregate, $types, $name, $seconds) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until($seconds // 5, sub { defined $nats->info('OUTBOX') && in_stream($aggregate) eq $types }), "$name: $aggregate")
	  or diag("got \"" . in_stream($aggregate) . "\", expected \"$types\"");
	return;
}

sub crash_and_restart
{
	$node->stop('immediate');
	$node->start;
	return;
}

# A commit that nobody else's doings make the relay see.
sub commit_prepared
{
	my ($gid) = @_;

	return $node->safe_psql('postgres', "COMMIT PREPARED '$gid'");
}

# ------------------------------------------------------------------ without a crash

ok(wait_state($node, 'postgres', 'active'), 'relay active');
prepare('p1', event('a', 'e1'), 'SAVEPOINT s;', event('a', 'gone'), 'ROLLBACK TO s;', event('a', 'e2'), event('b', 'e1'));
$node->safe_psql('postgres', event('c', 'e1'));
arrives('c', 'e1', 'others go on', 3);
waits(event('a', 'e3'), 'a successor waits for a prepared transaction');
is(in_stream('a') . in_stream('b'), '', 'prepared is not committed');
is($node->safe_psql('postgres', "SELECT count(*) FROM outbox.events WHERE aggregate_id IN ('a', 'b')"), 0, '... not in the view either');
commit_prepared('p1');
arrives('b', 'e1', 'COMMIT PREPARED from another session', 2);
arrives('a', 'e1 e2 e3', 'COMMIT PREPARED, then the successor', 2);
all_done();
$node->safe_psql('postgres', "SET statement_timeout = '3s'; " . event('a', 'e4'));
arrives('a', 'e1 e2 e3 e4', 'nothing is left behind');

prepare('p2', event('a', 'gone'), event('d', 'gone'));
waits(event('a', 'e5'), 'a successor waits');
$node->safe_psql('postgres', "ROLLBACK PREPARED 'p2'");
arrives('a', 'e1 e2 e3 e4 e5', 'ROLLBACK PREPARED, then the successor', 2);
all_done();
$node->safe_psql('postgres', "SET statement_timeout = '3s'; " . event('d', 'e1'));
arrives('d', 'e1', 'after ROLLBACK PREPARED');

# A relay that comes when the transaction is prepared already, and one that comes after its commit.
prepare('p3', event('r', 'e1'));
prepare('p4', event('q', 'e1'));
my $relay = own_status($node, 'postgres')->{pid};
$node->safe_psql('postgres', "SELECT pg_terminate_backend($relay)");
ok(wait_until(20, sub { my $pid = own_status($node, 'postgres')->{pid} || $relay; $pid ne $relay }), 'another relay');
commit_prepared('p3');
arrives('r', 'e1', 'prepared before the relay came', 7);
$node->safe_psql('postgres', "BEGIN; SELECT pg_terminate_backend(pid) FROM outbox.status(); COMMIT; COMMIT PREPARED 'p4';");
arrives('q', 'e1', 'committed while there was no relay', 15);

# Broker away.
prepare('p5', event('e', 'e1'));
$nats->stop;
commit_prepared('p5');
$node->safe_psql('postgres', event('e', 'e2'));
$nats->restart;
arrives('e', 'e1 e2', 'broker away at COMMIT PREPARED', 15);

# Much in one prepared transaction, between others' events.
my $busy = $node->background_psql('postgres');
my $other = $node->background_psql('postgres');
$busy->query_safe('BEGIN');
foreach my $round (1 .. 40)
{
	$busy->query_safe("SELECT count(outbox.enqueue('big', (i % 97)::text, 'E', '1')) FROM generate_series(1, 50) i");
	$other->query_safe("SELECT count(outbox.enqueue('between', i::text, 'E', '1')) FROM generate_series(1, 40) i");
}
$busy->query_safe("PREPARE TRANSACTION 'p6'");
$_->quit foreach $busy, $other;
ok(wait_until(10, sub { scalar($nats->dump('OUTBOX', 'outbox.between.>')) == 1600 }), 'others go on between');
is(scalar($nats->dump('OUTBOX', 'outbox.big.>')), 0, '... and before');
commit_prepared('p6');
ok(wait_until(10, sub { scalar($nats->dump('OUTBOX', 'outbox.big.>')) >= 2000 }), '2,000 events of a prepared transaction');

# ----------------------------------------------------------------------- with a crash

$node->safe_psql('postgres', 'CREATE DATABASE second');
$node->safe_psql('second', 'CREATE EXTENSION outbox');
ok(wait_state($node, 'second', 'active'), 'a second database');
$node->safe_psql('second', "BEGIN; SELECT outbox.enqueue('second', 'x', 'e1', '1'); PREPARE TRANSACTION 's1'");

prepare('c1', event('f', 'e1'), 'SAVEPOINT s;', event('f', 'e2'), event('g', 'e1'), 'RELEASE s;', 'SAVEPOINT t;', event('g', 'gone'), 'ROLLBACK TO t;');
prepare('c2', event('h', 'gone'));
prepare('c3', event('i', 'e1'));
crash_and_restart();
# at once: perhaps before the relay is there
waits(event('f', 'e3'), 'after a crash: the successor waits');
waits(event('h', 'e1'), '... and that of one to be rolled back');
waits("SELECT outbox.enqueue('second', 'x', 'e2', '1')", '... and in the second database', 'second');
$node->safe_psql('postgres', "SET statement_timeout = '3s'; " . event('j', 'e1') . "SELECT outbox.enqueue('order', 'x', 'e1', '1');");
arrives('j', 'e1', 'others go on', 10);
arrives('x', 'e1', 'the same id in the other database does not matter');
ok(wait_state($node, 'postgres', 'active'), 'relay active');
commit_prepared('c1');
$node->safe_psql('postgres', "ROLLBACK PREPARED 'c2'");
$node->safe_psql('second', "COMMIT PREPARED 's1'");
arrives('f', 'e1 e2 e3', 'committed after the crash, then the successor', 7);
arrives('g', 'e1', 'subtransactions', 7);
arrives('h', 'e1', 'rolled back after the crash, then the successor', 7);
all_done();
ok(wait_until(7, sub { join(' ', map { $_->{headers}{'ce-type'} } $nats->dump('OUTBOX', 'outbox.second.x.>')) eq 'e1 e2' }), 'the second database');

# The third one lives through another crash, and through a checkpoint and an orderly restart.
crash_and_restart();
waits(event('i', 'e2'), 'after the second crash: the successor waits');
crash_and_restart();
eval { $_->{run}->finish } foreach splice(@waiting);
$node->safe_psql('postgres', 'CHECKPOINT');
$node->restart;
waits(event('i', 'e2'), 'after an orderly restart: the successor waits');
commit_prepared('c3');
arrives('i', 'e1 e2', 'committed after three restarts', 10);
all_done();

# Crash right after COMMIT PREPARED: durable, so published, and once.
prepare('c4', event('k', 'e1'));
$nats->freeze;
commit_prepared('c4');
crash_and_restart();
$nats->thaw;
$node->safe_psql('postgres', event('k', 'e2'));
arrives('k', 'e1 e2', 'crash right after COMMIT PREPARED', 20);

# ------------------------------------------------------------------- several at once

foreach my $i (1 .. 10)
{
	prepare("m$i", event("m$i", 'e1'), event("n$i", 'e1'), event("m$i", 'e2'));
}
my ($code, undef, $err) = $node->psql('postgres', 'BEGIN; ' . event('m11', 'gone') . " PREPARE TRANSACTION 'm11'", on_error_stop => 1);
isnt($code, 0, 'no place for another one');
like($err, qr/max_prepared_transactions/, '... says PostgreSQL');
$node->safe_psql('postgres', "SET statement_timeout = '3s'; " . event('m11', 'e1'));
arrives('m11', 'e1', 'a PREPARE that failed holds nothing up');
commit_prepared('m7');
arrives('m7', 'e1 e2', 'the seventh first');
$node->safe_psql('postgres', "ROLLBACK PREPARED 'm2'");
crash_and_restart();
waits(event("m$_", 'e3'), "successor $_ waits") foreach (9, 3);
foreach my $i (9, 1, 10, 4, 3)
{
	commit_prepared("m$i");
}
$node->safe_psql('postgres', "ROLLBACK PREPARED 'm$_'") foreach (5, 6, 8);
arrives("m$_", 'e1 e2', 'committed', 10) foreach (1, 10, 4);
arrives("m$_", 'e1 e2 e3', 'committed, with successor') foreach (9, 3);
all_done();
is(join('', map { in_stream("m$_") . in_stream("n$_") } 2, 5, 6, 8), '', 'what was rolled back is not there');
is(join('', map { in_stream("n$_") } 1, 3, 4, 7, 9, 10), 'e1' x 6, 'what was committed is');
$node->safe_psql('postgres', "SET statement_timeout = '3s'; " . join(' ', map { event("m$_", 'e9') } 1 .. 10));
ok(wait_published($node, 'postgres', undef, timeout => 10), 'all aggregates are free');

# ------------------------------------------------------------------------- the sum

my @all = $nats->dump('OUTBOX');
my %seen;
$seen{ $_->{msg_id} }++ foreach @all;
is_deeply(
	[ sort keys %seen ],
	[ sort map { split(/\n/, $node->safe_psql($_, 'SELECT event_id FROM outbox.events')) } 'postgres', 'second' ],
	'the stream has every event, and none else');
is(scalar(grep { $_ > 1 } values %seen), 0, 'each once');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
ok(wait_until(10, sub { own_status($node, 'postgres')->{backlog} == 0 }), 'the backlog is empty');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE locktype = \'advisory\' AND objsubid = 101'), 0, 'no queue lock is left');
check_no_crash($node);
done_testing();
