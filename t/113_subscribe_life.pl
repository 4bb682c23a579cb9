# A consumer in every state of its life: it obeys at once, holds nothing while it
# waits, gives way to commands that want the database, follows settings, and says
# what is wrong.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IO::Socket::INET;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
my $mute = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', Proto => 'tcp') or die "could not listen: $!";
my $mute_url = 'nats://127.0.0.1:' . $mute->sockport;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
max_worker_processes = 16
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 500ms
outbox.workers = 0
CONF
my $setup = q{
	CREATE TABLE effects (n bigserial, subject text, payload jsonb);
	CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$
	BEGIN
		IF m.subject ~ 'slow' THEN
			PERFORM pg_sleep(600);
		END IF;
		INSERT INTO public.effects (subject, payload) VALUES (m.subject, m.payload);
	END $$;
	SELECT outbox.subscribe('S', current_database(), 'public.handle')};

sub shown
{
	my ($db, $columns) = @_;

	return $node->safe_psql($db, "SELECT $columns FROM outbox.subscriptions");
}

sub shows
{
	my ($db, $condition, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_for_query($node, $db, "SELECT coalesce(bool_and($condition), false) FROM outbox.subscriptions"), $name) || diag(shown($db, '*'));
}

sub quickly
{
	my ($seconds, $name, $work) = @_;
	my $start = time();

	$work->();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok(time() - $start, '<', slack($seconds), $name);
}

# Without a stream: it waits for one. Also where there are no relays.
$node->safe_psql('postgres', "CREATE DATABASE d; ALTER DATABASE d SET outbox.connect_timeout = '60s'");
$node->safe_psql('d', 'CREATE EXTENSION outbox');
$node->safe_psql('d', $setup);
shows('d', q{state = 'not connected' AND last_error ~ 'could not look up stream "S": '}, 'no stream: it says so');
$nats->tool('create', 'S', 's.>');
$nats->tool('publish', 's.1', '1');
shows('d', q{state = 'active' AND applied = 1 AND last_error IS NULL}, 'the stream is there: it works');
my $pid = shown('d', 'pid');
relay_keeps_nothing_open($node, 'd', $pid, 'idle');

# Everything was acknowledged: a new consumer has nothing to do over.
$node->safe_psql('d', "SELECT pg_terminate_backend($pid)");
shows('d', "state = 'active' AND pid <> $pid AND duplicates = 0 AND applied = 1", 'terminated: another one goes on');

# NATS is gone, frozen, mute: it obeys.
$nats->stop;
shows('d', q{state = 'not connected' AND last_error ~ 'onnect'}, 'NATS is gone: it says so');
relay_keeps_nothing_open($node, 'd', shown('d', 'pid'), 'NATS is gone');
$nats->restart;
$nats->tool('publish', 's.2', '1');
shows('d', q{state = 'active' AND position = 2}, 'NATS is back');
$node->safe_psql('postgres', "ALTER DATABASE d SET outbox.nats_url = '$mute_url'");
shows('d', q{state = 'not connected'}, 'ALTER DATABASE: it follows');
$mute->accept;
$pid = shown('d', 'pid');
# its process may take until the attempt to connect is given up; nobody waits for that
cmp_ok($node->safe_psql('d', qq{
	CREATE TEMP TABLE took (seconds float);
	DO \$\$
	DECLARE
		start timestamptz := clock_timestamp();
	BEGIN
		PERFORM pg_terminate_backend($pid);
		WHILE EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid) AND clock_timestamp() < start + interval '20 s' LOOP
			PERFORM pg_sleep(0.01), pg_stat_clear_snapshot();
		END LOOP;
		INSERT INTO took SELECT extract(epoch FROM clock_timestamp() - start);
	END \$\$;
	SELECT * FROM took}), '<', 1.5, 'a mute server: it ends at once');
$node->safe_psql('postgres', 'ALTER DATABASE d RESET outbox.nats_url');
$nats->tool('publish', 's.3', '1');
shows('d', q{state = 'active' AND position = 3}, 'back to the real one');

# A reload with other settings makes another connection.
$node->append_conf('postgresql.conf', "outbox.nats_url = 'nats://127.0.0.1:1'\n");
$node->reload;
shows('d', q{state = 'not connected' AND last_error ~ 'could not connect to nats://127.0.0.1:1'}, 'reload: it follows');
$node->append_conf('postgresql.conf', "outbox.nats_url = '" . $nats->url . "'\n");
$node->reload;
shows('d', q{state = 'active'}, 'reload: and back');

