-- Prints docs/reference.md, from what the catalog says of the extension and its settings; for psql -XAtq.
-- "documented": names of the functions that README.md and docs/*.md speak of, see scripts/reference.
\pset format unaligned
\pset tuples_only on
SET search_path = pg_catalog;
SET client_min_messages = warning;

-- A comment or description as a sentence.
CREATE FUNCTION pg_temp.sentence(words text) RETURNS text LANGUAGE sql AS
$$ SELECT upper(left(words, 1)) || substr(words, 2) || CASE WHEN words ~ '[.!?]$' THEN '' ELSE '.' END $$;
-- Text in a table.
CREATE FUNCTION pg_temp.cell(words text) RETURNS text LANGUAGE sql AS $$ SELECT replace(words, '|', '\|') $$;

-- Numbers with the largest unit that shows all of them.
CREATE FUNCTION pg_temp.amount(number text, unit text) RETURNS text LANGUAGE sql AS $$
    SELECT coalesce((SELECT format('`%s%s`', n / u.size, u.name)
                     FROM (SELECT CASE WHEN number ~ '^[0-9]+$' THEN number::bigint END AS n) x, (VALUES
                         ('ms', 'd', 86400000), ('ms', 'h', 3600000), ('ms', 'min', 60000), ('ms', 's', 1000), ('ms', 'ms', 1),
                         ('s', 'd', 86400), ('s', 'h', 3600), ('s', 'min', 60), ('s', 's', 1),
                         ('kB', 'GB', 1048576), ('kB', 'MB', 1024), ('kB', 'kB', 1), ('B', 'MB', 1048576), ('B', 'kB', 1024), ('B', 'B', 1)
                     ) u (of, name, size)
                     WHERE u.of = unit AND n > 0 AND n % u.size = 0 ORDER BY u.size DESC LIMIT 1),
                    '`' || number || '`') $$;

CREATE FUNCTION pg_temp.range_of(s pg_settings) RETURNS text LANGUAGE sql AS $$
    SELECT CASE s.vartype
        WHEN 'bool' THEN '`on`, `off`'
        WHEN 'enum' THEN (SELECT string_agg('`' || v || '`', ', ') FROM unnest(s.enumvals) v)
        WHEN 'string' THEN 'text'
        ELSE CASE WHEN s.max_val = '2147483647' THEN pg_temp.amount(s.min_val, s.unit) || ' and more'
                  ELSE pg_temp.amount(s.min_val, s.unit) || ' to ' || pg_temp.amount(s.max_val, s.unit) END
             || coalesce('; ' || CASE s.unit WHEN 'ms' THEN 'milliseconds' WHEN 's' THEN 'seconds' WHEN 'kB' THEN 'kilobytes' WHEN 'B' THEN 'bytes' ELSE s.unit END
                         || ' without a unit', '') END $$;

-- Which settings others than superusers don't see: one has to be another for a moment.
SELECT array_agg(name) AS names FROM pg_settings WHERE name LIKE 'outbox.%' \gset
SELECT quote_ident('outbox_reference_' || pg_backend_pid()) AS nobody \gset
BEGIN;
CREATE ROLE :nobody;
SET LOCAL ROLE :nobody;
SELECT coalesce(array_agg(n), '{}') AS hidden FROM unnest(:'names'::text[]) n WHERE n NOT IN (SELECT name FROM pg_settings) \gset
ROLLBACK;
SET reference.hidden = :'hidden';

CREATE FUNCTION pg_temp.context_of(s pg_settings) RETURNS text LANGUAGE sql AS $$
    SELECT CASE s.context WHEN 'postmaster' THEN 'server start' WHEN 'sighup' THEN 'reload' WHEN 'superuser' THEN 'superuser' ELSE 'anyone' END
        || CASE WHEN s.name = ANY (current_setting('reference.hidden')::text[]) THEN ', hidden' ELSE '' END $$;

-- The arguments of a function: in, or out.
CREATE FUNCTION pg_temp.arguments(function oid, modes text) RETURNS text[] LANGUAGE sql AS $$
    SELECT array_agg(concat_ws(' ', CASE a.mode WHEN 'v' THEN 'VARIADIC' WHEN 'b' THEN 'INOUT' END, nullif(p.proargnames[a.n], ''), format_type(a.type, NULL))
                     || coalesce(' DEFAULT ' || pg_get_function_arg_default(p.oid, a.n), '')
                     ORDER BY a.n)
    FROM pg_proc p,
         LATERAL (SELECT t.n::int, t.type, coalesce(p.proargmodes[t.n], 'i') AS mode
                  FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY t (type, n)) a
    WHERE p.oid = function AND strpos(modes, a.mode::text) > 0 $$;

CREATE TEMP VIEW functions AS
SELECT p.oid, p.proname::text AS name, obj_description(p.oid, 'pg_proc') AS comment,
       p.proname = ANY (string_to_array(:'documented', ' ')) AS documented,
       pg_temp.arguments(p.oid, 'ibv') AS arguments,
       CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END
       || coalesce('(' || array_to_string(pg_temp.arguments(p.oid, 'obt'), ', ') || ')', format_type(p.prorettype, NULL)) AS result
FROM pg_proc p JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid AND d.deptype = 'e'
JOIN pg_extension e ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
WHERE e.extname = 'outbox';

-- Tables and views whose columns have comments, and the others.
CREATE TEMP VIEW relations AS
SELECT c.oid, c.relname::text AS name, c.relkind, obj_description(c.oid, 'pg_class') AS comment,
       (SELECT string_agg(format('| `%s` | %s | %s |', a.attname, format_type(a.atttypid, NULL), pg_temp.cell(col_description(c.oid, a.attnum))), E'\n' ORDER BY a.attnum)
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND col_description(c.oid, a.attnum) IS NOT NULL) AS columns
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = 'outbox' AND c.relkind IN ('r', 'v', 'S', 'c') AND c.relname !~ '^(log|ledger)_[0-7]$';

\qecho '# Reference'
\qecho
\qecho 'Every setting, function, view, table and type of the extension. `scripts/reference` makes this page of the comments in the catalog, which'
\qecho 'psql shows as well: `\\dx+ outbox`, `\\df+ outbox.*`, `\\d+ outbox.events`. A test fails when they differ; change the comments, not this page.'
\qecho
\qecho '## Settings'
\qecho
\qecho 'Who, when: *superuser* settings are in `postgresql.conf`, or set by `ALTER DATABASE`, and changed by whoever was granted `SET` on them; *reload*: in'
\qecho '`postgresql.conf` only; *server start*: that, and a restart; *anyone*: in any session. A running relay takes changes of `postgresql.conf` at a reload;'
\qecho 'after `ALTER DATABASE ... SET outbox....` or `RESET` the database''s relays start anew by themselves. *Hidden*: only superusers and'
\qecho 'members of `pg_read_all_settings` see the value.'
\qecho
\qecho '| setting | default | range | who, when | meaning |'
\qecho '|---|---|---|---|---|'
SELECT concat_ws(' | ', '| `' || s.name || '`', CASE WHEN s.boot_val = '' THEN 'none' ELSE pg_temp.amount(s.boot_val, s.unit) END, pg_temp.range_of(s),
                 pg_temp.context_of(s),
                 pg_temp.cell(concat_ws(' ', s.short_desc, s.extra_desc))) || ' |'
FROM pg_settings s WHERE s.name LIKE 'outbox.%' AND s.name NOT LIKE 'outbox.test\_%' ORDER BY s.name COLLATE "C";
\qecho
\qecho '## Functions'
SELECT format(E'\n### outbox.%s\n\n```text\noutbox.%s(%s)\nRETURNS %s\n```\n\n%s', f.name, f.name,
              CASE WHEN length(array_to_string(f.arguments, ', ')) > 100 THEN E'\n    ' || array_to_string(f.arguments, E',\n    ') ELSE coalesce(array_to_string(f.arguments, ', '), '') END,
              f.result, pg_temp.sentence(f.comment))
FROM functions f WHERE f.documented ORDER BY f.name COLLATE "C", f.oid;
\qecho
\qecho '## Views, tables, types'
SELECT format(E'\n### outbox.%s\n\n%s\n\n| column | type | meaning |\n|---|---|---|\n%s', r.name, pg_temp.sentence(r.comment), r.columns)
FROM (SELECT oid, name, coalesce(comment, obj_description(to_regtype('outbox.' || quote_ident(name)), 'pg_type')) AS comment, columns FROM relations) r
WHERE r.columns IS NOT NULL ORDER BY r.name COLLATE "C";
\qecho
\qecho '## Internals'
\qecho
\qecho 'What the above stand on; not to be called or read by applications, and free to change.'
\qecho
\qecho '| | |'
\qecho '|---|---|'
SELECT format('| `outbox.%s(%s)` | %s |', f.name, (SELECT string_agg(format_type(t, NULL), ', ' ORDER BY n) FROM unnest(p.proargtypes) WITH ORDINALITY a (t, n)), pg_temp.cell(f.comment))
FROM functions f JOIN pg_proc p ON p.oid = f.oid WHERE NOT f.documented
UNION ALL
SELECT format('| %s `outbox.%s` | %s |', CASE r.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, r.name, pg_temp.cell(r.comment))
FROM relations r WHERE r.columns IS NULL
ORDER BY 1;
