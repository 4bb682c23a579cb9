# shellcheck shell=bash disable=SC2154,SC2034
# What libnats alone can do (the limit), with events of 256 bytes and of 1 KiB, with
# the message id alone and with headers like the relay's; and the relay's drain of
# the same number of events.

# limit FIGURE SIZE none|full
limit() {
	local nats_cpu
	nats_cpu=$(cpu_us "$NATS_PID")
	run_limit --count "$events" --window "$WINDOW" --size "$2" --headers "$3"
	record "$1" "$(value_of events_per_s "$line")"
	record "$1_cpu_us" "$(divide "$cpu" "$events")"
	record "$1_nats_cpu_us" "$(divide $(($(cpu_us "$NATS_PID") - nats_cpu)) "$events")"
}

drain_once() {
	local pid cpu nats_cpu messages
	# The held relay reads what its memory has room for: that counts as well.
	pid=$(relay_pid)
	cpu=$(cpu_us "$pid")
	enqueue_backlog "$events" 10000
	record enqueue "$enqueue_rate"
	fresh_stream
	nats_cpu=$(cpu_us "$NATS_PID")
	measure_drain drain "$events"
	record drain_cpu_us "$(divide $(($(cpu_us "$pid") - cpu)) "$events")"
	record drain_nats_cpu_us "$(divide $(($(cpu_us "$NATS_PID") - nats_cpu)) "$events")"
	record drain_anon_kb "$(memory_kb "$pid" RssAnon)"
	messages=$(stream_messages)
	[ "$messages" = "$events" ] || die "the stream has $messages messages instead of $events"
	[ "$round" -gt 1 ] || check_order
}

# Per aggregate, rising ce-sequence; headers are sorted by name in a dump.
check_order() {
	"$natstool" dump OUTBOX | awk -F '\t' '
		{ for (i = 6; i <= NF; i++) { if ($i ~ /^ce-sequence=/) at = substr($i, 13) + 0; if ($i ~ /^ce-subject=/) id = substr($i, 12) } }
		at <= last[id] { wrong++ } { last[id] = at } END { exit wrong > 0 || NR == 0 }' ||
		die 'the events of an aggregate are not in order'
	say '  every aggregate in order'
}

run_drain() {
	events=$(pick 50000 200000 200000)
	fresh_postgres
	new_database postgres
	hold_relay
	each_round in_turns 'limit limit 256 none' drain_once 'limit limit_full 256 full' 'limit limit_1k 1024 none'
	record_ratios ratio drain limit
	record_ratios ratio_full drain limit_full
}

report_drain() {
	cat <<-TEXT
		## drain: the relay against libnats alone

		$events events over 10,000 aggregates, window $WINDOW, file storage. The relay: order per aggregate on, synchronous_commit on, from the
		end of a pause until all are acknowledged and settled.

	TEXT
	table_head '' events/s 'client CPU, us/event' 'nats-server CPU, us/event'
	table_row 'js_PublishMsgAsync, 256 bytes, message id' "$(spread limit)" "$(spread limit_cpu_us 1)" "$(spread limit_nats_cpu_us 1)"
	table_row '... and CloudEvents headers' "$(spread limit_full)" "$(spread limit_full_cpu_us 1)" "$(spread limit_full_nats_cpu_us 1)"
	table_row '1 KiB, message id' "$(spread limit_1k)" "$(spread limit_1k_cpu_us 1)" "$(spread limit_1k_nats_cpu_us 1)"
	table_row 'relay, 256 bytes' "$(spread drain)" "$(spread drain_cpu_us 1)" "$(spread drain_nats_cpu_us 1)"
	cat <<-TEXT

		The relay reaches $(spread ratio_full 2) of the publisher with the same headers. Its own memory afterwards: $(spread drain_anon_kb) kB.
		The backlog was enqueued by two sessions, 5,000 a transaction, at $(spread enqueue) events/s.
	TEXT
	target 'drain / js_PublishMsgAsync' ratio at_least 0.8
	[ "$(median limit)" -lt 70000 ] || target 'drain, events/s' drain at_least 40000 0
	plot drain "Publishing $events events" 'events/s' 'libnats, message id=limit' 'libnats, same headers=limit_full' \
		'libnats, 1 KiB=limit_1k' 'relay=drain'
}
