/*
 * store_read.c
 *	  What the relay reads: the log by position, an aggregate's events by its
 *	  index, and at start the watermark, the ledger and the failed deliveries.
 *
 * One rule for live events, backlog, overflow and restart (PROTOCOL.md):
 * first the end of the numbers, then the ring, then prepared transactions that
 * have ended, then a snapshot; read up to that end only. Whoever holds a
 * position below it and isn't visible yet will push it.
 *
 * Nothing is handed on that isn't durable: the commit log knows how far the
 * WAL must be flushed for a transaction that committed asynchronously.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "aggregate_lock.h"
#include "feed.h"
#include "log.h"
#include "relay.h"

/* Rows in one transaction, so that what was read is sent before more is read. */
#define READ_BATCH 1024

/* Ranges taken from the ring at once. */
#define DRAIN_BATCH 256

/* ---------------------------------------------------------- transactions */

/*
 * Starts a transaction with a snapshot. When the extension is gone there is
 * nothing left to do here: the process ends, quietly.
 */
void
outbox_store_begin(OutboxRelay *relay)
{
	const OutboxCatalog *catalog;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog == NULL || catalog->sequence != pg_atomic_read_u32(&relay->database->ready_for))
	{
		AbortCurrentTransaction();
		proc_exit(0);
	}
	PushActiveSnapshot(GetTransactionSnapshot());
}

/* Ends it, and tells autovacuum what was written. */
void
outbox_store_end(void)
{
	PopActiveSnapshot();
	CommitTransactionCommand();
	(void) pgstat_report_stat(false);
}

/* ---------------------------------------------------------------- ranges */

static void
add_range(OutboxRangeList *list, int64 lo, int64 hi)
{
	if (lo > hi)
		return;
	if (list->count == list->space)
	{
		list->space = Max(64, list->space * 2);
		if (list->ranges == NULL)
			list->ranges = MemoryContextAlloc(TopMemoryContext, list->space * sizeof(OutboxRange));
		else
			list->ranges = repalloc_huge(list->ranges, list->space * sizeof(OutboxRange));
	}
	list->ranges[list->count++] = (OutboxRange) {lo, hi};
}

static int
compare_ranges(const void *a, const void *b)
{
	int64		left = ((const OutboxRange *) a)->lo;
	int64		right = ((const OutboxRange *) b)->lo;

	return left < right ? -1 : left > right;
}

/* Sorted and without overlaps, so that an aggregate's rows are met in position order. */
static void
sort_ranges(OutboxRangeList *list)
{
	int			kept = 0;

	if (list->count < 2)
		return;
	qsort(list->ranges, list->count, sizeof(OutboxRange), compare_ranges);
	for (int i = 1; i < list->count; i++)
	{
		if (list->ranges[i].lo <= list->ranges[kept].hi + 1)
			list->ranges[kept].hi = Max(list->ranges[kept].hi, list->ranges[i].hi);
		else
			list->ranges[++kept] = list->ranges[i];
	}
	list->count = kept + 1;
}

/* What the pass has gone by is late; the rest it will meet itself. */
static void
note_pushed(OutboxRelay *relay, const OutboxRange *ranges, int count)
{
	for (int i = 0; i < count; i++)
	{
		add_range(&relay->late, ranges[i].lo, Min(ranges[i].hi, relay->read_up_to));
		relay->pushed_up_to = Max(relay->pushed_up_to, ranges[i].hi);
	}
}

/* Steps 2 and 3 of the rule: what ring and prepared array hold, as far as the pass has gone by. */
static void
collect_late(OutboxRelay *relay)
{
	OutboxRange ranges[DRAIN_BATCH];
	int			count;
	bool		more;

	do
	{
		count = outbox_feed_drain(relay->database, ranges, DRAIN_BATCH);
		note_pushed(relay, ranges, count);
	} while (count == DRAIN_BATCH);
	do
	{
		count = outbox_feed_collect_prepared(relay->database, ranges, DRAIN_BATCH, &more);
		note_pushed(relay, ranges, count);
		relay->keys_left_behind |= count > 0;
	} while (more);
	sort_ranges(&relay->late);
}

/* ------------------------------------------------------------------ rows */

typedef struct Reader
{
	OutboxRelay *relay;
	int			budget;			/* rows still allowed in this transaction */
	XLogRecPtr	durable;		/* the WAL must be flushed to here before anything read is sent */
} Reader;

static Datum
column(HeapTuple tuple, TupleDesc desc, int number, bool *isnull)
{
	return heap_getattr(tuple, number, desc, isnull);
}

