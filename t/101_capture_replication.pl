# Capture on both sides of logical replication: applied rows make no events, or
# exactly one each where that is asked for.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_cluster('main', allows_streaming => 'logical', extra => "wal_level = logical\noutbox.workers = 0\n");
my @sides = ('publisher', 'subscriber');

foreach my $db (@sides)
{
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, <<'SQL');
CREATE EXTENSION outbox;
CREATE TABLE quiet (id int PRIMARY KEY, v text);
CREATE TABLE loud (id int PRIMARY KEY, v text);
CREATE TABLE guarded (id int PRIMARY KEY, v text);
SELECT outbox.capture('quiet', on_truncate => 'event');
SELECT outbox.capture('loud', on_truncate => 'event', replicated => true);
SELECT outbox.guard('guarded', event => 'any');
SQL
}

sub events { return $node->safe_psql($_[0], q{SELECT string_agg(event_type || ' ' || n, ', ' ORDER BY event_type) FROM (SELECT event_type, count(*) n FROM outbox.events GROUP BY 1) e}) }
sub caught_up { return $node->wait_for_catchup('sub') }

# ---- the initial copy

$node->safe_psql('publisher', <<'SQL');
INSERT INTO quiet SELECT i, 'v' FROM generate_series(1, 1000) i;
INSERT INTO loud SELECT i, 'v' FROM generate_series(1, 1000) i;
SET outbox.guard = off;
INSERT INTO guarded VALUES (1, 'v');
CREATE PUBLICATION pub FOR TABLE quiet, loud, guarded;
SELECT pg_create_logical_replication_slot('sub', 'pgoutput');
SQL
my $connection = $node->connstr('publisher');
# Two databases of one server: the slot has to be made beforehand.
$node->safe_psql('subscriber', "CREATE SUBSCRIPTION sub CONNECTION \$\$$connection\$\$ PUBLICATION pub WITH (create_slot = false, slot_name = 'sub')");
ok(wait_for_query($node, 'subscriber', q{SELECT count(*) = 3 AND bool_and(srsubstate IN ('r', 's')) FROM pg_subscription_rel}), 'initial copy done');
is($node->safe_psql('subscriber', 'SELECT (SELECT count(*) FROM quiet), (SELECT count(*) FROM loud), (SELECT count(*) FROM guarded)'), '1000|1000|1', 'all rows came');
is(events('publisher'), 'loud.created 1000, quiet.created 1000', 'events of the publisher');
is(events('subscriber'), 'loud.created 1000', 'the copy made events only where that is asked for');

# ---- changes

$node->safe_psql('publisher', <<'SQL');
UPDATE quiet SET v = 'w' WHERE id <= 10;
UPDATE loud SET v = 'w' WHERE id <= 10;
DELETE FROM quiet WHERE id = 11;
DELETE FROM loud WHERE id = 11;
UPDATE loud SET id = 5000 WHERE id = 12;
BEGIN;
INSERT INTO guarded VALUES (2, 'v');
SELECT outbox.enqueue('guarded', '2', 'guarded.created', '{}');
COMMIT;
TRUNCATE quiet, loud;
SQL
caught_up();
ok(wait_for_query($node, 'subscriber', 'SELECT (SELECT count(*) FROM quiet) + (SELECT count(*) FROM loud) = 0'), 'applied');
is(events('publisher'), 'guarded.created 1, loud.created 1001, loud.deleted 2, loud.truncated 1, loud.updated 10, quiet.created 1000, quiet.deleted 1, quiet.truncated 1, quiet.updated 10',
	'events of the publisher');
is(events('subscriber'), 'loud.created 1001, loud.deleted 2, loud.truncated 1, loud.updated 10', 'exactly one each on the subscriber, of what is asked for');
is($node->safe_psql('subscriber', 'SELECT count(*) FROM guarded'), 2, 'a guard lets applied rows pass');

# ---- what the subscriber writes itself is captured as anywhere

$node->safe_psql('subscriber', q{INSERT INTO quiet VALUES (1, 'own'); INSERT INTO loud VALUES (1, 'own')});
is(events('subscriber'), 'loud.created 1002, loud.deleted 2, loud.truncated 1, loud.updated 10, quiet.created 1', 'own rows');
like(($node->psql('subscriber', q{INSERT INTO guarded VALUES (3, 'own')}))[2], qr/without enqueuing an event/, '... and guarded');

# ---- a column that the subscriber names otherwise, and one that it has more

$node->safe_psql('subscriber', 'ALTER TABLE loud ADD extra int DEFAULT 5');
$node->safe_psql('publisher', q{INSERT INTO loud VALUES (2, 'x')});
caught_up();
ok(wait_for_query($node, 'subscriber', 'SELECT count(*) = 1 FROM loud WHERE id = 2'), 'applied');
is($node->safe_psql('subscriber', q{SELECT payload FROM outbox.events ORDER BY position DESC LIMIT 1}), '{"v": "x", "id": 2, "extra": 5}', "the event has the subscriber's columns");

$node->safe_psql('subscriber', 'ALTER SUBSCRIPTION sub DISABLE; ALTER SUBSCRIPTION sub SET (slot_name = NONE); DROP SUBSCRIPTION sub');
check_no_crash($node);
done_testing();
