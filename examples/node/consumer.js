// node consumer.js [DURABLE]: adds up the revenue, each order once, however often its event is delivered.
import { AckPolicy, connect, DeliverPolicy } from 'nats'
import pg from 'pg'

const CONSUMER = 'node' // whose inbox it is
const durable = process.argv[2] ?? 'node'

// One row if the event is new to the consumer. In a database without the extension, a table does it:
// 'INSERT INTO inbox (consumer, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING true'
const ACCEPT = 'SELECT true WHERE outbox.inbox_accept($1, $2)'

const db = new pg.Client()
await db.connect()
const nats = await connect({ servers: process.env.NATS_URL ?? 'nats://127.0.0.1:4222' })
const manager = await nats.jetstreamManager()
await manager.consumers.add('OUTBOX', {
	durable_name: durable,
	ack_policy: AckPolicy.Explicit,
	deliver_policy: DeliverPolicy.All,
	filter_subject: 'outbox.order.>',
	max_ack_pending: 1, // one after the other: the order within an aggregate holds
})
const consumer = await nats.jetstream().consumers.get('OUTBOX', durable)

// The mark in the inbox and the effect are one transaction: both, or neither.
async function handle(message) {
	const order = message.json()
	await db.query('BEGIN')
	const { rowCount } = await db.query(ACCEPT, [CONSUMER, message.headers.get('ce-id')])
	if (rowCount === 1)
		await db.query(
			`INSERT INTO revenue AS r (consumer, orders, total) VALUES ($1, 1, $2)
			 ON CONFLICT (consumer) DO UPDATE SET orders = r.orders + 1, total = r.total + excluded.total`,
			[CONSUMER, order.total])
	await db.query('COMMIT')
	console.log(rowCount === 1 ? 'counted' : 'seen before', order.id)
}

const messages = await consumer.consume()
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => messages.stop())
for await (const message of messages) {
	try {
		await handle(message)
		message.ack() // only after the commit: a crash in between repeats the event, and the inbox knows it
	} catch (error) {
		console.error('again in a second:', error.message)
		await db.query('ROLLBACK')
		message.nak(1000)
	}
}
await nats.drain()
await db.end()
