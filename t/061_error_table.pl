# Each row of the table of errors in docs/delivery.md, provoked by a real
# nats-server where it can be made to, else by an answer in place of a stream's:
# the class it is counted in, attempts, code and text, what becomes of the event,
# others that are not slowed, and the recovery once the cause is gone.
# t/040 has the limits of an account and JetStream switched off.

use strict;
use warnings;

use OutboxErrors;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start(
	user => 'relay',
	password => 'secret',
	authorization => 'users = [ { user: relay, password: secret, permissions: { publish: { deny: "denied.>" } } } ]');
$nats->tool('create', 'OUTBOX', 'outbox.>,extra.>');
$nats->tool('create', 'OTHER', 'other.>');
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
outbox.stream_create = off
outbox.ack_timeout = 5s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 300ms
outbox.max_attempts = 3
max_connections = 40
shared_buffers = 64MB
jit = off
log_statement = none
CONF
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

# A bad event e1 with a follower e2 that would pass, beside others; then what its class promises.
#   subject    of e1; e2 has the default
#   class      that alone is counted in
#   text       of last_error: of the event, or, where none is kept for it, of status()
#   heal       removes the cause; not for permanent ones
sub row
{
	my ($name, %row) = @_;
	my $counts = error_counts($node, $db);
	my $permanent = $row{class} =~ /^event/;
	my $start;

	enqueue($node, $db, $name, 'e1', subject => "'$row{subject}'");
	enqueue($node, $db, $name, 'e2');
	if ($permanent)
	{
		my $attempts = $row{class} eq 'event, permanent' ? 1 : 3;

		ok(wait_for_query($node, $db, "SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = '$name' AND event_type = 'e2'"),
			"$name: the next event goes out");
		like(event_row($node, $db, $name, 'e1'), qr/^failed\|$attempts\|JetStream error $row{code}: /, "$name: failed after $attempts attempts");
		is($node->safe_psql($db, "SELECT attempts, error_code, state FROM outbox.dead_letters WHERE aggregate_id = '$name'"),
			"$attempts|$row{code}|skipped", "$name: a dead letter");
	}
	else
	{
		my $kept = $row{class} eq 'stream';
		my $where = $kept ? "outbox.events WHERE aggregate_id = '$name' AND event_type = 'e1'" : 'outbox.status() WHERE database = current_database()';

		ok(wait_for_query($node, $db, "SELECT coalesce(last_error ~ '$row{text}', false) FROM $where"), "$name: the error is shown");
		# for more attempts than would be allowed
		ok(wait_until(60, sub { error_counts($node, $db)->{ $row{class} } >= $counts->{ $row{class} } + 5 }), "$name: again and again");
		like(states($node, $db, $name), qr/^e1=(?:pending|processing) e2=pending$/, "$name: the aggregate waits");
		is($node->safe_psql($db, "SELECT attempts FROM outbox.events WHERE aggregate_id = '$name' AND event_type = 'e1'"), 0, "$name: no attempt is counted");
		is($node->safe_psql($db, "SELECT reason, depth, attempts, next_attempt_at > now() - interval '5 s' FROM outbox.blocked_aggregates WHERE aggregate_id = '$name'"),
			'retrying|1|0|t', "$name: a blocked aggregate") if $kept;
	}
	good_ones($node, $db, $name);
	good_ones_pass($node, $db, $name);
	is(counts_since($node, $db, $counts), $row{class}, "$name: counted as \"$row{class}\" alone");
	return if $permanent;

	$row{heal}->();
	$start = time();
	ok(wait_for_query($node, $db, "SELECT bool_and(publish_state = 'published') FROM outbox.events WHERE aggregate_id = '$name'"), "$name: published in the end");
	# some back-offs, and a silence that began before
	cmp_ok(time() - $start, '<', slack(20), "$name: soon after the cause is gone");
	is(event_row($node, $db, $name, 'e1') =~ s/\|.*//r, 'published', "$name: e1, too");
	return;
}

# ------------------------------------------------------------------ real ones

row('no stream', subject => 'none.x', class => 'stream', text => '^NATS server: no stream listens to the subject',
	heal => sub { $nats->tool('update', 'OUTBOX', 'outbox.>,extra.>,none.>') });
row('another stream', subject => 'other.x', class => 'stream', text => '^JetStream error 10060: ',
	heal => sub { $nats->tool('delete', 'OTHER'); $nats->tool('update', 'OUTBOX', 'outbox.>,extra.>,none.>,other.>') });
$nats->tool('update', 'OUTBOX', '--max-msgs-per-subject', 1000, '--discard-new', '--discard-new-per-subject');
$nats->tool('publish', 'extra.full', $_) foreach 1 .. 3;
$nats->tool('update', 'OUTBOX', '--max-msgs-per-subject', 3);
row('subject full', subject => 'extra.full', class => 'stream', text => '^JetStream error 10077: maximum messages per subject exceeded',
	heal => sub { $nats->tool('update', 'OUTBOX', '--max-msgs-per-subject', 1000) });

# The broker tells it in no answer, but beside it: at once all the same.
row('denied', subject => 'denied.x', class => 'stream', text => '^NATS server: .*permi',
	heal => sub {
		$nats->tool('update', 'OUTBOX', 'outbox.>,extra.>,none.>,other.>,denied.>');
		$nats->write_config(authorization => 'users = [ { user: relay, password: secret } ]');
		$nats->reload;
	});

# Full as a whole: nobody gets through, no attempt is used up.
my $counts = error_counts($node, $db);
$nats->tool('update', 'OUTBOX', '--max-msgs', $nats->info('OUTBOX')->{messages});
good_ones($node, $db, 'full');
ok(wait_for_query($node, $db, q{SELECT count(*) = 20 FROM outbox.events WHERE aggregate_type = 'good full' AND last_error ~ '^JetStream error 10077: maximum messages exceeded'}),
	'full: shown at each event that was refused');
ok(wait_until(60, sub { error_counts($node, $db)->{stream} >= $counts->{stream} + 100 }), 'full: again and again');
is($node->safe_psql($db, q{SELECT max(attempts), count(*) FILTER (WHERE publish_state = 'failed') FROM outbox.events WHERE aggregate_type = 'good full'}), '0|0', 'full: no attempt is counted');
is(own_status($node, $db)->{state}, 'active', 'full: it is the stream\'s trouble, not the broker\'s');
is(counts_since($node, $db, $counts), 'stream', 'full: counted as "stream" alone');
$nats->tool('update', 'OUTBOX', '--max-msgs', -1);
good_ones_pass($node, $db, 'full');

# Larger than the stream allows.
$nats->tool('update', 'OUTBOX', '--max-msg-size', 5000);
$counts = error_counts($node, $db);
enqueue($node, $db, 'size', 'e1', payload => "repeat('x', 5001)");
enqueue($node, $db, 'size', 'e2');
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'size' AND event_type = 'e2'}), 'size: the next event goes out');
like(event_row($node, $db, 'size', 'e1'), qr/^failed\|1\|JetStream error 10054: /, 'size: failed after one attempt');
is(counts_since($node, $db, $counts), 'event, permanent', 'size: counted');
$nats->tool('update', 'OUTBOX', '--max-msg-size', -1);

