# OutboxTest.pm
#
# What the TAP tests share: a private nats-server (package OutboxNats), and
# clusters with the extension, waiting and checking (package OutboxTest).
#
#   use OutboxTest;
#   my $nats = OutboxNats->start;
#   my $node = new_cluster('main', nats => $nats);
#   ... enqueue ...
#   ok(wait_published($node, 'postgres', 10), 'all published');
#   is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
#   check_no_crash($node);
#   done_testing();
#
# Run as a user that is not root:
#   prove -I t -I $(dirname $(pg_config --pgxs))/../test/perl t/*.pl

use strict;
use warnings;

##########################################################################
package OutboxNats;

use Carp;
use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IO::Select;
use HTTP::Tiny;
use IO::Socket::INET;
use IPC::Run;
use JSON::PP;
use MIME::Base64 qw(decode_base64);
use POSIX qw(WNOHANG);
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Time::HiRes qw(sleep time);

my $tool = $ENV{NATSTOOL} // abs_path(dirname(__FILE__) . '/..') . '/test/tools/build/natstool';
my $owner = $$;
my @servers;

# An interrupted test must reach the END block, too.
foreach my $signal (qw(INT TERM))
{
	$SIG{$signal} //= sub { die "interrupted by SIG$signal" };
}

# Starts a nats-server on a port of its own and waits until it accepts clients.
#   port, store_dir    default: a free port, a temporary directory
#   jetstream          default 1
#   max_payload        bytes
#   user, password     that clients need; url() and natstool then have them
#   authorization      what goes between the braces of that block, instead
#   program            path of a nats-server; default: the one in PATH
#   monitor            1: with a monitoring port, see monitor()
#   config             more lines for the configuration file
#   name               of the server, and of its files
sub start
{
	my ($class, %opt) = @_;
	my $self = bless {
		jetstream => 1,
		host => '127.0.0.1',
		name => 'nats' . (1 + @servers),
		%opt
	}, $class;

	$self->{port} //= PostgreSQL::Test::Cluster::get_free_port();
	$self->{dir} = PostgreSQL::Test::Utils::tempdir($self->{name});
	$self->{store_dir} //= "$self->{dir}/store";
	$self->{log} = "$PostgreSQL::Test::Utils::log_path/"
	  . PostgreSQL::Test::Utils::basename($0) . "_$self->{name}.log";
	push @servers, $self;
	$self->write_config;
	$self->_launch;
	return $self;
}

# Starts so many servers that are a cluster; other options are for each of them.
sub start_cluster
{
	my ($class, $count, %opt) = @_;
	my @routes = map { PostgreSQL::Test::Cluster::get_free_port() } 1 .. $count;
	my $routes = join(', ', map { "nats-route://127.0.0.1:$_" } @routes);
	my $more = delete $opt{config} // '';

	return map {
		$class->start(name => "n$_", %opt,
			config => "cluster { name: test, listen: 127.0.0.1:$routes[$_], routes: [ $routes ] }\n$more")
	} 0 .. $count - 1;
}

# Writes the configuration file from the options; changed ones may be given.
# In force after restart(), or after reload() where nats-server can do that.
sub write_config
{
	my ($self, %changed) = @_;
	my $config = '';
	my $authorization;

	$self->{$_} = $changed{$_} foreach keys %changed;
	$authorization = $self->{authorization};
	$config .= "listen: $self->{host}:$self->{port}\n";
	$config .= "server_name: $self->{name}\n";
	if ($self->{monitor})
	{
		$self->{monitor_port} //= PostgreSQL::Test::Cluster::get_free_port();
		$config .= "http: $self->{host}:$self->{monitor_port}\n";
	}
	$config .= "max_payload: $self->{max_payload}\n" if defined $self->{max_payload};
	$config .= "jetstream { store_dir: \"$self->{store_dir}\" }\n" if $self->{jetstream};
	$authorization //= "user: \"$self->{user}\", password: \"$self->{password}\"" if defined $self->{user};
	$config .= "authorization { $authorization }\n" if defined $authorization;
	$config .= "$self->{config}\n" if defined $self->{config};
	PostgreSQL::Test::Utils::append_to_file("$self->{dir}/new.conf", $config);
	rename("$self->{dir}/new.conf", "$self->{dir}/nats.conf") or croak "could not rename: $!";
	return;
}

