-- A read-only transaction can't enqueue, and draws no number.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT last_value AS before FROM outbox.position \gset
BEGIN READ ONLY;
SELECT pg_temp.attempt($$SELECT outbox.enqueue('read only', '1', 'e', '{}')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_text('read only', '1', 'e', '')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_bytes('read only', '1', 'e', '')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{read only}', '{1}', '{e}', ARRAY['{}'::jsonb])$$);
SELECT left(pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('read only', '1', 'e', '{}')$$), 5) AS state;
-- reading works
SELECT count(*) >= 0 AS ok FROM outbox.events;
SELECT count(*) >= 1 AS ok FROM outbox.status();
-- and no transaction id was taken
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
SET default_transaction_read_only = on;
SELECT left(pg_temp.attempt($$SELECT outbox.enqueue('read only', '1', 'e', '{}')$$), 5) AS state;
RESET default_transaction_read_only;
SELECT last_value - :before AS drawn FROM outbox.position;
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'read only';
