/*
 * retire.c
 *	  The steps of retention: rotation, sealing, retirement of a range.
 *
 * A range is what one child of the log holds, and goes as a whole, by TRUNCATE
 * together with its ledger twin. Only the cleaner calls this, one at a time per
 * database. Each step is a short transaction, after which the next cleaner can
 * go on. None waits for a lock: what can't be had is tried again later.
 *
 * What must outlive its child (pending, retried, blocked and parked events,
 * dead letters) is copied into the current one, if it is little. The copy comes
 * before the exclusive lock, which is held for the TRUNCATE only; what may have
 * changed meanwhile is looked at again under it.
 */
#include "retire.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "pgstat.h"
#include "storage/lmgr.h"
#include "utils/snapmgr.h"

#include "archive.h"
#include "ring.h"

/* Carried over from one child at most; more than that holds it up. */
#define MAX_CARRIED 10000

/* So many children are left free by outbox.purge() while it can't remove what it closes. */
#define SPARE 3

/* Delivery rows looked at in one transaction. */
#define SWEEP_BATCH 10000

/* ------------------------------------------------------------ transactions */

bool
outbox_retire_begin(const OutboxRetention *retention)
{
	const OutboxCatalog *catalog;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog == NULL || catalog->sequence != retention->sequence)
	{
		AbortCurrentTransaction();
		return false;
	}
	PushActiveSnapshot(GetTransactionSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	return true;
}

void
outbox_retire_commit(void)
{
	SPI_finish();
	PopActiveSnapshot();
	CommitTransactionCommand();
	(void) pgstat_report_stat(true);
}

static void
give_up(void)
{
	SPI_finish();
	PopActiveSnapshot();
	AbortCurrentTransaction();
}

/* ------------------------------------------------------------- statements */

void
outbox_retire_run(const char *query, int count, Oid *types, Datum *values)
{
	if (SPI_execute_with_args(query, count, types, values, NULL, false, 0) < 0)
		elog(ERROR, "could not run \"%s\"", query);
}

Datum
outbox_retire_result(int column, Datum if_null)
{
	bool		isnull = true;
	Datum		value = if_null;

	if (SPI_processed > 0)
		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, &isnull);
	return isnull ? if_null : value;
}

/* ------------------------------------------------------------------- ring */

int
outbox_retire_ranges(const OutboxRetention *retention, OutboxRangeRow *rows)
{
	int			count;

	outbox_retire_run("SELECT child, generation, opened_at, closed_at IS NOT NULL, last_position IS NOT NULL FROM outbox.ring"
					  " ORDER BY generation",
					  0, NULL, NULL);
	count = (int) Min(SPI_processed, OUTBOX_CHILDREN);
	for (int i = 0; i < count; i++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;

		rows[i].child = DatumGetInt16(SPI_getbinval(tuple, desc, 1, &isnull));
		rows[i].generation = DatumGetInt64(SPI_getbinval(tuple, desc, 2, &isnull));
		rows[i].opened_at = DatumGetTimestampTz(SPI_getbinval(tuple, desc, 3, &isnull));
		rows[i].closed = DatumGetBool(SPI_getbinval(tuple, desc, 4, &isnull));
		rows[i].sealed = DatumGetBool(SPI_getbinval(tuple, desc, 5, &isnull));
	}
	outbox_ring_load(retention->database);
	return count;
}

/* What was committed becomes known to enqueue and relays. Should the cleaner end before, the next one does it. */
static void
follow_table(const OutboxRetention *retention)
{
	if (!outbox_retire_begin(retention))
		return;
	outbox_ring_load(retention->database);
	outbox_retire_commit();
}

/* A child that holds nothing at all, not even what nobody can see; -1: none. */
static int
free_child(const OutboxRangeRow *rows, int count)
{
	int			last = count == 0 ? 0 : rows[count - 1].child;

	for (int i = 1; i < OUTBOX_CHILDREN; i++)
	{
		int			child = (last + i) % OUTBOX_CHILDREN;
		bool		used = false;

		for (int r = 0; r < count; r++)
			used = used || rows[r].child == child;
		if (used)
			continue;
		outbox_retire_run(psprintf("SELECT pg_catalog.pg_relation_size('outbox.log_%1$d') + pg_catalog.pg_relation_size('outbox.ledger_%1$d')", child),
						  0, NULL, NULL);
		if (DatumGetInt64(outbox_retire_result(1, Int64GetDatum(1))) == 0)
			return child;
	}
	return -1;
}

