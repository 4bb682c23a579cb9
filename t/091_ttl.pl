# A time to live that a producer gives an event is the message's where the stream
# takes it, by itself or in a batch, and not a replay's; elsewhere events are
# published all the same, without it, and the log says so once.

use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';

# Enqueues that many events for an aggregate, with a time to live or not.
sub enqueue_run
{
	my ($node, $aggregate, $count, $ttl) = @_;
	my $headers = defined $ttl ? qq{headers => '{"Nats-TTL": "$ttl", "x": "y"}'} : 'headers => NULL';

	$node->safe_psql($db, "SELECT count(outbox.enqueue('order', '$aggregate', 'e', '{}', $headers)) FROM generate_series(1, $count)");
	return;
}

# Messages of an aggregate that are in the stream.
sub messages_of
{
	my ($nats, $aggregate, $stream) = @_;

	return grep { ($_->{headers}{'ce-subject'} // '') eq $aggregate } $nats->dump($stream // 'OUTBOX');
}

# ---------------------------------------------------------------- a server that doesn't know it

{
	my $nats = OutboxNats->start;
	# before the relay makes one, which a newer server would let take them
	$nats->tool('create', 'OUTBOX', 'outbox.>');
	my $node = new_cluster('plain', nats => $nats);
	my $complaint = qr/stream "OUTBOX" takes no time to live of messages/;
	my $log;

	ok(wait_relay($node, $db), 'a stream that takes none');
	enqueue_run($node, 'first', 1, '1s');
	enqueue_run($node, 'second', 1, '1s');
	ok(wait_published($node, $db), 'events with a time to live are published');
	is_deeply([ map { [ $_->{headers}{'Nats-TTL'}, $_->{headers}{x} ] } messages_of($nats, 'first') ], [ [ undef, 'y' ] ], 'without it, with their other headers');
	$log = slurp_file($node->logfile);
	is(scalar(() = $log =~ /$complaint/g), 1, 'the log says so, once');
	like($log, qr/$complaint\n.*DETAIL:.*Nats-TTL.*\n.*HINT:.*allow_msg_ttl/, '... and what to do');
	is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE headers ->> 'Nats-TTL' = '1s'}), 2, 'the event has it');
	check_no_crash($node);
	$node->stop;
}

# ---------------------------------------------------------------- one that does

SKIP:
{
	my $program = $ENV{NEWER_NATS_SERVER};
	skip('NEWER_NATS_SERVER names no nats-server of 2.12 or newer', 1) unless defined $program;

	my $nats = OutboxNats->start(program => $program, monitor => 1);
	my $node = new_cluster('newer', nats => $nats);

	ok(wait_relay($node, $db), 'a relay');
	is($nats->stream_config('OUTBOX')->{allow_msg_ttl}, JSON::PP::true, 'the stream that it makes takes times to live');
	enqueue_run($node, 'forever', 1);
	enqueue_run($node, 'never', 1, 'never');
	enqueue_run($node, 'hour', 1, '1h30m');
	enqueue_run($node, 'second', 1, '1');
	# enough for a batch, once they are released at once
	$node->safe_psql($db, q{SELECT outbox.pause(aggregate_type => 'order', reason => 'test')});
	enqueue_run($node, 'batch', 200, '2s');
	enqueue_run($node, 'kept', 200, '1h');
	$node->safe_psql($db, q{SELECT outbox.resume(aggregate_type => 'order')});
	ok(wait_published($node, $db), 'published');
	is_deeply([ map { $_->{headers}{'Nats-TTL'} } messages_of($nats, 'hour') ], ['1h30m'], 'the message has the header');
	is_deeply([ map { $_->{headers}{'Nats-TTL'} } messages_of($nats, 'never'), messages_of($nats, 'forever') ], [ 'never', undef ], '"never", and none');
	my @kept = messages_of($nats, 'kept');
	is(scalar(grep { $_->{headers}{'Nats-TTL'} eq '1h' } @kept), 200, 'those of a batch, too');
	cmp_ok(scalar(grep { defined $_->{headers}{'Nats-Batch-Id'} } @kept), '>', 0, '... which they were');
	ok(wait_until(30, sub { !messages_of($nats, 'second') && !messages_of($nats, 'batch') }), 'the stream lets them go');
	is(scalar(messages_of($nats, $_)), 1, "and not: $_") foreach qw(forever never hour);

	# ---- a replay is no news
	$nats->tool('create', 'REPLAY', 'replay.>');
	my $id = $node->safe_psql($db, q{SELECT DISTINCT batch_id FROM outbox.replay(aggregate_type => 'order', target_stream => 'REPLAY', target_prefix => 'replay')});
	ok(wait_for_query($node, $db, "SELECT state = 'done' FROM outbox.replays WHERE batch_id = '$id'"), 'replayed');
	is_deeply([ map { $_->{headers}{'Nats-TTL'} } messages_of($nats, 'second', 'REPLAY') ], [undef], 'a replayed one has none');
	unlike(slurp_file($node->logfile), qr/time to live/, 'nothing to complain of');
	check_no_crash($node);
}

done_testing();
