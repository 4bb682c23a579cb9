-- event_ids: ours tell where the event is, the caller's are indexed.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS outbox;
RESET client_min_messages;
CREATE FUNCTION pg_temp.given(n integer) RETURNS uuid LANGUAGE sql AS $$ SELECT ('01932c07-20a0-7000-8000-0000000a000' || n)::uuid $$;
SELECT outbox.enqueue('eid', '1', 'made', '{}') AS made \gset
SELECT count(outbox.enqueue('eid', '1', 'made', '{}')) FROM generate_series(1, 300);
SELECT outbox.enqueue('eid', '1', 'given', '{}', event_id => pg_temp.given(1)) = pg_temp.given(1) AS given;
-- one call with both kinds
SELECT cardinality(outbox.enqueue_many(ARRAY['eid'], ARRAY['1'], ARRAY['given'], ARRAY['{}'::jsonb], event_id => ARRAY[pg_temp.given(2), NULL, pg_temp.given(3)])) AS many;

SELECT event_type, count(*), count(DISTINCT event_id) AS ids,
       bool_and(outbox.position_of(event_id) = position) AS found,
       bool_and(outbox.positions_in(event_id) = ARRAY[position]) AS told
FROM outbox.events WHERE aggregate_type = 'eid' GROUP BY 1 ORDER BY 1;
SELECT id_given, count(*) FROM outbox.log WHERE aggregate_type = 'eid' GROUP BY 1 ORDER BY 1;
SELECT outbox.position_of(gen_random_uuid()) IS NULL AS random, outbox.position_of(pg_temp.given(9)) IS NULL AS unknown, outbox.position_of(NULL) IS NULL AS null;

-- what is made by another key is found once that key is known, and no longer when it is gone; the session notices both
BEGIN;
UPDATE outbox.id_key SET key = key + 1 RETURNING key - 1 AS key \gset
SELECT outbox.position_of(:'made') IS NULL AS without_key;
INSERT INTO outbox.id_key VALUES (:key);
SELECT outbox.position_of(:'made') = (SELECT position FROM outbox.events WHERE event_id = :'made') AS with_both;
SELECT outbox.enqueue('eid', '3', 'again', '{}', event_id => :'made', on_conflict => 'return') = :'made' AS exists;
SELECT outbox.enqueue('eid', '3', 'made', '{}') AS other \gset
SELECT outbox.position_of(:'other') = (SELECT max(position) FROM outbox.events) AS with_any;
DELETE FROM outbox.id_key;
SELECT outbox.enqueue('eid', '3', 'made', '{}') AS other \gset
SELECT outbox.position_of(:'made') IS NULL AS without_any, outbox.position_of(:'other') IS NOT NULL AS yet_made;
ROLLBACK;
SELECT outbox.position_of(:'made') = (SELECT position FROM outbox.events WHERE event_id = :'made') AS as_before;

-- an id exists, whoever made it
\set VERBOSITY terse
SELECT outbox.enqueue('eid', '2', 'again', '{}', event_id => pg_temp.given(1));
SELECT outbox.enqueue('eid', '2', 'again', '{}', event_id => pg_temp.given(2), on_conflict => 'return') = pg_temp.given(2) AS returned;
SELECT outbox.enqueue('eid', '2', 'again', '{}', event_id => :'made', on_conflict => 'return') = :'made' AS returned;
DO $$
BEGIN
    PERFORM outbox.enqueue('eid', '2', 'again', '{}', event_id => (SELECT event_id FROM outbox.events WHERE aggregate_type = 'eid' ORDER BY position LIMIT 1));
EXCEPTION WHEN unique_violation THEN
    RAISE NOTICE 'exists already';
END $$;
-- also when it is of the same transaction
BEGIN;
SELECT outbox.enqueue('eid', '2', 'again', '{}') AS own \gset
SELECT outbox.enqueue('eid', '2', 'again', '{}', event_id => :'own', on_conflict => 'return') = :'own' AS returned;
ROLLBACK;
-- the time in it, the version and 28 bits by chance
SELECT abs(extract(epoch FROM created_at) * 1000 - ('x' || left(replace(event_id::text, '-', ''), 12))::bit(48)::bigint) < 1 AS time,
       substr(event_id::text, 15, 1) AS version, count(*) > 0 AS some
FROM outbox.events WHERE aggregate_type = 'eid' AND event_type = 'made' GROUP BY 1, 2;
