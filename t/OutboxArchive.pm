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

our @EXPORT = qw(archive_directory archived_lines archived_events archived_ids payload_bytes problems purge_all read_manifest wait_all_published);

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
