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

const POLL_MS = 10
const CHUNK = 1000 /* so that a large batch isn't in memory as a whole, nor in flight */

const db = new pg.Client()
await db.connect()
await db.query('SET synchronous_commit = off')
const publish = await openPublisher(process.argv[2])

const next = { name: 'next', text: "SELECT pgq.next_batch('peer', 'relay') AS batch" }
const open = { name: 'open', text: "SELECT pgq.get_batch_cursor($1, 'events', 0)" }
/* Values as they come: nobody needs the times. */
const fetch = { text: `FETCH ${CHUNK} FROM events`, rowMode: 'array', types: { getTypeParser: () => text => text } }
const finish = { name: 'finish', text: 'SELECT pgq.finish_batch($1)' }

/* Of the cursor's columns: 4 ev_type, 5 ev_data, 6 ev_extra1. */
const eventOf = row => ({ id: row[6], aggregate: row[4], payload: row[5] })

/* Returns whether there was a batch. */
async function relay() {
	const { batch } = (await db.query(next)).rows[0]
	if (batch === null) return false
	await db.query('BEGIN')
	await db.query({ ...open, values: [batch] })
	for (;;) {
		const { rows } = await db.query(fetch)
		await Promise.all(rows.map(row => publish(eventOf(row))))
		if (rows.length < CHUNK) break
	}
	await db.query({ ...finish, values: [batch] })
	await db.query('COMMIT')
	return true
}

await ready()
for (;;)
	try {
		if (!await relay()) await sleep(POLL_MS)
	} catch (error) {
		console.error(error)
		await db.query('ROLLBACK')
		await sleep(POLL_MS)
	}
