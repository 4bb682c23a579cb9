/*
 * schedule.h
 *	  Which event may be sent next: per-aggregate queues, ready heads, waits.
 *
 * Pure logic: no PostgreSQL, no NATS, no clock of its own (times come in as
 * microseconds of any one clock), no threads. Memory comes from malloc; every
 * function that allocates says what happens when there is none.
 *
 * Rules it keeps:
 *	- Within one aggregate events leave in position order, and one only after
 *	  its predecessor was reported done.
 *	- Aggregates don't wait for each other.
 *	- Among ready heads the one with the smallest (ready time - priority
 *	  seconds, position) goes first: a step of priority is worth one second of
 *	  waiting, so low priorities are delayed by a bounded time, never starved.
 *	- Memory is bounded: an aggregate holds at most max_queue events; what
 *	  comes beyond is forgotten ("deferred") and asked for again (a "refill")
 *	  when the queue runs low. An aggregate that has to wait (retry,
 *	  not_before) holds no events at all.
 */
#ifndef OUTBOX_SCHEDULE_H
#define OUTBOX_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Schedule Schedule;

/*
 * One event, allocated by the caller with malloc() as the first member of
 * whatever it needs; the schedule owns it from schedule_add() on and frees it
 * with free().
 */
typedef struct SchedEvent
{
	struct SchedEvent *next;	/* the schedule's own */
	int64_t		position;		/* place in the log, > 0 */
	uint64_t	aggregate;		/* 64-bit hash that identifies the aggregate */
	int64_t		not_before;		/* not sent before this time; 0: at once; INT64_MAX: never */
	int64_t		created;		/* when it was enqueued, for outbox_schedule_oldest() */
	size_t		bytes;			/* what it counts against the budget */
	int32_t		failures;		/* failed attempts in a row, for the back-off */
	int16_t		priority;		/* -100 .. 100, higher goes first */
} SchedEvent;

typedef struct ScheduleLimits
{
	size_t		max_bytes;		/* of all events held; see outbox_schedule_has_room() */
	int			max_queue;		/* events held per aggregate, at least 1 */
} ScheduleLimits;

typedef struct ScheduleCounts
{
	int64_t		held;			/* events in memory, in flight included */
	int64_t		in_flight;
	int64_t		deferred;		/* known, not held, to be read again */
	int64_t		aggregates;		/* with at least one known event */
	int64_t		waiting;		/* aggregates in a wait */
	size_t		bytes;			/* of held events, and of the aggregates' own records */
} ScheduleCounts;

typedef enum ScheduleAdd
{
	SCHEDULE_QUEUED,
	SCHEDULE_DEFERRED,			/* freed; its aggregate will ask for it again */
	SCHEDULE_NO_MEMORY			/* not taken, still the caller's; nothing changed */
} ScheduleAdd;

/* A wish to read an aggregate's events again, from a position on. */
typedef struct ScheduleRefill
{
	uint64_t	aggregate;
	int64_t		from_position;	/* first position wanted, inclusive */
	int			max_events;		/* how many to read at most */
} ScheduleRefill;

/* NULL: out of memory. */
extern Schedule *outbox_schedule_create(const ScheduleLimits *limits);
extern void outbox_schedule_set_limits(Schedule *schedule, const ScheduleLimits *limits);
extern void outbox_schedule_destroy(Schedule *schedule);

/* False once max_bytes is reached: read no further until it is true again. */
extern bool outbox_schedule_has_room(const Schedule *schedule);

/*
 * Whether an event of this aggregate, added now, would be deferred: then the
 * caller may spare itself building it and call outbox_schedule_defer().
 */
extern bool outbox_schedule_would_defer(const Schedule *schedule, uint64_t aggregate);
extern bool outbox_schedule_defer(Schedule *schedule, uint64_t aggregate, int64_t position,
								  int64_t created);	/* false: no memory */

/*
 * Takes an event that was not known before. Events of one aggregate come in
 * position order; of different aggregates in any. If the event becomes head
 * and its not_before is in the future, its aggregate waits until then.
 * A redriven event may come in behind later ones: it is deferred, those are
 * forgotten except one in flight, a wait of theirs ends, and a refill from its
 * position brings all back in order.
 */
extern ScheduleAdd outbox_schedule_add(Schedule *schedule, SchedEvent *event, int64_t now);

/* The next event to send, now in flight; NULL when no head is ready. */
extern SchedEvent *outbox_schedule_next(Schedule *schedule, int64_t now);

/*
 * A run: several events of an aggregate that are sent together and have one
 * outcome. After outbox_schedule_next() gave its first event, the caller looks
 * at those behind it, and says how many go with it. An acknowledged run is then
 * done event by event, in order; one that failed is returned, retried and so on
 * by its first event, which stands for all that aren't done.
 */
