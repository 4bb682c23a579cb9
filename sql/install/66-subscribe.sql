-- ------------------------------------------- consumers inside the database

CREATE TYPE outbox.message AS (
    event_id          uuid,
    event_type        text,
    aggregate_type    text,
    aggregate_id      text,
    aggregate_version bigint,
    payload           jsonb,
    data              bytea,
    headers           jsonb,
    subject           text,
    stream            text,
    stream_sequence   bigint,
    published_at      timestamptz,
    attempt           integer
);
COMMENT ON TYPE outbox.message IS
'what the handler of a subscription gets: identity and aggregate from the CloudEvents headers, the payload as JSON (null if it isn''t) and as it came (data), all headers, and where and when the stream has stored it';

-- A copy of this database has the rows, too, and takes no messages until outbox.arm().
CREATE TABLE outbox.subscription (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    revision     integer NOT NULL DEFAULT 1,     -- raised when anything of it changes
    stream       text COLLATE "C" NOT NULL,
    durable      text COLLATE "C" NOT NULL,
    subject      text NOT NULL,                  -- '': all
    handler      text NOT NULL,
    run_as       name NOT NULL,
    from_time    timestamptz,                    -- what was in the stream then is not wanted; null: all is
    ordered      boolean NOT NULL,
    max_attempts integer NOT NULL,
    ack_wait     interval NOT NULL,
    batch_size   integer NOT NULL,
    paused       boolean NOT NULL DEFAULT false,
    UNIQUE (stream, durable)
);
COMMENT ON TABLE outbox.subscription IS 'what outbox.subscribe() was told; read it through outbox.subscriptions';

