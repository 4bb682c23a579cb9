# All kinds of workers at once: a relay, a consumer in a handler that would take
# ten minutes, a replay on its way, a cleaner that waits for an archive which
# doesn't answer. Whatever becomes of their database, of the extension, of the
# server and of the broker: they are never in the way, they leave no noise in the
# log, and they are back by themselves. (The relay alone: t/013, t/034, t/038,
# t/042, t/043; docs/lifecycle.md has the table of all situations.)

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use IO::Select;
use IO::Socket::INET;
use IPC::Run;
use OutboxLife;
use OutboxProxy;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

needs_test_points();

my $nats = OutboxNats->start;
my $proxy = OutboxProxy->start(target => $nats->port, delay_ms => 100);
my $archive = IO::Socket::INET->new(Listen => 50, LocalAddr => '127.0.0.1', Proto => 'tcp') or die "could not listen: $!";
my $node = new_cluster('main', extra => <<"CONF");
max_worker_processes = 16
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
log_error_verbosity = terse
allow_in_place_tablespaces = on
outbox.nats_url = '@{[$proxy->url]}'
outbox.archive_url = 'http://127.0.0.1:@{[$archive->sockport]}/outbox'
outbox.retention = -1
outbox.connect_timeout = 60s
outbox.ack_timeout = 60s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 400ms
CONF
my $database = 'd';

$nats->tool('create', 'S', 's.>');
$nats->tool('create', 'R', 'r.>');
create_test_points($node, 'postgres');

# ------------------------------------------------------------------- waiting

# In the server, where it costs least.
$node->safe_psql('template1', q{
	CREATE FUNCTION await(query text) RETURNS boolean LANGUAGE plpgsql AS $$
	DECLARE
		result boolean;
	BEGIN
		FOR i IN 1..3000 LOOP
			PERFORM pg_stat_clear_snapshot();
			EXECUTE query INTO result;
			EXIT WHEN result;
			PERFORM pg_sleep(0.02);
		END LOOP;
		RETURN result;
	END $$;
	CREATE VIEW at_work AS
	SELECT d.datname, coalesce(string_agg(replace(a.backend_type, 'outbox ', ''), ' ' ORDER BY a.backend_type), '') AS kinds
	FROM pg_database d
	LEFT JOIN pg_stat_activity a ON a.datid = d.oid AND a.backend_type LIKE 'outbox %'
		AND (a.backend_type <> 'outbox consumer' OR a.wait_event = 'PgSleep')
	GROUP BY d.datname});
$node->safe_psql('postgres', 'CREATE DATABASE observer TEMPLATE template1');

