/*
 * ledger_lookup.h
 *	  Since when a position is recorded in the ledger, bucket by bucket.
 */
#ifndef OUTBOX_LEDGER_LOOKUP_H
#define OUTBOX_LEDGER_LOOKUP_H

#include "outbox.h"

#include "utils/timestamp.h"

/* A bucket of the ledger as one snapshot sees it, kept for the calls that follow. */
typedef struct OutboxLedgerBucket OutboxLedgerBucket;

extern OutboxLedgerBucket *outbox_ledger_bucket_create(MemoryContext context);

/* Under the active snapshot; DT_NOEND: it isn't settled. */
extern TimestampTz outbox_ledger_settled_at(OutboxLedgerBucket *bucket, int64 position);

#endif							/* OUTBOX_LEDGER_LOOKUP_H */
