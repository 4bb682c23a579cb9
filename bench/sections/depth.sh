# shellcheck shell=bash disable=SC2154,SC2034
# The same drain with little and with much pending, and over an archive. Each
# case has a database of its own: before each round as much is added as is
# drained, so that the depth stays. What the relay holds for itself is watched.
#
# Ten million events are many minutes of work, so only --large goes that deep.

names=()
declare -A depth=()

# add_case NAME PENDING: its backlog, but for what the round adds.
add_case() {
	names+=("$1")
	depth[$1]=$2
	new_database "$1"
	hold_relay
	[ "$2" = "$events" ] || enqueue_backlog "$(($2 - events))" 10000
}

# Published rows, without the hours of publishing: the events are real, and what
# a relay would have left in the ledger and the watermark is written for it.
add_archive() {
	names+=(archive)
	depth[archive]=$events
	new_database archive
	hold_relay
	sql -c "ALTER SYSTEM SET outbox.workers = 0" -c 'SELECT pg_reload_conf()' >/dev/null
	wait_for 30 "SELECT $(status 'count(pid) = 0')" || die 'the relay does not end'
	enqueue_backlog "$archived" 10000
	sql <<-'SQL'
		INSERT INTO outbox.ledger_0 (bucket, settled_at, epoch, relay, lo, hi)
		SELECT position >> 10, now(), 0, 0, min(position & 1023), max(position & 1023) FROM outbox.log_0 GROUP BY 1;
		INSERT INTO outbox.watermark SELECT max(position) FROM outbox.log_0;
		VACUUM ANALYZE outbox.log_0, outbox.ledger_0;
	SQL
	set_workers 1
	wait_for 60 "SELECT $(status "bool_and(state = 'paused' AND backlog = 0)")" || die 'the archive is not taken for published'
}

drain_case() {
	local watcher
	export PGDATABASE=$1
	enqueue_backlog "$events" 10000
	fresh_stream
	watch_memory "$(relay_pid)" "$WORK/memory" &
	watcher=$!
	measure_drain "$1" "$events"
	kill "$watcher"
	wait "$watcher" 2>/dev/null || true
	record "$1_mb" "$(divide "$(cat "$WORK/memory")" 1024 1)"
}

run_depth() {
	events=$(pick 30000 100000 100000)
	archived=$(pick 100000 1000000 10000000)
	fresh_postgres
	add_archive
	add_case shallow "$events"
	add_case deep "$(pick 200000 1000000 1000000)"
	[ "$mode" != large ] || add_case deepest 10000000
	each_round in_turns "${names[@]/#/drain_case }"
	for name in "${names[@]}"; do
		[ "$name" = shallow ] || record_ratios "ratio_$name" "$name" shallow
	done
}

report_depth() {
	local name
	local -a bars=()
	cat <<-TEXT
		## depth: a drain of $events events from larger backlogs, and over an archive

		Events of 256 bytes over 10,000 aggregates; the archive has $archived published rows. Memory is the relay's own (RssAnon) at its highest
		during the drain; shared buffers aren't its own.

	TEXT
	table_head '' pending events/s 'ratio to the smallest' 'relay, MB'
	for name in "${names[@]}"; do
		table_row "$name" "${depth[$name]}" "$(spread "$name")" "$([ "$name" = shallow ] || spread "ratio_$name" 2)" "$(spread "${name}_mb" 1)"
		[ "$name" = archive ] || bars+=("${depth[$name]} pending=$name")
	done
	for name in "${names[@]}"; do
		case $name in
			shallow) ;;
			archive) target "drain over $archived published / without" "ratio_$name" at_least 0.9 ;;
			*) target "drain with ${depth[$name]} pending / ${depth[shallow]}" "ratio_$name" at_least 0.9 ;;
		esac
		target "relay's own memory, ${depth[$name]} pending$([ "$name" != archive ] || echo ' and the archive'), MB" "${name}_mb" at_most 64 1
	done
	plot depth "Draining $events events" 'events/s' "${bars[@]}" "over $archived published=archive"
}
