-- ------------------------------------------------------------- retention

CREATE FUNCTION outbox.range_keeps_dead(child integer, before timestamptz, dead_before timestamptz)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- A scalar sub-select: by index, whatever statistics say.
    RETURN QUERY EXECUTE format('SELECT d.position FROM outbox.delivery d WHERE (d.state IN (''r'', ''b'', ''p'')
         OR d.state = ''f'' AND (d.failed_at > $2) IS NOT FALSE OR d.state = ''x'' AND d.discarded_at > $1)
        AND (SELECT true FROM outbox.log_%s l WHERE l.position = d.position)', child) USING before, dead_before;
END $$;
COMMENT ON FUNCTION outbox.range_keeps_dead(integer, timestamptz, timestamptz) IS
'positions of a range that have failed and must not be removed: retried, blocked, parked, dead letters and discarded events that are too young';

CREATE FUNCTION outbox.range_keeps(child integer, before timestamptz, dead_before timestamptz, max_rows integer)
RETURNS SETOF bigint LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT k FROM outbox.range_keeps_dead($1, $2, $3) k UNION ALL
        SELECT l.position FROM outbox.log_%s l
        WHERE l.position > (SELECT coalesce(max(w.position), 0) FROM outbox.watermark w)
          AND outbox.settled_at(l.position) IS NULL
          AND (SELECT true FROM outbox.delivery d WHERE d.position = l.position) IS NULL
        LIMIT $4', child) USING child, before, dead_before, max_rows;
END $$;
COMMENT ON FUNCTION outbox.range_keeps(integer, timestamptz, timestamptz, integer) IS
'positions of a range that must not be removed: pending events, and those of range_keeps_dead(); max_rows of them';

