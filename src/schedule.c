/*
 * schedule.c
 *	  Which event may be sent next.
 *
 * Owns every event from outbox_schedule_add() until it is done, and a record
 * of each aggregate that has any known event, in memory or deferred. Must not
 * know where events come from, how they are sent, or what time it is.
 * Everything here runs in one thread and takes no lock.
 *
 * An aggregate's record moves between these states and is freed when nothing
 * of the aggregate is known any more:
 *
 *			  add					 next
 *	  (none) -----> READY <---------------------> IN_FLIGHT
 *					^  |	 return, done with	   |	 |
 *		refill_end	|  |	 a successor held	   |	 | done, only deferred
 *					|  | not_before				   |	 | ones left
 *					|  v						   |	 v
 *				   EMPTY <----- WAITING <----------+   EMPTY
 *					   wait over		 retry, hold
 *
 * EMPTY, and READY or IN_FLIGHT with a short queue and more deferred, stand in
 * the refill queue. The parts: sched_aggregate.c moves a record between the
 * states, sched_refill.c reads again what was deferred, sched_table.c finds
 * records, sched_heap.c orders them.
 */
#include "sched_private.h"

#include <stdlib.h>

Schedule *
outbox_schedule_create(const ScheduleLimits *limits)
{
	Schedule   *schedule = calloc(1, sizeof(Schedule));

	if (schedule == NULL)
		return NULL;
	if (!outbox_sched_table_init(&schedule->table))
	{
		free(schedule);
		return NULL;
	}
	outbox_schedule_set_limits(schedule, limits);
	return schedule;
}

/*
 * A shorter max_queue forgets nothing: what is held too much is sent off
 * first. A longer one raises the low-water mark, below which any queue that has
 * deferred events must stand in the refill queue.
 */
void
outbox_schedule_set_limits(Schedule *schedule, const ScheduleLimits *limits)
{
	bool		longer = limits->max_queue > schedule->limits.max_queue;

	schedule->limits = *limits;
	if (schedule->limits.max_queue < 1)
		schedule->limits.max_queue = 1;
	if (!longer)
		return;
	for (size_t i = 0; i < (size_t) 1 << schedule->table.bits; i++)
	{
		Aggregate  *aggregate = schedule->table.buckets[i];

		for (; aggregate != NULL; aggregate = aggregate->next_in_bucket)
			outbox_sched_refill_check(schedule, aggregate);
	}
}

void
outbox_schedule_destroy(Schedule *schedule)
{
	if (schedule == NULL)
		return;
	for (size_t i = 0; i < (size_t) 1 << schedule->table.bits; i++)
	{
		Aggregate  *aggregate = schedule->table.buckets[i];

		while (aggregate != NULL)
		{
			Aggregate  *next = aggregate->next_in_bucket;

			while (aggregate->head != NULL)
			{
				SchedEvent *event = aggregate->head;

				aggregate->head = event->next;
				free(event);
			}
			free(aggregate);
			aggregate = next;
		}
	}
	outbox_sched_table_free(&schedule->table);
	outbox_sched_heap_free(&schedule->heaps);
	free(schedule);
}

bool
outbox_schedule_has_room(const Schedule *schedule)
{
	return outbox_sched_all_bytes(schedule) < schedule->limits.max_bytes;
}

/* ---------- events come in ---------- */

bool
outbox_schedule_would_defer(const Schedule *schedule, uint64_t aggregate_key)
{
	const Aggregate *aggregate = outbox_sched_table_find(&schedule->table, aggregate_key);

	return aggregate != NULL && outbox_sched_must_defer(schedule, aggregate);
}

bool
outbox_schedule_defer(Schedule *schedule, uint64_t aggregate_key, int64_t position, int64_t created)
{
	Aggregate  *aggregate = outbox_sched_table_find(&schedule->table, aggregate_key);

	if (aggregate == NULL)
		aggregate = outbox_sched_aggregate_create(schedule, aggregate_key);
	if (aggregate == NULL)
		return false;
	outbox_sched_aggregate_defer(schedule, aggregate, position, created);
	return true;
}

