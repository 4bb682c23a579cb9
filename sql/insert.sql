-- INSERT INTO outbox.events enqueues; UPDATE and DELETE are refused.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('insert', '1', 'json', '{"b": 1,"a":2}')
RETURNING aggregate_type, aggregate_id, event_type, payload, payload_text, payload_bytes, priority, publish_state, attempts, published_at,
    position > 0 AS position, event_id IS NOT NULL AS event_id, occurred_at = created_at AS occurred_at;
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_text) VALUES ('insert', '1', 'text', ' {}');
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_bytes) VALUES ('insert', '1', 'bytes', '\x00');
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers, subject, event_id, occurred_at, priority, not_before, content_type, dataschema, aggregate_version)
VALUES ('insert', '1', 'all', 'null', '{"k": "v"}', 's', 'cccccccc-0000-4000-8000-000000000001', '2024-01-01 00:00+00', -5, '2020-01-01 00:00+00', 'c', 'd', 6)
RETURNING event_id, priority, occurred_at = '2024-01-01 00:00+00' AS occurred_at;
SELECT event_type, payload, payload_text, payload_bytes, headers, subject, priority, content_type, dataschema, aggregate_version, not_before IS NOT NULL AS not_before
FROM outbox.events WHERE aggregate_type = 'insert' ORDER BY position;

-- RETURNING shows the row that is stored
WITH added AS (INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('insert', '2', 'returning', '1')
    RETURNING position, event_id, occurred_at, created_at)
SELECT position AS p, event_id AS i, occurred_at AS o, created_at AS c FROM added \gset
SELECT (position, event_id, occurred_at, created_at) = (:p, :'i'::uuid, :'o'::timestamptz, :'c'::timestamptz) AS same
FROM outbox.events WHERE aggregate_type = 'insert' AND aggregate_id = '2';
SET outbox.traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) VALUES ('insert', '2', 'trace', '1') RETURNING headers;
RESET outbox.traceparent;

-- what isn't the caller's to set has no effect, and RETURNING doesn't pretend that it had
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, position, created_at, publish_state, published_at, attempts, next_attempt_at, last_error)
VALUES ('insert', '3', 'forged', '1', 1, '2000-01-01', 'published', '2000-01-01', 77, '2000-01-01', 'none')
RETURNING position > 1 AS position, created_at > '2020-01-01' AS created_at, publish_state, published_at, attempts, next_attempt_at, last_error;
SELECT position > 1 AS position, created_at > '2020-01-01' AS created_at, publish_state <> 'published' OR published_at > '2020-01-01' AS state, attempts < 77 AS attempts, last_error
FROM outbox.events WHERE aggregate_type = 'insert' AND aggregate_id = '3';

-- many rows in one statement keep their order; COPY does the same
INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload) SELECT 'insert', '4', 'e' || i, to_jsonb(i) FROM generate_series(1, 3) i;
COPY outbox.events (aggregate_type, aggregate_id, event_type, payload) FROM stdin;
insert	4	copied	{"a": 1}
insert	4	copied	null
\.
SELECT event_type, payload FROM outbox.events WHERE aggregate_type = 'insert' AND aggregate_id = '4' ORDER BY position;

-- errors
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, payload_text) VALUES ('insert', '5', 'two', '1', '1')$$);
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, payload_bytes) VALUES ('insert', '5', 'two', '1', '\x00')$$);
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_text, payload_bytes) VALUES ('insert', '5', 'two', '', '')$$);
SELECT pg_temp.attempt($$INSERT INTO outbox.events DEFAULT VALUES$$);
SELECT pg_temp.attempt($$UPDATE outbox.events SET priority = 1 WHERE aggregate_type = 'insert'$$);
SELECT pg_temp.attempt($$DELETE FROM outbox.events WHERE aggregate_type = 'insert'$$);
SELECT pg_temp.attempt($$TRUNCATE outbox.events$$);
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'insert' AND aggregate_id = '5';
