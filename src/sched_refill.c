/*
 * sched_refill.c
 *	  Which aggregates' events are to be read again, and taking them in.
 *
 * Owns the refill queue. An entry there may be stale, because taking one out
 * of the middle would need a second link: whether it still wants a refill is
 * asked again when its turn comes.
 */
#include "sched_private.h"

#include <stdlib.h>

/*
 * Of a run in flight one event counts: what follows it should be held when its
 * ack comes, but not be read in driblets while the run fills the queue.
 */
static bool
is_low(const Schedule *schedule, const Aggregate *aggregate)
{
	int32_t		low = outbox_sched_low_water(schedule);
	int32_t		sent = aggregate->state == AGGREGATE_IN_FLIGHT ? (int32_t) aggregate->sent : 1;

	return aggregate->held - (sent - 1) <= low && aggregate->held <= schedule->limits.max_queue - (low > 0 ? low : 1);
}

static bool
wants_refill(const Schedule *schedule, const Aggregate *aggregate)
{
	if (aggregate->deferred == 0 || aggregate->state == AGGREGATE_WAITING || !is_low(schedule, aggregate))
		return false;

	/* A read from an earlier position would bring the events in flight once more. */
	return aggregate->state != AGGREGATE_IN_FLIGHT ||
		aggregate->deferred_from > aggregate->tail->position;
}

/* Called after each change that may have made an aggregate want a refill. */
void
outbox_sched_refill_check(Schedule *schedule, Aggregate *aggregate)
{
	if (aggregate->in_refill || !wants_refill(schedule, aggregate))
		return;
	aggregate->in_refill = true;
	aggregate->next_in_refill = NULL;
	if (schedule->refill_last != NULL)
		schedule->refill_last->next_in_refill = aggregate;
	else
		schedule->refill_first = aggregate;
	schedule->refill_last = aggregate;
}

static Aggregate *
pop_refill(Schedule *schedule)
{
	Aggregate  *aggregate = schedule->refill_first;

	if (aggregate == NULL)
		return NULL;
	schedule->refill_first = aggregate->next_in_refill;
	if (schedule->refill_first == NULL)
		schedule->refill_last = NULL;
	aggregate->in_refill = false;
	return aggregate;
}

/*
 * A quarter of the budget is kept for events that are read again, however much
 * of it the records of waiting aggregates take; else, with very many of those,
 * the rest would be sent one by one. And a first one is always let in.
 */
static bool
may_refill(const Schedule *schedule)
{
	return outbox_schedule_has_room(schedule) ||
		schedule->event_bytes < schedule->limits.max_bytes / 4 ||
		schedule->held == 0;
}

bool
outbox_schedule_refill_is_due(const Schedule *schedule, int64_t now)
{
	const Heap *waiting = &schedule->heaps.waiting;

	return schedule->refill_first != NULL || (waiting->count > 0 && waiting->root->key <= now);
}

bool
outbox_schedule_next_refill(Schedule *schedule, int64_t now, ScheduleRefill *refill)
{
	const Heap *waiting = &schedule->heaps.waiting;
	Aggregate  *aggregate;

	/* The caller failed in the middle of the last one. */
	if (schedule->refilling != NULL)
		outbox_schedule_refill_end(schedule, schedule->refilling->key, false, now);

	/* Even without room, or the timer would go off again and again. */
	while (waiting->count > 0 && waiting->root->key <= now && waiting->root->key < INT64_MAX)
		outbox_sched_aggregate_end_wait(schedule, waiting->root->aggregate);

	if (!may_refill(schedule))
		return false;
	do
	{
		aggregate = pop_refill(schedule);
		if (aggregate == NULL)
			return false;
	} while (!wants_refill(schedule, aggregate));

	schedule->refilling = aggregate;
	schedule->refill_found = 0;
	schedule->refill_moved = false;
	schedule->refill_cut = false;
	refill->aggregate = aggregate->key;
	refill->from_position = aggregate->deferred_from;
	refill->max_events = schedule->limits.max_queue - aggregate->held;
	return true;
}

/* The refill has got to this event. */
static void
come_by(Schedule *schedule, int64_t position, int64_t created, bool counted)
{
	schedule->refill_found += counted;
	schedule->refill_moved = true;
	schedule->refill_position = position;
	schedule->refill_created = created;
}

ScheduleAdd
outbox_schedule_refill_add(Schedule *schedule, SchedEvent *event)
{
	Aggregate  *aggregate = schedule->refilling;

	SchedAssert(aggregate != NULL && aggregate->key == event->aggregate);
	SchedAssert(event->position >= aggregate->deferred_from);
	SchedAssert(aggregate->tail == NULL || event->position > aggregate->tail->position);

	if (schedule->refill_cut || aggregate->held >= schedule->limits.max_queue)
	{
		schedule->refill_cut = true;
		free(event);
		return SCHEDULE_DEFERRED;
	}
	outbox_sched_aggregate_append(schedule, aggregate, event);
	come_by(schedule, event->position, event->created, true);
	return SCHEDULE_QUEUED;
}

void
outbox_schedule_refill_skip(Schedule *schedule, int64_t position, int64_t created, bool known)
{
	if (!schedule->refill_cut)
		come_by(schedule, position, created, known);
}

/* Corrects what is known of the deferred events after a refill came by some of them. */
static void
settle_deferred(Schedule *schedule, Aggregate *aggregate, bool exhausted)
{
	int64_t		found = schedule->refill_found;

	if (exhausted)
	{
		found = aggregate->deferred;
		aggregate->deferred_from = INT64_MAX;
		aggregate->deferred_created = INT64_MAX;
	}
	else if (schedule->refill_moved)
	{
		/* The read may have seen events that were never counted; more follow in any case. */
		if (found >= aggregate->deferred)
			found = aggregate->deferred - 1;
		aggregate->deferred_from = schedule->refill_position + 1;
		if (aggregate->deferred_created < schedule->refill_created)
			aggregate->deferred_created = schedule->refill_created;
	}
	else
		return;
	aggregate->deferred -= found;
	aggregate->failures = 0;
	schedule->deferred -= found;
}

void
outbox_schedule_refill_end(Schedule *schedule, uint64_t aggregate_key, bool exhausted, int64_t now)
{
	Aggregate  *aggregate = schedule->refilling;
	SchedEvent *head;

	SchedAssert(aggregate != NULL && aggregate->key == aggregate_key);
	(void) aggregate_key;
	schedule->refilling = NULL;

	/* The head that failed, unless somebody settled it meanwhile: then the next counts from 0. */
	head = aggregate->head;
	if (aggregate->state == AGGREGATE_EMPTY && head != NULL &&
		head->position == aggregate->deferred_from && head->failures < aggregate->failures)
		head->failures = aggregate->failures;
	settle_deferred(schedule, aggregate, exhausted && !schedule->refill_cut);

	if (aggregate->state == AGGREGATE_EMPTY)
	{
		if (head != NULL)
			outbox_sched_aggregate_start_head(schedule, aggregate, now);
		else if (aggregate->deferred == 0)
		{
			outbox_sched_aggregate_free(schedule, aggregate);
			return;
		}
	}
	outbox_sched_refill_check(schedule, aggregate);
}
