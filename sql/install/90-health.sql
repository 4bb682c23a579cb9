-- ---------------------------------------------------------------- health
-- health_reasons says what each reason means; the functions below find those that are true now. This part comes late,
-- because it looks at what all others have made.

CREATE VIEW outbox.health_reasons AS
SELECT r.reason, r.verdict, r.meaning, r.remedy, r.section
FROM (VALUES
    ('library_not_preloaded', 'critical', 'Library not preloaded', 'events are kept, and not published',
     'Add "outbox" to shared_preload_libraries and restart the server.'),
    ('wrong_version', 'critical', 'Wrong version', 'library and extension are of different versions',
     'ALTER EXTENSION outbox UPDATE; and restart the server if it has still loaded the old library.'),
    ('standby', 'warning', 'Standby', 'this server publishes nothing', 'Ask the primary.'),
    ('tables_locked', 'critical', 'Tables locked', 'a lock on a table of outbox keeps even health() out',
     'See pg_locks and pg_blocking_pids(); end the transaction that holds it.'),
    ('not_armed', 'warning', 'Not armed', 'this database is a copy, or was disarmed: it publishes nothing', 'SELECT outbox.arm(); once the original publishes no more.'),
    ('relay_missing', 'critical', 'No background worker free', 'no relay in this database',
     'If it does not start within seconds, the server log says why; a free one of max_worker_processes is needed.'),
    ('relays_off', 'warning', 'Relays off', 'outbox.workers is 0, and no session outside of the server claims events',
     'Start the outside relay, or set outbox.workers to 1 and reload.'),
    ('relays_missing', 'warning', 'No background worker free', 'fewer relays than outbox.workers',
     'The server log says why; a free one of max_worker_processes is needed for each.'),
    ('relay_starting', 'warning', 'Relay stands still', 'a relay loads', 'Wait. If it stays so, it reads much that is pending, or waits for a lock.'),
    ('relay_frozen', 'critical', 'Relay stands still', 'a relay stands still, and its lease has expired',
     'Another relay takes over. If the process stays, look what it waits for in pg_stat_activity, or end it by pg_terminate_backend().'),
    ('relay_waits_for_lock', 'critical', 'Tables locked', 'a relay waits for a lock on a table of outbox',
     'End the transaction of that process, or the process: pg_terminate_backend().'),
    ('not_connected', 'critical', 'NATS unreachable', 'no connection to NATS',
     'Check that NATS runs at outbox.nats_url and takes its login; the relay goes on trying.'),
    ('stream_trouble', 'critical', 'Stream unavailable', 'connected, but the stream can''t be used',
     'Check that the stream outbox.stream exists, takes the subjects and has room, and that the user may publish to it.'),
    ('circuit_open', 'critical', 'No acknowledgements', 'nothing is acknowledged: one probe at a time',
     'Check JetStream: storage, a leader, the account''s limits.'),
    ('backlog_late', 'warning', 'Events are late', 'an event waits for longer than outbox.lag_warning',
     'Look for another reason here; without one the relay is slower than the producers: see docs/performance.md.'),
    ('paused', 'warning', 'Paused', 'publishing is paused by outbox.pause()', 'SELECT outbox.resume();'),
    ('aggregates_blocked', 'critical', 'Aggregate blocked', 'aggregates wait for a failed event',
     'See outbox.blocked_aggregates; repair what refuses the event and call outbox.redrive(), or outbox.discard() it.'),
    ('events_retried', 'warning', 'Events are retried', 'events have failed and wait for another attempt, and their aggregates for them',
     'See outbox.blocked_aggregates. If the error lasts, see to the stream or the permission that it names.'),
    ('dead_letters', 'warning', 'Dead letter', 'events have failed for good',
     'See outbox.dead_letters; outbox.redrive() sends them again, outbox.discard() gives them up.'),
    ('max_pending_reached', 'critical', 'Too many pending events', 'enqueueing fails: outbox.max_pending events are pending',
     'Repair what holds up publishing, or raise outbox.max_pending.'),
    ('enqueue_refused', 'critical', 'Log with triggers', 'enqueueing fails: a table of the log has triggers or row-level security', 'Remove them.'),
    ('transaction_open', 'warning', 'Transaction open for long', 'a transaction has enqueued and is open for longer than outbox.lag_warning, perhaps prepared',
     'Events of the same aggregates wait for it: end it.'),
    ('snapshot_held', 'warning', 'Transaction open for long', 'a snapshot is held for longer than 12 times outbox.lag_warning, an hour by default: outbox''s tables grow',
     'End that transaction.'),
    ('retention_held_up', 'warning', 'Old events stay', 'old events can''t be removed',
     'See outbox.ranges(); end what uses them, or deal with dead letters and blocked aggregates.'),
    ('archive_failing', 'warning', 'Range not archived', 'old events can''t be archived, and so not be removed',
     'Repair outbox.archive_directory or outbox.archive_url, or what they name; it is tried again by itself. SELECT outbox.purge(); tries now.'),
    ('replay_stopped', 'warning', 'Replay stopped', 'a replay has stopped, or nothing works on it',
     'The server log says why; a free one of max_worker_processes is needed. outbox.replay_cancel() gives it up.'),
    ('capture_broken', 'critical', 'Captured table changed', 'changes of a captured table make no events, or wrong ones', 'See outbox.lint().'),
    ('guard_broken', 'warning', 'Captured table changed', 'changes of a guarded table without an event aren''t noticed', 'See outbox.lint().'),
    ('adoption_disabled', 'critical', 'Adoption disabled', 'rows of an adopted table aren''t forwarded', 'ALTER TABLE ... ENABLE TRIGGER outbox_adopted;'),
    ('subscription_stopped', 'critical', 'Consumer not connected', 'a subscription''s messages aren''t handled: no process, or no connection',
     'If it does not come back, the server log says why; a free one of max_worker_processes is needed.'),
    ('subscription_paused', 'warning', 'Paused', 'a subscription is paused', 'SELECT outbox.resume_subscription(...);'),
    ('subscription_failing', 'warning', 'Handler fails', 'a handler fails, and its messages wait for another attempt',
     'Repair the handler, or what it needs; it is called again by itself.'),
    ('messages_parked', 'warning', 'Message parked', 'a subscription has messages that its handler failed on too often',
     'See outbox.parked_messages; outbox.retry_parked() handles them again, outbox.discard_parked() gives them up.')
) r(reason, verdict, section, meaning, remedy);
COMMENT ON VIEW outbox.health_reasons IS
'the reasons that outbox.health() may give: verdict (critical: events are stuck or lost, warning: look at it), meaning, remedy, and section of docs/failures.md';

