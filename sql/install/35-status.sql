-- ---------------------------------------------------------------- status
-- Everything here reads shared memory only. Members of pg_monitor may see all of it. Health is in a part of its own.

CREATE FUNCTION outbox.library_version() RETURNS text LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_library_version';
COMMENT ON FUNCTION outbox.library_version() IS 'version of the library that this session has loaded, whatever the version of the extension';

CREATE FUNCTION outbox.relay_counters(
    OUT relay integer, OUT pid integer, OUT late_since timestamptz, OUT published bigint, OUT bytes bigint, OUT failed bigint,
    OUT dead_letters bigint, OUT settles bigint, OUT batches bigint, OUT connects bigint, OUT last_published timestamptz)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_relay_counters';
COMMENT ON FUNCTION outbox.relay_counters() IS 'what outbox.stat_relays shows';

CREATE FUNCTION outbox.group_counters(
    kind "char", OUT name text, OUT published bigint, OUT bytes bigint, OUT failed bigint, OUT dead_letters bigint,
    OUT last_published timestamptz)
RETURNS SETOF record LANGUAGE c VOLATILE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_group_counters';
COMMENT ON FUNCTION outbox.group_counters("char") IS 'what outbox.stat_streams (kind s) and outbox.stat_aggregate_types (kind t) show';

CREATE FUNCTION outbox.code_counters(
    OUT class text, OUT source text, OUT code integer, OUT count bigint, OUT last_at timestamptz, OUT last_error text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_code_counters';
COMMENT ON FUNCTION outbox.code_counters() IS 'what outbox.stat_errors shows';

CREATE FUNCTION outbox.latency_figures(
    OUT stage text, OUT samples bigint, OUT mean_ms double precision, OUT p50_ms double precision, OUT p95_ms double precision,
    OUT p99_ms double precision, OUT max_ms double precision)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_latency_figures';
COMMENT ON FUNCTION outbox.latency_figures() IS 'what outbox.latency shows';

CREATE FUNCTION outbox.latency_buckets(
    OUT stage text, OUT le double precision[], OUT bucket bigint[], OUT sum double precision, OUT count bigint)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_latency_buckets';
COMMENT ON FUNCTION outbox.latency_buckets() IS
'latencies as cumulative histograms for metrics: bucket[i] samples took less than le[i] seconds; sum in seconds';

CREATE FUNCTION outbox.minute_counts(OUT minute timestamptz, OUT enqueued bigint, OUT published bigint, OUT failed bigint)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_minute_counts';
COMMENT ON FUNCTION outbox.minute_counts() IS 'what outbox.throughput shows';

CREATE FUNCTION outbox.stats_reset_at() RETURNS timestamptz LANGUAGE c VOLATILE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_stats_reset_at';
COMMENT ON FUNCTION outbox.stats_reset_at() IS 'when outbox.reset_stats() was called last in this database; NULL: not since the server started';

CREATE FUNCTION outbox.reset_stats() RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_reset_stats';
COMMENT ON FUNCTION outbox.reset_stats() IS
'sets the counters, latencies and throughput of this database to zero; what outbox.status() and outbox.error_counts() show goes on';

CREATE VIEW outbox.stat_relays AS
SELECT c.relay, c.pid, s.state, c.published, c.bytes, c.failed, c.dead_letters, c.settles, c.batches, c.connects, c.last_published,
       coalesce(outbox.stats_reset_at(), pg_catalog.pg_postmaster_start_time()) AS stats_reset
FROM outbox.relay_counters() c
LEFT JOIN outbox.status() s ON s.database = pg_catalog.current_database() AND s.relay = c.relay;
COMMENT ON VIEW outbox.stat_relays IS
'this database''s relays since stats_reset: events published, bytes of their payloads, failed attempts, dead letters, transactions that recorded outcomes (settles), atomic batches, connections made';

CREATE VIEW outbox.stat_streams AS
SELECT g.name AS stream, g.published, g.bytes, g.failed, g.dead_letters, g.last_published,
       coalesce(outbox.stats_reset_at(), pg_catalog.pg_postmaster_start_time()) AS stats_reset
FROM outbox.group_counters('s') g;
COMMENT ON VIEW outbox.stat_streams IS
'the same per stream; what relays outside the server publish belongs to none';

CREATE VIEW outbox.stat_aggregate_types AS
SELECT g.name AS aggregate_type, g.published, g.bytes, g.failed, g.dead_letters, g.last_published,
       coalesce(outbox.stats_reset_at(), pg_catalog.pg_postmaster_start_time()) AS stats_reset
FROM outbox.group_counters('t') g;
COMMENT ON VIEW outbox.stat_aggregate_types IS
'the same per aggregate type: the first 126 that are met, counting streams, and "(others)"; names are cut to 127 bytes';

CREATE VIEW outbox.stat_errors AS
SELECT c.class, c.source, c.code, c.count, c.last_at, c.last_error,
       coalesce(outbox.stats_reset_at(), pg_catalog.pg_postmaster_start_time()) AS stats_reset
FROM outbox.code_counters() c;
COMMENT ON VIEW outbox.stat_errors IS
'failed attempts since stats_reset by class (see docs/delivery.md), who said so, and code (JetStream''s err_code, or 0), with the last one''s time and text';

CREATE VIEW outbox.latency AS SELECT * FROM outbox.latency_figures();
COMMENT ON VIEW outbox.latency IS
'milliseconds since the last reset: from a transaction''s first enqueue to its commit, from there to the acknowledgement (of a sample of the events), from there to its record in the ledger; percentiles are up to an eighth too high';

CREATE VIEW outbox.throughput AS SELECT * FROM outbox.minute_counts();
COMMENT ON VIEW outbox.throughput IS
'events committed (without prepared transactions) and published, and attempts that failed, in each minute of the last six hours; the last row''s minute is not over';

GRANT USAGE ON SCHEMA outbox TO pg_monitor;
GRANT EXECUTE ON FUNCTION outbox.status(), outbox.library_version(), outbox.relay_counters(), outbox.group_counters("char"), outbox.code_counters(),
    outbox.latency_figures(), outbox.latency_buckets(), outbox.minute_counts(), outbox.stats_reset_at() TO pg_monitor;
GRANT SELECT ON outbox.stat_relays, outbox.stat_streams, outbox.stat_aggregate_types, outbox.stat_errors, outbox.latency, outbox.throughput TO pg_monitor;
