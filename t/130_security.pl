# Grants and row-level security as they are used: kept by a dump, gone with the
# extension; tenants see their own events and the relay all of them; functions that
# run with their owner's rights call nothing of a caller's, whatever the caller's
# search_path and temporary objects are. What each kind of role may: sql/grants.sql.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats);

# What of the statements, run by a role, comes out, errors included.
sub as_role
{
	my ($role, $sql, $database) = @_;
	my ($code, $out, $err) = $node->psql($database // $db, $sql, on_error_stop => 0, extra_params => [ '-U', $role ]);

	return join("\n", grep { $_ ne '' } $out, $err);
}

$node->safe_psql($db, <<'SQL');
CREATE ROLE app LOGIN;
CREATE ROLE watcher LOGIN;
CREATE ROLE chief LOGIN;
CREATE ROLE north LOGIN;
CREATE ROLE south LOGIN;
CREATE ROLE attacker LOGIN;
SELECT outbox.grant_producer('app'), outbox.grant_monitor('watcher'), outbox.grant_operator('chief');
SQL

# ---------------------------------------------------------------- tenants

is($node->psql($db, q{SELECT outbox.grant_tenant('north')}), 3, 'no tenant without row-level security');
# the recipe of docs/security.md
my ($recipe) = slurp_file(($ENV{OUTBOX_CHECKOUT} // '..') . '/docs/security.md') =~ /```sql\n(ALTER TABLE outbox\.delivery .*?)```/s;
$node->safe_psql($db, $recipe);
$node->safe_psql($db, 'ALTER TABLE outbox.log FORCE ROW LEVEL SECURITY; ALTER TABLE outbox.delivery FORCE ROW LEVEL SECURITY');
my @events = map { my $tenant = $_; map { [ $tenant, $_ ] } 1 .. 3 } qw(north south);
as_role('app', "SELECT outbox.enqueue('$_->[0]', '$_->[1]', 'e', '{\"of\": \"$_->[0]\"}')") foreach @events;
as_role('app', q{SELECT outbox.enqueue('south', '4', 'e', '"' || repeat('x', 2000000) || '"')});
ok(wait_drained($node, $db), 'the relay publishes all tenants\' events, with policies forced on');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state = 'published'}), 6, '... each');
$node->safe_psql($db, q{
	INSERT INTO outbox.delivery (position, agg_hash, state, attempts, last_code, last_error, failed_at)
	SELECT position, agg_hash, 'f', 1, 1, 'refused for ' || aggregate_type, now() FROM outbox.events WHERE aggregate_id = '3'});
foreach my $tenant (qw(north south))
{
	my $other = $tenant eq 'north' ? 'south' : 'north';

	is(as_role($tenant, 'SELECT * FROM outbox.own_events') =~ /permission denied/, 1, "$tenant: nothing before it is granted");
	$node->safe_psql($db, "SELECT outbox.grant_tenant('$tenant')");
	is(as_role($tenant, q{SELECT aggregate_type, aggregate_id, payload->>'of', publish_state, last_error FROM outbox.own_events ORDER BY position}),
		"$tenant|1|$tenant|published|\n$tenant|2|$tenant|published|\n$tenant|3|$tenant|failed|refused for $tenant", "$tenant: sees its events");
	foreach my $source (qw(own_events log delivery))
	{
		unlike(as_role($tenant, "SELECT * FROM outbox.$source"), qr/$other|:  /, "$tenant: nothing of the other one in $source");
	}
	# a function that tells what it is called with must not be called with rows that are hidden
	unlike(as_role($tenant, q{
		CREATE FUNCTION pg_temp.tell(text) RETURNS boolean LANGUAGE plpgsql COST 0.0001 AS $$ BEGIN RAISE NOTICE 'told %', $1; RETURN true; END $$;
		SELECT count(*) FROM outbox.own_events WHERE pg_temp.tell(aggregate_type)}), qr/told $other/, "$tenant: nor by a leaky function");
	foreach my $closed (qw(events log_0 dead_letters))
	{
		like(as_role($tenant, "SELECT * FROM outbox.$closed"), qr/permission denied/, "$tenant: not $closed, which has no policies");
	}
	like(as_role($tenant, "SET row_security = off; SELECT * FROM outbox.own_events"), qr/row-level security/, "$tenant: row_security = off is an error");
}
# a function of the application decides for whom a tenant enqueues
$node->safe_psql($db, <<'SQL');
CREATE FUNCTION public.enqueue_own(id text, event text, payload jsonb) RETURNS uuid LANGUAGE sql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp AS $$ SELECT outbox.enqueue(session_user::text, id, event, payload) $$;
REVOKE ALL ON FUNCTION public.enqueue_own FROM PUBLIC;
GRANT EXECUTE ON FUNCTION public.enqueue_own TO north;
SQL
like(as_role('north', q{SELECT public.enqueue_own('5', 'own', '{}')}), qr/^[0-9a-f-]{36}$/, 'a tenant enqueues by a function of the application');
like(as_role('north', q{SELECT outbox.enqueue('south', '5', 'forged', '{}')}), qr/permission denied/, '... and not directly');
$node->safe_psql($db, q{DELETE FROM outbox.delivery});

