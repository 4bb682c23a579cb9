// node producer.js ID TOTAL: places an order. The order and its event exist both, or neither.
import pg from 'pg'

const [id, total] = process.argv.slice(2)
const db = new pg.Client() // PGHOST, PGDATABASE, ...
await db.connect()
try {
	await db.query('BEGIN')
	await db.query('INSERT INTO orders (id, total) VALUES ($1, $2)', [id, total])
	const { rows } = await db.query(
		`SELECT outbox.enqueue('order', $1, 'order.placed', $2, headers => $3) AS event_id`,
		[id, { id: Number(id), total: Number(total) }, { 'ce-producer': 'node' }])
	await db.query('COMMIT')
	console.log('placed order', id, 'with event', rows[0].event_id)
} catch (error) {
	await db.query('ROLLBACK')
	console.error('no order, no event:', error.message)
	process.exitCode = 1
} finally {
	await db.end()
}
