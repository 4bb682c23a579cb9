# Relays outside the server: outbox.claim() and its kin, on the same slots and
# leases as relay processes.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "outbox.workers = 0\noutbox.lease_ttl = 2s\noutbox.retry_base_delay = 20ms\n");
my $db = 'postgres';

sub connect_session { my $session = $node->background_psql($db, on_error_stop => 0); $session->query_safe(q{SET client_min_messages = error}); return $session }

# What a claim gives, as "aggregate:type" in the order given.
sub claim
{
	my ($session, $max, $wait) = @_;
	$max //= 100;
	$wait //= '0';
	return $session->query_safe("SELECT coalesce(string_agg(aggregate_id || ':' || event_type, ' ' ORDER BY position), '') FROM outbox.claim($max, '$wait')");
}

# Claims and settles until nothing is left; what was given, in order.
sub drain
{
	my ($session) = @_;
	my @got;

	for (1 .. 1000)
	{
		my $got = $session->query_safe(q{
			WITH c AS MATERIALIZED (SELECT * FROM outbox.claim(100)),
				 s AS (SELECT outbox.settle(array_agg(position)) FROM c)
			SELECT string_agg(aggregate_id || ':' || event_type, ' ' ORDER BY position), (SELECT s.settle FROM s) FROM c HAVING count(*) > 0});
		last if $got eq '';
		push @got, split(/ /, (split(/\|/, $got))[0]);
	}
	return @got;
}

# ---- one session

my $one = connect_session();
is(claim($one), '', 'nothing to claim');
is($node->safe_psql($db, 'SELECT relay >= 8, slots, state FROM outbox.status()'), 't|64|active', 'a member with all slots');
$node->safe_psql($db, q{SELECT outbox.enqueue('a', (i % 3)::text, 'e' || i, jsonb_build_object('i', i)) FROM generate_series(1, 9) i});
is(claim($one), '1:e1 2:e2 0:e3', 'the heads of the aggregates');
is($node->safe_psql($db, q{SELECT string_agg(publish_state, ' ' ORDER BY position) FROM outbox.events}),
	'processing processing processing pending pending pending pending pending pending', 'they are in processing');
is(claim($one), '', 'no more before they are settled');
is($one->query_safe(q{SELECT outbox.settle(ARRAY(SELECT position FROM outbox.events WHERE event_type IN ('e1', 'e2', 'e9')))}), '2', 'settle counts those that were claimed');
is($node->safe_psql($db, q{SELECT event_type, publish_state, attempts FROM outbox.events WHERE event_type IN ('e1', 'e3') ORDER BY position}), "e1|published|1\ne3|processing|0", 'published once the transaction has committed');
is(claim($one), '1:e4 2:e5', 'their successors are next');
is($one->query_safe(q{SELECT outbox.fail(position, 'smtp says no', 550) FROM outbox.events WHERE event_type = 'e4'}), 't', 'one fails');
like($node->safe_psql($db, q{SELECT publish_state, attempts, next_attempt_at > now() - interval '1 min', last_error FROM outbox.events WHERE event_type = 'e4'}),
	qr/^pending\|1\|t\|outside relay: smtp says no$/, 'the failure is recorded');
is(claim($one, 1, '5 s'), '1:e4', 'and it comes again after its back-off');
is($one->query_safe(q{SELECT outbox.fail(position, 'never', 550, permanent => true) FROM outbox.events WHERE event_type = 'e4'}), 't', 'it fails for good');
is($node->safe_psql($db, q{SELECT event_type, error_code, attempts FROM outbox.dead_letters}), 'e4|550|2', 'a dead letter');
is(claim($one), '1:e7', 'its successor goes on');
is($one->query_safe(q{SELECT outbox.fail(1000000, 'x')}), 'f', 'what is not claimed can not fail');
like($one->query_safe(q{SELECT outbox.renew() > now()}), qr/t/, 'the lease can be renewed');

# ---- rollback

