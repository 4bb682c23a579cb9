/*
 * store_settle.c
 *	  What the relay writes: ledger rows for acknowledged positions, delivery
 *	  rows for failures, the watermark.
 *
 * The relay's session commits asynchronously: a crash that loses a settle
 * makes the next relay send the same events again under the same ids, and a
 * watermark can't outlive the settles it stands on, which come before it in
 * the WAL. A transaction with a verdict is flushed before it is visible.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "clock.h"
#include "feed.h"
#include "log.h"
#include "relay.h"
#include "ring.h"
#include "writer.h"

/* ------------------------------------------------------------- the ledger */

static int
compare_acked(const void *a, const void *b)
{
	const OutboxAcked *left = a;
	const OutboxAcked *right = b;

	if (left->home != right->home)
		return left->home < right->home ? -1 : 1;
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

/*
 * Makes sure that entries' homes hold until the end of the transaction: the
 * ledger twin is locked, so the child can't be emptied. A row that was carried
 * over since it was read is looked for. One that is nowhere any more was
 * recorded long ago, by another relay: nothing to record, home -1.
 */
static void
pin_homes(OutboxRelay *relay, OutboxAcked *entries, int count)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	int			pinned = -1;

	for (int i = 0; i < count; i++)
	{
		while (entries[i].home != pinned && entries[i].home != -1)
		{
			int			child = outbox_home_child(entries[i].home);

			LockRelationOid(catalog->ledger[child], RowExclusiveLock);
			if (outbox_ring_home(relay->database, child) == entries[i].home)
				pinned = entries[i].home;
			else
				entries[i].home = outbox_ring_find(relay->database, catalog, entries[i].position);
		}
	}
}

/* Records the acked positions; the array is sorted on the way. */
static void
write_ledger(OutboxRelay *relay, TimestampTz now)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	OutboxAcked *entries = relay->acked + relay->acked_recorded;
	int			count = relay->acked_count - relay->acked_recorded;
	OutboxWriter writer;
	int			home = -1;

	pin_homes(relay, entries, count);
	qsort(entries, count, sizeof(OutboxAcked), compare_acked);
	for (int first = 0, next; first < count; first = next)
	{
		OutboxAcked *entry = &entries[first];

		next = first + 1;
		if (entry->home == -1)
			continue;
		while (next < count && entries[next].home == entry->home &&
			   entries[next].position >> OUTBOX_BUCKET_SHIFT == entry->position >> OUTBOX_BUCKET_SHIFT)
			next++;
		if (entry->home != home)
		{
			if (home != -1)
				outbox_writer_close(&writer);
			home = entry->home;
			outbox_writer_open(&writer, catalog->ledger[outbox_home_child(home)], InvalidOid);
		}
		insert_ledger_row(relay, &writer, entry, next - first, now);
	}
	if (home != -1)
		outbox_writer_close(&writer);
}

/* ------------------------------------------------------------- deliveries */

/* A statement without result. Inside SPI_connect. */
void
outbox_store_run(const char *query, int count, Oid *types, Datum *values)
{
	if (SPI_execute_with_args(query, count, types, values, NULL, false, 0) < 0)
		elog(ERROR, "could not run \"%s\"", query);
}

static Datum
array_of(Datum *values, int count, Oid type)
{
	int16		length;
	bool		by_value;
	char		align;

	get_typlenbyvalalign(type, &length, &by_value, &align);
	return PointerGetDatum(construct_array(values, count, type, length, by_value, align));
}

/* The state that a failure leaves its event in. */
static char
state_of(const OutboxRelay *relay, const OutboxFailure *entry)
{
	if (entry->final == NULL)
		return DELIVERY_RETRY;
	/* Without an order there are no successors to hold up. */
	if (!relay->preserve_order)
		return DELIVERY_FAILED;
	switch ((OutboxPoisonPolicy) outbox_poison_policy)
	{
		case OUTBOX_POISON_BLOCK:
			return DELIVERY_BLOCKING;
		case OUTBOX_POISON_PARK:
			return DELIVERY_PARKED;
		case OUTBOX_POISON_SKIP:
			break;
	}
	return DELIVERY_FAILED;
}

