-- Every object says what it is.
\getenv srcdir PG_ABS_SRCDIR
\set ECHO none
\i :srcdir/test/regress/begin.psql
\set ECHO all

SELECT pg_describe_object(d.classid, d.objid, 0) COLLATE "C" AS without_comment
FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
WHERE e.extname = 'outbox' AND coalesce(obj_description(d.objid, d.classid::regclass::name), '') = ''
  AND d.classid <> 'pg_type'::regclass  -- of a table or an array: which of them are members differs between versions
ORDER BY 1;
SELECT obj_description(oid, 'pg_extension') <> '' AS extension FROM pg_extension WHERE extname = 'outbox';
-- a comment starts like a message, in lower case and without a full stop
SELECT pg_describe_object(d.classid, d.objid, 0) COLLATE "C" AS object, obj_description(d.objid, d.classid::regclass::name) AS comment
FROM pg_depend d JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid AND d.deptype = 'e'
WHERE e.extname = 'outbox' AND obj_description(d.objid, d.classid::regclass::name) ~ '(^[A-Z][a-z])|(\.$)' ORDER BY 1;
-- so has every column that users read: of views, of types, of the tables that the documentation sends them to
SELECT c.relname || '.' || a.attname AS without_comment
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'outbox'::regnamespace AND (c.relkind IN ('v', 'c') OR c.relname IN ('purges', 'pauses'))
  AND coalesce(col_description(c.oid, a.attnum), '') = '' ORDER BY 1;
SELECT c.relname || '.' || a.attname AS "column", col_description(c.oid, a.attnum) AS comment
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE c.relnamespace = 'outbox'::regnamespace AND col_description(c.oid, a.attnum) ~ '(^[A-Z][a-z])|(\.$)' ORDER BY 1;
