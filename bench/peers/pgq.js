/*
 * A PgQ consumer: takes the next batch, publishes all of it at once over one
 * connection, and finishes it. pgqd, which makes the batches, is started by
 * bench/peers/run. An event that fails leaves the batch unfinished, so that it
 * comes again as a whole.
 *
 *   node pgq.js library|inbox
 */
import pg from 'pg'
import { openPublisher, ready, sleep } from './common.js'

const POLL_MS = 5

const db = new pg.Client()
await db.connect()
await db.query('SET synchronous_commit = off')
const publish = await openPublisher(process.argv[2])

const next = { name: 'next', text: "SELECT pgq.next_batch('peer', 'relay') AS batch" }
const read = {
	name: 'read', text: 'SELECT ev_extra1, ev_type, ev_data FROM pgq.get_batch_events($1)', rowMode: 'array',
}
const finish = { name: 'finish', text: 'SELECT pgq.finish_batch($1)' }

/* Returns whether there was a batch. */
async function relay() {
	const { batch } = (await db.query(next)).rows[0]
	if (batch === null) return false
	const { rows } = await db.query({ ...read, values: [batch] })
	await Promise.all(rows.map(([id, aggregate, payload]) => publish({ id, aggregate, payload })))
	await db.query({ ...finish, values: [batch] })
	return true
}

await ready()
for (;;)
	try {
		if (!await relay()) await sleep(POLL_MS)
	} catch (error) {
		console.error(error)
		await sleep(POLL_MS)
	}
