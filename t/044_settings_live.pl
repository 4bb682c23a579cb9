# Each setting of the extension: who may change it, what is refused, and that a
# change in the configuration file takes effect within two seconds, whether the
# relay sleeps, publishes or is not connected, without losing or repeating
# anything. A setting that isn't in this file's table makes it fail.

use strict;
use warnings;

use OutboxLife;
use OutboxProxy;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $db = 'postgres';
my $nats = OutboxNats->start;
my @proxy = map { OutboxProxy->start(target => $nats->port) } 0 .. 1;
my $node = new_cluster('main', extra => <<"CONF");
max_connections = 60
shared_buffers = 64MB
jit = off
log_statement = none
outbox.nats_url = '@{[$proxy[0]->url]}'
outbox.ack_timeout = 10s
outbox.retry_base_delay = 50ms
outbox.retry_max_delay = 300ms
CONF
my $numbers = [ '-1', '0', '2147483648', '9999999d', 'much', '' ];
my $n = 0;

# context; invalid values; two valid ones other than what is in force, for live
# changes; effect: a check of its own, besides that the relay has read it.
my %setting = (
	nats_url => {
		context => 'superuser',
		invalid => [ '', 'x', 'http://h', 'nats://', '127.0.0.1:4222', 'nats://a,,nats://b' ],
		valid => [ $proxy[1]->url, $proxy[0]->url . ',' . $proxy[1]->url ],
		effect => sub { wait_until(2, sub { (own_status($node, $db)->{server} // '') eq $proxy[1]->url }) },
	},
	login_file => { context => 'superuser', valid => [ '/does/not/exist', '/neither' ], effect => sub { unusable(qr/could not read outbox\.login_file/) } },
	credentials_file => { context => 'superuser', valid => [ '/does/not/exist', '/neither' ], effect => sub { unusable(qr/could not read outbox\.credentials_file/) } },
	nkey_seed_file => { context => 'superuser', valid => [ '/does/not/exist', '/neither' ], effect => sub { unusable(qr/could not read outbox\.nkey_seed_file/) } },
	# what the server replies to, and nobody sees
	inbox_prefix => { context => 'superuser', invalid => [ 'a b', 'a.', '.a', 'a..b', 'a.*', 'a.>', 'x' x 65 ], valid => [ '_INBOX_first', 'replies.second' ] },
	tls_ca_file => { context => 'superuser', valid => [ '/does/not/exist', '/neither' ], effect => sub { unusable(qr/could not read outbox\.tls_ca_file/) } },
	tls_cert_file => { context => 'superuser', valid => [ '/does/not/exist', '/neither' ], effect => sub { unusable(qr/need each other/) } },
	tls_key_file => { context => 'superuser', valid => [ '/does/not/exist', '/neither' ], effect => sub { unusable(qr/need each other/) } },
	connect_timeout => { context => 'superuser', invalid => [ @$numbers, 99, 60001 ], valid => [ '3s', '1500' ] },
	stream => {
		context => 'superuser',
		invalid => [ '', 'a b', 'a.b', 'a*', '>' ],
		valid => [ 'ANOTHER', 'THIRD' ],
		effect => sub {
			wait_until(2, sub { (own_status($node, $db)->{state} // '') eq 'stream unavailable' && own_status($node, $db)->{stream} eq 'ANOTHER' });
		},
	},
	stream_create => { context => 'superuser', invalid => [ 'maybe', '2', '' ], valid => [ 'off', 'false' ] },
	subject_template => {
		context => 'superuser',
		invalid => [ '', '{aggregate_id}', 'a..b', 'a.*', 'a.{nope}', '$JS.a' ],
		valid => [ 'outbox.first.{event_type}', 'outbox.second.{event_type}' ],
		effect => sub { arrives('outbox.first.e') },
	},
	envelope => {
		context => 'superuser',
		invalid => [ '', 'cloudevents', 'on' ],
		valid => [ 'structured', 'binary' ],
	},
	cloudevents_source => { context => 'superuser', invalid => [ 'x' x 256 ], valid => [ '/first', '/second' ] },
	retention => { context => 'superuser', invalid => [ -2, '9999999d', 'much', '' ], valid => [ '8d', '-1' ] },
	dead_letter_retention => { context => 'superuser', invalid => [ -2, '9999999d', 'much', '' ], valid => [ '30d', '0' ] },
	# the cleaner's: each one reads them when it starts
	archive_directory => { context => 'superuser', invalid => [ 'relative', './x' ], valid => [ '/does/not/exist', '/neither' ] },
	archive_url => { context => 'superuser', invalid => [ 'x', 'nats://h/t', 'http://h', 'http://h/a;b' ], valid => [ 'http://127.0.0.1:1/t', 'https://u:p@h/d/t' ] },
	archive_compression => { context => 'superuser', invalid => [ 'lz4', '9', '' ], valid => [ 'zstd', 'gzip' ] },
	guard => { context => 'superuser', live => 0, invalid => [ 'maybe', '2', '' ], valid => [ 'off', 'on' ] },
	traceparent => { context => 'user', live => 0 },
	tracestate => { context => 'user', live => 0 },
	max_payload => {
		context => 'superuser',
		invalid => [ @$numbers, 1023, '65MB' ],
		valid => [ 2000, 3000 ],
		effect => sub {
			my ($first) = sqlstates($node, $db, q{SELECT outbox.enqueue_text('p', '1', 'e', repeat('x', 2500))});
			return $first->[0] eq '54000';
		},
	},
	max_in_flight => { context => 'superuser', invalid => [ @$numbers, 8193 ], valid => [ 3, 7 ], effect => sub { in_flight(100, '= 3') } },
	ack_timeout => { context => 'superuser', invalid => [ @$numbers, 99, 3600001 ], valid => [ '300ms', '700ms' ], effect => sub { times_out(300) } },
	retry_base_delay => { context => 'superuser', invalid => [ @$numbers, 3600001 ], valid => [ '60ms', '70ms' ] },
	retry_max_delay => { context => 'superuser', invalid => [ @$numbers, 86400001 ], valid => [ '200ms', '250ms' ] },
	# a quarter of it may be in flight: 256 kB
	relay_memory => { context => 'superuser', invalid => [ '-1', '0', '1kB', '9999999TB', 'much', '' ], valid => [ '1MB', '2MB' ], effect => sub { in_flight(100_000, '= 3') } },
	lag_warning => { context => 'superuser', invalid => [ '-2', '2147483648', 'much', '' ], valid => [ '1h', '-1' ] },
	max_attempts => { context => 'superuser', invalid => [ @$numbers ], valid => [ 3, 2147483647 ] },
	max_pending => {
		context => 'superuser',
		invalid => [ '-1', '2147483648', '9999999d', 'much', '' ],
		valid => [ 1000000, 2000000 ],
	},
	poison_policy => { context => 'superuser', invalid => [ 'drop', '1', '' ], valid => [ 'block', 'park' ] },
	preserve_aggregate_order => { context => 'superuser', live => 0, invalid => [ 'maybe', '2', '' ], valid => [ 'off', 'on' ] },
	dead_letter_subject => { context => 'superuser', invalid => [ 'a..b', 'a.*', '>', 'a b', '{aggregate_id}', 'a.{event_type}' ], valid => [ 'dead.letters', 'dead' ] },
	workers => { context => 'sighup', live => 0, invalid => [ '-1', '9', '9999999d', 'much', '' ], valid => [ 2, 1 ] },
	lease_ttl => { context => 'sighup', invalid => [ @$numbers, 999, 600001 ], valid => [ '2s', '3000' ] },
	max_open_aggregates => { context => 'postmaster', invalid => [ @$numbers, 999, 100000001 ], restart => 5000 },
	max_databases => { context => 'postmaster', invalid => [ @$numbers, 1025 ], restart => 5 },
);
my @live = grep { $setting{$_}{live} // $setting{$_}{context} =~ /^(superuser|sighup)$/ } sort keys %setting;

sub quote { return "'" . ($_[0] =~ s/'/''/gr) . "'" }

# All settings as they are in force in a session.
sub in_force
{
	my %value = map { split(/=/, $_, 2) } split(/\n/, $node->safe_psql($db, q{SELECT name || '=' || setting FROM pg_settings WHERE name LIKE 'outbox.%'}));

	return \%value;
}

# The connection settings can't be used: the relay says so, within two seconds.
sub unusable
{
	my ($reason) = @_;

	return wait_until(2, sub { my $status = own_status($node, $db); $status->{state} eq 'not connected' && $status->{last_error} =~ $reason });
}

sub arrives
{
	my ($subject) = @_;

	burst($node, $db, 'subject', 1);
	return wait_until(5, sub { scalar($nats->dump('OUTBOX', $subject)) });
}

# What is in flight at most, where no answer comes, of events of so many bytes.
sub in_flight
{
	my ($bytes, $expected) = @_;
	my $ok;

	wait_relay($node, $db);
	$proxy[0]->mode('stall');
	$node->safe_psql($db, "SELECT count(outbox.enqueue_text('window', i::text, 'e', repeat('x', $bytes))) FROM generate_series(1, 12) i");
	$ok = wait_for_query($node, $db, "SELECT in_flight $expected AND backlog >= 12 FROM outbox.status()", timeout => 5);
	$proxy[0]->mode('forward');
	return $ok;
}

sub times_out
{
	my ($ms) = @_;
	my $ok;

	wait_relay($node, $db);
	$proxy[0]->mode('stall');
	burst($node, $db, 'late', 1);
	$ok = wait_until(5, sub { own_status($node, $db)->{last_error} =~ /no acknowledgement within $ms ms/ });
	$proxy[0]->mode('forward');
	return $ok;
}

# ALTER SYSTEM and reload. The relay has read it when it names another source in
# the headers of a new event; sources are told apart by a number.
sub change
{
	my (@settings) = @_;

	$n++;
	alter_system($node, @settings, (grep { /cloudevents_source/ } @settings) ? () : "outbox.cloudevents_source = '/$n'");
	return;
}

sub relay_has_read_it
{
	my ($source) = @_;
	my $start = time();

	$node->safe_psql($db, "SELECT outbox.enqueue_text('marker', '$n', 'e', 'x', subject => 'outbox.marker.$n')");
	return undef
	  unless wait_until(5, sub { my ($marker) = $nats->dump('OUTBOX', "outbox.marker.$n"); return $marker && attribute($marker, 'source') eq $source });
	return time() - $start;
}

# ---------------------------------------------------------------- who may

my %context = map { split(/=/) }
  split(/\n/, $node->safe_psql($db, q{SELECT substr(name, 8) || '=' || context FROM pg_settings WHERE name LIKE 'outbox.%' AND name NOT LIKE 'outbox.test\_%'}));
is_deeply(\%context, { map { $_ => $setting{$_}{context} } keys %setting }, 'all settings, and who may change them');

# ------------------------------------------------------------- what is refused

my $before = in_force();
my @statements = map { my $name = $_; map { "ALTER SYSTEM SET outbox.$name = " . quote($_) } @{ $setting{$name}{invalid} // [] } } sort keys %setting;
my ($code, $out, $err) = $node->psql($db, "\\set VERBOSITY sqlstate\n" . join('', map { "\\echo\n$_;\n" } @statements), on_error_stop => 0);
my @codes = $err =~ /ERROR:  (\w+)/g;
cmp_ok(scalar(@statements), '>', 60, 'wrong values are tried');
is_deeply(\@codes, [ ('22023') x @statements ], 'ALTER SYSTEM refuses each');
is($node->safe_psql($db, q{SELECT count(*) FROM pg_file_settings WHERE name LIKE 'outbox.%' AND sourcefile ~ 'auto'}), 0, '... and writes none');

my @wrong = grep { @{ $setting{$_}{invalid} // [] } } sort keys %setting;
my $conf = slurp_file($node->data_dir . '/postgresql.conf');
$node->append_conf('postgresql.conf', join("\n", map { "outbox.$_ = " . quote($setting{$_}{invalid}[0]) } @wrong) . "\nwork_mem = '5MB'\n");
my $mark = log_mark($node);
$node->reload;
ok(wait_until(5, sub { log_lines($node, $mark, qr/contains errors/) }), 'wrong values in the configuration file: the log says so');
foreach my $name (@wrong)
{
	my @lines = log_lines($node, $mark, qr/"outbox\.$name"/);

	is(scalar(@lines), 1, "$name: one line") or diag(join("\n", @lines));
}
is_deeply(in_force(), $before, '... and all old values are kept');
my $id = $node->safe_psql($db, q{SELECT outbox.enqueue_text('wrong', '1', 'e', 'x')});
ok(wait_drained($node, $db), '... and the relay publishes');
is(($nats->dump('OUTBOX', 'outbox.wrong.1.e'))[0]{msg_id}, $id, '... as before');
unlink($node->data_dir . '/postgresql.conf');
append_to_file($node->data_dir . '/postgresql.conf', $conf);
$node->reload;

# --------------------------------------------------------- changed while idle

my $relay = wait_relay($node, $db);
foreach my $name (@live)
{
	my $usable = $name !~ /^(?:stream|.*_file)$/;

	change("outbox.$name = " . quote($setting{$name}{valid}[0]));
	ok($setting{$name}{effect}->(), "$name, idle: takes effect") if $setting{$name}{effect};
	change("outbox.$name = DEFAULT") unless $usable;
	my $seconds = relay_has_read_it($name eq 'cloudevents_source' ? '/first' : "/$n");
	ok(defined $seconds && ($seconds < slack(2) || $setting{$name}{effect}), "$name, idle: is read within 2 s, on an idle machine") or diag($seconds // 'not at all');
	$node->safe_psql($db, "ALTER SYSTEM RESET outbox.$name");
	$node->reload;
}
ok(wait_drained($node, $db), 'idle: everything is published');
is(relay_pid($node, $db), $relay, 'idle: by the same relay');

# -------------------------------------------------- changed while publishing

my $load = start_load($node, $db);
foreach my $name (@live)
{
	my $usable = $name !~ /^(?:stream|.*_file)$/;

	change("outbox.$name = " . quote($setting{$name}{valid}[1]));
	# what can't be used for long
	change("outbox.$name = DEFAULT") unless $usable;
	ok(defined relay_has_read_it($name eq 'cloudevents_source' ? '/second' : "/$n"), "$name, publishing: is read");
}
stop_load($load);
ok(wait_drained($node, $db), 'publishing: everything is published');
is(relay_pid($node, $db), $relay, 'publishing: by the same relay');

# -------------------------------------------------- changed while not connected

$node->safe_psql($db, 'ALTER SYSTEM RESET ALL');
$node->reload;
ok(defined wait_relay($node, $db), 'the settings of before');
$_->mode('cut') foreach @proxy;
ok(wait_state($node, $db, 'not connected'), 'not connected');
burst($node, $db, 'apart', 100);
foreach my $name (@live)
{
	change("outbox.$name = " . quote($setting{$name}{valid}[0]));
}
is(own_status($node, $db)->{state}, 'not connected', 'still not connected');
change(map { "outbox.$_ = DEFAULT" } grep { /_file$/ } @live);
change("outbox.stream = 'OUTBOX'", "outbox.nats_url = '" . $proxy[1]->url . "'");
$_->mode('forward') foreach @proxy;
ok(wait_drained($node, $db), 'changed while not connected: everything is published');
is(own_status($node, $db)->{server}, $proxy[1]->url, 'changed while not connected: at the new address');
ok(defined relay_has_read_it("/$n"), 'changed while not connected: all is read');
is(relay_pid($node, $db), $relay, 'changed while not connected: by the same relay');

# ------------------------------------------------------------------- the end

foreach my $name (sort grep { $setting{$_}{restart} } keys %setting)
{
	alter_system($node, "outbox.$name = $setting{$name}{restart}");
	ok(wait_for_query($node, $db, qq{SELECT pending_restart AND setting::int <> $setting{$name}{restart} FROM pg_settings WHERE name = 'outbox.$name'}), "$name: a change waits for a restart");
	isnt(eval { $node->psql($db, "SET outbox.$name = $setting{$name}{restart}") } // 1, 0, "$name: ... and isn't for sessions");
}
$node->restart;
is($node->safe_psql($db, "SHOW outbox.$_"), $setting{$_}{restart}, "$_: in force after a restart") foreach grep { $setting{$_}{restart} } sort keys %setting;

ok(wait_published($node, $db), 'everything is published');
my %stored;
$stored{ $_->{msg_id} }++ foreach $nats->dump('OUTBOX');
my @ids = split(/\n/, $node->safe_psql($db, 'SELECT event_id FROM outbox.events'));
is(scalar(grep { ($stored{$_} // 0) != 1 } @ids), 0, 'every event is stored once');
is(scalar(keys %stored), scalar(@ids), '... and nothing else');
is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
untouched_attempts($node, $db, 'in the end');
check_no_crash($node);
done_testing();
