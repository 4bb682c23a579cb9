# Order within an aggregate is commit order, and nobody waits for strangers:
# concurrent transactions, rollbacks, subtransactions, isolation levels, many
# aggregates at once.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats,
	extra => "jit = off\ndeadlock_timeout = '200ms'\ntrack_commit_timestamp = on\noutbox.max_open_aggregates = 110000");

sub session
{
	my ($name) = @_;
	my $session = $node->background_psql('postgres', on_error_stop => 0);

	$session->query_safe("SET application_name = '$name'");
	return $session;
}

# SQL that enqueues one event
sub event
{
	my ($aggregate, $type) = @_;

	return "SELECT outbox.enqueue('order', '$aggregate', '$type', '1')";
}

# Sends a statement that is going to wait for a lock, and waits until it does.
sub start_waiting
{
	my ($session, $name, $sql) = @_;

	$session->query_until(qr/sent/, "\\echo sent\n$sql;\n");
	return wait_for_query($node, 'postgres',
		"SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = '$name' AND wait_event_type = 'Lock'", timeout => 10);
}

# The event types of an aggregate in the order of the stream.
sub in_stream
{
	my ($aggregate) = @_;

	return join(' ', map { $_->{headers}{'ce-type'} } $nats->dump('OUTBOX', "outbox.order.$aggregate.>"));
}

