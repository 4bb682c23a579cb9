# The broker is absent, killed, frozen, emptied, without JetStream, at the limits
# of its account. The server and its clients don't mind, status() says what is
# wrong and since when, the log says it once, no event's attempts are touched,
# and when the broker is back everything is published without help. How the
# network can fail is t/046's matter.

use strict;
use warnings;

use File::Path qw(rmtree);
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $conf = <<'CONF';
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
outbox.ack_timeout = 500ms
outbox.connect_timeout = 500ms
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 400ms
CONF
my $db = 'postgres';
my $not_connected = qr/LOG:  outbox relay is not connected to NATS/;
my $publishes = qr/LOG:  outbox relay publishes to stream/;
my $trouble = qr/LOG:  outbox relay can't use stream/;

# All is published, no later than some back-offs after the broker's return.
sub recovers
{
	my ($node, $name, $limit) = @_;
	my $start = time();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_drained($node, $db, timeout => 30), "$name: everything is published");
	cmp_ok(time() - $start, '<', slack($limit // 5), "$name: soon");
	return untouched_attempts($node, $db, $name);
}

# ------------------------------------------------------------------ absent

my $nats = OutboxNats->start;
$nats->stop;
my $node = new_cluster('main', nats => $nats, extra => $conf);
$node->stop;
my $mark = log_mark($node);
my $start = time();
$node->start;
cmp_ok(time() - $start, '<', slack(5), 'absent: the server starts without a broker');
$start = time();
burst($node, $db, 'absent', 100);
cmp_ok(time() - $start, '<', slack(2), 'absent: enqueue doesn\'t wait for it');
my $status = check_outage($node, $db, 'absent', state => 'not connected', reason => qr/could not connect to nats:\S+:@{[$nats->port]}: /, obeys => 0);
is($status->{backlog}, 100, 'absent: the backlog');
# some more attempts
ok(wait_for_query($node, $db, "SELECT now() > '$status->{since}'::timestamptz + interval '2 s'"), 'absent: for several back-offs');
is(own_status($node, $db)->{since}, $status->{since}, 'absent: further attempts don\'t change since when');
is(scalar(log_lines($node, $mark, $not_connected)), 1, 'absent: one line in the log for all attempts')
  or diag(log_lines($node, $mark, $not_connected));
relay_obeys($node, $db, $status->{pid}, 'absent');
$mark = log_mark($node);
$nats->restart;
recovers($node, 'absent');
is(scalar(log_lines($node, $mark, $publishes)), 1, 'absent: its return is one line in the log');

# --------------------------------------------- killed, with a hundred aggregates

my $load = start_load($node, $db);
ok(wait_for_query($node, $db, q{SELECT published > 300 FROM outbox.status()}), 'killed: under load');
$mark = log_mark($node);
$start = time();
$nats->kill9;
$status = check_outage($node, $db, 'killed', state => 'not connected', reason => qr/could not connect to/,
	since => $start, obeys => 0);
ok(wait_for_query($node, $db, "SELECT now() > '$status->{since}'::timestamptz + interval '4 s'"), 'killed: for ten back-offs and more');
ok(own_status($node, $db)->{backlog} > 300, 'killed: clients go on');
relay_keeps_nothing_open($node, $db, $status->{pid}, 'killed, under load');
is(own_status($node, $db)->{since}, $status->{since}, 'killed: since when');
# the connection ended; then: nobody listens
cmp_ok(scalar(log_lines($node, $mark, $not_connected)), '<=', 2, 'killed: a line in the log for each reason');
untouched_attempts($node, $db, 'killed, still');
relay_obeys($node, $db, $status->{pid}, 'killed');
$nats->restart;
ok(wait_state($node, $db, 'active', timeout => 3), 'killed: connected again within some back-offs');
stop_load($load);
recovers($node, 'killed', 10);
is($node->safe_psql($db, q{SELECT count(DISTINCT aggregate_id) FROM outbox.events WHERE aggregate_type = 'load'}), 100, 'killed: all aggregates');
check_stream($nats, $node, $db, 'killed');

# ------------------------------------------------- frozen, what it has is stored late

my $arrivals = '';
my $subscriber = $nats->start_tool(\$arrivals, 'subscribe', 'outbox.frozen.>');
$nats->freeze;
burst($node, $db, 'frozen', 50);
$status = check_outage($node, $db, 'frozen', state => 'broker unavailable', reason => qr/no acknowledgement within 500 ms/, obeys => 0);
is($status->{backlog}, 50, 'frozen: nothing is taken for published');
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE created_at < now() - interval '2 s' AND aggregate_type = 'frozen'}, expected => 50),
	'frozen: for several ack timeouts');
is(own_status($node, $db)->{pid}, $status->{pid}, 'frozen: the same relay');
$nats->thaw;
recovers($node, 'frozen');
ok( wait_until(
		10,
		sub {
			my %count;

			$subscriber->pump_nb;
			$count{ (split(/\t/, $_))[2] }++ foreach split(/\n/, $arrivals);
			return keys %count == 50 && !grep { $_ < 2 } values %count;
		}),
	'frozen: each event was sent more than once');
