# The inbox under load, crashes, two-phase commit, dump and restore, and its
# retention: exactly one committed effect for each event and consumer.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IPC::Run;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_cluster('main', extra => <<'CONF');
restart_after_crash = on
outbox.nats_url = 'nats://127.0.0.1:1'
CONF
my $db = 'postgres';

$node->safe_psql($db, q{
	CREATE TABLE effects (event_id uuid, consumer text);
	CREATE PROCEDURE consume(seed float, consumer text) LANGUAGE plpgsql AS $$
	DECLARE
		ids uuid[];
		answers boolean[];
	BEGIN
		PERFORM setseed(seed);
		CREATE TEMP TABLE work ON COMMIT PRESERVE ROWS AS SELECT (row_number() OVER () - 1) / 25 AS n, id FROM (
			SELECT md5(i::text)::uuid AS id FROM generate_series(1, 10000) i ORDER BY random()) shuffled;
		FOR b IN 0..399 LOOP
			ids := ARRAY(SELECT id FROM work WHERE n = b);
			answers := outbox.inbox_accept_many(consumer, ids);
			INSERT INTO effects SELECT u.id, consumer FROM unnest(ids, answers) u (id, is_new) WHERE u.is_new;
			IF consumer = 'crash' AND b = 100 THEN
				PERFORM pg_sleep(600);
			ELSIF random() < 0.1 THEN
				ROLLBACK;
				CONTINUE;
			END IF;
			COMMIT;
		END LOOP;
	END $$});

sub consume
{
	my ($consumer, @seeds) = @_;
	my @runs;

	foreach my $seed (@seeds)
	{
		push @runs, IPC::Run::start([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-c', "CALL consume($seed, '$consumer')" ],
			'<', \'', '>', \my $out, '2>', \my $err);
	}
	return @runs;
}

sub once
{
	my ($consumer, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is($node->safe_psql($db, qq{SELECT count(*), count(DISTINCT event_id),
		(SELECT count(*) FROM outbox.inbox WHERE consumer = '$consumer') FROM effects WHERE consumer = '$consumer'}),
		'10000|10000|10000', $name);
}

# Batches that overlap, in all orders, some rolled back: no deadlock, each event once.
my @runs = consume('load', 0.1, 0.2, 0.3, 0.4);
ok($_->finish, 'a consumer has worked through all') foreach @runs;
$_->finish foreach consume('load', 0.5);
$_->finish foreach consume('load', 0.6), consume('load', 0.7);
# what was rolled back in all of these would be missing now
is($node->safe_psql($db, q{INSERT INTO effects SELECT id, 'load' FROM (SELECT md5(i::text)::uuid AS id FROM generate_series(1, 10000) i) x
	WHERE outbox.inbox_accept('load', id) RETURNING 1}) =~ tr/1// < 10, 1, 'next to nothing is left');
once('load', 'overlapping batches: exactly one effect each');
ok(slurp_file($node->logfile) !~ /deadlock detected/, 'no deadlock');

# A consumer is killed in the middle, and with it the server: what it had accepted and not committed is new again.
@runs = consume('crash', 0.1, 0.2);
my $middle = q{FROM pg_stat_activity WHERE query LIKE 'CALL consume%' AND wait_event = 'PgSleep'};
ok(wait_for_query($node, $db, "SELECT count(*) > 0 $middle"), 'one has done some of it, and has a batch open');
kill('KILL', $node->safe_psql($db, "SELECT min(pid) $middle"));
$_->finish foreach @runs;
ok(wait_for_query($node, $db, q{SELECT NOT pg_is_in_recovery()}), 'the server is back');
is($node->safe_psql($db, q{SELECT count(*) FROM effects FULL JOIN outbox.inbox USING (consumer, event_id)
	WHERE consumer = 'crash' AND (effects IS NULL OR inbox IS NULL)}), 0, 'killed: what is remembered is what was done');
$node->safe_psql($db, q{INSERT INTO effects SELECT id, 'crash' FROM (SELECT md5(i::text)::uuid AS id FROM generate_series(1, 10000) i) x
	WHERE outbox.inbox_accept('crash', id)});
once('crash', 'killed: exactly one effect each in the end');

# Prepared transactions: the second waits, also across a restart of the server.
foreach my $end ('COMMIT', 'ROLLBACK')
{
	$node->safe_psql($db, qq{BEGIN; SELECT outbox.inbox_accept('$end', md5('1')::uuid); PREPARE TRANSACTION 'p'});
	$node->restart;
	my ($code, $out, $err) = $node->psql($db, qq{SET lock_timeout = '200ms'; SELECT outbox.inbox_accept('$end', md5('1')::uuid)});
	like($err, qr/canceling statement due to lock timeout/, "prepared: the second one waits, for lock_timeout at most");
	$node->safe_psql($db, "$end PREPARED 'p'");
	is($node->safe_psql($db, "SELECT outbox.inbox_accept('$end', md5('1')::uuid)"), $end eq 'COMMIT' ? 'f' : 't', "prepared, then $end");
}

# Versions from many sessions: each aggregate's versions are accepted in rising order only.
$node->safe_psql($db, q{CREATE TABLE versions (n bigserial, a text, v bigint)});
my $script = PostgreSQL::Test::Utils::tempdir() . '/versions.sql';
append_to_file($script, <<'SQL');
\set a random(1, 5)
\set v random(1, 1000)
INSERT INTO versions (a, v) SELECT :a, :v WHERE outbox.inbox_accept_version('v', md5(:a || '/' || :v)::uuid, 'a', (:a)::text, :v) = 'new';
SQL
command_ok([ 'pgbench', '-n', '-c', 8, '-t', 100, '-f', $script, $node->connstr($db) ], 'versions from eight sessions');
is($node->safe_psql($db, q{SELECT count(*) FROM (SELECT v <= lag(v) OVER (PARTITION BY a ORDER BY n) AS wrong FROM versions) x WHERE wrong}),
	0, 'they only rise');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.inbox_version v
	JOIN (SELECT a, max(v) FROM versions GROUP BY 1) x ON x.a = v.aggregate_id WHERE v.version <> x.max}), 0, 'the last one is remembered');

