/*
 * store_load.c
 *	  What a relay reads when it starts, and when it has gained or lost slots:
 *	  the watermark, and above it what relays recorded as terminal; what waits
 *	  for a retry or for an operator, wherever it lies.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/memutils.h"

#include "backlog.h"
#include "clock.h"
#include "log.h"
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

/* Dead letters above the watermark: terminal, though the ledger doesn't know them. */
static void
load_terminal(OutboxRelay *relay, int64 watermark)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(watermark)};

	if (SPI_execute_with_args("SELECT position FROM outbox.delivery WHERE position > $1 AND state IN ('f', 'p', 'x')",
							  1, types, values, NULL, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;

		if (!outbox_tracker_settle(relay->tracker, DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull))))
			outbox_relay_out_of_memory();
	}
	SPI_freetuptable(SPI_tuptable);
}

/* Aggregates that were parked: what is still to come of theirs is, too. */
static void
load_parked(OutboxRelay *relay)
{
	HASHCTL		info = {.keysize = sizeof(uint64), .entrysize = sizeof(uint64), .hcxt = TopMemoryContext};

	relay->parked = hash_create("outbox parked aggregates", 64, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	if (SPI_execute("SELECT DISTINCT agg_hash FROM outbox.delivery WHERE state = 'p'", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;
		uint64		agg_hash = (uint64) DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));

		(void) hash_search(relay->parked, &agg_hash, HASH_ENTER, NULL);
	}
	SPI_freetuptable(SPI_tuptable);
}

/* No retry is farther away than the longest delay, unless the system's clock was set meanwhile. */
static int64
retry_time(Datum next_attempt_at, bool isnull)
{
	int64		longest = outbox_clock_now() + outbox_retry_max_delay * INT64CONST(1000);

	return isnull ? 0 : Min(outbox_clock_at(DatumGetTimestampTz(next_attempt_at)), longest);
}

/*
 * Events that failed before and wait for their next attempt, or hold their
 * aggregate. Redriven ones may lie below the watermark. Some may be published:
 * a relay that had the ack stood still, lost its slots to one that was refused,
 * and recorded the ack when it went on.
 */
static void
load_waiting(OutboxRelay *relay, int64 watermark)
{
	const char *query = "SELECT d.position, d.agg_hash, l.created_at, d.next_attempt_at, d.attempts, d.state"
						" FROM outbox.delivery d JOIN outbox.log l ON l.position = d.position"
						" WHERE d.state IN ('r', 'b') ORDER BY d.position";
	Datum	   *published;
	int			published_count = 0;

	if (SPI_execute(query, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	published = palloc(sizeof(Datum) * (SPI_processed + 1));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;
		int64		position = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
		uint64		agg_hash = (uint64) DatumGetInt64(SPI_getbinval(tuple, desc, 2, &isnull));
		TimestampTz created = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 3, &isnull));
		Datum		next_attempt_at = SPI_getbinval(tuple, desc, 4, &isnull);
		int64		retry_at = retry_time(next_attempt_at, isnull);
		int32		attempts = DatumGetInt32(SPI_getbinval(tuple, desc, 5, &isnull));

		/* Not its own fault: a new connection is a reason to try it again. */
		if (attempts == 0)
			retry_at = 0;

		if (!outbox_relay_owns(relay, agg_hash))
			continue;
		if (DatumGetChar(SPI_getbinval(tuple, desc, 6, &isnull)) == DELIVERY_BLOCKING)
			retry_at = PG_INT64_MAX;
		if (position > watermark && outbox_tracker_see(relay->tracker, position) != TRACKER_NEW)
		{
			published[published_count++] = Int64GetDatum(position);
			continue;
		}
		if (!outbox_schedule_wait(relay->schedule, outbox_store_key(relay, agg_hash, position), position, created, retry_at,
								  attempts))
			outbox_relay_out_of_memory();
	}
	SPI_freetuptable(SPI_tuptable);
	if (published_count == 0)
		return;
	outbox_membership_fence(relay);
	outbox_store_close_deliveries(published, published_count);
}

/* Forgets all that was loaded and read. Nothing is in flight. */
void
outbox_store_unload(OutboxRelay *relay)
{
	if (relay->schedule != NULL)
		outbox_schedule_destroy(relay->schedule);
	if (relay->tracker != NULL)
		outbox_tracker_destroy(relay->tracker);
	if (relay->parked != NULL)
		hash_destroy(relay->parked);
	relay->schedule = NULL;
	relay->tracker = NULL;
	relay->parked = NULL;
	relay->late.count = 0;
	relay->sample_count = 0;
	relay->pushed_up_to = 0;
	relay->in_flight_bytes = 0;
	relay->flush_read = 0;
	outbox_backlog_forget(relay);
	outbox_count_forget();
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
	relay->preserve_order = outbox_preserve_aggregate_order;
	outbox_store_load_pauses(relay);
	/* Without slots there is nothing to do until it gets some, and loads again. */
	if (relay->slots != 0)
	{
		load_ledger(relay, watermark);
		load_terminal(relay, watermark);
		load_waiting(relay, watermark);
	}
	load_parked(relay);
	SPI_finish();

	relay->requests_at = 0;
	relay->settle_at = PG_INT64_MAX;
	relay->more_to_read = true;
	relay->keys_left_behind = true;
	if (relay->row_context == NULL)
		relay->row_context = AllocSetContextCreate(TopMemoryContext, "outbox row", ALLOCSET_DEFAULT_SIZES);
	pg_atomic_write_u64(&relay->self->read_up_to, relay->read_up_to);
}
