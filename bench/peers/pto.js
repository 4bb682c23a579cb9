/*
 * npm pg-transactional-outbox, with its polling or its replication listener, set
 * up as its documentation says; README.md tells what was tuned.
 *
 *   node pto.js polling|replication
 *   node pto.js setup       prints the SQL that makes its table, functions and slot
 */
import {
	DatabaseSetup, createReplicationSegmentMutexConcurrencyController, getDisabledLogger,
	initializePollingMessageListener, initializeReplicationMessageListener,
} from 'pg-transactional-outbox'
import { openPublisher, ready, sleep } from './common.js'

const BATCH = 1000
const CONNECTIONS = 5

if (process.argv[2] === 'setup') {
	const names = {
		outboxOrInbox: 'outbox', database: 'postgres', schema: 'peer', table: 'outbox', listenerRole: 'peer',
		nextMessagesName: 'next_outbox_messages', publication: 'peer', replicationSlot: 'peer',
	}
	for (const step of ['dropAndCreateTable', 'createPollingFunction', 'setupPollingIndexes', 'setupReplicationCore'])
		console.log(DatabaseSetup[step](names))
	process.exit()
}

const publish = await openPublisher('inbox')
const logger = getDisabledLogger()
logger.error = logger.fatal = logger.warn = (...what) => console.error(...what)

const handler = {
	handle: message => publish({
		id: message.id, aggregate: message.aggregateId, payload: JSON.stringify(message.payload),
	}),
}
const connection = { max: CONNECTIONS, idleTimeoutMillis: 0, options: '-c synchronous_commit=off' }
const settings = {
	dbSchema: 'peer', dbTable: 'outbox', messageCleanupIntervalInMs: 0,
	enableMaxAttemptsProtection: false, enablePoisonousMessageProtection: false,
	nextMessagesFunctionSchema: 'peer', nextMessagesFunctionName: 'next_outbox_messages',
	nextMessagesBatchSize: BATCH, nextMessagesPollingIntervalInMs: 10,
	dbPublication: 'peer', dbReplicationSlot: 'peer',
}
const config = { outboxOrInbox: 'outbox', dbListenerConfig: {}, dbHandlerConfig: connection, settings }

await ready()
if (process.argv[2] === 'polling')
	/*
	 * The next batch when the last one is done: by default one message is fetched for each that is done, though each
	 * fetch sorts all that is pending; and a fetch while messages are being handled locks them, and their handling fails.
	 */
	initializePollingMessageListener({ ...config, dbListenerConfig: { ...connection, max: 2 } }, handler, logger, {
		batchSizeStrategy: async busy => {
			if (busy === 0) return BATCH
			await sleep(1)
			return 0
		},
	})
else
	initializeReplicationMessageListener(config, handler, logger, {
		concurrencyStrategy: createReplicationSegmentMutexConcurrencyController(),
	})
