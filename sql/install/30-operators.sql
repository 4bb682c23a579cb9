-- ------------------------------------------------------------- operators

CREATE VIEW outbox.dead_letters AS
SELECT d.position, l.event_id, l.aggregate_type, l.aggregate_id, l.event_type, l.subject, d.attempts,
       d.last_code AS error_code, d.last_error, d.failed_at,
       CASE d.state WHEN 'f' THEN 'skipped' WHEN 'b' THEN 'blocks its aggregate' ELSE 'parked' END AS state,
       l.created_at, l.agg_hash
FROM outbox.delivery d
JOIN outbox.log l ON l.position = d.position
WHERE d.state IN ('f', 'b', 'p');
COMMENT ON VIEW outbox.dead_letters IS
'events that failed for good and that nobody has redriven or discarded; state says what became of the aggregate''s later events';

CREATE VIEW outbox.discarded_events AS
SELECT d.position, l.event_id, l.aggregate_type, l.aggregate_id, l.event_type, d.attempts, d.last_code AS error_code, d.last_error,
       d.discarded_at, d.discarded_by, d.discard_reason
FROM outbox.delivery d
JOIN outbox.log l ON l.position = d.position
WHERE d.state = 'x';
COMMENT ON VIEW outbox.discarded_events IS 'events that outbox.discard() has taken out, with who, when and why';

-- An aggregate is held up by its first event that failed and isn't through.
CREATE VIEW outbox.blocked_aggregates AS
SELECT l.aggregate_type, l.aggregate_id, h.position AS head_position, l.event_id AS head_event_id,
       CASE h.state WHEN 'r' THEN 'retrying' WHEN 'b' THEN 'blocked' ELSE 'parked' END AS reason,
       pg_catalog.clock_timestamp() - l.created_at AS age,
       (SELECT pg_catalog.count(*) FROM outbox.log s WHERE s.agg_hash = h.agg_hash AND s.position > h.position) AS depth,
       h.attempts, h.next_attempt_at, h.last_code AS error_code, h.last_error
FROM (SELECT DISTINCT ON (d.agg_hash) d.* FROM outbox.delivery d WHERE d.state IN ('r', 'b', 'p') ORDER BY d.agg_hash, d.position) h
JOIN outbox.log l ON l.position = h.position;
COMMENT ON VIEW outbox.blocked_aggregates IS
'aggregates that a failed event holds up: its age, how many events wait behind it (depth), and the reason';

CREATE FUNCTION outbox.tell_relays() RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_tell_relays';
COMMENT ON FUNCTION outbox.tell_relays() IS 'when the transaction commits, relays look at outbox.request and outbox.pauses';

-- The positions of the dead letters that redrive() and discard() mean; NULL leaves an argument out.
CREATE FUNCTION outbox.chosen_dead_letters(
    event_id uuid, aggregate_type text, aggregate_id text, event_type text,
    error_code integer, failed_after timestamptz, failed_before timestamptz, max_events bigint)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF max_events < 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'max_events must not be negative';
    END IF;
    RETURN QUERY
        SELECT d.position FROM outbox.dead_letters d
        WHERE (event_id IS NULL OR d.position = (SELECT outbox.position_of(event_id)))
          AND (aggregate_type IS NULL OR d.aggregate_type = aggregate_type)
          AND (aggregate_id IS NULL OR d.aggregate_id = aggregate_id)
          AND (event_type IS NULL OR d.event_type = event_type)
          AND (error_code IS NULL OR d.error_code = error_code)
          AND (failed_after IS NULL OR d.failed_at >= failed_after)
          AND (failed_before IS NULL OR d.failed_at < failed_before)
        ORDER BY d.position LIMIT max_events;
END $$;
COMMENT ON FUNCTION outbox.chosen_dead_letters IS 'the positions of the dead letters that match all arguments given';

