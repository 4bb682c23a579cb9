-- Capture of tables that change, and of odd names.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
SET client_min_messages = error;
DROP SCHEMA IF EXISTS "S-1" CASCADE;
RESET client_min_messages;
\set ECHO all

-- names that need quotes, and names like ours
CREATE SCHEMA "S-1";
CREATE TABLE "S-1"."Order Lines" ("Mixed Case" int, "it's ""quoted""" text, p int, old int, new int, "select" int, ctid_ int, outbox_drift text, "%I" text, PRIMARY KEY ("Mixed Case"));
SELECT outbox.capture('"S-1"."Order Lines"', insert_event => 'line.new', condition => 'NEW."Mixed Case" > 0', columns => ARRAY['Mixed Case', 'it''s "quoted"', 'p', 'old', 'new', '%I']);
INSERT INTO "S-1"."Order Lines" VALUES (1, 'x', 2, 3, 4, 5, 6, 'd', '%s');
INSERT INTO "S-1"."Order Lines" VALUES (0);
SELECT * FROM pg_temp.news();
SELECT captured, aggregate_id, condition FROM outbox.captures WHERE captured = '"S-1"."Order Lines"'::regclass;
CREATE FUNCTION "S-1"."My Projection"(text, "S-1"."Order Lines", "S-1"."Order Lines") RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb($3."Mixed Case")$$;
SELECT outbox.capture('"S-1"."Order Lines"', projection => '"S-1"."My Projection"');
INSERT INTO "S-1"."Order Lines" VALUES (2);
SELECT * FROM pg_temp.news();

-- a table whose layout has holes
CREATE TABLE doc (gone int, tenant int, id int, title text, secret text, PRIMARY KEY (tenant, id));
ALTER TABLE doc DROP gone;
SELECT outbox.capture('doc', except_columns => '{secret}', header_columns => '{"title": "title"}');
INSERT INTO doc VALUES (1, 2, 'a', 's');
ALTER TABLE doc ADD pages int DEFAULT 7;
INSERT INTO doc VALUES (1, 3, 'b', 's');
UPDATE doc SET title = 'c' WHERE id = 2;  -- its row is older than the column
ALTER TABLE doc ALTER pages TYPE text USING 'p' || pages;
UPDATE doc SET title = 'd' WHERE id = 2;
ALTER TABLE doc DROP pages;
UPDATE doc SET title = 'e' WHERE id = 2;
-- renamed: what is left out stays so, what is named goes along
ALTER TABLE doc RENAME secret TO hidden;
ALTER TABLE doc RENAME id TO number;
ALTER TABLE doc RENAME title TO name;
ALTER TABLE doc RENAME TO paper;
UPDATE paper SET name = 'f' WHERE number = 2;
ALTER TABLE paper SET SCHEMA "S-1";
UPDATE "S-1".paper SET name = 'g' WHERE number = 2;
SELECT * FROM pg_temp.news();
SELECT captured, aggregate_id, except_columns, header_columns FROM outbox.captures WHERE captured = '"S-1".paper'::regclass;
SELECT DISTINCT headers FROM outbox.log l, seen WHERE aggregate_type = 'doc' ORDER BY 1;

-- another primary key: the aggregate stays what it was told to be
ALTER TABLE "S-1".paper DROP CONSTRAINT doc_pkey, ADD PRIMARY KEY (number);
UPDATE "S-1".paper SET name = 'h' WHERE number = 2;
SELECT * FROM pg_temp.news();
SELECT problem, severity FROM outbox.lint() WHERE object = '"S-1".paper';
-- part of the key dropped: the write goes on, the id says what it lacks
ALTER TABLE "S-1".paper DROP tenant;
UPDATE "S-1".paper SET name = 'i' WHERE number = 2;
SELECT l.aggregate_id, convert_from(l.payload, 'UTF8') AS payload, l.headers FROM outbox.log l, seen WHERE l.position > seen.position ORDER BY l.position;
SELECT count(*) FROM pg_temp.news();
SELECT problem, severity FROM outbox.lint() WHERE object = '"S-1".paper';
-- or not, if that is wanted
ALTER TABLE "S-1".paper ADD tenant int NOT NULL DEFAULT 1;
SELECT outbox.capture('"S-1".paper', 'doc', '{tenant,number}', on_drift => 'error');
UPDATE "S-1".paper SET name = 'j' WHERE number = 2;
ALTER TABLE "S-1".paper DROP tenant;
SELECT pg_temp.attempt('UPDATE "S-1".paper SET name = ''k'' WHERE number = 2');
SELECT outbox.capture('"S-1".paper', 'doc', on_drift => 'error');
UPDATE "S-1".paper SET name = 'l' WHERE number = 2;
SELECT * FROM pg_temp.news();

