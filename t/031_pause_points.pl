# Processes stopped in the places that the protocol is about: writers between
# position and row, between visible and pushed, between pushed and done, in the
# prepare callback; the relay between ring and snapshot, and before its settle's
# commit. Each with a successor on the same aggregate and a new relay meanwhile.
#
# A writer stands still at an armed point, is frozen there by SIGSTOP, and the
# point is released, so that everybody else gets through.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

needs_test_points();

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats,
	extra => "restart_after_crash = on\nmax_worker_processes = 20\nmax_connections = 60\njit = off\nlog_statement = none");
my @points = qw(position-drawn visible pushed prepare);
my %case;

create_test_points($node, 'postgres');

sub events
{
	my ($db, $aggregate, $first, $last) = @_;

	return join("\n", map { "SELECT outbox.enqueue_text('$db', '$aggregate', 'e', '$_');" } $first .. $last);
}

# Ten aggregates, five transactions each.
sub others
{
	my ($db, $round) = @_;

	$node->safe_psql($db, join("\n", map { events($db, "other $round $_", 1, 5) } 1 .. 10));
	return;
}

# Nobody may be held up by a stopped writer.
sub others_published
{
	my ($db, $round) = @_;

	return wait_for_query($node, $db,
		"SELECT count(*) = 50 FROM outbox.events WHERE aggregate_id LIKE 'other $round %' AND publish_state = 'published'",
		timeout => 15);
}

sub watermark
{
	my ($db) = @_;

	return $node->safe_psql($db, 'SELECT coalesce(max(position), 0) FROM outbox.watermark');
}

# Runs SQL in a session until it stands at the point, and freezes it there.
sub freeze_at
{
	my ($point, $db, $session, $sql) = @_;
	my $pid = $session->query_safe('SELECT pg_backend_pid()');

	arm($node, 'postgres', $point);
	$session->query_until(qr/sent/, "\\echo sent\n$sql;\n");
	ok(wait_at_point($node, 'postgres', $point), "$db: a writer stands at \"$point\"");
	kill('STOP', $pid) == 1 or die "could not stop $pid";
	release($node, 'postgres', $point);
	return $pid;
}

sub waits
{
	my ($session_pid) = @_;

	return wait_for_query($node, 'postgres',
		"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = $session_pid", timeout => 15);
}

sub query_pid
{
	my ($session) = @_;

	return $session->query_safe('SELECT pg_backend_pid()');
}

##########################################################################
# Writers, each point in a database of its own, all at the same time.

foreach my $point (@points)
{
	my $db = $point =~ s/-/_/r;

	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION outbox');
	$case{$point} = { db => $db, writer => $node->background_psql($db), successor => $node->background_psql($db) };
}
foreach my $point (@points)
{
	my $case = $case{$point};
	my $db = $case->{db};

	ok($case->{relay} = wait_relay($node, $db), "$db: a relay");
	$node->safe_psql($db, events($db, 'hot', 1, 3));
	$case->{writer}->query_safe('BEGIN');
	if ($point eq 'position-drawn')
	{
		$case->{pid} = freeze_at($point, $db, $case->{writer}, events($db, 'hot', 4, 4));
		$case->{low} = $node->safe_psql($db, 'SELECT last_value FROM outbox.position');
		others($db, 1);
	}
	else
	{
		$case->{writer}->query_safe(events($db, 'hot', 4, 4));
		$case->{low} = $node->safe_psql($db, 'SELECT last_value FROM outbox.position');
		others($db, 1);
		ok(others_published($db, 1), "$db: the relay has gone past the open position");
		$case->{pid} =
		  freeze_at($point, $db, $case->{writer}, $point eq 'prepare' ? "PREPARE TRANSACTION '$db'" : 'COMMIT');
	}

	my $pid = query_pid($case->{successor});
	$case->{successor}->query_until(qr/sent/, "\\echo sent\n" . events($db, 'hot', 5, 5) . "\n");
	ok(waits($pid), "$db: a successor on the same aggregate waits");
	others($db, 2);
	ok(others_published($db, $_), "$db: other aggregates don't wait (round $_)") foreach 1 .. 2;
}

# The watermark is written every two seconds: it gets to the open position, not past it.
sub check_watermarks
{
	my ($when) = @_;

	foreach my $case (map { $case{$_} } @points)
	{
		ok(wait_until(10, sub { watermark($case->{db}) >= $case->{low} - 1 }), "$case->{db}: the watermark rises $when");
	}
	ok(never_within(2.5, sub { grep { watermark($_->{db}) >= $_->{low} } values %case }),
		"no watermark passes an open position $when");
	is(watermark($case{$_}{db}), $case{$_}{low} - 1, "$case{$_}{db}: the watermark stands below it") foreach @points;
	return;
}

