-- ---------------------------------------------------------------- status
-- Everything here but health() and trouble() reads shared memory only. Members of pg_monitor may see all of it.

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

-- ---------------------------------------------------------------- health

CREATE FUNCTION outbox.trouble(
    OUT dead_letters bigint, OUT blocked_aggregates bigint, OUT retried bigint, OUT last_error text, OUT oldest_block timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) FILTER (WHERE d.state <> 'r'), count(DISTINCT d.agg_hash) FILTER (WHERE d.state IN ('b', 'p')),
           count(*) FILTER (WHERE d.state = 'r'), (array_agg(d.last_error ORDER BY d.failed_at DESC NULLS LAST))[1],
           min(d.failed_at) FILTER (WHERE d.state IN ('b', 'p'))
    FROM outbox.delivery d WHERE d.state <> 'd' AND d.state IN ('r', 'f', 'b', 'p');
END;
COMMENT ON FUNCTION outbox.trouble() IS
'numbers of dead letters, of aggregates that one holds up, and of events that wait for another attempt; the last error, and since when the first aggregate is held up';

CREATE FUNCTION outbox.lag_limit() RETURNS interval LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN current_setting('outbox.lag_warning') = '-1' THEN '5 min' ELSE current_setting('outbox.lag_warning')::interval END;
END;
COMMENT ON FUNCTION outbox.lag_limit() IS 'how old something may be before outbox.health() speaks of it: outbox.lag_warning, or 5 minutes if that is off';

