-- Enqueue in repeatable read and serializable transactions.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outbox.enqueue('levels', '1', 'repeatable read', '{}', event_id => 'dddddddd-0000-4000-8000-000000000001');
SELECT outbox.enqueue('levels', '1', 'again', '{}', event_id => 'dddddddd-0000-4000-8000-000000000001', on_conflict => 'return');
SELECT * FROM pg_temp.events_of('levels');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox.enqueue('levels', '1', 'serializable', '{}', event_id => 'dddddddd-0000-4000-8000-000000000002');
SAVEPOINT s;
SELECT pg_temp.attempt($$SELECT outbox.enqueue('levels', '1', 'again', '{}', event_id => 'dddddddd-0000-4000-8000-000000000002')$$);
ROLLBACK TO s;
COMMIT;
SELECT * FROM pg_temp.events_of('levels');
