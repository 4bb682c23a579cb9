# The archive when things go wrong: killed anywhere, no room, a directory that
# can't be used, a file that is somebody else's, events that change meanwhile. A
# range stays in the database until its archive is durable, nobody waits for
# that, and in the end each event is in one file, once.

use strict;
use warnings;

use OutboxArchive;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

needs_test_points();
my $db = 'postgres';
my $directory = archive_directory();
my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 600000);
# Small segments of the WAL, so that a limit for the size of files meets the archive only.
my $node = new_cluster('main', nats => $nats, initdb => ['--wal-segsize=1'], extra => <<"CONF");
outbox.retention = -1
outbox.dead_letter_retention = 0
outbox.archive_directory = '$directory'
restart_after_crash = on
synchronous_commit = on
jit = off
log_statement = none
CONF
create_test_points($node, $db);
ok(wait_relay($node, $db), 'a relay');
$node->safe_psql($db, q{CREATE TABLE sent (event_id uuid PRIMARY KEY)});

# So many events that get published, of so many bytes that can't be compressed, and one that is pending until "later" is resumed.
sub fill
{
	my ($count, $bytes) = @_;

	$node->safe_psql($db, qq{
		INSERT INTO sent SELECT outbox.enqueue_bytes('order', (i % 50)::text, 'E', (SELECT substr(string_agg(sha512((i * 100000 + j)::text::bytea), ''), 1, $bytes) FROM generate_series(0, $bytes / 64) j))
			FROM generate_series(1, $count) i});
	return ok(wait_all_published($node, $db), 'published');
}

sub begin_purge
{
	my $session = $node->background_psql($db, on_error_stop => 0);

	$session->query_until(qr/sent/, "\\echo sent\nSELECT action FROM outbox.purge(older_than => '0');\n\\echo over\n");
	return $session;
}

sub end_purge
{
	my ($session) = @_;

	$session->query_until(qr/over/, '');
	$session->quit;
	return;
}

sub cleaner { return $node->safe_psql($db, q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}) }
sub left_behind { my @names = glob("$directory/.outbox*"); return @names }
sub files { return map { s{.*/}{}r } sort glob("$directory/*.jsonl.gz") }

# Of all that was sent: in the log, or in one file, and in one only.
sub is_whole
{
	my ($name) = @_;
	my %place;

	$place{$_}++ foreach split(/\n/, $node->safe_psql($db, 'SELECT event_id FROM outbox.events'));
	$place{$_}++ foreach archived_ids($directory);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join(' ', sort { $a cmp $b } grep { ($place{$_} // 0) != 1 } split(/\n/, $node->safe_psql($db, 'SELECT event_id FROM sent'))), '', "$name: each event is in one place");
	return is(problems($node, $db), '', "$name: verify_archive() is content");
}

# While the cleaner stands somewhere: it has no lock, no transaction; events can be enqueued at once, and are published.
sub is_free
{
	my ($name) = @_;
	my $pid = cleaner();
	my $from = time();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql($db, "SELECT string_agg(locktype || ' ' || objsubid, ', ') FROM pg_locks WHERE pid = $pid"), 'advisory 104', "$name: no lock");
	is($node->safe_psql($db, "SELECT count(*) FROM pg_stat_activity WHERE pid = $pid AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)"), 0, "$name: no transaction");
	$node->safe_psql($db, qq{SET statement_timeout = '3s'; INSERT INTO sent SELECT outbox.enqueue('free', '1', '$name', '1', event_id => gen_random_uuid())});
	cmp_ok(time() - $from, '<', slack(3), "$name: nobody waits");
	return ok(wait_for_query($node, $db, qq{SELECT publish_state FROM outbox.events WHERE event_type = '$name'}, expected => 'published'), "$name: events are published");
}

# The range stays, for a reason, which outbox.ranges() has, too.
sub is_kept
{
	my ($name, $reason) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like(purge_all($node, $db), qr/^kept\|\d+\|\|it could not be archived \(\d+ failures since [^)]*\): $reason/m, "$name: the range stays, for this reason");
	is($node->safe_psql($db, q{SET outbox.retention = 0; SELECT count(*) FROM outbox.ranges() WHERE kept_because LIKE 'it could not be archived%'}), 1, "$name: as outbox.ranges() says");
	return is_deeply([ left_behind() ], [], "$name: nothing is left behind");
}

# ---------------------------------------------------------------- killed anywhere

foreach my $point (qw(archive-writing archive-written archive-noted archive-named archived))
{
	fill(5, 400000);
	arm($node, $db, $point);
	my $session = begin_purge();
	ok(wait_at_point($node, $db, $point), "$point: a cleaner stands there");
	is_free($point);
	my $pid = cleaner();
	if ($point eq 'archive-named')
	{
		# the whole server, in the middle of it
		$node->kill9;
		kill('KILL', $pid);
		$session->{run}->finish;
		ok(wait_until(60, sub { !kill(0, $pid) }), "$point: all processes are gone");
		$node->start;
	}
	else
	{
		kill('KILL', $pid);
		$session->{run}->finish;
		ok(wait_for_query($node, $db, 'SELECT true'), "$point: the server is back");
	}
	ok(wait_relay($node, $db, timeout => 60), "$point: and a relay");
	is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'order'}), 5, "$point: the range is in the database");
	ok(wait_all_published($node, $db), 'published');
	my %before = map { $_ => (stat("$directory/$_"))[1] } files();
	like(purge_all($node, $db), qr/^removed\|[56]\|0\|/m, "$point: the next one goes on");
	# once the archive was complete it is not written again
	is_deeply({ map { $_ => (stat("$directory/$_"))[1] } keys %before }, \%before, "$point: with the file that is there") if $point eq 'archived';
	is_whole($point);
	cmp_ok(scalar(left_behind()), '<=', 1, "$point: at most one temporary file is left");
	utime(1000, 1000, left_behind());
}
like(purge_all($node, $db), qr/^$|^removed|^kept/, 'the events that came meanwhile');
$node->safe_psql($db, q{INSERT INTO sent SELECT outbox.enqueue('order', 'a', 'E', '1')});
ok(wait_all_published($node, $db), 'published');
like(purge_all($node, $db), qr/^removed/, 'and one more');
is_deeply([ left_behind() ], [], 'what was left behind is swept away when it is old');
is_whole('killed');

