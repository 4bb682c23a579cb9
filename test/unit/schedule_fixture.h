/*
 * schedule_fixture.h
 *	  What the tests of the schedule share: allocations that fail on demand, and
 *	  events.
 *
 * The Makefile wraps malloc and calloc for these tests.
 */
#ifndef OUTBOX_SCHEDULE_FIXTURE_H
#define OUTBOX_SCHEDULE_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "schedule.h"
#include "unit.h"

#define SECOND INT64_C(1000000)

/* Allocations that still succeed; -1: all do. */
static int	allocations_left = -1;

extern void *__real_malloc(size_t size);
extern void *__real_calloc(size_t n, size_t size);
extern void *__wrap_malloc(size_t size);
extern void *__wrap_calloc(size_t n, size_t size);

static inline bool
allocation_fails(void)
{
	if (allocations_left > 0)
		allocations_left--;
	else if (allocations_left == 0)
		return true;
	return false;
}

void *
__wrap_malloc(size_t size)
{
	return allocation_fails() ? NULL : __real_malloc(size);
}

void *
__wrap_calloc(size_t n, size_t size)
{
	return allocation_fails() ? NULL : __real_calloc(n, size);
}

static inline SchedEvent *
new_event(uint64_t aggregate, int64_t position)
{
	SchedEvent *event = calloc(1, sizeof(SchedEvent));

	event->aggregate = aggregate;
	event->position = position;
	event->created = position * 10;
	event->bytes = 100;
	return event;
}

static inline ScheduleCounts
counts_of(const Schedule *schedule)
{
	ScheduleCounts counts;

	outbox_schedule_get_counts(schedule, &counts);
	return counts;
}

static inline bool
is_empty(const Schedule *schedule)
{
	ScheduleCounts counts = counts_of(schedule);

	return counts.held == 0 && counts.in_flight == 0 && counts.deferred == 0 && counts.aggregates == 0 &&
		counts.waiting == 0 && counts.bytes == 0;
}

/* The position of the next event, which is done at once; -1: none ready. */
static inline int64_t
take_done(Schedule *schedule, int64_t now)
{
	SchedEvent *event = outbox_schedule_next(schedule, now);
	int64_t		position = -1;

	if (event != NULL)
	{
		position = event->position;
		outbox_schedule_done(schedule, event, now);
	}
	return position;
}

static inline Schedule *
new_schedule(int max_queue)
{
	ScheduleLimits limits = {.max_bytes = 1 << 20, .max_queue = max_queue};

	return outbox_schedule_create(&limits);
}

static inline ScheduleAdd
add(Schedule *schedule, uint64_t aggregate, int64_t position, int64_t now)
{
	return outbox_schedule_add(schedule, new_event(aggregate, position), now);
}

static inline void
add_many(Schedule *schedule, uint64_t aggregate, int64_t first, int64_t last)
{
	for (int64_t position = first; position <= last; position++)
		add(schedule, aggregate, position, 0);
}

static inline SchedEvent *
take(Schedule *schedule)
{
	return outbox_schedule_next(schedule, 0);
}

/* Answers a refill with the positions first .. last. */
static inline void
refill_range(Schedule *schedule, const ScheduleRefill *refill, int64_t first, int64_t last,
			 bool exhausted, int64_t now)
{
	for (int64_t position = first; position <= last; position++)
		outbox_schedule_refill_add(schedule, new_event(refill->aggregate, position));
	outbox_schedule_refill_end(schedule, refill->aggregate, exhausted, now);
}

#endif							/* OUTBOX_SCHEDULE_FIXTURE_H */
