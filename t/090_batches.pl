# Runs of one aggregate's events are published as atomic batches where the server
# takes them: all of a hot aggregate arrives once and in order, through kills and
# freezes of the server and of the relay, around events that are refused, and with
# streams and servers that take no batches.

use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $program = $ENV{NEWER_NATS_SERVER};
plan skip_all => 'NEWER_NATS_SERVER names no nats-server of 2.12 or newer' unless defined $program;

my $db = 'postgres';
my $nats = OutboxNats->start(program => $program, monitor => 1);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.ack_timeout = 1s
outbox.retry_base_delay = 20ms
outbox.retry_max_delay = 200ms
outbox.max_attempts = 2
outbox.poison_policy = skip
log_statement = none
CONF

sub enqueue_run
{
	my ($aggregate, $count, %opt) = @_;
	my $payload = $opt{payload} // q{'x' || i};

	$node->safe_psql($db,
		"SELECT count(outbox.enqueue_text('order', '$aggregate', 'e', $payload)) FROM generate_series(1, $count) i");
	return;
}

sub batched
{
	return grep { defined $_->{headers}{'Nats-Batch-Id'} } @_;
}

# Everything is there once and in order; returns the messages.
sub all_right
{
	my ($name, %opt) = @_;
	my @messages = $nats->dump('OUTBOX');

	is_deeply([ check_order($nats, 'OUTBOX', \@messages) ], [], "$name: in order");
	is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db, messages => \@messages, %opt) ], [], "$name: the stream is what was committed");
	return @messages;
}

ok(wait_relay($node, $db), 'a relay');
is($nats->stream_config('OUTBOX')->{allow_atomic}, JSON::PP::true, 'the stream that it makes takes batches');

# ---------------------------------------------------------------- a hot one, beside others

$node->safe_psql(
	$db, q{
	SELECT count(outbox.enqueue_text('order', CASE WHEN i % 10 = 0 THEN 'cold' || i % 70 ELSE 'hot' END, 'e' || i % 3, 'x' || i))
	FROM generate_series(1, 5000) i});
ok(wait_drained($node, $db), 'a hot aggregate is drained');
my @messages = all_right('hot');
cmp_ok(scalar(batched(@messages)), '>', 3500, 'most of it in batches');
is(scalar(grep { $_->{headers}{'ce-subject'} ne 'hot' && $_->{headers}{'ce-subject'} !~ /^cold/ } batched(@messages)), 0, 'of its own');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.error_counts() WHERE count > 0'), '0', 'without errors');

# ---------------------------------------------------------------- killed and frozen in the middle

sub published
{
	return own_status($node, $db)->{published};
}

sub in_the_middle
{
	my ($what, $act) = @_;
	my $before = published();

	enqueue_run('hot', 6000);
	wait_until(20, sub { published() > $before + 300 });
	$act->();
	ok(wait_drained($node, $db, timeout => 90), "$what: drained");
	return;
}

in_the_middle('server killed', sub { $nats->kill9; sleep(0.3); $nats->restart });
in_the_middle('server frozen', sub { $nats->freeze; sleep(2.5); $nats->thaw });
in_the_middle('relay killed', sub { my $pid = relay_pid($node, $db); kill('TERM', $pid); wait_new_relay($node, $db, $pid) });
in_the_middle('database crashed', sub { $node->stop('immediate'); $node->start; wait_relay($node, $db) });
all_right('after all that');

# ---------------------------------------------------------------- one of many is refused

# The limit of a message, and whether batches are taken: "true" or "false".
sub update_stream
{
	my ($max, $batches) = @_;

	$nats->api('STREAM.UPDATE.OUTBOX',
		qq({"name":"OUTBOX","subjects":["outbox.>"],"storage":"file","max_msg_size":$max,"duplicate_window":120000000000,"allow_atomic":$batches,"allow_msg_ttl":true}));
	return;
}

# Publish states of an aggregate's events in order, "published 299, failed 1, ...".
sub states_of
{
	my ($aggregate) = @_;
	my @runs;

	foreach my $state (split(/\n/, $node->safe_psql($db, "SELECT publish_state FROM outbox.events WHERE aggregate_id = '$aggregate' ORDER BY position")))
	{
		push @runs, [ $state, 0 ] if !@runs || $runs[-1][0] ne $state;
		$runs[-1][1]++;
	}
	return join(', ', map { "$_->[0] $_->[1]" } @runs);
}

my $middle = q{repeat('x', CASE i WHEN 300 THEN 5000 ELSE 10 END)};

update_stream(3000, 'true');
enqueue_run('poison', 600, payload => $middle);
enqueue_run('other', 600);
ok(wait_published($node, $db), 'around an event that is refused');
is(states_of('poison'), 'published 299, failed 1, published 300', 'only that one is a dead letter');
is($node->safe_psql($db, q{SELECT error_code, attempts FROM outbox.dead_letters}), '10054|1', 'with its own code, after one attempt');
is(states_of('other'), 'published 600', 'and others pass');

$node->append_conf('postgresql.conf', q{outbox.poison_policy = 'block'});
$node->reload;
enqueue_run('blocked', 600, payload => $middle);
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.blocked_aggregates}), 'policy block');
is(states_of('blocked'), 'published 299, failed 1, pending 300', 'its successors wait');
update_stream(-1, 'true');
is($node->safe_psql($db, q{SELECT outbox.redrive()}), '2', 'redriven');
ok(wait_published($node, $db), 'all pass');
is(states_of('blocked'), 'published 600', 'and are published');

# ---------------------------------------------------------------- runs end where an event has to wait

$node->safe_psql($db, q{
	SELECT outbox.pause(subject => 'outbox.order.paused.stop', reason => 'test');
	SELECT count(outbox.enqueue_text('order', 'paused', CASE i WHEN 300 THEN 'stop' ELSE 'go' END, 'x')) FROM generate_series(1, 600) i;
	SELECT count(outbox.enqueue_text('order', 'later', 'e', 'x', not_before => CASE i WHEN 300 THEN now() + interval '1 hour' END)) FROM generate_series(1, 600) i});
ok(wait_until(20, sub { states_of('paused') eq 'published 299, pending 301' }), 'a run ends before a paused event');
ok(wait_until(20, sub { states_of('later') eq 'published 299, pending 301' }), 'and before one that is for later');
$node->safe_psql($db, q{SELECT outbox.resume(subject => 'outbox.order.paused.stop')});
ok(wait_until(20, sub { states_of('paused') eq 'published 600' }), 'resumed');
$node->safe_psql($db, q{SELECT outbox.discard('test', event_id) FROM outbox.events WHERE aggregate_id = 'later' AND publish_state = 'pending' ORDER BY position LIMIT 1});
ok(wait_until(20, sub { states_of('later') eq 'published 299, failed 1, published 300' }), 'discarded, it lets the others go');

# ---------------------------------------------------------------- the stream takes batches no longer

update_stream(-1, 'false');
is($nats->stream_config('OUTBOX')->{allow_atomic}, undef, 'a stream that takes no batches any more');
enqueue_run('hot', 1000);
ok(wait_drained($node, $db), 'drained all the same');
# Policy skip has let a redriven event come after its successors.
@messages = $nats->dump('OUTBOX');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, $db, messages => \@messages, pending => 1) ], [], 'each once');
is(scalar(batched(@messages[ -1000 .. -1 ])), 0, 'one by one at last');
like($node->safe_psql($db, q{SELECT state FROM outbox.status()}), qr/^active$/, 'the relay is well');

check_no_crash($node);
$node->stop;
done_testing();
