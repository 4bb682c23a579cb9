# A launcher that was terminated comes back, leaves the relays of its
# predecessor alone, and still replaces one that dies later.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats);
my $launcher = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox launcher'};

my $relay = wait_relay($node, 'postgres');
my $first = $node->safe_psql('postgres', $launcher);
$node->safe_psql('postgres', "SELECT pg_terminate_backend($first)");
ok($node->poll_query_until('postgres', "SELECT pid <> $first FROM ($launcher) l"), 'another launcher comes');

# it has looked around when it serves a new database
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION outbox');
ok(wait_relay($node, 'other'), 'it serves a new database');
is(relay_pid($node, 'postgres'), $relay, 'the relay of before is still at work');
is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox relay'}),
	2, 'and is the only one in its database');

$node->safe_psql('postgres', "SELECT pg_terminate_backend($relay)");
ok(wait_new_relay($node, 'postgres', $relay), 'a relay that dies later is replaced');
$node->safe_psql('postgres', q{SELECT outbox.enqueue('a', 'b', 'c', '{}')});
ok(wait_published($node, 'postgres', 1), 'and publishes');

check_no_crash($node);
done_testing();