# ------------------------------------------------------------ by their answers

# All codes of a class at once.
sub codes
{
	my ($class, $status, @codes) = @_;
	my $before = error_counts($node, $db);
	my @responders = map { respond($nats, "core.$_", refusal($status, $_, "it says $_")) } @codes;
	my $pattern = $class eq 'stream' ? 'pending|processing' : 'failed';

	enqueue($node, $db, "code $_", 'e1', subject => "'core.$_'") foreach @codes;
	good_ones($node, $db, "$class $status");
	good_ones_pass($node, $db, "$class $status");
	foreach my $code (@codes)
	{
		ok(wait_for_query($node, $db, "SELECT coalesce(last_error = 'JetStream error $code: it says $code', false) AND publish_state ~ '$pattern' FROM outbox.events WHERE aggregate_id = 'code $code'"),
			"$code ($status): $class");
	}
	is(counts_since($node, $db, $before), $class, "$class $status: counted as such alone");
	return @responders;
}

codes('event, permanent', 400, 10070, 10071, 10097, 10111, 10164, 10165, 10166);
is($node->safe_psql($db, q{SELECT count(*), max(attempts) FROM outbox.dead_letters WHERE aggregate_id LIKE 'code %'}), '7|1', 'permanent: dead letters after one attempt');
codes('event, transient', 400, 10999);
row('refusal 10997', subject => 'core.10997', class => 'event, transient', code => 10997) if respond($nats, 'core.10997', refusal(404, 10997, 'it says'));

