-- A transaction may touch far more aggregates than the lock table has room for.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

BEGIN;
SELECT array_length(outbox.enqueue_many('{many aggregates}', array_agg(i::text), '{e}', ARRAY['{}'::jsonb]), 1) FROM generate_series(1, 30000) i;
SELECT count(*) < 100 AS few_locks FROM pg_locks WHERE pid = pg_backend_pid();
ROLLBACK;
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'many aggregates';
-- and again: the first ones were given back
BEGIN;
SELECT array_length(outbox.enqueue_many('{many aggregates}', array_agg(i::text), '{e}', ARRAY['{}'::jsonb]), 1) FROM generate_series(1, 30000) i;
SELECT count(*), count(DISTINCT agg_hash) FROM outbox.log WHERE aggregate_type = 'many aggregates';
ROLLBACK;
