/*
 * replay_sql.c
 *	  Events of a replay from any query.
 *
 * It is run once, to its end, and its result is kept in a temporary file
 * meanwhile: nobody knows what a second run would find.
 */
#include "outbox.h"

#include "access/heaptoast.h"
#include "executor/spi.h"
#include "executor/tuptable.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/tuplestore.h"

#include "replay_job.h"

/* Rows that are taken from there at once, in a transaction of their own. */
#define BATCH 1000

typedef struct SqlSource
{
	OutboxReplaySource base;
	char	   *query;
	int64		last;			/* handed out */
	MemoryContext memory;		/* of the source */
	MemoryContext batch;
	OutboxRow  *rows;
	int			count;
	int			at;
	bool		ended;
	Tuplestorestate *store;		/* the query's result */
	TupleTableSlot *slot;
	OutboxRowShape *shape;
} SqlSource;

/* Runs the query and keeps what it finds; returns how much that is. */
static int64
keep_result(SqlSource *source)
{
	Oid			types[1] = {INT8OID};
	Datum		values[1] = {Int64GetDatum(source->last)};
	MemoryContext caller = CurrentMemoryContext;
	Portal		portal;
	int64		kept = 0;

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
		kept += source->count;
		SPI_freetuptable(SPI_tuptable);
		MemoryContextReset(source->batch);
		CHECK_FOR_INTERRUPTS();
	} while (source->count > 0);
	SPI_cursor_close(portal);
	outbox_replay_end();
	MemoryContextSwitchTo(caller);
	return kept;
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
		read_kept(source);
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

	ExecDropSingleTupleTableSlot(source->slot);
	tuplestore_end(source->store);
	MemoryContextDelete(source->memory);
}

/* The events behind a position, and how many. Outside of a transaction. */
OutboxReplaySource *
outbox_replay_sql_open(const OutboxReplayJob *job, int64 behind, int64 *count)
{
	MemoryContext memory = AllocSetContextCreate(TopMemoryContext, "outbox replay source", ALLOCSET_DEFAULT_SIZES);
	SqlSource  *source = MemoryContextAllocZero(memory, sizeof(SqlSource));
	const char *format = "SELECT * FROM (%s) r WHERE position > $1 ORDER BY position";
	int			size = strlen(format) + strlen(job->query) + 1;

	source->memory = memory;
	source->batch = AllocSetContextCreate(memory, "outbox replay batch", ALLOCSET_DEFAULT_SIZES);
	source->base.next = next;
	source->base.close = close_source;
	source->last = behind;
	source->query = MemoryContextAlloc(memory, size);
	snprintf(source->query, size, format, job->query);
	*count = keep_result(source);
	return &source->base;
}