# ------------------------------------------------------- functions of others' rights

# Everything that our functions call by name, and every operator on common types, exists once more in a schema of the attacker.
$node->safe_psql($db, <<'SQL');
CREATE SCHEMA trap AUTHORIZATION attacker;
CREATE FUNCTION trap.sprung() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'sprung by %', current_user; END $$;
DO $$
DECLARE
    o record;
    made integer := 0;
BEGIN
    FOR o IN
        SELECT p.proname, p.prorettype::regtype AS result, pg_get_function_identity_arguments(p.oid) AS arguments
        FROM pg_proc p WHERE p.pronamespace = 'pg_catalog'::regnamespace AND p.prokind = 'f' AND NOT p.proretset AND p.provariadic = 0
          AND p.proname IN (SELECT m[1] FROM pg_proc f, regexp_matches(f.prosrc, '([a-z_]+) ?\(', 'g') m WHERE f.pronamespace = 'outbox'::regnamespace)
    LOOP
        BEGIN
            EXECUTE format('CREATE FUNCTION trap.%I(%s) RETURNS %s LANGUAGE plpgsql AS ''BEGIN RAISE ''''sprung by %%'''', current_user; END''',
                o.proname, o.arguments, o.result);
            made := made + 1;
        EXCEPTION WHEN others THEN NULL;
        END;
    END LOOP;
    FOR o IN
        SELECT p.oprname, p.oprleft::regtype AS l, p.oprright::regtype AS r, p.oprresult::regtype AS result, p.oid FROM pg_operator p
        WHERE p.oprleft = ANY ('{text,int4,int8,int2,uuid,timestamptz,interval,"\"char\"",bool}'::regtype[])
          AND p.oprright = ANY ('{text,int4,int8,int2,uuid,timestamptz,interval,"\"char\"",bool}'::regtype[])
    LOOP
        EXECUTE format('CREATE FUNCTION trap.f%s(%s, %s) RETURNS %s LANGUAGE plpgsql AS ''BEGIN RAISE ''''sprung by %%'''', current_user; END''', o.oid, o.l, o.r, o.result);
        EXECUTE format('CREATE OPERATOR trap.%s (FUNCTION = trap.f%s, LEFTARG = %s, RIGHTARG = %s)', o.oprname, o.oid, o.l, o.r);
        made := made + 1;
    END LOOP;
    ASSERT made > 100, made;
