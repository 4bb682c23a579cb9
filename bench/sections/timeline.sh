# shellcheck shell=bash disable=SC2154,SC2034,SC2016
# Where the microseconds between enqueue and ledger go: one event at a time, watched by the
# kernel's uprobes and system call events in backend, relay and nats-server. Needs root and tracefs.

# The places that are looked at, in the order in which an event passes them:
# name, file, function, p for its beginning or r for its return.
places() {
	local library server=$PG_BIN/postgres
	library=$("$PG_CONFIG" --pkglibdir)/outbox.so
	cat <<-END
		enqueue $library outbox_enqueue_text p
		enqueued $library outbox_enqueue_text r
		flush $server XLogFlush p
		flushed $server XLogFlush r
		told $library outbox_feed_xact_callback r
		woken $server WaitEventSetWait r
		read $library outbox_store_read p
		got $library outbox_store_read r
		publish $library broker_publish p
		published $library broker_publish r
		outcome $library outbox_outcome_take p
		settle $library outbox_store_settle p
		settled $library outbox_store_settle r
	END
}

# Where a function is in its file.
offset_in_file() {
	local address
	address=$({ nm "$1"; nm -D "$1"; } 2>/dev/null | awk -v name="$2" '$2 ~ /^[tT]$/ && $3 == name { print $1; exit }')
	[ -n "$address" ] || die "no function $2 in $1"
	readelf -lW "$1" | awk -v address="$address" '
		function number(text,    i, n) {
			sub(/^0x/, "", text)
			for (i = 1; i <= length(text); i++)
				n = 16 * n + index("0123456789abcdef", substr(text, i, 1)) - 1
			return n
		}
		$1 == "LOAD" && number($3) <= number(address) && number(address) < number($3) + number($6) {
			printf "0x%x\n", number(address) - number($3) + number($2)
		}'
}

start_tracing() {
	local name file function how
	group=outbox$$
	mkdir -p "$WORK/tracefs"
	mount -t tracefs none "$WORK/tracefs" || die 'no tracefs'
	trace=$WORK/tracefs/instances/$group
	trap 'stop_tracing' EXIT
	places | while read -r name file function how; do
		printf '%s:%s/%s %s:%s\n' "$how" "$group" "$name" "$file" "$(offset_in_file "$file" "$function")"
	done >"$WORK/places"
	cat "$WORK/places" >>"$WORK/tracefs/uprobe_events"
	mkdir "$trace"
	echo mono >"$trace/trace_clock"
	echo 1 >"$trace/options/event-fork"
	echo 8192 >"$trace/buffer_size_kb"
}

# The processes whose events are kept: their threads, and those to come.
trace_processes() {
	local pid event
	for pid; do
		printf '%s\n' "/proc/$pid/task/"*
	done | sed 's/.*\///' >"$WORK/tasks"
	cat "$WORK/tasks" >"$trace/set_event_pid"
	echo 1 >"$trace/events/$group/enable"
	for event in enter_sendto exit_recvfrom exit_read; do
		echo 1 >"$trace/events/syscalls/sys_$event/enable"
	done
}

stop_tracing() {
	rmdir "$trace"
	sed "s/^[pr]:\([^ ]*\) .*/-:\1/" "$WORK/places" >>"$WORK/tracefs/uprobe_events"
	umount "$WORK/tracefs"
}

