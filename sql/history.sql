-- An aggregate's events through its index, and what the ledger says of positions.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

-- part of the stored format: these values never change
SELECT outbox.aggregate_hash('order', '42'), outbox.aggregate_hash('order4', '2'), outbox.aggregate_hash('order', NULL);
SELECT outbox.enqueue('history', i::text, 'e' || j, '{}') IS NOT NULL AS ok FROM generate_series(1, 2) i, generate_series(1, 2) j;
SELECT aggregate_id, event_type FROM outbox.history('history', '2') ORDER BY position;
SELECT count(*) FROM outbox.history('history', '3');
SELECT bool_and(agg_hash = outbox.aggregate_hash(aggregate_type, aggregate_id)) AS hashed FROM outbox.events WHERE aggregate_type = 'history';
-- which event a transaction's event follows in its aggregate
BEGIN;
SELECT outbox.enqueue('follows', a, 'e', '{}') IS NOT NULL AS ok FROM unnest(ARRAY['a', 'b', 'a', 'a']) a;
COMMIT;
SELECT aggregate_id, follows = lag(position) OVER (PARTITION BY aggregate_id ORDER BY position) AS follows_it
FROM outbox.log WHERE aggregate_type = 'follows' ORDER BY position;

-- a ledger row of contiguous positions, and one with a bitmap; rolled back
BEGIN;
INSERT INTO outbox.ledger_7 (bucket, settled_at, epoch, relay, lo, hi, bits) VALUES
    (1000000, '2026-01-01 00:00+00', 1, 0, 10, 12, NULL),
    (1000000, '2026-01-02 00:00+00', 1, 0, 12, 22, '\x0504');
SELECT p - 1000000 * 1024 AS offset, outbox.settled_at(p) AT TIME ZONE 'UTC' AS settled_at
FROM generate_series(1000000 * 1024 + 9, 1000000 * 1024 + 23) p;
ROLLBACK;
SELECT outbox.settled_at(1000000 * 1024 + 10) IS NULL AS rolled_back;
-- an ordered read with a limit is an index scan, whatever the size
CREATE FUNCTION pg_temp.plan_sorts(query text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    line text;
BEGIN
    FOR line IN EXECUTE 'EXPLAIN (COSTS off) ' || query LOOP
        IF line LIKE '%Sort' THEN RETURN true; END IF;
    END LOOP;
    RETURN false;
END $$;
SET enable_seqscan = off;
SELECT pg_temp.plan_sorts('SELECT position, publish_state FROM outbox.events ORDER BY position LIMIT 1');
