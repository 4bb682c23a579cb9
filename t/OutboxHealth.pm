# OutboxHealth.pm
#
# What the tests of outbox.health() share: waiting for a reason, or for none,
# inside the server, where that costs no process for each look.

use strict;
use warnings;

package OutboxHealth;

use Exporter 'import';
use OutboxTest;
use Test::More;

our @EXPORT = qw(create_health_waits reasons healthy reason remedy);

my ($node, $db);

# Makes the functions by which the others wait in that database.
sub create_health_waits
{
	($node, $db) = @_;
	# each look in a transaction of its own, lest the locks of one hinder what is waited for
	$node->safe_psql($db, q{
		CREATE PROCEDURE public.wait_health(condition text, INOUT answer text) LANGUAGE plpgsql AS $$
		DECLARE
			is_so boolean;
			until timestamptz := clock_timestamp() + interval '60 s';
		BEGIN
			WHILE clock_timestamp() < until LOOP
				EXECUTE 'SELECT coalesce(bool_or(' || condition || $q$), false), string_agg(h::text, E'\n') FROM outbox.health() h$q$ INTO is_so, answer;
				COMMIT;
				IF is_so THEN
					answer := 'yes';
					RETURN;
				END IF;
				PERFORM pg_sleep(0.05);
			END LOOP;
			answer := 'waited in vain for ' || condition || E':\n' || answer;
		END $$});
	return;
}

# Waits until a row of health() is as the condition says; what else the row must have is no matter.
sub _wait
{
	my ($condition, $name) = @_;
	my $answer = $node->safe_psql($db, "CALL wait_health(\$condition\$$condition\$condition\$, NULL)");

	local $Test::Builder::Level = $Test::Builder::Level + 2;
	return is($answer, 'yes', $name);
}

# What health() says now, as "verdict reason" joined by commas.
sub reasons { return $node->safe_psql($db, q{SELECT string_agg(concat_ws(' ', verdict, reason), ', ') FROM outbox.health()}) }

sub healthy { return _wait(q{verdict = 'ok'}, "$_[0]: ok again") }

# That reason comes, with that verdict, a detail that matches, and a remedy.
sub reason
{
	my ($verdict, $reason, $detail) = @_;

	return _wait("verdict = '$verdict' AND reason = '$reason' AND detail ~ \$d\$$detail\$d\$ AND remedy <> ''", "$verdict: $reason");
}

# The remedy of a reason; with run => 1, it is a statement, and done.
sub remedy
{
	my ($reason, %opt) = @_;
	my $remedy = $node->safe_psql($db, "SELECT remedy FROM outbox.health() WHERE reason = '$reason'");

	$node->safe_psql($db, $remedy) if $opt{run};
	return $remedy;
}

1;
