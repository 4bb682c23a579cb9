# outbox.report_html(): of an empty database, of one with hostile names and every
# kind of trouble, of one with a large backlog; looked at in a real browser.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename qw(dirname);
use IPC::Run;
use JSON::PP;
use OutboxTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $db = 'postgres';
my $nats = OutboxNats->start(max_payload => 4096, user => 'relay', password => 'SECRET-password');
my $node = new_cluster('main', nats => $nats, extra => "outbox.poison_policy = block\noutbox.max_attempts = 1\noutbox.archive_url = 'http://u:SECRET-archive\@127.0.0.1:1/events'\n");
my $folder = PostgreSQL::Test::Utils::tempdir();

sub ask { return $node->safe_psql($_[1] // $db, $_[0]) }

# Writes the report of a database to a file; returns it, and how long it took.
sub report
{
	my ($name, $of) = @_;
	my $start = time();
	my $page = ask(q{SELECT outbox.report_html()}, $of);

	append_to_file("$folder/$name.html", $page);
	return $page;
}

# --- empty
ask('CREATE DATABASE empty');
ask('CREATE EXTENSION outbox', 'empty');
my $empty = report('empty', 'empty');
like($empty, qr/^<!DOCTYPE html><html lang="en">.*<\/html>$/s, 'a page');
like($empty, qr/Nothing waits: all that was committed/, 'of an empty database');
ok(length($empty) < 60_000, length($empty) . ' characters');

# --- hostile names, dead letters, blocked aggregates, a pause, errors
my @hostile = (
	'<script>window.pwned = 1</script>', '"><img src=x onerror="window.pwned = 2">', q{' onmouseover='window.pwned = 3}, '</style></title><svg onload=window.pwned=4>',
	'&lt;b&gt; &amp;', '}}%s%n%1$s\\', "\x{202e}gnp.exe", "gr\x{f6}\x{df}e \x{1f680}", 'a' x 255);
wait_relay($node, $db);
ask(q{SELECT count(outbox.enqueue('order', (i % 50)::text, 'placed', '{"card": "PAYLOAD-4711"}', headers => '{"x": "HEADER-4711"}')) FROM generate_series(1, 300) i});
foreach my $name (@hostile)
{
	my $literal = $name =~ s/'/''/gr;

	utf8::encode($literal);
	ask(qq{SELECT outbox.enqueue('$literal', '$literal', '$literal', '{}')});
	ask(qq{SELECT outbox.enqueue_text('$literal', '$literal', '$literal', repeat('x', 9000)), outbox.enqueue('$literal', '$literal', 'behind', '{}')});
}
ask(q{SELECT count(outbox.enqueue_text('big', i::text, 'too.big', repeat('x', 9000))) FROM generate_series(1, 80) i});
ok(wait_for_query($node, $db, q{SELECT dead_letters = 89 FROM outbox.trouble()}), 'dead letters');
ask(q{UPDATE outbox.delivery SET last_error = '</td><script>window.pwned = 5</script>' WHERE position = (SELECT max(position) FROM outbox.delivery)});
ask(q{SELECT outbox.pause(aggregate_type => '<i>', reason => '<script>window.pwned = 6</script>')});
my $page = report('trouble');
unlike($page, qr/SECRET|4711/, 'no secret, no payload, no header');
like($page, qr/nats:\/\/\*\*\*\@127/, 'masked');
unlike($page, qr/[^\n -~]/, 'ASCII only: it doesn\'t depend on the client\'s encoding');
is(scalar(() = $page =~ /<script/g), 1, 'one script');

# --- a large backlog
ask('CREATE DATABASE large');
ask('CREATE EXTENSION outbox', 'large');
wait_relay($node, 'large');
ask('SELECT outbox.pause()', 'large');
ask(q{SELECT count(outbox.enqueue(CASE WHEN i % 10 = 0 THEN 'rare' WHEN i % 10 < 4 THEN 'some' ELSE 'most' END, (i % 997)::text, 'e', '{}')) FROM generate_series(1, 30000) i}, 'large');
ask(q{SELECT outbox.enqueue('most', 'x', 'e', '{}', not_before => 'infinity')}, 'large');
ok(wait_for_query($node, 'large', q{SELECT sum(backlog) = 30001 FROM outbox.status() WHERE database = 'large'}), 'a large backlog');
is(ask(q{SELECT string_agg(aggregate_type, ' ' ORDER BY pending DESC), bool_and(abs(pending - expected) < 0.1 * 30000), abs(sum(pending) - 30001) < 10, bool_and(oldest IS NOT NULL)
	FROM outbox.report_backlog() JOIN (VALUES ('most', 18000), ('some', 9000), ('rare', 3000)) e(t, expected) ON t = aggregate_type}, 'large'), 'most some rare|t|t|t', 'is estimated by type');
is(ask(q{SELECT bool_and((SELECT sum(a) FROM unnest(ages) a) BETWEEN pending - 4 AND pending + 4) FROM outbox.report_backlog()}, 'large'), 't', 'and age');
is(ask(q{SELECT count(*) FROM outbox.report_pending(100)}, 'large') <= 200, 1, 'from a bounded number of rows');
my $best = ask(q{
	DO $$ DECLARE t timestamptz; best interval := '1 h'; BEGIN
		FOR i IN 1 .. 3 LOOP t := clock_timestamp(); PERFORM outbox.report_html(); best := least(best, clock_timestamp() - t); END LOOP;
		PERFORM set_config('test.best', extract(epoch FROM best)::text, false);
	END $$;
	SELECT round(current_setting('test.best')::numeric * 1000)}, 'large');
diag("report_html() with 30,000 events pending: $best ms");
cmp_ok($best, '<', slack(3000), 'is made in time');
my $large = report('large', 'large');
ok(length($large) < 100_000, length($large) . ' characters');

# --- who may
ask(q{CREATE ROLE stranger LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor});
like(ask(q{SET ROLE monitor; SELECT left(outbox.report_html(), 15)}), qr/DOCTYPE/, 'a monitor');
is_deeply([ map { $_->[0] } sqlstates($node, $db, 'SET ROLE stranger; SELECT outbox.report_html()') ], ['42501'], 'nobody else');

# --- other encodings, and a server without the library
ask(q{CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0});
ask('CREATE EXTENSION outbox', 'latin');
is(ask(q{SELECT encode(convert_to(outbox.html_text(chr(246) || '<'), 'LATIN1'), 'hex')}, 'latin'), 'f6266c743b', 'a database of another encoding');
like(ask(q{SELECT outbox.report_html()}, 'latin'), qr/<\/html>/, 'has a report, too');
is(ask(q{SELECT outbox.html_text(E'a\x01\x7f\u0085\n<>&"''' || chr(128640))}), "a&#xFFFD;&#xFFFD;&#xFFFD;\n&lt;&gt;&amp;&quot;&#39;&#128640;", 'HTML of any text');
is(ask(q{SELECT string_agg(outbox.html_setting('x_url', u), ' ') FROM unnest('{nats://a:b@h:1\\,tls://t@i, http://u:p@h/t?password=x, nats://h}'::text[]) u}),
	'<code>nats://***@h:1</code> <code>tls://***@i</code> <code>http://***@h/t?***</code> <code>nats://h</code>', 'URLs are masked');
is(ask(q{SELECT outbox.html_setting('outbox.nkey_seed_file', '/etc/x')}), '<i>set, not shown</i>', 'paths are not shown');
is(ask(q{SELECT string_agg(outbox.html_scale(n)::text, ' ') FROM unnest('{NULL, 0, 4, 5, 10, 11, 99, 100, 101}'::float8[]) n}), '4 4 4 5 10 12 100 100 120', 'scales');

# --- the browser
my ($chromium) = grep { -x } map { my $name = $_; map { "$_/$name" } split(/:/, $ENV{PATH}) } qw(chromium-headless-shell chromium google-chrome);
SKIP:
{
	skip 'no chromium', 1 unless $chromium;
	my ($out, $err) = ('', '');
	my @names = qw(trouble empty large);

	$ENV{TMPDIR} //= $folder;
	IPC::Run::run([ 'node', abs_path(dirname(__FILE__) . '/..') . '/test/report/look.js', $chromium,
			($ENV{OUTBOX_SHOTS} ? ('--shots', $ENV{OUTBOX_SHOTS}) : ()), map { "$folder/$_.html" } @names ],
		'<', \'', '>', \$out, '2>', \$err, IPC::Run::timeout(300));
	is($?, 0, 'the browser looks at the pages') || diag($err);
	my %seen = map { my $page = decode_json($_); ($page->{page} =~ s/\.html$//r => $page) } split(/\n/, $out);
	foreach my $name (@names)
	{
		my $seen = $seen{$name};

		is_deeply($seen->{faults}, [], "$name: nothing overflows, all can be read, in both schemes; tables sort");
		is_deeply($seen->{errors}, [], "$name: no errors");
		is(scalar(@{ $seen->{requests} }), 1, "$name: it asks the network for nothing") || diag("@{ $seen->{requests} }");
		is("$seen->{pwned} $seen->{scripts} $seen->{images}", 'undefined 1 0', "$name: nothing of the data runs");
		diag("$name: $seen->{sorted} clicks, contrast at least " . sprintf('%.1f', $seen->{worst}));
	}
	my $text = $seen{trouble}{text};
	foreach my $name (@hostile)
	{
		ok(index($text, substr($name, 0, 90)) >= 0, 'is shown as it is: ' . ($name =~ s/[^ -~]/?/gr =~ s/(.{40}).*/$1/r));
	}
	is($seen{trouble}{rows}{$_->[0]}, $_->[1], "$_->[0]: $_->[1] rows") foreach [ 'dead-letters', 52 ], [ 'blocked', 50 ], [ 'relays', 3 ], [ 'types', 11 ];
	is($seen{trouble}{verdict}, 'verdict critical', 'verdict');
	is($seen{empty}{verdict}, 'verdict ok', 'verdict of the empty one');
	is($seen{large}{rows}{backlog}, 3, 'backlog by type');
	like($text, qr/outbox\.discard\(\)/, 'advice');
}

check_no_crash($node);
done_testing();
