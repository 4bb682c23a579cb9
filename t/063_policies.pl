# What becomes of an aggregate after a dead letter, deeply: each policy, each way
# back by redrive, each way out by discard, one after the other and crosswise,
# with the policy changed meanwhile, with a restart of the server between the steps.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my ($announced, $listener) = ('');
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 2000);
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.dead_letter_subject = 'dead.letters'
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
$listener = $nats->start_tool(\$announced, 'subscribe', 'dead.letters');
ok(wait_relay($node, $db), 'a relay');

# e<n> for each letter: g fits, b doesn't.
sub events
{
	my ($aggregate, $letters) = @_;
	my $next = $node->safe_psql($db, "SELECT count(*) FROM outbox.events WHERE aggregate_id = '$aggregate'");

	$node->safe_psql($db, join('', map {
		$next++;
		"SELECT outbox.enqueue_text('a', '$aggregate', 'e$next', " . ($_ eq 'b' ? "repeat('x', 3000)" : "'x'") . ');'
	} split(//, $letters)));
	return;
}

sub policy
{
	my ($policy) = @_;

	alter_system($node, "outbox.poison_policy = $policy");
	return;
}

# "e1=published e2=failed ...", waited for
sub is_state
{
	my ($aggregate, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(
		wait_for_query($node, $db,
			"SELECT coalesce(string_agg(event_type || '=' || publish_state, ' ' ORDER BY position), '') FROM outbox.events WHERE aggregate_id = '$aggregate'",
			expected => $expected, timeout => 15),
		"$aggregate: $name");
}

sub is_dead
{
	my ($aggregate, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(dead_states($node, $db, $aggregate), $expected, "$aggregate: $name");
}

sub redrive
{
	my ($arguments) = @_;

	return $node->safe_psql($db, "SELECT outbox.redrive($arguments)");
}

sub discard
{
	my ($arguments) = @_;

	return $node->safe_psql($db, "SELECT outbox.discard('no use', $arguments)");
}

sub event_id
{
	my ($aggregate, $type) = @_;

	return $node->safe_psql($db, "SELECT event_id FROM outbox.events WHERE aggregate_id = '$aggregate' AND event_type = '$type'");
}

# In the order in which they got into the stream.
sub stored
{
	my ($aggregate) = @_;

	return join(' ', map { $_->{headers}{'ce-type'} } $nats->dump('OUTBOX', "outbox.a.$aggregate.>"));
}

sub size_limit
{
	my ($limit) = @_;

	$nats->tool('update', 'OUTBOX', '--max-msg-size', $limit);
	return;
}

sub watermark_passes
{
	my ($aggregate) = @_;

	return wait_for_query($node, $db,
		"SELECT (SELECT max(position) FROM outbox.watermark) >= (SELECT max(position) FROM outbox.events WHERE aggregate_id = '$aggregate')",
		timeout => 10);
}

# ------------------------------------------------------------------ block

policy('block');
events('b1', 'gbgg');
is_state('b1', 'e1=published e2=failed e3=pending e4=pending', 'block: the others wait');
is_dead('b1', 'e2=blocks its aggregate', 'block: a dead letter');
$node->restart;
wait_relay($node, $db);
events('b1', 'g');
events('free', 'g');
is_state('free', 'e1=published', 'other aggregates don\'t wait');
is_state('b1', 'e1=published e2=failed e3=pending e4=pending e5=pending', 'block: after a restart, too');
is(redrive("aggregate_id => 'b1'"), 1, 'block: redriven');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.dead_letters WHERE aggregate_id = 'b1' AND failed_at > now() - interval '5 s'}), 'block: fails again');
is($node->safe_psql($db, q{SELECT attempts FROM outbox.dead_letters WHERE aggregate_id = 'b1'}), 1, 'block: with new attempts');
size_limit(100_000);
is(redrive("aggregate_id => 'b1'"), 1, 'block: redriven once more');
is(redrive("aggregate_id => 'b1'"), 0, 'block: not twice');
is_state('b1', join(' ', map { "e$_=published" } 1 .. 5), 'block: all published');
is(stored('b1'), 'e1 e2 e3 e4 e5', 'block: in order');
size_limit(2000);

# by discard
events('b2', 'bgbg');
is_state('b2', 'e1=failed e2=pending e3=pending e4=pending', 'block');
is(discard("aggregate_id => 'b2'"), 1, 'block: discarded');
is_state('b2', 'e1=failed e2=published e3=failed e4=pending', 'block: on to the next one');
is_dead('b2', 'e3=blocks its aggregate', 'block: which is no dead letter any more');
is($node->safe_psql($db, q{SELECT event_type, discard_reason, discarded_by = session_user, discarded_at > now() - interval '1 min' FROM outbox.discarded_events WHERE aggregate_id = 'b2'}),
	'e1|no use|t|t', 'block: who, when, why');
is(redrive("event_id => '" . event_id('b2', 'e1') . "'"), 0, 'a discarded event is not redriven');
is(discard("event_id => '" . event_id('b2', 'e1') . "'"), 0, 'nor discarded again');
$node->restart;
is(discard("error_code => 10054"), 1, 'block: discarded by code');
is_state('b2', 'e1=failed e2=published e3=failed e4=published', 'block: on');
is_dead('b2', '', 'block: no dead letter is left');

# ------------------------------------------------------------------- skip

policy('skip');
events('s1', 'gbgbg');
is_state('s1', 'e1=published e2=failed e3=published e4=failed e5=published', 'skip');
is_dead('s1', 'e2=skipped e4=skipped', 'skip: two dead letters');
ok(watermark_passes('s1'), 'skip: terminal, so the watermark passes');
# redriven below the watermark, and it fails again, each time under another policy
policy('block');
is(redrive("event_id => '" . event_id('s1', 'e2') . "'"), 1, 'skip: one redriven, block now');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.dead_letters WHERE aggregate_id = 's1' AND state = 'blocks its aggregate'}), 'it fails again and blocks');
events('s1', 'g');
is_state('s1', 'e1=published e2=failed e3=published e4=failed e5=published e6=pending', 'what came later waits for it');
policy('skip');
is(redrive("event_id => '" . event_id('s1', 'e2') . "'"), 1, 'redriven again, skip now');
is_state('s1', 'e1=published e2=failed e3=published e4=failed e5=published e6=published', 'it fails again and is skipped');
policy('block');
is(redrive("event_id => '" . event_id('s1', 'e2') . "'"), 1, 'redriven again, block');
ok(wait_for_query($node, $db, q{SELECT count(*) = 1 FROM outbox.dead_letters WHERE aggregate_id = 's1' AND state = 'blocks its aggregate'}), 'it fails again and blocks');
size_limit(100_000);
is(redrive("aggregate_id => 's1'"), 2, 'redriven both, they would fit');
is_state('s1', join(' ', map { "e$_=published" } 1 .. 6), 'skip: all published');
is(stored('s1'), 'e1 e3 e5 e6 e2 e4', 'skip: the dead ones after those that were behind them');
size_limit(2000);
policy('skip');
events('s2', 'bgb');
is_state('s2', 'e1=failed e2=published e3=failed', 'skip');
is(discard("aggregate_type => 'a', event_type => 'e1'"), 1, 'skip: one discarded');
is_dead('s2', 'e3=skipped', 'skip: the other one is left');

