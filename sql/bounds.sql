-- Ranges of priority, occurred_at, not_before and aggregate_version.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT p, pg_temp.attempt(format($$SELECT outbox.enqueue('bounds', 'p', 'e', '{}', priority => %s)$$, p))
FROM unnest(ARRAY[-100, 100, 0, -101, 101, 65536, 2147483647, -2147483648]) p;
SELECT priority FROM outbox.events WHERE aggregate_type = 'bounds' AND aggregate_id = 'p' ORDER BY position;

-- occurred_at: what RFC 3339 can write in UTC, whatever the session's time zone
SET datestyle = 'ISO';
SET timezone = 'Asia/Tokyo';
SELECT t, pg_temp.attempt(format($$SELECT outbox.enqueue('bounds', 'o', 'e', '{}', occurred_at => %L)$$, t))
FROM unnest(ARRAY['0001-01-01 00:00+00', '0001-12-31 23:59:59 BC', '9999-12-31 23:59:59.999999+00', '10000-01-01 00:00+00',
    '10000-01-01 01:00+09', 'infinity', '-infinity', '294276-12-31 00:00+00', '4713-01-01 00:00+00 BC']) t;
SET timezone = 'UTC';
SELECT occurred_at FROM outbox.events WHERE aggregate_type = 'bounds' AND aggregate_id = 'o' ORDER BY position;

-- not_before: any; infinity keeps the event for good, -infinity and the past hold up nothing
SELECT count(outbox.enqueue('bounds', 'n', 'e', '{}', not_before => t))
FROM unnest(ARRAY['-infinity', '4713-01-01 00:00+00 BC', '2000-01-01 00:00+00', '294276-12-31 00:00+00', 'infinity', NULL]::timestamptz[]) t;
SELECT not_before FROM outbox.events WHERE aggregate_type = 'bounds' AND aggregate_id = 'n' ORDER BY position;

SELECT count(outbox.enqueue('bounds', 'v', 'e', '{}', aggregate_version => v))
FROM unnest(ARRAY[-9223372036854775808, 0, 9223372036854775807, NULL]::bigint[]) v;
SELECT aggregate_version FROM outbox.events WHERE aggregate_type = 'bounds' AND aggregate_id = 'v' ORDER BY position;
