-- ------------------------------------------------------------- who may what

-- For tenants: the same with the rights of whoever reads it, so that the policies of outbox.log hold.
DO $$ BEGIN
    EXECUTE 'CREATE VIEW outbox.own_events WITH (security_invoker = on) AS ' || pg_catalog.pg_get_viewdef('outbox.events'::pg_catalog.regclass);
END $$;
COMMENT ON VIEW outbox.own_events IS 'like outbox.events, for tenants: the rows that the policies of outbox.log let the role see';

CREATE FUNCTION outbox.privileges_of(kind text) RETURNS SETOF text
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('EXECUTE ON ROUTINE %s', p.oid::regprocedure)
    FROM outbox.privileges g JOIN pg_proc p ON p.pronamespace = 'outbox'::regnamespace AND p.proname = g.object
    WHERE g.privilege = 'EXECUTE' AND (g.kind = $1 OR $1 = 'operator' AND g.kind = 'monitor')
    UNION ALL
    SELECT format('%s%s ON TABLE outbox.%I', g.privilege, ' (' || (SELECT string_agg(quote_ident(c), ', ') FROM unnest(g.columns) c) || ')', g.object)
    FROM outbox.privileges g
    WHERE g.privilege <> 'EXECUTE' AND (g.kind = $1 OR $1 = 'operator' AND g.kind = 'monitor');
END;
COMMENT ON FUNCTION outbox.privileges_of(text) IS 'the privileges of a kind of role, in the words of GRANT; an operator has those of a monitor too';

-- Granted to the role itself: not to PUBLIC, nor to a role that it is a member of.
CREATE FUNCTION outbox.role_holds(role oid, privilege text, object name, columns name[]) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE
        WHEN $2 = 'EXECUTE' THEN NOT EXISTS (
            SELECT FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname = $3
            AND NOT EXISTS (SELECT FROM aclexplode(p.proacl) a WHERE a.grantee = $1))
        WHEN $4 IS NULL THEN EXISTS (
            SELECT FROM pg_class c, aclexplode(c.relacl) a
            WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = $3 AND a.grantee = $1 AND a.privilege_type = $2)
        ELSE NOT EXISTS (
            SELECT FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid
            WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = $3 AND t.attname = ANY ($4)
            AND NOT EXISTS (SELECT FROM aclexplode(t.attacl) a WHERE a.grantee = $1 AND a.privilege_type = $2))
    END;
END;
COMMENT ON FUNCTION outbox.role_holds IS 'whether a role was granted a privilege on an object of schema outbox, or on all of the columns named';

CREATE VIEW outbox.grants AS
SELECT r.rolname AS role, g.kind,
       pg_catalog.array_agg(g.privilege || ' ON ' || g.object ORDER BY g.privilege, g.object) FILTER (WHERE NOT h.held) AS missing
FROM pg_catalog.pg_roles r, outbox.privileges g, LATERAL (SELECT outbox.role_holds(r.oid, g.privilege, g.object, g.columns) AS held OFFSET 0) h
WHERE g.kind NOT IN ('owner', 'public') AND NOT r.rolsuper
GROUP BY r.rolname, g.kind
-- Kinds have privileges in common: one of those doesn't make a role of each of them.
HAVING pg_catalog.bool_or(h.held AND NOT EXISTS (
    SELECT FROM outbox.privileges o
    WHERE o.kind <> g.kind AND o.privilege = g.privilege AND o.object = g.object AND o.columns IS NOT DISTINCT FROM g.columns));
COMMENT ON VIEW outbox.grants IS
'which roles are producers, consumers, operators, ...; missing: what others of the kind may and this one may not, as after an update that brought more';

CREATE FUNCTION outbox.check_grantee(role name) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF role IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'role must not be null';
    ELSIF role = 'public' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'nothing of outbox is granted to PUBLIC', HINT = 'Name a role.';
    ELSIF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = role) THEN
        RAISE undefined_object USING MESSAGE = format('role "%s" does not exist', role);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.check_grantee(name) IS 'fails unless the role is one to which something can be granted';

