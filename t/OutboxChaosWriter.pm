# OutboxChaosWriter.pm
#
# The writers of a chaos run, and the journals they keep. A writer is a process
# with a session of psql. It chooses the ids of its events itself, and notes in
# a file outside the database, which it alone writes, what became of each
# transaction, as far as the server has told it:
#
#   C  committed, and durable: it must be there
#   R  not committed: COMMIT was refused or never sent
#   U  nobody knows: the connection was lost during COMMIT, or before an
#      asynchronous commit was known to be durable. All of it or nothing
#
# A line: outcome, time before the first statement, time after the last answer
# (both of the monotonic clock), events. An event: type, aggregate, id, number
# of bytes to fill up, and 0 if it went back to a savepoint.
#
# An asynchronous commit is durable when the same session has committed
# synchronously after it.

use strict;
use warnings;

package OutboxChaosWriter;

use Exporter 'import';
use IPC::Open2;
use OutboxChaosPlan;
use POSIX ();
use Time::HiRes qw(clock_gettime sleep CLOCK_MONOTONIC);

our @EXPORT = qw(start_writer read_journal body_of);

# More than any stream takes while a run wants large messages refused.
use constant LARGE => 3000;

# What an event carries; jsonb's canonical text and this are the same.
sub body_of
{
	my ($id, $size) = @_;

	return qq({"id": "$id", "pad": ") . ('x' x $size) . '"}';
}

# Forks a writer and returns its process id.
#   number, seed, until (monotonic time), psql (command, as a list), journal,
#   log, shape (see OutboxChaosPlan), pause (mean seconds between transactions)
sub start_writer
{
	my (%opt) = @_;
	my $pid = fork() // die "could not fork: $!";

	return $pid if $pid != 0;
	# this process must leave servers alone, however it ends
	eval {
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM);
		$SIG{PIPE} = 'IGNORE';
		open(STDERR, '>>', $opt{log}) or die "could not open $opt{log}: $!";
		open(my $journal, '>', $opt{journal}) or die "could not open $opt{journal}: $!";
		$journal->autoflush(1);
		work({ %opt, file => $journal, random => random_source($opt{seed}, 'writer', $opt{number}), events => 0, marks => 0, late => [] });
	};
	print STDERR $@ if $@;
	POSIX::_exit($@ ? 1 : 0);
}

sub now { return clock_gettime(CLOCK_MONOTONIC) }