sub await
{
	my ($query, $name, $db) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return 1 if ok($node->safe_psql($db // 'observer', "SELECT coalesce(await(\$q\$$query\$q\$), false)") eq 't', $name);
	diag($node->safe_psql('observer', 'SELECT * FROM at_work'));
	return 0;
}

# Exactly these kinds of workers are at work in the database; a consumer only if its handler is running.
sub at_work
{
	my ($kinds, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return await("SELECT kinds = '$kinds' FROM at_work WHERE datname = '$database'", $name);
}

sub drained
{
	my ($name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return await(q{SELECT bool_and(state = 'active') AND sum(backlog) = 0 FROM outbox.status() WHERE database = current_database()}, $name, $database);
}

# psql in the background, connected by the name of it; statement by statement.
sub start_psql
{
	my ($db, $name, @sql) = @_;
	my %psql = (out => '', err => '');

	$psql{run} = IPC::Run::start([ 'psql', '-XAtq', '-d', $node->connstr($db) . " application_name=$name", map { ('-c', $_) } @sql ],
		'<', \'', '>', \$psql{out}, '2>', \$psql{err});
	return \%psql;
}

# Somebody has connected to the archive, which keeps silent.
my @connections;

sub take_connection
{
	IO::Select->new($archive)->can_read(60) and push(@connections, scalar($archive->accept));
	return;
}

# A cleaner that waits for the archive. The session that wanted it goes away.
sub start_cleaner
{
	my $psql = start_psql($database, 'purge', q{SELECT FROM outbox.purge(older_than => '0')});

	take_connection();
	await(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}, 'a cleaner');
	$node->safe_psql('observer', q{SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'purge'});
	$psql->{run}->finish;
	return;
}

sub quickly
{
	my ($seconds, $name, $work) = @_;
	my $start = time();

	$work->();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok(time() - $start, '<', slack($seconds), "$name: in less than $seconds s");
}

# Nothing in the log since the mark but what a client of the test that was told to end has to say.
my $mark;

sub quiet
{
	my ($name, $allowed) = @_;
	my @lines = grep { !/FATAL:  terminating connection due to administrator command/ }
	  log_lines($node, $mark, qr/(?:WARNING|ERROR|FATAL|PANIC):  /);

	@lines = grep { $_ !~ $allowed } @lines if $allowed;
	$mark = log_mark($node);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_deeply(\@lines, [], "$name: nothing in the log to worry about");
}

# --------------------------------------------------------------- all are at work

$node->safe_psql('observer', 'CREATE DATABASE d');
$mark = log_mark($node);
$node->safe_psql('d', q{
	CREATE EXTENSION outbox;
	SELECT count(outbox.enqueue_text('order', (i % 20)::text, 'e', '')) FROM generate_series(1, 400) i;
	CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(600); END $$;
	SELECT outbox.subscribe('S', 'd', 'public.handle', max_attempts => 1000)});
$nats->tool('publish', 's.slow', '1');
drained('published');
$node->safe_psql('d', q{SELECT FROM outbox.replay(target_stream => 'R', target_prefix => 'r', rate => 1)});
at_work('consumer relay replay', 'a relay, a consumer in its handler, a replay');
quiet('at first');

# ------------------------------------------------ a relay that can't give way

# The command fails, and says who is in the way. This takes its time: other things happen meanwhile.
$node->safe_psql('observer', 'CREATE DATABASE stuck');
$node->safe_psql('stuck', 'CREATE EXTENSION outbox');
await(q{SELECT kinds = 'relay' FROM at_work WHERE datname = 'stuck'}, 'another relay');
my $stuck = $node->safe_psql('observer', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox relay' AND datname = 'stuck'});
kill('STOP', $stuck);
my $refused = start_psql('observer', 'drop', 'DROP DATABASE stuck');

# --------------------------------------------- commands that want the database

start_cleaner();
at_work('cleaner consumer relay replay', 'all kinds');
quickly(5, 'RENAME', sub { $node->safe_psql('observer', 'ALTER DATABASE d RENAME TO e') });
$database = 'e';
at_work('consumer relay replay', 'RENAME: they are back');

# Workers that are starting when the command is given don't see it go by.
arm($node, 'postgres', 'worker-connected');
$node->safe_psql('observer', q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type IN ('outbox consumer', 'outbox replay')});
ok(wait_at_point($node, 'postgres', 'worker-connected', 2), 'a consumer and a replay are starting');
my $rename = start_psql('observer', 'rename', 'ALTER DATABASE e RENAME TO d');
await(q{SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'e' AND backend_type = 'outbox relay')}, 'RENAME is under way');
release($node, 'postgres', 'worker-connected');
$rename->{run}->finish;
is($rename->{err}, '', 'RENAME while workers start: they give way');
$database = 'd';
at_work('consumer relay replay', '... and are back');

# ------------------------------------------------------- who is served, who not

$node->safe_psql('observer', 'ALTER DATABASE d ALLOW_CONNECTIONS false');
at_work('', 'ALLOW_CONNECTIONS false: nobody is left');
# A DROP DATABASE that was interrupted leaves such a row behind.
$node->safe_psql('observer', q{
	UPDATE pg_database SET datconnlimit = -2, datallowconn = true WHERE datname = 'd';
	ALTER DATABASE postgres IS_TEMPLATE true});
await(q{SELECT kinds = '' FROM at_work WHERE datname = 'postgres'}, 'IS_TEMPLATE true: nobody is left');
at_work('', 'a database that is invalid: nobody tries');
$node->safe_psql('observer', q{UPDATE pg_database SET datconnlimit = -1 WHERE datname = 'd'; ALTER DATABASE postgres IS_TEMPLATE false});
await(q{SELECT kinds = 'relay' FROM at_work WHERE datname = 'postgres'}, 'IS_TEMPLATE false: its relay is back');
at_work('consumer relay replay', 'ALLOW_CONNECTIONS true: they are back');

# -------------------------------------------------- the extension, under load

my $load = start_load($node, 'd', rate => 100);
foreach my $sql (
	'DROP SCHEMA outbox CASCADE',
	'DROP EXTENSION outbox CASCADE; CREATE EXTENSION outbox',
	'ALTER EXTENSION outbox UPDATE')
{
	my $consumer = $node->safe_psql('d', 'SELECT pid FROM outbox.subscriptions');

	quickly(5, "$sql, rolled back", sub { $node->safe_psql('d', "SET client_min_messages = error; BEGIN; $sql; ROLLBACK") });
	at_work('consumer relay replay', '... they are back');
	isnt($node->safe_psql('d', 'SELECT pid FROM outbox.subscriptions'), $consumer, '... by another consumer');
}
stop_load($load);
drained('everything is published');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, 'd') ], [], 'the stream has it, once');
$node->safe_psql('d', 'CREATE ROLE nobody');
my ($code, undef, $err) = $node->psql('d', 'SET ROLE nobody; DROP EXTENSION outbox CASCADE');
like($err, qr/must be owner of extension/, 'somebody who may not drop the extension');
at_work('consumer relay replay', '... sends nobody away');

