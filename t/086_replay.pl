# Replay from the log: what is sent again, how it is marked, in which order; dry
# runs tell the truth; what makes no sense is refused; live traffic isn't touched.

use strict;
use warnings;

use OutboxLife;
use OutboxReplay;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "log_statement = none\noutbox.retention = -1");
my $db = 'postgres';
ok(wait_relay($node, $db), 'a relay');

# ---------------------------------------------------------------- events

# 20 aggregates, and the payloads of which a byte might get lost.
$node->safe_psql($db, q{
	SELECT outbox.enqueue('order', (i % 20)::text, CASE WHEN i % 3 = 0 THEN 'order.paid' ELSE 'order.placed' END,
		jsonb_build_object('i', i), headers => jsonb_build_object('tenant', 'é "' || i), occurred_at => '2020-01-01 00:00:00+00'::timestamptz + i * interval '1 s')
	FROM generate_series(1, 400) i});
$node->safe_psql($db, q{
	SELECT outbox.enqueue('doc', 'j', 'x', '{"b": 1e400, "a": [12345678901234567890, 1.10, null, "é\u2028"]}');
	SELECT outbox.enqueue_text('doc', 't', 'x', E'  {"$type":"x",\n"a":1.10} é ');
	SELECT outbox.enqueue_text('doc', 't', 'x', '');
	SELECT outbox.enqueue_bytes('doc', 'b', 'x', '\x00ff0a0d22');
	SELECT outbox.enqueue_bytes('doc', 'b', 'x', '', subject => 'outbox.special.b');
	SELECT outbox.enqueue_text('doc', 'long', 'x', repeat('ü', 200000), content_type => 'text/plain', dataschema => 'urn:x', aggregate_version => 7);
});
ok(wait_published($node, $db), 'all is published');
my @original = $nats->dump('OUTBOX');
is(scalar @original, 406, 'and stored once');

# ---------------------------------------------------------------- dry runs

