# OutboxProxy.pm
#
# A TCP proxy between the relay and its nats-server, for networks that fail in
# ways a dead server can't: they swallow bytes, stand still, refuse, are slow.
#
#   my $proxy = OutboxProxy->start(target => $nats->port);
#   ... outbox.nats_url = $proxy->url ...
#   $proxy->mode('swallow');
#
# Modes:
#   forward   passes everything on. A connection that bytes are missing from is
#             reset, as by a firewall that has forgotten it.
#   delay     the same, each byte "delay_ms" later, in each direction
#   swallow   takes everything and passes nothing on; new connections are taken
#             and stay mute, closed servers don't show
#   stall     reads nothing, accepts nothing: buffers fill up; nothing is lost,
#             "forward" goes on where it stopped
#   cut       resets what there is and what comes
#
# A process of its own does the work; a method returns when its command is in force.

use strict;
use warnings;

package OutboxProxy;

use Carp;
use IO::Handle;
use IO::Select;
use IO::Socket::INET;
use POSIX qw(:sys_wait_h);
use Socket qw(AF_UNIX PF_UNSPEC SOCK_STREAM SOL_SOCKET SO_LINGER);
use Time::HiRes qw(time);

# With more than this underway in one direction, the proxy reads no more of it.
use constant BUFFER => 1 << 20;

my $owner = $$;
my @proxies;

# Options: target (a port), target_host (default 127.0.0.1), delay_ms (for mode "delay").
sub start
{
	my ($class, %opt) = @_;
	my $listener = IO::Socket::INET->new(Listen => 64, LocalAddr => '127.0.0.1', Proto => 'tcp', Blocking => 0)
	  or croak "could not listen: $!";
	my $self = bless { port => $listener->sockport }, $class;

	socketpair($self->{control}, my $theirs, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or croak "could not make a socket pair: $!";
	$self->{pid} = fork() // croak "could not fork: $!";
	if ($self->{pid} == 0)
	{
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM);
		$SIG{PIPE} = 'IGNORE';
		close($self->{control});
		eval { _serve({ mode => 'forward', target_host => '127.0.0.1', delay_ms => 200, %opt, listener => $listener, control => $theirs, accepted => 0, pairs => [] }) };
		warn $@ if $@;
		POSIX::_exit($@ ? 1 : 0);
	}
	close($theirs);
	close($listener);
	$self->{control}->autoflush(1);
	push @proxies, $self;
	return $self;
}

sub port { return $_[0]->{port} }
sub url { return "nats://127.0.0.1:$_[0]->{port}" }

# Changes the mode; see above.
sub mode { return $_[0]->_ask("mode $_[1]") }

# Where new connections go from now on.
sub target { return $_[0]->_ask("target $_[1]") }

# How many connections were accepted so far, in any mode.
sub accepted { return $_[0]->_ask('accepted') }

sub _ask
{
	my ($self, $command) = @_;
	my ($handle, $answer) = ($self->{control});

	print $handle "$command\n" or croak "the proxy is gone: $!";
	$answer = <$handle> // croak 'the proxy is gone';
	chomp($answer);
	return $answer;
}

# ------------------------------------------------------- inside the process

sub _serve
{
	my ($proxy) = @_;

	while (1)
	{
		my ($due, %reads, %writes) = (_due($proxy));
		my ($readable, $writable) = ('', '');

		vec($readable, fileno($proxy->{control}), 1) = 1;
		vec($readable, fileno($proxy->{listener}), 1) = 1 unless $proxy->{mode} eq 'stall';
		foreach my $pair (@{ $proxy->{pairs} })
		{
			foreach my $side (grep { defined $pair->{$_}{socket} } qw(client server))
			{
				my $other = $pair->{ $side eq 'client' ? 'server' : 'client' };
				my $number = fileno($pair->{$side}{socket});

				if ($proxy->{mode} ne 'stall' && !$pair->{$side}{ended} && $other->{bytes} < BUFFER)
				{
					vec($readable, $number, 1) = 1;
					$reads{$number} = [ $pair, $side ];
				}
				if ($proxy->{mode} ne 'stall' && @{ $pair->{$side}{queue} } && $pair->{$side}{queue}[0][0] <= time())
				{
					vec($writable, $number, 1) = 1;
					$writes{$number} = [ $pair, $side ];
				}
			}
		}
		next if select($readable, $writable, undef, $due) < 0;

		foreach my $number (keys %writes)
		{
			_write(@{ $writes{$number} }) if vec($writable, $number, 1);
		}
		foreach my $number (keys %reads)
		{
			_read($proxy, @{ $reads{$number} }) if vec($readable, $number, 1);
		}
		_accept($proxy) if $proxy->{mode} ne 'stall' && vec($readable, fileno($proxy->{listener}), 1);
		return if vec($readable, fileno($proxy->{control}), 1) && !_obey($proxy);
		@{ $proxy->{pairs} } = grep { !_close_ended($_) } @{ $proxy->{pairs} };
	}
}

