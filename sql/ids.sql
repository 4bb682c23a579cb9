-- Aggregate ids, aggregate types and event types: any text but the empty one.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

CREATE TEMP TABLE hostile (n int GENERATED ALWAYS AS IDENTITY, id text);
INSERT INTO hostile (id) VALUES ('a b'), (E'a\tb'), (E'a\r\nPUB ev.x 2'), ('*'), ('>'), ('a.*'), ('.a'), ('a.'), ('a..b'), ('a.b'), ('a_b'),
    ('a%2Eb'), ('café'), (repeat('x', 300)), ('$JS.API'), ('_INBOX.1'), (' '), ('😀'), (''''';--'), ('\x00'), (E'\x01\x7f'), ('NULL');
SELECT count(outbox.enqueue('ids', id, 'e', to_jsonb(n))) FROM hostile;
SELECT count(outbox.enqueue(id, 'ids', id, to_jsonb(n))) FROM hostile WHERE octet_length(id) <= 255;

-- every id is found again under exactly its own text, and no two share a lock key
SELECT count(*), bool_and(e.payload = to_jsonb(n)) AS right_one
FROM hostile h JOIN outbox.events e ON e.aggregate_type = 'ids' AND e.aggregate_id = h.id;
SELECT count(*), bool_and(e.payload = to_jsonb(n) AND e.event_type = id) AS right_one
FROM hostile h JOIN outbox.events e ON e.aggregate_id = 'ids' AND e.aggregate_type = h.id;
SELECT count(DISTINCT agg_hash) = count(DISTINCT (aggregate_type, aggregate_id)) AS no_shared_key
FROM outbox.log WHERE 'ids' IN (aggregate_type, aggregate_id);

-- bounds, in bytes
SELECT pg_temp.attempt(format($$SELECT outbox.enqueue(%L, 'bound', 'e', '{}')$$, v)) FROM unnest(ARRAY[repeat('t', 255), repeat('é', 127), repeat('t', 256), repeat('é', 128), '', NULL]) v;
SELECT pg_temp.attempt(format($$SELECT outbox.enqueue('ids', %L, 'e', '{}')$$, v)) FROM unnest(ARRAY[repeat('i', 512), repeat('é', 256), repeat('i', 513), repeat('é', 257), '', NULL]) v;
SELECT pg_temp.attempt(format($$SELECT outbox.enqueue('ids', 'bound', %L, '{}')$$, v)) FROM unnest(ARRAY[repeat('e', 255), repeat('e', 256), '', NULL]) v;
SELECT pg_temp.attempt(format($$SELECT outbox.enqueue('ids', 'bound', 'e', '{}', dataschema => %L)$$, v)) FROM unnest(ARRAY['urn:é', repeat('s', 1024), repeat('s', 1025), '', NULL]) v;
SELECT pg_temp.attempt(format($$SELECT outbox.enqueue('ids', 'bound', 'e', '{}', content_type => %L)$$, v))
FROM unnest(ARRAY['text/plain; charset=utf-8', repeat('c', 255), repeat('c', 256), '', ' x', E'a\r\nX: y', NULL]) v;

-- the other ways in give the same verdict
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('ids', '', 'e', '{}')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{ids}', '{ok,""}', '{e}', ARRAY['{}'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{ids}', '{ok,NULL}', '{e}', ARRAY['{}'::jsonb])$$);
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'ids' AND aggregate_id = 'ok';
