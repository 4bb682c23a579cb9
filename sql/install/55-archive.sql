-- --------------------------------------------------------------- archive

-- One row for each time that a range was written to a file, or sent to outbox.archive_url.
CREATE TABLE outbox.archives (
    id             bigint      PRIMARY KEY,
    range          bigint      NOT NULL,          -- the ring's generation
    kind           "char"      NOT NULL CHECK (kind IN ('f', 'u')),  -- f: a file, u: a URL
    destination    text        NOT NULL,          -- directory, or URL without user and password
    file           text,                          -- NULL: sent to a URL, or there was nothing to write
    first_position bigint,
    last_position  bigint,
    first_time     timestamptz,                   -- lowest and highest created_at
    last_time      timestamptz,
    events         bigint      NOT NULL,
    text_bytes     bigint      NOT NULL,
    file_bytes     bigint,
    sha256         text,
    -- w: about to be given its name; d: durable
    state          "char"      NOT NULL CHECK (state IN ('w', 'd')),
    archived_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    removed_at     timestamptz,                   -- since then the events aren't in the log any more
    -- While the range is in the log: what isn't in the archive, and how many rows the ledger had, by which changes are noticed.
    kept           bigint[],
    ledger_rows    bigint      NOT NULL
);
CREATE INDEX archives_range ON outbox.archives (range);
COMMENT ON TABLE outbox.archives IS 'what outbox.archive_directory and outbox.archive_url have got, one row for each range and place; see outbox.archive_files';

CREATE TABLE outbox.archive_troubles (
    range    bigint      PRIMARY KEY,
    since    timestamptz NOT NULL DEFAULT clock_timestamp(),
    failures integer     NOT NULL DEFAULT 1,
    error    text        NOT NULL
);
COMMENT ON TABLE outbox.archive_troubles IS 'ranges that could not be archived, and why; they stay in the database and are tried again';

SELECT pg_catalog.pg_extension_config_dump('outbox.archives', '');

CREATE VIEW outbox.archive_files AS
SELECT a.range, a.destination AS directory, a.file, a.first_position, a.last_position, a.first_time, a.last_time, a.events,
       a.text_bytes, a.file_bytes, a.sha256, a.archived_at, a.removed_at
FROM outbox.archives a
WHERE a.kind = 'f' AND a.state = 'd' AND a.file IS NOT NULL;
COMMENT ON VIEW outbox.archive_files IS
'the files that outbox.archive_directory has got: positions, lowest and highest created_at, events, bytes before and after compression, checksum, and since when the events are in the file only';

CREATE FUNCTION outbox.archive_plan(
    child integer, before timestamptz, dead_before timestamptz, max_kept integer,
    OUT range bigint, OUT ledger_rows bigint, OUT kept bigint[], OUT has_file boolean, OUT has_url boolean)
LANGUAGE plpgsql STABLE STRICT SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
BEGIN
    SELECT r.generation INTO range FROM outbox.ring r WHERE r.child = child;
    EXECUTE format('SELECT count(*) FROM outbox.ledger_%s', child) INTO ledger_rows;
    SELECT a.kept INTO kept FROM outbox.archives a
    WHERE a.range = range AND a.state = 'd' AND a.ledger_rows = ledger_rows
      AND NOT EXISTS (SELECT FROM outbox.range_keeps_dead(child, before, dead_before) k WHERE k <> ALL (a.kept))
    ORDER BY a.id DESC LIMIT 1;
    IF NOT FOUND THEN
        SELECT coalesce(array_agg(k ORDER BY k), '{}') INTO kept FROM outbox.range_keeps(child, before, dead_before, max_kept) k;
    END IF;
    SELECT coalesce(bool_or(a.kind = 'f'), false), coalesce(bool_or(a.kind = 'u'), false) INTO has_file, has_url FROM outbox.archives a
    WHERE a.range = range AND a.state = 'd' AND a.ledger_rows = ledger_rows AND a.kept = kept;
END $$;
COMMENT ON FUNCTION outbox.archive_plan IS
'what a closed range needs before it can go: which positions stay (those of an archive that still holds, else as outbox.range_keeps says), and which archives it has of the others';

CREATE FUNCTION outbox.archive_trouble(child integer) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_catalog.format('it could not be archived (%s failures since %s): %s', t.failures, t.since, t.error)
    FROM outbox.archive_troubles t JOIN outbox.ring r ON r.generation = t.range WHERE r.child = $1;
END;
COMMENT ON FUNCTION outbox.archive_trouble(integer) IS 'why a range that could go isn''t in the archive; NULL: nothing is known to be in the way';

CREATE FUNCTION outbox.verify_archive(
    OUT range bigint, OUT directory text, OUT file text, OUT first_position bigint, OUT last_position bigint, OUT events bigint,
    OUT problem text)
RETURNS SETOF record LANGUAGE c VOLATILE PARALLEL UNSAFE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off
AS 'MODULE_PATHNAME', 'outbox_verify_archive';
COMMENT ON FUNCTION outbox.verify_archive() IS
'reads every file of the archive and compares it with its manifest and with outbox.archive_files: one row for each file, for each range that has gone without one, and for each file that nobody knows; problem NULL: nothing is wrong';

-- Where the files are is as hidden as the setting that says so.
INSERT INTO outbox.privileges VALUES ('monitor', 'SELECT', 'archive_files',
    '{range, file, first_position, last_position, first_time, last_time, events, text_bytes, file_bytes, sha256, archived_at, removed_at}');
INSERT INTO outbox.privileges VALUES ('operator', 'EXECUTE', 'verify_archive');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL', unnest('{archives, archive_troubles, archive_plan, archive_trouble}'::name[]);
