# Captured events at the other end: awkward text on the wire, the order of commits
# under concurrent writers, databases of other encodings, dump and restore.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Everything here is bytes: the UTF-8 text in this file is not decoded.
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, initdb => [ '--encoding=UTF8', '--locale=C' ],
	extra => "timezone = 'Asia/Kolkata'\noutbox.cloudevents_source = '/orders/é'");
my $db = 'postgres';

sub decoded { return $_[0] =~ s/%([0-9A-F]{2})/chr(hex($1))/ger }
sub of_type { my ($type, @messages) = @_; return grep { $_->{headers}{'ce-aggregatetype'} eq $type } @messages }

# ---- what a captured row looks like on the wire, in its headers above all

my $key = 'Müller "50%" ✓';
$node->safe_psql($db, <<SQL);
CREATE TABLE awkward (name text PRIMARY KEY, note text, at timestamptz, tag text, bytes bytea, version int);
SELECT outbox.capture('awkward', insert_event => 'awkward.æ', header_columns => '{"x-note": "tag"}', version_column => 'version',
	dataschema => 'https://example.com/awkward?v=1');
SET TimeZone = 'America/St_Johns';
SET DateStyle = 'German';
SET bytea_output = 'escape';
INSERT INTO awkward VALUES ('$key', E'100% "quoted" \\\\ \\n\\t\\x01 ✓', '2024-10-27 00:30:00.1234+00', '100% ✓', '\\x00ff', 7);
SQL
ok(wait_published($node, $db), 'published');
my ($message) = $nats->dump('OUTBOX');
my $headers = $message->{headers};
my $payload = q[{"name":"Müller \"50%\" ✓","note":"100% \"quoted\" \\\\ \n\t\u0001 ✓","at":"2024-10-27T00:30:00.1234+00:00","tag":"100% ✓","bytes":"\\\\x00ff","version":7}];
is($message->{payload}, $payload, 'the payload, byte for byte');
is($headers->{'ce-subject'}, 'M%C3%BCller%20%2250%25%22%20%E2%9C%93', 'the aggregate id, percent-encoded once');
is(decoded($headers->{'ce-subject'}), $key, '... which gives it back');
is(decoded($headers->{'ce-type'}), 'awkward.æ', 'the event type');
is(decoded($headers->{'ce-source'}), '/orders/é', 'the source');
is($headers->{'ce-dataschema'}, 'https://example.com/awkward?v=1', 'the schema');
is($headers->{'ce-aggregateversion'}, 7, 'the version');
is($headers->{'x-note'}, '100% ✓', 'a header from a column');
like($headers->{'ce-time'}, qr/^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$/, 'the time with its zone');
is_deeply([ grep { !length($headers->{$_} // '') } qw(ce-id ce-source ce-type ce-specversion) ], [], 'what must be there is');
is($headers->{'ce-datacontenttype'}, 'application/json', 'the content type');
ok(!(grep { lc($_) eq 'content-type' } keys %$headers), 'no bare content type, which would mean another mode');
is($message->{msg_id}, $headers->{'ce-id'}, 'the id is what is deduplicated by');

# ---- writers at once: each aggregate's events arrive in the order of commits, none is missing

$node->safe_psql($db, <<'SQL');
CREATE TABLE counter (id int, region text, n int NOT NULL, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE counter_a PARTITION OF counter FOR VALUES IN ('a');
CREATE TABLE counter_b PARTITION OF counter FOR VALUES IN ('b');
SELECT outbox.capture('counter', aggregate_id => '{id}');
SELECT outbox.guard('counter', aggregate_id => '{id}');
INSERT INTO counter SELECT i, 'a', 0 FROM generate_series(1, 5) i;
SQL
PostgreSQL::Test::Utils::append_to_file("$PostgreSQL::Test::Utils::tmp_check/count.sql", <<'SQL');
\set id random(1, 5)
\set move random(1, 3)
UPDATE counter SET n = n + 1, region = CASE WHEN :move = 1 THEN CASE region WHEN 'a' THEN 'b' ELSE 'a' END ELSE region END WHERE id = :id;
SQL
# An update that waited for a row which then moved to another partition fails: pgbench tries again.
$node->command_ok([ 'pgbench', '-n', '-c', 4, '-j', 2, '-t', 200, '--max-tries=100', '-f', "$PostgreSQL::Test::Utils::tmp_check/count.sql", $db ], 'four writers');
ok(wait_published($node, $db), 'published');
my (%seen, @wrong);
foreach my $m (of_type('counter', $nats->dump('OUTBOX')))
{
	my ($id, $region, $n) = $m->{payload} =~ /^\{"id":(\d+),"region":"(\w)","n":(\d+)\}$/ or die "payload: $m->{payload}";
	my $type = $n == 0 ? 'counter.created' : 'counter.updated';

	push @wrong, "$m->{headers}{'ce-type'} of $m->{payload}" if $m->{headers}{'ce-type'} ne $type;
	push @wrong, "$m->{payload} after " . ($seen{$id} // 'none') if $n != ($seen{$id} // -1) + 1;
	$seen{$id} = $n;
}
is_deeply(\@wrong, [], 'one event of each update, moves between partitions included, in their order');
is(join(' ', map { $seen{$_} } sort keys %seen), $node->safe_psql($db, q{SELECT string_agg(n::text, ' ' ORDER BY id) FROM counter}), '... up to what is stored');

# ---- a database in LATIN1: JSON is UTF-8 all the same

$node->safe_psql($db, q{CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0});
$node->safe_psql('latin', <<'SQL');
SET client_encoding = 'UTF8';
CREATE EXTENSION outbox;
CREATE TABLE "crème" ("brûlée" text PRIMARY KEY, j json);
SELECT outbox.capture('"crème"', on_truncate => 'event');
INSERT INTO "crème" VALUES ('é', '{"ü": "\u0000"}');
INSERT INTO "crème" VALUES ('à', '{"ü": 1}');
TRUNCATE "crème";
SQL
ok(wait_published($node, 'latin'), 'published');
is_deeply([ map { $_->{payload} } of_type('cr%C3%A8me', $nats->dump('OUTBOX')) ],
	[ '{"brûlée":"é","j":{"ü": "\u0000"}}', '{"brûlée":"à","j":{"ü": 1}}', '{"schema": "public", "table": "crème"}' ], 'the payloads in UTF-8');

# ---- dump and restore: the captures come along, and the restore makes no events

$node->safe_psql($db, 'CREATE DATABASE source');
$node->safe_psql('source', <<'SQL');
CREATE EXTENSION outbox;
SET client_min_messages = warning;
CREATE SCHEMA shop;
CREATE TABLE shop."Order Lines" (gone int, "order" int, line int, amount int, PRIMARY KEY ("order", line));
ALTER TABLE shop."Order Lines" DROP gone;
SELECT outbox.capture('shop."Order Lines"', 'line', condition => 'NEW.amount > 0', insert_event => 'line.new');
CREATE FUNCTION shop.project(text, shop."Order Lines", shop."Order Lines") RETURNS jsonb LANGUAGE sql AS $$SELECT to_jsonb('projected ' || (to_jsonb($3) ->> 'number'))$$;
SELECT outbox.capture('shop."Order Lines"', 'line', name => 'projected', insert_event => 'line.projected', projection => 'shop.project');
ALTER TABLE shop."Order Lines" RENAME line TO number;
SELECT outbox.guard('shop."Order Lines"', 'line', event => 'any', on_missing => 'warning');
CREATE TABLE parts (id int, region text, n int, PRIMARY KEY (id, region)) PARTITION BY LIST (region);
CREATE TABLE parts_a PARTITION OF parts FOR VALUES IN ('a');
CREATE TABLE parts_b (n int, junk int, id int NOT NULL, region text NOT NULL);
ALTER TABLE parts_b DROP junk;
ALTER TABLE parts ATTACH PARTITION parts_b FOR VALUES IN ('b');
SELECT outbox.capture('parts', aggregate_id => '{id}', replicated => true, on_truncate => 'event');
CREATE TABLE dropped (id int PRIMARY KEY);
SELECT outbox.capture('dropped'), outbox.guard('dropped');
DROP TABLE dropped;
INSERT INTO shop."Order Lines" VALUES (1, 1, 5), (1, 2, 0);
INSERT INTO parts VALUES (1, 'a', 1), (2, 'b', 2);
SQL
my $state = q{SELECT captured, name, aggregate_type, aggregate_id, condition, projection, replicated, on_truncate, state FROM outbox.captures ORDER BY 1, 2};
my $triggers = q{SELECT tgrelid::regclass, tgname, tgenabled, regexp_replace(pg_get_triggerdef(oid), 'ON .*EXECUTE', '') FROM pg_trigger WHERE tgname ~ '^outbox_' ORDER BY 1, 2};
my $before = $node->safe_psql('source', $state);
my $triggers_before = $node->safe_psql('source', $triggers);
my $count = $node->safe_psql('source', 'SELECT count(*) FROM outbox.events');
is($count, 5, 'events of the source');
foreach my $format ('plain', 'custom')
{
	my $file = "$PostgreSQL::Test::Utils::tmp_check/dump.$format";

	$node->command_ok([ 'pg_dump', '--format', $format, '--file', $file, 'source' ], "$format: dumped");
	$node->safe_psql($db, "CREATE DATABASE copy_$format");
	$node->command_ok($format eq 'plain' ? [ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', $file, "copy_$format" ]
		: [ 'pg_restore', '--exit-on-error', '-j', 2, '--dbname', "copy_$format", $file ], "$format: restored");
	is($node->safe_psql("copy_$format", $state), $before, "$format: the same captures");
	is($node->safe_psql("copy_$format", 'SELECT count(*) FROM outbox.capture_settings'), 3, "$format: not that of a dropped table");
	is($node->safe_psql("copy_$format", $triggers), $triggers_before, "$format: the same triggers");
	is($node->safe_psql("copy_$format", 'SELECT count(*) FROM outbox.events'), $count, "$format: the restore made no events");
	is($node->safe_psql("copy_$format", <<'SQL'), <<'EVENTS' =~ s/\n\z//r, "$format: the restored triggers capture");
SET client_min_messages = error;
SELECT max(position) AS last FROM outbox.events \gset
INSERT INTO shop."Order Lines" VALUES (1, 3, 5), (1, 4, 0);
UPDATE parts SET region = 'b', n = 3 WHERE id = 1;
ALTER TABLE parts RENAME id TO ident;
TRUNCATE parts_a;
UPDATE parts SET n = 4 WHERE ident = 2;
SELECT outbox.capture('shop."Order Lines"', 'line', name => 'third', insert_event => 'line.third', columns => '{number}');
INSERT INTO shop."Order Lines" VALUES (2, 1, 0);
SELECT aggregate_id, event_type, payload FROM outbox.events WHERE position > :last ORDER BY position;
SQL

1:3|line.new|{"order": 1, "amount": 5, "number": 3}
1:3|line.projected|"projected 3"
1:4|line.projected|"projected 4"
1|parts.updated|{"n": 3, "id": 1, "region": "b"}
*|parts.truncated|{"table": "parts", "schema": "public"}
2|parts.updated|{"n": 4, "ident": 2, "region": "b"}
2:1|line.projected|"projected 1"
2:1|line.third|{"number": 1}
EVENTS
}
# data alone, into tables that are there: with the triggers off there are no events either
$node->command_ok([ 'pg_dump', '--data-only', '--disable-triggers', '--table', 'parts*', '--file', "$PostgreSQL::Test::Utils::tmp_check/data.sql", 'source' ], 'dumped the data');
$node->safe_psql('copy_plain', 'ALTER TABLE parts RENAME ident TO id; SET session_replication_role = replica; DELETE FROM parts');
$count = $node->safe_psql('copy_plain', 'SELECT count(*) FROM outbox.events');
$node->command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-f', "$PostgreSQL::Test::Utils::tmp_check/data.sql", 'copy_plain' ], 'restored the data');
is($node->safe_psql('copy_plain', 'SELECT count(*) FROM outbox.events'), $count, 'no events');

# ---- the examples of the documentation work

my $text = slurp_file("$FindBin::RealBin/../docs/capture.md");
my @examples = $text =~ /^```sql\n(.*?)^```/msg;
cmp_ok(scalar(@examples), '>=', 5, 'examples found');
$node->safe_psql($db, 'CREATE DATABASE documented');
$node->safe_psql('documented', 'CREATE EXTENSION outbox');
my (undef, undef, $errors) = $node->psql('documented', join("\n", @examples), on_error_stop => 0);
is(join(' ', $errors =~ /ERROR:\s+(.*)/g), 'transaction changed table "invoices" without enqueuing an event for "7"', 'they work, and fail where they say so');
is($node->safe_psql('documented', q{SELECT event_type, payload::jsonb FROM outbox.events}), 'order.created|{"id": 42, "total": 99.50, "status": "new", "tenant": "acme"}', 'the first of them');

check_no_crash($node);
done_testing();
