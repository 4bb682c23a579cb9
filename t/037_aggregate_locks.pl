# The table of aggregate locks is as large as the open transactions, not as
# the number of aggregates that ever were: with 1,000 entries, 60,000
# aggregates pass through it, and what prepared transactions leave is swept.
use strict;
use warnings;

use FindBin;
use lib $FindBin::RealBin;
use OutboxTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nats = OutboxNats->start;
my $node = new_cluster('main', nats => $nats, extra => "outbox.max_open_aggregates = 1000\nlog_statement = none\n");

# 60 transactions of 1,000 aggregates each: all of the table each time
$node->safe_psql('postgres', q{
DO $$
BEGIN
    FOR i IN 1..60 LOOP
        PERFORM outbox.enqueue('lock', (i * 1000 + j)::text, 'e', '{}') FROM generate_series(1, 1000) j;
        COMMIT;
    END LOOP;
END $$});
ok(wait_published($node, 'postgres', 60000), 'entries are given back at commit');

# one more than there is room for: its own error, and nothing left behind
my ($code, $out, $err) = $node->psql('postgres',
	q{SELECT outbox.enqueue('lock', i::text, 'e', '{}') FROM generate_series(1, 1001) i});
isnt($code, 0, 'more aggregates than outbox.max_open_aggregates in one transaction');
like($err, qr/too many aggregates in open transactions.*HINT:.*outbox\.max_open_aggregates/s, '... say so');
$node->safe_psql('postgres',
	q{SELECT count(outbox.enqueue('lock', i::text, 'again', '{}')) FROM generate_series(1, 1000) i});
ok(wait_published($node, 'postgres', 61000), '... and a rollback gives them back');

$node->safe_psql('postgres', q{
CREATE FUNCTION room_for(wanted integer) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.enqueue('probe', i::text, 'e', '{}') FROM generate_series(1, wanted) i;
    RAISE EXCEPTION 'undo';
EXCEPTION
    WHEN raise_exception THEN RETURN true;
    WHEN out_of_memory THEN RETURN false;
END $$});

# prepared transactions give nothing back themselves
foreach my $round (1 .. 3)
{
	$node->safe_psql('postgres', qq{
BEGIN;
SELECT count(outbox.enqueue('prepared', ($round * 1000 + i)::text, 'e', '{}')) FROM generate_series(1, 600) i;
PREPARE TRANSACTION 'p$round';
COMMIT PREPARED 'p$round'});
	ok(wait_published($node, 'postgres', 61000 + 600 * $round), "prepared transaction $round is published");
	# the sweep has the relay's slowest pace
	ok($node->poll_query_until('postgres', 'SELECT room_for(900)'), '... and its keys are swept');
}

check_no_crash($node);
done_testing();
