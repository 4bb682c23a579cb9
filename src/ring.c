/*
 * ring.c
 *	  The ring of the log's children: which one takes new events, which may hold
 *	  a position, and who may look into them.
 *
 * The table outbox.ring has a row for each child in use; shared memory repeats
 * what enqueue and readers need of it. Both are changed by the one cleaner of
 * the database only (retire.c), and read here without a lock.
 *
 * - Enqueue inserts into a child while it holds RowExclusiveLock on it and has
 *   seen, with the lock, that the child is the current one. So a child is
 *   sealed, its last position known for good, once it isn't current any more
 *   and a lock that conflicts with those can be had.
 * - A reader locks the children that it will read before it takes its snapshot,
 *   and looks again whether one was emptied meanwhile. TRUNCATE shows itself
 *   to every snapshot, what has been carried over only to later ones.
 */
#include "ring.h"

#include "access/genam.h"
#include "access/table.h"
#include "executor/spi.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "log.h"

void
outbox_ring_load(OutboxDatabase *database)
{
	uint32		used = 0;
	int			current = 0;

	if (SPI_execute("SELECT child::integer, coalesce(last_position, 9223372036854775807) FROM outbox.ring ORDER BY generation",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.ring");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		bool		isnull;

		current = DatumGetInt32(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		used |= 1U << current;
		pg_atomic_write_u64(&database->children[current].last,
							DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2, &isnull)));
	}
	/* Before the first rotation the table is empty, and child 0 takes everything. */
	used |= 1U << current;
	pg_atomic_write_u64(&database->children[current].last, PG_INT64_MAX);
	pg_atomic_write_u32(&database->used_children, used);
	/* Who sees this one must see it used. */
	pg_write_barrier();
	pg_atomic_write_u32(&database->current_child, current);
}

/* ---------------------------------------------------------------- enqueue */

/* Without shared memory there is no cleaner that could change the table. */
static int
current_in_table(const OutboxCatalog *catalog)
{
	Relation	ring = table_open(catalog->ring, AccessShareLock);
	SysScanDesc scan = systable_beginscan(ring, InvalidOid, false, SnapshotSelf, 0, NULL);
	int64		highest = 0;
	int			child = 0;
	HeapTuple	tuple;
	bool		isnull;

	while ((tuple = systable_getnext(scan)) != NULL)
	{
		int64		generation = DatumGetInt64(heap_getattr(tuple, RING_GENERATION, RelationGetDescr(ring), &isnull));

		if (generation <= highest)
			continue;
		highest = generation;
		child = DatumGetInt16(heap_getattr(tuple, RING_CHILD, RelationGetDescr(ring), &isnull));
	}
	systable_endscan(scan);
	table_close(ring, AccessShareLock);
	return child;
}

int
outbox_ring_choose(OutboxDatabase *database, const OutboxCatalog *catalog)
{
	if (database == NULL)
		return current_in_table(catalog);
	for (;;)
	{
		int			child = pg_atomic_read_u32(&database->current_child);

		/* A lock that can't be had at once: perhaps the child has been current, and is being sealed or emptied. */
		if (!ConditionalLockRelationOid(catalog->log[child], RowExclusiveLock))
		{
			if (child != pg_atomic_read_u32(&database->current_child))
				continue;
			LockRelationOid(catalog->log[child], RowExclusiveLock);
		}
		if (child == pg_atomic_read_u32(&database->current_child))
			return child;
		UnlockRelationOid(catalog->log[child], RowExclusiveLock);
	}
}

/* ---------------------------------------------------------------- readers */

uint32
outbox_ring_used(OutboxDatabase *database)
{
	return database == NULL ? (1U << OUTBOX_CHILDREN) - 1 : pg_atomic_read_u32(&database->used_children);
}

uint32
outbox_ring_reaching(OutboxDatabase *database, uint32 children, int64 from)
{
	uint32		result = 0;

	for (int child = 0; child < OUTBOX_CHILDREN; child++)
	{
		if ((children & 1U << child) != 0 && (int64) pg_atomic_read_u64(&database->children[child].last) >= from)
			result |= 1U << child;
	}
	return result;
}

/* False: it is just being emptied, and that isn't waited for. */
static bool
lock_child(OutboxDatabase *database, const OutboxCatalog *catalog, int child, bool wait)
{
	if (ConditionalLockRelationOid(catalog->log[child], AccessShareLock))
		return true;
	if (!wait && outbox_ring_is_retiring(database, child))
		return false;
	LockRelationOid(catalog->log[child], AccessShareLock);
	return true;
}

uint32
outbox_ring_lock(OutboxDatabase *database, const OutboxCatalog *catalog, int64 from, int64 wait_from, uint32 *missing)
{
	for (;;)
	{
		uint32		moves = pg_atomic_read_u32(&database->moves);
		uint32		children;
		uint32		awaited;

		pg_read_barrier();
		children = outbox_ring_reaching(database, outbox_ring_used(database), from);
		awaited = outbox_ring_reaching(database, children, wait_from);
		*missing = 0;
		for (int child = 0; child < OUTBOX_CHILDREN; child++)
		{
			if ((children & 1U << child) != 0 && !lock_child(database, catalog, child, (awaited & 1U << child) != 0))
				*missing |= 1U << child;
		}
		pg_read_barrier();
		/* A child that is missing has counted as moved before; what it held is in the current one, for a later snapshot. */
		if (pg_atomic_read_u32(&database->moves) == moves)
			return children & ~*missing;
	}
}

int
outbox_ring_find(OutboxDatabase *database, const OutboxCatalog *catalog, int64 position)
{
	uint32		children = outbox_ring_used(database);
	int			home = -1;

	for (int child = 0; child < OUTBOX_CHILDREN && home < 0; child++)
	{
		Relation	log;
		Relation	index;
		SysScanDesc scan;
		ScanKeyData key;

		if ((children & 1U << child) == 0)
			continue;
		log = table_open(catalog->log[child], AccessShareLock);
		index = index_open(catalog->log_position[child], AccessShareLock);
		ScanKeyInit(&key, LOG_POSITION, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(position));
		scan = systable_beginscan_ordered(log, index, SnapshotSelf, 1, &key);
		if (systable_getnext_ordered(scan, ForwardScanDirection) != NULL)
			home = outbox_ring_home(database, child);
		systable_endscan_ordered(scan);
		index_close(index, AccessShareLock);
		table_close(log, AccessShareLock);
	}
	return home;
}

bool
outbox_ring_is_retiring(OutboxDatabase *database, int child)
{
	return database != NULL && (int) pg_atomic_read_u32(&database->retiring) == child + 1;
}
