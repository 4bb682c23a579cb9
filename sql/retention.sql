-- outbox.purge(): arguments, who may call it; what outbox.ranges() says. Removal itself is in t/080 to 082.
\set VERBOSITY terse
SELECT * FROM outbox.purge(older_than => '-1 s');
SELECT * FROM outbox.purge(before => clock_timestamp() + interval '1 day');
SELECT * FROM outbox.purge(older_than => '1 day', before => '2020-01-01');
SELECT * FROM outbox.purge(dry_run => NULL);
SELECT * FROM outbox.purge(older_than => 'soon');
SET outbox.retention = -1;
SELECT * FROM outbox.purge();
SELECT * FROM outbox.purge(dry_run => true);
SELECT DISTINCT kept_because FROM outbox.ranges() WHERE closed_at IS NOT NULL AND kept_because <> 'outbox.retention is off';
RESET outbox.retention;
SELECT action, reason FROM outbox.purge(before => '2000-01-01') WHERE action <> 'kept';
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM outbox.purge(older_than => '1000 days');
ROLLBACK;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) FROM outbox.purge(older_than => '1000 days', dry_run => true) WHERE action <> 'kept';
ROLLBACK;
-- settings; the bounds are in settings.sql, and their texts differ by version
\set VERBOSITY sqlstate
SET outbox.retention = -2;
SET outbox.retention = '36500d';
SET outbox.retention = 'for ever';
SET outbox.dead_letter_retention = -2;
\set VERBOSITY terse
SET outbox.dead_letter_retention = '30d';
RESET outbox.retention;
RESET outbox.dead_letter_retention;
SELECT name, setting, unit, min_val, context FROM pg_settings WHERE name ~ '^outbox.*retention' ORDER BY name;
-- privileges
CREATE ROLE regress_outbox_purger;
GRANT USAGE ON SCHEMA outbox TO regress_outbox_purger;
SET ROLE regress_outbox_purger;
SELECT * FROM outbox.purge(older_than => '1000 days');
SELECT * FROM outbox.ranges();
SELECT outbox.run_cleaner(now());
SELECT count(*) FROM outbox.purges;
SET outbox.retention = 1;
RESET ROLE;
GRANT EXECUTE ON FUNCTION outbox.purge, outbox.ranges TO regress_outbox_purger;
SET ROLE regress_outbox_purger;
SELECT count(*) FROM outbox.purge(older_than => '1000 days') WHERE action <> 'kept';
SELECT count(*) > 0 FROM outbox.ranges();
RESET ROLE;
DROP OWNED BY regress_outbox_purger;
DROP ROLE regress_outbox_purger;
