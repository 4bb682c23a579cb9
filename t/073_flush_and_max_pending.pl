# outbox.flush() waits until all that was committed before it is terminal;
# outbox.max_pending bounds what may wait.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => "outbox.stream_create = off\nmax_prepared_transactions = 4\n");
my $db = 'postgres';

sub set
{
	my ($name, $value) = @_;
	$node->safe_psql($db, "ALTER SYSTEM SET $name = '$value'");
	$node->reload;
	return;
}

sub flush
{
	my ($timeout) = @_;
	return $node->safe_psql($db, "SELECT outbox.flush('$timeout')");
}

# ---- flush

is(flush('10 s'), 't', 'nothing to wait for');
my $pending;
foreach my $round (1 .. 30)
{
	$node->safe_psql($db, q{SELECT outbox.enqueue('a', (i % 7)::text, 'e', '{}') FROM generate_series(1, 300) i});
	$pending += $node->safe_psql($db, q{SELECT outbox.flush('20 s'); SELECT count(*) FROM outbox.events WHERE publish_state <> 'published'}) =~ /^t\n0$/ ? 0 : 1;
}
is($pending, 0, 'after a flush everything is published, 30 times');

my $open = $node->background_psql($db);
$open->query_safe(q{BEGIN; SELECT outbox.enqueue('open', '1', 'e', '{}')});
$node->safe_psql($db, q{BEGIN; SELECT outbox.enqueue('prepared', '1', 'e', '{}'); PREPARE TRANSACTION 'p'});
$node->safe_psql($db, q{SELECT outbox.enqueue('a', '1', 'e', '{}')});
is(flush('10 s'), 't', 'open and prepared transactions are not waited for');
$node->safe_psql($db, q{COMMIT PREPARED 'p'});
is(flush('10 s'), 't', 'a prepared one that has ended is');
is($node->safe_psql($db, q{SELECT publish_state FROM outbox.events WHERE aggregate_type = 'prepared'}), 'published', 'it is published then');
$open->query_safe('ROLLBACK');
$open->quit;

$nats->freeze;
$node->safe_psql($db, q{SELECT outbox.enqueue('a', '1', 'frozen', '{}')});
my $start = time();
is(flush('700 ms'), 'f', 'false after the timeout');
cmp_ok(time() - $start, '<', slack(5), 'in time');
$nats->thaw;
is(flush('20 s'), 't', 'true when the broker is back');
is($node->safe_psql($db, q{SELECT publish_state FROM outbox.events WHERE event_type = 'frozen'}), 'published', 'and the event is published');

$node->safe_psql($db, q{SELECT outbox.enqueue('poison', '1', 'e', jsonb_build_object('x', repeat('x', 3000)))});
is(flush('20 s'), 't', 'a dead letter is terminal');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.dead_letters}), 1, 'it is one');
$node->safe_psql($db, q{SELECT outbox.pause(); SELECT outbox.redrive()});
is(flush('500 ms'), 'f', 'a redriven one, paused, is not');
$nats->tool('update', 'OUTBOX', 'outbox.>', '--max-msg-size', 100000);
$node->safe_psql($db, q{SELECT outbox.resume()});
is(flush('20 s'), 't', 'until it is published');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state <> 'published'}), 0, 'all is');

my ($status, $out, $err) = $node->psql($db, q{SELECT outbox.flush('-1 s')});
like($err, qr/timeout must not be negative/, 'a negative timeout is refused');

# ---- max_pending

set('outbox.max_pending', 100);
$node->safe_psql($db, q{SELECT outbox.pause()});
my $accepted = 0;
foreach my $i (1 .. 15)
{
	($status) = $node->psql($db, q{SELECT outbox.enqueue('m', i::text, 'e', '{}') FROM generate_series(1, 20) i});
	$accepted++ if $status == 0;
	last if $status != 0;
}
cmp_ok($accepted, '>=', 5, 'enqueue succeeds below the bound');
cmp_ok($accepted, '<=', 6, 'not above');
is((sqlstates($node, $db, q{SELECT outbox.enqueue('m', '1', 'e', '{}')}))[0][0], '53400', 'with SQLSTATE 53400');
($status, $out, $err) = $node->psql($db, q{SELECT outbox.enqueue('m', '1', 'e', '{}')});
like($err, qr/too many outbox events are pending.*DETAIL.*"outbox.max_pending" is 100.*HINT/s, 'with detail and hint');
is($node->safe_psql($db, q{SET outbox.max_pending = 0; SELECT outbox.enqueue('m', '1', 'e', '{}') IS NOT NULL}), "t", '0 is no limit');
$node->restart;
ok(wait_for_query($node, $db, q{SELECT state = 'paused' FROM outbox.status()}), 'paused after a restart');
ok(wait_until(10, sub { $node->psql($db, q{SELECT outbox.enqueue('m', '1', 'e', '{}')}) != 0 }), 'the bound holds after a restart');
$node->safe_psql($db, q{SELECT outbox.resume()});
is(flush('20 s'), 't', 'resumed');
is($node->psql($db, q{SELECT outbox.enqueue('m', '1', 'e', '{}')}), 0, 'and accepted again');

check_no_crash($node);
done_testing();
