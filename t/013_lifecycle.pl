# Relays come and go: with the extension, with databases, with the broker, with
# the stream, with settings.

use strict;
use warnings;

use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $nats = OutboxNats->start(monitor => 1);

$nats->stop;

sub enqueue
{
	my ($node, $db, $aggregate) = @_;

	return $node->safe_psql($db, "SELECT outbox.enqueue('order', '$aggregate', 'E', '1')");
}

# The ids of the messages of an aggregate
sub in_stream
{
	my ($server, $aggregate, $stream) = @_;

	return '' unless defined $server->info($stream // 'OUTBOX');
	return join(' ', map { $_->{msg_id} } $server->dump($stream // 'OUTBOX', "outbox.order.$aggregate.>"));
}

sub arrives
{
	my ($server, $aggregate, $ids, $name, %opt) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok(wait_until($opt{timeout} // 5, sub { in_stream($server, $aggregate, $opt{stream}) eq $ids }), $name)
	  or diag('got "' . in_stream($server, $aggregate, $opt{stream}) . "\", expected \"$ids\"");
	return;
}

sub relays
{
	my ($node, $db) = @_;

	return $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox relay'" . (defined $db ? " AND datname = '$db'" : ''));
}

sub alter_system
{
	my ($node, $setting) = @_;

	$node->safe_psql('postgres', "ALTER SYSTEM SET $setting");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
	return;
}

# -------------------------------------------- no broker, no extension: nothing to do

my $start = time();
my $node = new_cluster('main', nats => $nats, create_extension => 0,
	extra => "jit = off\nmax_worker_processes = 20\noutbox.retry_max_delay = '500ms'");
cmp_ok(time() - $start, '<', slack(30), 'the server starts without a broker');
ok(wait_for_query($node, 'postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox launcher'", expected => 1), 'the launcher runs');
# the launcher looks into the database: a relay may come, and goes
ok(wait_until(10, sub { relays($node) == 0 }), 'without the extension there is no relay');

$node->safe_psql('postgres', 'BEGIN; CREATE EXTENSION outbox; ROLLBACK');
$node->safe_psql('postgres', 'CREATE SCHEMA outbox; CREATE TABLE outbox.events (n int); CREATE SEQUENCE outbox.position');
ok(wait_until(10, sub { relays($node) == 0 }), 'a schema named like ours is not the extension');
$node->safe_psql('postgres', 'DROP SCHEMA outbox CASCADE');

$start = time();
$node->safe_psql('postgres', 'CREATE EXTENSION outbox');
ok(wait_until(5, sub { relays($node, 'postgres') == 1 }), 'CREATE EXTENSION: a relay within 5 s');
ok(wait_state($node, 'postgres', 'not connected', timeout => 5), 'state in words: not connected');
my $id = enqueue($node, 'postgres', 'early');
ok(wait_until(10, sub { own_status($node, 'postgres')->{last_error} =~ /could not connect/ }), '... and why');
my $status = own_status($node, 'postgres');
like($status->{last_error}, qr/\Q@{[$nats->port]}\E/, '... naming the server');
is($status->{backlog}, 1, 'backlog');
is($status->{published}, 0, 'nothing published');
like($status->{oldest_pending_age}, qr/^00:00:/, 'age of the oldest');
is($node->safe_psql('postgres', 'SELECT publish_state, attempts FROM outbox.events'), 'pending|0', 'pending, without attempts');

$nats->restart;
arrives($nats, 'early', $id, 'published when the broker comes');
ok(wait_state($node, 'postgres', 'active'), 'state in words: active');
ok(wait_for_query($node, 'postgres', 'SELECT publish_state, attempts, published_at > created_at FROM outbox.events', expected => 'published|1|t'), 'published');
$status = own_status($node, 'postgres');
is_deeply([ @{$status}{qw(database stream published backlog in_flight)} ], [ 'postgres', 'OUTBOX', 1, 0, 0 ], 'status');
is($status->{server}, $nats->url, 'server');
is($status->{oldest_pending_age}, '', 'nothing is old');
is($status->{pid}, $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox relay'"), 'pid');

my $config = $nats->stream_config('OUTBOX');
is_deeply([ @{$config}{qw(subjects storage retention duplicate_window)} ], [ ['outbox.>'], 'file', 'limits', 120_000_000_000 ], 'the stream as created');

# ------------------------------------------------------------------ more databases

$node->safe_psql('postgres', 'CREATE DATABASE second');
$node->safe_psql('second', 'CREATE EXTENSION outbox');
$node->safe_psql('postgres', 'CREATE DATABASE third');
$node->safe_psql('third', 'CREATE EXTENSION outbox');
$id = enqueue($node, 'second', 'second');
arrives($nats, 'second', $id, 'a second database within 5 s');
arrives($nats, 'third', enqueue($node, 'third', 'third'), 'a third database within 5 s');
is(own_status($node, 'second')->{published}, 1, 'published counts by database');
is($node->safe_psql('postgres', 'SELECT count(*) FROM outbox.status()'), 3, 'status() shows all databases');
is(($nats->dump('OUTBOX', 'outbox.order.second.>'))[0]{headers}{'ce-source'}, '/outbox/second', 'the default source names the database');

# ------------------------------------------------------------------ DROP EXTENSION

$start = time();
$node->safe_psql('second', 'DROP EXTENSION outbox');
cmp_ok(time() - $start, '<', slack(5), 'DROP EXTENSION is quick');
ok(wait_until(5, sub { relays($node, 'second') == 0 }), 'and the relay leaves');
$node->safe_psql('second', 'CREATE EXTENSION outbox');
my @ids = map { enqueue($node, 'second', 'again') } 1 .. 3;
arrives($nats, 'again', "@ids", 'CREATE EXTENSION again: published');
is(($nats->dump('OUTBOX', 'outbox.order.again.>'))[0]{headers}{'ce-sequence'} + 0, 1, 'positions begin anew');
# before the relay has gone by the position that the first life had reached, and after
push @ids, $node->safe_psql('second', "SELECT outbox.enqueue('order', 'again', 'E', '1') FROM generate_series(1, 50)") =~ s/\n/ /gr;
arrives($nats, 'again', "@ids", '... and more');

$node->safe_psql('second', 'BEGIN; DROP EXTENSION outbox; CREATE EXTENSION outbox; COMMIT');
$id = enqueue($node, 'second', 'swapped');
arrives($nats, 'swapped', $id, 'dropped and created in one transaction', timeout => 10);

# ... so slowly that the old relay is in the middle of recording something
@ids = split(/\n/, $node->safe_psql('second', "SELECT outbox.enqueue('order', 'slow', 'E', '1') FROM generate_series(1, 50)"));
arrives($nats, 'slow', "@ids", 'one aggregate of 50 events');
$node->safe_psql('second', 'BEGIN; DROP EXTENSION outbox; SELECT pg_sleep(2.5); CREATE EXTENSION outbox; COMMIT');
$id = enqueue($node, 'second', 'slowly');
arrives($nats, 'slowly', $id, 'dropped and slowly created in one transaction', timeout => 10);

$node->safe_psql('second', 'BEGIN; DROP EXTENSION outbox; ROLLBACK');
$id = enqueue($node, 'second', 'kept');
arrives($nats, 'kept', $id, 'a drop that was rolled back', timeout => 10);

# with events in flight
$nats->freeze;
enqueue($node, 'second', 'frozen');
ok(wait_for_query($node, 'second', 'SELECT count(*) FROM outbox.in_flight_positions()', expected => 1, timeout => 10), 'in flight');
$start = time();
$node->safe_psql('second', 'DROP EXTENSION outbox');
cmp_ok(time() - $start, '<', slack(5), 'DROP EXTENSION with a frozen broker is quick');
ok(wait_until(5, sub { relays($node, 'second') == 0 }), 'and the relay leaves');
$nats->thaw;
$node->safe_psql('second', 'CREATE EXTENSION outbox');
$id = enqueue($node, 'second', 'thawed');
arrives($nats, 'thawed', $id, 'and again', timeout => 10);

# -------------------------------------------------- rename, template, drop of a database

$start = time();
$node->safe_psql('postgres', 'ALTER DATABASE second RENAME TO renamed');
cmp_ok(time() - $start, '<', slack(5), 'ALTER DATABASE RENAME while the relay runs');
$id = enqueue($node, 'renamed', 'renamed');
arrives($nats, 'renamed', $id, 'the relay comes back');
is(own_status($node, 'renamed')->{database}, 'renamed', 'under the new name');
is(($nats->dump('OUTBOX', 'outbox.order.renamed.>'))[0]{headers}{'ce-source'}, '/outbox/renamed', 'which is the source, too');

$start = time();
$node->safe_psql('postgres', 'CREATE DATABASE copied TEMPLATE renamed');
cmp_ok(time() - $start, '<', slack(10), 'CREATE DATABASE ... TEMPLATE while the relay runs');
$id = enqueue($node, 'renamed', 'original');
arrives($nats, 'original', $id, 'the relay of the original comes back');
ok(wait_until(10, sub { relays($node, 'copied') == 1 }), 'the copy has a relay of its own');
$node->safe_psql('postgres', 'DROP DATABASE copied');

# A command that fails must not keep the relay away for good.
my ($code, undef, $err) = $node->psql('postgres', 'ALTER DATABASE renamed RENAME TO postgres', on_error_stop => 1);
like($err, qr/already exists/, 'a rename that fails');
$id = enqueue($node, 'renamed', 'failed');
arrives($nats, 'failed', $id, 'the relay comes back', timeout => 15);

my ($pid) = own_status($node, 'renamed')->{pid};
enqueue($node, 'renamed', 'last') foreach 1 .. 5;
$start = time();
$node->safe_psql('postgres', 'DROP DATABASE renamed');
cmp_ok(time() - $start, '<', slack(5), 'DROP DATABASE while the relay runs');
ok(wait_until(5, sub { !kill(0, $pid) && $!{ESRCH} }), 'its process is gone');
ok(wait_for_query($node, 'postgres', 'SELECT count(*) FROM outbox.status()', expected => 2, timeout => 10), 'status() forgets it');

$start = time();
$node->safe_psql('postgres', 'DROP DATABASE third WITH (FORCE)');
cmp_ok(time() - $start, '<', slack(5), 'DROP DATABASE WITH (FORCE)');
$node->safe_psql('postgres', 'CREATE DATABASE third');
$node->safe_psql('third', 'CREATE EXTENSION outbox');
arrives($nats, 'anew', enqueue($node, 'third', 'anew'), 'a new database of the same name');
$node->safe_psql('postgres', 'ALTER DATABASE third ALLOW_CONNECTIONS false; SELECT pg_terminate_backend(pid) FROM outbox.status() WHERE database = \'third\'');
ok(wait_until(5, sub { relays($node, 'third') == 0 }), 'no relay where connections are not allowed');
$node->safe_psql('postgres', 'DROP DATABASE third');
arrives($nats, 'still', enqueue($node, 'postgres', 'still'), 'the first database does not mind');

# --------------------------------------------------------------- terminated processes

$pid = own_status($node, 'postgres')->{pid};
$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid)");
arrives($nats, 'back', enqueue($node, 'postgres', 'back'), 'terminated, the relay is back');
isnt(own_status($node, 'postgres')->{pid}, $pid, 'as another process');
$node->safe_psql('postgres', "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'outbox launcher'");
ok(wait_for_query($node, 'postgres', "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox launcher'", expected => 1, timeout => 10), 'so is the launcher');
arrives($nats, 'led', enqueue($node, 'postgres', 'led'), 'the relay is there', timeout => 10);

# --------------------------------------------------------------------- another broker

my $other = OutboxNats->start(name => 'other');
alter_system($node, "outbox.nats_url = '" . $other->url . "'");
ok(wait_until(5, sub { (own_status($node, 'postgres')->{server} // '') eq $other->url }), 'outbox.nats_url changed: moved within 5 s');
$id = enqueue($node, 'postgres', 'moved');
arrives($other, 'moved', $id, 'published there');
is(in_stream($nats, 'moved'), '', 'and not here');
is(scalar($nats->relay_connections), 0, 'no connection is left behind');

foreach my $url ('', 'http://x', 'nats://', '127.0.0.1:4222', 'nats://a,http://b')
{
	my ($failed, undef, $message) = $node->psql('postgres', "ALTER SYSTEM SET outbox.nats_url = '$url'", on_error_stop => 1);

	like($message, qr/invalid value for parameter "outbox.nats_url"/, "refused: \"$url\"");
}
# unreachable for a while, changed while it is not connected
alter_system($node, q{outbox.nats_url = 'nats://127.0.0.1:1'});
ok(wait_state($node, 'postgres', 'not connected', timeout => 5), 'unreachable');
$id = enqueue($node, 'postgres', 'returned');
alter_system($node, "outbox.nats_url = 'nats://127.0.0.1:1, " . $nats->url . "'");
arrives($nats, 'returned', $id, 'a list, of which one works');
is(in_stream($other, 'returned'), '', 'and not there');

# -------------------------------------------------------------------------- the stream

alter_system($node, 'outbox.stream_create = off');
$nats->tool('delete', 'OUTBOX');
$id = enqueue($node, 'postgres', 'homeless');
ok( wait_for_query($node, 'postgres', "SELECT publish_state, attempts FROM outbox.events WHERE event_id = '$id'", expected => 'pending|0', timeout => 5)
	  && wait_until(10, sub { own_status($node, 'postgres')->{last_error} =~ /respon|stream/i }),
	'stream gone: pending, and an error in status()');
# a relay that finds no stream at its start says so
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(pid) FROM outbox.status()');
ok(wait_state($node, 'postgres', 'stream unavailable'), 'state in words: stream unavailable');
is($nats->info('OUTBOX'), undef, 'stream_create = off: not created');
$nats->tool('create', 'OUTBOX', 'outbox.>');
arrives($nats, 'homeless', $id, 'somebody creates it: published', timeout => 10);
ok(wait_state($node, 'postgres', 'active', timeout => 15), '... and active');

# A stream by another name takes the subjects: an acknowledgement of that one does not count.
foreach my $create ('off', 'on')
{
	$nats->tool('delete', 'OUTBOX');
	$nats->tool('create', 'THEIRS', 'outbox.>');
	alter_system($node, "outbox.stream_create = $create");
	$node->safe_psql('postgres', 'SELECT pg_terminate_backend(pid) FROM outbox.status()');
	$id = enqueue($node, 'postgres', "foreign-$create");
	ok(wait_until(10, sub { (own_status($node, 'postgres')->{last_error} // '') =~ /stream/i }), "stream_create = $create: a wrong stream is an error")
	  or diag(own_status($node, 'postgres')->{last_error});
	ok(wait_state($node, 'postgres', 'stream unavailable'), 'state in words: stream unavailable');
	like(own_status($node, 'postgres')->{last_error}, qr/OUTBOX/, '... that names the stream expected');
	ok(wait_for_query($node, 'postgres', "SELECT created_at < now() - interval '2 s' FROM outbox.events WHERE event_id = '$id'"), 'some time later');
	is($node->safe_psql('postgres', "SELECT publish_state, attempts FROM outbox.events WHERE event_id = '$id'") =~ s/processing/pending/r,
		'pending|0', 'pending all the time, no attempt counted');
	is($nats->info('THEIRS')->{messages}, 0, 'nothing stored there');
	$nats->tool('delete', 'THEIRS');
	$nats->tool('create', 'OUTBOX', 'outbox.>') if $create eq 'off';
	arrives($nats, "foreign-$create", $id, 'it goes and ours comes: published', timeout => 15);
}

# ... and outbox.stream can be made theirs.
$nats->tool('delete', 'OUTBOX');
$nats->tool('create', 'THEIRS', 'outbox.>');
alter_system($node, "outbox.stream = 'THEIRS'");
$id = enqueue($node, 'postgres', 'adopted');
arrives($nats, 'adopted', $id, 'outbox.stream changed', stream => 'THEIRS');
is(own_status($node, 'postgres')->{stream}, 'THEIRS', 'status() names it');
foreach my $name ('', 'a b', 'a.b', 'a*', '>', 'a/b')
{
	my (undef, undef, $message) = $node->psql('postgres', "ALTER SYSTEM SET outbox.stream = '$name'", on_error_stop => 1);

	like($message, qr/invalid value for parameter "outbox.stream"/, "refused: \"$name\"");
}

# A subject that no stream listens to holds up its own aggregate only.
$id = $node->safe_psql('postgres', "SELECT outbox.enqueue('order', 'nowhere', 'E', '1', subject => 'elsewhere.x')");
arrives($nats, 'beside', enqueue($node, 'postgres', 'beside'), 'others go on', stream => 'THEIRS');
ok(wait_until(5, sub { own_status($node, 'postgres')->{last_error} =~ /respon|stream/i }), 'an error in status()');
like($node->safe_psql('postgres', "SELECT publish_state FROM outbox.events WHERE event_id = '$id'"), qr/^(?:pending|processing)$/, 'not published');
$nats->tool('update', 'THEIRS', 'outbox.>,elsewhere.>');
ok(wait_for_query($node, 'postgres', "SELECT publish_state FROM outbox.events WHERE event_id = '$id'", expected => 'published', timeout => 15), 'published when a stream listens');

# --------------------------------------------------------------------------- the end

ok(wait_published($node, 'postgres', undef, timeout => 10), 'all published');
my @log = grep { !/statement:/ } split(/\n/, slurp_file($node->logfile));
is_deeply([ grep { /FATAL:.*database .* does not exist/ } @log ], [], 'nobody looks for dropped databases');
is_deeply([ grep { /ERROR:/ && !/013_lifecycle/ } @log ], [], 'no errors of relays');
my @own = grep { /LOG:  .*outbox/ } @log;
cmp_ok(scalar(@own), '<', 120, 'the log is not flooded') or diag(join("\n", @own));

$nats->freeze;
enqueue($node, 'postgres', 'stopped');
$start = time();
$node->stop('fast');
cmp_ok(time() - $start, '<', slack(5), 'the server stops quickly with a frozen broker');
check_no_crash($node);
done_testing();