-- One branch for each state that a relay can be in. severity: 1 warning, 2 critical.
CREATE FUNCTION outbox.relay_reasons(OUT severity integer, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    workers integer := current_setting('outbox.workers')::integer;
    s record;
    own integer := 0;
BEGIN
    FOR s IN SELECT * FROM outbox.status() t WHERE t.database = current_database() LOOP
        own := own + CASE WHEN s.relay < 8 THEN 1 ELSE 0 END;
        severity := 2;
        reason := CASE s.state WHEN 'not running' THEN 'relay_missing' WHEN 'starting' THEN 'relay_starting' WHEN 'lease expired' THEN 'relay_frozen'
            WHEN 'not connected' THEN 'not_connected' WHEN 'stream unavailable' THEN 'stream_trouble' WHEN 'broker unavailable' THEN 'circuit_open' END;
        detail := format('relay %s (process %s): %s since %s%s', s.relay, s.pid, s.state, s.since, ': ' || s.last_error);
        CASE s.state
            WHEN 'not running' THEN
                IF workers = 0 THEN
                    severity := 1;
                    detail := 'outbox.workers is 0, and no session outside of the server claims events';
                    remedy := 'Start the outside relay, or set outbox.workers to 1 and reload.';
                ELSE
                    detail := format('no relay runs in this database%s', ' since ' || s.since);
                    remedy := 'If it does not start within seconds, the server log says why; a free one of max_worker_processes is needed.';
                END IF;
            WHEN 'starting' THEN
                severity := 1;
                remedy := 'Wait. If it stays so, it reads much that is pending, or waits for a lock.';
            WHEN 'lease expired' THEN
                remedy := 'Another relay takes over. If the process stays, look what it waits for in pg_stat_activity, or end it by pg_terminate_backend().';
            WHEN 'not connected' THEN
                remedy := 'Check that NATS runs at outbox.nats_url and takes its login; the relay goes on trying.';
            WHEN 'stream unavailable' THEN
                remedy := 'Check that the stream outbox.stream exists, takes the subjects and has room, and that the user may publish to it.';
            WHEN 'broker unavailable' THEN
                remedy := 'Check JetStream: storage, a leader, the account''s limits. The relay sends one probe at a time.';
            ELSE CONTINUE;
        END CASE;
        RETURN NEXT;
    END LOOP;
    IF own > 0 AND own < workers THEN
        severity := 1; reason := 'relays_missing';
        detail := format('%s of %s relays are at work', own, workers);
        remedy := 'The server log says why; a free one of max_worker_processes is needed for each.';
        RETURN NEXT;
    END IF;
    RETURN QUERY
        SELECT 1, 'backlog_late', format('relay %s: an event waits since %s, longer than outbox.lag_warning', c.relay, c.late_since),
               'Look for another reason here; without one the relay is slower than the producers: see docs/performance.md.'
        FROM outbox.relay_counters() c WHERE c.pid IS NOT NULL AND c.late_since IS NOT NULL;
    -- the column waitstart tells a wait from a moment
    RETURN QUERY
        SELECT 2, 'relay_waits_for_lock',
               format('relay %s (process %s) waits since %s for a lock%s that process %s holds', s.relay, s.pid, l.waitstart,
                      ' on ' || l.relation::regclass, array_to_string(pg_blocking_pids(s.pid), ', ')),
               'End the transaction of that process, or the process: pg_terminate_backend().'
        FROM outbox.status() s JOIN pg_locks l ON l.pid = s.pid AND NOT l.granted
        WHERE s.database = current_database() AND l.waitstart < clock_timestamp() - interval '1 s';
END $$;
COMMENT ON FUNCTION outbox.relay_reasons() IS 'what is wrong with this database''s relays, for outbox.health()';

CREATE FUNCTION outbox.event_reasons(OUT severity integer, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT 1, 'paused', format('publishing of %s is paused since %s by %s%s',
                      coalesce(nullif(concat_ws(' and ', 'aggregate type "' || p.aggregate_type || '"', 'subject "' || p.subject || '"'), ''), 'everything'),
                      p.paused_at, p.paused_by, ': ' || p.reason),
               format('SELECT outbox.resume(%s);', concat_ws(', ', 'aggregate_type => ' || quote_literal(p.aggregate_type), 'subject => ' || quote_literal(p.subject)))
        FROM outbox.pauses p LIMIT 100;
    RETURN QUERY
        SELECT 2, 'aggregates_blocked', format('%s aggregates wait for a failed event, the first since %s', t.blocked_aggregates, t.oldest_block),
               'See outbox.blocked_aggregates; repair what refuses the event and call outbox.redrive(), or outbox.discard() it.'
        FROM outbox.trouble() t WHERE t.blocked_aggregates > 0
        UNION ALL
        SELECT 1, 'dead_letters', format('%s events are dead letters; the last error: %s', t.dead_letters, t.last_error),
               'See outbox.dead_letters; outbox.redrive() sends them again, outbox.discard() gives them up.'
        FROM outbox.trouble() t WHERE t.dead_letters > 0;
    RETURN QUERY
        SELECT 2, 'max_pending_reached', format('%s events are pending, and outbox.max_pending is %s: enqueueing fails', sum(s.backlog), m),
               'Repair what holds up publishing, or raise outbox.max_pending.'
        FROM outbox.status() s, (SELECT current_setting('outbox.max_pending')::integer AS m) x
        WHERE s.database = current_database() AND m > 0 GROUP BY m HAVING sum(s.backlog) >= m;
    RETURN QUERY
        SELECT 1, 'retention_held_up', format('events that were closed off at %s are still there: %s', r.closed_at, coalesce(v.reason, 'another session uses them')),
               'See outbox.ranges(); end what uses them, or deal with dead letters and blocked aggregates.'
        FROM (SELECT * FROM outbox.ring WHERE closed_at IS NOT NULL ORDER BY generation LIMIT 1) r, outbox.retention_cutoffs() c,
             outbox.range_survey(r.child, c.before, least(c.dead_before, c.before), 10000) v
        WHERE r.closed_at < c.before - current_setting('outbox.retention')::interval / 2 - interval '10 min';
END $$;
COMMENT ON FUNCTION outbox.event_reasons() IS 'which events are held up, for outbox.health()';

-- Transactions that have enqueued, and are open for long: their events' aggregates, and removal of old events, wait for them.
CREATE FUNCTION outbox.transaction_reasons(OUT severity integer, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH holder AS (
        SELECT DISTINCT l.pid, l.virtualtransaction FROM pg_locks l
        JOIN pg_class c ON c.oid = l.relation AND c.relnamespace = 'outbox'::regnamespace AND c.relname ~ '^log_[0-7]$'
        WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock'
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    )
    SELECT 1, 'transaction_open',
           format('process %s (%s, %s) has enqueued in a transaction that is open since %s', a.pid, a.usename, a.application_name, a.xact_start),
           format('Events of the same aggregates wait for it: end it, or SELECT pg_terminate_backend(%s);', a.pid)
    FROM holder h JOIN pg_stat_activity a ON a.pid = h.pid
    WHERE a.backend_type = 'client backend' AND a.xact_start < clock_timestamp() - outbox.lag_limit()
    UNION ALL
    SELECT 1, 'transaction_open', format('the prepared transaction "%s" of %s has enqueued and is open since %s', p.gid, p.owner, p.prepared),
           format('Events of the same aggregates wait for it: COMMIT PREPARED or ROLLBACK PREPARED %L;', p.gid)
    FROM holder h JOIN pg_locks x ON h.pid IS NULL AND x.pid IS NULL AND x.virtualtransaction = h.virtualtransaction AND x.locktype = 'transactionid'
    JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
    WHERE p.prepared < clock_timestamp() - outbox.lag_limit();
END;
COMMENT ON FUNCTION outbox.transaction_reasons() IS 'transactions with events that are open for longer than outbox.lag_limit(), for outbox.health()';

CREATE FUNCTION outbox.health(OUT verdict text, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    library text := outbox.library_version();
    installed text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'outbox');
BEGIN
    IF EXISTS (SELECT FROM outbox.status() s WHERE s.state = 'library not preloaded') THEN
        RETURN QUERY SELECT 'critical', 'library_not_preloaded', 'the library "outbox" is not preloaded: events are kept, and not published',
            'Add "outbox" to shared_preload_libraries and restart the server.';
        RETURN;
    END IF;
    IF pg_is_in_recovery() THEN
        RETURN QUERY SELECT 'warning', 'standby', 'this server is a standby: it publishes nothing', 'Ask the primary.';
        RETURN;
    END IF;
    RETURN QUERY
        SELECT CASE f.severity WHEN 2 THEN 'critical' ELSE 'warning' END, f.reason, f.detail, f.remedy
        FROM (SELECT 2 AS severity, 'wrong_version' AS reason, format('the extension has version %s, the loaded library %s', installed, library) AS detail,
                     'ALTER EXTENSION outbox UPDATE; and restart the server if it has still loaded the old library.' AS remedy
              WHERE library <> installed
              UNION ALL SELECT * FROM outbox.relay_reasons()
              UNION ALL SELECT * FROM outbox.event_reasons()
              UNION ALL SELECT * FROM outbox.transaction_reasons()) f
        ORDER BY f.severity DESC, f.reason, f.detail;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'ok', NULL::text, NULL::text, NULL::text;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.health() IS
'whether events of this database flow: one row "ok", or a row for each reason why not, or not for long ("critical": events are stuck, "warning": look at it), with a remedy; worst first, so that the first row''s verdict is the whole''s; docs/monitoring.md lists the reasons';

GRANT USAGE ON SCHEMA outbox TO pg_monitor;
GRANT EXECUTE ON FUNCTION outbox.status(), outbox.health(), outbox.trouble(), outbox.library_version(), outbox.relay_counters(), outbox.group_counters("char"),
    outbox.code_counters(), outbox.latency_figures(), outbox.latency_buckets(), outbox.minute_counts(), outbox.stats_reset_at() TO pg_monitor;
GRANT SELECT ON outbox.stat_relays, outbox.stat_streams, outbox.stat_aggregate_types, outbox.stat_errors, outbox.latency, outbox.throughput TO pg_monitor;
