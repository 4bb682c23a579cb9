# shellcheck shell=bash disable=SC2154,SC2034
# Events are drained by the relay, and then the same ones replayed from the log into a
# fresh stream; and how long a live event takes beside a replay.

# replay_all ARGUMENTS: leaves events per second in $rate, from the start of its worker,
# which counts them as well, to the end.
replay_all() {
	rate=$(
		sql <<-SQL
			DO \$\$
			DECLARE
				job uuid;
				ended text;
			BEGIN
				SELECT batch_id INTO job FROM outbox.replay(target_stream => 'OUTBOX', $1);
				COMMIT;
				LOOP
					SELECT state INTO ended FROM outbox.replays WHERE batch_id = job;
					EXIT WHEN ended NOT IN ('queued', 'running');
					COMMIT;
					PERFORM pg_sleep(0.05);
				END LOOP;
			END \$\$;
			SELECT CASE WHEN state = 'done' THEN round(done / extract(epoch FROM finished_at - started_at))::text ELSE last_error END
			FROM outbox.replays ORDER BY requested_at DESC LIMIT 1;
		SQL
	)
	[[ $rate =~ ^[0-9]+$ ]] || die "the replay did not end well: $rate"
}

# drain_and_replay EVENTS [SUFFIX of the figures]
drain_and_replay() {
	local first messages
	first=$(sql -c 'SELECT coalesce(max(position), 0) + 1 FROM outbox.events')
	enqueue_backlog "$1" 10000
	fresh_stream
	measure_drain "drain${2:-}" "$1"
	release_relay
	fresh_stream
	replay_all "from_position => $first"
	record "replay${2:-}" "$rate"
	messages=$(stream_messages)
	[ "$messages" = "$1" ] || die "the stream has $messages messages instead of $1"
	hold_relay
}

# live NAME: so long did live events take, 100 in a second, until they were acknowledged.
live() {
	line=$("$bench/paced" --rate 100 --sessions 2 --batch 1 --warm-up 100 --count "$((100 * live_seconds))")
	record "$1_p50_us" "$(value_of acked_p50_us "$line")"
	record "$1_p99_us" "$(value_of acked_p99_us "$line")"
}

live_and_replay() {
	local before after
	release_relay
	fresh_stream
	live alone
	sql -c "SELECT outbox.replay(target_stream => 'OUTBOX', aggregate_type => 'order')" >/dev/null
	wait_for 60 "SELECT bool_or(state = 'running' AND done > 0) FROM outbox.replays" || die 'no replay'
	before=$(sql -c "SELECT done FROM outbox.replays ORDER BY requested_at DESC LIMIT 1")
	live beside
	after=$(sql -c "SELECT done FROM outbox.replays ORDER BY requested_at DESC LIMIT 1")
	sql -c "SELECT outbox.replay_cancel(batch_id) FROM outbox.replays WHERE state = 'running'" >/dev/null
	record beside_replayed "$(divide "$((after - before))" "$((live_seconds + 1))" 0)"
	hold_relay
}

run_replay() {
	events=$(pick 50000 200000 1000000)
	live_seconds=$(pick 5 10 10)
	fresh_postgres
	new_database postgres
	hold_relay
	each_round drain_and_replay "$events"
	record_ratios ratio replay drain
	drain_and_replay "$((rounds * events))" _whole
	record_ratios ratio_whole replay_whole drain_whole
	each_round live_and_replay
	record_ratios p99_ratio beside_p99_us alone_p99_us
}

report_replay() {
	cat <<-TEXT
		## replay: published events, sent again

		$events events of 256 bytes over 10,000 aggregates are drained by the relay and then replayed from the log into an empty stream; the time of
		a replay includes counting its events. Then the same, once, with $((rounds * events)) events: one job, by
		\`outbox.replay(target_stream => 'OUTBOX', from_position => ...)\`. Then 100 live events in a second, alone and beside a replay.

	TEXT
	table_head '' events/s
	table_row 'relay, drain' "$(spread drain)"
	table_row 'replay' "$(spread replay)"
	table_row "relay, drain of $((rounds * events))" "$(spread drain_whole)"
	table_row "replay of $((rounds * events)), one job" "$(spread replay_whole)"
	table_row 'replay beside 100 live events in a second' "$(spread beside_replayed)"
	cat <<-TEXT

		From the return of the commit to the acknowledgement, live events took $(spread alone_p50_us) us (p99 $(spread alone_p99_us) us) alone and
		$(spread beside_p50_us) us (p99 $(spread beside_p99_us) us) beside the replay.
	TEXT
	target 'replay / drain' ratio at_least 0.8
	target "replay / drain, $((rounds * events)) events" ratio_whole at_least 0.8
	target 'live p99 beside a replay / alone' p99_ratio at_most 2
}
