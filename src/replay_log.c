/*
 * replay_log.c
 *	  Events of a replay from the database's own log.
 *
 * Index scans in position order, as the relay reads the log: there is no plan
 * to go wrong, and a row becomes its message where it lies. What an event must
 * be to be sent again is what outbox.replay_query() says in SQL: published, and
 * matched by the filters. A transaction is open only while rows are asked for
 * one after the other, and looks at so many rows at most.
 */
#include "outbox.h"

#include "access/table.h"
#include "access/xact.h"
#include "executor/spi.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "database.h"
#include "event.h"
#include "ledger_lookup.h"
#include "log.h"
#include "log_merge.h"
#include "replay_job.h"
#include "ring.h"

/* Rows that a transaction looks at, whether they match or not: some milliseconds. */
#define BATCH 2000

typedef struct LogSource
{
	OutboxReplaySource base;
	OutboxDatabase *database;
	const OutboxEnvelope *envelope;
	OutboxReplayFilter filter;
	bool		filtered;		/* by more than positions */
	bool		one_aggregate;
	uint64		agg_hash;		/* of that one */
	int64		behind;			/* done with up to this position */
	int64		watermark;		/* all up to there is terminal */
	OutboxLedgerBucket *ledger;
	MemoryContext memory;		/* of the source */
	MemoryContext row_memory;

	/* While a transaction is open: */
	bool		open;
	int			budget;			/* rows to look at */
	bool		looked_at;		/* the row where the scan stands was */
	MemoryContext scan_memory;
	OutboxLogMerge merge;
	Relation	delivery;
	Relation	delivery_index;
	SysScanDesc delivery_scan;
	int64		delivery_position;	/* of the next row there; PG_INT64_MAX: none */
	char		delivery_state;
} LogSource;

/* ------------------------------------------------------------ deliveries */

static void
next_delivery(LogSource *source)
{
	HeapTuple	tuple = systable_getnext_ordered(source->delivery_scan, ForwardScanDirection);
	TupleDesc	desc = RelationGetDescr(source->delivery);
	bool		isnull;

	source->delivery_position = PG_INT64_MAX;
	if (tuple == NULL)
		return;
	source->delivery_position = DatumGetInt64(heap_getattr(tuple, DELIVERY_POSITION, desc, &isnull));
	source->delivery_state = DatumGetChar(heap_getattr(tuple, DELIVERY_STATE, desc, &isnull));
}

