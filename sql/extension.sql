-- CREATE EXTENSION and DROP EXTENSION, with the same session going on.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT outbox.enqueue('extension', '1', 'before', '{}') IS NOT NULL AS ok;
SELECT pg_temp.attempt('CREATE EXTENSION outbox');
SELECT pg_temp.attempt('ALTER EXTENSION outbox SET SCHEMA public');
SELECT pg_temp.attempt('ALTER SCHEMA outbox RENAME TO other');
BEGIN;
DROP EXTENSION outbox;
ROLLBACK;
SELECT outbox.enqueue('extension', '1', 'after', '{}') IS NOT NULL AS ok;
SELECT * FROM pg_temp.events_of('extension');

DROP EXTENSION outbox;
SELECT pg_temp.attempt($$SELECT outbox.enqueue('extension', '1', 'none', '{}')$$) ~ '^(42883|3F000)' AS gone;
SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('outbox');
CREATE EXTENSION outbox;
SELECT outbox.enqueue('extension', '1', 'new', '{}') IS NOT NULL AS ok;
SELECT aggregate_id, event_type, position FROM outbox.events;
-- several times within a transaction
BEGIN;
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
SELECT outbox.enqueue('extension', '1', 'newer', '{}') IS NOT NULL AS ok;
COMMIT;
SELECT aggregate_id, event_type FROM outbox.events;
