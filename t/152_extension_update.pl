# Updates of the extension under load: SQL objects and library of different versions
# wait for each other. Applications enqueue all the time; relays publish when both fit.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxCopies;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(sleep);

my $db = 'postgres';
my $install = private_install();
my $old = $install->{version};
my $new = $old =~ s/^./9/r;
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, install_path => $install->{path}, extra => 'log_statement = none');

sub sql { return $node->safe_psql($_[0], $_[1]) }

sub version
{
	return sql($db, q{SELECT extversion FROM pg_extension WHERE extname = 'outbox'});
}

my $relay = wait_relay($node, $db, timeout => 60);
my $load = start_load($node, $db, rate => 100, aggregates => 20);

##########################################################################
# The next version's script is there, and is run: with the old library in memory.

make_version($install, $new, parts => [qw(script control)], script => <<'SQL');
ALTER TABLE outbox.log ADD remark text;
CREATE FUNCTION outbox.remark() RETURNS integer LANGUAGE sql AS 'SELECT 1';
SQL
my $mark = log_mark($node);
sql($db, 'BEGIN; ALTER EXTENSION outbox UPDATE; SELECT outbox.remark(); ROLLBACK');
is(version(), $old, 'an update that is rolled back');
ok(wait_relay($node, $db, timeout => 60), 'relays go on');
sql($db, "SELECT outbox.enqueue_text('before', '1', 'e', 'x')");
ok(wait_for_query($node, $db, q{SELECT publish_state = 'published' FROM outbox.events WHERE aggregate_type = 'before'}), 'and publish');
is(scalar(log_lines($node, $mark, qr/publishes nothing/)), 0, 'without complaint');

sql($db, 'ALTER EXTENSION outbox UPDATE');
is(version(), $new, 'an update under load');
ok(wait_state($node, $db, 'version mismatch', timeout => 60), 'the old library does not publish from new tables');
like(own_status($node, $db)->{last_error}, qr/library is of version \Q$old\E, .* of version \Q$new\E: install that version of the library and restart the server/,
	'status() says what to do');
$relay = own_status($node, $db)->{pid};
my $enqueued = sql($db, 'SELECT max(position) FROM outbox.log');
ok(wait_for_query($node, $db, "SELECT max(position) > $enqueued + 50 FROM outbox.log"), 'the applications go on');
is(own_status($node, $db)->{pid}, $relay, 'the relay waits, and does not come and go');
is(scalar(log_lines($node, $mark, qr/LOG: .*publishes nothing from database .*library is of version/)), 1, 'it complains once');
is(scalar(log_lines($node, $mark, qr/ERROR|FATAL/)), 0, 'nobody meets an error');
my ($refused) = sqlstates($node, $db, 'SELECT outbox.claim()');
like("@$refused", qr/^55000 library and SQL objects of outbox have different versions/, 'claim() is refused');
is(sql($db, q{SELECT count(*) FROM outbox.log WHERE remark IS NOT NULL}), 0, 'new columns are empty');
stop_load($load);

# ---- the library follows

make_version($install, $new, parts => ['library']);
$node->restart;
ok(wait_relay($node, $db, timeout => 60), 'the new library works with the new objects');
ok(wait_published($node, $db), 'everything is published');
check_stream($nats, $node, $db, 'updated');

##########################################################################
# The other way round: the library is new, the SQL objects are old.

sql($db, 'CREATE DATABASE late');
sql('late', "CREATE EXTENSION outbox VERSION '$old'");
ok(wait_state($node, 'late', 'version mismatch', timeout => 60), 'the new library does not publish from old tables');
like(own_status($node, 'late')->{last_error}, qr/ALTER EXTENSION outbox UPDATE/, 'status() says what to do');
$load = start_load($node, 'late', rate => 100, aggregates => 20);
ok(wait_for_query($node, 'late', 'SELECT max(position) > 30 FROM outbox.log'), 'enqueueing works');
sql('late', "SET lock_timeout = '10s'; ALTER EXTENSION outbox UPDATE");
ok(wait_relay($node, 'late', timeout => 60), 'updated under load: it publishes');
stop_load($load);
ok(wait_published($node, 'late'), 'everything');
is_deeply([ stream_differences($nats, 'OUTBOX', $node, 'late') ], [], 'the stream has all of it, once');
is_deeply([ check_order($nats, 'OUTBOX', [ grep { ($_->{headers}{'ce-source'} // '') eq '/outbox/late' } $nats->dump('OUTBOX') ]) ], [], 'in order');

like(($node->psql('late', "ALTER EXTENSION outbox UPDATE TO '$old'"))[2], qr/no update path/, 'there is no way back');
# for which the relay has given way
ok(wait_relay($node, 'late'), '... and nobody minds');

check_no_crash($node);
done_testing();
