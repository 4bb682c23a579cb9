-- outbox.grant_producer() and its like: what each kind of role may do, and that no object is forgotten.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

-- ------------------------------------------------- from the catalog: nothing is forgotten
CREATE TEMP VIEW objects AS
SELECT 'function' AS what, p.proname AS name, p.oid, p.proacl AS acl, acldefault('f', p.proowner) AS default_acl
FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace
UNION ALL
-- a child is what its parent is
SELECT 'relation', coalesce(parent.relname, c.relname), c.oid, c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner)
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid LEFT JOIN pg_class parent ON parent.oid = i.inhparent
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f');

-- each function and relation is in a kind's list, or for its owner only
SELECT DISTINCT what, name AS in_no_list FROM objects o
WHERE NOT EXISTS (SELECT FROM outbox.privileges p WHERE p.object = o.name AND (p.kind = 'owner' OR (p.privilege = 'EXECUTE') = (o.what = 'function')));
-- what is for the owner only is nobody else's
SELECT o.object AS both FROM outbox.privileges o JOIN outbox.privileges p USING (object) WHERE o.kind = 'owner' AND p.kind <> 'owner';
-- lists name what exists
SELECT p.* FROM outbox.privileges p
WHERE NOT EXISTS (SELECT FROM objects o WHERE p.object = o.name AND (p.privilege = 'ALL' OR (p.privilege = 'EXECUTE') = (o.what = 'function')))
   OR EXISTS (SELECT FROM unnest(p.columns) c WHERE NOT EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = to_regclass('outbox.' || quote_ident(p.object)) AND a.attname = c));
-- nothing is open to PUBLIC but what is named
SELECT what, name, a.privilege_type FROM objects, aclexplode(coalesce(acl, default_acl)) a WHERE a.grantee = 0
EXCEPT SELECT 'function', object, privilege FROM outbox.privileges WHERE kind = 'public';
SELECT object, privilege FROM outbox.privileges WHERE kind = 'public' ORDER BY 1;
SELECT a.privilege_type FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'outbox' AND a.grantee = 0;
-- functions that run with their owner's rights look nowhere else
SELECT p.oid::regprocedure AS unsafe FROM pg_proc p
WHERE p.pronamespace = 'outbox'::regnamespace AND p.prosecdef AND ('search_path=pg_catalog, pg_temp' = ANY (p.proconfig)) IS NOT TRUE;
-- what asks for its caller's rights has the function that it then calls as superuser, and which by itself has no rights
SELECT p.oid::regprocedure AS without_function FROM pg_proc p
WHERE p.pronamespace = 'outbox'::regnamespace AND p.prosrc = 'outbox_for_caller' AND NOT EXISTS (
    SELECT FROM pg_proc f JOIN outbox.privileges o ON o.object = f.proname AND o.kind = 'owner'
    WHERE f.pronamespace = p.pronamespace AND f.proname = p.proname || '_for' AND NOT f.prosecdef AND f.prorettype = p.prorettype AND f.proretset = p.proretset
      AND 'search_path=pg_catalog, pg_temp' = ANY (f.proconfig) AND f.proargtypes::text = concat_ws(' ', 'oid'::regtype::oid::text, nullif(p.proargtypes::text, '')));
-- all that a monitor sees of events but payload and headers
SELECT a.attname AS hidden FROM pg_attribute a
WHERE a.attrelid = 'outbox.events'::regclass AND a.attnum > 0
  AND NOT EXISTS (SELECT FROM outbox.privileges p WHERE p.kind = 'monitor' AND p.object = 'events' AND a.attname = ANY (p.columns)) ORDER BY a.attnum;
SELECT a.attname AS hidden FROM pg_attribute a
WHERE a.attrelid = 'outbox.parked_messages'::regclass AND a.attnum > 0
  AND NOT EXISTS (SELECT FROM outbox.privileges p WHERE p.kind = 'monitor' AND p.object = 'parked_messages' AND a.attname = ANY (p.columns)) ORDER BY a.attnum;
-- nor anywhere else what may be payload, headers or a secret: only the names of captures' headers, and what outbox.replays masks
SELECT p.kind, p.object, a.attname FROM outbox.privileges p
JOIN pg_attribute a ON a.attrelid = to_regclass('outbox.' || quote_ident(p.object)) AND a.attnum > 0 AND (p.columns IS NULL OR a.attname = ANY (p.columns))
WHERE p.kind IN ('monitor', 'operator', 'producer') AND p.privilege = 'SELECT'
  AND (a.attname ~ 'payload|header|^data$|message|directory|url|source_text' OR a.atttypid IN ('bytea'::regtype, 'jsonb'::regtype, 'outbox.message'::regtype))
