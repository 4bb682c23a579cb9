/*
 * replay_job.c
 *	  The replayer's view of outbox.replay_job: which replay is its own, how far
 *	  it has come, whether it is to go on.
 *
 * A replay belongs to the process that holds its session lock, so a row that
 * says "running" while nobody holds the lock is one to go on with. Whoever
 * cancels changes the state only; the figures are the replayer's.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/typcache.h"

#include "database.h"
#include "replay_job.h"
#include "standing.h"

/* In pg_locks: locktype advisory, objsubid 105; classid and objid are the beginning of the batch's id. */
#define LOCK_CLASS_REPLAY 105

#define COLUMNS "batch_id, source, source_text, subject, event_type, aggregate_type, aggregate_id, from_time, to_time, " \
				"from_position, to_position, target_url, target_stream, target_prefix, rate, total, done, repeated, ahead, position_reached"

static Oid my_sequence = InvalidOid; /* the extension's life that this process began with */

/* ------------------------------------------------------------ transactions */

/* Begins one. When the extension has gone the process ends, quietly. */
const OutboxCatalog *
outbox_replay_begin_transaction(void)
{
	const OutboxCatalog *catalog;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog == NULL || catalog->sequence != my_sequence)
	{
		AbortCurrentTransaction();
		proc_exit(0);
	}
	return catalog;
}

/* There is an active snapshot. */
void
outbox_replay_end_transaction(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	(void) pgstat_report_stat(false);
}

/* Begins one with SPI. */
void
outbox_replay_begin(void)
{
	(void) outbox_replay_begin_transaction();
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
}

void
outbox_replay_end(void)
{
	SPI_finish();
	outbox_replay_end_transaction();
}

/* False: the database hasn't got the extension. */
bool
outbox_replay_attach(OutboxDatabase **database)
{
	const OutboxCatalog *catalog;

	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog != NULL)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		my_sequence = catalog->sequence;
		*database = outbox_database_attach(catalog);
		PopActiveSnapshot();
	}
	CommitTransactionCommand();
	return OidIsValid(my_sequence);
}

/* -------------------------------------------------------------- reading rows */

/* Text of a column in the caller's memory, NULL for null. */
static const char *
text_at(HeapTuple tuple, TupleDesc desc, const char *name)
{
	return SPI_getvalue(tuple, desc, SPI_fnumber(desc, name));
}

static Datum
datum_at(HeapTuple tuple, TupleDesc desc, const char *name, bool *isnull)
{
	return SPI_getbinval(tuple, desc, SPI_fnumber(desc, name), isnull);
}

static int64
int64_at(HeapTuple tuple, TupleDesc desc, const char *name, int64 if_null)
{
	bool		isnull;
	Datum		value = datum_at(tuple, desc, name, &isnull);

	return isnull ? if_null : DatumGetInt64(value);
}

static void
read_tuple(HeapTuple tuple, TupleDesc desc, OutboxReplayJob *job)
{
	bool		isnull;
	Datum		rate;

	memset(job, 0, sizeof(*job));
	job->batch_id = *DatumGetUUIDP(datum_at(tuple, desc, "batch_id", &isnull));
	strlcpy(job->id, text_at(tuple, desc, "batch_id"), sizeof(job->id));
	job->source = text_at(tuple, desc, "source");
	job->source_text = text_at(tuple, desc, "source_text");
	job->subject = text_at(tuple, desc, "subject");
	job->event_type = text_at(tuple, desc, "event_type");
	job->aggregate_type = text_at(tuple, desc, "aggregate_type");
	job->aggregate_id = text_at(tuple, desc, "aggregate_id");
	job->from_time = DatumGetTimestampTz(datum_at(tuple, desc, "from_time", &isnull));
	job->to_time = DatumGetTimestampTz(datum_at(tuple, desc, "to_time", &isnull));
	job->from_position = int64_at(tuple, desc, "from_position", 1);
	job->to_position = int64_at(tuple, desc, "to_position", PG_INT64_MAX);
	job->target_url = text_at(tuple, desc, "target_url");
	job->target_stream = text_at(tuple, desc, "target_stream");
	job->target_prefix = text_at(tuple, desc, "target_prefix");
	rate = datum_at(tuple, desc, "rate", &isnull);
	job->rate = isnull ? 0 : DatumGetInt32(rate);
	job->total = int64_at(tuple, desc, "total", -1);
	job->done = int64_at(tuple, desc, "done", 0);
	job->repeated = int64_at(tuple, desc, "repeated", 0);
	job->ahead = int64_at(tuple, desc, "ahead", 0);
	job->reached = int64_at(tuple, desc, "position_reached", 0);
}

