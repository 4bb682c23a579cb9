/*
 * sched_aggregate.c
 *	  One aggregate's record: its queue of events, what it deferred, and its
 *	  way between ready, waiting and empty.
 *
 * Only creating a record takes memory, so every later transition succeeds.
 * The states and their order are drawn in schedule.c.
 */
#include "sched_private.h"

#include <stdlib.h>

#define USECS_PER_PRIORITY INT64_C(1000000)

/* ---------- records and their events ---------- */

/*
 * The only place that allocates after creation: with the record comes its room
 * in the heaps, so that no later transition can fail.
 */
Aggregate *
outbox_sched_aggregate_create(Schedule *schedule, uint64_t key)
{
	Aggregate  *aggregate;

	if (!outbox_sched_heap_reserve(&schedule->heaps, schedule->table.count + 1))
		return NULL;
	aggregate = calloc(1, sizeof(Aggregate));
	if (aggregate == NULL)
		return NULL;
	aggregate->key = key;
	aggregate->state = AGGREGATE_EMPTY;
	aggregate->deferred_from = INT64_MAX;
	aggregate->deferred_created = INT64_MAX;
	outbox_sched_table_insert(&schedule->table, aggregate);
	return aggregate;
}

/* Nothing of the aggregate is known any more. */
void
outbox_sched_aggregate_free(Schedule *schedule, Aggregate *aggregate)
{
	SchedAssert(aggregate->held == 0 && aggregate->deferred == 0 && !aggregate->in_refill);
	outbox_sched_table_remove(&schedule->table, aggregate);
	free(aggregate);
	(void) outbox_sched_heap_reserve(&schedule->heaps, schedule->table.count);
}

void
outbox_sched_aggregate_append(Schedule *schedule, Aggregate *aggregate, SchedEvent *event)
{
	event->next = NULL;
	if (aggregate->tail != NULL)
		aggregate->tail->next = event;
	else
		aggregate->head = event;
	aggregate->tail = event;
	aggregate->held++;
	schedule->held++;
	schedule->event_bytes += event->bytes;
}

/* Frees an event that was unlinked from its queue. */
void
outbox_sched_aggregate_release(Schedule *schedule, Aggregate *aggregate, SchedEvent *event)
{
	aggregate->held--;
	schedule->held--;
	schedule->event_bytes -= event->bytes;
	free(event);
}

/* One more event is known by position only. */
static void
count_deferred(Schedule *schedule, Aggregate *aggregate, int64_t position, int64_t created)
{
	aggregate->deferred++;
	schedule->deferred++;
	if (position < aggregate->deferred_from)
	{
		aggregate->deferred_from = position;
		aggregate->failures = 0; /* they were another event's */
	}
	if (created < aggregate->deferred_created)
		aggregate->deferred_created = created;
}

/* Frees the events of a queue, except those in flight, and counts them as deferred. */
void
outbox_sched_aggregate_forget(Schedule *schedule, Aggregate *aggregate)
{
	SchedEvent *event = aggregate->head;

	if (aggregate->state == AGGREGATE_IN_FLIGHT)
	{
		for (uint32_t i = 1; i < aggregate->sent; i++)
			event = event->next;
		aggregate->tail = event;
		event = event->next;
		aggregate->tail->next = NULL;
	}
	else
		aggregate->head = aggregate->tail = NULL;

	while (event != NULL)
	{
		SchedEvent *next = event->next;

		count_deferred(schedule, aggregate, event->position, event->created);
		outbox_sched_aggregate_release(schedule, aggregate, event);
		event = next;
	}
}

/* ---------- transitions ---------- */

/* An aggregate without events, and in no heap, waits for the time to read them again. */
void
outbox_sched_aggregate_start_wait(Schedule *schedule, Aggregate *aggregate, int64_t until,
								  int32_t failures, bool retry)
{
	SchedAssert(aggregate->held == 0 && aggregate->deferred > 0);
	aggregate->state = AGGREGATE_WAITING;
	aggregate->heap_key = until;
	aggregate->failures = failures;
	aggregate->retry_wait = retry;
	outbox_sched_heap_push(&schedule->heaps.waiting, aggregate, aggregate->deferred_from);
}

void
outbox_sched_aggregate_end_wait(Schedule *schedule, Aggregate *aggregate)
{
	outbox_sched_heap_remove(&schedule->heaps.waiting, aggregate);
	aggregate->state = AGGREGATE_EMPTY;
	outbox_sched_refill_check(schedule, aggregate);
}

/* The first event of a queue has no predecessor any more: it gets ready, or has to wait. */
void
outbox_sched_aggregate_start_head(Schedule *schedule, Aggregate *aggregate, int64_t now)
{
	const SchedEvent *head = aggregate->head;

	if (head->not_before > now)
	{
		int64_t		until = head->not_before;
		int32_t		failures = head->failures;

		aggregate->state = AGGREGATE_EMPTY;
		outbox_sched_aggregate_forget(schedule, aggregate);
		outbox_sched_aggregate_start_wait(schedule, aggregate, until, failures, false);
		return;
	}
	aggregate->state = AGGREGATE_READY;
	aggregate->heap_key = now - head->priority * USECS_PER_PRIORITY;
	outbox_sched_heap_push(&schedule->heaps.ready, aggregate, head->position);
}

/*
 * Defers one more event. Normally it is the aggregate's last. A redriven one
 * comes before others: those are forgotten, and a wait of theirs ends, so that
 * all can be read again in order.
 */
void
outbox_sched_aggregate_defer(Schedule *schedule, Aggregate *aggregate, int64_t position, int64_t created)
{
	bool		first = position < aggregate->deferred_from;

	if (aggregate->held > 0 && position < aggregate->tail->position)
	{
		if (aggregate->state == AGGREGATE_READY)
		{
			outbox_sched_heap_remove(&schedule->heaps.ready, aggregate);
			aggregate->state = AGGREGATE_EMPTY;
		}
		outbox_sched_aggregate_forget(schedule, aggregate);
	}
	count_deferred(schedule, aggregate, position, created);
	if (aggregate->state == AGGREGATE_WAITING && first)
		outbox_sched_aggregate_end_wait(schedule, aggregate);
	else
		outbox_sched_refill_check(schedule, aggregate);
}
