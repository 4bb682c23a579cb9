-- ----------------------------------------------- adoption of outbox tables

-- A preset finds its columns by name, whatever their case and underscores: "OccurredOnUtc" is occurred_on_utc.
CREATE FUNCTION outbox.adoption_column("table" regclass, VARIADIC names text[])
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT quote_ident(a.attname)
    FROM unnest($2) WITH ORDINALITY n(name, nr)
    JOIN pg_attribute a ON replace(lower(a.attname), '_', '') = n.name
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY n.nr, a.attnum LIMIT 1;
$$;
COMMENT ON FUNCTION outbox.adoption_column(regclass, text[]) IS
'the table''s first column with one of these names, which are in lower case without underscores, quoted; NULL if there is none';

-- What each project's rows mean, as expressions over the columns; NULL: not known from the row.
CREATE FUNCTION outbox.adoption_preset(
    "table" regclass, preset text,
    OUT aggregate_type text, OUT aggregate_id text, OUT event_type text, OUT payload text, OUT event_id text, OUT occurred_at text,
    OUT not_before text, OUT content_type text, OUT condition text, OUT sort text, OUT mark text, OUT required text[], OUT sure boolean)
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    processed text;
    name text := quote_literal((SELECT c.relname FROM pg_class c WHERE c.oid = "table"));
BEGIN
    IF preset IS NULL THEN
        RETURN;
    END IF;
    -- whether a row that is there tells by itself that nobody has published it
    sure := true;
    event_id := outbox.adoption_column("table", 'id');
    -- Where a row tells no aggregate, each is its own: writers of one aggregate wait for each other until they commit,
    -- which an application that never had that doesn't expect.
    CASE preset
    WHEN 'debezium' THEN
        aggregate_type := outbox.adoption_column("table", 'aggregatetype');
        aggregate_id := outbox.adoption_column("table", 'aggregateid');
        event_type := outbox.adoption_column("table", 'type', 'eventtype');
        payload := outbox.adoption_column("table", 'payload');
        occurred_at := outbox.adoption_column("table", 'timestamp', 'createdat');
        sort := occurred_at;
        sure := false;
        required := ARRAY['aggregatetype', 'aggregateid', 'type', 'payload'];
    WHEN 'ef-core' THEN
        aggregate_type := name;
        aggregate_id := event_id;
        event_type := outbox.adoption_column("table", 'type', 'eventtype');
        payload := outbox.adoption_column("table", 'content', 'payload', 'data', 'eventdata');
        occurred_at := outbox.adoption_column("table", 'occurredonutc', 'occurredon', 'occurredatutc', 'occurredat', 'createdonutc', 'createdatutc',
                                              'createdutc', 'createdat', 'creationdate');
        sort := occurred_at;
        processed := outbox.adoption_column("table", 'processedonutc', 'processedon', 'processedatutc', 'processedat', 'processeddate', 'sentutc', 'sentat');
        required := ARRAY['id', 'type', 'content', 'processed_on_utc'];
    WHEN 'masstransit' THEN
        aggregate_type := name;
        -- the unit in which MassTransit keeps the order
        aggregate_id := 'coalesce(' || outbox.adoption_column("table", 'outboxid') || ', ' || outbox.adoption_column("table", 'inboxmessageid') || ')';
        event_type := 'left(split_part(' || outbox.adoption_column("table", 'messagetype') || ', '';'', 1), 255)';
        payload := outbox.adoption_column("table", 'body');
        content_type := outbox.adoption_column("table", 'contenttype');
        event_id := outbox.adoption_column("table", 'messageid');
        occurred_at := outbox.adoption_column("table", 'senttime');
        not_before := outbox.adoption_column("table", 'enqueuetime');
        sort := outbox.adoption_column("table", 'sequencenumber');
        mark := 'delete';
        required := ARRAY['outbox_id', 'inbox_message_id', 'message_type', 'body'];
    WHEN 'wolverine' THEN
        aggregate_type := name;
        aggregate_id := event_id;
        event_type := outbox.adoption_column("table", 'messagetype');
        payload := outbox.adoption_column("table", 'body');
        mark := 'delete';
        required := ARRAY['id', 'message_type', 'body'];
    WHEN 'spring-modulith' THEN
        aggregate_type := name;
        aggregate_id := event_id;
        event_type := outbox.adoption_column("table", 'eventtype');
        payload := outbox.adoption_column("table", 'serializedevent');
        occurred_at := outbox.adoption_column("table", 'publicationdate');
        sort := occurred_at;
        processed := outbox.adoption_column("table", 'completiondate');
        -- a row for each listener of an event: those of others are none of our business
        condition := outbox.adoption_column("table", 'listenerid') || ' LIKE ''org.springframework.modulith.events.support.%Externalizer.externalize(%''';
        required := ARRAY['id', 'listener_id', 'event_type', 'serialized_event', 'completion_date'];
    WHEN 'pg-transactional-outbox' THEN
        aggregate_type := outbox.adoption_column("table", 'aggregatetype');
        aggregate_id := outbox.adoption_column("table", 'aggregateid');
        event_type := outbox.adoption_column("table", 'messagetype');
        payload := outbox.adoption_column("table", 'payload');
        occurred_at := outbox.adoption_column("table", 'createdat');
        sort := occurred_at;
        processed := outbox.adoption_column("table", 'processedat');
        condition := outbox.adoption_column("table", 'abandonedat') || ' IS NULL';
        required := ARRAY['aggregate_type', 'aggregate_id', 'message_type', 'payload', 'processed_at'];
    ELSE
        RAISE invalid_parameter_value USING MESSAGE = format('there is no preset "%s"', preset),
            HINT = 'Presets are debezium, ef-core, masstransit, wolverine, spring-modulith and pg-transactional-outbox; or map the columns yourself.';
    END CASE;
    IF preset IN ('ef-core', 'spring-modulith', 'pg-transactional-outbox') THEN
        condition := concat_ws(' AND ', processed || ' IS NULL', condition);
        mark := processed || ' = pg_catalog.clock_timestamp()';
        sure := processed IS NOT NULL;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.adoption_preset(regclass, text) IS
