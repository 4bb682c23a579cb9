-- enqueue_many: arrays of one length, or of one element that holds for all events.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT array_length(outbox.enqueue_many(ARRAY['many', 'many', 'many'], ARRAY['1', '2', '1'], ARRAY['a', 'b', 'c'], ARRAY['1', '2', '3']::jsonb[]), 1);
-- broadcast, of some and of all
SELECT array_length(outbox.enqueue_many('{many}', '{3,4}', '{d}', ARRAY['{"same": true}'::jsonb], headers => ARRAY['{"k": "v"}'::jsonb],
    priority => '{1,2}', aggregate_version => '{5}', subject => '{s.1,s.2}', content_type => '{x}', dataschema => '{y}',
    occurred_at => ARRAY['2024-01-01 00:00+00'::timestamptz], not_before => '{2020-01-01 00:00+00,NULL}'), 1);
SELECT array_length(outbox.enqueue_many('{many}', '{5}', '{e}', ARRAY['{}'::jsonb]), 1);
SELECT aggregate_id, event_type, payload, headers, subject, priority, content_type, dataschema, aggregate_version,
       occurred_at = '2024-01-01 00:00+00' AS given_time, not_before IS NOT NULL AS given_not_before
FROM outbox.events WHERE aggregate_type = 'many' ORDER BY position;

-- NULL elements of what may be left out
SELECT array_length(outbox.enqueue_many('{many}', '{6,7}', '{f}', ARRAY['1', '2']::jsonb[], headers => ARRAY[NULL, '{"k": "v"}']::jsonb[],
    subject => '{NULL,s}', event_id => ARRAY[NULL, 'bbbbbbbb-0000-4000-8000-000000000001']::uuid[], priority => '{NULL,3}', aggregate_version => '{4,NULL}'), 1);
SELECT aggregate_id, headers, subject, priority, aggregate_version, event_id = 'bbbbbbbb-0000-4000-8000-000000000001' AS given_id
FROM outbox.events WHERE aggregate_type = 'many' AND event_type = 'f' ORDER BY position;

-- NULL elements of what may not
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many,NULL}', '{8}', '{g}', ARRAY['1'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{8,NULL}', '{g}', ARRAY['1'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{8}', '{g,NULL}', ARRAY['1'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{8}', '{g}', ARRAY['1', NULL]::jsonb[])$$);

-- lengths
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{8,9}', '{g,g,g}', ARRAY['1'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{8,9}', '{g}', ARRAY['1'::jsonb], priority => '{1,2,3}')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many,many}', '{}', '{g}', ARRAY['1'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{8,9}', '{g}', ARRAY['1'::jsonb], headers => '{}')$$);
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'many' AND event_type = 'g';

-- empty arrays: no event
SELECT outbox.enqueue_many('{}', '{}', '{}', '{}');
SELECT outbox.enqueue_many('{many}', '{}', '{g}', '{}');
-- an array that is NULL where the value may not be left out
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many(NULL, '{8}', '{g}', ARRAY['1'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', NULL, '{g}', ARRAY['1'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{8}', '{g}', NULL)$$);

-- the ids are returned in the order of the elements, positions grow in that order
SELECT outbox.enqueue_many('{many}', array_agg(format('h%s', i % 7) ORDER BY i), '{h}', array_agg(to_jsonb(i) ORDER BY i)) AS ids FROM generate_series(1, 1000) i \gset
SELECT count(*), bool_and(e.payload = to_jsonb(ordinality)) AS same_order, bool_and(position > previous) AS growing
FROM (SELECT ordinality, event_id, payload, position, lag(position, 1, 0::bigint) OVER (ORDER BY ordinality) AS previous
      FROM unnest(:'ids'::uuid[]) WITH ORDINALITY u (event_id, ordinality) JOIN outbox.events USING (event_id)) e;

-- all or nothing
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{many}', '{9}', array_fill('i'::text, ARRAY[100]) || ''::text, ARRAY['1'::jsonb])$$);
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'many' AND event_type = 'i';
