-- ------------------------------------------------------------------ lint

-- The source of a function, one in SQL's own syntax included.
CREATE FUNCTION outbox.lint_source(function oid)
RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
AS $$SELECT CASE WHEN p.prosqlbody IS NULL THEN p.prosrc ELSE pg_get_functiondef(p.oid) END FROM pg_proc p WHERE p.oid = $1$$;
COMMENT ON FUNCTION outbox.lint_source(oid) IS 'part of outbox.lint(): what a function does, in its language';

-- Functions of users: not the system's, and no extension's.
CREATE VIEW outbox.lint_functions AS
SELECT p.oid, p.oid::regprocedure::text AS name,
       pg_catalog.regexp_replace(pg_catalog.regexp_replace(outbox.lint_source(p.oid), '--[^\n]*', '', 'g'), '/\*.*?\*/', '', 'g') AS source
FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_language l ON l.oid = p.prolang
WHERE l.lanname NOT IN ('c', 'internal') AND p.prokind IN ('f', 'p')
  AND p.pronamespace NOT IN ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
  AND NOT EXISTS (SELECT FROM pg_catalog.pg_depend d WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e');
COMMENT ON VIEW outbox.lint_functions IS 'part of outbox.lint(): functions of users, with their source without comments';

-- Captures and guards whose settings no longer fit.
CREATE FUNCTION outbox.lint_rules(OUT object text, OUT problem text, OUT reason text, OUT remedy text, OUT severity text)
RETURNS SETOF record LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    -- outbox.health() calls it often: planning takes ten times as long as running it
    RETURN QUERY
    WITH rules AS (
        SELECT 'capture' AS kind, s.id, s.target, s.name, s.key_columns,
               s.key_columns || s.changed_columns || s.columns || s.except_columns || s.header_columns || s.subject_column || s.version_column AS columns, c.state
        FROM outbox.capture_settings s JOIN outbox.captures c ON c.id = s.id
        UNION ALL
        SELECT 'guard', s.id, s.target, s.name, s.key_columns, s.key_columns, g.state
        FROM outbox.guard_settings s JOIN outbox.guards g ON g.id = s.id),
    attributes AS (SELECT a.attrelid, a.attname::text AS name, a.attnum, a.attnotnull FROM pg_attribute a WHERE a.attnum > 0 AND NOT a.attisdropped)
    SELECT r.target::text, 'triggers of ' || r.kind || ' "' || r.name || '": ' || r.state,
           CASE WHEN r.kind = 'capture' THEN 'Changes make no events.' ELSE 'Changes without an event are not noticed.' END,
           CASE r.state WHEN 'disabled' THEN 'ALTER TABLE ' || r.target || ' ENABLE TRIGGER ..., for each trigger ' || outbox.rule_trigger_prefix(r.kind, r.id) || '*.'
                ELSE 'Call outbox.' || r.kind || '() again.' END, 'error'
    FROM rules r WHERE r.state NOT IN ('enabled', 'enabled always')
    UNION ALL
    SELECT r.target::text, 'no column "' || c.name || '" any more, which ' || r.kind || ' "' || r.name || '" names',
           CASE WHEN c.name = ANY (r.key_columns) THEN 'The aggregate id lacks a part: it is written as %missing.'
                ELSE 'Events lack what came from it, and carry the header "outbox-drift" if it is more than the payload.' END,
           'Call outbox.' || r.kind || '() again.', CASE WHEN c.name = ANY (r.key_columns) THEN 'error' ELSE 'warning' END
    FROM rules r CROSS JOIN LATERAL (SELECT DISTINCT u.name FROM unnest(r.columns) u (name)) c
    WHERE c.name IS NOT NULL AND NOT EXISTS (SELECT FROM attributes a WHERE a.attrelid = r.target AND a.name = c.name)
    UNION ALL
    SELECT r.target::text, 'key of ' || r.kind || ' "' || r.name || '" may be null: "' || a.name || '"',
           'Rows without a key share the aggregate %null.', 'ALTER TABLE ' || r.target || ' ALTER ' || quote_ident(a.name) || ' SET NOT NULL.', 'warning'
    FROM rules r JOIN attributes a ON a.attrelid = r.target AND a.name = ANY (r.key_columns) AND NOT a.attnotnull
    UNION ALL
    SELECT r.target::text, r.kind || ' "' || r.name || '" of a table without a primary key or unique index',
           'Nothing tells one row from another: consumers cannot either, and two rows may share an aggregate.',
           'Add a primary key.', 'warning'
    FROM rules r WHERE NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = r.target AND i.indisunique AND i.indpred IS NULL)
    UNION ALL
    SELECT r.target::text, r.kind || ' "' || r.name || '" has a part of the primary key only, or none',
           'Several rows are one aggregate. Right for the parts of a whole, wrong if the primary key has changed since.',
           'If it is wrong, call outbox.' || r.kind || '() again.', 'info'
    FROM rules r WHERE NOT r.key_columns @> outbox.rule_primary_key(r.target)
    UNION ALL
    SELECT r.target::text, 'child table ' || i.inhrelid::regclass || ' is not part of ' || r.kind || ' "' || r.name || '"',
           'Row triggers are not inherited, so changes of its rows go unnoticed, even those made through the parent.',
           'Call outbox.' || r.kind || '() for the child, too.', 'warning'
    FROM rules r JOIN pg_inherits i ON i.inhparent = r.target JOIN pg_class p ON p.oid = r.target AND p.relkind = 'r'
    WHERE NOT EXISTS (SELECT FROM rules o WHERE o.kind = r.kind AND o.target = i.inhrelid)
    UNION ALL
    SELECT s.target::text, 'projection ' || s.projection || ' of capture "' || s.name || '" is missing',
           'Events have the payload null, and the header "outbox-drift".', 'Create it, or call outbox.capture() again.', 'error'
    FROM outbox.capture_settings s JOIN pg_class c ON c.oid = s.target
    WHERE s.projection IS NOT NULL
      AND NOT EXISTS (SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                      WHERE format('%I.%I', n.nspname, p.proname) = s.projection
                        AND p.proargtypes::oid[] = ARRAY['text'::regtype::oid, c.reltype, c.reltype])
    UNION ALL
    SELECT s.target::text, 'exempt role "' || e.role || '" does not exist', 'The exemption is for nobody.',
           'Call outbox.guard() again.', 'info'
    FROM outbox.guard_settings s CROSS JOIN LATERAL unnest(s.exempt_roles) e (role) WHERE to_regrole(quote_ident(e.role)) IS NULL
    UNION ALL
    -- of a partition only: of the table itself outbox.captures tells
    SELECT DISTINCT t.relid::text, 'triggers of ' || s.target || ' are disabled in this partition', 'Its changes make no events.',
           'ALTER TABLE ' || t.relid || ' ENABLE TRIGGER ..., for each trigger outbox_*.', 'error'
    FROM outbox.capture_settings s JOIN pg_class c ON c.oid = s.target AND c.relkind = 'p' CROSS JOIN LATERAL outbox.rule_tables(s.target) t (relid)
    WHERE t.relid <> s.target
      AND EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = t.relid AND g.tgenabled = 'D' AND starts_with(g.tgname, 'outbox_'));
