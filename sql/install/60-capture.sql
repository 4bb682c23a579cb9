-- --------------------------------------------------------------- capture

-- What outbox.capture() was told. The triggers name their row by its id; columns are kept by name, so that a dump
-- carries them, and follow renames by the event trigger below.
CREATE TABLE outbox.capture_settings (
    id                bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target            regclass NOT NULL,
    name              text     NOT NULL,
    aggregate_type    text     NOT NULL,
    key_columns       text[]   NOT NULL,
    insert_event      text,                  -- event types; NULL: the operation isn't captured
    update_event      text,
    delete_event      text,
    truncate_event    text,                  -- NULL: TRUNCATE is refused
    changed_columns   text[],
    columns           text[],                -- NULL: all
    except_columns    text[],
    projection        text,                  -- qualified and quoted
    old_values        boolean  NOT NULL,
    unchanged_updates boolean  NOT NULL,
    split_key_changes boolean  NOT NULL,
    subject_column    text,
    header_names      text[],
    header_columns    text[],
    version_column    text,
    dataschema        text,
    replicated        boolean  NOT NULL,
    fail_on_drift     boolean  NOT NULL,
    UNIQUE (target, name)
);
COMMENT ON TABLE outbox.capture_settings IS 'what outbox.capture() was told, a row for each capture; read it through outbox.captures';
COMMENT ON SEQUENCE outbox.capture_settings_id_seq IS 'ids of captures, by which their triggers name them';
SELECT pg_catalog.pg_extension_config_dump('outbox.capture_settings', 'WHERE target IN (SELECT oid FROM pg_catalog.pg_class)');
SELECT pg_catalog.pg_extension_config_dump('outbox.capture_settings_id_seq', '');

-- What outbox.guard() was told, likewise.
CREATE TABLE outbox.guard_settings (
    id             bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    target         regclass NOT NULL,
    name           text     NOT NULL,
    aggregate_type text     NOT NULL,
    key_columns    text[]   NOT NULL,
    any_event      boolean  NOT NULL,
    warns          boolean  NOT NULL,
    exempt_roles   text[],
    UNIQUE (target, name)
);
COMMENT ON TABLE outbox.guard_settings IS 'what outbox.guard() was told, a row for each guarded table; read it through outbox.guards';
COMMENT ON SEQUENCE outbox.guard_settings_id_seq IS 'ids of guards, by which their triggers name them';
SELECT pg_catalog.pg_extension_config_dump('outbox.guard_settings', 'WHERE target IN (SELECT oid FROM pg_catalog.pg_class)');
SELECT pg_catalog.pg_extension_config_dump('outbox.guard_settings_id_seq', '');

CREATE FUNCTION outbox.capture_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_capture_row';
CREATE FUNCTION outbox.capture_cross() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_capture_cross';
CREATE FUNCTION outbox.capture_truncate() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_capture_truncate';
CREATE FUNCTION outbox.guard_row() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_guard_row';
CREATE FUNCTION outbox.guard_truncate() RETURNS trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_guard_truncate';
COMMENT ON FUNCTION outbox.capture_row() IS 'trigger that outbox.capture() makes: events of changed rows';
COMMENT ON FUNCTION outbox.capture_cross() IS 'trigger that outbox.capture() makes on partitioned tables: a row that moves to another partition is an update';
COMMENT ON FUNCTION outbox.capture_truncate() IS 'trigger that outbox.capture() makes: TRUNCATE is refused, or one event';
COMMENT ON FUNCTION outbox.guard_row() IS 'trigger that outbox.guard() makes: notes changed rows for the check at commit';
COMMENT ON FUNCTION outbox.guard_truncate() IS 'trigger that outbox.guard() makes: notes a TRUNCATE for the check at commit';

-- It asks whether its caller owns the table, and may call outbox.<kind>().
CREATE FUNCTION outbox.rule_save(kind text, target regclass, name text, settings jsonb)
RETURNS bigint LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_rule_save';
COMMENT ON FUNCTION outbox.rule_save(text, regclass, text, jsonb) IS
'part of outbox.capture() and outbox.guard(): saves settings for the owner of the table, or removes them if they are NULL; returns the id';

