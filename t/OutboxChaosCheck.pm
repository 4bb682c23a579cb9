# OutboxChaosCheck.pm
#
# The end of a chaos run: the writers' journals, outbox.events, and the stream
# must tell the same story. Each function returns what contradicts a promise, in
# words. They read, and change nothing.

use strict;
use warnings;

package OutboxChaosCheck;

use Digest::SHA qw(sha256_hex);
use Exporter 'import';
use OutboxChaosWriter;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

our @EXPORT = qw(load_evidence journal_differences position_contradictions terminal_differences stream_contradictions
  dead_letter_contradictions server_contradictions);

use constant MEMORY_LIMIT_KB => 100 * 1024;

# All that is compared, read once: { transactions, events (by id), copies (ids of
# messages of the stream, in order), dead (ids that once were dead letters) }.
sub load_evidence
{
	my ($chaos) = @_;
	my $evidence = { chaos => $chaos, transactions => [ read_journal(@{ $chaos->{journals} }) ], events => {}, messages => [], dead => {} };

	load_events($evidence);
	load_messages($evidence);
	$evidence->{dead}{$_} = 1 foreach slurp_file($chaos->{node}->logfile) =~ /WARNING:  event (\S+) can't be published and becomes a dead letter/g;
	note(sprintf('%d transactions, %d events, %d messages, %d dead letters',
			scalar(@{ $evidence->{transactions} }), scalar(keys %{ $evidence->{events} }), scalar(@{ $evidence->{messages} }), scalar(keys %{ $evidence->{dead} })));
	return $evidence;
}