ScheduleAdd
outbox_schedule_add(Schedule *schedule, SchedEvent *event, int64_t now)
{
	Aggregate  *aggregate = outbox_sched_table_find(&schedule->table, event->aggregate);

	if (aggregate == NULL)
	{
		aggregate = outbox_sched_aggregate_create(schedule, event->aggregate);
		if (aggregate == NULL)
			return SCHEDULE_NO_MEMORY;
		outbox_sched_aggregate_append(schedule, aggregate, event);
		outbox_sched_aggregate_start_head(schedule, aggregate, now);
		return aggregate->state == AGGREGATE_READY ? SCHEDULE_QUEUED : SCHEDULE_DEFERRED;
	}
	if (outbox_sched_must_defer(schedule, aggregate) || event->position < aggregate->tail->position)
	{
		outbox_sched_aggregate_defer(schedule, aggregate, event->position, event->created);
		free(event);
		return SCHEDULE_DEFERRED;
	}
	outbox_sched_aggregate_append(schedule, aggregate, event);
	return SCHEDULE_QUEUED;
}

bool
outbox_schedule_wait(Schedule *schedule, uint64_t aggregate_key, int64_t position, int64_t created,
					 int64_t retry_at, int32_t failures)
{
	Aggregate  *aggregate = outbox_sched_table_find(&schedule->table, aggregate_key);
	int64_t		first;			/* lowest position known so far */

	if (aggregate == NULL)
		aggregate = outbox_sched_aggregate_create(schedule, aggregate_key);
	if (aggregate == NULL)
		return false;

	first = aggregate->deferred_from;
	if (aggregate->head != NULL && aggregate->head->position < first)
		first = aggregate->head->position;
	outbox_sched_aggregate_defer(schedule, aggregate, position, created);

	/*
	 * Only a head waits. Behind another event, or one in flight, this one's
	 * turn comes when it is read again. The place in the refill queue that
	 * outbox_sched_aggregate_defer() gave it does no harm.
	 */
	if (position < first && aggregate->state == AGGREGATE_EMPTY)
		outbox_sched_aggregate_start_wait(schedule, aggregate, retry_at, failures, false);
	return true;
}

/* ---------- events go out ---------- */

bool
outbox_schedule_has_ready(const Schedule *schedule)
{
	return schedule->heaps.ready.count > 0;
}

SchedEvent *
outbox_schedule_next(Schedule *schedule, int64_t now)
{
	Aggregate  *aggregate;

	(void) now;					/* the keys of ready heads don't change with time */
	if (schedule->heaps.ready.count == 0)
		return NULL;
	aggregate = schedule->heaps.ready.root->aggregate;
	outbox_sched_heap_remove(&schedule->heaps.ready, aggregate);
	aggregate->state = AGGREGATE_IN_FLIGHT;
	aggregate->sent = 1;
	schedule->in_flight++;
	return aggregate->head;
}

int
outbox_schedule_held(const Schedule *schedule, const SchedEvent *event)
{
	return outbox_sched_table_find(&schedule->table, event->aggregate)->held;
}

SchedEvent *
outbox_schedule_behind(const SchedEvent *event)
{
	return event->next;
}

/* Finds the aggregate of an event in flight. */
static Aggregate *
aggregate_in_flight(const Schedule *schedule, const SchedEvent *event)
{
	Aggregate  *aggregate = outbox_sched_table_find(&schedule->table, event->aggregate);

	SchedAssert(aggregate != NULL);
	SchedAssert(aggregate->state == AGGREGATE_IN_FLIGHT && aggregate->head == event);
	return aggregate;
}

