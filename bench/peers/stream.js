/*
 * The yardstick of bench/peers/run: what is in the stream.
 *
 *   node stream.js create             makes the stream OUTBOX anew
 *   node stream.js wait COUNT SILENCE [LIMIT]    until it has that many messages, or none came for
 *                                     SILENCE seconds, or LIMIT is over; prints how many it has
 *   node stream.js check [--log FILE] [--warm-up SECONDS] [--go NANOSECONDS]
 *
 * check compares the stream with the events that were committed: the row of each
 * aggregate in bench.aggregate counts its events, and each event's payload has its
 * aggregate and number. Prints one line of key=value:
 *   lost, duplicates, disorder    events that are missing, copies beyond the first,
 *                                 events behind a later one of their aggregate
 *   per_s                         from the first message's arrival (or from --go) to the last's
 *   p50_us, p99_us                from the return of the commit, as pgbench logged it in
 *                                 FILE, to the stream's own time stamp; one clock, one machine
 */
import fs from 'node:fs'
import pg from 'pg'
import { connect } from '@nats-io/transport-node'
import { jetstream, jetstreamManager } from '@nats-io/jetstream'

const STREAM = 'OUTBOX'
const [command, ...rest] = process.argv.slice(2)
const connection = await connect({ servers: process.env.NATS_URL })
const manager = await jetstreamManager(connection)
const countMessages = async () => (await manager.streams.info(STREAM)).state.messages

async function create() {
	await manager.streams.delete(STREAM).catch(() => {})
	await manager.streams.add({ name: STREAM, subjects: ['outbox.>'] })
}

async function wait() {
	const [wanted, silence, limit = Infinity] = rest.map(Number)
	const start = Date.now()
	let changed = start
	let count
	for (;;) {
		const before = count
		count = await countMessages()
		if (count !== before) changed = Date.now()
		if (count >= wanted || Date.now() - changed > silence * 1000 || Date.now() - start > limit * 1000) break
		await new Promise(resolve => setTimeout(resolve, 200))
	}
	console.log(count)
}

/* What pgbench logged: for client c's n-th transaction when its commit returned, in microseconds. */
function readCommits(file, warmUp) {
	const commits = new Map()
	const counts = new Map()
	let first
	for (const line of fs.readFileSync(file, 'utf8').trim().split('\n')) {
		const field = line.split(' ')
		const at = Number(field[4]) * 1e6 + Number(field[5])
		const number = (counts.get(field[0]) ?? 0) + 1
		first ??= at
		counts.set(field[0], number)
		if (at - first >= warmUp * 1e6) commits.set(field[0] + '.' + number, at)
	}
	return commits
}

async function committedEvents() {
	const db = new pg.Client()
	await db.connect()
	const { rows } = await db.query('SELECT id, events FROM bench.aggregate WHERE events > 0')
	await db.end()
	return new Map(rows.map(row => [String(row.id), row.events]))
}

const option = name => rest.includes(name) ? rest[rest.indexOf(name) + 1] : undefined
const at = (sorted, share) => Math.round(sorted[Math.floor((sorted.length - 1) * share)] ?? 0)

async function check() {
	const committed = await committedEvents()
	const commits = option('--log') ? readCommits(option('--log'), Number(option('--warm-up') ?? 0)) : new Map()
	const seen = new Map()
	const latencies = []
	let duplicates = 0
	let disorder = 0
	let first
	let last
	let left = await countMessages()
	const total = left

	const messages = await (await jetstream(connection).consumers.get(STREAM)).consume({ max_messages: 5000 })
	if (left > 0)
		for await (const message of messages) {
			const { aggregate, number, key } = message.json()
			const time = Number(BigInt(message.info.timestampNanos) / 1000n)
			first ??= time
			last = time
			let numbers = seen.get(aggregate)
			if (!numbers) seen.set(aggregate, numbers = { all: new Set(), highest: 0 })
			if (numbers.all.has(number)) duplicates++
			else {
				numbers.all.add(number)
				if (number < numbers.highest) disorder++
				else numbers.highest = number
				if (commits.has(key)) latencies.push(time - commits.get(key))
			}
			if (--left === 0) break
		}
	let lost = 0
	for (const [aggregate, events] of committed) lost += events - (seen.get(aggregate)?.all.size ?? 0)
	latencies.sort((a, b) => a - b)
	if (option('--go')) first = Number(BigInt(option('--go')) / 1000n)
	const perSecond = last > first ? (total - duplicates) / (last - first) * 1e6 : 0
	console.log(`stored=${total} lost=${lost} duplicates=${duplicates} disorder=${disorder}` +
		` per_s=${perSecond.toFixed(perSecond < 100 ? 1 : 0)} samples=${latencies.length}` +
		` p50_us=${at(latencies, 0.5)} p99_us=${at(latencies, 0.99)}`)
}

const commands = { create, wait, check }
await commands[command]()
await connection.close()
