# OutboxHa.pm
#
# A failover, watched: a primary, a standby, a cluster of three nats-servers,
# writers that keep a journal. The primary is killed, the standby promoted, the
# writers find it by themselves; then journal, outbox.events and stream are
# compared. For t/161_ha.pl, and for scripts/ha, which runs the same with more
# writers and prints the figures.
#
# A writer is a process with a session of psql. It owns its aggregates, numbers
# the events of each, and notes in a file what became of each transaction: C
# committed, as the server has said; U nobody knows, as the connection was lost.

use strict;
use warnings;

package OutboxHa;

use Carp;
use Exporter 'import';
use IPC::Open2;
use List::Util qw(max min sum);
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use POSIX ();
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(failover contradictions table);

use constant AGGREGATES => 5;

my $rounds = 0;

# ------------------------------------------------------------------- writers

# Forks one; SIGTERM ends it after its transaction. Options: number, connection, journal.
sub start_writer
{
	my (%opt) = @_;
	my $pid = fork() // croak "could not fork: $!";

	return $pid if $pid != 0;
	# this process must leave servers alone, however it ends
	eval {
		my $ended = 0;

		$SIG{INT} = 'DEFAULT';
		$SIG{TERM} = sub { $ended = 1 };
		$SIG{PIPE} = 'IGNORE';
		open(STDERR, '>>', "$opt{journal}.err") or die "could not open a file: $!";
		open(my $journal, '>', $opt{journal}) or die "could not open $opt{journal}: $!";
		$journal->autoflush(1);
		write_events({ %opt, file => $journal }, \$ended);
	};
	print STDERR $@ if $@;
	POSIX::_exit($@ ? 1 : 0);
}

