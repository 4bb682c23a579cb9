-- Guard: a transaction that changes a guarded table enqueues an event, or doesn't commit.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
SET client_min_messages = error;
DROP ROLE IF EXISTS regress_guard_loader, regress_guard_app;
RESET client_min_messages;
CREATE ROLE regress_guard_loader;
CREATE ROLE regress_guard_app;
\set ECHO all

CREATE TABLE invoice (id int PRIMARY KEY, total int);
SELECT outbox.guard('invoice');
SELECT guarded, aggregate_type, aggregate_id, event, on_missing, exempt_roles, state FROM outbox.guards WHERE guarded = 'invoice'::regclass;

-- without an event, with one, with one of another aggregate
INSERT INTO invoice VALUES (1, 1);
BEGIN; INSERT INTO invoice VALUES (1, 1); SELECT outbox.enqueue('invoice', '1', 'created', '{}') IS NOT NULL; COMMIT;
BEGIN; SELECT outbox.enqueue('invoice', '2', 'created', '{}') IS NOT NULL; INSERT INTO invoice VALUES (2, 1); COMMIT;
BEGIN; UPDATE invoice SET total = 2 WHERE id = 1; SELECT outbox.enqueue('invoice', '2', 'changed', '{}') IS NOT NULL; COMMIT;
BEGIN; UPDATE invoice SET total = 2 WHERE id = 1; SELECT outbox.enqueue('bill', '1', 'changed', '{}') IS NOT NULL; COMMIT;
BEGIN; DELETE FROM invoice WHERE id = 2; INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('invoice', '2', 'gone', '{}'); COMMIT;
UPDATE invoice SET total = total;          -- nothing changed
UPDATE invoice SET total = 9 WHERE id = 0;
SELECT * FROM invoice;
-- many, and some of them
BEGIN; INSERT INTO invoice SELECT i, 1 FROM generate_series(100, 199) i;
SELECT count(outbox.enqueue('invoice', i::text, 'created', '{}')) FROM generate_series(100, 199) i WHERE i <> 150; COMMIT;
BEGIN; INSERT INTO invoice SELECT i, 1 FROM generate_series(100, 199) i;
SELECT count(outbox.enqueue('invoice', i::text, 'created', '{}')) FROM generate_series(199, 100, -1) i; COMMIT;
SELECT count(*) FROM invoice;
INSERT INTO invoice SELECT i, 1 FROM generate_series(2000, 2100) i;
-- another key: an event of the old or of the new one
BEGIN; UPDATE invoice SET id = 1000 WHERE id = 100; SELECT outbox.enqueue('invoice', '100', 'moved', '{}') IS NOT NULL; COMMIT;
BEGIN; UPDATE invoice SET id = 100 WHERE id = 1000; SELECT outbox.enqueue('invoice', '100', 'moved', '{}') IS NOT NULL; COMMIT;
UPDATE invoice SET id = 1000 WHERE id = 100;
-- the same id again is an event, too
SELECT outbox.enqueue('invoice', '100', 'once', '{}', event_id => '0195e7a0-0000-7000-8000-00000000abcd') IS NOT NULL;
BEGIN; UPDATE invoice SET total = 77 WHERE id = 100;
SELECT outbox.enqueue('invoice', '100', 'once', '{}', event_id => '0195e7a0-0000-7000-8000-00000000abcd', on_conflict => 'return') IS NOT NULL; COMMIT;

-- savepoints: what is rolled back counts on neither side
BEGIN; SAVEPOINT a; UPDATE invoice SET total = 6 WHERE id = 1; ROLLBACK TO a; COMMIT;
BEGIN; UPDATE invoice SET total = 6 WHERE id = 1; SAVEPOINT a; SELECT outbox.enqueue('invoice', '1', 'changed', '{}') IS NOT NULL; ROLLBACK TO a; COMMIT;
BEGIN; SAVEPOINT a; SELECT outbox.enqueue('invoice', '1', 'changed', '{}') IS NOT NULL; ROLLBACK TO a; UPDATE invoice SET total = 6 WHERE id = 1; COMMIT;
BEGIN; SAVEPOINT a; SELECT outbox.enqueue('invoice', '1', 'changed', '{}') IS NOT NULL; RELEASE a; UPDATE invoice SET total = 7 WHERE id = 1; COMMIT;
BEGIN; SAVEPOINT a; SAVEPOINT b; UPDATE invoice SET total = 8 WHERE id = 1; RELEASE b; ROLLBACK TO a; SAVEPOINT c; SELECT outbox.enqueue('invoice', '1', 'changed', '{}') IS NOT NULL; RELEASE c; UPDATE invoice SET total = 9 WHERE id = 1; COMMIT;
BEGIN; SAVEPOINT a; SAVEPOINT b; SELECT outbox.enqueue('invoice', '1', 'changed', '{}') IS NOT NULL; RELEASE b; ROLLBACK TO a; UPDATE invoice SET total = 10 WHERE id = 1; COMMIT;
SELECT total FROM invoice WHERE id = 1;
-- two-phase, deferred triggers
BEGIN; UPDATE invoice SET total = 11 WHERE id = 1; PREPARE TRANSACTION 'guard';
BEGIN; UPDATE invoice SET total = 11 WHERE id = 1; SELECT outbox.enqueue('invoice', '1', 'changed', '{}') IS NOT NULL; PREPARE TRANSACTION 'guard'; COMMIT PREPARED 'guard';
CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM outbox.enqueue('invoice', NEW.id::text, 'late', '{}'); RETURN NULL; END$$;
CREATE CONSTRAINT TRIGGER late AFTER UPDATE ON invoice DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION late();
UPDATE invoice SET total = 12 WHERE id = 1;
DROP TRIGGER late ON invoice;

