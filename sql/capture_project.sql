-- Capture with a function of one's own, and who may do what.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
SET client_min_messages = error;
DROP ROLE IF EXISTS regress_capture_owner, regress_capture_writer, regress_capture_other;
RESET client_min_messages;
CREATE ROLE regress_capture_owner;
CREATE ROLE regress_capture_writer;
CREATE ROLE regress_capture_other;
GRANT USAGE, CREATE ON SCHEMA capture_test TO regress_capture_owner;
GRANT USAGE ON SCHEMA capture_test TO regress_capture_writer, regress_capture_other;
\set ECHO all

CREATE TABLE customer (id int PRIMARY KEY, name text);
INSERT INTO customer VALUES (1, 'Ann');
CREATE TABLE sale (id int PRIMARY KEY, customer int, total numeric);

-- several events or none, with content that the table doesn't have
CREATE FUNCTION sale_events(operation text, old sale, new sale)
RETURNS TABLE (event_type text, payload jsonb, headers jsonb, aggregate_type text, aggregate_id text, subject text, aggregate_version bigint, dataschema text) LANGUAGE sql STABLE AS $$
    SELECT 'sale.' || operation, jsonb_build_object('customer', c.name, 'total', coalesce(new.total, old.total), 'at', timestamptz '2024-10-27 00:30:00+00', 'f', 0.1::float8),
           '{"kind": "sale"}'::jsonb, NULL, NULL, NULL, NULL::bigint, NULL
    FROM capture_test.customer c WHERE c.id = coalesce(new.customer, old.customer)
    UNION ALL
    SELECT 'customer.big_sale', to_jsonb(new), NULL, 'customer', new.customer::text, 'big.sales', 7, 'https://example.com/big' WHERE new.total > 100
    UNION ALL
    SELECT 'none', NULL, NULL, NULL, NULL, NULL, NULL, NULL
$$;
SELECT outbox.capture('sale', projection => 'sale_events');
SET TimeZone = 'Asia/Kathmandu';
SET extra_float_digits = -10;
INSERT INTO sale VALUES (1, 1, 5), (2, 1, 200), (3, 7, 1);
UPDATE sale SET total = total;
UPDATE sale SET id = 10 WHERE id = 1;
DELETE FROM sale;
RESET TimeZone;
RESET extra_float_digits;
SELECT l.aggregate_type, l.aggregate_id, l.event_type, convert_from(l.payload, 'UTF8') AS payload, l.headers, l.subject, l.aggregate_version AS version, l.dataschema
FROM outbox.log l, seen WHERE l.position > seen.position ORDER BY l.position;
SELECT count(*) FROM pg_temp.news();

-- jsonb, or a set of it; NULL is none; plpgsql; a row type
CREATE FUNCTION plain(operation text, old sale, new sale) RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb(operation) WHERE operation <> 'delete'$$;
CREATE FUNCTION three(operation text, old sale, new sale) RETURNS SETOF jsonb LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1 .. 3 LOOP RETURN NEXT jsonb_build_object('i', i, 'operation', operation, 'old', old.id, 'new', new.id, 'null', old IS NULL); END LOOP;
END $$;
CREATE TYPE shape AS (payload jsonb, event_type text);
CREATE FUNCTION shaped(operation text, old sale, new sale) RETURNS shape LANGUAGE sql AS $$SELECT ROW('{}', NULL)::capture_test.shape$$;
SELECT outbox.capture('sale', projection => 'plain');
INSERT INTO sale VALUES (1);
DELETE FROM sale;
SELECT outbox.capture('sale', projection => 'three');
INSERT INTO sale VALUES (1);
DELETE FROM sale;
SELECT outbox.capture('sale', projection => 'shaped');
INSERT INTO sale VALUES (1);
SELECT * FROM pg_temp.news();

-- what a function gets wrong
CREATE FUNCTION wrong_result(operation text, old sale, new sale) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION wrong_column(operation text, old sale, new sale) RETURNS TABLE (payload text, x int) LANGUAGE sql AS $$SELECT '', 1$$;
CREATE FUNCTION fails(operation text, old sale, new sale) RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb(1 / 0)$$;
SELECT pg_temp.attempt($$SELECT outbox.capture('sale', projection => 'wrong_result')$$);
SELECT pg_temp.attempt($$SELECT outbox.capture('sale', projection => 'plain', columns => '{id}')$$);
SELECT outbox.capture('sale', projection => 'wrong_column');
SELECT pg_temp.attempt('DELETE FROM sale');
SELECT outbox.capture('sale', projection => 'fails');
SELECT pg_temp.attempt('DELETE FROM sale');

