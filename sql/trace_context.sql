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
SELECT outbox.enqueue('trace', '1', 'own', '{}', headers => '{"TraceParent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}') IS NOT NULL AS ok;
SELECT array_length(outbox.enqueue_many('{trace}', '{1,1}', '{many}', ARRAY['1', '2']::jsonb[], headers => ARRAY[NULL, '{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}']::jsonb[]), 1);
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('trace', '1', 'insert', '{}');
BEGIN;
SET LOCAL outbox.traceparent = '00-0af7651916cd43dd8448eb211c80319c-00000000000000aa-00';
SET LOCAL outbox.tracestate = '';
SELECT outbox.enqueue('trace', '1', 'local', '{}') IS NOT NULL AS ok;
COMMIT;
RESET outbox.traceparent;
SELECT outbox.enqueue('trace', '1', 'state alone', '{}') IS NOT NULL AS ok;
SELECT event_type, headers FROM outbox.events WHERE aggregate_type = 'trace' ORDER BY position;

-- what W3C Trace Context doesn't allow is refused, by the setting as by the header
SELECT value, pg_temp.attempt(format('SET outbox.traceparent = %L', value)) AS setting,
    pg_temp.attempt(format($$SELECT outbox.enqueue('trace', '2', 'e', '{}', headers => jsonb_build_object('traceparent', %L))$$, value)) AS header
FROM unnest(ARRAY['00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', '01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more',
    'p', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331', '00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01',
    'ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01', '00-00000000000000000000000000000000-b7ad6b7169203331-01',
    '00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01', '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more',
    '01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01more']) value;
SELECT value, pg_temp.attempt(format('SET outbox.tracestate = %L', value)) AS setting,
    pg_temp.attempt(format($$SELECT outbox.enqueue('trace', '2', 'e', '{}', headers => jsonb_build_object('tracestate', %L))$$, value)) AS header
FROM unnest(ARRAY['a=1', 'a=1,b=2', 'a=1 , tenant@system=x y', 'a=1,,b=2', 'a', 'A=1', 'a=', 'a=1=2', '1a=1', 'a@=1', 'a=é', ' a=1', E'a=1,\tb=2',
    (SELECT string_agg('k' || i || '=v', ',') FROM generate_series(1, 33) i)]) value;
SELECT left(pg_temp.attempt($$SET outbox.traceparent = E'01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-\r\nX: y'$$), 5) AS injected;
SELECT left(pg_temp.attempt($$SET outbox.tracestate = E'a=1\r\nX: y'$$), 5) AS injected;
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{trace}', '{2}', '{e}', ARRAY['{}'::jsonb], headers => ARRAY['{"TraceParent": "p"}'::jsonb])$$);