END $$;
COMMENT ON FUNCTION outbox.lint_rules() IS
'part of outbox.lint(): captures and guards that no longer fit their tables; outbox.health() tells of its errors';

CREATE FUNCTION outbox.lint_log(OUT object text, OUT problem text, OUT reason text, OUT remedy text, OUT severity text)
RETURNS SETOF record LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT c.oid::regclass::text, 'has triggers or row-level security', 'Events are written directly, so enqueueing is refused.',
           'Remove them.', 'error'
    FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname IN ('log_0', 'log_1', 'log_2', 'log_3', 'log_4', 'log_5', 'log_6', 'log_7')
      AND (c.relrowsecurity OR EXISTS (SELECT FROM pg_trigger g WHERE g.tgrelid = c.oid AND g.tgname NOT IN ('outbox_loaded', 'outbox_replicated')));
END $$;
COMMENT ON FUNCTION outbox.lint_log() IS 'part of outbox.lint() and outbox.health(): what has enqueueing refused';

-- What keeps a change from becoming an event.
CREATE FUNCTION outbox.lint_tables(OUT object text, OUT problem text, OUT reason text, OUT remedy text, OUT severity text)
RETURNS SETOF record LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    WITH targets AS (SELECT DISTINCT s.target FROM outbox.capture_settings s JOIN pg_class c ON c.oid = s.target),
    tables AS (SELECT t.target, r.relid FROM targets t CROSS JOIN LATERAL outbox.rule_tables(t.target) r (relid))
    SELECT t.target::text, 'captured, but not guarded, and others than its owner may write it',
           'If a trigger is disabled or passes a change over, the change is committed without an event.',
           'Call outbox.guard(''' || t.target || ''') with the aggregate type of the capture.', 'info'
    FROM targets t JOIN pg_class c ON c.oid = t.target
    WHERE NOT EXISTS (SELECT FROM outbox.guard_settings g WHERE g.target = t.target)
      AND EXISTS (SELECT FROM aclexplode(c.relacl) a WHERE a.grantee <> c.relowner AND a.privilege_type IN ('INSERT', 'UPDATE', 'DELETE'))
    UNION ALL
    SELECT t.relid::text, 'BEFORE trigger "' || g.tgname || '" may return NULL',
           'The row is then not written, and there is no event, without an error.',
           'Raise an error in ' || f.name || ' instead, if the writer should know.', 'info'
    FROM tables t JOIN pg_trigger g ON g.tgrelid = t.relid AND NOT g.tgisinternal AND g.tgtype & 3 = 3
         JOIN outbox.lint_functions f ON f.oid = g.tgfoid AND f.source ~* '\mreturn\s+null\M'
    UNION ALL
    SELECT t.relid::text, 'rule "' || w.rulename || '" replaces a command by another',
           'What the table doesn''t see makes no event.', 'Use a trigger instead of the rule.', 'warning'
    FROM tables t JOIN pg_rewrite w ON w.ev_class = t.relid AND w.is_instead AND w.ev_type <> '1'
    UNION ALL
    SELECT t.relid::text, 'trigger "' || g.tgname || '" is disabled', 'What it did for the row, it doesn''t do any more; events tell what is stored.',
           'ALTER TABLE ' || t.relid || ' ENABLE TRIGGER ' || quote_ident(g.tgname) || ', or drop it.', 'info'
    FROM tables t JOIN pg_trigger g ON g.tgrelid = t.relid AND NOT g.tgisinternal AND g.tgenabled = 'D' AND NOT starts_with(g.tgname, 'outbox_')
    UNION ALL
    SELECT 'publication ' || quote_ident(p.pubname), 'replicates tables of schema outbox',
           'The log of one server means nothing to another, which publishes nothing any more once rows of it come: see outbox.arm().',
           'List the tables to be published, instead of FOR ALL TABLES.', 'warning'
    FROM (SELECT DISTINCT t.pubname FROM pg_publication_tables t WHERE t.schemaname = 'outbox') p
    UNION ALL
    SELECT 'event trigger outbox_follow_ddl', 'is disabled', 'Captures don''t follow renamed columns, and TRUNCATE of new partitions goes unnoticed.',
           'ALTER EVENT TRIGGER outbox_follow_ddl ENABLE ALWAYS.', 'error'
    FROM pg_event_trigger e WHERE e.evtname = 'outbox_follow_ddl' AND e.evtenabled <> 'A'
$$;
COMMENT ON FUNCTION outbox.lint_tables() IS 'part of outbox.lint(): what keeps changes of captured tables from becoming events';

-- Code that publishes past the outbox, or loses its errors.
CREATE FUNCTION outbox.lint_code(OUT object text, OUT problem text, OUT reason text, OUT remedy text, OUT severity text)
RETURNS SETOF record LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.name, 'publishes by ' || w.how, w.reason, 'Call outbox.enqueue(), or let outbox.capture() make the event.', w.severity
    FROM outbox.lint_functions f JOIN (VALUES
        ('NOTIFY', '(\mpg_notify\s*\()|(\mnotify\s+["[:alpha:]_])', 'Who doesn''t listen at that moment never gets it.', 'warning'),
        ('dblink', '\mdblink(_\w+)?\s*\(', 'The other connection commits by itself: it stays when this transaction rolls back.', 'warning'),
        ('HTTP', '(\mhttp(_get|_post|_put|_delete|_patch|_head)?\s*\()|(\mnet\.http_\w+\s*\()|(\murllib)|(\mrequests\.(get|post|put|patch|delete)\s*\()|(\mLWP::)',
         'The request isn''t part of the transaction: it stays when that rolls back, and is lost when it fails.', 'warning'),
        ('NATS functions', '\mnats_(publish|request|put|kv)\w*\s*\(', 'The message isn''t part of the transaction: it stays when that rolls back, and is lost when it fails.', 'warning'),
        ('another broker''s functions', '(\mamqp\.publish\s*\()|(\mkafka\w*\.\w*produce\w*\s*\()|(\mpublish_to_(kafka|rabbitmq)\w*\s*\()',
         'The message isn''t part of the transaction: it stays when that rolls back, and is lost when it fails.', 'warning'),
        ('COPY TO PROGRAM', '\mto\s+program\M', 'The program runs at once: it stays when this transaction rolls back.', 'warning')
    ) w (how, pattern, reason, severity) ON f.source ~* w.pattern
    UNION ALL
    SELECT f.name, 'catches all errors around outbox.enqueue()', 'An event that is refused is lost, and the transaction goes on without it.',
           'Let the error through, or catch only what you can deal with.', 'error'
    FROM outbox.lint_functions f
    WHERE f.source ~* '\moutbox\.(enqueue\w*\s*\(|events\M)' AND f.source ~* '\mexception\M.*\mwhen\s+others\M'
$$;
COMMENT ON FUNCTION outbox.lint_code() IS 'part of outbox.lint(): functions that publish past the outbox, or lose its errors; by their text, so it may err';

CREATE FUNCTION outbox.lint(OUT object text, OUT problem text, OUT reason text, OUT remedy text, OUT severity text)
RETURNS SETOF record LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM (SELECT * FROM outbox.lint_rules() UNION ALL SELECT * FROM outbox.lint_log() UNION ALL SELECT * FROM outbox.lint_tables() UNION ALL SELECT * FROM outbox.lint_code()) f
    ORDER BY array_position(ARRAY['error', 'warning', 'info'], f.severity), f.object, f.problem
$$;
COMMENT ON FUNCTION outbox.lint() IS
'what in this database may lose events or publish past the outbox, one row each: object, problem, reason, remedy, severity (error, warning, info)';

INSERT INTO outbox.privileges VALUES ('monitor', 'EXECUTE', 'lint');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{lint_source, lint_functions, lint_rules, lint_log, lint_tables, lint_code}'::name[]);
