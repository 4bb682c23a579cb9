# OutboxChaosFaults.pm
#
# A method for each fault that OutboxChaosPlan can draw: called with the fault it
# begins it, and returns what ends it, or nothing if it is over at once. A fault
# may find its victim gone: then it dies, and didn't happen. What ends a fault
# may die, and is then tried again.

use strict;
use warnings;

package OutboxChaosFaults;

use IPC::Run;
use OutboxChaosServers;
use OutboxTest;
use Time::HiRes qw(sleep);

our @ISA = qw(OutboxChaosServers);

use constant DATABASE => OutboxChaosServers::DATABASE;
use constant STREAM => OutboxChaosServers::STREAM;
use constant UNLIMITED => OutboxChaosServers::UNLIMITED;

# One of those that are there.
sub choose
{
	my ($fault, @list) = @_;

	die "nobody is there\n" unless @list;
	return $list[ int($fault->{numbers}[0] * @list) ];
}

sub freeze_relay { return $_[0]->freeze(choose($_[1], $_[0]->relays)) }
sub kill_relay { $_[0]->kill9(choose($_[1], $_[0]->relays)); return }
sub terminate_relay { kill('TERM', choose($_[1], $_[0]->relays)); return }
sub cancel_relay { kill('INT', choose($_[1], $_[0]->relays)); return }
sub freeze_launcher { return $_[0]->freeze(choose($_[1], $_[0]->launchers)) }
sub terminate_launcher { kill('TERM', choose($_[1], $_[0]->launchers)); return }
sub freeze_client { return $_[0]->freeze(choose($_[1], $_[0]->clients)) }
sub kill_client { $_[0]->kill9(choose($_[1], $_[0]->clients)); return }
sub terminate_client { kill('TERM', choose($_[1], $_[0]->clients)); return }
sub cancel_client { kill('INT', choose($_[1], $_[0]->clients)); return }
sub checkpoint { $_[0]->sql('CHECKPOINT'); return }