check_watermarks('with a stopped writer');
$node->safe_psql('postgres', "SELECT pg_terminate_backend($case{$_}{relay})") foreach @points;
ok($case{$_}{relay} = wait_new_relay($node, $case{$_}{db}, $case{$_}{relay}), "$case{$_}{db}: a new relay") foreach @points;
others($case{$_}{db}, 3) foreach @points;
ok(others_published($case{$_}{db}, 3), "$case{$_}{db}: other aggregates don't wait for the new relay, either") foreach @points;
check_watermarks('with a new relay');

kill('CONT', $case{$_}{pid}) foreach @points;
$case{'position-drawn'}{writer}->query_safe('COMMIT');

# Prepared now, and no more visible than before.
my $prepare = $case{prepare};
$prepare->{writer}->query_safe('SELECT 1');
others('prepare', 4);
ok(others_published('prepare', 4), 'prepare: other aggregates don\'t wait for the prepared transaction');
is($node->safe_psql('prepare', "SELECT count(*) FROM outbox.events WHERE aggregate_id = 'hot'"), 3, 'prepare: the successor does');
ok(never_within(2.5, sub { watermark('prepare') >= $prepare->{low} }), 'prepare: nor does the watermark pass it');
$prepare->{writer}->query_safe("COMMIT PREPARED 'prepare'");

foreach my $case (map { $case{$_} } @points)
{
	$case->{successor}->query_safe('SELECT 1');
	ok(wait_published($node, $case->{db}, undef, timeout => 20), "$case->{db}: everything is published");
	is($node->safe_psql($case->{db}, "SELECT string_agg(payload_text, ',' ORDER BY position) FROM outbox.events WHERE aggregate_id = 'hot'"),
		'1,2,3,4,5', "$case->{db}: positions of the aggregate are in commit order");
	is_deeply([ stream_differences($nats, 'OUTBOX', $node, $case->{db}) ], [], "$case->{db}: the stream has it, once");
	$case->{writer}->quit;
	$case->{successor}->quit;
}
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
ok(wait_until(10, sub { watermark($case{$_}{db}) == $node->safe_psql($case{$_}{db}, 'SELECT last_value FROM outbox.position') }),
	"$case{$_}{db}: the watermark gets to the end")
  foreach @points;

##########################################################################
# A writer that is terminated between position and row leaves a number, not a lock.

my $db = 'postgres';
my $relay = wait_relay($node, $db);
my $writer = $node->background_psql($db, on_error_stop => 0);
my $pid = freeze_at('position-drawn', $db, $writer, events($db, 'gap', 1, 1));
$node->safe_psql($db, "SELECT pg_terminate_backend($pid)");
kill('CONT', $pid);
others($db, 5);
$node->safe_psql($db, events($db, 'gap', 2, 3));
ok(wait_published($node, $db, undef, timeout => 15), 'a terminated writer holds up nobody');
is($node->safe_psql($db, "SELECT string_agg(payload_text, ',' ORDER BY position) FROM outbox.events WHERE aggregate_id = 'gap'"),
	'2,3', 'its own event does not exist');
$writer->{run}->finish;

##########################################################################
# The relay.

my %action = (
	'goes on' => sub { return; },
	'is terminated' => sub { $node->safe_psql($db, "SELECT pg_terminate_backend($_[0])"); return; },
	'is killed' => sub { kill('KILL', $_[0]); return; },
);
my $round = 10;

foreach my $point (qw(drained settle))
{
	foreach my $what ('goes on', 'is terminated', 'is killed')
	{
		my $name = "relay at \"$point\" $what";
		my $session = $node->background_psql($db);

		$round++;
		$relay = wait_relay($node, $db, timeout => 20);
		$session->query_safe("BEGIN;\n" . events($db, "hot $round", 1, 1));
		others($db, "$round a");
		ok(others_published($db, "$round a"), "$name: it is past the open position");

		arm($node, $db, $point);
		$session->query_safe('COMMIT');
		$session->quit;
		ok(wait_at_point($node, $db, $point), "$name: it stands there");
		$node->safe_psql($db, events($db, "hot $round", 2, 2));
		others($db, "$round b");
		if ($point eq 'settle')
		{
			is($node->safe_psql($db, "SELECT publish_state FROM outbox.events WHERE aggregate_id = 'hot $round' AND payload_text = '1'"),
				'processing', "$name: acknowledged, not recorded yet");
			is(scalar($nats->dump('OUTBOX', "outbox.$db.hot%20$round.e")), 1, "$name: the stream has it");
		}
		$action{$what}->($relay);
		wait_for_query($node, $db, 'SELECT true') if $what eq 'is killed';
		release($node, $db, $point);

		ok($relay = wait_new_relay($node, $db, $relay, timeout => 20), "$name: a new relay") if $what ne 'goes on';
		ok(wait_published($node, $db, undef, timeout => 20), "$name: everything is published");
	}
}
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db) ], [], 'the stream has it, once');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');

