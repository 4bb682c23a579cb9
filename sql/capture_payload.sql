-- Capture: what is in an event, whatever the session's settings are.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\i :srcdir/test/regress/capture.psql
\set ECHO all

CREATE TYPE mood AS ENUM ('sad', 'a "happy" one');
CREATE TYPE pair AS (at timestamptz, f float8);
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE TABLE every (
    id uuid PRIMARY KEY, b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, n numeric, d date, t timestamp, tz timestamptz, ti time, tiz timetz,
    iv interval, tx text, vc varchar(9), bc char(4), na name, by bytea, js json, jb jsonb, x xml, m money, e mood, a int[], at timestamptz[], p pair,
    r numrange, po point, rg regclass, ip inet, bi bit(3), dm positive, nothing text, ts tsvector);
SELECT outbox.capture('every');
CREATE FUNCTION fill() RETURNS void LANGUAGE sql AS $$
    INSERT INTO every VALUES ('0195e7a0-0000-7000-8000-000000000001', true, 1, -2, 9007199254740993, 0.1, 1e-7, 1.50, '2024-02-29', '2024-02-29 12:00:00.5',
        '2024-10-27 00:30:00.1234+00', '12:34:56.7', '12:34:56+02', '1 year 2 days 03:04:05.6', E'\u00e9 "q" \\ \t\n\x01', 'v', 'c', 'n', '\x00ff5c',
        '{"b": 1,  "a": [1, 2]}', '{"b": 1,  "a": [1, 2]}', '<a>1</a>', '1.5', 'a "happy" one', '{1,2,NULL}', ARRAY['2024-10-27 00:30:00+00'::timestamptz],
        ROW('2024-10-27 00:30:00+00', 0.1), '[1.5,2)', '(0.1,0.2)', 'pg_class', '10.0.0.1/8', B'101', 7, NULL, 'a:1 b:2'),
        ('0195e7a0-0000-7000-8000-000000000002', NULL, NULL, NULL, NULL, 'NaN', '-Infinity', 'NaN', 'infinity', '-infinity', '0044-03-15 00:00+00 BC', NULL, NULL,
        NULL, '', NULL, '', NULL, '', NULL, 'null', NULL, NULL, NULL, '{}', '{}', NULL, 'empty', NULL, NULL, NULL, NULL, NULL, NULL, '');
$$;

-- it is what row_to_json() gives under the usual settings
SET TimeZone = 'UTC';
SET IntervalStyle = 'postgres';
SELECT fill();
SELECT n.id, n.payload = row_to_json(every)::text AS as_row_to_json, n.payload FROM pg_temp.news() n JOIN every ON every.id = n.id::uuid;
CREATE TEMP TABLE usual AS SELECT position - min(position) OVER () AS n, aggregate_id, payload FROM outbox.log WHERE aggregate_type = 'every';
DELETE FROM every;
SELECT count(*) FROM pg_temp.news();

SET TimeZone = 'Asia/Kathmandu';
SET DateStyle = 'German';
SET IntervalStyle = 'sql_standard';
SET extra_float_digits = -10;
SET bytea_output = 'escape';
SET xmloption = 'document';
SET xmlbinary = 'hex';
SET quote_all_identifiers = on;
SET lc_monetary = 'C';
SET search_path = pg_temp, capture_test;
SELECT fill();
SELECT count(*) AS differ FROM usual u JOIN outbox.log l ON l.aggregate_type = 'every' AND l.aggregate_id = u.aggregate_id AND l.event_type = 'every.created' AND l.payload <> u.payload;
SHOW TimeZone;
SHOW DateStyle;
SHOW search_path;
RESET ALL;
SET search_path = capture_test;
SELECT count(*) FROM pg_temp.news();

-- json that jsonb can't hold is kept as text, and outbox.events stays readable
CREATE TABLE odd (id int PRIMARY KEY, j json);
SELECT outbox.capture('odd');
INSERT INTO odd VALUES (1, '{"a": "\u0000"}'), (2, '{"a": 1e200000}'), (3, '{"a": "\ud800"}'), (4, '{"a": "\u00e9"}');
SELECT aggregate_id, payload, payload_text, content_type FROM outbox.events WHERE aggregate_type = 'odd' ORDER BY position;
SELECT count(*) FROM pg_temp.news();

