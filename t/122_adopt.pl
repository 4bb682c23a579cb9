# The switch of outbox.adopt(): while an application writes into an outbox table of its
# own and a relay of its own empties it, each row is published once, by the old relay
# or by ours, in the order of its aggregate; transactions that are open across the
# switch are waited for. And what becomes of an adoption in a dump.

use strict;
use warnings;

use IPC::Run;
use OutboxNode qw(checkout);
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "log_statement = none\nmax_connections = 40");
my $dir = PostgreSQL::Test::Utils::tempdir('adopt');

sub sql { return $node->safe_psql($db, $_[0]) }

# Sends a statement whose result is fetched later, by finish_query.
sub start_query
{
	my ($session, $sql) = @_;

	$session->query_until(qr/sent/, "\\echo sent\n$sql;\n\\echo finished\n");
	return;
}

sub finish_query { return $_[0]->query_until(qr/finished/, '') =~ s/\s*finished\s*//r }

# How many sessions wait for a lock on the table.
sub waiting { return "SELECT count(*) FROM pg_locks WHERE relation = '$_[0]'::regclass AND NOT granted" }

# ---------------------------------------------- writers, and the relay that was there before

sql(<<'SQL');
CREATE TABLE aggregate (id integer PRIMARY KEY, n integer NOT NULL) WITH (fillfactor = 50);
INSERT INTO aggregate SELECT i, 0 FROM generate_series(1, 10) i;
CREATE TABLE "OutboxMessages" ("Id" uuid PRIMARY KEY, "Type" text NOT NULL, "Content" text NOT NULL, "OccurredOnUtc" timestamptz NOT NULL, "ProcessedOnUtc" timestamptz, "Error" text);
CREATE TABLE published_by_the_old_relay (nr bigint GENERATED ALWAYS AS IDENTITY, id uuid, content text);
-- a change of an aggregate and its event, numbered within the aggregate
CREATE FUNCTION change(aggregate integer) RETURNS void LANGUAGE sql AS $$
	WITH changed AS (UPDATE aggregate SET n = n + 1 WHERE id = $1 RETURNING id, n)
	INSERT INTO "OutboxMessages" ("Id", "Type", "Content", "OccurredOnUtc")
	SELECT gen_random_uuid(), 'Changed', format('{"aggregate": %s, "n": %s}', id, n), clock_timestamp() FROM changed;
$$;
-- publishes and marks in one transaction, as a relay with an exclusive claim does
CREATE FUNCTION old_relay() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	ids uuid[];
BEGIN
	ids := ARRAY(SELECT "Id" FROM "OutboxMessages" WHERE "ProcessedOnUtc" IS NULL ORDER BY "OccurredOnUtc" LIMIT 5 FOR UPDATE);
	INSERT INTO published_by_the_old_relay (id, content) SELECT "Id", "Content" FROM "OutboxMessages" WHERE "Id" = ANY (ids) ORDER BY "OccurredOnUtc";
	PERFORM pg_sleep(0.002);
	UPDATE "OutboxMessages" SET "ProcessedOnUtc" = now() WHERE "Id" = ANY (ids);
END $$;
SQL
append_to_file("$dir/write", "\\set a random(1, 10)\n\\set fate random(1, 4)\nBEGIN;\nSELECT change(:a);\n\\if :fate = 1\nROLLBACK;\n\\else\nCOMMIT;\n\\endif\n");
append_to_file("$dir/relay", "SELECT old_relay();\n");
my @bench = ('pgbench', '-n', '-h', $node->host, '-p', $node->port);
my ($writers_out, $relay_out) = ('', '');
my $writers = IPC::Run::start([ @bench, '-c', 3, '-T', 300, '-R', 250, '-f', "$dir/write", $db ], '<', \'', '>', \$writers_out, '2>&1');
my $old_relay = IPC::Run::start([ @bench, '-c', 1, '-T', 300, '-R', 10, '-f', "$dir/relay", $db ], '<', \'', '>', \$relay_out, '2>&1');

ok(wait_for_query($node, $db, q{SELECT count(*) > 60 FROM "OutboxMessages" WHERE "ProcessedOnUtc" IS NULL}), 'there is a backlog');
ok(wait_for_query($node, $db, 'SELECT count(*) > 30 FROM published_by_the_old_relay'), '... that the old relay works at');
my $taken = sql(q{SELECT outbox.adopt('"OutboxMessages"', 'ef-core', aggregate_type => '''thing''', aggregate_id => '"Content"::jsonb ->> ''aggregate''')});
cmp_ok($taken, '>', 20, 'a backlog is taken over');
ok(wait_for_query($node, $db, "SELECT count(*) > $taken + 100 FROM outbox.events"), 'rows come through the trigger as well');
foreach my $program ([ 'the writers', $writers, \$writers_out ], [ 'the old relay', $old_relay, \$relay_out ])
{
	my ($name, $handle, $out) = @$program;

	ok($handle->pumpable, "$name went on through the switch");
	$handle->signal('TERM');
	$handle->finish;
	unlike($$out, qr/ERROR|aborted/, '... without an error');
}
# a session that was cut off may still be at its last statement
ok(wait_for_query($node, $db, q{SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'}), 'they have gone');
sql('SELECT old_relay()');
ok(wait_published($node, $db, undef), 'all is published');

is(sql(q{SELECT count(*) FROM "OutboxMessages" WHERE "ProcessedOnUtc" IS NULL}), 0, 'all rows are marked');
is(sql(q{
	SELECT count(*) FROM "OutboxMessages" m
	WHERE (SELECT count(*) FROM published_by_the_old_relay o WHERE o.id = m."Id") + (SELECT count(*) FROM outbox.events e WHERE e.event_id = m."Id") <> 1}),
	0, 'each row is published once, by the old relay or by ours');
is(sql(q{SELECT count(*) FROM outbox.events e WHERE NOT EXISTS (SELECT FROM "OutboxMessages" m WHERE m."Id" = e.event_id)}), 0, '... and nothing else');
is(sql(q{
	WITH published AS (
		SELECT 0 AS by, nr, content::jsonb AS c FROM published_by_the_old_relay UNION ALL SELECT 1, position, payload_text::jsonb FROM outbox.events
	), numbered AS (
		SELECT (c ->> 'n')::int AS n, row_number() OVER (PARTITION BY c ->> 'aggregate' ORDER BY by, nr) AS place FROM published)
	SELECT count(*) FROM numbered WHERE n <> place}), 0, '... in the order of its aggregate, without a gap');
is_deeply([ check_order($nats, 'OUTBOX') ], [], '... and so in the stream');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db) ], [], '... where each is once');

# -------------------------------------------------------- transactions open across the switch

sql(q{CREATE TABLE outboxevent (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text NOT NULL, aggregateid text NOT NULL, type text NOT NULL, payload text)});
my $insert = 'INSERT INTO outboxevent (aggregatetype, aggregateid, type, payload) VALUES';
my ($open, $undone, $relay, $adopter, $late) = map { $node->background_psql($db) } 1 .. 5;

sql("$insert ('open', '1', 'before', '0'), ('claimed', '1', 'claimed', '0')");
# a relay that claims, publishes, and then deletes
$relay->query_safe("BEGIN; SELECT count(*) FROM (SELECT FROM outboxevent WHERE type = 'claimed' FOR UPDATE) c");
$open->query_safe("BEGIN; $insert ('open', '1', 'open', '1')");
$undone->query_safe("BEGIN; $insert ('undone', '1', 'undone', '1')");
sql("BEGIN; $insert ('prepared', '1', 'prepared', '1'); PREPARE TRANSACTION 'across'");
my (undef, undef, $error) = $node->psql($db, "SET lock_timeout = '100ms'; SELECT outbox.adopt('outboxevent', 'debezium', backlog => 'true')");
like($error, qr/lock timeout/, 'adopt() gives up when the session wants that');
is(sql("SELECT count(*) FROM outbox.adoptions WHERE \"table\" = 'outboxevent'::regclass"), 0, '... and leaves nothing');
start_query($adopter, "SELECT outbox.adopt('outboxevent', 'debezium', backlog => 'true')");
ok(wait_for_query($node, $db, waiting('outboxevent'), expected => 1), 'adopt() waits for open transactions');
start_query($late, "$insert ('open', '1', 'late', '3')");
ok(wait_for_query($node, $db, waiting('outboxevent'), expected => 2), '... and who comes later for it');
$open->query_safe("$insert ('open', '1', 'open', '2'); COMMIT");
$undone->query_safe('ROLLBACK');
is(sql(waiting('outboxevent')), 2, 'still waiting for the prepared transaction');
sql("COMMIT PREPARED 'across'");
is(sql(waiting('outboxevent')), 2, '... and for the relay that has claimed a row');
$relay->query_safe("DELETE FROM outboxevent WHERE type = 'claimed'; COMMIT");
is(finish_query($adopter), 4, 'the backlog: what was committed before, what was open, what was prepared');
finish_query($late);
$_->quit foreach $open, $undone, $relay, $adopter, $late;
ok(wait_published($node, $db, undef), 'published');
is(sql(q{SELECT string_agg(aggregate_type || ' ' || payload_text, ', ' ORDER BY aggregate_type, position) FROM outbox.events WHERE aggregate_type <> 'thing'}),
	'open 0, open 1, open 2, open 3, prepared 1', 'each once, and in order');

# --------------------------------------------------------------------------- elsewhere

# A subscriber of logical replication, and a restore, must not publish what the source has published.
sql("SET session_replication_role = replica; $insert ('replica', '1', 'e', '1')");
is(sql("SELECT count(*) FROM outbox.events WHERE aggregate_type = 'replica'"), 0, 'applied rows are not forwarded');

my $events = sql('SELECT count(*) FROM outbox.events');
$node->command_ok([ 'pg_dump', '-Fc', '-f', "$dir/dump", '-h', $node->host, '-p', $node->port, $db ], 'a dump');
$node->safe_psql($db, 'CREATE DATABASE restored');
# without a relay of its own, which would publish
$node->safe_psql($db, q{ALTER DATABASE restored SET outbox.nats_url = 'nats://127.0.0.1:1'});
$node->command_ok([ 'pg_restore', '-d', 'restored', '-h', $node->host, '-p', $node->port, "$dir/dump" ], '... restored');
is($node->safe_psql('restored', 'SELECT count(*) FROM outbox.events'), $events, '... forwards no row again');
is($node->safe_psql('restored', q{SELECT string_agg("table"::text || ' ' || preset || ' ' || backlog, ', ' ORDER BY "table"::text COLLATE "C") FROM outbox.adoptions}),
	"\"OutboxMessages\" ef-core $taken, outboxevent debezium 4", '... knows its adoptions');
$node->safe_psql('restored', "$insert ('restored', '1', 'e', '1')");
is($node->safe_psql('restored', "SELECT count(*) FROM outbox.events WHERE aggregate_type = 'restored'"), 1, '... which go on');

my (undef, undef, $refused) = $node->psql('restored', 'DROP EXTENSION outbox');
like($refused, qr/trigger outbox_adopted on table outboxevent depends on/, 'DROP EXTENSION is refused while a table is adopted');
$node->safe_psql('restored', "SET client_min_messages = error; DROP EXTENSION outbox CASCADE; $insert ('after', '1', 'e', '1')");
is($node->safe_psql('restored', "SELECT count(*) FROM pg_trigger WHERE tgname = 'outbox_adopted'"), 0, '... with CASCADE the adoptions go, too');

# ------------------------------------------------------------------------------ the way back

sql(q{SELECT outbox.unadopt('"OutboxMessages"')});
sql('SELECT change(1)');
is(sql(q{SELECT old_relay(); SELECT count(*) FROM published_by_the_old_relay o JOIN outbox.events e ON e.event_id = o.id}) =~ s/\n//r, 0, 'the old relay repeats nothing of ours');
is(sql(q{SELECT count(*) FROM "OutboxMessages" WHERE "ProcessedOnUtc" IS NULL}), 0, '... and publishes what is new');
is(sql(q{SELECT outbox.adopt('"OutboxMessages"', 'ef-core')}), 0, 'adopted again, it has nothing left to take over');

# ------------------------------------------------- docs/migrating.md, tried on all the tables

my ($ddl, $documented) = map { slurp_file(checkout() . "/$_") } qw(sql/adopt.sql docs/migrating.md);
my @tables = $ddl =~ /^(CREATE TABLE .*?;)$/msg;
my @statements = map { s/^(?:BEGIN|COMMIT);.*$//mgr } $documented =~ /^```sql\n(.*?)^```/msg;
$node->safe_psql($db, 'CREATE DATABASE documented');
$node->safe_psql('documented', join("\n", 'CREATE EXTENSION outbox; CREATE SCHEMA shop;', @tables,
	'ALTER TABLE outbox_pto RENAME TO outbox;',
	'CREATE TABLE shop.events (id bigint PRIMARY KEY, order_id text, kind text, body bytea, created_at timestamptz, sent_at timestamptz);'));
cmp_ok(scalar(@statements), '>=', 8, 'statements in the document');
foreach my $statement (@statements)
{
	my ($table) = $statement =~ /adopt\('([^']+)'/;
	my ($failed, $out, $why) = $node->psql('documented', "BEGIN; $statement; SELECT 'adopted ' || \"table\" FROM outbox.adoptions; ROLLBACK", on_error_stop => 1);

	is($failed, 0, "$table as documented") or diag($why);
	like($out, qr/^adopted /m, '... is adopted');
}

check_no_crash($node);
done_testing();