-- Names of a rule's triggers begin so: those of one table fire in the order in which the rules were made.
CREATE FUNCTION outbox.rule_trigger_prefix(kind text, rule_id bigint)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$SELECT 'outbox_' || $1 || '_' || CASE WHEN $2 < 1000000 THEN lpad($2::text, 6, '0') ELSE $2::text END || '_'$$;
COMMENT ON FUNCTION outbox.rule_trigger_prefix(text, bigint) IS 'how the names of a capture''s or a guard''s triggers begin';

-- Every descendant of a partitioned table, itself included.
CREATE FUNCTION outbox.rule_tables(target regclass)
RETURNS SETOF regclass LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$SELECT $1 UNION SELECT t.relid FROM pg_partition_tree($1) t$$;
COMMENT ON FUNCTION outbox.rule_tables(regclass) IS 'a table, and its partitions of all levels';

-- TRUNCATE triggers aren't cloned to partitions, and a partition may be truncated by itself.
CREATE FUNCTION outbox.rule_complete()
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted record;
    made   bigint := 0;
BEGIN
    FOR wanted IN
        SELECT t.relid, r.kind, r.id, r.timing, r.replicated, outbox.rule_trigger_prefix(r.kind, r.id) || 'truncate' AS tgname
        FROM (SELECT 'capture' AS kind, s.id, s.target, s.replicated,
                     CASE WHEN s.truncate_event IS NULL THEN 'BEFORE' ELSE 'AFTER' END AS timing
              FROM outbox.capture_settings s
              UNION ALL SELECT 'guard', g.id, g.target, false, 'AFTER' FROM outbox.guard_settings g) r
             CROSS JOIN LATERAL outbox.rule_tables(r.target) t (relid)
        WHERE EXISTS (SELECT FROM pg_class c WHERE c.oid = t.relid AND c.relkind IN ('r', 'p'))
    LOOP
        CONTINUE WHEN EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = wanted.relid AND g.tgname = wanted.tgname);
        EXECUTE format('CREATE TRIGGER %I %s TRUNCATE ON %s FOR EACH STATEMENT EXECUTE FUNCTION outbox.%I(%L)',
                       wanted.tgname, wanted.timing, wanted.relid, wanted.kind || '_truncate', wanted.id);
        IF wanted.replicated THEN
            EXECUTE format('ALTER TABLE ONLY %s ENABLE ALWAYS TRIGGER %I', wanted.relid, wanted.tgname);
        END IF;
        made := made + 1;
    END LOOP;
    RETURN made;
END $$;
COMMENT ON FUNCTION outbox.rule_complete() IS 'makes the TRUNCATE triggers that captured and guarded tables and their partitions lack';

CREATE FUNCTION outbox.rule_drop_triggers(kind text, rule_id bigint, target regclass)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    t record;
BEGIN
    FOR t IN SELECT g.tgname, g.tgrelid::regclass AS relid FROM pg_trigger g
             WHERE g.tgrelid IN (SELECT outbox.rule_tables(target)) AND g.tgparentid = 0
               AND starts_with(g.tgname, outbox.rule_trigger_prefix(kind, rule_id))
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', t.tgname, t.relid);
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.rule_drop_triggers(text, bigint, regclass) IS 'drops the triggers of a capture or a guard';

