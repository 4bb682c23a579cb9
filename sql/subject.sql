-- Subjects given by the caller: what NATS can't carry is refused.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT outbox.enqueue('subject', '1', 'e', '{}', subject => s) IS NOT NULL AS ok
FROM unnest(ARRAY['a', 'a.b.c', 'a-b_c.D1', 'orders.é.ok', 'a$b.c', '_INBO.x', 'a.$b', repeat('x', 1024)]) s;
SELECT subject = 'orders.é.ok' AS kept FROM outbox.events WHERE aggregate_type = 'subject' AND subject LIKE 'orders%';

SELECT pg_temp.attempt(format($$SELECT outbox.enqueue('subject', '2', 'e', '{}', subject => %L)$$, s))
FROM unnest(ARRAY['', 'a b', E'a\tb', E'a\r\nPUB x 1', E'a\x01', E'a\x7f', '*', '>', 'a.*', 'a.>', 'a*b', 'a>',
    '.', '.a', 'a.', 'a..b', '$JS.API', '$SYS.x', '_INBOX.x', ' a', 'a ', repeat('x', 1025), repeat('é', 513)]) s;
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'subject' AND aggregate_id = '2';

-- the other ways in give the same verdict
SELECT pg_temp.attempt($$INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, subject) VALUES ('subject', '2', 'e', '{}', 'a..b')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_many('{subject}', '{2,3}', '{e}', ARRAY['{}'::jsonb], subject => '{ok,a.*}')$$);
SELECT pg_temp.attempt($$SELECT outbox.enqueue_text('subject', '2', 'e', '', subject => '>')$$);
SELECT count(*) FROM outbox.events WHERE aggregate_type = 'subject' AND aggregate_id IN ('2', '3');
