/*
 * store_refill.c
 *	  Reads again what the schedule knew and has forgotten: the events of one
 *	  aggregate, by index.
 *
 * What has failed before is known from outbox.delivery, which is read beside
 * the log: an event may be terminal by now, hold its aggregate, or have used up
 * attempts. The events of a parked aggregate become dead letters here.
 */
#include "outbox.h"

#include "access/table.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/array.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "clock.h"
#include "store_read.h"

/* Reading on is cheaper than starting a new scan for so many positions. */
#define WORTH_A_JUMP 64

/* ------------------------------------------------------------- deliveries */

/* The aggregate's rows of outbox.delivery, in position order beside the log's. */
typedef struct DeliveryScan
{
	Relation	table;
	Relation	index;
	SysScanDesc	scan;			/* NULL: the table is empty */
	HeapTuple	tuple;
} DeliveryScan;

static void
delivery_next(DeliveryScan *scan)
{
	scan->tuple = scan->scan == NULL ? NULL : systable_getnext_ordered(scan->scan, ForwardScanDirection);
}

static void
delivery_open(DeliveryScan *scan, const OutboxRelay *relay, const ScheduleRefill *refill)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	ScanKeyData	keys[2];

	scan->scan = NULL;
	scan->table = table_open(catalog->delivery, AccessShareLock);
	scan->index = index_open(relay->preserve_order ? catalog->delivery_aggregate : catalog->delivery_position, AccessShareLock);
	if (RelationGetNumberOfBlocks(scan->table) > 0)
	{
		if (relay->preserve_order)
		{
			ScanKeyInit(&keys[0], DELIVERY_AGG_HASH, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum((int64) refill->aggregate));
			ScanKeyInit(&keys[1], DELIVERY_POSITION, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(refill->from_position));
		}
		else
			ScanKeyInit(&keys[0], DELIVERY_POSITION, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum((int64) refill->aggregate));
		scan->scan = systable_beginscan_ordered(scan->table, scan->index, GetActiveSnapshot(),
												relay->preserve_order ? 2 : 1, keys);
	}
	delivery_next(scan);
}

static void
delivery_close(DeliveryScan *scan)
{
	if (scan->scan != NULL)
		systable_endscan_ordered(scan->scan);
	index_close(scan->index, AccessShareLock);
	table_close(scan->table, AccessShareLock);
}

static Datum
delivery_column(const DeliveryScan *scan, int column)
{
	bool		isnull;

	Assert(scan->tuple != NULL);
	return heap_getattr(scan->tuple, column, RelationGetDescr(scan->table), &isnull);
}

/* Where the scan stands; PG_INT64_MAX at its end. */
static int64
delivery_position(const DeliveryScan *scan)
{
	return scan->tuple == NULL ? PG_INT64_MAX : DatumGetInt64(delivery_column(scan, DELIVERY_POSITION));
}

/* ----------------------------------------------------------------- refill */

/* One refill under way. */
typedef struct Refill
{
	OutboxReader *reader;
	const ScheduleRefill *wish;
	OutboxLogMerge log;
	DeliveryScan deliveries;
	bool		parked;			/* the aggregate is */
	int64		parked_from;	/* its first parked event; PG_INT64_MAX: none is yet */
	int			added;
	int			passed;			/* added, skipped or parked */
	Datum	   *to_park;		/* positions, palloc'd; NULL: none */
	int			to_park_count;
} Refill;

/* Rows from a position on: of the aggregate, or where no order is kept, of the one event that the key stands for. */
static void
open_log(Refill *refill, int64 from)
{
	const OutboxRelay *relay = refill->reader->relay;
	int64		event = (int64) refill->wish->aggregate;
	uint32		children = outbox_ring_reaching(relay->database, relay->children, relay->preserve_order ? from : event);
	ScanKeyData	keys[2];

	if (!relay->preserve_order)
	{
		ScanKeyInit(&keys[0], LOG_POSITION, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(event));
		outbox_log_merge_open(&refill->log, relay->database, children, OUTBOX_LOG_BY_POSITION, keys, 1, ForwardScanDirection);
		return;
	}
	ScanKeyInit(&keys[0], LOG_AGG_HASH, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum((int64) refill->wish->aggregate));
	ScanKeyInit(&keys[1], LOG_POSITION, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(from));
	outbox_log_merge_open(&refill->log, relay->database, children, OUTBOX_LOG_BY_AGGREGATE, keys, 2, ForwardScanDirection);
}

