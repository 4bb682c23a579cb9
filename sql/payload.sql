-- Payloads: jsonb as its canonical text, text and bytea byte for byte.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

CREATE TEMP TABLE given (n int, doc text);
INSERT INTO given VALUES
    (1, '9007199254740993'), (2, '12345678901234567890'), (3, '1.10'), (4, '1E2'), (5, '-0'), (6, '1e40'),
    (7, '{"b":1,"a":2,"b":3}'), (8, E'  \n{"$type":"x","a":1}\n'), (9, '"str"'), (10, 'null'), (11, '[]'), (12, '{}'),
    (13, '"é 😀 \u2028"'), (14, '""'), (15, '-12.50e-3'), (16, 'true'), (17, '"\u00e9\\\"\/"'), (18, '[1,  [2 ,3]]');

-- jsonb
SELECT count(outbox.enqueue('payload', 'json' || n, 'e', doc::jsonb)) FROM given;
SELECT n, doc, convert_from(l.payload, 'UTF8') AS stored
FROM given JOIN outbox.log l ON l.aggregate_type = 'payload' AND l.aggregate_id = 'json' || n ORDER BY n;
SELECT bool_and(e.payload = doc::jsonb AND e.payload::text = convert_from(l.payload, 'UTF8')) AS same_in_view,
       bool_and(e.payload_text IS NULL AND e.payload_bytes IS NULL) AS only_there
FROM given JOIN outbox.log l ON l.aggregate_type = 'payload' AND l.aggregate_id = 'json' || n
JOIN outbox.events e ON e.position = l.position;

-- all characters and all shapes as jsonb's own output has them
CREATE TEMP TABLE shapes AS
    SELECT i AS n, to_jsonb(chr(i) || 'a' || chr(i)) AS doc FROM generate_series(1, 300) i
    UNION ALL SELECT 1000, jsonb_object_agg(chr(i), chr(i) || chr(i)) FROM generate_series(1, 300) i
    UNION ALL SELECT 2000 + n, d::jsonb FROM unnest(ARRAY['[[], {}, [{}], {"a": []}]', '{"a": {"b": [1, {"c": null}], "d": true}, "e": false, "": ""}', '[null]',
        '[[[1], 2], -0.0, 1e3, 123456789012345678901234567890.5]', '{"k": [[], [""], "x"]}']) WITH ORDINALITY t (d, n);
SELECT count(outbox.enqueue('payload', 'shape' || n, 'e', doc)) FROM shapes;
SELECT count(*), bool_and(convert_from(l.payload, 'UTF8') = doc::text) AS same
FROM shapes JOIN outbox.log l ON l.aggregate_type = 'payload' AND l.aggregate_id = 'shape' || n;

-- the same as text, and text that isn't JSON at all
INSERT INTO given VALUES (21, ''), (22, ' '), (23, E'\r\n\t'), (24, E'\uFEFF{}'), (25, 'é 😀 ' || chr(x'2028'::int)), (26, '{"a":'),
    (27, repeat('[', 60000) || repeat(']', 60000)), (28, E'\x01\x7f\\x41');
SELECT count(outbox.enqueue_text('payload', 'text' || n, 'e', doc)) FROM given;
SELECT count(*), bool_and(sha256(l.payload) = sha256(convert_to(doc, 'UTF8'))) AS same_bytes,
       bool_and(e.payload_text = doc) AS same_in_view, bool_and(e.payload IS NULL AND e.payload_bytes IS NULL) AS only_there
FROM given JOIN outbox.log l ON l.aggregate_type = 'payload' AND l.aggregate_id = 'text' || n
JOIN outbox.events e ON e.position = l.position;

-- bytea: every byte, none, and what isn't UTF-8
CREATE TEMP TABLE given_bytes AS SELECT 1 AS n, string_agg(set_byte('\x00', 0, i), ''::bytea ORDER BY i) AS doc FROM generate_series(0, 255) i;
INSERT INTO given_bytes VALUES (2, ''), (3, '\x00'), (4, '\xc3'), (5, decode(repeat('00ff', 100000), 'hex'));
SELECT count(outbox.enqueue_bytes('payload', 'bytes' || n, 'e', doc)) FROM given_bytes;
SELECT count(*), bool_and(sha256(e.payload_bytes) = sha256(doc)) AS same_bytes,
       bool_and(e.payload IS NULL AND e.payload_text IS NULL) AS only_there
FROM given_bytes JOIN outbox.events e ON e.aggregate_type = 'payload' AND e.aggregate_id = 'bytes' || n;

-- SQL NULL is refused, and is not JSON null
SELECT pg_temp.attempt($$SELECT outbox.enqueue('payload', '1', 'e', NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_text('payload', '1', 'e', NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_bytes('payload', '1', 'e', NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{payload}', '{1}', '{e}', ARRAY[NULL::jsonb])$$);
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type) VALUES ('payload', '1', 'e')$$);
SELECT outbox.enqueue('payload', 'null', 'e', 'null') IS NOT NULL AS ok;
SELECT payload, payload IS NULL AS is_null FROM outbox.events WHERE aggregate_type = 'payload' AND aggregate_id = 'null';

-- numbers that no double holds
SELECT outbox.enqueue('payload', 'big', 'e', '[1e400, 0.1e-400]') IS NOT NULL AS ok;
SELECT payload = jsonb_build_array(1e400::numeric, 0.1e-400::numeric) AS same, length(payload::text)
FROM outbox.events WHERE aggregate_type = 'payload' AND aggregate_id = 'big';
SELECT left(pg_temp.attempt($$SELECT outbox.enqueue('payload', '1', 'e', '1e131072')$$), 5) AS too_big;

-- depth: what jsonb takes, the view gives back; what it doesn't, fails here and not in the relay
SELECT count(outbox.enqueue('payload', 'deep', 'e', (repeat('[', 6000) || repeat(']', 6000))::jsonb));
SELECT payload::text = repeat('[', 6000) || repeat(']', 6000) AS same
FROM outbox.events WHERE aggregate_type = 'payload' AND aggregate_id = 'deep';
SELECT left(pg_temp.attempt($$SELECT outbox.enqueue('payload', '1', 'e', (repeat('[', 60000) || repeat(']', 60000))::jsonb)$$), 5) AS too_deep;

-- a long string
SELECT outbox.enqueue('payload', 'long', 'e', to_jsonb(repeat('x', 999998))) IS NOT NULL AS ok;
SELECT octet_length(payload::text), payload #>> '{}' = repeat('x', 999998) AS same
FROM outbox.events WHERE aggregate_type = 'payload' AND aggregate_id = 'long';

-- a value that came compressed and toasted from a table
CREATE TEMP TABLE source AS SELECT jsonb_build_object('k', repeat('abc', 200000)) AS doc, repeat('abc', 200000) AS txt;
SELECT outbox.enqueue('payload', 'toast', 'e', doc) IS NOT NULL AS ok, outbox.enqueue_text('payload', 'toast', 'e', txt) IS NOT NULL AS ok2 FROM source;
SELECT bool_and(coalesce(payload = doc, payload_text = txt)) AS same
FROM source, outbox.events WHERE aggregate_type = 'payload' AND aggregate_id = 'toast';
