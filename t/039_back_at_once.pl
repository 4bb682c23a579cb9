# When the broker is usable again, events don't sit out the rest of a long
# back-off.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats,
	extra => "outbox.stream_create = off\noutbox.retry_base_delay = '60s'\noutbox.retry_max_delay = '10min'\n");

ok(wait_state($node, 'postgres', 'stream unavailable'), 'no stream');
$node->safe_psql('postgres', q{SELECT outbox.enqueue('a', i::text, 'c', '{}') FROM generate_series(1, 20) i});
ok(wait_until(10, sub { (own_status($node, 'postgres')->{last_error} // '') ne '' && own_status($node, 'postgres')->{in_flight} == 0 }),
	'events wait for their next attempt');
is(own_status($node, 'postgres')->{published}, 0, 'none is published');

$nats->tool('create', 'OUTBOX', 'outbox.>');
# any change of the connection's settings makes a new one
$node->safe_psql('postgres', q{ALTER SYSTEM SET outbox.connect_timeout = '3s'});
$node->reload;
ok(wait_published($node, 'postgres', 20, timeout => 20), 'published long before the back-off is over');
is($node->safe_psql('postgres', q{SELECT max(attempts) FROM outbox.events}), 1, 'no attempt was counted');

check_no_crash($node);
done_testing();