-- In plpgsql, here and below: its plans are kept for the session, and planning takes longer than all the rest.
CREATE FUNCTION outbox.last_failure(states "char"[]) RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN (SELECT f.last_error FROM unnest(states) v(state), LATERAL (
                SELECT d.last_error, d.failed_at FROM outbox.delivery d WHERE d.state <> 'd' AND d.state = v.state AND d.failed_at IS NOT NULL ORDER BY d.failed_at DESC LIMIT 1) f
            ORDER BY f.failed_at DESC LIMIT 1);
END $$;
COMMENT ON FUNCTION outbox.last_failure("char"[]) IS 'the last error of the events that were given up, and are in one of these states';

CREATE FUNCTION outbox.trouble(
    OUT dead_letters bigint, OUT blocked_aggregates bigint, OUT retried bigint, OUT last_error text, OUT oldest_block timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    -- Each by the index delivery_state.
    SELECT (SELECT count(*) FROM outbox.delivery d WHERE d.state <> 'd' AND d.state IN ('f', 'b', 'p')),
           (SELECT count(*) FROM (SELECT DISTINCT d.agg_hash FROM outbox.delivery d WHERE d.state <> 'd' AND d.state IN ('b', 'p')) a),
           (SELECT count(*) FROM outbox.delivery d WHERE d.state <> 'd' AND d.state = 'r'),
           (SELECT min(f.failed_at) FROM (VALUES ('b'::"char"), ('p')) v(state), LATERAL (
                SELECT d.failed_at FROM outbox.delivery d WHERE d.state <> 'd' AND d.state = v.state ORDER BY d.failed_at LIMIT 1) f)
    INTO dead_letters, blocked_aggregates, retried, oldest_block;
    IF dead_letters > 0 THEN
        last_error := outbox.last_failure('{f,b,p}');
    ELSIF retried > 0 THEN
        last_error := (SELECT d.last_error FROM outbox.delivery d WHERE d.state <> 'd' AND d.state = 'r' LIMIT 1);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.trouble() IS
'numbers of dead letters, of aggregates that one holds up, and of events that wait for another attempt; the last error, and since when the first aggregate is held up; reads them all';

CREATE FUNCTION outbox.lag_limit() RETURNS interval LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN CASE WHEN current_setting('outbox.lag_warning') = '-1' THEN '5 min' ELSE current_setting('outbox.lag_warning') END;
END $$;
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
                   WHEN 'stream unavailable' THEN 'stream_trouble' WHEN 'broker unavailable' THEN 'circuit_open'
                   WHEN 'not armed' THEN 'not_armed' WHEN 'version mismatch' THEN 'wrong_version' END,
               CASE s.state WHEN 'not running' THEN format('no relay runs in this database%s; pending: %s', ' since ' || s.since, coalesce(s.backlog, 0))
                   ELSE format('relay %s (process %s): %s since %s%s', s.relay, s.pid, s.state, s.since, ': ' || s.last_error) END,
               NULL::text
        FROM outbox.status() s WHERE s.database = current_database() AND s.state NOT IN ('active', 'paused')
        UNION ALL
        SELECT 'relays_missing', format('%s of %s relays are at work', count(*), workers), NULL
        FROM outbox.status() s WHERE s.database = current_database() AND s.relay < 8 HAVING count(*) BETWEEN 1 AND workers - 1
        UNION ALL
        SELECT 'backlog_late', format('relay %s: an event waits since %s', c.relay, c.late_since), NULL
        FROM outbox.relay_counters() c WHERE c.pid IS NOT NULL AND c.late_since IS NOT NULL;
    -- pg_locks stops the lock manager for a moment: only when there is something to see.
    IF EXISTS (SELECT FROM outbox.status() s, LATERAL pg_stat_get_activity(coalesce(s.pid, 0)) a WHERE s.database = current_database() AND a.wait_event_type = 'Lock') THEN
        RETURN QUERY
            -- waitstart tells a wait from a moment
            SELECT 'relay_waits_for_lock', format('relay %s (process %s) waits since %s for a lock%s that process %s holds', s.relay, s.pid, l.waitstart,
                                                  ' on ' || l.relation::regclass, array_to_string(pg_blocking_pids(s.pid), ', ')), NULL::text
            FROM outbox.status() s JOIN pg_locks l ON l.pid = s.pid AND NOT l.granted
            WHERE s.database = current_database() AND l.waitstart < clock_timestamp() - interval '1 s';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.relay_findings() IS 'what is wrong with this database''s relays, for outbox.health()';

-- Of more events than this it tells no number: counting them would cost more than the number is worth.
CREATE FUNCTION outbox.failure_findings(OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    most CONSTANT integer := 1000;
    n bigint;
    aggregates bigint;
BEGIN
    SELECT count(*), count(DISTINCT x.agg_hash) INTO n, aggregates
    FROM (SELECT d.agg_hash FROM outbox.delivery d WHERE d.state <> 'd' AND d.state IN ('b', 'p') LIMIT most) x;
    IF n > 0 THEN
        RETURN QUERY
            SELECT 'aggregates_blocked', format('%s aggregates wait for a failed event, the first since %s', concat(CASE WHEN n = most THEN 'at least ' END, aggregates), min(f.failed_at)), NULL::text
            FROM (VALUES ('b'::"char"), ('p')) v(state), LATERAL (
                SELECT d.failed_at FROM outbox.delivery d WHERE d.state <> 'd' AND d.state = v.state ORDER BY d.failed_at LIMIT 1) f;
    END IF;
    SELECT count(*) INTO n FROM (SELECT FROM outbox.delivery d WHERE d.state <> 'd' AND d.state = 'r' LIMIT most) x;
    IF n > 0 THEN
        RETURN QUERY
            SELECT 'events_retried', format('%s events wait for another attempt; the last error: %s', concat(CASE WHEN n = most THEN 'at least ' END, n),
                                            (SELECT x.last_error FROM (SELECT * FROM outbox.delivery d WHERE d.state <> 'd' AND d.state = 'r' LIMIT most) x
                                             ORDER BY x.next_attempt_at DESC LIMIT 1)), NULL::text;
    END IF;
    SELECT count(*) INTO n FROM (SELECT FROM outbox.delivery d WHERE d.state <> 'd' AND d.state IN ('f', 'b', 'p') LIMIT most) x;
    IF n > 0 THEN
        RETURN QUERY
            SELECT 'dead_letters', format('%s events are dead letters; the last error: %s', concat(CASE WHEN n = most THEN 'at least ' END, n), outbox.last_failure('{f,b,p}')), NULL::text;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.failure_findings() IS 'events that have failed, for outbox.health(): up to 1,000 of each kind are counted';

CREATE FUNCTION outbox.event_findings(OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    most integer := current_setting('outbox.max_pending')::integer;
    overdue timestamptz := clock_timestamp() - 1.5 * nullif(current_setting('outbox.retention'), '-1')::interval - interval '10 min';
BEGIN
    -- Of each only what there is costs more than a look.
    RETURN QUERY
        SELECT 'paused', format('publishing of %s is paused since %s by %s%s',
                      coalesce(nullif(concat_ws(' and ', 'aggregate type "' || p.aggregate_type || '"', 'subject "' || p.subject || '"'), ''), 'everything'),
                      p.paused_at, p.paused_by, ': ' || p.reason),
               format('SELECT outbox.resume(%s);', concat_ws(', ', 'aggregate_type => ' || quote_literal(p.aggregate_type), 'subject => ' || quote_literal(p.subject)))
        FROM (SELECT * FROM outbox.pauses LIMIT 100) p;
    IF most > 0 THEN
        RETURN QUERY
            SELECT 'max_pending_reached', format('%s events are pending, and outbox.max_pending is %s', sum(s.backlog), most), NULL::text
            FROM outbox.status() s WHERE s.database = current_database() HAVING sum(s.backlog) >= most;
    END IF;
    IF EXISTS (SELECT FROM outbox.ring WHERE closed_at < overdue) THEN
        RETURN QUERY
            SELECT 'retention_held_up', format('events that were closed off at %s are still there: %s', r.closed_at, coalesce(v.reason, 'another session uses them')), NULL::text
            FROM (SELECT * FROM outbox.ring WHERE closed_at IS NOT NULL ORDER BY generation LIMIT 1) r, outbox.retention_cutoffs() c,
                 outbox.range_survey(r.child, c.before, least(c.dead_before, c.before), 10000) v
            WHERE r.closed_at < overdue;
    END IF;
    IF EXISTS (SELECT FROM outbox.archive_troubles) THEN
        RETURN QUERY
            SELECT 'archive_failing', format('range %s, %s failures since %s: %s', t.range, t.failures, t.since, t.error), NULL::text
            FROM outbox.archive_troubles t JOIN outbox.ring r ON r.generation = t.range;
    END IF;
    RETURN QUERY
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
    RETURN QUERY SELECT 'enqueue_refused', l.object || ': ' || l.problem, l.remedy FROM outbox.lint_log() l;
    IF EXISTS (SELECT FROM outbox.capture_settings) OR EXISTS (SELECT FROM outbox.guard_settings) THEN
        RETURN QUERY
            SELECT CASE WHEN l.problem ~ '^triggers of guard|, which guard ' THEN 'guard_broken' ELSE 'capture_broken' END, l.object || ': ' || l.problem, l.remedy
            FROM outbox.lint_rules() l WHERE l.severity = 'error';
    END IF;
    RETURN QUERY
        SELECT 'adoption_disabled', format('the trigger of table %s is disabled, so its rows aren''t forwarded', a."table"),
               format('ALTER TABLE %s ENABLE TRIGGER outbox_adopted; rows that came meanwhile: outbox.unadopt(), then outbox.adopt() with them as backlog.', a."table")
        FROM outbox.adoptions a WHERE NOT a.enabled;
    IF EXISTS (SELECT FROM outbox.subscription) THEN
        RETURN QUERY
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
    END IF;
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
    -- pg_locks stops the lock manager for a moment: only when there is something to see.
    IF NOT EXISTS (SELECT FROM pg_stat_get_activity(NULL) a WHERE a.xact_start < moment - lag)
        AND NOT EXISTS (SELECT FROM pg_prepared_xact() p WHERE p.prepared < moment - lag) THEN
        RETURN;
    END IF;
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

-- A statement stays one that can be run.
CREATE FUNCTION outbox.remedy_text(remedy text, section text) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT $1 || CASE WHEN $1 ~ ';$' THEN ' --' ELSE '' END || format(' See docs/failures.md, "%s".', $2);
END;
COMMENT ON FUNCTION outbox.remedy_text(text, text) IS 'a remedy of outbox.health() with its section of docs/failures.md';

-- Waits for no lock for longer than a second.
CREATE FUNCTION outbox.health(OUT verdict text, OUT reason text, OUT detail text, OUT remedy text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    library text := outbox.library_version();
    installed text := (SELECT e.extversion FROM pg_extension e WHERE e.extname = 'outbox');
    alone text := CASE WHEN EXISTS (SELECT FROM outbox.status() s WHERE s.state = 'library not preloaded') THEN 'library_not_preloaded'
                      WHEN pg_is_in_recovery() THEN 'standby' END;
BEGIN
    IF alone IS NOT NULL THEN
        RETURN QUERY SELECT r.verdict, r.reason, r.meaning, outbox.remedy_text(r.remedy, r.section) FROM outbox.health_reasons r WHERE r.reason = alone;
        RETURN;
    END IF;
    -- The sort reads all before it gives any: none is left behind by an error.
    RETURN QUERY
        SELECT r.verdict, r.reason, coalesce(f.detail, r.meaning), outbox.remedy_text(coalesce(f.remedy, r.remedy), r.section)
        FROM (SELECT 'wrong_version', format('the extension has version %s, the loaded library %s', installed, library), NULL WHERE library <> installed
              UNION ALL SELECT * FROM outbox.relay_findings()
              UNION ALL SELECT * FROM outbox.event_findings()
              UNION ALL SELECT * FROM outbox.failure_findings()
              UNION ALL SELECT * FROM outbox.rule_findings()
              UNION ALL SELECT * FROM outbox.transaction_findings()) f(reason, detail, remedy)
        JOIN outbox.health_reasons r ON r.reason = f.reason
        ORDER BY r.verdict, r.reason, f.detail;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'ok', NULL::text, NULL::text, NULL::text;
    END IF;
EXCEPTION WHEN lock_not_available THEN
    RETURN QUERY
        SELECT r.verdict, r.reason, coalesce(f.detail, r.meaning), outbox.remedy_text(coalesce(f.remedy, r.remedy), r.section)
        FROM (SELECT 'tables_locked', NULL, NULL UNION ALL SELECT * FROM outbox.relay_findings()) f(reason, detail, remedy)
        JOIN outbox.health_reasons r ON r.reason = f.reason
        ORDER BY r.verdict, r.reason, f.detail;
END $$;
COMMENT ON FUNCTION outbox.health() IS
'whether events of this database flow: one row "ok", or a row for each reason why not, or not for long ("critical": events are stuck or lost, "warning": look at it), with a remedy; worst first, so that the first row''s verdict is the whole''s; outbox.health_reasons lists the reasons';

INSERT INTO outbox.privileges VALUES ('monitor', 'EXECUTE', 'health'), ('monitor', 'EXECUTE', 'trouble'), ('monitor', 'SELECT', 'health_reasons');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{last_failure, lag_limit, remedy_text, event_findings, failure_findings, relay_findings, rule_findings, transaction_findings}'::name[]);