# -------------------------------------------------------------------- no room

fill(10, 400000);
arm($node, $db, 'archive-writing');
my $session = begin_purge();
ok(wait_at_point($node, $db, 'archive-writing'), 'a cleaner has begun to write');
system('prlimit', '--pid', cleaner(), '--fsize=2000000') == 0 or die 'prlimit';
release($node, $db, 'archive-writing');
end_purge($session);
like($node->safe_psql($db, q{SELECT error FROM outbox.archive_troubles}), qr/^could not write to ".*": File too large$/, 'no file may be so large: the range stays');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events}), 10, 'with all of it');
is_deeply([ left_behind() ], [], 'nothing is left behind');
arm($node, $db, 'archive-writing');
$session = begin_purge();
ok(wait_at_point($node, $db, 'archive-writing'), 'the next one has begun to write');
$node->safe_psql($db, 'SELECT pg_terminate_backend(' . cleaner() . ')');
release($node, $db, 'archive-writing');
end_purge($session);
is_deeply([ left_behind() ], [], 'one that is told to end leaves nothing behind');
like(purge_all($node, $db), qr/^removed\|10\|0\|/, 'with room it goes');
is_whole('no room');
SKIP:
{
	my $small = $ENV{OUTBOX_SMALL_DISK} // '';

	skip 'no small file system, only the limit for the size of files', 5 if $small eq '';
	fill(10, 400000);
	alter_system($node, "outbox.archive_directory = '$small'");
	is_kept('a disk that is full', qr/could not write to ".*": No space left on device/);
	is_deeply([ glob("$small/* $small/.outbox*") ], [], 'nothing is left on it');
	alter_system($node, "outbox.archive_directory = '$directory'");
	like(purge_all($node, $db), qr/^removed/, 'with room it goes');
}

# ---------------------------------------------------------------- the directory

fill(20, 100);
my $mark = log_mark($node);
rename($directory, "$directory.away");
is_kept('missing', qr/could not look at directory "\Q$directory\E": No such file or directory/);
is_kept('missing', qr/could not look at directory/) foreach 2 .. 3;
is_deeply([ map { /Failures so far: (\d+)/ } log_lines($node, $mark, qr/Failures so far/) ], [ 1, 2 ], 'warnings at doubling counts');
append_to_file($directory, '');
is_kept('a file', qr/could not use "\Q$directory\E": Not a directory/);
unlink($directory);
rename("$directory.away", $directory);
chmod(0500, $directory);
is_kept('not writable', qr/could not use directory "\Q$directory\E": Permission denied/);
chmod(0777, $directory);
is_kept('writable for all', qr/directory "\Q$directory\E" can be written to by everybody, it has mode 0777/);
chmod(0700, $directory);

# A file of this name that is somebody else's; one without a manifest.
my ($first, $last) = split(/\|/, $node->safe_psql($db, 'SELECT min(position), max(position) FROM outbox.events'));
my $name = sprintf('%s/outbox-postgres-%020d-%020d', $directory, $first, $last);
append_to_file("$name.jsonl.gz", 'precious');
is_kept('somebody\'s file', qr/could not make "\Q$name.jsonl.gz\E": File exists/);
is(slurp_file("$name.jsonl.gz"), 'precious', 'it is not touched');
my ($other) = glob("$directory/*.manifest.json");
unlink("$name.manifest.json");
append_to_file("$name.manifest.json", slurp_file($other));
is_kept('somebody\'s manifest', qr/"\Q$name.jsonl.gz\E" exists, and this database did not write it\. Perhaps a copy of the database/);
is(slurp_file("$name.jsonl.gz"), 'precious', 'it is not touched');
unlink("$name.jsonl.gz", "$name.manifest.json");
like(purge_all($node, $db), qr/^removed\|20\|0\|/, 'out of the way: it goes');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.archive_troubles'), 0, 'no trouble is left');
is_whole('directory');

