-- Subtransactions: what they roll back leaves no event, the rest keeps its order.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

BEGIN;
SELECT outbox.enqueue('savepoint', '1', 'e1', '{}') IS NOT NULL AS ok;
SAVEPOINT s;
SELECT outbox.enqueue('savepoint', '1', 'e2', '{}') IS NOT NULL AS ok;
SELECT * FROM pg_temp.events_of('savepoint');
ROLLBACK TO s;
SELECT outbox.enqueue('savepoint', '1', 'e3', '{}') IS NOT NULL AS ok;
SAVEPOINT t;
SELECT outbox.enqueue('savepoint', '1', 'e4', '{}') IS NOT NULL AS ok;
RELEASE t;
COMMIT;
SELECT * FROM pg_temp.events_of('savepoint');

-- exception blocks, nested
DO $$
BEGIN
    PERFORM outbox.enqueue('exception', '1', 'outer', '{}');
    BEGIN
        PERFORM outbox.enqueue('exception', '1', 'undone', '{}');
        BEGIN
            PERFORM outbox.enqueue('exception', '2', 'undone with its parent', '{}');
        END;
        RAISE 'no';
    EXCEPTION WHEN raise_exception THEN
        PERFORM outbox.enqueue('exception', '1', 'handler', '{}');
    END;
    BEGIN
        PERFORM outbox.enqueue('exception', '1', 'kept', '{}');
        BEGIN
            PERFORM outbox.enqueue('exception', '1', 'e', '{}', subject => 'a..b');
        EXCEPTION WHEN invalid_parameter_value THEN
            NULL;
        END;
    END;
    PERFORM outbox.enqueue('exception', '2', 'last', '{}');
END $$;
SELECT * FROM pg_temp.events_of('exception');

-- only in a subtransaction; only in one that is undone
BEGIN;
SAVEPOINT s;
SELECT outbox.enqueue('sub only', '1', 'kept', '{}') IS NOT NULL AS ok;
RELEASE s;
COMMIT;
BEGIN;
SAVEPOINT s;
SELECT outbox.enqueue('sub only', '2', 'undone', '{}') IS NOT NULL AS ok;
ROLLBACK TO s;
COMMIT;
SELECT * FROM pg_temp.events_of('sub only');

-- many subtransactions, half of them undone
DO $$
BEGIN
    FOR i IN 1..2000 LOOP
        BEGIN
            PERFORM outbox.enqueue('serial', '1', 'e', to_jsonb(i));
            IF i % 2 = 0 THEN
                RAISE 'no';
            END IF;
        EXCEPTION WHEN raise_exception THEN
            NULL;
        END;
    END LOOP;
END $$;
SELECT count(*), bool_and(payload::int % 2 = 1) AS odd, array_agg(payload::int ORDER BY position) = array_agg(payload::int ORDER BY payload::int) AS in_order
FROM outbox.events WHERE aggregate_type = 'serial';

-- an error at COMMIT
CREATE TEMP TABLE business (a int);
CREATE FUNCTION pg_temp.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused at commit'; END $$;
CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON business DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.refuse();
BEGIN;
INSERT INTO business VALUES (1);
SELECT outbox.enqueue('at commit', '1', 'undone', '{}') IS NOT NULL AS ok;
\set VERBOSITY terse
COMMIT;
\set VERBOSITY default
SELECT * FROM pg_temp.events_of('at commit');

-- an event from a deferred trigger
CREATE FUNCTION pg_temp.enqueue_late() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM outbox.enqueue('deferred', '1', 'from trigger', to_jsonb(NEW.a)); RETURN NULL; END $$;
DROP TRIGGER refuse ON business;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON business DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION pg_temp.enqueue_late();
BEGIN;
INSERT INTO business VALUES (2);
SELECT * FROM pg_temp.events_of('deferred');
COMMIT;
SELECT * FROM pg_temp.events_of('deferred');

-- COMMIT and ROLLBACK in a procedure
CREATE PROCEDURE pg_temp.work() LANGUAGE plpgsql AS $$
BEGIN
    FOR i IN 1..6 LOOP
        PERFORM outbox.enqueue('procedure', '1', 'e' || i, '{}');
        IF i % 3 = 0 THEN
            ROLLBACK;
        ELSE
            COMMIT;
        END IF;
    END LOOP;
END $$;
CALL pg_temp.work();
SELECT * FROM pg_temp.events_of('procedure');

-- a cursor WITH HOLD runs its query at commit
BEGIN;
DECLARE c NO SCROLL CURSOR WITH HOLD FOR SELECT outbox.enqueue('hold', '1', 'e' || i, '{}') IS NOT NULL AS ok FROM generate_series(1, 3) i;
FETCH 1 FROM c;
COMMIT;
FETCH ALL FROM c;
CLOSE c;
SELECT * FROM pg_temp.events_of('hold');

-- a failed statement in autocommit, and a rolled-back transaction, leave nothing and block nothing
SELECT pg_temp.attempt($$SELECT outbox.enqueue('rolled back', '1', 'e', '{}'), 1 / 0$$);
BEGIN;
SELECT outbox.enqueue('rolled back', '1', 'e', '{}') IS NOT NULL AS ok;
ROLLBACK;
SELECT outbox.enqueue('rolled back', '1', 'after', '{}') IS NOT NULL AS ok;
SELECT * FROM pg_temp.events_of('rolled back');