extern int	outbox_schedule_held(const Schedule *schedule, const SchedEvent *event);	/* of its aggregate */
extern SchedEvent *outbox_schedule_behind(const SchedEvent *event); /* NULL: none is held */
extern void outbox_schedule_take_run(Schedule *schedule, SchedEvent *first, int count);

/* Puts back in front an event that was given but not sent after all: ready at once, in its old place. */
extern void outbox_schedule_return(Schedule *schedule, SchedEvent *event);

/* An event in flight is terminal: freed, and its successor's turn comes. */
extern void outbox_schedule_done(Schedule *schedule, SchedEvent *event, int64_t now);

/*
 * An event in flight failed and stays the head of its aggregate, which waits
 * until retry_at (INT64_MAX: until outbox_schedule_retry_now()) with failures
 * remembered for the head; the aggregate's events are forgotten (deferred)
 * meanwhile. event is freed.
 */
extern void outbox_schedule_retry(Schedule *schedule, SchedEvent *event, int64_t retry_at, int32_t failures);

/* The same for a failure of the event's own: outbox_schedule_retry_now() is no reason to try it again. */
extern void outbox_schedule_postpone(Schedule *schedule, SchedEvent *event, int64_t retry_at, int32_t failures);

/* The same for an event that holds up its aggregate until outbox_schedule_reread(). */
extern void outbox_schedule_hold(Schedule *schedule, SchedEvent *event);

/*
 * For start-up: an event that was postponed earlier, or is held (INT64_MAX),
 * known by position only. False: no memory.
 */
extern bool outbox_schedule_wait(Schedule *schedule, uint64_t aggregate, int64_t position, int64_t created,
								 int64_t retry_at, int32_t failures);

/*
 * All events of one aggregate, except one in flight, are read again, and its
 * wait, of whatever kind, ends: an operator redrove or discarded some of them.
 */
extern void outbox_schedule_reread(Schedule *schedule, uint64_t aggregate);

/* Ends the waits of outbox_schedule_retry(): the cause is gone. */
extern void outbox_schedule_retry_now(Schedule *schedule);

/* Ends every wait, so that each is judged anew: the clock was set, say. */
extern void outbox_schedule_end_waits(Schedule *schedule);

/*
 * The next aggregate whose events should be read again: one whose wait is
 * over, or whose queue ran low while more is deferred. False when there is
 * none, or when there is no room: the budget is used up, held events take a
 * quarter of it or more, and at least one is held. So there is always progress.
 *
 * The caller then reads the aggregate's events that are visible and not
 * terminal, from from_position on, passes each in position order to
 * outbox_schedule_refill_add() and ends with outbox_schedule_refill_end(),
 * before anything else is called on the schedule. Events that it comes by and
 * that are terminal by now it passes to outbox_schedule_refill_skip(); known:
 * the schedule counted it as deferred. It may stop early, for want of room say,
 * but adds or skips one event at least. exhausted: the read found no further
 * event beyond those. A failed read ends with nothing added and exhausted
 * false: it is asked for again, behind the others.
 */
extern bool outbox_schedule_next_refill(Schedule *schedule, int64_t now, ScheduleRefill *refill);
extern bool outbox_schedule_refill_is_due(const Schedule *schedule, int64_t now); /* a hint: it may give none */
extern ScheduleAdd outbox_schedule_refill_add(Schedule *schedule, SchedEvent *event);
extern void outbox_schedule_refill_skip(Schedule *schedule, int64_t position, int64_t created, bool known);
extern void outbox_schedule_refill_end(Schedule *schedule, uint64_t aggregate, bool exhausted, int64_t now);

/* When the earliest wait ends (never earlier than needed); INT64_MAX: none. */
extern int64_t outbox_schedule_next_timer(const Schedule *schedule);

/* True if outbox_schedule_next() would give an event now. */
extern bool outbox_schedule_has_ready(const Schedule *schedule);

extern void outbox_schedule_get_counts(const Schedule *schedule, ScheduleCounts *counts);

/*
 * The created time of the oldest known event, from a walk over all aggregates;
 * INT64_MAX: none. Takes created to grow with the position in an aggregate, and
 * may be a little early for one that was refilled in part.
 */
extern int64_t outbox_schedule_oldest(const Schedule *schedule);

/*
 * Since when the event that has waited longest could have gone out as far as its
 * user is concerned: enqueued, and not_before is over. INT64_MAX: there is none.
 * distance: that of "created" to the schedule's time. Looks at all aggregates.
 */
extern int64_t outbox_schedule_oldest_due(const Schedule *schedule, int64_t now, int64_t distance);

/*
 * Delay after so many failures in a row, at least 1, in microseconds:
 * base doubled with each further one, at most max, never below 1; jitter is a
 * random number in [0, 1) and takes away up to a quarter (but delays still
 * never sink below the previous one's smallest). No overflow for any input.
 */
extern int64_t outbox_schedule_backoff(int32_t failures, int64_t base, int64_t max, double jitter);

#endif							/* OUTBOX_SCHEDULE_H */
