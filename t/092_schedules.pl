# An event with not_before waits with the stream, if it is to and the stream keeps
# messages until their time: it is published at once, and delivered in time without
# the database. Where the stream doesn't, it waits here, as all others.

use strict;
use warnings;

use JSON::PP;
use OutboxTest;
use Test::More;
use Time::HiRes qw(time);

my $db = 'postgres';
my ($nats, $node);

# Enqueues an event of an aggregate, due in so many seconds; returns its id.
sub enqueue_for
{
	my ($aggregate, $seconds, %opt) = @_;
	my $headers = encode_json({ 'Nats-Schedule' => '@not_before', x => 'y', %{ $opt{headers} // {} } });

	return $node->safe_psql($db,
		"SELECT outbox.enqueue('order', '$aggregate', 'e', '{\"n\": 1}', headers => '$headers', not_before => now() + interval '$seconds s')");
}

sub publish_state
{
	my ($id) = @_;

	return $node->safe_psql($db, "SELECT publish_state FROM outbox.events WHERE event_id = '$id'");
}

sub messages_under
{
	my ($subject, $stream) = @_;

	return grep { $_->{subject} =~ /^\Q$subject\E(\.|$)/ } $nats->dump($stream // 'OUTBOX');
}

# An event that is due in two seconds is published by then, in its own place, and not before.
sub waits_here
{
	my ($name, $aggregate) = @_;
	my $begin = time;
	my $id = enqueue_for($aggregate, 2);
	my $behind = $node->safe_psql($db, "SELECT outbox.enqueue('order', '$aggregate', 'e', '{}')");

	is(publish_state($id), 'pending', "$name: the event waits in the database");
	ok(wait_published($node, $db), "$name: and is published");
	cmp_ok(time - $begin, '>', 1.9, "$name: in its time");
	is_deeply([ map { $_->{headers}{'ce-id'} } messages_under("outbox.order.$aggregate") ], [ $id, $behind ], "$name: before those behind it");
	is_deeply([ map { [ @{ $_->{headers} }{qw(x Nats-Schedule Nats-Schedule-Target)} ] } (messages_under("outbox.order.$aggregate"))[0] ],
		[ [ 'y', undef, undef ] ], "$name: as any other");
	is(scalar(messages_under('outbox.schedules')), 0, "$name: nothing is scheduled");
	return;
}

sub create_stream
{
	my ($name, %opt) = @_;

	$nats->api("STREAM.CREATE.$name",
		encode_json({ name => $name, storage => 'file', duplicate_window => 120_000_000_000, %opt }));
	return;
}

# ---------------------------------------------------------------- a server that knows none

$nats = OutboxNats->start;
$node = new_cluster('plain', nats => $nats);
ok(wait_relay($node, $db), 'a stream that takes none');
waits_here('an old server', 'a');
check_no_crash($node);
$node->stop;

# ---------------------------------------------------------------- one that does

SKIP:
{
	my $program = $ENV{NEWER_NATS_SERVER};
	skip('NEWER_NATS_SERVER names no nats-server of 2.12 or newer', 1) unless defined $program;

	$nats = OutboxNats->start(program => $program, monitor => 1);
	$node = new_cluster('newer', nats => $nats);
	ok(wait_relay($node, $db), 'a relay');
	is($nats->stream_config('OUTBOX')->{allow_msg_schedules}, undef, 'the stream that it makes takes none');
	waits_here('the stream takes none', 'a');

	# ---- not under our subjects
	create_stream('NARROW', subjects => ['narrow.order.>'], allow_msg_schedules => JSON::PP::true);
	$node->append_conf('postgresql.conf', "outbox.stream = 'NARROW'\noutbox.subject_template = 'narrow.{aggregate_type}.{aggregate_id}'");
	$node->reload;
	ok(wait_for_query($node, $db, q{SELECT stream = 'NARROW' AND state = 'active' FROM outbox.status()}), 'a stream without the subjects of schedules');
	my $narrow = enqueue_for('n', 1);
	ok(wait_published($node, $db), 'its events are published');
	is_deeply([ map { $_->{subject} } $nats->dump('NARROW') ], ['narrow.order.n'], 'under their own subjects');

	# ---- all as it should be
	create_stream('WIDE', subjects => ['wide.>'], allow_msg_schedules => JSON::PP::true, allow_msg_ttl => JSON::PP::true);
	$node->append_conf('postgresql.conf', "outbox.stream = 'WIDE'\noutbox.subject_template = 'wide.{aggregate_type}.{aggregate_id}'");
	$node->reload;
	ok(wait_for_query($node, $db, q{SELECT stream = 'WIDE' AND state = 'active' FROM outbox.status()}), 'a stream that takes schedules');
	$node->safe_psql($db, q{
		CREATE TABLE effects (event_id uuid, subject text);
		CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE sql AS 'INSERT INTO effects VALUES (m.event_id, m.subject)';
		SELECT outbox.subscribe('WIDE', 'all', 'handle')});
	my $late = enqueue_for('late', 3600);
	my $soon = enqueue_for('soon', 4, headers => { 'Nats-TTL' => '1h' });
	my $behind = $node->safe_psql($db, q{SELECT outbox.enqueue('order', 'soon', 'e', '{}')});
	my $never = $node->safe_psql($db, q{SELECT outbox.enqueue('order', 'never', 'e', '{}', headers => '{"Nats-Schedule": "@not_before"}', not_before => 'infinity')});
	my $here = $node->safe_psql($db, q{SELECT outbox.enqueue('order', 'here', 'e', '{}', not_before => now() + interval '1 h')});
	ok(wait_for_query($node, $db, "SELECT bool_and(publish_state = 'published') FROM outbox.events WHERE event_id IN ('$late', '$soon', '$behind')"), 'they are published at once');
	is_deeply([ map { publish_state($_) } $never, $here ], [ 'pending', 'pending' ], 'but for one that is never due, and one that is to wait here');
	my ($message) = messages_under("wide.schedules.$late", 'WIDE');
	is($message->{headers}{'Nats-Schedule-Target'}, 'wide.order.late', 'the stream has it for its subject');
	is('@at ' . $node->safe_psql($db, "SELECT to_char(not_before AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM outbox.events WHERE event_id = '$late'"),
		$message->{headers}{'Nats-Schedule'}, 'at its time');
	is($message->{headers}{x}, 'y', 'with its headers');
	is_deeply([ map { $_->{headers}{'ce-id'} } messages_under('wide.order.soon', 'WIDE') ], [$behind], 'what is behind it doesn\'t wait');
	my $elsewhere = $node->safe_psql($db,
		q{SELECT outbox.enqueue('order', 'elsewhere', 'e', '{}', subject => 'elsewhere.e', headers => '{"Nats-Schedule": "@not_before"}', not_before => now() + interval '1 h')});
	ok(wait_for_query($node, $db, "SELECT publish_state = 'pending' AND last_error ~ '10190' FROM outbox.events WHERE event_id = '$elsewhere'"), 'one for another stream waits, as others do');
	$node->stop;
	ok(wait_until(30, sub { messages_under('wide.order.soon', 'WIDE') == 2 }), 'without the database the stream delivers');
	my $delivered = (messages_under('wide.order.soon', 'WIDE'))[1];
	is($delivered->{headers}{'ce-id'}, $soon, 'the event');
	is($delivered->{headers}{'Nats-TTL'}, '1h', 'whose time to live begins then');
	is($delivered->{headers}{'Nats-Scheduler'}, "wide.schedules.$soon", 'and which says so');
	is(scalar(messages_under("wide.schedules.$soon", 'WIDE')), 0, 'the schedule is gone');
	is(scalar(messages_under('wide.order.late', 'WIDE')), 0, 'what is due later isn\'t delivered');

	# ---- what others make of it
	$node->start;
	ok(wait_relay($node, $db), 'a relay');
	ok(wait_for_query($node, $db, q{SELECT count(*) = 2 FROM effects}), 'a subscription has handled what was delivered');
	is($node->safe_psql($db, 'SELECT string_agg(event_id || $$ $$ || subject, $$ $$) FROM effects'), "$behind wide.order.soon $soon wide.order.soon", 'and no schedule');
	create_stream('REPLAY', subjects => ['replay.>']);
	my $batch = $node->safe_psql($db, q{SELECT DISTINCT batch_id FROM outbox.replay(aggregate_type => 'order', target_stream => 'REPLAY', target_prefix => 'replay')});
	ok(wait_for_query($node, $db, "SELECT state = 'done' FROM outbox.replays WHERE batch_id = '$batch'"), 'replayed');
	is_deeply([ map { [ $_->{headers}{'ce-id'}, $_->{headers}{'Nats-Schedule'} ] } messages_under('replay.wide.order.late', 'REPLAY') ],
		[ [ $late, undef ] ], 'at once, under its own subject');
	$node->append_conf('postgresql.conf', 'outbox.workers = 0');
	$node->restart;
	my $outside = enqueue_for('outside', 3600);
	is($node->safe_psql($db, q{SELECT count(*) FROM outbox.claim(10, '0')}), 0, 'relays outside wait for the time');
	check_no_crash($node);
}

done_testing();
