/*
 * store_requests.c
 *	  What operators have asked for: redriven and discarded events, pauses.
 *
 * outbox.redrive(), discard(), pause() and resume() write their tables and
 * raise OutboxDatabase.requests when they commit. redrive() has set the events'
 * delivery rows to be retried and leaves a request per aggregate, so that the
 * relay takes them up; a crash loses nothing, since those rows are read at
 * start. An event that isn't a dead letter is discarded here, by the one
 * process that knows whether it is with the broker.
 */
#include "outbox.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/memutils.h"

#include "clock.h"
#include "store_read.h"

/* Requests in one transaction. */
#define REQUEST_BATCH 1000

/* When something has to wait: for the broker's answer, for an operator's transaction, or because there is too much. */
#define AGAIN_US INT64CONST(200000)

/* How long a redriven event may meet acknowledged, not yet recorded ones. */
#define REDRIVE_US INT64CONST(60000000)

#define REQUEST_REDRIVEN 'r'
#define REQUEST_UNPARK 'p'
#define REQUEST_DISCARD 'x'

typedef struct OutboxRequest
{
	int64		id;
	char		kind;
	uint64		agg_hash;
	int64		position;		/* the aggregate's first redriven event, or the one to discard */
	TimestampTz	created_at;
	bool		done;
} OutboxRequest;

typedef OutboxRequest Request;

/* ---------------------------------------------------------------- pauses */

static char *
text_column(HeapTuple tuple, TupleDesc desc, int column)
{
	char	   *text = SPI_getvalue(tuple, desc, column);

	return text == NULL ? NULL : MemoryContextStrdup(TopMemoryContext, text);
}

static void
free_pauses(OutboxPauseList *list)
{
	for (int i = 0; i < list->count; i++)
	{
		if (list->pauses[i].aggregate_type != NULL)
			pfree((char *) list->pauses[i].aggregate_type);
		if (list->pauses[i].subject != NULL)
			pfree((char *) list->pauses[i].subject);
	}
	if (list->pauses != NULL)
		pfree(list->pauses);
	memset(list, 0, sizeof(*list));
}

static bool
same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool
same_pauses(const OutboxPauseList *a, const OutboxPauseList *b)
{
	if (a->count != b->count)
		return false;
	for (int i = 0; i < a->count; i++)
	{
		if (!same_text(a->pauses[i].aggregate_type, b->pauses[i].aggregate_type) ||
			!same_text(a->pauses[i].subject, b->pauses[i].subject))
			return false;
	}
	return true;
}

/*
 * Reads outbox.pauses. If they have changed, what waited because of one is
 * looked at again, and so is all else that waits. Inside SPI_connect.
 */
void
outbox_store_load_pauses(OutboxRelay *relay)
{
	OutboxPauseList list = {0};
	bool		changed;

	if (SPI_execute("SELECT aggregate_type, subject FROM outbox.pauses ORDER BY 1, 2", true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.pauses");
	list.pauses = MemoryContextAlloc(TopMemoryContext, sizeof(OutboxPause) * (SPI_processed + 1));
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		OutboxPause *pause = &list.pauses[list.count++];

		pause->aggregate_type = text_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1);
		pause->subject = text_column(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2);
		list.all |= pause->aggregate_type == NULL && pause->subject == NULL;
	}
	SPI_freetuptable(SPI_tuptable);
	changed = !same_pauses(&list, &relay->pauses);
	free_pauses(&relay->pauses);
	relay->pauses = list;
	if (changed)
		outbox_schedule_retry_now(relay->schedule);
}

/* -------------------------------------------------------------- requests */

