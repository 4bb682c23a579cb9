# shellcheck shell=bash disable=SC2154,SC2034
# One database with 1, 2 and 4 relays, and three databases with one each: how
# fast, and does everything arrive, with more relays than cores? Reported, no target
# but that nothing is lost.

lost=0

# Every event of the round once in the stream.
count_stream() {
	local messages
	messages=$(stream_messages)
	[ "$messages" = "$1" ] || { lost=$((lost + 1)); say "  the stream has $messages messages instead of $1"; }
}

with_workers() {
	export PGDATABASE=scale1
	set_workers "$1"
	hold_relay
	enqueue_backlog "$events" 10000
	fresh_stream
	measure_drain "workers_$1" "$events"
	count_stream "$events"
}

with_databases() {
	local name
	local -a drains=()
	for name in scale1 scale2 scale3; do
		export PGDATABASE=$name
		set_workers 1
		hold_relay
		enqueue_backlog "$((events / 3))" 10000
	done
	fresh_stream
	for name in scale1 scale2 scale3; do
		{
			PGDATABASE=$name drain "$((events / 3))"
			echo "$seconds" >"$WORK/$name.seconds"
		} &
		drains+=($!)
	done
	for name in "${drains[@]}"; do
		wait "$name"
	done
	record databases_3 "$(divide "$((events / 3 * 3))" "$(sort -n "$WORK"/scale?.seconds | tail -n 1)" 0)"
	count_stream "$((events / 3 * 3))"
	for name in scale1 scale2 scale3; do
		PGDATABASE=$name hold_relay
	done
}

run_scale() {
	local name
	events=$(pick 30000 60000 200000)
	fresh_postgres 'max_worker_processes = 24'
	for name in scale1 scale2 scale3; do
		PGDATABASE=postgres
		new_database "$name"
		hold_relay
	done
	each_round in_turns 'with_workers 1' 'with_workers 2' 'with_workers 4' with_databases
	for name in workers_2 workers_4 databases_3; do
		record_ratios "ratio_$name" "$name" workers_1
	done
}

report_scale() {
	cat <<-TEXT
		## scale: more relays

		Draining $events events of 256 bytes over 10,000 aggregates, on $(nproc) CPUs.

	TEXT
	table_head '' events/s 'ratio to one relay'
	table_row 'one database, 1 relay' "$(spread workers_1)" ''
	table_row 'one database, 2 relays' "$(spread workers_2)" "$(spread ratio_workers_2 2)"
	table_row 'one database, 4 relays' "$(spread workers_4)" "$(spread ratio_workers_4 2)"
	table_row 'three databases, 1 relay each' "$(spread databases_3)" "$(spread ratio_databases_3 2)"
	condition 'every event once in the stream, also with more relays than cores' 'all rounds' \
		"$((rounds * 4 - lost)) of $((rounds * 4)) drains" "$([ "$lost" = 0 ] && echo true || echo false)"
	plot scale "Draining $events events" 'events/s' '1 relay=workers_1' '2 relays=workers_2' '4 relays=workers_4' '3 databases=databases_3'
}
