-- ------------------------------------------------------- the report's page

CREATE FUNCTION outbox.html_style() RETURNS text LANGUAGE sql IMMUTABLE BEGIN ATOMIC SELECT $css$
:root{color-scheme:light dark;--bg:#f3f5f8;--card:#fff;--ink:#17212b;--dim:#55626f;--line:#dde4ea;--k1:#2563c9;--k2:#0b7a5b;--k3:#b3261e;--chip:#eaeff4;
--ok:#0b7a5b;--warning:#b06f00;--critical:#b3261e;--ok-bg:#dcf3ea;--ok-ink:#0a5f48;--warning-bg:#fdeecb;--warning-ink:#744600;--critical-bg:#fbdedb;--critical-ink:#8f1d17;
--shadow:0 1px 2px #1b2a3a14,0 4px 16px #1b2a3a0d}
@media (prefers-color-scheme:dark){:root{--bg:#0e141a;--card:#172029;--ink:#e7edf3;--dim:#9fb0c0;--line:#2a3642;--k1:#6ea8fe;--k2:#3ecf9f;--k3:#ff8a80;--chip:#22303c;
--ok:#3ecf9f;--warning:#f3c05c;--critical:#ff8a80;--ok-bg:#123a2e;--ok-ink:#8ae8c7;--warning-bg:#43330f;--warning-ink:#f7d385;--critical-bg:#4c1b18;--critical-ink:#ffb9b2;--shadow:none}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans",sans-serif;-webkit-text-size-adjust:100%}
header,main,footer{max-width:1240px;margin:0 auto;padding:0 20px}
header{padding-top:28px;padding-bottom:14px}
h1{margin:0;font-size:26px;line-height:1.25;letter-spacing:-.01em;overflow-wrap:anywhere}
h1 span{color:var(--dim);font-weight:400}
header p{margin:4px 0 0;color:var(--dim);overflow-wrap:anywhere}
nav{display:flex;flex-wrap:wrap;gap:6px;margin-top:14px}
nav a{color:var(--ink);background:var(--chip);border-radius:999px;padding:3px 12px;text-decoration:none;font-size:13.5px}
nav a:hover,nav a:focus-visible{outline:2px solid var(--k1)}
section,.tile{background:var(--card);border:1px solid var(--line);border-radius:12px;box-shadow:var(--shadow)}
section{padding:18px 20px 20px;margin:16px 0;min-width:0}
h2{margin:0 0 10px;font-size:18px}
h3{margin:18px 0 8px;font-size:14px}
.note,.none{color:var(--dim);margin:0 0 10px;font-size:13.5px}
.none{margin:4px 0}
code,pre{font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
pre{margin:6px 0 0;padding:8px 10px;background:var(--chip);border-radius:8px;white-space:pre-wrap;overflow-wrap:anywhere}
.verdict{border-left:6px solid var(--mood);--mood:var(--ok)}
.verdict.warning{--mood:var(--warning)}.verdict.critical{--mood:var(--critical)}
.verdict h2{display:flex;align-items:center;gap:10px;font-size:20px;margin:0}
.verdict>p{margin:4px 0 0;color:var(--dim)}
.mark{width:14px;height:14px;border-radius:50%;background:var(--mood);box-shadow:0 0 0 5px color-mix(in srgb,var(--mood) 22%,transparent);margin:0 5px}
.verdict ul{list-style:none;margin:12px 0 0;padding:0;display:grid;gap:12px}
.verdict li{border-top:1px solid var(--line);padding-top:10px}
.verdict li h3{margin:0;font-size:15px}.verdict li h3::first-letter{text-transform:uppercase}
.verdict li p{margin:2px 0 0;overflow-wrap:anywhere}.verdict li p::first-letter{text-transform:uppercase}
.remedy::before{content:"\2192\00a0";color:var(--k1);font-weight:700}
.pill{display:inline-block;font-size:12px;font-weight:600;border-radius:999px;padding:1px 9px;white-space:nowrap;vertical-align:1px}
.pill.ok{background:var(--ok-bg);color:var(--ok-ink)}.pill.warning{background:var(--warning-bg);color:var(--warning-ink)}.pill.critical{background:var(--critical-bg);color:var(--critical-ink)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(160px,1fr));gap:12px;margin:16px 0}
.tile{padding:12px 16px;border-top:3px solid var(--line)}
.tile.warning{border-top-color:var(--warning)}.tile.critical{border-top-color:var(--critical)}
.tile dt{color:var(--dim);font-size:13px}.tile dd{margin:0;font-size:25px;font-weight:650;letter-spacing:-.01em;font-variant-numeric:tabular-nums;line-height:1.3}
.tile dd.sub{font-size:13px;font-weight:400;color:var(--dim);letter-spacing:0}.tile small{font-size:14px;font-weight:400;color:var(--dim)}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 10px;padding:0;font-size:13px;color:var(--dim)}
.legend li::before{content:"";display:inline-block;width:11px;height:11px;border-radius:3px;margin-right:7px;background:var(--c)}
.k1{--c:var(--k1)}.k2{--c:var(--k2)}.k3{--c:var(--k3)}
.flow{display:grid;grid-template-columns:auto 1fr;gap:0 8px}
.scale{display:flex;flex-direction:column;justify-content:space-between;text-align:right;font-size:12px;color:var(--dim);font-variant-numeric:tabular-nums;margin:-9px 0}
.plot{position:relative;height:220px;min-width:0}
.plot svg{position:absolute;inset:0;width:100%;height:100%}
svg path{fill:none;stroke:var(--c);stroke-width:1.8;stroke-linejoin:round;vector-effect:non-scaling-stroke}
svg path.grid{stroke:var(--line);stroke-width:1}svg path.area{stroke:none;fill:var(--k2);fill-opacity:.14}
.cursor{position:absolute;top:0;bottom:0;width:1px;background:var(--ink);display:none}
.ticks{grid-column:2;position:relative;height:22px;font-size:12px;color:var(--dim);font-variant-numeric:tabular-nums;margin-top:4px}
.ticks span{position:absolute;transform:translateX(-50%)}
.flow output{grid-column:2;font-size:13px;color:var(--dim);min-height:21px;font-variant-numeric:tabular-nums}
.stages{display:grid;grid-template-columns:repeat(auto-fit,minmax(250px,1fr));gap:22px}
.stage{min-width:0}.stage h3{margin:0 0 8px}.stage>svg{width:100%;height:110px;display:block;border-bottom:1px solid var(--line)}
.stage rect{fill:var(--k1)}.ends{display:flex;justify-content:space-between;font-size:12px;color:var(--dim);margin-top:3px}
.stage dl{display:grid;grid-template-columns:repeat(4,1fr);gap:8px;margin:10px 0 4px}.stage dt{font-size:12px;color:var(--dim)}.stage dd{margin:0;font-weight:600;font-variant-numeric:tabular-nums}.stage .note{margin:0}
.bar{display:flex;height:14px;border-radius:4px;overflow:hidden;gap:1px;min-width:3px}.bar i{min-width:3px;flex-basis:0;background:var(--c)}
.a1{--c:#8fd3bd}.a2{--c:#3fae90}.a3{--c:#e6bd4f}.a4{--c:#ee9a3c}.a5{--c:#de6434}.a6{--c:#b3261e}.a7{--c:#8996a3}
table{width:100%;border-collapse:collapse;font-size:13.5px}
th{text-align:left;border-bottom:1px solid var(--line);padding:0;vertical-align:bottom}
th button{all:unset;cursor:pointer;color:var(--dim);font-size:12.5px;font-weight:600;padding:5px 10px 5px 0;box-sizing:border-box}
th button:hover{color:var(--ink)}th button:focus-visible{outline:2px solid var(--k1);border-radius:4px}
th[aria-sort] button{color:var(--ink)}th[aria-sort=ascending] button::after{content:" \2191"}th[aria-sort=descending] button::after{content:" \2193"}
td{padding:7px 10px 7px 0;border-bottom:1px solid var(--line);vertical-align:top;overflow-wrap:anywhere;unicode-bidi:isolate}
tbody tr:last-child td{border-bottom:0}
td.n,th.n{text-align:right}td.n{font-variant-numeric:tabular-nums;overflow-wrap:normal}th.n button{text-align:right}
td.n+td:not(.n),th.n+th:not(.n) button{padding-left:14px}
td:last-child,th:last-child button{padding-right:0}
.name{display:inline-block;min-width:9ch;max-width:30ch;overflow-wrap:anywhere}td>code{display:inline-block;min-width:14ch}time,.nowrap{white-space:nowrap}
#backlog td:last-child{width:45%}#backlog td .bar{margin-top:3px}
footer{color:var(--dim);font-size:13px;padding-bottom:32px}
@media (max-width:860px){header,main,footer{padding-left:14px;padding-right:14px}section{padding:14px}
table,tbody,tr,td,thead,th{display:block}
thead tr{display:flex;flex-wrap:wrap;gap:6px;margin-bottom:10px}thead tr::before{content:"Sort by";color:var(--dim);font-size:12.5px;padding:3px 0}
th,th.n{border:0}th button,th.n+th:not(.n) button{background:var(--chip);border-radius:999px;padding:3px 10px;color:var(--ink)}th:last-child button{padding-right:10px}
.nowrap{white-space:normal}.name{max-width:100%}
tbody{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(290px,100%),1fr));gap:10px}
tbody tr{border:1px solid var(--line);border-radius:10px;padding:8px 12px;min-width:0}
td,td.n,td.n+td:not(.n){display:grid;grid-template-columns:112px minmax(0,1fr);gap:10px;border:0;padding:2px 0;text-align:left;overflow-wrap:anywhere}
td>*{justify-self:start;max-width:100%}
td::before{content:attr(data-l);color:var(--dim);font-size:12.5px;padding-top:1px}
#backlog td:last-child{width:auto;padding-left:0}#backlog td .bar{justify-self:stretch;max-width:none}}
@media (max-width:480px){h1{font-size:22px}.tiles{grid-template-columns:1fr 1fr;gap:8px}.tile{padding:10px 12px}.tile dd{font-size:21px}.plot{height:170px}.ticks span:nth-child(even){display:none}}
@media print{nav,.flow output{display:none}section,.tile{break-inside:avoid;box-shadow:none}}
$css$; END;
COMMENT ON FUNCTION outbox.html_style() IS 'how the page looks';

CREATE FUNCTION outbox.html_script() RETURNS text LANGUAGE sql IMMUTABLE BEGIN ATOMIC SELECT $js$
document.querySelectorAll('table').forEach(function (table) {
  var heads = table.querySelectorAll('th');
  function key(row, i) {
    var cell = row.cells[i];
    return cell.hasAttribute('data-s') ? +cell.getAttribute('data-s') : cell.textContent;
  }
  heads.forEach(function (head, i) {
    head.firstChild.addEventListener('click', function () {
      var was = head.getAttribute('aria-sort');
      var up = was ? was === 'descending' : head.className === '';
      heads.forEach(function (other) { other.removeAttribute('aria-sort'); });
      head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
      var rows = Array.from(table.tBodies[0].rows);
      rows.sort(function (a, b) {
        var x = key(a, i), y = key(b, i);
        var order = typeof x === 'number' && typeof y === 'number' ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true });
        return up ? order : -order;
      });
      rows.forEach(function (row) { table.tBodies[0].appendChild(row); });
    });
  });
});
document.querySelectorAll('.flow').forEach(function (flow) {
  var values = flow.dataset.v.split(';'), plot = flow.querySelector('.plot'), cursor = flow.querySelector('.cursor'), output = flow.querySelector('output');
  plot.addEventListener('pointermove', function (event) {
    var box = plot.getBoundingClientRect(), last = values.length - 1;
    var i = Math.min(last, Math.max(0, Math.round((event.clientX - box.left) / box.width * last))), v = values[i].split(',');
    cursor.style.display = 'block';
    cursor.style.left = i / last * 100 + '%';
    output.textContent = new Date((+flow.dataset.from + 60 * i + +flow.dataset.zone) * 1000).toISOString().slice(11, 16) +
      ': ' + v[0] + ' enqueued, ' + v[1] + ' published, ' + v[2] + ' failed attempts';
  });
});
$js$; END;
COMMENT ON FUNCTION outbox.html_script() IS 'what sorts the tables and tells the figures of a minute';