static int64
int64_column(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;

	return DatumGetInt64(column(tuple, desc, number, &isnull));
}

static const char *
text_column(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;
	Datum		value = column(tuple, desc, number, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

/* Takes a row apart; strings go to the current memory context. */
static void
read_row(HeapTuple tuple, TupleDesc desc, int child, OutboxRow *row)
{
	bool		isnull;
	bytea	   *payload;

	row->child = child;
	row->position = int64_column(tuple, desc, LOG_POSITION);
	row->agg_hash = (uint64) int64_column(tuple, desc, LOG_AGG_HASH);
	row->event_id = *DatumGetUUIDP(column(tuple, desc, LOG_EVENT_ID, &isnull));
	row->occurred_at = int64_column(tuple, desc, LOG_OCCURRED_AT);
	row->created_at = int64_column(tuple, desc, LOG_CREATED_AT);
	row->not_before = DatumGetTimestampTz(column(tuple, desc, LOG_NOT_BEFORE, &isnull));
	if (isnull)
		row->not_before = 0;
	row->aggregate_version = DatumGetInt64(column(tuple, desc, LOG_AGGREGATE_VERSION, &isnull));
	row->has_version = !isnull;
	row->priority = DatumGetInt16(column(tuple, desc, LOG_PRIORITY, &isnull));
	row->payload_kind = DatumGetChar(column(tuple, desc, LOG_PAYLOAD_KIND, &isnull));
	row->aggregate_type = text_column(tuple, desc, LOG_AGGREGATE_TYPE);
	row->aggregate_id = text_column(tuple, desc, LOG_AGGREGATE_ID);
	row->event_type = text_column(tuple, desc, LOG_EVENT_TYPE);
	row->subject = text_column(tuple, desc, LOG_SUBJECT);
	row->content_type = text_column(tuple, desc, LOG_CONTENT_TYPE);
	row->dataschema = text_column(tuple, desc, LOG_DATASCHEMA);
	row->headers = text_column(tuple, desc, LOG_HEADERS);
	payload = DatumGetByteaPP(column(tuple, desc, LOG_PAYLOAD, &isnull));
	row->payload = VARDATA_ANY(payload);
	row->payload_len = VARSIZE_ANY_EXHDR(payload);
}

/* Builds the in-memory event of a tuple. */
static SchedEvent *
build_event(Reader *reader, HeapTuple tuple, TupleDesc desc, int child)
{
	MemoryContext caller = MemoryContextSwitchTo(reader->relay->row_context);
	OutboxRow	row;
	OutboxEvent *event;

	read_row(tuple, desc, child, &row);
	event = outbox_envelope_build(&row);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(reader->relay->row_context);
	return &event->schedule;
}

static void
out_of_memory(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory")));
}

/*
 * A visible row isn't necessarily durable: with synchronous_commit = off its
 * transaction's commit record may still be on its way to disk.
 */
static void
note_commit(Reader *reader, HeapTuple tuple)
{
	XLogRecPtr	lsn = TransactionIdGetCommitLSN(HeapTupleHeaderGetXmin(tuple->t_data));

	reader->durable = Max(reader->durable, lsn);
}

/* One child's scan of positions, merged with those of the other children in use. */
typedef struct ChildScan
{
	int			child;
	Relation	log;
	Relation	index;
	SysScanDesc scan;
	HeapTuple	tuple;			/* the next one, NULL at the end */
} ChildScan;

static void
open_scan(ChildScan *scan, int child, Oid index, ScanKey keys, int key_count, ScanDirection direction)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);

	scan->child = child;
	scan->log = table_open(catalog->log[child], AccessShareLock);
	scan->index = index_open(index, AccessShareLock);
	scan->scan = systable_beginscan_ordered(scan->log, scan->index, GetActiveSnapshot(), key_count, keys);
	scan->tuple = systable_getnext_ordered(scan->scan, direction);
}

static void
close_scan(ChildScan *scan)
{
	systable_endscan_ordered(scan->scan);
	index_close(scan->index, AccessShareLock);
	table_close(scan->log, AccessShareLock);
}

static int64
next_position(const ChildScan *scan)
{
	return scan->tuple == NULL ? PG_INT64_MAX : int64_column(scan->tuple, RelationGetDescr(scan->log), LOG_POSITION);
}

