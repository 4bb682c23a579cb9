/*
 * store_settle.c
 *	  What the relay writes: ledger rows for acknowledged positions, delivery
 *	  rows for refused attempts, the watermark.
 *
 * The relay's session commits asynchronously: a crash that loses a settle
 * makes the next relay send the same events again under the same ids, and a
 * watermark can't outlive the settles it stands on, which come before it in
 * the WAL.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "feed.h"
#include "log.h"
#include "relay.h"
#include "writer.h"

/* ------------------------------------------------------------- the ledger */

static int
compare_acked(const void *a, const void *b)
{
	const OutboxAcked *left = a;
	const OutboxAcked *right = b;

	if (left->child != right->child)
		return left->child - right->child;
	return left->position < right->position ? -1 : left->position > right->position;
}

/* A bitmap of entries' positions, relative to the first one's; NULL when they are contiguous. */
static bytea *
bitmap_of(const OutboxAcked *entries, int count)
{
	int			span = (int) (entries[count - 1].position - entries[0].position) + 1;
	int			size = VARHDRSZ + (span + 7) / 8;
	bytea	   *bits;
	uint8	   *bytes;

	if (span == count)
		return NULL;
	bits = palloc0(size);
	SET_VARSIZE(bits, size);
	bytes = (uint8 *) VARDATA(bits);
	for (int i = 0; i < count; i++)
	{
		int			n = (int) (entries[i].position - entries[0].position);

		bytes[n / 8] |= 1 << (n % 8);
	}
	return bits;
}

/* One ledger row for entries of one child and bucket. */
static void
insert_ledger_row(OutboxRelay *relay, OutboxWriter *writer, const OutboxAcked *entries, int count, TimestampTz now)
{
	MemoryContext caller = MemoryContextSwitchTo(GetPerTupleMemoryContext(writer->estate));
	bytea	   *bits = bitmap_of(entries, count);
	Datum		values[LEDGER_COLUMNS];
	bool		nulls[LEDGER_COLUMNS] = {false};

	values[LEDGER_BUCKET - 1] = Int64GetDatum(entries[0].position >> OUTBOX_BUCKET_SHIFT);
	values[LEDGER_SETTLED_AT - 1] = TimestampTzGetDatum(now);
	values[LEDGER_EPOCH - 1] = Int64GetDatum(relay->member.epoch);
	values[LEDGER_RELAY - 1] = Int16GetDatum(relay->member.place);
	values[LEDGER_LO - 1] = Int16GetDatum(entries[0].position & (OUTBOX_BUCKET_SIZE - 1));
	values[LEDGER_HI - 1] = Int16GetDatum(entries[count - 1].position & (OUTBOX_BUCKET_SIZE - 1));
	values[LEDGER_BITS - 1] = PointerGetDatum(bits);
	nulls[LEDGER_BITS - 1] = bits == NULL;
	MemoryContextSwitchTo(caller);
	outbox_writer_insert(writer, values, nulls);
}

/* Records all acked positions; the array is sorted on the way. */
static void
write_ledger(OutboxRelay *relay, TimestampTz now)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	OutboxWriter writer;
	int			child = -1;

	qsort(relay->acked, relay->acked_count, sizeof(OutboxAcked), compare_acked);
	for (int first = 0, next; first < relay->acked_count; first = next)
	{
		OutboxAcked *entry = &relay->acked[first];

		next = first + 1;
		while (next < relay->acked_count && relay->acked[next].child == entry->child &&
			   relay->acked[next].position >> OUTBOX_BUCKET_SHIFT == entry->position >> OUTBOX_BUCKET_SHIFT)
			next++;
		if (entry->child != child)
		{
			if (child != -1)
				outbox_writer_close(&writer);
			child = entry->child;
			outbox_writer_open(&writer, catalog->ledger[child]);
		}
		insert_ledger_row(relay, &writer, entry, next - first, now);
	}
	if (child != -1)
		outbox_writer_close(&writer);
}

/* ------------------------------------------------------------- deliveries */

static void
run(const char *query, int count, Oid *types, Datum *values)
{
	if (SPI_execute_with_args(query, count, types, values, NULL, false, 0) < 0)
		elog(ERROR, "could not run \"%s\"", query);
}

static void
write_refused(const OutboxRefused *entry)
{
	Oid			types[] = {INT8OID, TIMESTAMPTZOID, INT4OID, TEXTOID};
	Datum		values[] = {
		Int64GetDatum(entry->position), TimestampTzGetDatum(entry->next_attempt_at),
		Int32GetDatum(entry->code), CStringGetTextDatum(entry->text)};

	run("INSERT INTO outbox.delivery AS d (position, state, attempts, next_attempt_at, last_code, last_error)"
		" VALUES ($1, 'r', 1, $2, $3, $4) ON CONFLICT (position) DO UPDATE SET attempts = d.attempts + 1,"
		" next_attempt_at = excluded.next_attempt_at, last_code = excluded.last_code, last_error = excluded.last_error",
		lengthof(types), types, values);
}