CREATE FUNCTION outbox.html_header() RETURNS text LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT '<header><h1>outbox <span>' || outbox.html_text(current_database()) || '</span></h1><p>' ||
        concat_ws(' &middot; ', outbox.html_time(clock_timestamp()) || ' ' || outbox.html_text(current_setting('TimeZone')),
                  'on ' || outbox.html_text(nullif(current_setting('cluster_name'), '')),
                  'PostgreSQL ' || outbox.html_text(current_setting('server_version')), 'outbox ' || outbox.html_text(outbox.library_version()),
                  'counters since ' || outbox.html_time(coalesce(outbox.stats_reset_at(), pg_postmaster_start_time()))) || '</p><nav>' ||
        (SELECT string_agg(format('<a href="#%s">%s</a>', id, name), '' ORDER BY i)
         FROM unnest('{flow,latency,backlog,dead-letters,blocked,relays,types,settings}'::text[],
                     '{Flow,Latency,Backlog,Dead letters,Blocked,Relays and broker,Types,Settings}'::text[]) WITH ORDINALITY n(id, name, i)) || '</nav></header>';
END;
COMMENT ON FUNCTION outbox.html_header() IS 'the head of the page: which database, when, which versions';

CREATE FUNCTION outbox.report_html() RETURNS text LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET lock_timeout = '10s'
BEGIN ATOMIC
    SELECT concat('<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta http-equiv="Content-Security-Policy" content="default-src ''none''; style-src ''unsafe-inline''; script-src ''sha256-',
        encode(sha256(convert_to(outbox.html_script(), 'UTF8')), 'base64'), '''"><title>outbox: ', outbox.html_text(current_database()), '</title><style>',
        outbox.html_style(), '</style></head><body>', outbox.html_header(), '<main>', outbox.html_health(), outbox.html_tiles(),
        outbox.html_section('flow', 'Flow', 'Events per minute; point at the chart for a minute''s figures.', outbox.html_flow()),
        outbox.html_section('latency', 'Latency', 'Since the counters began; a percentile is at most an eighth too high.', outbox.html_latency()),
        outbox.html_section('backlog', 'Backlog', 'Committed and not published yet; estimated from a sample where there is much of it.', outbox.html_backlog()),
        outbox.html_section('dead-letters', 'Dead letters', NULL, outbox.html_dead_letters()),
        outbox.html_section('blocked', 'Blocked aggregates', NULL, outbox.html_blocked()),
        outbox.html_section('relays', 'Relays and broker', NULL, outbox.html_relays()),
        outbox.html_section('types', 'Aggregate types', NULL, outbox.html_types()),
        outbox.html_section('settings', 'Settings that differ from their defaults', NULL, outbox.html_settings()),
        '</main><footer>Made by <code>SELECT outbox.report_html()</code>. The page is complete in itself; payloads are not in it.</footer><script>',
        outbox.html_script(), '</script></body></html>', E'\n');
END;
COMMENT ON FUNCTION outbox.report_html() IS
'the state of this database''s outbox as one HTML page, for a browser: psql -XAtc "SELECT outbox.report_html()" >outbox.html; without payloads, with secrets masked, bounded in size whatever the backlog is';

INSERT INTO outbox.privileges VALUES ('monitor', 'EXECUTE', 'report_html');
INSERT INTO outbox.privileges SELECT 'owner', 'ALL',
    unnest('{html_text, html_number, html_duration, html_time, html_age, html_row, html_table, html_section, html_name, html_error, html_health, html_tile,
             html_tiles, html_scale, html_flow, html_latency, html_backlog, html_types, html_dead_letters, html_blocked, html_relays, html_setting,
             html_settings, html_style, html_script, html_header}'::name[]);
