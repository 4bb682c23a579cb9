/*
 * feed.c
 *	  The way of positions from transactions to the relay.
 *
 * A transaction that enqueues announces a lower bound of its positions before
 * it draws the first one, remembers them as a few runs, and at commit pushes
 * the runs into the ring of its database and wakes the relay. A prepared
 * transaction leaves its runs in a shared array instead, because its end
 * calls nobody back.
 *
 * Order of the steps in the commit callback: push, give back the aggregate
 * keys, clear the bound. A successor on the same aggregate therefore draws its
 * position after our push, and the watermark sees us in one place at least.
 *
 * The callbacks allocate nothing, attach nothing and raise nothing: an error
 * in a commit callback would take the whole server down. The ring itself is in
 * feed_ring.c.
 */
#include "feed.h"

#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/procarray.h"

#include "aggregate_lock.h"

/* Runs closer than this are merged: reading a few strangers' rows is cheaper than a run. */
#define MERGE_GAP 32

/* The current transaction's. */
static OutboxDatabase *my_database = NULL;	/* set while a bound is announced */
static OutboxRange runs[OUTBOX_MAX_RUNS];
static int	run_count = 0;
static OutboxPrepared *my_prepared = NULL;	/* between PRE_PREPARE and PREPARE */
static FullTransactionId my_prepared_xid;
static bool created_extension = false;
static bool dropped_extension = false;

/* ---------------------------------------------------------------- enqueue */

/*
 * Announces that this transaction may hold positions above all assigned so
 * far. Before the transaction's first position, after its aggregate keys.
 */
void
outbox_feed_announce(OutboxDatabase *database)
{
	OutboxBackend *self = &outbox_shared->backends[OUTBOX_MY_BACKEND_INDEX];

	if (my_database != NULL)
		return;

	self->dboid = MyDatabaseId;
	pg_write_barrier();
	pg_atomic_write_u64(&self->bound, pg_atomic_read_u64(&database->max_assigned) + 1);
	pg_memory_barrier();
	run_count = 0;
	my_database = database;
}

/* Whether the current transaction has. */
bool
outbox_feed_has_enqueued(void)
{
	return my_database != NULL;
}

static void
merge_closest_runs(void)
{
	int			best = 1;

	for (int i = 2; i < run_count; i++)
	{
		if (runs[i].lo - runs[i - 1].hi < runs[best].lo - runs[best - 1].hi)
			best = i;
	}
	runs[best - 1].hi = runs[best].hi;
	memmove(&runs[best], &runs[best + 1], (run_count - best - 1) * sizeof(OutboxRange));
	run_count--;
}

static void
remember(int64 position)
{
	if (run_count > 0 && position - runs[run_count - 1].hi <= MERGE_GAP)
	{
		runs[run_count - 1].hi = position;
		return;
	}
	if (run_count == OUTBOX_MAX_RUNS)
		merge_closest_runs();
	runs[run_count].lo = runs[run_count].hi = position;
	run_count++;
}

/* Lifts max_assigned to position, if it isn't higher already. */
void
outbox_feed_raise_max_assigned(OutboxDatabase *database, int64 position)
{
	uint64		old = pg_atomic_read_u64(&database->max_assigned);

	while (old < (uint64) position &&
		   !pg_atomic_compare_exchange_u64(&database->max_assigned, &old, (uint64) position))
		;
}

/*
 * Draws the next position. database is NULL when the library isn't preloaded;
 * else the transaction has announced its bound.
 */
int64
outbox_feed_next_position(OutboxDatabase *database, Oid sequence)
{
	int64		position = nextval_internal(sequence, false);

	if (database != NULL)
	{
		remember(position);
		outbox_feed_raise_max_assigned(database, position);
	}
	OUTBOX_TEST_POINT("position-drawn");
	return position;
}

/*
 * The current transaction creates some extension, or drops ours: when it
 * commits, the launcher is to look at this database again, and in the latter
 * case the relay is to go.
 */
void
outbox_feed_extension_changes(bool dropped)
{
	created_extension = true;
	if (dropped)
		dropped_extension = true;
}

/* -------------------------------------------------------------- callbacks */

static void
clear_bound(void)
{
	pg_atomic_write_u64(&outbox_shared->backends[OUTBOX_MY_BACKEND_INDEX].bound, 0);
	my_database = NULL;
	run_count = 0;
}

