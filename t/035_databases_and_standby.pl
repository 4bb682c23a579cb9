# Standbys publish nothing until they are promoted, and then at once. What
# ALTER DATABASE and ALTER ROLE set doesn't reach the relay, and what a caller
# sets doesn't reach what the extension does in its name.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
my $conf = "max_connections = 60\nmax_worker_processes = 20\nshared_buffers = 64MB\njit = off\nlog_statement = none\n";
my $primary = new_cluster('primary', nats => $nats, allows_streaming => 1, extra => $conf);
my $db = 'postgres';

sub enqueue
{
	my ($node, $name, $count, $database) = @_;

	$database //= $db;
	$node->safe_psql($database,
		"SELECT count(outbox.enqueue_text('$database', '$name ' || i % 50, 'e', i::text)) FROM generate_series(1, $count) i");
	return;
}

# The SQLSTATE of a statement that fails, in a server that may be read-only.
sub sqlstate_of
{
	my ($node, $sql) = @_;
	my ($code, $out, $err) = $node->psql($db, "\\set VERBOSITY sqlstate\n$sql");

	return $code == 0 ? '00000' : $err =~ /ERROR:  (\w{5})/ ? $1 : $err;
}

##########################################################################
# Defaults of the database and of the role. Sessions of the test get around them.

# renamed in PostgreSQL 16
my $forced = $primary->pg_version < 16 ? 'force_parallel_mode' : 'debug_parallel_query';
my %default = (
	default_transaction_isolation => 'serializable',
	default_transaction_read_only => 'on',
	default_transaction_deferrable => 'on',
	statement_timeout => '1',
	lock_timeout => '1',
	idle_in_transaction_session_timeout => '1',
	search_path => 'evil, pg_catalog',
	row_security => 'on',
	session_replication_role => 'replica',
	synchronous_commit => 'remote_apply',
	enable_indexscan => 'off',
	enable_seqscan => 'off',
	enable_bitmapscan => 'off',
	enable_nestloop => 'off',
	enable_hashjoin => 'off',
	enable_sort => 'off',
	$forced => 'on',
	plan_cache_mode => 'force_generic_plan',
	timezone => 'Asia/Kathmandu',
	datestyle => 'German, DMY',
	intervalstyle => 'sql_standard',
	bytea_output => 'escape',
	client_encoding => 'LATIN1',
	quote_all_identifiers => 'on',
	default_tablespace => 'nowhere',
	xmlbinary => 'hex',
);
my %database = (
	by_database => [ map { "ALTER DATABASE by_database SET $_ = " . ($_ eq 'search_path' ? $default{$_} : "'$default{$_}'") }
		  sort keys %default ],
	by_role => [ map { "ALTER ROLE CURRENT_USER IN DATABASE by_role SET $_ = " . ($_ eq 'search_path' ? $default{$_} : "'$default{$_}'") }
		  sort keys %default ],
	as_another_role => ['ALTER DATABASE as_another_role SET role = nobody'],
);
my $options = '-c default_transaction_isolation=read\ committed -c default_transaction_read_only=off'
  . ' -c default_transaction_deferrable=off -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0'
  . ' -c search_path=public -c session_replication_role=origin -c client_encoding=UTF8 -c role=none' . " -c $forced=off";

$primary->safe_psql($db, 'CREATE ROLE nobody');
foreach my $name (sort keys %database)
{
	$primary->safe_psql($db, "CREATE DATABASE $name");
	$primary->safe_psql($name, <<'SQL');
CREATE EXTENSION outbox;
CREATE SCHEMA evil;
CREATE FUNCTION evil.bad(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$;
CREATE AGGREGATE evil.max(bigint) (SFUNC = evil.bad, STYPE = bigint, INITCOND = '0');
CREATE AGGREGATE evil.min(bigint) (SFUNC = evil.bad, STYPE = bigint, INITCOND = '0');
CREATE FUNCTION evil.bad2(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'evil'; END $$;
CREATE OPERATOR evil.= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.bad2);
CREATE OPERATOR evil.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.bad2);
CREATE OPERATOR evil.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.bad2);
SQL
}
$primary->safe_psql($db, "$_;") foreach map { @$_ } values %database;
$primary->restart;

{
	local $ENV{PGOPTIONS} = $options;

	foreach my $name (sort keys %database)
	{
		my $relay = wait_relay($primary, $name, timeout => 5);

		ok($relay, "$name: a relay") or next;
		enqueue($primary, 'before', 100, $name);
		ok(wait_published($primary, $name, undef, timeout => 10), "$name: published");
		$primary->safe_psql($name, "SELECT pg_terminate_backend($relay)");
		enqueue($primary, 'after', 100, $name);
		ok(wait_new_relay($primary, $name, $relay), "$name: a new relay");
		ok(wait_published($primary, $name, undef, timeout => 10), "$name: published by it");
		is_deeply([ stream_differences($nats, 'OUTBOX', $primary, $name) ], [], "$name: the stream has it, once");
		ok(wait_for_query($primary, $name,
				'SELECT max(w.position) = (SELECT last_value FROM outbox.position) FROM outbox.watermark w', timeout => 10),
			"$name: and a watermark");
	}
}
unlike(slurp_file($primary->logfile), qr/ERROR:/, 'no error of anybody');
$primary->safe_psql($db, "DROP DATABASE $_") foreach sort keys %database;

