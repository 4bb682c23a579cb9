/*
 * What the relays share: connections, publishing to JetStream, and being told
 * when to begin. PostgreSQL is found by PGHOST and the like, NATS by NATS_URL.
 *
 * publish(event) resolves when the stream has acknowledged the event. There are
 * two ways to do it, and bench/peers/run measures both where it matters:
 *
 *   library  js.publish(), as the NATS client's documentation shows. Each call is
 *            a request of its own, with promises, a timer and an inbox token.
 *   inbox    a plain publish whose acknowledgement comes to a subscription of
 *            ours. The same promise to the caller at a fraction of the CPU, and
 *            code that an application would have to write and keep itself.
 */
import readline from 'node:readline'
import { connect, createInbox, headers } from '@nats-io/transport-node'
import { jetstream } from '@nats-io/jetstream'

const ACK_TIMEOUT_MS = 5000

export const sleep = ms => new Promise(resolve => setTimeout(resolve, ms))

/* Tells bench/peers/run that all is connected, and waits for its word. */
export async function ready() {
	console.log('ready')
	for await (const line of readline.createInterface({ input: process.stdin }))
		if (line === 'go') return
}

/* An event is {id, aggregate, payload}: id a text that is the event's own. */
export async function openPublisher(way = 'library') {
	const connection = await connect({ servers: process.env.NATS_URL, noAsyncTraces: true })
	if (way === 'inbox') return publishWithInbox(connection)
	const js = jetstream(connection)
	return event => js.publish(subjectOf(event), event.payload, { msgID: event.id, timeout: ACK_TIMEOUT_MS })
}

const subjectOf = event => 'outbox.order.' + event.aggregate + '.placed'

function publishWithInbox(connection) {
	const inbox = createInbox()
	const waiting = new Map() /* in order of publishing, so the first one is the oldest */
	let count = 0

	connection.subscribe(inbox + '.*', {
		callback: (error, message) => {
			const number = Number(message.subject.slice(inbox.length + 1))
			const promise = waiting.get(number)
			if (promise === undefined) return
			waiting.delete(number)
			const ack = message.data.length > 0 ? message.json() : { error: 'no stream for the subject' }
			if (error || ack.error || !ack.seq) promise.reject(new Error(JSON.stringify(error ?? ack.error)))
			else promise.resolve()
		},
	})
	setInterval(() => {
		for (const [number, promise] of waiting) {
			if (promise.since > Date.now() - ACK_TIMEOUT_MS) break
			waiting.delete(number)
			promise.reject(new Error('no acknowledgement'))
		}
	}, 1000)
	return event => new Promise((resolve, reject) => {
		const number = ++count
		const head = headers()
		head.set('Nats-Msg-Id', event.id)
		waiting.set(number, { resolve, reject, since: Date.now() })
		connection.publish(subjectOf(event), event.payload, { headers: head, reply: inbox + '.' + number })
	})
}
