# Several relays share a database's aggregates. While events are enqueued all
# the time, their number changes, and relays are terminated, frozen, and frozen
# in the middle of what they record. Order stays, nothing is lost, and the
# aggregates of a relay that has gone are served by others: at once, or when its
# lease has run out.

use strict;
use warnings;

use IPC::Run;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

needs_test_points();

my $lease = 2;
my $nats = OutboxNats->start(max_payload => 100_000);
my $node = new_cluster('main', nats => $nats, extra => <<"CONF");
outbox.lease_ttl = ${lease}s
outbox.retry_base_delay = 200ms
outbox.retry_max_delay = 1s
max_worker_processes = 20
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';

create_test_points($node, $db);
# For each of the 64 slots an aggregate of it.
$node->safe_psql($db, q{
	CREATE TABLE one_per_slot AS
	SELECT DISTINCT ON (slot) slot, id
	FROM (SELECT outbox.aggregate_hash('slot', i::text) & 63 AS slot, i::text AS id FROM generate_series(1, 5000) i) a
	ORDER BY slot});

# ------------------------------------------------------------------------ helpers

sub relays
{
	my ($database) = @_;
	my $rows = $node->safe_psql('postgres',
		"SELECT relay, pid, slots, published, state FROM outbox.status() WHERE pid IS NOT NULL AND database = '$database' ORDER BY relay");
	my @names = qw(relay pid slots published state);
	my @relays;

	foreach my $row (split(/\n/, $rows))
	{
		my %relay;

		@relay{@names} = split(/\|/, $row);
		push @relays, \%relay;
	}
	return @relays;
}

