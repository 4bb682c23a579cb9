-- Capture: what becomes an event, and what does not.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
\set ECHO all

CREATE TABLE "order" (id int PRIMARY KEY, total numeric, note text, twice numeric GENERATED ALWAYS AS (total * 2) STORED);
SELECT outbox.capture('"order"');
INSERT INTO "order" VALUES (1, 5), (2, 6.50);
UPDATE "order" SET total = total + 1 WHERE id = 1;
DELETE FROM "order" WHERE id = 2;
SELECT * FROM pg_temp.news();

-- upsert: one event for what became of the row, none when nothing did
INSERT INTO "order" VALUES (1, 9) ON CONFLICT (id) DO UPDATE SET total = excluded.total;
INSERT INTO "order" VALUES (1, 10) ON CONFLICT (id) DO NOTHING;
INSERT INTO "order" VALUES (1, 9) ON CONFLICT (id) DO UPDATE SET total = excluded.total;
SELECT * FROM pg_temp.news();

-- MERGE, all branches
INSERT INTO "order" VALUES (3, 1);
SELECT count(*) FROM pg_temp.news();
MERGE INTO "order" o USING (VALUES (1, 'update'), (3, 'delete'), (4, 'insert')) s (id, what) ON o.id = s.id
WHEN MATCHED AND s.what = 'delete' THEN DELETE
WHEN MATCHED THEN UPDATE SET note = s.what
WHEN NOT MATCHED THEN INSERT (id, note) VALUES (s.id, s.what);
SELECT * FROM pg_temp.news() ORDER BY id;

-- COPY
COPY "order" (id, total) FROM stdin;
10	1
11	2
12	3
\.
SELECT id, event FROM pg_temp.news();

-- what BEFORE triggers make of a row is what is captured, whenever they were made; a row that they refuse isn't
CREATE FUNCTION change() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.note := 'by trigger'; RETURN CASE WHEN NEW.id <> 13 THEN NEW END; END$$;
CREATE TRIGGER zzz BEFORE INSERT OR UPDATE ON "order" FOR EACH ROW EXECUTE FUNCTION change();
INSERT INTO "order" VALUES (13, 1), (14, 1);
SELECT * FROM pg_temp.news();
DROP TRIGGER zzz ON "order";

-- what changes nothing is no event, unless that is wanted
UPDATE "order" SET total = total WHERE id = 14;
UPDATE "order" SET total = 1.0 WHERE id = 14;  -- another number of digits is another payload
SELECT * FROM pg_temp.news();
SELECT outbox.capture('"order"', unchanged_updates => true);
UPDATE "order" SET total = total WHERE id = 14;
SELECT * FROM pg_temp.news();

-- a rolled back change is none
BEGIN;
UPDATE "order" SET note = 'kept' WHERE id = 1;
SAVEPOINT s;
UPDATE "order" SET note = 'lost' WHERE id = 1;
ROLLBACK TO s;
COMMIT;
SELECT * FROM pg_temp.news();

-- a changed key: the end of one aggregate and the beginning of another, or an update of the new one
UPDATE "order" SET id = 100 WHERE id = 14;
SELECT * FROM pg_temp.news();
SELECT outbox.capture('"order"', on_key_change => 'update', old_values => true);
UPDATE "order" SET id = 14 WHERE id = 100;
SELECT * FROM pg_temp.news();

-- TRUNCATE: refused, or one event
SELECT pg_temp.attempt('TRUNCATE "order"');
SELECT outbox.capture('"order"', on_truncate => 'event');
TRUNCATE "order";
SELECT * FROM pg_temp.news();

-- cascades: the parent's event, then the children's
CREATE TABLE line (id int PRIMARY KEY, order_id int REFERENCES "order" ON DELETE CASCADE ON UPDATE CASCADE);
SELECT outbox.capture('line');
INSERT INTO "order" VALUES (1), (2);
INSERT INTO line VALUES (10, 1), (11, 1), (20, 2);
SELECT count(*) FROM pg_temp.news();
DELETE FROM "order" WHERE id = 1;
UPDATE "order" SET id = 3 WHERE id = 2;
SELECT * FROM pg_temp.news();

