/*
 * live_traffic.h
 *	  What the relays have to do, for those who leave them the processor:
 *	  replays and the archive. Knows neither PostgreSQL nor NATS.
 */
#ifndef OUTBOX_LIVE_TRAFFIC_H
#define OUTBOX_LIVE_TRAFFIC_H

#include <stdint.h>

typedef enum OutboxLiveTraffic
{
	OUTBOX_LIVE_IDLE,			/* there is none */
	OUTBOX_LIVE_ACTIVE,
	OUTBOX_LIVE_BUSY /* more waits than should */
} OutboxLiveTraffic;

/* Begins with all zero. */
typedef struct OutboxLiveWatch
{
	OutboxLiveTraffic traffic;
	int64_t		look_at;		/* next */
	uint64_t	published;		/* by the relays, when it was looked at */
	int64_t		until;			/* so long there is some */
} OutboxLiveWatch;

struct OutboxDatabase;

/* The traffic now, on the clock of outbox_clock_now(), or a moment ago. */
extern OutboxLiveTraffic outbox_live_traffic(OutboxLiveWatch *watch, struct OutboxDatabase *database, int64_t now);

#endif /* OUTBOX_LIVE_TRAFFIC_H */
