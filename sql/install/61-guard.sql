-- ----------------------------------------------------------------- guard

-- Runs as its caller.
CREATE FUNCTION outbox.guard(
    target regclass, aggregate_type text DEFAULT NULL, aggregate_id text[] DEFAULT NULL,
    event text DEFAULT 'aggregate', on_missing text DEFAULT 'error', exempt_roles name[] DEFAULT NULL)
RETURNS void LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    type    text := coalesce(aggregate_type, (SELECT c.relname FROM pg_class c WHERE c.oid = target));
    key     text[] := outbox.rule_check(target, type, aggregate_id, NULL);
    rule_id bigint;
    unknown name;
BEGIN
    IF event IS NULL OR event NOT IN ('aggregate', 'any') OR on_missing IS NULL OR on_missing NOT IN ('error', 'warning') THEN
        RAISE EXCEPTION 'an argument has none of its values' USING ERRCODE = 'invalid_parameter_value',
            HINT = 'event is aggregate or any, on_missing is error or warning.';
    END IF;
    SELECT r INTO unknown FROM unnest(exempt_roles) r WHERE to_regrole(quote_ident(r)) IS NULL LIMIT 1;
    IF unknown IS NOT NULL THEN
        RAISE EXCEPTION 'role "%" does not exist', unknown USING ERRCODE = 'undefined_object';
    END IF;
    rule_id := outbox.rule_save('guard', target, 'main', jsonb_build_object(
        'aggregate_type', type, 'key_columns', key, 'any_event', event = 'any', 'warns', on_missing = 'warning', 'exempt_roles', exempt_roles));
    EXECUTE format('CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON %s FOR EACH ROW EXECUTE FUNCTION outbox.guard_row(%L)',
                   outbox.rule_trigger_prefix('guard', rule_id) || 'row', target, rule_id);
END $$;
COMMENT ON FUNCTION outbox.guard IS
'refuses (SQLSTATE 23000), or warns of, transactions that change the table without enqueuing an event; a second call replaces the first. For the owner of the table. Arguments: docs/capture.md';

CREATE FUNCTION outbox.unguard(target regclass)
RETURNS boolean LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$SELECT outbox.rule_save('guard', $1, 'main', NULL) OPERATOR(pg_catalog.>) 0$$;
COMMENT ON FUNCTION outbox.unguard(regclass) IS 'ends a guard and drops its triggers; true if there was one. For the owner of the table';

CREATE VIEW outbox.guards AS
SELECT s.target AS guarded, s.aggregate_type, s.key_columns AS aggregate_id,
       CASE WHEN s.any_event THEN 'any' ELSE 'aggregate' END AS event,
       CASE WHEN s.warns THEN 'warning' ELSE 'error' END AS on_missing, s.exempt_roles,
       outbox.rule_state('guard', s.id, s.target, 2) AS state, s.id
FROM outbox.guard_settings s JOIN pg_catalog.pg_class c ON c.oid = s.target;
COMMENT ON VIEW outbox.guards IS 'which tables outbox.guard() guards, by its arguments, and the state of its triggers';

INSERT INTO outbox.privileges SELECT 'producer', 'EXECUTE', unnest('{guard, unguard}'::name[]);
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'guards');
