# outbox.health(): each reason that lies in relays, broker and server is
# provoked, named, and gone again; the log's words when events are late and when
# that is over; what pg_stat_activity says of a relay. 142 has the other reasons.

use strict;
use warnings;

use File::Basename qw(dirname);
use OutboxHealth;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.retry_base_delay = 20ms
outbox.retry_max_delay = 200ms
outbox.ack_timeout = 300ms
outbox.lag_warning = 700ms
outbox.lease_ttl = 2s
CONF
create_health_waits($node, $db);

sub enqueue
{
	my ($id, %opt) = @_;
	my $extra = join('', map { ", $_ => '$opt{$_}'" } keys %opt);

	return $node->safe_psql($db, "SELECT outbox.enqueue('order', '$id', 'placed', '{}'$extra)");
}

sub activity { return $node->safe_psql($db, "SELECT $_[0] FROM pg_stat_activity WHERE backend_type = 'outbox relay'") }

healthy('at the start');
is(activity('query'), 'outbox relay: publishes to stream "OUTBOX" at ' . $nats->url, 'pg_stat_activity says what the relay does');
like(activity('wait_event_type || wait_event'), qr/^Extension(?:OutboxRelayIdle|Extension)$/, 'and what it waits for');

# --- the list of reasons
{
	my $here = dirname(__FILE__);
	my $tests = join('', map { slurp_file($_) } glob("$here/*_health*.pl"));
	my $documented = slurp_file("$here/../docs/monitoring.md");
	my @rows = map { [ split(/\|/) ] } split(/\n/, $node->safe_psql($db, q{SELECT reason, verdict, meaning FROM outbox.health_reasons}));

	cmp_ok(scalar(@rows), '>', 30, 'there is a list of reasons');
	is_deeply([ grep { my ($reason, $verdict) = @$_; $tests !~ /'$verdict', '$reason'|'$verdict $reason'/ } @rows ], [], 'each has a test');
	is_deeply([ grep { my ($reason, $verdict, $meaning) = @$_; $documented !~ /^\| `$reason` \| $verdict \| \Q$meaning\E \|$/m } @rows ],
		[], 'and a line in docs/monitoring.md');
}

# --- the broker is gone; its events become late
$nats->freeze;
enqueue(1);
reason('critical', 'circuit_open', 'broker unavailable since');
$nats->thaw;
healthy('the broker answers');
my $log = -s $node->logfile;
$nats->stop;
enqueue(1);
reason('critical', 'not_connected', 'not connected since \d');
like(activity('query'), qr/connects to NATS: ./, 'so does pg_stat_activity');
reason('warning', 'backlog_late', 'waits since \d');
# a scheduled event isn't late
enqueue(2, not_before => 'infinity');
$nats->restart;
ok($node->wait_for_log(qr/LOG:  outbox events are no longer late/, $log), 'logged when it is over');
healthy('connected, with an event that isn\'t due');
{
	my $text = slurp_file($node->logfile, $log);
	my $count = () = $text =~ /WARNING:  outbox events wait for longer than "outbox.lag_warning"/g;

	is($count, 1, 'late events are warned of once');
	like($text, qr/DETAIL:  The oldest has waited for \d+ s; 1 are pending\.\n.*HINT:  outbox\.health\(\)/, 'with their number');
}

# --- the stream
alter_system($node, "outbox.stream_create = off", "outbox.stream = 'MISSING'");
reason('critical', 'stream_trouble', 'stream unavailable since');
alter_system($node, "outbox.stream_create = on", "outbox.stream = 'OUTBOX'");
healthy('stream');

# --- locks: on what a relay writes, on what it reads when it starts, on what health() reads
my $session = $node->background_psql($db);
$session->query_safe(q{BEGIN; LOCK TABLE outbox.ledger_0 IN ACCESS EXCLUSIVE MODE});
enqueue(4);
reason('critical', 'relay_waits_for_lock', 'waits since .* for a lock on outbox.ledger_0 that process \d+ holds');
$node->safe_psql($db, 'SELECT pg_terminate_backend(' . relay_pid($node, $db) . ')');
reason('warning', 'relay_starting', 'starting since');
$session->query_safe('COMMIT; BEGIN; LOCK TABLE outbox.delivery IN ACCESS EXCLUSIVE MODE');
reason('critical', 'tables_locked', 'keeps even health\(\) out');
$session->query_safe('COMMIT');
$session->quit;
healthy('unlocked');

# --- versions
$node->safe_psql($db, q{UPDATE pg_extension SET extversion = '0.0' WHERE extname = 'outbox'});
reason('critical', 'wrong_version', 'the extension has version 0.0, the loaded library \d');
$node->safe_psql($db, q{UPDATE pg_extension SET extversion = outbox.library_version() WHERE extname = 'outbox'});
healthy('version');

# --- a relay that stands still, or too few, or none
my $pid = wait_relay($node, $db);
kill('STOP', $pid);
reason('critical', 'relay_frozen', 'lease expired');
kill('CONT', $pid);
healthy('a frozen relay is replaced');
alter_system($node, 'outbox.workers = 8');
reason('warning', 'relays_missing', '\d of 8 relays are at work');
alter_system($node, 'outbox.workers = 0');
reason('warning', 'relays_off', 'no relay runs in this database since');
alter_system($node, 'outbox.workers = 1');
healthy('a relay again');

# --- a standby, which is promoted; a server without a process to spare; one without the library
$node->stop;
$node->set_standby_mode;
$node->start;
is(reasons(), 'warning standby', 'a standby says so');
$node->promote;
healthy('once promoted');
$node->append_conf('postgresql.conf', "max_worker_processes = 2\n");
$node->restart;
reason('critical', 'relay_missing', 'no relay runs in this database.*pending: 0');
$node->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$node->restart;
is(reasons(), 'critical library_not_preloaded', 'the library is not preloaded');

is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
check_no_crash($node);
done_testing();
