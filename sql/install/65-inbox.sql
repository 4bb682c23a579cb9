-- ---------------------------------------------------------------- inbox

-- What consumers have accepted: INSERT, and DELETE in bounded steps (outbox.inbox_sweep). The primary key is the only
-- index: who accepts first is its business, and old rows are found by going through the pages. COLLATE "C": a new
-- version of the system's collations must not break it.
CREATE TABLE outbox.inbox (
    accepted_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    event_id    uuid NOT NULL,
    consumer    text COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, event_id)
) WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 500000,
        autovacuum_vacuum_scale_factor = 0.05, autovacuum_freeze_min_age = 0);
COMMENT ON TABLE outbox.inbox IS 'the events that each consumer has accepted; a row goes when the consumer''s retention is over';

-- A row per consumer and aggregate, updated in place: no index but the key, so that an update touches none.
CREATE TABLE outbox.inbox_version (
    version        bigint NOT NULL,
    event_id       uuid,
    consumer       text COLLATE "C" NOT NULL,
    aggregate_type text COLLATE "C" NOT NULL,
    aggregate_id   text COLLATE "C" NOT NULL,
    PRIMARY KEY (consumer, aggregate_type, aggregate_id)
) WITH (fillfactor = 70);
COMMENT ON TABLE outbox.inbox_version IS
'the last version of each aggregate that a consumer has accepted by outbox.inbox_accept_version(), and by which event';

CREATE TABLE outbox.inbox_consumer (
    consumer     text COLLATE "C" PRIMARY KEY,
    retention    interval,
    stream_age   interval,
    retry_cap    interval,
    replay_range interval
);
COMMENT ON TABLE outbox.inbox_consumer IS 'what outbox.inbox_configure() was told of consumers';

SELECT pg_catalog.pg_extension_config_dump('outbox.inbox', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.inbox_version', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.inbox_consumer', '');

CREATE FUNCTION outbox.note_inbox(now boolean) RETURNS void LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'outbox_note_inbox';
COMMENT ON FUNCTION outbox.note_inbox(boolean) IS 'tells the launcher that there is an inbox to be swept when it is time, or now';

CREATE FUNCTION outbox.check_inbox_arguments(consumer text, has_null boolean) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF has_null OR consumer IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'the arguments must not be null',
            DETAIL = 'An answer to nothing would be null, which is easily taken for "duplicate".';
    ELSIF octet_length(consumer) NOT BETWEEN 1 AND 255 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'a consumer''s name has 1 to 255 bytes';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_inbox_arguments(text, boolean) IS 'errors that all functions of the inbox share';

