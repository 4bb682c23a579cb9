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

-- The child with the highest generation takes new events; generation 0: unused.
CREATE TABLE outbox.ring (
    child      smallint PRIMARY KEY CHECK (child BETWEEN 0 AND 7),
    generation bigint   NOT NULL,
    opened_at  timestamptz
);
COMMENT ON TABLE outbox.ring IS 'which child of the log takes new events';
INSERT INTO outbox.ring
SELECT i, CASE WHEN i = 0 THEN 1 ELSE 0 END, CASE WHEN i = 0 THEN now() END FROM pg_catalog.generate_series(0, 7) i;

-- Only events that failed at least once.
CREATE TABLE outbox.delivery (
    position        bigint PRIMARY KEY,
    state           "char"      NOT NULL CHECK (state IN ('r', 'd')),  -- r: to be retried, d: published in the end
    attempts        integer     NOT NULL,
    next_attempt_at timestamptz,
    last_code       integer     NOT NULL,
    last_error      text        NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500,
        autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
CREATE INDEX delivery_open ON outbox.delivery (position) WHERE state = 'r';
COMMENT ON TABLE outbox.delivery IS 'attempts and last error of events that were refused at least once';

-- Everything at or below max(position) is terminal. Append and trim: a row that is updated would bloat under a held snapshot.
CREATE TABLE outbox.watermark (
    position bigint PRIMARY KEY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
COMMENT ON TABLE outbox.watermark IS 'every position at or below the highest one here is terminal';

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
       CASE WHEN d.state = 'r' THEN 'pending'
            WHEN outbox.settled_at(l.position) IS NOT NULL THEN 'published'
            WHEN l.position <= (SELECT pg_catalog.max(w.position) FROM outbox.watermark w) THEN 'published'
            WHEN l.position IN (SELECT p FROM outbox.in_flight_positions() p) THEN 'processing'
            ELSE 'pending' END AS publish_state,
       CASE WHEN d.state = 'r' THEN NULL ELSE outbox.settled_at(l.position) END AS published_at,
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
SELECT pg_catalog.pg_extension_config_dump('outbox.delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.watermark', '');