/* One statement for all; a position is in it once, because it is read again only after this. */
static void
write_failures(const OutboxRelay *relay)
{
	static const char query[] =
		"INSERT INTO outbox.delivery AS d (position, agg_hash, state, attempts, next_attempt_at, last_code, last_error, failed_at)"
		" SELECT position, agg_hash, state, attempts, CASE WHEN state = 'r' THEN next_at END, code, error,"
		" CASE WHEN state <> 'r' THEN pg_catalog.clock_timestamp() END"
		" FROM unnest($1::bigint[], $2::bigint[], $3::\"char\"[], $4::integer[], $5::timestamptz[], $6::integer[], $7::text[])"
		" AS f (position, agg_hash, state, attempts, next_at, code, error)"
		" ON CONFLICT (position) DO UPDATE SET state = excluded.state,"
		" attempts = least(d.attempts::bigint + excluded.attempts, 2147483647),"
		" next_attempt_at = excluded.next_attempt_at, last_code = excluded.last_code, last_error = excluded.last_error,"
		" failed_at = excluded.failed_at";
	Oid			element[] = {INT8OID, INT8OID, CHAROID, INT4OID, TIMESTAMPTZOID, INT4OID, TEXTOID};
	Oid			types[] = {INT8ARRAYOID, INT8ARRAYOID, CHARARRAYOID, INT4ARRAYOID, TIMESTAMPTZARRAYOID, INT4ARRAYOID, TEXTARRAYOID};
	Datum	   *columns[lengthof(element)];
	Datum		values[lengthof(element)];
	int			count = relay->failure_count - relay->failures_recorded;

	for (int i = 0; i < lengthof(element); i++)
		columns[i] = palloc(sizeof(Datum) * count);
	for (int i = 0; i < count; i++)
	{
		const OutboxFailure *entry = &relay->failures[relay->failures_recorded + i];

		columns[0][i] = Int64GetDatum(entry->position);
		columns[1][i] = Int64GetDatum((int64) entry->agg_hash);
		columns[2][i] = CharGetDatum(entry->state);
		columns[3][i] = Int32GetDatum(entry->counted ? 1 : 0);
		columns[4][i] = TimestampTzGetDatum(outbox_clock_timestamp(entry->retry_at));
		columns[5][i] = Int32GetDatum(entry->code);
		columns[6][i] = CStringGetTextDatum(entry->text);
	}
	for (int i = 0; i < lengthof(element); i++)
		values[i] = array_of(columns[i], count, element[i]);
	outbox_store_run(query, lengthof(types), types, values);
}

/* Events that arrived in the end after they had failed: these positions. Under the fence, inside SPI_connect. */
void
outbox_store_close_deliveries(Datum *positions, int count)
{
	Oid			type = INT8ARRAYOID;
	Datum		value = array_of(positions, count, INT8OID);

	outbox_store_run("UPDATE outbox.delivery SET state = 'd', attempts = least(attempts::bigint + 1, 2147483647), next_attempt_at = NULL"
					 " WHERE position = ANY ($1)",
					 1, &type, &value);
}

static void
close_deliveries(const OutboxRelay *relay)
{
	Datum	   *positions = palloc(sizeof(Datum) * (relay->acked_count + 1));
	int			count = 0;

	for (int i = relay->acked_recorded; i < relay->acked_count; i++)
	{
		if (relay->acked[i].has_delivery)
			positions[count++] = Int64GetDatum(relay->acked[i].position);
	}
	if (count > 0)
		outbox_store_close_deliveries(positions, count);
}

static void
write_deliveries(OutboxRelay *relay)
{
	bool		any = relay->failure_count > relay->failures_recorded;

	for (int i = relay->acked_recorded; i < relay->acked_count && !any; i++)
		any = relay->acked[i].has_delivery;
	if (!any)
		return;
	outbox_membership_fence(relay);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (relay->failure_count > relay->failures_recorded)
		write_failures(relay);
	close_deliveries(relay);
	SPI_finish();
}

/* --------------------------------------------------------------- verdicts */

/* A text in the server's encoding as a JSON string: this is outside of transactions, so nothing can be converted. */
static void
append_ascii(StringInfo json, const char *text)
{
	char	   *copy = pstrdup(text);

	for (char *c = copy; *c != '\0'; c++)
	{
		if (IS_HIGHBIT_SET(*c))
			*c = '?';
	}
	escape_json(json, copy);
}

/* Once for each dead letter, after it is recorded. */
static void
tell(OutboxRelay *relay, const OutboxFailure *entry)
{
	const OutboxEvent *event = entry->final;
	const char *subject = event->broken != NULL ? "" : event->message.subject;
	StringInfoData json;

	ereport(WARNING,
			(errmsg("event %s can't be published and becomes a dead letter", event->event_id),
			 errdetail("%s. Position " INT64_FORMAT ", subject \"%s\", %d attempts.", entry->text, entry->position, subject,
					   event->attempts + 1),
			 entry->state == DELIVERY_FAILED ? errhint("See outbox.dead_letters; outbox.redrive() sends it again.") :
											   errhint("Its aggregate waits; see outbox.blocked_aggregates, outbox.redrive() and outbox.discard().")));

	/* A session has no connection to NATS. */
	if (relay->session || outbox_dead_letter_subject[0] == '\0')
		return;
	initStringInfo(&json);
	appendStringInfo(&json, "{\"event_id\":\"%s\",\"position\":" INT64_FORMAT ",\"database\":", event->event_id, entry->position);
	append_ascii(&json, relay->database_name);
	appendStringInfoString(&json, ",\"subject\":");
	escape_json(&json, subject);
	appendStringInfo(&json, ",\"attempts\":%d,\"error_code\":%d,\"error\":", event->attempts + 1, entry->code);
	append_ascii(&json, entry->text);
	appendStringInfoChar(&json, '}');
	outbox_publisher_announce(relay, json.data);
	pfree(json.data);
}

