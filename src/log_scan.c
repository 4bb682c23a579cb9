/*
 * log_scan.c
 *	  Index scans over one child of the log, and events from its rows.
 *
 * Plain index scans under the active snapshot instead of SQL: there is no
 * plan to go wrong, a scan can stop at any row, and a payload is detoasted
 * only for an event that is going to be held.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "utils/builtins.h"
#include "utils/uuid.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "database.h"
#include "event.h"
#include "log.h"
#include "log_scan.h"
#include "ring.h"

/* Stands on the first row afterwards. Keys name columns of the log. */
void
outbox_log_scan_open(OutboxLogScan *scan, int home, Oid index, ScanKey keys, int key_count, ScanDirection direction)
{
	scan->home = home;
	scan->direction = direction;
	scan->log = table_open(outbox_database_catalog(false)->log[outbox_home_child(home)], AccessShareLock);
	scan->index = index_open(index, AccessShareLock);
	scan->scan = systable_beginscan_ordered(scan->log, scan->index, GetActiveSnapshot(), key_count, keys);
	outbox_log_scan_next(scan);
}

void
outbox_log_scan_next(OutboxLogScan *scan)
{
	scan->tuple = systable_getnext_ordered(scan->scan, scan->direction);
}

void
outbox_log_scan_close(OutboxLogScan *scan)
{
	systable_endscan_ordered(scan->scan);
	index_close(scan->index, AccessShareLock);
	table_close(scan->log, AccessShareLock);
}

int64
outbox_log_scan_int64(const OutboxLogScan *scan, HeapTuple tuple, int column, int64 if_null)
{
	bool		isnull;
	Datum		value = heap_getattr(tuple, column, RelationGetDescr(scan->log), &isnull);

	return isnull ? if_null : DatumGetInt64(value);
}

/* Where the scan stands; PG_INT64_MAX at its end. */
int64
outbox_log_scan_position(const OutboxLogScan *scan)
{
	return scan->tuple == NULL ? PG_INT64_MAX : outbox_log_scan_int64(scan, scan->tuple, LOG_POSITION, 0);
}

/* The year 10000, which RFC 3339 doesn't have; infinity is later. */
#define END_OF_TIMES INT64CONST(252455616000000000)

static char *
text_of(const Datum *values, const bool *nulls, int column)
{
	return nulls[column - 1] ? NULL : TextDatumGetCString(values[column - 1]);
}

/* Takes a row apart, all but its payload, which is returned as it is stored. Strings go to the current memory context, in the server's encoding. */
Datum
outbox_log_scan_head(const OutboxLogScan *scan, HeapTuple tuple, OutboxLogRow *row)
{
	/* The tables of a newer version may have more columns than we know. */
	Datum		values[MaxHeapAttributeNumber];
	bool		nulls[MaxHeapAttributeNumber];
	OutboxRow  *event = &row->row;

	heap_deform_tuple(tuple, RelationGetDescr(scan->log), values, nulls);
	row->home = scan->home;
	row->agg_hash = (uint64) DatumGetInt64(values[LOG_AGG_HASH - 1]);
	row->created_at = DatumGetTimestampTz(values[LOG_CREATED_AT - 1]);
	row->not_before = nulls[LOG_NOT_BEFORE - 1] ? 0 : DatumGetTimestampTz(values[LOG_NOT_BEFORE - 1]);
	row->priority = DatumGetInt16(values[LOG_PRIORITY - 1]);
	event->position = DatumGetInt64(values[LOG_POSITION - 1]);
	memcpy(event->event_id.data, DatumGetUUIDP(values[LOG_EVENT_ID - 1])->data, sizeof(event->event_id.data));
	event->occurred_at = outbox_unix_us(DatumGetTimestampTz(values[LOG_OCCURRED_AT - 1]));
	event->created_at = outbox_unix_us(row->created_at);
	event->not_before = row->not_before == 0 || row->not_before >= END_OF_TIMES ? 0 : outbox_unix_us(row->not_before);
	event->has_version = !nulls[LOG_AGGREGATE_VERSION - 1];
	event->aggregate_version = event->has_version ? DatumGetInt64(values[LOG_AGGREGATE_VERSION - 1]) : 0;
	event->payload_kind = DatumGetChar(values[LOG_PAYLOAD_KIND - 1]);
	event->aggregate_type = text_of(values, nulls, LOG_AGGREGATE_TYPE);
	event->aggregate_id = text_of(values, nulls, LOG_AGGREGATE_ID);
	event->event_type = text_of(values, nulls, LOG_EVENT_TYPE);
	event->subject = text_of(values, nulls, LOG_SUBJECT);
	event->content_type = text_of(values, nulls, LOG_CONTENT_TYPE);
	event->dataschema = text_of(values, nulls, LOG_DATASCHEMA);
	event->headers = text_of(values, nulls, LOG_HEADERS);
	event->payload = "";
	event->payload_len = 0;
	return values[LOG_PAYLOAD - 1];
}

/* And that, which may be a part of the tuple. */
void
outbox_log_scan_payload(OutboxRow *row, Datum payload)
{
	bytea	   *bytes = DatumGetByteaPP(payload);

	row->payload = VARDATA_ANY(bytes);
	row->payload_len = VARSIZE_ANY_EXHDR(bytes);
}

/* All of a row. */
void
outbox_log_scan_row(const OutboxLogScan *scan, HeapTuple tuple, OutboxLogRow *row)
{
	Datum		payload = outbox_log_scan_head(scan, tuple, row);

	outbox_log_scan_payload(&row->row, payload);
}

/* The in-memory event of a row; scratch is reset. */
OutboxEvent *
outbox_log_scan_event(const OutboxLogScan *scan, HeapTuple tuple, MemoryContext scratch)
{
	MemoryContext caller = MemoryContextSwitchTo(scratch);
	OutboxLogRow row;
	OutboxEvent *event;

	outbox_log_scan_row(scan, tuple, &row);
	event = outbox_held_build(&row);
	MemoryContextSwitchTo(caller);
	MemoryContextReset(scratch);
	return event;
}
