-- Who applies the events in their order gets the table: random changes, with savepoints, moves, upserts, changed keys.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
\set ECHO all

CREATE TABLE thing (id int, region text, n int, note text, twice int GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE thing_a PARTITION OF thing FOR VALUES IN ('a');
CREATE TABLE thing_b (note text, junk int, n int, id int NOT NULL, region text NOT NULL, twice int GENERATED ALWAYS AS (n * 2) STORED);
ALTER TABLE thing_b DROP junk;
ALTER TABLE thing ATTACH PARTITION thing_b FOR VALUES IN ('b');
CREATE TABLE thing_c PARTITION OF thing FOR VALUES IN ('c', 'd') PARTITION BY LIST (region);
CREATE TABLE thing_c1 PARTITION OF thing_c FOR VALUES IN ('c');
CREATE TABLE thing_c2 PARTITION OF thing_c FOR VALUES IN ('d');
SELECT outbox.capture('thing');
SELECT outbox.guard('thing');

-- One random statement; some fail, and are rolled back to their savepoint, some of those that don't as well.
CREATE FUNCTION step() RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    i int := 1 + random() * 8;
    j int := 1 + random() * 8;
    r text := substr('abcd', 1 + (random() * 3)::int, 1);
    s text := substr('abcd', 1 + (random() * 3)::int, 1);
    what int := random() * 9;
BEGIN
    CASE what
        WHEN 0, 1 THEN INSERT INTO thing VALUES (i, r, j) ON CONFLICT (id, region) DO UPDATE SET n = excluded.n + thing.n;
        WHEN 2 THEN INSERT INTO thing VALUES (i, r, j);
        WHEN 3 THEN UPDATE thing SET n = n + j, note = repeat('x', 3000 * (j % 2)) WHERE id <= i;
        WHEN 4 THEN UPDATE thing SET region = r WHERE id = i;
        WHEN 5 THEN UPDATE thing SET region = CASE region WHEN r THEN s ELSE r END WHERE id BETWEEN i AND j;
        WHEN 6 THEN UPDATE thing SET id = j, region = s WHERE id = i AND region = r;
        WHEN 7 THEN DELETE FROM thing WHERE id = i AND region <> r;
        WHEN 8 THEN MERGE INTO thing t USING (VALUES (i, r), (j, s)) v (id, region) ON t.id = v.id AND t.region = v.region
            WHEN MATCHED AND t.n > 5 THEN DELETE WHEN MATCHED THEN UPDATE SET n = t.n + 1
            WHEN NOT MATCHED THEN INSERT (id, region, n) VALUES (v.id, v.region, 0);
        ELSE UPDATE thing SET n = n;
    END CASE;
    IF random() < 0.2 THEN
        RAISE EXCEPTION 'undone';
    END IF;
    RETURN 'ok';
EXCEPTION WHEN others THEN
    RETURN CASE WHEN SQLERRM = 'undone' OR SQLSTATE = '23505' OR SQLSTATE = '21000' THEN 'undone' ELSE SQLERRM END;
END $$;
SELECT setseed(0.42);
SELECT step() AS outcome, count(*) > 100 AS many FROM generate_series(1, 2000) GROUP BY 1 ORDER BY 1;

-- the last event of each aggregate is what became of it
WITH last AS (
    SELECT DISTINCT ON (l.aggregate_id) l.aggregate_id, l.event_type, convert_from(l.payload, 'UTF8') AS payload
    FROM outbox.log l, seen WHERE l.position > seen.position ORDER BY l.aggregate_id, l.position DESC),
replayed AS (SELECT payload FROM last WHERE event_type <> 'thing.deleted'),
stored AS (SELECT row_to_json(t)::text AS payload FROM thing t)
SELECT (SELECT count(*) FROM stored) > 0 AS something,
       (SELECT count(*) FROM (TABLE replayed EXCEPT ALL TABLE stored) d) AS too_many,
       (SELECT count(*) FROM (TABLE stored EXCEPT ALL TABLE replayed) d) AS missing;
-- and each event follows from the one before: nothing is created twice, updated or deleted without being there
WITH chain AS (
    SELECT l.event_type, lag(l.event_type) OVER (PARTITION BY l.aggregate_id ORDER BY l.position) AS before
    FROM outbox.log l, seen WHERE l.position > seen.position)
SELECT DISTINCT coalesce(before, 'nothing') AS before, event_type FROM chain ORDER BY 1, 2;

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test CASCADE;
