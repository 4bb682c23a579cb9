/*
 * archive_rows.c
 *	  The rows of a sealed child of the log as lines, or as rows for ClickHouse.
 *
 * Nobody writes into a sealed child, and only the cleaner empties it: so it can
 * be read in batches, each in a transaction of its own, by index scans in
 * position order. What may still change is whether an event is terminal: an
 * operator may redrive a dead letter. Then the rows aren't what was meant to be
 * archived, and are given up.
 */
#include "archive.h"

#include <time.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "clock.h"
#include "database.h"
#include "event.h"
#include "ledger_lookup.h"
#include "live_traffic.h"
#include "log.h"
#include "log_scan.h"
#include "ring.h"
#include "worker.h"

/* One of these ends a batch. */
#define BATCH_ROWS 4096
#define BATCH_BYTES (1024 * 1024)

/* Beside live traffic batches are small, and pauses take so many times the processor time that went before. */
#define LIVE_BATCH_ROWS 256
#define LIVE_BATCH_BYTES (64 * 1024)
#define LIVE_PAUSE 4
#define MAX_PAUSE_US INT64CONST(200000)

/* Both scans stand on the next row. */
typedef struct Batch
{
	OutboxArchiveRows *rows;
	OutboxLogScan log;
	Relation	delivery;
	Relation	delivery_index;
	SysScanDesc	delivery_scan;
	HeapTuple	delivery_tuple;
	OutboxLedgerBucket *ledger;
	MemoryContext row_context;
	int			max_rows;
	size_t		max_bytes;
} Batch;

/* ------------------------------------------------------------------- texts */

static bool
is_ascii(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
	{
		if (IS_HIGHBIT_SET(text[i]))
			return false;
	}
	return true;
}

/* Whether the bytes of a text in the server's encoding are its UTF-8, too. */
static bool
is_utf8_already(const char *text, size_t length)
{
	if (GetDatabaseEncoding() == PG_UTF8 || is_ascii(text, length))
		return true;
	return GetDatabaseEncoding() == PG_SQL_ASCII && pg_encoding_verifymbstr(PG_UTF8, text, (int) length) == length;
}

/* All but last_error could be converted when it was enqueued: event_check.c. */
static const char *
utf8(const char *text)
{
	return text == NULL || is_utf8_already(text, strlen(text)) ? text : outbox_event_utf8(text);
}

/* An error's text may be anybody's; it must not be in the way. */
static const char *
utf8_or_ascii(char *text)
{
	if (is_utf8_already(text, strlen(text)))
		return text;
	for (char *c = text; *c != '\0'; c++)
	{
		if (IS_HIGHBIT_SET(*c))
			*c = '?';
	}
	return text;
}

static int64
archive_time(TimestampTz time)
{
	if (TIMESTAMP_IS_NOBEGIN(time))
		return ARCHIVE_TIME_BEGIN;
	if (TIMESTAMP_IS_NOEND(time))
		return ARCHIVE_TIME_END;
	return outbox_unix_us(time);
}

/* -------------------------------------------------------------------- rows */

static bool
is_kept(const OutboxArchiveRows *rows, int64 position)
{
	int			low = 0;
	int			high = rows->kept_count;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (rows->kept[middle] < position)
			low = middle + 1;
		else
			high = middle;
	}
	return low < rows->kept_count && rows->kept[low] == position;
}

static int64
settled_at(Batch *batch, int64 position)
{
	TimestampTz time = outbox_ledger_settled_at(batch->ledger, position);

	return time == DT_NOEND ? ARCHIVE_TIME_UNKNOWN : archive_time(time);
}

