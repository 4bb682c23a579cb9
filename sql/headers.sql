-- Headers: string values only, and nothing that a receiver would get changed.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

CREATE FUNCTION pg_temp.with_headers(id text, headers jsonb) RETURNS text LANGUAGE sql AS
$$ SELECT pg_temp.attempt(format('SELECT outbox.enqueue(%L, %L, %L, %L, headers => %L)', 'headers', id, 'e', '{}', headers)) $$;

-- values that pass, and come back the same
CREATE TEMP TABLE good (n int GENERATED ALWAYS AS IDENTITY, value text);
INSERT INTO good (value) VALUES ('v'), ('a b'), ('a: b; c="d"'), ('é€😀'), (E'back\\slash "quote" / {}'), ('null'), ('1'), (repeat('x', 60000)), (repeat('x', 65535));
SELECT n, pg_temp.with_headers('good' || n, jsonb_build_object('key', value)) FROM good ORDER BY n;
SELECT count(*), bool_and(e.headers = jsonb_build_object('key', value)) AS same
FROM good JOIN outbox.events e ON e.aggregate_type = 'headers' AND e.aggregate_id = 'good' || n;

-- values that don't
SELECT pg_temp.with_headers('bad', jsonb_build_object('key', value))
FROM unnest(ARRAY[E'a\r\nX: y', E'a\nb', E'a\rb', E'a\tb', E'\x01', E'\x7f', '  padded  ', ' a', 'a ', '', '   ',
    chr(160) || 'a', 'a' || chr(8232), chr(65279) || 'a', repeat('x', 65536)]) value;
SELECT pg_temp.with_headers('bad', jsonb_build_object('key', value))
FROM unnest(ARRAY['1', 'true', 'null', '[]', '["a"]', '{}', '{"a": "b"}']::jsonb[]) value;
SELECT left(pg_temp.attempt($$SELECT outbox.enqueue('headers', 'bad', 'e', '{}', headers => '{"k": "a\u0000b"}')$$), 5) AS nul;

-- keys
SELECT key, pg_temp.with_headers('key', jsonb_build_object(key, 'v'))
FROM unnest(ARRAY['a', 'X-Y', 'x.y_z', '!#$%&''*+-.^_`|~9', 'cex', 'nats', 'content-types', 'traceparents', repeat('k', 256)]) key;
SELECT pg_temp.with_headers('bad', jsonb_build_object(key, 'v'))
FROM unnest(ARRAY['X: Y', 'X Y', E'X\r\nZ', E'X\tY', 'X:', '', 'é', '(x)', 'a/b', 'a"b', 'a{b}', repeat('k', 257), repeat('k', 300),
    'Nats-Msg-Id', 'nats-expected-stream', 'NATS-', 'Content-Type', 'content-type']) key;

-- a time to live
SELECT value, pg_temp.with_headers('ttl', jsonb_build_object('Nats-TTL', value)) FROM unnest(ARRAY['never', '3600', '1h30m', '999999999s']) value;
SELECT pg_temp.with_headers('bad', jsonb_build_object('Nats-TTL', value)) FROM unnest(ARRAY['', '1 h', '1d', '500ms', '-1', '0', '277778h']) value;

-- a schedule
SELECT pg_temp.with_headers('bad', jsonb_build_object('Nats-Schedule', value)) FROM unnest(ARRAY['@not_before', '@at 2030-01-01T00:00:00Z']) value;
SELECT outbox.enqueue('headers', 'schedule', 'e', '{}', headers => '{"Nats-Schedule": "@not_before"}', not_before => now()) IS NOT NULL AS scheduled;

-- extension attributes of CloudEvents
SELECT key, pg_temp.with_headers('attribute', jsonb_build_object(key, 'v'))
FROM unnest(ARRAY['ce-tenant', 'ce-9', 'ce-subjects', 'ce-x' || repeat('k', 19)]) key;
SELECT pg_temp.with_headers('bad', jsonb_build_object(key, 'v'))
FROM unnest(ARRAY['ce-', 'CE-tenant', 'ce-Tenant', 'ce-ten_ant', 'ce-ten-ant', 'ce-é', 'ce-' || repeat('k', 21), 'ce-traceparent', 'ce-tracestate']) key;
SELECT name, regexp_replace(pg_temp.with_headers('bad', jsonb_build_object('ce-' || name, 'v')), E'\n  hint.*', '')
FROM unnest(ARRAY['id', 'source', 'type', 'subject', 'time', 'specversion', 'datacontenttype', 'dataschema', 'data', 'sequence', 'partitionkey',
    'aggregatetype', 'aggregateversion']) name;
SELECT pg_temp.with_headers('bad', '{"ce-tenant": ""}');
SELECT pg_temp.with_headers('bad', '{"Key": "1", "kEY": "2"}');
SELECT pg_temp.with_headers('bad', headers) FROM unnest(ARRAY['[]', '["a"]', '"a"', '1', 'null', 'true']::jsonb[]) headers;

-- how many
SELECT n, pg_temp.with_headers('many' || n, jsonb_object_agg('k' || i, 'v')) FROM unnest(ARRAY[1, 99, 100, 101]) n, generate_series(1, n) i GROUP BY n ORDER BY n;
SELECT aggregate_id, (SELECT count(*) FROM jsonb_object_keys(headers)) AS kept FROM outbox.events
WHERE aggregate_type = 'headers' AND aggregate_id LIKE 'many%' ORDER BY position;

-- none
SELECT count(outbox.enqueue('headers', 'none', 'e', '{}', headers => h)) FROM unnest(ARRAY['{}', NULL]::jsonb[]) h;
SELECT headers FROM outbox.events WHERE aggregate_type = 'headers' AND aggregate_id = 'none';

-- nothing of what was refused is there; the other ways in give the same verdict
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('headers', 'bad', 'e', '{}', '{"ce-id": "1"}')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{headers}', '{bad}', '{e}', ARRAY['{}'::jsonb], headers => ARRAY['{"X Y": "1"}'::jsonb])$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_bytes('headers', 'bad', 'e', '', headers => '{"a": 1}')$$);
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'headers' AND aggregate_id = 'bad';