-- lists: empty, NULL, naming what has gone
CREATE TABLE listed (id int PRIMARY KEY, a int, b int, c int);
SELECT outbox.capture('listed', except_columns => '{}');
INSERT INTO listed VALUES (1, 1, 1, 1);
SELECT outbox.capture('listed', except_columns => NULL);
INSERT INTO listed VALUES (2, 1, 1, 1);
SELECT outbox.capture('listed', except_columns => '{b}', changed => '{c}', subject_column => 'c', version_column => 'c');
ALTER TABLE listed DROP b;
INSERT INTO listed VALUES (3, 1);
ALTER TABLE listed ADD b int;
INSERT INTO listed VALUES (4, 1, NULL, 5);
SELECT outbox.capture('listed', columns => '{id,c}', changed => '{c}');
ALTER TABLE listed DROP c;
INSERT INTO listed VALUES (5, 1);
UPDATE listed SET a = 2 WHERE id = 5;
SELECT * FROM pg_temp.news();
-- a condition belongs to the trigger, which the server protects
SELECT outbox.capture('listed', update_event => 'listed.a', condition => 'NEW.a > 0');
SELECT regexp_replace(pg_temp.attempt('ALTER TABLE listed DROP a'), 'capture_\d+', 'capture_N');
ALTER TABLE listed RENAME a TO aa;
UPDATE listed SET aa = 0;
UPDATE listed SET aa = 3 WHERE id = 5;
SELECT * FROM pg_temp.news();
SET client_min_messages = warning;
ALTER TABLE listed DROP aa CASCADE;
RESET client_min_messages;
SELECT state FROM outbox.captures WHERE captured = 'listed'::regclass;
SELECT problem, severity FROM outbox.lint() WHERE object = 'capture_test.listed';

-- inheritance: a rename in the parent reaches a captured child
CREATE TABLE base (id int, note text);
CREATE TABLE derived (PRIMARY KEY (id)) INHERITS (base);
SELECT outbox.capture('derived');
ALTER TABLE base RENAME id TO number;
INSERT INTO derived VALUES (1, 'x');
UPDATE base SET note = 'y';
SELECT * FROM pg_temp.news();

-- what happens within one transaction, and with an old snapshot
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM listed;
CREATE TABLE young (id int PRIMARY KEY);
SELECT outbox.capture('young');
INSERT INTO young VALUES (1);
ALTER TABLE young RENAME id TO ident;
INSERT INTO young VALUES (2);
SELECT outbox.capture('young', insert_event => 'young.again');
INSERT INTO young VALUES (3);
SELECT outbox.uncapture('young');
INSERT INTO young VALUES (4);
COMMIT;
SELECT * FROM pg_temp.news();
BEGIN;
SELECT outbox.capture('young');
INSERT INTO young VALUES (5);
ROLLBACK;
INSERT INTO young VALUES (6);
SELECT count(*) FROM outbox.captures WHERE captured = 'young'::regclass;
SELECT * FROM pg_temp.news();

-- a table that is dropped takes its capture with it
SELECT outbox.capture('young'), outbox.guard('young');
DROP TABLE young;
SELECT count(*) FROM outbox.captures WHERE aggregate_type = 'young';
SELECT count(*) FROM outbox.lint() WHERE object ~ 'young';

-- roles of a session
CREATE TABLE role (id int PRIMARY KEY);
SELECT outbox.capture('role');
SET session_replication_role = replica;
INSERT INTO role VALUES (1);
RESET session_replication_role;
SELECT outbox.capture('role', replicated => true);
SET session_replication_role = replica;
INSERT INTO role VALUES (2);
RESET session_replication_role;
INSERT INTO role VALUES (3);
SELECT replicated, state FROM outbox.captures WHERE captured = 'role'::regclass;
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
SELECT outbox.capture('parts', replicated => true, on_truncate => 'event');
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
SELECT DISTINCT tgenabled FROM pg_trigger WHERE tgrelid IN ('parts'::regclass, 'parts_1'::regclass, 'parts_2'::regclass) AND NOT tgisinternal;
SET session_replication_role = replica;
INSERT INTO parts VALUES (1), (11);
UPDATE parts SET id = id + 1;
TRUNCATE parts_2;
RESET session_replication_role;
SELECT id, event FROM pg_temp.news();
ALTER TABLE role DISABLE TRIGGER ALL;
INSERT INTO role VALUES (4);
SELECT * FROM pg_temp.news();
SELECT state FROM outbox.captures WHERE captured = 'role'::regclass;

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test, "S-1" CASCADE;