# By itself, and again by itself once it can.
chmod(0500, $directory);
fill(20, 100);
alter_system($node, 'outbox.retention = 1');
ok(wait_for_query($node, $db, 'SELECT count(*) FROM outbox.archive_troubles', expected => 1), 'without a call: the range is in trouble');
chmod(0700, $directory);
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE aggregate_type = 'order'}, expected => 0), 'and goes when the trouble is over');
alter_system($node, 'outbox.retention = -1');
ok(wait_for_query($node, $db, q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'}, expected => 0), 'no cleaner is left');
is_whole('by itself');

# ------------------------------------------------------- what changes meanwhile

# A reader is in the way of the TRUNCATE only: the file isn't written twice.
fill(20, 100);
my $reader = $node->background_psql($db);
$reader->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ');
$reader->query_safe('SELECT count(*) FROM outbox.events');
like(purge_all($node, $db), qr/^kept\|20\|\|another session is using it/m, 'a reader: the range stays');
my ($newest) = (files())[-1];
my $inode = (stat("$directory/$newest"))[1];
like(purge_all($node, $db), qr/^kept\|20\|\|another session is using it/m, 'again');
is((stat("$directory/$newest"))[1], $inode, 'the file is not written again');
$reader->query_safe('COMMIT');
like(purge_all($node, $db), qr/^removed\|20\|0\|/, 'it goes');
is((stat("$directory/$newest"))[1], $inode, 'with that file');

# Between plan, file and TRUNCATE an event that stays is published, or a dead letter that goes is redriven.
my $publish = sub {
	$node->safe_psql($db, q{SELECT outbox.resume('later')});
	ok(wait_for_query($node, $db, q{SELECT publish_state FROM outbox.events WHERE aggregate_type = 'later'}, expected => 'published'), 'published');
};
my $redrive = sub {
	$node->safe_psql($db, q{SELECT outbox.redrive(aggregate_type => 'dead')});
	ok(wait_for_query($node, $db, q{SELECT publish_state FROM outbox.events WHERE aggregate_type = 'dead'}, expected => 'published'), 'published in the end');
};
my $begin_redrive = sub { $node->safe_psql($db, q{SELECT outbox.pause('dead'); SELECT outbox.redrive(aggregate_type => 'dead')}) };
foreach my $case (
	[ 'archive-writing', 'a dead letter is redriven', $begin_redrive ],
	[ 'archived', 'a dead letter is redriven', $begin_redrive ],
	[ 'archived', 'a dead letter is redriven and published', $redrive ],
	[ 'archived', 'an event that stays is published', $publish ])
{
	my ($point, $name, $change) = @$case;

	$nats->tool('update', 'OUTBOX', '--max-msg-size', 600000);
	$node->safe_psql($db, q{SELECT outbox.resume('dead'); SELECT outbox.pause('later')});
	# more than one batch, so that the dead letter is read after the first one was written
	fill(4, 400000);
	$node->safe_psql($db, q{
		INSERT INTO sent SELECT outbox.enqueue_text('dead', 'a', 'E', repeat('x', 700000));
		INSERT INTO sent SELECT outbox.enqueue('later', 'a', 'E', '1')});
	ok(wait_for_query($node, $db, q{SELECT publish_state FROM outbox.events WHERE aggregate_type = 'dead'}, expected => 'failed'), 'failed');
	$nats->tool('update', 'OUTBOX', '--max-msg-size', 800000);
	arm($node, $db, $point);
	my $session = begin_purge();
	ok(wait_at_point($node, $db, $point), "$point, $name: the cleaner stands there");
	$change->();
	release($node, $db, $point);
	end_purge($session);
	is($node->safe_psql($db, q{SELECT (SELECT count(*) FROM outbox.events), (SELECT count(*) FROM outbox.archive_troubles)}), '6|0', "$point, $name: the range stays, which is no trouble");
	$node->safe_psql($db, q{SELECT outbox.resume('dead'); SELECT outbox.resume('later')});
	ok(wait_published($node, $db), "$point, $name: all is published");
	like(purge_all($node, $db), qr/^removed\|6\|0\|/, "$point, $name: and goes");
}
is_whole('changes');
is_deeply([ left_behind() ], [], 'nothing is left behind');
is($node->safe_psql($db, 'SELECT count(*) - count(DISTINCT range) FROM outbox.archives'), 0, 'one archive for each range');
is_deeply([ sort(files()) ], [ sort(split(/\n/, $node->safe_psql($db, 'SELECT file FROM outbox.archive_files'))) ], 'and no file more');

check_no_crash($node, allow => qr/was terminated by signal 9/);
done_testing();
