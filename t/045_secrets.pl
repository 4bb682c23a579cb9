# Passwords and tokens in outbox.nats_url, and what is in a credentials file, are
# shown to nobody without privileges and written into no log, however the
# connection fails; and nobody without privileges points the relay elsewhere.
# What the server itself logs about settings: docs/secrets.md.

use strict;
use warnings;

use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $db = 'postgres';
my $nats = OutboxNats->start(user => 'svc', password => 'S3cretPassw0rd');
my $port = $nats->port;
my $node = new_cluster('main', nats => $nats, extra => <<'CONF');
max_connections = 60
shared_buffers = 64MB
jit = off
log_min_messages = debug5
log_error_verbosity = verbose
log_statement = none
log_min_error_statement = panic
outbox.connect_timeout = 1s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 200ms
CONF
my @hidden = qw(archive_directory archive_url nats_url login_file credentials_file tls_ca_file tls_cert_file tls_key_file);
# each secret of this file contains it, encoded, decoded or as it is
my $secret = qr/s3cr/i;

$node->safe_psql($db, <<'SQL');
CREATE ROLE nobody LOGIN;
-- of all that can be granted to an application and to a monitor
GRANT USAGE ON SCHEMA outbox TO nobody;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO nobody;
GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO nobody;
SQL

# What somebody without privileges sees: the output and the errors of statements.
sub seen_by_nobody
{
	my (@statements) = @_;
	my ($code, $out, $err) = $node->psql($db, join(";\n", @statements, ''), on_error_stop => 0,
		extra_params => [ '-U', 'nobody', '-v', 'VERBOSITY=verbose' ], timeout => 60, timed_out => \my $timed_out);

	return "$out\n$err";
}

