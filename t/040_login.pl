# Who the relay is for NATS: the settings for it, and what status() says of
# permissions. The many ways of logging in are tested in test/broker.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# A key for tests, of the NATS documentation.
my $seed = 'SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY';
my $public = 'UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4';

my $nats = OutboxNats->start(
	user => 'admin',
	password => 'admin',
	authorization => 'users: [ { user: admin, password: admin }, '
	  . "{ nkey: $public, permissions: { subscribe: \"replies.relay.>\", "
	  . 'publish: { deny: "outbox.order.denied.>" } } } ]');
my $address = 'nats://127.0.0.1:' . $nats->port;
my $seed_file = PostgreSQL::Test::Utils::tempdir() . '/relay.nk';
my $node = new_cluster('login', nats => $nats);

sub set
{
	my (@settings) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $_") foreach @settings;
	$node->reload;
	return;
}

sub last_error_like
{
	my ($pattern, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until(10, sub { (own_status($node, 'postgres')->{last_error} // '') =~ $pattern }), $name)
	  or diag(own_status($node, 'postgres')->{last_error});
	return;
}

ok(wait_state($node, 'postgres', 'active', timeout => 10), 'by user and password');

append_to_file($seed_file, "$seed\n");
chmod(0644, $seed_file);
set("outbox.nats_url = '$address'", "outbox.nkey_seed_file = '$seed_file'");
last_error_like(qr/outbox\.nkey_seed_file is accessible/, 'a seed that others can read is refused');
unlike(own_status($node, 'postgres')->{last_error}, qr/\Q$seed_file\E|\Q$seed\E/, '... without telling it');

chmod(0600, $seed_file);
last_error_like(qr/subscribe to the reply subject "_INBOX\.>"/, 'by NKey; replies would not be permitted');
is(own_status($node, 'postgres')->{state}, 'not connected', '... so it is not connected');

set("outbox.inbox_prefix = 'replies.relay'");
ok(wait_state($node, 'postgres', 'active', timeout => 10), 'with a prefix whose replies are');

$node->safe_psql('postgres', "SELECT outbox.enqueue('order', id, 'E', '1') FROM unnest('{denied,fine}'::text[]) id");
last_error_like(qr/no permission to publish to subject "outbox\.order\.denied\.E"/, 'a denied subject');
ok( wait_until(5, sub {
		$node->safe_psql('postgres', q{SELECT publish_state FROM outbox.events WHERE aggregate_id = 'fine'}) eq 'published' }),
	'... stops no other');
is($node->safe_psql('postgres', q{SELECT publish_state, attempts FROM outbox.events WHERE aggregate_id = 'denied'}),
	'pending|0', '... and counts no attempt');

my $log = slurp_file($node->logfile);
unlike($log, qr/\Q$seed\E/, 'the log has no secret');
check_no_crash($node);
done_testing();
