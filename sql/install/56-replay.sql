-- ---------------------------------------------------------------- replay

-- Not part of a dump: a copy of the database must not replay anything.
CREATE TABLE outbox.replay_job (
    batch_id         uuid        PRIMARY KEY DEFAULT pg_catalog.gen_random_uuid(),
    requested_by     name        NOT NULL DEFAULT session_user,
    requested_at     timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    source           text        NOT NULL CHECK (source IN ('log', 'query', 'archive', 'clickhouse')),
    source_text      text,                          -- the query, the directory, the URL
    subject          text,
    event_type       text,
    aggregate_type   text,
    aggregate_id     text,
    from_time        timestamptz NOT NULL,
    to_time          timestamptz NOT NULL,
    from_position    bigint      NOT NULL,
    to_position      bigint      NOT NULL,
    target_url       text,
    target_stream    text,
    target_prefix    text,
    rate             integer,
    state            text        NOT NULL DEFAULT 'queued' CHECK (state IN ('queued', 'running', 'done', 'stopped', 'cancelled')),
    total            bigint,
    done             bigint      NOT NULL DEFAULT 0,
    run_done         bigint      NOT NULL DEFAULT 0, -- done when the current run began
    repeated         bigint      NOT NULL DEFAULT 0,
    ahead            bigint      NOT NULL DEFAULT 0, -- stored, but behind position_reached: the next run repeats them
    runs             integer     NOT NULL DEFAULT 0,
    position_reached bigint      NOT NULL DEFAULT 0,
    time_reached     timestamptz,
    last_error       text,
    started_at       timestamptz,                   -- the current run
    updated_at       timestamptz,
    finished_at      timestamptz
);
COMMENT ON TABLE outbox.replay_job IS 'replays that were asked for; read it through outbox.replays and outbox.replay_progress';

CREATE FUNCTION outbox.subject_matches(pattern text, subject text)
RETURNS boolean LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_subject_matches';
COMMENT ON FUNCTION outbox.subject_matches(text, text) IS 'whether a NATS subject matches a pattern: "*" stands for one token, ">" as the last one for one or more';

CREATE FUNCTION outbox.subject_of(aggregate_type text, aggregate_id text, event_type text, subject text DEFAULT NULL)
RETURNS text LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_subject_of';
COMMENT ON FUNCTION outbox.subject_of IS 'where an event is published: its own subject, or that of outbox.subject_template';

CREATE FUNCTION outbox.tell_replayers() RETURNS void LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_tell_replayers';
COMMENT ON FUNCTION outbox.tell_replayers() IS 'when the transaction commits, replays that were asked for begin, and running ones look whether they are cancelled';

-- The events of a replay as a query, in which position is a column; for sources that SQL can read.
CREATE FUNCTION outbox.replay_query(job outbox.replay_job) RETURNS text
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    statement text;
BEGIN
    IF job.source = 'log' THEN
        -- Scalar sub-selects: by index, whatever statistics say.
        statement := 'SELECT l.* FROM outbox.log l
            WHERE (SELECT true FROM outbox.delivery d WHERE d.position = l.position AND d.state <> ''d'') IS NULL
              AND (l.position <= (SELECT max(w.position) FROM outbox.watermark w) OR outbox.settled_at(l.position) IS NOT NULL)';
        IF job.aggregate_id IS NOT NULL THEN
            statement := statement || format(' AND l.agg_hash = %L', outbox.aggregate_hash(job.aggregate_type, job.aggregate_id));
        END IF;
    ELSE
        statement := format(E'SELECT l.* FROM (%s\n) l WHERE true', job.source_text);
    END IF;
    statement := statement || format(' AND l.position BETWEEN %s AND %s', job.from_position, job.to_position);
    IF job.from_time > '-infinity' OR job.to_time < 'infinity' THEN
        statement := statement || format(' AND l.created_at BETWEEN %L AND %L', job.from_time, job.to_time);
    END IF;
    IF job.event_type IS NOT NULL THEN
        statement := statement || format(' AND l.event_type = %L', job.event_type);
    END IF;
    IF job.aggregate_type IS NOT NULL THEN
        statement := statement || format(' AND l.aggregate_type = %L', job.aggregate_type);
    END IF;
    IF job.aggregate_id IS NOT NULL THEN
        statement := statement || format(' AND l.aggregate_id = %L', job.aggregate_id);
    END IF;
    IF job.subject IS NOT NULL THEN
        statement := statement || format(' AND outbox.subject_matches(%L, outbox.subject_of(l.aggregate_type, l.aggregate_id, l.event_type, l.subject))', job.subject);
    END IF;
    RETURN statement;