sub dry
{
	my ($arguments) = @_;

	return $node->safe_psql($db, "SELECT coalesce(of_type, '*'), events FROM outbox.replay($arguments)");
}
is(dry(''), "*|406\norder.paid|133\norder.placed|267\nx|6", 'a dry run of all, with types');
is(dry("event_type => 'order.paid'"), "*|133\norder.paid|133", 'of a type');
is(dry("aggregate_type => 'order', aggregate_id => '7'") =~ s/\n.*//sr, '*|20', 'of an aggregate');
is(dry("subject => 'outbox.order.*.order%2Epaid'") =~ s/\n.*//sr, '*|133', 'of a subject of the template');
is(dry("subject => 'outbox.special.>'"), "*|1\nx|1", 'of a subject of its own');
is(dry("subject => 'nothing.>'"), '*|0', 'of nothing');
is($node->safe_psql($db, q{
	SELECT r.events FROM (SELECT min(created_at) AS lo, max(created_at) AS hi FROM outbox.events) t,
		LATERAL outbox.replay(from_time => t.lo, to_time => t.hi) r WHERE of_type IS NULL}), 406, 'a time range includes both ends');
is($node->safe_psql($db, q{
	SELECT r.events = 11 AND r.first_position = p.position + 5 AND r.last_position = p.position + 15
	FROM (SELECT min(position) AS position FROM outbox.events) p,
		LATERAL outbox.replay(from_position => p.position + 5, to_position => p.position + 15) r WHERE of_type IS NULL}), 't', 'so does a position range');
is($node->safe_psql($db, q{
	SELECT r.bytes = (SELECT sum(octet_length(payload)) FROM outbox.log) FROM outbox.replay() r WHERE of_type IS NULL}), 't', 'the size is that of the payloads');
is($node->safe_psql($db, 'SELECT count(*) FROM outbox.replays'), 0, 'dry runs leave nothing behind');

my @refused = (
	[ "from_time => '2030-01-01', to_time => '2020-01-01'", '22023', qr/ends before it begins/ ],
	[ 'from_position => 5, to_position => 4', '22023', qr/ends before it begins/ ],
	[ "aggregate_id => '7'", '22023', qr/aggregate_id needs aggregate_type/ ],
	[ "subject => 'a..b'", '22023', qr/not a valid pattern/ ],
	[ "subject => 'a.>.b'", '22023', qr/not a valid pattern/ ],
	[ "subject => ''", '22023', qr/must not be empty/ ],
	[ "target_stream => 'A.B'", '22023', qr/not the name of a stream/ ],
	[ "target_prefix => 'a.*'", '22023', qr/not the beginning of a subject/ ],
	[ "target_url => 'http://x'", '22023', qr/not a list of NATS URLs/ ],
	[ "target_stream => 'OUTBOX', rate => 0", '22023', qr/rate must be at least 1/ ],
	[ 'dry_run => false', '22023', qr/needs a target.*OUTBOX/s ],
	[ "query => 'SELECT 1', archive => 'x'", '22023', qr/exclude each other/ ],
	[ "query => 'SELECT 1 AS position'", '42703', qr/no column "event_id"/ ],
);
my @got = sqlstates($node, $db, map { "SELECT * FROM outbox.replay($_->[0])" } @refused);
foreach my $i (0 .. $#refused)
{
	is($got[$i][0], $refused[$i][1], "$refused[$i][0] is refused");
	like($got[$i][1], $refused[$i][2], 'with the reason');
}
@got = sqlstates($node, $db, q{SELECT outbox.replay_cancel('00000000-0000-0000-0000-000000000000')}, q{SELECT outbox.replay_resume('00000000-0000-0000-0000-000000000000')});
is($_->[0], '42704', 'a replay that there isn\'t') foreach @got;
$node->safe_psql($db, 'CREATE ROLE operator LOGIN; GRANT USAGE ON SCHEMA outbox TO operator; GRANT EXECUTE ON FUNCTION outbox.replay TO operator');
my ($code, $out, $err) = $node->psql($db, q{SELECT outbox.replay(query => 'SELECT 1')}, extra_params => [ '-U', 'operator' ]);
like($err, qr/only a superuser may/, 'a query runs with the server\'s rights, so not for everybody');
is($node->safe_psql($db, 'SELECT events FROM outbox.replay() WHERE of_type IS NULL', extra_params => [ '-U', 'operator' ]), 406, 'the log does not');

# ---------------------------------------------------------------- to the stream itself

my $id = start_replay($node, $db, "target_stream => 'OUTBOX'");
ok(wait_replay($node, $db, $id, 'done'), 'everything is sent again');
is_deeply([ replay_problems($nats, 'OUTBOX', $id, \@original) ], [], 'as it was, marked, in order');
is($node->safe_psql($db, "SELECT done, total, repeated, runs, last_error IS NULL, position_reached = (SELECT max(position) FROM outbox.events) FROM outbox.replays WHERE batch_id = '$id'"),
	'406|406|0|1|t|t', 'and the job says so');

my $second = start_replay($node, $db, "target_stream => 'OUTBOX', aggregate_type => 'order', aggregate_id => '7'");
ok(wait_replay($node, $db, $second, 'done'), 'an aggregate is sent a third time');
is_deeply([ replay_problems($nats, 'OUTBOX', $second, [ grep { $_->{headers}{'ce-partitionkey'} eq 'order/7' } @original ]) ], [], 'that is all');
is($nats->info('OUTBOX')->{messages}, 406 + 406 + 20, 'nothing else got into the stream');

# ---------------------------------------------------------------- elsewhere, two at once, beside live traffic

my $nats2 = OutboxNats->start;
my $url2 = $nats2->url;
my $prefixed = start_replay($node, $db, "target_prefix => 'again', target_stream => 'AGAIN', rate => 400");
my $other = start_replay($node, $db, "target_url => '$url2', target_stream => 'COPY', event_type => 'order.placed', rate => 300");
my $begun = time();
my $n = 0;
do
{
	$node->safe_psql($db, "SELECT outbox.enqueue('order', (i % 20)::text, 'live', jsonb_build_object('n', $n)) FROM generate_series(1, 20) i");
	$n += 20;
} until $node->safe_psql($db, q{SELECT count(*) FROM outbox.replays WHERE state IN ('queued', 'running')}) eq '0' || $n > 10000;
cmp_ok(time() - $begun, '>=', 0.9, 'the rate is kept: not below a second');
cmp_ok($n, '<=', 10000, 'live traffic, which began after it, lets a replay go on');
ok(wait_replay($node, $db, $_, 'done'), 'done beside live traffic') foreach $prefixed, $other;
is_deeply([ replay_problems($nats, 'AGAIN', $prefixed, \@original, prefix => 'again.') ], [], 'with a subject prefix, in a stream of its own');
is_deeply([ replay_problems($nats2, 'COPY', $other, [ grep { $_->{headers}{'ce-type'} eq 'order.placed' } @original ]) ], [], 'at another server');
ok(wait_published($node, $db), 'live traffic went on');
my @live = grep { !$_->{headers}{'x-replay'} } $nats->dump('OUTBOX');
is(scalar @live, 406 + $n, 'and is complete');
is_deeply([ check_order($nats, 'OUTBOX', \@live) ], [], 'and in order');

# ---------------------------------------------------------------- few among many; what isn't published

# More rows than a transaction of the reader looks at, and than are counted before the first is sent.
$node->safe_psql($db, q{SELECT outbox.pause('sparse'); SELECT outbox.pause('kept')});
$node->safe_psql($db, q{SELECT outbox.enqueue('sparse', 's', 'first', '1'); SELECT outbox.enqueue('sparse', 's', 'given up', '1', event_id => md5('given up')::uuid)});
$node->safe_psql($db, q{SELECT count(outbox.enqueue_text('crowd', (i % 500)::text, 'among many', 'x')) FROM generate_series(1, 21000) i});
$node->safe_psql($db, q{SELECT outbox.enqueue('sparse', 's', 'last', '1'); SELECT outbox.enqueue('kept', 'k', 'pending', '1')});
is($node->safe_psql($db, q{SELECT outbox.discard('by hand', event_id => md5('given up')::uuid)}), 1, 'an event is given up');
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE event_type = 'given up' AND publish_state = 'failed'}, expected => 1), 'for good');
$node->safe_psql($db, q{SELECT outbox.resume('sparse')});
ok(wait_for_query($node, $db, q{SELECT count(*) FROM outbox.events WHERE publish_state <> 'published' AND aggregate_type <> 'kept' AND event_type <> 'given up'}, expected => 0),
	'many events are published');
