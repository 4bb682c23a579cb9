/*
 * relay.h
 *	  One relay: what its parts share.
 *
 * relay.c owns the loop and the process, store_read.c and store_settle.c all
 * access to tables, publisher.c the broker. They run in one process and one
 * thread; nothing here is locked.
 */
#ifndef OUTBOX_RELAY_H
#define OUTBOX_RELAY_H

#include "outbox.h"

#include "broker.h"
#include "database.h"
#include "envelope.h"
#include "schedule.h"
#include "tracker.h"

/* An acknowledged event that isn't recorded yet. */
typedef struct OutboxAcked
{
	int64		position;
	int			child;
	int			claim;
	bool		had_failed;		/* it may have a delivery row */
} OutboxAcked;

/* A refused attempt that isn't recorded yet. */
typedef struct OutboxRefused
{
	int64		position;
	TimestampTz next_attempt_at;
	int			code;
	char		text[BROKER_TEXT_SIZE];
} OutboxRefused;

/* Ranges to read, a palloc'd array in TopMemoryContext. */
typedef struct OutboxRangeList
{
	OutboxRange *ranges;
	int			count;
	int			space;
} OutboxRangeList;

/* Events held per aggregate; more are read again when their turn comes. */
#define OUTBOX_MAX_QUEUE 256

/* Acks and refusals kept before they must be recorded. */
#define OUTBOX_SETTLE_BATCH 1024
#define OUTBOX_REFUSED_BATCH 256

typedef struct OutboxRelay
{
	OutboxDatabase *database;
	TimestampTz started;		/* also the epoch in the ledger */
	Schedule   *schedule;
	Tracker    *tracker;
	Broker	   *broker;

	/* Reading. */
	int64		read_up_to;		/* the sequential pass has got here */
	int64		pushed_up_to;	/* highest position that was pushed */
	OutboxRangeList late;		/* at or below read_up_to, still to be read */
	bool		more_to_read;	/* the last read stopped before its end */
	bool		keys_left_behind;	/* a prepared transaction has ended: sweep the aggregate locks */
	MemoryContext row_context;	/* reset for each row */

	/* Publishing. */
	int			window;			/* messages in flight at most, adapted to failures */
	size_t		in_flight_bytes;
	int		   *free_claims;	/* stack of free indexes of database->claimed */
	int			free_claim_count;

	/* Settling. */
	OutboxAcked acked[OUTBOX_MAX_CLAIMED];
	int			acked_count;
	OutboxRefused refused[OUTBOX_REFUSED_BATCH];
	int			refused_count;
	TimestampTz settle_at;		/* when the oldest of them is due; DT_NOEND: none */
	TimestampTz watermark_at;	/* next write of the watermark, if it moved */
	int64		watermark_written;

	MemoryContext loop_context; /* reset in each round of the loop */
} OutboxRelay;

/* relay.c */
OUTBOX_NORETURN extern void outbox_relay_out_of_memory(void);

/* store_load.c */
extern void outbox_store_load(OutboxRelay *relay);

/* store_read.c */
extern void outbox_store_read(OutboxRelay *relay);
extern void outbox_store_refill(OutboxRelay *relay);
extern void outbox_store_begin(OutboxRelay *relay);
extern void outbox_store_end(void);

/* store_settle.c */
extern void outbox_store_settle(OutboxRelay *relay);
extern void outbox_store_advance_watermark(OutboxRelay *relay);

/* publisher.c */
extern void outbox_publisher_start(OutboxRelay *relay);
extern void outbox_publisher_configure(OutboxRelay *relay);
extern void outbox_publisher_poll(OutboxRelay *relay);
extern void outbox_publisher_send(OutboxRelay *relay);
extern int	outbox_publisher_wait_limit(OutboxRelay *relay);
extern void outbox_publisher_report(OutboxRelay *relay);

extern PGDLLEXPORT void OutboxRelayMain(Datum main_arg);

#endif							/* OUTBOX_RELAY_H */