/* Those of this relay's slots, in an array that outlives the transaction. */
static Request *
read_requests(const OutboxRelay *relay, int *count)
{
	const char *query = "SELECT q.id, q.kind, q.agg_hash, q.position, l.created_at"
						" FROM outbox.request q LEFT JOIN outbox.log l ON l.position = q.position"
						" WHERE (1::bigint << (q.agg_hash & 63)::integer) & $1 <> 0 ORDER BY q.id";
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum((int64) relay->slots)};
	Request	   *requests;

	if (SPI_execute_with_args(query, 1, types, values, NULL, true, REQUEST_BATCH) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.request");
	*count = (int) SPI_processed;
	requests = MemoryContextAllocZero(TopMemoryContext, sizeof(Request) * (*count + 1));
	for (int i = 0; i < *count; i++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;

		requests[i].id = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
		requests[i].kind = DatumGetChar(SPI_getbinval(tuple, desc, 2, &isnull));
		requests[i].agg_hash = (uint64) DatumGetInt64(SPI_getbinval(tuple, desc, 3, &isnull));
		requests[i].position = DatumGetInt64(SPI_getbinval(tuple, desc, 4, &isnull));
		requests[i].created_at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 5, &isnull));
	}
	return requests;
}

/*
 * Whether the delivery rows of an aggregate's parked events, or that of one
 * position, can be written without waiting for an operator's open transaction;
 * they are locked then. Nobody but operators locks them.
 */
