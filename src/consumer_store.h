/*
 * consumer_store.h
 *	  A consumer's transactions and its own statements.
 */
#ifndef OUTBOX_CONSUMER_STORE_H
#define OUTBOX_CONSUMER_STORE_H

#include "consumer.h"

#include "executor/spi.h"

/* What went wrong, as it is recorded. */
typedef struct OutboxConsumerFailure
{
	char		code[6];
	char	   *text;
	bool		counted;
} OutboxConsumerFailure;

/* A transaction, with a snapshot and SPI. False: the extension is gone, or another one by now. */
extern bool outbox_consumer_begin(const Consumer *consumer);
extern void outbox_consumer_commit(void);

/* Ends the process unless it is true. */
extern void outbox_consumer_leave_if_gone(bool here);

/* Keeps the subscription from being changed until the transaction's end. False: it is gone, or another one by now. */
extern bool outbox_consumer_lock(const Consumer *consumer);

/* A statement as the superuser; its plan is made at the first use and kept. The rows are in SPI_tuptable. */
extern void outbox_consumer_run_own(SPIPlanPtr *plan, const char *query, int count, Oid *types, Datum *values);
extern Datum outbox_consumer_column(int row, int number, bool *isnull);

/* True: the event is new for this subscription. */
extern bool outbox_consumer_accept(const Consumer *consumer, Datum event_id);
extern void outbox_consumer_record_position(const Consumer *consumer);
extern void outbox_consumer_record_failure(const Consumer *consumer, uint64 sequence, bool counted, const char *text);
extern void outbox_consumer_record_recovery(const Consumer *consumer, uint64 sequence);
extern void outbox_consumer_park(const Consumer *consumer, Datum message, int count, const OutboxConsumerFailure *failure);

#endif /* OUTBOX_CONSUMER_STORE_H */
