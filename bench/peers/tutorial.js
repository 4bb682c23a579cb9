/*
 * The relay of the tutorials: each two seconds the next 50 rows, published and
 * marked one by one. A failure leaves the rest for the next time.
 */
import pg from 'pg'
import { openPublisher, ready } from './common.js'

const db = new pg.Client()
await db.connect()
const publish = await openPublisher()
let busy = false

async function relay() {
	if (busy) return
	busy = true
	try {
		const { rows } = await db.query(
			'SELECT * FROM peer.outbox WHERE published_at IS NULL ORDER BY id LIMIT 50')
		for (const row of rows) {
			await publish({ id: row.event_id, aggregate: row.aggregate_id, payload: JSON.stringify(row.payload) })
			await db.query('UPDATE peer.outbox SET published_at = now() WHERE id = $1', [row.id])
		}
	} catch (error) {
		console.error(error)
	} finally {
		busy = false
	}
}

await ready()
setInterval(relay, 2000)
