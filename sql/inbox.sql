-- The inbox: an event is new once for each consumer; versions; retention.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT outbox.inbox_forget(consumer) >= 0 AS ok FROM outbox.inbox_consumers;

-- once per consumer; a uuid is the same however it is written
SELECT outbox.inbox_accept('a', '0190f5fe-0000-7000-8000-00000000000a');
SELECT outbox.inbox_accept('a', '0190f5fe-0000-7000-8000-00000000000a');
SELECT outbox.inbox_accept('a', '0190F5FE-0000-7000-8000-00000000000A');
SELECT outbox.inbox_accept('a', '{0190f5fe000070008000-00000000000a}');
SELECT outbox.inbox_accept('b', '0190f5fe-0000-7000-8000-00000000000a');
SELECT outbox.inbox_accept('A', '0190f5fe-0000-7000-8000-00000000000a');
-- within a transaction, and what is rolled back never was
BEGIN;
SELECT outbox.inbox_accept('a', md5('1')::uuid);
SELECT outbox.inbox_accept('a', md5('1')::uuid);
SAVEPOINT s;
SELECT outbox.inbox_accept('a', md5('2')::uuid);
ROLLBACK TO s;
SELECT outbox.inbox_accept('a', md5('2')::uuid);
ROLLBACK;
SELECT outbox.inbox_accept('a', md5('1')::uuid);
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outbox.inbox_accept('a', md5('1')::uuid), outbox.inbox_accept('a', md5('3')::uuid);
SELECT outbox.inbox_accept('a', md5('3')::uuid);
COMMIT;

-- batches: an answer for each, in the order given
SELECT outbox.inbox_accept_many('a', ARRAY[md5('1'), md5('5'), md5('4'), md5('5'), md5('3')]::uuid[]);
SELECT outbox.inbox_accept_many('a', ARRAY[md5('4'), md5('6')]::uuid[]);
SELECT outbox.inbox_accept_many('a', '{}');
SELECT count(*), count(*) FILTER (WHERE a) FROM unnest(outbox.inbox_accept_many('many', ARRAY(SELECT md5((i % 5000)::text)::uuid FROM generate_series(1, 10000) i))) a;

-- an answer to nothing would be taken for "duplicate"
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept(NULL, gen_random_uuid())$$);
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept('a', NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept('', gen_random_uuid())$$);
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept(repeat('x', 256), gen_random_uuid())$$);
SELECT outbox.inbox_accept(repeat('x', 255), gen_random_uuid());
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept_many('a', ARRAY[gen_random_uuid(), NULL])$$);
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept_many('a', NULL)$$);
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept('a', 'no uuid')$$);
BEGIN READ ONLY;
SELECT left(pg_temp.attempt($$SELECT outbox.inbox_accept('a', gen_random_uuid())$$), 5) AS state;
ROLLBACK;

-- versions: older ones are stale, the same event is a duplicate
CREATE FUNCTION pg_temp.v(event text, version bigint, dense boolean DEFAULT false) RETURNS text LANGUAGE sql AS
$$ SELECT outbox.inbox_accept_version('v', md5(event)::uuid, 'order', 'o' || dense::text, version, dense) $$;
SELECT pg_temp.v('v5', 5), pg_temp.v('v5', 5), pg_temp.v('v9', 9), pg_temp.v('v7', 7), pg_temp.v('v5', 5), pg_temp.v('v7', 7);
-- two events may have one version
SELECT pg_temp.v('v9 too', 9), pg_temp.v('v9 too', 9), pg_temp.v('v9', 9);
-- accepted without a version before
SELECT outbox.inbox_accept('v', md5('v10')::uuid), pg_temp.v('v10', 10), pg_temp.v('v11', 11);
-- dense: gaps, of which nothing is recorded
SELECT pg_temp.v('d2', 2, true), pg_temp.v('d1', 1, true), pg_temp.v('d2', 2, true), pg_temp.v('d4', 4, true), pg_temp.v('d3', 3, true), pg_temp.v('d4', 4, true);
SELECT pg_temp.v('d4', 4, true), pg_temp.v('d4 too', 4, true), pg_temp.v('d1', 1, true), pg_temp.v('d1 again', 1, true);
SELECT outbox.inbox_set_version('v', 'order', 'otrue', 9);
SELECT pg_temp.v('d10', 10, true), pg_temp.v('d9', 9, true);
SELECT outbox.inbox_set_version('v', 'order', 'otrue', NULL);
SELECT pg_temp.v('d0', 0, true), pg_temp.v('d1 new', 1, true);
BEGIN;
SELECT pg_temp.v('d2 new', 2, true), pg_temp.v('d3 new', 3, true);
ROLLBACK;
SELECT pg_temp.v('d3 new', 3, true), pg_temp.v('d2 new', 2, true);
SELECT aggregate_type, aggregate_id, version FROM outbox.inbox_version WHERE consumer = 'v' ORDER BY 2;
SELECT pg_temp.attempt($$SELECT outbox.inbox_accept_version('v', gen_random_uuid(), 'a', 'a', NULL)$$);

