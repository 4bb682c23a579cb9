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

#include "utils/hsearch.h"

#include "broker.h"
#include "database.h"
#include "held.h"
#include "flow.h"
#include "ownership.h"
#include "pause.h"
#include "schedule.h"
#include "tracker.h"

/* An acknowledged event that isn't recorded yet. */
typedef struct OutboxAcked
{
	int64		position;
	int			home;			/* of its row in the log: ring.h */
	int			claim;
	bool		has_delivery;	/* there is a delivery row to close */
} OutboxAcked;

/* "JetStream error 10077: ", say, and a text of broker.h. */
#define OUTBOX_FAILURE_TEXT_SIZE (BROKER_TEXT_SIZE + 48)

/*
 * A failure that isn't recorded yet. A final one keeps its event in flight
 * until it is: only a committed verdict lets the successor go.
 */
typedef struct OutboxFailure
{
	int64		position;
	uint64		agg_hash;
	char		state;			/* of the delivery row, once recorded */
	OutboxEvent *final;			/* no further attempt; NULL: will be retried */
	bool		counted;		/* it used up an attempt */
	int64		retry_at;		/* on the relay's clock; not for a final one */
	int			code;
	char		text[OUTBOX_FAILURE_TEXT_SIZE];
} OutboxFailure;

/* Ranges to read, a palloc'd array in TopMemoryContext. */
typedef struct OutboxRangeList
{
	OutboxRange *ranges;
	int			count;
	int			space;
} OutboxRangeList;

/* Events held per aggregate; more are read again when their turn comes. */
#define OUTBOX_MAX_QUEUE 2048

/* Acks and failures kept before they must be recorded. */
#define OUTBOX_SETTLE_BATCH 1024
#define OUTBOX_FAILURE_BATCH 1024

/* Outcomes taken from the broker at once. */
#define OUTBOX_POLL_BATCH 256

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
	char	   *database_name;
	bool		session;		/* a client does the publishing: session.c */
	OutboxPlace *self;
	OutboxMember member;
	uint64		slots;			/* as bits; events of other slots are not its own */
	bool		changing;		/* drains, to change its slots or to load everything afresh */
	bool		reload_wanted;	/* set by whoever needs that: happens at the next chance */
	Oid			sequence;		/* tells the extension's lives in this database apart */
	uint32		leave_calls;	/* OutboxDatabase.leave_calls at the start */
	uint32		settings_changes;	/* OutboxShared.settings_changes before the settings were read */
	Schedule   *schedule;
	Tracker    *tracker;
	Broker	   *broker;

	/* Reading. */
	uint32		children;		/* of the log, as bits, locked by the current transaction */
	uint32		children_missing; /* those that it couldn't lock, because they are just being emptied */
	int64		read_up_to;		/* the sequential pass has got here */
	int64		pushed_up_to;	/* highest position that was pushed */
	OutboxRangeList late;		/* at or below read_up_to, still to be read */
	bool		more_to_read;	/* the last read stopped before its end */
	uint64		flush_read;		/* OutboxDatabase.flush_calls before the last read */
	int64		oldest_at;		/* when to look for the oldest pending event again */
	bool		keys_left_behind;	/* a prepared transaction has ended: sweep the aggregate locks */
	MemoryContext row_context;	/* reset for each row */
	bool		careful;		/* a row could not be read: each one in a subtransaction */
	HTAB	   *parked;			/* agg_hash of aggregates whose events go to the dead letters unsent */
	bool		preserve_order;	/* false: each event is an aggregate of its own to the schedule */

	/* Operators. */
	uint32		requests_seen;	/* of OutboxDatabase.requests */
	int64		redrive_until;	/* for so long redriven events may meet later ones of their aggregate */
	struct OutboxRequest *requests; /* recorded, to be enacted after the commit */
	int			request_count;
	int64		requests_at;	/* some had to wait: look again then; PG_INT64_MAX: none */
	OutboxPauseList pauses;

	/* Publishing. */
	OutboxFlow	flow;			/* how many messages may be in flight */
	size_t		in_flight_bytes;
	OutboxClaims claims;

	/* Settling. */
	OutboxAcked acked[OUTBOX_MAX_CLAIMED];
	int			acked_count;
	int			acked_recorded;	/* so many of them are, in a transaction that may go on */
	OutboxFailure failures[OUTBOX_FAILURE_BATCH];
	int			failure_count;
	int			failures_recorded;
	int64		notes_from;		/* the second in which notes_made failures that don't count were recorded */
	int			notes_made;
	int64		settle_at;		/* when the oldest of them is due; PG_INT64_MAX: none */
	int64		watermark_written; /* in a session: not known to be committed */
	int64		watermark_at;	/* next write of the watermark, if it moved */

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
OUTBOX_NORETURN extern void outbox_relay_leave(OutboxRelay *relay, const char *reason);

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
extern int outbox_claims_take(OutboxRelay *relay, int64 position);
extern void outbox_claims_release(OutboxRelay *relay, int index, int64 position);

/* store_load.c */
extern void outbox_store_load(OutboxRelay *relay);
extern void outbox_store_unload(OutboxRelay *relay);

/* store_requests.c */
extern void outbox_store_load_pauses(OutboxRelay *relay);
extern void outbox_store_record_requests(OutboxRelay *relay);
extern void outbox_store_enact_redriven(OutboxRelay *relay);
extern void outbox_store_enact_requests(OutboxRelay *relay);
extern void outbox_store_take_requests(OutboxRelay *relay);

/* store_read.c */
extern void outbox_store_read(OutboxRelay *relay);
extern void outbox_store_refill(OutboxRelay *relay);
extern uint64 outbox_store_key(const OutboxRelay *relay, uint64 agg_hash, int64 position);
extern void outbox_store_begin(OutboxRelay *relay);
extern void outbox_store_begin_reading(OutboxRelay *relay, int64 from, int64 wait_from);
extern void outbox_store_end(OutboxRelay *relay);

/* store_settle.c */
extern void outbox_store_run(const char *query, int count, Oid *types, Datum *values);
extern void outbox_store_record(OutboxRelay *relay);
extern void outbox_store_enact(OutboxRelay *relay);
extern void outbox_store_close_deliveries(Datum *positions, int count);
extern void outbox_store_settle(OutboxRelay *relay);
extern void outbox_store_advance_watermark(OutboxRelay *relay);

/* outcome.c */
extern void outbox_outcome_take(OutboxRelay *relay, const BrokerOutcome *outcome, int64 now);
extern void outbox_outcome_refused(OutboxRelay *relay, OutboxEvent *event, int code, const char *text, int64 now);
extern bool outbox_outcome_has_room(const OutboxRelay *relay);
extern int64 outbox_outcome_retry_time(int failures, int64 now);
extern OutboxFailure *outbox_outcome_add_failure(OutboxRelay *relay, const OutboxEvent *event, int code, const char *text,
												 int64 now);

/* publisher.c */
extern void outbox_publisher_start(OutboxRelay *relay);
extern void outbox_publisher_configure(OutboxRelay *relay);
extern void outbox_publisher_poll(OutboxRelay *relay);
extern void outbox_publisher_send(OutboxRelay *relay);
extern int	outbox_publisher_wait_limit(OutboxRelay *relay);
extern void outbox_publisher_report(OutboxRelay *relay);
extern void outbox_publisher_announce(OutboxRelay *relay, const char *text);
extern void outbox_publisher_flush(OutboxRelay *relay);

extern PGDLLEXPORT void OutboxRelayMain(Datum main_arg);

#endif							/* OUTBOX_RELAY_H */