static void
settle_position(OutboxRelay *relay, int64 position)
{
	if (!outbox_tracker_settle(relay->tracker, position))
		outbox_relay_out_of_memory();
}

/* The verdict is on disk: the successors go on, wait, or follow. */
static void
enact(OutboxRelay *relay, const OutboxFailure *entry)
{
	SchedEvent *event = &entry->final->schedule;
	uint64		agg_hash = entry->agg_hash;

	tell(relay, entry);
	outbox_count_dead(relay, entry->final);
	outbox_claims_release(relay, entry->final->claim, entry->position);
	switch (entry->state)
	{
		case DELIVERY_BLOCKING:
			outbox_schedule_hold(relay->schedule, event);
			break;
		case DELIVERY_PARKED:
			/* Read again, it is skipped as terminal, and what follows is parked: store_read.c. */
			settle_position(relay, entry->position);
			(void) hash_search(relay->parked, &agg_hash, HASH_ENTER, NULL);
			outbox_schedule_retry(relay->schedule, event, 0, 0);
			break;
		default:
			settle_position(relay, entry->position);
			outbox_schedule_done(relay->schedule, event, outbox_clock_now());
	}
}

/* ----------------------------------------------------------------- settle */

/* Writes the rows of all that was acknowledged and has failed since the last time, in the current transaction. */
void
outbox_store_record(OutboxRelay *relay)
{
	for (int i = relay->failures_recorded; i < relay->failure_count; i++)
	{
		relay->failures[i].state = state_of(relay, &relay->failures[i]);
		/* On disk before anybody sees it: a verdict that a crash took back could let a successor overtake its event. */
		if (relay->failures[i].final != NULL)
			ForceSyncCommit();
	}
	write_ledger(relay, GetCurrentTimestamp());
	write_deliveries(relay);
	relay->acked_recorded = relay->acked_count;
	relay->failures_recorded = relay->failure_count;
}

/* After the commit: acts on what was recorded. */
void
outbox_store_enact(OutboxRelay *relay)
{
	OUTBOX_TEST_POINT("settled");
	outbox_count_settled(relay);
	for (int i = 0; i < relay->failures_recorded; i++)
	{
		if (relay->failures[i].final != NULL)
			enact(relay, &relay->failures[i]);
	}
	if (relay->failures_recorded > 0 && !relay->session)
		outbox_publisher_flush(relay);
	for (int i = 0; i < relay->acked_recorded; i++)
	{
		settle_position(relay, relay->acked[i].position);
		outbox_claims_release(relay, relay->acked[i].claim, relay->acked[i].position);
	}
	pg_atomic_fetch_add_u64(&relay->self->published, relay->acked_recorded);
	relay->acked_count = relay->acked_recorded = 0;
	relay->failure_count = relay->failures_recorded = 0;
	relay->settle_at = PG_INT64_MAX;
}

/* Records, in one short transaction, what was acknowledged and what failed since the last time. */
void
outbox_store_settle(OutboxRelay *relay)
{
	relay->settle_at = PG_INT64_MAX;
	if (relay->acked_count == 0 && relay->failure_count == 0)
		return;
	outbox_store_begin(relay);
	outbox_store_record(relay);
	OUTBOX_TEST_POINT("settle");
	outbox_store_end(relay);
	outbox_store_enact(relay);
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
	outbox_store_run("INSERT INTO outbox.watermark (position) VALUES ($1) ON CONFLICT DO NOTHING", 1, types, values);
	outbox_store_run("DELETE FROM outbox.watermark WHERE position <"
					 " (SELECT position FROM outbox.watermark ORDER BY position DESC OFFSET 99 LIMIT 1)",
					 0, NULL, NULL);
	SPI_finish();
	outbox_store_end(relay);
	if (relay->session)
		relay->watermark_written = watermark; /* not yet: its transaction goes on */
	else
	{
		pgstat_report_stat(true);
		outbox_ownership_note_watermark(relay->database, watermark);
	}
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
