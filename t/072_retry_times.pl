# The retry schedule: attempts and times survive restarts and crashes; times of
# every size, zone and kind are borne.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxErrors;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "outbox.max_attempts = 2147483647\noutbox.retry_base_delay = 300ms\noutbox.retry_max_delay = 1s\n");
my $db = 'postgres';
my $failing = respond($nats, 'core.fails', refusal(400, 10999, 'try again'));

sub row
{
	my ($columns, $where) = @_;
	return $node->safe_psql($db, "SELECT $columns FROM outbox.events WHERE $where");
}

sub set
{
	my (%settings) = @_;
	$node->safe_psql($db, "ALTER SYSTEM SET $_ = '$settings{$_}'") foreach sort keys %settings;
	$node->reload;
	return;
}

# ---- attempts are counted across restarts, and each waits for its time

ok(wait_state($node, $db, 'active'), 'the relay is at work');
$node->safe_psql($db, q{SELECT outbox.enqueue('a', '1', 'e', '{}', subject => 'core.fails')});
ok(wait_for_query($node, $db, q{SELECT attempts >= 2 FROM outbox.events WHERE aggregate_type = 'a'}), 'attempts are counted');
like(row('publish_state, next_attempt_at > now() - interval \'1 s\', next_attempt_at <= now() + interval \'1 s\', last_error', q{aggregate_type = 'a'}),
	qr/^pending\|t\|t\|JetStream error 10999: try again$/, 'state, next attempt and error are shown');
my $attempts = row('attempts', q{aggregate_type = 'a'});
set('outbox.retry_base_delay' => '1h', 'outbox.retry_max_delay' => '1h');
ok(wait_for_query($node, $db, q{SELECT next_attempt_at > now() + interval '30 min' FROM outbox.events WHERE aggregate_type = 'a'}), 'the next one is an hour away');
$attempts = row('attempts', q{aggregate_type = 'a'});
my $next = row('next_attempt_at', q{aggregate_type = 'a'});
foreach my $how ('restart of the relay', 'restart of the server', 'crash of the server')
{
	if ($how =~ /relay/)
	{
		my $pid = relay_pid($node, $db);
		$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
		wait_new_relay($node, $db, $pid);
	}
	else
	{
		$node->stop($how =~ /crash/ ? 'immediate' : 'fast');
		$node->start;
	}
	ok(wait_state($node, $db, 'active'), "$how: at work again");
	# another event passes: the relay has loaded and read all there is
	$node->safe_psql($db, q{SELECT outbox.enqueue('b', '1', 'e', '{}')});
	ok(wait_for_query($node, $db, q{SELECT count(*) = 0 FROM outbox.events WHERE aggregate_type = 'b' AND publish_state <> 'published'}), "$how: others pass");
	is(row('attempts, next_attempt_at', q{aggregate_type = 'a'}), "$attempts|$next", "$how: attempts and time are kept");
}
set('outbox.retry_base_delay' => '1ms', 'outbox.retry_max_delay' => '5ms');
my $pid = relay_pid($node, $db);
$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
ok(wait_for_query($node, $db, "SELECT attempts > $attempts + 20 FROM outbox.events WHERE aggregate_type = 'a'"),
	'no retry is farther away after a start than the longest delay, and a base of 1 ms is borne');
set('outbox.retry_base_delay' => '1h', 'outbox.retry_max_delay' => '1d');
ok(wait_for_query($node, $db, q{SELECT next_attempt_at BETWEEN now() + interval '17 h' AND now() + interval '25 h' FROM outbox.events WHERE aggregate_type = 'a'}),
	'many failures, an hour doubled over and over: the longest delay, a day');