/* Since when a child takes events: the row in the ring, or before the first rotation its oldest event. DT_NOEND: it is empty. */
static TimestampTz
current_since(const OutboxRangeRow *current, int child)
{
	TimestampTz newest;

	outbox_retire_run(psprintf("SELECT (SELECT created_at FROM outbox.log_%1$d ORDER BY position DESC LIMIT 1),"
							   " (SELECT created_at FROM outbox.log_%1$d ORDER BY position LIMIT 1)",
							   child),
					  0, NULL, NULL);
	newest = DatumGetTimestampTz(outbox_retire_result(1, TimestampTzGetDatum(DT_NOBEGIN)));
	if (newest == DT_NOBEGIN)
		return DT_NOEND;
	if (current == NULL)
		return DatumGetTimestampTz(outbox_retire_result(2, TimestampTzGetDatum(newest)));
	/* What has only been carried over is no reason to carry it further. */
	return newest < current->opened_at ? DT_NOEND : current->opened_at;
}

/*
 * Whether outbox.purge() shall close a child: all that was published is old
 * enough, or a part is, and there are children to spare. Calls that come too
 * often must not use up the ring.
 */
static bool
is_worth_closing(const OutboxRetention *retention, int child, bool can_spare)
{
	Oid			types[] = {TIMESTAMPTZOID};
	Datum		values[] = {TimestampTzGetDatum(retention->before)};

	outbox_retire_run(psprintf("SELECT min(settled_at) <= $1, max(settled_at) <= $1 FROM outbox.ledger_%d", child), 1, types, values);
	return DatumGetBool(outbox_retire_result(can_spare ? 1 : 2, BoolGetDatum(false)));
}

void
outbox_retire_rotate(const OutboxRetention *retention, TimestampTz opened_before, bool forced, bool *idle)
{
	OutboxRangeRow rows[OUTBOX_CHILDREN];
	OutboxRangeRow *current;
	int			count;
	int			child;
	int			next;
	TimestampTz since;

	*idle = false;
	if (!outbox_retire_begin(retention))
		return;
	count = outbox_retire_ranges(retention, rows);
	current = count == 0 ? NULL : &rows[count - 1];
	child = current == NULL ? 0 : current->child;
	since = current_since(current, child);
	*idle = since == DT_NOEND;
	if (!(forced ? is_worth_closing(retention, child, count <= OUTBOX_CHILDREN - SPARE) : since <= opened_before) ||
		(next = free_child(rows, count)) < 0)
	{
		outbox_retire_commit();
		return;
	}
	if (current == NULL)
	{
		Oid			type = TIMESTAMPTZOID;
		Datum		opened_at = TimestampTzGetDatum(since == DT_NOEND ? GetCurrentTimestamp() : since);

		outbox_retire_run("INSERT INTO outbox.ring (child, generation, opened_at) VALUES (0, 1, $1)", 1, &type, &opened_at);
	}
	outbox_retire_run("UPDATE outbox.ring SET closed_at = pg_catalog.clock_timestamp() WHERE closed_at IS NULL", 0, NULL, NULL);
	outbox_retire_run(psprintf("INSERT INTO outbox.ring (child, generation, opened_at)"
							   " SELECT %d, max(generation) + 1, pg_catalog.clock_timestamp() FROM outbox.ring",
							   next),
					  0, NULL, NULL);
	OUTBOX_TEST_POINT("rotate");
	outbox_retire_commit();
	OUTBOX_TEST_POINT("rotated");
	/* Enqueue goes to the new one from here on. */
	follow_table(retention);
	*idle = true;
}

bool
outbox_retire_seal(const OutboxRetention *retention, int child)
{
	if (!outbox_retire_begin(retention))
		return false;
	if (!ConditionalLockRelationOid(outbox_database_catalog(false)->log[child], ShareLock))
	{
		give_up();
		return false;
	}
	outbox_retire_run(psprintf("UPDATE outbox.ring SET last_position = coalesce((SELECT max(position) FROM outbox.log_%1$d), 0) WHERE child = %1$d",
							   child),
					  0, NULL, NULL);
	OUTBOX_TEST_POINT("seal");
	outbox_retire_commit();
	follow_table(retention);
	return true;
}

/* ------------------------------------------------------------------ retire */

