# shellcheck shell=bash disable=SC2154,SC2034
# A drain while outbox.purge() removes a range of expired events, and the same
# drain while that range is just there. A client that enqueues at a steady rate
# goes on meanwhile: what it waits for at most says whether retention is in its way.

# Published rows of a day ago, as a relay would have left them, in the child that is
# current now; the next events go into another one. An open transaction that holds the
# child keeps purge(), which closes it, from removing it at once.
add_expired() {
	local child
	# all there is from before: a child with young events in it doesn't go
	purge 'now()' >/dev/null
	child=$(sql -c 'SELECT coalesce((SELECT child FROM outbox.ring ORDER BY generation DESC LIMIT 1), 0)')
	set_workers 0
	enqueue_backlog "$expired" 10000
	sql <<-SQL
		INSERT INTO outbox.ledger_$child (bucket, settled_at, epoch, relay, lo, hi)
		SELECT position >> 10, now() - interval '1 day', 0, 0, min(position & 1023), max(position & 1023)
		FROM outbox.log_$child WHERE outbox.settled_at(position) IS NULL GROUP BY 1;
		INSERT INTO outbox.watermark SELECT max(position) FROM outbox.log_$child ON CONFLICT DO NOTHING;
		VACUUM ANALYZE outbox.log_$child, outbox.ledger_$child;
	SQL
	PGAPPNAME=holder sql -c "BEGIN; LOCK TABLE outbox.log_$child IN ROW EXCLUSIVE MODE; SELECT pg_sleep(7200)" >/dev/null 2>&1 &
	wait_for 30 "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'holder' AND wait_event = 'PgSleep'" ||
		die 'nobody holds the child'
	purge "now() - interval '1 hour'" >/dev/null
	sql -c "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'holder'" >/dev/null
	wait "$!" || true
	[ "$(sql -c "SELECT count(*) FROM outbox.ring WHERE child = $child AND closed_at IS NOT NULL")" = 1 ] ||
		die 'the range is not closed'
	set_workers 1
	hold_relay
}

# purge TIME: how many events it removed.
purge() { sql -c "SELECT coalesce(sum(events), 0) FROM outbox.purge(before => $1) WHERE action = 'removed'"; }

timed_purge() {
	local start
	start=$(date +%s%N)
	purge "now() - interval '1 hour'" >"$WORK/purged"
	divide "$((($(date +%s%N) - start) / 1000))" 1000 1 >"$WORK/purge_ms"
}

# Latencies of a steady client, in us: their 99th percentile and the longest.
record_waits() {
	local p99 longest
	read -r p99 longest < <(sort -n -k 3 "$WORK"/waits.* | awk '{ v[NR] = $3 } END { print v[int((NR - 1) * 0.99) + 1], v[NR] }')
	record "$1_enqueue_p99_ms" "$(divide "$p99" 1000)"
	record "$1_enqueue_max_ms" "$(divide "$longest" 1000)"
	rm -f "$WORK"/waits.*
}

# drain_and NAME COMMAND: with the steady client and the command beside.
drain_and() {
	local steady beside
	enqueue_backlog "$events" 10000
	fresh_stream
	"$PG_BIN/pgbench" -n -M prepared -f "$WORK/steady.sql" -c 1 -R 100 -T "$steady_seconds" -l --log-prefix="$WORK/waits" -D "payload=$JSON_PAYLOAD" >"$WORK/pgbench.log" 2>&1 &
	steady=$!
	$2 &
	beside=$!
	measure_drain "$1" "$events"
	wait "$beside"
	wait "$steady" || die "pgbench: $(cat "$WORK/pgbench.log")"
	record_waits "$1"
}

retention_round() {
	add_expired
	if ((round % 2)); then
		drain_and purged timed_purge
		drain_and kept true
	else
		drain_and kept true
		drain_and purged timed_purge
	fi
	[ "$(cat "$WORK/purged")" -ge "$expired" ] || die "only $(cat "$WORK/purged") of $expired events were removed"
	record purge_ms "$(cat "$WORK/purge_ms")"
}

run_retention() {
	events=$(pick 50000 200000 200000)
	expired=$(pick 100000 1000000 10000000)
	steady_seconds=$(pick 2 5 5)
	echo "SELECT outbox.enqueue('steady', (random() * 1000)::integer::text, 'beaten', :payload);" >"$WORK/steady.sql"
	fresh_postgres 'outbox.retention = -1' 'autovacuum = off'
	new_database postgres
	each_round retention_round
	record_ratios ratio purged kept
	record_ratios ratio_wait purged_enqueue_max_ms kept_enqueue_max_ms
}

report_retention() {
	cat <<-TEXT
		## retention: $expired expired events are removed during a drain

		$events events of 256 bytes are drained while outbox.purge() removes a range of $expired, and while nothing is removed; an
		enqueue each 10 ms beside.

	TEXT
	table_head '' 'events removed' without ratio
	table_row 'drain, events/s' "$(spread purged)" "$(spread kept)" "$(spread ratio 2)"
	table_row 'enqueue, p99, ms' "$(spread purged_enqueue_p99_ms 2)" "$(spread kept_enqueue_p99_ms 2)" ''
	table_row 'enqueue, longest, ms' "$(spread purged_enqueue_max_ms 2)" "$(spread kept_enqueue_max_ms 2)" "$(spread ratio_wait 2)"
	table_row 'outbox.purge(), ms' "$(spread purge_ms)" '' ''
	target "drain while $expired events are removed / without" ratio at_least 0.95
	plot retention "Draining while $expired events are removed" 'events/s' 'with=purged' 'without=kept'
}