'what outbox.adopt() takes a preset''s columns for: expressions over a row; required: columns that such a table has';

-- The call of an enqueue function for a row "r", as text: of the backlog, and in the trigger.
CREATE FUNCTION outbox.adoption_call(
    "table" regclass, aggregate_type text, aggregate_id text, event_type text, payload text, event_id text, occurred_at text, not_before text,
    headers text, content_type text, subject text)
RETURNS text LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    type regtype;
    call text;
    part record;
BEGIN
    EXECUTE format('SELECT pg_typeof(%s) FROM (SELECT (NULL::%s).*) r', payload, "table") INTO type;
    call := CASE type
        WHEN 'jsonb'::regtype THEN format('outbox.enqueue(payload => coalesce(%s, ''null'')', payload)
        WHEN 'json'::regtype THEN format('outbox.enqueue_text(payload => coalesce((%s)::text, ''null'')', payload)
        WHEN 'text'::regtype THEN format('outbox.enqueue_text(payload => coalesce(%s, ''null'')', payload)
        WHEN 'varchar'::regtype THEN format('outbox.enqueue_text(payload => coalesce((%s)::text, ''null'')', payload)
        WHEN 'bytea'::regtype THEN format('outbox.enqueue_bytes(payload => coalesce(%s, '''')', payload)
    END;
    IF call IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('payload is of type %s', type),
            HINT = 'It must be jsonb, json, text or bytea: add a cast to the expression.';
    END IF;
    FOR part IN
        SELECT * FROM (VALUES ('aggregate_type', aggregate_type, 'text'), ('aggregate_id', aggregate_id, 'text'), ('event_type', event_type, 'text'),
            ('event_id', event_id, 'uuid'), ('occurred_at', occurred_at, 'timestamptz'), ('not_before', not_before, 'timestamptz'),
            ('headers', headers, 'jsonb'), ('content_type', content_type, 'text'), ('subject', subject, 'text')) p(name, expression, wanted)
        WHERE expression IS NOT NULL
    LOOP
        EXECUTE format('SELECT pg_typeof(%s) FROM (SELECT (NULL::%s).*) r', part.expression, "table") INTO type;
        -- an id that is no uuid can't be kept
        CONTINUE WHEN part.name = 'event_id' AND type <> 'uuid'::regtype;
        -- times without a zone are UTC here, not the session's; a column that is NULL is no header
        call := call || format(CASE WHEN part.wanted = 'timestamptz' AND type = 'timestamp'::regtype THEN ', %s => (%s) AT TIME ZONE ''UTC'''
                                    WHEN part.wanted = 'jsonb' THEN ', %s => jsonb_strip_nulls((%s)::jsonb)'
                                    ELSE ', %s => (%s)::' || part.wanted END, part.name, part.expression);
    END LOOP;
    RETURN call || ', on_conflict => ''return'')';
