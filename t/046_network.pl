# The network between the relay and a healthy broker: slow, cut, a black hole
# that takes bytes and gives none, one that stands still, a broker that moves
# behind the same address. The server that is missing or ill: t/040.

use strict;
use warnings;

use OutboxLife;
use OutboxProxy;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
my $proxy = OutboxProxy->start(target => $nats->port, delay_ms => 60);
my $hole = OutboxProxy->start(target => $nats->port);
my $node = new_cluster('main', extra => <<"CONF");
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
outbox.nats_url = '@{[$proxy->url]}'
outbox.ack_timeout = 500ms
outbox.connect_timeout = 500ms
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 400ms
CONF
my $db = 'postgres';
my $not_connected = qr/LOG:  outbox relay is not connected to NATS/;

sub recovers
{
	my ($name) = @_;
	my $start = time();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_drained($node, $db, timeout => 30), "$name: everything is published");
	cmp_ok(time() - $start, '<', slack(5), "$name: soon");
	untouched_attempts($node, $db, $name);
	return check_stream($nats, $node, $db, $name);
}

sub drop_database_is_quick
{
	my ($name) = @_;
	my $start = time();

	$node->safe_psql($db, 'CREATE DATABASE passing');
	$node->safe_psql($db, 'DROP DATABASE passing');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return cmp_ok(time() - $start, '<', slack(5), "$name: DROP DATABASE doesn't wait for a relay");
}

# A connection that dies without a sign, in a database of its own: it takes the
# relay half a minute to be sure, so it begins here and is looked at in the end.
$node->safe_psql($db, 'CREATE DATABASE unseen');
$node->safe_psql($db, "ALTER DATABASE unseen SET outbox.nats_url = '@{[$hole->url]}'");
$node->safe_psql('unseen', 'CREATE EXTENSION outbox');
my $unseen = wait_relay($node, 'unseen');
burst($node, 'unseen', 'before', 10);
ok(wait_drained($node, 'unseen'), 'another relay, with a connection of its own');
$hole->mode('swallow');
my $hole_start = time();
burst($node, 'unseen', 'into_the_hole', 50);

# --------------------------------------------------------------------- slow

$proxy->mode('delay');
my $load = start_load($node, $db);
ok(wait_for_query($node, $db, q{SELECT published >= 500 FROM outbox.status() WHERE database = 'postgres'}), 'slow: events are published');
stop_load($load);
recovers('slow');

# ---------------------------------------------------------------------- cut

$proxy->mode('forward');
$load = start_load($node, $db, type => 'cut');
ok(wait_for_query($node, $db, q{SELECT count(*) > 200 FROM outbox.events WHERE aggregate_type = 'cut' AND publish_state = 'published'}), 'cut: under load');
my $mark = log_mark($node);
my $start = time();
$proxy->mode('cut');
my $status = check_outage($node, $db, 'cut', state => 'not connected', reason => qr/could not connect to/, since => $start, obeys => 0);
my $accepted = $proxy->accepted;
$start = time();
ok(wait_for_query($node, $db, q{SELECT now() > since + interval '3 s' FROM outbox.status() WHERE database = 'postgres'}), 'cut: for several back-offs');
my $attempts = ($proxy->accepted - $accepted) / (time() - $start);
# every 200 to 400 ms, and some tens of milliseconds for the attempt
ok($attempts > 2 && $attempts < 6, 'cut: attempts keep to the back-off') or diag("$attempts per second");
# at once, after one second, after three ...
my $outage = $node->safe_psql($db, q{SELECT extract(epoch FROM clock_timestamp() - since) FROM outbox.status() WHERE database = 'postgres'});
my @lines = log_lines($node, $mark, qr/\[$status->{pid}\] .*not connected/);
cmp_ok(scalar(@lines), '<=', 1 + int(log($outage + 1) / log(2)), 'cut: reasons that alternate are lines in the log at doubling intervals')
  or diag(join("\n", @lines));
relay_obeys($node, $db, $status->{pid}, 'cut');
$proxy->mode('forward');
ok(wait_state($node, $db, 'active', timeout => 3), 'cut: connected again within some back-offs');
stop_load($load);
recovers('cut');

# ------------------------------------------------------------ a black hole

$proxy->mode('swallow');
burst($node, $db, 'swallowed', 200);
$status = check_outage($node, $db, 'black hole', state => 'broker unavailable', reason => qr/no acknowledgement within 500 ms/);
$mark = log_mark($node);
check_outage($node, $db, 'black hole before the connection', state => 'not connected', reason => qr/could not connect to .*Timeout/);
drop_database_is_quick('black hole');
$proxy->mode('forward');
recovers('black hole');

# --------------------------------------------------------------- standing still

# What fits into buffers goes on where it stopped, on the same connection.
my $relay = relay_pid($node, $db);
$accepted = $proxy->accepted;
$proxy->mode('stall');
burst($node, $db, 'stalled', 100);
$status = check_outage($node, $db, 'stalled', state => 'broker unavailable', reason => qr/no acknowledgement within 500 ms/, obeys => 0);
$proxy->mode('forward');
recovers('stalled');
is($proxy->accepted, $accepted, 'stalled: no other connection was made');
is(relay_pid($node, $db), $relay, 'stalled: by the same relay');

# What doesn't fit doesn't stop the relay, either.
$proxy->mode('stall');
$node->safe_psql($db, "SELECT count(outbox.enqueue_text('large', i::text, 'e', repeat('x', 400000))) FROM generate_series(1, 40) i");
$status = check_outage($node, $db, 'buffers are full', state => 'not connected', reason => qr/does not respond|could not connect to .*Timeout/, obeys => 0);
like(join("\n", log_lines($node, $mark, $not_connected)), qr/the server does not respond/, 'buffers are full: in the log');
relay_obeys($node, $db, $status->{pid}, 'buffers are full');
$proxy->mode('forward');
recovers('buffers are full');

# ------------------------------------------------------------------- moved

$load = start_load($node, $db, type => 'moved');
ok(wait_for_query($node, $db, q{SELECT count(*) > 200 FROM outbox.events WHERE aggregate_type = 'moved' AND publish_state = 'published'}), 'moved: under load');
$nats->stop;
$nats = OutboxNats->start(name => 'moved', store_dir => $nats->store_dir);
$proxy->target($nats->port);
ok(wait_state($node, $db, 'active', timeout => 3), 'moved: connected again within some back-offs');
stop_load($load);
recovers('moved');

# ----------------------------------------------------------- the unseen death

is(relay_pid($node, 'unseen'), $unseen, 'unseen: the same relay');
ok( wait_until(
		35 - (time() - $hole_start) + 2,
		sub {
			$status = own_status($node, 'unseen');
			return $status->{state} eq 'not connected' && $status->{last_error} =~ /Timeout|does not respond/;
		}),
	'unseen: a silent server is given up within 35 s')
  or diag("$status->{state}: $status->{last_error}");
cmp_ok($node->safe_psql($db, "SELECT extract(epoch FROM '$status->{since}'::timestamptz)") - $hole_start, '<', slack(35), 'unseen: since then');
is($status->{backlog}, 50, 'unseen: nothing is taken for published');
relay_obeys($node, 'unseen', $unseen, 'unseen');
$hole->target($nats->port);
$hole->mode('forward');
ok(wait_drained($node, 'unseen', timeout => 5), 'unseen: everything is published');
untouched_attempts($node, 'unseen', 'unseen');
check_stream($nats, $node, 'unseen', 'unseen');
check_no_crash($node);
done_testing();