/* Hands a row that is new to the schedule. */
static void
hand_on(Reader *reader, HeapTuple tuple, TupleDesc desc, int child)
{
	OutboxRelay *relay = reader->relay;
	uint64		aggregate = (uint64) int64_column(tuple, desc, LOG_AGG_HASH);

	note_commit(reader, tuple);
	if (outbox_schedule_would_defer(relay->schedule, aggregate))
	{
		if (!outbox_schedule_defer(relay->schedule, aggregate, int64_column(tuple, desc, LOG_POSITION),
								   int64_column(tuple, desc, LOG_CREATED_AT)))
			out_of_memory();
	}
	else if (outbox_schedule_add(relay->schedule, build_event(reader, tuple, desc, child), GetCurrentTimestamp()) ==
			 SCHEDULE_NO_MEMORY)
		out_of_memory();
}

/*
 * Hands on what precedes a row of the pass in its own transaction and
 * aggregate. The pass may have gone by those while the transaction was open,
 * and if it became visible between the drain and the snapshot, its push comes
 * in the next round only: too late for their order. They are the rows before
 * this one that aren't seen yet; all older ones of the aggregate were pushed
 * before this transaction drew its first position.
 */
static void
take_predecessors(Reader *reader, uint64 aggregate, int64 position, int child)
{
	ScanKeyData keys[2];
	ChildScan	scan;
	List	   *found = NIL;
	ListCell   *cell;

	ScanKeyInit(&keys[0], LOG_AGG_HASH, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum((int64) aggregate));
	ScanKeyInit(&keys[1], LOG_POSITION, BTLessStrategyNumber, F_INT8LT, Int64GetDatum(position));
	open_scan(&scan, child, outbox_database_catalog(false)->log_aggregate[child], keys, 2, BackwardScanDirection);
	for (; scan.tuple != NULL && !outbox_tracker_is_seen(reader->relay->tracker, next_position(&scan));
		 scan.tuple = systable_getnext_ordered(scan.scan, BackwardScanDirection))
		found = lcons(heap_copytuple(scan.tuple), found);
	foreach(cell, found)
	{
		HeapTuple	tuple = lfirst(cell);

		if (outbox_tracker_see(reader->relay->tracker,
							   int64_column(tuple, RelationGetDescr(scan.log), LOG_POSITION)) == TRACKER_NO_MEMORY)
			out_of_memory();
		hand_on(reader, tuple, RelationGetDescr(scan.log), child);
	}
	list_free_deep(found);
	close_scan(&scan);
}

/* A row of the pass, or of a late range: hands it to the schedule unless it is known. */
static void
take_row(Reader *reader, HeapTuple tuple, TupleDesc desc, int child)
{
	OutboxRelay *relay = reader->relay;
	int64		position = int64_column(tuple, desc, LOG_POSITION);
	int64		follows;
	bool		isnull;

	switch (outbox_tracker_see(relay->tracker, position))
	{
		case TRACKER_KNOWN:
			return;
		case TRACKER_NO_MEMORY:
			out_of_memory();
			break;
		case TRACKER_NEW:
			break;
	}
	follows = DatumGetInt64(column(tuple, desc, LOG_FOLLOWS, &isnull));
	if (!isnull && !outbox_tracker_is_seen(relay->tracker, follows))
		take_predecessors(reader, (uint64) int64_column(tuple, desc, LOG_AGG_HASH), position, child);
	hand_on(reader, tuple, desc, child);
}

/* The children in use. While a new one was just opened, the old one still gets rows of open transactions. */
static int
children_in_use(OutboxRelay *relay, int *children)
{
	children[0] = pg_atomic_read_u32(&relay->database->current_child);
	return 1;
}

/*
 * Reads positions lo..hi in order until the budget or the schedule's room is
 * used up. Returns the last position that is done with: hi, or less.
 */
static int64
read_range(Reader *reader, int64 lo, int64 hi)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	ChildScan	scans[OUTBOX_CHILDREN];
	int			children[OUTBOX_CHILDREN];
	int			count = children_in_use(reader->relay, children);
	ScanKeyData keys[2];
	int64		done = hi;

	ScanKeyInit(&keys[0], LOG_POSITION, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(lo));
	ScanKeyInit(&keys[1], LOG_POSITION, BTLessEqualStrategyNumber, F_INT8LE, Int64GetDatum(hi));
	for (int i = 0; i < count; i++)
		open_scan(&scans[i], children[i], catalog->log_position[children[i]], keys, 2, ForwardScanDirection);

	for (;;)
	{
		ChildScan  *next = &scans[0];

		for (int i = 1; i < count; i++)
		{
			if (next_position(&scans[i]) < next_position(next))
				next = &scans[i];
		}
		if (next->tuple == NULL)
			break;
		if (reader->budget <= 0 || !outbox_schedule_has_room(reader->relay->schedule))
		{
			done = next_position(next) - 1;
			break;
		}
		CHECK_FOR_INTERRUPTS();
		take_row(reader, next->tuple, RelationGetDescr(next->log), next->child);
		reader->budget--;
		next->tuple = systable_getnext_ordered(next->scan, ForwardScanDirection);
	}

	for (int i = 0; i < count; i++)
		close_scan(&scans[i]);
	return done;
}