/* What is to stay of a child, as an array; settled: how many of those are in the ledger, which goes with the rest. */
static Datum
read_kept(const OutboxRetention *retention, int child, int *count, int *settled)
{
	Oid			types[] = {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID};
	Datum		values[] = {Int32GetDatum(child), TimestampTzGetDatum(retention->before),
					  TimestampTzGetDatum(retention->dead_before), Int32GetDatum(MAX_CARRIED)};

	/* In one statement: what is published behind it must show. */
	outbox_retire_run("SELECT coalesce(pg_catalog.array_agg(k), '{}'), pg_catalog.count(*)::integer,"
					  " pg_catalog.count(outbox.settled_at(k))::integer FROM outbox.range_keeps($1, $2, $3, $4) k",
					  lengthof(types), types, values);
	*count = DatumGetInt32(outbox_retire_result(2, 0));
	*settled = DatumGetInt32(outbox_retire_result(3, 0));
	return outbox_retire_result(1, 0);
}

/* That number now. */
static int
count_settled(Datum kept)
{
	Oid			type = INT8ARRAYOID;

	outbox_retire_run("SELECT pg_catalog.count(outbox.settled_at(k))::integer FROM pg_catalog.unnest($1) k", 1, &type, &kept);
	return DatumGetInt32(outbox_retire_result(1, Int32GetDatum(-1)));
}

/*
 * Whether it is still right to keep just these: nothing that was to go was
 * redriven, nothing that stays was published, and nothing at all was published
 * since the range was archived.
 */
static bool
is_still_right(const OutboxRetention *retention, int child, const OutboxArchived *archived, Datum kept, int settled)
{
	Oid			types[] = {INT8ARRAYOID, INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, BOOLOID, INT8OID};
	Datum		values[] = {kept, Int32GetDatum(child), TimestampTzGetDatum(retention->before),
					  TimestampTzGetDatum(retention->dead_before), BoolGetDatum(archived->wanted),
					  Int64GetDatum(archived->ledger_rows)};

	if (count_settled(kept) != settled)
		return false;
	outbox_retire_run(psprintf("SELECT NOT EXISTS (SELECT FROM outbox.range_keeps_dead($2, $3, $4) k WHERE k <> ALL ($1))"
							   " AND (NOT $5 OR (SELECT pg_catalog.count(*) FROM outbox.ledger_%d) = $6)",
							   child),
					  lengthof(types), types, values);
	return DatumGetBool(outbox_retire_result(1, BoolGetDatum(false)));
}

/* Empties child and ledger twin, which are locked, and notes it. */
static void
empty(const OutboxRetention *retention, int child, const OutboxArchived *archived, int kept)
{
	Oid			types[] = {INT8OID, INT4OID, INT4OID};
	Datum		values[] = {Int64GetDatum(retention->run), Int32GetDatum(child), Int32GetDatum(kept)};

	outbox_retire_run("INSERT INTO outbox.purges (run, child, generation, first_position, last_position, events, bytes, carried_over, oldest, newest)"
					  " SELECT $1, r.child, r.generation, s.first_position, s.last_position, s.events - $3, s.bytes, $3, s.oldest, s.newest"
					  " FROM outbox.ring r, outbox.range_figures($2) s WHERE r.child = $2",
					  lengthof(types), types, values);
	outbox_retire_run(psprintf("TRUNCATE ONLY outbox.log_%1$d, outbox.ledger_%1$d", child), 0, NULL, NULL);
	outbox_retire_run(psprintf("DELETE FROM outbox.ring WHERE child = %d", child), 0, NULL, NULL);
	if (archived->wanted)
		outbox_retire_run(psprintf("UPDATE outbox.archives SET removed_at = pg_catalog.clock_timestamp(), kept = NULL WHERE range = %lld",
								   (long long) archived->range),
						  0, NULL, NULL);
}

/* The locks that keep everybody out, not waited for. From then on homes in the child don't hold any more. */
static bool
lock_child(const OutboxRetention *retention, const OutboxCatalog *catalog, int child)
{
	OutboxDatabase *database = retention->database;

	/* Enqueue passes the child by from here on, see append.c: what stays is copied. */
	pg_atomic_write_u32(&database->retiring, child + 1);
	pg_memory_barrier();
	if (!ConditionalLockRelationOid(catalog->log[child], AccessExclusiveLock) ||
		!ConditionalLockRelationOid(catalog->ledger[child], AccessExclusiveLock))
		return false;
	pg_atomic_fetch_add_u32(&database->children[child].life, 1);
	pg_atomic_fetch_add_u32(&database->moves, 1);
	return true;
}