# All slots are owned, by so many relays, each with its fair share.
sub wait_shares
{
	my ($count, %opt) = @_;
	my $database = $opt{database} // $db;
	my $fair = sub {
		my @relays = relays($database);
		my $sum = 0;

		$sum += $_->{slots} foreach @relays;
		return @relays == $count && $sum == 64 && !grep { $_->{slots} < int(64 / $count) || $_->{state} ne 'active' } @relays;
	};

	return 1 if wait_until($opt{timeout} // 15, $fair);
	diag(join("\n", map { my $relay = $_; join(', ', map { "$_ $relay->{$_}" } sort keys %$relay) } relays($database)));
	return 0;
}

sub set_workers
{
	my ($count) = @_;

	$node->safe_psql($db, "ALTER SYSTEM SET outbox.workers = $count");
	$node->reload;
	return;
}

my ($load_output, $load) = ('');

sub start_load
{
	my $file = $node->basedir . '/load.sql';

	append_to_file($file, "\\set a random(1, 300)\nSELECT outbox.enqueue_text('load', :a::text, 'e', 'x');\n") unless -e $file;
	$load = IPC::Run::start([ 'pgbench', '-n', '-c', 4, '-R', 400, '-T', 600, '-f', $file, $node->connstr($db) ],
		'<', \'', '>', \$load_output, '2>&1');
	return;
}

sub stop_load
{
	$load->kill_kill;
	return wait_for_query($node, $db, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'pgbench'", expected => '0');
}

# One event in every slot: yields the SQL condition that all of them are published.
my $probes = 0;

sub probe
{
	$probes++;
	$node->safe_psql($db, "SELECT outbox.enqueue_text('slot', id, 'probe $probes', '') FROM one_per_slot");
	return "SELECT count(*) = 64 FROM outbox.events WHERE event_type = 'probe $probes' AND publish_state = 'published'";
}

sub wait_all_published
{
	return wait_for_query($node, $db,
		q{SELECT sum(backlog) = 0 FROM outbox.status() WHERE database = current_database()}, timeout => 60)
	  && wait_published($node, $db, undef, timeout => 60);
}

sub wait_watermark
{
	return wait_for_query($node, $db, 'SELECT max(w.position) = (SELECT last_value FROM outbox.position) FROM outbox.watermark w', timeout => 20);
}

# Stands still; returns when it does.
sub freeze
{
	my ($pid) = @_;

	kill('STOP', $pid);
	return wait_until(5, sub { slurp_file("/proc/$pid/stat") =~ /\) T / });
}

# The same for one at work, between two rounds of its loop: anywhere else it may
# hold a lock inside the server without which nobody gets on.
sub freeze_asleep
{
	my ($pid) = @_;

	return wait_until(20, sub {
		my $type = '';

		return 0 unless freeze($pid);
		$node->psql($db, "SELECT wait_event_type FROM pg_stat_activity WHERE pid = $pid",
			stdout => \$type, timeout => 5, timed_out => \my $timed_out);
		return 1 if ($type // '') eq 'Extension';
		kill('CONT', $pid);
		return 0;
	});
}

sub is_alive { return kill(0, $_[0]) }

# ------------------------------------------------------------------ their number

ok(wait_shares(1), 'one relay has all slots');
start_load();
foreach my $count (2, 4, 8, 3)
{
	set_workers($count);
	ok(wait_shares($count), "$count relays share them, after a reload under load");
	my $condition = probe();
	ok(wait_for_query($node, $db, $condition, timeout => 10), "$count relays: events of every slot are published");
}
my %published = map { $_->{relay} => $_->{published} } relays($db);
ok(wait_until(15, sub { 3 == grep { $_->{published} > $published{ $_->{relay} } } relays($db) }), 'each relay publishes');
is($node->safe_psql($db, q{SELECT count(*) >= 8 FROM (SELECT DISTINCT relay, epoch FROM outbox.ledger) l}), 't', 'the ledger tells who has published');

# -------------------------------------------------------------------- one that ends

foreach my $number (0 .. 2)
{
	my ($victim) = grep { $_->{relay} == $number } relays($db);

	$node->safe_psql($db, "SELECT pg_terminate_backend($victim->{pid})");
	my $start = time();
	my $condition = probe();
	ok(wait_for_query($node, $db, $condition, timeout => 10), "relay $number is terminated: events of every slot are published");
	cmp_ok(time() - $start, '<', $lease, 'before a lease has run out');
	ok(wait_shares(3), 'and it is replaced');
}

# ----------------------------------------------------------------- one that is frozen

foreach my $number (0, 2)
{
	my ($frozen) = grep { $_->{relay} == $number } relays($db);

	ok(freeze_asleep($frozen->{pid}), "relay $number is frozen");
	my $start = time();
	my $condition = probe();
	my $published = $node->safe_psql($db, $condition) eq 't';
	ok(!$published || time() - $start > $lease, 'some events wait');
	$start = time();
	ok(wait_for_query($node, $db, $condition, timeout => 15), 'others publish them');
	cmp_ok(time() - $start, '<', slack($lease + 2), 'soon after its lease has run out');
	ok(wait_until(10, sub { 3 == grep { $_->{state} eq 'active' } relays($db) }), 'it is replaced');
	is((grep { $_->{pid} == $frozen->{pid} } relays($db))[0]->{state}, 'lease expired', 'status() shows what it is');

	kill('CONT', $frozen->{pid});
	ok(wait_until(10, sub { !is_alive($frozen->{pid}) }), 'when it wakes up it leaves');
	ok(wait_shares(3), 'and the number of relays is right');
}
like(slurp_file($node->logfile), qr/outbox relay 0 of database \d+ has not shown for its lease/, 'the log says so');
like(slurp_file($node->logfile), qr/outbox relay 0 leaves: it stood still/, 'and that it left');

# A freeze too short for others to notice, too long to go on as if nothing had been.
my ($sleepy) = relays($db);
freeze_asleep($sleepy->{pid});
sleep(0.7 * $lease);
kill('CONT', $sleepy->{pid});
ok(wait_until(10, sub { !is_alive($sleepy->{pid}) }), 'after more than half a lease it leaves as well');
ok(wait_shares(3), 'and is replaced');
ok(stop_load(), 'no more load');
ok(wait_all_published(), 'everything is published');

# Each event has one owner: what one relay publishes, no other does.
sub published { my $sum = 0; $sum += $_->{published} foreach relays($db); return $sum }
my $so_far = published();
probe() foreach 1 .. 5;
ok(wait_all_published(), '320 events are published');
is(published() - $so_far, 320, 'each by one relay');

# ------------------------------------------------------- frozen while it records something

# Acknowledgements are facts: nobody needs to wait for the one who records them.
arm($node, $db, 'settle');
$node->safe_psql($db, q{SELECT outbox.enqueue_text('settle', 'a', 'e', '1')});
ok(wait_at_point($node, $db, 'settle'), 'a relay stands in the middle of recording an acknowledgement');
my $pid = $node->safe_psql($db, q{SELECT pid FROM pg_locks WHERE relation = 'outbox.ledger_0'::regclass AND mode = 'RowExclusiveLock' LIMIT 1});
ok(freeze($pid), 'and is frozen there');
release($node, $db, 'settle');
$node->safe_psql($db, q{SELECT outbox.enqueue_text('settle', 'a', 'e', '2')});
ok( wait_for_query($node, $db, q{SELECT count(*) = 2 FROM outbox.events WHERE aggregate_type = 'settle' AND publish_state = 'published'}, timeout => $lease + 5),
	'others publish the event and its successor');
kill('CONT', $pid);
ok(wait_until(10, sub { !is_alive($pid) }), 'it wakes up and leaves');
ok(wait_shares(3), 'three relays again');

# A refused attempt is what its owner only may record: nobody takes over in the middle of it.
arm($node, $db, 'settle');
$node->safe_psql($db, q{SELECT outbox.enqueue_text('large', 'a', 'e', repeat('x', 150000))});
ok(wait_at_point($node, $db, 'settle'), 'a relay stands in the middle of recording a refusal');
$pid = $node->safe_psql($db, q{SELECT pid FROM pg_locks WHERE relation = 'outbox.delivery'::regclass AND mode = 'RowExclusiveLock' LIMIT 1});
my ($place) = map { $_->{relay} } grep { $_->{pid} == $pid } relays($db);
is($node->safe_psql($db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 103 AND objid = $place AND pid = $pid"),
	1, 'behind its fence');
ok(freeze($pid), 'and is frozen there');
release($node, $db, 'settle');
# That nothing happens is what is looked for, over two more leases.
sleep(3 * $lease);
cmp_ok((grep { $_->{pid} == $pid } relays($db))[0]->{slots}, '>', 0, 'its slots stay its own');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.delivery}), 0, 'nobody else has recorded anything');
kill('CONT', $pid);
ok(wait_until(10, sub { !is_alive($pid) }), 'it wakes up and leaves');
ok(wait_for_query($node, $db, q{SELECT attempts >= 1 FROM outbox.events WHERE aggregate_type = 'large'}), 'its record is there');
ok(wait_shares(3), 'three relays again');
$nats->write_config(max_payload => 1_000_000);
$nats->restart;
is($node->safe_psql($db, 'SELECT outbox.redrive()'), 1, 'the large event is redriven');
ok(wait_all_published(), 'and published, as it may be now');

