/*
 * replay_clickhouse.h
 *	  Events of a replay from the table that outbox.archive_url fills.
 *
 * Plain C. libcurl may start a thread to look up a name: in the server all
 * signals must be blocked around calls.
 */
#ifndef OUTBOX_REPLAY_CLICKHOUSE_H
#define OUTBOX_REPLAY_CLICKHOUSE_H

#include "replay_filter.h"
#include "replay_source.h"

/* What is wanted; all of it must live as long as the source. */
typedef struct OutboxClickhouseWish
{
	const char *url;			/* http[s]://[user[:password]@]host[:port]/[database/]table */
	const char *database;		/* whose events */
	const OutboxReplayFilter *filter;
	const OutboxEnvelope *envelope;
	bool (*go_on)(void *arg);	/* called now and then while it waits, its false ends that; may be NULL */
} OutboxClickhouseWish;

/* The events that match, behind a position. NULL: error says why not. Asks the server nothing yet. */
extern OutboxReplaySource *outbox_replay_clickhouse_open(const OutboxClickhouseWish *wish, int64_t behind,
														 char error[OUTBOX_SOURCE_TEXT_SIZE]);

#endif /* OUTBOX_REPLAY_CLICKHOUSE_H */
