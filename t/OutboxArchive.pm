# OutboxArchive.pm
#
# What the tests of the archive share: a directory for it, its files taken apart,
# and what outbox.verify_archive() says.

use strict;
use warnings;

package OutboxArchive;

use Exporter 'import';
use JSON::PP;
use MIME::Base64 qw(decode_base64);
use OutboxTest;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(archive_directory archived_lines archived_events archived_ids enqueue_all_kinds payload_bytes problems purge_all read_manifest wait_all_published);

# A directory for the server to archive into.
sub archive_directory
{
	my $directory = PostgreSQL::Test::Utils::tempdir('archive');

	chmod(0700, $directory);
	return $directory;
}

# The lines of a file, as they are.
sub archived_lines
{
	my ($path) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ $path =~ /\.zst$/ ? ('zstd', '-dc') : ('gzip', '-dc'), $path ], '>', \$out, '2>', \$err) or die "$path: $err";
	return split(/(?<=\n)/, $out);
}

# The events of all files of a directory, in the order of their names.
sub archived_events
{
	my ($directory) = @_;
	my $json = JSON::PP->new->utf8->allow_nonref;

	return map { $json->decode($_) } map { archived_lines($_) } sort glob("$directory/*.jsonl.*");
}

# The ids only: for files of large events.
sub archived_ids
{
	my ($directory) = @_;

	return map { /^\{"position":\d+,"event_id":"([^"]+)"/ or die 'not an event'; $1 } map { archived_lines($_) } sort glob("$directory/*.jsonl.*");
}

# Events with payloads, texts and options of all kinds, nothing of which may change on its way.
sub enqueue_all_kinds
{
	my ($node, $db) = @_;
	my @json = ('9007199254740993', '12345678901234567890', '1.10', '1E2', '-0', '1e400', '{"b":1,"a":2,"b":3}', "  \n{\"\$type\":\"x\",\"a\":1}",
		'"str"', 'null', '[]', '{}', "{\"k\": \"\\u00e9 \\u2028 \\ud83d\\ude00 \\\" \\\\\"}");
	my $n = 0;
	$node->safe_psql($db, join('', map { $n++; "SELECT outbox.enqueue('j', 'a', 'j$n', \$x\$$_\$x\$); SELECT outbox.enqueue_text('t', 'a', 't$n', \$x\$$_\$x\$);\n" } @json));
	$node->safe_psql(
		$db, q{
		SELECT outbox.enqueue('j', 'a', 'deep', (repeat('[', 6000) || repeat(']', 6000))::jsonb);
		SELECT outbox.enqueue_text('t', 'a', 'million', repeat('é', 400000));
		SELECT outbox.enqueue_text('t', 'a', 'empty', '');
		SELECT outbox.enqueue_text('t', 'a', 'bom', E'\uFEFF{} \u2028\u2029 \U0001F600');
		SELECT outbox.enqueue_text('t', 'a', 'controls', string_agg(chr(i), '' ORDER BY i)) FROM generate_series(1, 300) i;
		SELECT outbox.enqueue_bytes('x', 'a', 'empty', '');
		SELECT outbox.enqueue_bytes('x', 'a', 'b' || i, decode(repeat('00ff0a0d', i) || repeat('7f', i % 3), 'hex')) FROM generate_series(1, 9) i;
		SELECT outbox.enqueue_bytes('x', 'a', 'all', string_agg(set_byte('\x00', 0, i), '' ORDER BY i)) FROM generate_series(0, 255) i;
		SELECT outbox.enqueue('é "\' || E'\t', 'a/b 😀', 'order.placed', '{}', headers => '{"a": "b", "q": "say \"x\" \\\\ é"}', subject => 'outbox.own',
			event_id => '00000000-0000-4000-8000-000000000001', occurred_at => '0001-01-02 03:04:05.000006+00', priority => -7, not_before => '2000-01-01 00:00:00+00',
			content_type => 'text/x', dataschema => 'https://example.com/s?a=1', aggregate_version => 9223372036854775807)});
	return;
}

# The bytes of an event's payload, as they were published.
sub payload_bytes
{
	my ($event) = @_;
	my $payload = $event->{payload};

	return decode_base64($payload) if $event->{payload_kind} eq 'x';
	utf8::encode($payload);
	return $payload;
}

sub read_manifest
{
	my ($path) = @_;

	return JSON::PP->new->utf8->decode(slurp_file($path =~ s/\.jsonl\.\w+$/.manifest.json/r));
}

# What verify_archive() complains of, as "file: problem".
sub problems
{
	my ($node, $db) = @_;

	return $node->safe_psql($db, q{SELECT coalesce(file, 'range ' || range) || ': ' || problem FROM outbox.verify_archive() WHERE problem IS NOT NULL});
}

sub purge_all
{
	my ($node, $db) = @_;

	return $node->safe_psql($db, q{SELECT action, events, carried_over, reason FROM outbox.purge(older_than => '0')});
}

# Until nothing is pending but what is paused, of an aggregate type "later".
sub wait_all_published
{
	my ($node, $db) = @_;

	return wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE publish_state IN ('pending', 'processing') AND aggregate_type <> 'later'}, expected => 0);
}

1;
