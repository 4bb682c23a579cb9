/*
 * live_traffic.c
 *	  The live traffic: what the relays say of themselves in shared memory,
 *	  looked at now and then.
 */
#include "outbox.h"

#include "live_traffic.h"

/* How often it is looked at. */
#define LOOK_US INT64CONST(20000)
/* Traffic that has ended so long ago is none any more. */
#define MEMORY_US INT64CONST(2000000)

/* Pending events that can't go, whose time hasn't come or which are blocked, are no traffic, however many. */
static void
look(OutboxLiveWatch *watch, OutboxDatabase *database, int64 now)
{
	static const char *const names[] = {"idle", "active", "busy"};
	uint64		published = 0;
	uint64		in_flight = 0;
	OutboxLiveTraffic before = watch->traffic;

	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		OutboxPlace *place = &database->places[i];

		if (pg_atomic_read_u32(&place->pid) == 0)
			continue;
		published += pg_atomic_read_u64(&place->published);
		in_flight += pg_atomic_read_u64(&place->in_flight);
	}
	/* What was published before the first look is no news. */
	if ((published != watch->published && watch->look_at != 0) || in_flight > 0)
		watch->until = now + MEMORY_US;
	watch->published = published;
	if (in_flight > (uint64) outbox_max_in_flight / 2)
		watch->traffic = OUTBOX_LIVE_BUSY;
	else
		watch->traffic = now < watch->until ? OUTBOX_LIVE_ACTIVE : OUTBOX_LIVE_IDLE;
	if (watch->traffic != before)
		ereport(DEBUG1, (errmsg_internal("live traffic is %s now, was %s", names[watch->traffic], names[before])));
}

OutboxLiveTraffic
outbox_live_traffic(OutboxLiveWatch *watch, OutboxDatabase *database, int64_t now)
{
	if (now >= watch->look_at)
	{
		look(watch, database, now);
		watch->look_at = now + LOOK_US;
	}
	return watch->traffic;
}
