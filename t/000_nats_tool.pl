# The tests' own tools: a nats-server that can be killed and frozen, and
# natstool. Needs no PostgreSQL server.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start(max_payload => 100_000);

sub publish
{
	my ($subject, $payload, @headers) = @_;

	return $nats->tool('publish', $subject, $payload, map { ('-H', $_) } @headers);
}

# Streams come and go.
is($nats->info('EV'), undef, 'no stream yet');
is(($nats->try_tool('info', 'EV'))[0], 1, 'info of a missing stream: exit 1');
is(($nats->try_tool('dump', 'EV'))[0], 1, 'dump of a missing stream: exit 1');
is(($nats->try_tool('delete', 'EV'))[0], 1, 'delete of a missing stream: exit 1');
is(($nats->try_tool('publish', 'ev.1', 'x'))[0], 1, 'publish without a stream: exit 1');
is(($nats->try_tool('nonsense'))[0], 2, 'unknown command: exit 2');
$nats->tool('create', 'EV', 'ev.>', '--dup-window', 120_000);
is_deeply($nats->info('EV'), { messages => 0, first_seq => 0, last_seq => 0, bytes => 0 }, 'an empty stream');
is_deeply([ $nats->dump('EV') ], [], 'dump of an empty stream');

# What goes in comes out, byte for byte.
my $payload = "tab\t percent% caf\xc3\xa9\r\n";
is(publish('ev.a', $payload, 'Nats-Msg-Id=m1', 'b=2', 'a=tab% =x', 'b=1'), "stream=EV seq=1 duplicate=false\n", 'publish');
is(publish('ev.a', 'again', 'Nats-Msg-Id=m1'), "stream=EV seq=1 duplicate=true\n", 'a duplicate');
is(publish('ev.b', ''), "stream=EV seq=2 duplicate=false\n", 'empty payload');
is_deeply(
	[ $nats->dump('EV') ],
	[
		{
			seq => 1,
			subject => 'ev.a',
			msg_id => 'm1',
			sha256 => sha256_hex($payload),
			payload => $payload,
			headers => { 'Nats-Msg-Id' => 'm1', a => 'tab% =x', b => 2 },
			all_headers => [ [ 'Nats-Msg-Id', 'm1' ], [ 'a', 'tab% =x' ], [ 'b', 2 ], [ 'b', 1 ] ],
		},
		{
			seq => 2,
			subject => 'ev.b',
			msg_id => '',
			sha256 => sha256_hex(''),
			payload => '',
			headers => {},
			all_headers => [],
		},
	],
	'dump');
is_deeply([ map { $_->{seq} } $nats->dump('EV', 'ev.b') ], [2], 'dump of one subject');
is_deeply([ $nats->dump('EV', 'ev.c') ], [], 'dump of a subject without messages');
like($nats->tool('dump', '--json', 'EV'), qr/^\{"seq":1,"subject":"ev.a","msg_id":"m1",.*"b":\["2","1"\]\}\}$/m, 'dump as JSON');

# A killed server comes back with what it had acknowledged.
my $pid = $nats->pid;
$nats->kill9;
is($nats->pid, undef, 'no pid when killed');
is(kill(0, $pid), 0, 'the process is gone');
is(($nats->try_tool('info', 'EV'))[0], 3, 'no server: exit 3');
$nats->restart;
isnt($nats->pid, $pid, 'another process');
is($nats->info('EV')->{messages}, 2, 'both messages after kill -9');
$nats->restart;
is($nats->info('EV')->{messages}, 2, 'both messages after a restart');

# A frozen server lets clients wait.
$nats->freeze;
my $start = time();
my ($code, undef, $err) = $nats->try_tool('info', 'EV');
is($code, 3, 'frozen: no connection');
cmp_ok(time() - $start, '>', 1, 'frozen: the client waited');
$nats->thaw;
is($nats->info('EV')->{messages}, 2, 'thawed');
$nats->freeze;
$nats->stop;
$nats->restart;
is($nats->info('EV')->{messages}, 2, 'a frozen server can be stopped');

