# OutboxLife.pm
#
# What the tests of outages, shutdowns and live settings (t/04x) share: load in
# the background, the promises that hold however bad things are, and reading
# the server log from a point on.

use strict;
use warnings;

package OutboxLife;

use Carp;
use Exporter 'import';
use IPC::Run;
use OutboxProxy;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(start_load stop_load burst untouched_attempts check_stream relay_keeps_nothing_open relay_obeys
  check_outage log_mark log_lines alter_system runs children postmaster);

# Events by pgbench, from four sessions, in transactions of one event, until
# stop_load().
#   rate         events per second, default 200
#   aggregates   default 100
#   type         aggregate type, default "load"
sub start_load
{
	my ($node, $db, %opt) = @_;
	my $type = $opt{type} // 'load';
	my $script = PostgreSQL::Test::Utils::tempdir('load') . '/load.sql';
	my $out = '';

	append_to_file($script, '\set a random(1, ' . ($opt{aggregates} // 100) . ")\n"
		  . "SELECT outbox.enqueue_text('$type', (:a)::text, 'e', 'x');\n");
	return {
		out => \$out,
		run => IPC::Run::start(
			[ 'pgbench', '-n', '-c', 4, '-j', 1, '-R', $opt{rate} // 200, '-T', 600, '-f', $script, $node->connstr($db) . ' application_name=load' ],
			'<', \'', '>', \$out, '2>&1')
	};
}

sub stop_load
{
	my ($load) = @_;

	croak "the load ended by itself: ${ $load->{out} }" unless $load->{run}->pumpable && eval { $load->{run}->pump_nb; 1 };
	$load->{run}->kill_kill(grace => 1);
	return;
}

# $count events in one transaction, on 50 aggregates or so many.
sub burst
{
	my ($node, $db, $name, $count, $aggregates) = @_;

	$aggregates //= 50;
	$node->safe_psql($db, "SELECT count(outbox.enqueue_text('$name', (i % $aggregates)::text, 'e', i::text)) FROM generate_series(1, $count) i");
	return;
}

# No outage may count against an event.
sub untouched_attempts
{
	my ($node, $db, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(
		$node->safe_psql($db,
			q{SELECT count(*) FROM outbox.events WHERE publish_state = 'failed' OR attempts > 1}),
		'0',
		"$name: no attempt is counted");
}

# Everything committed is in the stream, once, in order.
sub check_stream
{
	my ($nats, $node, $db, $name, %opt) = @_;
	my @messages = $nats->dump('OUTBOX');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is_deeply([ splice(@{ [ stream_differences($nats, 'OUTBOX', $node, $db, messages => \@messages, %opt) ] }, 0, 10) ],
		[], "$name: the stream has all of it, once");
	return is_deeply([ splice(@{ [ check_order($nats, 'OUTBOX', \@messages) ] }, 0, 10) ], [], "$name: in order");
}

# While it waits for the network the relay has no transaction, snapshot or lock
# on a table. One that is met in a short transaction works, or waits for a core.
sub relay_keeps_nothing_open
{
	my ($node, $db, $pid, $name) = @_;
	my $old = slack(0.5);
	my ($waiting, $long) = split(
		/\|/,
		$node->safe_psql(
			$db, qq{
			CREATE TEMP TABLE seen (waiting boolean, long boolean);
			DO \$\$
			BEGIN
				FOR i IN 1..20 LOOP
					PERFORM pg_stat_clear_snapshot();
					INSERT INTO seen
					SELECT coalesce(a.wait_event_type IN ('Activity', 'Client', 'Extension', 'Timeout'), false)
						AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL OR a.xact_start IS NOT NULL
							OR EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype <> 'advisory')),
						coalesce(clock_timestamp() - a.xact_start > interval '$old s', false)
					FROM pg_stat_activity a WHERE a.pid = $pid AND a.backend_type IN ('outbox relay', 'outbox consumer');
					IF NOT FOUND THEN
						RAISE EXCEPTION 'the process is gone';
					END IF;
					PERFORM pg_sleep(0.02);
				END LOOP;
			END \$\$;
			SELECT count(*) FILTER (WHERE waiting), count(*) FILTER (WHERE long) FROM seen}));

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	# what it waits for and what it holds aren't read at one instant
	return ok($waiting <= 2 && $long == 0, "$name: the relay holds no transaction, snapshot or lock")
	  || diag("$waiting of 20 looks found one while it waited, $long an old one");
}

# pg_terminate_backend(relay) is obeyed within 1.5 s: it has left the server's
# shared memory, and no command waits for it. Its process may take until a
# connection attempt under way has ended. Another one comes.
sub relay_obeys
{
	my ($node, $db, $pid, $name) = @_;
	# timed by the server: how long psql takes to start is no matter here
	my $seconds = $node->safe_psql(
		$db, qq{
		CREATE TEMP TABLE took (seconds float);
		DO \$\$
		DECLARE
			start timestamptz := clock_timestamp();
		BEGIN
			PERFORM pg_terminate_backend($pid);
			WHILE clock_timestamp() < start + interval '10 s' LOOP
				PERFORM pg_stat_clear_snapshot();
				EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid);
				PERFORM pg_sleep(0.01);
			END LOOP;
			INSERT INTO took SELECT extract(epoch FROM clock_timestamp() - start);
		END \$\$;
		SELECT * FROM took});

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($seconds, '<', 1.5, "$name: the relay ends within 1.5 s of being told to");
	return ok(
		wait_until(10, sub { my $new = relay_pid($node, $db); defined $new && $new != $pid }),
		"$name: ... and another one comes");
}