##########################################################################
# A standby, while the primary publishes.

enqueue($primary, 'early', 200);
ok(wait_published($primary, $db), 'published by the primary');
$primary->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($primary, 'backup', has_streaming => 1);
$standby->start;
enqueue($primary, 'replicated', 200);
ok(wait_published($primary, $db), 'published by the primary, with a standby');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));

is($standby->safe_psql($db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'}), 0, 'no process of ours on the standby');
is($standby->safe_psql($db, 'SELECT count(*) FROM outbox.status()'), 1, 'outbox.status() works there');
is(own_status($standby, $db)->{state}, 'not running', 'and says that no relay runs');
is($standby->safe_psql($db, "SELECT count(*) FROM outbox.events WHERE publish_state = 'published'"), 400, 'outbox.events works there');
foreach my $sql (
	"SELECT outbox.enqueue('s', 'x', 'e', '{}')",
	"SELECT outbox.enqueue_text('s', 'x', 'e', 'x')",
	"SELECT outbox.enqueue_bytes('s', 'x', 'e', 'x')",
	"SELECT outbox.enqueue_many('{s}', '{x}', '{e}', '{1}')",
	"INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('s', 'x', 'e', '{}')")
{
	is(sqlstate_of($standby, $sql), '25006', "read-only there: $sql");
}
is(sqlstate_of($primary, "BEGIN READ ONLY; SELECT outbox.enqueue_text('s', 'x', 'e', 'x')"), '25006', 'read-only transaction');

# The primary is lost in the middle of publishing, with events in flight at a frozen broker.
$nats->freeze;
enqueue($primary, 'orphaned', 300);
ok(wait_for_query($primary, $db, 'SELECT in_flight > 0 FROM outbox.status()'), 'events are in flight');
$primary->wait_for_catchup($standby, 'replay', $primary->lsn('insert'));
$primary->stop('immediate');
$nats->thaw;
my $stored = $nats->info('OUTBOX')->{messages};
ok(never_within(2, sub { $nats->info('OUTBOX')->{messages} > $stored + 300 }), 'the standby publishes nothing');
$standby->promote;
my $start = time();
enqueue($standby, 'new', 100);
ok(wait_published($standby, $db, undef, timeout => 10), 'promoted: everything is published');
cmp_ok(time() - $start, '<', slack(5), 'promoted: within 5 s');
ok(wait_relay($standby, $db), 'promoted: a relay');
is_deeply([ stream_differences($nats, 'OUTBOX', $standby, $db) ], [], 'promoted: the stream has it, once');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
check_no_crash($primary);
check_no_crash($standby);

##########################################################################
# The first to enqueue after a start prepares the shared memory for all: as a
# superuser, so not with the caller's names. No relay is there to be first.

my $alone = new_cluster('alone', extra => "max_worker_processes = 1\njit = off\nlog_statement = none");
$alone->safe_psql($db, <<'SQL');
CREATE ROLE app LOGIN;
CREATE SCHEMA evil AUTHORIZATION app;
GRANT USAGE ON SCHEMA outbox TO app;
GRANT EXECUTE ON FUNCTION outbox.enqueue_text TO app;
SET ROLE app;
CREATE TABLE evil.caught (who text);
GRANT INSERT ON evil.caught TO PUBLIC;
CREATE FUNCTION evil.minus(bigint, integer) RETURNS bigint LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO evil.caught SELECT current_user; RETURN 0; END $$;
CREATE FUNCTION evil.greater(bigint, bigint) RETURNS bigint LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO evil.caught SELECT current_user; RETURN 0; END $$;
CREATE FUNCTION evil.equal(name, name) RETURNS boolean LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO evil.caught SELECT current_user; RETURN true; END $$;
CREATE OPERATOR evil.- (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = evil.minus);
CREATE OPERATOR evil.= (LEFTARG = name, RIGHTARG = name, FUNCTION = evil.equal);
CREATE AGGREGATE evil.max(bigint) (SFUNC = evil.greater, STYPE = bigint, INITCOND = '0');
SQL
foreach my $when ('at first', 'with a prepared transaction')
{
	$alone->restart;
	$alone->safe_psql($db,
		"SET search_path = evil, pg_catalog; SELECT outbox.enqueue_text('s', '$when', 'e', 'x')", extra_params => [ '-U', 'app' ]);
	is($alone->safe_psql($db, 'SELECT string_agg(DISTINCT who, \',\') FROM evil.caught'), '', "the caller's operators are not used $when");
	$alone->safe_psql($db, "BEGIN; SELECT outbox.enqueue_text('s', 'prepared', 'e', 'x'); PREPARE TRANSACTION 'p'") if $when eq 'at first';
}
$alone->safe_psql($db, "ROLLBACK PREPARED 'p'");
check_no_crash($alone);
done_testing();
