-- redrive(), discard(), pause(), resume(): arguments that are refused, and who may call them.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SET client_min_messages = error;
DROP ROLE IF EXISTS regress_outbox_nobody, regress_outbox_operator;
RESET client_min_messages;

\set SHOW_CONTEXT never

-- nothing is there
SELECT outbox.redrive(), outbox.redrive(max_events => 0), outbox.redrive(max_events => 9223372036854775807);
SELECT outbox.redrive(event_id => '00000000-0000-0000-0000-000000000000', aggregate_type => '', aggregate_id => '', event_type => '',
                      error_code => -1, failed_after => 'infinity', failed_before => '-infinity', max_events => NULL);
SELECT outbox.redrive(max_events => -1);
SELECT outbox.discard('x', event_id => '00000000-0000-0000-0000-000000000000'), outbox.discard('x', error_code => 10054);

-- a reason, and something named
SELECT outbox.discard(NULL, error_code => 10054);
SELECT outbox.discard('', error_code => 10054);
SELECT outbox.discard('x');
SELECT outbox.discard('x', max_events => 1);
SELECT outbox.discard('x', error_code => 10054, max_events => -1);

-- one pending event by its id, not by anything else
SELECT outbox.pause();
SELECT outbox.enqueue('operators', '1', 'e', '{}', event_id => '00000000-0000-4000-8000-000000000001');
SELECT outbox.discard('x', aggregate_type => 'operators'), outbox.discard('x', aggregate_type => 'operators', aggregate_id => '1', event_type => 'e');
SELECT outbox.discard('x', event_id => '00000000-0000-4000-8000-000000000001', aggregate_type => 'b') AS another_type,
       outbox.discard('x', event_id => '00000000-0000-4000-8000-000000000001', error_code => 10054) AS a_code,
       outbox.discard('x', event_id => '00000000-0000-4000-8000-000000000001', failed_before => 'infinity') AS a_time;
BEGIN;
SELECT outbox.discard('x', event_id => '00000000-0000-4000-8000-000000000001', aggregate_type => 'operators');
SELECT kind, reason, requested_by = session_user AS by_me FROM outbox.request;
ROLLBACK;
SELECT count(*) FROM outbox.request;

-- subjects
SELECT s.subject, outbox.pause(subject => s.subject)
FROM unnest(ARRAY['a', 'a.b', '*', '>', 'a.*', 'a.>', '*.*.>', 'a.*.c', '$JS.a', 'ä.%20']) s (subject);
SELECT s.subject, outbox.pause(subject => s.subject) FROM unnest(ARRAY['a', '>']) s (subject);
CREATE FUNCTION pg_temp.try(subject text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN outbox.pause(subject => subject)::text;
EXCEPTION WHEN invalid_parameter_value THEN
    RETURN SQLERRM;
END $$;
SELECT pg_temp.try(s.subject)
FROM unnest(ARRAY['', '.', 'a.', '.a', 'a..b', 'a b', E'a\tb', E'a\n', '>.a', 'a.>.b', 'a*', '*a', 'a.b*', 'a.*b.c', '**', 'a>', '>>', '*>']) s (subject);
SELECT outbox.pause(subject => 'a b');
SELECT count(*) FROM outbox.pauses;

-- the same arguments, and only those
SELECT outbox.pause('t'), outbox.pause('t', 'a.>', reason => 'r'), outbox.pause('t', 'a.>', reason => 'another');
SELECT outbox.resume('T'), outbox.resume('t', 'a'), outbox.resume(NULL, 'b'), outbox.resume('t'), outbox.resume('t'), outbox.resume('t', 'a.>');
SELECT outbox.resume(), outbox.resume();
SELECT count(outbox.resume(subject => p.subject)) FROM outbox.pauses p;
SELECT count(*) FROM outbox.pauses;

-- prepared transactions tell nobody when they commit
BEGIN;
SELECT outbox.pause('t');
PREPARE TRANSACTION 'regress_outbox_pause';
BEGIN;
SELECT outbox.pause('t'), outbox.resume('t');
PREPARE TRANSACTION 'regress_outbox_pause';
SELECT count(*) FROM outbox.pauses;

-- who may: nobody, until EXECUTE is granted; that suffices
CREATE ROLE regress_outbox_nobody;
CREATE ROLE regress_outbox_operator;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_nobody, regress_outbox_operator;
GRANT EXECUTE ON FUNCTION outbox.redrive, outbox.discard, outbox.pause, outbox.resume, outbox.error_counts TO regress_outbox_operator;
GRANT SELECT ON outbox.dead_letters, outbox.discarded_events, outbox.blocked_aggregates, outbox.pauses TO regress_outbox_operator;
SET ROLE regress_outbox_nobody;
SELECT outbox.redrive();
SELECT outbox.discard('x', error_code => 1);
SELECT outbox.pause();
SELECT outbox.resume();
SELECT count(*) FROM outbox.error_counts();
SELECT outbox.tell_relays();
SELECT count(*) FROM outbox.dead_letters;
SELECT count(*) FROM outbox.discarded_events;
SELECT count(*) FROM outbox.blocked_aggregates;
SELECT count(*) FROM outbox.pauses;
SELECT count(*) FROM outbox.request;
SELECT count(*) FROM outbox.delivery;
SET ROLE regress_outbox_operator;
SELECT outbox.redrive(), outbox.discard('x', error_code => 1), outbox.pause('nobody'), outbox.resume('nobody');
SELECT class FROM outbox.error_counts();
SELECT (SELECT count(*) FROM outbox.dead_letters), (SELECT count(*) FROM outbox.discarded_events),
       (SELECT count(*) FROM outbox.blocked_aggregates), (SELECT count(*) FROM outbox.pauses);
-- not by what the functions use
SELECT outbox.tell_relays();
DELETE FROM outbox.delivery;
INSERT INTO outbox.request (kind, agg_hash, position) VALUES ('x', 0, 0);
DELETE FROM outbox.pauses;
-- nor by names of its own in front of theirs
CREATE FUNCTION pg_temp.tell_relays() RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'called with other rights'; END $$;
CREATE TEMP TABLE pauses (aggregate_type text);
SET search_path = pg_temp, outbox;
SELECT outbox.pause('nobody'), outbox.resume('nobody');
RESET search_path;
RESET ROLE;
DROP OWNED BY regress_outbox_nobody, regress_outbox_operator;
DROP ROLE regress_outbox_nobody, regress_outbox_operator;
