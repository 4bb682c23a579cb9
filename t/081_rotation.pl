# Ranges are closed and removed all the time, under load, with relays that come
# and go: no event is lost, none overtakes its predecessor, nobody waits.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

use constant SECONDS => 20;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.workers = 2
outbox.retention = '1h'
jit = off
log_statement = none
autovacuum = off
shared_buffers = 64MB
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');
$node->safe_psql($db, 'CREATE TABLE sent (event_id uuid)');

# Transactions that stay open across rotations, and between their events; a third of them roll back a part.
my $script = $node->basedir . '/load.sql';
append_to_file($script, <<'SQL');
\set a random(1, 20)
\set b random(1, 20)
\set wait random(0, 40)
BEGIN;
INSERT INTO sent SELECT outbox.enqueue('order', least(:a, :b)::text, 'first', '1');
\sleep :wait ms
SAVEPOINT s;
SELECT outbox.enqueue('order', least(:a, :b)::text, 'undone', '1');
ROLLBACK TO s;
INSERT INTO sent SELECT outbox.enqueue('order', greatest(:a, :b)::text, 'second', '2', event_id => gen_random_uuid());
\sleep :wait ms
INSERT INTO sent SELECT outbox.enqueue('order', greatest(:a, :b)::text, 'third', '3');
COMMIT;
SQL
my ($out, $err) = ('', '');
my $load = IPC::Run::start(
	[ 'pgbench', '-n', '-c', 6, '-T', SECONDS, '-l', '--log-prefix', $node->basedir . '/load', '-f', $script, '-h', $node->host, '-p', $node->port, $db ],
	'>', \$out, '2>', \$err);
my $end = time() + SECONDS;
my $calls = 0;

while (time() < $end)
{
	$node->safe_psql($db, q{SELECT FROM outbox.purge(older_than => '0')});
	$calls++;
	if ($calls % 5 == 0)
	{
		my $relay = relay_pid($node, $db);

		$node->safe_psql($db, "SELECT pg_terminate_backend($relay)") if defined $relay;
	}
}
$load->finish;
unlike($err, qr/error|aborted/i, 'no transaction failed') or diag($err);
ok(wait_relay($node, $db), 'a relay in the end');
ok(wait_drained($node, $db), 'everything that is kept is published');

my ($ranges, $events) = split(/\|/, $node->safe_psql($db, 'SELECT count(*), sum(events) FROM outbox.purges'));
my $sent = $node->safe_psql($db, 'SELECT count(*) FROM sent');
diag("$sent events, $calls calls, $ranges ranges with $events events removed");
cmp_ok($ranges, '>=', 8, 'the ring went round');
cmp_ok($events, '>=', $sent / 4, 'and took many events away');

my @messages = $nats->dump('OUTBOX');
my %stored = map { $_->{msg_id} => 1 } @messages;
my @missing = grep { !$stored{$_} } split(/\n/, $node->safe_psql($db, 'SELECT event_id FROM sent'));
is(scalar(@missing), 0, 'every event is in the stream') or diag("@missing[0 .. 4]");
is(scalar(keys %stored), $sent, 'and nothing else');
is_deeply([ check_order($nats, 'OUTBOX', \@messages) ], [], 'in order');
cmp_ok(scalar(@messages), '<=', $sent, 'and once, as far as the stream keeps copies away');
is($node->safe_psql($db, 'SELECT count(*) FROM (SELECT FROM outbox.events GROUP BY position HAVING count(*) > 1) t'), 0, 'no event is there twice');

$node->safe_psql($db, q{SELECT FROM outbox.purge(older_than => '0')});
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.events'), 0, 'in the end nothing is kept');

# ------------------------------------------------------ a ring that is all in use

$node->safe_psql($db, q{SELECT outbox.pause('held')});
# Each range gets more pending events than may be carried over.
foreach my $range (1 .. 9)
{
	$node->safe_psql($db, qq{
		SELECT count(*) FROM (SELECT outbox.enqueue('held', i::text, 'E', '1') FROM generate_series(1, 10001) i) t;
		SELECT outbox.enqueue('free', '1', 'range $range', '1')});
	wait_for_query($node, $db, qq{SELECT count(*) FROM outbox.events WHERE event_type = 'range $range' AND publish_state = 'published'}, expected => 1)
	  or last;
	$node->safe_psql($db, q{SELECT FROM outbox.purge(older_than => '0')});
}
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.ring'), 8, 'all children are in use');
is( $node->safe_psql($db, q{SELECT count(*) FROM outbox.purge(older_than => '0', dry_run => true) WHERE reason LIKE 'too much of it must be kept%'}),
	8, 'each says why');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'held' AND publish_state = 'pending'}), 90009, 'no event is lost');
$node->safe_psql($db, q{SELECT outbox.enqueue('free', '1', 'still', '1')});
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE event_type = 'still' AND publish_state = 'published'}, expected => 1),
	'events go on');
$node->restart;
ok(wait_relay($node, $db), 'a relay after a restart');
$node->safe_psql($db, q{SELECT outbox.resume('held')});
ok(wait_drained($node, $db, timeout => 120), 'what was held is published');
$node->safe_psql($db, q{SELECT FROM outbox.purge(older_than => '0')});
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.events'), 0, 'and then goes');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');

check_no_crash($node);
done_testing();
