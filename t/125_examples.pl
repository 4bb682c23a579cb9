# The examples do what they say: what a producer commits arrives, what fails leaves
# neither an order nor an event, and consumers count each order once although every
# event is delivered twice.

use strict;
use warnings;

use IPC::Run;
use JSON::PP;
use OutboxNode;
use OutboxTest;
use PostgreSQL::Test::RecursiveCopy;
use PostgreSQL::Test::Utils;
use Test::More;

my $python = '/usr/bin/python3';    # Debian's, which has Debian's packages
needs_npm();
plan skip_all => 'no psycopg2 (Debian: python3-psycopg2)' if !-x $python || system("$python -c 'import psycopg2' 2>/dev/null") != 0;
my $examples = checkout() . '/examples';
my $c = PostgreSQL::Test::Utils::tempdir('c') . '/c';
my %node = map { $_ => npm_folder("examples/$_") } qw(node sequelize);
PostgreSQL::Test::RecursiveCopy::copypath("$examples/c", $c, filterfn => sub { $_[0] !~ /^(?:producer|consumer)$/ });
my $make = '';
IPC::Run::run([ 'make', '-s', '-C', $c, 'CFLAGS=-Wall -Wextra -Werror -I/usr/include/postgresql' ], '>', \$make, '2>&1') or BAIL_OUT("make: $make");

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => 'log_statement = none');
$node->safe_psql('postgres', slurp_file("$examples/schema.sql"));
@ENV{qw(PGHOST PGPORT PGUSER PGDATABASE NATS_URL)} = ($node->host, $node->port, $node->safe_psql('postgres', 'SELECT current_user'), 'postgres', $nats->url);

my %producer = (
	node => sub { return 'node', "$node{node}/producer.js", @_ },
	sequelize => sub { return 'node', "$node{sequelize}/producer.js", @_ },
	psql => sub { return 'psql', '-X', '-v', "id=$_[0]", '-v', "total=$_[1]", '-f', "$examples/psql/producer.sql" },
	python => sub { return $python, "$examples/python/producer.py", @_ },
	c => sub { return "$c/producer", @_ },
);
my $json = JSON::PP->new->canonical;

sub run_example
{
	my (@command) = @_;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run(\@command, '<', \'', '>', \$out, '2>', \$err, IPC::Run::timeout(120));

	return ($ok, $out, $err);
}

sub count { return $node->safe_psql('postgres', "SELECT count(*) FROM $_[0]") }

# ------------------------------------------------------------------ producers

my $id = 0;
foreach my $name (sort keys %producer)
{
	my ($ok, $out, $err) = run_example($producer{$name}->(++$id, '9.50'));

	ok($ok, "$name: places an order") or diag("$out$err");
	ok(wait_published($node, 'postgres', $id), "$name: its event is published");
	my ($message) = $nats->dump('OUTBOX', "outbox.order.$id.order%2Eplaced");
	is_deeply($json->decode($message->{payload}), { id => $id, total => 9.5 }, "$name: the event");
	is($message->{headers}{'ce-producer'}, $name, "$name: is its own");
	like($out, qr/\Q$message->{msg_id}\E/, "$name: knows its id");

	($ok, $out, $err) = run_example($producer{$name}->(100 + $id, '-1'));
	ok(!$ok, "$name: an order that is refused");
	like($err, qr/orders_total_check/, "$name: ... by the database");
	is(count('orders') . ' ' . count('outbox.events'), "$id $id", "$name: leaves neither order nor event");
}

# ------------------------------------------------------------------ consumers

# Runs the Node consumer until its durable consumer has nothing left.
sub consume
{
	my ($durable) = @_;
	my ($out, $err) = ('', '');
	my $consumer = IPC::Run::start([ 'node', "$node{node}/consumer.js", $durable ], '<', \'', '>', \$out, '2>', \$err);

	ok($nats->wait_until(60, sub { $consumer->pump_nb; return (() = $out =~ /\n/g) >= $id }), "node: $durable has all") or diag("$out$err");
	$consumer->signal('TERM');
	ok($consumer->finish, 'node: ends when it is told to') or diag($err);
	return $out;
}

sub revenue { return $node->safe_psql('postgres', "SELECT orders || ' ' || total::float FROM revenue WHERE consumer = '$_[0]'") }

is(scalar(() = consume('node') =~ /^counted/mg), $id, 'node: counts all orders');
is(revenue('node'), "$id 47.5", 'node: the revenue');
is(scalar(() = consume('again') =~ /^seen before/mg), $id, 'node: knows them when they come again');
is(revenue('node'), "$id 47.5", 'node: the same revenue');

my ($ok, $out, $err) = run_example("$c/consumer", $id);
ok($ok, 'c: consumes') or diag("$out$err");
is(scalar(() = $out =~ /^counted/mg), $id, 'c: counts all orders');
is(revenue('c'), "$id 47.5", 'c: the revenue');
# one event under an id that it had before, as after an acknowledgement that was lost and a duplicate window that has passed
my ($repeated) = $nats->dump('OUTBOX', 'outbox.order.1.order%2Eplaced');
$nats->tool('publish', $repeated->{subject}, $repeated->{payload}, '-H', "ce-id=$repeated->{msg_id}");
run_example($producer{c}->(++$id, '0.50'));
($ok, $out, $err) = run_example("$c/consumer", 2);
ok($ok && $out =~ /^seen before \Q$repeated->{msg_id}\E\ncounted/m, 'c: knows one that comes again, and goes on') or diag("$out$err");
is(revenue('c'), "$id 48", 'c: the revenue');

check_no_crash($node);
done_testing();