/* Reads late ranges, lowest first; what the budget doesn't allow stays in the list. */
static void
read_late(Reader *reader)
{
	OutboxRangeList *late = &reader->relay->late;
	int			finished = 0;

	while (finished < late->count && reader->budget > 0)
	{
		OutboxRange *range = &late->ranges[finished];
		int64		done = read_range(reader, range->lo, range->hi);

		if (done < range->hi)
		{
			range->lo = done + 1;
			break;
		}
		finished++;
	}
	memmove(late->ranges, late->ranges + finished, (late->count - finished) * sizeof(OutboxRange));
	late->count -= finished;
}

/* The rest of the pass: (read_up_to, end], without stretches that are known already. */
static void
read_pass(Reader *reader, int64 end)
{
	OutboxRelay *relay = reader->relay;
	int64		first;
	int64		last;

	while (reader->budget > 0 && relay->read_up_to < end &&
		   outbox_tracker_unseen(relay->tracker, relay->read_up_to + 1, end, &first, &last))
	{
		int64		done = read_range(reader, first, last);

		relay->read_up_to = done;
		if (done < last)
			return;
	}
	if (reader->budget > 0)
		relay->read_up_to = Max(relay->read_up_to, end);
}

static void
make_durable(const Reader *reader)
{
	if (!XLogRecPtrIsInvalid(reader->durable) && XLogNeedsFlush(reader->durable))
		XLogFlush(reader->durable);
}

/* Reads what is new, by the rule in the head comment, as far as there is room. */
void
outbox_store_read(OutboxRelay *relay)
{
	Reader		reader = {relay, READ_BATCH, InvalidXLogRecPtr};
	int64		end = pg_atomic_read_u64(&relay->database->max_assigned);

	pg_memory_barrier();
	collect_late(relay);
	OUTBOX_TEST_POINT("drained");
	if (relay->late.count > 0 || relay->read_up_to < end)
	{
		outbox_store_begin(relay);
		read_late(&reader);
		if (relay->late.count == 0)
			read_pass(&reader, end);
		outbox_store_end();
		make_durable(&reader);
	}
	/* A push may lie above the end that was read before it. */
	relay->more_to_read = relay->late.count > 0 || relay->read_up_to < Max(end, relay->pushed_up_to);
	pg_atomic_write_u64(&relay->database->read_up_to, relay->read_up_to);
}

/* ---------------------------------------------------------------- refill */

/* Reads an aggregate's next events into the schedule. */
static void
refill_one(Reader *reader, const ScheduleRefill *refill)
{
	OutboxRelay *relay = reader->relay;
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	int			child = pg_atomic_read_u32(&relay->database->current_child);
	ScanKeyData keys[2];
	ChildScan	scan;
	int			added = 0;
	bool		exhausted;

	ScanKeyInit(&keys[0], LOG_AGG_HASH, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum((int64) refill->aggregate));
	ScanKeyInit(&keys[1], LOG_POSITION, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(refill->from_position));
	open_scan(&scan, child, catalog->log_aggregate[child], keys, 2, ForwardScanDirection);
	for (; scan.tuple != NULL && added < refill->max_events;
		 scan.tuple = systable_getnext_ordered(scan.scan, ForwardScanDirection))
	{
		/* Not seen yet: it comes with the pass or with its push, which would call it known. */
		if (!outbox_tracker_is_seen(relay->tracker, next_position(&scan)))
			break;
		if (added > 0 && !outbox_schedule_has_room(relay->schedule))
			break;
		note_commit(reader, scan.tuple);
		if (outbox_schedule_refill_add(relay->schedule, build_event(reader, scan.tuple, RelationGetDescr(scan.log), child)) ==
			SCHEDULE_NO_MEMORY)
			out_of_memory();
		added++;
		reader->budget--;
	}
	exhausted = scan.tuple == NULL || !outbox_tracker_is_seen(relay->tracker, next_position(&scan));
	close_scan(&scan);
	outbox_schedule_refill_end(relay->schedule, refill->aggregate, exhausted, GetCurrentTimestamp());
}