END $$;
COMMENT ON FUNCTION outbox.replay_query(outbox.replay_job) IS 'the events of a replay from the log or from a query, as SQL';

CREATE FUNCTION outbox.replay_survey(
    job outbox.replay_job,
    OUT event_type text, OUT events bigint, OUT bytes bigint, OUT first_position bigint, OUT last_position bigint,
    OUT first_time timestamptz, OUT last_time timestamptz)
RETURNS SETOF record LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_replay_survey';
COMMENT ON FUNCTION outbox.replay_survey(outbox.replay_job) IS
'what a replay would send: one row for each event type, and first one for all of them (event_type null)';

CREATE FUNCTION outbox.check_replay(job outbox.replay_job, caller oid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    given text;
BEGIN
    FOREACH given IN ARRAY ARRAY[job.subject, job.event_type, job.aggregate_type, job.aggregate_id, job.target_url, job.target_stream, job.target_prefix, job.source_text] LOOP
        IF given = '' THEN
            RAISE invalid_parameter_value USING MESSAGE = 'an argument of a replay must not be empty',
                HINT = 'Leave it out, or give null.';
        END IF;
    END LOOP;
    IF job.from_time > job.to_time THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the time range of a replay ends before it begins',
            DETAIL = format('It goes from %s to %s.', job.from_time, job.to_time);
    END IF;
    IF job.from_position > job.to_position THEN
        RAISE invalid_parameter_value USING MESSAGE = 'the position range of a replay ends before it begins',
            DETAIL = format('It goes from %s to %s.', job.from_position, job.to_position);
    END IF;
    IF job.aggregate_id IS NOT NULL AND job.aggregate_type IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'aggregate_id needs aggregate_type',
            DETAIL = 'Ids are unique within a type only.';
    END IF;
    IF job.subject !~ '^(\*|[^\s.*>]+)(\.(\*|[^\s.*>]+))*(\.>)?$' AND job.subject <> '>' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('subject "%s" is not a valid pattern', job.subject),
            DETAIL = 'Tokens between dots are text without blanks, or "*"; the last one may be ">".';
    END IF;
    IF job.target_prefix !~ '^[^\s.*>$]+(\.[^\s.*>]+)*$' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('target_prefix "%s" is not the beginning of a subject', job.target_prefix),
            DETAIL = 'It consists of tokens without blanks and wildcards, with dots between them and none at the end.';
    END IF;
    IF job.target_stream !~ '^[!-~]{1,255}$' OR job.target_stream ~ '[.*>/\\]' THEN
        RAISE invalid_parameter_value USING MESSAGE = format('"%s" is not the name of a stream', job.target_stream);
    END IF;
    IF job.target_url IS NOT NULL AND NOT outbox.is_nats_url(job.target_url) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'target_url is not a list of NATS URLs', HINT = 'Example: nats://nats.example.com:4222';
    END IF;
    IF job.source = 'clickhouse' AND NOT outbox.is_clickhouse_url(job.source_text) THEN
        RAISE invalid_parameter_value USING MESSAGE = 'clickhouse is not the URL of a ClickHouse table',
            HINT = 'Example: https://clickhouse.example.com:8443/database/table';
    END IF;
    IF job.rate < 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'rate must be at least 1 message in a second', HINT = 'Leave it out for no limit.';
    END IF;
    -- What reads files, calls other servers or runs SQL does so with the server's rights.
    IF (job.source <> 'log' OR job.target_url IS NOT NULL) AND NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = caller) THEN
        RAISE insufficient_privilege USING MESSAGE = 'only a superuser may replay from a query, files or another server, or to another server';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_replay(outbox.replay_job, oid) IS 'an error if the arguments of outbox.replay() make no sense, or are not for the caller';

CREATE FUNCTION outbox.is_nats_url(list text)
RETURNS boolean LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_is_nats_url';
COMMENT ON FUNCTION outbox.is_nats_url(text) IS 'whether a text may be a value of outbox.nats_url';

CREATE FUNCTION outbox.is_clickhouse_url(url text)
RETURNS boolean LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_is_clickhouse_url';
COMMENT ON FUNCTION outbox.is_clickhouse_url(text) IS 'whether a text may be a value of outbox.archive_url';

-- The part of the log in which events of a time range are, so that nothing else is read.
CREATE FUNCTION outbox.positions_between(INOUT from_position bigint, INOUT to_position bigint, from_time timestamptz, to_time timestamptz)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    lo bigint;
    hi bigint;
