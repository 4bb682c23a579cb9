/*
 * ring.h
 *	  The ring of the log's children: which one takes new events, which may hold
 *	  a position, and who may look into them.
 */
#ifndef OUTBOX_RING_H
#define OUTBOX_RING_H

#include "database.h"

/*
 * Where a row of the log lives: a child, and how often it has been emptied
 * since the server started. Whoever keeps it learns so that the row has moved.
 */
#define OUTBOX_HOME_BITS 3

static inline int
outbox_home_child(int home)
{
	return home & (OUTBOX_CHILDREN - 1);
}

/* The home of rows of a child; holds while the caller has a lock on the child or its ledger twin. */
static inline int
outbox_ring_home(OutboxDatabase *database, int child)
{
	return (int) (pg_atomic_read_u32(&database->children[child].life) << OUTBOX_HOME_BITS) | child;
}

/* Reads outbox.ring into shared memory. Inside SPI_connect; one process at a time. */
extern void outbox_ring_load(OutboxDatabase *database);

/* The child to insert into, locked for that until the end of the transaction. database NULL: not preloaded. */
extern int outbox_ring_choose(OutboxDatabase *database, const OutboxCatalog *catalog);

/*
 * Locks the children that may hold positions from `from` on against being
 * emptied, until the end of the transaction; to be called before the snapshot
 * that reads them is taken. One that is just being emptied is waited for if it
 * may hold positions from wait_from on; else it is one of *missing. Returns
 * those that are locked; children are bits.
 */
extern uint32 outbox_ring_lock(OutboxDatabase *database, const OutboxCatalog *catalog, int64 from, int64 wait_from,
							   uint32 *missing);

/* Of these children the ones that may hold positions from `from` on. */
extern uint32 outbox_ring_reaching(OutboxDatabase *database, uint32 children, int64 from);

/* The home of a position's row, by index; -1: there is none any more. */
extern int outbox_ring_find(OutboxDatabase *database, const OutboxCatalog *catalog, int64 position);

/* Children that hold, or may be about to hold, an event. database NULL: all. */
extern uint32 outbox_ring_used(OutboxDatabase *database);

/* Whether a child can't be looked into because it is just being emptied: what stays of it is in another one already. */
extern bool outbox_ring_is_retiring(OutboxDatabase *database, int child);

#endif							/* OUTBOX_RING_H */
