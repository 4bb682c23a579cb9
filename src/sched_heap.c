/*
 * sched_heap.c
 *	  The schedule's two binary heaps: aggregates that are ready, by urgency,
 *	  and aggregates that wait, by the end of their wait.
 *
 * Knows nothing of events; of an aggregate only its key and the index at which
 * it lies here, which is what makes taking one out of the middle O(log n).
 */
#include "sched_private.h"

#include <stdlib.h>
#include <string.h>

#define MIN_CAPACITY 256

static inline bool
entry_before(const HeapEntry *a, const HeapEntry *b)
{
	return a->key != b->key ? a->key < b->key : a->position < b->position;
}

static inline void
place(Heap *heap, size_t i, HeapEntry entry)
{
	*outbox_sched_heap_entry(heap, i) = entry;
	entry.aggregate->heap_index = (uint32_t) i;
}

/* Moves the hole at i towards the root until entry fits into it. */
static void
sift_up(Heap *heap, size_t i, HeapEntry entry)
{
	while (i > 0)
	{
		size_t		parent = (i - 1) / 2;
		HeapEntry  *above = outbox_sched_heap_entry(heap, parent);

		if (!entry_before(&entry, above))
			break;
		place(heap, i, *above);
		i = parent;
	}
	place(heap, i, entry);
}

/* Moves the hole at i away from the root until entry fits into it. */
static void
sift_down(Heap *heap, size_t i, HeapEntry entry)
{
	for (;;)
	{
		size_t		child = 2 * i + 1;
		HeapEntry  *below;

		if (child >= heap->count)
			break;
		below = outbox_sched_heap_entry(heap, child);
		if (child + 1 < heap->count && entry_before(below + heap->step, below))
		{
			child++;
			below += heap->step;
		}
		if (!entry_before(below, &entry))
			break;
		place(heap, i, *below);
		i = child;
	}
	place(heap, i, entry);
}

/* Lays both heaps out anew in an array of the given capacity. */
static bool
resize(HeapPair *pair, size_t capacity)
{
	HeapEntry  *entries = malloc(capacity * sizeof(HeapEntry));
	size_t		n_waiting = pair->waiting.count;

	if (entries == NULL)
		return false;
	if (pair->entries != NULL)
	{
		memcpy(entries, pair->entries, pair->ready.count * sizeof(HeapEntry));
		memcpy(entries + capacity - n_waiting,
			   pair->entries + pair->capacity - n_waiting,
			   n_waiting * sizeof(HeapEntry));
		free(pair->entries);
	}
	pair->entries = entries;
	pair->capacity = capacity;
	pair->ready.root = entries;
	pair->ready.step = 1;
	pair->waiting.root = entries + capacity - 1;
	pair->waiting.step = -1;
	return true;
}

/*
 * Makes room for that many aggregates in either heap; false: no memory,
 * nothing changed. Also gives back what a past backlog left unused, with a
 * wide gap between growing and shrinking, and never fails at that.
 */
bool
outbox_sched_heap_reserve(HeapPair *pair, size_t aggregates)
{
	if (aggregates > pair->capacity || pair->entries == NULL)
	{
		size_t		capacity = pair->capacity < MIN_CAPACITY ? MIN_CAPACITY : pair->capacity * 2;

		return resize(pair, capacity < aggregates ? aggregates : capacity);
	}
	if (aggregates < pair->capacity / 8 && pair->capacity > MIN_CAPACITY)
		(void) resize(pair, pair->capacity / 2);
	return true;
}

void
outbox_sched_heap_free(HeapPair *pair)
{
	free(pair->entries);
}

/* Adds an aggregate under its heap_key. The room was reserved before. */
void
outbox_sched_heap_push(Heap *heap, Aggregate *aggregate, int64_t position)
{
	HeapEntry	entry = {aggregate->heap_key, position, aggregate};

	sift_up(heap, heap->count++, entry);
}

void
outbox_sched_heap_remove(Heap *heap, const Aggregate *aggregate)
{
	size_t		hole = aggregate->heap_index;
	HeapEntry	last;

	SchedAssert(hole < heap->count);
	SchedAssert(outbox_sched_heap_entry(heap, hole)->aggregate == aggregate);

	last = *outbox_sched_heap_entry(heap, --heap->count);
	if (hole == heap->count)
		return;

	/* The last entry comes from another branch: it may belong above the hole. */
	if (hole > 0 && entry_before(&last, outbox_sched_heap_entry(heap, (hole - 1) / 2)))
		sift_up(heap, hole, last);
	else
		sift_down(heap, hole, last);
}

/* Restores the order after entries were moved about, in linear time. */
void
outbox_sched_heap_rebuild(Heap *heap)
{
	for (size_t i = 0; i < heap->count; i++)
		outbox_sched_heap_entry(heap, i)->aggregate->heap_index = (uint32_t) i;
	for (size_t i = heap->count / 2; i-- > 0;)
		sift_down(heap, i, *outbox_sched_heap_entry(heap, i));
}
