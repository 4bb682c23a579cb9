# OutboxReplay.pm
#
# What the tests of replays share.

use strict;
use warnings;

package OutboxReplay;

use Exporter 'import';
use OutboxTest;
use Test::More;

our @EXPORT = qw(start_replay wait_replay replay_problems);

# Asks for a replay; returns its batch id.
sub start_replay
{
	my ($node, $db, $arguments) = @_;

	return $node->safe_psql($db, "SELECT batch_id FROM outbox.replay($arguments)");
}

# Waits for a state of it; tells what it was otherwise.
sub wait_replay
{
	my ($node, $db, $id, $state, %opt) = @_;

	return 1 if wait_for_query($node, $db, "SELECT state FROM outbox.replays WHERE batch_id = '$id'", expected => $state, %opt);
	diag($node->safe_psql($db, "SELECT * FROM outbox.replays WHERE batch_id = '$id'"));
	return 0;
}

# What the messages of a replay have against those that it should repeat, in words.
#   prefix    that their subjects have got
#   order     0: not all in the order of the originals, only within an aggregate
#   copies    1: some may be there twice
sub replay_problems
{
	my ($nats, $stream, $id, $originals, %opt) = @_;
	my $prefix = $opt{prefix} // '';
	my (@problems, %seen, @ids);
	my %original = map { $_->{headers}{'ce-id'} => $_ } @$originals;

	foreach my $message (grep { ($_->{headers}{'x-replay-batch-id'} // '') eq $id } $nats->dump($stream))
	{
		my %headers = %{ $message->{headers} };
		my $event = delete $headers{'x-original-event-id'} // 'none';
		my $original = $original{$event};
		my $at = "at sequence $message->{seq}: $event";

		if (!defined $original)
		{
			push @problems, "$at: not asked for";
			next;
		}
		push @problems, "$at: twice" if $seen{$event}++ && !$opt{copies};
		push @ids, $event if $seen{$event} == 1;
		push @problems, "$at: another body" if $message->{payload} ne $original->{payload};
		push @problems, "$at: subject $message->{subject}" if $message->{subject} ne $prefix . $original->{subject};
		push @problems, "$at: not marked" if (delete $headers{'x-replay'} // '') ne 'true';
		push @problems, "$at: Nats-Msg-Id $message->{msg_id}" if $message->{msg_id} ne "$id:$event";
		push @problems, "$at: stream $headers{'Nats-Expected-Stream'}" if $headers{'Nats-Expected-Stream'} ne $stream;
		my %expected = %{ $original->{headers} };
		delete @expected{ 'Nats-Msg-Id', 'Nats-Expected-Stream', grep { /^Nats-Batch/ } keys %expected };
		delete @headers{ 'Nats-Msg-Id', 'Nats-Expected-Stream', 'x-replay-batch-id' };
		push @problems, "$at: other headers: " . join(' ', %headers) if join("\0", map { $_, $headers{$_} } sort keys %headers) ne join("\0", map { $_, $expected{$_} } sort keys %expected);
	}
	push @problems, map { "$_ is missing" } grep { !$seen{$_} } sort keys %original;
	my @in_order = sort { $original{$a}{headers}{'ce-sequence'} cmp $original{$b}{headers}{'ce-sequence'} } @ids;
	push @problems, 'not in the order of positions' if "@ids" ne "@in_order";
	return @problems;
}

1;
