# ALTER DATABASE ... SET and RESET of the extension's settings reach the relays of
# that database, when it is committed and without help; nobody else's relays
# notice, and nothing is lost or repeated.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "max_connections = 60\nshared_buffers = 64MB\njit = off");
my $db = 'postgres';
my $n = 0;

create_test_points($node, $db);
$node->safe_psql($db, 'CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION outbox');

# The tokens of the subject that a new event arrives under. Then the relay has
# also seen whatever it was told before.
sub arrives_under
{
	my ($prefix) = @_;
	my $subject = "$prefix.e" . ++$n;

	$node->safe_psql($db, "SELECT outbox.enqueue_text('a', 'b', 'e$n', 'x')");
	return wait_until(10, sub { scalar($nats->dump('OUTBOX', $subject)) });
}

# The statements take effect, by a new relay; returns its process id.
sub takes_effect
{
	my ($name, $relay, $prefix, @statements) = @_;
	my $new;

	$node->safe_psql('other', join(';', @statements));
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($new = wait_new_relay($node, $db, $relay, timeout => 5), "$name: another relay");
	ok(arrives_under($prefix), "$name: takes effect");
	return $new;
}

my $relay = wait_relay($node, $db);
my $others = wait_relay($node, 'other');
ok($relay && $others, 'two databases');
ok(arrives_under('outbox.a.b'), 'the subject by default');

$relay = takes_effect('SET', $relay, 'outbox.first', q{ALTER DATABASE postgres SET outbox.subject_template = 'outbox.first.{event_type}'});
$relay = takes_effect('in upper case', $relay, 'outbox.second', q{ALTER DATABASE postgres SET "OUTBOX.Subject_Template" = 'outbox.second.{event_type}'});
$relay = takes_effect('in a transaction', $relay, 'outbox.third', 'BEGIN', q{ALTER DATABASE postgres SET outbox.subject_template = 'outbox.third.{event_type}'}, 'COMMIT');
$relay = takes_effect('TO DEFAULT', $relay, 'outbox.a.b', 'ALTER DATABASE postgres SET outbox.subject_template TO DEFAULT');
$relay = takes_effect('FROM CURRENT', $relay, 'outbox.fourth', q{SET outbox.subject_template = 'outbox.fourth.{event_type}'}, 'ALTER DATABASE postgres SET outbox.subject_template FROM CURRENT');
$relay = takes_effect('RESET', $relay, 'outbox.a.b', 'ALTER DATABASE postgres RESET outbox.subject_template');
$relay = takes_effect('SET once more', $relay, 'outbox.fifth', q{ALTER DATABASE postgres SET outbox.subject_template = 'outbox.fifth.{event_type}'});
$relay = takes_effect('RESET ALL', $relay, 'outbox.a.b', 'ALTER DATABASE postgres RESET ALL');

$node->safe_psql($db, $_)
  foreach q{BEGIN; ALTER DATABASE postgres SET outbox.subject_template = 'outbox.never.{event_type}'; ROLLBACK},
  q{ALTER DATABASE postgres SET work_mem = '5MB'}, 'ALTER DATABASE postgres RESET work_mem', q{ALTER DATABASE postgres SET outboxes.x = '1'},
  q{ALTER DATABASE template1 SET outbox.subject_template = 'outbox.never.{event_type}'}, 'ALTER DATABASE template1 RESET ALL';
ok(arrives_under('outbox.a.b'), 'rolled back, other settings, another database: no effect');
is(relay_pid($node, $db), $relay, '... and the same relay');
is(relay_pid($node, 'other'), $others, 'the other database has had one relay all the time');

$relay = takes_effect('two databases at once', $relay, 'outbox.both',
	'BEGIN', map({ "ALTER DATABASE $_ SET outbox.subject_template = 'outbox.both.{event_type}'" } 'other', $db), 'COMMIT');
ok(wait_new_relay($node, 'other', $others), 'two databases at once: another relay in the other, too');

# A relay that has read the old settings and isn't known yet.
arm($node, $db, 'settings-read');
$node->safe_psql($db, "SELECT pg_terminate_backend($relay)");
ok(wait_at_point($node, $db, 'settings-read'), 'a relay starts');
$node->safe_psql($db, q{ALTER DATABASE postgres SET outbox.subject_template = 'outbox.late.{event_type}'});
release($node, $db, 'settings-read');
ok(arrives_under('outbox.late'), 'while a relay starts: takes effect');

# Under load: one start after the other.
my $load = start_load($node, $db);
foreach my $i (1 .. 5)
{
	$relay = takes_effect("under load $i", relay_pid($node, $db), "outbox.load$i", "ALTER DATABASE postgres SET outbox.subject_template = 'outbox.load$i.{event_type}'");
}
stop_load($load);
ok(wait_drained($node, $db), 'everything is published');
untouched_attempts($node, $db, 'restarts');
check_stream($nats, $node, $db, 'restarts');
check_no_crash($node);
done_testing();
