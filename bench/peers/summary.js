/*
 * Of what bench/peers/run measured, one line of key=value for each peer and round:
 *
 *   node summary.js FILE
 *
 * prints for each peer "median" and the medians of its rounds (sums of what was lost,
 * twice or out of order), and for each figure with a target "ratio": outbox, and outbox with
 * bare messages, against the best peer. A ratio is taken within a round; its median counts.
 */
import fs from 'node:fs'

const rows = fs.readFileSync(process.argv[2], 'utf8').trim().split('\n')
	.map(line => Object.fromEntries(line.split(' ').map(pair => pair.split('='))))

function median(values) {
	const sorted = values.map(Number).sort((a, b) => a - b)
	const half = sorted.length >> 1
	return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2
}

function merge(key, values) {
	if (key === 'peer' || key === 'events') return values[0]
	if (key.endsWith('kept_up')) return values.includes('no') ? 'no' : 'yes'
	if (/(lost|duplicates|disorder|stored|sent)$/.test(key)) return values.reduce((sum, value) => sum + Number(value), 0)
	return Number(median(values).toFixed(1))
}

for (const peer of new Set(rows.map(row => row.peer))) {
	const own = rows.filter(row => row.peer === peer)
	const keys = [...new Set(own.flatMap(Object.keys))].filter(key => key !== 'round')
	console.log('median ' + keys.map(key => key + '=' + merge(key, own.flatMap(row => row[key] ?? []))).join(' '))
}

/* The figure of a row, undefined if the peer can't do that; what outbox is to reach; whether more is better. */
const latency = rate => row => row[`rate${rate}_kept_up`] === 'yes' ? Number(row[`rate${rate}_p50_us`]) : undefined
const targets = [
	['drain', row => Number(row.drain_per_s), 4, true],
	['cpu', row => Number(row.relay_cpu_us) + Number(row.backend_cpu_us), 1 / 3, false],
	['latency100', latency(100), 1 / 5, false],
	['latency500', latency(500), 1 / 5, false],
]

const isOurs = row => row.peer.startsWith('outbox')

for (const us of new Set(rows.filter(isOurs).map(row => row.peer)))
	for (const [name, figure, target, more] of targets) {
		const ratios = {}
		for (const row of rows) {
			const ours = rows.find(other => other.peer === us && other.round === row.round)
			if (!ours || isOurs(row) || !figure(row) || !figure(ours)) continue
			ratios[row.peer] ??= []
			ratios[row.peer].push(figure(ours) / figure(row))
		}
		const list = Object.entries(ratios).map(([peer, values]) => [peer, median(values)])
			.sort((a, b) => more ? a[1] - b[1] : b[1] - a[1])
		if (list.length === 0) continue
		const [best, ratio] = list[0]
		const reached = more ? ratio >= target : ratio <= target
		console.log(`ratio of=${us} figure=${name} best_peer=${best} ratio=${ratio.toFixed(3)} target=${target.toFixed(3)}` +
			` reached=${reached ? 'yes' : 'no'} ` + list.map(([peer, value]) => `${peer}=${value.toFixed(3)}`).join(' '))
	}
