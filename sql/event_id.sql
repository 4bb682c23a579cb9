-- An event_id of the caller's: once in the log, and what on_conflict does.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

\set a 'aaaaaaaa-0000-4000-8000-000000000001'
\set b 'aaaaaaaa-0000-4000-8000-000000000002'
\set c 'aaaaaaaa-0000-4000-8000-000000000003'
SELECT outbox.enqueue('event_id', '1', 'first', '1', event_id => :'a');

-- across transactions; also when everything else differs, and with each function
SELECT pg_temp.attempt($$SELECT outbox.enqueue('event_id', '1', 'again', '2', event_id => 'aaaaaaaa-0000-4000-8000-000000000001')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_text('event_id', '2', 'again', '2', event_id => 'aaaaaaaa-0000-4000-8000-000000000001', on_conflict => 'error')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue('event_id', '1', 'again', '2', event_id => 'aaaaaaaa-0000-4000-8000-000000000001', on_conflict => NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{event_id}', '{1}', '{again}', ARRAY['2'::jsonb], event_id => '{aaaaaaaa-0000-4000-8000-000000000001}')$$);
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, event_id) VALUES ('event_id', '1', 'again', '2', 'aaaaaaaa-0000-4000-8000-000000000001')$$);
SELECT outbox.enqueue('event_id', '1', 'again', '2', event_id => :'a', on_conflict => 'return');
SELECT outbox.enqueue_bytes('event_id', '2', 'again', '2', event_id => :'a', on_conflict => 'return');

-- within a transaction, and after a rollback to a savepoint
BEGIN;
SELECT outbox.enqueue('event_id', '1', 'second', '1', event_id => :'b');
SELECT outbox.enqueue('event_id', '1', 'again', '2', event_id => :'b', on_conflict => 'return');
SELECT pg_temp.attempt($$SELECT outbox.enqueue('event_id', '1', 'again', '2', event_id => 'aaaaaaaa-0000-4000-8000-000000000002')$$);
SAVEPOINT s;
SELECT outbox.enqueue('event_id', '1', 'undone', '1', event_id => :'c');
ROLLBACK TO s;
SELECT outbox.enqueue('event_id', '1', 'third', '1', event_id => :'c', on_conflict => 'return');
COMMIT;

-- rolled back, it is free again
BEGIN;
SELECT outbox.enqueue('event_id', '1', 'undone', '1', event_id => 'aaaaaaaa-0000-4000-8000-000000000004');
ROLLBACK;
SELECT outbox.enqueue('event_id', '1', 'fourth', '1', event_id => 'aaaaaaaa-0000-4000-8000-000000000004');

-- two within one statement
SELECT outbox.enqueue('event_id', '1', 'fifth', to_jsonb(i), event_id => 'aaaaaaaa-0000-4000-8000-000000000005', on_conflict => 'return')
FROM generate_series(1, 3) i;

-- in enqueue_many: with rows that exist, and with each other
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{event_id}', '{1}', '{same}', ARRAY['1', '2']::jsonb[],
    event_id => '{aaaaaaaa-0000-4000-8000-000000000006,aaaaaaaa-0000-4000-8000-000000000006}')$$);
SELECT outbox.enqueue_many('{event_id}', '{1}', '{new,again,new,again}', ARRAY['1', '2', '3', '4']::jsonb[],
    event_id => '{aaaaaaaa-0000-4000-8000-000000000006,aaaaaaaa-0000-4000-8000-000000000001,aaaaaaaa-0000-4000-8000-000000000007,aaaaaaaa-0000-4000-8000-000000000006}',
    on_conflict => 'return');

SELECT event_id, aggregate_id, event_type, coalesce(payload::text, 'no json') AS payload
FROM outbox.events WHERE aggregate_type = 'event_id' ORDER BY position;

-- 'return' that adds nothing draws no position
SELECT last_value AS before FROM outbox.position \gset
SELECT outbox.enqueue('event_id', '1', 'again', '2', event_id => :'a', on_conflict => 'return');
SELECT last_value - :before AS drawn FROM outbox.position;
