-- The argument forms of the enqueue functions.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

-- untyped literals mean JSON
SELECT outbox.enqueue('enqueue', '1', 'literals', '{"a": 1}') IS NOT NULL AS ok;
SELECT outbox.enqueue_text('enqueue', '1', 'text', '{ "a":1}') IS NOT NULL AS ok;
SELECT outbox.enqueue_bytes('enqueue', '1', 'bytes', '\x00ff') IS NOT NULL AS ok;

-- named, in any order; all given
SELECT outbox.enqueue(payload => '[]', event_type => 'named', aggregate_id => '1', aggregate_type => 'enqueue') IS NOT NULL AS ok;
SELECT outbox.enqueue(aggregate_type => 'enqueue', aggregate_id => '1', event_type => 'all', payload => '2',
    headers => '{"k": "v"}', subject => 'a.b', event_id => '11111111-1111-1111-1111-111111111111',
    occurred_at => '2024-02-29 12:00:00.123456+02', priority => 7, not_before => '2020-01-01 00:00+00',
    content_type => 'application/x', dataschema => 'urn:s', aggregate_version => 9223372036854775807,
    on_conflict => 'error');
SELECT outbox.enqueue('enqueue', '1', 'nulls', '3', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL) IS NOT NULL AS ok;

-- a driver's parameters of unknown type become jsonb, text or bytea by the function's name
PREPARE as_json AS SELECT outbox.enqueue($1, $2, $3, $4);
PREPARE as_text AS SELECT outbox.enqueue_text($1, $2, $3, $4);
PREPARE as_bytes AS SELECT outbox.enqueue_bytes($1, $2, $3, $4);
PREPARE as_named AS SELECT outbox.enqueue($1, $2, $3, payload => $4, headers => $5, event_id => $6);
SELECT name, parameter_types FROM pg_prepared_statements WHERE name LIKE 'as\_%' ORDER BY name;
DO $$ BEGIN FOR i IN 1..7 LOOP EXECUTE 'EXECUTE as_json(''enqueue'', ''1'', ''prepared'', ''4'')'; END LOOP; END $$;

-- what is stored, and the defaults
SELECT event_type, coalesce(payload::text, payload_text, payload_bytes::text) AS payload, headers, subject, priority,
       content_type, dataschema, aggregate_version
FROM outbox.events WHERE aggregate_type = 'enqueue' ORDER BY position;
SELECT event_id, occurred_at = '2024-02-29 10:00:00.123456+00' AS occurred_at, not_before = '2020-01-01 00:00+00' AS not_before
FROM outbox.events WHERE aggregate_type = 'enqueue' AND event_type = 'all';
SELECT count(*), count(DISTINCT event_id), bool_and(occurred_at = created_at) AS occurred_when_created,
       bool_and(created_at BETWEEN now() - interval '1 minute' AND clock_timestamp()) AS created_now,
       bool_and(not_before IS NULL) AS at_once,
       bool_and(substr(event_id::text, 15, 1) = '7' AND substr(event_id::text, 20, 1) IN ('8', '9', 'a', 'b')) AS uuid7
FROM outbox.events WHERE aggregate_type = 'enqueue' AND event_type <> 'all';

-- generated ids are in the order of their time, so that the index on them grows at its end
SELECT outbox.enqueue('enqueue', '2', 'first', '{}') AS first_id, pg_sleep(0.002) \gset
SELECT outbox.enqueue('enqueue', '2', 'second', '{}') AS second_id \gset
SELECT :'first_id'::uuid < :'second_id'::uuid AS ordered;

-- the id that is returned is the row's
SELECT event_type FROM outbox.events WHERE event_id = :'second_id';

-- created_at is the time of the call, also late in a transaction
BEGIN;
SELECT pg_sleep(0.01);
SELECT outbox.enqueue('enqueue', '3', 'late', '{}') IS NOT NULL AS ok;
SELECT created_at > now() AS later_than_begin, publish_state, attempts, published_at, next_attempt_at, last_error
FROM outbox.events WHERE aggregate_type = 'enqueue' AND aggregate_id = '3';
COMMIT;

-- what no form accepts
SELECT pg_temp.attempt($$SELECT outbox.enqueue('enqueue', '1', 'e', '{}', on_conflict => 'ignore')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue('enqueue', '1', 'e', '{"a":')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue('enqueue', '1', 'e')$$) ~ '^42883' AS no_payload;
