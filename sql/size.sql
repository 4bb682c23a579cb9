-- outbox.max_payload bounds payload and headers together.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT pg_temp.attempt(format($$SELECT outbox.enqueue_text('size', '1', 'default', %L)$$, repeat('x', n))) FROM unnest(ARRAY[1000000, 1000001]) n;
SET outbox.max_payload = 1024;
SELECT n, pg_temp.attempt(format($$SELECT outbox.enqueue_text('size', '1', 'text', %L)$$, repeat('x', n))) FROM unnest(ARRAY[1023, 1024, 1025]) n;
SELECT n, pg_temp.attempt(format($$SELECT outbox.enqueue_bytes('size', '1', 'bytes', %L)$$, decode(repeat('00', n), 'hex'))) FROM unnest(ARRAY[1024, 1025]) n;
-- bytes, not characters; the canonical text, not what jsonb takes on disk
SELECT n, pg_temp.attempt(format($$SELECT outbox.enqueue_text('size', '1', 'characters', %L)$$, repeat('é', n))) FROM unnest(ARRAY[512, 513]) n;
SELECT n, pg_temp.attempt(format($$SELECT outbox.enqueue('size', '1', 'jsonb', %L)$$, to_jsonb(repeat('x', n)))) FROM unnest(ARRAY[1022, 1023]) n;
SELECT n, pg_temp.attempt(format($$SELECT outbox.enqueue('size', '1', 'number', '1e%s')$$, n)) FROM unnest(ARRAY[1023, 1024]) n;
-- with {"k": "v"}
SELECT n, pg_temp.attempt(format($$SELECT outbox.enqueue_text('size', '1', 'headers', %L, headers => '{"k": "v"}')$$, repeat('x', n))) FROM unnest(ARRAY[1014, 1015]) n;
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{size}', '{2,3}', '{many}', ARRAY['1', to_jsonb(repeat('x', 2000))])$$);
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_text) VALUES ('size', '2', 'insert', repeat('x', 1025))$$);
SELECT event_type, count(*) FROM outbox.events WHERE aggregate_type = 'size' GROUP BY event_type ORDER BY event_type COLLATE "C";
-- larger than the default, when it is raised
SET outbox.max_payload = '8MB';
SELECT outbox.enqueue_text('size', '4', 'large', repeat('0123456789', 800000)) IS NOT NULL AS ok;
SELECT octet_length(payload_text), sha256(payload_text::bytea) = sha256(repeat('0123456789', 800000)::bytea) AS same FROM outbox.events WHERE aggregate_type = 'size' AND aggregate_id = '4';