$one->query_safe('BEGIN');
is($one->query_safe(q{SELECT outbox.settle(ARRAY(SELECT position FROM outbox.events WHERE event_type = 'e3'))}), '1', 'settled in a transaction');
$one->query_safe('ROLLBACK');
my $again = claim($one);
like($again, qr/0:e3/, 'that rolled back: it is given out again');
$one->query_safe('BEGIN; SAVEPOINT s');
$one->query_safe(q{SELECT outbox.settle(ARRAY(SELECT position FROM outbox.events WHERE event_type = 'e3'))});
$one->query_safe('ROLLBACK TO s; COMMIT');
like(claim($one), qr/0:e3/, 'a rolled back savepoint, too');
$one->query_safe(q{SELECT outbox.settle(ARRAY(SELECT position FROM outbox.events))});
my @rest = drain($one);
is(join(' ', @rest), '0:e6 2:e8 0:e9', 'the rest in order');
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state <> 'published'}), 1, 'only the dead letter is left');
is($node->safe_psql($db, q{SELECT outbox.redrive()}), 1, 'redriven');
is(claim($one, 10, '5 s'), '1:e4', 'it is claimed again');
is($one->query_safe(q{SELECT outbox.settle(ARRAY(SELECT position FROM outbox.events WHERE event_type = 'e4'))}), '1', 'and settled');

# ---- what is refused

foreach my $case (
	[ q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT * FROM outbox.claim()}, '0A000' ],
	[ q{BEGIN READ ONLY; SELECT * FROM outbox.claim()}, '25006' ],
	[ q{BEGIN; SELECT outbox.enqueue('a', '1', 'x', '{}'); SELECT * FROM outbox.claim()}, '55000' ],
	[ q{SELECT * FROM outbox.claim(0)}, '22023' ],
	[ q{SELECT * FROM outbox.claim(100000)}, '22023' ],
	[ q{SELECT * FROM outbox.claim(1, '-1 s')}, '22023' ],
	[ q{SELECT outbox.settle('{1}')}, '55000' ],
	[ q{SELECT outbox.renew()}, '55000' ])
{
	my ($status, $out, $err) = $node->psql($db, "\\set VERBOSITY verbose\n$case->[0]");
	like($err, qr/ERROR:  $case->[1]/, $case->[0]);
}

# ---- two sessions share the aggregates

