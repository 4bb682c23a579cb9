# shellcheck shell=bash disable=SC2154,SC2034
# 100,000 events in one statement: outbox.enqueue_many() against INSERT ... SELECT
# into the plain table of make_plain_table(), both from the same source table.

EVENTS=100000

# timed_statement NAME SQL: the statement's time with its commit, as the client sees it.
timed_statement() {
	local ms before
	sql -c CHECKPOINT
	before=$(wal_position)
	ms=$(sql <<<"\\timing on
		$2;" | sed -n 's/^Time: \([0-9.]*\) ms.*/\1/p')
	record "$1" "$(divide "$((EVENTS * 1000))" "$ms" 0)"
	record "$1_wal" "$(divide "$(($(wal_position) - before))" "$EVENTS" 0)"
}

bulk_outbox() {
	timed_statement outbox "SELECT cardinality(outbox.enqueue_many(ARRAY['order'], array_agg(aggregate_id), ARRAY['placed'], array_agg(payload))) FROM source"
}

bulk_plain() {
	timed_statement plain "INSERT INTO plain_outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', aggregate_id, 'placed', payload FROM source"
}

run_bulk() {
	fresh_postgres 'outbox.workers = 0' 'autovacuum = off'
	sql -c 'CREATE EXTENSION outbox'
	make_plain_table
	sql -v "payload=$JSON_PAYLOAD" <<-SQL
		CREATE TABLE source AS
		SELECT (i % 10000)::text AS aggregate_id, :'payload'::jsonb AS payload FROM generate_series(1, $EVENTS) i;
		VACUUM ANALYZE source;
	SQL
	# The first statement finds empty tables, and segments of WAL that have yet to be made.
	round=0
	in_turns bulk_outbox bulk_plain >/dev/null
	figures=()
	each_round in_turns bulk_outbox bulk_plain
	record_ratios ratio outbox plain
	record_ratios ratio_wal outbox_wal plain_wal
}

report_bulk() {
	cat <<-TEXT
		## bulk: $EVENTS events in one statement

		Events of 256 bytes over 10,000 aggregates, from one source table.

	TEXT
	table_head '' events/s 'WAL bytes an event'
	table_row 'outbox.enqueue_many' "$(spread outbox)" "$(spread outbox_wal)"
	table_row 'INSERT ... SELECT, plain table' "$(spread plain)" "$(spread plain_wal)"
	table_row ratio "$(spread ratio 2)" "$(spread ratio_wal 2)"
	target 'enqueue_many / INSERT ... SELECT' ratio at_least 0.8
	plot bulk '100,000 events in one statement' 'events/s' 'outbox.enqueue_many=outbox' 'INSERT ... SELECT=plain'
}
