# outbox-top: arguments and exit codes, plain output, and on a terminal: keys,
# sizes, what it leaves behind, the server gone and back.

use strict;
use utf8;
use warnings;

use Encode qw(decode encode);
use IPC::Run;
use OutboxTerminal;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $nats = OutboxNats->start(max_payload => 4096);
my $node = new_cluster('main', nats => $nats, extra => "outbox.poison_policy = block\noutbox.max_attempts = 1\n");
my $bindir = $node->config_data('--bindir');
my $top = "$bindir/outbox-top";

sub ask { return $node->safe_psql($db, encode('UTF-8', $_[0])) }

# (exit code, stdout, stderr)
sub run_top
{
	my (@arguments) = @_;
	my ($out, $err) = ('', '');

	local $ENV{LC_ALL} = $ENV{LC_ALL} // 'C.UTF-8';
	IPC::Run::run([ $top, @arguments ], '<', \'', '>', \$out, '2>', \$err, IPC::Run::timeout(120));
	return ($? & 127 ? -($? & 127) : $? >> 8, decode('UTF-8', $out), $err);
}

my @there = ('-h', $node->host, '-p', $node->port);

# --- arguments
foreach my $wrong (
	[ [ '--nonsense' ], qr/unrecognized option.*--help/s ],
	[ [ '--interval', '0' ], qr/--interval must be a number of seconds from 0\.1 to 3600, not "0"/ ],
	[ [ '--interval', '2x' ], qr/not "2x"/ ],
	[ [ '--interval', 'nan' ], qr/not "nan"/ ],
	[ [ '--count', '-1' ], qr/--count must be a number from 0 to 1000000000, not "-1"/ ],
	[ [ '--view', 'all' ], qr/there is no view "all": types, streams/ ],
	[ [ '--view', 'dead', '--sort', 'depth' ], qr/view "dead" has no column "depth"/ ],
	[ [ 'one', 'two' ], qr/there is no argument "two"/ ])
{
	my ($code, $out, $err) = run_top(@{ $wrong->[0] });

	ok($code == 1 && $out eq '' && $err =~ $wrong->[1] && $err =~ /Try "outbox-top --help"/, "wrong: @{ $wrong->[0] }") || diag(encode('UTF-8', "$code $out $err"));
}
{
	my ($code, $out, $err) = run_top('--help');

	ok($code == 0 && $out =~ /^Usage: outbox-top/m && $err eq '', '--help');
	is_deeply([ grep { length > 110 } split(/\n/, $out) ], [], 'fits');
	($code, $out) = run_top('--version');
	is($out, 'outbox-top ' . ask('SELECT outbox.library_version()') . "\n", '--version');
}

# --- nothing to be seen
ask('CREATE DATABASE bare');
ask('CREATE ROLE stranger LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor');
foreach my $refused (
	[ [ @there, 'bare' ], qr/^outbox-top: database "bare" has no extension outbox: CREATE EXTENSION outbox/ ],
	[ [ @there, 'missing' ], qr/database "missing" does not exist/ ],
	[ [ '-h', $node->host, '-p', 1, $db ], qr/No such file|refused/ ],
	[ [ @there, '-U', 'stranger', $db ], qr/permission denied.*must be a member of pg_monitor/s ],
	[ [ 'port=none' ], qr/invalid integer value "none"/ ])
{
	my ($code, $out, $err) = run_top(@{ $refused->[0] });

	ok($code == 2 && $out eq '' && $err =~ $refused->[1], "exit code 2: @{ $refused->[0] }") || diag(encode('UTF-8', "$code $out $err"));
}

# --- something to be seen: types of all kinds, dead letters that block, a payload
wait_relay($node, $db);
ask(q{SELECT count(outbox.enqueue('order', (i % 50)::text, 'order.placed', '{"secret": "PAYLOAD"}')) FROM generate_series(1, 300) i});
ask(q{SELECT count(outbox.enqueue('account', i::text, 'opened', '{}')) FROM generate_series(1, 20) i});
ask(qq{SELECT outbox.enqueue('evil\e[2J\e]0;x\a' || chr(10) || chr(8238), '\e[31m', 'e', '{}')});
ask(q{SELECT outbox.enqueue('größe', '日本', 'e', '{}')});
ask(q{SELECT count(outbox.enqueue_text('big', i::text, 'too.big', repeat('x', 9000)) || outbox.enqueue('big', i::text, 'small', '{}')::text) FROM generate_series(1, 40) i});
ok(wait_for_query($node, $db, q{SELECT (SELECT sum(published) = 322 FROM outbox.stat_relays) AND (SELECT dead_letters = 40 FROM outbox.trouble())}), 'events, dead letters');

