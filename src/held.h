/*
 * held.h
 *	  An event as the relay holds it in memory: ready to be sent.
 */
#ifndef OUTBOX_HELD_H
#define OUTBOX_HELD_H

#include "postgres.h"

#include "utils/timestamp.h"

#include "envelope.h"
#include "schedule.h"

/* One malloc'd block: this, the texts of it, the message. */
typedef struct OutboxEvent
{
	SchedEvent	schedule;		/* first: the scheduler owns and frees the block */
	int64		due;			/* by the relay's clock, if message.schedule is set: until then the event waits with the
								 * stream, or here */
	int			home;			/* in the log, whose ledger twin records it: ring.h */
	int			claim;			/* index in OutboxDatabase.claimed while in flight */
	uint64		agg_hash;		/* of type and id; the schedule's key may be another */
	int			attempts;		/* that counted, so far */
	bool		has_delivery;	/* outbox.delivery has a row of it */
	bool		alone;			/* not in a batch: it was in one that failed */
	int			run;			/* in flight as the first of so many that have one outcome; 0: by itself */
	int64		committed_at;	/* by the relay's clock; 0: not known */
	const char *event_id;		/* these in text, within the block */
	const char *aggregate_type;	/* these three in the server's encoding */
	const char *aggregate_id;
	const char *event_type;
	const char *broken;			/* why the row can't be read; there is no message then */
	BrokerMessage message;
} OutboxEvent;

/* A row of the log as the relay reads it: texts in the server's encoding until it is built. */
typedef struct OutboxLogRow
{
	OutboxRow	row;
	int			home;
	uint64		agg_hash;
	TimestampTz	created_at;
	TimestampTz	not_before;		/* 0: none */
	int			priority;
} OutboxLogRow;

extern void outbox_held_give_schedules(const char *prefix);
extern void outbox_held_envelope(OutboxEnvelope *envelope);
extern OutboxEvent *outbox_held_build(OutboxLogRow *row);
extern OutboxEvent *outbox_held_broken(int home, int64 position, uint64 agg_hash, const char *why);
extern void outbox_held_head_to_utf8(OutboxRow *row);
extern void outbox_held_payload_to_utf8(OutboxRow *row);
extern void outbox_held_row_to_utf8(OutboxRow *row);

#endif /* OUTBOX_HELD_H */
