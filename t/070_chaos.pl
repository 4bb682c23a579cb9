# Six writers, one to three relays, one broker or three, and for a minute
# everything that can go wrong: relays, launcher, clients, PostgreSQL and brokers
# are killed, stopped and frozen, the network fails, the stream is full, events
# are poison, passwords and settings change, operators pause, redrive and
# discard. Then the writers' journals, outbox.events and the stream are compared.
#
# What is done, and when, comes from a seed. For other runs than those below:
# CHAOS_SEED and CHAOS_SECONDS (see scripts/chaos).

use strict;
use warnings;

use OutboxChaos;
use OutboxChaosCheck;
use PostgreSQL::Test::Utils;
use Test::More;

# Seeds that once failed stay here, with the time they need: [ seed, seconds ].
my @runs = (
	# a parked aggregate, redriven while its first event is still refused: the others overtook it
	[ 5, 30 ],
	# a cluster
	[ 6, 30 ],
);

@runs = ([ $ENV{CHAOS_SEED}, $ENV{CHAOS_SECONDS} // 60 ]) if defined $ENV{CHAOS_SEED};

foreach my $run (@runs)
{
	my ($seed, $seconds) = @$run;
	my $name = "seed $seed, $seconds s";

	note("$name: CHAOS_SEED=$seed CHAOS_SECONDS=$seconds");
	my $chaos = OutboxChaos->start(seed => $seed, seconds => $seconds);
	$chaos->run;
	few([ $chaos->recover ], "$name: when all faults are gone, everything gets published");
	my $evidence = load_evidence($chaos);
	cmp_ok(scalar(keys %{ $evidence->{events} }), '>', 5 * $seconds, "$name: many events");
	few([ journal_differences($evidence) ], "$name: outbox.events has what was committed, and nothing else");
	few([ position_contradictions($evidence) ], "$name: positions are in the order of commits");
	few([ terminal_differences($evidence) ], "$name: each event is published, or was discarded");
	few([ dead_letter_contradictions($evidence) ], "$name: no outage made a dead letter");
	few([ stream_contradictions($evidence) ], "$name: the stream has all that was published, as it was enqueued, in order");
	few([ server_contradictions($evidence) ], "$name: nothing crashed, nothing grew");
	$chaos->stop;
}
done_testing();

# A test that these are none; shows some.
sub few
{
	my ($complaints, $test) = @_;

	ok(!@$complaints, $test) or diag(scalar(@$complaints) . " contradictions:\n" . join("\n", splice(@{ [@$complaints] }, 0, 15)));
	return;
}