/* What outbox.delivery says of the event, if anything. False: it isn't terminal. */
static bool
add_delivery(Batch *batch, ArchiveEvent *event)
{
	TupleDesc	desc = RelationGetDescr(batch->delivery);
	bool		isnull;
	char		state;

	while (batch->delivery_tuple != NULL &&
		   DatumGetInt64(heap_getattr(batch->delivery_tuple, DELIVERY_POSITION, desc, &isnull)) < event->position)
		batch->delivery_tuple = systable_getnext_ordered(batch->delivery_scan, ForwardScanDirection);
	event->state = "published";
	event->last_error = NULL;
	if (batch->delivery_tuple == NULL ||
		DatumGetInt64(heap_getattr(batch->delivery_tuple, DELIVERY_POSITION, desc, &isnull)) != event->position)
		return true;
	state = DatumGetChar(heap_getattr(batch->delivery_tuple, DELIVERY_STATE, desc, &isnull));
	event->last_error = utf8_or_ascii(TextDatumGetCString(heap_getattr(batch->delivery_tuple, DELIVERY_LAST_ERROR, desc, &isnull)));
	if (state == DELIVERY_DONE)
		return true;
	event->state = state == DELIVERY_DISCARDED ? "discarded" : "failed";
	event->published_at = ARCHIVE_TIME_UNKNOWN;
	return state == DELIVERY_DISCARDED || state == DELIVERY_FAILED;
}

/*
 * A text that was published in another encoding than UTF-8 goes as bytes, with
 * the content type that a text has, so that a replay sends the same message.
 */
static void
keep_bytes(ArchiveEvent *event)
{
	if (event->payload_kind != PAYLOAD_TEXT || is_utf8_already(event->payload, event->payload_length))
		return;
	event->payload_kind = PAYLOAD_BYTES;
	if (event->content_type == NULL)
		event->content_type = "application/json";
}

/* Appends the row where the scan stands. */
static bool
add_row(Batch *batch, int64 position)
{
	OutboxArchiveRows *rows = batch->rows;
	OutboxLogRow log_row;
	OutboxRow	row;
	ArchiveEvent event;

	outbox_log_scan_row(&batch->log, batch->log.tuple, &log_row);
	row = log_row.row;
	event = (ArchiveEvent) {
		.position = position,
		.event_id = row.event_id.data,
		.aggregate_type = utf8(row.aggregate_type),
		.aggregate_id = utf8(row.aggregate_id),
		.event_type = utf8(row.event_type),
		.subject = utf8(row.subject),
		.payload_kind = row.payload_kind,
		.payload = row.payload,
		.payload_length = (size_t) row.payload_len,
		.headers = utf8(row.headers),
		.occurred_at = row.occurred_at,
		.created_at = archive_time(log_row.created_at),
		.published_at = settled_at(batch, position),
		.priority = log_row.priority,
		.not_before = heap_attisnull(batch->log.tuple, LOG_NOT_BEFORE, NULL) ? ARCHIVE_TIME_UNKNOWN : archive_time(log_row.not_before),
		.content_type = utf8(row.content_type),
		.dataschema = utf8(row.dataschema),
		.aggregate_version = row.has_version ? &row.aggregate_version : NULL};
	keep_bytes(&event);
	if (!add_delivery(batch, &event))
		return false;
	if (rows->as_lines)
		outbox_archive_put_line(&rows->buffer, &event);
	else
		outbox_archive_put_row(&rows->buffer, &event, rows->database, rows->archived_at);
	if (rows->events == 0)
		rows->first_position = position;
	rows->first_time = rows->events == 0 ? log_row.created_at : Min(rows->first_time, log_row.created_at);
	rows->last_time = rows->events == 0 ? log_row.created_at : Max(rows->last_time, log_row.created_at);
	rows->last_position = position;
	rows->events++;
	return true;
}

/* ----------------------------------------------------------------- batches */

static void
open_scans(Batch *batch)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	int			child = batch->rows->child;
	ScanKeyData	key;

	ScanKeyInit(&key, LOG_POSITION, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(batch->rows->position));
	outbox_log_scan_open(&batch->log, outbox_ring_home(batch->rows->retention->database, child), catalog->log_position[child], &key, 1,
						 ForwardScanDirection);
	batch->delivery = table_open(catalog->delivery, AccessShareLock);
	batch->delivery_index = index_open(catalog->delivery_position, AccessShareLock);
	ScanKeyInit(&key, DELIVERY_POSITION, BTGreaterEqualStrategyNumber, F_INT8GE, Int64GetDatum(outbox_log_scan_position(&batch->log)));
	batch->delivery_scan = systable_beginscan_ordered(batch->delivery, batch->delivery_index, GetActiveSnapshot(), 1, &key);
	batch->delivery_tuple = systable_getnext_ordered(batch->delivery_scan, ForwardScanDirection);
	batch->ledger = outbox_ledger_bucket_create(CurrentMemoryContext);
	batch->row_context = AllocSetContextCreate(CurrentMemoryContext, "outbox archive row", ALLOCSET_DEFAULT_SIZES);
}

