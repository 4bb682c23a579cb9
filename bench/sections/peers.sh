# shellcheck shell=bash disable=SC2154,SC2034
# What users pick instead, the best of each kind, by bench/peers/run on servers of its
# own; bench/peers/README.md tells what each is and how it was tuned. That program
# alone measures all of them.

run_peers() {
	local line peer number
	read -ra peers <<<"$(pick 'outbox outbox-bare polling-inbox logical-inbox' 'outbox outbox-bare polling-inbox pto-polling pto-replication logical-inbox pgq-inbox' \
		'outbox outbox-bare polling-inbox pto-polling pto-replication logical-inbox pgq-inbox')"
	peer_events=$(pick 20000 100000 100000)
	"$WORK/src/bench/peers/run" --rounds "$rounds" --events "$peer_events" --seconds "$(pick 3 6 10)" --output "$WORK/peers" "${peers[@]}"
	for ((number = 1; number <= rounds; number++)); do
		for peer in "${peers[@]}"; do
			line=$(grep "^peer=$peer round=$number " "$WORK/peers")
			record "$peer" "$(value_of drain_per_s "$line")"
			record "${peer}_cpu" "$(awk -v a="$(value_of relay_cpu_us "$line")" -v b="$(value_of backend_cpu_us "$line")" 'BEGIN { print a + b }')"
			# one that falls behind has no latency: so long that it's nobody's best
			if [ "$(value_of rate500_kept_up "$line")" = yes ]; then
				record "${peer}_p50" "$(divide "$(value_of rate500_p50_us "$line")" 1000 3)"
			else
				record "${peer}_p50" 9999
			fi
		done
	done
	record_best best_drain max ''
	record_best best_cpu min _cpu
	record_best best_p50 min _p50
	for peer in outbox outbox-bare; do
		record_ratios "ratio_drain_$peer" "$peer" best_drain
		record_ratios "ratio_cpu_$peer" "${peer}_cpu" best_cpu
		record_ratios "ratio_p50_$peer" "${peer}_p50" best_p50
	done
}

# record_best NAME min|max SUFFIX: of all peers, round by round.
record_best() {
	local i peer
	local -a values
	for ((i = 1; i <= rounds; i++)); do
		record "$1" "$(for peer in "${peers[@]:2}"; do cut -d' ' -f"$i" <<<"${figures[$peer$3]}"; done |
			sort -n | if [ "$2" = min ]; then head -n 1; else tail -n 1; fi)"
	done
}

report_peers() {
	local peer latency
	local -a bars=()
	cat <<-TEXT
		## peers: what users pick instead

		On the same servers, $peer_events events of 256 bytes drained (pg-transactional-outbox: 5,000), and then 500 a second, one in a transaction. CPU is
		that of relay and its sessions. The others send an event's id and payload, as outbox-bare does; outbox sends ten headers more. [peers/README.md](peers/README.md) tells how each was tuned, [docs/comparison.md](../docs/comparison.md) what the figures mean.

	TEXT
	table_head '' 'drain, events/s' 'CPU, us an event' 'commit to stream at 500/s, median, ms'
	for peer in "${peers[@]}"; do
		latency=$(spread "${peer}_p50" 2)
		[[ $latency != *9999* ]] || latency='falls behind'
		table_row "$peer" "$(spread "$peer")" "$(spread "${peer}_cpu" 1)" "$latency"
		bars+=("$peer=$peer")
	done
	for peer in outbox outbox-bare; do
		target "drain, $peer / best peer" "ratio_drain_$peer" at_least 4
		target "CPU per event, $peer / best peer" "ratio_cpu_$peer" at_most 0.333
		target "median latency at 500/s, $peer / best peer" "ratio_p50_$peer" at_most 0.2
	done
	plot peers 'Draining, outbox and others' 'events/s' "${bars[@]}"
}