sub _find_server
{
	foreach my $dir (split(/:/, $ENV{PATH} // ''), '/usr/sbin', '/usr/local/bin')
	{
		return "$dir/nats-server" if -x "$dir/nats-server";
	}
	croak 'nats-server not found';
}

# Asks the kernel to kill the server with us, should we end without an END block.
sub _die_with_parent
{
	my %prctl = (x86_64 => 157, aarch64 => 167);
	my $number = $prctl{ (POSIX::uname())[4] };

	syscall($number, 1, POSIX::SIGKILL()) if defined $number;
	return;
}

sub _launch
{
	my ($self) = @_;
	my $server = $self->{program} // _find_server();

	$self->{pid} = fork() // croak "could not fork: $!";
	if ($self->{pid} == 0)
	{
		$SIG{$_} = 'DEFAULT' foreach qw(INT TERM);
		_die_with_parent();
		open(STDIN, '<', '/dev/null');
		open(STDOUT, '>>', $self->{log});
		open(STDERR, '>&', \*STDOUT);
		exec($server, '-c', "$self->{dir}/nats.conf") or POSIX::_exit(127);
	}
	return if $self->wait_until(30, sub { $self->_listens });

	my $log = PostgreSQL::Test::Utils::slurp_file($self->{log});
	$self->kill9;
	croak "nats-server does not listen on port $self->{port}; its log:\n$log";
}

# The server greets with INFO once it is ready for clients.
sub _listens
{
	my ($self) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => "$self->{host}:$self->{port}", Timeout => 2);
	my $greeting;

	croak "nats-server ended at its start, see $self->{log}" if waitpid($self->{pid}, WNOHANG) != 0;
	return 0 unless $socket;
	return 0 unless IO::Select->new($socket)->can_read(2);
	return sysread($socket, $greeting, 5) && $greeting eq 'INFO ';
}

# Polls; returns whether the condition came true in time.
sub wait_until
{
	my ($self, $seconds, $condition) = @_;

	return OutboxTest::wait_until($seconds, $condition);
}

sub pid { return $_[0]->{pid} }
sub port { return $_[0]->{port} }
sub store_dir { return $_[0]->{store_dir} }

# The server's own log (all its runs), as a path and as text.
sub log_file { return $_[0]->{log} }
sub log_content { return PostgreSQL::Test::Utils::slurp_file($_[0]->{log}) }

sub _percent_encode
{
	my ($text) = @_;

	$text =~ s/([^A-Za-z0-9_.~-])/sprintf('%%%02X', ord($1))/ge;
	return $text;
}

# For outbox.nats_url; with user and password, percent-encoded, if there are any.
sub url
{
	my ($self) = @_;
	my $auth = '';

	$auth = _percent_encode($self->{user}) . ':' . _percent_encode($self->{password}) . '@'
	  if defined $self->{user};
	return "nats://$auth$self->{host}:$self->{port}";
}

sub _tool_command
{
	my ($self, @args) = @_;
	my @auth = defined $self->{user} ? ('--user', $self->{user}, '--password', $self->{password}) : ();

	croak "$tool is missing: make -C test/tools" unless -x $tool;
	return [ $tool, '-s', "nats://$self->{host}:$self->{port}", @auth, @args ];
}

sub _kill
{
	my ($self, $signal) = @_;

	croak "nats-server \"$self->{name}\" is not running" unless defined $self->{pid};
	kill($signal, $self->{pid}) or croak "could not send SIG$signal: $!";
	return;
}

# Ends at once, as with a power cut of the process: nothing is flushed by it.
sub kill9
{
	my ($self) = @_;

	$self->_kill('KILL');
	waitpid($self->{pid}, 0);
	$self->{pid} = undef;
	return;
}

# Ends in an orderly way; a frozen server is thawed for it.
sub stop
{
	my ($self) = @_;
	my $ended;

	$self->_kill('TERM');
	$self->_kill('CONT');
	$ended = $self->wait_until(30, sub { waitpid($self->{pid}, WNOHANG) != 0 });
	return $self->kill9 unless $ended;
	$self->{pid} = undef;
	return;
}

# Same port, same store; stops it first if it runs.
sub restart
{
	my ($self) = @_;

	$self->stop if defined $self->{pid};
	$self->_launch;
	return;
}

# Re-reads the configuration file, see write_config().
sub reload
{
	my ($self) = @_;

	$self->_kill('HUP');
	return;
}

# Stops the process (not the connections), and returns when it stands still.
sub freeze
{
	my ($self) = @_;

	$self->_kill('STOP');
	$self->wait_until(10, sub { $self->_state eq 'T' }) or croak 'nats-server does not stop';
	return;
}

sub thaw
{
	my ($self) = @_;

	$self->_kill('CONT');
	return;
}

# The letter of the process state; the one after the name in parentheses.
sub _state
{
	my ($self) = @_;
	my ($state) = PostgreSQL::Test::Utils::slurp_file("/proc/$self->{pid}/stat") =~ /\) (\w) /;

	return $state;
}

