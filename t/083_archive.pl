# The archive's files: every event that retention removes is in one of them, byte
# for byte, and nothing else is; what is damaged, missing or strange is found.

use strict;
use warnings;

use Digest::SHA qw(sha256_hex);
use Encode qw(encode_utf8);
use IPC::Run;
use JSON::PP;
use OutboxArchive;
use OutboxLife;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $directory = archive_directory();
my $nats = OutboxNats->start;
$nats->tool('create', 'OUTBOX', 'outbox.>', '--max-msg-size', 900000);
my $node = new_cluster('main', nats => $nats, initdb => ['--encoding=UTF8'], extra => <<"CONF");
outbox.retention = -1
outbox.dead_letter_retention = 0
outbox.archive_directory = '$directory'
jit = off
log_statement = none
CONF
ok(wait_relay($node, $db), 'a relay');

sub files { return map { s{.*/}{}r } sort glob("$directory/*.jsonl.*") }
sub last_file { return (files())[-1] }

# Each archived event is what the stream has got, under the same id.
sub check_bytes
{
	my ($name, @events) = @_;
	my %message = map { $_->{msg_id} => $_ } $nats->dump('OUTBOX');
	my @differences;

	foreach my $event (grep { $_->{state} eq 'published' } @events)
	{
		my $message = $message{ $event->{event_id} };
		my $type = $event->{content_type} // ($event->{payload_kind} eq 'x' ? 'application/octet-stream' : 'application/json');

		push @differences, "$event->{event_type}: not in the stream" and next unless $message;
		push @differences, "$event->{event_type}: payload" if payload_bytes($event) ne $message->{payload};
		push @differences, "$event->{event_type}: ce-sequence" if $message->{headers}{'ce-sequence'} != $event->{position};
		push @differences, "$event->{event_type}: ce-time" if $message->{headers}{'ce-time'} ne $event->{occurred_at};
		push @differences, "$event->{event_type}: content type" if $message->{headers}{'ce-datacontenttype'} ne $type;
		push @differences, "$event->{event_type}: subject" if defined $event->{subject} && $message->{subject} ne $event->{subject};
		push @differences, "$event->{event_type}: headers" if grep { ($message->{headers}{$_} // '') ne encode_utf8($event->{headers}{$_}) } keys %{ $event->{headers} // {} };
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is_deeply(\@differences, [], "$name: the bytes of the stream");
}

# ------------------------------------------------------------- payloads of B02

enqueue_all_kinds($node, $db);
ok(wait_all_published($node, $db), 'published');
my $expected = $node->safe_psql($db, q{SELECT position, event_id, to_char(published_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
	to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') FROM outbox.events ORDER BY position});
my $count = () = $expected =~ /^/mg;
is(purge_all($node, $db), "removed|$count|0|", 'removed');
is(scalar(files()), 1, 'one file');
my @events = archived_events($directory);
is(join("\n", map { "$_->{position}|$_->{event_id}|$_->{published_at}|$_->{created_at}" } @events), $expected, 'each event, in order, with its times');
check_bytes('B02', @events);
my ($line) = grep { /"00000000-0000-4000-8000-000000000001"/ } archived_lines("$directory/" . last_file());
is($line =~ s/"(created_at|published_at)":"[^"]*"/"$1":0/gr =~ s/"position":\d+/"position":1/r,
	'{"position":1,"event_id":"00000000-0000-4000-8000-000000000001","aggregate_type":"é \"\\\\\t","aggregate_id":"a/b 😀","event_type":"order.placed","subject":"outbox.own",'
	  . '"payload_kind":"j","payload":"{}","headers":{"a": "b", "q": "say \"x\" \\\\ é"},"occurred_at":"0001-01-02T03:04:05.000006Z","created_at":0,"published_at":0,"priority":-7,'
	  . '"not_before":"2000-01-01T00:00:00.000000Z","content_type":"text/x","dataschema":"https://example.com/s?a=1","aggregate_version":9223372036854775807,"state":"published","last_error":null}' . "\n",
	'a line with everything, in the order that is documented');
($line) = grep { /"event_type":"j8"/ } archived_lines("$directory/" . last_file());
like($line, qr/"subject":null,"payload_kind":"j","payload":"\{\\"a\\": 1, \\"\$type\\": \\"x\\"\}","headers":null,.*"priority":0,"not_before":null,"content_type":null,"dataschema":null,"aggregate_version":null,"state":"published","last_error":null\}$/,
	'one with next to nothing');

# ------------------------------------------------------- the file, its manifest

my $file = last_file();
my $path = "$directory/$file";
my $manifest = read_manifest($path);
is($file, sprintf('outbox-postgres-%020d-%020d.jsonl.gz', $events[0]{position}, $events[-1]{position}), 'the file says what is in it');
is_deeply($manifest, {
		format => 'outbox-archive', format_version => 1, file => $file, database => $db, range => 1,
		system_identifier => $node->safe_psql($db, 'SELECT system_identifier FROM pg_control_system()'),
		first_position => $events[0]{position}, last_position => $events[-1]{position}, events => $count,
		first_time => (sort map { $_->{created_at} } @events)[0], last_time => (sort map { $_->{created_at} } @events)[-1],
		text_bytes => length(join('', archived_lines($path))), file_bytes => -s $path, sha256 => sha256_hex(slurp_file($path))
	}, 'the manifest, too');
is($node->safe_psql($db, 'SELECT range, directory, file, first_position, last_position, events, text_bytes, file_bytes, sha256, removed_at IS NOT NULL, archived_at < removed_at FROM outbox.archive_files'),
	join('|', 1, $directory, $file, @{$manifest}{qw(first_position last_position events text_bytes file_bytes sha256)}, 't', 't'), 'and outbox.archive_files');
is($node->safe_psql($db, "SELECT first_time = '$manifest->{first_time}' AND last_time = '$manifest->{last_time}' FROM outbox.archive_files"), 't', 'with the same times');
is_deeply([ map { sprintf('%04o', (stat($_))[2] & 07777) } glob("$directory/*") ], [ '0600', '0600' ], 'nobody else can read it');
is_deeply([ glob("$directory/.outbox*") ], [], 'nothing else is there');
is(problems($node, $db), '', 'verify_archive() is content');

# ------------------------------------------------------------- what stays, what goes

alter_system($node, 'outbox.archive_compression = zstd');
$node->safe_psql($db, q{
	SELECT outbox.pause('later');
	SELECT outbox.enqueue_text('now', 'good', 'good', 'x');
	SELECT outbox.enqueue_text('now', 'dead', 'dead', repeat('x', 950000));
	SELECT outbox.enqueue_text('later', 'p', 'pending', 'x');
	SELECT outbox.enqueue_text('later', 'd', 'discarded', 'x', event_id => '00000000-0000-4000-8000-000000000002', not_before => 'infinity');
	SELECT outbox.discard('no use', '00000000-0000-4000-8000-000000000002')});
ok(wait_all_published($node, $db), 'published');
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.delivery WHERE state IN ('f', 'x')}, expected => 2), 'failed, discarded');
is(purge_all($node, $db), "removed|3|1|\nkept|1||it takes new events", 'all but one have gone');
like(last_file(), qr/\.zst$/, 'another compression');
@events = map { decode_json($_) } archived_lines("$directory/" . last_file());
is(join(' ', map { "$_->{event_type}=$_->{state}," . (defined $_->{published_at} ? 'at' : '') . ',' . ($_->{not_before} // '') } @events),
	'good=published,at, dead=failed,, discarded=discarded,,infinity', 'what goes is archived, with its state');
like($events[1]{last_error}, qr/larger|size|limit/, 'and its error');
check_bytes('states', @events);
$node->safe_psql($db, q{SELECT outbox.resume('later')});
ok(wait_published($node, $db), 'the other one is published');
is(purge_all($node, $db), 'removed|1|0|', 'and goes in its turn');
@events = archived_events($directory);
is(join(' ', map { $_->{event_type} } $events[-1]), 'pending', 'into the file of the range in which it goes');
is(scalar(keys %{ { map { $_->{position} => 1 } @events } }), scalar(@events), 'no event is archived twice');
is(problems($node, $db), '', 'verify_archive() is content');

# A range of which everything stays: no file, and no gap.
$node->safe_psql($db, q{SELECT outbox.pause('later'); SELECT outbox.enqueue('later', 'p', 'late', '1'); SELECT outbox.enqueue('now', 'a', 'E', '1')});
ok(wait_all_published($node, $db), 'published');
$node->safe_psql($db, 'ALTER SYSTEM SET outbox.archive_compression = gzip');
$node->reload;
my $before = scalar(files());
is(purge_all($node, $db), "removed|1|1|\nkept|1||it takes new events", 'one stays');
is(scalar(files()), $before + 1, 'a file');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.archives WHERE kept IS NOT NULL'), 0, 'notes that only matter before are gone');

# -------------------------------------------------------------- what is wrong

my @archived = files();
my ($first, $second) = @archived;
sub manifest_of { return "$directory/" . ($_[0] =~ s/\.jsonl\.\w+$/.manifest.json/r) }
# Does something to the archive, looks, and undoes it.
sub is_found
{
	my ($name, $damage, $found) = @_;
	my %content = map { $_ => slurp_file($_) } "$directory/$first", manifest_of($first), "$directory/$second", manifest_of($second);

	$damage->();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like(problems($node, $db), $found, $name);
	foreach my $path (keys %content)
	{
		unlink($path);
		append_to_file($path, $content{$path});
	}
	return;
}

sub change
{
	my ($path, $change) = @_;
	my $content = slurp_file($path);

	$change->($content) for $content;
	unlink($path);
	append_to_file($path, $content);
	return;
}
is_found('a file is missing', sub { unlink("$directory/$first") }, qr/^\Q$first\E: the file is missing$/);
is_found('a manifest is missing', sub { unlink(manifest_of($first)) }, qr/^\Q$first\E: the manifest is missing$/);
is_found('a file is cut off', sub { truncate("$directory/$first", 100) }, qr/^\Q$first\E: it has 100 bytes, and the manifest says \d+$/);
is_found('a byte has changed', sub { change("$directory/$first", sub { substr($_[0], 5000, 1) ^= "\1" }) }, qr/^\Q$first\E: (?:its checksum is not the manifest's|".*" is damaged near .*|line \d+ .*)$/);
is_found('in another compression', sub { change("$directory/$second", sub { substr($_[0], 40, 1) ^= "\1" }) }, qr/^\Q$second\E: (?:its checksum is not the manifest's|".*" is damaged near .*|line \d+ .*)$/);
is_found('files are mixed up', sub { rename("$directory/$second", "$directory/$first"); append_to_file("$directory/$second", 'x') }, qr/^\Q$first\E: it has .*\n\Q$second\E: it has 1 bytes/);
is_found('a manifest is another', sub { unlink(manifest_of($first)); append_to_file(manifest_of($first), slurp_file(manifest_of($second))) }, qr/^\Q$first\E: the manifest is that of another file$/);
is_found('a manifest has changed', sub { change(manifest_of($first), sub { $_[0] =~ s/"events": \d+/"events": 2/ }) }, qr/^\Q$first\E: the manifest is not what outbox\.archives knows of the file$/);
is_found('a manifest is no JSON', sub { change(manifest_of($first), sub { substr($_[0], 10, 1) = '"' }) }, qr/^\Q$first\E: the manifest is not a JSON object/);
my $stranger = 'outbox-postgres-00000000000000000001-00000000000000000001.jsonl.gz';
append_to_file("$directory/$stranger", 'x');
is(problems($node, $db), "$stranger: outbox.archives does not know this file", 'a file that nobody knows');
unlink("$directory/$stranger");
is(problems($node, $db), '', 'all is well again');

# A range that went without the archive is a gap.
alter_system($node, q{outbox.archive_directory = ''});
$node->safe_psql($db, q{SELECT outbox.enqueue('now', 'a', 'E', '1')});
ok(wait_all_published($node, $db), 'published');
like(purge_all($node, $db), qr/^removed/, 'removed without an archive');
alter_system($node, "outbox.archive_directory = '$directory'");
$node->safe_psql($db, q{SELECT outbox.enqueue('now', 'a', 'E', '1')});
ok(wait_all_published($node, $db), 'published');
like(purge_all($node, $db), qr/^removed/, 'removed with an archive');
is(problems($node, $db), 'range 5: a gap: this range was removed without having been archived', 'the gap is found');

# An archive that has been moved.
my $moved = archive_directory();
rename($_, $moved . '/' . s{.*/}{}r) foreach glob("$directory/*");
alter_system($node, "outbox.archive_directory = '$moved'");
is(problems($node, $db), 'range 5: a gap: this range was removed without having been archived', 'files are found where they have been moved to');

# ----------------------------------------------------- a dump knows the archive

$node->safe_psql($db, 'CREATE DATABASE restored');
my $dump = $node->basedir . '/dump';
$node->command_ok([ 'pg_dump', '-Fc', '-f', $dump, $node->connstr($db) ], 'a dump');
$node->command_ok([ 'pg_restore', '-d', $node->connstr('restored'), $dump ], 'restored');
is($node->safe_psql('restored', 'SELECT count(*) FROM outbox.archive_files'), $node->safe_psql($db, 'SELECT count(*) FROM outbox.archive_files'), 'knows the files');
$node->safe_psql($db, 'DROP DATABASE restored WITH (FORCE)');

# ------------------------------------------------------- beside live traffic

burst($node, $db, 'old', 20000);
ok(wait_all_published($node, $db), 'published');
my $child = $node->safe_psql($db, 'SELECT child FROM outbox.ring WHERE closed_at IS NULL');
my $holder = $node->background_psql($db);
$holder->query_safe("BEGIN; LOCK TABLE outbox.log_$child IN ROW EXCLUSIVE MODE");
unlike(purge_all($node, $db), qr/^removed/, 'a range that is closed and can\'t go yet');
$holder->quit;
my $load = start_load($node, $db, rate => 50, type => 'live');
ok(wait_for_query($node, $db, q{SELECT count(*) > 0 FROM outbox.events WHERE aggregate_type = 'live' AND publish_state = 'published'}), 'live traffic');
# looked at by one session all the time, as the purge may be short
my ($looks, $seen) = map { $node->basedir . "/looks.$_" } qw(sql out);
append_to_file($looks, q{SELECT 'pause' FROM pg_stat_activity WHERE backend_type = 'outbox cleaner' AND xact_start IS NULL AND wait_event_type = 'Extension' \watch 0.01});
my $watch = IPC::Run::start([ 'psql', '-XA', '-f', $looks, $node->connstr($db) ], '>', $seen);
ok(wait_until(10, sub { -s $seen }), 'the cleaner is watched');
is($node->safe_psql($db, q{SELECT action, events >= 20000 FROM outbox.purge(older_than => '0') WHERE action = 'removed'}), 'removed|t', '... while it removes all');
$watch->kill_kill;
like(slurp_file($seen), qr/^pause$/m, '... and pauses, without a transaction');
stop_load($load);
ok(wait_all_published($node, $db), 'published');
is(scalar(grep { $_->{aggregate_type} eq 'old' } archived_events($moved)), 20000, 'all are archived');

# --------------------------------------------------------- another encoding

$node->safe_psql($db, q{CREATE DATABASE "latin 1" ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
$node->safe_psql($db, q{CREATE DATABASE ascii ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0});
foreach my $other ('latin 1', 'ascii')
{
	$node->safe_psql($other, q{CREATE EXTENSION outbox});
	ok(wait_relay($node, $other), "$other: a relay");
	$node->safe_psql($other, q{
		SET client_encoding = 'UTF8';
		SELECT outbox.enqueue('tést', 'é', 'json', '{"k": "é"}', headers => '{"h": "é"}');
		SELECT outbox.enqueue_text('tést', 'é', 'plain', 'abc');
		SELECT outbox.enqueue_text('tést', 'é', 'text', 'é');
		SELECT outbox.enqueue_bytes('tést', 'é', 'bytes', '\xe9')});
	$node->safe_psql($other, q{SELECT outbox.enqueue_text('tést', 'é', 'no utf8', convert_from('\xe9', 'SQL_ASCII'))}) if $other eq 'ascii';
	ok(wait_all_published($node, $other), "$other: published");
	like(purge_all($node, $other), qr/^removed/, "$other: removed");
	my ($path) = glob("$moved/outbox-" . ($other =~ s/ /%20/r) . '-*.gz');
	ok(defined $path, "$other: a file");
	my @other = map { decode_json($_) } archived_lines($path);
	check_bytes($other, @other);
	is(join(' ', map { "$_->{event_type}=$_->{payload_kind}" } @other),
		$other eq 'ascii' ? 'json=j plain=t text=t bytes=x no utf8=x' : 'json=j plain=t text=x bytes=x', "$other: text of another encoding goes as bytes");
	is($other[2]{content_type}, $other eq 'ascii' ? undef : 'application/json', "$other: ... with a text's content type");
	is("$other[0]{aggregate_type} $other[0]{headers}{h}", "t\x{e9}st \x{e9}", "$other: all else is UTF-8");
	is(problems($node, $other), '', "$other: verify_archive() is content");
}

check_no_crash($node);
done_testing();
