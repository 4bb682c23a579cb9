# outbox.health(): each reason provoked, named and gone again, never "ok" in
# between; the log's words when events are late and when that is over; what
# pg_stat_activity says of a relay.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, allows_streaming => 1, extra => <<'CONF');
outbox.retry_base_delay = 20ms
outbox.retry_max_delay = 200ms
outbox.ack_timeout = 300ms
outbox.lag_warning = 700ms
outbox.max_attempts = 1
outbox.poison_policy = block
CONF

# The reasons that health() gives, as "verdict reason" joined by commas.
sub reasons
{
	my ($in) = @_;

	return ($in // $node)->safe_psql($db, q{SELECT string_agg(concat_ws(' ', verdict, reason), ', ') FROM outbox.health()});
}

sub healthy
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_until(60, sub { reasons() eq 'ok' }), "$name: ok again") || diag($node->safe_psql($db, 'SELECT * FROM outbox.health()'));
}

# That reason comes, with a verdict, a detail that matches, and a remedy. Until it does, "ok" is no contradiction.
sub reason
{
	my ($verdict, $reason, $detail, $in) = @_;
	my $row = '';
	my $found = wait_until(60, sub {
		$row = ($in // $node)->safe_psql($db, qq{SELECT * FROM outbox.health() WHERE reason = '$reason' AND remedy <> ''});
		return $row =~ /^\Q$verdict|$reason|\E.*$detail/m;
	});

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($found, "$verdict: $reason") || diag(($in // $node)->safe_psql($db, 'SELECT * FROM outbox.health()'));
}

sub enqueue
{
	my ($id, %opt) = @_;
	my $extra = join('', map { ", $_ => '$opt{$_}'" } keys %opt);

	return $node->safe_psql($db, "SELECT outbox.enqueue('order', '$id', 'placed', '{}'$extra)");
}

wait_relay($node, $db);
healthy('at the start');
is($node->safe_psql($db, q{SELECT query FROM pg_stat_activity WHERE backend_type = 'outbox relay'}),
	'outbox relay: publishes to stream "OUTBOX" at ' . $nats->url, 'pg_stat_activity says what the relay does');
like($node->safe_psql($db, q{SELECT wait_event_type || wait_event FROM pg_stat_activity WHERE backend_type = 'outbox relay'}),
	qr/^Extension(?:OutboxRelayIdle|Extension)$/, 'and what it waits for');

# --- the broker is gone; its events become late
my $log = -s $node->logfile;
$nats->freeze;
enqueue(1);
reason('critical', 'circuit_open', 'broker unavailable since .*no answer|broker unavailable since');
$nats->thaw;
healthy('the broker answers');
$log = -s $node->logfile;
$nats->stop;
enqueue(1);
reason('critical', 'not_connected', 'not connected since \d');
reason('warning', 'backlog_late', 'waits since \d');
like($node->safe_psql($db, q{SELECT query FROM pg_stat_activity WHERE backend_type = 'outbox relay'}), qr/connects to NATS: ./, 'so does pg_stat_activity');
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

# --- refused: blocks its aggregate, and is a dead letter
$nats->write_config(max_payload => 4096);
$nats->restart;
wait_relay($node, $db);
$node->safe_psql($db, q{SELECT outbox.enqueue_text('big', '1', 'x', repeat('x', 9000))});
reason('critical', 'aggregates_blocked', '1 aggregates wait for a failed event');
reason('warning', 'dead_letters', '1 events are dead letters; the last error: .*size|1 events are dead letters');
$node->safe_psql($db, q{SELECT outbox.discard('test', aggregate_type => 'big')});
healthy('discarded');

# --- operators
$node->safe_psql($db, q{SELECT outbox.pause(aggregate_type => 'order', reason => 'a test')});
reason('warning', 'paused', 'aggregate type "order" is paused since .*: a test');
is($node->safe_psql($db, q{SELECT remedy FROM outbox.health() WHERE reason = 'paused'}), q{SELECT outbox.resume(aggregate_type => 'order');}, 'the remedy is a statement');
$node->safe_psql($db, $node->safe_psql($db, q{SELECT remedy FROM outbox.health() WHERE reason = 'paused'}));
$node->safe_psql($db, q{SELECT outbox.pause()});
reason('warning', 'paused', 'publishing of everything');
$node->safe_psql($db, q{SELECT outbox.resume()});
healthy('resumed');

# --- enqueue is refused
$nats->freeze;
enqueue(3);
alter_system($node, 'outbox.max_pending = 1');
reason('critical', 'max_pending_reached', 'enqueueing fails');
$nats->thaw;
alter_system($node, 'outbox.max_pending = 0');
healthy('no limit');

# --- transactions that stay open
my $session = $node->background_psql($db);
$session->query_safe(q{BEGIN; SELECT outbox.enqueue('order', 'open', 'placed', '{}')});
reason('warning', 'transaction_open', 'process \d+ .* has enqueued in a transaction that is open since');
$session->query_safe(q{PREPARE TRANSACTION 'left behind'});
reason('warning', 'transaction_open', 'the prepared transaction "left behind"');
$session->query_safe(q{COMMIT PREPARED 'left behind'});
healthy('committed');

# --- a lock on what the relay writes
$session->query_safe(q{BEGIN; LOCK TABLE outbox.ledger_0 IN ACCESS EXCLUSIVE MODE});
enqueue(4);
reason('critical', 'relay_waits_for_lock', 'waits since .* for a lock on outbox.ledger_0 that process \d+ holds');
$session->query_safe('COMMIT');
healthy('unlocked');

# --- old events that can't be removed
$node->safe_psql($db, q{
	INSERT INTO outbox.ring VALUES (0, 1, now() - interval '9 days', now() - interval '8 days', NULL), (1, 2, now() - interval '8 days', NULL, NULL);
});
alter_system($node, "outbox.retention = '1h'");
$session->query_safe(q{BEGIN; SELECT count(*) FROM outbox.log_0});
reason('warning', 'retention_held_up', 'are still there: ');
$session->query_safe('COMMIT');
$node->safe_psql($db, 'TRUNCATE outbox.ring');
alter_system($node, "outbox.retention = '7d'");
$session->quit;
healthy('nothing is kept too long');

# --- versions
$node->safe_psql($db, q{UPDATE pg_extension SET extversion = '0.0' WHERE extname = 'outbox'});
reason('critical', 'wrong_version', 'the extension has version 0.0, the loaded library \d');
$node->safe_psql($db, q{UPDATE pg_extension SET extversion = outbox.library_version() WHERE extname = 'outbox'});
healthy('version');

# --- a relay that stands still, or too few, or none
my $pid = wait_relay($node, $db);
alter_system($node, "outbox.lease_ttl = '1s'");
kill('STOP', $pid);
reason('critical', 'relay_frozen', 'lease expired');
kill('CONT', $pid);
healthy('a frozen relay is replaced');
alter_system($node, 'outbox.workers = 8', 'outbox.lease_ttl = \'10s\'');
reason('warning', 'relays_missing', '\d of 8 relays are at work');
alter_system($node, 'outbox.workers = 0');
reason('warning', 'relay_missing', 'outbox.workers is 0');
alter_system($node, 'outbox.workers = 1');
wait_relay($node, $db);
healthy('a relay again');

# --- a standby, and a promoted one without a worker to spare
$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->append_conf('postgresql.conf', "max_worker_processes = 8\n");
$standby->start;
is(reasons($standby), 'warning standby', 'a standby says so');
$node->stop('immediate');
$standby->promote;
ok(wait_until(60, sub { reasons($standby) eq 'ok' }), 'and is healthy once promoted');
$standby->append_conf('postgresql.conf', "max_worker_processes = 2\n");
$standby->restart;
reason('critical', 'relay_missing', 'no relay runs in this database', $standby);

# --- without the library
$standby->append_conf('postgresql.conf', "shared_preload_libraries = ''\n");
$standby->restart;
is(reasons($standby), 'critical library_not_preloaded', 'the library is not preloaded');

is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
check_no_crash($node);
check_no_crash($standby);
done_testing();
