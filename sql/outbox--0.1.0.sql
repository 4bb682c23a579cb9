-- outbox 0.1.0: schema of the extension. docs/architecture.md explains the layout.
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

-- ---------------------------------------------------------------- tables

-- CACHE 1: a cached range would break "position order is commit order" within an aggregate.
CREATE SEQUENCE outbox.position AS bigint CACHE 1;
COMMENT ON SEQUENCE outbox.position IS 'places of events in the log; numbers of rolled-back transactions are never used';

-- The log holds every event, in append-only children; this parent never holds a row.
CREATE TABLE outbox.log (
    position          bigint      NOT NULL,
    agg_hash          bigint      NOT NULL,  -- 64-bit hash of (aggregate_type, aggregate_id)
    event_id          uuid        NOT NULL,
    occurred_at       timestamptz NOT NULL,
    created_at        timestamptz NOT NULL,
    not_before        timestamptz,
    aggregate_version bigint,
    follows           bigint,                -- position of the same transaction's event before it in this aggregate
    priority          smallint    NOT NULL,
    payload_kind      "char"      NOT NULL,  -- j: jsonb, t: text, x: bytea
    aggregate_type    text        NOT NULL,
    aggregate_id      text        NOT NULL,
    event_type        text        NOT NULL,
    subject           text,
    content_type      text,
    dataschema        text,
    headers           text,                  -- canonical jsonb text
    payload           bytea       NOT NULL
);
-- Empty as the table is: without it the planner can't merge the children by position.
CREATE INDEX log_position ON outbox.log (position);
COMMENT ON TABLE outbox.log IS 'the events, insert-only; read it through outbox.events';

-- Which positions are terminal, and since when: one row per settled batch and
-- bucket of 1,024 positions. bits NULL: all of lo..hi; else bit n (least
-- significant first) stands for position bucket * 1024 + lo + n.
CREATE TABLE outbox.ledger (
    bucket     bigint      NOT NULL,
    settled_at timestamptz NOT NULL,
    epoch      bigint      NOT NULL,         -- of the relay that settled: rises with each relay that starts
    relay      smallint    NOT NULL,         -- its number
    lo         smallint    NOT NULL,
    hi         smallint    NOT NULL,
    bits       bytea
);
COMMENT ON TABLE outbox.ledger IS 'positions known to be published, insert-only, one row per settled batch and bucket of 1,024 positions';

-- A ring of children, so that retention is a TRUNCATE of a log child and its
-- ledger twin. All are made here: children made at run time would be missing
-- from dumps.
DO $$
DECLARE
    lz4 boolean := EXISTS (SELECT FROM pg_catalog.pg_settings
                           WHERE name = 'default_toast_compression' AND 'lz4' = ANY (enumvals));
BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE pg_catalog.format('CREATE TABLE outbox.log_%s () INHERITS (outbox.log) WITH (
            autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 500000,
            autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 500000,
            autovacuum_freeze_min_age = 0)', i);
        IF lz4 THEN
            EXECUTE pg_catalog.format('ALTER TABLE outbox.log_%s ALTER payload SET COMPRESSION lz4', i);
        END IF;
        EXECUTE pg_catalog.format('CREATE UNIQUE INDEX log_%1$s_position ON outbox.log_%1$s (position)', i);
        EXECUTE pg_catalog.format('CREATE UNIQUE INDEX log_%1$s_event ON outbox.log_%1$s (event_id)', i);
        EXECUTE pg_catalog.format('CREATE INDEX log_%1$s_aggregate ON outbox.log_%1$s (agg_hash, position)', i);
        EXECUTE pg_catalog.format('CREATE INDEX log_%1$s_created ON outbox.log_%1$s USING brin (created_at)', i);

        EXECUTE pg_catalog.format('COMMENT ON TABLE outbox.log_%1$s IS %2$L', i, 'child ' || i || ' of outbox.log');

        EXECUTE pg_catalog.format('CREATE TABLE outbox.ledger_%s () INHERITS (outbox.ledger) WITH (
            autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
            autovacuum_freeze_min_age = 0)', i);
        EXECUTE pg_catalog.format('ALTER TABLE outbox.ledger_%s ALTER bits SET STORAGE PLAIN', i);
        EXECUTE pg_catalog.format('CREATE INDEX ledger_%1$s_bucket ON outbox.ledger_%1$s (bucket)', i);
        EXECUTE pg_catalog.format('COMMENT ON TABLE outbox.ledger_%1$s IS %2$L', i, 'child ' || i || ' of outbox.ledger');
    END LOOP;