# The stream is made anew; messages are lost to the stream's limits.
$nats->tool('delete', 'S');
$nats->tool('create', 'S', 's.>');
$nats->tool('publish', "s.new$_", '1') foreach 1 .. 2;
ok(wait_for_query($node, 'd', q{SELECT count(*) = 2 FROM effects WHERE subject ~ 'new'}), 'a new stream: from its beginning') or diag(shown('d', '*'));
$node->safe_psql('d', q{SELECT outbox.pause_subscription('S', 'd')});
shows('d', 'pid IS NULL', 'paused');
$nats->tool('publish', "s.lost$_", '1') foreach 1 .. 3;
$nats->tool('purge', 'S');
$nats->tool('publish', 's.4', '1');
my $mark = log_mark($node);
$node->safe_psql('d', q{SELECT outbox.resume_subscription('S', 'd')});
shows('d', 'position = 6', 'it goes on behind what was lost');
is(scalar(log_lines($node, $mark, qr/WARNING:.*may have missed messages/)), 1, 'and warns');

# Its role can't log in, then is gone.
$node->safe_psql('d', q{CREATE ROLE r LOGIN; GRANT ALL ON effects, effects_n_seq TO r; SELECT outbox.subscribe('S', 'd', 'public.handle', run_as => 'r')});
shows('d', q{state = 'active' AND run_as = 'r' AND pid IS NOT NULL}, 'as another role');
ok(wait_for_query($node, 'd', q{SELECT string_agg(usename, ',') = 'r' FROM pg_stat_activity WHERE backend_type = 'outbox consumer'}), 'in a session of that role');
$node->safe_psql('d', q{ALTER ROLE r NOLOGIN; SELECT pg_terminate_backend(pid) FROM outbox.subscriptions; SELECT outbox.tell_consumers(true)});
shows('d', q{state = 'not running' AND last_error ~ 'can''t log in'}, 'a role that can\'t log in: it says so');
$node->safe_psql('d', q{SELECT outbox.subscribe('S', 'd', 'public.handle')});
shows('d', q{state = 'active' AND run_as = 'postgres'}, 'as the caller again');

# A fast shutdown, idle and with a handler that would take ten minutes, NATS frozen.
$nats->tool('publish', 's.slow', '1');
ok(wait_for_query($node, 'd', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'outbox consumer' AND wait_event = 'PgSleep')}), 'a slow handler');
is($node->safe_psql('d', q{SELECT pg_cancel_backend(pid) FROM outbox.subscriptions}), 't', 'cancelled');
shows('d', q{failures = 1 AND last_error ~ 'canceling statement due to user request'}, 'a cancelled handler is a failure of the message');
ok(wait_for_query($node, 'd', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'outbox consumer' AND wait_event = 'PgSleep')}), 'it is tried again');
$nats->freeze;
quickly(6, 'a fast shutdown', sub { $node->stop('fast') });
$nats->thaw;
$node->start;
ok(wait_for_query($node, 'd', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'outbox consumer' AND wait_event = 'PgSleep')}), 'after the start it is tried again');

# DROP EXTENSION while a handler runs, and another life of the extension; DROP DATABASE.
quickly(8, 'DROP EXTENSION', sub { $node->safe_psql('d', 'SET client_min_messages = error; DROP EXTENSION outbox CASCADE') });
ok(wait_for_query($node, 'd', q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'outbox consumer')}), 'no consumer is left');
$nats->tool('purge', 'S');
$node->safe_psql('d', 'DROP TABLE effects; CREATE EXTENSION outbox');
$node->safe_psql('d', $setup);
$nats->tool('publish', 's.again', '1');
ok(wait_for_query($node, 'd', q{SELECT count(*) = 1 FROM effects}), 'another life of the extension') or diag(shown('d', '*'));
$nats->tool('publish', 's.slow', '1');
ok(wait_for_query($node, 'd', q{SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'outbox consumer' AND wait_event = 'PgSleep')}), 'a slow handler again');
quickly(8, 'DROP DATABASE', sub { $node->safe_psql('postgres', 'DROP DATABASE d') });

check_no_crash($node);
done_testing();
