/*
 * membership.c
 *	  A relay as a member of its database: keeps its lease, changes its slots,
 *	  and goes when it is none any more.
 *
 * A relay works on the aggregates of its slots only. To change them it drains
 * (relay.c): it sends nothing more, waits for the outcomes of what is in
 * flight, records them, and then, holding nothing, gives back, claims, and
 * reads everything afresh.
 *
 * A relay that finds itself revoked, or that stood still for half its lease and
 * so may be any moment, sends nothing, records nothing and leaves the process;
 * the bytes that its connection hadn't sent go with it. The launcher starts
 * another one.
 */
#include "clock.h"
#include "relay.h"

#include "miscadmin.h"

#define TICK_US INT64CONST(100000)

/* By the clock of ownership.c. */
static int64 checked_at;
static int64 renewed_at;
static uint32 seen_generation;

static int64
lease_us(void)
{
	return outbox_lease_ttl * INT64CONST(1000);
}

/* After a stretch of work that may be long, whatever is found: the time up to now was spent well. */
void
outbox_membership_renew(OutboxRelay *relay)
{
	if (!outbox_ownership_renew(&relay->member))
		outbox_relay_leave(relay, "others have its aggregates");
	checked_at = renewed_at = outbox_clock_now();
}

/* At the top of the loop and before anything is sent. Doesn't return if the relay has to go. */
void
outbox_membership_check(OutboxRelay *relay)
{
	int64		now = outbox_clock_now();

	if (now - checked_at > lease_us() / 2)
		outbox_relay_leave(relay, "it stood still for half its lease");
	if (now - renewed_at >= lease_us() / 8)
	{
		outbox_membership_renew(relay);
		return;
	}
	if (!outbox_ownership_is_valid(&relay->member))
		outbox_relay_leave(relay, "others have its aggregates");
	checked_at = now;
}

/* For loops over rows: the same, looked at now and then. */
void
outbox_membership_tick(OutboxRelay *relay)
{
	if (outbox_clock_now() - checked_at > TICK_US)
		outbox_membership_check(relay);
}

/* Inside a transaction that records what only the owner may record. */
void
outbox_membership_fence(OutboxRelay *relay)
{
	if (!outbox_ownership_fence(&relay->member))
		outbox_relay_leave(relay, "others have its aggregates");
}

/* Whether the relay should drain and call outbox_membership_change(). */
bool
outbox_membership_wants_change(OutboxRelay *relay)
{
	uint32		generation = *(volatile uint32 *) &relay->database->slots.generation;

	if (relay->reload_wanted)
		return true;
	if (generation == seen_generation)
		return false;
	seen_generation = generation;
	return outbox_ownership_wants_change(&relay->member);
}

/* Gives back and claims slots, and loads what is known of them. With nothing in flight or unrecorded. */
void
outbox_membership_change(OutboxRelay *relay)
{
	uint64		before = relay->slots;

	Assert(relay->acked_count == 0 && relay->failure_count == 0);
	/* Before the look at the table: what changes after it is seen later. */
	seen_generation = *(volatile uint32 *) &relay->database->slots.generation;
	relay->reload_wanted = false;
	if (!outbox_ownership_change(&relay->member, &relay->slots))
		outbox_relay_leave(relay, "others have its aggregates");
	outbox_claims_reset(relay);
	outbox_store_unload(relay);
	outbox_store_begin_reading(relay, 1, 1);
	outbox_store_load(relay);
	outbox_store_end(relay);
	outbox_membership_renew(relay);
	if (relay->slots != before)
		ereport(DEBUG1,
				(errmsg_internal("outbox relay %d owns slots %llx", relay->member.place, (unsigned long long) relay->slots)));
}

/*
 * Tells the others how far this relay's own slots are done, and returns how
 * far all are, or 0.
 */
int64
outbox_membership_watermark(OutboxRelay *relay, int64 own)
{
	int64		common;

	if (!outbox_ownership_say_watermark(&relay->member, own, &common))
		outbox_relay_leave(relay, "others have its aggregates");
	return common;
}
