/*
 * replay_live.h
 *	  The live traffic beside a replay.
 */
#ifndef OUTBOX_REPLAY_LIVE_H
#define OUTBOX_REPLAY_LIVE_H

#include "replay_player.h"

/* How often it is looked at. */
#define OUTBOX_REPLAY_LOOK_US INT64CONST(20000)

/* Begins with all zero. */
typedef struct OutboxReplayLive
{
	OutboxPlayerLive traffic;
	int64		look_at;		/* next */
	uint64		published;		/* by the relays, when it was looked at */
	int64		until;			/* so long there is some */
} OutboxReplayLive;

extern OutboxPlayerLive outbox_replay_live(OutboxReplayLive *live, OutboxDatabase *database, int64 now);

#endif							/* OUTBOX_REPLAY_LIVE_H */