CREATE FUNCTION outbox.rule_save_for(caller oid, kind text, target regclass, name text, settings jsonb)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    rule_id bigint;
BEGIN
    IF kind NOT IN ('capture', 'guard') OR target IS NULL OR name IS NULL THEN
        RAISE EXCEPTION 'arguments are missing' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF NOT pg_has_role(caller, (SELECT c.relowner FROM pg_class c WHERE c.oid = target), 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', target USING ERRCODE = 'insufficient_privilege';
    END IF;
    IF settings IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname = kind
                                AND has_function_privilege(caller, p.oid, 'EXECUTE')) THEN
        RAISE EXCEPTION 'permission denied for function outbox.%', kind USING ERRCODE = 'insufficient_privilege';
    END IF;

    -- of tables that were dropped
    EXECUTE format('DELETE FROM outbox.%I s WHERE NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = s.target)', kind || '_settings');
    EXECUTE format('SELECT s.id FROM outbox.%I s WHERE s.target = $1 AND s.name = $2', kind || '_settings')
        INTO rule_id USING target, name;
    IF rule_id IS NOT NULL THEN
        PERFORM outbox.rule_drop_triggers(kind, rule_id, target);
        EXECUTE format('DELETE FROM outbox.%I s WHERE s.id = $1', kind || '_settings') USING rule_id;
    END IF;
    IF settings IS NULL THEN
        RETURN rule_id;
    END IF;

    -- A new id each time: a dump restored over it can't mix up two lives.
    EXECUTE format('SELECT nextval(%L)', 'outbox.' || kind || '_settings_id_seq') INTO rule_id;
    EXECUTE format('INSERT INTO outbox.%I OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(NULL::outbox.%1$I, $1)).*', kind || '_settings')
        USING settings || jsonb_build_object('id', rule_id, 'target', target::oid, 'name', name);
    PERFORM outbox.rule_complete();
    RETURN rule_id;
END $$;
COMMENT ON FUNCTION outbox.rule_save_for(oid, text, regclass, text, jsonb) IS 'what outbox.rule_save() does, as superuser, for a caller whose rights it checks';

CREATE FUNCTION outbox.rule_rename_column(relid oid, old_name text, new_name text)
RETURNS bigint LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A column is renamed in all descendants, so a captured one may be further down.
    UPDATE outbox.capture_settings s SET
        key_columns = array_replace(s.key_columns, old_name, new_name),
        changed_columns = array_replace(s.changed_columns, old_name, new_name),
        columns = array_replace(s.columns, old_name, new_name),
        except_columns = array_replace(s.except_columns, old_name, new_name),
        header_columns = array_replace(s.header_columns, old_name, new_name),
        subject_column = CASE WHEN s.subject_column = old_name THEN new_name ELSE s.subject_column END,
        version_column = CASE WHEN s.version_column = old_name THEN new_name ELSE s.version_column END
    WHERE s.target IN (WITH RECURSIVE d (oid) AS (SELECT relid UNION SELECT i.inhrelid FROM pg_inherits i JOIN d ON i.inhparent = d.oid)
                       SELECT d.oid FROM d);
    UPDATE outbox.guard_settings s SET key_columns = array_replace(s.key_columns, old_name, new_name)
    WHERE s.target IN (WITH RECURSIVE d (oid) AS (SELECT relid UNION SELECT i.inhrelid FROM pg_inherits i JOIN d ON i.inhparent = d.oid)
                       SELECT d.oid FROM d);
    RETURN 0;
END $$;
COMMENT ON FUNCTION outbox.rule_rename_column(oid, text, text) IS 'lets the settings of captures and guards follow the new name of a column';

CREATE FUNCTION outbox.follow_ddl() RETURNS event_trigger LANGUAGE c AS 'MODULE_PATHNAME', 'outbox_follow_ddl';
COMMENT ON FUNCTION outbox.follow_ddl() IS 'event trigger: settings follow renamed columns, and new partitions get their TRUNCATE triggers';
CREATE EVENT TRIGGER outbox_follow_ddl ON ddl_command_end WHEN TAG IN ('ALTER TABLE', 'CREATE TABLE')
    EXECUTE FUNCTION outbox.follow_ddl();
ALTER EVENT TRIGGER outbox_follow_ddl ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_ddl IS 'lets captures and guards follow renamed columns and new partitions';

-- The primary key's columns, in its order; NULL without one.
CREATE FUNCTION outbox.rule_primary_key(target regclass)
RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT array_agg(a.attname::text ORDER BY k.place)
    FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY k (attnum, place)
         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = $1 AND i.indisprimary AND k.place <= i.indnkeyatts
