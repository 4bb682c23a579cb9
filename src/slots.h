/*
 * slots.h
 *	  Which relay owns which share of a database's aggregates.
 *
 * Pure logic like schedule.h: no PostgreSQL, no clock, no locks of its own. A
 * SlotTable lies in shared memory; its user holds a lock around every call
 * (shared for those that take a const table) and passes the time in, as
 * microseconds of any one clock that never steps back.
 *
 * An aggregate belongs to the slot that its hash names, a slot to one member at
 * most. A member is known by its place and an epoch, which is never given
 * twice: whoever comes with an epoch that isn't in the table any more has lost
 * its membership and changes nothing. A member that has not renewed its lease
 * in time stays one until somebody revokes it: the table says who is due, its
 * user decides when it is safe.
 *
 * A slot that changes hands is free in between; only its owner, or a
 * revocation, frees it.
 */
#ifndef OUTBOX_SLOTS_H
#define OUTBOX_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#define OUTBOX_SLOTS 64
#define OUTBOX_MAX_RELAYS 16

/* Places of relays that the launcher starts; the rest is for those outside the server. */
#define OUTBOX_SERVER_RELAYS 8

typedef struct SlotMember
{
	int64_t		epoch;			/* 0: the place is free */
	int64_t		heartbeat;		/* time of the last renewal */
	int64_t		ttl;			/* lease after it */
	int64_t		watermark;		/* see outbox_slots_set_watermark() */
} SlotMember;

typedef struct SlotTable
{
	int64_t		last_epoch;
	uint32_t	generation;		/* changes with members and owners: a hint to look again */
	SlotMember	members[OUTBOX_MAX_RELAYS];
	int8_t		owner[OUTBOX_SLOTS]; /* place of a member; -1: free */
} SlotTable;

static inline int
outbox_slots_of(uint64_t aggregate_hash)
{
	return (int) (aggregate_hash % OUTBOX_SLOTS);
}

/* Empties the table: all memberships end. Epochs go on, so the first call is made on zeroes. */
extern void outbox_slots_reset(SlotTable *table);

/*
 * Takes a free place and returns the epoch, which is epoch_hint or above it;
 * 0: the place is taken. The hint is there for epochs that rise across the
 * table's lives, a wall clock's time say.
 */
extern int64_t outbox_slots_join(SlotTable *table, int place, int64_t ttl, int64_t now, int64_t epoch_hint);

/* Gives back the place and its slots. False: they were revoked before. */
extern bool outbox_slots_leave(SlotTable *table, int place, int64_t epoch);

extern bool outbox_slots_is_member(const SlotTable *table, int place, int64_t epoch);

/* The lease begins anew, with ttl. False: it was revoked. */
extern bool outbox_slots_renew(SlotTable *table, int place, int64_t epoch, int64_t ttl, int64_t now);

/* The first place at or after from whose lease has run out; -1: none. */
extern int outbox_slots_expired(const SlotTable *table, int from, int64_t now);

/* When the first of all leases runs out; INT64_MAX: there are none. */
extern int64_t outbox_slots_next_expiry(const SlotTable *table);

/* Ends a membership against its holder's will; the slots are free. */
extern void outbox_slots_revoke(SlotTable *table, int place);

/* The slots of a member, as bits; 0 without the membership. */
extern uint64_t outbox_slots_mask(const SlotTable *table, int place, int64_t epoch);

/* How many free slots the member may claim now. */
extern int outbox_slots_claimable(const SlotTable *table, int place, int64_t epoch);

/*
 * Claims them: up to the fair share. Whoever gains a slot knows nothing of its
 * past yet, so its watermark is 0 until it is set again. Returns all slots
 * that it has then.
 */
extern uint64_t outbox_slots_claim(SlotTable *table, int place, int64_t epoch);

/* The slots that the member should give back, because others have too few and free ones are not enough. */
extern uint64_t outbox_slots_excess(const SlotTable *table, int place, int64_t epoch);

extern void outbox_slots_release(SlotTable *table, int place, int64_t epoch, uint64_t mask);

/*
 * The member's word that every position at or below watermark in its slots is
 * terminal and recorded. False: it is no member any more.
 */
extern bool outbox_slots_set_watermark(SlotTable *table, int place, int64_t epoch, int64_t watermark);

/* What all owners' words amount to for all slots; 0 while a slot is free or its owner has not spoken. */
extern int64_t outbox_slots_watermark(const SlotTable *table);

#endif /* OUTBOX_SLOTS_H */
