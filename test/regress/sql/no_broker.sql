-- outbox.status() of a relay that reaches no broker, and what stays pending.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/begin.psql
\set ECHO all

-- Waits until the relay of this database is in that state with that backlog.
CREATE PROCEDURE pg_temp.wait_for(wanted text, wanted_backlog bigint) LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..600 LOOP
        EXIT WHEN EXISTS (SELECT FROM outbox.status() s WHERE s.database = current_database() AND s.state = wanted AND s.backlog = wanted_backlog AND s.last_error <> '');
        PERFORM pg_sleep(0.05);
    END LOOP;
END $$;
CALL pg_temp.wait_for('not connected', 0);
SELECT count(*) FROM outbox.status() WHERE database = current_database();
SELECT s.pid = a.pid AS is_a_process, s.state, since BETWEEN now() - interval '1 minute' AND now() AS since, server, stream, backlog,
       oldest_pending_age, in_flight, published
FROM outbox.status() s LEFT JOIN pg_stat_activity a ON a.datname = s.database AND a.pid = s.pid WHERE database = current_database();
SELECT last_error FROM outbox.status() WHERE database = current_database();

-- uncommitted events are no backlog of the relay's that ages; committed ones are
SELECT count(outbox.enqueue('no broker', i::text, 'e', '{}')) FROM generate_series(1, 3) i;
BEGIN;
SELECT outbox.enqueue('no broker', 'rolled back', 'e', '{}') IS NOT NULL AS ok;
ROLLBACK;
CALL pg_temp.wait_for('not connected', 3);
SELECT state, backlog, oldest_pending_age BETWEEN interval '0' AND interval '1 minute' AS age, in_flight, published FROM outbox.status() WHERE database = current_database();
SELECT aggregate_id, publish_state, published_at, attempts, next_attempt_at, last_error FROM outbox.events WHERE aggregate_type = 'no broker' ORDER BY position;
SELECT count(*) FROM outbox.in_flight_positions();
