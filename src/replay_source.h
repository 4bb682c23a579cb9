/*
 * replay_source.h
 *	  Where a replay's events come from, one after the other by position.
 *
 * Plain C: what reads files or asks other servers is shared by the replayer in
 * the server and the command outbox-replay. A source in the server may raise an
 * error instead of returning one.
 */
#ifndef OUTBOX_REPLAY_SOURCE_H
#define OUTBOX_REPLAY_SOURCE_H

#include "envelope.h"

#define OUTBOX_SOURCE_TEXT_SIZE 1200

typedef enum OutboxSourceResult
{
	OUTBOX_SOURCE_ROW,
	OUTBOX_SOURCE_END,
	OUTBOX_SOURCE_LATER,		/* none so far: there is something else to do, too; then to be asked again */
	OUTBOX_SOURCE_FAILED /* error says why */
} OutboxSourceResult;

/* Sources begin with this. */
typedef struct OutboxReplaySource
{
	/* The next event; what the row points to is valid until the next call. */
	OutboxSourceResult (*next)(struct OutboxReplaySource *source, OutboxRow *row);
	/* For now nothing more is asked for: what is held meanwhile is given back. NULL: that is nothing. */
	void (*rest)(struct OutboxReplaySource *source);
	void (*close)(struct OutboxReplaySource *source);
	char		error[OUTBOX_SOURCE_TEXT_SIZE];
} OutboxReplaySource;

/* 64 bits of an aggregate, for the order of its events. */
static inline uint64_t
outbox_source_aggregate(const OutboxRow *row)
{
	uint64_t	hash = UINT64_C(14695981039346656037);

	for (const char *c = row->aggregate_type; *c != '\0'; c++)
		hash = (hash ^ (unsigned char) *c) * UINT64_C(1099511628211);
	hash *= UINT64_C(1099511628211);
	for (const char *c = row->aggregate_id; *c != '\0'; c++)
		hash = (hash ^ (unsigned char) *c) * UINT64_C(1099511628211);
	return hash;
}

#endif /* OUTBOX_REPLAY_SOURCE_H */
