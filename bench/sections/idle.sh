# shellcheck shell=bash disable=SC2154,SC2034
# A minute without work, with one database and with twenty: transactions in the
# databases, WAL, wake-ups and CPU of the relays and the launcher. Autovacuum,
# which has transactions of its own, is off.

# The launcher's and the relays' processes.
outbox_pids() {
	sql -d template1 -c "SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'outbox%'"
}

# Wake-ups of all threads of these processes so far.
wake_ups() {
	local pid
	for pid in "$@"; do
		cat /proc/"$pid"/task/*/status
	done | awk '/^voluntary_ctxt_switches/ { n += $2 } END { print n }'
}

cpu_of_all() {
	local pid sum=0
	for pid in "$@"; do
		sum=$((sum + $(cpu_us "$pid")))
	done
	echo "$sum"
}

# Looked at from template1, whose transactions don't count.
look() {
	sql -d template1 -c "SELECT sum(xact_commit + xact_rollback) FROM pg_stat_database WHERE datname ~ '^idle'"
}

# Statistics come in late: wait until nothing has moved for some seconds.
come_to_rest() {
	local before='' now quiet=0
	while [ "$quiet" -lt 4 ]; do
		now="$(look) $(sql -d template1 -c 'SELECT pg_current_wal_insert_lsn()')"
		quiet=$((quiet + 1))
		[ "$now" = "$before" ] || quiet=0
		before=$now
		sleep 1
	done
}

# watch_idle DATABASES
watch_idle() {
	local pids before wal cpu woken count
	come_to_rest
	mapfile -t pids < <(outbox_pids)
	count=${#pids[@]}
	[ "$count" -ge "$(($1 + 1))" ] || die "there are $count processes for $1 databases"
	before=$(look)
	wal=$(sql -d template1 -c "SELECT pg_current_wal_insert_lsn() - '0/0'")
	cpu=$(cpu_of_all "${pids[@]}")
	woken=$(wake_ups "${pids[@]}")
	sleep "$idle_seconds"
	woken=$(($(wake_ups "${pids[@]}") - woken))
	cpu=$(($(cpu_of_all "${pids[@]}") - cpu))
	record "statements_$1" "$(($(look) - before))"
	record "wal_$1" "$(($(sql -d template1 -c "SELECT pg_current_wal_insert_lsn() - '0/0'") - wal))"
	record "wake_ups_$1" "$(divide "$woken" "$idle_seconds" 3)"
	record "wake_ups_each_$1" "$(divide "$(divide "$woken" "$idle_seconds" 6)" "$count" 3)"
	record "cpu_$1" "$(divide "$cpu" "$((idle_seconds * 1000))" 3)"
}

# idle_databases FIRST LAST: something was done in each, as in real databases.
idle_databases() {
	local i
	for ((i = $1; i <= $2; i++)); do
		sql -d template1 -c "CREATE DATABASE idle$i"
		sql -d "idle$i" -c 'CREATE EXTENSION outbox' \
			-c "SELECT count(outbox.enqueue('warm', i::text, 'E', '1')) FROM generate_series(1, 100) i" >/dev/null
	done
	PGDATABASE=idle1 wait_for 60 "SELECT count(*) = $2 FROM outbox.status() WHERE state = 'active' AND backlog = 0" ||
		die 'not all databases are drained'
}

run_idle() {
	idle_seconds=$(pick 10 60 60)
	fresh_postgres 'autovacuum = off' 'max_worker_processes = 32' 'wal_level = minimal' 'max_wal_senders = 0'
	idle_databases 1 1
	watch_idle 1
	idle_databases 2 20
	watch_idle 20
}

report_idle() {
	cat <<-TEXT
		## idle: $idle_seconds s without work

		All threads of the relays and of the launcher; autovacuum is off, as its transactions would be counted.

	TEXT
	table_head '' '1 database' '20 databases'
	table_row 'SQL statements' "$(median statements_1)" "$(median statements_20)"
	table_row 'WAL, bytes' "$(median wal_1)" "$(median wal_20)"
	table_row 'wake-ups per second, all processes' "$(median wake_ups_1 2)" "$(median wake_ups_20 2)"
	table_row 'wake-ups per second and process' "$(median wake_ups_each_1 2)" "$(median wake_ups_each_20 2)"
	table_row 'CPU, ms per second, all processes' "$(median cpu_1 2)" "$(median cpu_20 2)"
	target '1 database: SQL statements' statements_1 at_most 0 0
	target '20 databases: SQL statements' statements_20 at_most 0 0
	target '1 database: wake-ups per second, launcher and relay' wake_ups_1 below 1
	target '20 databases: wake-ups per second and process' wake_ups_each_20 below 1
	target '20 databases: wake-ups per second, all 21 processes' wake_ups_20 below 1
}