# Runs natstool against this server: (exit code, stdout, stderr).
sub try_tool
{
	my ($self, @args) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run($self->_tool_command(@args), '<', \'', '>', \$out, '2>', \$err);
	croak "natstool ended by signal $?" if $? & 127;
	return ($? >> 8, $out, $err);
}

# The same; returns stdout, dies unless it worked.
sub tool
{
	my ($self, @args) = @_;
	my ($code, $out, $err) = $self->try_tool(@args);

	croak "natstool @args: exit $code: $err" if $code != 0;
	return $out;
}

# For a command that goes on while the test does something else, "subscribe" or "respond"
# mostly: an IPC::Run handle; its output grows in $$out, or in a file of that name. The
# caller calls ->finish or ->kill_kill on it.
sub start_tool
{
	my ($self, $out, @args) = @_;
	my $err = '';
	my $handle = IPC::Run::start($self->_tool_command(@args), '<', \'', '>', $out, '2>', \$err);

	IPC::Run::pump($handle) while $args[0] =~ /^(?:subscribe|respond)$/ && $err !~ /subscribed to/ && $handle->pumpable;
	return $handle;
}

# A request to JetStream, "STREAM.CREATE.X", in its own JSON: natstool knows nothing of what newer servers can.
sub api
{
	my ($self, $what, $json) = @_;
	my $socket = IO::Socket::INET->new(PeerAddr => "$self->{host}:$self->{port}", Timeout => 5);
	my $answer = '';

	printf $socket "CONNECT {\"verbose\":false}\r\nSUB _A 1\r\nPUB \$JS.API.%s _A %d\r\n%s\r\n", $what, length($json), $json;
	sysread($socket, $answer, 65536, length($answer)) while $answer !~ /_response"/;
	croak "$what: $answer" if $answer =~ /"error"/;
	return;
}

# What the monitoring port tells: "connz", "jsz?streams=true&config=true", ...
sub monitor
{
	my ($self, $path) = @_;
	my $response = HTTP::Tiny->new(timeout => 10)->get("http://$self->{host}:$self->{monitor_port}/$path");

	croak "no monitoring data: $response->{status} $response->{content}" unless $response->{success};
	return decode_json($response->{content});
}