-- replaced, dropped, made again, all in one session
SELECT outbox.capture('sale', projection => 'plain');
CREATE OR REPLACE FUNCTION plain(operation text, old sale, new sale) RETURNS jsonb LANGUAGE sql AS $$SELECT '"second"'::jsonb$$;
INSERT INTO sale VALUES (2);
DROP FUNCTION plain;
INSERT INTO sale VALUES (3);
CREATE FUNCTION plain(operation text, old sale, new sale) RETURNS jsonb LANGUAGE sql AS $$SELECT '"third"'::jsonb$$;
INSERT INTO sale VALUES (4);
SELECT l.aggregate_id, convert_from(l.payload, 'UTF8') AS payload, l.headers FROM outbox.log l, seen WHERE l.position > seen.position ORDER BY l.position;
SELECT count(*) FROM pg_temp.news();

-- ---- rights: nobody needs any on our schema to write; the projection runs as the table's owner
ALTER TABLE sale OWNER TO regress_capture_owner;
CREATE TABLE secret (s text);
INSERT INTO secret VALUES ('the owner''s');
ALTER TABLE secret OWNER TO regress_capture_owner;
CREATE FUNCTION as_owner(operation text, old sale, new sale) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    RETURN jsonb_build_object('user', current_user, 'secret', (SELECT s FROM capture_test.secret), 'path', current_setting('search_path'));
END $$;
REVOKE ALL ON FUNCTION as_owner FROM PUBLIC;
GRANT EXECUTE ON FUNCTION as_owner TO regress_capture_owner;
SELECT outbox.capture('sale', projection => 'as_owner');
GRANT INSERT ON sale TO regress_capture_writer;
SET ROLE regress_capture_writer;
SELECT has_schema_privilege('outbox', 'USAGE') AS usage;
INSERT INTO sale VALUES (5);
SELECT current_user, current_setting('search_path');
RESET ROLE;
SELECT * FROM pg_temp.news();
CREATE OR REPLACE FUNCTION as_owner(operation text, old sale, new sale) RETURNS jsonb LANGUAGE plpgsql AS $$
BEGIN
    SET ROLE regress_capture_writer;
    RETURN 'null';
END $$;
SELECT pg_temp.attempt('INSERT INTO sale VALUES (6)');

-- who may capture: the table's owner who may call the function, and needs nothing else
SET ROLE regress_capture_owner;
SELECT pg_temp.attempt($$SELECT outbox.capture('capture_test.sale')$$);
RESET ROLE;
GRANT USAGE ON SCHEMA outbox TO regress_capture_owner, regress_capture_other;
GRANT EXECUTE ON FUNCTION outbox.rule_save TO regress_capture_owner;
SET ROLE regress_capture_owner;
SELECT pg_temp.attempt($$SELECT outbox.capture('capture_test.sale')$$);
SELECT pg_temp.attempt($$SELECT outbox.rule_save('capture', 'capture_test.sale', 'x', '{"key_columns": ["id"]}')$$);
SELECT pg_temp.attempt($$SELECT outbox.rule_save_for('10'::regrole, 'capture', 'capture_test.sale', 'x', '{}')$$);
RESET ROLE;
SELECT outbox.grant_producer('regress_capture_owner'), outbox.grant_producer('regress_capture_other'), outbox.grant_monitor('regress_capture_owner');
SET ROLE regress_capture_owner;
SELECT outbox.capture('sale', name => 'mine', insert_event => 'sale.mine', columns => '{id}', condition => 'NEW.id > 6');
SELECT outbox.uncapture('sale');
SELECT captured, name, state FROM outbox.captures WHERE captured = 'sale'::regclass;
INSERT INTO sale VALUES (6), (7);
RESET ROLE;
SELECT * FROM pg_temp.news();
SET ROLE regress_capture_other;
SELECT pg_temp.attempt($$SELECT outbox.capture('capture_test.sale', name => 'other')$$), pg_temp.attempt($$SELECT outbox.uncapture('capture_test.sale', 'mine')$$);
RESET ROLE;
-- a condition is the caller's own code: it can't do more than he can
SET ROLE regress_capture_owner;
SELECT pg_temp.attempt($$SELECT outbox.capture('capture_test.sale', insert_event => 'e', condition => 'true) EXECUTE FUNCTION outbox.capture_row(''1''); ALTER TABLE outbox.log OWNER TO regress_capture_owner; --')$$);
-- nor does a trigger of his own on another table speak for a capture
CREATE TABLE mine (id int);
SELECT id AS rule FROM outbox.captures WHERE captured = 'sale'::regclass \gset
CREATE TRIGGER forged AFTER INSERT ON mine FOR EACH ROW EXECUTE FUNCTION outbox.capture_row(:'rule');
INSERT INTO mine VALUES (1);
RESET ROLE;
SELECT rolsuper FROM pg_roles WHERE rolname = 'regress_capture_owner';
SELECT * FROM pg_temp.news();

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test CASCADE;
DROP OWNED BY regress_capture_owner, regress_capture_writer, regress_capture_other;
DROP ROLE regress_capture_owner, regress_capture_writer, regress_capture_other;
