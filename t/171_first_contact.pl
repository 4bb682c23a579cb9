# The mistakes that nearly everybody makes at first: each is met by status(), a line in
# the log, or an error that says what to do and names its section of docs/failures.md.

use strict;
use warnings;

use IO::Socket::INET;
use IPC::Run;
use OutboxLife;
use OutboxNode;
use OutboxTest;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $root = checkout();
my $failures = slurp_file("$root/docs/failures.md");
my $nats = OutboxNats->start(user => 'relay', password => 's3cret');
my $without = OutboxNats->start(jetstream => 0);
my $limited = OutboxNats->start(authorization => 'users: [ { user: mute, password: p, permissions: { subscribe: "other.>" } }, '
	  . '{ user: poor, password: p, permissions: { publish: "other.>" } } ]');
my $address = '127.0.0.1:' . $nats->port;
my $closed = PostgreSQL::Test::Cluster::get_free_port();

# What a hint says, and that docs/failures.md has the section it names.
sub hint_is
{
	my ($text, $says, $section, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($text, qr/HINT:  [^\n]*$says[^\n]*See docs\/failures\.md, "\Q$section\E"\./, "$name: the hint") or diag($text);
	return like($failures, qr/^### \Q$section\E$/m, "$name: docs/failures.md explains it");
}

# A setting is wrong: what status() and the log tell.
sub met
{
	my ($node, $name, $settings, %opt) = @_;
	my $mark = $opt{mark} // log_mark($node);
	my $status = {};

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	alter_system($node, @$settings);
	ok( wait_until(
			60,
			sub {
				$status = own_status($node, $db);
				return ($status->{state} // '') eq $opt{state} && ($status->{last_error} // '') =~ $opt{reason};
			}),
		"$name: status() says \"$opt{state}\", and why")
	  or diag(($status->{state} // '') . ': ' . ($status->{last_error} // ''));
	ok(wait_until(60, sub { log_lines($node, $mark, qr/HINT: .*"\Q$opt{section}\E"/) }), "$name: the log says it");
	return hint_is(join("\n", log_lines($node, $mark, qr/^/)), $opt{hint}, $opt{section}, $name);
}

# --------------------------------------------------- what NATS has to say

my $node = new_cluster('main', allows_streaming => 1, extra => <<"CONF");
log_statement = none
outbox.nats_url = 'nats://127.0.0.1:$closed'
outbox.connect_timeout = 500ms
outbox.retry_max_delay = 200ms
outbox.stream_create = off
CONF
$node->safe_psql($db, q{SELECT outbox.enqueue('order', '1', 'placed', '{}')});
met($node, 'wrong URL', [], mark => 0, state => 'not connected', reason => qr/could not connect to nats:\S+:$closed: /, section => 'NATS unreachable',
	hint => 'Check that a NATS server listens at "outbox.nats_url"');
met($node, 'no credentials', ["outbox.nats_url = 'nats://$address'"], state => 'not connected', reason => qr/Authorization/i,
	section => 'Login refused', hint => 'Check user, password');
met($node, 'no JetStream', [ "outbox.nats_url = '" . $without->url . "'" ], state => 'stream unavailable', reason => qr/JetStream is not|no stream/,
	section => 'JetStream not enabled', hint => 'nats-server with JetStream');
met($node, 'wrong credentials', ["outbox.nats_url = 'nats://relay:wrong\@$address'"], state => 'not connected', reason => qr/Authorization/i,
	section => 'Login refused', hint => 'Check user, password');
met($node, 'no stream', [ "outbox.nats_url = '" . $nats->url . "'" ], state => 'stream unavailable', reason => qr/stream "OUTBOX" does not exist|no stream/,
	section => 'Stream not found', hint => 'set "outbox.stream_create" to on');
met($node, 'no right to subscribe', [ "outbox.nats_url = 'nats://mute:p\@127.0.0.1:" . $limited->port . "'" ], state => 'not connected', reason => qr/reply subject/,
	section => 'Replies not permitted', hint => 'Permit the NATS user to subscribe');
met($node, 'no right to create', [ "outbox.nats_url = 'nats://poor:p\@127.0.0.1:" . $limited->port . "'", 'outbox.stream_create = on' ],
	state => 'stream unavailable', reason => qr/permission|no stream/i, section => 'Stream not permitted', hint => 'Permit the NATS user to publish');
met($node, 'a file that is missing', ["outbox.credentials_file = '/does/not/exist'"], state => 'not connected', reason => qr/outbox\.credentials_file/,
	section => 'Connection settings unusable', hint => 'Correct the setting or the file');
alter_system($node, "outbox.credentials_file = ''");

# A nats-server before 2.2 has no headers, and doesn't say when nobody listens.
my $old = IO::Socket::INET->new(Listen => 5, LocalAddr => '127.0.0.1', ReuseAddr => 1) or die "listen: $!";
my $old_port = $old->sockport;
my $old_pid = fork() // die "fork: $!";
if ($old_pid == 0)
{
	$SIG{$_} = 'DEFAULT' foreach qw(INT TERM);
	alarm(120);
	while (my $client = $old->accept)
	{
		next if fork();
		alarm(60);
		syswrite($client, qq(INFO {"server_id":"old","version":"2.1.9","proto":1,"host":"127.0.0.1","port":$old_port,"max_payload":1048576}\r\n));
		while (my $line = <$client>) { syswrite($client, "PONG\r\n") if $line =~ /^PING/ }
		POSIX::_exit(0);
	}
	POSIX::_exit(0);
}
met($node, 'an old NATS server', ["outbox.nats_url = 'nats://127.0.0.1:$old_port'"], state => 'not connected', reason => qr/no answer|headers/i,
	section => 'No answer from NATS', hint => 'nats-server 2\.2 or newer');
kill('KILL', $old_pid);
waitpid($old_pid, 0);

# Once all is right, what was enqueued meanwhile arrives.
alter_system($node, "outbox.nats_url = '" . $nats->url . "'");
ok(wait_published($node, $db, 1), 'corrected: the event of before is published');

# ------------------------------------------------- what PostgreSQL has to say

sub error_of
{
	my ($on, $database, $sql, %opt) = @_;
	my ($code, $out, $err) = $on->psql($database, "\\set VERBOSITY verbose\n$sql", on_error_stop => 0, %opt);

	return $err;
}
my $call = q{SELECT outbox.enqueue('order', '1', 'placed', '{}')};

$node->safe_psql($db, 'CREATE DATABASE other; CREATE ROLE app LOGIN');
like(error_of($node, 'other', $call), qr/ERROR:  3F000: schema "outbox" does not exist/, 'wrong database: PostgreSQL says so');
like($failures, qr/`schema "outbox" does not exist`/, '... and docs/failures.md explains it');
like(error_of($node, $db, $call, connstr => $node->connstr($db) . ' user=app'), qr/ERROR:  42501: permission denied for schema outbox/, 'no rights: PostgreSQL says so');
like($failures, qr/`permission denied for schema outbox`.*README, "Who may"/, '... and docs/failures.md explains it');
like(error_of($node, $db, q{SET outbox.nats_ulr = 'x'}), qr/invalid configuration parameter name|unrecognized configuration parameter/, 'a misspelt setting is refused');

$node->backup('backup');
my $standby = PostgreSQL::Test::Cluster->new('standby');
$standby->init_from_backup($node, 'backup', has_streaming => 1);
$standby->start;
my $error = error_of($standby, $db, $call);
like($error, qr/ERROR:  25006: cannot execute outbox\.enqueue\(\) in a read-only transaction/, 'standby: refused');
hint_is($error, 'This server is a standby: enqueue on the primary', 'Standby', 'standby');
unlike(error_of($node, $db, "BEGIN READ ONLY; $call"), qr/HINT/, 'a read-only transaction of the primary is no standby');
is(own_status($standby, $db)->{state}, 'not running', 'standby: status() says that nothing runs');
$standby->stop('immediate');

# ------------------------------------------------------- not preloaded, not there

$node->append_conf('postgresql.conf', q{shared_preload_libraries = ''});
$node->restart;
$error = error_of($node, $db, $call);
like($error, qr/WARNING:  55000: outbox is not in "shared_preload_libraries": events are kept, but not published/, 'not preloaded: enqueue() warns');
hint_is($error, 'Add "outbox" to "shared_preload_libraries" and restart', 'Library not preloaded', 'not preloaded');
is($node->safe_psql($db, 'SELECT state FROM outbox.status()'), 'library not preloaded', 'not preloaded: status() says it');
$node->append_conf('postgresql.conf', q{shared_preload_libraries = 'outbox'});
$node->restart;
ok(wait_published($node, $db, 2), 'preloaded: what was kept is published');

# Starts the server in vain, with libraries looked for in $path; its log.
sub fails_to_start
{
	my ($path) = @_;
	my $mark = log_mark($node);

	$node->append_conf('postgresql.conf', "dynamic_library_path = '$path'");
	is($node->start(fail_ok => 1), 0, 'the server does not start');
	$node->append_conf('postgresql.conf', "dynamic_library_path = '\$libdir'");
	return join("\n", log_lines($node, $mark, qr/FATAL/));
}

$node->stop;
my $dir = PostgreSQL::Test::Utils::tempdir('library');
like(fails_to_start($dir), qr/could not access file "outbox": No such file or directory/, 'no library: PostgreSQL says so');
like($failures, qr/`could not access file "outbox": No such file or directory`/, '... and docs/failures.md explains it');

my ($libdir) = run_command([ 'pg_config', '--pkglibdir' ]);
my $library = slurp_file("$libdir/outbox.so");
like($library, qr/libnats\.so/, 'the library needs libnats');
append_to_file("$dir/outbox.so", $library =~ s/libnats\.so/libnots.so/gr);
like(fails_to_start($dir), qr/could not load library ".*outbox\.so": libnots\.so\S*: cannot open shared object file/, 'no libnats: PostgreSQL says which library');
like($failures, qr/`could not load library .*libnats.*cannot open shared object file`/, '... and docs/failures.md explains it');

# ------------------------------------------------------------------ the build

# make with a pg_config whose --pgxs is this file.
sub make_with
{
	my ($pgxs) = @_;
	my $out = '';

	append_to_file("$dir/pg_config", "#!/bin/sh\necho $pgxs\n");
	chmod(0755, "$dir/pg_config");
	IPC::Run::run([ 'make', '-n', '-C', $root, "PG_CONFIG=$dir/pg_config" ], '<', \'', '>', \$out, '2>&1');
	unlink("$dir/pg_config");
	return $out;
}
append_to_file("$dir/pgxs.mk", "MAJORVERSION = 14\nVERSION = 14.9\nall:\n");
like(make_with("$dir/pgxs.mk"), qr/outbox needs PostgreSQL 15 or newer, and .*pg_config belongs to 14\.9.*make PG_CONFIG=/, 'an old PostgreSQL: make says so');
like($failures, qr/`outbox needs PostgreSQL 15 or newer`/, '... and docs/failures.md explains it');
like(make_with('/does/not/exist'), qr/finds no server headers.*postgresql-server-dev/, 'no headers: make says so');

check_no_crash($node);
done_testing();