static void
tell_extension_changes(void)
{
	OutboxDatabase *database = outbox_shmem_find(MyDatabaseId);

	if (dropped_extension && database != NULL)
	{
		pg_atomic_fetch_add_u32(&database->leave_calls, 1);
		outbox_shmem_wake_relays(database);
		outbox_shmem_wake_consumers(database);
	}
	pg_atomic_fetch_add_u32(&outbox_shared->database_hint, 1);
	outbox_shmem_wake_launcher();
}

static void
at_commit(void)
{
	OutboxDatabase *database = my_database;

	if (created_extension)
		tell_extension_changes();
	if (database == NULL)
		return;

	OUTBOX_TEST_POINT("visible");
	for (int i = 0; i < run_count; i++)
		outbox_feed_push(database, &runs[i]);
	OUTBOX_TEST_POINT("pushed");
	outbox_aggregate_lock_release_all();
	clear_bound();
	outbox_shmem_wake_relays(database);
}

static void
at_abort(void)
{
	if (my_prepared != NULL)
	{
		/* A relay may have found it ended, and another transaction taken it. */
		LWLockAcquire(&outbox_shared->prepared_lock, LW_EXCLUSIVE);
		if (FullTransactionIdEquals(my_prepared->xid, my_prepared_xid))
			my_prepared->xid = InvalidFullTransactionId;
		LWLockRelease(&outbox_shared->prepared_lock);
		my_prepared = NULL;
	}
	outbox_aggregate_lock_release_all();
	if (my_database != NULL)
		clear_bound();
}

static bool
is_over(const OutboxPrepared *entry)
{
	return !TransactionIdIsInProgress(XidFromFullTransactionId(entry->xid));
}

/*
 * A free entry of the array of prepared transactions. There are as many as
 * prepared transactions can exist, but some may belong to ended ones that no
 * relay has collected: their positions go to their database's ring. The
 * caller holds prepared_lock.
 */
static OutboxPrepared *
free_prepared_entry(void)
{
	for (int i = 0; i < outbox_shared->prepared_count; i++)
	{
		if (!FullTransactionIdIsValid(outbox_shared->prepared[i].xid))
			return &outbox_shared->prepared[i];
	}
	for (int i = 0; i < outbox_shared->prepared_count; i++)
	{
		OutboxPrepared *entry = &outbox_shared->prepared[i];
		OutboxDatabase *database;

		if (!is_over(entry))
			continue;
		database = outbox_shmem_find(entry->dboid);
		for (int r = 0; database != NULL && r < entry->run_count; r++)
			outbox_feed_push(database, &entry->runs[r]);
		entry->xid = InvalidFullTransactionId;
		return entry;
	}
	return NULL;
}

/* May still raise an error: the transaction isn't prepared yet. */
static void
before_prepare(void)
{
	OutboxPrepared *entry;

	if (my_database == NULL)
		return;

	LWLockAcquire(&outbox_shared->prepared_lock, LW_EXCLUSIVE);
	entry = free_prepared_entry();
	if (entry != NULL)
	{
		entry->xid = GetTopFullTransactionIdIfAny();
		entry->dboid = MyDatabaseId;
		entry->run_count = run_count;
		memcpy(entry->runs, runs, run_count * sizeof(OutboxRange));
	}
	LWLockRelease(&outbox_shared->prepared_lock);

	if (entry == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("too many prepared transactions with outbox events"),
				 errhint("Raise \"max_prepared_transactions\".")));
	my_prepared = entry;
	my_prepared_xid = GetTopFullTransactionIdIfAny();
}

static void
at_prepare(void)
{
	OUTBOX_TEST_POINT("prepare");
	my_prepared = NULL;
	outbox_aggregate_lock_leave();
	if (my_database != NULL)
		clear_bound();
}

/* Registered once per backend, in _PG_init of a preloaded library. */
void
outbox_feed_xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			at_commit();
			created_extension = dropped_extension = false;
			break;
		case XACT_EVENT_ABORT:
			at_abort();
			created_extension = dropped_extension = false;
			break;
		case XACT_EVENT_PRE_PREPARE:
			before_prepare();
			break;
		case XACT_EVENT_PREPARE:
			at_prepare();
			created_extension = dropped_extension = false;
			break;
		default:
			break;
	}
}