# Waits until these event types are in the stream, and only they.
sub arrives
{
	my ($aggregate, $types, $name, $seconds) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until($seconds // 5, sub { defined $nats->info('OUTBOX') && in_stream($aggregate) eq $types }), $name)
	  or diag("got \"" . in_stream($aggregate) . "\", expected \"$types\"");
	return;
}

# --------------------------------------------- open for the whole test: nobody cares

ok(wait_state($node, 'postgres', 'active'), 'relay active');
my $stranger = session('stranger');
$stranger->query_safe('BEGIN');
$stranger->query_safe(event('stranger', 'e1'));
my $reader = session('reader');
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$reader->query_safe('SELECT count(*) FROM outbox.events');

# ------------------------------------------------------ B09: lower number commits later

my $one = session('one');
my $two = session('two');

$one->query_safe('BEGIN');
$one->query_safe(event('B', 'e1'));
$one->query_safe(event('A', 'e1'));
$two->query_safe(event('C', 'e1'));
arrives('C', 'e1', 'a lower number still open delays no other aggregate', 3);
is(in_stream('A') . in_stream('B'), '', 'nothing uncommitted is published');
ok(start_waiting($two, 'two', event('A', 'e2')), 'the same aggregate: the second waits');
$one->query_safe('COMMIT');
$two->query_safe('SELECT 1');
arrives('A', 'e1 e2', 'the lower number that was committed later arrives, its successor behind it');
arrives('B', 'e1', 'and the other one');

$one->query_safe('BEGIN');
$one->query_safe(event('R', 'gone'));
ok(start_waiting($two, 'two', event('R', 'e1')), 'the second waits for the first');
$one->query_safe('ROLLBACK');
$two->query_safe('SELECT 1');
arrives('R', 'e1', 'a rolled-back number delays nobody, not in its own aggregate either');

# Committed in the opposite order of their start.
$one->query_safe('BEGIN');
$one->query_safe(event('first', 'e1'));    # has an older transaction id now
$two->query_safe('BEGIN');
$two->query_safe(event('O', 'e1'));
$two->query_safe(event('second', 'e1'));
$two->query_safe('COMMIT');
$one->query_safe(event('O', 'e2'));
$one->query_safe('COMMIT');
arrives('O', 'e1 e2', 'the order is that of the commits, not of the starts');

# A transaction that dies.
$one->query_safe('BEGIN');
$one->query_safe(event('K', 'gone'));
ok(start_waiting($two, 'two', event('K', 'e1')), 'the second waits for the first');
is($node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'one'"), 't', 'terminated');
$two->query_safe('SELECT 1');
arrives('K', 'e1', 'the terminated one delays nobody');
$one->{run}->finish;
$one = session('one');

# A burst of rollbacks, in several sessions.
my $burst = $node->basedir . '/rollbacks.sql';
append_to_file($burst, "BEGIN;\n" . event('burst', 'gone') . ";\n" . event('gap', 'gone') . ";\nROLLBACK;\n");
$node->command_ok([ 'pgbench', '-n', '-c', 2, '-t', 100, '-f', $burst, '-h', $node->host, '-p', $node->port, 'postgres' ], 'burst of rollbacks');
my $start = time();
$two->query_safe(event('burst', 'e1'));
arrives('burst', 'e1', 'after the burst');
cmp_ok(time() - $start, '<', slack(2), '... at once');

# ------------------------------------------------------------------- isolation levels

foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	my $aggregate = $level =~ s/ //r;

	$one->query_safe("BEGIN ISOLATION LEVEL $level");
	$one->query_safe('SELECT count(*) FROM outbox.events');    # takes the snapshot
	$two->query_safe(event($aggregate, 'e1'));
	arrives($aggregate, 'e1', "$level: another commits in between");
	$one->query_safe(event($aggregate, 'e2'));
	ok(start_waiting($two, 'two', event($aggregate, 'e3')), "$level: and yet another waits");
	$one->query_safe('COMMIT');
	$two->query_safe('SELECT 1');
	arrives($aggregate, 'e1 e2 e3', "$level: no serialization failure, in order");
}
$two->query_safe('BEGIN ISOLATION LEVEL SERIALIZABLE');
$two->query_safe(event('S1', 'e1'));
$one->query_safe('BEGIN ISOLATION LEVEL SERIALIZABLE');
$one->query_safe(event('S2', 'e1'));
$two->query_safe('COMMIT');
$one->query_safe('COMMIT');
arrives($_, 'e1', 'two serializable transactions with different aggregates') foreach qw(S1 S2);

foreach my $case (
	[ 'BEGIN READ ONLY; SELECT outbox.enqueue(\'order\', \'ro\', \'E\', \'1\'); COMMIT', '25006', 'a read-only transaction' ],
	[ 'SET default_transaction_read_only = on; SELECT outbox.enqueue(\'order\', \'ro\', \'E\', \'1\')', '25006', 'read only by default' ])
{
	my ($code, undef, $err) = $node->psql('postgres', "\\set VERBOSITY verbose\n$case->[0]", on_error_stop => 1);

	isnt($code, 0, "$case->[2] is refused");
	like($err, qr/ERROR:  $case->[1]:/, "... with $case->[1]");
}

# --------------------------------------------------------- B37: within a transaction

$node->safe_psql('postgres', q{
	CREATE FUNCTION emit(id text, type text) RETURNS void LANGUAGE sql AS $$ SELECT outbox.enqueue('order', id, type, '1') $$;
	CREATE TABLE stock (n int);
});
$node->safe_psql('postgres', q{
	BEGIN;
	SELECT emit('save', 'e1');
	SAVEPOINT s;
	SELECT emit('save', 'gone');
	ROLLBACK TO s;
	SELECT emit('save', 'e3');
	SAVEPOINT a; SAVEPOINT b; SELECT emit('save', 'e4'); RELEASE a;
	SAVEPOINT c; SELECT emit('save', 'gone'); SELECT emit('save2', 'gone'); RELEASE c; ROLLBACK TO s;
	SELECT emit('save', 'e5');
	COMMIT AND CHAIN;
	SELECT emit('save', 'e6');
	ROLLBACK AND CHAIN;
	SELECT emit('save', 'e7');
	COMMIT;
});
arrives('save', 'e1 e5 e7', 'savepoints');
is(in_stream('save2'), '', '... what was rolled back is not there');

# A rolled-back savepoint: the aggregate stays locked until the end, which is safe; another goes on.
$one->query_safe('BEGIN');
$one->query_safe('SAVEPOINT s');
$one->query_safe(event('sub', 'gone'));
$one->query_safe('ROLLBACK TO s');
$two->query_safe(event('other', 'e1'));
arrives('other', 'e1', 'others go on beside a rolled-back savepoint');
$one->query_safe('COMMIT');
$two->query_safe(event('sub', 'e1'));
arrives('sub', 'e1', 'and the aggregate afterwards');

$node->safe_psql('postgres', q{
	DO $$
	BEGIN
		PERFORM emit('block', 'e1');
		BEGIN
			PERFORM emit('block', 'gone');
			PERFORM 1 / 0;
		EXCEPTION WHEN division_by_zero THEN
			PERFORM emit('block', 'e2');
		END;
		BEGIN
			PERFORM emit('block', 'e3');
		EXCEPTION WHEN OTHERS THEN
			NULL;
		END;
	END $$;
});
arrives('block', 'e1 e2 e3', 'exception blocks');

# 10,000 subtransactions, half of them rolled back.
$node->safe_psql('postgres', q{
	DO $$
	BEGIN
		FOR i IN 1..10000 LOOP
			BEGIN
				PERFORM emit('many-subs', 'e' || i);
				IF i % 2 = 0 THEN RAISE SQLSTATE 'XX999'; END IF;
			EXCEPTION WHEN SQLSTATE 'XX999' THEN NULL;
			END;
		END LOOP;
	END $$;
});
ok(wait_until(20, sub { scalar($nats->dump('OUTBOX', 'outbox.order.many-subs.>')) >= 5000 }), '10,000 subtransactions');
is(in_stream('many-subs'), join(' ', map { 'e' . (2 * $_ - 1) } 1 .. 5000), '... half of them rolled back');

# nested
$node->safe_psql('postgres', join('', 'BEGIN;', (map { "SAVEPOINT s$_; SELECT emit('nested', 'e$_');" } 1 .. 200), 'ROLLBACK TO s101;', 'COMMIT;'));
arrives('nested', join(' ', map { "e$_" } 1 .. 100), '200 nested subtransactions, 100 of them rolled back');

# Triggers, at once and at commit.
$node->safe_psql('postgres', q{
	CREATE FUNCTION stock_changed() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		PERFORM emit(TG_NAME, 'e' || NEW.n);
		IF NEW.n < 0 THEN RAISE EXCEPTION 'negative'; END IF;
		RETURN NULL;
	END $$;
	CREATE TRIGGER direct AFTER INSERT ON stock FOR EACH ROW EXECUTE FUNCTION stock_changed();
	CREATE CONSTRAINT TRIGGER deferred AFTER INSERT ON stock DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stock_changed();
	INSERT INTO stock VALUES (1), (2);
});
my ($code) = $node->psql('postgres', "ALTER TABLE stock DISABLE TRIGGER direct;\nBEGIN;\nINSERT INTO stock VALUES (3), (-1);\nCOMMIT", on_error_stop => 1);
isnt($code, 0, 'error at commit');
$node->safe_psql('postgres', 'INSERT INTO stock VALUES (4)');
arrives('direct', 'e1 e2', 'trigger');
arrives('deferred', 'e1 e2 e4', 'deferred trigger; nothing of the commit that failed');

$node->safe_psql('postgres', q{
	CREATE PROCEDURE in_steps() LANGUAGE plpgsql AS $$
	BEGIN
		FOR i IN 1..30 LOOP
			PERFORM emit('steps', 'e' || i);
			IF i % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
		END LOOP;
		PERFORM emit('steps', 'end');
	END $$;
	CALL in_steps();
});
arrives('steps', join(' ', (map { "e$_" } grep { $_ % 3 != 0 } 1 .. 30), 'end'), 'procedure that commits in a loop');

is( $node->safe_psql('postgres', q{
		BEGIN;
		DECLARE c CURSOR WITH HOLD FOR SELECT i, emit('hold', 'e' || i) FROM generate_series(1, 5) i;
		COMMIT;
		FETCH ALL FROM c;
	}), join("\n", map { "$_|" } 1 .. 5), 'cursor WITH HOLD');
arrives('hold', 'e1 e2 e3 e4 e5', '... its events were enqueued at commit');

# -------------------------------------------------------------------- B13: locks

# (a) Crossing orders in two transactions: a deadlock is found, and says what it is about.
$one->query_safe('BEGIN');
$one->query_safe(event('dead-a', 'one'));
$two->query_safe('BEGIN');
$two->query_safe(event('dead-b', 'two'));
ok(start_waiting($one, 'one', event('dead-b', 'one')), 'one waits for two');
my ($output, $failed) = $two->query(event('dead-a', 'two'));
my $victim = $two;
my $error = $two->{stderr};
if (!$failed)
{
	$victim = $one;
	(undef, $failed) = $one->query('SELECT 1');
	$error = $one->{stderr};
}
my $survivor = $victim == $one ? $two : $one;
ok($failed, 'a deadlock is an error, not silence');
like($error, qr/deadlock detected/, '... that says so');
like($error, qr/CONTEXT:.*aggregate "dead-[ab]" of type "order"/s, '... and names the aggregate');
$_->{stderr} = '' foreach $one, $two;
$victim->query('ROLLBACK');
$victim->{stderr} = '';
$survivor->query_safe('COMMIT');
my $name = $survivor == $one ? 'one' : 'two';
arrives($_, $name, 'the other one of the two goes through') foreach qw(dead-a dead-b);

# (b) Ids that collide in 32 bits are different aggregates.
my ($left, $right) = split(/\|/, $node->safe_psql('postgres', q{
	SELECT min('id' || i), max('id' || i) FROM generate_series(1, 200000) i GROUP BY hashtext('id' || i) HAVING count(*) > 1 LIMIT 1}));
isnt($left, $right, 'two ids with the same hashtext');
$one->query_safe('BEGIN');
$one->query_safe(event($left, 'e1'));
$two->query_safe("SET statement_timeout = '3s'");
$two->query_safe(event($right, 'e1'));
$two->query_safe('RESET statement_timeout');
arrives($right, 'e1', 'no wait for an id that collides');
$one->query_safe('COMMIT');

# The same id under another type is another aggregate.
$one->query_safe('BEGIN');
$one->query_safe("SELECT outbox.enqueue('cart', 'A', 'e1', '1')");
$two->query_safe("SET statement_timeout = '3s'");
$two->query_safe(event('A', 'e3'));
$two->query_safe('RESET statement_timeout');
arrives('A', 'e1 e2 e3', 'no wait for the same id of another type');
$one->query_safe('ROLLBACK');

# ------------------------------------------------------------ B09: 500 at random

$node->safe_psql('postgres', 'CREATE TABLE expected (event_id uuid, aggregate int)');
my $random = $node->basedir . '/random.sql';
append_to_file($random, q{
\set a random(1, 8)
\set b :a + random(1, 3)
\set commits random(0, 4)
\set pause random(0, 4000)
BEGIN;
SELECT outbox.enqueue('order', 'rnd' || :a, 'E', '1') AS first \gset
SELECT outbox.enqueue('order', 'free' || :client_id, 'E', '1') AS free \gset
\sleep :pause us
SELECT outbox.enqueue('order', 'rnd' || :b, 'E', '1') AS second \gset
\sleep :pause us
INSERT INTO expected VALUES (':first', :a), (':second', :b), (':free', NULL);
\if :commits
COMMIT;
\else
ROLLBACK;
\endif
});
$node->command_ok([ 'pgbench', '-n', '-c', 4, '-j', 2, '-t', 125, '-f', $random, '-h', $node->host, '-p', $node->port, 'postgres' ],
	'500 transactions at random in 4 sessions');
# the stranger's one event is the only one left
ok(wait_for_query($node, 'postgres', q{SELECT count(*) = 0 FROM outbox.events WHERE publish_state <> 'published'}, timeout => 20), 'all published');

my %expected = map { split(/\|/, $_) } split(/\n/, $node->safe_psql('postgres', 'SELECT event_id, coalesce(aggregate, 0) FROM expected'));
my @random = grep { $_->{headers}{'ce-subject'} =~ /^(?:rnd|free)/ } $nats->dump('OUTBOX', 'outbox.order.*.E');
is_deeply([ sort map { $_->{msg_id} } @random ], [ sort keys %expected ], 'what was committed is in the stream, once, and nothing else');

# An independent witness of the order of commits.
my %committed = map { split(/\|/, $_) } split(/\n/, $node->safe_psql('postgres', 'SELECT event_id, extract(epoch FROM pg_xact_commit_timestamp(xmin)) FROM expected'));
my (%last, @late);
foreach my $message (@random)
{
	my $aggregate = $message->{headers}{'ce-subject'};

	push @late, $aggregate if $committed{ $message->{msg_id} } < ($last{$aggregate} // 0);
	$last{$aggregate} = $committed{ $message->{msg_id} };
}
is_deeply(\@late, [], 'in the order of the commits');

my @all = $nats->dump('OUTBOX');
is_deeply(
	[ sort map { $_->{msg_id} } @all ],
	[ sort split(/\n/, $node->safe_psql('postgres', 'SELECT event_id FROM outbox.events')) ],
	'the stream has every event, once, and none else');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');

# (c) One call takes all its locks in one order, whatever order the ids have.
my $many = $node->basedir . '/many.sql';
append_to_file($many, q{SELECT cardinality(outbox.enqueue_many(ARRAY['many'], (SELECT array_agg(i::text ORDER BY random()) FROM generate_series(1, 1000) i), ARRAY['E'], ARRAY['1'::jsonb]));} . "\n");
$node->command_checks_all([ 'pgbench', '-n', '-c', 2, '-t', 4, '-f', $many, '-h', $node->host, '-p', $node->port, 'postgres' ],
	0, [qr/failed transactions: 0 /], [qr/^(?!.*(?:deadlock|ERROR))/s], 'enqueue_many of 1,000 aggregates in random order, in two sessions');
ok(wait_until(30, sub { $nats->info('OUTBOX')->{messages} >= @all + 8000 }), '... and all published');

# --------------------------------------------------- B13 (d): 100,000 aggregates at once

is($node->safe_psql('postgres', 'SHOW max_locks_per_transaction'), '64', 'default max_locks_per_transaction');
my $before = $nats->info('OUTBOX')->{messages};
$one->query_safe('BEGIN');
is($one->query_safe(q{SELECT count(outbox.enqueue('bulk', i::text, 'E', '1')) FROM generate_series(1, 100000) i}), '100000', '100,000 aggregates in one transaction');
$two->query_safe("SET statement_timeout = '3s'");
$two->query_safe(event('beside', 'e1'));
arrives('beside', 'e1', 'others go on beside it');
$two->query_safe('RESET statement_timeout');

# outbox.max_open_aggregates is the limit; beyond it there is an error, and all is well afterwards
my ($verdict) = sqlstates($node, 'postgres', q{SELECT count(outbox.enqueue('more', i::text, 'E', '1')) FROM generate_series(1, 12000) i});
is($verdict->[0], '53200', 'too many open aggregates');
like($verdict->[1], qr/outbox\.max_open_aggregates/, '... with a hint');
$one->query_safe('COMMIT');
ok(wait_until(60, sub { $nats->info('OUTBOX')->{messages} >= $before + 100_001 }), 'all published');
is($node->safe_psql('postgres', q{SELECT count(outbox.enqueue('again', i::text, 'E', '1')) FROM generate_series(1, 12000) i}), 12000, 'their places are free again');
ok(wait_until(60, sub { $nats->info('OUTBOX')->{messages} >= $before + 112_001 }), 'all published');

# -------------------------------------------------------------- the stranger at last

is(in_stream('stranger'), '', 'the open transaction is not published');
$stranger->query_safe(event('stranger', 'e2'));
$stranger->query_safe('COMMIT');
arrives('stranger', 'e1 e2', 'until it commits');
is($nats->info('OUTBOX')->{messages}, $before + 112_003, 'nothing was sent twice');
$_->quit foreach $stranger, $reader, $one, $two;

check_no_crash($node);
done_testing();