-- The truth of what is done; the durable consumer's own acknowledgements follow it.
CREATE TABLE outbox.subscription_position (
    subscription      integer PRIMARY KEY,
    stream_created_ns bigint NOT NULL,
    stream_sequence   bigint NOT NULL
) WITH (fillfactor = 10, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE outbox.subscription_position IS 'up to which message of the stream everything is done';

CREATE TABLE outbox.subscription_failure (
    subscription    integer NOT NULL,
    stream_sequence bigint NOT NULL,
    attempts        integer NOT NULL,
    last_error      text NOT NULL,
    failed_at       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    PRIMARY KEY (subscription, stream_sequence)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0);
COMMENT ON TABLE outbox.subscription_failure IS 'messages whose handling has failed and is tried again';

CREATE TABLE outbox.parked_message (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription    integer NOT NULL,
    retry           boolean NOT NULL DEFAULT false,
    message         outbox.message NOT NULL,
    error_code      text NOT NULL,
    last_error      text NOT NULL,
    attempts        integer NOT NULL,
    parked_at       timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
);
CREATE INDEX parked_message_subscription ON outbox.parked_message (subscription) WHERE retry;
COMMENT ON TABLE outbox.parked_message IS 'messages that were given up after too many attempts; read it through outbox.parked_messages';

COMMENT ON SEQUENCE outbox.subscription_id_seq IS 'numbers of subscriptions';
COMMENT ON SEQUENCE outbox.parked_message_id_seq IS 'numbers of parked messages';

SELECT pg_catalog.pg_extension_config_dump('outbox.subscription', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.subscription_id_seq', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.subscription_position', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.subscription_failure', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.parked_message', '');
SELECT pg_catalog.pg_extension_config_dump('outbox.parked_message_id_seq', '');

CREATE FUNCTION outbox.tell_consumers(changed boolean) RETURNS void LANGUAGE c VOLATILE STRICT AS 'MODULE_PATHNAME', 'outbox_tell_consumers';
COMMENT ON FUNCTION outbox.tell_consumers(boolean) IS
'when the transaction commits, the launcher looks at outbox.subscription (changed), or consumers look at outbox.parked_message';

-- A restore, a subscription and plain SQL don't call tell_consumers().
CREATE FUNCTION outbox.subscription_changed() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_subscription_changed';
COMMENT ON FUNCTION outbox.subscription_changed() IS
'trigger of outbox.subscription: when the transaction commits, the launcher looks at the table, whoever has changed it';
CREATE TRIGGER outbox_changed AFTER INSERT OR UPDATE OR DELETE ON outbox.subscription FOR EACH ROW EXECUTE FUNCTION outbox.subscription_changed();
ALTER TABLE outbox.subscription ENABLE ALWAYS TRIGGER outbox_changed;

CREATE FUNCTION outbox.subscription_states(
    OUT id integer, OUT pid integer, OUT state text, OUT since timestamptz, OUT server text, OUT applied bigint, OUT duplicates bigint,
    OUT failures bigint, OUT parked bigint, OUT held bigint, OUT pending bigint, OUT last_error text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_subscription_states';
COMMENT ON FUNCTION outbox.subscription_states() IS 'what shared memory knows of this database''s subscriptions; counters since the server started';

-- May the one run code as the other? An error if there is no such role.
CREATE FUNCTION outbox.may_act_as(caller oid, role name) RETURNS boolean LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- since 16 a member may be one that can't SET ROLE
    SELECT pg_has_role($1, $2, CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END);
END;
COMMENT ON FUNCTION outbox.may_act_as(oid, name) IS 'whether a role may become another one';

CREATE FUNCTION outbox.subscribe_for(
    caller oid, stream text, durable text, handler regproc, subject text, from_now boolean, ordered boolean,
    max_attempts integer, ack_wait interval, batch_size integer, run_as name)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    f record;
BEGIN
    IF num_nulls(stream, durable, handler, from_now, ordered, max_attempts, ack_wait, batch_size) > 0 THEN
        RAISE null_value_not_allowed USING MESSAGE = 'only subject and run_as may be null';
    END IF;
    IF stream !~ '^[!-~]{1,255}$' OR stream ~ '[.*>/\\]' OR durable !~ '^[!-~]{1,255}$' OR durable ~ '[.*>/\\]'
        OR length(stream) + length(durable) > 250 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'streams and consumers have names of ASCII characters without blanks, dots, wildcards and slashes',
            DETAIL = 'Both together have at most 250.';
    END IF;
    IF subject ~ '[[:space:]]' OR subject ~ '(^|\.)(\.|$)' OR length(subject) > 1024 THEN
        RAISE invalid_parameter_value USING MESSAGE = format('"%s" is not a subject', subject);
    END IF;
    IF max_attempts < 1 OR batch_size NOT BETWEEN 1 AND 1000 OR ack_wait NOT BETWEEN '1 s' AND '1 hour' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'an argument is out of its range',
            DETAIL = 'max_attempts: 1 and more; batch_size: 1 to 1000; ack_wait: 1 second to 1 hour.';
    END IF;
    run_as := coalesce(run_as, (SELECT r.rolname FROM pg_roles r WHERE r.oid = caller));
    IF NOT outbox.may_act_as(caller, run_as) THEN
        RAISE insufficient_privilege USING MESSAGE = format('must be a member of role "%s" to let it handle messages', run_as);
    END IF;
    IF NOT (SELECT r.rolcanlogin FROM pg_roles r WHERE r.rolname = run_as) THEN
        RAISE invalid_authorization_specification USING MESSAGE = format('role "%s" can''t log in, so it can''t handle messages', run_as),
            HINT = 'The handler runs in a session of that role. Choose another one by run_as.';
    END IF;
    SELECT p.*, n.nspname INTO f FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE p.oid = handler;
    IF f.prokind <> 'f' OR f.pronargs <> 1 OR f.proargtypes[0] <> 'outbox.message'::regtype THEN
        RAISE invalid_function_definition USING MESSAGE = format('%s is not a handler', handler),
            HINT = 'A handler is a function with one argument of type outbox.message.';
    END IF;
    IF NOT has_function_privilege(run_as, handler::oid, 'EXECUTE') OR NOT has_schema_privilege(run_as, f.pronamespace, 'USAGE') THEN
        RAISE insufficient_privilege USING MESSAGE = format('role "%s" may not execute %s', run_as, handler);
    END IF;
    INSERT INTO outbox.subscription AS s (stream, durable, subject, handler, run_as, from_time, ordered, max_attempts, ack_wait, batch_size)
    VALUES (stream, durable, coalesce(subject, ''), format('%I.%I', f.nspname, f.proname), run_as,
            CASE WHEN from_now THEN clock_timestamp() END, ordered,
            max_attempts, ack_wait, batch_size)
    ON CONFLICT ON CONSTRAINT subscription_stream_durable_key DO UPDATE SET
        revision = s.revision + 1, subject = EXCLUDED.subject, handler = EXCLUDED.handler, run_as = EXCLUDED.run_as,
        ordered = EXCLUDED.ordered, max_attempts = EXCLUDED.max_attempts, ack_wait = EXCLUDED.ack_wait, batch_size = EXCLUDED.batch_size,
        paused = false
        WHERE outbox.may_act_as(caller, s.run_as);
    IF NOT FOUND THEN
        RAISE insufficient_privilege USING MESSAGE = 'the subscription belongs to another role';
    END IF;
    PERFORM outbox.tell_consumers(true);
    IF outbox.not_armed_because() IS NOT NULL THEN
        RAISE NOTICE USING MESSAGE = 'messages will be taken once outbox is armed in this database',
            HINT = 'See outbox.arm().';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.subscribe_for IS 'what outbox.subscribe() does, for a caller whose rights it checks';

CREATE FUNCTION outbox.subscribe(
    stream text, durable text, handler regproc, subject text DEFAULT NULL, from_now boolean DEFAULT false, ordered boolean DEFAULT true,
    max_attempts integer DEFAULT 10, ack_wait interval DEFAULT '30 s', batch_size integer DEFAULT 100, run_as name DEFAULT NULL)
RETURNS void LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_for_caller';
COMMENT ON FUNCTION outbox.subscribe IS
'lets a function of this database handle the messages of a stream, each with exactly one effect: a worker gets them by a durable consumer, which it makes, and runs handler(outbox.message) and the inbox in one transaction, as the caller or run_as; ordered: an aggregate''s messages one after the other, also when one must be repeated; after max_attempts a message is parked; called again it changes the subscription';

CREATE FUNCTION outbox.own_subscription(caller oid, stream text, durable text) RETURNS integer
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    s record;
BEGIN
    SELECT t.* INTO s FROM outbox.subscription t WHERE t.stream = stream AND t.durable = durable;
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('there is no subscription of consumer "%s" to stream "%s"', durable, stream);
    END IF;
    -- Whose role has gone is a superuser's.
    IF NOT coalesce((SELECT outbox.may_act_as(caller, r.rolname) FROM pg_roles r WHERE r.rolname = s.run_as),
                    (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = caller)) THEN
        RAISE insufficient_privilege USING MESSAGE = 'the subscription belongs to another role';
    END IF;
    RETURN s.id;
END $$;
COMMENT ON FUNCTION outbox.own_subscription(oid, text, text) IS 'the id of a subscription that the caller may change; else an error';

CREATE FUNCTION outbox.unsubscribe_for(caller oid, stream text, durable text, forget boolean) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    own integer := outbox.own_subscription(caller, stream, durable);
BEGIN
    IF forget THEN
        DELETE FROM outbox.parked_message p WHERE p.subscription = own;
        PERFORM outbox.inbox_forget(stream || '/' || durable);
    ELSIF EXISTS (SELECT FROM outbox.parked_message p WHERE p.subscription = own) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'the subscription has parked messages',
            HINT = 'Deal with them by outbox.retry_parked() or outbox.discard_parked(), or say forget => true.';
    END IF;
    DELETE FROM outbox.subscription_position p WHERE p.subscription = own;
    DELETE FROM outbox.subscription_failure p WHERE p.subscription = own;
    DELETE FROM outbox.subscription s WHERE s.id = own;
    PERFORM outbox.tell_consumers(true);
END $$;
COMMENT ON FUNCTION outbox.unsubscribe_for IS 'what outbox.unsubscribe() does, for a caller whose rights it checks';

CREATE FUNCTION outbox.unsubscribe(stream text, durable text, forget boolean DEFAULT false) RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_for_caller';
COMMENT ON FUNCTION outbox.unsubscribe IS
'ends a subscription; the stream''s durable consumer stays, and the inbox remembers its events, unless forget, which gives up parked messages, too';

CREATE FUNCTION outbox.pause_subscription_for(caller oid, stream text, durable text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    UPDATE outbox.subscription s SET paused = true WHERE s.id = outbox.own_subscription(caller, stream, durable) AND NOT s.paused;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM outbox.tell_consumers(true);
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.pause_subscription_for IS 'what outbox.pause_subscription() does, for a caller whose rights it checks';

CREATE FUNCTION outbox.pause_subscription(stream text, durable text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_for_caller';
COMMENT ON FUNCTION outbox.pause_subscription(text, text) IS 'stops handling messages, which wait in the stream; false if it was stopped already';

CREATE FUNCTION outbox.resume_subscription_for(caller oid, stream text, durable text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    UPDATE outbox.subscription s SET paused = false, revision = s.revision + 1
    WHERE s.id = outbox.own_subscription(caller, stream, durable) AND s.paused;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM outbox.tell_consumers(true);
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.resume_subscription_for IS 'what outbox.resume_subscription() does, for a caller whose rights it checks';

CREATE FUNCTION outbox.resume_subscription(stream text, durable text) RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_for_caller';
COMMENT ON FUNCTION outbox.resume_subscription(text, text) IS 'ends a pause; false if there was none';

CREATE VIEW outbox.subscriptions AS
SELECT s.stream, s.durable, nullif(s.subject, '') AS subject, s.handler, s.run_as, s.ordered, s.max_attempts, s.ack_wait, s.batch_size,
       CASE WHEN s.paused THEN 'paused' ELSE coalesce(w.state, 'not running') END AS state, w.since, w.pid, w.server,
       p.stream_sequence AS position, w.pending, w.held, w.applied, w.duplicates, w.failures, w.parked,
       coalesce(w.last_error, (SELECT f.last_error FROM outbox.subscription_failure f WHERE f.subscription = s.id ORDER BY f.failed_at DESC LIMIT 1)) AS last_error
FROM outbox.subscription s
LEFT JOIN outbox.subscription_states() w ON w.id = s.id
LEFT JOIN outbox.subscription_position p ON p.subscription = s.id;
COMMENT ON VIEW outbox.subscriptions IS
'the subscriptions of this database: what they are, state and since when, everything up to position of the stream is done, pending behind what was received, held in memory; applied, duplicates, failures and parked count since the server started';

CREATE VIEW outbox.parked_messages AS
SELECT p.id, s.stream, s.durable, (p.message).stream_sequence, (p.message).event_id, (p.message).event_type, (p.message).aggregate_type,
       (p.message).aggregate_id, (p.message).subject, (p.message).headers, (p.message).payload, (p.message).data, (p.message).published_at,
       p.attempts, p.error_code, p.last_error, p.parked_at, p.retry
FROM outbox.parked_message p JOIN outbox.subscription s ON s.id = p.subscription;
COMMENT ON VIEW outbox.parked_messages IS
'messages that handlers failed on too often; retry: about to be handled once more';

CREATE VIEW outbox.own_parked_messages WITH (security_barrier) AS
SELECT p.* FROM outbox.parked_messages p
WHERE EXISTS (SELECT FROM outbox.subscription s JOIN pg_catalog.pg_roles r ON r.rolname = s.run_as
              WHERE s.stream = p.stream AND s.durable = p.durable AND pg_catalog.pg_has_role(r.oid, 'USAGE'));
COMMENT ON VIEW outbox.own_parked_messages IS 'like outbox.parked_messages, for consumers: those of subscriptions whose role the reader is, or is a member of';

CREATE FUNCTION outbox.retry_parked_for(caller oid, stream text, durable text, id bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    own integer := outbox.own_subscription(caller, stream, durable);
    chosen bigint;
BEGIN
    UPDATE outbox.parked_message p SET retry = true WHERE p.subscription = own AND (id IS NULL OR p.id = id) AND NOT p.retry;
    GET DIAGNOSTICS chosen = ROW_COUNT;
    PERFORM outbox.tell_consumers(false);
    RETURN chosen;
END $$;
COMMENT ON FUNCTION outbox.retry_parked_for IS 'what outbox.retry_parked() does, for a caller whose rights it checks';

CREATE FUNCTION outbox.retry_parked(stream text, durable text, id bigint DEFAULT NULL) RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_for_caller';
COMMENT ON FUNCTION outbox.retry_parked IS
'lets a subscription''s worker handle parked messages once more, all or one, in the order in which they were parked and behind what was handled meanwhile; returns how many';

CREATE FUNCTION outbox.discard_parked_for(caller oid, stream text, durable text, id bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    own integer := outbox.own_subscription(caller, stream, durable);
    chosen bigint;
BEGIN
    DELETE FROM outbox.parked_message p WHERE p.subscription = own AND (id IS NULL OR p.id = id);
    GET DIAGNOSTICS chosen = ROW_COUNT;
    RETURN chosen;
END $$;
COMMENT ON FUNCTION outbox.discard_parked_for IS 'what outbox.discard_parked() does, for a caller whose rights it checks';

CREATE FUNCTION outbox.discard_parked(stream text, durable text, id bigint DEFAULT NULL) RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_for_caller';
COMMENT ON FUNCTION outbox.discard_parked IS 'gives parked messages of a subscription up, all or one; returns how many';

-- ------------------------------------------------- what a consumer calls

CREATE FUNCTION outbox.consumer_position(subscription integer, stream_created_ns bigint, stream_sequence bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.subscription_position VALUES ($1, $2, $3)
    ON CONFLICT (subscription) DO UPDATE SET stream_created_ns = EXCLUDED.stream_created_ns, stream_sequence = EXCLUDED.stream_sequence;
END;
COMMENT ON FUNCTION outbox.consumer_position(integer, bigint, bigint) IS 'a consumer''s: everything up to that message is done';

CREATE FUNCTION outbox.consumer_failed(subscription integer, stream_sequence bigint, counts boolean, error text) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.subscription_failure AS f (subscription, stream_sequence, attempts, last_error) VALUES ($1, $2, $3::integer, $4)
    ON CONFLICT (subscription, stream_sequence) DO UPDATE
    SET attempts = f.attempts + EXCLUDED.attempts, last_error = EXCLUDED.last_error, failed_at = EXCLUDED.failed_at;
END;
COMMENT ON FUNCTION outbox.consumer_failed(integer, bigint, boolean, text) IS 'a consumer''s: one more attempt has failed, or is about to begin';

CREATE FUNCTION outbox.consumer_recovered(subscription integer, stream_sequence bigint) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.subscription_failure f WHERE f.subscription = $1 AND f.stream_sequence = $2;
END;
COMMENT ON FUNCTION outbox.consumer_recovered(integer, bigint) IS 'a consumer''s: the message is done, or parked';

CREATE FUNCTION outbox.handler_is_usable(role oid, handler text) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(bool_and(has_function_privilege($1, p.oid, 'EXECUTE') AND has_schema_privilege($1, p.pronamespace, 'USAGE')), false)
    FROM pg_proc p WHERE p.oid = to_regprocedure($2 || '(outbox.message)');
END;
COMMENT ON FUNCTION outbox.handler_is_usable(oid, text) IS 'a consumer''s: whether its handler exists and the role may call it';

CREATE FUNCTION outbox.consumer_park(subscription integer, consumer text, message outbox.message, attempts integer, error_code text, error text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    -- As if it were done: a repetition is a duplicate.
    IF outbox.inbox_accept(consumer, message.event_id) THEN
        INSERT INTO outbox.parked_message (subscription, message, attempts, error_code, last_error)
        VALUES (subscription, message, attempts, error_code, error);
    END IF;
    PERFORM outbox.consumer_recovered(subscription, message.stream_sequence);
END $$;
COMMENT ON FUNCTION outbox.consumer_park IS 'a consumer''s: gives a message up';

INSERT INTO outbox.privileges SELECT 'consumer', 'EXECUTE',
    unnest('{subscribe, unsubscribe, pause_subscription, resume_subscription, retry_parked, discard_parked}'::name[]);
INSERT INTO outbox.privileges VALUES ('consumer', 'SELECT', 'own_parked_messages'), ('reader', 'SELECT', 'parked_messages');
-- subscription_states() is called from within the view with the rights of whoever reads it.
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'subscriptions'), ('monitor', 'EXECUTE', 'subscription_states');
-- All but headers, payload and data.
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'parked_messages',
    '{id, stream, durable, stream_sequence, event_id, event_type, aggregate_type, aggregate_id, subject, published_at, attempts, error_code,
      last_error, parked_at, retry}');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL',
    unnest('{subscription, subscription_id_seq, subscription_position, subscription_failure, parked_message, parked_message_id_seq, tell_consumers, subscription_changed,
             may_act_as, own_subscription, subscribe_for, unsubscribe_for, pause_subscription_for, resume_subscription_for,
             retry_parked_for, discard_parked_for, consumer_position, consumer_failed, consumer_recovered, handler_is_usable, consumer_park}'::name[]);