# The titles of all processes of the server.
sub titles
{
	my ($postmaster) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	my @processes = grep { /^(\d+)$/ && (eval { slurp_file("/proc/$_/stat") } // '') =~ /\) \w $postmaster / } map { m{/proc/(\d+)} } glob('/proc/[0-9]*');

	return join("\n", map { eval { slurp_file("/proc/$_/cmdline") } // () } $postmaster, @processes);
}

# The log, without what the postmaster itself says about a changed setting.
sub leaks_in_log
{
	my ($mark) = @_;

	return grep { !/parameter "outbox\.nats_url" changed to/ } log_lines($node, $mark, $secret);
}

sub check_hidden
{
	my ($name, $mark) = @_;
	my $seen = seen_by_nobody(
		'SELECT * FROM pg_settings', 'SHOW ALL', 'SHOW outbox.nats_url', q{SELECT current_setting('outbox.nats_url')},
		q{SELECT current_setting('outbox.nats_url', true)}, 'SELECT * FROM pg_file_settings', 'SELECT * FROM pg_stat_activity',
		'SELECT * FROM outbox.status()', 'SELECT * FROM outbox.events', 'SELECT * FROM outbox.delivery', 'SELECT * FROM pg_db_role_setting');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($seen, qr/publish_state|\|pending\|/, "$name: somebody without privileges looks around");
	is(join("\n", grep { $_ =~ $secret } split(/\n/, $seen)), '', "$name: ... and sees no secret");
	unlike(titles(), $secret, "$name: nor do process titles show it");
	is(join("\n", leaks_in_log($mark)), '', "$name: nor is it in the log");
	return;
}

# ------------------------------------------------------------------ it works

burst($node, $db, 'works', 10);
ok(wait_drained($node, $db), 'the password works');
is(own_status($node, $db)->{server}, "nats://127.0.0.1:$port", 'status() shows the server without it')
  or diag(own_status($node, $db)->{server});
burst($node, $db, 'pending', 1);
check_hidden('connected', 0);

# ------------------------------------------------------------------ it fails

# Neighbours fail in different words: the same ones again would not be logged.
my @urls = (
	[ 'wrong password', "nats://svc:S3cretWrong\@127.0.0.1:$port" ],
	[ 'nobody listens', 'nats://svc:S3cretPassw0rd@127.0.0.1:1' ],
	[ 'percent-encoded password', "nats://svc:S3cr%21t\@127.0.0.1:$port" ],
	[ 'no such host', 'nats://svc:S3cretPassw0rd@nowhere.invalid:4222' ],
	[ 'token', "nats://S3cretToken\@127.0.0.1:$port" ],
	[ 'no such port', 'nats://svc:S3cretPassw0rd@127.0.0.1:99999' ],
	[ 'no port', 'nats://svc:S3cretPassw0rd@127.0.0.1:port' ],
	[ 'signs in the password', 'nats://svc:a@S3cret:@/S3cret@127.0.0.1:1' ],
	[ 'no host', 'nats://svc:S3cretPassw0rd@' ],
	[ 'several', 'nats://svc:S3cretPassw0rd@127.0.0.1:1, nats://S3cretToken@127.0.0.1:2,tls://svc:S3cret@127.0.0.1:3' ],
	[ 'TLS where there is none', "tls://svc:S3cretPassw0rd\@127.0.0.1:$port" ],
);
foreach my $case (@urls)
{
	my ($name, $url) = @$case;
	my $mark = log_mark($node);

	alter_system($node, "outbox.nats_url = '$url'");
	ok(wait_until(15, sub { log_lines($node, $mark, qr/LOG: .*outbox relay is not connected to NATS: could not/) }), "$name: the connection fails");
	ok(wait_state($node, $db, 'not connected'), "$name: ... and status() says so");
	check_hidden($name, $mark);
}

# Refused ones aren't repeated, either.
my $mark = log_mark($node);
my @refused = ('htp://svc:S3cretPassw0rd@h', 'nats://svc:S3cret@h,S3cret', 'S3cret');
my ($code, $out, $err) = $node->psql($db, join('', map { "ALTER SYSTEM SET outbox.nats_url = '$_';\nSET outbox.nats_url = '$_';\n" } @refused), on_error_stop => 0);
is(scalar(my @errors = $err =~ /ERROR:/g), 6, 'refused URLs');
unlike($err =~ s/^LINE.*//gmr, $secret, 'refused URLs: not repeated');
my $conf = slurp_file($node->data_dir . '/postgresql.conf');
$node->append_conf('postgresql.conf', "outbox.nats_url = '$refused[0]'");
$node->safe_psql($db, 'ALTER SYSTEM RESET outbox.nats_url');
$node->reload;
ok(wait_until(5, sub { log_lines($node, $mark, qr/invalid value for parameter "outbox\.nats_url"/) }), 'refused URL in the configuration file: the log says so');
is(join("\n", leaks_in_log($mark)), '', 'refused URLs: not in the log');
unlink($node->data_dir . '/postgresql.conf');
append_to_file($node->data_dir . '/postgresql.conf', $conf);
$node->reload;
ok(wait_drained($node, $db), 'the first URL: everything is published');

# The postmaster announces a change of any setting with its value: a password in a file stays out of it.
my $login = PostgreSQL::Test::Utils::tempdir('login') . '/login';
append_to_file($login, "svc:S3cretButWrong\n");
chmod(0600, $login);
$mark = log_mark($node);
alter_system($node, "outbox.nats_url = 'nats://127.0.0.1:" . $nats->port . "'", "outbox.login_file = '$login'");
ok(wait_state($node, $db, 'not connected'), 'login file: a wrong password');
ok(wait_until(10, sub { log_lines($node, $mark, qr/LOG: .*outbox relay is not connected to NATS/) }), 'login file: ... and the log says so');
check_hidden('login file', $mark);
is(scalar(log_lines($node, $mark, qr/S3cret/)), 0, 'login file: no line of the log has it');
unlink($login);
append_to_file($login, $nats->{user} . ':' . $nats->{password} . "\n");
chmod(0600, $login);
ok(wait_state($node, $db, 'active'), 'login file: the right password, with nothing to reload');
$node->safe_psql($db, 'ALTER SYSTEM RESET ALL');
$node->reload;

# --------------------------------------------- a credentials file that is no good

my $creds = PostgreSQL::Test::Utils::tempdir('creds') . '/user.creds';
append_to_file($creds, "-----BEGIN NATS USER JWT-----\nS3cretJwt\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY SEED-----\nSUS3CRETSEED\n------END USER NKEY SEED------\n");
my $asking = OutboxNats->start(name => 'asking',
	authorization => 'users: [ { nkey: "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4" } ]');
$mark = log_mark($node);
alter_system($node, "outbox.nats_url = '" . $asking->url . "'", "outbox.credentials_file = '$creds'");
ok(wait_state($node, $db, 'not connected'), 'credentials file: the connection fails');
ok(wait_until(10, sub { log_lines($node, $mark, qr/LOG: .*outbox relay is not connected to NATS/) }), 'credentials file: ... and the log says so');
check_hidden('credentials file', $mark);
$node->safe_psql($db, 'ALTER SYSTEM RESET ALL');
$node->reload;
ok(wait_drained($node, $db), 'credentials file: everything is published without it');

# ------------------------------------------------ nobody sends events elsewhere

my @attempts;
foreach my $name (@hidden)
{
	push @attempts, "SET outbox.$name = 'nats://elsewhere'", "SET LOCAL outbox.$name = 'nats://elsewhere'",
	  "SELECT set_config('outbox.$name', 'nats://elsewhere', false)", "ALTER ROLE nobody SET outbox.$name = 'nats://elsewhere'",
	  "ALTER DATABASE postgres SET outbox.$name = 'nats://elsewhere'", "ALTER SYSTEM SET outbox.$name = 'nats://elsewhere'",
	  "SHOW outbox.$name", "SELECT current_setting('outbox.$name')";
}
my @codes = seen_by_nobody(@attempts) =~ /(?:ERROR|FATAL):  (\w{5})/g;
is_deeply(\@codes, [ ('42501') x @attempts ], 'no privilege, no change') or diag(seen_by_nobody(@attempts));
foreach my $name (@hidden)
{
	local $ENV{PGOPTIONS} = "-c outbox.$name=nats://elsewhere";

	like(seen_by_nobody('SELECT 1'), qr/permission denied to set parameter "outbox\.$name"/, "$name: not at the connection, either");
}
is($node->safe_psql($db, 'SELECT count(*) FROM pg_db_role_setting'), 0, 'nothing is left of it');
check_stream($nats, $node, $db, 'in the end');
check_no_crash($node);
done_testing();
