/*
 * sched_private.h
 *	  What schedule.c shares with its parts: the record of an aggregate, the
 *	  table that finds it, the two heaps that order it, the refill queue.
 *
 * Only schedule.c and sched_*.c include this file.
 */
#ifndef OUTBOX_SCHED_PRIVATE_H
#define OUTBOX_SCHED_PRIVATE_H

#include "schedule.h"

/*
 * A failed assertion would abort the relay and with it restart the server, so
 * they are compiled in only where the build asks for it: in the unit tests,
 * and with a PostgreSQL that has assertions itself.
 */
#ifdef OUTBOX_ASSERTIONS
#include <assert.h>
#define SchedAssert(condition) assert(condition)
#else
#define SchedAssert(condition) ((void) 0)
#endif

typedef enum AggregateState
{
	AGGREGATE_EMPTY,			/* holds no event, has deferred ones: in the refill queue */
	AGGREGATE_READY,			/* head in memory, in the ready heap */
	AGGREGATE_IN_FLIGHT,		/* head handed out, or a run of events, in no heap */
	AGGREGATE_WAITING			/* holds no event, in the wait heap */
} AggregateState;

/*
 * One aggregate with known events, 88 bytes: with malloc's header exactly 96,
 * and there may be millions. All positions held are below deferred_from,
 * except those of events in flight: a redriven event may come in before them.
 */
typedef struct Aggregate
{
	uint64_t	key;
	struct Aggregate *next_in_bucket;
	struct Aggregate *next_in_refill;
	SchedEvent *head;			/* events held, by position; the first ones may be in flight */
	SchedEvent *tail;
	int64_t		deferred;		/* how many are to be read again */
	int64_t		deferred_from;	/* the lowest of them; INT64_MAX: none */
	int64_t		deferred_created;	/* created time of the oldest of them; INT64_MAX: none */
	int64_t		heap_key;		/* ready, in flight: place among the ready; waiting: until when */
	int32_t		failures;		/* of the event at deferred_from, while it isn't held */
	int32_t		held;
	union
	{
		uint32_t	heap_index;	/* ready, waiting: where in its heap, kept up by sched_heap.c */
		uint32_t	sent;		/* in flight: so many of the events held, from the first on */
	};
	uint8_t		state;			/* AggregateState */
	bool		in_refill;		/* linked in the refill queue */
	bool		retry_wait;		/* outbox_schedule_retry_now() ends the wait */
} Aggregate;

/* Chained hash table. The number of buckets is 2^bits. */
typedef struct AggregateTable
{
	Aggregate **buckets;
	int			bits;
	size_t		count;
} AggregateTable;

extern bool outbox_sched_table_init(AggregateTable *table);
extern void outbox_sched_table_free(AggregateTable *table);
extern Aggregate *outbox_sched_table_find(const AggregateTable *table, uint64_t key);
extern void outbox_sched_table_insert(AggregateTable *table, Aggregate *aggregate);
extern void outbox_sched_table_remove(AggregateTable *table, Aggregate *aggregate);

/* The key and position are copied here so that comparing doesn't touch the aggregates. */
typedef struct HeapEntry
{
	int64_t		key;
	int64_t		position;		/* breaks ties */
	Aggregate  *aggregate;
} HeapEntry;

/* Smallest (key, position) first; entry i lies at root[i * step]. */
typedef struct Heap
{
	HeapEntry  *root;
	ptrdiff_t	step;
	size_t		count;
} Heap;

/*
 * The ready and the wait heap in one array, growing towards each other: an
 * aggregate is in one of them at most, so room for as many entries as there
 * are aggregates means that no push ever needs memory.
 */
typedef struct HeapPair
{
	HeapEntry  *entries;
	size_t		capacity;
	Heap		ready;
	Heap		waiting;
} HeapPair;

static inline HeapEntry *
outbox_sched_heap_entry(const Heap *heap, size_t i)
{
	return heap->root + (ptrdiff_t) i * heap->step;
}

extern bool outbox_sched_heap_reserve(HeapPair *pair, size_t aggregates);
extern void outbox_sched_heap_free(HeapPair *pair);
extern void outbox_sched_heap_push(Heap *heap, Aggregate *aggregate, int64_t position);
extern void outbox_sched_heap_remove(Heap *heap, const Aggregate *aggregate);
extern void outbox_sched_heap_rebuild(Heap *heap);

/* What a record costs beside its own size: malloc's header, heap entry, bucket. */
#define AGGREGATE_BYTES (sizeof(Aggregate) + 8 + sizeof(HeapEntry) + sizeof(Aggregate *))

struct Schedule
{
	ScheduleLimits limits;
	AggregateTable table;
	HeapPair	heaps;
	Aggregate  *refill_first;	/* FIFO of aggregates to be read again */
	Aggregate  *refill_last;
	int64_t		held;
	int64_t		in_flight;
	int64_t		deferred;
	size_t		event_bytes;

	/* The refill between next_refill and refill_end; NULL: none. */
	Aggregate  *refilling;
	int64_t		refill_found;	/* deferred events that were added, or skipped */
	bool		refill_moved;	/* at least one was added or skipped */
	int64_t		refill_position; /* of the last one */
	int64_t		refill_created;
	bool		refill_cut;		/* one was given that the queue had no place for */
};

static inline size_t
outbox_sched_all_bytes(const Schedule *schedule)
{
	return schedule->event_bytes + schedule->table.count * AGGREGATE_BYTES;
}

/* At this length a queue is refilled: early, so that its head is never waited for. */
static inline int32_t
outbox_sched_low_water(const Schedule *schedule)
{
	return schedule->limits.max_queue / 4;
}

/* Once one event is deferred all later ones must be, or they would overtake it. */
static inline bool
outbox_sched_must_defer(const Schedule *schedule, const Aggregate *aggregate)
{
	return aggregate->deferred > 0 || aggregate->held >= schedule->limits.max_queue;
}

/* sched_aggregate.c */
extern Aggregate *outbox_sched_aggregate_create(Schedule *schedule, uint64_t key);
extern void outbox_sched_aggregate_free(Schedule *schedule, Aggregate *aggregate);
extern void outbox_sched_aggregate_append(Schedule *schedule, Aggregate *aggregate, SchedEvent *event);
extern void outbox_sched_aggregate_release(Schedule *schedule, Aggregate *aggregate, SchedEvent *event);
extern void outbox_sched_aggregate_forget(Schedule *schedule, Aggregate *aggregate);
extern void outbox_sched_aggregate_defer(Schedule *schedule, Aggregate *aggregate, int64_t position,
										 int64_t created);
extern void outbox_sched_aggregate_start_head(Schedule *schedule, Aggregate *aggregate, int64_t now);
extern void outbox_sched_aggregate_start_wait(Schedule *schedule, Aggregate *aggregate, int64_t until,
											  int32_t failures, bool retry);
extern void outbox_sched_aggregate_end_wait(Schedule *schedule, Aggregate *aggregate);

/* sched_refill.c */
extern void outbox_sched_refill_check(Schedule *schedule, Aggregate *aggregate);

#endif							/* OUTBOX_SCHED_PRIVATE_H */
