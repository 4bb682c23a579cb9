# pg_upgrade with pending events: they are published by the new server, once, in
# order, and nothing else; everything that was in the tables is there. Run by
# test/upgrade/run.

use strict;
use warnings;

use Cwd qw(getcwd);
use File::Basename qw(dirname);
use IPC::Run;
use OutboxCopies;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($old_bin, $new_bin) = @ENV{qw(OLD_BINDIR NEW_BINDIR)};
my $nats = OutboxNats->start;
my $conf = "shared_preload_libraries = 'outbox'\noutbox.nats_url = '" . $nats->url . "'\nlog_statement = none\nmax_worker_processes = 20\n";
my @databases = ('app', 'S-1 "x"');

sub cluster
{
	my ($name, $bin, @initdb) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name, install_path => dirname($bin));

	$node->init(extra => [ '--encoding=UTF8', '--locale=C', @initdb ]);
	$node->append_conf('postgresql.conf', $conf);
	return $node;
}

my $old = cluster('old', $old_bin);
# checksums became the default
my $new = cluster('new', $new_bin, PostgreSQL::Version->new(scalar(`$new_bin/pg_config --version`) =~ s/PostgreSQL //r) >= 18 ? '--no-data-checksums' : ());
my $same_major = int($old->pg_version->major) == int($new->pg_version->major);

# ------------------------------------------------------------------ the old server

$old->start;
# where new databases get it from
$old->safe_psql('template1', 'CREATE EXTENSION outbox');
foreach my $db (@databases)
{
	$old->safe_psql('postgres', 'CREATE DATABASE "' . ($db =~ s/"/""/gr) . '" TEMPLATE template0');
	$old->safe_psql($db, <<'SQL');
CREATE EXTENSION outbox;
CREATE TABLE orders (id int PRIMARY KEY, v text);
SELECT outbox.capture('orders', 'order'), outbox.guard('orders', 'order');
CREATE TABLE legacy (id uuid PRIMARY KEY DEFAULT gen_random_uuid(), aggregatetype text, aggregateid text, type text, payload jsonb);
SELECT outbox.adopt('legacy', 'debezium', backlog => 'false');
CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE sql AS '';
SELECT outbox.subscribe('OUTBOX', 'd', 'public.handle');
SELECT outbox.inbox_accept('consumer', gen_random_uuid()) FROM generate_series(1, 10);
SELECT count(outbox.enqueue_text('early', (i % 10)::text, 'e', i::text)) FROM generate_series(1, 200) i;
SQL
	ok(wait_published($old, $db), "$db: the old server publishes");
	$old->safe_psql($db, q{SELECT outbox.purge(older_than => '0')});
}
$nats->stop;
foreach my $db (@databases)
{
	$old->safe_psql($db, <<'SQL');
SELECT count(outbox.enqueue_text('late', (i % 10)::text, 'e', i::text)) FROM generate_series(1, 300) i;
INSERT INTO orders SELECT i, 'v' FROM generate_series(1, 20) i;
INSERT INTO legacy (aggregatetype, aggregateid, type, payload) SELECT 'old', i::text, 'made', '{}' FROM generate_series(1, 20) i;
SELECT outbox.discard('no', event_id => (SELECT event_id FROM outbox.events WHERE aggregate_type = 'late' ORDER BY position LIMIT 1));
SQL
	ok(wait_for_query($old, $db, q{SELECT count(*) = 1 FROM outbox.discarded_events}), "$db: one is discarded");
}
# so that nothing changes any more
$old->append_conf('postgresql.conf', 'outbox.workers = 0');
$old->reload;
foreach my $db (@databases)
{
	ok(wait_state($old, $db, 'not running', timeout => 60), "$db: the relay has gone");
}
my %contents = map { $_ => $old->safe_psql($_, contents()) } @databases;
my %pending = map { $_ => [ ids_of($old, $_, q{publish_state = 'pending'}) ] } @databases;
$old->stop;
is(scalar(@{ $pending{$_} }), 339, "$_: events are pending") foreach @databases;

# ------------------------------------------------------------------- pg_upgrade

foreach my $mode ([ '--check' ], [])
{
	my $out = '';
	my @command = ("$new_bin/pg_upgrade", '-b', $old_bin, '-B', $new_bin, '-d', $old->data_dir, '-D', $new->data_dir,
		'-p', $old->port, '-P', $new->port, '-s', $new->host, @$mode);

	local $ENV{PGHOST} = $new->host;
	ok(IPC::Run::run(\@command, '<', \'', '>', \$out, '2>&1', IPC::Run::timeout(600)), "pg_upgrade @$mode")
	  or diag($out, map { slurp_file($_) } glob($new->data_dir . '/pg_upgrade_output.d/*/log/*'));
}
my $log = join('', map { slurp_file($_) } glob($new->data_dir . '/pg_upgrade_output.d/*/log/*server*'));
unlike($log, qr/outbox/, 'no process of ours ran meanwhile');

# ------------------------------------------------------------------ the new server

$new->append_conf('postgresql.conf', 'outbox.workers = 0');
$new->start;
is($new->safe_psql($_, contents()), $contents{$_}, "$_: all is there") foreach @databases;
$new->append_conf('postgresql.conf', 'outbox.workers = 1');
$new->reload;
foreach my $db (@databases)
{
	if ($same_major)
	{
		# another cluster of the same version: that could be anything
		isnt(why_not_armed($new, $db), '', "$db: not armed");
		ok(wait_state($new, $db, 'not armed', timeout => 60), "$db: ... and shown");
		$new->safe_psql($db, 'SELECT outbox.arm()');
	}
	is(why_not_armed($new, $db), '', "$db: armed");
}
$nats->restart;
foreach my $db (@databases)
{
	ok(wait_published($new, $db), "$db: what was pending is published");
	$new->safe_psql($db, q{INSERT INTO orders VALUES (100, 'new')});
	ok(wait_published($new, $db), "$db: captures go on");
	is_stored_once($nats, "$db: once", @{ $pending{$db} }, ids_of($new, $db, q{aggregate_id = '100'}));
	is($new->safe_psql($db, q{SELECT system = (SELECT system_identifier FROM pg_control_system()) AND major = current_setting('server_version_num')::int / 10000 FROM outbox.identity}),
		't', "$db: it knows where it is");
	ok(wait_for_query($new, $db, q{SELECT bool_and(pid IS NOT NULL) FROM outbox.subscriptions}), "$db: the subscription goes on");
}
# each has 200 + 340, one of them discarded
is($nats->info('OUTBOX')->{messages}, 2 * (200 + 340), 'nothing else is in the stream');
$new->safe_psql('postgres', 'CREATE DATABASE from_template');
ok(wait_state($new, 'from_template', 'not armed', timeout => 60), 'a new database from a template with the extension');

check_no_crash($old);
check_no_crash($new);
done_testing();
