/*
 * replay_live.c
 *	  The live traffic beside a replay: what the relays say of themselves in
 *	  shared memory, looked at now and then.
 */
#include "outbox.h"

#include "replay_live.h"

/* Relays that have more pending events than this are not to be disturbed. */
#define LIVE_BACKLOG 500
/* Live traffic that has ended so long ago is none any more. */
#define LIVE_MEMORY_US INT64CONST(2000000)

static void
look(OutboxReplayLive *live, OutboxDatabase *database, int64 now)
{
	uint64		published = 0;
	uint64		pending = 0;

	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		OutboxPlace *place = &database->places[i];

		if (pg_atomic_read_u32(&place->pid) == 0)
			continue;
		published += pg_atomic_read_u64(&place->published);
		pending += pg_atomic_read_u64(&place->known_pending);
	}
	/* What was published before the first look is no news. */
	if ((published != live->published && live->look_at != 0) || pending > 0)
		live->until = now + LIVE_MEMORY_US;
	live->published = published;
	if (pending > LIVE_BACKLOG)
		live->traffic = OUTBOX_LIVE_BUSY;
	else
		live->traffic = now < live->until ? OUTBOX_LIVE_ACTIVE : OUTBOX_LIVE_IDLE;
}

OutboxPlayerLive
outbox_replay_live(OutboxReplayLive *live, OutboxDatabase *database, int64 now)
{
	if (now >= live->look_at)
	{
		look(live, database, now);
		live->look_at = now + OUTBOX_REPLAY_LOOK_US;
	}
	return live->traffic;
}