/* Copies, locks, looks again, empties. In a transaction of its own. */
static bool
retire_now(const OutboxRetention *retention, int child, const OutboxArchived *archived)
{
	const OutboxCatalog *catalog;
	Oid			type = INT8ARRAYOID;
	Datum		kept = archived->kept;
	int			count = archived->kept_count;
	int			settled;
	bool		done = false;

	if (!outbox_retire_begin(retention))
		return false;
	catalog = outbox_database_catalog(false);
	/* Whether anything was published since the archive's plan is seen by the number of ledger rows. */
	if (archived->wanted)
		settled = count_settled(kept);
	else
		kept = read_kept(retention, child, &count, &settled);
	if (count > 0)
		outbox_retire_run(psprintf("INSERT INTO outbox.log_%u SELECT * FROM outbox.log_%d WHERE position = ANY ($1)",
								   pg_atomic_read_u32(&retention->database->current_child), child),
						  1, &type, &kept);
	OUTBOX_TEST_POINT("retire-copied");
	if (count < MAX_CARRIED && lock_child(retention, catalog, child))
		done = is_still_right(retention, child, archived, kept, settled);
	if (done)
	{
		empty(retention, child, archived, count);
		OUTBOX_TEST_POINT("retire-emptied");
		outbox_retire_commit();
	}
	else
		give_up();
	pg_atomic_write_u32(&retention->database->retiring, 0);
	return done;
}

OutboxRetireResult
outbox_retire(const OutboxRetention *retention, int child, TimestampTz *newest)
{
	Oid			types[] = {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID};
	Datum		values[] = {Int32GetDatum(child), TimestampTzGetDatum(retention->before),
					  TimestampTzGetDatum(retention->dead_before), Int32GetDatum(MAX_CARRIED)};
	OutboxArchived archived;
	bool		can_go;

	if (!outbox_retire_begin(retention))
		return OUTBOX_RETIRE_LATER;
	outbox_retire_run("SELECT reason IS NULL, newest FROM outbox.range_survey($1, $2, $3, $4)", lengthof(types), types, values);
	can_go = DatumGetBool(outbox_retire_result(1, BoolGetDatum(false)));
	*newest = DatumGetTimestampTz(outbox_retire_result(2, TimestampTzGetDatum(DT_NOBEGIN)));
	outbox_retire_commit();
	if (!can_go)
		return *newest > retention->before ? OUTBOX_RETIRE_TOO_YOUNG : OUTBOX_RETIRE_LATER;

	/* Nobody writes into the child any more, and its events are terminal but for the few that are carried over. */
	if (!outbox_archive_range(retention, child, &archived) || !retire_now(retention, child, &archived))
		return OUTBOX_RETIRE_LATER;
	OUTBOX_TEST_POINT("retired");
	follow_table(retention);
	return OUTBOX_RETIRED;
}

/* ------------------------------------------------------------------- sweep */

void
outbox_retire_sweep(const OutboxRetention *retention)
{
	Oid			types[] = {INT8OID, INT4OID};
	Datum		values[] = {Int64GetDatum(PG_INT64_MIN), Int32GetDatum(SWEEP_BATCH)};

	/* In order of position, a batch in each transaction. A scalar sub-select looks each one up by index, whatever the statistics say. */
	while (outbox_retire_begin(retention))
	{
		int64		last;

		outbox_retire_run("WITH batch AS MATERIALIZED (SELECT d.position AS p FROM outbox.delivery d WHERE d.position > $1 ORDER BY d.position LIMIT $2),"
						  " gone AS (DELETE FROM outbox.delivery WHERE position = ANY (ARRAY("
						  "  SELECT p FROM batch WHERE (SELECT l.position FROM outbox.log l WHERE l.position = p) IS NULL)))"
						  " SELECT max(p) FROM batch HAVING pg_catalog.count(*) = $2",
						  lengthof(types), types, values);
		last = DatumGetInt64(outbox_retire_result(1, Int64GetDatum(0)));
		outbox_retire_commit();
		if (last == 0)
			return;
		values[0] = Int64GetDatum(last);
	}
}
