-- ---------------------------------------------------------------- health
-- health_reasons says what each reason means; the functions below find those that are true now. This part comes late,
-- because it looks at what all others have made.

CREATE VIEW outbox.health_reasons AS
SELECT r.reason, r.verdict, r.meaning, r.remedy
FROM (VALUES
    ('library_not_preloaded', 'critical', 'events are kept, and not published',
     'Add "outbox" to shared_preload_libraries and restart the server.'),
    ('wrong_version', 'critical', 'library and extension are of different versions',
     'ALTER EXTENSION outbox UPDATE; and restart the server if it has still loaded the old library.'),
    ('standby', 'warning', 'this server publishes nothing', 'Ask the primary.'),
    ('tables_locked', 'critical', 'a lock on a table of outbox keeps even health() out',
     'See pg_locks and pg_blocking_pids(); end the transaction that holds it.'),
    ('relay_missing', 'critical', 'no relay in this database',
     'If it does not start within seconds, the server log says why; a free one of max_worker_processes is needed.'),
    ('relays_off', 'warning', 'outbox.workers is 0, and no session outside of the server claims events',
     'Start the outside relay, or set outbox.workers to 1 and reload.'),
    ('relays_missing', 'warning', 'fewer relays than outbox.workers',
     'The server log says why; a free one of max_worker_processes is needed for each.'),
    ('relay_starting', 'warning', 'a relay loads', 'Wait. If it stays so, it reads much that is pending, or waits for a lock.'),
    ('relay_frozen', 'critical', 'a relay stands still, and its lease has expired',
     'Another relay takes over. If the process stays, look what it waits for in pg_stat_activity, or end it by pg_terminate_backend().'),
    ('relay_waits_for_lock', 'critical', 'a relay waits for a lock on a table of outbox',
     'End the transaction of that process, or the process: pg_terminate_backend().'),
    ('not_connected', 'critical', 'no connection to NATS',
     'Check that NATS runs at outbox.nats_url and takes its login; the relay goes on trying.'),
    ('stream_trouble', 'critical', 'connected, but the stream can''t be used',
     'Check that the stream outbox.stream exists, takes the subjects and has room, and that the user may publish to it.'),
    ('circuit_open', 'critical', 'nothing is acknowledged: one probe at a time',
     'Check JetStream: storage, a leader, the account''s limits.'),
    ('backlog_late', 'warning', 'an event waits for longer than outbox.lag_warning',
     'Look for another reason here; without one the relay is slower than the producers: see docs/performance.md.'),
    ('paused', 'warning', 'publishing is paused by outbox.pause()', 'SELECT outbox.resume();'),
    ('aggregates_blocked', 'critical', 'aggregates wait for a failed event',
     'See outbox.blocked_aggregates; repair what refuses the event and call outbox.redrive(), or outbox.discard() it.'),
    ('events_retried', 'warning', 'events have failed and wait for another attempt, and their aggregates for them',
     'See outbox.blocked_aggregates. If the error lasts, see to the stream or the permission that it names.'),
    ('dead_letters', 'warning', 'events have failed for good',
     'See outbox.dead_letters; outbox.redrive() sends them again, outbox.discard() gives them up.'),
    ('max_pending_reached', 'critical', 'enqueueing fails: outbox.max_pending events are pending',
     'Repair what holds up publishing, or raise outbox.max_pending.'),
    ('enqueue_refused', 'critical', 'enqueueing fails: a table of the log has triggers or row-level security', 'Remove them.'),
    ('transaction_open', 'warning', 'a transaction has enqueued and is open for longer than outbox.lag_warning, perhaps prepared',
     'Events of the same aggregates wait for it: end it.'),
    ('snapshot_held', 'warning', 'a snapshot is held for longer than 12 times outbox.lag_warning, an hour by default: outbox''s tables grow',
     'End that transaction.'),
    ('retention_held_up', 'warning', 'old events can''t be removed',
     'See outbox.ranges(); end what uses them, or deal with dead letters and blocked aggregates.'),
    ('archive_failing', 'warning', 'old events can''t be archived, and so not be removed',
     'Repair outbox.archive_directory or outbox.archive_url, or what they name; it is tried again by itself. SELECT outbox.purge(); tries now.'),
    ('replay_stopped', 'warning', 'a replay has stopped, or nothing works on it',
     'The server log says why; a free one of max_worker_processes is needed. outbox.replay_cancel() gives it up.'),
    ('capture_broken', 'critical', 'changes of a captured table make no events, or wrong ones', 'See outbox.lint().'),
    ('guard_broken', 'warning', 'changes of a guarded table without an event aren''t noticed', 'See outbox.lint().'),
    ('adoption_disabled', 'critical', 'rows of an adopted table aren''t forwarded', 'ALTER TABLE ... ENABLE TRIGGER outbox_adopted;'),
    ('subscription_stopped', 'critical', 'a subscription''s messages aren''t handled: no process, or no connection',
     'If it does not come back, the server log says why; a free one of max_worker_processes is needed.'),
    ('subscription_paused', 'warning', 'a subscription is paused', 'SELECT outbox.resume_subscription(...);'),
    ('subscription_failing', 'warning', 'a handler fails, and its messages wait for another attempt',
     'Repair the handler, or what it needs; it is called again by itself.'),
    ('messages_parked', 'warning', 'a subscription has messages that its handler failed on too often',
     'See outbox.parked_messages; outbox.retry_parked() handles them again, outbox.discard_parked() gives them up.')
) r(reason, verdict, meaning, remedy);
COMMENT ON VIEW outbox.health_reasons IS
'the reasons that outbox.health() may give: verdict (critical: events are stuck or lost, warning: look at it), meaning and remedy';