-- the last event stays known when the inbox has forgotten it
DELETE FROM outbox.inbox WHERE consumer = 'v';
SELECT pg_temp.v('v11', 11), pg_temp.v('v9', 9), pg_temp.v('v12', 12);

-- retention, and what it must cover
SET outbox.retention = '7d';
SELECT outbox.inbox_configure('a', retention => '10 days');
SELECT outbox.inbox_configure('a', stream_age => '14 days', retry_cap => '12 days');
SELECT outbox.inbox_configure('a', retention => '1 year');
SELECT outbox.inbox_configure('a', replay_range => '2 years');
SELECT outbox.inbox_configure('b', retention => '3 days');
SELECT outbox.inbox_configure('b', replay_range => '1 day');
SELECT consumer, retention, stream_age, retry_cap, replay_range, warning FROM outbox.inbox_consumers WHERE length(consumer) < 10 ORDER BY 1;
SELECT pg_temp.attempt($$SELECT outbox.inbox_configure('a', retention => '0')$$);
SELECT pg_temp.attempt($$SELECT outbox.inbox_configure('a', retention => '1 day', stream_age => '-1 day')$$);
RESET outbox.retention;

-- a sweep removes what is old for its consumer, page by page; in a transaction, which the server's own can't see
SELECT outbox.inbox_configure('young', retention => '1 hour', replay_range => '1 minute');
SELECT outbox.inbox_accept('young', md5('1')::uuid), outbox.inbox_accept('young', md5('2')::uuid);
BEGIN;
UPDATE outbox.inbox SET accepted_at = accepted_at - interval '31 days' WHERE consumer IN ('many', 'a');
UPDATE outbox.inbox SET accepted_at = accepted_at - interval '2 hours' WHERE consumer = 'young' AND event_id = md5('1')::uuid;
SELECT consumer, count(*) FROM outbox.inbox WHERE length(consumer) < 10 GROUP BY 1 ORDER BY 1;
SELECT pages > 20 AS pages, again_after FROM outbox.inbox_sweep_plan();
SELECT sum(outbox.inbox_sweep(page, 8)) FROM generate_series(0, 15, 8) page;
SELECT sum(outbox.inbox_sweep(page, 8)) > 4000 AS the_rest FROM generate_series(16, 800, 8) page;
SELECT sum(outbox.inbox_sweep(page, 8)) FROM generate_series(0, 800, 8) page;
SELECT consumer, count(*) FROM outbox.inbox WHERE length(consumer) < 10 GROUP BY 1 ORDER BY 1;
COMMIT;
SELECT outbox.inbox_accept('young', md5('1')::uuid), outbox.inbox_accept('young', md5('2')::uuid);

-- forgetting a consumer
SELECT outbox.inbox_forget('b'), outbox.inbox_forget('b');
SELECT outbox.inbox_accept('b', '0190f5fe-0000-7000-8000-00000000000a');

-- who may
SET client_min_messages = error;
DROP ROLE IF EXISTS regress_outbox_consumer;
RESET client_min_messages;
CREATE ROLE regress_outbox_consumer;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_consumer;
SET ROLE regress_outbox_consumer;
SELECT left(pg_temp.attempt($$SELECT outbox.inbox_accept('r', gen_random_uuid())$$), 5) AS state;
RESET ROLE;
SELECT outbox.grant_consumer('regress_outbox_consumer'), outbox.grant_monitor('regress_outbox_consumer');
SET ROLE regress_outbox_consumer;
SELECT outbox.inbox_accept('r', md5('1')::uuid), outbox.inbox_accept_many('r', ARRAY[md5('1')::uuid]), outbox.inbox_accept_version('r', md5('2')::uuid, 'a', '1', 1);
SELECT count(*) > 0 AS ok FROM outbox.inbox_consumers;
SELECT left(pg_temp.attempt($$DELETE FROM outbox.inbox$$), 5) AS state;
RESET ROLE;
DROP OWNED BY regress_outbox_consumer;
DROP ROLE regress_outbox_consumer;

SELECT outbox.inbox_forget(consumer) >= 0 AS ok FROM outbox.inbox_consumers;
SELECT count(*) FROM outbox.inbox;
