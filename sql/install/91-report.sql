-- ----------------------------------------------------------------- figures
-- What outbox-top and outbox.report_html() show beyond the views: bounded, whatever the backlog is, and without payloads.

-- The oldest rows above the watermark one by one, then a sample of the rest, spread over all of it, which is made to stand for
-- what the relays count as their backlog. Where there are no more than max_rows, that is all of them.
CREATE FUNCTION outbox.report_pending(
    max_rows integer, OUT aggregate_type text, OUT event_type text, OUT subject text, OUT due_at timestamptz, OUT weight double precision)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    behind bigint := coalesce((SELECT max(w.position) FROM outbox.watermark w), 0);
    last bigint := coalesce((SELECT max(l.position) FROM outbox.log l), 0);
    reached bigint;
    step bigint;
    rest bigint := (SELECT sum(s.backlog) FROM outbox.status() s WHERE s.database = current_database());
    counted bigint;
BEGIN
    SELECT max(h.position) INTO reached
    FROM (SELECT l.position FROM outbox.log l WHERE l.position > behind ORDER BY l.position LIMIT max_rows) h;
    RETURN QUERY
        SELECT l.aggregate_type, l.event_type, l.subject, greatest(l.created_at, l.not_before), 1::double precision
        FROM outbox.log l LEFT JOIN outbox.delivery d ON d.position = l.position
        WHERE l.position > behind AND l.position <= reached
          AND (d.state = 'r' OR d.state IS NULL AND outbox.settled_at(l.position) IS NULL);
    GET DIAGNOSTICS counted = ROW_COUNT;
    IF reached IS NULL OR reached >= last THEN
        RETURN;
    END IF;
    step := (last - reached + max_rows - 1) / max_rows;
    rest := CASE WHEN rest > 0 THEN greatest(rest - counted, 0) END;
    RETURN QUERY
        SELECT l.aggregate_type, l.event_type, l.subject, greatest(l.created_at, l.not_before),
               coalesce(rest::double precision / count(*) OVER (), step)
        -- not at even distances: events may come in a rhythm of their own
        FROM (SELECT g + (hashint8(g) & 2147483647) % step AS pos FROM generate_series(reached + 1, last, step) g) p
        CROSS JOIN LATERAL (SELECT x.position, x.aggregate_type, x.event_type, x.subject, x.created_at, x.not_before
                            FROM outbox.log x WHERE x.position = p.pos OFFSET 0) l
        LEFT JOIN outbox.delivery d ON d.position = l.position
        WHERE d.state = 'r' OR d.state IS NULL AND outbox.settled_at(l.position) IS NULL;
END $$;
COMMENT ON FUNCTION outbox.report_pending(integer) IS
'pending events with how many of the backlog each stands for: 1, or more in a sample of what is beyond max_rows';

CREATE FUNCTION outbox.report_backlog(
    max_rows integer DEFAULT 2000, OUT aggregate_type text, OUT pending bigint, OUT oldest timestamptz, OUT ages bigint[])
RETURNS SETOF record LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p.aggregate_type, round(sum(p.weight))::bigint, min(p.due_at) FILTER (WHERE p.age >= 0),
           ARRAY[coalesce(round(sum(p.weight) FILTER (WHERE p.age >= 0 AND p.age < 10)), 0),
                 coalesce(round(sum(p.weight) FILTER (WHERE p.age >= 10 AND p.age < 60)), 0),
                 coalesce(round(sum(p.weight) FILTER (WHERE p.age >= 60 AND p.age < 600)), 0),
                 coalesce(round(sum(p.weight) FILTER (WHERE p.age >= 600 AND p.age < 3600)), 0),
                 coalesce(round(sum(p.weight) FILTER (WHERE p.age >= 3600 AND p.age < 86400)), 0),
                 coalesce(round(sum(p.weight) FILTER (WHERE p.age >= 86400)), 0),
                 coalesce(round(sum(p.weight) FILTER (WHERE p.age < 0)), 0)]::bigint[]
    FROM (SELECT t.aggregate_type, t.due_at, t.weight, extract(epoch FROM clock_timestamp() - t.due_at) AS age
          FROM outbox.report_pending($1) t) p
    GROUP BY p.aggregate_type
    ORDER BY 2 DESC, 1;
END;
COMMENT ON FUNCTION outbox.report_backlog(integer) IS
'pending events by aggregate type, the oldest that is due, and their ages: below 10 s, a minute, 10 minutes, an hour, a day, above, and not due yet; estimated from a sample if there are more than max_rows';

-- The id in a subject would make a group of each aggregate: a "*" stands for it.
CREATE FUNCTION outbox.report_subject(aggregate_type text, event_type text, subject text) RETURNS text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce($3, regexp_replace(outbox.subject_of($1, 'outbox-any-id', $2), '(^|\.)outbox-any-id(?=\.|$)', '\1*', 'g'));
END;
COMMENT ON FUNCTION outbox.report_subject(text, text, text) IS 'the subject of an event, with "*" for its aggregate''s id unless it has a subject of its own';

