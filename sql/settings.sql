-- Settings: who may set them, their bounds, and what is refused.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT name, context, vartype, unit, min_val, max_val, boot_val FROM pg_settings
WHERE name LIKE 'outbox.%' AND name NOT LIKE 'outbox.test\_%' ORDER BY name COLLATE "C";
SELECT name FROM pg_settings WHERE name LIKE 'outbox.%' AND (short_desc = '' OR short_desc IS NULL);

-- settings that show secrets or name files are hidden from others
SET client_min_messages = error;
DROP ROLE IF EXISTS regress_outbox_settings;
RESET client_min_messages;
CREATE ROLE regress_outbox_settings;
SELECT array_agg(name ORDER BY name) AS all FROM pg_settings WHERE name LIKE 'outbox.%' \gset
SET ROLE regress_outbox_settings;
SELECT hidden FROM unnest(:'all'::text[]) hidden EXCEPT SELECT name FROM pg_settings ORDER BY 1;
RESET ROLE;
DROP ROLE regress_outbox_settings;

-- templates
SELECT pg_temp.attempt(format('SET outbox.subject_template = %L', t)) FROM unnest(ARRAY['a', 'a.{event_type}', 'a.{aggregate_type}.b.{aggregate_id}.{event_type}.c', repeat('a', 256)]) t;
SELECT pg_temp.attempt(format('SET outbox.subject_template = %L', t))
FROM unnest(ARRAY['', '{aggregate_id}', '{event_type}.a', 'a.{aggregate_id}.{aggregate_id}', 'a.{nope}', 'a.x{aggregate_id}', 'a.{aggregate_id', 'a.{}',
    'a..b', '.a', 'a.', 'a.*', 'a.>', 'a b', E'a\tb', E'a\n', 'é', '$JS.{event_type}', '_INBOX.{event_type}', repeat('a', 257)]) t;
SELECT length(current_setting('outbox.subject_template')) AS kept;

-- URLs
SELECT pg_temp.attempt(format('SET outbox.nats_url = %L', t))
FROM unnest(ARRAY['nats://h', 'nats://h:4222', 'tls://h:4222', 'nats://user:pass@h:4222', 'nats://a:1,nats://b:2, tls://c:3', 'nats://[::1]:4222']) t;
SELECT t, regexp_replace(pg_temp.attempt(format('SET outbox.nats_url = %L', t)), '("outbox.nats_url"): "[^"]*"', '\1')
FROM unnest(ARRAY['', 'h:4222', 'http://h', 'nats://', 'tls://', 'nats://a,', ',nats://a', 'nats://a,,nats://b', 'nats://a,b', 'NATS', 'nats://a nats://b', E'nats://a\tb']) t;
-- also a wrong one may hold a password: it is not repeated
SELECT pg_temp.attempt($$SET outbox.nats_url = 'htp://user:S3cret@h'$$) ~ 'S3cret' AS repeated;
SELECT pg_temp.attempt($$SET outbox.nats_url = 'nats://user:S3cret@h,b'$$) ~ 'S3cret' AS repeated;
SELECT pg_temp.attempt($$SET outbox.nats_url = 'nats://user:S3cret word@h'$$);
SELECT pg_temp.attempt($$SET outbox.nats_url = E'nats://user:S3cret\n@h'$$);

-- the stream and the source
SELECT pg_temp.attempt(format('SET outbox.stream = %L', t)) FROM unnest(ARRAY['S', 'my_stream-1', repeat('s', 255)]) t;
SELECT pg_temp.attempt(format('SET outbox.stream = %L', t)) FROM unnest(ARRAY['', 'a b', 'a.b', 'a*', '>', 'a/b', 'a\b', E'a\tb', E'a\nb', repeat('s', 256), E'a\x01', E'a\x7f', 'Ü']) t;
SELECT pg_temp.attempt(format('SET outbox.cloudevents_source = %L', t)) FROM unnest(ARRAY['', '/shop/é', repeat('s', 255), repeat('s', 256)]) t;

-- where acknowledgements come to
SELECT pg_temp.attempt(format('SET outbox.inbox_prefix = %L', t)) FROM unnest(ARRAY['', '_INBOX', '_INBOX_relay.shop', 'replies.a.b', repeat('p', 64)]) t;
SELECT pg_temp.attempt(format('SET outbox.inbox_prefix = %L', t)) FROM unnest(ARRAY['a.>', 'a.*', '.a', 'a.', 'a..b', 'a b', E'a\nb', repeat('p', 65)]) t;

-- bounds and units; PostgreSQL 17 shows the unit behind each bound
SELECT regexp_replace(pg_temp.attempt('SET ' || s), '\((\d+)( \w+)? \.\. (\d+)( \w+)?\)', '(\1 .. \3)') AS attempt FROM unnest(ARRAY['outbox.max_payload = 1023', 'outbox.max_payload = ''65MB''', 'outbox.max_in_flight = 0', 'outbox.max_in_flight = 8193',
    'outbox.ack_timeout = 99', 'outbox.connect_timeout = 60001', 'outbox.retry_base_delay = 0', 'outbox.retry_max_delay = ''2d''', 'outbox.relay_memory = ''1kB''',
    'outbox.stream_create = maybe']) s;
SELECT pg_temp.attempt('SET ' || s) FROM unnest(ARRAY['outbox.max_payload = ''1kB''', 'outbox.ack_timeout = ''1h''', 'outbox.relay_memory = ''1MB''', 'outbox.retry_max_delay = ''1d''']) s;
SELECT pg_temp.attempt('SET ' || s) FROM unnest(ARRAY['outbox.max_open_aggregates = 5000', 'outbox.max_databases = 2', 'outbox.workers = 2', 'outbox.lease_ttl = ''5s''']) s;

-- a name that doesn't exist is refused, not kept
SELECT pg_temp.attempt('SET outbox.nats_ulr = ''x''');
