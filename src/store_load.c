/*
 * store_load.c
 *	  What a relay reads when it starts, and when it has gained or lost slots:
 *	  the watermark, and above it what relays recorded as published or as
 *	  waiting for a retry.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/memutils.h"

#include "relay.h"

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
			outbox_relay_out_of_memory();
		return;
	}
	bytes = DatumGetByteaPP(bits);
	for (int n = 0; n < VARSIZE_ANY_EXHDR(bytes) * 8; n++)
	{
		if ((VARDATA_ANY(bytes)[n / 8] & (1 << (n % 8))) && !outbox_tracker_settle(relay->tracker, start + lo + n))
			outbox_relay_out_of_memory();
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
		outbox_membership_renew(relay);
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

		if (!outbox_relay_owns(relay, aggregate))
			continue;
		/* Acked and recorded, though its attempts were not closed. */
		if (outbox_tracker_see(relay->tracker, position) != TRACKER_NEW)
			continue;
		if (!outbox_schedule_wait(relay->schedule, aggregate, position, created, retry_at, attempts))
			outbox_relay_out_of_memory();
	}
}

/* Forgets all that was loaded and read. Nothing is in flight. */
void
outbox_store_unload(OutboxRelay *relay)
{
	if (relay->schedule != NULL)
		outbox_schedule_destroy(relay->schedule);
	if (relay->tracker != NULL)
		outbox_tracker_destroy(relay->tracker);
	relay->schedule = NULL;
	relay->tracker = NULL;
	relay->late.count = 0;
	relay->pushed_up_to = 0;
	relay->in_flight_bytes = 0;
}

/* Makes tracker and schedule and fills them with what relays have recorded. */
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
		outbox_relay_out_of_memory();
	relay->read_up_to = watermark;
	outbox_ownership_note_watermark(relay->database, watermark);
	/* Without slots there is nothing to do until it gets some, and loads again. */
	if (relay->slots != 0)
	{
		load_ledger(relay, watermark);
		load_deliveries(relay);
	}
	SPI_finish();

	relay->more_to_read = true;
	relay->keys_left_behind = true;
	if (relay->row_context == NULL)
		relay->row_context = AllocSetContextCreate(TopMemoryContext, "outbox row", ALLOCSET_DEFAULT_SIZES);
	pg_atomic_write_u64(&relay->self->read_up_to, relay->read_up_to);
}