BEGIN
    -- Numbers that are drawn and not visible yet are no part of it.
    SELECT least(to_position, max(l.position)) INTO to_position FROM outbox.log l;
    IF from_time > '-infinity' OR to_time < 'infinity' THEN
        SELECT min(p), max(p) INTO lo, hi
        FROM (SELECT l.position AS p FROM outbox.log l WHERE l.created_at BETWEEN from_time AND to_time OFFSET 0) found;
        from_position := greatest(from_position, lo);
        to_position := least(to_position, hi);
        IF lo IS NULL THEN
            to_position := from_position - 1;
        END IF;
    END IF;
    to_position := coalesce(to_position, from_position - 1);
END $$;
COMMENT ON FUNCTION outbox.positions_between IS 'narrows a range of positions to where the log has events of a time range';

CREATE FUNCTION outbox.replay_for(
    caller oid, subject text, event_type text, aggregate_type text, aggregate_id text,
    from_time timestamptz, to_time timestamptz, from_position bigint, to_position bigint,
    target_stream text, target_prefix text, target_url text, rate integer,
    query text, archive text, clickhouse text, dry_run boolean,
    OUT batch_id uuid, OUT of_type text, OUT events bigint, OUT bytes bigint, OUT first_position bigint, OUT last_position bigint,
    OUT first_time timestamptz, OUT last_time timestamptz)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    job outbox.replay_job;
    has_target boolean := num_nonnulls(target_stream, target_prefix, target_url) > 0;
BEGIN
    IF num_nonnulls(query, archive, clickhouse) > 1 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'query, archive and clickhouse exclude each other';
    END IF;
    IF NOT dry_run AND NOT has_target THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a replay needs a target',
            HINT = format('Name the stream: target_stream => ''%s''.', current_setting('outbox.stream'));
    END IF;
    job.batch_id := gen_random_uuid();
    job.requested_by := session_user;
    job.requested_at := clock_timestamp();
    job.source := CASE WHEN query IS NOT NULL THEN 'query' WHEN archive IS NOT NULL THEN 'archive' WHEN clickhouse IS NOT NULL THEN 'clickhouse' ELSE 'log' END;
    job.source_text := coalesce(query, archive, clickhouse);
    job.subject := subject; job.event_type := event_type; job.aggregate_type := aggregate_type; job.aggregate_id := aggregate_id;
    job.from_time := coalesce(from_time, '-infinity'); job.to_time := coalesce(to_time, 'infinity');
    job.from_position := coalesce(from_position, 1); job.to_position := coalesce(to_position, 9223372036854775807);
    job.target_url := target_url; job.target_stream := target_stream; job.target_prefix := target_prefix; job.rate := rate;
    job.state := 'queued'; job.done := 0; job.run_done := 0; job.repeated := 0; job.ahead := 0; job.runs := 0; job.position_reached := 0;
    PERFORM outbox.check_replay(job, caller);
    IF job.source = 'log' THEN
        SELECT p.from_position, p.to_position INTO job.from_position, job.to_position
        FROM outbox.positions_between(job.from_position, job.to_position, job.from_time, job.to_time) p;
    END IF;
    IF NOT has_target OR dry_run THEN
        RETURN QUERY SELECT NULL::uuid, s.* FROM outbox.replay_survey(job) s;
        RETURN;
    END IF;
    PERFORM outbox.require_armed();
    INSERT INTO outbox.replay_job SELECT job.*;
    PERFORM outbox.tell_replayers();
    batch_id := job.batch_id;
    RETURN NEXT;
END $$;
COMMENT ON FUNCTION outbox.replay_for IS 'what outbox.replay() does, for a caller whose rights it checks';

CREATE FUNCTION outbox.replay(
    subject text DEFAULT NULL, event_type text DEFAULT NULL, aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL,
    from_time timestamptz DEFAULT NULL, to_time timestamptz DEFAULT NULL, from_position bigint DEFAULT NULL, to_position bigint DEFAULT NULL,
    target_stream text DEFAULT NULL, target_prefix text DEFAULT NULL, target_url text DEFAULT NULL, rate integer DEFAULT NULL,
    query text DEFAULT NULL, archive text DEFAULT NULL, clickhouse text DEFAULT NULL, dry_run boolean DEFAULT NULL,
    OUT batch_id uuid, OUT of_type text, OUT events bigint, OUT bytes bigint, OUT first_position bigint, OUT last_position bigint,
    OUT first_time timestamptz, OUT last_time timestamptz)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_for_caller';
COMMENT ON FUNCTION outbox.replay IS
'sends published events again that match all arguments given (times by created_at, ranges inclusive), in a worker of its own that starts at commit; without a target (target_stream, target_prefix, target_url) or with dry_run it only tells what it would send: a row for all events and one for each type; see docs/replay.md';

