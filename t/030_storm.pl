# Sixteen writers, a thousand aggregates, fifty thousand events, a fifth of the
# transactions rolled back, while relays are terminated and killed, a client is
# killed, and the broker is killed and frozen. Half of the writers commit
# asynchronously.
#
# Each event is entered into a journal by its own transaction. What commit
# order is, the server's commit timestamps tell, not the extension's positions.
#
# For storms of other shapes: STORM_EVENTS, STORM_AGGREGATES, and STORM_CONF with
# lines for postgresql.conf, such as "outbox.test_feed_size = 4".

use strict;
use warnings;

use IPC::Run;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $target = $ENV{STORM_EVENTS} // 50_000;
my $aggregates = $ENV{STORM_AGGREGATES} // 1000;
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF' . ($ENV{STORM_CONF} // ''));
restart_after_crash = on
max_connections = 60
shared_buffers = 64MB
track_commit_timestamp = on
jit = off
log_statement = none
outbox.ack_timeout = 2s
outbox.retry_max_delay = 1s
CONF

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE journal (n bigserial PRIMARY KEY, event_id uuid NOT NULL, aggregate text NOT NULL);

-- some events of one aggregate
CREATE FUNCTION business(agg integer, events integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1..events LOOP
		INSERT INTO journal (event_id, aggregate) VALUES (outbox.enqueue_text('storm', agg::text, 'e', i::text), agg);
	END LOOP;
END $$;

-- one event each of some aggregates, which the one call takes in an order without deadlocks
CREATE FUNCTION business_many(aggs integer[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	ids uuid[] := outbox.enqueue_many('{storm}', aggs::text[], '{e}', '{1}');
BEGIN
	INSERT INTO journal (event_id, aggregate) SELECT * FROM unnest(ids, aggs::text[]);
END $$;
SQL

my $many = "(SELECT array_agg(1 + (random() * ($aggregates - 1))::integer) FROM generate_series(1, 8))";
my %script = (
	many => "SELECT business_many($many);\n",
	savepoints => qq{\\set a random(1, $aggregates)
SELECT business(:a, 2);
SAVEPOINT s;
SELECT business(:a, 3);
ROLLBACK TO s;
SELECT business(:a, 1);
SAVEPOINT t;
SELECT business(:a, 2);
RELEASE t;
},
	rollback => "SELECT business_many($many);\n");

# One transaction in five is rolled back.
my @files;
foreach my $mode (qw(on off))
{
	foreach my $name (sort keys %script)
	{
		my $file = "$PostgreSQL::Test::Utils::tmp_check/$name.$mode";

		append_to_file($file, "BEGIN;\nSET LOCAL synchronous_commit = $mode;\n$script{$name}"
			  . ($name eq 'rollback' ? 'ROLLBACK' : 'COMMIT') . ";\n");
		push @files, '-f', "$file\@" . ($name eq 'rollback' ? 2 : 4);
	}
}

my ($out, $writers) = ('');

# Writers lose their connections when a process is killed: then others come.
sub keep_writing
{
	return if $writers && $writers->pumpable && eval { $writers->pump_nb; 1 } && $writers->pumpable;
	$writers->finish if $writers;
	$writers = IPC::Run::start(
		[ 'pgbench', '-n', '-c', 16, '-j', 2, '-T', 600, @files, $node->connstr('postgres') . ' application_name=writer' ],
		'<', \'', '>', \$out, '2>&1');
	return;
}

# How many events are committed. undef: no answer.
sub written
{
	my ($code, $count) = psql_if_up($node, 'postgres', 'SELECT count(*) FROM journal', timeout => 30, timed_out => \my $late);

	return defined $code && $code == 0 ? $count : undef;
}

sub relay
{
	my $pid;

	wait_until(20, sub { $pid = relay_pid($node, 'postgres') }) or die 'no relay';
	return $pid;
}

sub broker_killed
{
	$nats->kill9;
	$nats->restart;
	return;
}

my @actions = (
	[ 'a relay is terminated', sub { psql_if_up($node, 'postgres', 'SELECT pg_terminate_backend(' . relay() . ')') } ],
	[ 'a relay is killed', sub { kill('KILL', relay()) } ],
	[ 'the broker is killed', \&broker_killed ],
	[ 'a client is killed', sub {
		my ($code, $pid) = psql_if_up($node, 'postgres', q{SELECT pid FROM pg_stat_activity WHERE application_name = 'writer' LIMIT 1});
		kill('KILL', $pid) if $pid; } ],
	[ 'a relay is terminated', sub { psql_if_up($node, 'postgres', 'SELECT pg_terminate_backend(' . relay() . ')') } ],
	[ 'a relay is killed', sub { kill('KILL', relay()) } ],
	[ 'the broker is frozen for longer than the ack timeout', sub {
		$nats->freeze;
		wait_until(3, sub { keep_writing(); 0 });
		$nats->thaw; } ],
	[ 'the broker is killed', \&broker_killed ],
);
my $actions = @actions;

for (my $done = 0; @actions || $done < $target;)
{
	keep_writing();
	$done = written() // $done;
	if (@actions && $done > ($actions - @actions + 1) * $target / ($actions + 1))
	{
		my ($name, $action) = @{ shift @actions };

		note("$name after $done events");
		$action->();
	}
}
$writers->kill_kill;
is(scalar(@actions), 0, 'everything was done to it');

ok(wait_for_query($node, 'postgres', "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'writer'", expected => '0'),
	'the writers are gone');
my $journal = $node->safe_psql('postgres', 'SELECT count(*) FROM journal');
cmp_ok($journal, '>=', $target, "$journal events are committed");
ok(wait_drained($node, 'postgres', timeout => 60), 'everything is published');

is($node->safe_psql('postgres', q{
	SELECT count(*) FROM journal j
	FULL JOIN (SELECT event_id, aggregate_id FROM outbox.events WHERE publish_state = 'published') e
		ON e.event_id = j.event_id AND e.aggregate_id = j.aggregate
	WHERE j.n IS NULL OR e.event_id IS NULL}),
	0, 'outbox.events and the journal agree, row by row');
my @messages = $nats->dump('OUTBOX');
is_deeply([ splice(@{ [ stream_differences($nats, 'OUTBOX', $node, 'postgres', messages => \@messages) ] }, 0, 20) ],
	[], 'the stream has every committed event once, and nothing else');
is_deeply([ splice(@{ [ check_order($nats, 'OUTBOX', \@messages) ] }, 0, 20) ], [], 'in order of positions');

# The order of commits, as the server has noted it.
my (%place, @wrong, %last);
foreach my $line (split(/\n/, $node->safe_psql('postgres',
			'SELECT event_id FROM journal ORDER BY pg_xact_commit_timestamp(xmin), n')))
{
	$place{$line} = keys %place;
}
foreach my $message (@messages)
{
	my $aggregate = $message->{headers}{'ce-subject'};
	my $place = $place{ $message->{msg_id} } // -1;

	push @wrong, "sequence $message->{seq}, aggregate $aggregate" if defined $last{$aggregate} && $place < $last{$aggregate};
	$last{$aggregate} = $place;
}
is_deeply([ splice(@wrong, 0, 20) ], [], 'in order of commits');
cmp_ok(scalar(keys %last), '>=', 0.99 * $aggregates, 'nearly all aggregates have events');

check_no_crash($node, allow => qr/was terminated by signal 9/);
done_testing();
