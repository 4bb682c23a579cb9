/*
 * replay_sql.c
 *	  Events of a replay that SQL can read: from the database's own log, or from
 *	  any query.
 *
 * The log is read in batches by position, each in a transaction of its own that
 * is over before the events are sent. A query is run once, to its end, and its
 * result is kept in a temporary file meanwhile: nobody knows what a second run
 * would find.
 */
#include "outbox.h"

#include "access/heaptoast.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "replay_job.h"

/* Rows in a transaction, so that one read doesn't delay what is sent by much. */
#define BATCH 1000

typedef struct SqlSource
{
	OutboxReplaySource base;
	char	   *query;
	SPIPlanPtr	plan;			/* of the query, once it was read; only for the log */
	int64		behind;			/* read up to this position */
	int64		last;			/* handed out */
	MemoryContext memory;		/* of the source */
	MemoryContext batch;
	OutboxRow  *rows;
	int			count;
	int			at;
	bool		ended;
	Tuplestorestate *store;		/* the query's result; NULL: this is the log */
	TupleTableSlot *slot;
	OutboxRowShape *shape;
} SqlSource;

/* Rows that SPI has just read become the batch. */
static void
take_batch(SqlSource *source)
{
	MemoryContext caller = MemoryContextSwitchTo(source->batch);
	TupleDesc	desc = SPI_tuptable->tupdesc;
	OutboxRowShape *shape = outbox_row_shape(desc);

	source->count = (int) SPI_processed;
	source->rows = palloc(sizeof(OutboxRow) * Max(source->count, 1));
	for (int i = 0; i < source->count; i++)
	{
		/* SPI's memory goes with the transaction. */
		HeapTuple	tuple = heap_copytuple(SPI_tuptable->vals[i]);

		outbox_row_read(shape, tuple, desc, &source->rows[i]);
	}
	MemoryContextSwitchTo(caller);
}

/*
 * The log is read through its indexes, in order, up to the limit. The planner would
 * take the conditions for rare, and so read and sort all of it for each batch.
 */
static void
read_by_index(void)
{
	static const char *const off[] = {"enable_seqscan", "enable_sort", "enable_bitmapscan", "enable_incremental_sort"};

	(void) set_config_option("plan_cache_mode", "force_generic_plan", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	for (int i = 0; i < lengthof(off); i++)
		(void) set_config_option(off[i], "off", PGC_SUSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

static void
read_log(SqlSource *source)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(source->behind)};
	MemoryContext caller = CurrentMemoryContext;
	int			guc_level;

	MemoryContextReset(source->batch);
	source->at = source->count = 0;
	outbox_replay_begin();
	guc_level = NewGUCNestLevel();
	read_by_index();
	if (source->plan == NULL)
	{
		source->plan = SPI_prepare(source->query, 1, types);
		if (source->plan == NULL || SPI_keepplan(source->plan) != 0)
			elog(ERROR, "could not plan to read the events of a replay");
	}
	if (SPI_execute_plan(source->plan, values, NULL, true, BATCH) != SPI_OK_SELECT)
		elog(ERROR, "could not read the events of a replay");
	take_batch(source);
	AtEOXact_GUC(true, guc_level);
	outbox_replay_end();
	MemoryContextSwitchTo(caller);
	source->ended = source->count < BATCH;
	if (source->count > 0)
		source->behind = source->rows[source->count - 1].position;
}

/* Runs the query and keeps what it finds. */
static void
keep_result(SqlSource *source)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(source->behind)};
	MemoryContext caller = CurrentMemoryContext;
	Portal		portal;

	outbox_replay_begin();
	portal = SPI_cursor_open_with_args(NULL, source->query, 1, types, values, NULL, true, CURSOR_OPT_NO_SCROLL);
	MemoryContextSwitchTo(source->memory);
	source->store = tuplestore_begin_heap(false, true, work_mem);
	source->slot = MakeSingleTupleTableSlot(CreateTupleDescCopy(portal->tupDesc), &TTSOpsMinimalTuple);
	source->shape = outbox_row_shape(portal->tupDesc);
	do
	{
		MemoryContextSwitchTo(source->batch);
		SPI_cursor_fetch(portal, true, BATCH);
		for (uint64 i = 0; i < SPI_processed; i++)
			tuplestore_puttuple(source->store, toast_flatten_tuple(SPI_tuptable->vals[i], SPI_tuptable->tupdesc));
		source->count = (int) SPI_processed;
		SPI_freetuptable(SPI_tuptable);
		MemoryContextReset(source->batch);
		CHECK_FOR_INTERRUPTS();
	} while (source->count > 0);
	SPI_cursor_close(portal);
	outbox_replay_end();
	MemoryContextSwitchTo(caller);
}

/* The next part of what was kept. Types are looked up, so it takes a transaction. */
static void
read_kept(SqlSource *source)
{
	MemoryContext caller = CurrentMemoryContext;

	MemoryContextReset(source->batch);
	source->at = source->count = 0;
	outbox_replay_begin();
	MemoryContextSwitchTo(source->batch);
	source->rows = palloc(sizeof(OutboxRow) * BATCH);
	while (source->count < BATCH && tuplestore_gettupleslot(source->store, true, false, source->slot))
		outbox_row_read(source->shape, ExecCopySlotHeapTuple(source->slot), source->slot->tts_tupleDescriptor,
						&source->rows[source->count++]);
	outbox_replay_end();
	MemoryContextSwitchTo(caller);
	source->ended = source->count < BATCH;
}

static OutboxSourceResult
next(OutboxReplaySource *base, OutboxRow *row)
{
	SqlSource  *source = (SqlSource *) base;

	if (source->at == source->count && !source->ended)
	{
		if (source->store == NULL)
			read_log(source);
		else
			read_kept(source);
	}
	if (source->at == source->count)
		return OUTBOX_SOURCE_END;
	*row = source->rows[source->at++];
	if (row->position <= source->last)
		ereport(ERROR,
				(errcode(ERRCODE_CARDINALITY_VIOLATION),
				 errmsg("position %lld occurs twice in a replay", (long long) row->position)));
	source->last = row->position;
	return OUTBOX_SOURCE_ROW;
}

static void
close_source(OutboxReplaySource *base)
{
	SqlSource  *source = (SqlSource *) base;

	if (source->store != NULL)
	{
		ExecDropSingleTupleTableSlot(source->slot);
		tuplestore_end(source->store);
	}
	if (source->plan != NULL)
		SPI_freeplan(source->plan);
	MemoryContextDelete(source->memory);
}

/* The events behind a position. Outside of a transaction. */
OutboxReplaySource *
outbox_replay_sql_open(const OutboxReplayJob *job, int64 behind)
{
	MemoryContext memory = AllocSetContextCreate(TopMemoryContext, "outbox replay source", ALLOCSET_DEFAULT_SIZES);
	SqlSource  *source = MemoryContextAllocZero(memory, sizeof(SqlSource));
	bool		is_log = strcmp(job->source, "log") == 0;
	const char *format = "SELECT * FROM (%s) r WHERE position > $1 ORDER BY position%s";
	int			size = strlen(format) + strlen(job->query) + 32;

	source->memory = memory;
	source->batch = AllocSetContextCreate(memory, "outbox replay batch", ALLOCSET_DEFAULT_SIZES);
	source->base.next = next;
	source->base.close = close_source;
	source->behind = source->last = behind;
	source->query = MemoryContextAlloc(memory, size);
	snprintf(source->query, size, format, job->query, is_log ? " LIMIT " CppAsString2(BATCH) : "");
	if (!is_log)
		keep_result(source);
	return &source->base;
}