$refused->{run}->finish;
like($refused->{err}, qr/WARNING:  processes of the extension "outbox" don't leave the database\nDETAIL:  Still there, by process number: relay $stuck\.\nHINT: .*\nERROR:  database "stuck" is being accessed/,
	'a relay that can\'t give way: the command says so');
kill('CONT', $stuck);
quickly(5, 'it can again', sub { $node->safe_psql('observer', 'DROP DATABASE stuck') });

# These wait for all processes of the server, also for one that stands still.
$node->safe_psql('observer', q{CREATE TABLESPACE place LOCATION ''});
quickly(5, 'SET TABLESPACE', sub { $node->safe_psql('observer', 'ALTER DATABASE d SET TABLESPACE place') });
at_work('consumer relay replay', 'SET TABLESPACE: they are back');
start_cleaner();
quickly(5, 'TEMPLATE', sub { $node->safe_psql('observer', 'CREATE DATABASE copy TEMPLATE d') });
at_work('consumer relay replay', 'TEMPLATE: they are back');
quickly(5, 'another database, WITH (FORCE)', sub { $node->safe_psql('observer', 'DROP DATABASE copy WITH (FORCE)') });
quiet('commands', qr/processes of the extension "outbox" don't leave|database "stuck" is being accessed|must be owner of extension/);

# --------------------------------------------------------- cancelled, terminated

sub pids
{
	return $node->safe_psql('observer', q{SELECT string_agg(backend_type || ' ' || pid, ', ' ORDER BY 1) FROM pg_stat_activity
		WHERE backend_type LIKE 'outbox %' AND (datname = 'd' OR datname IS NULL)});
}
# and another replay, whose source doesn't answer
my $url = 'http://127.0.0.1:' . $archive->sockport . '/outbox';
my $batch = $node->safe_psql('d', "SELECT batch_id FROM outbox.replay(clickhouse => '$url', target_stream => 'R', target_prefix => 'r')");
take_connection();
start_cleaner();
my $pids = pids();
$node->safe_psql('observer', q{SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity, generate_series(1, 20) WHERE backend_type LIKE 'outbox %'});
at_work('cleaner consumer relay replay replay', 'cancelled twenty times: all are at work');
is(pids(), $pids, '... the same processes');
quickly(5, 'terminated', sub {
	$node->safe_psql('observer', q{SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE backend_type LIKE 'outbox %'})
});
at_work('consumer relay replay replay', 'terminated: others are back');
is(scalar(grep { pids() =~ /\b$_\b/ } $pids =~ /(\d+)/g), 0, '... none of the same processes');
is($node->safe_psql('d', q{SELECT string_agg(state, ' ') FROM outbox.replays}), 'running running', '... and no replay has failed');
$node->safe_psql('d', "SELECT outbox.replay_cancel('$batch'); SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox replay'");
at_work('consumer relay replay', 'that replay is cancelled');
quiet('cancelled, terminated');

# ------------------------------------------------------- the end of the server

# What each of them may meet, and how the server is stopped then.
sub stop_server
{
	my ($mode, $name) = @_;
	my $postmaster = postmaster($node);
	my @children = children($postmaster);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# the sessions come first, and they are served; what the broker could make a worker wait for takes 60 s
	quickly($mode eq 'smart' ? 10 : 5, "$name, $mode", sub { $node->stop($mode) });
	ok(!grep({ runs($_) } @children), "$name, $mode: nobody is left behind");
	quiet("$name, $mode", qr/FATAL:  the database system is shutting down/);
	return;
}

start_cleaner();
$proxy->mode('swallow');
$node->safe_psql('d', q{SELECT outbox.enqueue('order', '1', 'e', '{}')});
stop_server('fast', 'black hole');
$node->start;
at_work('relay replay', 'before the connection: a relay, a replay');
stop_server('smart', 'black hole before the connection');
$proxy->mode('forward');
$node->start;
at_work('consumer relay replay', 'they are back');
start_cleaner();
$nats->freeze;
$node->safe_psql('d', q{SELECT outbox.enqueue('order', '1', 'e', '{}')});
stop_server('immediate', 'frozen');
$nats->thaw;
$proxy->mode('delay');
$node->start;
at_work('consumer relay replay', 'a slow broker: they are back');
$node->safe_psql('d', q{SELECT outbox.enqueue('order', '1', 'e', '{}')});
stop_server('fast', 'slow');
$proxy->mode('cut');
$node->start;
at_work('relay replay', 'absent: a relay, a replay');
start_cleaner();
stop_server('fast', 'absent');

# A smart shutdown waits for the sessions that are there, and until then everybody
# works on; when they have gone, it is as prompt as another one.
foreach my $case (
	[ 'working', 'forward' ],
	[ 'slow', 'delay' ],
	[ 'black hole', 'forward', sub { $proxy->mode('swallow') } ],
	[ 'frozen', 'forward', sub { $nats->freeze } ],
	[ 'absent', 'cut' ])
{
	my ($name, $mode, $break) = @$case;

	$proxy->mode($mode);
	$node->start;
	at_work($mode eq 'cut' ? 'relay replay' : 'consumer relay replay', "$name: they are at work");
	start_cleaner();
	$break->() if $break;
	my $session = start_psql('d', 'session', q{SELECT await($$SELECT pg_read_file('postmaster.pid') ~ 'stopping'$$)},
		q{SELECT outbox.enqueue('order', '1', 'e', '{}') IS NOT NULL}, $mode eq 'forward' && !$break ? q{SELECT outbox.flush('60 s')} : ());
	await(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'session' AND wait_event = 'PgSleep'}, "$name: a session");
	stop_server('smart', $name);
	$session->{run}->finish;
	is($session->{out}, "t\nt\n" . ($mode eq 'forward' && !$break ? "t\n" : ''), "$name, smart: the session was served to its end") or diag($session->{err});
	$nats->thaw if $name eq 'frozen';
}
$proxy->mode('forward');

