/*
 * Logical decoding: the events are messages in the WAL, the walsender's pgoutput
 * streams them, and they are published as they come, all over one connection.
 * The slot moves up to a commit once all events until there are acknowledged. A
 * publish that fails ends the process: started again, it begins at the slot.
 *
 *   node logical.js library|inbox
 */
import { LogicalReplicationService, PgoutputPlugin } from 'pg-logical-replication'
import { openPublisher, ready } from './common.js'

const WINDOW = 1024
const CONFIRM_MS = 100

const publish = await openPublisher(process.argv[2])
const service = new LogicalReplicationService({}, { acknowledge: { auto: false, timeoutSeconds: 0 }, flowControl: { enabled: true } })
let burst = []
let inFlight = 0
let resume
let transaction = []
let commits = Promise.resolve()
let confirmed, confirmable

/* What came in one go goes out in one go: the NATS client writes once for publishes that follow each other at once. */
function flush() {
	for (const { event, resolve, reject } of burst)
		publish(event).then(() => {
			if (--inFlight < WINDOW && resume) resume = resume()
			resolve()
		}, reject)
	burst = []
}

function sendEvent(body) {
	/* "ID AGGREGATE PAYLOAD" */
	const end = body.indexOf(' ', 37)
	const event = { id: body.slice(0, 36), aggregate: body.slice(37, end), payload: body.slice(end + 1) }
	inFlight++
	if (burst.length === 0) setImmediate(flush)
	transaction.push(new Promise((resolve, reject) => burst.push({ event, resolve, reject })))
}

/* With flow control the library waits for the promise before it goes on. */
service.on('data', (lsn, log) => {
	if (log.tag === 'message') {
		sendEvent(Buffer.from(log.content).toString())
		if (inFlight >= WINDOW) return new Promise(resolve => { resume = resolve })
	} else if (log.tag === 'commit') {
		const published = Promise.all(transaction)
		transaction = []
		commits = commits.then(() => published).then(() => { confirmable = log.commitEndLsn ?? lsn })
	}
})
service.on('error', error => { throw error })
setInterval(() => {
	if (confirmable === confirmed) return
	confirmed = confirmable
	service.acknowledge(confirmed)
}, CONFIRM_MS)

await ready()
const plugin = new PgoutputPlugin({ protoVersion: 1, publicationNames: ['peer'], messages: true })
await service.subscribe(plugin, 'peer')