$$;
COMMENT ON FUNCTION outbox.rule_primary_key(regclass) IS 'the columns of a table''s primary key, in its order';

-- Checks what capture() and guard() have in common; the key, or the primary key.
CREATE FUNCTION outbox.rule_check(target regclass, aggregate_type text, aggregate_id text[], others text[])
RETURNS text[] LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    key     text[] := coalesce(aggregate_id, outbox.rule_primary_key(target));
    unknown text;
BEGIN
    IF target IS NULL THEN
        RAISE EXCEPTION 'target must not be null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    IF NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = target AND c.relkind IN ('r', 'p') AND c.relnamespace <> 'outbox'::regnamespace
                   AND c.relnamespace <> 'pg_catalog'::regnamespace) THEN
        RAISE EXCEPTION '% is not a table of yours', target
            USING ERRCODE = 'wrong_object_type', HINT = 'Give a table or a partitioned table.';
    END IF;
    IF (SELECT c.relpersistence = 't' FROM pg_class c WHERE c.oid = target) THEN
        RAISE EXCEPTION '% is a temporary table', target USING ERRCODE = 'feature_not_supported',
            HINT = 'What is to be published should be kept: give a permanent table.';
    END IF;
    IF aggregate_type = '' OR octet_length(aggregate_type) > 255 THEN
        RAISE EXCEPTION 'aggregate_type must have 1 to 255 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF key IS NULL OR cardinality(key) = 0 THEN
        RAISE EXCEPTION 'table % has no primary key', target USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Say by aggregate_id which columns tell an aggregate from another.';
    END IF;
    SELECT c.name INTO unknown FROM unnest(key || others) c (name)
    WHERE NOT EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = target AND a.attname = c.name AND a.attnum > 0 AND NOT a.attisdropped)
      AND c.name IS NOT NULL LIMIT 1;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'table % has no column "%"', target, unknown USING ERRCODE = 'undefined_column',
            HINT = 'Columns are named as they are in the catalog, without quotes.';
    END IF;
    RETURN key;
END $$;
COMMENT ON FUNCTION outbox.rule_check(regclass, text, text[], text[]) IS 'part of outbox.capture() and outbox.guard(): checks a table, its key and named columns; returns the key';

-- A projection's qualified name, once its arguments and result are right.
CREATE FUNCTION outbox.capture_projection(target regclass, function oid)
RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    f pg_proc;
BEGIN
    SELECT * INTO f FROM pg_proc p WHERE p.oid = function;
    IF f.prorettype <> 'jsonb'::regtype AND f.prorettype <> 'record'::regtype
       AND NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = f.prorettype AND t.typtype = 'c') THEN
        RAISE EXCEPTION 'projection % returns %', function::regprocedure, format_type(f.prorettype, NULL) USING ERRCODE = 'datatype_mismatch',
            HINT = 'It returns jsonb, SETOF jsonb, or TABLE (event_type text, payload jsonb, ...).';
    END IF;
    RETURN format('%I.%I', (SELECT n.nspname FROM pg_namespace n WHERE n.oid = f.pronamespace), f.proname);
END $$;
COMMENT ON FUNCTION outbox.capture_projection(regclass, oid) IS 'part of outbox.capture(): checks a projection and returns its qualified name';

