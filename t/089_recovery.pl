# The recipes of docs/recovery.md, each as it stands there.

use strict;
use warnings;

use OutboxArchive;
use OutboxLife;
use OutboxReplay;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $directory = archive_directory();
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, allows_streaming => 1, extra => <<"CONF");
outbox.retention = -1
outbox.archive_directory = '$directory'
outbox.retry_max_delay = 200ms
archive_mode = on
archive_command = 'cp %p "@{[PostgreSQL::Test::Utils::tempdir('wal')]}/%f"'
log_statement = none
CONF
my $count = 0;
ok(wait_relay($node, $db), 'a relay');

# So many events of 10 aggregates; published.
sub events
{
	my ($on, $number, %opt) = @_;

	$on->safe_psql($db, "SELECT outbox.enqueue_text('order', (i % 10)::text, 'placed', i::text) FROM generate_series($count + 1, $count + $number) i");
	$count += $number;
	return wait_drained($on, $db);
}

# What consumers know: the first copy of each event by its id, in the order of the messages given.
sub first_copies
{
	my (%seen, %last, @backwards);
	my @messages = grep { !$seen{ $_->{headers}{'ce-id'} }++ } @_;

	foreach my $message (@messages)
	{
		my $aggregate = $message->{headers}{'ce-partitionkey'};

		push @backwards, "$aggregate: $message->{headers}{'ce-sequence'}" if ($last{$aggregate} // '') gt $message->{headers}{'ce-sequence'};
		$last{$aggregate} = $message->{headers}{'ce-sequence'};
	}
	return { payloads => join(' ', sort { $a <=> $b } map { $_->{payload} } @messages), backwards => \@backwards };
}

sub is_complete
{
	my ($name, @messages) = @_;
	my $copies = first_copies(@messages);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($copies->{payloads}, join(' ', 1 .. $count), "$name: nothing is missing");
	return is_deeply($copies->{backwards}, [], "$name: in order");
}

sub replay
{
	my ($arguments) = @_;
	my $id = start_replay($node, $db, $arguments);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_replay($node, $db, $id, 'done'), "replay($arguments)");
}

# ---------------------------------------------------------------- the stream was deleted

ok(events($node, 300), 'events');
$node->safe_psql($db, "SELECT outbox.purge(older_than => '0')");
ok(events($node, 300), 'half of them are in the archive');
$nats->tool('delete', 'OUTBOX');
replay("target_stream => 'OUTBOX', archive => '$directory'");
replay("target_stream => 'OUTBOX'");
is_complete('the stream was deleted', $nats->dump('OUTBOX'));
ok(events($node, 100), 'and life goes on');
is_complete('afterwards', $nats->dump('OUTBOX'));

# ---------------------------------------------------------------- the broker lost acknowledged data

my $store = $nats->store_dir;
$nats->stop;
system('cp', '-a', $store, "$store.old") == 0 or die;
$nats->restart;
ok(wait_relay($node, $db), 'connected again');
my $since = $node->safe_psql($db, 'SELECT clock_timestamp()');
ok(events($node, 200), 'events that are acknowledged');
$nats->kill9;
system('rm', '-rf', $store) == 0 && rename("$store.old", $store) or die;
$nats->restart;
ok(wait_relay($node, $db), 'connected again');
is($nats->info('OUTBOX')->{messages}, 700, 'and lost');
ok(events($node, 50), 'live events follow before anybody has noticed');
replay("from_time => '$since', to_time => clock_timestamp(), target_stream => 'OUTBOX'");
is(first_copies($nats->dump('OUTBOX'))->{payloads}, join(' ', 1 .. $count), 'the broker lost acknowledged data: all are there again');
is(first_copies(grep { $_->{headers}{'x-replay'} && $_->{payload} > 700 } $nats->dump('OUTBOX'))->{payloads}, join(' ', 701 .. $count), 'the range was replayed as a whole');
is_deeply(first_copies(grep { $_->{headers}{'x-replay'} && $_->{payload} > 700 } $nats->dump('OUTBOX'))->{backwards}, [], 'in order');

# ---------------------------------------------------------------- last Tuesday

