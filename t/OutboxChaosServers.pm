# OutboxChaosServers.pm
#
# The servers of a chaos run: PostgreSQL, one broker or a cluster of them, and a
# proxy in front of each; how to ask them something, and how to find, freeze and
# kill their processes. OutboxChaos inherits from this, by way of its faults.

use strict;
use warnings;

package OutboxChaosServers;

use OutboxChaosPlan;
use OutboxProxy;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

use constant DATABASE => 'postgres';
use constant STREAM => 'OUTBOX';
use constant UNLIMITED => 100_000_000;

# ------------------------------------------------------------ the servers

# Options: seed, seconds
sub start
{
	my ($class, %opt) = @_;
	my $self = bless {
		%opt,
		shape => shape_of($opt{seed}),
		password => 0,
		frozen => {},
		killed => {},
		memory => {},
		complaints => [],
	}, $class;
	my $shape = $self->{shape};

	note("shape: " . join(', ', map { "$_ $shape->{$_}" } sort keys %$shape));
	$self->start_brokers;
	$self->{node} = new_cluster("seed$opt{seed}", extra => <<"CONF");
restart_after_crash = on
max_connections = 60
max_worker_processes = 20
shared_buffers = 64MB
jit = off
log_statement = none
log_min_error_statement = panic
log_line_prefix = '%m [%p] %a '
track_commit_timestamp = on
wal_writer_delay = $shape->{wal_writer_delay}
outbox.nats_url = '@{[$self->url]}'
outbox.stream_create = off
outbox.connect_timeout = 1s
outbox.ack_timeout = 1s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 1s
outbox.poison_policy = $shape->{policy}
outbox.workers = $shape->{workers}
outbox.lease_ttl = $shape->{lease}s
outbox.max_in_flight = $shape->{in_flight}
outbox.relay_memory = $shape->{relay_memory}
outbox.test_feed_size = $shape->{ring}
CONF
	return $self;
}

sub start_brokers
{
	my ($self) = @_;
	my $count = $self->{shape}{brokers};
	my @routes = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. $count;
	# an address of this test's own: nobody else gets a port while its broker is dead
	my $host = sprintf('127.%d.%d.%d', 1 + ($$ >> 16) % 250, ($$ >> 8) & 255, 1 + $$ % 254);
	my $routes = join(', ', map { "nats-route://$host:$_" } @routes);

	# the relay shall know the proxies only: no_advertise
	@{ $self->{brokers} } = map {
		OutboxNats->start(
			name => "n$_",
			host => $host,
			user => 'chaos',
			password => "secret0",
			config => $count == 1 ? undef : "cluster { name: chaos, listen: $host:$routes[$_], routes: [ $routes ], no_advertise: true }")
	} 0 .. $count - 1;
	@{ $self->{proxies} } = map { OutboxProxy->start(target => $_->port, target_host => $host, delay_ms => 150) } @{ $self->{brokers} };
	wait_until(
		60,
		sub {
			my ($code) = $self->{brokers}[0]->try_tool('create', STREAM, 'outbox.>', '--replicas', $count,
				'--dup-window', $self->{shape}{dup_window_ms}, '--max-msg-size', UNLIMITED, '--max-msgs', UNLIMITED, '--discard-new');
			return $code == 0;
		}) or die 'could not create the stream';
	return;
}

# The proxies, with the password that the brokers want now.
sub url
{
	my ($self) = @_;

	return join(',', map { "nats://chaos:secret$self->{password}\@127.0.0.1:" . $_->port } @{ $self->{proxies} });
}

# A broker that can be asked.
sub broker
{
	my ($self) = @_;
	my ($any) = grep { defined $_->pid && $_->_state ne 'T' } @{ $self->{brokers} };

	return $any // die "no broker runs\n";
}

# The broker that leads the stream, or the only one.
sub leader
{
	my ($self) = @_;
	my ($code, $name);

	return $self->broker if @{ $self->{brokers} } == 1;
	($code, $name) = $self->broker->try_tool('leader', STREAM);
	die "the stream has no leader\n" if $code != 0;
	chomp($name);
	return (grep { $_->{name} eq $name } @{ $self->{brokers} })[0];
}

# A limit of the stream.
sub limit_stream
{
	my ($self, $option, $value) = @_;
	my ($code, undef, $err) = $self->broker->try_tool('update', STREAM, 'outbox.>', $option, $value);

	die "could not limit the stream: $err\n" if $code != 0;
	return;
}

# ---------------------------------------------------------------- PostgreSQL

# Processes of the server, by their titles; killed ones of a moment ago may be among them.
sub processes
{
	my ($self, $title) = @_;
	my ($postmaster) = (eval { slurp_file($self->{node}->data_dir . '/postmaster.pid') } // '') =~ /^(\d+)/ or return;
	my @found;

	foreach my $folder (glob('/proc/[0-9]*'))
	{
		my ($parent) = (eval { slurp_file("$folder/stat") } // '') =~ /\) \w (\d+) / or next;

		next unless $parent == $postmaster;
		push @found, $folder =~ /(\d+)$/ if (eval { slurp_file("$folder/cmdline") } // '') =~ $title;
	}
	return sort { $a <=> $b } @found;
}

sub relays { return $_[0]->processes(qr/outbox relay/) }
sub launchers { return $_[0]->processes(qr/outbox launcher/) }
sub clients { return $_[0]->processes(qr/\[local\]/) }

# One statement, or several; the last result.
sub sql
{
	my ($self, $statement) = @_;
	my ($code, $out, $err) = $self->{node}->psql(DATABASE, "SET statement_timeout = '5s';\n$statement", timeout => 30, timed_out => \my $late);

	die 'no answer to: ' . $statement . ($err ? ": $err" : '') . "\n" if !defined $code || $code != 0;
	return $out;
}

sub alter_system
{
	my ($self, @changes) = @_;

	$self->sql(join("\n", map { "ALTER SYSTEM $_;" } @changes) . "\nSELECT pg_reload_conf();");
	return;
}

# For as long as the fault lasts.
sub set_for_a_while
{
	my ($self, $name, $value) = @_;

	$self->alter_system("SET $name = '$value'");
	return sub { $self->alter_system("RESET $name") };
}

sub kill9
{
	my ($self, $pid) = @_;

	$self->{killed}{$pid} = 1;
	kill('KILL', $pid) or die "it has gone\n";
	return;
}

sub freeze
{
	my ($self, $pid) = @_;

	kill('STOP', $pid) or die "it has gone\n";
	$self->{frozen}{$pid} = 1;
	return sub { delete $self->{frozen}{$pid}; kill('CONT', $pid) };
}

sub thaw_all
{
	my ($self) = @_;

	kill('CONT', $_) foreach keys %{ $self->{frozen} };
	$self->{frozen} = {};
	return;
}

sub start_postgres
{
	my ($self) = @_;

	my $pid = $self->{node}{_pid};

	# a frozen child of a killed postmaster keeps the next one from starting
	$self->thaw_all;
	# the node takes a killed postmaster's file for a running one
	return if defined $pid && (eval { slurp_file("/proc/$pid/stat") } // '') =~ /\) [^Z] /;
	$self->{node}{_pid} = undef;
	$self->{node}->start(fail_ok => 1) or die "PostgreSQL does not start\n";
	return;
}

1;
