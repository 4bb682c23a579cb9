# shellcheck shell=bash disable=SC2154,SC2034
# From the return of the commit to the stream's acknowledgement: one event at a
# time against js_Publish one at a time, then at fixed rates from several sessions.

one_at_a_time() {
	run_limit --sync "$probes" --headers full
	record sync_p50_us "$(value_of ack_p50_us "$line")"
	record sync_p99_us "$(value_of ack_p99_us "$line")"
}

alone() {
	local name
	fresh_stream
	release_relay
	line=$("$bench/latency" --count "$probes")
	for name in commit_p50_us received_p50_us received_p99_us acked_p50_us acked_p99_us total_p50_us; do
		record "alone_$name" "$(value_of "$name" "$line")"
	done
	hold_relay
}

# at_rate NAME RATE SESSIONS BATCH
at_rate() {
	local name
	fresh_stream
	release_relay
	line=$("$bench/paced" --rate "$2" --sessions "$3" --batch "$4" --warm-up "$2" --count "$(($2 * paced_seconds))")
	for name in rate commit_p50_us acked_p50_us acked_p99_us acked_max_us; do
		record "at_$1_$name" "$(value_of "$name" "$line")"
	done
	hold_relay
}

run_latency() {
	probes=$(pick 300 2000 5000)
	paced_seconds=$(pick 1 3 10)
	fresh_postgres
	new_database postgres
	hold_relay
	each_round in_turns one_at_a_time alone 'at_rate 500 500 4 1' 'at_rate 5000 5000 16 1' 'at_rate batch 5000 4 10'
	record_ratios ratio alone_acked_p50_us sync_p50_us
	for name in at_500_acked_p99 at_5000_acked_p50 at_5000_acked_p99 at_batch_acked_p50 at_batch_acked_p99; do
		record_ms "$name"
	done
}

record_ms() {
	local value
	for value in ${figures[$1_us]}; do
		record "$1_ms" "$(divide "$value" 1000 3)"
	done
}

report_latency() {
	cat <<-TEXT
		## latency: from commit to ack

		Events of 256 bytes, one per transaction. "Commit" is the round trip of the statement that enqueues and commits; the
		next two count from its return. At a rate: open loop, $paced_seconds s a round after one of warm-up. Where the
		rate isn't reached, the machine is full, and the times are those of waiting for the CPU.

	TEXT
	table_head us median '99 % within'
	table_row 'js_PublishMsg round trip' "$(spread sync_p50_us)" "$(spread sync_p99_us)"
	table_row 'alone: commit' "$(spread alone_commit_p50_us)" ''
	table_row 'alone: commit to a NATS subscriber' "$(spread alone_received_p50_us)" "$(spread alone_received_p99_us)"
	table_row 'alone: commit to ack' "$(spread alone_acked_p50_us)" "$(spread alone_acked_p99_us)"
	table_row 'alone: call to ack' "$(spread alone_total_p50_us)" ''
	table_row "500/s from 4 sessions (reached $(median at_500_rate)): commit to ack" "$(spread at_500_acked_p50_us)" "$(spread at_500_acked_p99_us)"
	table_row "5,000/s from 16 sessions (reached $(median at_5000_rate)): commit to ack" "$(spread at_5000_acked_p50_us)" "$(spread at_5000_acked_p99_us)"
	table_row "5,000/s from 4 sessions, 10 a transaction (reached $(median at_batch_rate)): commit to ack" "$(spread at_batch_acked_p50_us)" "$(spread at_batch_acked_p99_us)"
	target 'alone: commit to ack / js_Publish, medians' ratio at_most 3
	target '500/s: p99, ms' at_500_acked_p99_ms below 5 1
	target '5,000/s: reached, events/s' at_5000_rate at_least 4900 0
	target '5,000/s: median, ms' at_5000_acked_p50_ms below 2 1
	target '5,000/s: p99, ms' at_5000_acked_p99_ms below 20 1
	target '5,000/s, 10 a transaction: median, ms' at_batch_acked_p50_ms below 2 1
	target '5,000/s, 10 a transaction: p99, ms' at_batch_acked_p99_ms below 20 1
	plot latency 'Commit to ack, median' us 'js_PublishMsg round trip=sync_p50_us' 'alone=alone_acked_p50_us' \
		'500/s=at_500_acked_p50_us' '5,000/s=at_5000_acked_p50_us' \
		'5,000/s, 10 a transaction=at_batch_acked_p50_us'
}
