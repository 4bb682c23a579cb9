# Grants and row-level security as they are used: kept by a dump, gone with the
# extension; tenants see their own events and the relay all of them; functions that
# run with others' rights call nothing of a caller's, whatever the caller's search_path
# and temporary objects are, and know who the caller is; secrets of replays stay hidden.
# What each kind of role may: sql/grants.sql. docs/security.md names a test for each threat.

use strict;
use warnings;

use OutboxLife;
use OutboxReplay;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $checkout = $ENV{OUTBOX_CHECKOUT} // '..';
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
my ($recipe) = slurp_file("$checkout/docs/security.md") =~ /```sql\n(ALTER TABLE outbox\.delivery .*?)```/s;
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
# the ring goes on, and the policies with it
my $ranges = $node->safe_psql($db, 'SELECT max(generation) FROM outbox.ring');
foreach my $id (6 .. 8)
{
	as_role('app', "SELECT outbox.enqueue('$_', '$id', 'e', '{}')") foreach qw(north south);
	ok(wait_drained($node, $db), "published: $id");
	$node->safe_psql($db, q{SELECT FROM outbox.purge(older_than => '0')});
}
cmp_ok($node->safe_psql($db, 'SELECT max(generation) FROM outbox.ring'), '>', $ranges, 'ranges were closed');
as_role('app', "SELECT outbox.enqueue('$_', '9', 'e', '{}')") foreach qw(north south);
is(as_role($_, q{SELECT aggregate_type, aggregate_id FROM outbox.own_events WHERE aggregate_id = '9'}), "$_|9", "$_: sees its events in a new range") foreach qw(north south);

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
SELECT outbox.grant_operator('attacker'), outbox.grant_relay('attacker'), outbox.grant_producer('attacker'), outbox.grant_consumer('attacker'), outbox.grant_reader('attacker');
SET ROLE attacker;
CREATE TABLE trap.own (id int PRIMARY KEY);
SELECT outbox.capture('trap.own'), outbox.guard('trap.own', 'own');
CREATE TABLE trap.old (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text, payload text);
SELECT outbox.adopt('trap.old', 'debezium');
CREATE FUNCTION trap.handle(outbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'sprung by %', current_user; END $$;
SQL
my @calls = (
	q{SELECT outbox.redrive(aggregate_type => 't', error_code => 1, failed_after => 'yesterday', max_events => 5)},
	q{SELECT outbox.discard('reason', aggregate_type => 't', failed_before => 'yesterday')},
	q{SELECT outbox.discard('reason', event_id => '00000000-0000-0000-0000-000000000001')},
	q{SELECT outbox.pause('t', 'a.>', 'why')}, q{SELECT outbox.resume('t', 'a.>')},
	q{SELECT outbox.flush('1 min')}, q{SELECT child FROM outbox.ranges()},
	q{SELECT child FROM outbox.purge('1 year', dry_run => true)},
	q{SELECT position FROM outbox.claim(1)}, q{SELECT outbox.settle('{1}')}, q{SELECT outbox.fail(1, 'e')}, q{SELECT outbox.renew()}, q{SELECT outbox.release()},
	q{SELECT outbox.enqueue('t', 'trap', 'e', '{}')}, q{SELECT count(*) FROM outbox.dead_letters},
	q{SELECT outbox.position_of('00000000-0000-0000-0000-000000000001')}, q{SELECT count(*) FROM outbox.health()}, q{SELECT * FROM outbox.trouble()},
	q{SELECT count(*) FROM outbox.report_backlog(5)}, q{SELECT count(*) FROM outbox.report_blocked(5, NULL)}, q{SELECT count(*) FROM outbox.report_dead_letters(5, NULL)},
	q{SELECT count(*) FROM outbox.report_subjects(5, NULL)}, q{SELECT count(*) FROM outbox.report_html()},
	'BEGIN',    # so that no worker begins
	q{SELECT outbox.disarm('trap')}, q{SELECT outbox.arm()},
	q{SELECT * FROM outbox.verify_archive()}, q{SELECT * FROM outbox.lint()},
	q{INSERT INTO trap.own VALUES (1)}, q{SELECT outbox.capture_has_truncate_event('trap.own', 'main')}, q{SELECT outbox.rule_save('guard', 'trap.own', 'main', NULL)},
	q{INSERT INTO trap.old VALUES ('00000000-0000-0000-0000-000000000002', 't', 'trap', 'e', '{}')},
	q{SELECT outbox.inbox_configure('c', retention => '40 days')}, q{SELECT outbox.inbox_accept('c', '00000000-0000-0000-0000-000000000001')},
	q{SELECT outbox.inbox_accept_many('c', '{00000000-0000-0000-0000-000000000003}')},
	q{SELECT outbox.inbox_accept_version('c', '00000000-0000-0000-0000-000000000004', 't', 'trap', 1, true)},
	q{SELECT outbox.inbox_set_version('c', 't', 'trap', 7)}, q{SELECT outbox.inbox_forget('c')}, q{SELECT count(*) FROM outbox.inbox_consumers},
	q{SELECT outbox.subscribe('OUTBOX', 'trap', 'trap.handle')}, q{SELECT outbox.subscribe('OUTBOX', 'trap', 'trap.handle', subject => 'a.>', batch_size => 7)},
	q{SELECT outbox.pause_subscription('OUTBOX', 'trap')}, q{SELECT outbox.resume_subscription('OUTBOX', 'trap')},
	q{SELECT outbox.retry_parked('OUTBOX', 'trap')}, q{SELECT outbox.discard_parked('OUTBOX', 'trap', 1)},
	q{SELECT count(*) FROM outbox.own_parked_messages}, q{SELECT count(*) FROM outbox.subscriptions}, q{SELECT outbox.unsubscribe('OUTBOX', 'trap', forget => true)},
	q{SELECT events FROM outbox.replay(aggregate_type => 'north', aggregate_id => '1', subject => 'outbox.>', from_time => 'yesterday')},
	q{SELECT outbox.replay_cancel(batch_id) FROM outbox.replay(target_stream => 'OUTBOX')},
	q{SELECT outbox.replay_resume(batch_id) FROM outbox.replays}, q{SELECT count(*) FROM outbox.replay_progress}, 'ROLLBACK');
# A new one without a call fails here: those that run with others' rights, by the catalog.
my @definers = split(/\n/, $node->safe_psql($db, q{SELECT DISTINCT proname FROM pg_proc
	WHERE pronamespace = 'outbox'::regnamespace AND (prosecdef OR prosrc IN ('outbox_for_caller', 'outbox_rule_save'))}));
my %called_by = (chosen_dead_letters => 'redrive');    # nobody may call it directly
is(join(' ', grep { my $name = $called_by{$_} // $_; !grep { /outbox\.$name\(/ } @calls } @definers), '', 'all that run with others\' rights are called');
cmp_ok(scalar @definers, '>', 30, '... which are many');
my $temp = <<'SQL';
CREATE TEMP TABLE subscription (x int); CREATE TEMP TABLE replay_job (x int); CREATE TEMP TABLE inbox (x int); CREATE TEMP TABLE capture_settings (x int);
CREATE TEMP TABLE pg_roles (x int); CREATE TEMP VIEW parked_message AS SELECT 1 AS x; CREATE TEMP TABLE pauses (x int); CREATE TEMP TABLE delivery (x int); CREATE TEMP TABLE log (x int); CREATE TEMP TABLE ring (x int);
CREATE TEMP TABLE pg_class (x int); CREATE TEMP TABLE pg_proc (x int); CREATE TEMP VIEW dead_letters AS SELECT 1 AS x;
CREATE DOMAIN pg_temp.text AS int; CREATE DOMAIN pg_temp.int8 AS int; CREATE DOMAIN pg_temp.timestamptz AS int; CREATE DOMAIN pg_temp."interval" AS int;
SQL
like(as_role('attacker', q{SET search_path = trap, pg_catalog; SELECT 1::int4 + 1::int4}), qr/sprung by attacker/, 'the traps work');
foreach my $path ('trap, pg_catalog', 'pg_temp, trap, pg_catalog, outbox', 'outbox, pg_temp', q{''})
{
	my $seen = as_role('attacker', "$temp SET search_path = $path;\n\\set ON_ERROR_ROLLBACK on\n" . join(";\n", @calls, ''));

	unlike($seen, qr/sprung by (?!attacker)/, "search_path = $path: no trap is sprung with others' rights");
	my @errors = grep { !/must not be (?:in|negative)|workers/ } $seen =~ /^(?:psql:\S+ )?(ERROR:.*)/gm;
	is(join("\n", @errors), '', "search_path = $path: ... and all calls work") or diag($seen);
}

# A superuser calls a function of the attacker's, which then runs with the attacker's rights in the superuser's session:
# so do index expressions in REINDEX. It must get nothing that is the superuser's.
$node->safe_psql($db, <<'SQL');
SET ROLE attacker;
CREATE FUNCTION trap.deputy(statement text) RETURNS text LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN EXECUTE statement; RETURN 'done'; EXCEPTION WHEN others THEN RETURN SQLSTATE || ' ' || SQLERRM; END $$;
RESET ROLE;
CREATE FUNCTION public.note(outbox.message) RETURNS void LANGUAGE sql AS '';
INSERT INTO outbox.subscription (stream, durable, subject, handler, run_as, ordered, max_attempts, ack_wait, batch_size, paused)
SELECT 'OUTBOX', r, '', 'public.note', r, true, 1, '1 s', 1, true FROM unnest('{postgres,north}'::name[]) r;
SQL
foreach my $case (
	[ q{SELECT outbox.subscribe('OUTBOX', 'deputy', 'trap.handle', run_as => 'postgres')}, qr/^42501 must be a member of role "postgres"/ ],
	[ q{SELECT outbox.unsubscribe('OUTBOX', 'postgres')}, qr/^42501 the subscription belongs to another role/ ],
	[ q{SELECT outbox.subscribe('OUTBOX', 'postgres', 'trap.handle')}, qr/^42501 the subscription belongs to another role/ ],
	[ q{SELECT * FROM outbox.replay(query => 'SELECT trap.sprung()')}, qr/^42501 only a superuser may replay from a query/ ],
	[ q{SELECT outbox.capture('public.t')}, qr/^42501 must be owner of table/ ],
	[ q{SELECT outbox.grant_relay('attacker')}, qr/^42501/ ])
{
	$node->safe_psql($db, 'CREATE TABLE IF NOT EXISTS public.t (id int PRIMARY KEY)');
	like($node->safe_psql($db, "SELECT trap.deputy(\$s\$$case->[0]\$s\$)"), $case->[1], "in a superuser's session: $case->[0]");
}

# ------------------------------------------------------------- what is parked, and replays

$node->safe_psql($db, q{SELECT outbox.grant_consumer('north'), outbox.grant_consumer('south');
	INSERT INTO outbox.parked_message (subscription, message, error_code, last_error, attempts)
	SELECT id, ROW('00000000-0000-0000-0000-000000000009', 'e', 't', '9', NULL, '"S3cret"', 'S3cret', '{"h": "S3cret"}', 's', 'OUTBOX', 9, now(), 1)::outbox.message,
		'P0001', 'refused', 1 FROM outbox.subscription WHERE run_as = 'north'});
is(as_role('north', 'SELECT durable, payload, last_error FROM outbox.own_parked_messages'), 'north|"S3cret"|refused', 'a consumer sees what is parked of its own');
is(as_role('south', 'SELECT count(*) FROM outbox.own_parked_messages'), 0, '... and another one doesn\'t');
like(as_role('watcher', 'SELECT payload FROM outbox.parked_messages'), qr/permission denied/, 'a monitor sees no parked payload');
is(as_role('watcher', 'SELECT durable, last_error FROM outbox.parked_messages'), 'north|refused', '... but the error');
$node->safe_psql($db, q{DELETE FROM outbox.parked_message; DELETE FROM outbox.subscription});

my $urls = 'nats://u:S3cret@S3cret@127.0.0.1:1, nats://S3cret@127.0.0.1:2';
my ($batch) = $node->safe_psql($db, "SELECT batch_id FROM outbox.replay(query => 'SELECT * FROM outbox.events /* S3cret */', target_url => '$urls')");
ok($node->poll_query_until($db, "SELECT last_error IS NOT NULL FROM outbox.replays WHERE batch_id = '$batch'"), 'a replay that reaches no server');
foreach my $role (qw(watcher chief postgres))
{
	my $seen = as_role($role, 'SELECT * FROM outbox.replays; SELECT * FROM outbox.replay_progress; SELECT outbox.lint(); SELECT * FROM outbox.status()');

	like($seen, qr/nats:\/\/\*\*\*\@127\.0\.0\.1:1, ?nats:\/\/\*\*\*\@127\.0\.0\.1:2/, "$role: sees where a replay goes");
	unlike($seen =~ s/SELECT \* FROM outbox\.events.*?\*\///gr, qr/S3cret/, "$role: ... and no password");
	is($seen =~ /SELECT \* FROM outbox\.events/ ? 'query' : '', $role eq 'postgres' ? 'query' : '', "$role: the query is for superusers");
}
$node->safe_psql($db, "SELECT outbox.replay_cancel('$batch')");
is((sqlstates($node, $db, q{SELECT outbox.replay(clickhouse => 'u:S3cret@h/t')}))[0][0], '22023', 'what is no URL is refused, before it is kept anywhere');

# ------------------------------------------------------------- TLS of consumers

my $dir = PostgreSQL::Test::Utils::tempdir('tls');
system_or_bail('openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2', '-subj', '/CN=server',
	'-addext', 'subjectAltName=IP:127.0.0.1', '-keyout', "$dir/key.pem", '-out', "$dir/cert.pem");
# a key for tests, of the NATS documentation
append_to_file("$dir/seed.nk", "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY\n");
chmod(0600, "$dir/seed.nk");
my $secure = OutboxNats->start(name => 'secure');
$secure->write_config(config => "tls { cert_file: \"$dir/cert.pem\", key_file: \"$dir/key.pem\" }\n"
	. 'authorization { users: [ { nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 } ] }');
$secure->restart;
$node->safe_psql($db, q{CREATE TABLE noted (id uuid); CREATE OR REPLACE FUNCTION public.note(outbox.message) RETURNS void LANGUAGE sql AS 'INSERT INTO public.noted VALUES ($1.event_id)';
	SELECT outbox.subscribe('OUTBOX', 'tls', 'public.note', subject => 'outbox.tls.>')});
sub secure_settings
{
	my (@settings) = @_;

	$node->safe_psql($db, "ALTER SYSTEM SET outbox.$_") foreach @settings;
	$node->reload;
	return;
}
my $shown = q{SELECT state || ': ' || coalesce(last_error, '') FROM outbox.subscriptions};
secure_settings("tls_ca_file = '$dir/cert.pem'", "nkey_seed_file = '$dir/seed.nk'", 'nats_url = \'tls://localhost:' . $secure->port . q{'});
ok(wait_for_query($node, $db, q{SELECT last_error ~* 'hostname' FROM outbox.subscriptions}), 'a subscription: a certificate for another host')
  or diag($node->safe_psql($db, $shown));
my $id = as_role('app', q{SELECT outbox.enqueue('tls', '1', 'e', '{}')});
secure_settings('nats_url = \'tls://127.0.0.1:' . $secure->port . q{'});
ok(wait_for_query($node, $db, "SELECT EXISTS (SELECT FROM noted WHERE id = '$id')"), '... and for the host that the URL names, with an nkey: it gets messages')
  or diag($node->safe_psql($db, $shown));
$node->safe_psql($db, q{SELECT outbox.unsubscribe('OUTBOX', 'tls', forget => true)});

# ------------------------------------------------- the threat model names what holds it

my ($model) = slurp_file("$checkout/docs/security.md") =~ /\n## Threats\n(.*?)\n## /s;
my @lines = grep { !/^\| who \||^\|---/ } $model =~ /^(\|.*)$/gm;
cmp_ok(scalar @lines, '>', 15, 'lines of the threat model');
foreach my $line (@lines)
{
	my ($who, $what, $tests) = (split(/ *\| */, $line))[ 1, 2, 4 ];
	my @files = $tests =~ /`((?:sql|t|test)\/[^`]+)`/g;

	ok(@files > 0 && !grep({ !-e "$checkout/$_" } @files), "$who might $what: its test exists") or diag($tests);
	foreach my $part ($tests =~ /"([^"]+?)(?:\.\.\.)?"/g)
	{
		ok((grep { -f "$checkout/$_" && index(slurp_file("$checkout/$_"), $part) >= 0 } @files) > 0, "$who might $what: it has \"$part\"");
	}
}

# ------------------------------------------------------------- dumps and DROP

$node->safe_psql($db, 'DROP SCHEMA trap CASCADE; DROP FUNCTION public.note');
my $held = q{SELECT role, kind, missing FROM outbox.grants ORDER BY 1, 2};
my $before = $node->safe_psql($db, $held);
like($before, qr/^app\|producer\|$/m, 'outbox.grants tells who is what');
my $dump = PostgreSQL::Test::Utils::tempdir('dump') . '/dump.sql';
$node->command_ok([ 'pg_dump', '-d', $node->connstr($db), '-f', $dump ], 'a dump');
$node->safe_psql('postgres', 'CREATE DATABASE restored');
$node->command_ok([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('restored'), '-f', $dump ], '... restored without an error');
is($node->safe_psql('restored', $held), $before, 'restored: the same roles are the same');
is(as_role('north', 'SELECT count(*) FROM outbox.own_events', 'restored'), 0, 'restored: without its policies, a tenant sees nothing');
$node->safe_psql('restored', 'DROP EXTENSION outbox; CREATE EXTENSION outbox');
is($node->safe_psql('restored', $held), 'pg_monitor|monitor|', 'DROP EXTENSION takes all grants with it, and CREATE EXTENSION makes pg_monitor a monitor');
$node->safe_psql('restored', q{SELECT outbox.grant_producer('app')});
$node->safe_psql('postgres', 'DROP DATABASE restored');

check_no_crash($node);
done_testing();
