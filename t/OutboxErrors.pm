# OutboxErrors.pm
#
# What the tests of failures (t/06x) share: answers in place of a stream's, the
# counts of each class of error, and enqueueing with chosen subjects.

use strict;
use warnings;

package OutboxErrors;

use Carp;
use Exporter 'import';
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

our @EXPORT = qw(respond stop_responding arrivals refusal positive error_counts counts_since event_row enqueue
  good_ones good_ones_pass states is_in_the_end dead_states);

# JetStream's refusal and its acknowledgement, as texts.
sub refusal
{
	my ($status, $code, $text) = @_;

	return qq({"type":"io.nats.jetstream.api.v1.pub_ack_response","error":{"code":$status,"err_code":$code,"description":"$text"},"stream":"OUTBOX","seq":0});
}

sub positive
{
	my ($stream) = @_;

	return qq({"stream":"$stream","seq":7});
}

# Answers each message to the subject with a text, or, without one, keeps silent. What
# arrives goes to a file: a pipe that nobody reads would fill up and stop it.
sub respond
{
	my ($nats, $subject, $reply) = @_;
	my $file = PostgreSQL::Test::Utils::tempdir('arrivals') . '/list';

	return { file => $file,
		run => $nats->start_tool($file, 'respond', $subject, defined $reply ? ('--reply', $reply) : ()) };
}

sub stop_responding
{
	my ($responder) = @_;

	$responder->{run}->kill_kill(grace => 1);
	return;
}

# What it has received so far: [microseconds, subject, Nats-Msg-Id] each.
sub arrivals
{
	my ($responder) = @_;

	return map { [ (split(/\t/, $_, -1))[ 0 .. 2 ] ] } split(/\n/, slurp_file($responder->{file}));
}

# Of this database: { unknown => 0, ... }
sub error_counts
{
	my ($node, $db) = @_;

	return { map { split(/\|/, $_) } split(/\n/, $node->safe_psql($db, 'SELECT class, count FROM outbox.error_counts()')) };
}

# The classes that grew, as one text.
sub counts_since
{
	my ($node, $db, $before) = @_;
	my $now = error_counts($node, $db);

	return join(' and ', grep { $now->{$_} > $before->{$_} } sort keys %$now);
}

# publish_state|attempts|last_error of an aggregate's event
sub event_row
{
	my ($node, $db, $aggregate, $type) = @_;

	return $node->safe_psql($db,
		"SELECT publish_state, attempts, last_error FROM outbox.events WHERE aggregate_id = '$aggregate' AND event_type = '$type'");
}

# One event; options are further arguments of outbox.enqueue_text, in SQL.
sub enqueue
{
	my ($node, $db, $aggregate, $type, %opt) = @_;
	my $payload = delete $opt{payload} // "'x'";
	my $more = join('', map { ", $_ => $opt{$_}" } sort keys %opt);

	$node->safe_psql($db, "SELECT outbox.enqueue_text('a', '$aggregate', '$type', $payload$more)");
	return;
}

# Twenty aggregates that nothing is wrong with, two events each.
sub good_ones
{
	my ($node, $db, $name) = @_;

	$node->safe_psql($db,
		"SELECT outbox.enqueue_text('good $name', (i % 20)::text, 'e', 'x') FROM generate_series(1, 40) i");
	return;
}

sub good_ones_pass
{
	my ($node, $db, $name, $seconds) = @_;
	my $start = time();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(
		wait_for_query($node, $db,
			"SELECT count(*) = 40 FROM outbox.events WHERE aggregate_type = 'good $name' AND publish_state = 'published'",
			timeout => 20),
		"$name: others are published");
	return cmp_ok(time() - $start, '<', slack($seconds // 2), "$name: ... and not slowed");
}

# event_type=publish_state of an aggregate's events, in order.
sub states
{
	my ($node, $db, $aggregate) = @_;

	return $node->safe_psql($db,
		"SELECT string_agg(event_type || '=' || publish_state, ' ' ORDER BY position) FROM outbox.events WHERE aggregate_id = '$aggregate'");
}

# They become so.
sub is_in_the_end
{
	my ($node, $db, $aggregate, $expected, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok(
		wait_for_query($node, $db,
			"SELECT string_agg(event_type || '=' || publish_state, ' ' ORDER BY position) FROM outbox.events WHERE aggregate_id = '$aggregate'",
			expected => $expected, timeout => 15),
		$name);
}

# The same of what stands in outbox.dead_letters.
sub dead_states
{
	my ($node, $db, $aggregate) = @_;

	return $node->safe_psql($db,
		"SELECT coalesce(string_agg(event_type || '=' || state, ' ' ORDER BY position), '') FROM outbox.dead_letters WHERE aggregate_id = '$aggregate'");
}

1;