void
outbox_schedule_take_run(Schedule *schedule, SchedEvent *first, int count)
{
	Aggregate  *aggregate = aggregate_in_flight(schedule, first);

	SchedAssert(aggregate->sent == 1 && count >= 1 && count <= aggregate->held);
	aggregate->sent = (uint32_t) count;
	schedule->in_flight += count - 1;
	outbox_sched_refill_check(schedule, aggregate);
}

void
outbox_schedule_return(Schedule *schedule, SchedEvent *event)
{
	Aggregate  *aggregate = aggregate_in_flight(schedule, event);

	schedule->in_flight -= aggregate->sent;
	if (aggregate->deferred_from < aggregate->tail->position)
	{
		/* One came in meanwhile that goes before some of these, or before all. */
		aggregate->state = AGGREGATE_EMPTY;
		outbox_sched_aggregate_forget(schedule, aggregate);
		outbox_sched_refill_check(schedule, aggregate);
		return;
	}
	aggregate->state = AGGREGATE_READY;
	outbox_sched_heap_push(&schedule->heaps.ready, aggregate, event->position);
}

void
outbox_schedule_done(Schedule *schedule, SchedEvent *event, int64_t now)
{
	Aggregate  *aggregate = aggregate_in_flight(schedule, event);

	schedule->in_flight--;
	aggregate->head = event->next;
	if (aggregate->head == NULL)
		aggregate->tail = NULL;
	outbox_sched_aggregate_release(schedule, aggregate, event);

	if (--aggregate->sent > 0)
	{
		/* The rest of a run. */
		outbox_sched_refill_check(schedule, aggregate);
		return;
	}
	aggregate->state = AGGREGATE_EMPTY;
	if (aggregate->head != NULL)
		outbox_sched_aggregate_start_head(schedule, aggregate, now);
	else if (aggregate->deferred == 0)
	{
		outbox_sched_aggregate_free(schedule, aggregate);
		return;
	}
	outbox_sched_refill_check(schedule, aggregate);
}

/* Takes what is in flight back, and its aggregate waits, unless something came in before it meanwhile. */
static void
put_off(Schedule *schedule, SchedEvent *event, int64_t until, int32_t failures, bool retry)
{
	Aggregate  *aggregate = aggregate_in_flight(schedule, event);
	bool		still_head = event->position < aggregate->deferred_from;

	schedule->in_flight -= aggregate->sent;
	aggregate->state = AGGREGATE_EMPTY;
	outbox_sched_aggregate_forget(schedule, aggregate);

	/* What came in before it while it was in flight needn't wait with it. */
	if (still_head)
		outbox_sched_aggregate_start_wait(schedule, aggregate, until, failures, retry);
	else
		outbox_sched_refill_check(schedule, aggregate);
}

void
outbox_schedule_retry(Schedule *schedule, SchedEvent *event, int64_t retry_at, int32_t failures)
{
	put_off(schedule, event, retry_at, failures, true);
}

void
outbox_schedule_postpone(Schedule *schedule, SchedEvent *event, int64_t retry_at, int32_t failures)
{
	put_off(schedule, event, retry_at, failures, false);
}

void
outbox_schedule_hold(Schedule *schedule, SchedEvent *event)
{
	put_off(schedule, event, INT64_MAX, 0, false);
}

/* ---------- waits ---------- */

int64_t
outbox_schedule_next_timer(const Schedule *schedule)
{
	const Heap *waiting = &schedule->heaps.waiting;

	return waiting->count > 0 ? waiting->root->key : INT64_MAX;
}

void
outbox_schedule_reread(Schedule *schedule, uint64_t aggregate_key)
{
	Aggregate  *aggregate = outbox_sched_table_find(&schedule->table, aggregate_key);

	if (aggregate == NULL)
		return;
	if (aggregate->state == AGGREGATE_WAITING)
	{
		outbox_sched_aggregate_end_wait(schedule, aggregate);
		return;
	}
	if (aggregate->state == AGGREGATE_READY)
	{
		outbox_sched_heap_remove(&schedule->heaps.ready, aggregate);
		aggregate->state = AGGREGATE_EMPTY;
	}
	if (aggregate->held > 0)
		outbox_sched_aggregate_forget(schedule, aggregate);
	outbox_sched_refill_check(schedule, aggregate);
}

