/*
 * store_read.h
 *	  What the readers of the log share: store_read.c by position,
 *	  store_refill.c by aggregate.
 */
#ifndef OUTBOX_STORE_READ_H
#define OUTBOX_STORE_READ_H

#include "access/xlogdefs.h"

#include "log.h"
#include "log_merge.h"
#include "relay.h"

/* Rows in one transaction, so that what was read is sent before more is read. */
#define OUTBOX_READ_BATCH 1024

typedef struct OutboxReader
{
	OutboxRelay *relay;
	int			budget;			/* rows still allowed in this transaction */
	XLogRecPtr	durable;		/* the WAL must be flushed to here before anything read is sent */
} OutboxReader;

extern void outbox_reader_note_commit(OutboxReader *reader, HeapTuple tuple);
extern void outbox_reader_make_durable(const OutboxReader *reader);
extern void outbox_reader_log(const OutboxReader *reader, const char *what, TimestampTz started);
extern OutboxEvent *outbox_reader_build(OutboxReader *reader, const OutboxLogScan *scan, HeapTuple tuple);
extern bool outbox_store_is_parked(const OutboxRelay *relay, uint64 agg_hash);

#endif /* OUTBOX_STORE_READ_H */