static bool
lock_deliveries(const char *which, int64 key)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(key)};
	char	   *query = psprintf("SELECT FROM outbox.delivery WHERE %s FOR NO KEY UPDATE SKIP LOCKED", which);
	uint64		locked;

	if (SPI_execute_with_args(query, 1, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not lock rows of outbox.delivery");
	locked = SPI_processed;
	query = psprintf("SELECT FROM outbox.delivery WHERE %s", which);
	if (SPI_execute_with_args(query, 1, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	return SPI_processed == locked;
}

/*
 * A parked aggregate comes back as a whole: what was parked after the redrive
 * had its snapshot follows it. No longer parked once it has no parked events.
 * False: not yet.
 */
static bool
unpark(OutboxRelay *relay, const Request *request)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum((int64) request->agg_hash)};
	uint64		agg_hash = request->agg_hash;

	if (hash_search(relay->parked, &agg_hash, HASH_FIND, NULL) == NULL)
		return true;
	if (request->kind == REQUEST_UNPARK && !lock_deliveries("agg_hash = $1 AND state = 'p'", (int64) agg_hash))
		return false;
	/* Where no order is kept each of its events is to be taken up for itself. */
	relay->reload_wanted |= !relay->preserve_order;
	if (request->kind == REQUEST_UNPARK)
		outbox_store_run("UPDATE outbox.delivery SET state = 'r', attempts = 0, failed_at = NULL WHERE agg_hash = $1 AND state = 'p'",
						 1, types, values);
	if (SPI_execute_with_args("SELECT FROM outbox.delivery WHERE agg_hash = $1 AND state = 'p' LIMIT 1", 1, types, values,
							  NULL, false, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	if (SPI_processed == 0)
		(void) hash_search(relay->parked, &agg_hash, HASH_REMOVE, NULL);
	return true;
}

/* Handed to the broker, or not recorded since. */
static bool
is_claimed(const OutboxRelay *relay, int64 position)
{
	for (int i = 0; i < OUTBOX_CLAIMS; i++)
	{
		if (outbox_claim_position(pg_atomic_read_u64(&relay->database->claimed[i])) == position)
			return true;
	}
	return false;
}

/* Sets one event to discarded, unless it is published meanwhile. False: it is with the broker, or its row locked, just now. */
static bool
discard(const OutboxRelay *relay, const Request *request)
{
	Oid			types[] = {INT8OID};
	Datum		values[] = {Int64GetDatum(request->id)};

	if (is_claimed(relay, request->position) || !lock_deliveries("position = $1", request->position))
		return false;
	outbox_store_run("INSERT INTO outbox.delivery AS d (position, agg_hash, state, attempts, last_code, last_error, failed_at,"
					 " discarded_at, discarded_by, discard_reason)"
					 " SELECT q.position, q.agg_hash, 'x', 0, 0, '', pg_catalog.clock_timestamp(), pg_catalog.clock_timestamp(),"
					 " q.requested_by, q.reason FROM outbox.request q WHERE q.id = $1 AND outbox.settled_at(q.position) IS NULL"
					 " ON CONFLICT (position) DO UPDATE SET state = 'x', next_attempt_at = NULL,"
					 " failed_at = coalesce(d.failed_at, excluded.failed_at), discarded_at = excluded.discarded_at,"
					 " discarded_by = excluded.discarded_by, discard_reason = excluded.discard_reason WHERE d.state IN ('r', 'b', 'f', 'p')",
					 1, types, values);
	return true;
}

static void
delete_done(const Request *requests, int count)
{
	Datum	   *ids = palloc(sizeof(Datum) * (count + 1));
	int			done = 0;
	Oid			type = INT8ARRAYOID;
	Datum		value;

	for (int i = 0; i < count; i++)
	{
		if (requests[i].done)
			ids[done++] = Int64GetDatum(requests[i].id);
	}
	value = PointerGetDatum(construct_array(ids, done, INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE));
	outbox_store_run("DELETE FROM outbox.request WHERE id = ANY ($1)", 1, &type, &value);
}

/* In memory, after the commit. */
static void
enact(OutboxRelay *relay, const Request *request)
{
	uint64		key = outbox_store_key(relay, request->agg_hash, request->position);

	if (request->kind == REQUEST_DISCARD)
	{
		if (!outbox_tracker_settle(relay->tracker, request->position))
			outbox_relay_out_of_memory();
	}
	else if (outbox_tracker_is_settled(relay->tracker, request->position))
	{
		/* It was terminal: new to the schedule, unless it has been redriven before. */
		if (!outbox_schedule_defer(relay->schedule, key, request->position, request->created_at))
			outbox_relay_out_of_memory();
		relay->redrive_until = outbox_clock_now() + REDRIVE_US;
	}
	/* One that was redriven before may have failed again and hold its aggregate. */
	outbox_schedule_reread(relay->schedule, key);
}

/*
 * Does what operators have asked for since the last time, as far as it can be
 * done now, in the current transaction; the rest is outbox_store_enact_requests()'s.
 */
void
outbox_store_record_requests(OutboxRelay *relay)
{
	int			count;
	Request	   *requests;
	bool		again;

	relay->requests_seen = pg_atomic_read_u32(&relay->database->requests);
	relay->requests_at = PG_INT64_MAX;
	pg_memory_barrier();
	outbox_store_begin_reading(relay, 1, 1);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	outbox_membership_fence(relay);
	requests = read_requests(relay, &count);
	again = count == REQUEST_BATCH;
	for (int i = 0; i < count; i++)
	{
		requests[i].done = (requests[i].kind != REQUEST_DISCARD || discard(relay, &requests[i])) && unpark(relay, &requests[i]);
		again |= !requests[i].done;
	}
	if (count > 0)
	{
		/* On disk before anybody sees it: a discard that a crash took back could let a successor overtake its event. */
		ForceSyncCommit();
		delete_done(requests, count);
	}
	outbox_store_load_pauses(relay);
	SPI_finish();
	outbox_store_end(relay);
	if (relay->requests != NULL)
		pfree(relay->requests);
	relay->requests = requests;
	relay->request_count = count;
	if (again)
		relay->requests_at = outbox_clock_now() + AGAIN_US;
}

/* Redriven events alone may be taken up before the commit: should it fail, all is read afresh. */
void
outbox_store_enact_redriven(OutboxRelay *relay)
{
	int			left = 0;

	for (int i = 0; i < relay->request_count; i++)
	{
		if (relay->requests[i].kind == REQUEST_DISCARD)
			relay->requests[left++] = relay->requests[i];
		else if (relay->requests[i].done)
			enact(relay, &relay->requests[i]);
	}
	relay->request_count = left;
}

/* After the commit. */
void
outbox_store_enact_requests(OutboxRelay *relay)
{
	for (int i = 0; i < relay->request_count; i++)
	{
		if (relay->requests[i].done)
			enact(relay, &relay->requests[i]);
	}
	relay->request_count = 0;
}

void
outbox_store_take_requests(OutboxRelay *relay)
{
	outbox_store_settle(relay);
	outbox_store_record_requests(relay);
	outbox_store_enact_requests(relay);
}
