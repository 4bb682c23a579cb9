# shellcheck shell=bash disable=SC2154,SC2034
# The cleaner at its worst (--large: five million expired events, which are archived before
# they go, so that a run takes long): 500 live events in a second, two relays, a reader
# with an old snapshot, calls for another run all the time, and a server that is
# stopped at once in the middle of it.

# shellcheck source=bench/sections/retention.sh
. "$WORK/src/bench/sections/retention.sh"

# live_beside NAME: so long did live events take from commit to acknowledgement.
live_beside() {
	line=$("$bench/paced" --rate 500 --sessions 4 --batch 1 --warm-up 500 --count "$((500 * live_seconds))")
	record "$1_p50_us" "$(value_of acked_p50_us "$line")"
	record "$1_p99_us" "$(value_of acked_p99_us "$line")"
	record "$1_rate" "$(value_of rate "$line")"
}

# The next run is due before this one is over: others ask for one until the file "enough" is there.
keep_asking() {
	until [ -e "$WORK/enough" ]; do
		purge "now() - interval '1 hour'" >>"$WORK/asked" 2>>"$WORK/asked.err" || true
		sleep 0.2
	done
}

cleaners() { sql -c "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'"; }

restart_at_once() {
	quietly "${AS_POSTGRES[@]}" "$PG_BIN/pg_ctl" -D "$PG_DATA" -m immediate -w stop
	quietly "${AS_POSTGRES[@]}" "$PG_BIN/pg_ctl" -D "$PG_DATA" -l "$PG_DATA/server.log" -w -t 600 start
}

removed_so_far() { sql -c 'SELECT coalesce(sum(events), 0) FROM outbox.purges'; }

cleanup_round() {
	local asker start before wal
	add_expired
	set_workers 2
	release_relay
	fresh_stream
	live_beside alone
	before=$(removed_so_far)
	rm -f "$WORK/enough" "$WORK"/asked*
	PGAPPNAME=reader sql -c 'BEGIN ISOLATION LEVEL REPEATABLE READ' -c 'SELECT count(*) FROM pg_class' -c 'SELECT pg_sleep(7200)' >/dev/null 2>&1 &
	start=$(sql -c 'SELECT clock_timestamp()')
	wal=$(wal_position)
	keep_asking &
	asker=$!
	wait_for 60 "SELECT count(*) > 0 FROM pg_stat_activity WHERE backend_type = 'outbox cleaner'" || die 'no cleaner begins'
	live_beside beside
	record in_the_middle "$([ "$(removed_so_far)" = "$before" ] && cleaners || echo 0)"
	restart_at_once
	wait_for 3600 "SELECT coalesce(sum(events), 0) - $before >= $expired FROM outbox.purges" || die 'the events are not removed'
	record removed "$(($(removed_so_far) - before))"
	record removal_s "$(sql -c "SELECT round(extract(epoch FROM max(at) - '$start'), 1) FROM outbox.purges")"
	touch "$WORK/enough"
	wait "$asker"
	record wal_bytes "$(divide "$(($(wal_position) - wal))" "$expired" 2)"
	record deadlocks "$(grep -c 'deadlock detected' "$PG_DATA/server.log" || true)"
	wait_for 60 "SELECT $(status 'sum(backlog) = 0')" || die 'live events are left over'
	[ "$(stream_messages)" -ge "$((500 * (live_seconds + 1) * 2))" ] || die 'live events are missing in the stream'
}

run_cleanup() {
	expired=$(pick 50000 500000 5000000)
	live_seconds=$(pick 2 3 10)
	mkdir "$WORK/archive"
	give_to_postgres "$WORK/archive"
	fresh_postgres 'outbox.retention = -1' "outbox.archive_directory = '$WORK/archive'" 'autovacuum = off'
	new_database postgres
	each_round cleanup_round
	record_ratios p99_ratio beside_p99_us alone_p99_us
}

report_cleanup() {
	cat <<-TEXT
		## cleanup: $expired expired events, archived and removed under load

		500 live events a second, two relays, a REPEATABLE READ snapshot held, another run asked for all the time; the server is stopped at once
		after $live_seconds s and started again. In the middle of a run then: $(spread in_the_middle) cleaners at work.

	TEXT
	table_head '' 'before' 'while the cleaner works'
	table_row 'live events/s' "$(spread alone_rate)" "$(spread beside_rate)"
	table_row 'commit to ack, median, us' "$(spread alone_p50_us)" "$(spread beside_p50_us)"
	table_row 'commit to ack, p99, us' "$(spread alone_p99_us)" "$(spread beside_p99_us)"
	cat <<-TEXT

		$(spread removed) events were removed $(spread removal_s 1) s after the first call, the restart included. An event removed: $(spread wal_bytes 2)
		bytes of WAL, those of the live events included.
	TEXT
	target 'live p99 while the cleaner works / before' p99_ratio at_most 2
	target 'deadlocks' deadlocks at_most 0 0
}