##########################################################################
# One transaction with several events of an aggregate, on both sides of the
# position that the relay has read up to.

my %straddle = (
	'commits between ring and snapshot' => [ 'drained', 'COMMIT' ],
	'is visible, not pushed' => [ 'visible', 'COMMIT' ],
	'prepared, commits between ring and snapshot' => [ 'drained', "COMMIT PREPARED 'straddle'" ],
);

foreach my $what (sort keys %straddle)
{
	my $session = $node->background_psql($db);
	my ($point, $end) = @{ $straddle{$what} };
	my ($frozen, $name) = (undef, "one transaction on both sides, $what");

	$round++;
	wait_relay($node, $db, timeout => 20);
	$session->query_safe("BEGIN;\n" . events($db, "straddle $round", 1, 2));
	others($db, "$round a");
	ok(others_published($db, "$round a"), "$name: the relay is past its first positions");
	if ($point eq 'visible')
	{
		$session->query_safe(events($db, "straddle $round", 3, 4));
		$frozen = freeze_at('visible', $db, $session, $end);
	}
	else
	{
		arm($node, $db, $point);
		$session->query_safe(events($db, "straddle $round", 3, 4));
		$session->query_safe("PREPARE TRANSACTION 'straddle'") if $end ne 'COMMIT';
	}
	others($db, "$round b");
	if (defined $frozen)
	{
		ok(others_published($db, "$round b"), "$name: the relay has read beyond its last position");
		kill('CONT', $frozen);
		$session->query_safe('SELECT 1');
	}
	else
	{
		ok(wait_at_point($node, $db, $point), "$name: the relay stands there");
		$session->query_safe($end);
		release($node, $db, $point);
	}
	$session->quit;
	ok(wait_published($node, $db, undef, timeout => 20), "$name: everything is published");
	is(join(',', map { $_->{payload} } $nats->dump('OUTBOX', "outbox.$db.straddle%20$round.e")),
		'1,2,3,4', "$name: in order");
}

##########################################################################
# A prepared transaction, a restart of the server, and then a successor.

my $session = $node->background_psql($db);
$session->query_safe("BEGIN;\n" . events($db, 'prepared', 1, 2));
my $low = $node->safe_psql($db, 'SELECT last_value FROM outbox.position') - 1;
others($db, 20);
ok(others_published($db, 20), 'the relay is past the positions to be prepared');
$session->query_safe("PREPARE TRANSACTION 'p'");
$session->quit;
foreach my $mode (qw(fast immediate))
{
	$node->stop($mode);
	$node->start;
	ok(wait_relay($node, $db), "a relay after a stop ($mode)");
	$session = $node->background_psql($db, on_error_stop => 0);
	$pid = query_pid($session);
	$session->query_until(qr/sent/, "\\echo sent\n" . events($db, 'prepared', 3, 3) . "\n");
	ok(waits($pid), "the successor waits for the prepared transaction after a stop ($mode)");
	others($db, "20 $mode");
	ok(others_published($db, "20 $mode"), 'other aggregates do not');
	ok(never_within(2.5, sub { watermark($db) >= $low }), 'nor does the watermark pass it');
	if ($mode eq 'fast')
	{
		$node->safe_psql($db, "SELECT pg_cancel_backend($pid)");
		$session->quit;
	}
}
$node->safe_psql($db, "COMMIT PREPARED 'p'");
$session->query_safe('SELECT 1');
$session->quit;
ok(wait_published($node, $db, undef, timeout => 20), 'everything is published');
is($node->safe_psql($db, "SELECT string_agg(payload_text, ',' ORDER BY position) FROM outbox.events WHERE aggregate_id = 'prepared'"),
	'1,2,3', 'positions in commit order');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db) ], [], 'the stream has it, once');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');

check_no_crash($node, allow => qr/background worker "outbox relay" \(PID \d+\) was terminated by signal 9/);
done_testing();
