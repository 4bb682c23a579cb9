# shellcheck shell=bash disable=SC2154,SC2034
# A business transaction (an UPDATE and an INSERT) with outbox.enqueue(), the
# same with a hand-written INSERT into a plain outbox table, and the same with
# neither, from which the WAL of the event alone follows. Nobody publishes
# meanwhile, on either side.

CLIENTS=(1 4 16)

make_business() {
	sql <<-'SQL'
		CREATE TABLE account (id integer PRIMARY KEY, balance bigint NOT NULL) WITH (fillfactor = 50);
		INSERT INTO account SELECT i, 0 FROM generate_series(1, 100000) i;
		CREATE TABLE entry (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account integer NOT NULL, amount integer NOT NULL);
		VACUUM ANALYZE account;
	SQL
}

# write_script NAME STATEMENT
write_script() {
	cat >"$WORK/$1.sql" <<-SQL
		\set a random(1, 100000)
		BEGIN;
		UPDATE account SET balance = balance + 5 WHERE id = :a;
		INSERT INTO entry (account, amount) VALUES (:a, 5);
		$2
		COMMIT;
	SQL
}

# run_variant NAME CLIENTS
run_variant() {
	run_pgbench "$WORK/$1.sql" "$2" -T "$run_seconds"
	record "$1_$2" "$tps"
}

# WAL of so many transactions, without the full-page images that depend on how
# long ago the last checkpoint was.
measure_wal() {
	local before
	before=$(wal_position)
	run_pgbench "$WORK/$1.sql" 4 -t "$wal_transactions"
	record "$1_wal" "$(divide "$(($(wal_position) - before))" "$transactions" 1)"
}

full_page_writes() {
	sql -c "ALTER SYSTEM SET full_page_writes = $1" -c 'SELECT pg_reload_conf()' >/dev/null
	# The checkpointer tells the others.
	wait_for 30 "SELECT setting = '$1' FROM pg_settings WHERE name = 'full_page_writes'"
	sql -c CHECKPOINT
}

enqueue_round() {
	local clients
	sql -c CHECKPOINT
	# What the checkpoint makes to be written in full is written here.
	for variant in none plain outbox; do
		run_pgbench "$WORK/$variant.sql" 4 -T 1
	done
	for clients in "${CLIENTS[@]}"; do
		in_turns "run_variant plain $clients" "run_variant outbox $clients"
	done
	run_variant none 4
}

wal_round() { in_turns 'measure_wal none' 'measure_wal plain' 'measure_wal outbox'; }

run_enqueue() {
	local clients variant
	run_seconds=$(pick 1 3 6)
	wal_transactions=$(pick 500 2000 5000)
	fresh_postgres 'outbox.workers = 0' 'autovacuum = off'
	sql -c 'CREATE EXTENSION outbox'
	make_business
	make_plain_table
	write_script none ''
	write_script plain "INSERT INTO plain_outbox (aggregate_type, aggregate_id, event_type, payload) VALUES ('account', :a::text, 'account.changed', :payload);"
	write_script outbox "SELECT outbox.enqueue('account', :a::text, 'account.changed', :payload);"
	each_round enqueue_round
	full_page_writes off
	each_round wal_round
	for clients in "${CLIENTS[@]}"; do
		record_ratios "ratio_$clients" "outbox_$clients" "plain_$clients"
	done
	record_differences plain_event_wal plain_wal none_wal
	record_differences outbox_event_wal outbox_wal none_wal
	record_ratios ratio_wal outbox_event_wal plain_event_wal
}

report_enqueue() {
	local clients
	cat <<-TEXT
		## enqueue: a business transaction with an event

		An UPDATE, an INSERT and the event of 256 bytes, prepared statements, $run_seconds s per client count and round, nobody
		publishing. Plain: INSERT into a table with a bigint key and a partial index of the pending rows.

	TEXT
	table_head clients 'outbox.enqueue, tx/s' 'plain INSERT, tx/s' ratio
	for clients in "${CLIENTS[@]}"; do
		table_row "$clients" "$(spread "outbox_$clients")" "$(spread "plain_$clients")" "$(spread "ratio_$clients" 2)"
		target "outbox.enqueue / plain INSERT, $clients at once" "ratio_$clients" at_least 1.0
	done
	target 'WAL bytes of an event, outbox / plain' ratio_wal at_most 0.8
	cat <<-TEXT

		Without any event: $(spread none_4) tx/s at 4 clients. WAL of $((4 * wal_transactions)) transactions a round, without full-page images:
		$(spread outbox_wal) bytes each with outbox.enqueue, $(spread plain_wal) with the plain INSERT, $(spread none_wal) with neither;
		so an event costs $(spread outbox_event_wal) and $(spread plain_event_wal) bytes.
	TEXT
	plot enqueue 'Business transactions with an event' 'transactions/s' \
		'outbox, 1 client=outbox_1' 'plain, 1 client=plain_1' 'outbox, 4 clients=outbox_4' 'plain, 4 clients=plain_4' \
		'outbox, 16 clients=outbox_16' 'plain, 16 clients=plain_16'
}