END $$;
GRANT USAGE ON SCHEMA trap TO PUBLIC;
SELECT outbox.grant_operator('attacker'), outbox.grant_relay('attacker'), outbox.grant_producer('attacker');
SQL
my @calls = (
	q{SELECT outbox.redrive(aggregate_type => 't', error_code => 1, failed_after => 'yesterday', max_events => 5)},
	q{SELECT outbox.discard('reason', aggregate_type => 't', failed_before => 'yesterday')},
	q{SELECT outbox.discard('reason', event_id => '00000000-0000-0000-0000-000000000001')},
	q{SELECT outbox.pause('t', 'a.>', 'why')}, q{SELECT outbox.resume('t', 'a.>')},
	q{SELECT outbox.flush('1 min')}, q{SELECT child FROM outbox.ranges()},
	q{SELECT child FROM outbox.purge('1 year', dry_run => true)},
	q{SELECT position FROM outbox.claim(1)}, q{SELECT outbox.settle('{1}')}, q{SELECT outbox.fail(1, 'e')}, q{SELECT outbox.renew()}, q{SELECT outbox.release()},
	q{SELECT outbox.enqueue('t', 'trap', 'e', '{}')}, q{SELECT count(*) FROM outbox.dead_letters});
my $definers = $node->safe_psql($db, q{SELECT string_agg(DISTINCT proname, ' ') FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND prosecdef
	AND has_function_privilege('attacker', oid, 'EXECUTE')});
is(join(' ', grep { my $name = $_; !grep { /outbox\.$name\(/ } @calls } split(/ /, $definers)), '', 'all that run with their owner\'s rights are called');
my $temp = <<'SQL';
CREATE TEMP TABLE pauses (x int); CREATE TEMP TABLE delivery (x int); CREATE TEMP TABLE log (x int); CREATE TEMP TABLE ring (x int);
CREATE TEMP TABLE pg_class (x int); CREATE TEMP TABLE pg_proc (x int); CREATE TEMP VIEW dead_letters AS SELECT 1 AS x;
CREATE DOMAIN pg_temp.text AS int; CREATE DOMAIN pg_temp.int8 AS int; CREATE DOMAIN pg_temp.timestamptz AS int; CREATE DOMAIN pg_temp."interval" AS int;
SQL
like(as_role('attacker', q{SET search_path = trap, pg_catalog; SELECT 1::int4 + 1::int4}), qr/sprung by attacker/, 'the traps work');
foreach my $path ('trap, pg_catalog', 'pg_temp, trap, pg_catalog, outbox', 'outbox, pg_temp', q{''})
{
	my $seen = as_role('attacker', "$temp SET search_path = $path;\n" . join(";\n", @calls, ''));

	unlike($seen, qr/sprung by (?!attacker)/, "search_path = $path: no trap is sprung with others' rights");
	my @errors = grep { !/must not be (?:in|negative)|workers/ } $seen =~ /^(?:psql:\S+ )?(ERROR:.*)/gm;
	is(join("\n", @errors), '', "search_path = $path: ... and all calls work") or diag($seen);
}

# ------------------------------------------------------------- dumps and DROP

my $held = q{SELECT role, kind, missing FROM outbox.grants ORDER BY 1, 2};
my $before = $node->safe_psql($db, $held);
like($before, qr/^app\|producer\|$/m, 'outbox.grants tells who is what');
my $dump = PostgreSQL::Test::Utils::tempdir('dump') . '/dump.sql';
$node->command_ok([ 'pg_dump', '-d', $node->connstr($db), '-f', $dump, '--exclude-schema=trap' ], 'a dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ], '... restored without an error');
is($node->safe_psql('restored', $held), $before, 'restored: the same roles are the same');
is(as_role('north', 'SELECT count(*) FROM outbox.own_events', 'restored'), 0, 'restored: without its policies, a tenant sees nothing');
$node->safe_psql('restored', 'DROP EXTENSION outbox; CREATE EXTENSION outbox');
is($node->safe_psql('restored', $held), '', 'DROP EXTENSION takes all grants with it');
$node->safe_psql('restored', q{SELECT outbox.grant_producer('app')});
$node->safe_psql('postgres', 'DROP DATABASE restored');

check_no_crash($node);
done_testing();
