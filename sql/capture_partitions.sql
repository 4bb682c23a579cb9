-- Capture of partitioned tables: the parent's name, whatever partition a row is in, and a move is an update.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
\set ECHO all

CREATE TABLE item (id int, region text, n int, twice int GENERATED ALWAYS AS (n * 2) STORED, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE item_eu PARTITION OF item FOR VALUES IN ('eu');
-- columns in another order, and a dropped one
CREATE TABLE item_us (n int, junk int, region text NOT NULL, twice int GENERATED ALWAYS AS (n * 2) STORED, id int NOT NULL);
ALTER TABLE item_us DROP junk;
ALTER TABLE item ATTACH PARTITION item_us FOR VALUES IN ('us');
SELECT outbox.capture('item', aggregate_id => '{id}');
-- partitions of later, one with partitions of its own
CREATE TABLE item_as PARTITION OF item FOR VALUES IN ('as', 'oc') PARTITION BY LIST (region);
CREATE TABLE item_as_1 PARTITION OF item_as FOR VALUES IN ('as');
CREATE TABLE item_oc (LIKE item INCLUDING GENERATED);
ALTER TABLE item_as ATTACH PARTITION item_oc FOR VALUES IN ('oc');

INSERT INTO item VALUES (1, 'eu', 1), (2, 'us', 2), (3, 'as', 3);
INSERT INTO item_oc VALUES (4, 'oc', 4);
UPDATE item SET n = n + 10;
SELECT * FROM pg_temp.news() ORDER BY event, id;
UPDATE item SET region = 'us' WHERE id = 1;
UPDATE item SET region = 'eu', n = 0 WHERE id = 2;
UPDATE item_as SET region = 'oc' WHERE id = 3;
SELECT * FROM pg_temp.news();
-- all at once: those that stay, those that move, one that gets another key
UPDATE item SET region = 'us', id = CASE id WHEN 4 THEN 40 ELSE id END, n = n + 1;
SELECT * FROM pg_temp.news() ORDER BY id;
MERGE INTO item i USING (VALUES (1, 'as'), (2, 'us'), (9, 'eu')) s (id, region) ON i.id = s.id
WHEN MATCHED AND s.id = 2 THEN DELETE
WHEN MATCHED THEN UPDATE SET region = s.region
WHEN NOT MATCHED THEN INSERT (id, region) VALUES (s.id, s.region);
SELECT * FROM pg_temp.news() ORDER BY id;
-- a savepoint between
BEGIN;
SAVEPOINT s;
UPDATE item SET region = 'eu' WHERE id = 3;
ROLLBACK TO s;
UPDATE item SET region = 'oc' WHERE id = 3;
COMMIT;
SELECT * FROM pg_temp.news();

-- a row that the other partition refuses was deleted; also the last of the transaction, and prepared
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RETURN CASE WHEN NEW.id <> 3 THEN NEW END; END$$;
CREATE TRIGGER refuse BEFORE INSERT ON item_eu FOR EACH ROW EXECUTE FUNCTION refuse();
SELECT count(*) FROM item;
UPDATE item SET region = 'eu';
SELECT * FROM pg_temp.news() ORDER BY id, event;
INSERT INTO item VALUES (3, 'us', 0);
SELECT count(*) FROM pg_temp.news();
BEGIN;
UPDATE item SET region = 'eu' WHERE id = 3;
PREPARE TRANSACTION 'capture_move';
COMMIT PREPARED 'capture_move';
SELECT * FROM pg_temp.news();
DROP TRIGGER refuse ON item_eu;

-- other triggers that write to the table in the middle of a move
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF pg_trigger_depth() < 2 THEN
        INSERT INTO capture_test.item VALUES (OLD.id + 100, OLD.region, 0);
        UPDATE capture_test.item SET region = CASE region WHEN 'as' THEN 'oc' ELSE 'as' END WHERE id = OLD.id + 100;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER aaa AFTER DELETE ON item FOR EACH ROW EXECUTE FUNCTION meddle();
CREATE TRIGGER zzz AFTER DELETE ON item FOR EACH ROW WHEN (OLD.id = 9) EXECUTE FUNCTION meddle();
UPDATE item SET region = 'us' WHERE id = 9;
SELECT * FROM pg_temp.news();
DROP TRIGGER aaa ON item;
DROP TRIGGER zzz ON item;
DELETE FROM item WHERE id >= 100;

-- conditions, of several captures, hold for moves, too
SELECT outbox.capture('item', aggregate_id => '{id}', update_event => 'item.big', condition => 'NEW.n > 5 AND OLD.n <= 5');
SELECT outbox.capture('item', name => 'region', aggregate_id => '{id}', update_event => 'item.moved', changed => '{region}', columns => '{id,region}');
SELECT outbox.capture('item', name => 'new', aggregate_id => '{id}', insert_event => 'item.new', columns => '{id}');
SELECT count(*) > 0 FROM pg_temp.news();
DELETE FROM item;
INSERT INTO item VALUES (1, 'eu', 1), (2, 'us', 9);
UPDATE item SET region = 'as', n = n + 5;
UPDATE item SET n = 0;
SELECT * FROM pg_temp.news() ORDER BY event, id;
SELECT outbox.uncapture('item', name) FROM outbox.captures WHERE captured = 'item'::regclass AND name <> 'main';

-- TRUNCATE of the table, and of a partition alone
SELECT outbox.capture('item', aggregate_id => '{id}');
SELECT pg_temp.attempt('TRUNCATE ' || t) FROM unnest(ARRAY['item', 'item_us', 'item_as', 'item_oc']) t;
SELECT outbox.capture('item', aggregate_id => '{id}', on_truncate => 'event');
TRUNCATE item_oc;
TRUNCATE item_as;
TRUNCATE item;
SELECT * FROM pg_temp.news();

-- a partition that has gone is captured no more
ALTER TABLE item DETACH PARTITION item_eu;
INSERT INTO item_eu VALUES (1, 'eu', 1);
UPDATE item_eu SET n = 2;
TRUNCATE item_eu;
SELECT * FROM pg_temp.news();
SELECT captured, aggregate_id, state FROM outbox.captures WHERE captured = 'item'::regclass;
SELECT outbox.uncapture('item');
SELECT tgrelid::regclass, tgname FROM pg_trigger WHERE tgrelid IN (SELECT relid FROM pg_partition_tree('item')) AND NOT tgisinternal;

-- one partition captured by itself
SELECT outbox.capture('item_us', 'us item', '{id}');
INSERT INTO item VALUES (1, 'us', 1), (2, 'as', 2);
UPDATE item SET region = CASE region WHEN 'us' THEN 'as' ELSE 'us' END;
SELECT * FROM pg_temp.news();

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test CASCADE;