sub load_events
{
	my ($evidence) = @_;
	my ($node, @columns) = ($evidence->{chaos}{node}, qw(id position type aggregate state discarded delivery committed published));
	my $rows = $node->safe_psql('postgres', q{
		SELECT e.event_id, e.position, e.aggregate_type, e.aggregate_id, e.publish_state, coalesce(d.state = 'x', false), d.state,
			extract(epoch FROM pg_xact_commit_timestamp(l.xmin)), e.published_at
		FROM outbox.events e JOIN outbox.log l ON l.position = e.position LEFT JOIN outbox.delivery d ON d.position = e.position});

	foreach my $row (split(/\n/, $rows))
	{
		my %event;

		@event{@columns} = split(/\|/, $row, -1);
		$event{times} = ($evidence->{events}{ $event{id} }{times} // 0) + 1;
		$evidence->{events}{ $event{id} } = \%event;
	}
	return;
}

# Like OutboxNats::dump, without most of the headers: there may be many.
sub load_messages
{
	my ($evidence) = @_;
	my ($info, $dump);

	# brokers that have just come back may need a while, and a replica that is read may lag behind
	wait_until(
		60,
		sub {
			$info = eval { $evidence->{chaos}->broker->info('OUTBOX') };
			$dump = eval { $evidence->{chaos}->leader->tool('dump', 'OUTBOX') };
			return $info && defined $dump && ($dump =~ tr/\n//) >= $info->{messages};
		}) or die 'no messages, or not all: ' . ($info ? $info->{messages} : $@);
	foreach my $line (split(/\n/, $dump))
	{
		my ($seq, undef, $id, $hash) = split(/\t/, $line, 5);
		my %headers = $line =~ /\t(ce-[a-z]+)=([^\t]*)/g;

		push @{ $evidence->{messages} },
		  { seq => $seq, id => $id, hash => $hash, position => $headers{'ce-sequence'}, type => $headers{'ce-aggregatetype'}, aggregate => $headers{'ce-subject'} };
	}
	return;
}

# ------------------------------------------------- journals and outbox.events

sub transaction_differences
{
	my ($events, $transaction) = @_;
	my @kept = grep { $_->{kept} } @{ $transaction->{events} };
	my @there = grep { $events->{ $_->{id} } } @kept;
	my $expected = { C => scalar(@kept), R => 0 }->{ $transaction->{outcome} };
	my @undone = grep { !$_->{kept} && $events->{ $_->{id} } } @{ $transaction->{events} };
	my $name = "transaction of $kept[0]{id}";
	my @differences;

	push @differences, "$name, outcome $transaction->{outcome}: " . @there . ' of ' . @kept . ' events exist'
	  if defined $expected ? @there != $expected : @there != 0 && @there != @kept;
	push @differences, map { "$name: $_->{id} exists, which went back to a savepoint" } @undone;
	return @differences;
}

# Atomic: every committed event exists, once, and no other.
sub journal_differences
{
	my ($evidence) = @_;
	my $events = $evidence->{events};
	my (%known, @differences);

	foreach my $transaction (@{ $evidence->{transactions} })
	{
		push @differences, transaction_differences($events, $transaction);
		foreach my $own (@{ $transaction->{events} })
		{
			my $event = $events->{ $own->{id} };

			$known{ $own->{id} } = $own;
			push @differences, "$own->{id} is of aggregate $event->{type} $event->{aggregate}, not $own->{type} $own->{aggregate}"
			  if $event && ($event->{type} ne $own->{type} || $event->{aggregate} ne $own->{aggregate});
		}
	}
	push @differences, map { "$_ exists, but nobody wrote it" } grep { !$known{$_} } sort keys %$events;
	push @differences, map { "$_ exists more than once" } grep { $events->{$_}{times} != 1 } sort keys %$events;
	$evidence->{known} = \%known;
	return @differences;
}

# Position order within an aggregate is commit order: by the writers' clocks, as
# far as they can tell, and by the server's commit timestamps.
sub position_contradictions
{
	my ($evidence) = @_;
	my (%of_aggregate, @contradictions);

	foreach my $transaction (@{ $evidence->{transactions} })
	{
		my $place = 0;

		foreach my $event (grep { $_ } map { $evidence->{events}{ $_->{id} } } @{ $transaction->{events} })
		{
			@{$event}{qw(transaction place)} = ($transaction, $place++);
			push @{ $of_aggregate{"$event->{type} $event->{aggregate}"} }, $event;
		}
	}
	foreach my $name (sort keys %of_aggregate)
	{
		my ($begun, $before) = (0);

		foreach my $event (sort { $a->{position} <=> $b->{position} } @{ $of_aggregate{$name} })
		{
			my $transaction = $event->{transaction};
			my $at = "$name, position $event->{position}";

			push @contradictions, "$at: its commit was over before that of an earlier position had begun"
			  if $transaction->{outcome} eq 'C' && $transaction->{end} < $begun;
			push @contradictions, "$at: not in the order of its transaction"
			  if $before && $before->{transaction} == $transaction && $before->{place} > $event->{place};
			push @contradictions, "$at: committed at $event->{committed}, the earlier position $before->{position} at $before->{committed}"
			  if $before && $before->{committed} > $event->{committed};
			$begun = $transaction->{begin} if $transaction->{begin} > $begun;
			$before = $event;
		}
	}
	return @contradictions;
}

# --------------------------------------------------- outbox.events by itself

# Everything is published or discarded, and no trace of work is left.
sub terminal_differences
{
	my ($evidence) = @_;
	my $left = $evidence->{chaos}{node}->safe_psql('postgres', q{
		SELECT (SELECT count(*) FROM outbox.request), (SELECT count(*) FROM outbox.pauses), (SELECT count(*) FROM outbox.dead_letters),
			(SELECT count(*) FROM outbox.blocked_aggregates), (SELECT count(*) FROM pg_prepared_xacts),
			(SELECT count(*) FROM outbox.in_flight_positions())});
	my @differences = map { "$_->{id}, position $_->{position}: $_->{state}" }
	  grep { $_->{discarded} eq 't' ? $_->{state} ne 'failed' : $_->{state} ne 'published' } values %{ $evidence->{events} };

	push @differences, "requests|pauses|dead letters|blocked aggregates|prepared transactions|in flight: $left" if $left ne '0|0|0|0|0|0';
	return @differences;
}

# Only large events are poison: no outage makes another one a dead letter, but
# for those that are parked behind one.
sub dead_letter_contradictions
{
	my ($evidence) = @_;

	return if $evidence->{chaos}{shape}{policy} eq 'park';
	return map { "$_ was a dead letter" } grep { ($evidence->{known}{$_}{size} // 0) < OutboxChaosWriter::LARGE } sort keys %{ $evidence->{dead} };
}

# ------------------------------------------------------------------ the stream

# What may come late: redriven after its successors had gone on.
sub may_be_late
{
	my ($evidence, $id) = @_;
	my $event = $evidence->{events}{$id};

	return 0 if $evidence->{chaos}{shape}{policy} ne 'skip';
	# the log lacks one whose relay was killed between its record and the message
	return $evidence->{dead}{$id} || $event && $event->{delivery} ne '' && ($evidence->{known}{$id}{size} // 0) >= OutboxChaosWriter::LARGE;
}

# At least once: each published event is there, as it was enqueued, and nothing
# else; first copies are in order.
sub stream_contradictions
{
	my ($evidence) = @_;
	my ($events, $known) = @{$evidence}{qw(events known)};
	my (%copies, %last, @contradictions);

	foreach my $message (@{ $evidence->{messages} })
	{
		my ($id, $event) = ($message->{id}, $events->{ $message->{id} });
		my $at = "at sequence $message->{seq}: $id";
		my $name = ($message->{type} // '') . ' ' . ($message->{aggregate} // '');

		if (!$event || !$known->{$id})
		{
			push @contradictions, "$at: nobody has committed it";
			next;
		}
		push @contradictions, "$at: another body" if $message->{hash} ne ($known->{$id}{hash} //= sha256_hex(body_of($id, $known->{$id}{size})));
		push @contradictions, "$at: position $message->{position}, aggregate $name, but $event->{position}, $event->{type} $event->{aggregate} in outbox.events"
		  if $message->{position} != $event->{position} || $name ne "$event->{type} $event->{aggregate}";
		next if $copies{$id}++ || may_be_late($evidence, $id);
		push @contradictions, "$at: $name: position $event->{position} after $last{$name}" if ($last{$name} // 0) > $event->{position};
		$last{$name} = $event->{position};
	}
	push @contradictions, map { "$_->{id}, position $_->{position}: published at $_->{published}, but not in the stream" }
	  sort { $a->{position} <=> $b->{position} } grep { $_->{state} eq 'published' && !$copies{ $_->{id} } } values %$events;
	note(scalar(grep { $_ > 1 } values %copies) . ' events have more than one copy');
	return @contradictions;
}

# ------------------------------------------------------------------ the server

# Nothing crashed but what was killed, and no relay was fat.
sub server_contradictions
{
	my ($evidence) = @_;
	my $chaos = $evidence->{chaos};
	my $killed = join('|', keys %{ $chaos->{killed} }) || 'nobody';
	my @memory = sort { $a <=> $b } values %{ $chaos->{memory} };
	my @contradictions = crash_lines($chaos->{node}, allow => qr/\(PID (?:$killed)\) was terminated by signal 9/);

	note(scalar(@memory) . " relays, of which the largest had $memory[-1] kB of its own") if @memory;
	push @contradictions, 'no relay was ever seen' unless @memory;
	push @contradictions, "a relay had $_ kB" foreach grep { $_ > MEMORY_LIMIT_KB } @memory;
	return @contradictions;
}

1;