ORDER BY 1, 2, 3;
-- each kind has its two functions
SELECT DISTINCT kind AS without_functions FROM outbox.privileges
WHERE kind NOT IN ('owner', 'public') AND (to_regprocedure('outbox.grant_' || kind || '(name)') IS NULL OR to_regprocedure('outbox.revoke_' || kind || '(name)') IS NULL);

-- ---------------------------------------------------------------- roles
SET client_min_messages = error;
DROP ROLE IF EXISTS regress_grants_producer, regress_grants_consumer, regress_grants_relay, regress_grants_reader, regress_grants_monitor,
    regress_grants_operator, "Regress ""Grants""", regress_grants_member, regress_grants_tenant;
RESET client_min_messages;
CREATE ROLE regress_grants_producer;
CREATE ROLE regress_grants_consumer;
CREATE ROLE regress_grants_relay;
CREATE ROLE regress_grants_reader;
CREATE ROLE regress_grants_monitor;
CREATE ROLE regress_grants_operator;
CREATE ROLE regress_grants_tenant;
CREATE ROLE "Regress ""Grants""";

-- what a role may, but for what everybody may: by what is granted, not by what the lists say
CREATE FUNCTION pg_temp.may(role name) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(string_agg(DISTINCT granted, ', ' ORDER BY granted), 'nothing') FROM (
        SELECT name || '()' AS granted FROM objects, aclexplode(acl) a WHERE what = 'function' AND a.grantee = role::regrole
        UNION ALL SELECT a.privilege_type || ' ' || name FROM objects, aclexplode(acl) a WHERE what = 'relation' AND a.grantee = role::regrole
        UNION ALL SELECT a.privilege_type || ' ' || t.attrelid::regclass || '.' || t.attname FROM pg_attribute t, aclexplode(t.attacl) a WHERE a.grantee = role::regrole
        UNION ALL SELECT 'USAGE' FROM pg_namespace n, aclexplode(n.nspacl) a WHERE n.nspname = 'outbox' AND a.grantee = role::regrole) g $$;

SELECT outbox.grant_producer('regress_grants_producer');
SELECT outbox.grant_producer('regress_grants_producer');
SELECT outbox.grant_consumer('regress_grants_consumer');
SELECT outbox.grant_relay('regress_grants_relay');
SELECT outbox.grant_reader('regress_grants_reader');
SELECT outbox.grant_monitor('regress_grants_monitor');
SELECT outbox.grant_operator('regress_grants_operator');
SELECT outbox.grant_operator('Regress "Grants"');
SELECT r.rolname, pg_temp.may(r.rolname) FROM pg_roles r WHERE r.rolname ~ '^regress_grants_' ORDER BY r.rolname;
SELECT pg_temp.may('regress_grants_operator') = pg_temp.may('"Regress ""Grants"""') AS same;
SELECT role, kind, missing FROM outbox.grants WHERE role ~* 'regress.*grants' ORDER BY 1, 2;