stop_responding($failing);
# which is also the pause between attempts to connect
set('outbox.retry_base_delay' => '1ms', 'outbox.retry_max_delay' => '5ms');
$nats->restart;
ok(wait_state($node, $db, 'active'), 'a new connection');
$node->safe_psql($db, q{SELECT outbox.enqueue('b', '2', 'e', '{}')});
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_type = 'b' AND aggregate_id = '2'}), 'others pass');
is(row('publish_state', q{aggregate_type = 'a'}), 'pending', 'is no reason to try again what was refused itself');
$failing = respond($nats, 'core.fails', positive('OUTBOX'));
$pid = relay_pid($node, $db);
$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_type = 'a'}), 'published in its time');
cmp_ok(row('attempts', q{aggregate_type = 'a'}), '>', 20, 'attempts include the last one');
stop_responding($failing);

# ---- points in time

my %times = (
	'-infinity' => 'published', '4713-01-01 00:00:00 BC' => 'published', '1999-12-31' => 'published', '2000-01-01 00:00:00+00' => 'published',
	'294276-12-31 23:59:59+00' => 'pending', 'infinity' => 'pending');
foreach my $time (sort keys %times)
{
	$node->safe_psql($db, "SELECT outbox.enqueue('time', '$time', 'e', '{}', not_before => '$time'); SELECT outbox.enqueue('time', '$time', 'behind', '{}')");
}
is($node->safe_psql($db, q{SELECT outbox.enqueue('time', 'NULL', 'e', '{}', not_before => NULL) IS NOT NULL}), 't', 'NULL is no time');
ok(wait_for_query($node, $db, q{SELECT count(*) = 9 FROM outbox.events WHERE aggregate_type = 'time' AND publish_state = 'published'}), 'what is due is published')
  or diag($node->safe_psql($db, q{SELECT aggregate_id, publish_state FROM outbox.events WHERE aggregate_type = 'time'}));
is(row(q{string_agg(DISTINCT aggregate_id || ' ' || publish_state, ', ')}, q{aggregate_type = 'time' AND publish_state <> 'published'}),
	'294276-12-31 23:59:59+00 pending, infinity pending', 'what is not waits, and so do its successors');
is($node->safe_psql($db, q{SELECT outbox.discard('no longer wanted', (SELECT event_id FROM outbox.events WHERE aggregate_id = 'infinity' AND event_type = 'e'))}), 1, 'and can be discarded');
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'infinity' AND event_type = 'behind'}), 'then its successor goes');

# due to the second, over a restart, whatever the session's time zone
foreach my $zone ('Europe/Berlin', 'America/St_Johns', 'UTC')
{
	$node->safe_psql($db, qq{SET timezone = '$zone'; SELECT outbox.enqueue('due', '$zone', 'e', '{}', not_before => clock_timestamp() + interval '4 s')});
}
$node->safe_psql($db, q{BEGIN; SELECT outbox.enqueue('due', 'first', 'e', '{}', not_before => clock_timestamp() + interval '2 s'); SELECT pg_sleep(3); COMMIT});
$node->restart;
ok(wait_for_query($node, $db, q{SELECT count(*) = 4 FROM outbox.events WHERE aggregate_type = 'due' AND publish_state = 'published'}, timeout => 20), 'scheduled events are published');
is(row('count(*)', q{aggregate_type = 'due' AND published_at < not_before}), 0, 'none before its time');
# a point in time is one, whatever the clocks of Berlin do that night
is($node->safe_psql($db, q{SET timezone = 'Europe/Berlin';
	SELECT count(outbox.enqueue('dst', i::text, 'e', '{}', not_before => timestamptz '2024-10-27 01:00+02' + i * interval '30 min')) FROM generate_series(0, 6) i}), 7, 'a night of seven half hours');
is(row(q{max(not_before) - min(not_before)}, q{aggregate_type = 'dst'}), '03:00:00', 'is three hours long');
ok(wait_for_query($node, $db, q{SELECT count(*) = 7 FROM outbox.events WHERE aggregate_type = 'dst' AND publish_state = 'published'}), 'and past');

check_no_crash($node);
done_testing();
