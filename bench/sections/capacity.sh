# shellcheck shell=bash disable=SC2154,SC2034
# bench/capacity.c foretells rates from three figures of this machine: an event's CPU
# time in relay and server under full load, and the round trip of one alone. Here it is
# held against drains through smaller windows and over few aggregates.

WINDOWS=(4 16 64 256 1024)
AGGREGATES=(1 8 64)

# drain_through FIGURE WINDOW AGGREGATES EVENTS
drain_through() {
	sql -c "ALTER SYSTEM SET outbox.max_in_flight = $2" -c 'SELECT pg_reload_conf()' >/dev/null
	enqueue_backlog "$4" "$3"
	fresh_stream
	measure_drain "$1" "$4"
}

# What the simulation starts from.
costs() {
	local pid cpu nats_cpu
	run_limit --sync "$(pick 2000 5000 5000)"
	record round_trip_us "$(value_of ack_p50_us "$line")"
	pid=$(relay_pid)
	cpu=$(cpu_us "$pid") nats_cpu=$(cpu_us "$NATS_PID")
	drain_through costs 1024 10000 "$events"
	record relay_us "$(divide $(($(cpu_us "$pid") - cpu)) "$events")"
	record stream_us "$(divide $(($(cpu_us "$NATS_PID") - nats_cpu)) "$events")"
}

# foretell WINDOW AGGREGATES: events/s. A round trip over loopback is the work of both, and two that wake up.
foretell() {
	value_of events_per_s "$("$bench/capacity" --cores "$(nproc)" --relay-us "$(median relay_us 2)" --stream-us "$(median stream_us 2)" \
		--wake-us "$(awk -v t="$(median round_trip_us)" -v a="$(median relay_us 2)" -v b="$(median stream_us 2)" \
			'BEGIN { d = (t - a - b) / 2; print (d > 0 ? d : 0) }')" --window "$1" --aggregates "$2")"
}

capacity_round() {
	local window count
	costs
	for window in "${WINDOWS[@]}"; do
		drain_through "window_$window" "$window" 10000 "$((events < window * scale ? events : window * scale))"
	done
	for count in "${AGGREGATES[@]}"; do
		drain_through "aggregates_$count" 1024 "$count" "$((events < count * scale ? events : count * scale))"
	done
}

run_capacity() {
	local name
	events=$(pick 40000 100000 100000)
	scale=$(pick 1000 5000 5000)
	fresh_postgres
	new_database postgres
	hold_relay
	each_round capacity_round
	for name in "${WINDOWS[@]/#/window_}" "${AGGREGATES[@]/#/aggregates_}"; do
		case $name in
			window_*) foretold[$name]=$(foretell "${name#*_}" 10000) ;;
			*) foretold[$name]=$(foretell 1024 "${name#*_}") ;;
		esac
		record "off_$name" "$(divide "${foretold[$name]}" "$(median "$name")" 3)"
		record off "$(awk -v r="$(divide "${foretold[$name]}" "$(median "$name")" 4)" 'BEGIN { print r < 1 ? 1 / r : r }')"
	done
}

declare -A foretold=()

report_capacity() {
	local name
	cat <<-TEXT
		## capacity: what the simulation foretells

		\`bench/build/capacity\` with $(median relay_us 1) us of relay and $(median stream_us 1) us of nats-server an event, and a round trip of $(median round_trip_us) us.

	TEXT
	table_head '' 'foretold, events/s' 'measured, events/s' 'foretold / measured'
	for name in "${WINDOWS[@]/#/window_}" "${AGGREGATES[@]/#/aggregates_}"; do
		table_row "${name%_*} ${name#*_}" "${foretold[$name]}" "$(spread "$name")" "$(median "off_$name" 2)"
	done
	target 'simulation and measurement, their ratio or its inverse' off at_most 1.33
}
