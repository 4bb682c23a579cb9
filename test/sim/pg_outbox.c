/*
 * pg_outbox.c
 *	  Stands in for src/log_scan.c, src/held.c, src/encode.c, src/event_id.c and src/writer.c,
 *	  which know the layout of real rows and messages, for src/guard.c and src/standing.c.
 */
#include "table.h"

#include "executor/executor.h"

#include "encode.h"
#include "event.h"
#include "event_id.h"
#include "give_way.h"
#include "guard.h"
#include "log.h"
#include "log_scan.h"
#include "message.h"
#include "standing.h"
#include "worker.h"
#include "writer.h"

/* ---------- src/log_scan.c ---------- */

void
outbox_log_scan_open(OutboxLogScan *scan, int home, Oid index, ScanKey keys, int key_count, ScanDirection direction)
{
	SimScan    *inner = sim_begin_scan(&sim_self->pg->view, keys, key_count, LOG_POSITION);

	(void) GetActiveSnapshot();
	sim_maybe_pass();
	inner->direction = direction;
	scan->home = home;
	scan->scan = &inner->base;
	outbox_log_scan_next(scan);
}

void
outbox_log_scan_next(OutboxLogScan *scan)
{
	const Row  *row = sim_next_row((SimScan *) scan->scan);

	scan->tuple = row == NULL ? NULL : &sim_log_tuple(row)->tuple;
}

void
outbox_log_scan_close(OutboxLogScan *scan)
{
}

int64
outbox_log_scan_int64(const OutboxLogScan *scan, HeapTuple tuple, int column, int64 if_null)
{
	const Row  *row = ((SimTuple *) tuple)->row;

	switch (column)
	{
		case LOG_POSITION:
			return row->position;
		case LOG_AGG_HASH:
			return (int64) row->hash;
		case LOG_FOLLOWS:
			return row->follows == 0 ? if_null : row->follows;
		case LOG_CREATED_AT:
			return row->created;
		default:
			sim_fail("the simulation has no column %d of the log", column);
	}
}

int64
outbox_log_scan_position(const OutboxLogScan *scan)
{
	return scan->tuple == NULL ? PG_INT64_MAX : outbox_log_scan_int64(scan, scan->tuple, LOG_POSITION, 0);
}

/* ---------- src/held.c ---------- */

/* An event as the relay holds it; what the broker gets is its position. */
OutboxEvent *
outbox_log_scan_event(const OutboxLogScan *scan, HeapTuple tuple, MemoryContext scratch)
{
	const Row  *row = ((SimTuple *) tuple)->row;
	OutboxEvent *event;
	SimMessage *message;

	if (row->flaw == FLAW_ROW)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("position %lld can't be read", (long long) row->position)));
	event = sim_calloc(1, sizeof(OutboxEvent) + sizeof(SimMessage));
	if (event == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	message = (SimMessage *) (event + 1);
	message->position = row->position;
	message->size = row->size;
	pg_snprintf(message->type, sizeof(message->type), "t%d", row->type);
	pg_snprintf(message->subject, sizeof(message->subject), "outbox.t%d.%llx.e", row->type, (unsigned long long) row->hash);
	event->event_id = "id";
	event->aggregate_type = message->type;
	event->message.subject = message->subject;
	event->message.data = message;
	event->message.data_len = sizeof(SimMessage);
	event->home = scan->home;
	event->claim = -1;
	event->agg_hash = row->hash;
	event->schedule.position = row->position;
	event->due = row->not_before == 0 ? 0 : sim_self->image->clock_at(row->not_before);
	/* Half of them may wait with the stream. */
	event->message.schedule = row->not_before != 0 && row->position % 2 == 0 ? "@at" : NULL;
	event->schedule.not_before = event->message.schedule == NULL ? event->due : 0;
	event->schedule.created = row->created;
	event->schedule.priority = row->priority;
	event->schedule.bytes = row->size;
	sim_check_built(row);
	sim_weigh(event, row->size);
	return event;
}

void
outbox_held_give_schedules(const char *prefix)
{
	(void) prefix;
}

