# OutboxChaosPlan.pm
#
# What a chaos run does, drawn from its seed alone: the shape of the run (how
# many relays, which policy, one broker or a cluster ...) and a list of faults,
# each with a start and an end. Pure: it starts nothing and asks nobody.
#
# Faults are drawn in lanes, one after the other within a lane, and lanes know
# nothing of each other. So the faults of a short run are the first ones of a
# longer run with the same seed.

use strict;
use warnings;

package OutboxChaosPlan;

use Digest::SHA qw(sha256);
use Exporter 'import';

our @EXPORT = qw(random_source shape_of plan_of);

# A source of numbers in [0, 1) that is the same everywhere for the same name.
sub random_source
{
	my (@name) = @_;
	my $name = join(':', @name);
	my $count = 0;
	my @ready;

	return sub {
		@ready = unpack('N8', sha256($name . ':' . $count++)) unless @ready;
		return shift(@ready) / 2**32;
	};
}

sub pick
{
	my ($random, @list) = @_;

	return $list[ int($random->() * @list) ];
}

# The settings of a run that stay as they are, but for the faults that change some for a while.
sub shape_of
{
	my ($seed) = @_;
	my $random = random_source($seed, 'shape');

	return {
		brokers => pick($random, 1, 3),
		policy => pick($random, qw(skip block park)),
		workers => pick($random, 1, 2, 3),
		lease => pick($random, 1, 2, 4),
		aggregates => pick($random, 20, 100, 400),
		# a short one lets second copies into the stream, where else only order among first copies shows
		dup_window_ms => pick($random, 200, 120_000),
		ring => pick($random, 4, 1024),
		in_flight => pick($random, 4, 64, 1024),
		relay_memory => pick($random, '1MB', '16MB'),
		# how long an asynchronous commit may be lost, unless a synchronous one comes, and how many are asynchronous
		wal_writer_delay => pick($random, '200ms', '10s'),
		poison => pick($random, 0.005, 0.03),
		async => pick($random, 0.3, 0.99),
	};
}

# Lanes: mean seconds between two faults, and the faults, each with its weight
# and the shortest and longest duration (drawn so that short ones are frequent).
# Names are those of methods of OutboxChaos.
my %lanes = (
	relay => [
		3,
		[ 6, 'freeze_relay', 0.2, 9 ],
		[ 3, 'terminate_relay', 0, 0 ],
		[ 1, 'kill_relay', 0, 0 ],
		[ 1, 'freeze_launcher', 0.5, 6 ],
		[ 1, 'terminate_launcher', 0, 0 ],
		[ 1, 'cancel_relay', 0, 0 ],
	],
	client => [
		2,
		[ 3, 'terminate_client', 0, 0 ],
		[ 2, 'cancel_client', 0, 0 ],
		[ 3, 'freeze_client', 0.2, 4 ],
		[ 1, 'hold_snapshot', 1, 10 ],
		[ 1, 'checkpoint', 0, 0 ],
	],
	server => [
		12,
		[ 3, 'kill_client', 0, 0 ],
		[ 3, 'stop_immediately', 0.1, 3 ],
		[ 1, 'kill_postmaster', 0.1, 3 ],
		[ 2, 'stop_fast', 0.1, 2 ],
	],
	broker => [
		6,
		[ 4, 'kill_broker', 0.1, 5 ],
		[ 2, 'stop_broker', 0.1, 5 ],
		[ 4, 'freeze_broker', 0.2, 6 ],
		[ 1, 'freeze_all_brokers', 0.2, 6 ],
		[ 1, 'kill_all_brokers', 0.1, 3 ],
	],
	network => [
		5,
		[ 2, 'network_swallow', 0.2, 6 ],
		[ 2, 'network_stall', 0.2, 6 ],
		[ 2, 'network_cut', 0, 4 ],
		[ 2, 'network_delay', 0.5, 8 ],
	],
	stream => [ 5, [ 1, 'stream_full', 0.5, 6 ], [ 2, 'stream_small_messages', 1, 6 ], ],
	settings => [
		6,
		[ 3, 'set_workers', 1, 8 ],
		[ 1, 'set_max_in_flight', 1, 8 ],
		[ 1, 'set_ack_timeout', 1, 8 ],
		[ 1, 'set_lease', 1, 8 ],
		[ 2, 'rotate_password', 0.1, 3 ],
	],
	operator => [
		3,
		[ 1, 'pause_all', 0.2, 3 ],
		[ 1, 'pause_type', 0.5, 5 ],
		[ 1, 'pause_subject', 0.5, 5 ],
		[ 3, 'redrive_all', 0, 0 ],
		[ 2, 'redrive_one', 0, 0 ],
		[ 1, 'discard_dead', 0, 0 ],
		[ 1, 'discard_pending', 0, 0 ],
	],
);

sub choose
{
	my ($random, @faults) = @_;
	my $sum = 0;

	$sum += $_->[0] foreach @faults;
	$sum *= $random->();
	foreach my $fault (@faults)
	{
		$sum -= $fault->[0];
		return $fault if $sum < 0;
	}
	return $faults[-1];
}

sub plan_lane
{
	my ($seed, $seconds, $lane) = @_;
	my ($gap, @faults) = @{ $lanes{$lane} };
	my $random = random_source($seed, $lane);
	my $at = 0.5;
	my @plan;

	while (1)
	{
		my (undef, $name, $shortest, $longest) = @{ choose($random, @faults) };
		my @numbers = map { $random->() } 1 .. 3;
		my $duration = $shortest + ($longest - $shortest) * $random->()**2;

		$at += $gap * -log(1 - $random->());
		return @plan if $at >= $seconds;
		push @plan, { lane => $lane, name => $name, at => $at, until => $at + $duration, numbers => \@numbers };
		$at += $duration;
	}
}

# The faults of all lanes that start within so many seconds, by their start.
sub plan_of
{
	my ($seed, $seconds) = @_;
	my @plan = map { plan_lane($seed, $seconds, $_) } sort keys %lanes;

	return sort { $a->{at} <=> $b->{at} } @plan;
}

1;
