# shellcheck shell=bash disable=SC2154,SC2034
# Two databases pass the same number of events in turns, a million each in all
# rounds. In one of them somebody holds a REPEATABLE READ snapshot all the time.

# As long as the section lasts: the session ends with the server, or by its name.
hold_snapshot() {
	PGAPPNAME=holder sql -c "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM outbox.watermark; SELECT pg_sleep(7200)" >/dev/null 2>&1 &
	holder=$!
	wait_for 30 "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'holder' AND wait_event = 'PgSleep' AND backend_xmin IS NOT NULL" ||
		die 'nobody holds a snapshot'
}

end_snapshot() {
	sql -c "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'holder'" >/dev/null
	wait "$holder" || true
}

pass() {
	export PGDATABASE=$1
	enqueue_backlog "$events" 10000
	record "enqueue_$1" "$enqueue_rate"
	fresh_stream
	measure_drain "$1" "$events"
}

# All of outbox's tables of a kind: tables, indexes, in MB.
size_of() {
	PGDATABASE=$1 sql -F ' / ' -c "SELECT round(sum(pg_table_size(oid)) / 1048576.0, 2), round(sum(pg_indexes_size(oid)) / 1048576.0, 2) FROM pg_class
		WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND relname ~ '$2'"
}

run_held() {
	local name kind
	events=$(pick 40000 200000 200000)
	fresh_postgres 'autovacuum_naptime = 5s'
	new_database free
	hold_relay
	PGDATABASE=postgres new_database held
	hold_relay
	hold_snapshot
	each_round in_turns 'pass free' 'pass held'
	for name in free held; do
		for kind in log ledger 'delivery|watermark|request'; do
			sizes[$name $kind]=$(size_of "$name" "^($kind)")
		done
	done
	end_snapshot
	record_ratios ratio held free
	record_ratios ratio_enqueue enqueue_held enqueue_free
	record_last
}

declare -A sizes=()

# The last round has the most behind it.
record_last() {
	local -a ratios
	read -ra ratios <<<"${figures[ratio]}"
	record last "${ratios[-1]}"
}

report_held() {
	local kind
	cat <<-TEXT
		## held: a REPEATABLE READ snapshot while $((events * rounds)) events pass

		Each round enqueues and drains $events events of 256 bytes in a database where a snapshot is held, and in one where none is.

	TEXT
	table_head '' 'snapshot held' without ratio
	table_row 'drain, events/s' "$(spread held)" "$(spread free)" "$(spread ratio 2)"
	table_row 'drain, last round' '' '' "$(median last 2)"
	table_row 'enqueue, two sessions, events/s' "$(spread enqueue_held)" "$(spread enqueue_free)" "$(spread ratio_enqueue 2)"
	for kind in log ledger 'delivery|watermark|request'; do
		table_row "${kind//|/, }: tables / indexes, MB" "${sizes[held $kind]}" "${sizes[free $kind]}" ''
	done
	target 'drain with a held snapshot / without' ratio at_least 0.9
	target 'the same, last round' last at_least 0.9
	target 'enqueue with a held snapshot / without' ratio_enqueue at_least 0.9
	plot held 'Draining under a held snapshot' 'events/s' 'held=held' 'without=free'
}
