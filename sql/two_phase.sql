-- Two-phase commit. Without max_prepared_transactions there is little to see (two_phase_1.out).
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT setting::int = 0 AS off FROM pg_settings WHERE name = 'max_prepared_transactions' \gset
\if :off
\quit
\endif
CREATE FUNCTION pg_temp.prepared() RETURNS bigint LANGUAGE sql AS
$$ SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database() AND gid LIKE 'outbox regress%' $$;

BEGIN;
SELECT outbox.enqueue('two phase', '1', 'committed', '{}') IS NOT NULL AS ok;
SAVEPOINT s;
SELECT outbox.enqueue('two phase', '1', 'undone', '{}') IS NOT NULL AS ok;
ROLLBACK TO s;
SAVEPOINT t;
SELECT outbox.enqueue('two phase', '2', 'in a subtransaction', '{}', event_id => 'eeeeeeee-0000-4000-8000-000000000001');
RELEASE t;
PREPARE TRANSACTION 'outbox regress 1';
-- prepared is not committed
SELECT pg_temp.prepared();
SELECT * FROM pg_temp.events_of('two phase');
-- the session and other aggregates go on
SELECT outbox.enqueue('two phase', '3', 'another aggregate', '{}') IS NOT NULL AS ok;

-- the aggregates and the event_id of the prepared transaction wait
SET lock_timeout = '100ms';
\set VERBOSITY default
SELECT outbox.enqueue('two phase', '1', 'too early', '{}');
SELECT outbox.enqueue('two phase', '2', 'too early', '{}');
SELECT outbox.enqueue('two phase', '4', 'too early', '{}', event_id => 'eeeeeeee-0000-4000-8000-000000000001', on_conflict => 'return');
RESET lock_timeout;
COMMIT PREPARED 'outbox regress 1';
SELECT outbox.enqueue('two phase', '1', 'after', '{}') IS NOT NULL AS ok;
SELECT outbox.enqueue('two phase', '4', 'again', '{}', event_id => 'eeeeeeee-0000-4000-8000-000000000001', on_conflict => 'return');
SELECT * FROM pg_temp.events_of('two phase');

-- rolled back
BEGIN;
SELECT outbox.enqueue('two phase', '5', 'rolled back', '{}', event_id => 'eeeeeeee-0000-4000-8000-000000000002');
PREPARE TRANSACTION 'outbox regress 2';
SELECT outbox.enqueue('two phase', '6', 'between', '{}') IS NOT NULL AS ok;
ROLLBACK PREPARED 'outbox regress 2';
SELECT outbox.enqueue('two phase', '5', 'after', '{}', event_id => 'eeeeeeee-0000-4000-8000-000000000002', on_conflict => 'return');
SELECT aggregate_id, event_type FROM pg_temp.events_of('two phase') WHERE aggregate_id >= '5';

-- a PREPARE that fails leaves nothing behind
CREATE TEMP TABLE mine (a int);
BEGIN;
INSERT INTO mine VALUES (1);
SELECT outbox.enqueue('two phase', '7', 'undone', '{}') IS NOT NULL AS ok;
PREPARE TRANSACTION 'outbox regress 3';
SELECT outbox.enqueue('two phase', '7', 'after', '{}') IS NOT NULL AS ok;

-- several at once, ended in another order
SELECT format('BEGIN; SELECT count(outbox.enqueue(''two phase'', ''m%1$s'', ''e'', ''{}'')); PREPARE TRANSACTION ''outbox regress m%1$s''', i) AS c FROM generate_series(1, 5) i \gexec
SELECT format('%s PREPARED ''outbox regress m%s''', CASE WHEN i % 2 = 1 THEN 'COMMIT' ELSE 'ROLLBACK' END, i) AS c FROM generate_series(5, 1, -1) i \gexec
SELECT aggregate_id, event_type FROM pg_temp.events_of('two phase') WHERE aggregate_id LIKE 'm%';
SELECT count(outbox.enqueue('two phase', 'm' || i, 'after', '{}')) FROM generate_series(1, 5) i;
SELECT pg_temp.prepared();

-- another session waits until COMMIT PREPARED, and then gets through
BEGIN;
SELECT outbox.enqueue('two phase', 'w', 'holder', '{}') IS NOT NULL AS ok;
PREPARE TRANSACTION 'outbox regress 4';
\setenv PGDATABASE :DBNAME
\! psql -X -q -c "SELECT outbox.enqueue('two phase', 'w', 'waiter', '{}')" >/dev/null 2>&1 </dev/null &
CREATE FUNCTION pg_temp.poll(question text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    answer boolean := false;
BEGIN
    FOR i IN 1..3000 LOOP
        PERFORM pg_stat_clear_snapshot();
        EXECUTE question INTO answer;
        EXIT WHEN answer;
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN answer;
END $$;
SELECT pg_temp.poll($$SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'transactionid' AND query LIKE '%waiter%')$$) AS waits;
COMMIT PREPARED 'outbox regress 4';
SELECT pg_temp.poll($$SELECT EXISTS (SELECT FROM outbox.events WHERE aggregate_type = 'two phase' AND event_type = 'waiter')$$) AS through;
SELECT aggregate_id, event_type FROM pg_temp.events_of('two phase') WHERE aggregate_id = 'w';