# ------------------------------------------------------------------- park

policy('park');
events('p1', 'gbgbg');
is_state('p1', 'e1=published e2=failed e3=failed e4=failed e5=failed', 'park');
is_dead('p1', 'e2=parked e3=parked e4=parked e5=parked', 'park: all dead letters');
is($node->safe_psql($db, q{SELECT event_type, attempts, error_code, last_error FROM outbox.dead_letters WHERE aggregate_id = 'p1' AND event_type IN ('e3', 'e4')}),
	join("\n", map { "$_|0|0|outbox relay: an earlier event of the aggregate has failed" } qw(e3 e4)), 'park: unsent');
policy('skip');
events('p1', 'g');
ok(wait_for_query($node, $db, q{SELECT count(*) = 5 FROM outbox.dead_letters WHERE aggregate_id = 'p1'}), 'park: also under another policy');
is($node->safe_psql($db, q{SELECT reason, depth FROM outbox.blocked_aggregates WHERE aggregate_id = 'p1'}), 'parked|4', 'park: shown');
$node->stop('immediate');
$node->start;
wait_relay($node, $db);
events('p1', 'g');
ok(wait_for_query($node, $db, q{SELECT count(*) = 6 FROM outbox.dead_letters WHERE aggregate_id = 'p1'}), 'park: after a crash, too');
# any one of them brings back all; the second bad one fails again
policy('park');
is(discard("event_id => '" . event_id('p1', 'e2') . "'"), 1, 'park: the culprit is discarded');
is(redrive("event_id => '" . event_id('p1', 'e6') . "'"), 5, 'park: one redriven, the whole aggregate comes back');
is_state('p1', 'e1=published e2=failed e3=published e4=failed e5=failed e6=failed e7=failed', 'park: up to the next bad one');
is_dead('p1', join(' ', map { "e$_=parked" } 4 .. 7), 'park: parked again');
size_limit(100_000);
is(redrive('max_events => 1'), 5, 'max_events takes the oldest dead letter first, with its parked aggregate if it has one')
  if 0;
is(redrive("aggregate_type => 'a', aggregate_id => 'p1', error_code => 10054"), 4, 'park: redriven by its culprit\'s code');
is_state('p1', 'e1=published e2=failed ' . join(' ', map { "e$_=published" } 3 .. 7), 'park: all published');
is(stored('p1'), 'e1 e3 e4 e5 e6 e7', 'park: in order');
events('p1', 'g');
is_state('p1', 'e1=published e2=failed ' . join(' ', map { "e$_=published" } 3 .. 8), 'park: no longer');
size_limit(2000);

