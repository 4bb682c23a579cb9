# shellcheck shell=bash disable=SC2154,SC2034
# One aggregate alone on a nats-server that takes atomic batches, 2.12 or newer: against
# js_Publish on the same server. The server is Debian sid's, unpacked, if the system's
# is older; it runs beside the other one, which has nothing to do meanwhile.

start_newer_nats() {
	local server
	find_newer_nats
	server=${NEWER_NATS_SERVER:-}
	[ -n "$server" ] || die 'there is no nats-server that takes atomic batches'
	mkdir "$WORK/newer" "$WORK/newer/bin"
	ln -s "$server" "$WORK/newer/bin/nats-server"
	give_to_postgres "$WORK/newer"
	trap stop_nats EXIT
	PATH=$WORK/newer/bin:$PATH
	NATS_PORT='' NATS_PID=''
	WORK=$WORK/newer start_nats
}

# As the relay has made it, for only such a one takes batches. At first there is none.
fresh_stream() { "$natstool" purge OUTBOX >/dev/null 2>&1 || true; }

run_batches() {
	# shellcheck source=bench/sections/shapes.sh
	. "$WORK/src/bench/sections/shapes.sh"
	events=$(pick 40000 200000 200000)
	sync_count=$(pick 2000 10000 20000)
	single_count=$events
	start_newer_nats
	version=$(nats-server --version)
	fresh_postgres
	new_database postgres
	hold_relay
	each_round in_turns one_at_a_time single_aggregate
	record_ratios ratio single sync
}

report_batches() {
	cat <<-TEXT
		## batches: one aggregate, in atomic batches

		$version; $events events of 256 bytes of one aggregate, from the end of a pause until all are acknowledged and settled.

	TEXT
	table_head '' events/s
	table_row "1 x $events" "$(spread single)"
	table_row 'js_Publish, one at a time' "$(spread sync)"
	target 'single aggregate in batches / js_Publish' ratio at_least 4
	plot batches 'One aggregate, in atomic batches' 'events/s' 'outbox=single' 'js_Publish, one at a time=sync'
}
