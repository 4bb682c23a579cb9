# Two databases exchange events while everything is killed, frozen and cut off:
# each event has one effect in the other database, in order within its aggregate.
# A message that kills the server is parked in the end.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
restart_after_crash = on
max_worker_processes = 16
outbox.ack_timeout = 1s
outbox.retry_base_delay = 20ms
outbox.retry_max_delay = 500ms
CONF
my ($a, $b) = ('postgres', 'other');

# b handles what a has said, and answers; a handles the answers. Effects and answers are one transaction.
$node->safe_psql($a, 'CREATE DATABASE other');
$node->safe_psql($b, q{CREATE EXTENSION outbox; ALTER DATABASE other SET outbox.stream = 'ANSWERS'; ALTER DATABASE other SET outbox.subject_template = 'answers.{aggregate_type}.{aggregate_id}.{event_type}'});
$node->safe_psql($b, q{
	CREATE TABLE effects (n bigserial, aggregate text, i int);
	CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO effects (aggregate, i) VALUES (m.aggregate_id, (m.payload ->> 'i')::int);
		IF random() < 0.02 THEN
			RAISE EXCEPTION 'a failure by chance';
		END IF;
		PERFORM outbox.enqueue('answer', m.aggregate_id, 'answered', m.payload);
	END $$;
	SELECT outbox.subscribe('OUTBOX', 'b', 'public.handle', max_attempts => 1000, batch_size => 20)});
$node->safe_psql($a, q{
	CREATE TABLE effects (n bigserial, aggregate text, i int);
	CREATE TABLE said (i int PRIMARY KEY);
	CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE sql AS
	$$ INSERT INTO public.effects (aggregate, i) VALUES (m.aggregate_id, (m.payload ->> 'i')::int) $$;
	SELECT outbox.subscribe('ANSWERS', 'a', 'public.handle', batch_size => 20)});

my $said = 0;

# So many events in transactions of five; what was committed counts, by the table "said".
sub say_more
{
	my ($count) = @_;
	my $sql = '';

	foreach (1 .. $count / 5)
	{
		$sql .= "BEGIN; INSERT INTO said SELECT generate_series($said + 1, $said + 5);"
		  . " SELECT count(outbox.enqueue('order', (i % 7)::text, 'said', jsonb_build_object('i', i))) FROM generate_series($said + 1, $said + 5) i; COMMIT;\n";
		$said += 5;
	}
	$node->psql($a, $sql, on_error_stop => 0, timeout => 60, timed_out => \my $timed_out);
	return;
}

sub count_effects
{
	my ($db) = @_;
	my ($code, $out) = $node->psql($db, 'SELECT count(*) FROM effects', timeout => 60, timed_out => \my $timed_out);

	return defined $code && $code == 0 ? $out : 0;
}

sub consumer_pid
{
	my ($db) = @_;
	my ($code, $out) = $node->psql($db, 'SELECT pid FROM outbox.subscriptions WHERE pid IS NOT NULL', timeout => 60, timed_out => \my $timed_out);

	return $out;
}

sub check
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	wait_for_query($node, $a, 'SELECT true');
	my $committed = $node->safe_psql($a, 'SELECT count(*) FROM said');

	foreach my $db ($b, $a)
	{
		ok(wait_for_query($node, $db, "SELECT count(*) >= $committed FROM effects", timeout => 120), "$name: all effects in $db")
		  or diag($node->safe_psql($db, 'SELECT * FROM outbox.subscriptions'), "\n", $node->safe_psql($db, 'SELECT * FROM outbox.status()'));
		is($node->safe_psql($db, q{SELECT count(*) - count(DISTINCT i), count(*) FILTER (WHERE wrong)
			FROM (SELECT i, i < lag(i) OVER (PARTITION BY aggregate ORDER BY n) AS wrong FROM effects) x}), '0|0', "$name: once and in order in $db");
	}
	return;
}

# In the middle of work: more effects come.
sub while_working
{
	my ($work) = @_;
	my $before = count_effects($b);

	say_more(300);
	$nats->wait_until(30, sub { count_effects($b) > $before });
	return $work->();
}

say_more(200);
check('at first');

while_working(sub { kill('KILL', consumer_pid($b)) });
say_more(100);
check('consumer killed');

my @pids = split(/\n/, $node->safe_psql($b, q{SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'}));
while_working(sub { $node->kill9 });
ok(wait_until(10, sub { !grep { kill(0, $_) } @pids }), 'postmaster killed: all of ours have ended');
ok(wait_until(20, sub { $node->start(fail_ok => 1) }), 'postmaster killed: another one');
say_more(100);
check('postmaster killed');

while_working(sub { $node->stop('immediate'); $node->start });
say_more(100);
while_working(sub { $nats->kill9; say_more(100); $nats->restart });
check('immediate shutdown, NATS killed');

while_working(sub { $nats->freeze; say_more(100); $nats->thaw });
foreach (1 .. 3)
{
	while_working(sub { $node->safe_psql($b, q{SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE backend_type = 'outbox consumer'}) });
}
check('NATS frozen, consumers terminated');

# A message that ends the process, and with it the server, is parked after as many attempts as allowed.
$node->safe_psql($b, q{
	CREATE TABLE killed ();
	CREATE OR REPLACE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		INSERT INTO effects (aggregate, i) VALUES (m.aggregate_id, (m.payload ->> 'i')::int);
		IF m.event_type = 'deadly' THEN
			COPY killed FROM PROGRAM 'kill -9 $PPID; sleep 60';
		END IF;
		PERFORM outbox.enqueue('answer', m.aggregate_id, 'answered', m.payload);
	END $$;
	SELECT outbox.subscribe('OUTBOX', 'b', 'public.handle', max_attempts => 2)});
$node->safe_psql($a, q{SELECT outbox.enqueue('order', '1', 'deadly', '{"i": 0}')});
say_more(20);
ok(wait_for_query($node, $b, q{SELECT count(*) = 1 FROM outbox.parked_messages WHERE event_type = 'deadly' AND attempts = 2 AND error_code = '57P02'}, timeout => 120),
	'a deadly message is parked') or diag($node->safe_psql($b, 'SELECT * FROM outbox.subscriptions'));
check('deadly message');

check_no_crash($node, allow => qr/was terminated by signal 9/);
done_testing();