CREATE FUNCTION outbox.replay_cancel(batch_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    UPDATE outbox.replay_job j SET state = 'cancelled', finished_at = clock_timestamp()
    WHERE j.batch_id = batch_id AND j.state IN ('queued', 'running', 'stopped');
    IF NOT FOUND THEN
        PERFORM outbox.require_replay(batch_id);
        RETURN false;
    END IF;
    PERFORM outbox.tell_replayers();
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.replay_cancel(uuid) IS 'ends a replay for good; what it has sent stays; false if it has ended already';

CREATE FUNCTION outbox.require_replay(batch_id uuid) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.replay_job j WHERE j.batch_id = batch_id) THEN
        RAISE undefined_object USING MESSAGE = format('there is no replay %s', batch_id), HINT = 'See outbox.replays.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.require_replay(uuid) IS 'an error if there is no such replay';

CREATE FUNCTION outbox.replay_resume(batch_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    job outbox.replay_job;
BEGIN
    PERFORM outbox.require_armed();
    UPDATE outbox.replay_job j SET state = 'queued', finished_at = NULL
    WHERE j.batch_id = batch_id AND j.state IN ('stopped', 'cancelled') RETURNING j.* INTO job;
    IF NOT FOUND THEN
        PERFORM outbox.require_replay(batch_id);
        RETURN false;
    END IF;
    RAISE NOTICE USING MESSAGE = format('the replay goes on behind position %s', job.position_reached),
        DETAIL = format('%s events behind it are stored already and are sent again, under the same Nats-Msg-Id; outbox.replays counts them as repeated.', job.ahead);
    PERFORM outbox.tell_replayers();
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.replay_resume(uuid) IS
'lets a replay that was stopped or cancelled go on behind the position it has reached; a few events may be sent twice, see repeated in outbox.replays; false if it runs or is done';

-- source_text: for superusers, who alone can give one. A URL's password begins at "//" and ends at its last "@".
CREATE VIEW outbox.replays AS
SELECT j.batch_id, j.state, j.requested_by, j.requested_at, j.source,
       CASE WHEN (SELECT r.rolsuper FROM pg_catalog.pg_roles r WHERE r.rolname = current_user)
            THEN CASE j.source WHEN 'clickhouse' THEN pg_catalog.regexp_replace(j.source_text, '//.*@', '//***@') ELSE j.source_text END END AS source_text,
       j.subject, j.event_type, j.aggregate_type, j.aggregate_id,
       nullif(j.from_time, '-infinity') AS from_time, nullif(j.to_time, 'infinity') AS to_time, j.from_position, j.to_position,
       pg_catalog.regexp_replace(j.target_url, '//[^,]*@', '//***@', 'g') AS target_url,
       coalesce(j.target_stream, pg_catalog.current_setting('outbox.stream')) AS target_stream, j.target_prefix, j.rate,
       j.total, j.done, j.repeated, j.runs, j.position_reached, j.time_reached, j.last_error, j.started_at, j.updated_at, j.finished_at
FROM outbox.replay_job j;
COMMENT ON VIEW outbox.replays IS
'all replays that were asked for: source, filters, target, and how far they have come; repeated: messages that were sent once more because a run before had been stopped';

CREATE VIEW outbox.replay_progress AS
SELECT p.batch_id, p.state, p.done, p.total, p.rate,
       CASE WHEN p.state IN ('queued', 'running') AND p.rate > 0
            THEN pg_catalog.make_interval(secs => greatest(p.total - p.done, 0)::double precision / p.rate) END AS eta,
       p.position_reached, p.time_reached, p.repeated, p.last_error, p.updated_at
FROM (SELECT j.*, pg_catalog.round((j.done - j.run_done) / nullif(extract(epoch FROM coalesce(j.finished_at, j.updated_at) - j.started_at), 0), 1) AS speed
      FROM outbox.replay_job j) q,
     LATERAL (SELECT q.batch_id, q.state, q.done, q.total, q.speed AS rate, q.position_reached, q.time_reached, q.repeated, q.last_error, q.updated_at) p;
COMMENT ON VIEW outbox.replay_progress IS
'how far each replay is: events done of total (null: still counting), rate in events per second of the current run, eta, position reached, last error';

INSERT INTO outbox.privileges SELECT 'monitor', 'SELECT', unnest('{replays, replay_progress}'::name[]);
INSERT INTO outbox.privileges SELECT 'operator', 'EXECUTE', unnest('{replay, replay_cancel, replay_resume}'::name[]);
INSERT INTO outbox.privileges SELECT 'owner', 'ALL',
    unnest('{replay_job, subject_matches, subject_of, tell_replayers, replay_query, replay_survey, check_replay, is_nats_url, is_clickhouse_url,
             positions_between, require_replay, replay_for}'::name[]);
