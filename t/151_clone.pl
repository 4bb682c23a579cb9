# Copies that aren't dumps: by template, by logical replication, by a base backup. None
# publishes before outbox.arm(), but for the base backup, which can't be told from a
# failover: outbox.disarm() is for that.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxCopies;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, allows_streaming => 'logical', create_extension => 0, extra => <<'CONF');
wal_level = logical
max_worker_processes = 24
max_replication_slots = 10
log_statement = none
CONF

sub sql { return $node->safe_psql($_[0], $_[1]) }

sub stored
{
	my $info = $nats->info('OUTBOX');

	return defined $info ? $info->{messages} : 0;
}

# $count events of a type, which is the database's name unless given.
sub enqueue
{
	my ($db, $count, $type) = @_;

	$type //= $db;
	sql($db, "SELECT count(outbox.enqueue_text('$type', (i % 5)::text, 'e', i::text)) FROM generate_series(1, $count) i");
	return;
}

sub is_silent
{
	my ($db, $messages, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_state($node, $db, 'not armed', timeout => 60), "$name: not armed");
	return is(stored(), $messages, "$name: nothing is published");
}

##########################################################################
# CREATE DATABASE ... TEMPLATE, with a replay that had begun and pending events.

sql('postgres', 'CREATE DATABASE app');
sql('app', 'CREATE EXTENSION outbox');
enqueue('app', 100, 'first');
ok(wait_published($node, 'app'), 'the original publishes');
is(why_not_armed($node, 'app'), '', 'it is armed');
is(sql('app', 'SELECT outbox.arm()'), 'f', 'so there is nothing to arm');
sql('app', q{SELECT outbox.pause(); SELECT outbox.replay(target_stream => 'OUTBOX')});
ok(wait_for_query($node, 'app', q{SELECT state = 'running' FROM outbox.replays}), 'a replay, which waits');
enqueue('app', 50);
my @pending = ids_of($node, 'app', q{publish_state = 'pending'});
my $stored = stored();
foreach my $strategy (qw(wal_log file_copy))
{
	sql('postgres', "CREATE DATABASE $strategy TEMPLATE app STRATEGY $strategy");
	# frozen and rewritten, it is the same
	sql($strategy, 'SELECT outbox.resume(); VACUUM FREEZE outbox.identity; VACUUM FULL outbox.identity');
	is_silent($strategy, $stored, $strategy);
	like(own_status($node, $strategy)->{last_error}, qr/copy/, "$strategy: status() says why");
	is(sql($strategy, q{SELECT state FROM outbox.replays}), 'running', "$strategy: its replay stands still");
	enqueue($strategy, 1);
}
is(sql('app', q{SELECT count(*) FROM pg_stat_activity WHERE datname <> 'app' AND backend_type = 'outbox replay'}), 0, 'no copy replays');
my $mark = log_mark($node);
my $start = time();
is(sql('wal_log', 'SELECT outbox.arm()'), 't', 'armed');
ok(wait_published($node, 'wal_log'), 'it publishes');
cmp_ok(time() - $start, '<', slack(4), 'at once');
is_stored_once($nats, 'what was pending', @pending);
is(stored(), $stored + 51, 'and nothing else: the replay is not the copy\'s');
is(sql('wal_log', 'SELECT state FROM outbox.replays'), 'stopped', 'it could be resumed');
is(scalar(log_lines($node, $mark, qr/LOG:  outbox is armed in database "wal_log", by "/)), 1, 'logged');
is(sql('wal_log', 'SELECT outbox.arm()'), 'f', 'a second time: nothing to do');
like(($node->psql('file_copy', q{BEGIN; SELECT outbox.arm(); PREPARE TRANSACTION 'p'}))[2], qr/cannot PREPARE/, 'not in two phases');
sql('file_copy', 'BEGIN; SELECT outbox.arm(); ROLLBACK');
is_silent('file_copy', $stored + 51, 'armed and rolled back');
sql('postgres', 'DROP DATABASE file_copy');
sql('postgres', 'DROP DATABASE app WITH (FORCE)');

# ---- disarmed, and armed again

sql('wal_log', q{SELECT outbox.disarm('maintenance')});
enqueue('wal_log', 10, 'later');
is_silent('wal_log', $stored + 51, 'disarmed');
is(own_status($node, 'wal_log')->{last_error}, 'maintenance', 'the reason is shown');
is(sql('wal_log', 'SELECT outbox.disarm(), outbox.arm()'), 'f|t', 'armed again');
ok(wait_published($node, 'wal_log'), 'it publishes');

# ---- events that are put into the log of an armed database are never published

sub load
{
	my ($end) = @_;

	sql('wal_log', qq{
		BEGIN;
		INSERT INTO outbox.log_0 SELECT (l).* FROM (SELECT jsonb_populate_record(l, jsonb_build_object('position', nextval('outbox.position'),
			'event_id', gen_random_uuid(), 'aggregate_type', 'loaded')) AS l FROM outbox.log_0 l LIMIT 5) s;
		$end});
	return;
}
load('ROLLBACK');
is(why_not_armed($node, 'wal_log'), '', 'a load that is rolled back changes nothing');
# nobody tells a relay of this one: it must see it with the events
load("PREPARE TRANSACTION 'loaded'");
ok(wait_relay($node, 'wal_log', timeout => 60), 'a load that is prepared neither');
sql('wal_log', "COMMIT PREPARED 'loaded'");
enqueue('wal_log', 5, 'own');
is_silent('wal_log', $stored + 61, 'loaded');
# A restore comes to the subscriptions after the scout has read the table: it is read again.
sql('wal_log', q{INSERT INTO outbox.subscription (stream, durable, subject, handler, run_as, ordered, max_attempts, ack_wait, batch_size)
	VALUES ('IN', 'app', '', 'handle', current_user, true, 1, '1 s', 1)});
ok(wait_for_query($node, 'wal_log', q{SELECT last_error ~ 'not armed' FROM outbox.subscriptions}), '... a subscription, too, is seen, and waits');
sql('wal_log', 'DELETE FROM outbox.subscription');
ok(wait_for_query($node, 'wal_log', q{SELECT count(*) = 0 FROM outbox.subscription_states()}), '... as is its end');
is(sql('wal_log', q{SELECT count(*) FROM outbox.events WHERE publish_state = 'pending' AND aggregate_type IN ('loaded', 'own')}), 10, 'they are pending, and so is what was enqueued');
is(sql('wal_log', 'SELECT outbox.arm()'), 't', 'armed');
ok(wait_published($node, 'wal_log'), 'then they are published');
is_stored_once($nats, 'all', ids_of($node, 'wal_log', 'true'));

##########################################################################
# The log itself is replicated, with an initial copy and without.

my $connection = $node->connstr('wal_log');
my $found = q{SELECT outbox.position_of(gen_random_uuid()) IS NULL AND bool_and(outbox.position_of(event_id) = position) FROM outbox.events};
my $session;
my $logs = join(', ', map { "outbox.log_$_" } 0 .. 7);
sql('wal_log', qq{CREATE PUBLICATION sub FOR ALL TABLES; CREATE PUBLICATION live FOR TABLE $logs});
sql('wal_log', q{SELECT outbox.pause(); SELECT pg_create_logical_replication_slot(s, 'pgoutput') FROM unnest('{sub,live}'::text[]) s});
is(sql('wal_log', 'SELECT outbox.resume(), outbox.pause()'), 't|t', 'a publication of all tables is in nobody\'s way');
sql('postgres', "CREATE DATABASE $_") foreach qw(sub live);
foreach my $db (qw(sub live))
{
	my $copy = $db eq 'sub' ? 'true' : 'false';

	sql($db, 'CREATE EXTENSION outbox');
	ok(wait_relay($node, $db, timeout => 60), "$db: a new installation");
	sql($db, "CREATE SUBSCRIPTION $db CONNECTION \$\$$connection\$\$ PUBLICATION $db WITH (create_slot = false, slot_name = '$db', copy_data = $copy, enabled = false)");
	# It knows the database's own key of event_ids before it gets others.
	$session = $node->background_psql($db, on_error_stop => 1) if $db eq 'sub';
	is($session->query($found), '', "$db: no event yet") if $db eq 'sub';
	sql($db, "ALTER SUBSCRIPTION $db ENABLE");
	ok(wait_for_query($node, $db, q{SELECT bool_and(srsubstate IN ('r', 's')) FROM pg_subscription_rel}), "$db: subscribed");
}
$stored = stored();
is_silent('sub', $stored, 'an initial copy');
is(own_status($node, 'live')->{state}, 'active', 'without one it publishes, as long as nothing comes');
enqueue('wal_log', 20, 'replicated');
$node->wait_for_catchup($_) foreach qw(sub live);
foreach my $db (qw(sub live))
{
	is_silent($db, $stored, "$db: applied rows");
	is(sql($db, q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'replicated'}), 20, "$db: they have come");
	like(($node->psql($db, 'SELECT outbox.arm()'))[2], qr/subscription "$db" writes into the log\n.*\n.*DISABLE/s, "$db: not armed while they come");
}
is($session->query($found), 't', 'all are found by their ids, also in a session from before');
$session->quit;
# The switch: the publisher must not publish any more.
sql('wal_log', 'SELECT outbox.disarm()');
$node->wait_for_catchup('sub');
sql($_, "ALTER SUBSCRIPTION $_ DISABLE; ALTER SUBSCRIPTION $_ SET (slot_name = NONE); DROP SUBSCRIPTION $_") foreach qw(sub live);
sql('wal_log', q{SELECT pg_drop_replication_slot(s) FROM unnest('{sub,live}'::text[]) s; DROP PUBLICATION sub; DROP PUBLICATION live});
is(sql('sub', 'SELECT outbox.arm(), outbox.resume()'), 't|t', 'armed, and not paused any more');
enqueue('sub', 5);
ok(wait_published($node, 'sub'), 'it publishes what has come, and its own');
is_stored_once($nats, 'once', ids_of($node, 'sub', q{aggregate_type IN ('replicated', 'sub')}));
is(stored(), $stored + 25, 'and nothing else');

##########################################################################
# A base backup beside its original: the same for all that anybody can see. Started
# without the library it can be disarmed.

sql('sub', 'SELECT outbox.pause()');
enqueue('sub', 5, 'pending');
$node->backup('backup');
my $copy = PostgreSQL::Test::Cluster->new('copy');
$copy->init_from_backup($node, 'backup');
$copy->append_conf('postgresql.conf', "shared_preload_libraries = ''");
$copy->start;
is(why_not_armed($copy, 'sub'), '', 'a base backup is armed');
is($copy->safe_psql('sub', q{SELECT outbox.resume(), outbox.disarm('copy')}), 't|t', 'it can be disarmed before it begins');
$copy->append_conf('postgresql.conf', "shared_preload_libraries = 'outbox'");
$copy->restart;
$stored = stored();
ok(wait_state($copy, 'sub', 'not armed', timeout => 60), 'and then it is not armed');
is(stored(), $stored, 'it publishes nothing');
$copy->stop;
sql('sub', 'SELECT outbox.resume()');
ok(wait_published($node, 'sub'), 'the original does');

check_no_crash($node);
check_no_crash($copy);
done_testing();