# The configuration of a stream, as nats-server shows it; undef without it.
sub stream_config
{
	my ($self, $stream) = @_;
	my $accounts = $self->monitor('jsz?accounts=true&streams=true&config=true')->{account_details} // [];

	foreach my $detail (map { @{ $_->{stream_detail} // [] } } @$accounts)
	{
		return $detail->{config} if $detail->{name} eq $stream;
	}
	return undef;
}

# The connections of relays now open; each has a "cid" of its own.
sub relay_connections
{
	my ($self) = @_;

	return grep { ($_->{name} // '') eq 'outbox relay' } @{ $self->monitor('connz')->{connections} };
}

# Messages in the stream, or undef if there is no such stream:
# { messages, first_seq, last_seq, bytes }
sub info
{
	my ($self, $stream) = @_;
	my ($code, $out, $err) = $self->try_tool('info', $stream);

	return undef if $code == 1 && $err =~ /does not exist/;
	croak "natstool info $stream: exit $code: $err" if $code != 0;
	return { map { split(/=/, $_, 2) } split(' ', $out) };
}

sub _unescape
{
	my ($text) = @_;

	$text =~ s/%([0-9A-F]{2})/chr(hex($1))/ge;
	return $text;
}

# All messages now in the stream, in order, as a list of
#   { seq, subject, msg_id, sha256, payload,
#     headers => { key => first value }, all_headers => [ [key, value], ... ] }
# Everything is bytes, not decoded from UTF-8. With a filter, only such subjects.
sub dump
{
	my ($self, $stream, @filter) = @_;
	my @messages;

	foreach my $line (split(/\n/, $self->tool('dump', $stream, @filter)))
	{
		my ($seq, $subject, $msg_id, $sha256, $payload, @headers) = split(/\t/, $line, -1);
		my @pairs = map { [ map { _unescape($_) } split(/=/, $_, 2) ] } @headers;

		push @messages,
		  {
			seq => $seq,
			subject => _unescape($subject),
			msg_id => _unescape($msg_id),
			sha256 => $sha256,
			payload => decode_base64($payload),
			headers => { map { @$_ } reverse @pairs },
			all_headers => \@pairs,
		  };
	}
	return @messages;
}

END
{
	# a forked child that ends must not take the servers along
	if (defined $owner && $$ == $owner)
	{
		local $?;
		foreach my $server (grep { defined $_->{pid} } @servers)
		{
			kill('KILL', $server->{pid});
			waitpid($server->{pid}, 0);
		}
	}
}

##########################################################################
package OutboxTest;

use Carp;
use Exporter 'import';
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep time);

our @EXPORT = qw(new_cluster wait_published wait_for_query psql_if_up check_no_crash crash_lines check_order
  own_status wait_state wait_until never_within slack sqlstates attribute);

# PostgreSQL::Test::Cluster needs pg_regress, which "make prove_installcheck"
# of PGXS names in the environment and a bare "prove" does not.
sub _find_pg_regress
{
	return if $ENV{PG_REGRESS};

	my ($makefile) = run_command([ 'pg_config', '--pgxs' ]);

	croak 'pg_config --pgxs does not tell where pg_regress is' unless $makefile =~ m{^(.*)/makefiles/};
	$ENV{PG_REGRESS} = "$1/test/regress/pg_regress";
	return;
}

# A running cluster with the extension in its "postgres" database.
#   nats               an OutboxNats, or undef for a relay without a broker
#   extra              lines for postgresql.conf; they win over the ones here
#   allows_streaming   for standbys, see PostgreSQL::Test::Cluster
#   create_extension   default 1
#   initdb             list of more arguments for initdb
#   install_path       of another installation than that in PATH
# OUTBOX_TEST_CONF in the environment: lines for all clusters, such as "outbox.workers = 3".
# Besides PostgreSQL::Test::Cluster's own settings (fsync and
# restart_after_crash are off there); wal_level is the server's default.
sub new_cluster
{
	my ($name, %opt) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, defined $opt{install_path} ? (install_path => $opt{install_path}) : ());

	_find_pg_regress();

	my $conf = "shared_preload_libraries = 'outbox'\nmax_prepared_transactions = 10\n";

	$node->init(allows_streaming => $opt{allows_streaming}, extra => $opt{initdb} // []);
	$conf .= "wal_level = replica\nmax_wal_senders = 10\n" unless $opt{allows_streaming};
	$conf .= "outbox.nats_url = '" . $opt{nats}->url . "'\n" if $opt{nats};
	$conf .= "$opt{extra}\n" if defined $opt{extra};
	$conf .= "$ENV{OUTBOX_TEST_CONF}\n" if defined $ENV{OUTBOX_TEST_CONF};
	$node->append_conf('postgresql.conf', $conf);
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION outbox') if $opt{create_extension} // 1;
	return $node;
}

# As psql() of a node that may be down: a psql that can't connect ends before it reads
# the query, and that may be a broken pipe to the test.
sub psql_if_up
{
	my ($node, @arguments) = @_;
	my @result = eval { $node->psql(@arguments) };

	die $@ if $@ && $@ !~ /Broken pipe/;
	return $@ ? (2, '', $@) : @result;
}

# Polls a query until it yields the text expected ("t" by default). Unlike
# poll_query_until it survives a server that is down meanwhile, and is quiet.
sub wait_for_query
{
	my ($node, $db, $query, %opt) = @_;
	my $expected = $opt{expected} // 't';
	my $end = time() + slack($opt{timeout} // 60);
	my ($code, $out, $err, $timed_out);

	do
	{
		($code, $out, $err) = psql_if_up($node, $db, $query, timeout => 60, timed_out => \$timed_out);
		return 1 if defined $code && $code == 0 && $out eq $expected;
		sleep(0.05);
	} while (time() < $end);

	diag("waited in vain for \"$expected\" from: $query\nlast result: " . ($out // '') . "\nlast error: " . ($err // ''));
	return 0;
}

# Waits until at least $count events are published; without a count, until none
# is pending or processing any more (a failed one may remain). On failure it
# prints outbox.status() and returns 0.
sub wait_published
{
	my ($node, $db, $count, %opt) = @_;
	my $condition =
	  defined $count
	  ? "count(*) FILTER (WHERE publish_state = 'published') >= $count"
	  : "count(*) FILTER (WHERE publish_state IN ('pending', 'processing')) = 0";

	return 1 if wait_for_query($node, $db, "SELECT $condition FROM outbox.events", %opt);
	_print_status($node, $db);
	return 0;
}

sub _print_status
{
	my ($node, $db) = @_;

	foreach my $query (
		'SELECT publish_state, count(*), min(position), max(position), max(last_error) FROM outbox.events GROUP BY 1',
		'SELECT * FROM outbox.status()')
	{
		my ($code, $out, $err) = $node->psql($db, $query, timeout => 60, timed_out => \my $timed_out, extra_params => ['-x']);

		diag("$query\n" . ($out // '') . ($err // ''));
	}
	return;
}

# A bound on time, longer where OUTBOX_TEST_SLACK says that as many test files share
# the machine's cores (scripts/test sets it).
sub slack
{
	my ($seconds) = @_;

	return $seconds * ($ENV{OUTBOX_TEST_SLACK} // 1);
}

# Polls a condition in Perl; returns whether it came true in time, see slack().
sub wait_until
{
	my ($seconds, $condition) = @_;

	return !never_within(slack($seconds), $condition);
}

# Whether a condition didn't come true for so long.
sub never_within
{
	my ($seconds, $condition) = @_;
	my $end = time() + $seconds;

	while (time() < $end)
	{
		return 0 if $condition->();
		sleep(0.02);
	}
	return !$condition->();
}

# The row of outbox.status() for one database, as a hash; NULL is ''.
sub own_status
{
	my ($node, $db) = @_;
	my ($code, $out) = $node->psql($db, 'SELECT * FROM outbox.status() WHERE database = current_database()',
		timeout => 60, timed_out => \my $timed_out, extra_params => ['-x']);

	return {} if !defined $code || $code != 0;
	return { map { split(/\|/, $_, 2) } split(/\n/, $out) };
}

# Waits until the relay of a database is in a state; on failure it prints outbox.status().
sub wait_state
{
	my ($node, $db, $state, %opt) = @_;

	return 1 if wait_until($opt{timeout} // 10, sub { (own_status($node, $db)->{state} // '') eq $state });
	_print_status($node, $db);
	return 0;
}

# Runs statements that should fail, each undone, in one session. Yields a
# [SQLSTATE, message with detail and hint] for each; SQLSTATE '00000': it worked.
sub sqlstates
{
	my ($node, $db, @statements) = @_;
	my $script = <<'SQL';
SET client_min_messages = warning;
CREATE FUNCTION pg_temp.try(statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text; message text; detail text; hint text;
BEGIN
	EXECUTE statement;
	RAISE SQLSTATE 'OK000' USING MESSAGE = 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT,
		detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RETURN CASE state WHEN 'OK000' THEN '00000' ELSE state END || message || E'\n' || detail || E'\n' || hint;
END $$;
SQL

	$script .= "SELECT encode(convert_to(pg_temp.try(\$try\$$_\$try\$), 'UTF8'), 'hex');\n" foreach @statements;
	return map { [ unpack('A5 a*', pack('H*', $_)) ] } split(/\n/, $node->safe_psql($db, $script));
}

# The lines of the server log that a healthy server never writes, except those
# that match the option "allow": the kills that the test itself has done.
sub crash_lines
{
	my ($node, %opt) = @_;
	my $bad = qr/terminated by signal|PANIC:|TRAP:|(?:Address|Thread|Leak|UndefinedBehavior)Sanitizer|runtime error:/;
	my @lines = grep { $_ =~ $bad } split(/\n/, slurp_file($node->logfile));

	@lines = grep { $_ !~ $opt{allow} } @lines if defined $opt{allow};
	return @lines;
}

# A test point of its own, to end each test with.
sub check_no_crash
{
	my ($node, %opt) = @_;
	my @lines = crash_lines($node, %opt);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(!@lines, $opt{name} // ('nothing crashed in ' . $node->name)) or diag(join("\n", @lines));
	return !@lines;
}

# A CloudEvents attribute of a message, in binary or in structured mode; undef without it.
sub attribute
{
	my ($message, $name) = @_;

	return JSON::PP::decode_json($message->{payload})->{$name}
	  if ($message->{headers}{'Content-Type'} // '') eq 'application/cloudevents+json';
	return $message->{headers}{"ce-$name"};
}

# The promise of order: per aggregate, the first copies (of each Nats-Msg-Id)
# have rising positions in the stream. Returns what contradicts it, in words; a
# message that lacks what it takes to tell is a contradiction, too. A dump that
# the caller has already may be given.
sub check_order
{
	my ($nats, $stream, $messages) = @_;
	my (%seen, %last, @violations);

	foreach my $message ($messages ? @$messages : $nats->dump($stream))
	{
		my ($type, $subject, $sequence) = map { attribute($message, $_) } qw(aggregatetype subject sequence);
		my $at = "at sequence $message->{seq}";

		if ($message->{msg_id} eq '' || !defined $type || !defined $subject || ($sequence // '') !~ /^\d+$/)
		{
			push @violations, "$at: Nats-Msg-Id, ce-aggregatetype, ce-subject or ce-sequence is missing";
			next;
		}
		next if $seen{ $message->{msg_id} }++;

		my $before = $last{$type}{$subject};
		push @violations, "$at: $type $subject: position $sequence after $before"
		  if defined $before && $sequence <= $before;
		$last{$type}{$subject} = $sequence if !defined $before || $sequence > $before;
	}
	return @violations;
}

##########################################################################
# Stopping processes in chosen places, killing relays, comparing the stream with
# the log.
push @EXPORT, qw(needs_test_points create_test_points arm release wait_at_point relay_pid wait_new_relay
  wait_relay wait_drained stream_differences);

# Ends the whole test file as skipped unless the installed library was built
# with test points. Creates no cluster for that: it looks into the library.
sub needs_test_points
{
	my ($dir) = run_command([ 'pg_config', '--pkglibdir' ]);

	return if slurp_file("$dir/outbox.so") =~ /outbox_test_waiting/;
	plan skip_all => 'the library has no test points (make TEST_POINTS=1)';
}

# The SQL functions for them; points are the server's, so one database is enough.
sub create_test_points
{
	my ($node, $db) = @_;

	$node->safe_psql(
		$db, q{
		CREATE FUNCTION test_arm(text) RETURNS void LANGUAGE c AS 'outbox', 'outbox_test_arm';
		CREATE FUNCTION test_release(text) RETURNS void LANGUAGE c AS 'outbox', 'outbox_test_release';
		CREATE FUNCTION test_waiting(text) RETURNS integer LANGUAGE c AS 'outbox', 'outbox_test_waiting';
	});
	return;
}

sub arm
{
	my ($node, $db, $point) = @_;

	$node->safe_psql($db, "SELECT test_arm('$point')");
	return;
}

sub release
{
	my ($node, $db, $point) = @_;

	$node->safe_psql($db, "SELECT test_release('$point')");
	return;
}

# Waits until at least $count processes stand at the point.
sub wait_at_point
{
	my ($node, $db, $point, $count, %opt) = @_;

	return wait_for_query($node, $db, "SELECT test_waiting('$point') >= " . ($count // 1), %opt);
}

# The process id of a database's relay, or undef while there is none.
sub relay_pid
{
	my ($node, $db) = @_;
	my $pid = own_status($node, $db)->{pid};

	return defined $pid && $pid =~ /^\d+$/ ? $pid : undef;
}

# Waits for an active relay (a state of "active") and returns its process id, or undef.
sub wait_relay
{
	my ($node, $db, %opt) = @_;

	return wait_state($node, $db, 'active', %opt) ? relay_pid($node, $db) : undef;
}

# Waits for an active relay that isn't process $old; undef if there is none in time.
sub wait_new_relay
{
	my ($node, $db, $old, %opt) = @_;
	my $status = {};

	return $status->{pid}
	  if wait_until(
		$opt{timeout} // 15,
		sub {
			$status = own_status($node, $db);
			return ($status->{state} // '') eq 'active' && $status->{pid} ne '' && $status->{pid} != $old;
		});
	_print_status($node, $db);
	return undef;
}

# Waits until the relays have nothing left to do, cheaply, and then for what
# wait_published() looks at: for tens of thousands of events.
sub wait_drained
{
	my ($node, $db, %opt) = @_;

	return wait_for_query($node, $db,
		q{SELECT bool_and(state = 'active') AND sum(backlog) = 0 FROM outbox.status() WHERE database = current_database()}, %opt)
	  && wait_published($node, $db, undef, %opt);
}

# What the stream and outbox.events of a database say that contradicts the
# promises, in words: a published event that isn't stored, a stored one that no
# transaction committed, an id with two positions or bodies, and, unless
# copies => 1, a second copy. Events that are not published count as missing,
# unless pending => 1. messages => [...]: a dump that the caller has already.
sub stream_differences
{
	my ($nats, $stream, $node, $db, %opt) = @_;
	my (%events, %stored, @differences);

	foreach my $line (split(/\n/, $node->safe_psql($db, 'SELECT event_id, position, publish_state FROM outbox.events')))
	{
		my ($id, $position, $state) = split(/\|/, $line);

		$events{$id} = [ $position, $state ];
	}
	foreach my $message ($opt{messages} ? @{ $opt{messages} } : $nats->dump($stream))
	{
		my ($id, $source) = ($message->{msg_id}, $message->{headers}{'ce-source'} // '');
		my $position = $message->{headers}{'ce-sequence'} // 'none';
		my $at = "at sequence $message->{seq}: $id";

		next if $source ne "/outbox/$db";
		push @differences, "$at: stored twice" if $stored{$id} && !$opt{copies};
		push @differences, "$at: other body or position than its first copy"
		  if $stored{$id} && $stored{$id} ne "$position $message->{sha256}";
		$stored{$id} //= "$position $message->{sha256}";
		if (!$events{$id})
		{
			push @differences, "$at (position $position): not in outbox.events";
		}
		elsif ($events{$id}[0] != $position)
		{
			push @differences, "$at: position $position, but $events{$id}[0] in outbox.events";
		}
	}
	foreach my $id (sort { $events{$a}[0] <=> $events{$b}[0] } keys %events)
	{
		my ($position, $state) = @{ $events{$id} };

		push @differences, "position $position: $state" if $state ne 'published' && !$opt{pending};
		push @differences, "position $position: published, but not in the stream" if $state eq 'published' && !$stored{$id};
	}
	return @differences;
}

1;
