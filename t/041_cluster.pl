# A cluster of three nats-servers and a stream on all of them. Under load, the
# stream's leader is killed again and again, a server is shut down in lame-duck
# mode, and a majority is lost for a while. Everything is stored once, in order,
# and no event's attempts are touched.
#
# CLUSTER_KILLS: another number of them.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my @servers = OutboxNats->start_cluster(3, config => "lame_duck_grace_period: 500ms\nlame_duck_duration: 30s");
my $db = 'postgres';

# A server that runs.
sub any
{
	return (grep { defined $_->pid } @servers)[0];
}

# The server that leads the stream now; with how many others that have all of it?
sub leader
{
	my ($others) = @_;
	my ($code, $name);

	wait_until(60, sub { ($code, $name) = any()->try_tool('leader', 'OUTBOX', $others // 0); return $code == 0 })
	  or die 'the stream has no leader';
	chomp($name);
	return (grep { $_->{name} eq $name && defined $_->pid } @servers)[0] // any();
}

# The stream exists on all servers before the relay could make one on a single server.
ok( wait_until(
		30,
		sub {
			my ($code) = $servers[0]->try_tool('create', 'OUTBOX', 'outbox.>', '--replicas', 3, '--dup-window', 120000);
			return $code == 0;
		}),
	'a stream with three replicas');

my $node = new_cluster('main', extra => <<"CONF");
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
outbox.nats_url = '@{[join(',', map { $_->url } @servers)]}'
outbox.stream_create = off
outbox.ack_timeout = 1s
outbox.connect_timeout = 1s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 500ms
CONF
ok(wait_relay($node, $db), 'a relay');
my $load = start_load($node, $db, rate => 300);

# Publishing goes on: some more than what there is. An election takes 4 to 9 s, and may fail once or twice.
sub goes_on
{
	my ($name) = @_;
	my $before = own_status($node, $db)->{published};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(wait_for_query($node, $db, "SELECT published > $before + 200 FROM outbox.status()", timeout => 60), "$name: publishing goes on");
}

goes_on('at first');

foreach my $i (1 .. $ENV{CLUSTER_KILLS} // 3)
{
	# one that is still behind can't follow it, and two such make no majority
	my $leader = leader(2);

	$leader->kill9;
	goes_on("leader killed, time $i");
	$leader->restart;
	goes_on("leader back, time $i");
}

# The server that the relay is connected to says good-bye.
my ($port) = own_status($node, $db)->{server} =~ /:(\d+)$/;
my ($duck) = grep { $_->port == $port } @servers;
ok($duck, 'status() names a server of the cluster');
my $mark = log_mark($node);
kill('USR2', $duck->pid);
ok(wait_until(20, sub { (own_status($node, $db)->{server} // '') =~ /:(\d+)$/ && $1 != $port }), 'lame duck: status() names another server');
ok(log_lines($node, $mark, qr/publishes to stream "OUTBOX" at /), 'lame duck: ... and so does the log');
goes_on('lame duck');
$duck->stop if kill(0, $duck->pid);
$duck->restart;

# Without a majority nothing can be stored.
my $left = leader();
my @gone = grep { $_ != $left } @servers;
$_->kill9 foreach @gone;
ok(wait_for_query($node, $db, q{SELECT in_flight > 0 OR state <> 'active' FROM outbox.status()}), 'majority lost');
ok(wait_for_query($node, $db, q{SELECT backlog > 1000 FROM outbox.status()}), 'majority lost: clients go on');
my $status = own_status($node, $db);
isnt($status->{last_error} // '', '', 'majority lost: status() says something') or diag($status->{state});
untouched_attempts($node, $db, 'majority lost, still');
relay_keeps_nothing_open($node, $db, $status->{pid}, 'majority lost');
relay_obeys($node, $db, $status->{pid}, 'majority lost');
$_->restart foreach @gone;
goes_on('majority back');

stop_load($load);
ok(wait_drained($node, $db), 'everything is published');
untouched_attempts($node, $db, 'in the end');
# a reader needs a leader of the cluster, too
ok(wait_until(30, sub { my ($code) = leader()->try_tool('dump', 'OUTBOX', 'outbox.load.1.e'); return $code == 0 }), 'the cluster has come to rest');
# the one that was down may still lag behind when it becomes leader
wait_until(30, sub { !stream_differences(leader(), 'OUTBOX', $node, $db) });
check_stream(leader(), $node, $db, 'in the end');
cmp_ok($node->safe_psql($db, 'SELECT count(DISTINCT aggregate_id) FROM outbox.events'), '==', 100, 'a hundred aggregates');
check_no_crash($node);
done_testing();