-- TOASTed values
CREATE TABLE big (id int PRIMARY KEY, t text, n int);
ALTER TABLE big ALTER t SET STORAGE EXTERNAL;
SELECT outbox.capture('big');
INSERT INTO big SELECT 1, repeat('x', 100000), 1;
UPDATE big SET n = 1;
UPDATE big SET n = 2;
UPDATE big SET t = t || '';
UPDATE big SET t = repeat('x', 99999) || 'y';
SELECT id, event, length(payload), right(payload, 10) FROM pg_temp.news();

-- keys of one and several columns; what has no text of its own
CREATE TABLE keys (a text, b text, n int GENERATED ALWAYS AS IDENTITY);
SELECT outbox.capture('keys', aggregate_id => '{a}', columns => '{}');
INSERT INTO keys VALUES ('plain'), ('50%:x'), (''), (NULL);
SELECT outbox.capture('keys', aggregate_id => '{a,b}', columns => '{}');
INSERT INTO keys VALUES ('a', 'b'), ('a:', 'b'), ('a', ':b'), ('a%3A', 'b'), ('', ''), (NULL, ''), ('', NULL), ('%null', '');
SELECT outbox.capture('keys', aggregate_id => '{n}', columns => '{a}');
INSERT INTO keys VALUES (repeat('k', 10));
SELECT * FROM pg_temp.news();
CREATE TABLE typed (at timestamptz, d date, f float8, b bytea, u uuid, e mood, yes bool, iv interval);
SELECT outbox.capture('typed', aggregate_id => '{at,d,f,b,u,e,yes,iv}', columns => '{}');
SET TimeZone = 'Asia/Kathmandu';
SET DateStyle = 'German';
SET extra_float_digits = 0;
SET bytea_output = 'escape';
SET IntervalStyle = 'iso_8601';
INSERT INTO typed VALUES ('2024-10-27 00:30:00+00', '2024-02-29', 0.1 + 0.2::float8, '\x00', '0195e7a0-0000-7000-8000-000000000001', 'sad', true, '1 day');
RESET ALL;
SET search_path = capture_test;
SELECT * FROM pg_temp.news();
SELECT outbox.capture('typed', aggregate_id => '{u}', name => 'long');
CREATE TABLE long (id text PRIMARY KEY);
SELECT outbox.capture('long');
SELECT pg_temp.attempt('INSERT INTO long VALUES (repeat(''x'', 513))');

-- old and new values, headers, subject, version, schema
CREATE TABLE account (id int PRIMARY KEY, tenant text, version int, route text, secret text, amount int);
SELECT outbox.capture('account', old_values => true, except_columns => '{secret}', header_columns => '{"tenant": "tenant", "x-amount": "amount"}',
    subject_column => 'route', version_column => 'version', dataschema => 'https://example.com/account/1');
INSERT INTO account VALUES (1, 'acme', 1, 'accounts.acme', 'hidden', 5);
UPDATE account SET version = 2, amount = 6, tenant = NULL, route = NULL;
UPDATE account SET secret = 'new';  -- nothing that the event tells
UPDATE account SET secret = 'newer', tenant = '';
DELETE FROM account;
SELECT event_type, payload, headers, subject, aggregate_version, dataschema FROM outbox.events WHERE aggregate_type = 'account' ORDER BY position;
SELECT pg_temp.attempt($$INSERT INTO account (id, route) VALUES (2, 'a b')$$), pg_temp.attempt($$INSERT INTO account (id, tenant) VALUES (2, E'a\nb')$$);
SELECT header_columns, subject_column, version_column, dataschema, old_values, except_columns FROM outbox.captures WHERE captured = 'account'::regclass;

-- a wide table
DO $$ BEGIN EXECUTE 'CREATE TABLE wide (' || (SELECT string_agg('c' || i || ' int', ', ') FROM generate_series(1, 1600) i) || ')'; END $$;
SELECT outbox.capture('wide', aggregate_id => '{c1600}');
INSERT INTO wide (c1, c1600) VALUES (1, 1600);
UPDATE wide SET c800 = 8;
SELECT w.aggregate_id, w.event_type, w.payload = to_jsonb(t) AS same FROM outbox.events w, wide t WHERE w.aggregate_type = 'wide' AND w.event_type = 'wide.updated';

\set ECHO none
SET client_min_messages = error;
DROP SCHEMA capture_test CASCADE;
