-- The trigger functions serve outbox.events only: anywhere else they say so.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT pg_temp.attempt($$SELECT outbox.events_insert()$$);
SELECT pg_temp.attempt($$SELECT outbox.events_refuse()$$);

-- columns that are missing
CREATE TEMP TABLE missing (aggregate_type text, aggregate_id text, event_type text, payload jsonb);
CREATE TRIGGER wrong BEFORE INSERT ON missing FOR EACH ROW EXECUTE FUNCTION outbox.events_insert();
SELECT left(pg_temp.attempt($$INSERT INTO missing VALUES ('wrong', '1', 'e', '{}')$$), 5) AS state;

-- no row at all
CREATE TEMP TABLE statement (a int);
CREATE TRIGGER wrong BEFORE INSERT ON statement FOR EACH STATEMENT EXECUTE FUNCTION outbox.events_insert();
SELECT left(pg_temp.attempt($$INSERT INTO statement VALUES (1)$$), 5) AS state;

-- columns of other types
CREATE TEMP TABLE types (aggregate_type int, aggregate_id int, event_type int);
CREATE TRIGGER wrong BEFORE INSERT ON types FOR EACH ROW EXECUTE FUNCTION outbox.events_insert();
SELECT left(pg_temp.attempt($$INSERT INTO types VALUES (1, 1, 1)$$), 5) AS state;
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'wrong';