CREATE FUNCTION outbox.inbox_accept(consumer text, event_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    IF (octet_length(consumer) BETWEEN 1 AND 255 AND event_id IS NOT NULL) IS NOT TRUE THEN
        PERFORM outbox.check_inbox_arguments(consumer, event_id IS NULL);
    END IF;
    INSERT INTO outbox.inbox (consumer, event_id) VALUES (consumer, event_id) ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM outbox.note_inbox(false);
        RETURN true;
    END IF;
    RETURN false;
END $$;
COMMENT ON FUNCTION outbox.inbox_accept(text, uuid) IS
'true for a consumer''s first transaction with that event that commits: call it where the event is processed, and process it only then; false for a duplicate; waits for an open transaction that has accepted the same; above READ COMMITTED 40001 instead of an answer that the snapshot can''t show';

CREATE FUNCTION outbox.inbox_accept_many(consumer text, event_ids uuid[]) RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    accepted boolean[];
BEGIN
    PERFORM outbox.check_inbox_arguments(consumer, event_ids IS NULL OR array_position(event_ids, NULL) IS NOT NULL);
    WITH given AS MATERIALIZED (
        SELECT u.id, u.n, row_number() OVER (PARTITION BY u.id ORDER BY u.n) = 1 AS is_first
        FROM unnest(event_ids) WITH ORDINALITY u (id, n)
    ), added AS (
        -- In one order whatever the order given: batches that overlap wait for each other, and never in a circle.
        INSERT INTO outbox.inbox AS i (consumer, event_id)
        SELECT consumer, g.id FROM given g WHERE g.is_first ORDER BY g.id
        ON CONFLICT DO NOTHING RETURNING i.event_id AS id
    )
    SELECT array_agg(g.is_first AND a.id IS NOT NULL ORDER BY g.n) INTO accepted
    FROM given g LEFT JOIN added a ON a.id = g.id;
    PERFORM outbox.note_inbox(false);
    RETURN coalesce(accepted, '{}');
END $$;
COMMENT ON FUNCTION outbox.inbox_accept_many(text, uuid[]) IS
'outbox.inbox_accept() for a batch: an answer for each id, in the order given; of an id that is given twice the first may be new; batches in different orders don''t deadlock';

CREATE FUNCTION outbox.inbox_accept_version(
    consumer text, event_id uuid, aggregate_type text, aggregate_id text, version bigint, dense boolean DEFAULT false)
RETURNS text LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    last record;
    missing boolean;
BEGIN
    PERFORM outbox.check_inbox_arguments(consumer, num_nulls(event_id, aggregate_type, aggregate_id, version, dense) > 0);
    -- The aggregate's row is the lock: who comes second sees what the first has left.
    LOOP
        SELECT v.version, v.event_id INTO last FROM outbox.inbox_version v
        WHERE v.consumer = consumer AND v.aggregate_type = aggregate_type AND v.aggregate_id = aggregate_id FOR UPDATE;
        EXIT WHEN FOUND;
        IF dense AND version > 1 THEN
            missing := true;
            EXIT;
        END IF;
        INSERT INTO outbox.inbox_version (consumer, aggregate_type, aggregate_id, version, event_id)
        VALUES (consumer, aggregate_type, aggregate_id, version, event_id) ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN CASE WHEN outbox.inbox_accept(consumer, event_id) THEN 'new' ELSE 'duplicate' END;
        END IF;
    END LOOP;
    missing := coalesce(missing, dense AND version > last.version + 1);
    IF missing OR event_id = last.event_id OR version < last.version OR dense AND version = last.version THEN
        RETURN CASE WHEN event_id = last.event_id OR EXISTS (
                        SELECT FROM outbox.inbox i WHERE i.consumer = consumer AND i.event_id = event_id) THEN 'duplicate'
                    WHEN missing THEN 'gap' ELSE 'stale' END;
    END IF;
    IF NOT outbox.inbox_accept(consumer, event_id) THEN
        RETURN 'duplicate';
    END IF;
    UPDATE outbox.inbox_version v SET version = version, event_id = event_id
    WHERE v.consumer = consumer AND v.aggregate_type = aggregate_type AND v.aggregate_id = aggregate_id;
    RETURN 'new';
END $$;
COMMENT ON FUNCTION outbox.inbox_accept_version IS
'outbox.inbox_accept() that also knows the aggregate''s version, or position: new, duplicate, stale (older than the last one accepted); dense: versions begin with 0 or 1 and none is left out, so gap when one before it hasn''t been accepted, and nothing is recorded; see outbox.inbox_set_version()';

CREATE FUNCTION outbox.inbox_set_version(consumer text, aggregate_type text, aggregate_id text, version bigint) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    PERFORM outbox.check_inbox_arguments(consumer, num_nulls(aggregate_type, aggregate_id) > 0);
    IF version IS NULL THEN
        DELETE FROM outbox.inbox_version v
        WHERE v.consumer = consumer AND v.aggregate_type = aggregate_type AND v.aggregate_id = aggregate_id;
    ELSE
        INSERT INTO outbox.inbox_version AS v (consumer, aggregate_type, aggregate_id, version)
        VALUES (consumer, aggregate_type, aggregate_id, version)
        ON CONFLICT ON CONSTRAINT inbox_version_pkey DO UPDATE SET version = EXCLUDED.version, event_id = NULL;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.inbox_set_version(text, text, text, bigint) IS
'says which version of an aggregate a consumer has, for instance after it has loaded a copy, or to pass over a gap; null: none';

CREATE FUNCTION outbox.inbox_forget(consumer text) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    forgotten bigint;
BEGIN
    PERFORM outbox.check_inbox_arguments(consumer, false);
    DELETE FROM outbox.inbox_version v WHERE v.consumer = consumer;
    DELETE FROM outbox.inbox_consumer c WHERE c.consumer = consumer;
    DELETE FROM outbox.inbox i WHERE i.consumer = consumer;
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END $$;
COMMENT ON FUNCTION outbox.inbox_forget(text) IS
'forgets all about a consumer, who would get every event as new from then on; returns how many events it had accepted';

-- ------------------------------------------------- retention of the inbox

CREATE FUNCTION outbox.inbox_default_retention() RETURNS interval LANGUAGE sql IMMUTABLE
BEGIN ATOMIC SELECT '30 days'::interval; END;
COMMENT ON FUNCTION outbox.inbox_default_retention() IS 'how long the inbox remembers an event for consumers without a retention of their own';

-- What a consumer wasn't told of, this database's own settings say; they speak for themselves when it publishes, too.
CREATE FUNCTION outbox.inbox_warning(retention interval, stream_age interval, retry_cap interval, replay_range interval) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    retention := coalesce(retention, outbox.inbox_default_retention());
    retry_cap := coalesce(retry_cap, current_setting('outbox.retry_max_delay', true)::interval);
    replay_range := coalesce(replay_range, nullif(current_setting('outbox.retention', true), '-1')::interval);
    RETURN concat_ws('; ',
        CASE WHEN retention < stream_age THEN format('the stream keeps messages for %s', stream_age) END,
        CASE WHEN retention < retry_cap THEN format('an event may be sent again after %s', retry_cap) END,
        CASE WHEN retention < replay_range THEN format('events of the last %s can be replayed', replay_range) END);
END $$;
COMMENT ON FUNCTION outbox.inbox_warning IS 'why a retention is too short: what may come a second time after it; empty if it isn''t';

CREATE FUNCTION outbox.inbox_configure(
    consumer text, retention interval DEFAULT NULL, stream_age interval DEFAULT NULL, retry_cap interval DEFAULT NULL,
    replay_range interval DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    c record;
    reason text;
BEGIN
    PERFORM outbox.check_inbox_arguments(consumer, false);
    IF least(retention, stream_age, retry_cap, replay_range) <= '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'times must be positive';
    END IF;
    INSERT INTO outbox.inbox_consumer AS t (consumer, retention, stream_age, retry_cap, replay_range)
    VALUES (consumer, retention, stream_age, retry_cap, replay_range)
    ON CONFLICT ON CONSTRAINT inbox_consumer_pkey DO UPDATE SET
        retention = coalesce(EXCLUDED.retention, t.retention), stream_age = coalesce(EXCLUDED.stream_age, t.stream_age),
        retry_cap = coalesce(EXCLUDED.retry_cap, t.retry_cap), replay_range = coalesce(EXCLUDED.replay_range, t.replay_range)
    RETURNING t.retention, t.stream_age, t.retry_cap, t.replay_range INTO c;
    reason := outbox.inbox_warning(c.retention, c.stream_age, c.retry_cap, c.replay_range);
    IF reason <> '' THEN
        RAISE WARNING USING MESSAGE = format('the inbox of consumer "%s" may take a repetition for new', consumer),
            DETAIL = format('It remembers an event for %s, but %s.', coalesce(c.retention, outbox.inbox_default_retention()), reason),
            HINT = 'Raise the consumer''s retention.';
    END IF;
    PERFORM outbox.note_inbox(true);
END $$;
COMMENT ON FUNCTION outbox.inbox_configure IS
'sets how long the inbox remembers a consumer''s events (30 days unless said here; null: as it is), and what that must cover: how long the stream keeps messages, after what time a producer may send an event again (outbox.retry_max_delay), how far back it can replay (outbox.retention); warns if it doesn''t';

-- The consumers are found by jumping from one to the next in the index.
CREATE VIEW outbox.inbox_consumers AS
WITH RECURSIVE found (consumer) AS (
    (SELECT i.consumer FROM outbox.inbox i ORDER BY i.consumer LIMIT 1)
    UNION ALL
    SELECT (SELECT i.consumer FROM outbox.inbox i WHERE i.consumer OPERATOR(pg_catalog.>) f.consumer ORDER BY i.consumer LIMIT 1)
    FROM found f WHERE f.consumer IS NOT NULL
)
SELECT consumer, coalesce(c.retention, outbox.inbox_default_retention()) AS retention, c.stream_age, c.retry_cap, c.replay_range,
       nullif(outbox.inbox_warning(c.retention, c.stream_age, c.retry_cap, c.replay_range), '') AS warning
FROM (SELECT f.consumer FROM found f WHERE f.consumer IS NOT NULL) n
FULL JOIN outbox.inbox_consumer c USING (consumer);
COMMENT ON VIEW outbox.inbox_consumers IS
'the consumers that have used the inbox or are configured: for how long their events are remembered, and why that is too short (warning)';

-- A step of the cleaner's: bounded by pages, whatever is in them. Nothing to find old rows by is kept for it.
CREATE FUNCTION outbox.inbox_sweep(first_page bigint, pages integer) RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    now timestamptz := clock_timestamp();
    until timestamptz;
    swept bigint;
BEGIN
    SELECT now - least(outbox.inbox_default_retention(), min(c.retention)) INTO until FROM outbox.inbox_consumer c;
    DELETE FROM outbox.inbox i
    WHERE i.ctid >= format('(%s,0)', first_page)::tid AND i.ctid < format('(%s,0)', first_page + pages)::tid
      AND i.accepted_at < until
      AND i.accepted_at < now - coalesce((SELECT least(c.retention, '1000 years') FROM outbox.inbox_consumer c
                                          WHERE c.consumer = i.consumer), outbox.inbox_default_retention());
    GET DIAGNOSTICS swept = ROW_COUNT;
    RETURN swept;
END $$;
COMMENT ON FUNCTION outbox.inbox_sweep(bigint, integer) IS
'removes from so many pages of outbox.inbox what its consumer''s retention lets go; returns the number of rows';

CREATE FUNCTION outbox.inbox_sweep_plan(OUT pages bigint, OUT again_after integer)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_relation_size('outbox.inbox') / current_setting('block_size')::integer,
           greatest(5, least(3600, extract(epoch FROM least(outbox.inbox_default_retention(), min(c.retention))) / 8))::integer
    FROM outbox.inbox_consumer c;
END;
COMMENT ON FUNCTION outbox.inbox_sweep_plan() IS 'the pages of outbox.inbox that are to be swept, and seconds until the next time';

INSERT INTO outbox.privileges SELECT 'consumer', 'EXECUTE',
    unnest('{inbox_accept, inbox_accept_many, inbox_accept_version, inbox_set_version}'::name[]);
INSERT INTO outbox.privileges SELECT 'operator', 'EXECUTE', unnest('{inbox_configure, inbox_forget}'::name[]);
-- The functions are called from within the view with the rights of whoever reads it.
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'inbox_consumers'), ('monitor', 'EXECUTE', 'inbox_default_retention'), ('monitor', 'EXECUTE', 'inbox_warning');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL',
    unnest('{inbox, inbox_version, inbox_consumer, note_inbox, check_inbox_arguments, inbox_sweep, inbox_sweep_plan}'::name[]);