check_stream($nats, $node, $db, 'frozen');
$subscriber->kill_kill;

# Another relay finds a broker that says nothing, and that has the first one's bytes.
$nats->freeze;
burst($node, $db, 'refrozen', 50);
$status = check_outage($node, $db, 'frozen again', state => 'broker unavailable', reason => qr/no acknowledgement within 500 ms/);
check_outage($node, $db, 'frozen before the connection', state => 'not connected', reason => qr/could not connect to .*time/i);
$start = time();
$node->safe_psql($db, 'CREATE DATABASE passing');
$node->safe_psql($db, 'DROP DATABASE passing');
cmp_ok(time() - $start, '<', slack(5), 'frozen before the connection: DROP DATABASE doesn\'t wait for the relay');
$nats->thaw;
recovers($node, 'frozen again');
check_stream($nats, $node, $db, 'frozen again');

# One event is enough to see it, after three ack timeouts.
$mark = log_mark($node);
$nats->freeze;
$start = time();
burst($node, $db, 'single', 1);
check_outage($node, $db, 'frozen, one event', state => 'broker unavailable', reason => qr/no acknowledgement within 500 ms/, since => $start, obeys => 0);
is(scalar(log_lines($node, $mark, qr/LOG:  outbox relay gets no acknowledgements: .*within 500 ms/)), 1, 'frozen, one event: one line in the log');
$nats->thaw;
recovers($node, 'frozen, one event');
ok(wait_state($node, $db, 'active', timeout => 3), 'frozen, one event: active again');
check_stream($nats, $node, $db, 'frozen, one event');

# ---------------------------------------------------------- JetStream is off

$nats->write_config(jetstream => 0);
$nats->restart;
$mark = log_mark($node);
$start = time();
burst($node, $db, 'off', 100);
check_outage($node, $db, 'JetStream off', state => 'stream unavailable', reason => qr/stream/, obeys => 0);
ok(wait_until(5, sub { own_status($node, $db)->{last_error} =~ /JetStream is not|no stream/i }), 'JetStream off: ... in words');
ok(wait_for_query($node, $db, q{SELECT now() > since + interval '2 s' FROM outbox.status()}), 'JetStream off: for several back-offs');
is(scalar(log_lines($node, $mark, $trouble)), 1, 'JetStream off: one line in the log') or diag(log_lines($node, $mark, qr/outbox relay/));
check_outage($node, $db, 'JetStream off', state => 'stream unavailable', reason => qr/stream/);
untouched_attempts($node, $db, 'JetStream off, still');
$nats->write_config(jetstream => 1);
$nats->restart;
recovers($node, 'JetStream on');
check_stream($nats, $node, $db, 'JetStream on');

# ------------------------------------------------------------------- emptied

$nats->kill9;
rmtree($nats->store_dir);
burst($node, $db, 'emptied', 100);
$nats->restart;
recovers($node, 'emptied');
is($nats->info('OUTBOX')->{messages}, 100, 'emptied: the stream is made again and has what came since');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'emptied: in order');
# while the relay is connected
burst($node, $db, 'before', 50);
recovers($node, 'deleted, before');
$nats->tool('delete', 'OUTBOX');
burst($node, $db, 'deleted', 100);
recovers($node, 'deleted');
is($nats->info('OUTBOX')->{messages}, 100, 'deleted: the stream is made again');
check_no_crash($node);
$node->stop('fast');
$nats->stop;

# ---------------------------------------------------------- limits of the account

sub accounts
{
	my ($storage, $streams) = @_;

	return "accounts { A { jetstream: { max_mem: 1MB, max_file: $storage, max_streams: $streams }, users: [ { user: u, password: p } ] } }\nno_auth_user: u";
}

my $limited = OutboxNats->start(name => 'limited', config => accounts('10MB', 1));
$limited->tool('create', 'OTHER', 'other.>');
$node = new_cluster('limited', nats => $limited, extra => $conf);
burst($node, $db, 'limits', 100);
check_outage($node, $db, 'one stream too many', state => 'stream unavailable', reason => qr/could not create stream "OUTBOX": .*\(10027\)|no stream listens/);
like(join("\n", log_lines($node, 0, $trouble)), qr/could not create stream "OUTBOX": .*\(10027\)/, 'one stream too many: in the log');
$limited->tool('delete', 'OTHER');
recovers($node, 'one stream less');

$limited->write_config(config => accounts('64KB', 1));
$limited->restart;
burst($node, $db, 'storage', 400);
check_outage($node, $db, 'no more storage', state => 'broker unavailable', reason => qr/error 10002: resource limits exceeded for account/);
untouched_attempts($node, $db, 'no more storage, still');
$limited->write_config(config => accounts('10MB', 1));
$limited->restart;
recovers($node, 'more storage');
check_stream($limited, $node, $db, 'more storage');
check_no_crash($node);
done_testing();
