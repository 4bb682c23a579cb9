# A failover: the primary is killed while writers write, the standby is promoted,
# the writers find it. With a synchronous standby nothing that was committed is
# lost and nothing is in the stream that the new primary doesn't know; with an
# asynchronous one this holds for what was replicated. Order stays, copies are the
# same, consumers inside the database and replays go on. scripts/ha runs more of
# it; docs/ha.md says what it means.

use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxHa;
use OutboxTest;
use Test::More;

# HA_REPEAT, HA_SECONDS, HA_WRITERS, HA_PAUSE: so many times, more modes, and a table in the end.
my $long = defined $ENV{HA_REPEAT};
my @rounds = (
	{ mode => 'remote_apply', name => 'remote_apply', before => \&subscribe_and_replay },
	{ mode => 'asynchronous', name => 'asynchronous, cut off', lag => 0.3 });
my @results;

@rounds = map { my $round = $_; map { { %$round, conf => 'fsync = on' } } 1 .. $ENV{HA_REPEAT} } (
	{ mode => 'asynchronous', name => 'asynchronous' },
	{ mode => 'asynchronous', name => 'asynchronous, cut off', lag => 1 },
	map { { mode => $_, name => $_ } } qw(remote_write on remote_apply))
  if $long;

my @nats = OutboxNats->start_cluster(3);

# A consumer of all events, and a replay that takes its time.
sub subscribe_and_replay
{
	my ($primary) = @_;

	$primary->safe_psql('postgres', q{
		CREATE TABLE effects (event_id uuid);
		CREATE FUNCTION handle(m outbox.message) RETURNS void LANGUAGE sql AS $$ INSERT INTO public.effects VALUES (m.event_id) $$;
		SELECT outbox.subscribe('OUTBOX', 'ha', 'public.handle', subject => 'outbox.ha.>');
		SELECT count(outbox.enqueue('replayed', i::text, 'e', '{}')) FROM generate_series(1, 300) i});
	wait_published($primary, 'postgres', 300);
	$primary->safe_psql('postgres', q{SELECT FROM outbox.replay(aggregate_type => 'replayed', target_stream => 'OUTBOX', rate => 5)});
	ok(wait_for_query($primary, 'postgres', q{SELECT done > 0 FROM outbox.replays}), 'a replay is on its way');
	return;
}

foreach my $round (@rounds)
{
	my $result = failover(
		%$round,
		nats => \@nats,
		seconds => $ENV{HA_SECONDS} // 1,
		writers => $ENV{HA_WRITERS} // 3,
		pause => $ENV{HA_PAUSE} // 0.01);
	my $figures = $result->{figures};
	my @contradictions = contradictions($result);

	note(join(', ', map { sprintf('%s %.1f', $_, $figures->{$_}) } sort keys %$figures));
	is_deeply([ splice(@contradictions, 0, 10) ], [], "$round->{name}: what was committed and replicated is there, published, in order");
	cmp_ok($figures->{events}, '>', 50, "$round->{name}: events");
	cmp_ok($figures->{promote_to_publish}, '<', slack(5000), "$round->{name}: publishing goes on within 5 s of the promotion");
	if ($round->{lag})
	{
		cmp_ok($figures->{lost}, '>', 0, "$round->{name}: what the standby hadn't received is lost");
		cmp_ok($figures->{phantoms}, '>', 0, "$round->{name}: ... and was published");
	}
	# without one that is synchronous, and near, some may be lost or not
	if ($round->{mode} ne 'asynchronous')
	{
		is($figures->{lost} + $figures->{phantoms}, 0, "$round->{name}: nothing is lost, nothing is known to the stream alone");
	}
	if ($round->{before})
	{
		ok(wait_for_query($result->{standby}, 'postgres', q{
				SELECT count(*) = count(DISTINCT event_id) AND count(*) = (SELECT count(*) FROM outbox.events WHERE aggregate_type = 'ha') FROM effects}),
			"$round->{name}: a consumer in the database goes on, each event has one effect");
		ok(wait_for_query($result->{standby}, 'postgres', q{SELECT runs > 1 AND done > run_done FROM outbox.replay_job}),
			"$round->{name}: so does a replay");
	}
	check_no_crash($result->{standby});
	$result->{standby}->stop('immediate');
	$result->{$_}->clean_node foreach qw(primary standby);
	push @results, { name => $round->{name}, figures => $figures };
}
diag(join("\n", 'table:', table(@results))) if $long;
done_testing();