# --- plain
{
	my ($code, $out, $err) = run_top(@there, '-U', 'monitor', $db);

	ok($code == 0 && $err eq '', 'one look') || diag("$code $err");
	like($out, qr/\Aoutbox-top  postgres  \d\d:\d\d:\d\d/, 'title');
	like($out, qr/^CRITICAL \(and 1 more\)  aggregates_blocked  40 aggregates wait/m, 'verdict');
	like($out, qr/^Waiting \d+  in [\d.-]+\/s  out [\d.-]+\/s  failed [\d.-]+\/s  oldest \S+  in flight 0/m, 'flow');
	like($out, qr/^Dead letters 40  blocked 40  retried 0  relays 1 of 1  nats:\S+  stream OUTBOX/m, 'trouble');
	like($out, qr/^Commit to ack p50 \S+ p95 \S+ p99 \S+ max \S+  enqueue to commit p95 \S+  ack to settle p95 \S+$/m, 'latencies');
	like($out, qr/^TYPE +WAITING +OLDEST +PUB\/S▼/m, 'head');
	like($out, qr/^order +0 +- +0 +300 +0B +0 +0 +0 +\S+$/m, 'a type');
	like($out, qr/^big +40 +\S+ +0 +0 +0B +0 +40 +40 +-$/m, 'a blocked one');
	like($out, qr/^evil\?\[2J\?\]0;x\? \? /m, 'no type controls the terminal');
	like($out, qr/^größe /m, 'UTF-8');
	unlike($out, qr/[\x00-\x09\x0b-\x1f]|PAYLOAD/, 'no controls, no payload');
	{
		local $ENV{LC_ALL} = 'C';
		($code, $out) = run_top(@there, '-s', 'type', $db);
		unlike($out, qr/[^\n -~]/, 'ASCII where the locale says so');
		like($out, qr/^gr\?\?e /m, 'with a mark for what it can\'t say');
		like($out, qr/^TYPE\^/m, 'sorted by an argument');
		is_deeply([ $out =~ /^(account|big|order) /mg ], [qw(account big order)], 'in that order');
	}
	($code, $out) = run_top(@there, '--ascii', $db);
	unlike($out, qr/[^\n -~]/, '--ascii');
	($code, $out) = run_top(@there, '-n', 3, '-i', '0.1', '-d', "dbname=$db application_name=mine");
	is(scalar(() = $out =~ /^outbox-top  /mg), 3, '--count');
	my %expected = (streams => qr/^OUTBOX +0 +322 /m, subjects => qr/^outbox\.big\.\*\.too%2Ebig +0 +- +40 +\S/m,
		relays => qr/^ *0 +active +\S+ +\d+ +0 /m, dead => qr/^ *\S+ +big +\d+ +too\.big +1 +0 +blocks its aggregate /m,
		blocked => qr/^big +\d+ +\S+ +1 +1 +- +blocked /m, errors => qr/^event, permanent +NATS client +0 +40 /m, health => qr/^critical +aggregates_blocked +40 aggr/m);
	foreach my $view (sort keys %expected)
	{
		($code, $out, $err) = run_top(@there, '-v', $view, '-i', '0.1', $db);
		ok($code == 0 && $out =~ $expected{$view}, "view $view") || diag(encode('UTF-8', "$code $out $err"));
	}
}

# --- a terminal
my $terminal;

