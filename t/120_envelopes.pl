# The three envelopes: CloudEvents in binary and in structured mode as the npm SDK
# decodes them, and bare messages; with everything that may be awkward in payloads
# and attributes, in batches, and after a redrive.

use strict;
use warnings;
use utf8;

use Encode qw(decode_utf8 encode_utf8);
use IPC::Run;
use JSON::PP;
use MIME::Base64 qw(decode_base64 encode_base64);
use OutboxNode;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

needs_npm();
my $decoder = npm_folder('test/cloudevents');
my $nats = OutboxNats->start(max_payload => 100_000, defined $ENV{NEWER_NATS_SERVER} ? (program => $ENV{NEWER_NATS_SERVER}) : ());
my $node = new_cluster('main', nats => $nats, initdb => [ '--encoding=UTF8', '--locale=C' ], create_extension => 0,
	extra => "log_statement = none\noutbox.retry_base_delay = 50ms\noutbox.retry_max_delay = 200ms\noutbox.workers = 1");
my @envelopes = qw(binary structured bare);
my $json = JSON::PP->new->canonical->allow_nonref->max_depth(2000);
my $trace = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

foreach my $envelope (@envelopes)
{
	$node->safe_psql('postgres', qq{CREATE DATABASE "$envelope"});
	$node->safe_psql('postgres', qq{ALTER DATABASE "$envelope" SET outbox.$_})
	  foreach "envelope = $envelope", "stream = '$envelope'", "subject_template = '$envelope.{aggregate_type}.{event_type}'",
	  "cloudevents_source = 'https://shop.example/o?a=b%20c&d'";
	$node->safe_psql($envelope, 'CREATE EXTENSION outbox');
}

# ------------------------------------------------------------------ the events

# Perl strings of characters; form: j jsonb, t text, x bytes; then what a
# structured event has: data (text of JSON as it is to stand there), string, or base64.
my $text = "Müller \"50%\" ✓ 😀 \x{2028}\\ \t\r\n \x{1}\x{7f}\x{85} %41 '";
my @payloads = (
	[ j => '{"b":1,"a":{"c":[1.10,12345678901234567890,1E2]}}', 'application/json', data => '{"a": {"c": [1.10, 12345678901234567890, 100]}, "b": 1}' ],
	[ j => 'null', 'application/json', data => 'null' ],
	[ j => '""', 'application/json', data => '""' ],
	[ j => '"é😀\u2028 \\"\\\\/\t"', 'application/json', data => '"é😀' . "\x{2028}" . ' \"\\\\/\t"' ],
	[ j => '1e400', 'application/json', data => '1' . '0' x 400 ],
	[ j => '[]', 'application/vnd.shop+json', data => '[]' ],
	[ j => '{"a": 1}', 'text/plain', string => '{"a": 1}' ],
	[ t => " {\"b\":1,\n\"a\":-0,\"b\":9007199254740993} ", undef, data => " {\"b\":1,\n\"a\":-0,\"b\":9007199254740993} " ],
	[ t => '"Müller ✓"', 'APPLICATION/JSON; charset=utf-8', data => '"Müller ✓"' ],
	[ t => '{"a":', undef, 'base64' ],
	[ t => '', undef, 'base64' ],
	[ t => "\x{feff}{}", undef, 'base64' ],
	[ t => '[' x 600 . ']' x 600, undef, 'base64' ],
	[ t => $text, 'text/plain; charset=utf-8', string => $text ],
	[ t => '', 'text/plain', string => '' ],
	[ t => '<a b="ü"/>', 'application/xml', string => '<a b="ü"/>' ],
	[ x => '', undef, 'base64' ],
	[ x => join('', map { chr } 0 .. 255), undef, 'base64' ],
	[ x => '{"n": 1}', 'application/json', data => '{"n": 1}' ],
	[ x => "\xff{}", 'application/json', 'base64' ],
	[ x => 'plain', 'text/plain', 'base64' ],
);