/*
 * Goes to the next row. Behind a redriven event many may follow that were
 * published long ago: at or below the watermark only those with a delivery row
 * can be of interest.
 */
static void
go_on(Refill *refill)
{
	int64		position = outbox_log_merge_position(&refill->log);
	int64		target = outbox_tracker_watermark(refill->reader->relay->tracker) + 1;

	while (delivery_position(&refill->deliveries) <= position)
		delivery_next(&refill->deliveries);
	target = Min(target, delivery_position(&refill->deliveries));
	if (refill->reader->relay->preserve_order && target - position > WORTH_A_JUMP)
	{
		outbox_log_merge_close(&refill->log);
		open_log(refill, target);
	}
	else
		outbox_log_merge_next(&refill->log);
}

static int64
created_at(const Refill *refill)
{
	return outbox_log_scan_int64(refill->log.at, refill->log.at->tuple, LOG_CREATED_AT, 0);
}

static void
skip(Refill *refill, int64 position, bool known)
{
	outbox_schedule_refill_skip(refill->reader->relay->schedule, position, created_at(refill), known);
	refill->passed++;
}

/* attempts < 0: it never failed. */
static void
add(Refill *refill, int attempts, bool held)
{
	OutboxEvent *event = outbox_reader_build(refill->reader, refill->log.at, refill->log.at->tuple);

	event->has_delivery = attempts >= 0;
	event->attempts = Max(attempts, 0);
	if (held)
		event->schedule.not_before = PG_INT64_MAX;
	if (outbox_schedule_refill_add(refill->reader->relay->schedule, &event->schedule) == SCHEDULE_NO_MEMORY)
		outbox_relay_out_of_memory();
	refill->added++;
	refill->passed++;
}

static void
park(Refill *refill, int64 position)
{
	if (refill->to_park == NULL)
		refill->to_park = palloc(sizeof(Datum) * (OUTBOX_READ_BATCH + 1));
	refill->to_park[refill->to_park_count++] = Int64GetDatum(position);
	skip(refill, position, true);
}

/*
 * The aggregate's first parked event; PG_INT64_MAX: none. What waits for a
 * retry behind it was redriven together with it, and must not overtake it when
 * that fails again.
 */
static int64
first_parked(const ScheduleRefill *wish)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum((int64) wish->aggregate)};
	int64		result = PG_INT64_MAX;
	bool		isnull;

	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute_with_args("SELECT position FROM outbox.delivery WHERE agg_hash = $1 AND state = 'p' ORDER BY agg_hash, position LIMIT 1",
							  lengthof(types), types, values, NULL, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	if (SPI_processed > 0)
		result = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	return result;
}

/* Decides about the row that the scan of the log stands on. */
static void
take_row(Refill *refill)
{
	const OutboxRelay *relay = refill->reader->relay;
	int64		position = outbox_log_merge_position(&refill->log);

	while (delivery_position(&refill->deliveries) < position)
		delivery_next(&refill->deliveries);
	if (delivery_position(&refill->deliveries) == position)
	{
		int			attempts = DatumGetInt32(delivery_column(&refill->deliveries, DELIVERY_ATTEMPTS));

		switch (DatumGetChar(delivery_column(&refill->deliveries, DELIVERY_STATE)))
		{
			case DELIVERY_RETRY:
				if (position > refill->parked_from)
					park(refill, position);
				else
					add(refill, attempts, false);
				break;
			case DELIVERY_BLOCKING:
				add(refill, attempts, true);
				break;
			case DELIVERY_DISCARDED:
				skip(refill, position, true);
				break;
			default:
				skip(refill, position, false);
		}
	}
	else if (outbox_tracker_is_settled(relay->tracker, position))
		skip(refill, position, false);
	else if (refill->parked)
		park(refill, position);
	else
		add(refill, -1, false);
}