# ----------------------------------------------------------------- up and down, to the end

start_load();
foreach my $count (1, 3, 0, 2)
{
	set_workers($count);
	ok($count == 0 ? wait_until(15, sub { !relays($db) }) : wait_shares($count), "$count relays");
}
is($node->safe_psql($db, q{SELECT DISTINCT state FROM outbox.status()}), 'active', 'all at work');
ok(stop_load(), 'no more load');
ok(wait_all_published(), 'everything is published');
ok(wait_watermark(), 'the watermark gets to the end');
is_deeply([ splice(@{ [ stream_differences($nats, 'OUTBOX', $node, $db) ] }, 0, 20) ], [], 'the stream has every event, once');
is_deeply([ splice(@{ [ check_order($nats, 'OUTBOX') ] }, 0, 20) ], [], 'in order');

# ------------------------------------------------------------------------------- idle

set_workers(3);
ok(wait_shares(3), 'three relays');
$node->safe_psql($db, 'CREATE DATABASE other');
my $observer = $node->background_psql('other');
my $look = q{SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'};
my ($before, $quiet_since) = ('');
ok( wait_until(30, sub {
		my $now = $observer->query_safe($look);

		$quiet_since = time() if $now ne $before;
		$before = $now;
		return time() - $quiet_since > 3;
	}), 'three idle relays come to rest');
sleep(8);
is($observer->query_safe($look), $before, 'idle for 8 s: no transaction in the database');
$observer->quit;
ok(wait_shares(3, timeout => 1), 'and all the time they are members');

# ------------------------------------------------------------ commands that want them away

$node->safe_psql('other', 'CREATE EXTENSION outbox');
ok(wait_shares(3, database => 'other'), 'three relays in another database');
$node->safe_psql('other', q{SELECT outbox.enqueue('a', i::text, 'e', '{}') FROM generate_series(1, 100) i});
ok(wait_published($node, 'other', 100), 'they publish');
my $start = time();
$node->safe_psql('other', 'DROP EXTENSION outbox');
ok(wait_until(10, sub { !relays('other') }), 'DROP EXTENSION sends them away');
$node->safe_psql('other', 'CREATE EXTENSION outbox');
$node->safe_psql('other', q{SELECT outbox.enqueue('a', i::text, 'e', '{}') FROM generate_series(1, 10) i});
ok(wait_published($node, 'other', 10), 'in its next life events are published');
ok(wait_shares(3, database => 'other'), 'by three relays');
$start = time();
$node->safe_psql($db, 'DROP DATABASE other');
cmp_ok(time() - $start, '<', slack(4), 'DROP DATABASE is not held up');
is(scalar(relays('other')), 0, 'no relay is left there');
ok(wait_shares(3), 'the others are');

check_no_crash($node);
done_testing();
