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

CREATE FUNCTION outbox.positions_in(event_id uuid) RETURNS bigint[] LANGUAGE c STABLE STRICT AS 'MODULE_PATHNAME', 'outbox_positions_in';
COMMENT ON FUNCTION outbox.positions_in(uuid) IS 'the positions that an event_id may tell, one for each row of outbox.id_key; any numbers if it wasn''t made by one of them';

CREATE FUNCTION outbox.position_of(event_id uuid) RETURNS bigint
LANGUAGE sql STABLE STRICT SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.position FROM outbox.log l WHERE l.position = ANY ((SELECT outbox.positions_in($1))::bigint[]) AND l.event_id = $1
    UNION ALL
    SELECT l.position FROM outbox.log l WHERE l.event_id = $1 AND l.id_given
    LIMIT 1
$$;
COMMENT ON FUNCTION outbox.position_of(uuid) IS 'the position of an event by its event_id, by index; NULL: there is none';

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

INSERT INTO outbox.privileges SELECT 'producer', 'EXECUTE', unnest('{enqueue, enqueue_text, enqueue_bytes, enqueue_many}'::name[]);
INSERT INTO outbox.privileges VALUES ('producer', 'INSERT', 'events');
INSERT INTO outbox.privileges VALUES ('reader', 'SELECT', 'events'), ('reader', 'EXECUTE', 'history');
INSERT INTO outbox.privileges VALUES ('monitor', 'EXECUTE', 'status'), ('monitor', 'EXECUTE', 'position_of'), ('reader', 'EXECUTE', 'position_of');
-- All but payload and headers.
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'events',
    '{position, event_id, aggregate_type, aggregate_id, event_type, subject, occurred_at, created_at, priority, not_before, content_type,
      dataschema, aggregate_version, publish_state, published_at, attempts, next_attempt_at, last_error, agg_hash}');
-- Called from within outbox.events with the rights of whoever reads the view; they show numbers and times only.
INSERT INTO outbox.privileges SELECT 'public', 'EXECUTE', unnest('{in_flight_positions, settled_at, aggregate_hash}'::name[]);
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{events_insert, events_refuse, positions_in}'::name[]);
