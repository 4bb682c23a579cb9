/*
 * log.h
 *	  The columns of outbox.log and outbox.ledger, and the first ones of
 *	  outbox.ring and outbox.delivery, as the install script defines them.
 */
#ifndef OUTBOX_LOG_H
#define OUTBOX_LOG_H

#include "envelope.h"			/* payload_kind */

enum
{
	LOG_POSITION = 1,
	LOG_AGG_HASH,
	LOG_EVENT_ID,
	LOG_OCCURRED_AT,
	LOG_CREATED_AT,
	LOG_NOT_BEFORE,
	LOG_AGGREGATE_VERSION,
	LOG_FOLLOWS,
	LOG_PRIORITY,
	LOG_PAYLOAD_KIND,
	LOG_ID_GIVEN,
	LOG_AGGREGATE_TYPE,
	LOG_AGGREGATE_ID,
	LOG_EVENT_TYPE,
	LOG_SUBJECT,
	LOG_CONTENT_TYPE,
	LOG_DATASCHEMA,
	LOG_HEADERS,
	LOG_PAYLOAD,
	LOG_COLUMNS = LOG_PAYLOAD
};

enum
{
	LEDGER_BUCKET = 1,
	LEDGER_SETTLED_AT,
	LEDGER_EPOCH,
	LEDGER_RELAY,
	LEDGER_LO,
	LEDGER_HI,
	LEDGER_BITS,
	LEDGER_COLUMNS = LEDGER_BITS
};

enum
{
	RING_CHILD = 1,
	RING_GENERATION
};

enum
{
	DELIVERY_POSITION = 1,
	DELIVERY_AGG_HASH,
	DELIVERY_STATE,
	DELIVERY_ATTEMPTS,
	DELIVERY_NEXT_ATTEMPT_AT,
	DELIVERY_LAST_CODE,
	DELIVERY_LAST_ERROR
};

/* delivery.state, see the install script. */
#define DELIVERY_RETRY 'r'
#define DELIVERY_DONE 'd'
#define DELIVERY_FAILED 'f'
#define DELIVERY_BLOCKING 'b'
#define DELIVERY_PARKED 'p'
#define DELIVERY_DISCARDED 'x'

#endif							/* OUTBOX_LOG_H */
