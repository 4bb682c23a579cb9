# shellcheck shell=bash disable=SC2154,SC2034
# What the sections of bench/run share: figures and their targets, fresh
# servers, backlogs, drains, pgbench. report.sh turns figures into text.
#
# A section is a file that defines run_NAME, which measures and records, and
# report_NAME, which prints Markdown and names the targets. Both run in a shell
# of their own, with $rounds, $mode and the tools' paths set.

# ----------------------------------------------------------------- figures

# Every figure has a name and one value per round.
declare -A figures=()

record() {
	figures[$1]+="$2 "
	printf '  %-28s %s\n' "$1" "$2"
}

# value_of KEY LINE: from "key=value key=value".
value_of() { sed -n "s/.*\b$1=\([^ ]*\).*/\1/p" <<<"$2"; }

divide() { awk -v a="$1" -v b="$2" -v d="${3:-2}" 'BEGIN { printf "%.*f", d, b == 0 ? 0 : a / b }'; }

# record_ratios NAME ABOVE BELOW: round by round, so that what slows both down cancels out.
record_ratios() {
	local name=$1 i
	local -a above below
	read -ra above <<<"${figures[$2]}"
	read -ra below <<<"${figures[$3]}"
	for ((i = 0; i < ${#above[@]}; i++)); do
		record "$name" "$(divide "${above[i]}" "${below[i]}" 3)"
	done
}

# record_differences NAME OF MINUS: round by round.
record_differences() {
	local name=$1 i
	local -a of minus
	read -ra of <<<"${figures[$2]}"
	read -ra minus <<<"${figures[$3]}"
	for ((i = 0; i < ${#of[@]}; i++)); do
		record "$name" "$(awk -v a="${of[i]}" -v b="${minus[i]}" 'BEGIN { print a - b }')"
	done
}

# pick QUICK NORMAL LARGE: the size that fits the mode.
pick() {
	case $mode in
		quick) printf '%s' "$1" ;;
		large) printf '%s' "$3" ;;
		*) printf '%s' "$2" ;;
	esac
}

# ------------------------------------------------------------------ rounds

# each_round COMMAND...: sets $round.
each_round() {
	for ((round = 1; round <= rounds; round++)); do
		say "  round $round of $rounds"
		"$@"
	done
}

# in_turns "COMMAND ARGUMENT..."...: first to last, and last to first in the next round.
in_turns() {
	local i
	local -a words
	for ((i = 1; i <= $#; i++)); do
		if ((round % 2)); then
			read -ra words <<<"${!i}"
		else
			local reverse=$(($# - i + 1))
			read -ra words <<<"${!reverse}"
		fi
		"${words[@]}"
	done
}

# --------------------------------------------------------------- processes

# Microseconds of CPU that a process has used.
cpu_us() {
	awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) * 1000000 / hz }' "/proc/$1/stat"
}

memory_kb() { sed -n "s/^$2:[^0-9]*\([0-9]*\) kB/\1/p" "/proc/$1/status"; }

# watch_memory PID FILE: until the process or the watcher ends, keeps in FILE the
# most memory of its own that was seen: without shared buffers, which are
# everybody's, and without the programs' text.
watch_memory() {
	local now most=0
	while now=$(memory_kb "$1" RssAnon 2>/dev/null) && [ -n "$now" ]; do
		if [ "$now" -gt "$most" ]; then
			most=$now
			echo "$most" >"$2"
		fi
		sleep 0.2
	done
}

# ----------------------------------------------------------------- servers

# A new cluster, with these settings besides the common ones. Checkpoints come
# when a section asks for them, so that none falls into one side only.
fresh_postgres() {
	stop_postgres
	rm -rf "$PG_DATA"
	start_postgres "outbox.nats_url = '$NATS_URL'" "outbox.max_in_flight = $WINDOW" 'shared_buffers = 512MB' \
		'max_wal_size = 16GB' 'checkpoint_timeout = 1h' 'fsync = on' 'synchronous_commit = on' 'jit = off' "$@"
}

# The stream as the relay would make it, empty.
fresh_stream() {
	"$natstool" delete OUTBOX >/dev/null 2>&1 || true
	"$natstool" create OUTBOX 'outbox.>' >/dev/null
}

stream_messages() { value_of messages "$("$natstool" info OUTBOX)"; }

# set_workers N: relays per database, and waits until so many share the aggregates.
set_workers() {
	sql -c "ALTER SYSTEM SET outbox.workers = $1" -c 'SELECT pg_reload_conf()' >/dev/null
	wait_for 30 "SELECT count(*) FILTER (WHERE pid IS NOT NULL AND (slots > 0 OR $1 = 0)) = $1
		FROM outbox.status() WHERE database = current_database()" || die "there are not $1 relays"
}

# One row, of all relays of this database together.
status() { printf "(SELECT %s FROM outbox.status() WHERE database = current_database())" "$1"; }

# new_database NAME: with the extension and a relay, and the one in use from now on.
new_database() {
	[ "$1" = postgres ] || PGDATABASE=postgres sql -c "CREATE DATABASE $1"
	export PGDATABASE=$1
	sql -c 'CREATE EXTENSION outbox'
	wait_for 30 "SELECT $(status "bool_and(state = 'active')")" || die "no relay in database $1"
}

relay_pid() { sql -c "SELECT $(status 'min(pid)')"; }

# ------------------------------------------------------------ backlogs, drains

# From here on the relay reads what is enqueued and sends nothing.
hold_relay() {
	sql -c 'SELECT outbox.pause()' >/dev/null
	wait_for 60 "SELECT $(status "bool_and(state = 'paused') AND sum(in_flight) = 0")" || die 'the relay does not pause'
}

release_relay() { sql -c 'SELECT outbox.resume()' >/dev/null; }

# Until the relays have read what they have room for: none of them uses the CPU.
wait_until_read() {
	local pids pid before=-1 now=0
	mapfile -t pids < <(sql -c 'SELECT pid FROM outbox.status() WHERE database = current_database() AND pid IS NOT NULL')
	until [ "$now" = "$before" ]; do
		before=$now
		now=0
		sleep 0.2
		for pid in "${pids[@]}"; do
			now=$((now + $(cpu_us "$pid")))
		done
	done
}

# enqueue_part EVENTS AGGREGATES SIZE TYPE FIRST STEP: 5,000 events per transaction.
enqueue_part() {
	sql <<-SQL
		DO \$\$
		BEGIN
			FOR n IN $5 .. $1 - 1 BY 5000 * $6 LOOP
				PERFORM outbox.enqueue_text('$4', (i % $2)::text, 'placed', repeat('x', $3))
				FROM generate_series(n, least(n + 5000 * $6, $1) - 1, $6) i;
				COMMIT;
			END LOOP;
		END \$\$;
	SQL
}

# enqueue_backlog EVENTS AGGREGATES [SIZE [TYPE]]: aggregates in turn; by two sessions,
# each with its own half of them, if there are several. The relays have read what they
# can when it returns. Leaves events per second in $enqueue_rate.
enqueue_backlog() {
	local start end other
	start=$(date +%s%N)
	if (($2 % 2 == 0)); then
		enqueue_part "$1" "$2" "${3:-256}" "${4:-order}" 1 2 &
		other=$!
		enqueue_part "$1" "$2" "${3:-256}" "${4:-order}" 0 2
		wait "$other"
	else
		enqueue_part "$1" "$2" "${3:-256}" "${4:-order}" 0 1
	fi
	end=$(date +%s%N)
	enqueue_rate=$(divide "$(($1 * 1000))" "$(((end - start) / 1000000))" 0)
	sql -c CHECKPOINT
	wait_until_read
}

# drain EVENTS: lets the held relay go, and leaves in $seconds the time from there
# until so many are acknowledged and settled. Others may still be pending.
drain() {
	seconds=$(
		sql <<-SQL
			DO \$\$
			DECLARE
				start timestamptz;
				published_before numeric;
				done numeric;
			BEGIN
				SELECT sum(published) INTO published_before FROM outbox.status() WHERE database = current_database();
				start := clock_timestamp();
				PERFORM outbox.resume();
				COMMIT;
				LOOP
					SELECT sum(published) - published_before INTO done FROM outbox.status() WHERE database = current_database();
					EXIT WHEN done >= $1;
					IF clock_timestamp() > start + interval '10 minutes' THEN
						RAISE 'only % events were published', done;
					END IF;
					COMMIT;
					PERFORM pg_sleep(0.01);
				END LOOP;
				PERFORM set_config('bench.seconds', extract(epoch FROM clock_timestamp() - start)::text, false);
				PERFORM set_config('bench.done', done::text, false);
			END \$\$;
			SELECT current_setting('bench.seconds') || ' ' || current_setting('bench.done');
		SQL
	)
	drained=${seconds#* }
	seconds=${seconds% *}
}

# measure_drain NAME EVENTS: a rate; the relay is held again afterwards.
measure_drain() {
	drain "$2"
	record "$1" "$(divide "$drained" "$seconds" 0)"
	hold_relay
}

# run_limit OPTION...: bench/build/limit into an empty stream; leaves its result in $line and
# the microseconds of CPU that it used in $cpu. The relay is held meanwhile.
run_limit() {
	fresh_stream
	cpu=$({ TIMEFORMAT='%U %S'; time "$bench/limit" -s "$NATS_URL" --stream OUTBOX "$@" >"$WORK/limit.out" 2>&3; } 3>&2 2>&1)
	cpu=$(awk '{ print ($1 + $2) * 1000000 }' <<<"$cpu")
	line=$(cat "$WORK/limit.out")
}

# ---------------------------------------------------------- tables, pgbench

# An outbox table as a careful person writes it: a sequence as key, an id for
# consumers without an index, the pending rows in a partial index.
make_plain_table() {
	sql <<-'SQL'
		CREATE TABLE plain_outbox (
			id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
			event_id uuid NOT NULL DEFAULT gen_random_uuid(),
			aggregate_type text NOT NULL,
			aggregate_id text NOT NULL,
			event_type text NOT NULL,
			payload jsonb NOT NULL,
			created_at timestamptz NOT NULL DEFAULT now(),
			published_at timestamptz
		);
		CREATE INDEX plain_outbox_pending ON plain_outbox (id) WHERE published_at IS NULL;
	SQL
}


# A JSON payload of 256 bytes.
JSON_PAYLOAD="{\"lines\": [1, 2, 3], \"total\": 12.50, \"padding\": \"$(printf 'x%.0s' {1..186})\", \"currency\": \"EUR\"}"

# run_pgbench SCRIPT CLIENTS OPTION...: leaves $tps and $transactions.
run_pgbench() {
	local output
	output=$("$PG_BIN/pgbench" -n -M prepared -f "$1" -c "$2" -j "$(($2 < 2 ? $2 : 2))" -D "payload=$JSON_PAYLOAD" "${@:3}" 2>&1) ||
		die "pgbench: $output"
	grep -q 'number of failed transactions: 0 ' <<<"$output" || die "pgbench: $output"
	tps=$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' <<<"$output")
	transactions=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' <<<"$output")
}

wal_position() { sql -c "SELECT pg_current_wal_insert_lsn() - '0/0'"; }
