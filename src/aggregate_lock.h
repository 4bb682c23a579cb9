/*
 * aggregate_lock.h
 *	  Serialises transactions that enqueue for the same aggregate, until their
 *	  end, so that within an aggregate position order is commit order.
 */
#ifndef OUTBOX_AGGREGATE_LOCK_H
#define OUTBOX_AGGREGATE_LOCK_H

#include "access/transam.h"

extern Size outbox_aggregate_lock_shmem_size(void);
extern void outbox_aggregate_lock_shmem_init(int tranche);

extern void outbox_aggregate_lock_acquire(const uint64 *keys, int count,
										  const char *(*describe)(void *arg, int index), void *arg);
extern int64 outbox_aggregate_lock_note_position(uint64 key, int64 position);
extern void outbox_aggregate_lock_release_all(void);
extern void outbox_aggregate_lock_leave(void);
extern void outbox_aggregate_lock_restore(uint64 key, FullTransactionId holder);
extern void outbox_aggregate_lock_sweep(void);

#endif							/* OUTBOX_AGGREGATE_LOCK_H */