/* ------------------------------------------------------------------ relay */

/* The lowest bound that open transactions have announced; PG_INT64_MAX: none. */
int64
outbox_feed_lowest_bound(OutboxDatabase *database)
{
	int64		lowest = PG_INT64_MAX;

	pg_memory_barrier();
	for (int i = 0; i < outbox_shared->backend_count; i++)
	{
		OutboxBackend *backend = &outbox_shared->backends[i];
		uint64		bound = pg_atomic_read_u64(&backend->bound);

		pg_read_barrier();
		if (bound != 0 && backend->dboid == database->dboid)
			lowest = Min(lowest, (int64) bound);
	}
	return lowest;
}

/*
 * Pushes the runs of prepared transactions that have ended, committed or not:
 * of aborted ones nothing is visible. Before a relay drains the ring, so that
 * it gets what it, or another relay, has collected. True if there were any.
 */
bool
outbox_feed_collect_prepared(OutboxDatabase *database)
{
	bool		any = false;

	if (outbox_shared->prepared_count == 0)
		return false;
	LWLockAcquire(&outbox_shared->prepared_lock, LW_EXCLUSIVE);
	for (int i = 0; i < outbox_shared->prepared_count; i++)
	{
		OutboxPrepared *entry = &outbox_shared->prepared[i];

		if (!FullTransactionIdIsValid(entry->xid) || entry->dboid != database->dboid || !is_over(entry))
			continue;
		for (int r = 0; r < entry->run_count; r++)
			outbox_feed_push(database, &entry->runs[r]);
		entry->xid = InvalidFullTransactionId;
		any = true;
	}
	LWLockRelease(&outbox_shared->prepared_lock);
	return any;
}

/* The lowest position of a prepared transaction; PG_INT64_MAX: none. */
int64
outbox_feed_lowest_prepared(OutboxDatabase *database, bool *any)
{
	int64		lowest = PG_INT64_MAX;

	*any = false;
	if (outbox_shared->prepared_count == 0)
		return lowest;
	LWLockAcquire(&outbox_shared->prepared_lock, LW_SHARED);
	for (int i = 0; i < outbox_shared->prepared_count; i++)
	{
		OutboxPrepared *entry = &outbox_shared->prepared[i];

		if (!FullTransactionIdIsValid(entry->xid) || entry->dboid != database->dboid)
			continue;
		*any = true;
		for (int r = 0; r < entry->run_count; r++)
			lowest = Min(lowest, entry->runs[r].lo);
	}
	LWLockRelease(&outbox_shared->prepared_lock);
	return lowest;
}

/*
 * After a restart: a prepared transaction holds this position. Positions of
 * one transaction come in increasing order.
 */
void
outbox_feed_restore_prepared(OutboxDatabase *database, FullTransactionId xid, int64 position)
{
	OutboxPrepared *entry = NULL;
	OutboxPrepared *unused = NULL;

	LWLockAcquire(&outbox_shared->prepared_lock, LW_EXCLUSIVE);
	for (int i = 0; i < outbox_shared->prepared_count && entry == NULL; i++)
	{
		OutboxPrepared *candidate = &outbox_shared->prepared[i];

		if (!FullTransactionIdIsValid(candidate->xid))
			unused = candidate;
		else if (FullTransactionIdEquals(candidate->xid, xid))
			entry = candidate;
	}
	if (entry == NULL && unused != NULL)
	{
		entry = unused;
		entry->xid = xid;
		entry->dboid = database->dboid;
		entry->run_count = 1;
		entry->runs[0].lo = position;
	}
	/* The last run takes what doesn't fit: a wider range only reads more. */
	if (entry != NULL)
	{
		OutboxRange *last = &entry->runs[entry->run_count - 1];

		if (position - last->hi > MERGE_GAP && last->lo != position && entry->run_count < OUTBOX_MAX_RUNS)
		{
			last = &entry->runs[entry->run_count++];
			last->lo = position;
		}
		last->hi = position;
	}
	LWLockRelease(&outbox_shared->prepared_lock);
	if (entry == NULL)
		elog(ERROR, "no entry left for a prepared transaction");
}