# A snapshot that vacuum has to respect.
sub hold_snapshot
{
	my ($self) = @_;
	my $command = [ 'psql', '-XAtq', '-d', $self->{node}->connstr(DATABASE), '-c', 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.log; SELECT pg_sleep(600)' ];
	my $run = IPC::Run::start($command, '<', \'', '>', \my $out, '2>', \my $err);

	return sub { $run->kill_kill(grace => 1) };
}

sub stop_immediately
{
	my ($self) = @_;

	$self->{node}->stop('immediate', fail_ok => 1);
	return sub { $self->start_postgres };
}

sub stop_fast
{
	my ($self) = @_;

	# it waits for those that can't obey
	$self->thaw_all;
	$self->{node}->stop('fast', fail_ok => 1);
	return sub { $self->start_postgres };
}

sub kill_postmaster
{
	my ($self) = @_;

	$self->{node}->kill9;
	return sub { $self->start_postgres };
}

sub one_broker
{
	my ($self, $fault) = @_;
	my $leader = $fault->{numbers}[1] < 0.5 ? eval { $self->leader } : undef;

	return $leader // choose($fault, @{ $self->{brokers} });
}

sub restart_brokers
{
	my ($self) = @_;

	foreach my $broker (@{ $self->{brokers} })
	{
		$broker->restart unless defined $broker->pid;
		$broker->thaw;
	}
	return;
}

# Ends or freezes brokers, until all are as they should be again.
sub harm_brokers
{
	my ($self, $way, @brokers) = @_;

	$_->$way foreach @brokers;
	return sub { $self->restart_brokers };
}

sub kill_broker { return $_[0]->harm_brokers('kill9', $_[0]->one_broker($_[1])) }
sub stop_broker { return $_[0]->harm_brokers('stop', $_[0]->one_broker($_[1])) }
sub freeze_broker { return $_[0]->harm_brokers('freeze', $_[0]->one_broker($_[1])) }
sub kill_all_brokers { return $_[0]->harm_brokers('kill9', @{ $_[0]->{brokers} }) }
sub freeze_all_brokers { return $_[0]->harm_brokers('freeze', @{ $_[0]->{brokers} }) }

# All ways to the brokers, or one of them.
sub harm_network
{
	my ($self, $mode, $fault) = @_;
	my @proxies = $fault->{numbers}[1] < 0.6 ? @{ $self->{proxies} } : choose($fault, @{ $self->{proxies} });

	$self->set_mode($_, $mode) foreach @proxies;
	return sub { $self->set_mode($_, 'forward') foreach @proxies };
}

sub set_mode
{
	my ($self, $proxy, $mode) = @_;

	$proxy->mode($mode);
	$self->{modes}{ $proxy->port } = $mode;
	return;
}

sub network_swallow { return $_[0]->harm_network('swallow', $_[1]) }
sub network_stall { return $_[0]->harm_network('stall', $_[1]) }
sub network_cut { return $_[0]->harm_network('cut', $_[1]) }
sub network_delay { return $_[0]->harm_network('delay', $_[1]) }

# The stream takes so many more, or none. Meanwhile nothing comes in: a limit
# below what there is would make the stream drop its oldest messages. Not in a
# cluster (nats-server 2.9): a replica that learns of a changed limit late drops
# messages that the others have acknowledged.
sub stream_full
{
	my ($self, $fault) = @_;
	die "only with one broker\n" if @{ $self->{brokers} } > 1;
	my $broker = $self->broker;
	my ($before, $messages) = (-1);

	$_->mode('stall') foreach @{ $self->{proxies} };
	eval {
		while (($messages = $broker->info(STREAM)->{messages}) != $before)
		{
			$before = $messages;
			sleep(0.05);
		}
		$self->limit_stream('--max-msgs', $messages + int(100 * $fault->{numbers}[0]));
	};
	my $problem = $@;
	$_->mode($self->{modes}{ $_->port } // 'forward') foreach @{ $self->{proxies} };
	die $problem if $problem;
	return sub { $self->limit_stream('--max-msgs', UNLIMITED) };
}

# Large events become dead letters: refused by the stream, or, in a cluster (see
# above), by servers that close the connection of who sends them.
sub stream_small_messages
{
	my ($self) = @_;

	return $self->limit_brokers if @{ $self->{brokers} } > 1;
	$self->limit_stream('--max-msg-size', 2000);
	return sub { $self->limit_stream('--max-msg-size', UNLIMITED) };
}

sub limit_brokers
{
	my ($self) = @_;

	foreach my $broker (@{ $self->{brokers} })
	{
		$broker->write_config(max_payload => 2000);
		$broker->reload if defined $broker->pid;
	}
	return sub {
		# clients learn a server's limit when they connect
		foreach my $broker (@{ $self->{brokers} })
		{
			$broker->write_config(max_payload => undef);
			$broker->restart if defined $broker->pid;
		}
	};
}

sub set_workers { return $_[0]->set_for_a_while('outbox.workers', int(5 * $_[1]{numbers}[0])) }
sub set_max_in_flight { return $_[0]->set_for_a_while('outbox.max_in_flight', 1 + int(100 * $_[1]{numbers}[0])) }
sub set_ack_timeout { return $_[0]->set_for_a_while('outbox.ack_timeout', 100 + int(3000 * $_[1]{numbers}[0])) }
sub set_lease { return $_[0]->set_for_a_while('outbox.lease_ttl', 1000 + int(4000 * $_[1]{numbers}[0])) }

# The brokers change it at once, the server learns it when the fault ends.
sub rotate_password
{
	my ($self) = @_;

	$self->{password}++;
	foreach my $broker (@{ $self->{brokers} })
	{
		$broker->write_config(password => "secret$self->{password}");
		$broker->reload if defined $broker->pid;
	}
	return sub { $self->alter_system("SET outbox.nats_url = '" . $self->url . "'") };
}

sub pause_something
{
	my ($self, $arguments) = @_;

	$self->sql("SELECT outbox.pause($arguments)");
	return sub { $self->sql("SELECT outbox.resume($arguments)") };
}

sub pause_all { return $_[0]->pause_something('') }
sub pause_type { return $_[0]->pause_something(q{aggregate_type => 'odd'}) }
sub pause_subject { return $_[0]->pause_something(q{subject => 'outbox.even.4.*'}) }
sub redrive_all { $_[0]->sql('SELECT outbox.redrive()'); return }

# Calls a function for one event of those that a query yields.
sub call_for_one
{
	my ($self, $fault, $call, $query) = @_;
	my $chosen = "SELECT * FROM ($query LIMIT 50) q OFFSET (SELECT floor(count(*) * $fault->{numbers}[0]) FROM ($query LIMIT 50) q) LIMIT 1";

	die "there is none\n" if $self->sql("SELECT outbox.$call event_id => c.event_id) FROM ($chosen) c") eq '';
	return;
}

my $dead = 'SELECT event_id FROM outbox.dead_letters ORDER BY position';
my $pending = q{SELECT event_id FROM outbox.events WHERE publish_state = 'pending'
	AND position > (SELECT max(position) FROM outbox.watermark) ORDER BY position};

sub redrive_one { $_[0]->call_for_one($_[1], 'redrive(', $dead); return }
sub discard_dead { $_[0]->call_for_one($_[1], q{discard('chaos',}, $dead); return }
sub discard_pending { $_[0]->call_for_one($_[1], q{discard('chaos',}, $pending); return }

1;