static void
open_delivery_scan(LogSource *source, int64 from)
{
	ScanKeyData key;

	ScanKeyInit(&key, DELIVERY_POSITION, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
	source->delivery_scan = systable_beginscan_ordered(source->delivery, source->delivery_index, GetActiveSnapshot(), 1, &key);
	next_delivery(source);
}

/* Whether the event has a row there. Positions are asked for in their order; where they leap, rows between them are leapt over. */
static bool
has_delivery(LogSource *source, int64 position)
{
	if (source->delivery_position < position)
		next_delivery(source);
	if (source->delivery_position < position)
	{
		systable_endscan_ordered(source->delivery_scan);
		open_delivery_scan(source, position);
	}
	return source->delivery_position == position;
}

static bool
is_published(LogSource *source, int64 position)
{
	if (has_delivery(source, position) && source->delivery_state != DELIVERY_DONE)
		return false;
	return position <= source->watermark || outbox_ledger_settled_at(source->ledger, position) != DT_NOEND;
}

/* ---------------------------------------------------------- transactions */

static int64
read_watermark(void)
{
	int64		watermark;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	watermark = outbox_database_watermark();
	SPI_finish();
	return watermark;
}

static void
open_log_scans(LogSource *source, uint32 children)
{
	ScanKeyData keys[2];
	int			count = 0;

	if (source->one_aggregate)
		ScanKeyInit(&keys[count++], LOG_AGG_HASH, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum((int64) source->agg_hash));
	ScanKeyInit(&keys[count++], LOG_POSITION, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(source->behind));
	outbox_log_merge_open(&source->merge, source->database, children,
						  source->one_aggregate ? OUTBOX_LOG_BY_AGGREGATE : OUTBOX_LOG_BY_POSITION, keys, count,
						  ForwardScanDirection);
}

/* The scans stand on the next row afterwards. The caller's memory context isn't touched. */
static void
begin(LogSource *source)
{
	MemoryContext caller = CurrentMemoryContext;
	const OutboxCatalog *catalog = outbox_replay_begin_transaction();
	uint32		missing;
	uint32		children = outbox_ring_lock(source->database, catalog, source->behind + 1, source->behind + 1, &missing);

	PushActiveSnapshot(GetTransactionSnapshot());
	if (source->behind >= source->watermark)
		source->watermark = read_watermark();
	source->scan_memory = CurrentMemoryContext;
	open_log_scans(source, children);
	source->delivery = table_open(catalog->delivery, AccessShareLock);
	source->delivery_index = index_open(catalog->delivery_position, AccessShareLock);
	open_delivery_scan(source, source->behind + 1);
	source->budget = BATCH;
	source->looked_at = false;
	source->open = true;
	MemoryContextSwitchTo(caller);
}

static void
rest(OutboxReplaySource *base)
{
	LogSource  *source = (LogSource *) base;
	MemoryContext caller = CurrentMemoryContext;

	if (!source->open)
		return;
	source->open = false;
	systable_endscan_ordered(source->delivery_scan);
	index_close(source->delivery_index, AccessShareLock);
	table_close(source->delivery, AccessShareLock);
	outbox_log_merge_close(&source->merge);
	outbox_replay_end_transaction();
	MemoryContextSwitchTo(caller);
}

/* ------------------------------------------------------------------ rows */

/* Whether the scan stands on a row of the range. If not that was all: rows behind it are no part of it. */
static bool
is_in_range(const LogSource *source)
{
	return source->merge.at != NULL && outbox_log_merge_position(&source->merge) <= source->filter.to_position;
}

/* Goes on to the next row. False: there is none, or the transaction has looked at enough of them. */
static bool
advance(LogSource *source)
{
	if (!source->open)
		begin(source);
	/* What a scan allocates it keeps. */
	MemoryContextSwitchTo(source->scan_memory);
	if (source->looked_at)
		outbox_log_merge_next(&source->merge);
	source->looked_at = is_in_range(source) && source->budget-- > 0;
	return source->looked_at;
}

/* Whether the row where the scan stands is to be sent; row NULL: all that is published is. The payload is left where it is. */
static bool
is_wanted(LogSource *source, OutboxLogRow *row, Datum *payload)
{
	const OutboxLogScan *scan = source->merge.at;

	source->behind = outbox_log_scan_position(scan);
	if (!is_published(source, source->behind))
		return false;
	if (row == NULL)
		return true;
	MemoryContextReset(source->row_memory);
	MemoryContextSwitchTo(source->row_memory);
	*payload = outbox_log_scan_head(scan, scan->tuple, row);
	outbox_held_head_to_utf8(&row->row);
	return !source->filtered || outbox_replay_filter_matches(&source->filter, source->envelope, &row->row);
}

static OutboxSourceResult
next(OutboxReplaySource *base, OutboxRow *row)
{
	LogSource  *source = (LogSource *) base;
	MemoryContext caller = CurrentMemoryContext;
	OutboxSourceResult result = OUTBOX_SOURCE_LATER;
	OutboxLogRow found;
	Datum		payload;

	while (result == OUTBOX_SOURCE_LATER && advance(source))
	{
		if (!is_wanted(source, &found, &payload))
			continue;
		*row = found.row;
		outbox_log_scan_payload(row, payload);
		outbox_held_payload_to_utf8(row);
		result = OUTBOX_SOURCE_ROW;
	}
	if (result == OUTBOX_SOURCE_LATER && !is_in_range(source))
		result = OUTBOX_SOURCE_END;
	MemoryContextSwitchTo(caller);
	return result;
}

/* Counts the events among the next rows. False: those were the last. For a source of which nothing else is asked. */
bool
outbox_replay_log_count(OutboxReplaySource *base, int64 *count)
{
	LogSource  *source = (LogSource *) base;
	MemoryContext caller = CurrentMemoryContext;
	OutboxLogRow row;
	Datum		payload;
	bool		more;

	while (advance(source))
		*count += is_wanted(source, source->filtered ? &row : NULL, &payload);
	more = is_in_range(source);
	MemoryContextSwitchTo(caller);
	rest(base);
	return more;
}

static void
close_source(OutboxReplaySource *base)
{
	rest(base);
	MemoryContextDelete(((LogSource *) base)->memory);
}

/* The events behind a position. Outside of a transaction. */
OutboxReplaySource *
outbox_replay_log_open(const OutboxReplayJob *job, OutboxDatabase *database, const OutboxEnvelope *envelope, int64 behind)
{
	MemoryContext memory = AllocSetContextCreate(TopMemoryContext, "outbox replay source", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(memory);
	LogSource  *source = palloc0(sizeof(LogSource));

	source->base.next = next;
	source->base.rest = rest;
	source->base.close = close_source;
	source->memory = memory;
	source->row_memory = AllocSetContextCreate(memory, "outbox replay row", ALLOCSET_DEFAULT_SIZES);
	source->database = database;
	source->envelope = envelope;
	outbox_replay_filter_of(job, &source->filter);
	source->filtered = job->subject != NULL || job->event_type != NULL || job->aggregate_type != NULL ||
		!TIMESTAMP_IS_NOBEGIN(job->from_time) || !TIMESTAMP_IS_NOEND(job->to_time);
	source->one_aggregate = job->aggregate_id != NULL;
	if (source->one_aggregate)
		source->agg_hash = outbox_append_hash(job->aggregate_type, job->aggregate_id);
	source->behind = Max(behind, job->from_position - 1);
	source->ledger = outbox_ledger_bucket_create(memory);
	MemoryContextSwitchTo(caller);
	return &source->base;
}
