-- Without the library in shared_preload_libraries: events are kept, not published, and the session is told once.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/begin.psql
\set ECHO all

SELECT count(*) FROM outbox.events;
SELECT * FROM outbox.status() \gx
SELECT count(*) FROM outbox.in_flight_positions();
BEGIN;
SELECT outbox.enqueue('not preloaded', '1', 'first', '{"a": 1}') IS NOT NULL AS ok;
SELECT outbox.enqueue('not preloaded', '1', 'second', '{}') IS NOT NULL AS ok;
SAVEPOINT s;
SELECT outbox.enqueue('not preloaded', '1', 'undone', '{}') IS NOT NULL AS ok;
ROLLBACK TO s;
COMMIT;
SELECT array_length(outbox.enqueue_many('{not preloaded}', '{1,2,1}', '{many}', ARRAY['1', '2', '3']::jsonb[]), 1);
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('not preloaded', '1', 'insert', '{}') RETURNING publish_state;
SELECT * FROM pg_temp.events_of('not preloaded');
SELECT DISTINCT publish_state FROM outbox.events;

-- the checks are the same
SELECT pg_temp.attempt($$SELECT outbox.enqueue('not preloaded', '1', 'e', '{}', subject => 'a..b')$$);
SELECT outbox.enqueue('not preloaded', '3', 'own id', '{}', event_id => 'ffffffff-0000-4000-8000-000000000001');
SELECT pg_temp.attempt($$SELECT outbox.enqueue('not preloaded', '3', 'e', '{}', event_id => 'ffffffff-0000-4000-8000-000000000001')$$);
SELECT outbox.enqueue('not preloaded', '3', 'again', '{}', event_id => 'ffffffff-0000-4000-8000-000000000001', on_conflict => 'return');

-- so are the settings, but for those that size shared memory
SELECT pg_temp.attempt($$SET outbox.subject_template = '*'$$);
SELECT pg_temp.attempt($$SET outbox.max_payload = 1024$$);
SELECT pg_temp.attempt($$SET outbox.max_databases = 3$$);

-- two-phase commit
BEGIN;
SELECT outbox.enqueue('not preloaded', '4', 'prepared', '{}') IS NOT NULL AS ok;
PREPARE TRANSACTION 'outbox regress';
SET lock_timeout = '100ms';
SELECT outbox.enqueue('not preloaded', '4', 'too early', '{}');
RESET lock_timeout;
COMMIT PREPARED 'outbox regress';
SELECT outbox.enqueue('not preloaded', '4', 'after', '{}') IS NOT NULL AS ok;
SELECT event_type FROM pg_temp.events_of('not preloaded') WHERE aggregate_id = '4';

-- captures and guards
SET client_min_messages = error;
CREATE TABLE captured (id int PRIMARY KEY);
CREATE TABLE guarded (id int PRIMARY KEY);
SELECT outbox.capture('captured'), outbox.guard('guarded');
RESET client_min_messages;
INSERT INTO captured VALUES (1);
INSERT INTO guarded VALUES (1);
BEGIN;
INSERT INTO guarded VALUES (1);
SAVEPOINT s;
SELECT outbox.enqueue('guarded', '1', 'e', '{}') IS NOT NULL AS ok;
RELEASE s;
COMMIT;
SELECT * FROM pg_temp.events_of('captured');
DROP TABLE captured, guarded;

-- the extension goes and comes
DROP EXTENSION outbox;
CREATE EXTENSION outbox;
SELECT outbox.enqueue('not preloaded', '1', 'new', '{}') IS NOT NULL AS ok;
-- a new session is told again
\c -
SELECT outbox.enqueue('not preloaded', '1', 'newer', '{}') IS NOT NULL AS ok;
