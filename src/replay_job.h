/*
 * replay_job.h
 *	  A row of outbox.replay_job, and the sources in the server.
 */
#ifndef OUTBOX_REPLAY_JOB_H
#define OUTBOX_REPLAY_JOB_H

#include "outbox.h"

#include "utils/uuid.h"

#include "database.h"
#include "replay_filter.h"
#include "replay_source.h"

/* Texts in the server's encoding; NULL: not given. */
typedef struct OutboxReplayJob
{
	pg_uuid_t	batch_id;
	char		id[37];			/* the same as text */
	const char *source;
	const char *source_text;
	const char *query;			/* of a source that is one */
	const char *subject;
	const char *event_type;
	const char *aggregate_type;
	const char *aggregate_id;
	TimestampTz	from_time;
	TimestampTz	to_time;
	int64		from_position;
	int64		to_position;
	const char *target_url;
	const char *target_stream;
	const char *target_prefix;
	int64		rate;			/* 0: no limit */
	int64		total;			/* -1: not counted yet */
	int64		done;
	int64		repeated;
	int64		ahead;			/* of the run before: they are repeated now */
	int64		reached;
} OutboxReplayJob;

/* What a run writes into the row. */
typedef struct OutboxReplayFigures
{
	int64		total;			/* -1: not counted yet */
	int64		done;
	int64		repeated;
	int64		ahead;
	int64		reached;
	TimestampTz	time_reached;	/* 0: none */
	const char *error;			/* NULL: none */
} OutboxReplayFigures;

/* What the row says. */
typedef enum OutboxReplayWord
{
	OUTBOX_REPLAY_GO_ON,
	OUTBOX_REPLAY_WAIT,			/* publishing is paused */
	OUTBOX_REPLAY_CEASE /* cancelled */
} OutboxReplayWord;

/* replay_job.c: each is a transaction of its own but the ones that say so */
extern const OutboxCatalog *outbox_replay_begin_transaction(void);
extern void outbox_replay_end_transaction(void);
extern void outbox_replay_begin(void);
extern void outbox_replay_end(void);
extern bool outbox_replay_attach(OutboxDatabase **database);
extern bool outbox_replay_claim(OutboxReplayJob *job, bool *more);
extern OutboxReplayWord outbox_replay_tell(const OutboxReplayJob *job, const OutboxReplayFigures *figures);
extern void outbox_replay_finish(const OutboxReplayJob *job, const OutboxReplayFigures *figures, const char *state);
extern int64 outbox_replay_count(const OutboxReplayJob *job);
extern void outbox_replay_read_job(HeapTupleHeader row, OutboxReplayJob *job);

/* replay_target.c */
extern struct Broker *outbox_replay_connect(const OutboxReplayJob *job);

/* replay_log.c */
static inline bool
outbox_replay_is_log(const OutboxReplayJob *job)
{
	return strcmp(job->source, "log") == 0;
}

extern OutboxReplaySource *outbox_replay_log_open(const OutboxReplayJob *job, OutboxDatabase *database,
												  const OutboxEnvelope *envelope, int64 behind);
extern bool outbox_replay_log_count(OutboxReplaySource *source, int64 *count);

/* replay_sql.c */
extern OutboxReplaySource *outbox_replay_sql_open(const OutboxReplayJob *job, int64 behind, int64 *count);

/* replay_outside.c: sources that the database doesn't read */
extern void outbox_replay_filter_of(const OutboxReplayJob *job, OutboxReplayFilter *filter);
extern bool outbox_replay_is_outside(const OutboxReplayJob *job);
extern OutboxSourceResult outbox_replay_outside_next(OutboxReplaySource *source, OutboxRow *row);
extern OutboxReplaySource *outbox_replay_outside_open(const OutboxReplayJob *job, const OutboxEnvelope *envelope, int64 behind);

/* replay_row.c */
typedef struct OutboxRowShape OutboxRowShape;
extern OutboxRowShape *outbox_row_shape(TupleDesc desc);
extern void outbox_row_read(const OutboxRowShape *shape, HeapTuple tuple, TupleDesc desc, OutboxRow *row);

#endif /* OUTBOX_REPLAY_JOB_H */