-- TRUNCATE
TRUNCATE invoice;
BEGIN; TRUNCATE invoice; SELECT outbox.enqueue('invoice', '*', 'truncated', '{}') IS NOT NULL; COMMIT;

-- any event; a warning; roles and sessions that are exempt
SELECT outbox.guard('invoice', event => 'any', exempt_roles => '{regress_guard_loader}');
INSERT INTO invoice VALUES (1, 1);
BEGIN; INSERT INTO invoice VALUES (1, 1); SELECT outbox.enqueue('whatever', 'x', 'e', '{}') IS NOT NULL; COMMIT;
GRANT USAGE ON SCHEMA capture_test TO regress_guard_loader, regress_guard_app;
GRANT SELECT, INSERT, UPDATE ON invoice TO regress_guard_loader, regress_guard_app;
SET ROLE regress_guard_loader;
INSERT INTO invoice VALUES (3, 1);
SET ROLE regress_guard_app;
INSERT INTO invoice VALUES (4, 1);
SELECT pg_temp.attempt('SET outbox.guard = off');
RESET ROLE;
SET outbox.guard = off;
INSERT INTO invoice VALUES (5, 1);
RESET outbox.guard;
BEGIN; SET LOCAL outbox.guard = off; INSERT INTO invoice VALUES (6, 1); RESET outbox.guard; UPDATE invoice SET total = 2 WHERE id = 6; COMMIT;
SELECT outbox.guard('invoice', on_missing => 'warning');
INSERT INTO invoice SELECT i, i FROM generate_series(10, 12) i;
SELECT id FROM invoice ORDER BY id;
SET session_replication_role = replica;
INSERT INTO invoice VALUES (20, 1);
RESET session_replication_role;

-- a captured table satisfies its guard
CREATE TABLE both_of (a int, b text, PRIMARY KEY (a, b)) PARTITION BY LIST (b);
CREATE TABLE both_of_x PARTITION OF both_of FOR VALUES IN ('x');
CREATE TABLE both_of_y PARTITION OF both_of FOR VALUES IN ('y', 'z:');
SELECT outbox.guard('both_of');
INSERT INTO both_of VALUES (1, 'z:');
SELECT outbox.capture('both_of');
INSERT INTO both_of VALUES (1, 'x'), (2, 'z:');
UPDATE both_of SET b = 'y';
SELECT * FROM pg_temp.news() WHERE event ~ 'both';
TRUNCATE both_of_x;
-- also by the last thing that becomes an event: a row that its new partition refuses was deleted
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER refuse BEFORE INSERT ON both_of_x FOR EACH ROW EXECUTE FUNCTION refuse();
UPDATE both_of SET b = 'x' WHERE a = 2;
SELECT id, event FROM pg_temp.news();
DROP TRIGGER refuse ON both_of_x;
SELECT outbox.uncapture('both_of');
UPDATE both_of SET b = 'x';
TRUNCATE both_of_x;
BEGIN; DROP TABLE both_of_y; DROP TABLE invoice; COMMIT;

-- the key has changed: an event will do, of whatever aggregate
CREATE TABLE thing (a int, b int, PRIMARY KEY (a, b));
SELECT outbox.guard('thing');
ALTER TABLE thing RENAME a TO c;
INSERT INTO thing VALUES (1, 1);
ALTER TABLE thing DROP b;
INSERT INTO thing VALUES (1);
BEGIN; INSERT INTO thing VALUES (1); SELECT outbox.enqueue('thing', '1', 'e', '{}') IS NOT NULL; COMMIT;

-- the end; arguments that make no sense; rights
SELECT outbox.unguard('thing'), outbox.unguard('thing');
INSERT INTO thing VALUES (2);
SELECT tgname FROM pg_trigger WHERE tgrelid = 'thing'::regclass;
SELECT pg_temp.attempt(format('SELECT outbox.guard(%s)', a)) FROM unnest(ARRAY['NULL', $$'thing'$$, $$'thing', aggregate_id => '{x}'$$,
    $$'thing', aggregate_id => '{c}', event => 'x'$$, $$'thing', aggregate_id => '{c}', on_missing => 'x'$$, $$'thing', aggregate_id => '{c}', exempt_roles => '{regress_guard_missing}'$$]) a;
SELECT outbox.grant_producer('regress_guard_app');
SET ROLE regress_guard_app;
SELECT pg_temp.attempt($$SELECT outbox.guard('capture_test.thing', aggregate_id => '{c}')$$), pg_temp.attempt($$SELECT outbox.unguard('capture_test.both_of')$$);
RESET ROLE;
SELECT pg_temp.attempt('SELECT outbox.guard_row()'), pg_temp.attempt('SELECT outbox.guard_truncate()');

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test CASCADE;
DROP OWNED BY regress_guard_loader, regress_guard_app;
DROP ROLE regress_guard_loader, regress_guard_app;
