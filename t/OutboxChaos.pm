# OutboxChaos.pm
#
# A chaos run: writers (OutboxChaosWriter) against faults of all kinds
# (OutboxChaosPlan says which and when, OutboxChaosFaults what they are), and in
# the end a comparison of everything (OutboxChaosCheck).
#
#   my $chaos = OutboxChaos->start(seed => 7, seconds => 60);
#   $chaos->run;                            # the faults, under load
#   my @complaints = $chaos->recover;       # all faults are taken back
#   ... OutboxChaosCheck ...
#   $chaos->stop;
#
# This file has the loop that begins and ends faults. It never waits for one:
# an end that isn't possible yet is tried again until it is.

use strict;
use warnings;

package OutboxChaos;

use OutboxChaosFaults;
use OutboxChaosPlan;
use OutboxChaosWriter;
use OutboxTest;
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

our @ISA = qw(OutboxChaosFaults);

use constant WRITERS => 6;
# No run makes more events than about this, so that comparing them doesn't take longer than making them.
use constant EVENTS => 60_000;

# Faults may fail, and an interruption in the middle of one looks like that: so it is remembered.
my $interrupted;
$SIG{$_} = sub { $interrupted = 1; die "interrupted\n" } foreach qw(INT TERM);

sub now { return clock_gettime(CLOCK_MONOTONIC) }

sub start_writers
{
	my ($self) = @_;
	my $log = $self->{node}->basedir;
	my $connection = $self->{node}->connstr(OutboxChaosServers::DATABASE) . ' application_name=writer';

	foreach my $number (1 .. WRITERS)
	{
		my $journal = "$log/journal.$number";
		my $pause = WRITERS * 3 * $self->{seconds} / EVENTS;

		push @{ $self->{journals} }, $journal;
		$self->{writers}{$number} = start_writer(
			number => $number, seed => $self->{seed}, until => $self->{begin} + $self->{seconds}, shape => $self->{shape},
			psql => [ 'psql', '-XAt', '-d', $connection ], journal => $journal, log => "$log/writer.$number.log",
			pause => $pause > 0.02 ? $pause : 0.02);
	}
	return;
}

sub describe
{
	my ($self, $text) = @_;

	note(sprintf('%6.1f s  %s', now() - $self->{begin}, $text));
	return;
}

# A fault begins, unless the last one of its lane could not be ended yet.
sub begin_fault
{
	my ($self, $fault) = @_;
	my $method = $fault->{name};
	my $duration = $fault->{until} - $fault->{at};

	return if $self->{ends}{ $fault->{lane} };
	my $end = eval { $self->$method($fault) };
	if ($@)
	{
		chomp(my $why = $@);
		return $self->describe("$method: not possible: " . substr($why, 0, 100));
	}
	$self->describe($method . ($end ? sprintf(', %.1f s', $duration) : ''));
	$self->{ends}{ $fault->{lane} } = { name => $method, end => $end, at => now() + $duration } if $end;
	return;
}

# Ends what is over, or everything.
sub end_faults
{
	my ($self, $all) = @_;

	die "interrupted\n" if $interrupted;
	foreach my $lane (sort keys %{ $self->{ends} })
	{
		my $fault = $self->{ends}{$lane};

		next if $fault->{at} > now() && !$all;
		if (eval { $fault->{end}->(); 1 })
		{
			delete $self->{ends}{$lane};
			$self->describe("end of $fault->{name}");
		}
		else
		{
			chomp($fault->{why} = $@);
			$fault->{at} = now() + 0.5;
		}
	}
	return !%{ $self->{ends} };
}

# Memory of its own that each relay has at most, in kB.
sub look_at_memory
{
	my ($self) = @_;

	foreach my $pid ($self->relays)
	{
		my ($size) = (eval { slurp_file("/proc/$pid/status") } // '') =~ /^RssAnon:\s+(\d+)/m;

		$self->{memory}{$pid} = $size if defined $size && $size > ($self->{memory}{$pid} // 0);
	}
	return;
}

# The faults of the plan, each at its time, while the writers write.
sub run
{
	my ($self) = @_;
	my @plan = plan_of($self->{seed}, $self->{seconds});
	my $looked = 0;

	$self->{begin} = now();
	$self->start_writers;
	while (@plan || now() < $self->{begin} + $self->{seconds})
	{
		my $time = now() - $self->{begin};

		die "interrupted\n" if $interrupted;
		$self->begin_fault(shift @plan) while @plan && $plan[0]{at} <= $time;
		$self->end_faults;
		if ($time > $looked + 1)
		{
			$self->look_at_memory;
			$looked = $time;
		}
		sleep(0.05);
	}
	return;
}

sub writers_ended
{
	my ($self) = @_;

	die "interrupted\n" if $interrupted;
	foreach my $number (sort keys %{ $self->{writers} })
	{
		next if waitpid($self->{writers}{$number}, WNOHANG) == 0;
		push @{ $self->{complaints} }, "writer $number failed: " . slurp_file($self->{node}->basedir . "/writer.$number.log") if $? != 0;
		delete $self->{writers}{$number};
	}
	return !%{ $self->{writers} };
}

# Redrives what failed; true when there is nothing left to do.
sub has_recovered
{
	my ($self) = @_;
	my $state = eval {
		$self->sql(
			q{SELECT (SELECT count(*) FROM outbox.dead_letters),
				(SELECT sum(backlog) FROM outbox.status() WHERE database = current_database()) = 0
				AND NOT EXISTS (SELECT FROM outbox.request) AND NOT EXISTS (SELECT FROM outbox.delivery WHERE state = 'r')
				AND (SELECT max(position) FROM outbox.watermark) >= (SELECT max(position) FROM outbox.log)});
	};

	die "interrupted\n" if $interrupted;
	return 0 unless defined $state;
	$self->{state} = $state;
	eval { $self->redrive_all } if $state !~ /^0\|/;
	return $state eq '0|t';
}

# All faults end, all dead letters are redriven, and everything gets published,
# or what doesn't is told.
sub recover
{
	my ($self) = @_;
	my @complaints;

	wait_until(60, sub { $self->end_faults(1) }) or push @complaints, map { "could not end $_->{name}: $_->{why}" } values %{ $self->{ends} };
	wait_until(180, sub { $self->writers_ended }) or push @complaints, 'writers do not end: ' . join(', ', keys %{ $self->{writers} });
	kill('KILL', $_) foreach values %{ $self->{writers} };
	$self->describe('all writers have ended');
	wait_until(120, sub { $self->has_recovered }) or push @complaints, 'not everything was published: dead letters | done: ' . ($self->{state} // '');
	$self->describe('all is published');
	$self->look_at_memory;
	return (@{ $self->{complaints} }, @complaints);
}

# Makes room for another run.
sub stop
{
	my ($self) = @_;

	$self->{node}->stop('fast', fail_ok => 1);
	$_->stop foreach @{ $self->{brokers} };
	return;
}

1;