END $$;
COMMENT ON FUNCTION outbox.adoption_call IS 'the call that enqueues a row of an adopted table, as text';

-- What is done with a row once it is forwarded, as a statement for the rows that the condition means; NULL: nothing.
CREATE FUNCTION outbox.adoption_marking("table" regclass, mark text, condition text)
RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN coalesce($2, '') = '' THEN NULL
                WHEN $2 = 'delete' THEN format('DELETE FROM %s r WHERE %s', $1, $3)
                ELSE format('UPDATE %s r SET %s WHERE %s', $1, $2, $3) END;
$$;
COMMENT ON FUNCTION outbox.adoption_marking(regclass, text, text) IS 'the statement that marks forwarded rows, as text; NULL: they stay as they are';

-- The columns of NEW that expressions name, as a select list. Only these, each by its name: of NEW.* a session would go on
-- to take a column that was dropped for NULL. All, if the row is used as a whole.
CREATE FUNCTION outbox.adoption_columns("table" regclass, expressions text)
RETURNS text LANGUAGE sql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN count(*) = 0 OR $2 ~ '(?<![\w"])r(?![\w".])' THEN 'NEW.*'
                ELSE string_agg(format('NEW.%1$I AS %1$I', a.attname), ', ' ORDER BY a.attnum) END
    FROM pg_attribute a
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped
      AND $2 ~* ('(?<!\w)' || regexp_replace(a.attname, '(\W)', '\\\1', 'g') || '(?!\w)');
$$;
COMMENT ON FUNCTION outbox.adoption_columns(regclass, text) IS 'the columns of NEW that expressions over an adopted table name, as a select list';

-- The trigger and its function. They belong to who adopts, and writers need no right on anything of outbox.
CREATE FUNCTION outbox.adoption_install("table" regclass, call text, condition text, mark text, note text)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    key text;
    marking text;
    function_name text;
