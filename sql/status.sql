-- The views of counters and latencies: shape, reset, and who may read them. What they count is in t/.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT outbox.library_version() = extversion AS same_version FROM pg_extension WHERE extname = 'outbox';
SELECT outbox.reset_stats();
SELECT outbox.stats_reset_at() > now() - interval '1 min' AS just_reset;
SELECT outbox.enqueue('status', '1', 'x', '{}') IS NOT NULL AS enqueued;
SELECT stage, samples, p50_ms <= p95_ms AND p95_ms <= p99_ms AND p99_ms <= max_ms AND mean_ms <= max_ms AS consistent
FROM outbox.latency WHERE stage = 'enqueue to commit';
SELECT stage, cardinality(le), cardinality(bucket), bucket[23] <= count AS cumulative, le[1], le[23] FROM outbox.latency_buckets();
SELECT count(*), sum(enqueued), max(minute) = date_trunc('minute', clock_timestamp()) OR max(minute) > clock_timestamp() - interval '2 min' AS up_to_now FROM outbox.throughput;
-- rolled back: not counted
BEGIN;
SELECT outbox.enqueue('status', '2', 'x', '{}') IS NOT NULL AS enqueued;
ROLLBACK;
SELECT sum(enqueued) FROM outbox.throughput;
SELECT samples FROM outbox.latency WHERE stage = 'enqueue to commit';
SELECT outbox.reset_stats();
SELECT samples, p50_ms, max_ms FROM outbox.latency WHERE stage = 'enqueue to commit';
SELECT sum(enqueued) FROM outbox.throughput;

-- a monitor sees all, and resets nothing
SET client_min_messages = error;
DROP ROLE IF EXISTS regress_outbox_watcher;
RESET client_min_messages;
CREATE ROLE regress_outbox_watcher;
GRANT pg_monitor TO regress_outbox_watcher;
SET ROLE regress_outbox_watcher;
SELECT count(*) > 0 AS rows FROM outbox.health();
SELECT count(*) > 0 AS rows FROM outbox.status();
SELECT dead_letters FROM outbox.trouble() WHERE dead_letters < 0;
SELECT count(*) > 30 AS readable FROM outbox.health_reasons;
SELECT count(*) >= 0 AS readable FROM outbox.stat_relays;
SELECT count(*) >= 0 AS readable FROM outbox.stat_streams;
SELECT count(*) >= 0 AS readable FROM outbox.stat_aggregate_types;
SELECT count(*) >= 0 AS readable FROM outbox.stat_errors;
SELECT outbox.reset_stats();
RESET ROLE;
DROP ROLE regress_outbox_watcher;