CREATE FUNCTION outbox.capture_check(settings jsonb, on_key_change text, on_truncate text, on_drift text, header_columns jsonb)
RETURNS void LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wrong text;
BEGIN
    IF on_key_change NOT IN ('split', 'update') OR on_truncate NOT IN ('error', 'event') OR on_drift NOT IN ('warning', 'error') THEN
        RAISE EXCEPTION 'an argument has none of its values' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'on_key_change is split or update, on_truncate is error or event, on_drift is warning or error.';
    END IF;
    SELECT k INTO wrong FROM jsonb_each_text(settings) e (k, v) WHERE k LIKE '%\_event' AND (v = '' OR octet_length(v) > 255) LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION '% must have 1 to 255 bytes', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF jsonb_typeof(header_columns) <> 'object' THEN
        RAISE EXCEPTION 'header_columns must be a JSON object' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Example: {"tenant": "tenant_id"} for a header "tenant" with the value of column tenant_id.';
    END IF;
    SELECT k INTO wrong FROM jsonb_object_keys(coalesce(header_columns, '{}')) k
    WHERE k !~ '^[A-Za-z0-9!#$%&''*+.^_`|~-]{1,255}$' OR k ~* '^(nats-|ce-|content-type$)' LIMIT 1;
    IF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'header key "%" is not allowed', wrong USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF settings ->> 'projection' IS NOT NULL AND (settings ->> 'columns' IS NOT NULL OR settings ->> 'except_columns' IS NOT NULL
                                                 OR (settings ->> 'old_values')::boolean) THEN
        RAISE EXCEPTION 'a projection makes the payload by itself' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'Leave out columns, except_columns and old_values.';
    END IF;
    IF settings ->> 'version_column' IS NOT NULL AND NOT EXISTS (
        SELECT FROM pg_attribute a WHERE a.attrelid = (settings ->> 'target')::oid AND a.attname = settings ->> 'version_column'
                                     AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype)) THEN
        RAISE EXCEPTION 'version_column must be an integer column' USING ERRCODE = 'datatype_mismatch';
    END IF;
END $$;
COMMENT ON FUNCTION outbox.capture_check(jsonb, text, text, text, jsonb) IS 'part of outbox.capture(): refuses arguments that make no sense';

-- Runs as its caller, whose search_path finds what a condition names.
CREATE FUNCTION outbox.capture(
    target regclass, aggregate_type text DEFAULT NULL, aggregate_id text[] DEFAULT NULL,
    insert_event text DEFAULT NULL, update_event text DEFAULT NULL, delete_event text DEFAULT NULL,
    condition text DEFAULT NULL, changed text[] DEFAULT NULL,
    columns text[] DEFAULT NULL, except_columns text[] DEFAULT NULL, projection text DEFAULT NULL,
    old_values boolean DEFAULT false, unchanged_updates boolean DEFAULT false,
    subject_column text DEFAULT NULL, header_columns jsonb DEFAULT NULL, version_column text DEFAULT NULL, dataschema text DEFAULT NULL,
    on_key_change text DEFAULT 'split', on_truncate text DEFAULT NULL, truncate_event text DEFAULT NULL,
    replicated boolean DEFAULT false, on_drift text DEFAULT 'warning', name text DEFAULT 'main')
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE AS $$
DECLARE
    type        text := coalesce(aggregate_type, (SELECT c.relname FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) target));
    all_events  boolean := insert_event IS NULL AND update_event IS NULL AND delete_event IS NULL;
    partitioned boolean;
    key         text[];
    function    oid;
    settings    jsonb;
    rule_id     bigint;
    op          record;
