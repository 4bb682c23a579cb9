-- -------------------------------------------------------------- identity

-- Which database this is. A dump carries the row, so that a restored database has one too many; a template's copy has one
-- that isn't its own. See src/standing.c.
CREATE TABLE outbox.identity (
    database oid         NOT NULL,           -- 0: of no database, so that this one isn't armed; note says why
    system   bigint      NOT NULL,           -- of pg_control_system(): the cluster
    major    integer     NOT NULL,           -- PostgreSQL's version when the row was written: pg_upgrade makes another system
    armed_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp(),
    armed_by name        NOT NULL DEFAULT session_user,
    note     text
);
-- Without a key: nothing that a restore brings may be refused.
ALTER TABLE outbox.identity REPLICA IDENTITY FULL;
COMMENT ON TABLE outbox.identity IS 'the database that events may be published from; one that finds another row here, or more than its own, is a copy: see outbox.arm()';

CREATE FUNCTION outbox.identify() RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
    DELETE FROM outbox.identity;
    INSERT INTO outbox.identity (database, system, major)
    SELECT d.oid, s.system_identifier, current_setting('server_version_num')::integer / 10000
    FROM pg_database d, pg_control_system() s WHERE d.datname = current_database();
$$;
COMMENT ON FUNCTION outbox.identify() IS 'part of outbox.arm(): writes outbox.identity anew';
SELECT outbox.identify();
SELECT pg_catalog.pg_extension_config_dump('outbox.identity', '');

CREATE FUNCTION outbox.not_armed_because() RETURNS text LANGUAGE c STABLE AS 'MODULE_PATHNAME', 'outbox_not_armed_because';
COMMENT ON FUNCTION outbox.not_armed_because() IS
'why nothing is published from this database, replayed, consumed or removed until outbox.arm(); null: it is armed';

CREATE FUNCTION outbox.require_armed() RETURNS void LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'outbox_require_armed';
COMMENT ON FUNCTION outbox.require_armed() IS 'an error if this database is not armed, or if library and SQL objects have different versions';

CREATE FUNCTION outbox.tell_armed() RETURNS void LANGUAGE c VOLATILE AS 'MODULE_PATHNAME', 'outbox_tell_armed';
COMMENT ON FUNCTION outbox.tell_armed() IS 'when the transaction commits, all processes of this database look at outbox.identity, and begin afresh';

-- Whoever fills the log but enqueue() and the cleaner, which fire no trigger, makes this database a copy: a restore,
-- a subscription. With the data, so that nobody ever sees them in an armed database.
CREATE FUNCTION outbox.log_loaded() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_log_loaded';
COMMENT ON FUNCTION outbox.log_loaded() IS 'trigger of the log: events that are not enqueued here are those of another database, so this one is not armed any more';
DO $$
DECLARE
    target text;
