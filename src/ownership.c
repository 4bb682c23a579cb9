/*
 * ownership.c
 *	  Who owns which slots of a database: slots.c under a lock, and the fence.
 *
 * Owner, epoch and lease lie in shared memory: claiming and renewing costs
 * nothing per event and writes no WAL. A server restart forgets it all, and
 * with it every process that could rely on it.
 *
 * The fence: a transaction that records what only the owner may record (a
 * refused attempt, a verdict, the watermark) holds the member's lock (in pg_locks:
 * advisory, objsubid 103, objid the place) in share mode until its end, and
 * looks at the epoch after it has got it. Whoever revokes an expired member
 * takes that lock exclusively, without waiting for it. So either the record is
 * committed before anyone else owns the slots, or it is never made.
 * Acknowledgements are facts and need no fence; leaving and giving back needs
 * none either, as it is done by the owner itself.
 *
 * slots_lock guards the table; it is held for a few instructions.
 */
#include "ownership.h"

#include "access/xact.h"
#include "storage/lock.h"

#include "clock.h"
#include "feed.h"

#define LOCK_CLASS_MEMBER 103

static int64
lease_us(void)
{
	return outbox_lease_ttl * INT64CONST(1000);
}

static void
set_member_tag(LOCKTAG *tag, const OutboxDatabase *database, int place)
{
	SET_LOCKTAG_ADVISORY(*tag, database->dboid, 0, place, LOCK_CLASS_MEMBER);
}

void
outbox_ownership_clear_claims(OutboxDatabase *database, int place)
{
	for (int i = 0; i < OUTBOX_CLAIMS; i++)
	{
		uint64		claim = pg_atomic_read_u64(&database->claimed[i]);

		if (claim != 0 && outbox_claim_place(claim) == place)
			(void) pg_atomic_compare_exchange_u64(&database->claimed[i], &claim, 0);
	}
}

/* ------------------------------------------------------------- memberships */

void
outbox_ownership_reset(OutboxDatabase *database)
{
	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	outbox_slots_reset(&database->slots);
	pg_atomic_write_u64(&database->watermark, 0);
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
		outbox_feed_detach_reader(database, i);
	LWLockRelease(&database->slots_lock);
	outbox_shmem_wake_relays(database);
}

/*
 * The part of claimed[] that a place uses. The places of the server share it
 * by the number of relays wanted; while that number changes, or one of them is
 * frozen and replaced, parts overlap, which claims.c bears.
 */
static void
assign_claims(OutboxDatabase *database, int place)
{
	OutboxPlace *self = &database->places[place];
	int			parts = Max(outbox_workers, 1);

	if (place < OUTBOX_SERVER_RELAYS)
	{
		self->claim_count = OUTBOX_MAX_CLAIMED / parts;
		self->claim_first = place % parts * self->claim_count;
	}
	else
	{
		self->claim_count = OUTBOX_OUTSIDE_CLAIMED;
		self->claim_first = OUTBOX_MAX_CLAIMED + (place - OUTBOX_SERVER_RELAYS) * OUTBOX_OUTSIDE_CLAIMED;
	}
}

bool
outbox_ownership_join(OutboxMember *member, OutboxDatabase *database, int place, int pid)
{
	OutboxPlace *self = &database->places[place];

	*member = (OutboxMember) {database, place, 0};
	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	/* A process that lost its membership still uses what belongs to the place. */
	if (pg_atomic_read_u32(&self->pid) == 0)
		member->epoch = outbox_slots_join(&database->slots, place, lease_us(), outbox_clock_now(), GetCurrentTimestamp());
	if (member->epoch != 0)
	{
		assign_claims(database, place);
		pg_atomic_write_u32(&self->must_leave, 0);
		pg_atomic_write_u32(&self->procno, pid == 0 ? 0 : OUTBOX_MY_BACKEND_INDEX);
		pg_write_barrier();
		pg_atomic_write_u32(&self->pid, pid);
	}
	LWLockRelease(&database->slots_lock);
	outbox_shmem_wake_relays(database);
	return member->epoch != 0;
}

/* The place is free afterwards, also if the membership was revoked before. */
void
outbox_ownership_leave(OutboxMember *member)
{
	OutboxDatabase *database = member->database;

	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	if (outbox_slots_leave(&database->slots, member->place, member->epoch))
		outbox_feed_detach_reader(database, member->place);
	/* Revoked or not: while it stood still it may have been about to hand over more. */
	outbox_ownership_clear_claims(database, member->place);
	pg_atomic_write_u32(&database->places[member->place].pid, 0);
	LWLockRelease(&database->slots_lock);
	member->epoch = 0;
	outbox_shmem_wake_relays(database);
}

bool
outbox_ownership_is_valid(const OutboxMember *member)
{
	OutboxDatabase *database = member->database;
	bool		valid;

	LWLockAcquire(&database->slots_lock, LW_SHARED);
	valid = outbox_slots_is_member(&database->slots, member->place, member->epoch);
	LWLockRelease(&database->slots_lock);
	return valid;
}

