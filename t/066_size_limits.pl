# The server's max_payload holds for headers and payload together, and the
# stream's max_msg_size is a second wall: what fits to the byte passes, what
# doesn't is a dead letter after one attempt, by the client, without a new
# connection; its aggregate and others go on; redriven under a higher limit it passes.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $limit = 60_000;
my $nats = OutboxNats->start(max_payload => $limit, monitor => 1);
$nats->tool('create', 'OUTBOX', 'outbox.>');
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

# Positions of four digits and fixed times, so that all headers are of one length.
$node->safe_psql($db, q{SELECT setval('outbox.position', 1000)});

sub sized
{
	my ($aggregate, $bytes) = @_;

	enqueue($node, $db, $aggregate, 'e1', payload => "repeat('x', $bytes)", occurred_at => "'2024-10-27 00:30:00+00'");
	enqueue($node, $db, $aggregate, 'e2');
	return;
}

# As on the wire: the line of the version, "key: value" each, an empty line.
sub header_bytes
{
	my ($message) = @_;
	my $sum = length("NATS/1.0\r\n") + length("\r\n");

	$sum += length("$_->[0]: $_->[1]\r\n") foreach @{ $message->{all_headers} };
	return $sum;
}

# Bodies around what fits: limit - headers + k, each in its own aggregate, beside others.
sub around
{
	my ($name, $room, $connections) = @_;
	my @k = (-1, 0, 1, 2, 100);

	sized("$name" . sprintf('%04d', $_), $room + $_) foreach @k;
	good_ones($node, $db, $name);
	good_ones_pass($node, $db, $name, 5);
	foreach my $k (@k)
	{
		my $aggregate = $name . sprintf('%04d', $k);
		my $expected = $k <= 0 ? 'e1=published e2=published' : 'e1=failed e2=published';

		ok(wait_for_query($node, $db, "SELECT string_agg(event_type || '=' || publish_state, ' ' ORDER BY position) FROM outbox.events WHERE aggregate_id = '$aggregate'",
				expected => $expected, timeout => 10),
			"$name: limit " . sprintf('%+d', $k));
	}
	is(join(',', map { $_->{cid} } $nats->relay_connections), $connections, "$name: still the same connection");
	return;
}

sized('probe0', 10);
ok(wait_published($node, $db), 'a small one');
my ($small) = grep { $_->{headers}{'ce-type'} eq 'e1' } $nats->dump('OUTBOX', 'outbox.a.probe0.>');
my $headers = header_bytes($small);
cmp_ok($headers, '>', 200, "headers take $headers bytes");
my $connections = join(',', map { $_->{cid} } $nats->relay_connections);

around('serv_m', $limit - $headers - length('serv_m0000') * 2 + length('probe0') * 2, $connections);
is($node->safe_psql($db, q{SELECT count(*), max(attempts), min(error_code), bool_and(last_error LIKE 'NATS client: %' AND last_error LIKE '%60000%') FROM outbox.dead_letters}),
	'3|1|0|t', 'server: after one attempt, naming the limit');
like($node->safe_psql($db, q{SELECT last_error FROM outbox.dead_letters WHERE aggregate_id = 'serv_m0100'}), qr/60100/, 'server: and the size');
is($node->safe_psql($db, q{SELECT outbox.redrive()}), 3, 'server: redriven too early');
ok(wait_for_query($node, $db, q{SELECT count(*) = 3 FROM outbox.dead_letters WHERE failed_at > now() - interval '10 s'}), 'server: dead again');

# the second wall
$nats->tool('update', 'OUTBOX', '--max-msg-size', 10_000);
around('strm_m', 10_000 - $headers - length('strm_m0000') * 2 + length('probe0') * 2, $connections);
like($node->safe_psql($db, q{SELECT string_agg(DISTINCT attempts || ' ' || error_code || ' ' || last_error, ',') FROM outbox.dead_letters WHERE aggregate_id LIKE 'strm%'}),
	qr/^1 10054 JetStream error 10054: [^,]+$/, 'stream: after one attempt');

# both raised; nats-server tells clients of the new limit when they connect
$nats->tool('update', 'OUTBOX', '--max-msg-size', -1);
$nats->write_config(max_payload => 120_000);
$nats->restart;
ok(wait_until(20, sub { own_status($node, $db)->{state} eq 'active' && $nats->relay_connections == 1 }), 'raised: a new connection');
is($node->safe_psql($db, 'SELECT outbox.redrive()'), 6, 'raised: redriven');
ok(wait_published($node, $db), 'raised: published');
is(scalar(grep { $_->{headers}{'ce-type'} eq 'e1' && $_->{headers}{'ce-subject'} =~ /_m/ } $nats->dump('OUTBOX')), 10, 'raised: the stream has all of them, once');
check_no_crash($node);
done_testing();
