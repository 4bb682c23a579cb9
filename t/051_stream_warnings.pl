# What the relay warns of when it looks at its stream: a duplicate window that
# retries outlast, and interest retention. One line for the same stream and
# settings, however often it connects.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $db = 'postgres';
my $too_short = qr/WARNING:  duplicate window of stream "(\w+)" is shorter than the time between an event's repetitions/;
my $interest = qr/WARNING:  stream "(\w+)" discards what nobody waits for/;
my $mark = 0;

$nats->tool('create', 'SHORT', 'short.>', '--dup-window', 30_000);
$nats->tool('create', 'INTEREST', 'interest.>', '--interest');
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
max_connections = 60
shared_buffers = 64MB
jit = off
outbox.ack_timeout = 1s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 20s
CONF

# Streams that the lines since the last look name, once what was enqueued after the change is published.
sub warned_of
{
	my ($pattern) = @_;

	return join(' ', map { /$pattern/ } log_lines($node, $mark, $pattern));
}

sub changed
{
	my ($stream, $prefix, @settings) = @_;

	$mark = log_mark($node);
	alter_system($node, "outbox.stream = '$stream'", "outbox.subject_template = '$prefix.{aggregate_id}'", @settings);
	return arrives($stream);
}

sub arrives
{
	my ($stream) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 2;
	ok(wait_until(10, sub { my $status = own_status($node, $db); ($status->{state} // '') eq 'active' && $status->{stream} eq $stream }), "$stream: is used");
	burst($node, $db, 'e', 2, 2);
	return ok(wait_drained($node, $db), "$stream: events are published");
}

arrives('OUTBOX');
is(warned_of($too_short) . warned_of($interest), '', 'nothing to warn of');

changed('SHORT', 'short');
is(warned_of($too_short), '', 'a window of 30 s, retries after 20 s: no warning');
changed('SHORT', 'short', q{outbox.retry_max_delay = '29s'});
is(warned_of($too_short), '', '... after 29 s and an ack timeout of 1 s: none');
changed('SHORT', 'short', 'outbox.ack_timeout = 1001');
is(warned_of($too_short), 'SHORT', '... and a millisecond more: one');
like(join("\n", log_lines($node, $mark, qr/DETAIL/)), qr/The window is 30000 ms; .* are 30001 ms together/, '... with the numbers');

# another connection, and the same stream as before
$mark = log_mark($node);
$nats->restart;
arrives('SHORT');
like(slurp_file($node->logfile, $mark), qr/publishes to stream "SHORT"/, 'another connection');
is(warned_of($too_short), '', '... and no other warning');

changed('INTEREST', 'interest');
is(warned_of($interest), 'INTEREST', 'interest retention: a warning');
is(warned_of($too_short), '', '... and its window is long enough');
is($nats->info('INTEREST')->{messages}, 0, '... with reason: acknowledged, published, and nowhere');

# What the relay makes itself has two minutes.
changed('MADE', 'made', q{outbox.retry_max_delay = '3min'});
is(warned_of($too_short), 'MADE', 'a stream that the relay has made: a warning');

# A stream that comes later, on the same connection.
changed('OUTBOX', 'outbox', q{outbox.retry_max_delay = '500ms'}, q{outbox.ack_timeout = '1s'});
is(warned_of($too_short) . warned_of($interest), '', 'back again: nothing to warn of');
$mark = log_mark($node);
alter_system($node, 'outbox.stream_create = off', q{outbox.stream = 'LATE'}, q{outbox.subject_template = 'late.{aggregate_id}'});
ok(wait_state($node, $db, 'stream unavailable'), 'a stream that does not exist');
$nats->tool('create', 'LATE', 'late.>', '--interest', '--dup-window', 100);
arrives('LATE');
is(warned_of($interest), 'LATE', 'and comes later: a warning for its retention');
is(warned_of($too_short), 'LATE', '... and one for its window');
check_no_crash($node);
done_testing();
