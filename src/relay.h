/*
 * relay.h
 *	  One relay: what its parts share.
 *
 * relay.c owns the loop and the process, membership.c its standing among the
 * database's relays, store_*.c all access to tables, publisher.c the broker.
 * They run in one process and one thread; nothing here is locked.
 */
#ifndef OUTBOX_RELAY_H
#define OUTBOX_RELAY_H

#include "outbox.h"

#include "broker.h"
#include "database.h"
#include "envelope.h"
#include "ownership.h"
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

/* The part of OutboxDatabase.claimed that this relay uses, see claims.c. */
typedef struct OutboxClaims
{
	int			first;
	int			count;
	int			next;			/* where to look for a free entry, from first on */
	int			held;
} OutboxClaims;

typedef struct OutboxRelay
{
	OutboxDatabase *database;
	OutboxPlace *self;
	OutboxMember member;
	uint64		slots;			/* as bits; events of other slots are not its own */
	bool		changing;		/* drains, to change its slots or to load everything afresh */
	bool		reload_wanted;	/* set by whoever needs that: happens at the next chance */
	Oid			sequence;		/* tells the extension's lives in this database apart */
	uint32		leave_calls;	/* OutboxDatabase.leave_calls at the start */
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
	OutboxClaims claims;

	/* Settling. */
	OutboxAcked acked[OUTBOX_MAX_CLAIMED];
	int			acked_count;
	OutboxRefused refused[OUTBOX_REFUSED_BATCH];
	int			refused_count;
	TimestampTz settle_at;		/* when the oldest of them is due; DT_NOEND: none */
	TimestampTz watermark_at;	/* next write of the watermark, if it moved */

	MemoryContext loop_context; /* reset in each round of the loop */
} OutboxRelay;

/* Whether events of an aggregate are this relay's to publish. */
static inline bool
outbox_relay_owns(const OutboxRelay *relay, uint64 aggregate)
{
	return (relay->slots >> outbox_slots_of(aggregate) & 1) != 0;
}

/* relay.c */
OUTBOX_NORETURN extern void outbox_relay_out_of_memory(void);
OUTBOX_NORETURN extern void outbox_relay_leave(const char *reason);

/* membership.c */
extern void outbox_membership_check(OutboxRelay *relay);
extern void outbox_membership_tick(OutboxRelay *relay);
extern void outbox_membership_renew(OutboxRelay *relay);
extern void outbox_membership_fence(OutboxRelay *relay);
extern bool outbox_membership_wants_change(OutboxRelay *relay);
extern void outbox_membership_change(OutboxRelay *relay);
extern int64 outbox_membership_watermark(OutboxRelay *relay, int64 own);

/* claims.c */
extern void outbox_claims_reset(OutboxRelay *relay);
extern int	outbox_claims_take(OutboxRelay *relay, int64 position);
extern void outbox_claims_release(OutboxRelay *relay, int index, int64 position);

/* store_load.c */
extern void outbox_store_load(OutboxRelay *relay);
extern void outbox_store_unload(OutboxRelay *relay);

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
