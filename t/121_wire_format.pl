# docs/wire-format.md shows real messages: its statements are run, one block after
# the other, and what then arrives is what the block of text behind them says.
# With OUTBOX_WRITE_DOCS=1 the blocks of text are written instead.

use strict;
use warnings;

use OutboxNode;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

# Bytes throughout: the document is UTF-8, and so is what arrives.
my $path = checkout() . '/docs/wire-format.md';
my $document = slurp_file($path);
my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, initdb => [ '--encoding=UTF8', '--locale=C' ], create_extension => 0);
my $seen = 0;
my @written;

$node->safe_psql('postgres', 'CREATE DATABASE shop');
$node->safe_psql('shop', 'CREATE EXTENSION outbox');
ok(wait_relay($node, 'shop', timeout => 60), 'a relay');

# Runs a block; the relays start anew if it sets something for the database.
sub run_block
{
	my ($sql) = @_;
	my $relay = relay_pid($node, 'shop');

	$node->safe_psql('shop', "SET client_encoding = 'UTF8';\n$sql");
	ok(wait_new_relay($node, 'shop', $relay, timeout => 60), 'a new relay after ALTER DATABASE') if $sql =~ /ALTER DATABASE/;
	return;
}

# What has arrived since the last call, as the document shows it.
sub arrived
{
	my @messages;

	ok(wait_published($node, 'shop', undef), 'published');
	@messages = grep { $_->{seq} > $seen } $nats->dump('OUTBOX');
	$seen = $messages[-1]{seq} if @messages;
	# aggregates don't wait for each other: in the order of their ids
	return join("\n", map {
		"$_->{subject}\n" . join('', map { "$_->[0]: $_->[1]\n" } @{ $_->{all_headers} }) . "\n$_->{payload}\n"
	} sort { $a->{msg_id} cmp $b->{msg_id} } @messages);
}

foreach my $part (split(/^(```\w+\n.*?^```\n)/ms, $document))
{
	if ($part =~ /^```sql\n(.*)^```\n/ms)
	{
		run_block($1);
	}
	elsif ($part =~ /^```text\n(.*)^```\n/ms)
	{
		my ($shown, $messages) = ($1, arrived());

		is($shown, $messages, 'the document shows what arrives') unless $ENV{OUTBOX_WRITE_DOCS};
		$part = "```text\n$messages```\n";
	}
	push @written, $part;
}
cmp_ok(scalar(grep { /^```text/ } @written), '>=', 4, 'blocks compared');
if ($ENV{OUTBOX_WRITE_DOCS})
{
	open(my $file, '>', $path) or die "$path: $!";
	print $file @written;
	close($file) or die "$path: $!";
}
check_no_crash($node);
done_testing();