my @refusing = codes('stream', 400, 10051, 10053, 10059, 10060, 10063, 10077, 10096, 10109, 10118, 10167);
stop_responding($_) foreach @refusing;
@refusing = map { respond($nats, "core.$_", positive('OUTBOX')) } (10051, 10053, 10059, 10060, 10063, 10077, 10096, 10109, 10118, 10167);
ok(wait_for_query($node, $db, q{SELECT count(*) = 10 AND max(attempts) = 1 FROM outbox.events WHERE aggregate_id LIKE 'code %' AND publish_state = 'published'}),
	'stream: published at the first attempt that counts');

my $responder = respond($nats, 'core.10998', refusal(503, 10998, 'it says'));
row('refusal 10998', subject => 'core.10998', class => 'stream', text => '^JetStream error 10998: it says$',
	heal => sub { stop_responding($responder); $responder = respond($nats, 'core.10998', positive('OUTBOX')) });

my %answers = ('garbage' => 'hello', 'empty' => '', 'no ack' => '{}', 'foreign ack' => positive('ELSEWHERE'), 'in process' => refusal(400, 10158, 'it says'), 'mute' => undef);
my %texts = ('mute' => 'no acknowledgement', 'foreign ack' => 'by another stream, "ELSEWHERE"', 'in process' => 'JetStream error 10158: it says');
foreach my $name (sort keys %answers)
{
	my $subject = 'core.' . $name =~ s/ /_/r;
	$responder = respond($nats, $subject, $answers{$name});
	# for the others a silence would be an error of another cause
	$node->safe_psql($db, sprintf(q{ALTER SYSTEM SET outbox.ack_timeout = '%s'}, $name eq 'mute' ? '300ms' : '5s'));
	$node->reload;

	row($name, subject => $subject, class => 'unknown', text => $texts{$name} // 'the answer is no JetStream acknowledgement',
		heal => sub { stop_responding($responder); $responder = respond($nats, $subject, positive('OUTBOX')) });
	# the same id each time
	is($node->safe_psql($db, "SELECT event_id FROM outbox.events WHERE aggregate_id = '$name' AND event_type = 'e1'"),
		join(',', keys %{ { map { $_->[2] => 1 } arrivals($responder) } }), "$name: sent again under its id");
	stop_responding($responder);
}

# ---------------------------------------------------------------- sealed: last

$nats->tool('update', 'OUTBOX', '--seal');
row_all_refused();

sub row_all_refused
{
	my $before = error_counts($node, $db);

	enqueue($node, $db, 'sealed', 'e1');
	ok(wait_for_query($node, $db, q{SELECT coalesce(last_error ~ '^JetStream error 10109: ', false) FROM outbox.events WHERE aggregate_id = 'sealed'}), 'sealed: shown');
	is($node->safe_psql($db, q{SELECT attempts, publish_state <> 'failed' FROM outbox.events WHERE aggregate_id = 'sealed'}), '0|t', 'sealed: no attempt is counted');
	is(counts_since($node, $db, $before), 'stream', 'sealed: counted as "stream" alone');
	$nats->tool('delete', 'OUTBOX');
	$nats->tool('create', 'OUTBOX', 'outbox.>');
	ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_id = 'sealed'}), 'sealed: published into a new stream');
	return;
}

check_no_crash($node);
done_testing();