CREATE FUNCTION outbox.trouble(
    OUT dead_letters bigint, OUT blocked_aggregates bigint, OUT retried bigint, OUT last_error text, OUT oldest_block timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) FILTER (WHERE d.state <> 'r'), count(DISTINCT d.agg_hash) FILTER (WHERE d.state IN ('b', 'p')),
           count(*) FILTER (WHERE d.state = 'r'),
           (SELECT e.last_error FROM outbox.delivery e WHERE e.state <> 'd' AND e.state IN ('r', 'f', 'b', 'p') ORDER BY e.failed_at DESC NULLS LAST LIMIT 1),
           min(d.failed_at) FILTER (WHERE d.state IN ('b', 'p'))
    FROM outbox.delivery d WHERE d.state <> 'd' AND d.state IN ('r', 'f', 'b', 'p');
END;
COMMENT ON FUNCTION outbox.trouble() IS
'numbers of dead letters, of aggregates that one holds up, and of events that wait for another attempt; the last error, and since when the first aggregate is held up; reads them all';

CREATE FUNCTION outbox.lag_limit() RETURNS interval LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN current_setting('outbox.lag_warning') = '-1' THEN '5 min' ELSE current_setting('outbox.lag_warning')::interval END;
END;
COMMENT ON FUNCTION outbox.lag_limit() IS 'how old something may be before outbox.health() speaks of it: outbox.lag_warning, or 5 minutes if that is off';