is(dry("aggregate_type => 'sparse'"), "*|2\nfirst|1\nlast|1", 'what was given up is no part of a replay');
$nats->tool('create', 'FEW', 'few.>');
foreach my $case ([ "aggregate_type => 'sparse'", 2 ], [ "aggregate_type => 'sparse', aggregate_id => 's'", 2 ], [ "event_type => 'pending'", 0 ])
{
	my ($filter, $events) = @$case;
	my $few = start_replay($node, $db, "$filter, target_prefix => 'few', target_stream => 'FEW'");

	ok(wait_replay($node, $db, $few, 'done'), "$filter: done");
	is($node->safe_psql($db, "SELECT done, total FROM outbox.replays WHERE batch_id = '$few'"), "$events|$events", 'with that many');
	is(scalar(grep { ($_->{headers}{'x-replay-batch-id'} // '') eq $few } $nats->dump('FEW')), $events, 'which is what is sent');
}
my $crowd = start_replay($node, $db, "from_position => 1, target_prefix => 'few', target_stream => 'FEW'");
ok(wait_replay($node, $db, $crowd, 'done'), 'all of them');
is($node->safe_psql($db, "SELECT done = total, total = (SELECT count(*) FROM outbox.events WHERE publish_state = 'published') FROM outbox.replays WHERE batch_id = '$crowd'"),
	't|t', 'are counted beside the sending');
$node->safe_psql($db, q{SELECT outbox.discard('by hand', event_id => event_id) FROM outbox.events WHERE event_type = 'pending'});
$node->safe_psql($db, q{SELECT outbox.resume('kept')});

# ---------------------------------------------------------------- a query

$node->safe_psql($db, 'CREATE TABLE copy AS SELECT position, event_id::text, aggregate_type::varchar, aggregate_id, event_type, subject, payload, payload_text, payload_bytes, headers, occurred_at, created_at, content_type, dataschema, aggregate_version FROM outbox.events WHERE event_type NOT IN (\'live\', \'among many\') AND aggregate_type NOT IN (\'sparse\', \'kept\')');
my $from_query = start_replay($node, $db, "query => 'SELECT * FROM public.copy', target_prefix => 'query', target_stream => 'QUERY'");
ok(wait_replay($node, $db, $from_query, 'done'), 'from a query');
is_deeply([ replay_problems($nats, 'QUERY', $from_query, \@original, prefix => 'query.') ], [], 'all of it');
is(dry("query => 'SELECT * FROM public.copy', event_type => 'order.paid'"), "*|133\norder.paid|133", 'filters hold for it, too');

my $twice = start_replay($node, $db, "query => 'SELECT * FROM public.copy UNION ALL SELECT * FROM public.copy', target_prefix => 'query', target_stream => 'QUERY'");
ok(wait_replay($node, $db, $twice, 'stopped'), 'a query with the same position twice');
like($node->safe_psql($db, "SELECT last_error FROM outbox.replay_progress WHERE batch_id = '$twice'"), qr/occurs twice/, 'says so');

# Pending events that wait for their time are no live traffic.
$node->safe_psql($db, q{SELECT count(outbox.enqueue_text('later', i::text, 'e', '', not_before => now() + interval '1 day')) FROM generate_series(1, 1000) i});
ok(wait_for_query($node, $db, q{SELECT sum(backlog) FROM outbox.status()}, expected => 1000), 'a thousand events that wait');
alter_system($node, 'log_min_messages = debug1');
my $mark = log_mark($node);
my $calm = start_replay($node, $db, "event_type => 'order.paid', target_prefix => 'calm', target_stream => 'CALM'");
ok(wait_replay($node, $db, $calm, 'done'), 'a replay');
alter_system($node, 'log_min_messages = warning');
is_deeply([ log_lines($node, $mark, qr/live traffic is busy/) ], [], '... has nobody to give way to');

check_no_crash($node);
done_testing();