static void
close_scans(Batch *batch)
{
	systable_endscan_ordered(batch->delivery_scan);
	index_close(batch->delivery_index, AccessShareLock);
	table_close(batch->delivery, AccessShareLock);
	outbox_log_scan_close(&batch->log);
}

/* Fills the buffer from where the last batch ended. */
static void
read_batch(Batch *batch)
{
	OutboxArchiveRows *rows = batch->rows;

	for (int count = 0; count < batch->max_rows && rows->buffer.length < batch->max_bytes; count++)
	{
		int64		position = outbox_log_scan_position(&batch->log);
		MemoryContext caller;

		CHECK_FOR_INTERRUPTS();
		rows->at_end = position == PG_INT64_MAX;
		if (rows->at_end)
			return;
		caller = MemoryContextSwitchTo(batch->row_context);
		rows->changed = !is_kept(rows, position) && !add_row(batch, position);
		MemoryContextSwitchTo(caller);
		MemoryContextReset(batch->row_context);
		if (rows->changed)
			return;
		rows->position = position;
		outbox_log_scan_next(&batch->log);
	}
}

/* Processor time of this process, microseconds. */
static int64
processor_time(void)
{
	struct timespec used;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
	return (int64) used.tv_sec * USECS_PER_SEC + used.tv_nsec / 1000;
}

/*
 * Leaves the processor to live traffic for a while, if there is any, which then
 * keeps its latency. But the archive must keep up with what comes in: all pauses
 * of a range take a quarter of the time in which one fills, at most.
 */
static void
make_room(Batch *batch)
{
	static OutboxLiveWatch live;
	static int64 worked_until;	/* processor_time() at the end of the last pause */
	OutboxArchiveRows *rows = batch->rows;
	int64		begin = outbox_clock_now();
	int64		now = begin;
	bool		late = outbox_retention >= 0 && rows->paused_us >= outbox_retention * (USECS_PER_SEC / 24);
	bool		alone = late || outbox_live_traffic(&live, rows->retention->database, now) == OUTBOX_LIVE_IDLE;
	int64		pause = alone ? 0 : Min(LIVE_PAUSE * (processor_time() - worked_until), MAX_PAUSE_US);

	batch->max_rows = alone ? BATCH_ROWS : LIVE_BATCH_ROWS;
	batch->max_bytes = alone ? BATCH_BYTES : LIVE_BATCH_BYTES;
	for (; now < begin + pause; now = outbox_clock_now())
		outbox_worker_pause((long) ((begin + pause - now + 999) / 1000), OUTBOX_WAIT_EVENT("OutboxCleanerPause"));
	rows->paused_us += now - begin;
	worked_until = processor_time();
}

bool
outbox_archive_rows_next(OutboxArchiveRows *rows)
{
	Batch		batch = {rows};

	rows->buffer.length = 0;
	make_room(&batch);
	while (rows->buffer.length == 0 && !rows->at_end && !rows->changed)
	{
		if (!outbox_retire_begin(rows->retention))
			ereport(ERROR,
					(errcode(ERRCODE_UNDEFINED_OBJECT),
					 errmsg("extension \"%s\" has gone", OUTBOX_EXTENSION)));
		open_scans(&batch);
		read_batch(&batch);
		close_scans(&batch);
		outbox_retire_commit();
	}
	rows->text_bytes += (int64) rows->buffer.length;
	if (rows->buffer.no_memory)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	return rows->buffer.length > 0 && !rows->changed;
}