sub screen_is
{
	my ($pattern, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($terminal->wait_screen($pattern), $name) || diag(encode('UTF-8', $terminal->screen));
}

sub start_top
{
	my (%opt) = @_;

	$terminal = OutboxTerminal->start([ $top, @there, '-i', '0.5', @{ $opt{arguments} // [] }, $db ], %opt);
	return screen_is(qr/q quit/, 'drawn');
}

start_top;
screen_is(qr/^outbox-top  postgres  [\d:]+  every 0\.5s/, 'title');
screen_is(qr/^Published\/min, to \d+ +[▁-█ ]+\|$/m, 'bars');
screen_is(qr/^1 Types  2 Streams  3 Subjects  4 Relays  5 Dead  6 Blocked  7 Errors  8 Health$/m, 'views');
screen_is(qr/^order +0 /m, 'rows');
is($terminal->restored, '', 'a screen of its own');
{
	my @lines = $terminal->lines;

	is(scalar(@lines), 24, '24 lines');
	like($lines[-1], qr/^q quit  \? help  space pause  < > r sort  Enter more  Tab view/, 'the keys are in the last one');
	like((grep { /^TYPE/ } @lines)[0], qr/WAITING.*PUB\/S▼.*PUBLISHED.*DEAD/, '80 columns have room for what matters');
}

# sorting
$terminal->type('<<<');
screen_is(qr/^TYPE▲ .*^account.*^big.*^evil.*^größe.*^order/ms, 'by another column');
$terminal->type('r');
screen_is(qr/^TYPE▼ .*^order.*^größe.*^evil.*^big.*^account/ms, 'the other way');

# down from a type to its subjects and dead letters, and back
$terminal->type('end');
$terminal->type('up');
$terminal->type('enter');
screen_is(qr/^SUBJECT.*^outbox\.big\.\*\.too%2Ebig +0 .*^type big/ms, 'subjects of a type');
is(scalar(grep { /^outbox\./ } $terminal->lines), 2, 'and of no other');
$terminal->type('enter');
screen_is(qr/^ *AGO.*too\.big.*type big  row 1 of 40/ms, 'its dead letters');
$terminal->type('end');
screen_is(qr/row 40 of 40/, 'the last');
$terminal->type('page_up');
screen_is(qr/row 2\d of 40/, 'a page up');
$terminal->type('enter');
screen_is(qr/^event_id +[0-9a-f-]{36}\n.*^last_error +NATS client/ms, 'all of one');
$terminal->type('escape');
screen_is(qr/^ *AGO/m, 'back');
$terminal->type('escape');
screen_is(qr/^SUBJECT.*type big/ms, 'and back');
$terminal->type('escape');
screen_is(qr/^TYPE/m, 'and back');

# views, help
my %head = (2 => 'STREAM', 3 => 'SUBJECT', 4 => 'RELAY', 5 => 'AGO', 6 => 'TYPE +ID', 7 => 'CLASS', 8 => 'VERDICT');
foreach my $key (sort keys %head)
{
	$terminal->type($key);
	screen_is(qr/^ *$head{$key}/m, "key $key");
}
$terminal->type("\t");
screen_is(qr/^TYPE▼ +WAITING/m, 'around to the first');
$terminal->type('?');
screen_is(qr/^Keys\n.*^Figures/ms, 'help');
$terminal->type('escape');
screen_is(qr/^TYPE/m, 'no help');

# pause: nothing moves, and then it does
$terminal->type(' ');
screen_is(qr/PAUSED.*space go on/s, 'paused');
ask(q{SELECT count(outbox.enqueue('order', i::text, 'later', '{}')) FROM generate_series(1, 1000) i});
wait_for_query($node, $db, q{SELECT published >= 1300 FROM outbox.stat_aggregate_types WHERE aggregate_type = 'order'});
$terminal->settle;
like($terminal->screen, qr/^order +0 .* 300 /m, 'what is paused stands still');
$terminal->type(' ');
screen_is(qr/^order +0 .* 1,300 /m, 'and goes on');
$terminal->type('+');
screen_is(qr/every 1s/, 'less often');
$terminal->type('-');

# sizes
$terminal->resize(60, 20);
screen_is(qr/^outbox-top(?:.*\n){19}q quit/, 'another size');
is(scalar($terminal->lines), 20, '20 lines');
screen_is(qr/^TYPE.*WAITING.*PUB\/S.*PUBLISHED/m, '60 columns have the most important ones');
screen_is(qr/^1 Types 2 Stre 3 Subj 4 Rela 5 Dead 6 Bloc 7 Erro 8 Heal$/m, 'and all views');
$terminal->resize(25, 5);
screen_is(qr/too small/, 'too small');
$terminal->resize(200, 50);
screen_is(qr/^TYPE.*LAST\n/m, 'a large one has all');
$terminal->resize(80, 24);
screen_is(qr/^outbox-top(?:.*\n){23}q quit/, 'as before');

# --- the server goes and comes back
$node->stop('fast');
screen_is(qr/^outbox-top  NO DATA.*^It tries again; the figures are old\. connection .*^order +0 /ms, 'the server is gone, the figures stay');
$terminal->type('4');
$terminal->type('1');
$node->start;
wait_relay($node, $db);
ask(q{SELECT count(outbox.enqueue('fresh', i::text, 'e', '{}')) FROM generate_series(1, 7) i});
screen_is(qr/\Aoutbox-top  postgres.*^fresh +0 +- .* 7 /ms, 'and back');
$nats->stop;
$terminal->type('8');
screen_is(qr/^critical +not_connected +relay 0/m, 'what outbox.health() says is told');
ok(!$terminal->{overflow}, 'no line was too long');
$terminal->type('q');
is($terminal->finish, 0, 'q ends it');
ok($terminal->restored, 'and the terminal is as before');
$nats->restart;

# --- other ends
foreach my $end ([ INT => 130 ], [ TERM => 130 ], [ HUP => 130 ], [ SEGV => -11 ])
{
	start_top;
	kill($end->[0], $terminal->pid);
	is($terminal->finish, $end->[1], "ended by SIG$end->[0]");
	ok($terminal->restored, 'the terminal is as before');
}
start_top(arguments => [ '-n', 3 ]);
is($terminal->finish, 0, '--count ends it');
ok($terminal->restored, 'the terminal is as before');
start_top(locale => 'C', term => 'vt100', columns => 60, rows => 20);
unlike($terminal->raw, qr/[\x80-\xff]/, 'ASCII only, on a simple terminal');
$terminal->type("\x03");
is($terminal->finish, 130, 'ended by Ctrl-C');
$terminal = OutboxTerminal->start([ $top, @there, $db ], term => 'dumb');
is($terminal->finish, 1, 'a terminal that can\'t be drawn on');
like($terminal->raw, qr/TERM is "dumb".*--plain/, 'says so');

check_no_crash($node);
done_testing();