CREATE FUNCTION outbox.range_figures(
    child integer, OUT first_position bigint, OUT last_position bigint, OUT events bigint, OUT bytes bigint,
    OUT oldest timestamptz, OUT newest timestamptz)
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('SELECT count(*), min(position), max(position),
        (SELECT created_at FROM outbox.log_%1$s ORDER BY position LIMIT 1), (SELECT max(settled_at) FROM outbox.ledger_%1$s),
        pg_total_relation_size(''outbox.log_%1$s'') + pg_total_relation_size(''outbox.ledger_%1$s'') FROM outbox.log_%1$s', child)
    INTO events, first_position, last_position, oldest, newest, bytes;
END $$;
COMMENT ON FUNCTION outbox.range_figures(integer) IS 'what a range holds, counted';

CREATE FUNCTION outbox.range_survey(
    child integer, before timestamptz, dead_before timestamptz, max_kept integer, as_if_closed boolean DEFAULT false,
    OUT newest timestamptz, OUT kept bigint, OUT reason text)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    closed timestamptz;
    sealed boolean;
    positions bigint[];
    size bigint;
BEGIN
    SELECT r.closed_at, r.last_position IS NOT NULL INTO closed, sealed FROM outbox.ring r WHERE r.child = child;
    EXECUTE format('SELECT max(settled_at) FROM outbox.ledger_%s', child) INTO newest;
    IF closed IS NULL AND NOT as_if_closed THEN
        reason := 'it takes new events';
    ELSIF before IS NULL THEN
        reason := 'outbox.retention is off';
    ELSIF coalesce(newest, closed, clock_timestamp()) > before THEN
        reason := 'its newest event was published at ' || coalesce(newest, closed, clock_timestamp());
    ELSIF NOT sealed AND NOT as_if_closed THEN
        reason := 'a transaction that may have written into it is open, or it is in use';
    ELSE
        SELECT array_agg(k) INTO positions FROM outbox.range_keeps(child, before, dead_before, max_kept) k;
        kept := coalesce(cardinality(positions), 0);
        EXECUTE format('SELECT sum(octet_length(payload)) FROM outbox.log_%s WHERE position = ANY ($1)', child) INTO size USING positions;
        IF kept >= max_kept OR size > 67108864 THEN
            reason := format('too much of it must be kept: %s events that are pending, blocked or dead letters', CASE WHEN kept >= max_kept THEN kept || ' or more' ELSE kept::text END);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION outbox.range_survey IS
'why a range can''t be removed (reason NULL: it can), when its newest event was published, and how many events would be kept';

CREATE FUNCTION outbox.retention_cutoffs(OUT before timestamptz, OUT dead_before timestamptz)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN current_setting('outbox.retention') <> '-1' THEN clock_timestamp() - current_setting('outbox.retention')::interval END,
           CASE WHEN current_setting('outbox.dead_letter_retention') <> '-1'
                THEN clock_timestamp() - current_setting('outbox.dead_letter_retention')::interval ELSE '-infinity' END;
END;
COMMENT ON FUNCTION outbox.retention_cutoffs() IS 'published, and dead letters, up to when outbox.retention and outbox.dead_letter_retention let go';

CREATE FUNCTION outbox.ranges(
    OUT child integer, OUT generation bigint, OUT opened_at timestamptz, OUT closed_at timestamptz, OUT oldest timestamptz,
    OUT newest timestamptz, OUT bytes bigint, OUT kept_because text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    r record;
BEGIN
    FOR r IN SELECT g.*, c.before, least(c.dead_before, c.before) AS dead_before
             FROM (SELECT t.child, t.generation, t.opened_at, t.closed_at FROM outbox.ring t
                   UNION ALL SELECT 0, 1, NULL, NULL WHERE NOT EXISTS (SELECT FROM outbox.ring)) g, outbox.retention_cutoffs() c
             ORDER BY g.generation LOOP
        child := r.child; generation := r.generation; opened_at := r.opened_at; closed_at := r.closed_at;
        EXECUTE format('SELECT (SELECT created_at FROM outbox.log_%1$s ORDER BY position LIMIT 1),
            pg_total_relation_size(''outbox.log_%1$s'') + pg_total_relation_size(''outbox.ledger_%1$s'')', child) INTO oldest, bytes;
        SELECT s.newest, coalesce(s.reason, outbox.archive_trouble(child), 'it will go soon') INTO newest, kept_because
        FROM outbox.range_survey(child, r.before, r.dead_before, 10000) s;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.ranges() IS
'the ranges of events that are kept, oldest first: since when, when their newest event was published, their size, and why they aren''t removed; outbox.purges says what was';

CREATE FUNCTION outbox.run_cleaner(before timestamptz) RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'outbox_run_cleaner';
COMMENT ON FUNCTION outbox.run_cleaner(timestamptz) IS 'starts the cleaner and waits for its end; outbox.purge() calls it';

CREATE FUNCTION outbox.purge(
    older_than interval DEFAULT NULL, before timestamptz DEFAULT NULL, dry_run boolean DEFAULT false,
    OUT action text, OUT child integer, OUT events bigint, OUT bytes bigint, OUT carried_over bigint, OUT first_position bigint,
    OUT last_position bigint, OUT oldest timestamptz, OUT newest timestamptz, OUT reason text)
RETURNS SETOF record LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
    cutoffs record;
    marked bigint;
    r record;
BEGIN
    cutoffs := outbox.retention_cutoffs();
    IF num_nonnulls(older_than, before) = 2 THEN
        RAISE invalid_parameter_value USING MESSAGE = 'older_than and before exclude each other';
    END IF;
    IF older_than < '0' THEN
        RAISE invalid_parameter_value USING MESSAGE = 'older_than must not be negative';
    END IF;
    IF before > clock_timestamp() THEN
        RAISE invalid_parameter_value USING MESSAGE = 'before must not be in the future';
    END IF;
    IF dry_run IS NULL THEN
        RAISE null_value_not_allowed USING MESSAGE = 'dry_run must not be null';
    END IF;
    before := coalesce(before, clock_timestamp() - older_than, cutoffs.before);
    IF before IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = 'outbox.retention is off, so it must be said what to remove',
            HINT = 'Give older_than or before.';
    END IF;
    IF NOT dry_run THEN
        IF current_setting('transaction_isolation') <> 'read committed' THEN
            RAISE feature_not_supported USING MESSAGE = 'events can only be purged at isolation level READ COMMITTED',
                HINT = 'A preview (dry_run => true) is possible.';
        END IF;
        marked := outbox.run_cleaner(before);
    END IF;
    FOR r IN SELECT p.* FROM outbox.purges p WHERE p.run = marked ORDER BY p.generation LOOP
        action := 'removed'; child := r.child; events := r.events; bytes := r.bytes; carried_over := r.carried_over;
        first_position := r.first_position; last_position := r.last_position; oldest := r.oldest; newest := r.newest;
        RETURN NEXT;
    END LOOP;
    FOR r IN SELECT g.child AS number, s.kept, s.reason AS why, f.*
             FROM (SELECT t.child::integer, t.generation FROM outbox.ring t
                   UNION ALL SELECT 0, 1 WHERE NOT EXISTS (SELECT FROM outbox.ring)) g,
                  outbox.range_survey(g.child, before, least(cutoffs.dead_before, before), 10000, dry_run) s,
                  outbox.range_figures(g.child) f
             WHERE f.events > 0 ORDER BY g.generation LOOP
        action := CASE WHEN dry_run AND r.why IS NULL THEN 'would be removed' ELSE 'kept' END;
        child := r.number; bytes := r.bytes; first_position := r.first_position; last_position := r.last_position;
        oldest := r.oldest; newest := r.newest;
        carried_over := CASE WHEN r.why IS NULL AND dry_run THEN r.kept END;
        events := r.events - coalesce(carried_over, 0);
        reason := CASE WHEN r.why IS NULL AND NOT dry_run
            THEN coalesce(outbox.archive_trouble(child), 'another session is using it, or it changed just now') ELSE r.why END;
        RETURN NEXT;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox.purge IS
'removes published events now instead of after outbox.retention: ranges whose events were all published up to a time (before, or older_than ago); dry_run only tells what it would do; one row for each range, with the reason why one is kept';

INSERT INTO outbox.privileges VALUES ('monitor', 'EXECUTE', 'ranges'), ('operator', 'EXECUTE', 'purge');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL',
    unnest('{range_keeps_dead, range_keeps, range_figures, range_survey, retention_cutoffs, run_cleaner}'::name[]);
