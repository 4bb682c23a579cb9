# What arrives: the payload byte for byte, subjects, headers, times, schedules.

use strict;
use warnings;

use Digest::MD5 qw(md5_hex);
use Digest::SHA qw(sha256_hex);
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

# Everything here is bytes: the UTF-8 text in this file is not decoded.
my $nats = OutboxNats->start(max_payload => 4_000_000, monitor => 1);
my $node = new_cluster(
	'main',
	nats => $nats,
	initdb => [ '--encoding=UTF8', '--locale=C' ],
	extra => "jit = off\noutbox.max_payload = 3000000\noutbox.ack_timeout = '3s'\n"
	  . "outbox.retry_max_delay = '500ms'\ntimezone = 'Asia/Kolkata'");
my $expected = 0;    # messages in the stream

# Runs SQL that yields one column with event_ids and adds to what is expected.
sub enqueue
{
	my ($sql) = @_;
	my @ids = split(/\n/, $node->safe_psql('postgres', $sql));

	$expected += @ids;
	return @ids;
}

# Waits for all that was enqueued; the messages of the stream by event_id.
sub arrived
{
	my ($name) = @_;
	my @messages;

	ok(wait_published($node, 'postgres', $expected), "$name: published");
	@messages = $nats->dump('OUTBOX');
	is(scalar(@messages), $expected, "$name: each once in the stream");
	return map { $_->{msg_id} => $_ } @messages;
}

sub decoded
{
	my ($text) = @_;

	$text =~ s/%([0-9A-F]{2})/chr(hex($1))/ge;
	return $text;
}

# The documented mapping of a value to a subject token.
sub token
{
	my ($text) = @_;

	$text =~ s/([^A-Za-z0-9_-])/sprintf('%%%02X', ord($1))/ge;
	return $text;
}

sub quoted
{
	my ($text) = @_;

	$text =~ s/'/''/g;
	return "'$text'";
}