-- to whom and by whom
SELECT pg_temp.attempt($$SELECT outbox.grant_producer('public')$$);
SELECT pg_temp.attempt($$SELECT outbox.revoke_producer('public')$$);
SELECT pg_temp.attempt($$SELECT outbox.grant_monitor(NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.grant_monitor('nobody of this name')$$);
SELECT pg_temp.attempt($$SELECT outbox.grant_monitor('regress_grants_monitor; DROP ROLE regress_grants_reader')$$);
SELECT pg_temp.attempt($$SELECT outbox.grant_tenant('regress_grants_tenant')$$);
SET ROLE regress_grants_operator;
SELECT pg_temp.attempt($$SELECT outbox.grant_reader('regress_grants_operator')$$);
RESET ROLE;
-- nor with all functions at hand: the rights are the caller's
CREATE ROLE regress_grants_member;
GRANT USAGE ON SCHEMA outbox TO regress_grants_member;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO regress_grants_member;
GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO regress_grants_member;
SET ROLE regress_grants_member;
SELECT pg_temp.attempt($$SELECT outbox.grant_relay('regress_grants_member')$$);
SELECT pg_temp.attempt($$SELECT outbox.grant_kind('regress_grants_member', 'owner')$$);
SELECT pg_temp.attempt($$SELECT outbox.replay(query => 'SELECT 1')$$);
SELECT pg_temp.attempt($$SELECT outbox.replay_for(10, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '/', NULL, NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.unsubscribe_for(10, 'GRANTS', 'other', true)$$);
SELECT pg_temp.attempt($$INSERT INTO outbox.privileges VALUES ('producer', 'SELECT', 'log')$$);
RESET ROLE;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM regress_grants_member;
REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM regress_grants_member;
REVOKE ALL ON SCHEMA outbox FROM regress_grants_member;

-- ------------------------------------------------------- what they may do
SELECT outbox.enqueue('grants', 'a', 'e', '{"secret": "payload"}', headers => '{"k": "header"}') IS NOT NULL AS ok;
INSERT INTO outbox.delivery (position, agg_hash, state, attempts, last_code, last_error, failed_at)
SELECT position, agg_hash, 'f', 10, 1, 'refused', now() FROM outbox.events WHERE aggregate_type = 'grants';
CREATE TEMP TABLE tries (n int GENERATED ALWAYS AS IDENTITY, what text, statement text);
INSERT INTO tries (what, statement) VALUES
    ('enqueue', $$SELECT outbox.enqueue('grants', current_user, 'e', '{}')$$),
    ('insert', $$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('grants', current_user, 'insert', '{}')$$),
    ('all of events', $$SELECT * FROM outbox.events$$),
    ('payload', $$SELECT payload FROM outbox.events$$),
    ('payload_text', $$SELECT payload_text FROM outbox.events$$),
    ('payload_bytes', $$SELECT payload_bytes FROM outbox.events$$),
    ('headers', $$SELECT headers FROM outbox.events$$),
    ('whole row', $$SELECT e FROM outbox.events e$$),
    ('state', $$SELECT event_id, publish_state, last_error FROM outbox.events$$),
    ('history', $$SELECT * FROM outbox.history('grants', 'a')$$),
    ('own_events', $$SELECT * FROM outbox.own_events$$),
    ('log', $$SELECT * FROM outbox.log$$),
    ('status', $$SELECT * FROM outbox.status()$$),
    ('grants', $$SELECT * FROM outbox.grants$$),
    ('dead_letters', $$SELECT * FROM outbox.dead_letters$$),
    ('blocked', $$SELECT * FROM outbox.blocked_aggregates$$),
    ('ranges', $$SELECT * FROM outbox.ranges()$$),
    ('pause', $$SELECT outbox.pause(current_user)$$),
    ('resume', $$SELECT outbox.resume(current_user)$$),
    ('discard', $$SELECT outbox.discard('no', event_type => current_user)$$),
    ('redrive', $$SELECT outbox.redrive(event_type => current_user)$$),
    ('purge', $$SELECT * FROM outbox.purge('1 year', dry_run => true)$$),
    ('forge a ledger', $$INSERT INTO outbox.ledger_0 VALUES (0, now(), 1, 1, 0, 1023)$$),
    ('forge a state', $$UPDATE outbox.delivery SET state = 'd'$$),
    ('forge a row', $$UPDATE outbox.events SET payload = '{}'$$),
    ('captures', $$SELECT * FROM outbox.captures, outbox.guards$$),
    ('adoptions', $$SELECT * FROM outbox.adoptions$$),
    ('lint', $$SELECT * FROM outbox.lint()$$),
    ('forge a rule', $$SELECT outbox.rule_save_for('pg_database_owner'::regrole, 'capture', 'pg_class', 'x', '{}')$$),
    ('inbox_accept', $$SELECT outbox.inbox_accept('grants', gen_random_uuid())$$),
    ('inbox_consumers', $$SELECT * FROM outbox.inbox_consumers$$),
    ('inbox_configure', $$SELECT outbox.inbox_configure('grants')$$),
    ('inbox_forget', $$SELECT outbox.inbox_forget('grants')$$),
    ('forge an inbox', $$DELETE FROM outbox.inbox$$),
    ('unsubscribe', $$SELECT outbox.unsubscribe('GRANTS', 'other')$$),
    ('subscribe as another', $$SELECT outbox.subscribe_for('pg_database_owner'::regrole, 'G', 'o', 'now', NULL, false, false, 1, '1 s', 1, NULL)$$),
    ('subscriptions', $$SELECT * FROM outbox.subscriptions$$),
    ('parked errors', $$SELECT id, last_error FROM outbox.parked_messages$$),
    ('parked payloads', $$SELECT * FROM outbox.parked_messages$$),
    ('own parked', $$SELECT * FROM outbox.own_parked_messages$$),
    ('replay', $$SELECT * FROM outbox.replay(aggregate_type => 'none')$$),
    ('replay a query', $$SELECT * FROM outbox.replay(query => 'SELECT 1')$$),
    ('replays', $$SELECT * FROM outbox.replays, outbox.replay_progress$$),
    ('replay jobs', $$SELECT * FROM outbox.replay_job$$),
    ('archive_files', $$SELECT file, events FROM outbox.archive_files$$),
    ('directories', $$SELECT directory FROM outbox.archive_files$$),
    ('verify_archive', $$SELECT * FROM outbox.verify_archive()$$),
    ('grant', $$SELECT outbox.grant_operator(current_user)$$);
GRANT SELECT ON tries TO PUBLIC;
CREATE FUNCTION pg_temp.verdicts() RETURNS TABLE (may text, may_not text) LANGUAGE sql AS $$
    SELECT string_agg(what, ', ' ORDER BY n) FILTER (WHERE v = 'ok'),
           string_agg(what || CASE WHEN v ~ '^42501' THEN '' ELSE ' (' || substr(v, 1, 5) || ')' END, ', ' ORDER BY n) FILTER (WHERE v <> 'ok')
    FROM (SELECT n, what, pg_temp.attempt(statement) AS v FROM tries ORDER BY n) t $$;
SET ROLE regress_grants_producer;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_grants_consumer;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_grants_relay;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_grants_reader;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_grants_monitor;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_grants_operator;
SELECT * FROM pg_temp.verdicts();
RESET ROLE;

-- ---------------------------------------------------------------- membership
-- a member has them by inheritance, and NOINHERIT only by SET ROLE
CREATE ROLE regress_grants_noinherit NOINHERIT;
GRANT regress_grants_producer TO regress_grants_member, regress_grants_noinherit;
SET ROLE regress_grants_member;
SELECT pg_temp.attempt($$SELECT outbox.enqueue('grants', 'member', 'e', '{}')$$);
SET ROLE regress_grants_noinherit;
SELECT pg_temp.attempt($$SELECT outbox.enqueue('grants', 'member', 'e', '{}')$$);
RESET ROLE;
DROP ROLE regress_grants_noinherit;

-- ---------------------------------------------------------------- revokes
-- kinds have privileges in common: what another one needs stays
SELECT outbox.grant_monitor('regress_grants_reader');
SELECT outbox.revoke_reader('regress_grants_reader');
SELECT pg_temp.may('regress_grants_reader') = pg_temp.may('regress_grants_monitor') AS a_monitor_is_left;
SELECT outbox.revoke_monitor('regress_grants_operator');
SELECT pg_temp.may('regress_grants_operator') = pg_temp.may('"Regress ""Grants"""') AS still_an_operator;
SELECT outbox.grant_monitor('regress_grants_operator');
SELECT outbox.revoke_operator('regress_grants_operator');
SELECT pg_temp.may('regress_grants_operator');
SELECT outbox.grant_producer('regress_grants_monitor');
SELECT outbox.revoke_monitor('regress_grants_monitor');
SELECT pg_temp.may('regress_grants_monitor');
-- what was granted by hand stays; what is incomplete is told
REVOKE EXECUTE ON FUNCTION outbox.enqueue_bytes FROM regress_grants_monitor;
SELECT role, kind, missing FROM outbox.grants WHERE role = 'regress_grants_monitor';
SELECT outbox.grant_producer(role) FROM outbox.grants WHERE kind = 'producer' AND missing IS NOT NULL;
SELECT count(*) FROM outbox.grants WHERE missing IS NOT NULL;
GRANT EXECUTE ON FUNCTION outbox.error_counts() TO regress_grants_monitor;
SELECT outbox.revoke_producer('regress_grants_monitor');
SELECT pg_temp.may('regress_grants_monitor');
REVOKE ALL ON FUNCTION outbox.error_counts() FROM regress_grants_monitor;
SELECT outbox.revoke_monitor('regress_grants_monitor');
SELECT outbox.revoke_producer('regress_grants_producer');
SELECT outbox.revoke_consumer('regress_grants_consumer');
SELECT outbox.revoke_relay('regress_grants_relay');
SELECT outbox.revoke_monitor('regress_grants_reader');
SELECT outbox.revoke_operator('Regress "Grants"');
SELECT r.rolname, pg_temp.may(quote_ident(r.rolname)) FROM pg_roles r WHERE r.rolname ~* '^regress.*grants' ORDER BY r.rolname;
DELETE FROM outbox.delivery d USING outbox.events e WHERE e.position = d.position AND e.aggregate_type = 'grants';

-- with nothing left, the roles can be dropped
DROP ROLE regress_grants_producer, regress_grants_consumer, regress_grants_relay, regress_grants_reader, regress_grants_monitor,
    regress_grants_operator, "Regress ""Grants""", regress_grants_member, regress_grants_tenant;