OutboxEvent *
outbox_held_broken(int home, int64 position, uint64 agg_hash, const char *why)
{
	OutboxEvent *event = sim_calloc(1, sizeof(OutboxEvent));

	if (event == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	event->broken = "broken row";
	event->event_id = "of an unreadable row";
	event->home = home;
	event->claim = -1;
	event->agg_hash = agg_hash;
	event->schedule.position = position;
	event->schedule.bytes = sizeof(OutboxEvent);
	return event;
}

int
outbox_encode_stream_subjects(const char *template, char *out, size_t size)
{
	out[0] = '\0';
	return 0;
}

/* ---------- src/event_id.c ---------- */

void
outbox_event_id_make(const OutboxCatalog *catalog, TimestampTz created_at, int64 position, pg_uuid_t *id)
{
	memset(id, 0, sizeof(*id));
}

int
outbox_event_id_key_count(const OutboxCatalog *catalog)
{
	return 1;
}

int64
outbox_event_id_position(const OutboxCatalog *catalog, const pg_uuid_t *id, int key)
{
	return 0;
}

/* ---------- src/writer.c ---------- */

void
outbox_writer_open(OutboxWriter *writer, Oid relid, Oid except_index)
{
	sim_maybe_pass();
	writer->relation = sim_relation(relid);
	writer->estate = palloc0(sizeof(EState));
	/* Whoever works in the per-tuple context works in the transaction's. */
	writer->estate->es_per_tuple_exprcontext = palloc0(sizeof(ExprContext));
	writer->estate->es_per_tuple_exprcontext->ecxt_per_tuple_memory = sim_self->pg->transaction_context;
	(void) sim_pg_xact();
}

ExprContext *
MakePerTupleExprContext(EState *estate)
{
	return estate->es_per_tuple_exprcontext;
}

static void
insert_event(const Datum *values, const bool *nulls)
{
	const Row  *given = (const Row *) DatumGetPointer(values[LOG_PAYLOAD - 1]);
	Row			row = *given;

	row.position = DatumGetInt64(values[LOG_POSITION - 1]);
	row.hash = (uint64) DatumGetInt64(values[LOG_AGG_HASH - 1]);
	row.follows = nulls[LOG_FOLLOWS - 1] ? 0 : DatumGetInt64(values[LOG_FOLLOWS - 1]);
	row.created = DatumGetTimestampTz(values[LOG_CREATED_AT - 1]);
	row.xact = sim_pg_xact();
	(void) sim_log_add(&row);
	sim_trace("inserts position %lld, aggregate %llx, flaw %lld", row.position, row.hash & 0xFFFF, row.flaw);
}

static void
insert_ledger_row(const Datum *values, const bool *nulls)
{
	const void *bits = DatumGetPointer(values[LEDGER_BITS - 1]);
	Thing		row = {
		.xmin = sim_pg_xact(),
		.position = DatumGetInt64(values[LEDGER_BUCKET - 1]),
		.lo = DatumGetInt16(values[LEDGER_LO - 1]),
		.hi = DatumGetInt16(values[LEDGER_HI - 1]),
		.bits = nulls[LEDGER_BITS - 1] ? NULL : sim_keep(VARDATA_ANY(bits), VARSIZE_ANY_EXHDR(bits)),
	};

	(void) sim_table_add(&sim_ledger, row);
	sim_check_ledger(&row);
}

void
outbox_writer_insert(OutboxWriter *writer, const Datum *values, const bool *nulls, int count)
{
	sim_maybe_pass();
	if (writer->relation->rd_id < OID_LEDGER)
		insert_event(values, nulls);
	else
		insert_ledger_row(values, nulls);
}

/* Rows are written at once. */
void
outbox_writer_flush(OutboxWriter *writer)
{
}

void
outbox_writer_close(OutboxWriter *writer)
{
}

/* ---------- src/guard.c ---------- */

/* Nothing is guarded. */
void
outbox_guard_note_event(uint64 agg_hash)
{
}

/* ---------- src/standing.c ---------- */

/* No copies are made, and nothing is updated. */
OutboxStanding
outbox_standing(char *reason)
{
	return OUTBOX_STANDING_GOOD;
}

const char *
outbox_standing_hint(OutboxStanding standing)
{
	return "";
}

void
outbox_standing_require(void)
{
}

bool
outbox_standing_is_armed(void)
{
	return true;
}

void
outbox_standing_renew(void)
{
}

/* ---------- src/give_way.c, src/worker.c ---------- */

/* Nobody wants the simulated database for himself. */
bool
outbox_give_way_is_due(OutboxDatabase *database)
{
	return false;
}

void
outbox_worker_unblock_signals(void)
{
}

void
outbox_worker_check(int code)
{
	CHECK_FOR_INTERRUPTS();
}

void
outbox_worker_skip_exit_handlers(int code)
{
}
