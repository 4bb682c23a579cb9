# shellcheck shell=bash disable=SC2154,SC2034
# Two databases drain the same backlog in turns. In one of them the head of an
# aggregate goes to a subject that no stream takes: it is refused again and
# again, and a million events wait behind it.

make_blocked() {
	new_database blocked
	sql -c "SELECT outbox.enqueue_text('stuck', '0', 'refused', 'x', subject => 'none.stuck')" >/dev/null
	wait_for 30 "SELECT attempts >= 0 AND last_error IS NOT NULL FROM outbox.events WHERE event_type = 'refused'" || die 'the head is not refused'
	enqueue_backlog "$behind" 1 256 stuck
	hold_relay
}

others() {
	export PGDATABASE=$1
	enqueue_backlog "$events" 10000
	fresh_stream
	measure_drain "$1" "$events"
}

# Still refused, and all of them still there.
check_blocked() {
	[ "$(sql -c "SELECT bool_and(publish_state = 'pending') AND count(*) = $behind + 1 FROM outbox.history('stuck', '0')")" = t ] ||
		die 'the blocked aggregate is not what it was'
}

run_blocked() {
	events=$(pick 30000 100000 200000)
	behind=$(pick 100000 1000000 1000000)
	fresh_postgres
	new_database postgres
	hold_relay
	make_blocked
	each_round in_turns 'others postgres' 'others blocked'
	check_blocked
	record_ratios ratio blocked postgres
}

report_blocked() {
	cat <<-TEXT
		## blocked: one refused head with $behind events behind it

		Draining $events other events of 256 bytes over 10,000 aggregates, in two databases in turns.

	TEXT
	table_head '' events/s
	table_row 'nothing blocked' "$(spread postgres)"
	table_row "$behind behind a refused head" "$(spread blocked)"
	table_row ratio "$(spread ratio 2)"
	target 'others, with a blocked aggregate / without' ratio at_least 0.9
	plot blocked "Draining others, $behind behind a refused head" 'events/s' 'nothing blocked=postgres' 'one aggregate blocked=blocked'
}