# Seconds until the first delayed bytes are due; undef: there are none.
sub _due
{
	my ($proxy) = @_;
	my $first;

	foreach my $queue (map { ($_->{client}{queue}, $_->{server}{queue}) } @{ $proxy->{pairs} })
	{
		$first = $queue->[0][0] if @$queue && (!defined $first || $queue->[0][0] < $first);
	}
	return undef if !defined $first || $proxy->{mode} =~ /^(?:swallow|stall)$/;
	return $first <= time() ? 0 : $first - time();
}

sub _accept
{
	my ($proxy) = @_;
	my $client = $proxy->{listener}->accept or return;
	my $server;

	$proxy->{accepted}++;
	$client->blocking(0);
	if ($proxy->{mode} =~ /^(?:forward|delay)$/)
	{
		$server = IO::Socket::INET->new(PeerAddr => "$proxy->{target_host}:$proxy->{target}", Proto => 'tcp', Timeout => 2);
		return unless $server;
		$server->blocking(0);
	}
	return _reset($client) if $proxy->{mode} eq 'cut';
	push @{ $proxy->{pairs} },
	  {
		lost => !$server,
		client => { socket => $client, queue => [], bytes => 0 },
		server => { socket => $server, queue => [], bytes => 0 },
	  };
	return;
}

sub _read
{
	my ($proxy, $pair, $side) = @_;
	my $other = $pair->{ $side eq 'client' ? 'server' : 'client' };
	my $bytes;

	return unless defined $pair->{$side}{socket};
	if (!sysread($pair->{$side}{socket}, $bytes, 65536))
	{
		$pair->{$side}{ended} = 1 unless $!{EAGAIN};
		return;
	}
	if ($proxy->{mode} eq 'swallow' || $pair->{lost})
	{
		$pair->{lost} = 1;
		return;
	}
	push @{ $other->{queue} }, [ time() + ($proxy->{mode} eq 'delay' ? $proxy->{delay_ms} / 1000 : 0), $bytes ];
	$other->{bytes} += length($bytes);
	return;
}

sub _write
{
	my ($pair, $side) = @_;
	my $to = $pair->{$side};
	my $written = syswrite($to->{socket}, $to->{queue}[0][1]);

	if (!defined $written)
	{
		$to->{ended} = 1 unless $!{EAGAIN};
		return;
	}
	$to->{bytes} -= $written;
	substr($to->{queue}[0][1], 0, $written, '');
	shift @{ $to->{queue} } if $to->{queue}[0][1] eq '';
	return;
}

# One side has ended, and the other has got all that came before: the pair is
# over. In a black hole the end of the server's side doesn't get through.
sub _close_ended
{
	my ($pair) = @_;
	my ($client, $server) = @{$pair}{qw(client server)};

	if ($pair->{lost} && $server->{ended} && !$client->{ended})
	{
		$server->{socket} = undef;
		return 0;
	}
	return 0 unless $client->{ended} || ($server->{ended} && !@{ $client->{queue} });
	close($_->{socket}) foreach grep { defined $_->{socket} } $client, $server;
	return 1;
}

sub _reset
{
	my ($socket) = @_;

	setsockopt($socket, SOL_SOCKET, SO_LINGER, pack('ii', 1, 0));
	close($socket);
	return;
}

sub _reset_pairs
{
	my ($proxy, $which) = @_;
	my @kept;

	foreach my $pair (@{ $proxy->{pairs} })
	{
		if ($which->($pair))
		{
			_reset($_) foreach grep { defined } $pair->{client}{socket}, $pair->{server}{socket};
		}
		else
		{
			push @kept, $pair;
		}
	}
	$proxy->{pairs} = \@kept;
	return;
}

sub _change_mode
{
	my ($proxy, $mode) = @_;

	$proxy->{mode} = $mode;
	_reset_pairs($proxy, sub { 1 }) if $mode eq 'cut';
	_reset_pairs($proxy, sub { $_[0]->{lost} }) if $mode eq 'forward' || $mode eq 'delay';
	return if $mode ne 'swallow';
	foreach my $pair (grep { @{ $_->{client}{queue} } || @{ $_->{server}{queue} } } @{ $proxy->{pairs} })
	{
		$pair->{lost} = 1;
		@{$_}{qw(queue bytes)} = ([], 0) foreach $pair->{client}, $pair->{server};
	}
	return;
}

# One command; false: the test has ended.
sub _obey
{
	my ($proxy) = @_;
	my ($command, $answer) = ('', 'ok');

	return 0 unless sysread($proxy->{control}, $command, 256);
	if ($command =~ /^mode (forward|delay|swallow|stall|cut)$/)
	{
		_change_mode($proxy, $1);
	}
	elsif ($command =~ /^target (\d+)$/)
	{
		$proxy->{target} = $1;
	}
	elsif ($command eq "accepted\n")
	{
		$answer = $proxy->{accepted};
	}
	else
	{
		$answer = 'unknown command';
	}
	syswrite($proxy->{control}, "$answer\n");
	return 1;
}

END
{
	# the processes end by themselves when their control socket does; this is for a stuck one
	if ($$ == $owner)
	{
		local $?;
		foreach my $proxy (@proxies)
		{
			kill('KILL', $proxy->{pid});
			waitpid($proxy->{pid}, 0);
		}
	}
}

1;
