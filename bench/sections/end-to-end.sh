# shellcheck shell=bash disable=SC2154,SC2034
# Four writers and the relay together. First the writers alone, as fast as they
# can, with the relay off and the events left unpublished; then, with the relay
# on, writers at 95 % of that: is the backlog flat, and do they reach that rate?

CLIENTS=4
SHARE=0.95
# of the offered rate: what noise may hide
FLAT=0.02

write_scripts() {
	cat >"$WORK/writers_1.sql" <<-'SQL'
		\set a random(0, 2499)
		SELECT outbox.enqueue('order', (:client_id * 2500 + :a)::text, 'placed', :payload);
	SQL
	cat >"$WORK/writers_100.sql" <<-'SQL'
		\set a random(0, 2499)
		SELECT cardinality(outbox.enqueue_many(ARRAY['order'], array_agg((:client_id * 2500 + (:a + i) % 2500)::text), ARRAY['placed'], ARRAY[:payload::jsonb]))
		FROM generate_series(0, 99) i;
	SQL
}

wait_drained() { wait_for 120 "SELECT $(status 'sum(backlog) = 0')" || die 'the backlog is not drained'; }

# For so many seconds, every 0.1 s; prints published and backlog per second.
watch_flow() {
	sql <<-SQL
		CREATE TEMP TABLE sample (at float8, published float8, backlog float8);
		DO \$\$
		DECLARE
			until timestamptz := clock_timestamp() + interval '$1 s';
		BEGIN
			WHILE clock_timestamp() < until LOOP
				INSERT INTO sample SELECT extract(epoch FROM clock_timestamp()), sum(published), sum(backlog)
				FROM outbox.status() WHERE database = current_database();
				COMMIT;
				PERFORM pg_sleep(0.1);
			END LOOP;
		END \$\$;
		SELECT 'published=' || round(regr_slope(published, at)) || ' growth=' || round(regr_slope(backlog, at)) FROM sample;
	SQL
}

# Time that all CPUs have spent idle or waiting for the disk, and all their time, in ticks.
cpu_idle() { awk '/^cpu / { for (i = 2; i <= 9; i++) all += $i; print $5 + $6, all }' /proc/stat; }

# record_idle NAME BEFORE: per cent of the CPUs that nobody used since.
record_idle() {
	record "$1" "$(awk -v before="$2" -v now="$(cpu_idle)" 'BEGIN { split(before, b, " "); split(now, n, " "); printf "%.0f", (n[1] - b[1]) / (n[2] - b[2]) * 100 }')"
}

# together EVENTS-A-TRANSACTION
together() {
	local size=$1 alone rate watcher idle
	set_workers 0
	sql -c CHECKPOINT
	idle=$(cpu_idle)
	run_pgbench "$WORK/writers_$size.sql" "$CLIENTS" -T "$run_seconds"
	record_idle "idle_alone_$size" "$idle"
	alone=$(awk -v tps="$tps" -v n="$size" 'BEGIN { printf "%.0f", tps * n }')
	record "alone_$size" "$alone"
	set_workers 1
	wait_drained
	sql -c CHECKPOINT
	rate=$(awk -v tps="$tps" -v share="$SHARE" 'BEGIN { printf "%.1f", tps * share }')
	{
		sleep 1
		watch_flow "$((run_seconds - 1)).5"
	} >"$WORK/flow" &
	watcher=$!
	idle=$(cpu_idle)
	run_pgbench "$WORK/writers_$size.sql" "$CLIENTS" -T "$((run_seconds + 1))" --rate "$rate"
	record_idle "idle_together_$size" "$idle"
	wait "$watcher"
	record "offered_$size" "$(divide "$rate" "$(divide 1 "$size" 6)" 0)"
	record "written_$size" "$(divide "$tps" "$(divide 1 "$size" 6)" 0)"
	record "published_$size" "$(value_of published "$(cat "$WORK/flow")")"
	record "growth_$size" "$(value_of growth "$(cat "$WORK/flow")")"
	wait_drained
}

run_end_to_end() {
	local size
	run_seconds=$(pick 2 4 20)
	fresh_postgres
	new_database postgres
	write_scripts
	each_round in_turns 'together 1' 'together 100'
	for size in 1 100; do
		record_ratios "reached_$size" "written_$size" "offered_$size"
		record_ratios "share_$size" "growth_$size" "offered_$size"
		record_ratios "kept_up_$size" "published_$size" "offered_$size"
	done
}

report_end_to_end() {
	local size
	cat <<-TEXT
		## end-to-end: writers and relay together

		$CLIENTS clients, events of 256 bytes. The writers alone, relay off, $run_seconds s; then with the relay, at 95 % of that, for $((run_seconds + 1)) s.
		Backlog growth is the slope of samples every 0.1 s, after the first second. Up to $FLAT of the rate counts as flat.

	TEXT
	table_head 'events/s' '1 a transaction' '100 a transaction'
	table_row 'writers alone' "$(spread alone_1)" "$(spread alone_100)"
	table_row 'offered: 95 % of it' "$(spread offered_1)" "$(spread offered_100)"
	table_row 'written, relay on' "$(spread written_1)" "$(spread written_100)"
	table_row 'published meanwhile' "$(spread published_1)" "$(spread published_100)"
	table_row 'growth of the backlog' "$(spread growth_1)" "$(spread growth_100)"
	table_row 'published / offered' "$(spread kept_up_1 2)" "$(spread kept_up_100 2)"
	table_row 'CPU left idle by the writers alone, %' "$(spread idle_alone_1)" "$(spread idle_alone_100)"
	table_row 'CPU left idle with the relay, %' "$(spread idle_together_1)" "$(spread idle_together_100)"
	for size in 1 100; do
		target "$size a transaction: growth of the backlog / offered" "share_$size" at_most "$FLAT" 3
		target "$size a transaction: written / offered" "reached_$size" at_least 0.97
	done
	plot end-to-end 'Writers and relay together' 'events/s' '1: writers alone=alone_1' '1: written, relay on=written_1' \
		'1: published=published_1' '100: writers alone=alone_100' '100: written, relay on=written_100' '100: published=published_100'
}