CREATE FUNCTION outbox.redrive(
    event_id uuid DEFAULT NULL, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL,
    error_code integer DEFAULT NULL, failed_after timestamptz DEFAULT NULL, failed_before timestamptz DEFAULT NULL,
    max_events bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    parked bigint[];
    positions bigint[];
    redriven bigint;
BEGIN
    positions := ARRAY(SELECT outbox.chosen_dead_letters(event_id, aggregate_type, aggregate_id, event_type, error_code, failed_after, failed_before, max_events));
    IF positions = '{}' THEN
        RETURN 0;
    END IF;
    parked := ARRAY(SELECT DISTINCT d.agg_hash FROM outbox.delivery d WHERE d.position = ANY (positions) AND d.state = 'p');
    -- A parked aggregate comes back as a whole. All rows are locked in one order, or two calls at once might deadlock.
    SELECT array_agg(pos) INTO positions
    FROM (SELECT d.position AS pos FROM outbox.delivery d
          WHERE d.state IN ('f', 'b', 'p') AND (d.position = ANY (positions) OR d.state = 'p' AND d.agg_hash = ANY (parked))
          ORDER BY d.position FOR UPDATE) locked;
    WITH changed AS (
        UPDATE outbox.delivery d
        SET state = 'r', attempts = 0, next_attempt_at = pg_catalog.clock_timestamp(), failed_at = NULL
        WHERE d.position = ANY (positions)
        RETURNING d.position AS pos, d.agg_hash AS agg
    ), asked AS (
        INSERT INTO outbox.request (kind, agg_hash, position)
        SELECT 'r', agg, pos FROM changed WHERE agg <> ALL (parked)
        UNION ALL
        SELECT 'p', agg, min(pos) FROM changed WHERE agg = ANY (parked) GROUP BY agg
    )
    SELECT count(*) INTO redriven FROM changed;
    IF redriven > 0 THEN
        PERFORM outbox.tell_relays();
    END IF;
    RETURN redriven;
END $$;
COMMENT ON FUNCTION outbox.redrive IS
'sends dead letters again that match all arguments given, with new attempts and the same event_id; a parked aggregate comes back as a whole, in order; returns their number';

CREATE FUNCTION outbox.discard(
    reason text,
    event_id uuid DEFAULT NULL, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL,
    error_code integer DEFAULT NULL, failed_after timestamptz DEFAULT NULL, failed_before timestamptz DEFAULT NULL,
    max_events bigint DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    positions bigint[];
    dead bigint;
    pending bigint := 0;
BEGIN
    IF coalesce(reason, '') = '' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a reason must be given', DETAIL = 'It is recorded with the event.';
    END IF;
    IF num_nonnulls(event_id, aggregate_type, aggregate_id, event_type, error_code, failed_after, failed_before) = 0 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'no events are named',
            HINT = 'Give an event_id, an aggregate, an event type, an error code or a time range.';
    END IF;
    positions := ARRAY(SELECT outbox.chosen_dead_letters(event_id, aggregate_type, aggregate_id, event_type, error_code, failed_after, failed_before, max_events));
    WITH chosen AS MATERIALIZED (
        SELECT d.position AS pos, d.agg_hash AS agg, d.state AS was
        FROM outbox.delivery d
        WHERE d.state IN ('f', 'b', 'p') AND d.position = ANY (positions)
        ORDER BY d.position FOR UPDATE
    ), changed AS (
        UPDATE outbox.delivery d
        SET state = 'x', next_attempt_at = NULL, discarded_at = pg_catalog.clock_timestamp(), discarded_by = session_user, discard_reason = reason
        WHERE d.position IN (SELECT pos FROM chosen WHERE was IN ('f', 'p'))
    ), asked AS (
        -- The aggregate waits for this one: its relay must know.
        INSERT INTO outbox.request (kind, agg_hash, position, reason) SELECT 'x', agg, pos, reason FROM chosen WHERE was = 'b'
        UNION ALL
        -- The aggregate may have been parked because of this one.
        SELECT 'x', agg, min(pos), reason FROM chosen WHERE was = 'p' GROUP BY agg
    )
    SELECT count(*) INTO dead FROM chosen;
    IF dead = 0 AND event_id IS NOT NULL THEN
        INSERT INTO outbox.request (kind, agg_hash, position, reason)
        SELECT 'x', l.agg_hash, l.position, reason
        FROM outbox.log l LEFT JOIN outbox.delivery d ON d.position = l.position
        WHERE l.position = (SELECT outbox.position_of(event_id)) AND (aggregate_type IS NULL OR l.aggregate_type = aggregate_type)
          AND (aggregate_id IS NULL OR l.aggregate_id = aggregate_id) AND (event_type IS NULL OR l.event_type = event_type)
          AND num_nonnulls(error_code, failed_after, failed_before) = 0
          AND (d.state = 'r' OR d.position IS NULL AND outbox.settled_at(l.position) IS NULL
               AND l.position > coalesce((SELECT max(w.position) FROM outbox.watermark w), 0));
        GET DIAGNOSTICS pending = ROW_COUNT;
    END IF;
    IF dead + pending > 0 THEN
        PERFORM outbox.tell_relays();
    END IF;
    RETURN dead + pending;
END $$;
COMMENT ON FUNCTION outbox.discard IS
'gives dead letters up that match all arguments given, or one pending event by its event_id, with a reason that is recorded; an aggregate that one blocked goes on; returns their number';

CREATE FUNCTION outbox.pause(aggregate_type text DEFAULT NULL, subject text DEFAULT NULL, reason text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF subject = '' OR subject ~ '[[:space:]]' OR subject ~ '(^|\.)(\.|$)' OR subject ~ '>.'
        OR subject ~ '[^.][*>]' OR subject ~ '[*][^.]' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('"%s" is not a subject', subject),
            DETAIL = 'Tokens are separated by dots; "*" stands for one token, ">" as the last one for all that follow.';
    END IF;
    INSERT INTO outbox.pauses (aggregate_type, subject, reason) VALUES (aggregate_type, subject, reason)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM outbox.tell_relays();
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.pause IS
'stops publishing in this database: of everything, of an aggregate type, of subjects ("*" and ">" as in NATS); events go on to be enqueued; false if that was paused already';

CREATE FUNCTION outbox.resume(aggregate_type text DEFAULT NULL, subject text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    DELETE FROM outbox.pauses p
    WHERE p.aggregate_type IS NOT DISTINCT FROM aggregate_type AND p.subject IS NOT DISTINCT FROM subject;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM outbox.tell_relays();
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.resume IS 'ends the pause that was made with the same arguments; false if there is none';

CREATE FUNCTION outbox.flush(timeout interval DEFAULT '30 s') RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'MODULE_PATHNAME', 'outbox_flush';
COMMENT ON FUNCTION outbox.flush(interval) IS
'waits until every event that was committed before the call is published, a dead letter or discarded; false if that takes longer';