BEGIN
    FOREACH target IN ARRAY ARRAY['log_0', 'log_1', 'log_2', 'log_3', 'log_4', 'log_5', 'log_6', 'log_7', 'ring'] LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER outbox_loaded AFTER INSERT ON outbox.%I FOR EACH STATEMENT EXECUTE FUNCTION outbox.log_loaded()', target);
        EXECUTE pg_catalog.format('ALTER TABLE outbox.%I ENABLE ALWAYS TRIGGER outbox_loaded', target);
        -- Logical replication fires triggers of rows only.
        EXECUTE pg_catalog.format('CREATE TRIGGER outbox_replicated AFTER INSERT ON outbox.%I FOR EACH ROW
            WHEN (pg_catalog.current_setting(''session_replication_role'') OPERATOR(pg_catalog.=) ''replica'')
            EXECUTE FUNCTION outbox.log_loaded()', target);
        EXECUTE pg_catalog.format('ALTER TABLE outbox.%I ENABLE ALWAYS TRIGGER outbox_replicated', target);
    END LOOP;
END $$;

CREATE FUNCTION outbox.arm() RETURNS boolean LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    reason text;
    writer name;
    item record;
    highest bigint;
BEGIN
    -- Waits for those who are just loading something.
    LOCK TABLE outbox.identity IN SHARE ROW EXCLUSIVE MODE;
    reason := outbox.not_armed_because();
    IF reason IS NULL THEN
        RETURN false;
    END IF;
    SELECT s.subname INTO writer FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid JOIN pg_class c ON c.oid = r.srrelid
    WHERE s.subenabled AND c.relnamespace = 'outbox'::regnamespace AND c.relname ~ '^log_[0-7]$' LIMIT 1;
    IF FOUND THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('subscription "%s" writes into the log', writer),
            DETAIL = 'What comes by it would be published by both sides, or missed here.',
            HINT = format('ALTER SUBSCRIPTION %I DISABLE, or drop it, once the other side publishes no more.', writer);
    END IF;
    -- Numbers that are in use: sequences aren't replicated.
    FOR item IN
        SELECT s.oid::regclass AS sequence, t.oid::regclass AS "table", a.attname AS "column"
        FROM pg_class s JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = s.oid AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'i'
        JOIN pg_class t ON t.oid = d.refobjid JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = d.refobjsubid
        WHERE s.relkind = 'S' AND s.relnamespace = 'outbox'::regnamespace
        UNION ALL SELECT 'outbox.position'::regclass, 'outbox.log'::regclass, 'position'
    LOOP
        EXECUTE format('SELECT max(%I) FROM %s', item."column", item."table") INTO highest;
        CONTINUE WHEN highest <= coalesce(pg_sequence_last_value(item.sequence), 0) IS NOT FALSE;
        EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', item."table");
        PERFORM setval(item.sequence, greatest(highest, pg_sequence_last_value(item.sequence)));
    END LOOP;
    -- A data-only restore disables all triggers, and then enables them in another way.
    FOR item IN SELECT g.tgrelid::regclass AS "table", g.tgname FROM pg_trigger g JOIN pg_class c ON c.oid = g.tgrelid
        WHERE c.relnamespace = 'outbox'::regnamespace AND g.tgname IN ('outbox_loaded', 'outbox_replicated', 'outbox_changed') AND g.tgenabled <> 'A'
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', item."table", item.tgname);
    END LOOP;
    UPDATE outbox.replay_job SET state = 'stopped', last_error = 'begun in the database that this one is a copy of'
    WHERE state IN ('queued', 'running');
    PERFORM outbox.identify(), outbox.tell_armed();
    RAISE LOG USING MESSAGE = format('outbox is armed in database "%s", by "%s"', current_database(), session_user),
        DETAIL = format('It was not, because %s.', reason);
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.arm() IS
'lets a copy of a database (a restored dump, one made from a template, a subscriber) publish its pending events, go on with its subscriptions, and remove what is old: the original must not do so any more; false if nothing was in the way';

CREATE FUNCTION outbox.disarm(reason text DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    LOCK TABLE outbox.identity IN SHARE ROW EXCLUSIVE MODE;
    IF EXISTS (SELECT FROM outbox.identity i WHERE i.database = 0) THEN
        RETURN false;
    END IF;
    INSERT INTO outbox.identity (database, system, major, note)
    VALUES (0, 0, 0, coalesce(nullif(reason, ''), format('outbox.disarm() was called by "%s"', session_user)));
    PERFORM outbox.tell_armed();
    RAISE LOG USING MESSAGE = format('outbox is disarmed in database "%s", by "%s"', current_database(), session_user);
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox.disarm(text) IS
'makes this database a copy, from which nothing is published until outbox.arm(): of a copied data directory, which can''t be told from the original, or of an original that is being replaced; false if it was disarmed';

INSERT INTO outbox.privileges SELECT 'operator', 'EXECUTE', unnest('{arm, disarm}'::name[]);
INSERT INTO outbox.privileges VALUES ('monitor', 'EXECUTE', 'not_armed_because'), ('monitor', 'SELECT', 'identity');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{identify, require_armed, tell_armed, log_loaded}'::name[]);