END $$;

-- One row per child in use; the one with the highest generation takes new events. Without a row that is child 0: a
-- dump brings its own rows, so the script makes none.
CREATE TABLE outbox.ring (
    child         smallint    PRIMARY KEY CHECK (child BETWEEN 0 AND 7),
    generation    bigint      NOT NULL,
    opened_at     timestamptz NOT NULL,
    closed_at     timestamptz,               -- since then it takes no more events, but of transactions that were open
    last_position bigint                     -- no event above it is in there; NULL: it may still get some
);
COMMENT ON TABLE outbox.ring IS 'the children of the log that are in use, in the order in which they took new events';

-- Only events that failed at least once, or that an operator has dealt with.
CREATE TABLE outbox.delivery (
    position        bigint      PRIMARY KEY,
    agg_hash        bigint      NOT NULL,
    -- r: to be retried; d: published in the end; dead letters: f: its successors go on, b: they wait for it,
    -- p: parked, as are they; x: discarded
    state           "char"      NOT NULL CHECK (state IN ('r', 'd', 'f', 'b', 'p', 'x')),
    attempts        integer     NOT NULL,
    next_attempt_at timestamptz,
    last_code       integer     NOT NULL,          -- JetStream's err_code; 0: the error came from elsewhere
    last_error      text        NOT NULL,
    failed_at       timestamptz,
    discarded_at    timestamptz,
    discarded_by    name,
    discard_reason  text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX delivery_aggregate ON outbox.delivery (agg_hash, position) WHERE state <> 'd';
CREATE INDEX delivery_open ON outbox.delivery (position) WHERE state IN ('r', 'b');
COMMENT ON TABLE outbox.delivery IS 'attempts, last error and fate of events that failed at least once or were discarded';

-- What the relay is to do for operators; gone once it is done.
CREATE TABLE outbox.request (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- r: take up a redriven event, p: a parked aggregate from a position on, x: discard an event
    kind         "char"      NOT NULL CHECK (kind IN ('r', 'p', 'x')),
    agg_hash     bigint      NOT NULL,
    position     bigint      NOT NULL,
    reason       text,
    requested_by name        NOT NULL DEFAULT session_user,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500, vacuum_truncate = off);
COMMENT ON SEQUENCE outbox.request_id_seq IS 'order in which requests are taken up';
COMMENT ON TABLE outbox.request IS 'requests of outbox.redrive() and outbox.discard() that the relay has not taken up yet';

CREATE TABLE outbox.pauses (
    aggregate_type text,
    subject        text,
    reason         text,
    paused_by      name        NOT NULL DEFAULT session_user,
    paused_at      timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE UNIQUE INDEX pauses_of ON outbox.pauses ((aggregate_type IS NULL), coalesce(aggregate_type, ''), (subject IS NULL), coalesce(subject, ''));
COMMENT ON TABLE outbox.pauses IS 'what outbox.pause() has paused: all events (no type, no subject), an aggregate type, or the subjects that match';

-- Everything at or below max(position) is terminal. Append and trim: a row that is updated would bloat under a held snapshot.
CREATE TABLE outbox.watermark (
    position bigint PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE outbox.watermark IS 'every position at or below the highest one here is terminal';

-- What retention has removed: one row for each range.
CREATE TABLE outbox.purges (
    at             timestamptz NOT NULL DEFAULT clock_timestamp(),
    run            bigint      NOT NULL,          -- the same for all ranges that went together
    child          smallint    NOT NULL,
    generation     bigint      NOT NULL,
    first_position bigint,
    last_position  bigint,
    events         bigint      NOT NULL,          -- removed
    bytes          bigint      NOT NULL,
    carried_over   bigint      NOT NULL,          -- events that were kept, in the current child
    oldest         timestamptz,                   -- when the first event was enqueued
    newest         timestamptz                    -- when the last one was published
);
CREATE INDEX purges_generation ON outbox.purges (generation);
COMMENT ON TABLE outbox.purges IS 'what retention and outbox.purge() have removed: one row for each range';

-- ------------------------------------------------------------- functions

CREATE FUNCTION outbox.enqueue(
    aggregate_type text, aggregate_id text, event_type text, payload jsonb,
    headers jsonb DEFAULT NULL, subject text DEFAULT NULL, event_id uuid DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, not_before timestamptz DEFAULT NULL,
    content_type text DEFAULT NULL, dataschema text DEFAULT NULL, aggregate_version bigint DEFAULT NULL,
    on_conflict text DEFAULT 'error')
RETURNS uuid LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue';
COMMENT ON FUNCTION outbox.enqueue IS
'adds an event to the current transaction and returns its event_id; the payload arrives as the canonical text of the jsonb value';

CREATE FUNCTION outbox.enqueue_text(
    aggregate_type text, aggregate_id text, event_type text, payload text,
    headers jsonb DEFAULT NULL, subject text DEFAULT NULL, event_id uuid DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, not_before timestamptz DEFAULT NULL,
    content_type text DEFAULT NULL, dataschema text DEFAULT NULL, aggregate_version bigint DEFAULT NULL,
    on_conflict text DEFAULT 'error')
RETURNS uuid LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_text';
COMMENT ON FUNCTION outbox.enqueue_text IS
'like outbox.enqueue, with a text payload that arrives byte for byte (content_type application/json unless given)';

CREATE FUNCTION outbox.enqueue_bytes(
    aggregate_type text, aggregate_id text, event_type text, payload bytea,
    headers jsonb DEFAULT NULL, subject text DEFAULT NULL, event_id uuid DEFAULT NULL,
    occurred_at timestamptz DEFAULT NULL, priority integer DEFAULT 0, not_before timestamptz DEFAULT NULL,
    content_type text DEFAULT NULL, dataschema text DEFAULT NULL, aggregate_version bigint DEFAULT NULL,
    on_conflict text DEFAULT 'error')
RETURNS uuid LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_bytes';
COMMENT ON FUNCTION outbox.enqueue_bytes IS
'like outbox.enqueue, with a bytea payload that arrives byte for byte (content_type application/octet-stream unless given)';

CREATE FUNCTION outbox.enqueue_many(
    aggregate_type text[], aggregate_id text[], event_type text[], payload jsonb[],
    headers jsonb[] DEFAULT NULL, subject text[] DEFAULT NULL, event_id uuid[] DEFAULT NULL,
    occurred_at timestamptz[] DEFAULT NULL, priority integer[] DEFAULT NULL, not_before timestamptz[] DEFAULT NULL,
    content_type text[] DEFAULT NULL, dataschema text[] DEFAULT NULL, aggregate_version bigint[] DEFAULT NULL,
    on_conflict text DEFAULT 'error')
RETURNS uuid[] LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_enqueue_many';
COMMENT ON FUNCTION outbox.enqueue_many IS
'adds one event per array element, in array order, and returns their event_ids; an array of one element holds for all events';

CREATE FUNCTION outbox.status(
    OUT database name, OUT pid integer, OUT state text, OUT since timestamptz, OUT server text, OUT stream text,
    OUT backlog bigint, OUT oldest_pending_age interval, OUT in_flight bigint, OUT published bigint, OUT last_error text,
    OUT relay integer, OUT slots integer)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_status';
COMMENT ON FUNCTION outbox.status() IS
'one row per relay, from shared memory; backlog is exact once the relay has read everything, an upper bound before; slots: how many of the 64 shares of the aggregates are its own';

CREATE FUNCTION outbox.in_flight_positions()
RETURNS SETOF bigint LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_in_flight_positions';
COMMENT ON FUNCTION outbox.in_flight_positions() IS
'positions of this database that relays have handed to the broker and not recorded as published yet';

CREATE FUNCTION outbox.settled_at("position" bigint)
RETURNS timestamptz LANGUAGE c STABLE STRICT PARALLEL SAFE COST 2 AS 'MODULE_PATHNAME', 'outbox_settled_at';
COMMENT ON FUNCTION outbox.settled_at(bigint) IS 'when the position was recorded as published; NULL if it is not';

CREATE FUNCTION outbox.aggregate_hash(aggregate_type text, aggregate_id text)
RETURNS bigint LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE AS 'MODULE_PATHNAME', 'outbox_aggregate_hash';
COMMENT ON FUNCTION outbox.aggregate_hash(text, text) IS 'the agg_hash of an aggregate''s events, by which they are indexed';

-- ------------------------------------------------------------------ view

-- One scan of the log, so that ORDER BY position LIMIT n stays an index scan;
-- settled_at() reads the ledger a bucket at a time.
CREATE VIEW outbox.events AS
SELECT l.position, l.event_id, l.aggregate_type, l.aggregate_id, l.event_type, l.subject,
       CASE WHEN l.payload_kind = 'j' THEN pg_catalog.convert_from(l.payload, 'UTF8')::jsonb END AS payload,
       CASE WHEN l.payload_kind = 't' THEN pg_catalog.convert_from(l.payload, pg_catalog.getdatabaseencoding()) END AS payload_text,
       CASE WHEN l.payload_kind = 'x' THEN l.payload END AS payload_bytes,
       l.headers::jsonb AS headers, l.occurred_at, l.created_at, l.priority::integer AS priority, l.not_before,
       l.content_type, l.dataschema, l.aggregate_version,
       CASE WHEN d.state IN ('f', 'b', 'p', 'x') THEN 'failed'
            WHEN d.state IS DISTINCT FROM 'r' AND outbox.settled_at(l.position) IS NOT NULL THEN 'published'
            WHEN d.state IS DISTINCT FROM 'r' AND l.position <= (SELECT pg_catalog.max(w.position) FROM outbox.watermark w) THEN 'published'
            WHEN l.position IN (SELECT p FROM outbox.in_flight_positions() p) THEN 'processing'
            ELSE 'pending' END AS publish_state,
       CASE WHEN d.state IN ('r', 'f', 'b', 'p', 'x') THEN NULL ELSE outbox.settled_at(l.position) END AS published_at,
       coalesce(d.attempts, CASE WHEN outbox.settled_at(l.position) IS NOT NULL THEN 1 ELSE 0 END) AS attempts,
       d.next_attempt_at, d.last_error, l.agg_hash
FROM outbox.log l
LEFT JOIN outbox.delivery d ON d.position = l.position;
COMMENT ON VIEW outbox.events IS
'one row per event still kept, with its publish_state; INSERT enqueues (payload, payload_text or payload_bytes), UPDATE and DELETE are refused';

CREATE FUNCTION outbox.history(aggregate_type text, aggregate_id text)
RETURNS SETOF outbox.events LANGUAGE sql STABLE PARALLEL UNSAFE
BEGIN ATOMIC
    SELECT * FROM outbox.events e
    WHERE e.agg_hash = outbox.aggregate_hash($1, $2) AND e.aggregate_type = $1 AND e.aggregate_id = $2;
END;
COMMENT ON FUNCTION outbox.history(text, text) IS 'the events of one aggregate, through an index';

CREATE FUNCTION outbox.events_insert() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_events_insert';
CREATE FUNCTION outbox.events_refuse() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_events_refuse';
COMMENT ON FUNCTION outbox.events_insert() IS 'trigger of outbox.events: an INSERT enqueues';
COMMENT ON FUNCTION outbox.events_refuse() IS 'trigger of outbox.events: refuses UPDATE and DELETE';
CREATE TRIGGER insert_enqueues INSTEAD OF INSERT ON outbox.events FOR EACH ROW EXECUTE FUNCTION outbox.events_insert();
CREATE TRIGGER refuse INSTEAD OF UPDATE OR DELETE ON outbox.events FOR EACH ROW EXECUTE FUNCTION outbox.events_refuse();

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
        WHERE (event_id IS NULL OR d.event_id = event_id)
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
        WHERE l.event_id = event_id AND (aggregate_type IS NULL OR l.aggregate_type = aggregate_type)
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

-- -------------------------------------------- relays outside the server

CREATE FUNCTION outbox.claim(
    max_events integer DEFAULT 100, wait interval DEFAULT '0',
    OUT "position" bigint, OUT event_id uuid, OUT aggregate_type text, OUT aggregate_id text, OUT event_type text,
    OUT subject text, OUT headers jsonb, OUT payload bytea, OUT attempts integer)
RETURNS SETOF record LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_claim';
COMMENT ON FUNCTION outbox.claim IS
'gives this session up to max_events events to publish, each the head of an aggregate of its share; waits for a first one; see docs/outside-relays.md';

CREATE FUNCTION outbox.settle(positions bigint[]) RETURNS integer LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_settle';
COMMENT ON FUNCTION outbox.settle(bigint[]) IS
'records events that this session has claimed as published; returns how many of the positions those were';

CREATE FUNCTION outbox.fail("position" bigint, error text, code integer DEFAULT 0, permanent boolean DEFAULT false, counts boolean DEFAULT true)
RETURNS boolean LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_fail';
COMMENT ON FUNCTION outbox.fail IS
'records that a claimed event could not be published: it is retried with back-off, or a dead letter if permanent or after outbox.max_attempts; counts false: the broker''s fault; false if it isn''t claimed';

CREATE FUNCTION outbox.renew() RETURNS timestamptz LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_renew';
COMMENT ON FUNCTION outbox.renew() IS
'begins the session''s lease anew and returns its end; an error if it was lost, and with it all that was claimed';

CREATE FUNCTION outbox.release() RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp SET row_security = off AS 'MODULE_PATHNAME', 'outbox_release';
COMMENT ON FUNCTION outbox.release() IS 'gives back the session''s share of the aggregates and what it has claimed; its end does the same';

CREATE FUNCTION outbox.error_counts(OUT class text, OUT count bigint)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_error_counts';
COMMENT ON FUNCTION outbox.error_counts() IS
'failed attempts to publish in this database since the server started, by class of error (see docs/delivery.md)';

-- ------------------------------------------------------------- retention

CREATE FUNCTION outbox.range_keeps_dead(child integer, before timestamptz, dead_before timestamptz)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A scalar sub-select: by index, whatever statistics say.
    RETURN QUERY EXECUTE format('SELECT d.position FROM outbox.delivery d WHERE (d.state IN (''r'', ''b'', ''p'')
         OR d.state = ''f'' AND (d.failed_at > $2) IS NOT FALSE OR d.state = ''x'' AND d.discarded_at > $1)
        AND (SELECT true FROM outbox.log_%s l WHERE l.position = d.position)', child) USING before, dead_before;
END $$;
COMMENT ON FUNCTION outbox.range_keeps_dead(integer, timestamptz, timestamptz) IS
'positions of a range that have failed and must not be removed: retried, blocked, parked, dead letters and discarded events that are too young';

CREATE FUNCTION outbox.range_keeps(child integer, before timestamptz, dead_before timestamptz, max_rows integer)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT k FROM outbox.range_keeps_dead($1, $2, $3) k UNION ALL
        SELECT l.position FROM outbox.log_%s l
        WHERE l.position > (SELECT coalesce(max(w.position), 0) FROM outbox.watermark w)
          AND outbox.settled_at(l.position) IS NULL
          AND (SELECT true FROM outbox.delivery d WHERE d.position = l.position) IS NULL
        LIMIT $4', child) USING child, before, dead_before, max_rows;
END $$;
COMMENT ON FUNCTION outbox.range_keeps(integer, timestamptz, timestamptz, integer) IS
'positions of a range that must not be removed: pending events, and those of range_keeps_dead(); max_rows of them';

CREATE FUNCTION outbox.range_figures(
    child integer, OUT first_position bigint, OUT last_position bigint, OUT events bigint, OUT bytes bigint,
    OUT oldest timestamptz, OUT newest timestamptz)
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT count(*), min(position), max(position),
        (SELECT created_at FROM outbox.log_%1$s ORDER BY position LIMIT 1), (SELECT max(settled_at) FROM outbox.ledger_%1$s),
        pg_total_relation_size(''outbox.log_%1$s'') + pg_total_relation_size(''outbox.ledger_%1$s'') FROM outbox.log_%1$s', child)
    INTO events, first_position, last_position, oldest, newest, bytes;
END $$;
COMMENT ON FUNCTION outbox.range_figures(integer) IS 'what a range holds, counted';

CREATE FUNCTION outbox.range_survey(
    child integer, before timestamptz, dead_before timestamptz, max_kept integer, as_if_closed boolean DEFAULT false,
    OUT newest timestamptz, OUT kept bigint, OUT reason text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    closed timestamptz;
    sealed boolean;
    positions bigint[];
    size bigint;
BEGIN
    SELECT r.closed_at, r.last_position IS NOT NULL INTO closed, sealed FROM outbox.ring r WHERE r.child = child;
    EXECUTE format('SELECT max(settled_at) FROM outbox.ledger_%s', child) INTO newest;
    IF closed IS NULL AND NOT as_if_closed THEN
        reason := 'it takes new events';
    ELSIF before IS NULL THEN
        reason := 'outbox.retention is off';
    ELSIF coalesce(newest, closed, clock_timestamp()) > before THEN
        reason := 'its newest event was published at ' || coalesce(newest, closed, clock_timestamp());
    ELSIF NOT sealed AND NOT as_if_closed THEN
        reason := 'a transaction that may have written into it is open, or it is in use';
    ELSE
        SELECT array_agg(k) INTO positions FROM outbox.range_keeps(child, before, dead_before, max_kept) k;
        kept := coalesce(cardinality(positions), 0);
        EXECUTE format('SELECT sum(octet_length(payload)) FROM outbox.log_%s WHERE position = ANY ($1)', child) INTO size USING positions;
        IF kept >= max_kept OR size > 67108864 THEN
            reason := format('too much of it must be kept: %s events that are pending, blocked or dead letters', CASE WHEN kept >= max_kept THEN kept || ' or more' ELSE kept::text END);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.range_survey IS
'why a range can''t be removed (reason NULL: it can), when its newest event was published, and how many events would be kept';

CREATE FUNCTION outbox.retention_cutoffs(OUT before timestamptz, OUT dead_before timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN current_setting('outbox.retention') <> '-1' THEN clock_timestamp() - current_setting('outbox.retention')::interval END,
           CASE WHEN current_setting('outbox.dead_letter_retention') <> '-1'
                THEN clock_timestamp() - current_setting('outbox.dead_letter_retention')::interval ELSE '-infinity' END;
END;
COMMENT ON FUNCTION outbox.retention_cutoffs() IS 'published, and dead letters, up to when outbox.retention and outbox.dead_letter_retention let go';

CREATE FUNCTION outbox.ranges(
    OUT child integer, OUT generation bigint, OUT opened_at timestamptz, OUT closed_at timestamptz, OUT oldest timestamptz,
    OUT newest timestamptz, OUT bytes bigint, OUT kept_because text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    r record;
BEGIN
    FOR r IN SELECT g.*, c.before, least(c.dead_before, c.before) AS dead_before
             FROM (SELECT t.child, t.generation, t.opened_at, t.closed_at FROM outbox.ring t
                   UNION ALL SELECT 0, 1, NULL, NULL WHERE NOT EXISTS (SELECT FROM outbox.ring)) g, outbox.retention_cutoffs() c
             ORDER BY g.generation LOOP
        child := r.child; generation := r.generation; opened_at := r.opened_at; closed_at := r.closed_at;
        EXECUTE format('SELECT (SELECT created_at FROM outbox.log_%1$s ORDER BY position LIMIT 1),
            pg_total_relation_size(''outbox.log_%1$s'') + pg_total_relation_size(''outbox.ledger_%1$s'')', child) INTO oldest, bytes;
        SELECT s.newest, coalesce(s.reason, 'it will go soon') INTO newest, kept_because
        FROM outbox.range_survey(child, r.before, r.dead_before, 10000) s;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.ranges() IS
'the ranges of events that are kept, oldest first: since when, when their newest event was published, their size, and why they aren''t removed; outbox.purges says what was';

CREATE FUNCTION outbox.run_cleaner(before timestamptz) RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_run_cleaner';
COMMENT ON FUNCTION outbox.run_cleaner(timestamptz) IS 'starts the cleaner and waits for its end; outbox.purge() calls it';

CREATE FUNCTION outbox.purge(
    older_than interval DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT false,
    OUT action text, OUT child integer, OUT events bigint, OUT bytes bigint, OUT carried_over bigint, OUT first_position bigint,
    OUT last_position bigint, OUT oldest timestamptz, OUT newest timestamptz, OUT reason text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    cutoffs record;
    marked bigint;
    r record;
BEGIN
    cutoffs := outbox.retention_cutoffs();
    IF num_nonnulls(older_than, before) = 2 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'older_than and before exclude each other';
    END IF;
    IF older_than < '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'older_than must not be negative';
    END IF;
    IF before > clock_timestamp() THEN
        RAISE invalid_parameter_value USING MESSAGE = 'before must not be in the future';
    END IF;
    IF dry_run IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'dry_run must not be null';
    END IF;
    before := coalesce(before, clock_timestamp() - older_than, cutoffs.before);
    IF before IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'outbox.retention is off, so it must be said what to remove',
            HINT = 'Give older_than or before.';
    END IF;
    IF NOT dry_run THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE feature_not_supported USING MESSAGE = 'events can only be purged at isolation level READ COMMITTED',
                HINT = 'A preview (dry_run => true) is possible.';
        END IF;
        marked := outbox.run_cleaner(before);
    END IF;
    FOR r IN SELECT p.* FROM outbox.purges p WHERE p.run = marked ORDER BY p.generation LOOP
        action := 'removed'; child := r.child; events := r.events; bytes := r.bytes; carried_over := r.carried_over;
        first_position := r.first_position; last_position := r.last_position; oldest := r.oldest; newest := r.newest;
        RETURN NEXT;
    END LOOP;
    FOR r IN SELECT g.child AS number, s.kept, s.reason AS why, f.*
             FROM (SELECT t.child::integer, t.generation FROM outbox.ring t
                   UNION ALL SELECT 0, 1 WHERE NOT EXISTS (SELECT FROM outbox.ring)) g,
                  outbox.range_survey(g.child, before, least(cutoffs.dead_before, before), 10000, dry_run) s,
                  outbox.range_figures(g.child) f
             WHERE f.events > 0 ORDER BY g.generation LOOP
        action := CASE WHEN dry_run AND r.why IS NULL THEN 'would be removed' ELSE 'kept' END;
        child := r.number; bytes := r.bytes; first_position := r.first_position; last_position := r.last_position;
        oldest := r.oldest; newest := r.newest;
        carried_over := CASE WHEN r.why IS NULL AND dry_run THEN r.kept END;
        events := r.events - coalesce(carried_over, 0);
        reason := CASE WHEN r.why IS NULL AND NOT dry_run THEN 'another session is using it, or it changed just now' ELSE r.why END;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.purge IS
'removes published events now instead of after outbox.retention: ranges whose events were all published up to a time (before, or older_than ago); dry_run only tells what it would do; one row for each range, with the reason why one is kept';

-- ------------------------------------------------------------ privileges

-- Nothing for PUBLIC that writes or that shows data; EXECUTE on the enqueue
-- functions (or INSERT on outbox.events) is the privilege to enqueue.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC;
-- Called from within outbox.events with the rights of whoever reads the view; shows numbers and times only.
GRANT EXECUTE ON FUNCTION outbox.in_flight_positions(), outbox.settled_at(bigint), outbox.aggregate_hash(text, text) TO PUBLIC;

-- ------------------------------------------------------------------ dump

-- One call per statement: two in one SELECT fail.
SELECT pg_catalog.pg_extension_config_dump('outbox.position', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_0', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_1', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_2', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_3', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_4', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_5', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_6', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.log_7', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_0', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_1', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_2', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_3', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_4', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_5', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_6', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ledger_7', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ring', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.watermark', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.request', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.request_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.pauses', '');