-- What each of these functions finds: a reason, what is so in particular, and a remedy if it is another than the reason's.
CREATE FUNCTION outbox.relay_findings(OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    workers integer := current_setting('outbox.workers')::integer;
BEGIN
    RETURN QUERY
        SELECT CASE s.state WHEN 'not running' THEN CASE workers WHEN 0 THEN 'relays_off' ELSE 'relay_missing' END
                   WHEN 'starting' THEN 'relay_starting' WHEN 'lease expired' THEN 'relay_frozen' WHEN 'not connected' THEN 'not_connected'
                   WHEN 'stream unavailable' THEN 'stream_trouble' WHEN 'broker unavailable' THEN 'circuit_open' END,
               CASE s.state WHEN 'not running' THEN format('no relay runs in this database%s; pending: %s', ' since ' || s.since, coalesce(s.backlog, 0))
                   ELSE format('relay %s (process %s): %s since %s%s', s.relay, s.pid, s.state, s.since, ': ' || s.last_error) END,
               NULL::text
        FROM outbox.status() s WHERE s.database = current_database() AND s.state NOT IN ('active', 'paused')
        UNION ALL
        SELECT 'relays_missing', format('%s of %s relays are at work', count(*), workers), NULL
        FROM outbox.status() s WHERE s.database = current_database() AND s.relay < 8 HAVING count(*) BETWEEN 1 AND workers - 1
        UNION ALL
        SELECT 'backlog_late', format('relay %s: an event waits since %s', c.relay, c.late_since), NULL
        FROM outbox.relay_counters() c WHERE c.pid IS NOT NULL AND c.late_since IS NOT NULL
        UNION ALL
        -- waitstart tells a wait from a moment
        SELECT 'relay_waits_for_lock', format('relay %s (process %s) waits since %s for a lock%s that process %s holds', s.relay, s.pid, l.waitstart,
                                              ' on ' || l.relation::regclass, array_to_string(pg_blocking_pids(s.pid), ', ')), NULL
        FROM outbox.status() s JOIN pg_locks l ON l.pid = s.pid AND NOT l.granted
        WHERE s.database = current_database() AND l.waitstart < clock_timestamp() - interval '1 s';
END $$;
COMMENT ON FUNCTION outbox.relay_findings() IS 'what is wrong with this database''s relays, for outbox.health()';

CREATE FUNCTION outbox.event_findings(OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT 'paused', format('publishing of %s is paused since %s by %s%s',
                      coalesce(nullif(concat_ws(' and ', 'aggregate type "' || p.aggregate_type || '"', 'subject "' || p.subject || '"'), ''), 'everything'),
                      p.paused_at, p.paused_by, ': ' || p.reason),
               format('SELECT outbox.resume(%s);', concat_ws(', ', 'aggregate_type => ' || quote_literal(p.aggregate_type), 'subject => ' || quote_literal(p.subject)))
        FROM (SELECT * FROM outbox.pauses LIMIT 100) p
        UNION ALL
        SELECT f.reason, f.detail, NULL
        FROM outbox.trouble() t, LATERAL (VALUES
            ('aggregates_blocked', t.blocked_aggregates, format('%s aggregates wait for a failed event, the first since %s', t.blocked_aggregates, t.oldest_block)),
            ('events_retried', t.retried, format('%s events wait for another attempt; the last error: %s', t.retried,
                (SELECT d.last_error FROM outbox.delivery d WHERE d.state = 'r' ORDER BY d.next_attempt_at DESC LIMIT 1))),
            ('dead_letters', t.dead_letters, format('%s events are dead letters; the last error: %s', t.dead_letters, t.last_error))) f(reason, number, detail)
        WHERE f.number > 0
        UNION ALL
        SELECT 'max_pending_reached', format('%s events are pending, and outbox.max_pending is %s', sum(s.backlog), m), NULL
        FROM outbox.status() s, (SELECT current_setting('outbox.max_pending')::integer AS m) x
        WHERE s.database = current_database() AND m > 0 GROUP BY m HAVING sum(s.backlog) >= m
        UNION ALL
        SELECT 'retention_held_up', format('events that were closed off at %s are still there: %s', r.closed_at, coalesce(v.reason, 'another session uses them')), NULL
        FROM (SELECT * FROM outbox.ring WHERE closed_at IS NOT NULL ORDER BY generation LIMIT 1) r, outbox.retention_cutoffs() c,
             outbox.range_survey(r.child, c.before, least(c.dead_before, c.before), 10000) v
        WHERE r.closed_at < c.before - current_setting('outbox.retention')::interval / 2 - interval '10 min'
        UNION ALL
        SELECT 'archive_failing', format('range %s, %s failures since %s: %s', t.range, t.failures, t.since, t.error), NULL
        FROM outbox.archive_troubles t JOIN outbox.ring r ON r.generation = t.range
        UNION ALL
        SELECT 'replay_stopped', format('replay %s is %s behind position %s, heard of last at %s%s', j.batch_id, j.state, j.position_reached,
                                        coalesce(j.updated_at, j.requested_at), ': ' || j.last_error),
               CASE j.state WHEN 'stopped' THEN format('Repair the cause, then SELECT outbox.replay_resume(%1$L); or give it up: SELECT outbox.replay_cancel(%1$L);', j.batch_id) END
        FROM outbox.replay_job j
        WHERE j.state = 'stopped' OR j.state IN ('queued', 'running') AND (j.last_error IS NOT NULL OR greatest(j.requested_at, j.updated_at) < clock_timestamp() - interval '1 min');
END $$;
COMMENT ON FUNCTION outbox.event_findings() IS 'what holds up events, for outbox.health()';

CREATE FUNCTION outbox.rule_findings(OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT CASE WHEN l.object ~ '^outbox\.log_' THEN 'enqueue_refused' WHEN l.problem ~ '^triggers of guard|, which guard ' THEN 'guard_broken' ELSE 'capture_broken' END,
               l.object || ': ' || l.problem, l.remedy
        FROM outbox.lint_rules() l WHERE l.severity = 'error'
        UNION ALL
        SELECT 'adoption_disabled', format('the trigger of table %s is disabled, so its rows aren''t forwarded', a."table"),
               format('ALTER TABLE %s ENABLE TRIGGER outbox_adopted; rows that came meanwhile: outbox.unadopt(), then outbox.adopt() with them as backlog.', a."table")
        FROM outbox.adoptions a WHERE NOT a.enabled
        UNION ALL
        SELECT CASE s.state WHEN 'paused' THEN 'subscription_paused' ELSE 'subscription_stopped' END,
               format('subscription %s/%s is %s%s%s', s.stream, s.durable, s.state, ' since ' || s.since, ': ' || s.last_error),
               CASE s.state WHEN 'paused' THEN format('SELECT outbox.resume_subscription(%L, %L);', s.stream, s.durable)
                   WHEN 'not connected' THEN 'Check NATS, the stream, and that the user may make consumers of it; it goes on trying.' END
        FROM outbox.subscriptions s WHERE s.state <> 'active'
        UNION ALL
        SELECT 'subscription_failing', format('subscription %s/%s: %s messages wait for another attempt; the last error: %s', s.stream, s.durable, count(*),
                                              (array_agg(f.last_error ORDER BY f.failed_at DESC))[1]), NULL
        FROM outbox.subscription_failure f JOIN outbox.subscription s ON s.id = f.subscription GROUP BY s.stream, s.durable
        UNION ALL
        SELECT 'messages_parked', format('subscription %s/%s: %s messages are parked', s.stream, s.durable, count(*)), NULL
        FROM outbox.parked_message p JOIN outbox.subscription s ON s.id = p.subscription GROUP BY s.stream, s.durable;
END $$;
COMMENT ON FUNCTION outbox.rule_findings() IS 'captures, guards, adoptions and subscriptions that don''t work, for outbox.health()';

-- Transactions that are open for long, prepared ones included.
CREATE FUNCTION outbox.transaction_findings(OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz := clock_timestamp();
    lag interval := outbox.lag_limit();
BEGIN
    RETURN QUERY
        WITH writer AS (
            SELECT l.pid, l.virtualtransaction FROM pg_locks l
            JOIN pg_class c ON c.oid = l.relation AND c.relnamespace = 'outbox'::regnamespace AND c.relname ~ '^log_[0-7]$'
            WHERE l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock' AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        ), open AS (
            SELECT format('process %s (%s, %s)', a.pid, a.usename, a.application_name) AS who, a.xact_start AS since, coalesce(a.backend_xmin, a.backend_xid) IS NOT NULL AS holds,
                   format('SELECT pg_terminate_backend(%s);', a.pid) AS remedy, EXISTS (SELECT FROM writer w WHERE w.pid = a.pid) AS writes
            FROM pg_stat_activity a
            WHERE a.datname = current_database() AND a.backend_type = 'client backend' AND a.pid <> pg_backend_pid() AND a.xact_start < moment - lag
            UNION ALL
            SELECT format('the prepared transaction "%s" of %s', p.gid, p.owner), p.prepared, true, format('COMMIT PREPARED %L; or ROLLBACK PREPARED %1$L;', p.gid),
                   EXISTS (SELECT FROM writer w JOIN pg_locks x ON x.virtualtransaction = w.virtualtransaction AND x.pid IS NULL AND x.locktype = 'transactionid'
                           WHERE w.pid IS NULL AND x.transactionid = p.transaction)
            FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < moment - lag
        )
        SELECT 'transaction_open', format('%s has enqueued in a transaction that is open since %s', o.who, o.since), 'Events of the same aggregates wait for it: end it, or ' || o.remedy
        FROM open o WHERE o.writes
        UNION ALL
        SELECT 'snapshot_held', format('%s holds a snapshot or an id since %s', o.who, o.since), 'End it, or ' || o.remedy
        FROM open o WHERE o.holds AND o.since < moment - 12 * lag;
END $$;
COMMENT ON FUNCTION outbox.transaction_findings() IS 'transactions that are open for longer than outbox.lag_limit(), for outbox.health()';

-- Waits for no lock for longer than a second.
CREATE FUNCTION outbox.health(OUT verdict text, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' AS $$
#variable_conflict use_column
DECLARE
    library text := outbox.library_version();
    installed text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'outbox');
    alone text := CASE WHEN EXISTS (SELECT FROM outbox.status() s WHERE s.state = 'library not preloaded') THEN 'library_not_preloaded'
                      WHEN pg_is_in_recovery() THEN 'standby' END;
BEGIN
    IF alone IS NOT NULL THEN
        RETURN QUERY SELECT r.verdict, r.reason, r.meaning, r.remedy FROM outbox.health_reasons r WHERE r.reason = alone;
        RETURN;
    END IF;
    -- The sort reads all before it gives any: none is left behind by an error.
    RETURN QUERY
        SELECT r.verdict, r.reason, coalesce(f.detail, r.meaning), coalesce(f.remedy, r.remedy)
        FROM (SELECT 'wrong_version', format('the extension has version %s, the loaded library %s', installed, library), NULL WHERE library <> installed
              UNION ALL SELECT * FROM outbox.relay_findings()
              UNION ALL SELECT * FROM outbox.event_findings()
              UNION ALL SELECT * FROM outbox.rule_findings()
              UNION ALL SELECT * FROM outbox.transaction_findings()) f(reason, detail, remedy)
        JOIN outbox.health_reasons r ON r.reason = f.reason
        ORDER BY r.verdict, r.reason, f.detail;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'ok', NULL::text, NULL::text, NULL::text;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RETURN QUERY
        SELECT r.verdict, r.reason, coalesce(f.detail, r.meaning), coalesce(f.remedy, r.remedy)
        FROM (SELECT 'tables_locked', NULL, NULL UNION ALL SELECT * FROM outbox.relay_findings()) f(reason, detail, remedy)
        JOIN outbox.health_reasons r ON r.reason = f.reason
        ORDER BY r.verdict, r.reason, f.detail;
END $$;
COMMENT ON FUNCTION outbox.health() IS
'whether events of this database flow: one row "ok", or a row for each reason why not, or not for long ("critical": events are stuck or lost, "warning": look at it), with a remedy; worst first, so that the first row''s verdict is the whole''s; outbox.health_reasons lists the reasons';

GRANT EXECUTE ON FUNCTION outbox.health(), outbox.trouble(), outbox.subscription_states() TO pg_monitor;
GRANT SELECT ON outbox.health_reasons, outbox.subscriptions TO pg_monitor;