/* Records events as parked, with their predecessor's verdict, which is on disk already. */
static void
write_parked(Refill *refill)
{
	OutboxRelay *relay = refill->reader->relay;
	Oid			types[] = {INT8ARRAYOID, INT8OID};
	Datum		values[2];

	if (refill->to_park_count == 0)
		return;
	values[0] = PointerGetDatum(construct_array(refill->to_park, refill->to_park_count, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	values[1] = Int64GetDatum((int64) refill->wish->aggregate);
	outbox_membership_fence(relay);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	outbox_store_run("INSERT INTO outbox.delivery AS d (position, agg_hash, state, attempts, last_code, last_error, failed_at)"
					 " SELECT p, $2, 'p', 0, 0, 'outbox relay: an earlier event of the aggregate has failed', pg_catalog.clock_timestamp()"
					 " FROM pg_catalog.unnest($1) p ON CONFLICT (position) DO UPDATE SET state = 'p', next_attempt_at = NULL,"
					 " last_code = 0, last_error = excluded.last_error, failed_at = excluded.failed_at WHERE d.state = 'r'",
					 lengthof(types), types, values);
	SPI_finish();
	for (int i = 0; i < refill->to_park_count; i++)
	{
		if (!outbox_tracker_settle(relay->tracker, DatumGetInt64(refill->to_park[i])))
			outbox_relay_out_of_memory();
	}
}

/* Reads an aggregate's next events into the schedule. */
static void
refill_one(OutboxReader *reader, const ScheduleRefill *wish)
{
	OutboxRelay *relay = reader->relay;
	Refill		refill = {.reader = reader, .wish = wish};
	bool		more;

	/* Its events may be on their way into another child: look again when they are there. */
	if (outbox_ring_reaching(relay->database, relay->children_missing, wish->from_position) != 0)
	{
		outbox_schedule_refill_end(relay->schedule, wish->aggregate, false, outbox_clock_now());
		reader->budget = 0;
		return;
	}
	refill.parked = outbox_store_is_parked(relay, wish->aggregate);
	refill.parked_from = refill.parked ? first_parked(wish) : PG_INT64_MAX;
	open_log(&refill, wish->from_position);
	delivery_open(&refill.deliveries, relay, wish);
	for (;; go_on(&refill))
	{
		/* What isn't seen yet comes with the pass or with its push. */
		more = refill.log.at != NULL && outbox_tracker_is_seen(relay->tracker, outbox_log_merge_position(&refill.log));
		if (!more || refill.added == wish->max_events)
			break;
		if (refill.passed > 0 && (reader->budget <= 0 || !outbox_schedule_has_room(relay->schedule)))
			break;
		outbox_membership_tick(relay);
		take_row(&refill);
		reader->budget--;
	}
	outbox_log_merge_close(&refill.log);
	delivery_close(&refill.deliveries);
	write_parked(&refill);
	outbox_schedule_refill_end(relay->schedule, wish->aggregate, !more, outbox_clock_now());
}

/* Reads again what the schedule has forgotten and now wants. */
void
outbox_store_refill(OutboxRelay *relay)
{
	OutboxReader reader = {relay, OUTBOX_READ_BATCH, InvalidXLogRecPtr};
	ScheduleRefill wish;
	TimestampTz	started = GetCurrentTimestamp();

	/* What failed must be read as such; and what was acknowledged, where events before it were redriven. */
	if (!relay->session && outbox_schedule_refill_is_due(relay->schedule, outbox_clock_now()) &&
		(relay->failure_count > 0 || outbox_clock_now() < relay->redrive_until))
		outbox_store_settle(relay);
	if (!outbox_schedule_next_refill(relay->schedule, outbox_clock_now(), &wish))
		return;
	outbox_store_begin_reading(relay, 1, PG_INT64_MAX);
	do
	{
		CHECK_FOR_INTERRUPTS();
		refill_one(&reader, &wish);
	} while (reader.budget > 0 && outbox_schedule_next_refill(relay->schedule, outbox_clock_now(), &wish));
	outbox_store_end(relay);
	outbox_reader_log(&reader, "read again", started);
	outbox_reader_make_durable(&reader);
}