sub work
{
	my ($writer) = @_;
	my $last;

	while (now() < $writer->{until})
	{
		transaction($writer);
		sleep(2 * $writer->{pause} * $writer->{random}->());
	}
	# makes earlier asynchronous commits certain
	for (my $end = now() + 120; now() < $end && ($last // '') ne 'C';)
	{
		$last = transaction($writer, plain => 1);
		sleep(0.1) if $last ne 'C';
	}
	die "no transaction could be committed in the end\n" if $last ne 'C';
	close_session($writer);
	return;
}

# ------------------------------------------------------------- the session

sub open_session
{
	my ($writer) = @_;

	$writer->{child} = open2($writer->{from}, $writer->{to}, @{ $writer->{psql} });
	$writer->{to}->autoflush(1);
	sleep(0.1) unless defined ask($writer, "SET deadlock_timeout = '200ms';");
	return;
}

# Its end makes unknown what it has committed asynchronously.
sub close_session
{
	my ($writer) = @_;

	if ($writer->{child})
	{
		close($writer->{$_}) foreach qw(to from);
		waitpid($writer->{child}, 0);
	}
	$writer->{child} = undef;
	note_late($writer, 'U');
	return;
}

# Sends statements and returns the lines that come back; undef: the connection is lost.
sub ask
{
	my ($writer, $text) = @_;
	my $mark = 'mark ' . ++$writer->{marks};
	my @lines;

	open_session($writer) unless $writer->{child};
	if ($writer->{child} && print { $writer->{to} } "$text\n\\echo $mark\n")
	{
		while (defined(my $line = readline($writer->{from})))
		{
			chomp($line);
			return \@lines if $line eq $mark;
			push @lines, $line;
		}
	}
	close_session($writer) if $writer->{child};
	return undef;
}

sub says
{
	my ($answer, $tag) = @_;

	return $answer && grep { $_ eq $tag } @$answer;
}

# ------------------------------------------------------------- the journal

sub note_transaction
{
	my ($writer, $outcome, $transaction) = @_;
	my @events = map { join(' ', @{$_}{qw(type aggregate id size kept)}) } @{ $transaction->{events} };

	print { $writer->{file} } join("\t", $outcome, $transaction->{begin}, $transaction->{end} // now(), join(';', @events)), "\n";
	return $outcome;
}

sub note_late
{
	my ($writer, $outcome) = @_;

	note_transaction($writer, $outcome, $_) foreach splice(@{ $writer->{late} });
	return;
}

# The transactions of some journals: { outcome, begin, end, events => [ { type, aggregate, id, size, kept } ] }.
sub read_journal
{
	my (@files) = @_;
	my @transactions;

	foreach my $file (@files)
	{
		open(my $handle, '<', $file) or die "could not open $file: $!";
		while (my $line = <$handle>)
		{
			my %transaction;
			my $events;

			chomp($line);
			(@transaction{qw(outcome begin end)}, $events) = split(/\t/, $line);
			foreach my $text (split(/;/, $events))
			{
				my %event;

				@event{qw(type aggregate id size kept)} = split(/ /, $text);
				push @{ $transaction{events} }, \%event;
			}
			push @transactions, \%transaction;
		}
	}
	return @transactions;
}

# -------------------------------------------------------- one transaction

sub new_event
{
	my ($writer, $transaction, %opt) = @_;
	my $random = $writer->{random};
	my $number = int($random->() * $writer->{shape}{aggregates});
	my %event = (
		type => $number % 2 ? 'odd' : 'even',
		aggregate => $number,
		id => sprintf('%08x-%04x-4000-8000-%012x', $writer->{seed} & 0xffffffff, $writer->{number}, ++$writer->{events}),
		size => $random->() < $writer->{shape}{poison} ? LARGE : int(100 * $random->()),
		kept => 1,
		%opt);

	push @{ $transaction->{events} }, \%event;
	return \%event;
}

sub single
{
	my ($event) = @_;

	return sprintf(q{SELECT outbox.enqueue_text('%s', '%s', 'e', '%s', event_id => '%s') IS NULL;},
		@{$event}{qw(type aggregate)}, body_of($event->{id}, $event->{size}), $event->{id});
}

sub list
{
	my (@values) = @_;

	return 'ARRAY[' . join(', ', map { "'$_'" } @values) . ']';
}

sub many
{
	my (@events) = @_;

	return sprintf(q{SELECT outbox.enqueue_many(%s, %s, '{e}', %s::jsonb[], event_id => %s::uuid[]) IS NULL;},
		list(map { $_->{type} } @events), list(map { $_->{aggregate} } @events),
		list(map { body_of($_->{id}, $_->{size}) } @events), list(map { $_->{id} } @events));
}

# Statements of a transaction of some shape; fills in its events.
sub statements
{
	my ($writer, $transaction) = @_;
	my $random = $writer->{random};
	my $shape = $random->();
	my @list;

	return single(new_event($writer, $transaction)) if $shape < 0.35;
	return many(map { new_event($writer, $transaction) } 1 .. 1 + 8 * $random->()) if $shape < 0.65;

	# several of one aggregate, some of them undone
	my $first = new_event($writer, $transaction);
	my %same = (type => $first->{type}, aggregate => $first->{aggregate});

	@list = (single($first), 'SAVEPOINT a;', single(new_event($writer, $transaction, %same, kept => 0)), 'ROLLBACK TO a;');
	push @list, single(new_event($writer, $transaction, %same));
	return @list if $shape < 0.8;
	# the undone one is of another aggregate, whose key stays locked
	push @list, 'SAVEPOINT b;', many(map { new_event($writer, $transaction, kept => 0) } 1 .. 2), 'ROLLBACK TO b;' if $shape < 0.9;
	push @list, 'SAVEPOINT c;', single(new_event($writer, $transaction, %same)), 'RELEASE c;';
	return @list;
}

# Runs one transaction and returns its outcome; plain => 1: an ordinary, synchronous one.
sub transaction
{
	my ($writer, %opt) = @_;
	my $random = $writer->{random};
	my $transaction = { events => [], begin => now() };
	my ($kind, $async, $limited, $hold) = map { $random->() } 1 .. 4;
	my @isolation = ('READ COMMITTED') x 3;
	my @list;

	push @isolation, 'REPEATABLE READ', 'SERIALIZABLE' unless $opt{plain};
	$async = $async < $writer->{shape}{async} && !$opt{plain};
	@list = ('SET LOCAL synchronous_commit = ' . ($async ? 'off;' : 'on;'), 'SET LOCAL lock_timeout = ' . ($limited < 0.9 ? '500;' : '0;'));
	push @list, $opt{plain} ? single(new_event($writer, $transaction)) : statements($writer, $transaction);
	# BEGIN for itself: were it cancelled, what follows would commit by itself
	return note_transaction($writer, 'R', $transaction)
	  unless says(ask($writer, 'BEGIN ISOLATION LEVEL ' . $isolation[ int($random->() * @isolation) ] . ';'), 'BEGIN')
	  && ask($writer, join("\n", @list));
	return commit($writer, $transaction, 0) if $opt{plain};
	# an open transaction that others may have to wait for
	sleep(4 * $random->()) if $hold < 0.005;
	return prepare($writer, $transaction, $random->() < 0.7) if $kind < 0.01;
	if ($kind < 0.15)
	{
		ask($writer, $kind < 0.1 ? 'ROLLBACK;' : "SELECT 1 / 0;\nCOMMIT;");
		return note_transaction($writer, 'R', $transaction);
	}
	return commit($writer, $transaction, $async);
}

sub commit
{
	my ($writer, $transaction, $async) = @_;
	my $answer = ask($writer, 'COMMIT;');

	$transaction->{end} = now();
	return note_transaction($writer, 'U', $transaction) unless $answer;
	return note_transaction($writer, 'R', $transaction) unless says($answer, 'COMMIT');
	if ($async)
	{
		push @{ $writer->{late} }, $transaction;
		return 'late';
	}
	note_late($writer, 'C');
	return note_transaction($writer, 'C', $transaction);
}

# ------------------------------------------------------ prepared transactions

# Whether the prepared transaction exists; asks until it gets an answer.
sub is_prepared
{
	my ($writer, $gid) = @_;

	for (my $end = now() + 120; now() < $end;)
	{
		my $answer = ask($writer, "SELECT count(*) FROM pg_prepared_xacts WHERE gid = '$gid';");

		return $answer->[0] if $answer && @$answer;
		sleep(0.1);
	}
	die "no answer about prepared transaction $gid\n";
}

sub prepare
{
	my ($writer, $transaction, $commits) = @_;
	my $gid = "$writer->{number}.$writer->{events}";
	my $tag = $commits ? 'COMMIT PREPARED' : 'ROLLBACK PREPARED';
	my $answer = ask($writer, "PREPARE TRANSACTION '$gid';");
	my $asked = 0;

	return note_transaction($writer, 'R', $transaction) if $answer && !says($answer, 'PREPARE TRANSACTION');
	return note_transaction($writer, 'R', $transaction) if !$answer && !is_prepared($writer, $gid);
	# others wait for its aggregates meanwhile, across crashes
	sleep(3 * $writer->{random}->()**2);
	for (my $end = now() + 120; now() < $end;)
	{
		$answer = ask($writer, "$tag '$gid';");
		$asked = 1 if !defined $answer;
		if (says($answer, $tag) || $asked && !is_prepared($writer, $gid))
		{
			$transaction->{end} = now();
			return note_transaction($writer, $commits ? 'C' : 'R', $transaction);
		}
		die "prepared transaction $gid is lost\n" unless $asked || is_prepared($writer, $gid);
		sleep(0.1);
	}
	die "prepared transaction $gid could not be ended\n";
}

1;