-- several captures of a table, with conditions
CREATE TABLE parcel (id int PRIMARY KEY, status text, weight int, place text);
SELECT outbox.capture('parcel', insert_event => 'parcel.taken');
SELECT outbox.capture('parcel', name => 'sent', update_event => 'parcel.sent', condition => $$NEW.status = 'sent' AND OLD.status <> 'sent'$$);
SELECT outbox.capture('parcel', name => 'place', update_event => 'parcel.moved', changed => '{place,status}', columns => '{id,place}');
SELECT outbox.capture('parcel', name => 'gone', delete_event => 'parcel.gone', columns => '{}', aggregate_type => 'gone parcel', on_truncate => 'event');
INSERT INTO parcel VALUES (1, 'new', 5, 'here');
UPDATE parcel SET weight = 6;
UPDATE parcel SET status = 'sent';
UPDATE parcel SET place = 'there', weight = 7;
DELETE FROM parcel;
SELECT * FROM pg_temp.news();
SELECT name, aggregate_type, aggregate_id, insert_event, update_event, delete_event, condition, changed, columns, on_truncate, state
FROM outbox.captures WHERE captured = 'parcel'::regclass ORDER BY name;

-- the end of a capture
SELECT outbox.uncapture('parcel', 'sent'), outbox.uncapture('parcel', 'sent'), outbox.uncapture('parcel', 'none');
SELECT outbox.uncapture('parcel', name) FROM outbox.captures WHERE captured = 'parcel'::regclass;
SELECT tgname FROM pg_trigger WHERE tgrelid = 'parcel'::regclass;
INSERT INTO parcel VALUES (2);
TRUNCATE parcel;
SELECT * FROM pg_temp.news();

-- arguments that make no sense
CREATE TABLE nokey (a int, b text);
CREATE VIEW v AS SELECT 1 AS a;
CREATE TEMP TABLE brief (id int PRIMARY KEY);
SELECT pg_temp.attempt(format('SELECT outbox.capture(%s)', a)) FROM unnest(ARRAY[
    $$NULL$$, $$'nokey'$$, $$'v', aggregate_id => '{a}'$$, $$'outbox.log'$$, $$'brief'$$, $$'nokey', aggregate_id => '{}'$$, $$'nokey', aggregate_id => '{a,c}'$$,
    $$'nokey', aggregate_id => '{a}', columns => '{c}'$$, $$'nokey', aggregate_id => '{a}', changed => '{c}'$$,
    $$'nokey', aggregate_id => '{a}', aggregate_type => ''$$, $$'nokey', aggregate_id => '{a}', insert_event => ''$$,
    $$'nokey', aggregate_id => '{a}', header_columns => '{"x": "c"}'$$, $$'nokey', aggregate_id => '{a}', header_columns => '{"ce-x": "a"}'$$,
    $$'nokey', aggregate_id => '{a}', header_columns => '[]'$$, $$'nokey', aggregate_id => '{a}', version_column => 'b'$$,
    $$'nokey', aggregate_id => '{a}', on_drift => 'x'$$, $$'nokey', aggregate_id => '{a}', on_truncate => 'x'$$, $$'nokey', aggregate_id => '{a}', on_key_change => 'x'$$,
    $$'nokey', aggregate_id => '{a}', projection => 'nope'$$, $$'nokey', aggregate_id => '{a}', condition => 'NEW.a > 0'$$,
    $$'nokey', aggregate_id => '{a}', insert_event => 'e', condition => 'nope'$$]) a;
SELECT count(*) FROM outbox.captures WHERE captured = 'nokey'::regclass;

-- the trigger functions serve their triggers only
SELECT pg_temp.attempt('SELECT outbox.capture_row()'), pg_temp.attempt('SELECT outbox.capture_cross()'), pg_temp.attempt('SELECT outbox.capture_truncate()');
CREATE TRIGGER forged BEFORE INSERT ON nokey FOR EACH ROW EXECUTE FUNCTION outbox.capture_row('1');
SELECT pg_temp.attempt('INSERT INTO nokey VALUES (1)');
DROP TRIGGER forged ON nokey;
CREATE TRIGGER forged AFTER INSERT ON nokey FOR EACH ROW EXECUTE FUNCTION outbox.capture_row('0');
SELECT pg_temp.attempt('INSERT INTO nokey VALUES (1)');
DROP TRIGGER forged ON nokey;
CREATE TRIGGER forged AFTER INSERT ON nokey FOR EACH ROW EXECUTE FUNCTION outbox.capture_row();
SELECT pg_temp.attempt('INSERT INTO nokey VALUES (1)');

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test CASCADE;