# Each case is [ SQL, SQLSTATE expected, text that the message must have ].
sub refused
{
	my @cases = @_;
	my @verdicts = sqlstates($node, 'postgres', map { $_->[0] } @cases);

	foreach my $i (0 .. $#cases)
	{
		my ($sql, $state, $named) = @{ $cases[$i] };

		is($verdicts[$i][0], $state, 'refused: ' . ($sql =~ s{\s+}{ }gr)) or diag($verdicts[$i][1]);
		like($verdicts[$i][1], qr/\Q$named\E/, '... naming what is wrong') if defined $named;
	}
	return;
}

# ---------------------------------------------------------------- each form

my @forms = enqueue(q{
	SELECT outbox.enqueue('form', '1', 'Made', '{"n": 1}');
	SELECT outbox.enqueue_text('form', '2', 'Made', '{"n": 2}');
	SELECT outbox.enqueue_bytes('form', '3', 'Made', '\x00ff');
	SELECT unnest(outbox.enqueue_many(ARRAY['form'], ARRAY['4', '5'], ARRAY['Made'], ARRAY['4', '5']::jsonb[]));
	INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload)
		VALUES ('form', '6', 'Made', '6') RETURNING event_id;
	INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_text)
		VALUES ('form', '7', 'Made', ' 7') RETURNING event_id;
	INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload_bytes)
		VALUES ('form', '8', 'Made', 'eight'), ('form', '9', 'Made', '') RETURNING event_id;
});
is(scalar(@forms), 9, 'every form returns its event_id');
my %got = arrived('every form');
my @bodies = ('{"n": 1}', '{"n": 2}', "\x00\xff", '4', '5', '6', ' 7', 'eight', '');
foreach my $i (0 .. $#forms)
{
	is_deeply(
		[ @{ $got{ $forms[$i] } }{qw(subject payload)} ],
		[ 'outbox.form.' . ($i + 1) . '.Made', $bodies[$i] ],
		'form ' . ($i + 1));
}

# ------------------------------------------------------- B02: every byte counts

my $long = join('', map { md5_hex($_) } 1 .. 31_250);
my $long_sql = "(SELECT string_agg(md5(i::text), '' ORDER BY i) FROM generate_series(1, 31250) i)";
my $deep = 'repeat(\'[\', 6000) || repeat(\']\', 6000)';
my @payloads = (
	# function, SQL of the payload, body expected
	[ 'enqueue', q{'9007199254740993'}, '9007199254740993' ],
	[ 'enqueue', q{'12345678901234567890'}, '12345678901234567890' ],
	[ 'enqueue', q{'1.10'}, '1.10' ],
	[ 'enqueue', q{'1E2'}, '100' ],
	[ 'enqueue', q{'-0'}, '0' ],
	[ 'enqueue', q{'1e400'}, '1' . '0' x 400 ],
	[ 'enqueue', q{'{"b":1,"a":2,"b":3}'}, '{"a": 2, "b": 3}' ],
	[ 'enqueue', qq{'  {"\$type":"x",\n"a":1}'}, '{"a": 1, "$type": "x"}' ],
	[ 'enqueue', q{'"str"'}, '"str"' ],
	[ 'enqueue', q{'null'}, 'null' ],
	[ 'enqueue', q{'[]'}, '[]' ],
	[ 'enqueue', q{'{}'}, '{}' ],
	[ 'enqueue', qq{'"caf\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x80\xa8 \\t\\"\\\\"'}, qq{"caf\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x80\xa8 \\t\\"\\\\"} ],
	[ 'enqueue', q{'"\u00e9\ud83d\ude00"'}, qq{"\xc3\xa9\xf0\x9f\x98\x80"} ],
	[ 'enqueue', "($deep)::jsonb", '[' x 6000 . ']' x 6000 ],
	[ 'enqueue', "to_jsonb($long_sql)", qq{"$long"} ],
	[ 'enqueue_text', q{'9007199254740993'}, '9007199254740993' ],
	[ 'enqueue_text', q{'-0'}, '-0' ],
	[ 'enqueue_text', q{'1E2'}, '1E2' ],
	[ 'enqueue_text', q{'{"b":1,"a":2,"b":3}'}, '{"b":1,"a":2,"b":3}' ],
	[ 'enqueue_text', qq{'  {"\$type":"x",\n"a":1}\r\n '}, qq{  {"\$type":"x",\n"a":1}\r\n } ],
	[ 'enqueue_text', q{''}, '' ],
	[ 'enqueue_text', qq{'\xef\xbb\xbfBOM'}, "\xef\xbb\xbfBOM" ],
	[ 'enqueue_text', qq{'caf\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x80\xa8'}, "caf\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x80\xa8" ],
	[ 'enqueue_text', $long_sql, $long ],
	[ 'enqueue_text', "repeat('x', 1000000)", 'x' x 1_000_000 ],
	[ 'enqueue_bytes', q{''}, '' ],
	[ 'enqueue_bytes', q{'\x000102feff0d0a'}, "\x00\x01\x02\xfe\xff\x0d\x0a" ],
	[ 'enqueue_bytes', "convert_to($long_sql, 'UTF8')", $long ],
	[ 'enqueue_bytes', "(SELECT string_agg(set_byte('\\x00', 0, i), '' ORDER BY i) FROM generate_series(0, 255) i)",
		join('', map { chr } 0 .. 255) ],
);
my @ids = enqueue(join('', map { "SELECT outbox.$_->[0]('payload', 'p', 'E', $_->[1]);\n" } @payloads));
%got = arrived('payloads');
foreach my $i (0 .. $#payloads)
{
	my ($function, $sql, $body) = @{ $payloads[$i] };

	is($got{ $ids[$i] }{sha256}, sha256_hex($body), "$function: " . substr($sql, 0, 40))
	  or diag('got ' . substr($got{ $ids[$i] }{payload}, 0, 200));
}
is($node->safe_psql('postgres', "SELECT string_agg(payload_text, '') = ' 7' FROM outbox.events WHERE aggregate_id = '7'"),
	't', 'the view shows the text as it was');

# SQL NULL is no payload; JSON that the server can't take fails at enqueue.
refused(
	[ q{SELECT outbox.enqueue('t', '1', 'E', NULL)}, '22004', 'payload' ],
	[ q{SELECT outbox.enqueue_text('t', '1', 'E', NULL)}, '22004', 'payload' ],
	[ q{SELECT outbox.enqueue_bytes('t', '1', 'E', NULL)}, '22004', 'payload' ],
	[ q{SELECT outbox.enqueue_many(ARRAY['t'], ARRAY['1', '2'], ARRAY['E'], ARRAY['1', NULL]::jsonb[])}, '22004', 'payload' ],
	[ q{INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type) VALUES ('t', '1', 'E')}, '22004', 'payload' ],
	[ q{SELECT outbox.enqueue('t', '1', 'E', (repeat('[', 60000) || repeat(']', 60000))::jsonb)}, '54001' ],
	[ q{SELECT outbox.enqueue('t', '1', 'E', '1e131072')}, '22003' ],
	[ q{SELECT outbox.enqueue_text('t', '1', 'E', repeat('x', 3000001))}, '54000', '3000001' ],
	[ q{SELECT outbox.enqueue_text('t', '1', 'E', repeat('x', 3000001))}, '54000', '3000000' ]);

# ------------------------------------------------------------ B04: hostile ids

my ($connection) = $nats->relay_connections;
my @hostile = (
	'a b', "a\tb", "a\r\nPUB ev.x 2\r\n", '*', '>', 'a.*', '.a', 'a.', 'a..b', 'a.b', 'a_b', 'a%2Eb', "caf\xc3\xa9",
	'x' x 300, "\xe2\x82\xac" x 170, '$JS', '_INBOX', "'", '"', '\\', '{aggregate_id}', ' ', "\x01\x7f", '%', '-', 'A', 'a');
my @aggregates = (@hostile, map { "normal-$_" } 1 .. 20);
@ids = enqueue('SELECT outbox.enqueue(\'hostile\', id, \'E.\' || n, to_jsonb(n))'
	  . ' FROM generate_series(1, 2) n, unnest(ARRAY['
	  . join(',', map { quoted($_) } @aggregates)
	  . ']) WITH ORDINALITY a(id, i) ORDER BY n, i % 7, i');
is(scalar(@ids), 2 * @aggregates, 'hostile ids are accepted');
%got = arrived('hostile ids');
my (%subjects, %originals);
foreach my $message (@got{@ids})
{
	my $subject = $message->{headers}{'ce-subject'};
	my @tokens = split(/\./, $message->{subject}, -1);

	push @{ $subjects{ $message->{subject} } }, $subject;
	$originals{ decoded($subject) }++;
	is($message->{subject}, 'outbox.hostile.' . token(decoded($subject)) . '.E%2E' . $message->{payload},
		'subject of ' . substr($subject, 0, 30));
}
is(scalar(grep { @$_ != 1 } values %subjects), 0, 'no subject is shared');
is_deeply(\%originals, { map { $_ => 2 } @aggregates }, 'every id can be told from ce-subject');
is($node->safe_psql('postgres', "SELECT count(*) FROM outbox.events WHERE aggregate_type = 'hostile' AND attempts <> 1"),
	0, 'nothing was tried twice');
is_deeply([ map { $_->{cid} } $nats->relay_connections ], [ $connection->{cid} ], 'the connection has stayed');
unlike($nats->log_content, qr/\[ERR\]|[Pp]arser|Slow Consumer/, 'nothing on the server log');

@ids = enqueue(qq{SELECT outbox.enqueue(E'a.b \\t*', 'x', E'>.\\r\\n', '1')});
%got = arrived('hostile types');
is($got{ $ids[0] }{subject}, 'outbox.a%2Eb%20%09%2A.x.%3E%2E%0D%0A', 'type and event type are encoded, too');

refused(
	[ q{SELECT outbox.enqueue('t', '', 'E', '1')}, '22023', 'aggregate_id' ],
	[ q{SELECT outbox.enqueue('t', NULL, 'E', '1')}, '22004', 'aggregate_id' ],
	[ q{SELECT outbox.enqueue('', '1', 'E', '1')}, '22023', 'aggregate_type' ],
	[ q{SELECT outbox.enqueue(NULL, '1', 'E', '1')}, '22004', 'aggregate_type' ],
	[ q{SELECT outbox.enqueue('t', '1', '', '1')}, '22023', 'event_type' ],
	[ q{SELECT outbox.enqueue('t', '1', NULL, '1')}, '22004', 'event_type' ],
	[ q{SELECT outbox.enqueue('t', repeat('x', 513), 'E', '1')}, '54000', 'aggregate_id' ],
	[ q{SELECT outbox.enqueue(repeat('x', 256), '1', 'E', '1')}, '54000', 'aggregate_type' ],
	[ q{SELECT outbox.enqueue('t', '1', repeat('x', 256), '1')}, '54000', 'event_type' ]);

# ------------------------------------------------------------ explicit subject

@ids = enqueue(q{SELECT outbox.enqueue('order', '1', 'E', '1', subject => 'outbox.my.place')});
%got = arrived('explicit subject');
is($got{ $ids[0] }{subject}, 'outbox.my.place', 'explicit subject');
is($got{ $ids[0] }{headers}{'ce-subject'}, '1', 'ce-subject stays the aggregate');
refused(
	map { [ "SELECT outbox.enqueue('t', '1', 'E', '1', subject => " . quoted($_) . ')', '22023', 'subject' ] } (
		'', 'a b', "a\tb", "a\r\nPUB x 1", 'a.*', 'a.>', '*', '>', '.a', 'a.', 'a..b', '$JS.API.x', '_INBOX.x', 'x' x 1025));

# ------------------------------------------------------------------ B07: headers

my %good = (
	"X-\xc3\xa9\xe2\x82\xac" =~ s/[^X-]//gr . 'a' => "\xc3\xa9\xe2\x82\xac",
	'X-long' => 'v' x 60_000,
	'x' x 256 => 'long key',
	'X-inner' => 'a  b: c=d, "e"; %41 \\',
	"!#\$%&'*+.^_`|~" => 'odd key',
	'traceparent' => '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
);
my $good_sql = "jsonb_build_object('X-long', repeat('v', 60000)" . join('', map { ', ' . quoted($_) . ', ' . quoted($good{$_}) }
	  grep { $_ ne 'X-long' } keys %good) . ')';
@ids = enqueue("SELECT outbox.enqueue('headers', '1', 'E', '1', headers => $good_sql);\n"
	  . "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers)"
	  . " VALUES ('headers', '2', 'E', '1', $good_sql) RETURNING event_id;\n"
	  . "SELECT unnest(outbox.enqueue_many(ARRAY['headers'], ARRAY['3'], ARRAY['E'], ARRAY['1'::jsonb], headers => ARRAY[$good_sql]))");
%got = arrived('headers');
foreach my $id (@ids)
{
	my $headers = $got{$id}{headers};

	is_deeply({ map { $_ => $headers->{$_} } keys %good }, \%good, 'headers arrive as given');
}

# Header object in SQL, what the message must have, and SQLSTATE if not 22023.
my @bad_headers = (
	(map { [ qq{'{"kk": $_}'}, '"kk"' ] } (
			'"a\r\nX: y"', '"a\nb"', '"a\rb"', '"  padded"', '"padded  "', qq{"\xc2\xa0nbsp"}, '""', '"   "', '"\t"', '"a\tb"',
			'"\u0001"', 1, 'true', 'null', '[]', '["a"]', '{}')),
	[ q{jsonb_build_object('kk', repeat('x', 65536))}, '"kk"' ],
	(map { [ "jsonb_build_object($_->[0], 'v')", $_->[1] ] } (
			[ q{'X: Y'}, '"X: Y"' ], [ q{'X Y'}, '"X Y"' ], [ qq{E'X\\r\\nZ'}, "\"X\r\nZ\"" ], [ q{''}, 'header key ""' ],
			[ q{repeat('k', 257)}, '"kkk' ], [ q{'ce-id'}, '"ce-id"' ], [ q{'CE-Id'}, '"CE-Id"' ], [ q{'ce-any_thing'}, '"ce-any_thing"' ],
			[ q{'Nats-Msg-Id'}, '"Nats-Msg-Id"' ], [ q{'nats-expected-stream'}, '"nats-expected-stream"' ],
			[ q{'Content-Type'}, '"Content-Type"' ], [ qq{'X\xc3\xa9'}, "\"X\xc3\xa9\"" ])),
	[ q{'{"Same": "1", "sAME": "2"}'}, '"sAME"' ],
	[ q{'[1]'}, 'headers' ],
	[ q{'"text"'}, 'headers' ],
	[ q{(SELECT jsonb_object_agg('k' || i, 'v') FROM generate_series(1, 101) i)}, 'headers', '54000' ]);
foreach my $form (
	q{SELECT outbox.enqueue('t', '1', 'E', '1', headers => %s)},
	q{INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, payload, headers) VALUES ('t', '1', 'E', '1', %s)},
	q{SELECT outbox.enqueue_many(ARRAY['t'], ARRAY['1'], ARRAY['E'], ARRAY['1'::jsonb], headers => ARRAY[%s]::jsonb[])})
{
	refused(map { [ sprintf($form, $_->[0]), $_->[2] // '22023', $_->[1] ] } @bad_headers);
}

# ------------------------------------------------------- B08: CloudEvents headers

$node->append_conf('postgresql.conf', "outbox.cloudevents_source = '/orders/\xc3\xa9'");
$node->reload;
ok(wait_for_query($node, 'postgres', "SHOW outbox.cloudevents_source", expected => "/orders/\xc3\xa9"), 'reloaded');

# The relay reloads in its own time, so try until an event has the new source.
my $probes = 0;
ok( wait_until(
		10,
		sub {
			my ($id) = enqueue("SELECT outbox.enqueue('probe', '1', 'E', '1')");

			wait_published($node, 'postgres', $expected) or die 'not published';
			my ($probe) = grep { $_->{msg_id} eq $id } $nats->dump('OUTBOX', 'outbox.probe.1.E');
			return $probe->{headers}{'ce-source'} eq '/orders/%C3%A9';
		}),
	'outbox.cloudevents_source can be changed');

@ids = enqueue(qq{
	SET TimeZone = 'Europe/Berlin';
	SELECT outbox.enqueue('order', 'M\xc3\xbcller "50%" \xe2\x9c\x93', E'order placed/\\u00e9', '{}', event_id => '018f2a3b-4c5d-7e6f-8a9b-0c1d2e3f4a5b',
		occurred_at => '2024-10-27 00:30:00.1234+00', dataschema => 'https://example.com/s?x=1 2', aggregate_version => 9007199254740993,
		content_type => 'application/vnd.x+json; charset=utf-8', headers => '{"note": "100%"}');
	SET TimeZone = 'America/New_York';
	SELECT outbox.enqueue_text('order', 'plain', 'E', '{}', occurred_at => '1969-12-31 23:59:59.999999+00');
	SELECT outbox.enqueue_bytes('order', 'bytes', 'E', '', occurred_at => '9999-12-31 23:59:59+00');
	SET TimeZone = 'UTC';
	SELECT outbox.enqueue('order', 'now', 'E', '1');
});
%got = arrived('CloudEvents');
my $first = $got{ $ids[0] };
my $position = $node->safe_psql('postgres', "SELECT position FROM outbox.events WHERE event_id = '$ids[0]'");
is_deeply(
	[ sort { $a->[0] cmp $b->[0] } @{ $first->{all_headers} } ],
	[
		[ 'Nats-Expected-Stream', 'OUTBOX' ],
		[ 'Nats-Msg-Id', '018f2a3b-4c5d-7e6f-8a9b-0c1d2e3f4a5b' ],
		[ 'ce-aggregatetype', 'order' ],
		[ 'ce-aggregateversion', '9007199254740993' ],
		[ 'ce-datacontenttype', 'application/vnd.x+json;%20charset=utf-8' ],
		[ 'ce-dataschema', 'https://example.com/s?x=1%202' ],
		[ 'ce-id', '018f2a3b-4c5d-7e6f-8a9b-0c1d2e3f4a5b' ],
		[ 'ce-partitionkey', 'order/M%C3%BCller%20%2250%25%22%20%E2%9C%93' ],
		[ 'ce-sequence', sprintf('%019d', $position) ],
		[ 'ce-source', '/orders/%C3%A9' ],
		[ 'ce-specversion', '1.0' ],
		[ 'ce-subject', 'M%C3%BCller%20%2250%25%22%20%E2%9C%93' ],
		[ 'ce-time', '2024-10-27T00:30:00.123400Z' ],
		[ 'ce-type', 'order%20placed/%C3%A9' ],
		[ 'note', '100%' ],
	],
	'all headers of an event');
is($got{ $ids[1] }{headers}{'ce-time'}, '1969-12-31T23:59:59.999999Z', 'a time before 1970');
is($got{ $ids[2] }{headers}{'ce-time'}, '9999-12-31T23:59:59.000000Z', 'the last year');
is_deeply(
	[ map { $got{$_}{headers}{'ce-datacontenttype'} } @ids ],
	[ 'application/vnd.x+json;%20charset=utf-8', 'application/json', 'application/octet-stream', 'application/json' ],
	'content types');
is($got{ $ids[1] }{headers}{'ce-dataschema'}, undef, 'no dataschema');
is($got{ $ids[1] }{headers}{'ce-aggregateversion'}, undef, 'no aggregateversion');
is( $got{ $ids[3] }{headers}{'ce-time'},
	$node->safe_psql('postgres', "SELECT to_char(occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
		  . " FROM outbox.events WHERE event_id = '$ids[3]'"),
	'occurred_at is when it was enqueued');
refused(
	map { [ "SELECT outbox.enqueue('t', '1', 'E', '1', occurred_at => $_)", '22008', 'occurred_at' ] } (
		"'infinity'", "'-infinity'", "'10000-01-02'", "'0001-01-01 BC'"));

# The trace context of the session.
my $mine = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
my $trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';
@ids = enqueue(qq{
	SELECT outbox.enqueue('trace', '1', 'E', '1');
	SET outbox.traceparent = '$trace';
	SET outbox.tracestate = 'a=1,b=2';
	SELECT outbox.enqueue('trace', '2', 'E', '1');
	SELECT outbox.enqueue('trace', '3', 'E', '1', headers => '{"Traceparent": "$mine"}');
	RESET outbox.tracestate;
	SELECT unnest(outbox.enqueue_many(ARRAY['trace'], ARRAY['4'], ARRAY['E'], ARRAY['1'::jsonb], headers => ARRAY['{"a": "b"}'::jsonb]));
});
%got = arrived('trace context');
my @context = map {
	my $headers = $got{$_}{headers};
	[ @{$headers}{qw(traceparent Traceparent tracestate a)} ]
} @ids;
is_deeply(\@context,
	[ [ undef, undef, undef, undef ], [ $trace, undef, 'a=1,b=2', undef ], [ undef, $mine, undef, undef ], [ $trace, undef, undef, 'b' ] ],
	'trace context');

# ------------------------------------------------------------------- not_before

my $out = '';
my $arrivals = $nats->start_tool(\$out, 'subscribe', 'outbox.later.>', '--count', 6, '--timeout', 60_000);
@ids = enqueue(q{
	SELECT outbox.enqueue('later', 'a', 'E', '1', not_before => now() + interval '2 s');
	SELECT outbox.enqueue('later', 'a', 'E', '2');
	SELECT outbox.enqueue('later', 'b', 'E', '1', not_before => '-infinity');
	SELECT outbox.enqueue('later', 'c', 'E', '1');
	SELECT outbox.enqueue('later', 'd', 'E', '1', not_before => now() - interval '1 h');
	SELECT outbox.enqueue('later', 'e', 'E', '1', not_before => now() + interval '1 s');
});
# on another connection, so that nothing else wakes the relay in between
my ($infinite, $successor) = split(/\n/, $node->safe_psql('postgres', q{
	SELECT outbox.enqueue('later', 'f', 'E', '1', not_before => 'infinity');
	SELECT outbox.enqueue('later', 'f', 'E', '2');
}));
my %due = split(/[|\n]/, $node->safe_psql('postgres',
	"SELECT event_id, extract(epoch FROM coalesce(greatest(not_before, created_at), created_at)) FROM outbox.events WHERE aggregate_type = 'later'"));
# the clock is read after the state: the other way round, on a busy machine, the event is due meanwhile
is($node->safe_psql('postgres', "SELECT state, attempts FROM (SELECT publish_state AS state, attempts, not_before, clock_timestamp() AS seen FROM outbox.events"
		  . " WHERE event_id = '$ids[0]' OFFSET 0) e WHERE (state, attempts) IS DISTINCT FROM ('pending', 0) AND seen < not_before"),
	'', 'while not due: pending');
$arrivals->finish;
my %at = map { my @f = split(/\t/, $_); $f[2] => $f[0] / 1e6 } split(/\n/, $out);
foreach my $i (0, 2 .. 5)
{
	my $delay = ($at{ $ids[$i] } // 0) - $due{ $ids[$i] };

	# by a timer of its own
	ok($delay >= 0 && $delay < slack(2), "event $i came when it was due") or diag("delay $delay");
}
cmp_ok($at{ $ids[1] }, '>', $at{ $ids[0] }, 'the order within the aggregate holds');
%got = arrived('not_before');
is($node->safe_psql('postgres', "SELECT string_agg(publish_state || attempts, ' ' ORDER BY position), max(not_before) FROM outbox.events"
		  . " WHERE event_id IN ('$infinite', '$successor')"),
	'pending0 pending0|infinity', 'due never: pending, visible, and so is what follows');
is(own_status($node, 'postgres')->{backlog}, 2, '... and in the backlog');

# -------------------------------------------------------------------- priority

$nats->stop;
@ids = enqueue(q{
	SELECT outbox.enqueue('urgent', 'low' || i, 'E', '1', priority => -100) FROM generate_series(1, 20) i;
	SELECT outbox.enqueue('urgent', 'mid' || i, 'E', '1') FROM generate_series(1, 20) i;
	SELECT outbox.enqueue('urgent', 'high' || i, 'E', '1', priority => 100) FROM generate_series(1, 20) i;
	SELECT outbox.enqueue('urgent', 'both', 'E', '1', priority => -100);
	SELECT outbox.enqueue('urgent', 'both', 'E', '2', priority => 100);
});
$nats->restart;
%got = arrived('priority');
my %last;
foreach my $message (sort { $a->{seq} <=> $b->{seq} } grep { $_->{subject} =~ /^outbox\.urgent/ } values %got)
{
	$last{$1} = $message->{seq} if $message->{subject} =~ /urgent\.([a-z]+)/;
}
cmp_ok($last{high}, '<', $last{mid} - 19, 'high before normal');
cmp_ok($last{mid}, '<', $last{low} - 19, 'normal before low');
refused(map { [ "SELECT outbox.enqueue('t', '1', 'E', '1', priority => $_)", '22023', $_ ] } (-101, 101, 2147483647, -2147483648));

# ------------------------------------------ a resend has the same id and the same bytes

ok(wait_state($node, 'postgres', 'active'), 'connected again');
$out = '';
$arrivals = $nats->start_tool(\$out, 'subscribe', 'outbox.again.>', '--timeout', 60_000);
$nats->freeze;
@ids = enqueue(q{
	SELECT outbox.enqueue('again', 'j', 'E', '{"b":1,"a":1E2}', headers => '{"k": "v w"}');
	SELECT outbox.enqueue_text('again', 't', 'E', E' {"b":1,\n"a":1E2} ');
	SELECT outbox.enqueue_bytes('again', 'x', 'E', '\x000d0a25ff');
});
foreach my $sent (3, 0)
{
	ok(wait_for_query($node, 'postgres', 'SELECT count(*) FROM outbox.in_flight_positions()', expected => $sent),
		$sent ? 'sent to a frozen server' : 'given up for now');
}
like(own_status($node, 'postgres')->{last_error}, qr/acknowledg|does not respond/i, 'no acknowledgement: status() says so');
is($node->safe_psql('postgres', "SELECT DISTINCT attempts FROM outbox.events WHERE aggregate_type = 'again'"),
	0, 'that is not counted as an attempt');
$nats->thaw;
%got = arrived('resent');
my %copies;
$nats->wait_until(60, sub { $arrivals->pump_nb; return (() = $out =~ /\n/g) >= 4 });
$arrivals->kill_kill;
foreach my $line (split(/\n/, $out))
{
	my (undef, $subject, $msg_id, $ce_id, $sequence, $payload) = split(/\t/, $line, -1);

	push @{ $copies{$msg_id} }, join('|', $subject, $ce_id, $sequence, $payload);
}
cmp_ok(scalar(map { @$_ } values %copies), '>', 3, 'something was sent twice');
is(scalar(grep { my $c = $_; grep { $_ ne $c->[0] } @$c } values %copies), 0, 'copies are the same');
is_deeply([ sort keys %copies ], [ sort @ids ], 'under the same ids');
is_deeply([ map { $got{$_}{payload} } @ids ], [ '{"a": 100, "b": 1}', qq{ {"b":1,\n"a":1E2} }, "\x00\x0d\x0a\x25\xff" ], 'and the payloads as ever');
is_deeply([ map { $got{$_}{headers}{'ce-id'} } @ids ], \@ids, 'ce-id');

# ---------------------------------------------------------- another server encoding

$node->safe_psql('postgres', "CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
# ALTER DATABASE stores the value in the encoding of the session that issues it
$node->safe_psql('latin1', "SET client_encoding = 'UTF8'; ALTER DATABASE latin1 SET outbox.cloudevents_source = '/\xc3\xa9'; CREATE EXTENSION outbox");
@ids = split(/\n/, $node->safe_psql('latin1', qq{
	SET client_encoding = 'UTF8';
	SELECT outbox.enqueue('latin1', 'caf\xc3\xa9', '\xc3\xa4', '{"k": "\xc3\xbc"}', headers => '{"h": "\xc3\x9f"}');
	SELECT outbox.enqueue_bytes('latin1', 'b', 'E', '\\xe9');
}));
ok(wait_published($node, 'latin1', 2), 'published from a LATIN1 database');
%got = map { $_->{msg_id} => $_ } $nats->dump('OUTBOX', 'outbox.latin1.>');
is_deeply(
	[ @{ $got{ $ids[0] } }{qw(subject payload)}, @{ $got{ $ids[0] }{headers} }{qw(ce-subject h ce-source)} ],
	[ 'outbox.latin1.caf%C3%A9.%C3%A4', qq({"k": "\xc3\xbc"}), 'caf%C3%A9', "\xc3\x9f", '/%C3%A9' ],
	'UTF-8 on the wire');
is($got{ $ids[1] }{payload}, "\xe9", 'bytes stay bytes');

is_deeply([ check_order($nats, 'OUTBOX') ], [], 'in order');
check_no_crash($node);
done_testing();
