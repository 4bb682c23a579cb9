# shellcheck shell=bash disable=SC2154,SC2034
# The same number of events as 10,000 aggregates of 20 and in other shapes. A single
# aggregate goes one event after the other, so it is compared with js_Publish, and
# only its first events are waited for; then the extension is made anew.

# name, aggregates (0: as many as events)
SHAPES=('base 10000' 'thousands 200' 'singles 0')

shape() {
	enqueue_backlog "$events" "$(($2 > 0 ? $2 : events))"
	fresh_stream
	measure_drain "$1" "$events"
}

one_at_a_time() {
	run_limit --sync "$sync_count"
	record sync "$(value_of events_per_s "$line")"
}

single_aggregate() {
	enqueue_backlog "$events" 1
	fresh_stream
	measure_drain single "$single_count"
	sql -c 'DROP EXTENSION outbox'
	new_database postgres
	hold_relay
}

shapes_round() {
	in_turns "shape ${SHAPES[0]}" "shape ${SHAPES[1]}" "shape ${SHAPES[2]}"
	in_turns one_at_a_time single_aggregate
}

run_shapes() {
	events=$(pick 40000 200000 200000)
	sync_count=$(pick 2000 10000 20000)
	# With atomic batches the whole backlog takes no longer than the others'.
	if atomic_batches; then single_count=$events; else single_count=$(pick 2000 15000 50000); fi
	fresh_postgres
	new_database postgres
	hold_relay
	each_round shapes_round
	record_ratios ratio_thousands thousands base
	record_ratios ratio_singles singles base
	record_ratios ratio_single single sync
}

# The server must offer it, 2.12 or newer, and the relay use it.
atomic_batches() {
	[ "$(printf '%s\n' 2.12 "$(nats-server --version | sed 's/[^0-9]*//')" | sort -V | head -n 1)" = 2.12 ]
}

report_shapes() {
	cat <<-TEXT
		## shapes: $events events of 256 bytes over few and many aggregates

		From the end of a pause until all are acknowledged and settled; of the single aggregate the first $single_count.

	TEXT
	table_head 'aggregates x events' events/s 'ratio to the first'
	table_row "10,000 x $((events / 10000))" "$(spread base)" ''
	table_row "200 x $((events / 200))" "$(spread thousands)" "$(spread ratio_thousands 2)"
	table_row "$events x 1" "$(spread singles)" "$(spread ratio_singles 2)"
	table_row "1 x $events" "$(spread single)" "to js_Publish: $(spread ratio_single 2)"
	table_row 'js_Publish, one at a time' "$(spread sync)" ''
	target "200 x $((events / 200)) / 10,000 aggregates" ratio_thousands at_least 0.7
	target "$events x 1 / 10,000 aggregates" ratio_singles at_least 0.7
	if atomic_batches; then
		target 'single aggregate / js_Publish, atomic batches' ratio_single at_least 4
	else
		target 'single aggregate / js_Publish, no atomic batches' ratio_single at_least 0.8
	fi
	plot shapes "Draining $events events" 'events/s' "10,000 x $((events / 10000))=base" "200 x $((events / 200))=thousands" \
		"$events x 1=singles" "1 x $events=single" 'js_Publish, one at a time=sync'
}
