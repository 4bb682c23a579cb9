-- Who may do what: EXECUTE, or INSERT on outbox.events, is the privilege to enqueue.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SET client_min_messages = error;
DROP ROLE IF EXISTS regress_outbox_nobody, regress_outbox_producer, regress_outbox_inserter, regress_outbox_reader, regress_outbox_monitor;
RESET client_min_messages;

-- what everybody has
SELECT p.proname FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
WHERE p.pronamespace = 'outbox'::regnamespace AND a.grantee = 0 ORDER BY 1;
SELECT c.relname FROM pg_class c, aclexplode(coalesce(c.relacl, acldefault(CASE c.relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", c.relowner))) a
WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'v', 'S', 'm') AND a.grantee = 0 ORDER BY 1;
SELECT has_schema_privilege('public', 'outbox', 'USAGE') AS usage, has_schema_privilege('public', 'outbox', 'CREATE') AS "create";

CREATE ROLE regress_outbox_nobody;
CREATE ROLE regress_outbox_producer;
CREATE ROLE regress_outbox_inserter;
CREATE ROLE regress_outbox_reader;
CREATE ROLE regress_outbox_monitor;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_producer, regress_outbox_inserter, regress_outbox_reader, regress_outbox_monitor;
GRANT EXECUTE ON FUNCTION outbox.enqueue, outbox.enqueue_many TO regress_outbox_producer;
GRANT INSERT ON outbox.events TO regress_outbox_inserter;
GRANT SELECT ON outbox.events TO regress_outbox_reader;
GRANT EXECUTE ON FUNCTION outbox.status() TO regress_outbox_monitor;

CREATE TEMP TABLE tries (n int GENERATED ALWAYS AS IDENTITY, what text, statement text);
INSERT INTO tries (what, statement) VALUES
    ('enqueue', $$SELECT outbox.enqueue('privileges', current_user, 'enqueue', '{}')$$),
    ('enqueue, own id', $$SELECT outbox.enqueue('privileges', current_user, 'enqueue with id', '{}', event_id => md5(current_user)::uuid)$$),
    ('enqueue_many', $$SELECT outbox.enqueue_many('{privileges}', ARRAY[current_user::text], '{many}', ARRAY['{}'::jsonb])$$),
    ('enqueue_text', $$SELECT outbox.enqueue_text('privileges', current_user, 'text', '{}')$$),
    ('enqueue_bytes', $$SELECT outbox.enqueue_bytes('privileges', current_user, 'bytes', '')$$),
    ('insert', $$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('privileges', current_user, 'insert', '{}')$$),
    ('insert returning', $$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('privileges', current_user, 'insert', '{}') RETURNING event_id$$),
    ('update', $$UPDATE outbox.events SET priority = 1$$),
    ('delete', $$DELETE FROM outbox.events$$),
    ('read events', $$SELECT * FROM outbox.events$$),
    ('read log', $$SELECT * FROM outbox.log$$),
    ('read log_0', $$SELECT * FROM outbox.log_0$$),
    ('write log_0', $$INSERT INTO outbox.log_0 DEFAULT VALUES$$),
    ('write ledger', $$INSERT INTO outbox.ledger_0 DEFAULT VALUES$$),
    ('write watermark', $$INSERT INTO outbox.watermark VALUES (1000000)$$),
    ('write delivery', $$DELETE FROM outbox.delivery$$),
    ('write ring', $$UPDATE outbox.ring SET generation = 0$$),
    ('draw a number', $$SELECT nextval('outbox.position')$$),
    ('status', $$SELECT * FROM outbox.status()$$),
    ('set the broker', $$SET outbox.nats_url = 'nats://elsewhere:4222'$$),
    ('read the broker', $$SHOW outbox.nats_url$$),
    ('set a file', $$SET outbox.credentials_file = '/etc/passwd'$$),
    ('set a seed', $$SET outbox.nkey_seed_file = '/etc/passwd'$$),
    ('set the inbox', $$SET outbox.inbox_prefix = 'x'$$),
    ('set a limit', $$SET outbox.max_payload = '64MB'$$),
    ('set a trace', $$SET outbox.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'$$);
GRANT SELECT ON tries TO PUBLIC;

CREATE FUNCTION pg_temp.verdicts() RETURNS TABLE (what text, verdict text) LANGUAGE sql AS
$$ SELECT what, CASE v WHEN 'ok' THEN v ELSE substr(v, 1, 5) END FROM (SELECT n, what, pg_temp.attempt(statement) AS v FROM tries ORDER BY n) t $$;
SET ROLE regress_outbox_nobody;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_outbox_producer;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_outbox_inserter;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_outbox_reader;
SELECT * FROM pg_temp.verdicts();
SET ROLE regress_outbox_monitor;
SELECT * FROM pg_temp.verdicts();
SELECT count(*) FROM pg_settings WHERE name IN ('outbox.nats_url', 'outbox.credentials_file', 'outbox.nkey_seed_file', 'outbox.tls_key_file');
RESET ROLE;
RESET outbox.traceparent;
SELECT aggregate_id, event_type, count(*) FROM outbox.events WHERE aggregate_type = 'privileges' GROUP BY 1, 2 ORDER BY 1, 2;

-- a conflict is answered without the right to read, and says no more than that
SET ROLE regress_outbox_producer;
SELECT pg_temp.attempt($$SELECT outbox.enqueue('privileges', 'again', 'e', '{}', event_id => md5('regress_outbox_producer')::uuid)$$);
RESET ROLE;

-- a function of the application passes its rights on
CREATE FUNCTION privileges_order() RETURNS uuid LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$ SELECT outbox.enqueue('privileges', 'definer', 'e', '{}') $$;
SET ROLE regress_outbox_nobody;
SELECT privileges_order() IS NOT NULL AS ok;
RESET ROLE;

-- a search_path full of traps changes nothing
CREATE SCHEMA regress_outbox_trap;
CREATE FUNCTION regress_outbox_trap.max(bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
CREATE FUNCTION regress_outbox_trap.int8eq(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
SET search_path = regress_outbox_trap, pg_catalog;
SET ROLE regress_outbox_producer;
SELECT outbox.enqueue('privileges', 'trap', 'e', '{}') IS NOT NULL AS ok;
SET ROLE regress_outbox_reader;
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'privileges' AND aggregate_id = 'trap';
RESET ROLE;
RESET search_path;

SET client_min_messages = warning;
DROP SCHEMA regress_outbox_trap CASCADE;
DROP FUNCTION privileges_order();
REVOKE ALL ON SCHEMA outbox FROM regress_outbox_producer, regress_outbox_inserter, regress_outbox_reader, regress_outbox_monitor;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM regress_outbox_producer, regress_outbox_monitor;
REVOKE ALL ON outbox.events FROM regress_outbox_inserter, regress_outbox_reader;
DROP ROLE regress_outbox_nobody, regress_outbox_producer, regress_outbox_inserter, regress_outbox_reader, regress_outbox_monitor;