/* Reads again what the schedule has forgotten and now wants. */
void
outbox_store_refill(OutboxRelay *relay)
{
	Reader		reader = {relay, READ_BATCH, InvalidXLogRecPtr};
	ScheduleRefill refill;

	if (!outbox_schedule_next_refill(relay->schedule, GetCurrentTimestamp(), &refill))
		return;
	outbox_store_begin(relay);
	do
	{
		CHECK_FOR_INTERRUPTS();
		refill_one(&reader, &refill);
	} while (reader.budget > 0 && outbox_schedule_next_refill(relay->schedule, GetCurrentTimestamp(), &refill));
	outbox_store_end();
	make_durable(&reader);
}

/* ----------------------------------------------------------------- start */

static void
load_ledger_row(OutboxRelay *relay, HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;
	int64		start = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull)) << OUTBOX_BUCKET_SHIFT;
	int			lo = DatumGetInt16(SPI_getbinval(tuple, desc, 2, &isnull));
	int			hi = DatumGetInt16(SPI_getbinval(tuple, desc, 3, &isnull));
	Datum		bits = SPI_getbinval(tuple, desc, 4, &isnull);
	bytea	   *bytes;

	if (isnull)
	{
		if (!outbox_tracker_settle_range(relay->tracker, start + lo, start + hi))
			out_of_memory();
		return;
	}
	bytes = DatumGetByteaPP(bits);
	for (int n = 0; n < VARSIZE_ANY_EXHDR(bytes) * 8; n++)
	{
		if ((VARDATA_ANY(bytes)[n / 8] & (1 << (n % 8))) && !outbox_tracker_settle(relay->tracker, start + lo + n))
			out_of_memory();
	}
}

/* What was recorded above the watermark; by a cursor, as it may be long. */
static void
load_ledger(OutboxRelay *relay, int64 watermark)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(watermark >> OUTBOX_BUCKET_SHIFT)};
	const char *query = "SELECT bucket, lo, hi, bits FROM outbox.ledger WHERE bucket >= $1";
	Portal		portal = SPI_cursor_open_with_args(NULL, query, 1, types, values, NULL, true, 0);

	for (;;)
	{
		SPI_cursor_fetch(portal, true, 1000);
		if (SPI_processed == 0)
			break;
		for (uint64 i = 0; i < SPI_processed; i++)
			load_ledger_row(relay, SPI_tuptable->vals[i], SPI_tuptable->tupdesc);
		SPI_freetuptable(SPI_tuptable);
	}
	SPI_cursor_close(portal);
}

/* Events that were refused before and wait for their next attempt. */
static void
load_deliveries(OutboxRelay *relay)
{
	const char *query = "SELECT d.position, l.agg_hash, l.created_at, d.next_attempt_at, d.attempts"
						" FROM outbox.delivery d JOIN outbox.log l ON l.position = d.position"
						" WHERE d.state = 'r' ORDER BY d.position";

	if (SPI_execute(query, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		int64		position = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
		uint64		aggregate = (uint64) DatumGetInt64(SPI_getbinval(tuple, desc, 2, &isnull));
		TimestampTz created = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 3, &isnull));
		TimestampTz retry_at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 4, &isnull));
		int32		attempts = DatumGetInt32(SPI_getbinval(tuple, desc, 5, &isnull));

		/* Acked and recorded, though its attempts were not closed. */
		if (outbox_tracker_see(relay->tracker, position) != TRACKER_NEW)
			continue;
		if (!outbox_schedule_wait(relay->schedule, aggregate, position, created, retry_at, attempts))
			out_of_memory();
	}
}

/* At start: makes tracker and schedule and fills them with what earlier relays recorded. */
void
outbox_store_load(OutboxRelay *relay)
{
	ScheduleLimits limits = {(size_t) outbox_relay_memory * 1024 / 2, OUTBOX_MAX_QUEUE};
	int64		watermark;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	watermark = outbox_database_watermark();
	relay->tracker = outbox_tracker_create(watermark);
	relay->schedule = outbox_schedule_create(&limits);
	if (relay->tracker == NULL || relay->schedule == NULL)
		out_of_memory();
	relay->read_up_to = watermark;
	relay->watermark_written = watermark;
	load_ledger(relay, watermark);
	load_deliveries(relay);
	SPI_finish();

	relay->more_to_read = true;
	relay->keys_left_behind = true;
	relay->row_context = AllocSetContextCreate(TopMemoryContext, "outbox row", ALLOCSET_DEFAULT_SIZES);
	pg_atomic_write_u64(&relay->database->read_up_to, relay->read_up_to);
}