# Limits.
$nats->tool('update', 'EV', '--max-msg-size', 100);
($code, undef, $err) = $nats->try_tool('publish', 'ev.a', 'x' x 101);
is($code, 1, 'larger than the stream allows');
like($err, qr/message size exceeds maximum/, '... and says so');
$nats->tool('update', 'EV', '--max-msg-size', -1, '--max-msgs', 3, '--discard-new');
publish('ev.a', 'third');
($code, undef, $err) = $nats->try_tool('publish', 'ev.a', 'fourth');
like($err, qr/maximum messages exceeded/, 'a full stream');
$nats->tool('purge', 'EV', 'ev.b');
is($nats->info('EV')->{messages}, 2, 'purge of one subject');
$nats->tool('update', 'EV', '--seal');
($code, undef, $err) = $nats->try_tool('publish', 'ev.a', 'x');
like($err, qr/sealed/, 'a sealed stream');
$nats->tool('create', 'PS', 'ps.>', '--max-msgs-per-subject', 1, '--discard-new', '--discard-new-per-subject');
publish('ps.a', 'x');
($code, undef, $err) = $nats->try_tool('publish', 'ps.a', 'x');
like($err, qr/maximum messages per subject exceeded/, 'a full subject');
publish('ps.b', 'x');
$nats->tool('create', 'MEM', 'mem.>', '--memory', '--interest');
publish('mem.a', 'nobody wants it');
is($nats->info('MEM')->{messages}, 0, 'interest retention');
$nats->tool('delete', 'MEM');
is($nats->info('MEM'), undef, 'deleted');

# Subscriptions see messages as they arrive.
my $out = '';
my $subscription = $nats->start_tool(\$out, 'subscribe', 'now.>', '--count', 2, '--timeout', 20_000, '--latency');
$nats->tool('publish', '--core', 'now.a', "x\ty", '-H', 'ce-id=i1', '-H', 'ce-sequence=7', '-H', 'Nats-Msg-Id=m7');
$nats->tool('publish', '--core', 'now.b', 'z', '-H', 'ce-time=2024-10-27T00:30:00.123400Z');
$subscription->finish;
is($subscription->result(0), 0, 'subscribe ends after its count');
my @lines = map { [ split(/\t/, $_, -1) ] } split(/\n/, $out);
cmp_ok(abs($lines[0][0] / 1e6 - time()), '<', 20, 'time of arrival');
is_deeply([ @{ $lines[0] }[ 1 .. 6 ] ], [ 'now.a', 'm7', 'i1', '7', 'x%09y', '-' ], 'first message');
is($lines[1][6], $lines[1][0] - 1729989000123400, 'latency since ce-time');
is(($nats->try_tool('subscribe', 'now.>', '--count', 1, '--timeout', 200))[0], 4, 'nothing came: exit 4');

# Something that answers, and something that doesn't, in place of a stream.
$out = '';
my $responder = $nats->start_tool(\$out, 'respond', 'core.says', '--reply', '{"stream":"EV","seq":7}', '--count', 1, '--timeout', 20_000);
is($nats->tool('publish', 'core.says', 'x'), "stream=EV seq=7 duplicate=false\n", 'an answer');
$responder->finish;
like($out, qr/\tcore\.says\t.*\tx$/, 'and what it was for');
$responder = $nats->start_tool(\$out, 'respond', 'core.mute', '--timeout', 20_000);
is(($nats->try_tool('publish', 'core.mute', 'x', '--timeout', 200))[0], 4, 'no answer: exit 4');
$responder->kill_kill(grace => 1);

# Two servers at once; authorization.
my $other = OutboxNats->start(user => 'svc', password => 'S3cr!t');
isnt($other->port, $nats->port, 'another port');
is($other->info('EV'), undef, 'another store');
like($other->url, qr{^nats://svc:S3cr%21t\@127}, 'its URL');
$other->{password} = 'wrong';
is(($other->try_tool('info', 'EV'))[0], 3, 'wrong password: exit 3');
$other->write_config;
$other->reload;
ok($other->wait_until(10, sub { ($other->try_tool('info', 'EV'))[0] == 1 }), 'the password changed');
$other->stop;

# check_order() finds what it is there for.
sub publish_event
{
	my ($id, $aggregate, $position) = @_;

	publish("od.$aggregate", '', "Nats-Msg-Id=$id", 'ce-aggregatetype=order', "ce-subject=$aggregate", "ce-sequence=$position");
	return;
}
$nats->tool('create', 'OD', 'od.>', '--dup-window', 100);
publish_event(@$_) foreach ([ 'a', 1, 5 ], [ 'b', 2, 3 ], [ 'c', 1, 10 ]);
is_deeply([ check_order($nats, 'OD') ], [], 'in order');
# a duplicate adds nothing, so try until the window has passed
$nats->wait_until(10, sub { publish_event('a', 1, 5); $nats->info('OD')->{messages} == 4 });
is($nats->info('OD')->{messages}, 4, 'a second copy');
is_deeply([ check_order($nats, 'OD') ], [], 'second copies do not count');
publish_event('d', 1, 9);
is_deeply([ check_order($nats, 'OD') ], ['at sequence 5: order 1: position 9 after 10'], 'out of order');
publish('od.x', '', 'Nats-Msg-Id=e', 'ce-sequence=1');
is(scalar(check_order($nats, 'OD')), 2, 'headers missing');

done_testing();
