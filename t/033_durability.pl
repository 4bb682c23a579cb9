# Asynchronous commits are visible before they are durable. The server ends as
# in a crash right after such an event was published: the event must survive.
#
# The server is set up so that nothing flushes the WAL for minutes, which the
# first part proves: without a relay that publishes, the same commits are lost.

use strict;
use warnings;

use IPC::Run;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
fsync = on
wal_writer_delay = 10s
wal_writer_flush_after = 1GB
wal_buffers = 16MB
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 2GB
bgwriter_lru_maxpages = 0
shared_buffers = 128MB
max_connections = 60
jit = off
log_statement = none
CONF
my $db = 'postgres';

sub async
{
	my ($sql) = @_;

	$node->safe_psql($db, "SET synchronous_commit = off;\n$sql");
	return;
}

sub crash
{
	$node->stop('immediate');
	$node->start;
	return;
}

sub event
{
	my ($id) = @_;

	return $node->safe_psql($db, "SELECT count(*) FROM outbox.events WHERE aggregate_id = '$id'");
}

# What nobody publishes isn't durable.
my $relay = wait_relay($node, $db);
$node->safe_psql($db, "SELECT outbox.enqueue_text('d', 'durable', 'e', 'x')");
ok(wait_published($node, $db, 1), 'a synchronous event');
kill('STOP', $relay);
async("SELECT outbox.enqueue_text('d', 'lost', 'e', 'x')");
is(event('lost'), 1, 'an asynchronous event is visible');
is($node->safe_psql($db, 'SELECT pg_current_wal_flush_lsn() < pg_current_wal_insert_lsn()'), 't', 'its WAL is not flushed');
crash();
is(event('lost'), 0, 'it is lost in a crash: this is what the rest is about');
is(event('durable'), 1, 'the synchronous one is not');

# The relay flushes before it publishes.
$relay = wait_relay($node, $db);
kill('STOP', $relay);
async("SELECT outbox.enqueue_text('d', 'flushed', 'e', 'x')");
my $lsn = $node->safe_psql($db, 'SELECT pg_current_wal_insert_lsn()');
is($node->safe_psql($db, "SELECT pg_current_wal_flush_lsn() < '$lsn'"), 't', 'nothing else flushes');
kill('CONT', $relay);
ok($nats->wait_until(10, sub { $nats->dump('OUTBOX', 'outbox.d.flushed.e') }), 'published');
crash();
is(event('flushed'), 1, 'flushed before');

# One event alone, with and without savepoints, committed by the slot of a late range and by the pass.
my %way = (
	'plain' => "SELECT outbox.enqueue_text('d', 'ID', 'e', 'x');",
	'in a subtransaction' => "BEGIN; SAVEPOINT s; SELECT outbox.enqueue_text('d', 'ID', 'e', 'x'); RELEASE s; COMMIT;",
	'prepared' => "BEGIN; SELECT outbox.enqueue_text('d', 'ID', 'e', 'x'); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p';",
	'late' => "BEGIN; SELECT outbox.enqueue_text('d', 'ID', 'e', 'x'); SELECT pg_sleep(0.5); COMMIT;",
);
my $number = 0;

foreach my $name (sort keys %way)
{
	my $id = 'single' . ++$number;

	wait_relay($node, $db);
	if ($name eq 'late')
	{
		# others go past its position meanwhile
		my $session = $node->background_psql($db);
		$session->query_safe("SET synchronous_commit = off; BEGIN; SELECT outbox.enqueue_text('d', '$id', 'e', 'x')");
		async("SELECT outbox.enqueue_text('d', 'other', 'e', 'x')");
		ok(wait_published($node, $db), "$name: another is published meanwhile");
		$session->query_safe('COMMIT');
		$session->quit;
	}
	else
	{
		async($way{$name} =~ s/ID/$id/r);
	}
	ok($nats->wait_until(10, sub { $nats->dump('OUTBOX', "outbox.d.$id.e") }), "$name: published");
	crash();
	is(event($id), 1, "$name: it survives");
}

# Many writers, stopped in the middle.
my $script = "$PostgreSQL::Test::Utils::tmp_check/async.sql";
append_to_file($script, <<'SQL');
\set a random(1, 1000)
SET synchronous_commit = off;
SELECT outbox.enqueue_text('d', 'many' || :a, 'e', 'x');
SQL
foreach my $round (1 .. 3)
{
	my $before = $nats->info('OUTBOX')->{messages};
	my $out = '';

	wait_relay($node, $db);
	my $writers = IPC::Run::start([ 'pgbench', '-n', '-c', 8, '-j', 2, '-T', 60, '-f', $script, $node->connstr($db) ],
		'<', \'', '>', \$out, '2>&1');
	ok($nats->wait_until(30, sub { $nats->info('OUTBOX')->{messages} > $before + 500 * $round }), "round $round: some are published");
	crash();
	$writers->finish;
	ok(wait_published($node, $db, undef, timeout => 30), "round $round: everything that survived is published");
	is_deeply([ splice(@{ [ stream_differences($nats, 'OUTBOX', $node, $db) ] }, 0, 10) ],
		[], "round $round: everything published survived, at its position");
}
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
my %positions;
$positions{ $_->{headers}{'ce-sequence'} }{ $_->{msg_id} } = 1 foreach $nats->dump('OUTBOX');
is_deeply([ grep { keys %{ $positions{$_} } > 1 } keys %positions ], [], 'no position was given twice');

check_no_crash($node);
done_testing();
