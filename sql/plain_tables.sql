-- Events are inserted directly: tables that got triggers or row security are refused.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

CREATE FUNCTION pg_temp.nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
BEGIN;
DO $$ BEGIN FOR i IN 0..7 LOOP EXECUTE format('CREATE TRIGGER t BEFORE INSERT ON outbox.log_%s FOR EACH ROW EXECUTE FUNCTION pg_temp.nothing()', i); END LOOP; END $$;
SELECT regexp_replace(pg_temp.attempt($$SELECT outbox.enqueue('plain', '1', 'e', '{}')$$), 'log_\d', 'log_N');
ROLLBACK;
BEGIN;
DO $$ BEGIN FOR i IN 0..7 LOOP EXECUTE format('ALTER TABLE outbox.log_%s ENABLE ROW LEVEL SECURITY', i); END LOOP; END $$;
SELECT regexp_replace(pg_temp.attempt($$SELECT outbox.enqueue('plain', '1', 'e', '{}')$$), 'log_\d', 'log_N');
ROLLBACK;
BEGIN;
DO $$ BEGIN FOR i IN 0..7 LOOP EXECUTE format('ALTER TABLE outbox.log_%s ADD CHECK (aggregate_id <> ''bad'')', i); END LOOP; END $$;
SELECT left(pg_temp.attempt($$SELECT outbox.enqueue('plain', 'bad', 'e', '{}')$$), 5) AS state;
SELECT outbox.enqueue('plain', 'good', 'e', '{}') IS NOT NULL AS ok;
ROLLBACK;
SELECT outbox.enqueue('plain', 'bad', 'e', '{}') IS NOT NULL AS ok;
