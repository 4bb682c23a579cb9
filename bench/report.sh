# shellcheck shell=bash disable=SC2154
# From figures to text: medians, tables, verdicts, plots, bench/RESULTS.md.

# spread_of [DECIMALS]: of numbers, one a line: "median (min to max)".
spread_of() {
	sort -n | awk -v d="${1:-0}" '{ v[NR] = $1 }
		END { printf "%.*f (%.*f to %.*f)", d, NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2, d, v[1], d, v[NR] }'
}

median_of() { spread_of "$@" | cut -d' ' -f1; }

# spread NAME [DECIMALS], median NAME [DECIMALS]: of a figure's rounds.
spread() { tr ' ' '\n' <<<"${figures[$1]}" | grep . | spread_of "${2:-0}"; }

median() { spread "$@" | cut -d' ' -f1; }

# table HEADING... -- then rows by table_row
table_head() {
	local cell
	printf '|'
	for cell in "$@"; do printf ' %s |' "$cell"; done
	printf '\n|'
	for cell in "$@"; do printf -- '---|'; done
	printf '\n'
}

table_row() {
	local cell
	printf '|'
	for cell in "$@"; do printf ' %s |' "$cell"; done
	printf '\n'
}

# target TEXT FIGURE at_least|at_most|below GOAL [DECIMALS]: one line of the table
# of targets, by the figure's median.
target() {
	local value
	value=$(median "$2" 4)
	table_row "$section" "$1" "${3//_/ } $4" "$(spread "$2" "${5:-2}")" \
		"$(awk -v v="$value" -v how="$3" -v goal="$4" 'BEGIN {
			v += 0; goal += 0
			if (how == "at_least" ? v >= goal : how == "at_most" ? v <= goal : v < goal) print "reached"
			else if (goal == 0) printf "missed by %g\n", v
			else if (how != "at_least" && v > 2 * goal) printf "missed: %.3g times the goal\n", v / goal
			else printf "missed by %.*f %%\n", (d = (how == "at_least" ? goal - v : v - goal) / goal * 100) < 10, d }')" \
		>>"$WORK/report/$section.targets"
}

# condition TEXT GOAL MEASURED TRUE-OR-FALSE: a target that is no comparison of numbers.
condition() {
	table_row "$section" "$1" "$2" "$3" "$([ "$4" = true ] && echo reached || echo missed)" >>"$WORK/report/$section.targets"
}

# plot NAME TITLE UNIT LABEL=FIGURE...: horizontal bars of medians, with whiskers.
# Prints the line that shows it.
plot() {
	local name=$1 title=$2 unit=$3 bar
	mkdir -p "$WORK/report/plots"
	for bar in "${@:4}"; do
		printf '%s\t%s\n' "${bar%=*}" "$(tr ' ' '\n' <<<"${figures[${bar##*=}]}" | grep . | sort -n | tr '\n' ' ')"
	done | awk -v title="$title" -v unit="$unit" -f "$WORK/src/bench/plot.awk" >"$WORK/report/plots/$name.svg"
	printf '\n![%s](plots/%s.svg)\n' "$title" "$name"
}

commit_id() {
	local id
	if ! id=$(git -C "$ROOT" rev-parse --short HEAD 2>/dev/null); then
		echo "unknown"
	elif git -C "$ROOT" diff --quiet HEAD -- src sql; then
		echo "$id"
	else
		echo "$id with changes"
	fi
}

# Where the section's figures come from, below its heading.
provenance() {
	echo "\`bench/run$([ "$mode" = normal ] || echo " --$mode") $section\`, $(date -u +%Y-%m-%d), commit $(commit_id), $rounds rounds."
}

# kept_targets SECTION, kept_section SECTION: of an earlier report, which this one completes.
kept_targets() {
	[ ! -e "$output" ] || awk -v start="| $1 | " '/^## / { inside = $0 == "## Targets" } inside && index($0, start) == 1' "$output"
}

kept_section() {
	[ ! -e "$output" ] || awk -v name="$1" '/^## / { inside = $0 ~ "^## " name "(:|$)" } inside' "$output"
}

write_report() {
	local section
	cat <<-TEXT
		# Results of bench/run

		What is compared takes turns within one run, in alternating order. Figures are medians of the rounds, with the lowest and
		the highest; a ratio is taken round by round. Each section says with which command it was measured.

		| machine | |
		|---|---|
		| CPU | $(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1) |
		| memory | $(awk '/^MemTotal/ { printf "%d GB", $2 / 1048576 + 0.5 }' /proc/meminfo) |
		| system | $(. /etc/os-release && echo "$PRETTY_NAME"), Linux $(uname -r | cut -d- -f1), data on $(stat -f -c %T "$WORK") |
		| PostgreSQL | $("$PG_CONFIG" --version | cut -d' ' -f2), fsync and synchronous_commit on, shared_buffers 512 MB |
		| NATS | $(nats-server --version | sed 's/: v/ /'), libnats $(pkg-config --modversion libnats 2>/dev/null || echo unknown), file storage, one replica |

		Clients, PostgreSQL, relay and nats-server share the CPUs.

		## Targets

	TEXT
	table_head section target goal 'measured' verdict
	for section in "${all[@]}"; do
		if [ -e "$WORK/report/$section.md" ]; then
			cat "$WORK/report/$section.targets" 2>/dev/null || true # one may have none
		elif [[ " ${failed[*]} " == *" $section "* ]]; then
			table_row "$section" '' '' '' 'not measured: it failed'
		else
			kept_targets "$section"
		fi
	done
	for section in "${all[@]}"; do
		if [ -s "$WORK/report/$section.md" ]; then
			printf '\n'
			awk -v from="$(provenance)" 'NR == 1 { print; print ""; print from; next } { print }' "$WORK/report/$section.md"
		else
			printf '\n'
			kept_section "$section"
		fi
	done | cat -s
}