/* From an argument of type outbox.replay_job, whose columns those are; query isn't among them. */
void
outbox_replay_read_job(HeapTupleHeader row, OutboxReplayJob *job)
{
	TupleDesc	desc = lookup_rowtype_tupdesc(HeapTupleHeaderGetTypeId(row), HeapTupleHeaderGetTypMod(row));
	HeapTupleData tuple = {.t_len = HeapTupleHeaderGetDatumLength(row), .t_data = row};

	ItemPointerSetInvalid(&tuple.t_self);
	read_tuple(&tuple, desc, job);
	ReleaseTupleDesc(desc);
}

/* ------------------------------------------------------------------ claiming */

static void
set_tag(LOCKTAG *tag, const pg_uuid_t *id)
{
	uint32		words[2];

	memcpy(words, id->data, sizeof(words));
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, words[0], words[1], LOCK_CLASS_REPLAY);
}

/* The first replay that is nobody's becomes ours; more: there are others. Inside SPI. */
static bool
lock_one(pg_uuid_t *id, bool *more)
{
	bool		found = false;
	char		reason[OUTBOX_TEXT_SIZE];

	*more = false;
	/* What a copy of the database has brought along isn't its own. */
	if (outbox_standing(reason) != OUTBOX_STANDING_GOOD)
		return false;
	if (SPI_execute("SELECT j.batch_id FROM outbox.replay_job j WHERE j.state IN ('queued', 'running')"
					" ORDER BY j.requested_at, j.batch_id",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the replays");
	for (uint64 i = 0; i < SPI_processed && !*more; i++)
	{
		bool		isnull;
		pg_uuid_t  *candidate = DatumGetUUIDP(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		LOCKTAG		tag;

		set_tag(&tag, candidate);
		if (LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
			continue;
		if (found)
		{
			*more = true;
			LockRelease(&tag, ExclusiveLock, true);
		}
		else
			*id = *candidate;
		found = true;
	}
	return found;
}

/* The row says that it runs; false: it was cancelled just now. Inside SPI. */
static bool
begin_run(const pg_uuid_t *id, OutboxReplayJob *job)
{
	Oid			types[1] = {UUIDOID};
	Datum		values[1] = {UUIDPGetDatum(id)};
	MemoryContext spi;

	if (SPI_execute_with_args("UPDATE outbox.replay_job j SET state = 'running', runs = runs + 1, started_at = pg_catalog.clock_timestamp(),"
							  " updated_at = pg_catalog.clock_timestamp(), run_done = done, last_error = NULL, finished_at = NULL"
							  " WHERE batch_id = $1 AND state IN ('queued', 'running')"
							  " RETURNING " COLUMNS ", CASE WHEN source = 'query' THEN outbox.replay_query(j) END AS query",
							  1, types, values, NULL, false, 0) != SPI_OK_UPDATE_RETURNING)
		elog(ERROR, "could not take up a replay");
	if (SPI_processed == 0)
		return false;
	spi = MemoryContextSwitchTo(TopMemoryContext);
	read_tuple(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, job);
	job->query = text_at(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, "query");
	MemoryContextSwitchTo(spi);
	return true;
}

/* Finds a replay to do, and says that it is being done. The lock goes with the process. */
bool
outbox_replay_claim(OutboxReplayJob *job, bool *more)
{
	pg_uuid_t	id;
	bool		claimed;

	outbox_replay_begin();
	claimed = lock_one(&id, more);
	outbox_replay_end();
	if (!claimed)
		return false;
	outbox_replay_begin();
	claimed = begin_run(&id, job);
	outbox_replay_end();
	return claimed;
}

/* ------------------------------------------------------------------ figures */

/* Writes them, with a new state unless somebody has changed it meanwhile. Inside SPI. */
static void
write_figures(const OutboxReplayJob *job, const OutboxReplayFigures *figures, const char *state, bool wait)
{
	Oid			types[9] = {UUIDOID, INT8OID, INT8OID, INT8OID, INT8OID, INT8OID, TIMESTAMPTZOID, TEXTOID, TEXTOID};
	Datum		values[9] = {UUIDPGetDatum(&job->batch_id), Int64GetDatum(figures->total), Int64GetDatum(figures->done),
					   Int64GetDatum(figures->repeated), Int64GetDatum(figures->ahead), Int64GetDatum(figures->reached),
					   TimestampTzGetDatum(figures->time_reached), (Datum) 0, CStringGetTextDatum(state)};
	char		nulls[] = "         ";
	char		query[1024];

	if (figures->total < 0)
		nulls[1] = 'n';
	if (figures->time_reached == 0)
		nulls[6] = 'n';
	if (figures->error == NULL)
		nulls[7] = 'n';
	else
		values[7] = CStringGetTextDatum(figures->error);
	/* Who is about to cancel may have all the time in the world: the network isn't to wait for that. */
	snprintf(query, sizeof(query),
			 "UPDATE outbox.replay_job SET total = $2, done = $3, repeated = $4, ahead = $5, position_reached = $6,"
			 " time_reached = $7, last_error = $8, updated_at = pg_catalog.clock_timestamp(),"
			 " finished_at = CASE WHEN state <> 'running' THEN finished_at WHEN $9 <> 'running' THEN pg_catalog.clock_timestamp() END,"
			 " state = CASE WHEN state = 'running' THEN $9 ELSE state END"
			 " WHERE batch_id = (SELECT j.batch_id FROM outbox.replay_job j WHERE j.batch_id = $1 FOR UPDATE%s)",
			 wait ? "" : " SKIP LOCKED");
	if (SPI_execute_with_args(query, 9, types, values, nulls, false, 0) != SPI_OK_UPDATE)
		elog(ERROR, "could not record the progress of a replay");
}

/* Inside SPI. */
static OutboxReplayWord
read_word(const OutboxReplayJob *job)
{
	Oid			types[1] = {UUIDOID};
	Datum		values[1] = {UUIDPGetDatum(&job->batch_id)};
	bool		isnull;

	if (SPI_execute_with_args("SELECT EXISTS (SELECT FROM outbox.pauses p WHERE p.aggregate_type IS NULL AND p.subject IS NULL)"
							  " FROM outbox.replay_job j WHERE j.batch_id = $1 AND j.state = 'running'",
							  1, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read the state of a replay");
	if (SPI_processed == 0)
		return OUTBOX_REPLAY_CEASE;
	return DatumGetBool(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull)) ? OUTBOX_REPLAY_WAIT : OUTBOX_REPLAY_GO_ON;
}

/* Records the progress, and asks whether to go on. */
OutboxReplayWord
outbox_replay_tell(const OutboxReplayJob *job, const OutboxReplayFigures *figures)
{
	OutboxReplayWord word;

	outbox_replay_begin();
	write_figures(job, figures, "running", false);
	word = read_word(job);
	outbox_replay_end();
	return word;
}

/* The last figures, and how the run has ended. */
void
outbox_replay_finish(const OutboxReplayJob *job, const OutboxReplayFigures *figures, const char *state)
{
	outbox_replay_begin();
	write_figures(job, figures, state, true);
	outbox_replay_end();
}

/* How many events the replay has, as its survey counts them. */
int64
outbox_replay_count(const OutboxReplayJob *job)
{
	Oid			types[1] = {UUIDOID};
	Datum		values[1] = {UUIDPGetDatum(&job->batch_id)};
	bool		isnull;
	int64		count;

	outbox_replay_begin();
	if (SPI_execute_with_args("SELECT s.events FROM outbox.replay_job j, outbox.replay_survey(j) s WHERE j.batch_id = $1 AND s.event_type IS NULL",
							  1, types, values, NULL, false, 0) != SPI_OK_SELECT ||
		SPI_processed != 1)
		elog(ERROR, "could not count the events of a replay");
	count = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	outbox_replay_end();
	return count;
}