# The attributes that CloudEvents knows as text, each with all of it.
my $awkward = "Müller \"50%\" ✓ 😀 a%20b & = ' \\ / ~";
my @attributes = (
	{ aggregate_type => 'simple', aggregate_id => '1', event_type => 'made' },
	{ aggregate_type => $awkward, aggregate_id => $awkward, event_type => $awkward },
	{ aggregate_type => 'control', aggregate_id => "a\x{1}b\r\nc\t", event_type => 'made' },
	{ aggregate_type => 'blank', aggregate_id => ' ', event_type => ' made ' },
	{ aggregate_type => 'schema', aggregate_id => '1', event_type => 'made', dataschema => 'https://schema.example/s?x=1&y=%41#f', aggregate_version => '9223372036854775807' },
	{ aggregate_type => 'trace', aggregate_id => '1', event_type => 'made', headers => { traceparent => $trace, tracestate => 'a=1 x,b@c=2' } },
	{ aggregate_type => 'extension', aggregate_id => '1', event_type => 'made', headers => { 'ce-tenant' => $awkward, 'ce-9' => '100%', 'X-Own' => 'as "it" is 100% ✓' } },
);

sub quoted
{
	my ($value) = @_;

	return 'NULL' unless defined $value;
	return 'E\'' . ($value =~ s/([\\'])/\\$1/gr =~ s/\n/\\n/gr =~ s/\r/\\r/gr =~ s/\t/\\t/gr) . "'";
}

sub bytes_of
{
	my ($form, $payload) = @_;

	return $form eq 'x' ? $payload : encode_utf8($payload);
}

my $script = '';
foreach my $i (0 .. $#payloads)
{
	my ($form, $payload, $type) = @{ $payloads[$i] };
	my ($column, $value) = $form eq 'j' ? ('payload', quoted($payload))
	  : $form eq 't' ? ('payload_text', quoted($payload)) : ('payload_bytes', "'\\x" . unpack('H*', $payload) . "'");

	$script .= "INSERT INTO outbox.events (aggregate_type, aggregate_id, event_type, $column, content_type)"
	  . " VALUES ('payload', '$i', 'e', $value, " . quoted($type) . ");\n";
}
foreach my $event (@attributes)
{
	my %column = (%$event, occurred_at => '2024-10-27 00:30:00.1234+00', payload => '{}');
	my @names = sort keys %column;

	$column{headers} = $json->encode($column{headers}) if $column{headers};
	$script .= 'INSERT INTO outbox.events (' . join(', ', @names) . ') VALUES (' . join(', ', map { quoted($column{$_}) } @names) . ");\n";
}

# ------------------------------------------------------------------- decoding

sub decode_all
{
	my @messages = @_;
	my ($out, $err) = ('', '');
	my $in = '';

	foreach my $message (@messages)
	{
		my %headers = map { $_ => decode_utf8($message->{headers}{$_}) } keys %{ $message->{headers} };

		$in .= $json->encode({ headers => \%headers, body => encode_base64($message->{payload}, '') }) . "\n";
	}

	IPC::Run::run([ 'node', "$decoder/decode.js" ], '<', \encode_utf8($in), '>', \$out, '2>', \$err) or die "decode.js: $err";
	return map { $json->decode(decode_utf8($_)) } split(/\n/, $out);
}

sub check_attributes
{
	my ($name, $row, $decoded) = @_;
	my %expected = (
		specversion => '1.0', id => $row->{event_id}, source => 'https://shop.example/o?a=b%20c&d', type => $row->{event_type},
		subject => $row->{aggregate_id}, partitionkey => "$row->{aggregate_type}/$row->{aggregate_id}", aggregatetype => $row->{aggregate_type},
		sequence => sprintf('%019d', $row->{position}), datacontenttype => $row->{content_type} // ($row->{form} eq 'x' ? 'application/octet-stream' : 'application/json'));
	my %headers = %{ $row->{headers} // {} };

	$expected{dataschema} = $row->{dataschema} if defined $row->{dataschema};
	$expected{aggregateversion} = $row->{aggregate_version} if defined $row->{aggregate_version};
	$expected{ $_ =~ s/^ce-//r } = $headers{$_} foreach grep { /^ce-|^trace/ } keys %headers;
	my %got = %{ $decoded->{attributes} // {} };
	my $time = delete $got{time};
	like($time // '', $row->{occurred_at}, "$name: time");
	delete $got{$_} foreach grep { !/^[a-z0-9]+$/ } keys %got;    # the SDK takes all headers for attributes
	is_deeply(\%got, \%expected, "$name: attributes") or diag($json->encode($decoded));
	return;
}

# What was decoded is the payload; the SDK has parsed JSON, so that compares as JSON. Digits
# that JavaScript's numbers don't keep are compared in the body. The SDK takes empty data for
# none, and in binary mode, where it parses for HTTP, it parses plain objects only.
sub check_data
{
	my ($name, $payload, $decoded, $envelope) = @_;
	my ($form, $in, $type, $kind, $expected) = @$payload;

	if ($kind eq 'data' && $envelope eq 'structured')
	{
		is_deeply($decoded->{data} // ($expected eq 'null' ? undef : ''), $json->decode($expected), "$name: data");
	}
	elsif ($kind eq 'data' && $expected =~ /^\{/)
	{
		is_deeply($decoded->{data}, $json->decode($expected), "$name: data");
	}
	elsif ($kind eq 'string')
	{
		is($decoded->{data} // '', $expected, "$name: text");
	}
	elsif ($kind eq 'base64' && $envelope eq 'structured')
	{
		is(decode_base64($decoded->{bytes} // ''), bytes_of($form, $in), "$name: bytes");
	}
	return;
}

# ------------------------------------------------------------------ the check

my %rows;
foreach my $envelope (@envelopes)
{
	$node->safe_psql($envelope, encode_utf8("SET client_encoding = 'UTF8';\n$script"));
	ok(wait_published($node, $envelope, @payloads + @attributes), "$envelope: published");
	my @rows = map { $json->decode(decode_utf8($_)) } split(/\n/, $node->safe_psql($envelope,
		'SELECT jsonb_build_object(\'event_id\', event_id, \'position\', position) FROM outbox.events ORDER BY position'));
	my %message = map { $_->{msg_id} => $_ } $nats->dump($envelope);
	my @messages = @message{ map { $_->{event_id} } @rows };

	$rows{$envelope} = [ \@rows, \@messages ];
	is(scalar(grep { defined } @messages), @payloads + @attributes, "$envelope: each is in the stream");
}

foreach my $i (0 .. $#attributes)
{
	$rows{$_}[0][ $i + @payloads ] = { %{ $rows{$_}[0][ $i + @payloads ] }, %{ $attributes[$i] }, form => 'j', occurred_at => qr/^2024-10-27T00:30:00\.1234?\d*Z$/ } foreach @envelopes;
}
foreach my $i (0 .. $#payloads)
{
	$rows{$_}[0][$i] = { %{ $rows{$_}[0][$i] }, aggregate_type => 'payload', aggregate_id => $i, event_type => 'e', form => $payloads[$i][0],
		content_type => $payloads[$i][2], occurred_at => qr/^20\d\d-.*Z$/ } foreach @envelopes;
}

foreach my $envelope (qw(binary structured))
{
	my ($rows, $messages) = @{ $rows{$envelope} };
	my @decoded = decode_all(@$messages);
	my @infinite = grep { $_ < @payloads && $payloads[$_][1] eq '1e400' } 0 .. $#decoded;

	# for JavaScript this number is infinity, which the SDK then refuses
	like($decoded[ $infinite[0] ]{error}, qr{/data}, 'the SDK refuses infinity') if $envelope eq 'structured';
	foreach my $i (grep { $_ != $infinite[0] } 0 .. $#$rows)
	{
		is($decoded[$i]{error}, undef, "$envelope $i: the SDK takes it") or diag($json->encode($decoded[$i]));
		check_attributes("$envelope $i", $rows->[$i], $decoded[$i]);
		check_data("$envelope $i", $payloads[$i], $decoded[$i], $envelope) if $i < @payloads && $payloads[$i][1] !~ /\d{16}/;
	}
}

# Binary and bare: the body is the payload, byte for byte.
foreach my $i (0 .. $#payloads)
{
	my ($form, $payload, undef, $kind, $expected) = @{ $payloads[$i] };
	my $bytes = $form eq 'j' ? encode_utf8($expected) : bytes_of($form, $payload);
	my $body = $rows{structured}[1][$i]{payload};

	is($rows{$_}[1][$i]{payload}, $bytes, "$_ $i: the body is the payload") foreach qw(binary bare);
	# Structured: byte for byte as data, or recovered from base64 or the string.
	if ($kind eq 'data')
	{
		is(substr($body, -length($bytes) - 9), ",\"data\":$bytes}", "structured $i: data as it was");
	}
	elsif ($kind eq 'string')
	{
		is($json->decode(decode_utf8($body))->{data}, $expected, "structured $i: a string");
	}
	else
	{
		is(decode_base64($json->decode(decode_utf8($body))->{data_base64}), $bytes, "structured $i: in base64");
	}
}

# ----------------------------------------------------------------- the headers

sub header_keys { return [ grep { !/^Nats-Batch/ } sort keys %{ $_[0]{headers} } ] }

is_deeply(header_keys($rows{bare}[1][0]), [qw(Nats-Expected-Stream Nats-Msg-Id)], 'bare: no headers of ours');
is_deeply(header_keys($rows{structured}[1][0]), [qw(Content-Type Nats-Expected-Stream Nats-Msg-Id)], 'structured: the attributes are in the body');
is($rows{structured}[1][0]{headers}{'Content-Type'}, 'application/cloudevents+json', '... as the content type says');
my ($traced, $extended) = map { my $n = @payloads + $_; +{ map { $_ => $rows{$_}[1][$n]{headers} } @envelopes } } 5, 6;
foreach my $envelope (@envelopes)
{
	is_deeply([ @{ $traced->{$envelope} }{qw(traceparent tracestate)} ], [ $trace, 'a=1 x,b@c=2' ], "$envelope: the trace context is a header");
	is($extended->{$envelope}{'X-Own'}, encode_utf8('as "it" is 100% ✓'), "$envelope: a header as it is");
	is($rows{$envelope}[1][0]{headers}{'Nats-Msg-Id'}, $rows{$envelope}[0][0]{event_id}, "$envelope: Nats-Msg-Id");
}
is_deeply([ @{ $traced->{binary} }{qw(ce-traceparent ce-tracestate)} ], [ $trace, 'a=1%20x,b@c=2' ], 'binary: and an attribute');
is_deeply([ @{ $extended->{$_} }{qw(ce-9 ce-tenant)} ],
	[ '100%25', 'M%C3%BCller%20%2250%25%22%20%E2%9C%93%20%F0%9F%98%80%20a%2520b%20&%20=%20\'%20\\%20/%20~' ], "$_: an extension attribute is encoded once")
  foreach qw(binary bare);

# --------------------------------------------------- batches, dead letters, redrive

foreach my $envelope (@envelopes)
{
	$node->safe_psql($envelope, q{SELECT count(outbox.enqueue('batch', 'hot', 'e', to_jsonb(i), headers => '{"ce-tenant": "a b"}')) FROM generate_series(1, 300) i});
	ok(wait_drained($node, $envelope), "$envelope: a hot aggregate is drained");
	my @messages = sort { $a->{seq} <=> $b->{seq} } $nats->dump($envelope, "$envelope.batch.>");
	my @bodies = map { $envelope eq 'structured' ? $json->decode($_->{payload})->{data} : $_->{payload} } @messages;

	is_deeply(\@bodies, [ 1 .. 300 ], '... once and in order');
	cmp_ok(scalar(grep { defined $_->{headers}{'Nats-Batch-Id'} } @messages), '>', 200, '... in batches') if defined $ENV{NEWER_NATS_SERVER};
	is_deeply($_, header_keys($messages[0]), '... with the same headers') foreach map { header_keys($_) } $messages[150], $messages[-1];
	if ($envelope ne 'bare')
	{
		my @decoded = decode_all(@messages[ 0, 150, 299 ]);

		is_deeply([ map { $_->{attributes}{tenant} } @decoded ], [ ('a b') x 3 ], '... which the SDK decodes');
	}
}

# Base64 takes a third more: what just fits in binary mode is too large in structured mode, and goes once the server takes it.
my $big = q{SELECT outbox.enqueue_bytes('big', '1', 'e', decode(repeat('ff', 80000), 'hex'))};
my %big = map { $_ => $node->safe_psql($_, $big) } @envelopes;
ok(wait_for_query($node, 'structured', 'SELECT count(*) FROM outbox.dead_letters', expected => 1), 'structured: too large in base64');
ok(wait_published($node, $_, undef), "$_: not too large") foreach qw(binary bare);
$nats->write_config(max_payload => 1_000_000);
$nats->restart;
ok(wait_state($node, 'structured', 'active', timeout => 60), 'a server that takes more');
is($node->safe_psql('structured', 'SELECT outbox.redrive()'), 1, 'redriven');
ok(wait_for_query($node, 'structured', "SELECT publish_state FROM outbox.events WHERE event_id = '$big{structured}'", expected => 'published'), '... and published');
my ($redriven) = grep { $_->{msg_id} eq $big{structured} } $nats->dump('structured', 'structured.big.>');
my ($decoded) = decode_all($redriven);
is(decode_base64($decoded->{bytes}), "\xff" x 80_000, '... as it was');
is($decoded->{attributes}{id}, $big{structured}, '... under its id');

# A change of the setting counts from the next event on.
$node->safe_psql('postgres', 'ALTER DATABASE bare SET outbox.envelope = binary');
ok(wait_until(60, sub {
	$node->safe_psql('bare', q{SELECT outbox.enqueue('change', '1', 'e', '1')});
	wait_published($node, 'bare', undef);
	return grep { defined $_->{headers}{'ce-id'} } $nats->dump('bare', 'bare.change.>');
}), 'ALTER DATABASE takes effect');

# JSON is UTF-8 whatever the database's encoding.
$node->safe_psql('postgres', "CREATE DATABASE latin1 ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
$node->safe_psql('latin1', encode_utf8(q{
	SET client_encoding = 'UTF8';
	ALTER DATABASE latin1 SET outbox.envelope = 'structured';
	ALTER DATABASE latin1 SET outbox.subject_template = 'structured.latin1.{aggregate_type}';
	ALTER DATABASE latin1 SET outbox.stream = 'structured';
	CREATE EXTENSION outbox;
	SELECT outbox.enqueue_text('ü', 'é', 'ä', '{"ö": "ß"}', headers => '{"ce-tenant": "ÿ"}');
	SELECT outbox.enqueue_text('ü', 'é', 'ä', 'ø', content_type => 'text/plain');
	SELECT outbox.enqueue('ü', 'é', 'ä', '{"ö": "ß"}');
}));
ok(wait_published($node, 'latin1', 3), 'published from a LATIN1 database');
my @latin1 = map { $json->decode(decode_utf8($_->{payload})) } $nats->dump('structured', 'structured.latin1.>');
is_deeply([ map { $_->{data} } @latin1 ], [ { 'ö' => 'ß' }, 'ø', { 'ö' => 'ß' } ], '... its data');
is_deeply([ @{ $latin1[0] }{qw(type subject aggregatetype partitionkey tenant)} ], [ 'ä', 'é', 'ü', 'ü/é', 'ÿ' ], '... and attributes');

check_no_crash($node);
done_testing();