/* In one pass over the heap, because after an outage nearly all waits end. */
static void
end_waits(Schedule *schedule, bool retries_only)
{
	Heap	   *waiting = &schedule->heaps.waiting;
	size_t		kept = 0;

	for (size_t i = 0; i < waiting->count; i++)
	{
		HeapEntry	entry = *outbox_sched_heap_entry(waiting, i);

		if (retries_only && !entry.aggregate->retry_wait)
		{
			*outbox_sched_heap_entry(waiting, kept++) = entry;
			continue;
		}
		entry.aggregate->state = AGGREGATE_EMPTY;
		outbox_sched_refill_check(schedule, entry.aggregate);
	}
	waiting->count = kept;
	outbox_sched_heap_rebuild(waiting);
}

void
outbox_schedule_retry_now(Schedule *schedule)
{
	end_waits(schedule, true);
}

void
outbox_schedule_end_waits(Schedule *schedule)
{
	end_waits(schedule, false);
}

/* ---------- for reports ---------- */

void
outbox_schedule_get_counts(const Schedule *schedule, ScheduleCounts *counts)
{
	counts->held = schedule->held;
	counts->in_flight = schedule->in_flight;
	counts->deferred = schedule->deferred;
	counts->aggregates = (int64_t) schedule->table.count;
	counts->waiting = (int64_t) schedule->heaps.waiting.count;
	counts->bytes = outbox_sched_all_bytes(schedule);
}

int64_t
outbox_schedule_oldest(const Schedule *schedule)
{
	int64_t		oldest = INT64_MAX;

	for (size_t i = 0; i < (size_t) 1 << schedule->table.bits; i++)
	{
		const Aggregate *aggregate = schedule->table.buckets[i];

		for (; aggregate != NULL; aggregate = aggregate->next_in_bucket)
		{
			if (aggregate->head != NULL && aggregate->head->created < oldest)
				oldest = aggregate->head->created;
			if (aggregate->deferred_created < oldest)
				oldest = aggregate->deferred_created;
		}
	}
	return oldest;
}

int64_t
outbox_schedule_oldest_due(const Schedule *schedule, int64_t now, int64_t distance)
{
	int64_t		oldest = INT64_MAX;

	for (size_t i = 0; i < (size_t) 1 << schedule->table.bits; i++)
	{
		const Aggregate *aggregate = schedule->table.buckets[i];

		for (; aggregate != NULL; aggregate = aggregate->next_in_bucket)
		{
			const SchedEvent *head = aggregate->head;
			int64_t		due = aggregate->deferred_created;

			/* A wait for not_before, neither a retry nor a verdict; what is behind waits by its user's wish, too. */
			if (aggregate->state == AGGREGATE_WAITING && !aggregate->retry_wait && aggregate->failures == 0 && aggregate->heap_key > now)
				continue;
			if (head != NULL)
				due = head->not_before > 0 && head->not_before + distance > head->created ? head->not_before + distance : head->created;
			if (due < oldest)
				oldest = due;
		}
	}
	return oldest;
}

/* ---------- back-off ---------- */

int64_t
outbox_schedule_backoff(int32_t failures, int64_t base, int64_t max, double jitter)
{
	int			doublings = failures > 1 ? failures - 1 : 0;
	int64_t		delay;

	if (base < 1)
		base = 1;
	if (max < 1)
		max = 1;
	if (!(jitter > 0))			/* also a NaN */
		jitter = 0;
	else if (jitter > 1)
		jitter = 1;

	/* Compared by shifting max down: shifting base up might overflow. */
	if (doublings >= 63 || base > (max >> doublings))
		delay = max;
	else
		delay = base << doublings;
	delay -= (int64_t) ((double) delay * 0.25 * jitter);
	return delay < 1 ? 1 : delay;
}