CREATE FUNCTION outbox.report_subjects(
    max_rows integer DEFAULT 2000, of_type text DEFAULT NULL,
    OUT subject text, OUT aggregate_type text, OUT pending bigint, OUT oldest timestamptz, OUT dead_letters bigint, OUT last_error text)
RETURNS SETOF record LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH pending AS (
        SELECT outbox.report_subject(p.aggregate_type, p.event_type, p.subject) AS subject, p.aggregate_type, sum(p.weight) AS n, min(p.due_at) AS oldest
        FROM (SELECT t.aggregate_type, t.event_type, t.subject, sum(t.weight) AS weight, min(t.due_at) FILTER (WHERE t.due_at <= clock_timestamp()) AS due_at
              FROM outbox.report_pending($1) t WHERE $2 IS NULL OR t.aggregate_type = $2
              GROUP BY t.aggregate_type, t.event_type, t.subject) p
        GROUP BY 1, 2
    ), dead AS (
        SELECT outbox.report_subject(d.aggregate_type, d.event_type, d.subject) AS subject, d.aggregate_type, sum(d.n) AS n,
               (array_agg(d.last_error ORDER BY d.failed_at DESC NULLS LAST))[1] AS last_error
        FROM (SELECT t.aggregate_type, t.event_type, t.subject, count(*) AS n, max(t.failed_at) AS failed_at,
                     (array_agg(t.last_error ORDER BY t.failed_at DESC NULLS LAST))[1] AS last_error
              FROM outbox.dead_letters t WHERE $2 IS NULL OR t.aggregate_type = $2
              GROUP BY t.aggregate_type, t.event_type, t.subject) d
        GROUP BY 1, 2
    )
    SELECT coalesce(p.subject, d.subject), coalesce(p.aggregate_type, d.aggregate_type), coalesce(round(p.n), 0)::bigint, p.oldest,
           coalesce(d.n, 0)::bigint, d.last_error
    FROM pending p FULL JOIN dead d ON d.subject = p.subject AND d.aggregate_type = p.aggregate_type
    ORDER BY 5 DESC, 3 DESC, 1 LIMIT 200;
END;
COMMENT ON FUNCTION outbox.report_subjects(integer, text) IS
'subjects that have pending events (as outbox.report_backlog() counts them) or dead letters, "*" for the aggregate''s id; at most 200';

CREATE FUNCTION outbox.report_dead_letters(
    max_rows integer DEFAULT 50, of_type text DEFAULT NULL,
    OUT failed_at timestamptz, OUT aggregate_type text, OUT aggregate_id text, OUT event_type text, OUT attempts integer,
    OUT error_code integer, OUT state text, OUT last_error text, OUT event_id uuid, OUT created_at timestamptz)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.failed_at, d.aggregate_type, d.aggregate_id, d.event_type, d.attempts, d.error_code, d.state, d.last_error, d.event_id, d.created_at
    FROM outbox.dead_letters d WHERE $2 IS NULL OR d.aggregate_type = $2
    ORDER BY d.failed_at DESC NULLS LAST, d.position DESC LIMIT $1;
END;
COMMENT ON FUNCTION outbox.report_dead_letters(integer, text) IS 'the last dead letters, of one aggregate type if that is given';

-- The depth is bounded: counting a million events behind one head is nobody's refresh.
CREATE FUNCTION outbox.report_blocked(
    max_rows integer DEFAULT 50, of_type text DEFAULT NULL,
    OUT since timestamptz, OUT aggregate_type text, OUT aggregate_id text, OUT depth bigint, OUT attempts integer, OUT next_attempt_at timestamptz,
    OUT reason text, OUT error_code integer, OUT last_error text, OUT head_event_id uuid)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT h.created_at, h.aggregate_type, h.aggregate_id,
           (SELECT count(*) FROM (SELECT FROM outbox.log s WHERE s.agg_hash = h.agg_hash AND s.position > h.position LIMIT 10000) b),
           h.attempts, h.next_attempt_at, CASE h.state WHEN 'r' THEN 'retrying' WHEN 'b' THEN 'blocked' ELSE 'parked' END, h.last_code, h.last_error, h.event_id
    FROM (SELECT d.*, l.created_at, l.aggregate_type, l.aggregate_id, l.event_id
          FROM (SELECT DISTINCT ON (x.agg_hash) x.* FROM outbox.delivery x WHERE x.state IN ('r', 'b', 'p') ORDER BY x.agg_hash, x.position) d
          JOIN outbox.log l ON l.position = d.position
          WHERE $2 IS NULL OR l.aggregate_type = $2
          ORDER BY d.position LIMIT $1) h
    ORDER BY h.position;
END;
COMMENT ON FUNCTION outbox.report_blocked(integer, text) IS
'the aggregates that are held up for longest by a failed event, of one type if that is given; depth counts no more than 10,000 events behind it';

INSERT INTO outbox.privileges SELECT 'monitor', 'EXECUTE', unnest('{report_backlog, report_subjects, report_dead_letters, report_blocked}'::name[]);
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{report_pending, report_subject}'::name[]);