# ------------------------------------------------------------ single-user mode

my $single = '';
IPC::Run::run([ 'postgres', '--single', '-F', '-j', '-D', $node->data_dir, 'd' ], '<', \<<'SQL', '>', \$single, '2>&1');
SELECT outbox.enqueue('order', '1', 'e', '{}') IS NOT NULL AS enqueued;

BEGIN;

SELECT outbox.enqueue('order', '1', 'e', '{}') IS NOT NULL AS enqueued;

PREPARE TRANSACTION 'p';

COMMIT PREPARED 'p';

SELECT state FROM outbox.status() WHERE database = 'd';

SELECT outbox.flush('0.1 s');

SELECT outbox.pause_subscription('S', 'd');

SELECT outbox.resume_subscription('S', 'd');

SELECT outbox.purge(older_than => '0');

BEGIN;

DROP EXTENSION outbox CASCADE;

ROLLBACK;

ALTER DATABASE observer SET outbox.stream = 'OUTBOX';

CREATE DATABASE single TEMPLATE observer;

DROP DATABASE single;

SELECT 'alive' AS still;

SQL
is(() = $single =~ /enqueued = "t"/g, 2, 'single-user mode: events can be enqueued, also in a prepared transaction');
like($single, qr/state = "not running"/, 'single-user mode: nobody publishes');
like($single, qr/flush = "f"/, 'single-user mode: ... which flush() says');
like($single, qr/ERROR:  outbox\.purge\(\) needs a background worker/, 'single-user mode: purge() says why it can\'t work');
like($single, qr/still = "alive"/, 'single-user mode: to its end') or diag($single);
is(() = $single =~ /(?:ERROR|FATAL|PANIC):/g, 1, 'single-user mode: no other error') or diag($single);

