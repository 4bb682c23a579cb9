-- Functions that write are volatile and parallel unsafe, and work where plans would be parallel.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT proname, provolatile, proparallel, proisstrict, prosecdef FROM pg_proc
WHERE pronamespace = 'outbox'::regnamespace AND proname ~ '^(enqueue|events_insert)' ORDER BY proname;

CREATE TABLE parallel_source AS SELECT i FROM generate_series(1, 5000) i;
ANALYZE parallel_source;
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
-- this would be parallel ...
EXPLAIN (COSTS OFF) SELECT count(*) FROM parallel_source WHERE i % 7 = 0;
-- ... but this isn't
EXPLAIN (COSTS OFF) SELECT count(outbox.enqueue('parallel', 'x', 'e', to_jsonb(i))) FROM parallel_source WHERE i % 7 = 0;
-- the setting that makes every plan parallel was renamed in PostgreSQL 16
SELECT name AS forced FROM pg_settings WHERE name IN ('force_parallel_mode', 'debug_parallel_query') \gset
SELECT set_config(:'forced', 'on', false);
SELECT count(outbox.enqueue('parallel', (i % 3)::text, 'e', to_jsonb(i))) FROM parallel_source WHERE i % 7 = 0;
SELECT outbox.enqueue('parallel', 'alone', 'e', '{}') IS NOT NULL AS ok;
SELECT array_length(outbox.enqueue_many('{parallel}', '{a,b}', '{e}', ARRAY['{}'::jsonb]), 1);
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) SELECT 'parallel', 'insert', 'e', to_jsonb(i) FROM parallel_source WHERE i <= 3;
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'parallel';
SELECT count(*) FROM outbox.status() WHERE database = current_database();

-- wrapped in a function that claims less
CREATE FUNCTION pg_temp.wrapper(id text) RETURNS uuid LANGUAGE sql STABLE AS $$ SELECT outbox.enqueue('wrapped', id, 'e', '{}') $$;
SELECT pg_temp.wrapper('sql') IS NOT NULL AS ok;
CREATE FUNCTION pg_temp.plpgsql_wrapper(id text) RETURNS uuid LANGUAGE plpgsql STABLE AS $$ BEGIN RETURN outbox.enqueue('wrapped', id, 'e', '{}'); END $$;
SELECT pg_temp.plpgsql_wrapper('plpgsql') IS NOT NULL AS ok;
-- one that lies is caught before it does harm
CREATE FUNCTION parallel_liar(id text) RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$ SELECT outbox.enqueue('liar', id, 'e', '{}') $$;
CREATE FUNCTION parallel_liar_plpgsql(id text) RETURNS uuid LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$ BEGIN RETURN outbox.enqueue('liar', id, 'e', '{}'); END $$;
SELECT left(pg_temp.attempt($$SELECT count(parallel_liar_plpgsql(i::text)) FROM parallel_source$$), 5) AS state;
SELECT aggregate_type, aggregate_id FROM outbox.events WHERE aggregate_type IN ('wrapped', 'liar') ORDER BY position;

-- index expressions and generated columns must not write
RESET :forced;
SELECT left(pg_temp.attempt($$CREATE INDEX ON parallel_source (outbox.enqueue('parallel', 'index', 'e', to_jsonb(i)))$$), 5) AS state;
SELECT left(pg_temp.attempt($$CREATE TABLE parallel_generated (i int, u uuid GENERATED ALWAYS AS (outbox.enqueue('parallel', 'generated', 'e', to_jsonb(i))) STORED)$$), 5) AS state;
DROP FUNCTION parallel_liar, parallel_liar_plpgsql;
DROP TABLE parallel_source;