# What holds in every bad state. state and reason: what outbox.status() shall say;
# since: not before this time (of epoch); obeys => 0 leaves the relay alive.
sub check_outage
{
	my ($node, $db, $name, %opt) = @_;
	my $status = {};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(
		wait_until(
			$opt{timeout} // 10,
			sub {
				$status = own_status($node, $db);
				return ($status->{state} // '') eq $opt{state} && ($status->{last_error} // '') =~ $opt{reason};
			}),
		"$name: the state is \"$opt{state}\", with the reason")
	  or diag(($status->{state} // '') . ': ' . ($status->{last_error} // ''));
	if (defined $opt{since})
	{
		my $since = $node->safe_psql($db, "SELECT extract(epoch FROM '$status->{since}'::timestamptz)");

		ok($since >= $opt{since} - 0.1 && $since <= time(), "$name: and since when") or diag("$since, not from $opt{since} on");
	}
	relay_keeps_nothing_open($node, $db, $status->{pid}, $name);
	relay_obeys($node, $db, $status->{pid}, $name) if $opt{obeys} // 1;
	return $status;
}

# Where the server log ends now, for log_lines().
sub log_mark
{
	my ($node) = @_;

	return -s $node->logfile;
}

# The lines after $mark that match.
sub log_lines
{
	my ($node, $mark, $pattern) = @_;

	return grep { $_ =~ $pattern } split(/\n/, slurp_file($node->logfile, $mark));
}

# Whether a process runs; one that nobody has waited for doesn't.
sub runs
{
	my ($pid) = @_;

	return (eval { slurp_file("/proc/$pid/stat") } // ') Z') !~ /\) Z/;
}

# The process id of a node's postmaster.
sub postmaster
{
	my ($node) = @_;

	return slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/ ? $1 : die 'no postmaster';
}

# All processes of a server but its postmaster.
sub children
{
	my ($postmaster) = @_;

	return grep { (eval { slurp_file("/proc/$_/stat") } // '') =~ /\) \w $postmaster / } map { m{/proc/(\d+)} } glob('/proc/[0-9]*');
}

# ALTER SYSTEM for each "name = value", and a reload.
sub alter_system
{
	my ($node, @settings) = @_;

	$node->safe_psql('postgres', join('', map { "ALTER SYSTEM SET $_;\n" } @settings) . 'SELECT pg_reload_conf()');
	return;
}

1;
