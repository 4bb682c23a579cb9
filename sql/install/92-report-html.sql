-- ------------------------------------------------------------------ report
-- outbox.report_html(): one function for each section of the page, and the few that write HTML. Everything that comes from
-- data goes through html_text(); the page's policy lets nothing run but its own script.

-- Numeric references for all beyond ASCII: the page doesn't depend on the client's encoding then. In other databases
-- than UTF8 the text stays as it is.
CREATE FUNCTION outbox.html_text(text) RETURNS text LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    escaped text := replace(replace(replace(replace(replace($1, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '"', '&quot;'), '''', '&#39;');
BEGIN
    IF escaped !~ '[^ -~]' OR getdatabaseencoding() <> 'UTF8' THEN
        RETURN escaped;
    END IF;
    RETURN (SELECT string_agg(CASE WHEN ascii(c) BETWEEN 32 AND 126 OR c IN (E'\n', E'\t') THEN c
                                   WHEN ascii(c) < 160 THEN '&#xFFFD;' ELSE '&#' || ascii(c) || ';' END, '' ORDER BY i)
            FROM regexp_split_to_table(escaped, '') WITH ORDINALITY t(c, i));
END $$;
COMMENT ON FUNCTION outbox.html_text(text) IS 'a text as HTML shows it, also within an attribute in quotes';

CREATE FUNCTION outbox.html_number(double precision) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE WHEN $1 IS NULL THEN '&ndash;'
                WHEN abs($1) < 10 AND $1 <> floor($1) THEN pg_catalog.to_char($1, 'FM990.0')
                WHEN abs($1) < 1e6 THEN pg_catalog.to_char($1, 'FM999,999,990')
                WHEN abs($1) < 1e9 THEN pg_catalog.to_char($1 / 1e6, 'FM990.00') || ' M'
                ELSE pg_catalog.to_char($1 / 1e9, 'FM999,990.00') || ' G' END;
END;
COMMENT ON FUNCTION outbox.html_number(double precision) IS 'a number for people';

CREATE FUNCTION outbox.html_duration(seconds double precision) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT CASE WHEN $1 IS NULL THEN '&ndash;'
                WHEN $1 < 0.001 THEN pg_catalog.round(($1 * 1e6)::numeric) || '&nbsp;&micro;s'
                WHEN $1 < 0.01 THEN pg_catalog.round(($1 * 1e3)::numeric, 1) || '&nbsp;ms'
                WHEN $1 < 1 THEN pg_catalog.round(($1 * 1e3)::numeric) || '&nbsp;ms'
                WHEN $1 < 10 THEN pg_catalog.round($1::numeric, 1) || '&nbsp;s'
                WHEN $1 < 120 THEN pg_catalog.round($1::numeric) || '&nbsp;s'
                WHEN $1 < 7200 THEN pg_catalog.round(($1 / 60)::numeric) || '&nbsp;min'
                WHEN $1 < 172800 THEN pg_catalog.round(($1 / 3600)::numeric) || '&nbsp;h'
                ELSE pg_catalog.round(($1 / 86400)::numeric) || '&nbsp;days' END;
END;
COMMENT ON FUNCTION outbox.html_duration(double precision) IS 'a time that something takes, for people';

CREATE FUNCTION outbox.html_time(timestamptz) RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT coalesce('<time>' || pg_catalog.to_char($1, 'YYYY-MM-DD HH24:MI:SS') || '</time>', '&ndash;');
END;
COMMENT ON FUNCTION outbox.html_time(timestamptz) IS 'a point in time in the session''s time zone, which the page names';

CREATE FUNCTION outbox.html_age(since timestamptz) RETURNS text LANGUAGE sql VOLATILE
BEGIN ATOMIC
    SELECT outbox.html_duration(greatest(extract(epoch FROM clock_timestamp() - $1), 0)::double precision);
END;
COMMENT ON FUNCTION outbox.html_age(timestamptz) IS 'how long ago that was';

-- ---- tables. A label that begins with "#" is that of a column of numbers, one with "@" of times; sorts has the number to sort by.

CREATE FUNCTION outbox.html_row(labels text[], cells text[], sorts text[]) RETURNS text LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT '<tr>' || string_agg(format('<td data-l="%s"%s%s>%s</td>', ltrim(l.label, '#@'), CASE WHEN l.label LIKE '#%' THEN ' class="n"' END,
                                       ' data-s="' || coalesce($3[l.i], CASE WHEN l.label ~ '^[#@]' THEN '-1' END) || '"',
                                       coalesce(nullif($2[l.i], ''), '&ndash;')), '' ORDER BY l.i) || '</tr>'
    FROM unnest($1) WITH ORDINALITY l(label, i);
END;
COMMENT ON FUNCTION outbox.html_row(text[], text[], text[]) IS 'a row of a table; the cells are HTML already';

CREATE FUNCTION outbox.html_table(labels text[], rows text, if_empty text) RETURNS text LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN $2 IS NULL THEN '<p class="none">' || $3 || '</p>' ELSE
        '<table><thead><tr>' ||
        (SELECT string_agg(format('<th%s><button>%s</button></th>', CASE substr(l.label, 1, 1) WHEN '#' THEN ' class="n"' WHEN '@' THEN ' class="t"' END, ltrim(l.label, '#@')), '' ORDER BY l.i)
         FROM unnest($1) WITH ORDINALITY l(label, i)) ||
        '</tr></thead><tbody>' || $2 || '</tbody></table>' END;
END;
COMMENT ON FUNCTION outbox.html_table(text[], text, text) IS 'a table that can be sorted, or a sentence if it has no rows';

CREATE FUNCTION outbox.html_section(id text, title text, note text, content text) RETURNS text LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT format('<section id="%s"><h2>%s</h2>%s%s</section>', $1, $2, '<p class="note">' || $3 || '</p>', $4);
END;
COMMENT ON FUNCTION outbox.html_section(text, text, text, text) IS 'a section of the page';

CREATE FUNCTION outbox.html_name(text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT '<span class="name">' || outbox.html_text(left($1, 100)) || CASE WHEN length($1) > 100 THEN '&hellip;' ELSE '' END || '</span>';
END;
COMMENT ON FUNCTION outbox.html_name(text) IS 'a name or an id that may be long';

CREATE FUNCTION outbox.html_error(text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT '<code>' || outbox.html_text(left($1, 400)) || '</code>';
END;
COMMENT ON FUNCTION outbox.html_error(text) IS 'the text of an error';

-- ---- the sections

CREATE FUNCTION outbox.html_health() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH h AS (SELECT * FROM outbox.health() WITH ORDINALITY t(verdict, reason, detail, remedy, i))
    SELECT format('<section id="health" class="verdict %1$s"><h2><span class="mark" aria-hidden="true"></span>%2$s</h2>%3$s</section>', v.verdict,
                  CASE v.verdict WHEN 'ok' THEN 'Events flow' WHEN 'warning' THEN 'Look at this' ELSE 'Events are stuck' END,
                  coalesce((SELECT '<ul>' || string_agg(format('<li class="%1$s"><h3>%2$s <b class="pill %1$s">%1$s</b></h3><p>%3$s</p>%4$s</li>', r.verdict,
                                outbox.html_text(replace(r.reason, '_', ' ')), outbox.html_text(r.detail),
                                CASE WHEN r.remedy ~ '^SELECT ' THEN '<pre>' || outbox.html_text(r.remedy) || '</pre>'
                                     ELSE '<p class="remedy">' || outbox.html_text(r.remedy) || '</p>' END), '' ORDER BY r.i) || '</ul>'
                            FROM h r WHERE r.reason IS NOT NULL),
                           '<p>No relay, stream, aggregate or transaction is in the way of anything.</p>'))
    FROM (SELECT (array_agg(h.verdict ORDER BY h.i))[1] AS verdict FROM h) v;
END;
COMMENT ON FUNCTION outbox.html_health() IS 'outbox.health() as the page''s first section: verdict, reasons and advice';

CREATE FUNCTION outbox.html_tile(name text, value text, note text, mood text) RETURNS text LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT format('<div class="tile %s"><dt>%s</dt><dd>%s</dd><dd class="sub">%s</dd></div>', $4, $1, $2, coalesce($3, '&nbsp;'));
END;
COMMENT ON FUNCTION outbox.html_tile(text, text, text, text) IS 'one figure';

CREATE FUNCTION outbox.html_tiles() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    s record;
    t record;
    f record;
    l record;
BEGIN
    -- a pause is not a failure
    SELECT sum(x.backlog) AS backlog, max(x.oldest_pending_age) AS oldest, sum(x.in_flight) AS in_flight, count(x.pid) AS relays,
           count(*) FILTER (WHERE x.state = 'active') AS active, count(*) FILTER (WHERE x.state = 'paused') AS paused
    INTO s FROM outbox.status() x WHERE x.database = current_database();
    SELECT * INTO t FROM outbox.trouble() x;
    SELECT sum(x.published) / 5.0 AS published, sum(x.enqueued) / 5.0 AS enqueued
    INTO f FROM outbox.throughput x
    WHERE x.minute < date_trunc('minute', clock_timestamp()) AND x.minute >= date_trunc('minute', clock_timestamp()) - interval '5 min';
    SELECT * INTO l FROM outbox.latency x WHERE x.stage = 'commit to ack';
    RETURN '<dl class="tiles">' || concat(
        outbox.html_tile('Waiting', outbox.html_number(s.backlog),
            CASE WHEN s.backlog > 0 THEN 'oldest ' || outbox.html_duration(extract(epoch FROM s.oldest)::double precision) ELSE 'nothing waits' END,
            CASE WHEN s.oldest > outbox.lag_limit() THEN 'warning' END),
        outbox.html_tile('Published', outbox.html_number(f.published) || '<small> /min</small>', outbox.html_number(f.enqueued) || ' /min enqueued', NULL),
        outbox.html_tile('Commit to ack', outbox.html_duration(l.p50_ms / 1000), 'p99 ' || outbox.html_duration(l.p99_ms / 1000), NULL),
        outbox.html_tile('Dead letters', outbox.html_number(t.dead_letters), t.retried || ' to be retried', CASE WHEN t.dead_letters > 0 THEN 'warning' END),
        outbox.html_tile('Blocked', outbox.html_number(t.blocked_aggregates), 'aggregates', CASE WHEN t.blocked_aggregates > 0 THEN 'critical' END),
        outbox.html_tile('Relays', outbox.html_number(s.active), 'active of ' || s.relays || ', ' || coalesce(s.in_flight, 0) || ' in flight',
            CASE WHEN s.active + s.paused = 0 THEN 'critical' WHEN s.active < s.relays THEN 'warning' END)) || '</dl>';
END $$;
COMMENT ON FUNCTION outbox.html_tiles() IS 'the figures at the top of the page';

-- A round number.
CREATE FUNCTION outbox.html_scale(double precision) RETURNS double precision LANGUAGE sql IMMUTABLE
BEGIN ATOMIC
    SELECT CASE WHEN coalesce($1, 0) <= 4 THEN 4 ELSE
        (SELECT min(n * 10 ^ floor(log($1))) FROM unnest('{1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10}'::double precision[]) n WHERE n * 10 ^ floor(log($1)) >= $1) END;
END;
COMMENT ON FUNCTION outbox.html_scale(double precision) IS 'where an axis ends that must reach the number';

-- Whole minutes from shortly before the first event on, an hour at least. Shapes stretch with the page, so all text is outside.
CREATE FUNCTION outbox.html_flow() RETURNS text LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    minutes timestamptz[];
    enqueued bigint[];
    published bigint[];
    failed bigint[];
    first integer;
    n integer;
    top double precision;
    lines text[] := '{}';
    ticks text;
BEGIN
    SELECT array_agg(t.minute ORDER BY t.minute), array_agg(t.enqueued ORDER BY t.minute), array_agg(t.published ORDER BY t.minute), array_agg(t.failed ORDER BY t.minute)
    INTO minutes, enqueued, published, failed
    FROM outbox.throughput t WHERE t.minute < date_trunc('minute', clock_timestamp());
    n := cardinality(minutes);
    IF n IS NULL OR n < 2 THEN
        RETURN '<p class="none">Nothing is counted: the library is not preloaded, or has just been.</p>';
    END IF;
    first := greatest(1, least(n - 59, coalesce((SELECT min(i) - 5 FROM generate_subscripts(minutes, 1) i WHERE enqueued[i] + published[i] + failed[i] > 0), n)));
    SELECT outbox.html_scale(max(greatest(enqueued[i], published[i], failed[i]))) INTO top FROM generate_series(first, n) i;
    SELECT array_agg(path ORDER BY k) INTO lines
    FROM (SELECT v.k, string_agg(CASE WHEN i = first THEN 'M' ELSE 'L' END || (i - first) || ' ' || round((100 - 100 * v.counts[i] / top)::numeric, 1), '' ORDER BY i) AS path
          FROM (VALUES (1, enqueued), (2, published), (3, failed)) v(k, counts), generate_series(first, n) i
          GROUP BY v.k) p;
    SELECT string_agg(format('<span style="left:%s%%">%s</span>', round(100.0 * (i - first) / (n - first), 2), to_char(minutes[i], 'HH24:MI')), '' ORDER BY i) INTO ticks
    FROM generate_series(first, n) i
    WHERE extract(epoch FROM minutes[i])::bigint % (CASE WHEN n - first > 120 THEN 3600 ELSE 900 END) = 0 AND i - first BETWEEN (n - first) / 25 AND (n - first) * 24 / 25;
    RETURN format('<ul class="legend"><li class="k1">enqueued</li><li class="k2">published</li><li class="k3">failed attempts</li></ul>'
        '<div class="flow" data-from="%1$s" data-zone="%2$s" data-v="%3$s"><div class="scale"><span>%4$s</span><span>%10$s</span><span>0</span></div><div class="plot">'
        '<svg viewBox="0 0 %5$s 100" preserveAspectRatio="none" role="img" aria-label="Events per minute: enqueued, published, failed">'
        '<path class="grid" d="M0 0H%5$sM0 50H%5$sM0 100H%5$s"/><path class="area" d="%6$sV100H0Z"/><path class="k1" d="%7$s"/><path class="k2" d="%6$s"/><path class="k3" d="%8$s"/></svg>'
        '<i class="cursor"></i></div><div class="ticks">%9$s</div><output>&nbsp;</output></div>',
        extract(epoch FROM minutes[first])::bigint, extract(timezone FROM minutes[n])::integer,
        (SELECT string_agg(concat_ws(',', enqueued[i], published[i], failed[i]), ';' ORDER BY i) FROM generate_series(first, n) i),
        outbox.html_number(top), n - first, lines[2], lines[1], lines[3], coalesce(ticks, ''), outbox.html_number(top / 2));
END $$;
COMMENT ON FUNCTION outbox.html_flow() IS 'events per minute, as a chart';

-- A bar for each power of two from 64 us on, as far as there are samples.
CREATE FUNCTION outbox.html_latency() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH bars AS (
        SELECT b.stage, i, b.bucket[i] - CASE WHEN i > 1 THEN b.bucket[i - 1] ELSE 0 END AS n, b.le[i] AS le
        FROM outbox.latency_buckets() b, generate_subscripts(b.le, 1) i
        UNION ALL
        SELECT b.stage, cardinality(b.le) + 1, b.count - b.bucket[cardinality(b.le)], NULL FROM outbox.latency_buckets() b
    ), range AS (
        SELECT greatest(least(coalesce(min(b.i) FILTER (WHERE b.n > 0), 1) - 1, 13), 1) AS lo, greatest(coalesce(max(b.i) FILTER (WHERE b.n > 0), 1) + 1, 11) AS hi FROM bars b
    ), plots AS (
        SELECT b.stage, greatest(max(b.n), 1) AS top, max(r.hi) - min(r.lo) + 1 AS width,
               string_agg(format('<rect x="%s" y="%s" width="0.82" height="%s"><title>%s: %s</title></rect>', round(b.i - r.lo + 0.09, 2),
                                 round(100 - 100.0 * b.n / greatest(m.top, 1), 1), round(100.0 * b.n / greatest(m.top, 1), 1),
                                 coalesce('below ' || outbox.html_duration(b.le), 'above'), outbox.html_number(b.n)), '' ORDER BY b.i) AS rects,
               string_agg(CASE WHEN b.i IN (r.lo, (r.lo + r.hi) / 2, r.hi) THEN '<span>' || coalesce(outbox.html_duration(b.le), '&infin;') || '</span>' END, '' ORDER BY b.i) AS ticks
        FROM bars b CROSS JOIN range r JOIN (SELECT x.stage, max(x.n) AS top FROM bars x GROUP BY x.stage) m ON m.stage = b.stage
        WHERE b.i BETWEEN r.lo AND r.hi GROUP BY b.stage
    )
    SELECT '<div class="stages">' || coalesce(string_agg(format(
        '<div class="stage"><h3>%1$s</h3><svg viewBox="0 0 %2$s 100" preserveAspectRatio="none" role="img" aria-label="Histogram of %1$s">%3$s</svg><div class="ends">%4$s</div>'
        '<dl><div><dt>p50</dt><dd>%5$s</dd></div><div><dt>p95</dt><dd>%6$s</dd></div><div><dt>p99</dt><dd>%7$s</dd></div><div><dt>max</dt><dd>%8$s</dd></div></dl>'
        '<p class="note">%9$s</p></div>',
        replace(l.stage, ' to ', ' &rarr; '), p.width, p.rects, p.ticks, outbox.html_duration(l.p50_ms / 1000), outbox.html_duration(l.p95_ms / 1000),
        outbox.html_duration(l.p99_ms / 1000), outbox.html_duration(l.max_ms / 1000), CASE WHEN l.samples > 0 THEN outbox.html_number(l.samples) || ' samples' ELSE 'no samples yet' END),
        '' ORDER BY array_position(ARRAY['enqueue to commit', 'commit to ack', 'ack to settle'], l.stage)), '<p class="none">Nothing is timed.</p>') || '</div>'
    FROM outbox.latency l JOIN plots p ON p.stage = l.stage;
END;
COMMENT ON FUNCTION outbox.html_latency() IS 'the three latencies as histograms';

CREATE FUNCTION outbox.html_backlog() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH labels AS (SELECT '{Aggregate type,#Waiting,#Oldest,By age}'::text[] AS l,
                           ARRAY['below 10 s', '10 s to 1 min', '1 to 10 min', '10 min to 1 h', '1 h to 1 day', 'over a day', 'not due yet'] AS names),
    b AS (SELECT t.*, max(t.pending) OVER () AS most FROM outbox.report_backlog(2000) t LIMIT 30)
    SELECT coalesce((SELECT '<ul class="legend">' || string_agg(format('<li class="a%s">%s</li>', i, a), '' ORDER BY i) || '</ul>'
                     FROM labels, unnest(names) WITH ORDINALITY u(a, i) WHERE EXISTS (SELECT FROM b)), '') ||
        outbox.html_table((SELECT l FROM labels),
            (SELECT string_agg(outbox.html_row(l, ARRAY[outbox.html_name(b.aggregate_type), outbox.html_number(b.pending), outbox.html_age(b.oldest),
                 (SELECT format('<span class="bar" style="width:%s%%">%s</span>', greatest(round(100.0 * b.pending / greatest(b.most, 1), 1), 1),
                                string_agg(format('<i class="a%s" style="flex-grow:%s" title="%s: %s"></i>', i, n, names[i::integer], outbox.html_number(n)), '' ORDER BY i))
                  FROM unnest(b.ages) WITH ORDINALITY u(n, i) WHERE n > 0)],
                 ARRAY[NULL, b.pending, extract(epoch FROM clock_timestamp() - b.oldest), b.pending]::text[]), '' ORDER BY b.pending DESC) FROM b, labels),
            'Nothing waits: all that was committed is published or failed.');
END;
COMMENT ON FUNCTION outbox.html_backlog() IS 'what waits, by type and age';

CREATE FUNCTION outbox.html_types() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.html_table(x.l,
        (SELECT string_agg(outbox.html_row(x.l, ARRAY[outbox.html_name(t.name), outbox.html_number(t.published), pg_size_pretty(t.bytes), outbox.html_number(t.failed),
                               outbox.html_number(t.dead_letters), outbox.html_time(t.last_published)],
                               ARRAY[NULL, t.published, t.bytes, t.failed, t.dead_letters, extract(epoch FROM t.last_published)]::text[]), '' ORDER BY t.published DESC, t.name)
         FROM (SELECT * FROM outbox.group_counters('t') g ORDER BY g.published DESC LIMIT 50) t), 'No event has been published since the counters began.')
    FROM (SELECT '{Aggregate type,#Published,#Bytes,#Failed attempts,#Dead letters,@Last published}'::text[] AS l) x;
END;
COMMENT ON FUNCTION outbox.html_types() IS 'counters of the aggregate types that publish most';

CREATE FUNCTION outbox.html_dead_letters() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN NOT EXISTS (SELECT FROM outbox.dead_letters) THEN '<p class="none">There are none.</p>' ELSE
        '<h3>Reasons</h3>' || outbox.html_table(x.r,
            (SELECT string_agg(outbox.html_row(x.r, ARRAY[outbox.html_error(d.last_error), d.last_code::text, outbox.html_number(d.n), outbox.html_time(d.last_at)],
                                   ARRAY[NULL, d.last_code, d.n, extract(epoch FROM d.last_at)]::text[]), '' ORDER BY d.n DESC)
             -- the same but for sizes and other numbers is one reason
             FROM (SELECT max(t.last_error) AS last_error, t.last_code, count(*) AS n, max(t.failed_at) AS last_at FROM outbox.delivery t
                   WHERE t.state IN ('f', 'b', 'p') GROUP BY regexp_replace(t.last_error, '[0-9]+', '0', 'g'), t.last_code ORDER BY 3 DESC LIMIT 20) d), '') ||
        '<h3>The last of them</h3>' || outbox.html_table(x.l,
            (SELECT string_agg(outbox.html_row(x.l, ARRAY[outbox.html_time(d.failed_at), outbox.html_name(d.aggregate_type), outbox.html_name(d.aggregate_id), outbox.html_name(d.event_type),
                                   d.attempts::text, outbox.html_text(d.state), '<code>' || d.event_id || '</code>'],
                                   ARRAY[extract(epoch FROM d.failed_at), NULL, NULL, NULL, d.attempts, NULL, NULL]::text[]), '' ORDER BY d.failed_at DESC NULLS LAST)
             FROM outbox.report_dead_letters(50) d), '') END
    FROM (SELECT '{Reason,#Code,#Events,@Last}'::text[] AS r, '{@Failed,Aggregate type,Id,Event type,#Attempts,State,Event id}'::text[] AS l) x;
END;
COMMENT ON FUNCTION outbox.html_dead_letters() IS 'dead letters, by reason and the last ones';

CREATE FUNCTION outbox.html_blocked() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.html_table(x.l,
        (SELECT string_agg(outbox.html_row(x.l, ARRAY[outbox.html_name(b.aggregate_type), outbox.html_name(b.aggregate_id), outbox.html_age(b.since),
                               CASE WHEN b.depth >= 10000 THEN '10,000 and more' ELSE outbox.html_number(b.depth) END, b.attempts::text,
                               format('<b class="pill %s">%s</b>', CASE b.reason WHEN 'retrying' THEN 'warning' ELSE 'critical' END, b.reason),
                               CASE WHEN b.reason = 'retrying' THEN outbox.html_time(b.next_attempt_at) END, outbox.html_error(b.last_error)],
                               ARRAY[NULL, NULL, extract(epoch FROM clock_timestamp() - b.since), b.depth, b.attempts, NULL, extract(epoch FROM b.next_attempt_at), NULL]::text[]), '' ORDER BY b.since)
         FROM outbox.report_blocked(50) b), 'No aggregate waits for a failed event.')
    FROM (SELECT '{Aggregate type,Id,#Age,#Behind it,#Attempts,State,@Next attempt,Error}'::text[] AS l) x;
END;
COMMENT ON FUNCTION outbox.html_blocked() IS 'aggregates that a failed event holds up';

CREATE FUNCTION outbox.html_relays() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.html_table(x.r,
        (SELECT string_agg(outbox.html_row(x.r, ARRAY[coalesce(s.relay::text, '&ndash;'), coalesce(s.pid::text, '&ndash;'),
                               format('<b class="pill %s">%s</b>', CASE WHEN s.state = 'active' THEN 'ok' WHEN s.state IN ('starting', 'paused') THEN 'warning' ELSE 'critical' END, outbox.html_text(s.state)),
                               outbox.html_time(s.since), outbox.html_number(s.backlog), outbox.html_number(s.in_flight), outbox.html_number(s.published), coalesce(s.slots::text, '&ndash;'),
                               '<code>' || outbox.html_text(s.server) || '</code>', outbox.html_name(s.stream), outbox.html_error(s.last_error)],
                               ARRAY[s.relay, s.pid, NULL, extract(epoch FROM s.since), s.backlog, s.in_flight, s.published, s.slots, NULL, NULL, NULL]::text[]), '' ORDER BY s.relay)
         FROM outbox.status() s WHERE s.database = current_database()), 'No relay serves this database.') ||
        coalesce('<h3>Streams</h3>' || outbox.html_table(x.s,
            (SELECT string_agg(outbox.html_row(x.s, ARRAY[outbox.html_name(g.name), outbox.html_number(g.published), pg_size_pretty(g.bytes), outbox.html_number(g.failed), outbox.html_number(g.dead_letters), outbox.html_time(g.last_published)],
                                   ARRAY[NULL, g.published, g.bytes, g.failed, g.dead_letters, extract(epoch FROM g.last_published)]::text[]), '' ORDER BY g.published DESC)
             FROM outbox.group_counters('s') g), NULL), '') ||
        coalesce('<h3>Failed attempts</h3>' || outbox.html_table(x.e,
            (SELECT string_agg(outbox.html_row(x.e, ARRAY[outbox.html_text(c.class), outbox.html_text(c.source), c.code::text, outbox.html_number(c.count), outbox.html_time(c.last_at), outbox.html_error(c.last_error)],
                                   ARRAY[NULL, NULL, c.code, c.count, extract(epoch FROM c.last_at), NULL]::text[]), '' ORDER BY c.count DESC)
             FROM (SELECT * FROM outbox.code_counters() t ORDER BY t.count DESC LIMIT 30) c), NULL), '')
    FROM (SELECT '{#Relay,#Process,State,@Since,#Waiting,#In flight,#Published,#Slots,Server,Stream,Last error}'::text[] AS r,
                 '{Stream,#Published,#Bytes,#Failed attempts,#Dead letters,@Last published}'::text[] AS s, '{Class,Source,#Code,#Attempts,@Last,Text}'::text[] AS e) x;
END;
COMMENT ON FUNCTION outbox.html_relays() IS 'relays, streams, and errors by code';

-- A report is passed on: what logs in stays here, and so do the paths of files.
CREATE FUNCTION outbox.html_setting(name text, value text) RETURNS text LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN $2 = '' THEN '<i>empty</i>'
                WHEN $1 ~ '_url$' THEN (SELECT string_agg('<code>' || outbox.html_text(regexp_replace(regexp_replace(u, '^([a-z+]+://)?.*@', '\1***@'), '\?.*$', '?***')) || '</code>', ' ' ORDER BY i)
                                        FROM unnest(string_to_array($2, ',')) WITH ORDINALITY t(u, i))
                WHEN $1 ~ '_(file|directory)$' THEN '<i>set, not shown</i>'
                ELSE '<code>' || outbox.html_text($2) || '</code>' END;
END;
COMMENT ON FUNCTION outbox.html_setting(text, text) IS 'the value of a setting without what must not be seen';

CREATE FUNCTION outbox.html_settings() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.html_table(x.l,
        (SELECT string_agg(outbox.html_row(x.l, ARRAY['<code class="nowrap">' || outbox.html_text(s.name) || '</code>', outbox.html_setting(s.name, current_setting(s.name)),
                               outbox.html_setting(s.name, s.boot_val || coalesce(' ' || s.unit, '')), outbox.html_text(s.source), outbox.html_text(s.short_desc)],
                               NULL::text[]), '' ORDER BY s.name)
         FROM pg_settings s WHERE s.name LIKE 'outbox.%' AND s.setting IS DISTINCT FROM s.boot_val AND s.name NOT IN ('outbox.traceparent', 'outbox.tracestate')),
        'All settings have their defaults.')
    FROM (SELECT '{Setting,Value,Default,From,Meaning}'::text[] AS l) x;
END;
COMMENT ON FUNCTION outbox.html_settings() IS 'settings of this session''s database that differ from their defaults';