sub write_events
{
	my ($writer, $ended) = @_;
	my $count = 0;

	while (!$$ended)
	{
		my $event = {
			id => sprintf('%08x-0000-4000-8000-%012x', $writer->{number}, ++$count),
			aggregate => "$writer->{number}." . $count % AGGREGATES,
			n => $count,
			begin => time(),
		};
		my $lsn = enqueue($writer, $event);

		print { $writer->{file} } join("\t", defined $lsn ? 'C' : 'U', $event->{begin}, time(), @{$event}{qw(id aggregate n)}, $lsn // ''), "\n";
		sleep($writer->{pause});
	}
	return;
}

# One transaction. Yields a position of the WAL behind its commit; undef: the
# connection is lost, and another one is made, to whoever takes writes by now.
sub enqueue
{
	my ($writer, $event) = @_;
	my $sql = "SELECT outbox.enqueue('ha', '$event->{aggregate}', 'e', '{\"n\": $event->{n}}', event_id => '$event->{id}') IS NULL;\n"
	  . "SELECT pg_current_wal_insert_lsn();\n";

	if (!$writer->{child})
	{
		$writer->{child} = open2($writer->{from}, $writer->{to}, 'psql', '-XAtq', '-v', 'ON_ERROR_STOP=1', '-d', $writer->{connection});
		$writer->{to}->autoflush(1);
	}
	if (print { $writer->{to} } $sql)
	{
		my ($done, $lsn) = map { scalar readline($writer->{from}) } 1 .. 2;

		return $1 if defined $lsn && $lsn =~ m{^([0-9A-F]+/[0-9A-F]+)$};
	}
	close($writer->{$_}) foreach qw(to from);
	waitpid($writer->{child}, 0);
	$writer->{child} = undef;
	return undef;
}

sub count_lines
{
	my ($file) = @_;

	return -e $file ? slurp_file($file) =~ tr/\n// : 0;
}

sub read_journals
{
	my (@files) = @_;
	my %events;

	foreach my $file (@files)
	{
		foreach my $line (split(/\n/, slurp_file($file)))
		{
			my %event;

			@event{qw(outcome begin end id aggregate n lsn)} = split(/\t/, $line, -1);
			$event{lsn} = lsn_number($event{lsn});
			$events{ $event{id} } = \%event;
		}
	}
	return \%events;
}

sub lsn_number
{
	my ($high, $low) = split(m{/}, $_[0]);

	return defined $low ? hex($high) * 2**32 + hex($low) : undef;
}

# ------------------------------------------------------------------- servers

# Once for all rounds. Servers forget an id soon, so that each copy is stored and can be looked at.
sub make_stream
{
	my ($nats) = @_;

	$nats->[0]->try_tool('delete', 'OUTBOX');
	wait_until(60, sub { ($nats->[0]->try_tool('create', 'OUTBOX', 'outbox.>', '--replicas', scalar(@$nats), '--dup-window', 100))[0] == 0 })
	  or croak 'could not create the stream';
	return;
}

# The mode is a value of synchronous_commit, or "asynchronous": there is no synchronous standby.
sub start_servers
{
	my ($nats, %opt) = @_;
	my $name = $opt{name} =~ s/\W+/_/gr . ++$rounds;
	my $primary = new_cluster("primary_$name", allows_streaming => 1, extra => <<"CONF");
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
wal_receiver_status_interval = 1s
outbox.nats_url = '@{[join(',', map { $_->url } @$nats)]}'
outbox.stream_create = off
outbox.ack_timeout = 2s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 500ms
@{[$opt{conf} // '']}
CONF
	my $standby = PostgreSQL::Test::Cluster->new("standby_$name");

	$primary->backup('backup');
	$standby->init_from_backup($primary, 'backup', has_streaming => 1);
	$standby->start;
	if ($opt{mode} ne 'asynchronous')
	{
		# the standby shall not wait for itself when it is promoted: not in the file that it has copied
		$primary->safe_psql('postgres', "ALTER SYSTEM SET synchronous_standby_names = '*'; ALTER SYSTEM SET synchronous_commit = '$opt{mode}'");
		$primary->reload;
		wait_for_query($primary, 'postgres', q{SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'}, expected => 1)
		  or croak 'the standby is not synchronous';
	}
	else
	{
		wait_for_query($primary, 'postgres', 'SELECT count(*) FROM pg_stat_replication', expected => 1) or croak 'the standby does not come';
	}
	return ($primary, $standby);
}

# The primary is gone, with all of its processes, as by a power cut.
sub kill_primary
{
	my ($primary) = @_;
	my @children = children(postmaster($primary));

	$primary->kill9;
	kill('KILL', @children);
	return;
}

# Where the standby's own history begins: it had everything before.
sub switched_at
{
	my ($standby) = @_;
	my ($lsn) = slurp_file($standby->data_dir . '/pg_wal/00000002.history') =~ /^1\t(\S+)/m;

	return lsn_number($lsn);
}

# The time of the last arrival, in seconds; 0: none.
sub last_arrival
{
	my ($file) = @_;

	return slurp_file($file, max(0, (stat($file))[7] - 1000)) =~ /(?:\A|\n)(\d+)\t[^\n]*\n\z/ ? $1 / 1e6 : 0;
}

# ------------------------------------------------------------------- a round

# The writers' events in the stream.
sub messages
{
	my ($nats) = @_;
	my @messages;

	wait_until(60, sub { @messages = eval { $nats->[0]->dump('OUTBOX') }; return @messages && @messages >= $nats->[0]->info('OUTBOX')->{messages} })
	  or croak 'the stream can not be read';
	return [ grep { $_->{subject} =~ /^outbox\.ha\./ } @messages ];
}

# Runs a round, and returns what is known afterwards.
#   nats       the servers
#   mode       see start_servers()
#   name       of the round, for files
#   seconds    of writing before the failover
#   writers    how many, and pause, seconds between two transactions of one
#   lag        seconds that the standby is cut off before the primary is killed
#   before     called with the primary before the writers start
#   conf       more lines for postgresql.conf
sub failover
{
	my (%opt) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir('ha');
	my ($primary, $standby, @writers, @journals, $round);

	make_stream($opt{nats});
	($primary, $standby) = start_servers($opt{nats}, %opt);
	wait_relay($primary, 'postgres', timeout => 60) or croak 'no relay';
	$opt{before}->($primary) if $opt{before};
	my $subscriber = $opt{nats}[1]->start_tool("$dir/arrivals", 'subscribe', 'outbox.ha.>');
	foreach my $number (1 .. $opt{writers})
	{
		push @journals, "$dir/journal$number";
		push @writers, start_writer(
			number => $number,
			journal => $journals[-1],
			pause => $opt{pause},
			connection => sprintf('host=%s,%s port=%d,%d dbname=postgres target_session_attrs=read-write', (map { $_->host } $primary, $standby), map { $_->port } $primary, $standby));
	}
	sleep($opt{seconds});
	wait_until(60, sub { !grep { count_lines($_) < 20 } @journals }) or croak 'the writers do not write';
	if ($opt{lag})
	{
		$standby->safe_psql('postgres', q{ALTER SYSTEM SET primary_conninfo = 'port=1'});
		$standby->reload;
		wait_for_query($primary, 'postgres', 'SELECT count(*) FROM pg_stat_replication', expected => 0) or croak 'the standby is still connected';
		sleep($opt{lag});
	}
	$round = { %opt, primary => $primary, standby => $standby, killed => time() };
	kill_primary($primary);
	$round->{promoting} = time();
	$standby->promote;
	$round->{promoted} = time();
	$round->{replicated} = switched_at($standby);
	wait_until(60, sub { last_arrival("$dir/arrivals") > $round->{promoting} }) or croak 'nothing is published after the failover';
	sleep($opt{seconds} / 2);
	my @lines = map { count_lines($_) } @journals;
	wait_until(60, sub { !grep { count_lines($journals[$_]) < $lines[$_] + 10 } 0 .. $#journals }) or croak 'the writers do not go on';
	kill('TERM', @writers);
	foreach my $pid (@writers)
	{
		waitpid($pid, 0);
		croak 'a writer has failed: ' . slurp_file($journals[0] . '.err') if $? != 0;
	}
	wait_drained($standby, 'postgres') or croak 'not everything is published';
	$round->{messages} = messages($opt{nats});
	$subscriber->kill_kill;
	$round->{journal} = read_journals(@journals);
	$round->{arrivals} = [ map { [ split(/\t/, $_, 4) ] } split(/\n/, slurp_file("$dir/arrivals")) ];
	$round->{events} = {
		map { my ($id, $position, $state) = split(/\|/, $_); $id => { position => $position, state => $state } }
		  split(/\n/, $standby->safe_psql('postgres', q{SELECT event_id, position, publish_state FROM outbox.events WHERE aggregate_type = 'ha'}))
	};
	$round->{figures} = figures($round);
	return $round;
}

# ------------------------------------------------------- what contradicts the promises

sub contradictions
{
	my ($round) = @_;
	my ($journal, $events) = @{$round}{qw(journal events)};
	my (%copies, %last, @contradictions);
	my $synchronous = $round->{mode} ne 'asynchronous';

	# what was committed, and replicated, exists
	push @contradictions, map { "$_->{id} was committed and replicated, and is lost" }
	  grep { $_->{outcome} eq 'C' && !$events->{ $_->{id} } && ($synchronous || $_->{lsn} <= $round->{replicated} || $_->{begin} > $round->{promoted}) }
	  values %$journal;
	push @contradictions, map { "$_ exists, and nobody has written it" } grep { !$journal->{$_} } keys %$events;
	push @contradictions, map { "$_ is $events->{$_}{state}" } grep { $events->{$_}{state} ne 'published' } keys %$events;
	foreach my $message (@{ $round->{messages} })
	{
		my ($id, $position) = ($message->{msg_id}, $message->{headers}{'ce-sequence'} + 0);
		my $written = $journal->{$id};
		my $at = "at sequence $message->{seq}: $id";
		my $copy = "$position $message->{sha256}";

		if (!$written)
		{
			push @contradictions, "$at: nobody has written it";
			next;
		}
		push @contradictions, "$at: not on the new primary" if $synchronous && !$events->{$id};
		push @contradictions, "$at: another copy differs" if defined $copies{$id} && $copies{$id} ne $copy;
		push @contradictions, "$at: position $position, not $events->{$id}{position}" if $events->{$id} && $events->{$id}{position} != $position;
		next if defined $copies{$id};
		$copies{$id} = $copy;
		push @contradictions, "$at: aggregate $written->{aggregate}: $written->{n} after $last{$written->{aggregate}}"
		  if ($last{ $written->{aggregate} } // 0) > $written->{n};
		$last{ $written->{aggregate} } = $written->{n};
	}
	push @contradictions, map { "$_ is not in the stream" } grep { !defined $copies{$_} } keys %$events;
	return sort @contradictions;
}

sub median
{
	my (@sorted) = sort { $a <=> $b } @_;

	return @sorted ? $sorted[ $#sorted / 2 ] : 0;
}

# Counts, and milliseconds.
sub figures
{
	my ($round) = @_;
	my ($journal, $events, $messages) = @{$round}{qw(journal events messages)};
	my (%first, %stored, %at);

	foreach my $arrival (@{ $round->{arrivals} })
	{
		$first{ $arrival->[2] } //= $arrival->[0] / 1e6;
	}
	$stored{ $_->{msg_id} }++ foreach @$messages;
	$at{ $_->{headers}{'ce-sequence'} }{ $_->{msg_id} } = 1 foreach @$messages;
	my @before = grep { $_ <= $round->{killed} } values %first;
	my @after = grep { $_ >= $round->{promoting} } values %first;
	my @quiet = grep { $_->{outcome} eq 'C' && $_->{end} < $round->{killed} - ($round->{lag} // 0) } values %$journal;
	my @again = grep { $_->{outcome} eq 'C' && $_->{begin} > $round->{promoting} } values %$journal;

	return {
		events => scalar(keys %$events),
		rate => @quiet / (max(map { $_->{end} } @quiet) - min(map { $_->{begin} } @quiet)),
		lost => scalar(grep { $_->{outcome} eq 'C' && !$events->{ $_->{id} } } values %$journal),
		phantoms => scalar(grep { !$events->{$_} } keys %stored),
		positions_twice => scalar(grep { keys %$_ > 1 } values %at),
		copies => @$messages - keys %stored,
		silence => 1000 * (min(@after) - max(@before)),
		promote => 1000 * ($round->{promoted} - $round->{promoting}),
		promote_to_publish => 1000 * (min(@after) - $round->{promoting}),
		kill_to_commit => 1000 * (min(map { $_->{end} } @again) - $round->{killed}),
		commit => 1000 * median(map { $_->{end} - $_->{begin} } @quiet),
		arrival => 1000 * median(map { $first{ $_->{id} } - $_->{begin} } grep { $first{ $_->{id} } } @quiet),
	};
}

# Lines of a table: of each name its rounds' sum of counts, and their medians of all else.
sub table
{
	my (@rounds) = @_;
	my @columns = qw(events lost phantoms positions_twice copies rate commit arrival kill_to_commit promote promote_to_publish silence);
	my (%of_name, @names, @lines);

	foreach my $round (@rounds)
	{
		push @names, $round->{name} unless $of_name{ $round->{name} };
		push @{ $of_name{ $round->{name} } }, $round->{figures};
	}
	push @lines, join(' | ', '', 'standby', map({ tr/_/ /r } @columns), '');
	foreach my $name (@names)
	{
		my @values = map {
			my $column = $_;
			my @values = map { $_->{$column} } @{ $of_name{$name} };

			/^(?:events|lost|phantoms|positions_twice|copies)$/ ? sum(@values) : sprintf(/^(?:commit|arrival)$/ ? '%.2f' : '%.0f', median(@values))
		} @columns;

		push @lines, join(' | ', '', $name, @values, '');
	}
	return map { s/^ //r } @lines;
}

1;
