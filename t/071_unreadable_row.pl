# Rows of the log that can't be read any more: the relay ends once to find out
# which they are, makes dead letters of them, and all others flow.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>');
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
autovacuum = off
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

# Spoils the payload or the headers of the events e2 that nobody has read yet: a text that
# is no JSON, by no statement of ours; or the pages of what is stored out of line, lost by the disk.
sub spoil
{
	my ($part) = @_;
	my ($file, $handle, $size);

	if ($part eq 'headers')
	{
		$node->safe_psql($db, q[UPDATE outbox.log_0 SET headers = '{"a":' WHERE event_type = 'e2' AND aggregate_id LIKE '%headers']);
		return;
	}
	$file = $node->data_dir . '/' . $node->safe_psql($db, q{SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE oid = 'outbox.log_0'::regclass});
	$node->stop;
	$size = -s $file;
	open($handle, '>', $file) or die "could not open $file: $!";
	print $handle "\0" x $size;
	close($handle);
	$node->start;
	return;
}

sub states_of
{
	my ($aggregate, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(
		wait_for_query($node, $db,
			"SELECT string_agg(l.event_type || '=' || coalesce(d.state::text, CASE WHEN outbox.settled_at(l.position) IS NULL THEN 'pending' ELSE 'published' END), ' ' ORDER BY l.position)"
			  . " FROM outbox.log l LEFT JOIN outbox.delivery d USING (position) WHERE l.aggregate_id = '$aggregate'",
			expected => $expected, timeout => 20),
		$name);
}

foreach my $policy (qw(skip block park))
{
	alter_system($node, "outbox.poison_policy = $policy");
	foreach my $part (qw(headers payload))
	{
		my $name = "$policy $part";
		my $big = $part eq 'payload' ? q{(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i)} : q{'x'};
		my $mark;
		my ($starts, $after);

		$nats->stop;
		ok(wait_state($node, $db, 'not connected'), "$name: nothing is sent");
		$node->stop;
		$node->append_conf('postgresql.conf', 'outbox.workers = 0');
		$node->start;
		enqueue($node, $db, $name, 'e1');
		enqueue($node, $db, $name, 'e2', payload => $big);
		enqueue($node, $db, $name, 'e3');
		good_ones($node, $db, $name);
		spoil($part);
		$nats->restart;
		$mark = log_mark($node);
		$node->adjust_conf('postgresql.conf', 'outbox.workers', undef);
		$node->reload;
		good_ones_pass($node, $db, $name, 10);
		$after = { skip => 'e1=published e2=f e3=published', block => 'e1=published e2=b e3=pending', park => 'e1=published e2=p e3=p' }->{$policy};
		states_of($name, $after, "$name: a dead letter, and what follows");
		like($node->safe_psql($db, "SELECT attempts || ' ' || error_code || ' ' || last_error FROM outbox.dead_letters WHERE aggregate_id = '$name' AND event_type = 'e2'"),
			qr/^1 0 outbox relay: could not read the event: \S/, "$name: with what was wrong");
		$starts = () = slurp_file($node->logfile, $mark) =~ /background worker "outbox relay" \(PID \d+\) exited with exit code 1/g;
		is($starts, 1, "$name: the relay ended once");
		is($node->safe_psql($db, "SELECT outbox.discard('unreadable', aggregate_id => '$name', event_type => 'e2')"), 1, "$name: given up");
		states_of($name, $after =~ s/e2=\w/e2=x/r =~ s/pending/published/r, "$name: what follows");
		$node->safe_psql($db, "SELECT outbox.redrive()");
		states_of($name, 'e1=published e2=x e3=' . ($policy eq 'park' ? 'd' : 'published'), "$name: all else is published");
	}
}
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.dead_letters'), 0, 'no dead letter is left');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
check_no_crash($node);
done_testing();