BEGIN
    SELECT string_agg(format('r.%1$I = NEW.%1$I', a.attname), ' AND ') INTO key
    FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
    WHERE i.indrelid = "table" AND i.indisprimary;
    marking := outbox.adoption_marking("table", mark, coalesce(key, 'false'));
    IF marking IS NOT NULL AND key IS NULL THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = format('table %s has no primary key', "table"),
            HINT = 'Rows are marked by it once they are forwarded. With mark => '''' they are not.';
    END IF;
    SELECT format('%I.%I', n.nspname, ('outbox_adopted_' || c.relname)::name) INTO function_name
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = "table";
    EXECUTE format('CREATE FUNCTION %s() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER'
                   ' SET search_path = pg_catalog, pg_temp SET DateStyle = ISO SET IntervalStyle = postgres SET TimeZone = UTC AS %L', function_name,
                   format(E'BEGIN\n    PERFORM %s FROM (SELECT %s) r WHERE %s;\n%s    RETURN NULL;\nEND', call,
                          outbox.adoption_columns("table", call || ' ' || condition), condition,
                          CASE WHEN marking IS NULL THEN '' ELSE format(E'    IF FOUND THEN\n        %s;\n    END IF;\n', marking) END));
    EXECUTE format('REVOKE ALL ON FUNCTION %s() FROM PUBLIC', function_name);
    -- Without the extension no row could be written: DROP EXTENSION is refused, or with CASCADE ends the adoption.
    EXECUTE format('ALTER FUNCTION %s() DEPENDS ON EXTENSION outbox', function_name);
    EXECUTE format('CREATE TRIGGER outbox_adopted AFTER INSERT ON %s FOR EACH ROW EXECUTE FUNCTION %s()', "table", function_name);
    EXECUTE format('COMMENT ON TRIGGER outbox_adopted ON %s IS %L', "table", note);
END $$;
COMMENT ON FUNCTION outbox.adoption_install(regclass, text, text, text, text) IS
'makes the trigger of outbox.adopt() and its function, with the rights of the caller; note: the trigger''s comment, which outbox.adoptions reads';

CREATE FUNCTION outbox.adopt(
    "table" regclass, preset text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, event_type text DEFAULT NULL, payload text DEFAULT NULL,
    event_id text DEFAULT NULL, occurred_at text DEFAULT NULL, not_before text DEFAULT NULL, headers text DEFAULT NULL,
    content_type text DEFAULT NULL, subject text DEFAULT NULL,
    condition text DEFAULT NULL, backlog text DEFAULT NULL, sort text DEFAULT NULL, mark text DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp SET DateStyle = ISO SET IntervalStyle = postgres SET TimeZone = UTC AS $$
#variable_conflict use_variable
DECLARE
    known record;
    owner name;
    missing text;
    call text;
    taken bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE active_sql_transaction USING MESSAGE = 'outbox.adopt() needs the isolation level READ COMMITTED',
            HINT = 'With an older snapshot it would miss rows that were committed while it waited for the lock.';
    END IF;
    IF EXISTS (SELECT FROM outbox.adoptions a WHERE a."table" = "table") THEN
        RAISE duplicate_object USING MESSAGE = format('table %s is adopted already', "table"), HINT = 'outbox.unadopt() ends that.';
    END IF;
    -- Its owner can give a column a type with casts of its own, which would run with a superuser's rights here and in the trigger.
    SELECT r.rolname INTO owner FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
    WHERE c.oid = "table" AND NOT r.rolsuper AND (SELECT s.rolsuper FROM pg_roles s WHERE s.rolname = current_user);
    IF owner IS NOT NULL THEN
        RAISE insufficient_privilege USING MESSAGE = format('a superuser can''t adopt table %s of role "%s"', "table", owner),
            DETAIL = 'What the trigger does, it would do with the superuser''s rights and as the table''s owner likes.',
            HINT = format('Adopt it as its owner: SELECT outbox.grant_producer(%L); SET ROLE %I.', owner, owner);
    END IF;
    known := outbox.adoption_preset("table", preset);
    IF preset IS NOT NULL THEN
        aggregate_type := coalesce(aggregate_type, known.aggregate_type);
        aggregate_id := coalesce(aggregate_id, known.aggregate_id);
        event_type := coalesce(event_type, known.event_type);
        payload := coalesce(payload, known.payload);
        event_id := coalesce(event_id, known.event_id);
        occurred_at := coalesce(occurred_at, known.occurred_at);
        not_before := coalesce(not_before, known.not_before);
        content_type := coalesce(content_type, known.content_type);
        condition := coalesce(condition, known.condition);
        sort := coalesce(sort, known.sort);
        mark := coalesce(mark, known.mark);
    END IF;
    SELECT string_agg(name, ', ') INTO missing
    FROM (VALUES ('aggregate_type', aggregate_type), ('aggregate_id', aggregate_id), ('event_type', event_type), ('payload', payload)) v(name, expression)
    WHERE expression IS NULL;
    IF missing IS NOT NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('nothing tells %s of a row of %s', missing, "table"),
            DETAIL = CASE WHEN preset IS NULL THEN ''
                     ELSE format('A table of preset "%s" has columns named %s.', preset, array_to_string(known.required, ', ')) END,
            HINT = 'Give the arguments of these names: SQL expressions over the table''s columns.';
    END IF;
    call := outbox.adoption_call("table", aggregate_type, aggregate_id, event_type, payload, event_id, occurred_at, not_before, headers, content_type, subject);
    condition := coalesce(condition, 'true');

    -- Waits for whoever has written, or has claimed rows FOR UPDATE to publish them, and lets nobody do so until the commit,
    -- readers excepted: who wrote before is seen below, who writes afterwards has the trigger.
    EXECUTE format('LOCK TABLE %s IN EXCLUSIVE MODE', "table");
    IF backlog IS NULL AND NOT coalesce(known.sure, condition <> 'true') THEN
        EXECUTE format('SELECT count(*) FROM (SELECT FROM %s LIMIT 1) r', "table") INTO taken;
        IF taken > 0 THEN
            RAISE invalid_parameter_value USING MESSAGE = format('nothing tells which rows of %s are not published yet', "table"),
                HINT = 'Give backlog, a condition over the columns: ''false'' for none of those that are there, ''true'' for all.';
        END IF;
    END IF;
    backlog := format('(%s) AND (%s)', condition, coalesce(backlog, 'true'));
    EXECUTE format('SELECT count(e) FROM (SELECT %s AS e FROM (SELECT r.* FROM %s r WHERE %s ORDER BY %s) r) e', call, "table", backlog,
                   coalesce(sort, 'ctid')) INTO taken;
    IF outbox.adoption_marking("table", mark, backlog) IS NOT NULL THEN
        EXECUTE outbox.adoption_marking("table", mark, backlog);
    END IF;

    PERFORM outbox.adoption_install("table", call, condition, mark,
        format('forwards rows to outbox, preset "%s", since epoch %s, after a backlog of %s', coalesce(preset, ''),
               floor(extract(epoch FROM clock_timestamp())), taken));
    RETURN taken;
END $$;
COMMENT ON FUNCTION outbox.adopt IS
'forwards rows of an existing outbox table: what is in there unpublished now, in order, and each row from now on; the arguments are SQL expressions over its columns, mostly known from the preset; mark: what is then done with a row, "delete" or assignments of an UPDATE; returns the number of rows taken over (an event_id that is known already adds none); see docs/migrating.md';

CREATE FUNCTION outbox.unadopt("table" regclass)
RETURNS void LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    function_name text;
BEGIN
    SELECT a.function::text INTO function_name FROM outbox.adoptions a WHERE a."table" = "table";
    IF NOT FOUND THEN
        RAISE undefined_object USING MESSAGE = format('table %s is not adopted', "table"), HINT = 'SELECT * FROM outbox.adoptions shows those that are.';
    END IF;
    EXECUTE format('DROP TRIGGER outbox_adopted ON %s', "table");
    EXECUTE format('DROP FUNCTION %s', function_name);
END $$;
COMMENT ON FUNCTION outbox.unadopt(regclass) IS 'ends what outbox.adopt() has begun: rows are no longer forwarded; events that were stay';

-- The trigger is the adoption: whatever happens to the table, this tells what is.
CREATE VIEW outbox.adoptions AS
SELECT t.tgrelid::pg_catalog.regclass AS "table",
       nullif(substring(c.comment FROM 'preset "([a-z-]*)"'), '') AS preset,
       pg_catalog.to_timestamp(substring(c.comment FROM 'since epoch (\d{1,11})')::bigint) AS since,
       substring(c.comment FROM 'a backlog of (\d{1,18})')::bigint AS backlog,
       p.proowner::pg_catalog.regrole AS adopted_by,
       p.oid::pg_catalog.regprocedure AS function,
       t.tgenabled IN ('O', 'A') AS enabled
FROM pg_catalog.pg_trigger t
JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
CROSS JOIN LATERAL (SELECT pg_catalog.obj_description(t.oid, 'pg_trigger')) c(comment)
WHERE t.tgname = 'outbox_adopted' AND NOT t.tgisinternal AND t.tgparentid = 0 AND p.proname LIKE 'outbox\_adopted\_%';
COMMENT ON VIEW outbox.adoptions IS 'tables whose rows outbox.adopt() forwards: since when, how many events of their backlog were taken over, and by which function';

-- They run as their caller.
INSERT INTO outbox.privileges SELECT 'producer', 'EXECUTE',
    unnest('{adopt, unadopt, adoption_column, adoption_preset, adoption_call, adoption_marking, adoption_columns, adoption_install}'::name[]);
INSERT INTO outbox.privileges VALUES ('producer', 'SELECT', 'adoptions'), ('monitor', 'SELECT', 'adoptions');