CREATE FUNCTION outbox.grant_kind(role name, kind text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    privilege text;
BEGIN
    PERFORM outbox.check_grantee(role);
    IF kind = 'tenant' AND EXISTS (SELECT FROM pg_class c WHERE c.oid IN ('outbox.log'::regclass, 'outbox.delivery'::regclass) AND NOT c.relrowsecurity) THEN
        RAISE object_not_in_prerequisite_state USING MESSAGE = 'row-level security is not enabled',
            DETAIL = 'Without it on outbox.log and outbox.delivery a tenant reads the events of all others.',
            HINT = 'See docs/security.md, "Tenants".';
    END IF;
    -- Two at once would change the same rows of the catalog.
    LOCK TABLE outbox.privileges IN SHARE ROW EXCLUSIVE MODE;
    EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', role);
    FOR privilege IN SELECT outbox.privileges_of(kind) LOOP
        EXECUTE format('GRANT %s TO %I', privilege, role);
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.grant_kind(name, text) IS 'makes a role one of a kind; outbox.grant_producer() and its like call it';

CREATE FUNCTION outbox.revoke_kind(role name, kind text) RETURNS void
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    self oid := (SELECT r.oid FROM pg_roles r WHERE r.rolname = role);
    other text;
    others text[];
    privilege text;
BEGIN
    PERFORM outbox.check_grantee(role);
    LOCK TABLE outbox.privileges IN SHARE ROW EXCLUSIVE MODE;
    -- Kinds have privileges in common: what another one needs stays.
    others := ARRAY(
        SELECT p.kind FROM outbox.privileges p
        WHERE p.kind NOT IN (kind, 'owner', 'public') AND NOT (kind = 'operator' AND p.kind = 'monitor')
        GROUP BY p.kind HAVING bool_and(outbox.role_holds(self, p.privilege, p.object, p.columns)));
    FOR privilege IN SELECT outbox.privileges_of(kind) LOOP
        EXECUTE format('REVOKE %s FROM %I', privilege, role);
    END LOOP;
    FOREACH other IN ARRAY others LOOP
        PERFORM outbox.grant_kind(role, other);
    END LOOP;
    IF kind = 'monitor' AND 'operator' = ANY (others) THEN
        RAISE NOTICE USING MESSAGE = format('role "%s" stays a monitor, because it is an operator', role);
    END IF;
    IF NOT EXISTS (
        SELECT FROM (SELECT p.proacl AS acl FROM pg_proc p WHERE p.pronamespace = 'outbox'::regnamespace
                     UNION ALL SELECT c.relacl FROM pg_class c WHERE c.relnamespace = 'outbox'::regnamespace
                     UNION ALL SELECT t.attacl FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid WHERE c.relnamespace = 'outbox'::regnamespace) o,
             aclexplode(o.acl) a
        WHERE a.grantee = self) THEN
        EXECUTE format('REVOKE USAGE ON SCHEMA outbox FROM %I', role);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.revoke_kind(name, text) IS
'takes from a role what makes it one of a kind, but for what other kinds that it is of have too; outbox.revoke_producer() and its like call it';

DO $$
DECLARE
    kind record;
BEGIN
    FOR kind IN SELECT * FROM (VALUES
        ('producer', 'to enqueue events, and nothing else'),
        ('consumer', 'to receive events in this database, each with one effect'),
        ('relay', 'to publish events from outside the server: to claim them, and to settle them'),
        ('reader', 'to read all events with their payloads'),
        ('tenant', 'to read, in outbox.own_events, the events that the policies of outbox.log show it'),
        ('monitor', 'to see states, numbers and errors, but no payload and no headers'),
        ('operator', 'to redrive, discard, pause and purge, and what a monitor may')) AS k(name, meaning) LOOP
        EXECUTE pg_catalog.format('CREATE FUNCTION outbox.grant_%1$s(role name) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
            BEGIN ATOMIC SELECT outbox.grant_kind($1, %1$L); END', kind.name);
        EXECUTE pg_catalog.format('CREATE FUNCTION outbox.revoke_%1$s(role name) RETURNS void LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
            BEGIN ATOMIC SELECT outbox.revoke_kind($1, %1$L); END', kind.name);
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION outbox.grant_%1$s(name) IS %2$L', kind.name,
            'permits a role ' || kind.meaning || '; for the owner of the extension; again after an update, for what is new');
        EXECUTE pg_catalog.format('COMMENT ON FUNCTION outbox.revoke_%1$s(name) IS %2$L', kind.name, 'takes from a role what outbox.grant_' || kind.name || '() gave');
        INSERT INTO outbox.privileges VALUES ('owner', 'ALL', 'grant_' || kind.name), ('owner', 'ALL', 'revoke_' || kind.name);
    END LOOP;
END $$;

INSERT INTO outbox.privileges SELECT 'tenant', 'SELECT', unnest('{own_events, log, delivery, watermark}'::name[]);
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'grants'), ('monitor', 'EXECUTE', 'role_holds');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{privileges_of, check_grantee, grant_kind, revoke_kind}'::name[]);
