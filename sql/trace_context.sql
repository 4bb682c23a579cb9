-- The session's trace context becomes headers, unless the caller gives them.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SET outbox.traceparent = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
SELECT outbox.enqueue('trace', '1', 'parent', '{}') IS NOT NULL AS ok;
SET outbox.tracestate = 'vendor=x,y=z';
SELECT outbox.enqueue('trace', '1', 'both', '{}') IS NOT NULL AS ok;
SELECT outbox.enqueue('trace', '1', 'beside others', '{}', headers => '{"k": "v"}') IS NOT NULL AS ok;
-- a parent of the caller's brings its own state, or none
SELECT outbox.enqueue('trace', '1', 'own', '{}', headers => '{"TraceParent": "p"}') IS NOT NULL AS ok;
SELECT array_length(outbox.enqueue_many('{trace}', '{1,1}', '{many}', ARRAY['1', '2']::jsonb[], headers => ARRAY[NULL, '{"traceparent": "p"}']::jsonb[]), 1);
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('trace', '1', 'insert', '{}');
BEGIN;
SET LOCAL outbox.traceparent = 'local';
SET LOCAL outbox.tracestate = '';
SELECT outbox.enqueue('trace', '1', 'local', '{}') IS NOT NULL AS ok;
COMMIT;
RESET outbox.traceparent;
SELECT outbox.enqueue('trace', '1', 'state alone', '{}') IS NOT NULL AS ok;
SELECT event_type, headers FROM outbox.events WHERE aggregate_type = 'trace' ORDER BY position;

-- what can't be a header is refused
SET outbox.traceparent = E'a\r\nX: y';
SELECT pg_temp.attempt($$SELECT outbox.enqueue('trace', '2', 'e', '{}')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue('trace', '2', 'e', '{}', headers => '{"traceparent": "p"}')$$);