$node->safe_psql($db, q{SELECT pg_sleep(0.01)});
my ($from, $to) = split(/\|/, $node->safe_psql($db, q{SELECT min(created_at), max(created_at) FROM outbox.events WHERE payload_text::int BETWEEN 701 AND 800}));
replay("from_time => '$from', to_time => '$to', subject => 'outbox.order.>', target_stream => 'TUESDAY', target_prefix => 'tuesday', rate => 1000");
my %tuesday = map { $_->{payload} => 1 } $nats->dump('TUESDAY');
ok(!(grep { !$tuesday{$_} } 701 .. 800), 'last Tuesday is in a stream of its own');
is(scalar(keys %tuesday), $node->safe_psql($db, "SELECT count(*) FROM outbox.events WHERE created_at BETWEEN '$from' AND '$to'"), 'and nothing else');

# ---------------------------------------------------------------- from the archive to live

$nats->tool('create', 'LIVE', 'live.>');    # stands for a consumer that is durable: nothing it wants gets lost
my $live_from = $nats->info('OUTBOX')->{last_seq} + 1;
ok(events($node, 50), 'live events go on');
$node->safe_psql($db, "SELECT outbox.purge(older_than => '0')");
replay("archive => '$directory', target_stream => 'BOOTSTRAP', target_prefix => 'bootstrap'");
ok(events($node, 50), 'and on');
replay("target_stream => 'BOOTSTRAP', target_prefix => 'bootstrap'");
ok(events($node, 50), 'and on');
my @live = grep { $_->{seq} >= $live_from } $nats->dump('OUTBOX');
is_complete('from the archive to live', $nats->dump('BOOTSTRAP'), @live);

# ---------------------------------------------------------------- point-in-time recovery

$node->backup('base');
ok(events($node, 50), 'events before the moment');
$node->safe_psql($db, q{SELECT pg_create_restore_point('moment')});
my $before = $count;
ok(events($node, 50), 'and behind it');
my $highest = (sort map { $_->{headers}{'ce-sequence'} } $nats->dump('OUTBOX'))[-1];
my $segment = $node->safe_psql($db, 'SELECT pg_walfile_name(pg_switch_wal())');
ok(wait_for_query($node, $db, "SELECT last_archived_wal >= '$segment' FROM pg_stat_archiver"), 'the WAL is archived');
my ($wal) = $node->safe_psql($db, 'SHOW archive_command') =~ /"(.*)\/%f"/;
$node->stop;

my $recovered = PostgreSQL::Test::Cluster->new('recovered');
$recovered->init_from_backup($node, 'base', has_restoring => 0);
$recovered->append_conf('postgresql.conf', "restore_command = 'cp \"$wal/%f\" %p'\nrecovery_target_name = 'moment'\nrecovery_target_action = 'promote'\narchive_mode = off\noutbox.workers = 0");
$recovered->set_recovery_mode if $recovered->can('set_recovery_mode');
$recovered->start;
ok(wait_for_query($recovered, $db, 'SELECT NOT pg_is_in_recovery()'), 'recovered');
cmp_ok($recovered->safe_psql($db, 'SELECT last_value FROM outbox.position'), '<', $highest + 33, 'the numbers behind the moment are free again');
$recovered->safe_psql($db, "SELECT setval('outbox.position', greatest($highest, (SELECT last_value FROM outbox.position)))");
$recovered->safe_psql($db, 'ALTER SYSTEM RESET outbox.workers');
$recovered->append_conf('postgresql.conf', 'outbox.workers = 1');
$recovered->restart;
ok(wait_relay($recovered, $db), 'with a relay');
$count = $before;
ok(events($recovered, 20), 'new events');
my %position;
$position{ $_->{headers}{'ce-sequence'} }{ $_->{headers}{'ce-id'} } = 1 foreach $nats->dump('OUTBOX');
is_deeply([ grep { keys %{ $position{$_} } > 1 } sort keys %position ], [], 'have no number that another event had');
is($recovered->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state <> 'published'}), 0, 'and all that the database knows is published');

check_no_crash($recovered);
done_testing();