BEGIN
    key := outbox.rule_check(target, type, aggregate_id, pg_catalog.array_cat(pg_catalog.array_cat(
        pg_catalog.array_cat(changed, columns), except_columns),
        pg_catalog.array_cat(ARRAY[subject_column, version_column],
                             ARRAY(SELECT v FROM pg_catalog.jsonb_each_text(CASE pg_catalog.jsonb_typeof(header_columns) WHEN 'object' THEN header_columns ELSE '{}' END) h (k, v)))));
    IF projection IS NOT NULL THEN
        function := pg_catalog.to_regprocedure(pg_catalog.format('%s(pg_catalog.text, %s, %2$s)', projection, target))::oid;
        IF function IS NULL THEN
            RAISE EXCEPTION 'function %(text, %, %) does not exist', projection, target, target USING ERRCODE = 'undefined_function',
                HINT = 'A projection takes the operation, the old row and the new row.';
        END IF;
    END IF;
    IF on_truncate IS NULL THEN
        on_truncate := CASE WHEN truncate_event IS NOT NULL OR outbox.capture_has_truncate_event(target, name) THEN 'event' ELSE 'error' END;
    END IF;
    settings := pg_catalog.jsonb_build_object(
        'target', target::oid, 'aggregate_type', type, 'key_columns', key,
        'insert_event', CASE WHEN all_events THEN pg_catalog.concat(type, '.created') ELSE insert_event END,
        'update_event', CASE WHEN all_events THEN pg_catalog.concat(type, '.updated') ELSE update_event END,
        'delete_event', CASE WHEN all_events THEN pg_catalog.concat(type, '.deleted') ELSE delete_event END,
        'truncate_event', CASE on_truncate WHEN 'event' THEN coalesce(truncate_event, pg_catalog.concat(type, '.truncated')) END,
        'changed_columns', changed, 'columns', columns, 'except_columns', except_columns,
        'projection', CASE WHEN function IS NOT NULL THEN outbox.capture_projection(target, function) END,
        'old_values', coalesce(old_values, false), 'unchanged_updates', coalesce(unchanged_updates, false),
        'split_key_changes', on_key_change OPERATOR(pg_catalog.=) 'split',
        'subject_column', subject_column, 'version_column', version_column, 'dataschema', dataschema,
        'replicated', coalesce(replicated, false), 'fail_on_drift', on_drift OPERATOR(pg_catalog.=) 'error');
    PERFORM outbox.capture_check(settings, on_key_change, on_truncate, on_drift, header_columns);
    IF header_columns IS NOT NULL THEN
        settings := pg_catalog.jsonb_set(pg_catalog.jsonb_set(settings, '{header_names}',
            (SELECT pg_catalog.jsonb_agg(k ORDER BY k) FROM pg_catalog.jsonb_each_text(header_columns) h (k, v))), '{header_columns}',
            (SELECT pg_catalog.jsonb_agg(v ORDER BY k) FROM pg_catalog.jsonb_each_text(header_columns) h (k, v)));
    END IF;
    rule_id := outbox.rule_save('capture', target, name, settings);

    partitioned := (SELECT c.relkind OPERATOR(pg_catalog.=) 'p' FROM pg_catalog.pg_class c WHERE c.oid OPERATOR(pg_catalog.=) target);
    FOR op IN SELECT o.name, o.events, o.condition
              FROM (VALUES ('insert', 'INSERT', condition), ('update', 'UPDATE', condition), ('delete', 'DELETE', condition),
                           ('cross', 'INSERT OR DELETE', NULL)) o (name, events, condition)
              WHERE CASE o.name WHEN 'cross' THEN partitioned
                    ELSE settings OPERATOR(pg_catalog.->>) pg_catalog.concat(o.name, '_event') IS NOT NULL END
    LOOP
        EXECUTE pg_catalog.format('CREATE TRIGGER %I AFTER %s ON %s FOR EACH ROW %s EXECUTE FUNCTION outbox.%I(%L)',
            pg_catalog.concat(outbox.rule_trigger_prefix('capture', rule_id), op.name), op.events, target,
            CASE WHEN op.condition IS NOT NULL THEN pg_catalog.concat('WHEN (', op.condition, ')') END,
            CASE op.name WHEN 'cross' THEN 'capture_cross' ELSE 'capture_row' END, rule_id);
        IF replicated THEN
            EXECUTE pg_catalog.format('ALTER TABLE %s ENABLE ALWAYS TRIGGER %I', target,
                                      pg_catalog.concat(outbox.rule_trigger_prefix('capture', rule_id), op.name));
        END IF;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.capture IS
'turns changes of a table''s rows into events, by triggers; a second call with the same name replaces the first. For the owner of the table. Arguments: docs/capture.md';

CREATE FUNCTION outbox.capture_has_truncate_event(target regclass, name text)
RETURNS boolean LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$SELECT EXISTS (SELECT FROM outbox.capture_settings s WHERE s.target = $1 AND s.name <> $2 AND s.truncate_event IS NOT NULL)$$;
COMMENT ON FUNCTION outbox.capture_has_truncate_event(regclass, text) IS 'whether another capture of the table makes an event of a TRUNCATE';