# discarded one by one; the last one frees the aggregate
events('p2', 'bgg');
is_state('p2', 'e1=failed e2=failed e3=failed', 'park');
is(discard("event_id => '" . event_id('p2', "e$_") . "'"), 1, "park: e$_ discarded") foreach 2, 1;
events('p2', 'g');
is_state('p2', 'e1=failed e2=failed e3=failed e4=failed', 'park: still');
is_dead('p2', 'e3=parked e4=parked', 'park: two are left');
is(discard("aggregate_id => 'p2'"), 2, 'park: the rest discarded');
events('p2', 'g');
is_state('p2', 'e1=failed e2=failed e3=failed e4=failed e5=published', 'park: no longer');

# a skipped one of an aggregate that is parked later: only it comes back
policy('skip');
events('p3', 'bg');
is_state('p3', 'e1=failed e2=published', 'skip');
policy('park');
events('p3', 'bg');
is_state('p3', 'e1=failed e2=published e3=failed e4=failed', 'skip, then park');
size_limit(100_000);
is(redrive("event_id => '" . event_id('p3', 'e1') . "'"), 1, 'the skipped one redriven');
is_state('p3', 'e1=published e2=published e3=failed e4=failed', 'it alone comes back');
is(redrive("aggregate_id => 'p3'"), 2, 'the others redriven');
is_state('p3', 'e1=published e2=published e3=published e4=published', 'come back, too');
size_limit(2000);

# --------------------------------------------------- filters, transactions

policy('skip');
is(redrive('max_events => 0'), 0, 'none asked for');
$node->safe_psql($db, q{SELECT outbox.discard('clean', aggregate_type => 'a')});
events("f$_", 'b') foreach 1 .. 6;
ok(wait_for_query($node, $db, q{SELECT count(*) = 6 FROM outbox.dead_letters}), 'six dead letters');
size_limit(100_000);
is(redrive("event_id => gen_random_uuid()"), 0, 'filter: unknown id');
is(redrive("event_id => '" . event_id('f1', 'e1') . "', aggregate_id => 'f2'"), 0, 'filter: all must match');
is(redrive("aggregate_type => 'b'"), 0, 'filter: type');
is(redrive("event_type => 'e2'"), 0, 'filter: event type');
is(redrive("error_code => 10077"), 0, 'filter: code');
is(redrive("failed_after => now()"), 0, 'filter: from then on');
is(redrive("failed_before => now() - interval '1 hour'"), 0, 'filter: before then');
is(redrive("failed_after => now() - interval '1 hour', failed_before => now(), event_type => 'e1', error_code => 10054, aggregate_type => 'a', aggregate_id => 'f1'"), 1, 'filter: all together');
is_state('f1', 'e1=published', 'filter: that one');
is(redrive('max_events => 2'), 2, 'two of them');
is_state("f$_", 'e1=published', 'the oldest first') foreach 2, 3;
is($node->safe_psql($db, q{SELECT string_agg(aggregate_id, ' ' ORDER BY position) FROM outbox.dead_letters}), 'f4 f5 f6', 'the others stay');
is($node->safe_psql($db, q{BEGIN; SELECT outbox.redrive(); ROLLBACK}), 3, 'rolled back');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.dead_letters}), 3, 'nothing happened');
my ($code, $out, $err) = $node->psql($db, q{BEGIN; SELECT outbox.redrive(); PREPARE TRANSACTION 'x'});
like($err, qr/cannot PREPARE a transaction that has redriven/, 'not in a prepared transaction');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.dead_letters}), 3, 'nothing happened');
is($node->safe_psql($db, q{BEGIN; SAVEPOINT s; SELECT outbox.redrive(aggregate_id => 'f4'); ROLLBACK TO s; SELECT outbox.redrive(aggregate_id => 'f5'); COMMIT}), "1\n1", 'with a savepoint');
is_state('f5', 'e1=published', 'the one that was not rolled back');
is_state('f4', 'e1=failed', 'not the other one');
is(redrive(''), 2, 'the rest');
is_state("f$_", 'e1=published', 'published') foreach 4, 6;
size_limit(2000);

# ------------------------------------------------------ what was announced

# Each dead letter that failed itself: once in the log, once on the subject.
my @warnings = slurp_file($node->logfile) =~ /WARNING:  event (\S+) can't be published and becomes a dead letter/g;
ok(wait_until(10, sub { $listener->pump_nb; (() = $announced =~ /\n/g) >= @warnings }), 'each is announced');
my @ids = map { /"event_id":"([^"]+)"/ } split(/\n/, $announced);
is_deeply([ sort @ids ], [ sort @warnings ], 'the same in log and announcements');
like($announced, qr/\{"event_id":"[0-9a-f-]{36}","position":\d+,"database":"postgres","subject":"outbox\.a\.b1\.e2","attempts":1,"error_code":10054,"error":"JetStream error 10054: [^"]+"\}/, 'an announcement');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.request}), 0, 'no request is left');
$listener->kill_kill(grace => 1);
check_no_crash($node);
done_testing();