bool
outbox_ownership_renew(const OutboxMember *member)
{
	OutboxDatabase *database = member->database;
	bool		valid;

	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	valid = outbox_slots_renew(&database->slots, member->place, member->epoch, lease_us(), outbox_clock_now());
	LWLockRelease(&database->slots_lock);
	return valid;
}

/* ------------------------------------------------------------------- slots */

bool
outbox_ownership_wants_change(const OutboxMember *member)
{
	OutboxDatabase *database = member->database;
	bool		wants;

	LWLockAcquire(&database->slots_lock, LW_SHARED);
	wants = outbox_slots_claimable(&database->slots, member->place, member->epoch) > 0 ||
		outbox_slots_excess(&database->slots, member->place, member->epoch) != 0;
	LWLockRelease(&database->slots_lock);
	return wants;
}

bool
outbox_ownership_change(const OutboxMember *member, uint64 *slots)
{
	OutboxDatabase *database = member->database;
	SlotTable  *table = &database->slots;
	uint32		generation;
	bool		valid;

	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	valid = outbox_slots_is_member(table, member->place, member->epoch);
	generation = table->generation;
	*slots = 0;
	if (valid)
	{
		outbox_slots_release(table, member->place, member->epoch, outbox_slots_excess(table, member->place, member->epoch));
		*slots = outbox_slots_claim(table, member->place, member->epoch);
		assign_claims(database, member->place);
		outbox_feed_attach_reader(database, member->place);
	}
	generation -= table->generation;
	LWLockRelease(&database->slots_lock);
	if (generation != 0)
		outbox_shmem_wake_relays(database);
	return valid;
}

bool
outbox_ownership_fence(const OutboxMember *member)
{
	LOCKTAG		tag;

	set_member_tag(&tag, member->database, member->place);
	(void) LockAcquire(&tag, ShareLock, false, false);
	return outbox_ownership_is_valid(member);
}

bool
outbox_ownership_say_watermark(const OutboxMember *member, int64 watermark, int64 *common)
{
	OutboxDatabase *database = member->database;
	bool		valid;

	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	valid = outbox_slots_set_watermark(&database->slots, member->place, member->epoch, watermark);
	*common = outbox_slots_watermark(&database->slots);
	LWLockRelease(&database->slots_lock);
	return valid;
}

void
outbox_ownership_note_watermark(OutboxDatabase *database, int64 watermark)
{
	uint64		old = pg_atomic_read_u64(&database->watermark);

	while ((int64) old < watermark && !pg_atomic_compare_exchange_u64(&database->watermark, &old, (uint64) watermark))
		;
}

/* ---------------------------------------------------------------- takeover */

/* The first member at or after a place whose lease has run out; -1: none. */
static int
find_expired(OutboxDatabase *database, int from)
{
	int			place;

	LWLockAcquire(&database->slots_lock, LW_SHARED);
	place = outbox_slots_expired(&database->slots, from, outbox_clock_now());
	LWLockRelease(&database->slots_lock);
	return place;
}

/* The caller has the member's lock exclusively. False: it has renewed its lease, or left, meanwhile. */
static bool
revoke_place(OutboxDatabase *database, int place)
{
	bool		expired;

	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	expired = outbox_slots_expired(&database->slots, place, outbox_clock_now()) == place;
	if (expired)
	{
		outbox_slots_revoke(&database->slots, place);
		outbox_feed_detach_reader(database, place);
		outbox_ownership_clear_claims(database, place);
	}
	LWLockRelease(&database->slots_lock);
	return expired;
}

void
outbox_ownership_revoke_expired(OutboxDatabase *database)
{
	for (int place = find_expired(database, 0); place >= 0; place = find_expired(database, place + 1))
	{
		LOCKTAG		tag;
		bool		revoked;

		StartTransactionCommand();
		set_member_tag(&tag, database, place);
		/* Not to be had: it is frozen while it records a verdict. The next look will find it again. */
		revoked = LockAcquire(&tag, ExclusiveLock, false, true) != LOCKACQUIRE_NOT_AVAIL && revoke_place(database, place);
		CommitTransactionCommand();
		if (revoked)
		{
			ereport(LOG,
					(errmsg("outbox relay %d of database %u has not shown for its lease: its aggregates go to others",
							place, database->dboid)));
			outbox_shmem_wake_relays(database);
		}
	}
}

int64
outbox_ownership_time_to_expiry(OutboxDatabase *database)
{
	int64		next;

	LWLockAcquire(&database->slots_lock, LW_SHARED);
	next = outbox_slots_next_expiry(&database->slots);
	LWLockRelease(&database->slots_lock);
	return next == PG_INT64_MAX ? next : next - outbox_clock_now();
}