/* Events that arrived in the end after they had been refused. */
static void
close_deliveries(OutboxRelay *relay)
{
	Datum	   *positions = palloc(sizeof(Datum) * (relay->acked_count + 1));
	Oid			type = INT8ARRAYOID;
	Datum		value;
	int			count = 0;

	for (int i = 0; i < relay->acked_count; i++)
	{
		if (relay->acked[i].had_failed)
			positions[count++] = Int64GetDatum(relay->acked[i].position);
	}
	if (count == 0)
		return;
	value = PointerGetDatum(construct_array(positions, count, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	run("UPDATE outbox.delivery SET state = 'd', attempts = attempts + 1, next_attempt_at = NULL WHERE position = ANY ($1)",
		1, &type, &value);
}

static void
write_deliveries(OutboxRelay *relay)
{
	bool		any = relay->refused_count > 0;

	for (int i = 0; i < relay->acked_count && !any; i++)
		any = relay->acked[i].had_failed;
	if (!any)
		return;
	outbox_membership_fence(relay);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	for (int i = 0; i < relay->refused_count; i++)
		write_refused(&relay->refused[i]);
	close_deliveries(relay);
	SPI_finish();
}

/* ----------------------------------------------------------------- settle */

/* In memory, after the commit. */
static void
forget_settled(OutboxRelay *relay)
{
	for (int i = 0; i < relay->acked_count; i++)
	{
		OutboxAcked *entry = &relay->acked[i];

		if (!outbox_tracker_settle(relay->tracker, entry->position))
			outbox_relay_out_of_memory();
		outbox_claims_release(relay, entry->claim, entry->position);
	}
	pg_atomic_fetch_add_u64(&relay->self->published, relay->acked_count);
	relay->acked_count = 0;
	relay->refused_count = 0;
	relay->settle_at = DT_NOEND;
}

/* Records, in one short transaction, what was acknowledged and refused since the last time. */
void
outbox_store_settle(OutboxRelay *relay)
{
	relay->settle_at = DT_NOEND;
	if (relay->acked_count == 0 && relay->refused_count == 0)
		return;
	outbox_store_begin(relay);
	write_ledger(relay, GetCurrentTimestamp());
	write_deliveries(relay);
	OUTBOX_TEST_POINT("settle");
	outbox_store_end();
	forget_settled(relay);
}

/* -------------------------------------------------------------- watermark */

/*
 * The highest position below which nothing is open, unread or, in this relay's
 * slots, unsettled. The order of the looks follows the way of a transaction:
 * bound, prepared array, ring (PROTOCOL.md).
 */
static int64
compute_watermark(OutboxRelay *relay)
{
	int64		highest = pg_atomic_read_u64(&relay->database->max_assigned);
	int64		open = outbox_feed_lowest_bound(relay->database);
	bool		prepared;

	open = Min(open, outbox_feed_lowest_prepared(relay->database, &prepared));
	open = Min(open, outbox_feed_lowest_pushed(relay->database, relay->member.place));
	if (relay->late.count > 0)
		open = Min(open, relay->late.ranges[0].lo);
	open = Min(open, outbox_tracker_first_unsettled(relay->tracker));
	highest = Min(highest, relay->read_up_to);
	return Min(highest, open - 1);
}

static void
write_watermark(OutboxRelay *relay, int64 watermark)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(watermark)};

	outbox_store_begin(relay);
	outbox_membership_fence(relay);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	/* Another relay may write the same at the same time. */
	run("INSERT INTO outbox.watermark (position) VALUES ($1) ON CONFLICT DO NOTHING", 1, types, values);
	run("DELETE FROM outbox.watermark WHERE position <"
		" (SELECT position FROM outbox.watermark ORDER BY position DESC OFFSET 99 LIMIT 1)",
		0, NULL, NULL);
	SPI_finish();
	outbox_store_end();
	pgstat_report_stat(true);
	outbox_ownership_note_watermark(relay->database, watermark);
}

/*
 * Forgets what lies below the watermark of the relay's own slots, and writes
 * that of all slots if it has moved.
 */
void
outbox_store_advance_watermark(OutboxRelay *relay)
{
	int64		own = compute_watermark(relay);
	int64		common = outbox_membership_watermark(relay, own);

	outbox_tracker_trim(relay->tracker, own);
	if (common > (int64) pg_atomic_read_u64(&relay->database->watermark))
		write_watermark(relay, common);
}
