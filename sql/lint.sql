-- lint: what may lose events or publishes past the outbox, with reason and remedy.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
SET client_min_messages = error;
DROP ROLE IF EXISTS regress_lint_writer, regress_lint_gone;
RESET client_min_messages;
CREATE ROLE regress_lint_writer;
CREATE ROLE regress_lint_gone;
CREATE FUNCTION pg_temp.findings() RETURNS TABLE (object text, problem text, severity text) LANGUAGE sql AS
$$SELECT regexp_replace(l.object, '^capture_test\.', ''), regexp_replace(l.problem, 'outbox_(capture|guard)_\d+', 'outbox_\1_N'), l.severity FROM outbox.lint() l
  WHERE l.object ~ 'capture_test|follow_ddl|^outbox|^publication' ORDER BY l.object COLLATE "C", l.problem COLLATE "C"$$;
\set ECHO all

-- nothing to find
CREATE TABLE good (id int PRIMARY KEY);
SELECT outbox.capture('good'), outbox.guard('good');
CREATE FUNCTION harmless() RETURNS text LANGUAGE plpgsql AS $$
-- NOTIFY nobody, and no dblink('x')
BEGIN
    /* pg_notify('a', 'b') */
    PERFORM outbox.enqueue('a', 'b', 'c', '{}');
    RETURN 'https://example.com';
EXCEPTION WHEN unique_violation THEN RETURN NULL;
END $$;
SELECT * FROM pg_temp.findings();

-- captures and guards that don't fit, or don't fire
CREATE TABLE loose (a int, b text);
SELECT outbox.capture('loose', aggregate_id => '{a}'), outbox.guard('loose', aggregate_id => '{b}', exempt_roles => '{regress_lint_gone}');
DROP ROLE regress_lint_gone;
GRANT UPDATE ON good TO regress_lint_writer;
SELECT outbox.unguard('good');
CREATE TABLE parent (id int PRIMARY KEY, a int);
CREATE TABLE child () INHERITS (parent);
SELECT outbox.capture('parent', changed => '{a}'), outbox.guard('parent');
ALTER TABLE parent DROP a;
CREATE TABLE off (id int PRIMARY KEY);
SELECT outbox.capture('off');
ALTER TABLE off DISABLE TRIGGER ALL;
CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
SELECT outbox.capture('parts');
ALTER TABLE parts_1 DISABLE TRIGGER ALL;
CREATE FUNCTION project(text, good, good) RETURNS jsonb LANGUAGE sql AS $$SELECT '{}'::jsonb$$;
SELECT outbox.capture('good', name => 'projected', projection => 'project');
DROP FUNCTION project;
SELECT * FROM pg_temp.findings();
SELECT outbox.uncapture(captured, name) FROM outbox.captures WHERE captured::text IN ('loose', 'parent', 'off', 'parts') OR name = 'projected';
SELECT outbox.unguard('loose'), outbox.unguard('parent');

-- what keeps a change from its event
CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.id < 0 THEN RETURN NULL; END IF; RETURN NEW; END$$;
CREATE TRIGGER drops BEFORE INSERT ON good FOR EACH ROW EXECUTE FUNCTION drops();
CREATE TRIGGER other AFTER INSERT ON good FOR EACH ROW EXECUTE FUNCTION drops();
ALTER TABLE good DISABLE TRIGGER other;
CREATE RULE aside AS ON DELETE TO good DO INSTEAD NOTHING;
ALTER EVENT TRIGGER outbox_follow_ddl DISABLE;
CREATE TRIGGER wrong BEFORE INSERT ON outbox.log_7 FOR EACH ROW EXECUTE FUNCTION drops();
SET client_min_messages = error;  -- wal_level is not logical
CREATE PUBLICATION outbox_all FOR ALL TABLES;
RESET client_min_messages;
SELECT * FROM pg_temp.findings();
DROP PUBLICATION outbox_all;
ALTER EVENT TRIGGER outbox_follow_ddl ENABLE ALWAYS;
DROP TRIGGER wrong ON outbox.log_7;
SELECT outbox.uncapture('good');

-- code that publishes otherwise, or loses errors
CREATE FUNCTION f_notify() RETURNS void LANGUAGE sql AS $$SELECT pg_notify('orders', 'x')$$;
CREATE FUNCTION f_notify2() RETURNS void LANGUAGE plpgsql AS $$BEGIN NOTIFY orders, 'x'; END$$;
CREATE FUNCTION f_notify3() RETURNS void LANGUAGE sql BEGIN ATOMIC SELECT pg_notify('orders', 'x'); END;
CREATE PROCEDURE f_dblink() LANGUAGE plpgsql AS $$BEGIN PERFORM dblink_exec('dbname=other', 'INSERT INTO t VALUES (1)'); END$$;
CREATE FUNCTION f_http() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM http_post('http://x', '', ''); END$$;
CREATE FUNCTION f_net() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM net.http_post('http://x', '{}'); END$$;
CREATE FUNCTION f_nats() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM nats_publish('a', 'b'); END$$;
CREATE FUNCTION f_amqp() RETURNS void LANGUAGE plpgsql AS $$BEGIN PERFORM amqp.publish(1, 'a', 'b', 'c'); END$$;
CREATE FUNCTION f_program() RETURNS void LANGUAGE plpgsql AS $$BEGIN COPY (SELECT 1) TO PROGRAM 'nats pub x'; END$$;
CREATE FUNCTION f_swallow() RETURNS void LANGUAGE plpgsql AS $$
BEGIN PERFORM outbox.enqueue('a', 'b', 'c', '{}'); EXCEPTION WHEN unique_violation THEN NULL; WHEN OTHERS THEN RAISE LOG 'oh'; END$$;
SELECT * FROM pg_temp.findings();
-- each says why, and what to do
SELECT count(*) FROM outbox.lint() WHERE coalesce(reason, '') !~ '\.$' OR coalesce(remedy, '') !~ '\.$' OR severity NOT IN ('error', 'warning', 'info');
SELECT reason, remedy FROM outbox.lint() WHERE object = 'capture_test.f_swallow()';

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test CASCADE;
DROP ROLE regress_lint_writer;