CREATE FUNCTION outbox.uncapture(target regclass, name text DEFAULT 'main')
RETURNS boolean LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$SELECT outbox.rule_save('capture', $1, $2, NULL) OPERATOR(pg_catalog.>) 0$$;
COMMENT ON FUNCTION outbox.uncapture(regclass, text) IS 'ends a capture and drops its triggers; true if there was one. For the owner of the table';

-- A rule's triggers on the table itself. State: of those that are there, the worst.
CREATE FUNCTION outbox.rule_state(kind text, rule_id bigint, target regclass, wanted integer)
RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$
    SELECT CASE WHEN count(*) < $4 THEN 'triggers missing'
                WHEN bool_or(t.tgenabled = 'D') THEN 'disabled'
                WHEN bool_and(t.tgenabled = 'A') THEN 'enabled always'
                WHEN bool_or(t.tgenabled = 'R') THEN 'replica only'
                ELSE 'enabled' END
    FROM pg_trigger t
    WHERE t.tgrelid = $3 AND starts_with(t.tgname, outbox.rule_trigger_prefix($1, $2))
$$;
COMMENT ON FUNCTION outbox.rule_state(text, bigint, regclass, integer) IS
'state of the triggers of a capture or a guard: enabled, enabled always (also for replicated rows), replica only, disabled, triggers missing';

CREATE VIEW outbox.captures AS
SELECT s.target AS captured, s.name, s.aggregate_type, s.key_columns AS aggregate_id,
       s.insert_event, s.update_event, s.delete_event, s.truncate_event,
       (SELECT pg_catalog.substring(pg_catalog.pg_get_triggerdef(t.oid), ' WHEN \((.*)\) EXECUTE FUNCTION ')
        FROM pg_catalog.pg_trigger t
        WHERE t.tgrelid = s.target AND t.tgqual IS NOT NULL AND pg_catalog.starts_with(t.tgname, outbox.rule_trigger_prefix('capture', s.id)) LIMIT 1) AS condition,
       s.changed_columns AS changed, s.columns, s.except_columns, s.projection, s.old_values, s.unchanged_updates,
       s.subject_column, pg_catalog.jsonb_object(s.header_names, s.header_columns) AS header_columns, s.version_column, s.dataschema,
       CASE WHEN s.split_key_changes THEN 'split' ELSE 'update' END AS on_key_change,
       CASE WHEN s.truncate_event IS NULL THEN 'error' ELSE 'event' END AS on_truncate,
       CASE WHEN s.fail_on_drift THEN 'error' ELSE 'warning' END AS on_drift, s.replicated,
       outbox.rule_state('capture', s.id, s.target, 1 + pg_catalog.num_nonnulls(s.insert_event, s.update_event, s.delete_event)
                                                      + CASE c.relkind WHEN 'p' THEN 1 ELSE 0 END) AS state, s.id
FROM outbox.capture_settings s JOIN pg_catalog.pg_class c ON c.oid = s.target;
COMMENT ON VIEW outbox.captures IS 'what outbox.capture() captures, by its arguments, and the state of its triggers';

-- To capture a table of one's own is a way to enqueue. These run as their caller; rule_save() asks whose the table is.
INSERT INTO outbox.privileges SELECT 'producer', 'EXECUTE',
    unnest('{capture, uncapture, rule_save, rule_check, rule_primary_key, rule_trigger_prefix, capture_projection, capture_check,
             capture_has_truncate_event}'::name[]);
-- Who makes a partition of a captured table needs them; they do nothing for a table that isn't their rule's.
INSERT INTO outbox.privileges SELECT 'public', 'EXECUTE', unnest('{capture_row, capture_cross, guard_row}'::name[]);
-- The functions are called from within the views with the rights of whoever reads them.
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'captures'), ('monitor', 'EXECUTE', 'rule_state'), ('monitor', 'EXECUTE', 'rule_trigger_prefix');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL',
    unnest('{capture_settings, capture_settings_id_seq, guard_settings, guard_settings_id_seq, capture_truncate, guard_truncate, rule_tables,
             rule_complete, rule_drop_triggers, rule_save_for, rule_rename_column, follow_ddl}'::name[]);