my $two = connect_session();
claim($two);
ok(wait_until(10, sub { claim($one); claim($two); $node->safe_psql($db, 'SELECT string_agg(slots::text, \' \') FROM outbox.status()') eq '32 32' }), 'half of the slots each');
$node->safe_psql($db, q{SELECT outbox.enqueue('b', (i % 40)::text, i::text, '{}') FROM generate_series(1, 400) i});
my %owner;
my $split = 0;
my %seen;
my $done = 0;
for (1 .. 200)
{
	foreach my $session ([ 1, $one ], [ 2, $two ])
	{
		foreach my $event (drain($session->[1]))
		{
			my ($aggregate, $type) = split(/:/, $event);
			$split++ if ($owner{$aggregate} //= $session->[0]) != $session->[0];
			$split++ if ($seen{$aggregate} // 0) >= $type;
			$seen{$aggregate} = $type;
			$done++;
		}
	}
	last if $done == 400;
}
is($done, 400, 'both get everything');
is($split, 0, 'no aggregate is split, none out of order');
is(scalar(grep { $_ == 1 } values %owner) > 5 && scalar(grep { $_ == 2 } values %owner) > 5 ? 1 : 0, 1, 'each has its share');

# ---- a session ends: the other one has everything at once

$node->safe_psql($db, q{SELECT outbox.enqueue('c', i::text, 'e', '{}') FROM generate_series(1, 40) i});
my $held = claim($two);
isnt($held, '', 'the second holds some');
$two->quit;
my @all;
ok(wait_until(5, sub { push @all, drain($one); @all == 40 }), 'the first gets all when it ends') or diag(scalar(@all));

# ---- a session stands still: its lease runs out

my $three = connect_session();
claim($three);
ok(wait_until(10, sub { claim($one); claim($three); $node->safe_psql($db, 'SELECT string_agg(slots::text, \' \') FROM outbox.status()') eq '32 32' }), 'shared again');
$node->safe_psql($db, q{SELECT outbox.enqueue('d', i::text, 'e', '{}') FROM generate_series(1, 40) i});
isnt(claim($three), '', 'the third holds some');
@all = ();
ok(wait_until(15, sub { push @all, drain($one); @all == 40 }), 'its aggregates come to the first within the lease') or diag(scalar(@all));
my $lost = $three->query(q{SELECT outbox.settle(ARRAY(SELECT position FROM outbox.events WHERE aggregate_type = 'd'))});
like($three->{stderr}, qr/lease of this session's aggregates is lost/, 'what it settles too late is refused');
$three->{stderr} = '';
is($node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state <> 'published'}), 0, 'everything is published');
$three->query_safe('SELECT count(*) FROM outbox.claim()');
$node->safe_psql($db, q{SELECT outbox.enqueue('ttl', i::text, 'e', '{}', headers => '{"Nats-TTL": "1h"}') FROM generate_series(1, 100) i});
my $ttl;
ok(wait_until(
		20,
		sub {
			($ttl) = grep { $_ ne '' } map { $_->query_safe(q{WITH c AS MATERIALIZED (SELECT * FROM outbox.claim(100))
				SELECT DISTINCT headers ->> 'Nats-TTL' FROM c, outbox.settle(ARRAY(SELECT position FROM c))}) } $one, $three;
			return defined $ttl;
		}),
	'sessions claim what has a time to live');
is($ttl, '1h', '... which is among the headers');
ok(wait_until(20, sub { drain($_) foreach $one, $three; $node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state <> 'published'}) == 0 }), 'those of the other session, too');

# ---- beside a relay process

$node->safe_psql($db, 'ALTER SYSTEM SET outbox.workers = 1');
$node->reload;
$three->query_safe('SELECT outbox.release()');
ok(wait_until(20, sub { claim($one); $node->safe_psql($db, q{SELECT string_agg(slots::text, ' ' ORDER BY relay) FROM outbox.status()}) eq '32 32' }), 'a relay process has its share');
$node->safe_psql($db, q{SELECT outbox.enqueue('e', (i % 20)::text, i::text, '{}') FROM generate_series(1, 200) i});
ok(wait_until(20, sub { drain($one); $node->safe_psql($db, q{SELECT count(*) FROM outbox.events WHERE publish_state <> 'published'}) == 0 }), 'together they publish everything');
cmp_ok(scalar($nats->dump('OUTBOX')), '>', 10, 'some by the relay process');
cmp_ok(scalar($nats->dump('OUTBOX')), '<', 190, 'some by the session');
$one->quit;
$node->safe_psql($db, q{SELECT outbox.enqueue('f', i::text, 'e', '{}') FROM generate_series(1, 30) i});
is($node->safe_psql($db, q{SELECT outbox.flush('20 s')}), 't', 'the relay process goes on alone');

# ---- privileges

$node->safe_psql($db, 'CREATE ROLE worker LOGIN; GRANT USAGE ON SCHEMA outbox TO worker');
my ($status, $out, $err) = $node->psql($db, 'SELECT * FROM outbox.claim()', extra_params => [ '-U', 'worker' ]);
like($err, qr/permission denied for function claim/, 'nobody may by default');
$node->safe_psql($db, 'GRANT EXECUTE ON FUNCTION outbox.claim, outbox.settle, outbox.fail, outbox.renew, outbox.release TO worker');
($status, $out, $err) = $node->psql($db, q{SELECT count(*) FROM outbox.claim(); SELECT outbox.settle('{1}'); SELECT outbox.renew() > now(); SELECT outbox.release()}, extra_params => [ '-U', 'worker' ]);
is($err, '', 'EXECUTE is the privilege');

$three->quit;
check_no_crash($node);
done_testing();