# Dump and restore: a restored consumer doesn't act twice.
my $dump = PostgreSQL::Test::Utils::tempdir() . '/dump.sql';
$node->safe_psql($db, q{SELECT outbox.inbox_configure('load', retention => '60 days')});
$node->command_ok([ 'pg_dump', '-f', $dump, $node->connstr($db) ], 'dump');
$node->safe_psql($db, 'CREATE DATABASE copy');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('copy'), '-f', $dump ], 'restore');
is($node->safe_psql('copy', q{SELECT outbox.inbox_accept('load', md5('1')::uuid), outbox.inbox_accept('load', md5('new')::uuid),
	(SELECT retention FROM outbox.inbox_consumers WHERE consumer = 'load')}), 'f|t|60 days', 'the copy remembers');

# Retention: the server sweeps by itself, also where no event was ever enqueued.
is($node->safe_psql('copy', 'SELECT count(*) FROM outbox.events'), 0, 'no events there');
$node->safe_psql('copy', 'SELECT outbox.arm()');
$node->safe_psql('copy', q{SELECT outbox.inbox_configure('crash', retention => '1 s', replay_range => '1 s', retry_cap => '1 s')});
ok(wait_for_query($node, 'copy', q{SELECT count(*) = 0 FROM outbox.inbox WHERE consumer = 'crash'}), 'old rows go by themselves');
is($node->safe_psql('copy', q{SELECT count(*) FROM outbox.inbox WHERE consumer = 'load'}), 10001, 'those of others stay');
$node->safe_psql('copy', q{SELECT outbox.inbox_accept('crash', md5('1')::uuid)});
ok(wait_for_query($node, 'copy', q{SELECT count(*) = 0 FROM outbox.inbox WHERE consumer = 'crash'}), '... and again, without being told');
# An inbox that is empty costs nothing any more.
$node->safe_psql('copy', q{SELECT sum(outbox.inbox_forget(consumer)) FROM outbox.inbox_consumers; });
$node->safe_psql('copy', 'VACUUM outbox.inbox');
is($node->safe_psql('copy', q{SELECT pages FROM outbox.inbox_sweep_plan()}), 0, 'an empty inbox');

check_no_crash($node, allow => qr/was terminated by signal 9/);
done_testing();
