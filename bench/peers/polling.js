/*
 * A well-tuned polling relay: a transaction claims up to 1,000 rows, publishes
 * them all at once over one connection, and marks them with one UPDATE. After a
 * full batch the next one follows at once, else after POLL_MS. Several loops
 * overlap claiming, publishing and marking, and nothing but luck keeps the
 * events of an aggregate in order between them.
 *
 *   node polling.js library|inbox LOOPS
 */
import pg from 'pg'
import { openPublisher, ready, sleep } from './common.js'

const BATCH = 1000
const POLL_MS = 5

const [way, loops] = process.argv.slice(2)
const publish = await openPublisher(way)

const claim = {
	name: 'claim',
	text: `SELECT id, event_id, aggregate_id, payload FROM peer.outbox WHERE published_at IS NULL
	       ORDER BY id LIMIT ${BATCH} FOR UPDATE SKIP LOCKED`,
	rowMode: 'array',
}
const mark = { name: 'mark', text: 'UPDATE peer.outbox SET published_at = now() WHERE id = ANY ($1::bigint[])' }

/* Returns how many rows it found; what wasn't acknowledged stays for the next batch. */
async function relayBatch(db) {
	await db.query('BEGIN')
	const { rows } = await db.query(claim)
	if (rows.length > 0) {
		const results = await Promise.allSettled(
			rows.map(([, id, aggregate, payload]) => publish({ id, aggregate, payload })))
		const done = rows.filter((row, i) => results[i].status === 'fulfilled').map(row => row[0])
		await db.query({ ...mark, values: [done] })
	}
	await db.query('COMMIT')
	return rows.length
}

async function open() {
	const db = new pg.Client()
	await db.connect()
	/* A mark that a crash loses means one event sent again, under the same id. */
	await db.query('SET synchronous_commit = off')
	return db
}

async function relay(db) {
	for (;;)
		if (await relayBatch(db) < BATCH) await sleep(POLL_MS)
}

const sessions = await Promise.all(Array.from({ length: Number(loops) }, open))
await ready()
sessions.forEach(relay)