# From a trace: for each event the microseconds between its places, a line per step and event.
# relay: the threads of the relay. What other events of the same names mean is told by
# the process and by what came before.
steps_of() {
	awk -v relay="$2" '
		BEGIN {
			split(relay, list, " ")
			for (i in list)
				of_relay[list[i]] = 1
			count = split("enqueue enqueued flush flushed told woken read got publish published sent received acked outcome", place, " ")
		}
		function finish(    i) {
			if (("outcome" in at) && ("acked" in at)) {
				for (i = 2; i <= count; i++)
					print place[i], at[place[i]] - at[place[i - 1]]
				print "answered", at["answered"] - at["flushed"]
				print "all", at["outcome"] - at["enqueue"]
				print "after_commit", at["outcome"] - at["told"]
			}
			delete at
			passed = "enqueue"
		}
		# the first of its name after the place before it
		function pass(before, name) {
			if (passed == before) {
				at[name] = now
				passed = name
			}
		}
		{
			match($0, /-[0-9]+ +\[/)
			task = substr($0, RSTART + 1)
			sub(/ .*/, "", task)
			match($0, /[0-9]+\.[0-9]+: /)
			now = substr($0, RSTART, RLENGTH - 2) * 1000000
			rest = substr($0, RSTART + RLENGTH)
			name = rest
			sub(/[:( ].*/, "", name)
		}
		name == "enqueue" { finish(); backend = task; at[name] = now; next }
		task == backend && name == "enqueued" { pass("enqueue", name) }
		task == backend && name == "flush" { pass("enqueued", name) }
		task == backend && name == "flushed" { pass("flush", name) }
		task == backend && name == "told" { pass("flushed", name) }
		task == backend && name == "sys_sendto" && ("flushed" in at) && !("answered" in at) { at["answered"] = now }
		task in of_relay && name == "woken" { pass("told", name) }
		# what is read in vain first is part of the wake-up
		task in of_relay && name == "read" && (passed == "woken" || passed == "got") { at[name] = now; passed = name }
		task in of_relay && name == "got" { pass("read", name) }
		task in of_relay && name == "publish" { pass("got", name) }
		task in of_relay && name == "published" { pass("publish", name) }
		task in of_relay && name == "sys_sendto" { pass("published", "sent") }
		/nats-server-/ && name == "sys_read" && rest !~ /0x[0-9a-f]?[0-9a-f]?$|0xf{8}/ { pass("sent", "received") }
		task in of_relay && name == "sys_recvfrom" && rest !~ /0xffff/ { pass("received", "acked") }
		task in of_relay && name == "outcome" { pass("acked", name) }
		task in of_relay && name == "settle" { settle = now }
		task in of_relay && name == "settled" { print name, now - settle }
		END { finish() }' "$1"
}

watch_events() {
	local relay step
	relay=$(relay_pid)
	fresh_stream
	trace_processes "$(head -1 "$PG_DATA/postmaster.pid")" "$relay" "$NATS_PID"
	echo >"$trace/trace"
	"$bench/latency" --count "$probes" >/dev/null
	echo 0 >"$trace/events/enable"
	cat "$trace/trace" >"$WORK/trace"
	steps_of "$WORK/trace" "$(cd "/proc/$relay/task" && echo *)" >"$WORK/steps"
	for step in "${steps[@]}"; do
		record "$step" "$(awk -v step="$step" '$1 == step { print $2 }' "$WORK/steps" | median_of)"
	done
	record seen "$(grep -c '^all ' "$WORK/steps")"
}

run_timeline() {
	probes=$(pick 300 1000 3000)
	steps=(enqueued flush flushed answered told woken read got publish published sent received acked outcome settled after_commit all)
	fresh_postgres
	new_database postgres
	start_tracing
	each_round watch_events
}

step_row() { table_row "$1" "$2" "$(spread "$3")"; }

report_timeline() {
	cat <<-TEXT
		## timeline: where the microseconds of one event go

		$probes events a round, one at a time, each with its own transaction; the median of each step. Watched by uprobes in backend and relay, and by
		events of system calls; what the watching costs, 1 to 2 us for each place, is in it.

	TEXT
	table_head who what us
	step_row backend '`enqueue_text()`' enqueued
	step_row backend 'commit, up to the flush of its WAL' flush
	step_row backend 'WAL to the disk' flushed
	step_row backend 'visible; the relay is told' told
	step_row kernel 'until the relay runs' woken
	step_row relay 'the loop, up to reading' read
	step_row relay 'read: transaction, snapshot, scan' got
	step_row relay 'envelope, claim' publish
	step_row relay 'publish: headers, into the buffer of the client' published
	step_row relay 'until it is sent' sent
	step_row kernel 'until nats-server has it' received
	step_row nats-server 'stored; the acknowledgement is on its way to the relay' acked
	step_row relay 'through the thread of the client, to the outcome' outcome
	step_row relay 'told until outcome' after_commit
	step_row all 'called until outcome' all
	printf '\nBeside that: the client has its answer %s us after the flush; the ledger is written once for all events that were acknowledged\n' "$(spread answered)"
	printf 'since the last time, in %s us.\n\n' "$(spread settled)"
}