# ------------------------------------------------------------- no slot is free

# Two launchers and a relay.
$node->append_conf('postgresql.conf', "max_worker_processes = 3\n");
$mark = log_mark($node);
$node->start;
await(q{SELECT sum(length(kinds)) = 5 FROM at_work}, 'no slot: one relay');
$node->safe_psql('observer', q{ALTER DATABASE postgres IS_TEMPLATE true});
at_work('relay', 'no slot: the relay of this database');
drained('no slot: it publishes, also what was enqueued in single-user mode');
ok(wait_until(10, sub { log_lines($node, $mark, qr/LOG:  could not start an outbox relay, cleaner, consumer or replay: no background worker slot is free/) }), 'no slot: the log says it');
(undef, undef, $err) = $node->psql('d', q{SELECT outbox.purge(older_than => '0')});
like($err, qr/ERROR:  no background worker slot is free/, 'no slot: purge() says it');
is($node->safe_psql('d', 'SELECT state FROM outbox.subscriptions'), 'not running', 'no slot: so do the subscriptions');
is(scalar(log_lines($node, $mark, qr/no background worker slot is free/)), 2, 'no slot: one line in the log, and purge()\'s');
alter_system($node, 'outbox.workers = 0');
await(q{SELECT kinds ~ '^(consumer|replay)$' FROM at_work WHERE datname = 'd'}, 'a slot: the next one takes it');
quiet('no slot', qr/no background worker slot is free/);

# ------------------------------------------------------ the postmaster is killed

$node->append_conf('postgresql.conf', "max_worker_processes = 16\n");
alter_system($node, 'outbox.workers = 1');
$node->safe_psql('observer', q{ALTER DATABASE postgres IS_TEMPLATE false});
$node->restart;
at_work('consumer relay replay', 'all are at work');
start_cleaner();
my $postmaster = postmaster($node);
my @children = children($postmaster);
$node->kill9;
ok(wait_until(1.5, sub { !grep { runs($_) } @children }), 'postmaster killed: all end within a second');
wait_until(60, sub { !kill(0, $postmaster) });
$node->start;
at_work('consumer relay replay', 'they are back');

# ------------------------------------------------------------ the database goes

drained('everything is published');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, 'd') ], [], 'the stream has it, once');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
is($node->safe_psql('d', 'SELECT max(attempts) FROM outbox.events'), 1, 'no attempt was counted');
start_cleaner();
$mark = log_mark($node);
quickly(5, 'DROP DATABASE WITH (FORCE)', sub { $node->safe_psql('observer', 'DROP DATABASE d WITH (FORCE)') });
await(q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type LIKE 'outbox %' AND datname IS DISTINCT FROM 'postgres'}, 'only the launcher is left');
quiet('DROP DATABASE');
check_no_crash($node);
done_testing();
