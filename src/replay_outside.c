/*
 * replay_outside.c
 *	  Sources of a replay that SQL can't read, opened for a row of
 *	  outbox.replay_job: the server's side of replay_archive.c and
 *	  replay_clickhouse.c.
 */
#include "outbox.h"

#include <signal.h>

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"

#include "event.h"
#include "replay_archive.h"
#include "replay_clickhouse.h"
#include "replay_filter.h"
#include "replay_job.h"
#include "signals.h"

bool
outbox_replay_is_outside(const OutboxReplayJob *job)
{
	return strcmp(job->source, "archive") == 0 || strcmp(job->source, "clickhouse") == 0;
}

/*
 * Who wants to end this process needn't wait for a file to be checked, or for a
 * server. Signals are blocked meanwhile, or they aren't; a worker ignores the one
 * that cancels.
 */
static bool
go_on(void *arg)
{
	sigset_t	pending;

	sigpending(&pending);
	return PostmasterIsAliveInternal() && !ProcDiePending && !QueryCancelPending && !sigismember(&pending, SIGTERM) &&
		(MyBgworkerEntry != NULL || !sigismember(&pending, SIGINT));
}

/* In the current memory context. A conversion takes a transaction. */
static const char *
keep_utf8(const char *text)
{
	MemoryContext memory = CurrentMemoryContext;
	bool		own = !IsTransactionState();
	const char *kept = NULL;

	if (text == NULL)
		return NULL;
	if (own)
		StartTransactionCommand();
	kept = MemoryContextStrdup(memory, outbox_event_utf8(text));
	if (own)
		CommitTransactionCommand();
	MemoryContextSwitchTo(memory);
	return kept;
}

static int64
unix_time(TimestampTz time)
{
	if (TIMESTAMP_IS_NOBEGIN(time))
		return PG_INT64_MIN;
	return TIMESTAMP_IS_NOEND(time) ? PG_INT64_MAX : outbox_unix_us(time);
}

/* The next event of such a source. libcurl may start a thread, which must not run our signal handlers. */
OutboxSourceResult
outbox_replay_outside_next(OutboxReplaySource *source, OutboxRow *row)
{
	OutboxSourceResult result;
	sigset_t	saved;

	outbox_signals_block(&saved);
	result = source->next(source, row);
	outbox_signals_restore(&saved);
	return result;
}

/* Kept, as it takes a transaction to look it up. */
static const char *
database_name(void)
{
	static char	name[NAMEDATALEN] = "";

	if (name[0] == '\0')
	{
		bool		own = !IsTransactionState();

		if (own)
			StartTransactionCommand();
		strlcpy(name, get_database_name(MyDatabaseId), sizeof(name));
		if (own)
			CommitTransactionCommand();
	}
	return name;
}

/* For who filters without SQL. Its texts are in the current memory context. */
void
outbox_replay_filter_of(const OutboxReplayJob *job, OutboxReplayFilter *filter)
{
	*filter = (OutboxReplayFilter) {
		.subject = keep_utf8(job->subject),
		.event_type = keep_utf8(job->event_type),
		.aggregate_type = keep_utf8(job->aggregate_type),
		.aggregate_id = keep_utf8(job->aggregate_id),
		.from_time = unix_time(job->from_time),
		.to_time = unix_time(job->to_time),
		.from_position = job->from_position,
		.to_position = job->to_position,
	};
}

/* The events behind a position; what it needs is in the current memory context. ERROR if they can't be had. */
OutboxReplaySource *
outbox_replay_outside_open(const OutboxReplayJob *job, const OutboxEnvelope *envelope, int64 behind)
{
	OutboxReplayFilter *filter = palloc(sizeof(OutboxReplayFilter));
	const char *place = keep_utf8(job->source_text);
	OutboxReplaySource *source;
	char		error[OUTBOX_SOURCE_TEXT_SIZE];

	outbox_replay_filter_of(job, filter);
	if (strcmp(job->source, "archive") == 0)
	{
		OutboxArchiveWish wish = {place, NULL, filter, envelope, go_on};

		source = outbox_replay_archive_open(&wish, behind, error);
	}
	else
	{
		OutboxClickhouseWish wish = {place, keep_utf8(database_name()), filter, envelope, go_on};

		source = outbox_replay_clickhouse_open(&wish, behind, error);
	}
	if (source == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("%s", error)));
	return source;
}
