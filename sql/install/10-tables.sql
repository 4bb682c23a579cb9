-- The schema of the extension, made of the parts in sql/install in the order of their names; docs/architecture.md
-- explains the layout. A part with tables says which of them belong into a dump.
\echo Use "CREATE EXTENSION outbox" to load this file. \quit

-- ---------------------------------------------------------------- tables

-- Each part names here what whom may do with its objects; every function and relation must be named. kind: one that
-- outbox.grant_<kind>() and revoke_<kind>() deal with; 'public': everybody; 'owner': nobody else, with privilege ALL.
CREATE TABLE outbox.privileges (
    kind      text   NOT NULL,
    privilege text   NOT NULL,               -- EXECUTE: on all functions of that name; else on a relation
    object    name   NOT NULL,               -- in schema outbox
    columns   name[]                         -- NULL: all
);
COMMENT ON TABLE outbox.privileges IS 'what outbox.grant_producer() and its like grant: the privileges of each kind of role; owner: for nobody else';
INSERT INTO outbox.privileges SELECT 'monitor', 'SELECT', unnest('{privileges, pauses, purges}'::name[]);
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{position, id_key, id_key_changed, ledger, ring, request, request_id_seq}'::name[]);

-- CACHE 1: a cached range would break "position order is commit order" within an aggregate.
CREATE SEQUENCE outbox.position AS bigint CACHE 1;
COMMENT ON SEQUENCE outbox.position IS 'places of events in the log; numbers of rolled-back transactions are never used';

-- Any row is as good as another. A dump and a subscription bring their own beside the one that is made here.
CREATE TABLE outbox.id_key (
    key bigint PRIMARY KEY                   -- see src/event_id.c
);
INSERT INTO outbox.id_key VALUES (1 + (('x' || pg_catalog.left(pg_catalog.replace(pg_catalog.gen_random_uuid()::text, '-', ''), 11))::bit(44))::bigint);
COMMENT ON TABLE outbox.id_key IS 'numbers by chance by which event_ids are made: this database''s, and those of databases whose events it has got by a restore or by replication';
CREATE FUNCTION outbox.id_key_changed() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_id_key_changed';
COMMENT ON FUNCTION outbox.id_key_changed() IS 'trigger of outbox.id_key: sessions read it again';
CREATE TRIGGER outbox_changed AFTER INSERT OR UPDATE OR DELETE ON outbox.id_key FOR EACH ROW EXECUTE FUNCTION outbox.id_key_changed();
ALTER TABLE outbox.id_key ENABLE ALWAYS TRIGGER outbox_changed;

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
    id_given          boolean     NOT NULL,  -- event_id is the caller's; ours tell their position (src/event_id.c)
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
-- Concerns nobody but tenants; without policies, as after a restore, they see nothing.
ALTER TABLE outbox.log ENABLE ROW LEVEL SECURITY;
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
        EXECUTE pg_catalog.format('CREATE UNIQUE INDEX log_%1$s_event ON outbox.log_%1$s (event_id) WHERE id_given', i);
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
-- How many there are, and the last one.
CREATE INDEX delivery_state ON outbox.delivery (state, failed_at) INCLUDE (agg_hash) WHERE state <> 'd';
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
-- There is no key to tell rows by in a publication of all tables.
ALTER TABLE outbox.pauses REPLICA IDENTITY FULL;
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

DO $$
BEGIN
    FOR i IN 0..7 LOOP
        -- one call per statement: two in one fail
        PERFORM pg_catalog.pg_extension_config_dump(('outbox.log_' || i)::pg_catalog.regclass, '');
        PERFORM pg_catalog.pg_extension_config_dump(('outbox.ledger_' || i)::pg_catalog.regclass, '');
    END LOOP;
END $$;
SELECT pg_catalog.pg_extension_config_dump('outbox.position', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.id_key', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.ring', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.delivery', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.watermark', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.request', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.request_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.pauses', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.purges', '');
