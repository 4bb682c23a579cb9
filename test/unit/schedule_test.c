/*
 * schedule_test.c
 *	  Each rule of schedule.h by itself. schedule_run_test.c has those of runs,
 *	  schedule_model_test.c random calls, schedule_speed_test.c size and speed.
 */
#include <math.h>

#include "schedule_fixture.h"

/* ---------- single rules ---------- */

static void
test_order_in_aggregate(void)
{
	Schedule   *schedule = new_schedule(10);
	SchedEvent *event;

	ok(is_empty(schedule) && take(schedule) == NULL && !outbox_schedule_has_ready(schedule),
	   "a new schedule is empty");
	add_many(schedule, 7, 1, 3);
	event = take(schedule);
	ok(event->position == 1 && take(schedule) == NULL, "the second event doesn't go before the first is done");
	ok(counts_of(schedule).held == 3 && counts_of(schedule).in_flight == 1, "held counts the one in flight too");
	outbox_schedule_done(schedule, event, 0);
	ok(take_done(schedule, 0) == 2 && take_done(schedule, 0) == 3, "its successors follow in order");
	ok(is_empty(schedule), "the record goes with the last event");
	outbox_schedule_destroy(schedule);
	outbox_schedule_destroy(NULL);
}

static void
test_aggregates_are_independent(void)
{
	Schedule   *schedule = new_schedule(10);

	add_many(schedule, 1, 1, 2);
	add_many(schedule, 2, 3, 4);
	ok(take(schedule)->position == 1 && take(schedule)->position == 3, "two aggregates are in flight at once");
	ok(take(schedule) == NULL && !outbox_schedule_has_ready(schedule), "and nothing else of them");
	outbox_schedule_destroy(schedule);
}

static void
test_return(void)
{
	Schedule   *schedule = new_schedule(10);
	SchedEvent *first;
	SchedEvent *second;

	add(schedule, 1, 1, 5);
	add(schedule, 2, 2, 6);
	add(schedule, 3, 3, 7);
	first = take(schedule);
	second = take(schedule);
	outbox_schedule_return(schedule, second);
	outbox_schedule_return(schedule, first);
	ok(counts_of(schedule).in_flight == 0 && take_done(schedule, 9) == 1 && take_done(schedule, 9) == 2 &&
	   take_done(schedule, 9) == 3, "returned events keep their places");
	outbox_schedule_destroy(schedule);
}

static void
test_urgency(void)
{
	Schedule   *schedule = new_schedule(10);
	SchedEvent *event = new_event(4, 40);

	add(schedule, 3, 30, 2 * SECOND);
	add(schedule, 2, 20, 1 * SECOND);
	add(schedule, 1, 10, 2 * SECOND);
	event->priority = 2;
	outbox_schedule_add(schedule, event, 2 * SECOND + 1);	/* counts as ready at 0.000001 s */
	ok(take_done(schedule, 0) == 40 && take_done(schedule, 0) == 20,
	   "a step of priority is worth a second of waiting");
	ok(take_done(schedule, 0) == 10 && take_done(schedule, 0) == 30, "equally urgent heads go by position");
	outbox_schedule_destroy(schedule);
}

static void
test_priority_ages(void)
{
	Schedule   *schedule = new_schedule(10);
	SchedEvent *low = new_event(0, 1);
	int64_t		position = 2;
	int64_t		now = 0;
	int64_t		served = 0;
	bool		found = false;

	/* Twenty events of priority 50 come for every ten that can be sent. */
	low->priority = -10;
	outbox_schedule_add(schedule, low, 0);
	for (now = 0; !found && now < 200 * SECOND; now += SECOND / 10)
	{
		for (int i = 0; i < 20; i++)
		{
			SchedEvent *high = new_event((uint64_t) position, position);

			position++;
			high->priority = 50;
			outbox_schedule_add(schedule, high, now);
		}
		for (int i = 0; i < 10 && !found; i++, served++)
			found = take_done(schedule, now) == 1;
	}

	/*
	 * Only what gets ready within (50 - -10) seconds goes first, which is 60 *
	 * 200 events, and one more round on either side.
	 */
	ok(found && served >= 60 * 200 && served <= 60 * 200 + 40,
	   "a low priority is overtaken for 60 s only (by %lld events)", (long long) served);
	outbox_schedule_destroy(schedule);
}

static void
test_queue_limit(void)
{
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;
	SchedEvent *event;

	add_many(schedule, 1, 1, 7);
	ok(!outbox_schedule_would_defer(schedule, 1) && !outbox_schedule_would_defer(schedule, 2),
	   "a queue below its limit takes more");
	ok(add(schedule, 1, 8, 0) == SCHEDULE_QUEUED && outbox_schedule_would_defer(schedule, 1) &&
	   add(schedule, 1, 9, 0) == SCHEDULE_DEFERRED, "at its limit it defers");
	ok(outbox_schedule_defer(schedule, 1, 10, 100) && counts_of(schedule).held == 8 &&
	   counts_of(schedule).deferred == 2, "by position only, too");
	take_done(schedule, 0);
	ok(outbox_schedule_would_defer(schedule, 1) && add(schedule, 1, 11, 0) == SCHEDULE_DEFERRED,
	   "a free place doesn't let a later event overtake the deferred ones");

	for (int i = 0; i < 4; i++)
		take_done(schedule, 0);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "no refill above the low-water mark");
	take_done(schedule, 0);
	event = take(schedule);
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.aggregate == 1 && refill.from_position == 9 &&
	   refill.max_events == 6, "a quarter full it is refilled, from the first deferred position");
	refill_range(schedule, &refill, 9, 10, false, 0);
	ok(counts_of(schedule).deferred == 1 && outbox_schedule_would_defer(schedule, 1),
	   "a read that wasn't exhausted leaves at least one deferred");
	outbox_schedule_done(schedule, event, 0);
	ok(take_done(schedule, 0) == 8 && outbox_schedule_next_refill(schedule, 0, &refill) &&
	   refill.from_position == 11, "the next refill goes on behind it");
	refill_range(schedule, &refill, 11, 12, true, 0);
	ok(counts_of(schedule).deferred == 0 && add(schedule, 1, 13, 0) == SCHEDULE_QUEUED,
	   "after an exhausted one new events are queued again");
	for (int64_t position = 9; position <= 13; position++)
		ok(take_done(schedule, 0) == position, "%lld in its turn", (long long) position);
	ok(is_empty(schedule), "and all is sent");
	outbox_schedule_destroy(schedule);
}

static void
test_refill_corners(void)
{
	Schedule   *schedule = new_schedule(4);
	ScheduleRefill refill;

	add_many(schedule, 1, 1, 9);
	for (int i = 0; i < 4; i++)
		take_done(schedule, 0);
	outbox_schedule_next_refill(schedule, 0, &refill);
	refill_range(schedule, &refill, 5, 4, false, 0);
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 5 &&
	   counts_of(schedule).deferred == 5, "a read that failed is asked for again");
	outbox_schedule_refill_add(schedule, new_event(1, 5));
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 6 && refill.max_events == 3,
	   "and so is one that was broken off, without what it gave");
	refill_range(schedule, &refill, 6, 9, true, 0);
	ok(counts_of(schedule).held == 4 && counts_of(schedule).deferred == 1,
	   "more than max_events stays deferred, even if the read says exhausted");
	for (int64_t position = 5; position <= 8; position++)
		ok(take_done(schedule, 0) == position, "%lld in its turn", (long long) position);
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 9, "9 is asked for");
	refill_range(schedule, &refill, 9, 8, true, 0);
	ok(is_empty(schedule), "nothing found, nothing kept");
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "nor asked for");
	outbox_schedule_destroy(schedule);
}

static void
test_queue_of_one(void)
{
	Schedule   *schedule = new_schedule(0);	/* counts as 1 */
	ScheduleRefill refill;
	SchedEvent *event;

	ok(add(schedule, 1, 1, 0) == SCHEDULE_QUEUED && add(schedule, 1, 2, 0) == SCHEDULE_DEFERRED,
	   "a queue takes one event at least");
	event = take(schedule);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "no refill while that is in flight");
	outbox_schedule_done(schedule, event, 0);
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.max_events == 1, "then for one event");
	refill_range(schedule, &refill, 2, 2, true, 0);
	ok(take_done(schedule, 0) == 2 && is_empty(schedule), "which is sent");
	outbox_schedule_destroy(schedule);
}

static void
test_refills_take_turns(void)
{
	Schedule   *schedule = new_schedule(4);
	ScheduleRefill refill;
	bool		fair = true;

	for (uint64_t aggregate = 0; aggregate < 50; aggregate++)
		outbox_schedule_defer(schedule, aggregate, (int64_t) aggregate + 1, 0);
	for (int round = 0; round < 3; round++)
	{
		for (uint64_t aggregate = 0; aggregate < 50; aggregate++)
		{
			fair &= outbox_schedule_next_refill(schedule, 0, &refill) && refill.aggregate == aggregate;
			outbox_schedule_refill_end(schedule, refill.aggregate, false, 0);
		}
	}
	ok(fair, "aggregates are refilled in turn");
	outbox_schedule_destroy(schedule);
}

static void
test_retry(void)
{
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;
	SchedEvent *event;

	add_many(schedule, 1, 1, 3);
	add(schedule, 2, 4, 0);
	outbox_schedule_retry(schedule, take(schedule), 50, 3);
	ok(counts_of(schedule).held == 1 && counts_of(schedule).deferred == 3 && counts_of(schedule).waiting == 1 &&
	   counts_of(schedule).in_flight == 0, "an aggregate that waits for a retry holds no events");
	ok(take_done(schedule, 0) == 4 && take_done(schedule, 0) == -1, "another one isn't delayed");
	ok(add(schedule, 1, 5, 10) == SCHEDULE_DEFERRED, "new events of the first are deferred");
	ok(outbox_schedule_next_timer(schedule) == 50 && !outbox_schedule_next_refill(schedule, 49, &refill),
	   "nothing is read before its time");
	ok(outbox_schedule_next_refill(schedule, 50, &refill) && refill.from_position == 1 && refill.max_events == 8,
	   "at its time it is");
	ok(outbox_schedule_next_timer(schedule) == INT64_MAX && counts_of(schedule).waiting == 0, "the timer is off");
	refill_range(schedule, &refill, 1, 3, false, 50);
	event = take(schedule);
	ok(event->position == 1 && event->failures == 3, "the head knows its failed attempts");
	outbox_schedule_done(schedule, event, 50);
	event = take(schedule);
	ok(event->position == 2 && event->failures == 0, "the next starts with none");
	outbox_schedule_retry(schedule, event, 60, 7);
	ok(!outbox_schedule_next_refill(schedule, 59, &refill) &&
	   outbox_schedule_next_refill(schedule, 60, &refill) && refill.from_position == 2,
	   "a refill that was queued before the wait is asked for only after it");
	refill_range(schedule, &refill, 3, 5, true, 60);
	event = take(schedule);
	ok(event->position == 3 && event->failures == 0, "a head that was settled elsewhere leaves no attempts behind");
	outbox_schedule_destroy(schedule);
}

static void
test_retry_now(void)
{
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;
	SchedEvent *event;
	int			refills = 0;

	for (uint64_t aggregate = 1; aggregate <= 40; aggregate++)
	{
		event = new_event(aggregate, (int64_t) aggregate);
		if (aggregate % 4 == 0)
			event->not_before = 1000 + (int64_t) aggregate;
		if (outbox_schedule_add(schedule, event, 0) == SCHEDULE_QUEUED)
			outbox_schedule_retry(schedule, take(schedule), 2000 - (int64_t) aggregate, 1);
	}
	outbox_schedule_wait(schedule, 41, 41, 0, INT64_MAX, 9);
	ok(counts_of(schedule).waiting == 41, "all wait");
	outbox_schedule_retry_now(schedule);
	ok(counts_of(schedule).waiting == 11 && outbox_schedule_next_timer(schedule) == 1004,
	   "retry_now ends the retry waits, not the others");
	while (outbox_schedule_next_refill(schedule, 10, &refill))
	{
		refills += refill.aggregate % 4 != 0;
		outbox_schedule_refill_end(schedule, refill.aggregate, true, 10);
	}
	ok(refills == 30, "their events are read again");
	outbox_schedule_reread(schedule, 8);
	outbox_schedule_reread(schedule, 9); /* unknown by now */
	ok(outbox_schedule_next_refill(schedule, 10, &refill) && refill.aggregate == 8,
	   "reread ends the wait of one aggregate");
	refill_range(schedule, &refill, 8, 8, true, 10);
	ok(take_done(schedule, 10) == 8, "and its event is sent");
	ok(outbox_schedule_next_timer(schedule) == 1004 && counts_of(schedule).waiting == 10, "the others still wait");
	outbox_schedule_end_waits(schedule);
	ok(counts_of(schedule).waiting == 0 && outbox_schedule_next_timer(schedule) == INT64_MAX, "end_waits ends them all");
	outbox_schedule_destroy(schedule);
}

/* What operators do: an event that holds its aggregate, a discarded one, events that are terminal when they are read again. */
static void
test_hold_and_skip(void)
{
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;

	add_many(schedule, 1, 1, 4);
	outbox_schedule_hold(schedule, take(schedule));
	outbox_schedule_retry_now(schedule);
	ok(counts_of(schedule).waiting == 1 && counts_of(schedule).deferred == 4 && take(schedule) == NULL,
	   "a held event holds its aggregate");
	outbox_schedule_reread(schedule, 1);
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 1, "until it is read again");
	outbox_schedule_refill_skip(schedule, 1, 0, true);
	outbox_schedule_refill_end(schedule, 1, false, 0);
	ok(counts_of(schedule).deferred == 3 && outbox_schedule_next_refill(schedule, 0, &refill) &&
		   refill.from_position == 2,
	   "a refill that only skipped goes on behind that");
	refill_range(schedule, &refill, 2, 4, true, 0);
	ok(take(schedule)->position == 2, "a skipped event is not sent");
	outbox_schedule_reread(schedule, 1);
	ok(counts_of(schedule).held == 1 && counts_of(schedule).deferred == 2, "reread forgets all but the one in flight");
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 3, "and wants them again");
	outbox_schedule_refill_skip(schedule, 3, 0, true);
	refill_range(schedule, &refill, 4, 4, true, 0);
	ok(counts_of(schedule).held == 2 && counts_of(schedule).deferred == 0, "without the one that is terminal now");
	outbox_schedule_destroy(schedule);
}

static void
test_not_before(void)
{
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;
	SchedEvent *event = new_event(1, 2);

	event->not_before = 100;
	add(schedule, 1, 1, 0);
	ok(outbox_schedule_add(schedule, event, 0) == SCHEDULE_QUEUED && add(schedule, 1, 3, 0) == SCHEDULE_QUEUED,
	   "behind another event not_before doesn't matter yet");
	ok(take_done(schedule, 99) == 1 && counts_of(schedule).waiting == 1 && counts_of(schedule).held == 0 &&
	   outbox_schedule_next_timer(schedule) == 100, "as head it waits and holds no memory");
	outbox_schedule_next_refill(schedule, 100, &refill);
	event = new_event(1, 2);
	event->not_before = 200;		/* rescheduled */
	event->failures = 2;
	outbox_schedule_refill_add(schedule, event);
	refill_range(schedule, &refill, 3, 3, true, 100);
	ok(take(schedule) == NULL && outbox_schedule_next_timer(schedule) == 200 && counts_of(schedule).deferred == 2,
	   "also after a refill");
	outbox_schedule_next_refill(schedule, 200, &refill);
	refill_range(schedule, &refill, 2, 3, true, 200);
	event = take(schedule);
	ok(event->position == 2 && event->failures == 2, "its attempts are remembered");
	outbox_schedule_done(schedule, event, 200);
	ok(take_done(schedule, 200) == 3 && is_empty(schedule), "the rest follows");

	event = new_event(5, 5);
	event->not_before = INT64_MAX;
	ok(outbox_schedule_add(schedule, event, 0) == SCHEDULE_DEFERRED, "a head that is never sent is deferred");
	outbox_schedule_retry_now(schedule);
	ok(outbox_schedule_next_timer(schedule) == INT64_MAX && counts_of(schedule).waiting == 1 &&
	   !outbox_schedule_next_refill(schedule, INT64_MAX, &refill), "and sets no timer");
	outbox_schedule_destroy(schedule);
}

static void
test_many_waits(void)
{
	enum
	{
		N = 4000
	};
	static int64_t until[N];
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;
	int			wrong = 0;
	int			ended = 0;

	random_state = 1;
	for (uint64_t aggregate = 0; aggregate < N; aggregate++)
	{
		until[aggregate] = 1 + below(1000000);
		outbox_schedule_wait(schedule, aggregate, 1, 0, until[aggregate], 1);
	}

	/* Half of them are taken out of the middle of the heap. */
	for (int i = 0; i < N / 2; i++)
		outbox_schedule_reread(schedule, (uint64_t) below(N));
	while (outbox_schedule_next_refill(schedule, 0, &refill))
	{
		outbox_schedule_refill_end(schedule, refill.aggregate, true, 0);
		ended++;
	}
	while (counts_of(schedule).waiting > 0)
	{
		int64_t		timer = outbox_schedule_next_timer(schedule);

		wrong += outbox_schedule_next_refill(schedule, timer - 1, &refill);
		while (outbox_schedule_next_refill(schedule, timer, &refill))
		{
			wrong += until[refill.aggregate] != timer;
			outbox_schedule_refill_end(schedule, refill.aggregate, true, timer);
			ended++;
		}
	}
	ok(wrong == 0 && ended == N && is_empty(schedule), "many waits end by time (%d wrong)", wrong);
	outbox_schedule_destroy(schedule);
}

static void
test_wait_at_start(void)
{
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;
	SchedEvent *event;

	ok(outbox_schedule_wait(schedule, 1, 10, 3, 100, 5) && counts_of(schedule).waiting == 1 &&
	   counts_of(schedule).deferred == 1, "an event known by position only waits");
	ok(add(schedule, 1, 11, 0) == SCHEDULE_DEFERRED && outbox_schedule_wait(schedule, 1, 12, 4, 500, 6) &&
	   outbox_schedule_next_timer(schedule) == 100, "one behind it doesn't change its wait");
	ok(outbox_schedule_wait(schedule, 1, 9, 3, 300, 2) && outbox_schedule_next_timer(schedule) == 300,
	   "one before it does");
	ok(!outbox_schedule_next_refill(schedule, 299, &refill) && outbox_schedule_next_refill(schedule, 300, &refill) &&
	   refill.from_position == 9, "it is read when that is over");
	refill_range(schedule, &refill, 9, 12, true, 300);
	event = take(schedule);
	ok(event->position == 9 && event->failures == 2, "with its attempts");
	outbox_schedule_done(schedule, event, 300);
	ok(outbox_schedule_wait(schedule, 1, 8, 0, 400, 1) && take(schedule) == NULL &&
	   counts_of(schedule).held == 0, "an earlier one takes a ready head back");
	outbox_schedule_destroy(schedule);
}

static void
test_redriven(void)
{
	Schedule   *schedule = new_schedule(8);
	ScheduleRefill refill;
	SchedEvent *event;

	/* Before a ready head, then before one in flight that fails or comes back. */
	add_many(schedule, 1, 10, 12);
	ok(add(schedule, 1, 5, 0) == SCHEDULE_DEFERRED && take(schedule) == NULL && counts_of(schedule).deferred == 4,
	   "a redriven event goes before a head that is ready");
	outbox_schedule_next_refill(schedule, 0, &refill);
	ok(refill.from_position == 5, "all are read again, from it on");
	outbox_schedule_refill_add(schedule, new_event(1, 5));
	refill_range(schedule, &refill, 10, 12, true, 0);
	ok(take_done(schedule, 0) == 5, "it is sent first");
	event = take(schedule);
	add(schedule, 1, 6, 0);
	ok(counts_of(schedule).held == 1 && !outbox_schedule_next_refill(schedule, 0, &refill),
	   "while a later event is in flight it isn't read");
	outbox_schedule_return(schedule, event);
	ok(take(schedule) == NULL && outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 6,
	   "it goes before one that was returned");
	outbox_schedule_refill_add(schedule, new_event(1, 6));
	refill_range(schedule, &refill, 10, 12, true, 0);
	ok(take_done(schedule, 0) == 6 && (event = take(schedule))->position == 10, "and then that goes");
	add(schedule, 1, 7, 0);
	outbox_schedule_retry(schedule, event, 1000, 4);
	ok(counts_of(schedule).waiting == 0 && outbox_schedule_next_refill(schedule, 0, &refill) &&
	   refill.from_position == 7, "it doesn't wait for the retry of a later one");
	outbox_schedule_refill_add(schedule, new_event(1, 7));
	refill_range(schedule, &refill, 10, 12, true, 0);
	ok(take_done(schedule, 0) == 7, "but goes at once");
	outbox_schedule_retry(schedule, take(schedule), 1000, 4);
	add(schedule, 1, 8, 0);
	ok(counts_of(schedule).waiting == 0 && outbox_schedule_next_refill(schedule, 0, &refill) &&
	   refill.from_position == 8, "nor for one that waits already");
	outbox_schedule_destroy(schedule);
}

static void
test_budget(void)
{
	ScheduleLimits limits = {.max_bytes = 2000, .max_queue = 100};
	Schedule   *schedule = outbox_schedule_create(&limits);
	ScheduleRefill refill;
	int			events = 0;

	while (outbox_schedule_has_room(schedule) && events < 100)
		add(schedule, 1, ++events, 0);
	ok(events == 19, "room for %d events of 100 bytes and a record", events);
	outbox_schedule_defer(schedule, 2, 200, 0);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "no refill without room");
	take_done(schedule, 0);
	take_done(schedule, 0);
	ok(outbox_schedule_has_room(schedule) && outbox_schedule_next_refill(schedule, 0, &refill), "and one with it");
	outbox_schedule_refill_end(schedule, 2, true, 0);
	while (take_done(schedule, 0) > 0)
		;
	ok(is_empty(schedule), "all bytes are given back");

	/* Records alone exceed the budget. */
	for (uint64_t aggregate = 0; aggregate < 100; aggregate++)
		outbox_schedule_defer(schedule, aggregate, 1, 0);
	events = 0;
	for (; outbox_schedule_next_refill(schedule, 0, &refill) && events < 100; events++)
		refill_range(schedule, &refill, 1, 1, true, 0);
	ok(!outbox_schedule_has_room(schedule) && events == 5,
	   "a quarter of the budget stays open to refills (%d events)", events);
	limits.max_bytes = 0;
	outbox_schedule_set_limits(schedule, &limits);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "none of an empty budget does");
	while (take_done(schedule, 0) > 0)
		;
	for (events = 5; outbox_schedule_next_refill(schedule, 0, &refill); events++)
	{
		refill_range(schedule, &refill, 1, 1, true, 0);
		take_done(schedule, 0);
	}
	ok(events == 100 && is_empty(schedule), "but one event at a time always gets through");
	outbox_schedule_destroy(schedule);
}

static void
test_oldest(void)
{
	Schedule   *schedule = new_schedule(2);
	SchedEvent *event;
	ScheduleRefill refill;

	ok(outbox_schedule_oldest(schedule) == INT64_MAX, "nothing is oldest in an empty schedule");
	add_many(schedule, 1, 5, 8);
	outbox_schedule_defer(schedule, 2, 6, 60);
	ok(outbox_schedule_oldest(schedule) == 50, "the oldest event may be in memory");
	event = take(schedule);
	ok(outbox_schedule_oldest(schedule) == 50, "or in flight");
	outbox_schedule_retry(schedule, event, 10, 1);
	ok(outbox_schedule_oldest(schedule) == 50, "or waiting");
	outbox_schedule_reread(schedule, 1);
	outbox_schedule_next_refill(schedule, 0, &refill);
	outbox_schedule_refill_end(schedule, refill.aggregate, refill.aggregate == 1, 0);
	outbox_schedule_next_refill(schedule, 0, &refill);
	outbox_schedule_refill_end(schedule, refill.aggregate, refill.aggregate == 1, 0);
	ok(outbox_schedule_oldest(schedule) == 60, "or deferred");
	outbox_schedule_destroy(schedule);
}

/* What is scheduled for later isn't late; what has failed, or whose time has come, is. created = time + 1000. */
static void
test_oldest_due(void)
{
	Schedule   *schedule = new_schedule(2);
	SchedEvent *event = new_event(1, 1);

	ok(outbox_schedule_oldest_due(schedule, 0, 1000) == INT64_MAX, "nothing is due in an empty schedule");
	event->created = 1001;
	event->not_before = 500;
	outbox_schedule_add(schedule, event, 10);
	ok(outbox_schedule_oldest_due(schedule, 499, 1000) == INT64_MAX, "nor before its not_before");
	add_many(schedule, 2, 5, 8);
	ok(outbox_schedule_oldest_due(schedule, 499, 1000) == 50, "others are due since they were enqueued");
	event = take(schedule);
	outbox_schedule_retry(schedule, event, 9999, 1);
	ok(outbox_schedule_oldest_due(schedule, 499, 1000) == 50, "also while they wait for a retry");
	outbox_schedule_destroy(schedule);

	schedule = new_schedule(2);
	event = new_event(1, 1);
	event->created = 1001;
	event->not_before = 500;
	outbox_schedule_add(schedule, event, 600);
	ok(outbox_schedule_oldest_due(schedule, 700, 1000) == 1500, "a scheduled one since then");
	outbox_schedule_destroy(schedule);
}

static bool
same_counts(ScheduleCounts a, ScheduleCounts b)
{
	return a.held == b.held && a.in_flight == b.in_flight && a.deferred == b.deferred &&
		a.aggregates == b.aggregates && a.waiting == b.waiting && a.bytes == b.bytes;
}

static void
test_no_memory(void)
{
	Schedule   *schedule;
	bool		clean = true;
	int			refused = 0;

	for (int n = 0; n < 2; n++)
	{
		allocations_left = n;
		schedule = new_schedule(4);
		clean &= schedule == NULL;
	}
	allocations_left = -1;
	ok(clean, "creation without memory gives NULL");

	/* Enough aggregates for the heaps and the table to grow a few times. */
	schedule = new_schedule(4);
	for (int64_t i = 1; i <= 3000; i++)
	{
		SchedEvent *event = new_event((uint64_t) i, i);
		ScheduleCounts before = counts_of(schedule);

		allocations_left = 0;
		clean &= outbox_schedule_add(schedule, event, 0) == SCHEDULE_NO_MEMORY &&
			!outbox_schedule_defer(schedule, (uint64_t) i, i, 0) &&
			!outbox_schedule_wait(schedule, (uint64_t) i, i, 0, 9, 1) &&
			!outbox_schedule_would_defer(schedule, (uint64_t) i) &&
			same_counts(before, counts_of(schedule));
		allocations_left = 1;
		if (outbox_schedule_add(schedule, event, 0) == SCHEDULE_NO_MEMORY)
		{
			refused++;
			allocations_left = 1;	/* for the record; the table can't grow */
			clean &= same_counts(before, counts_of(schedule)) &&
				outbox_schedule_add(schedule, event, 0) == SCHEDULE_QUEUED;
		}
		allocations_left = 0;	/* with the record there, the rest needs none */
		if (i % 2 == 0)
			outbox_schedule_retry(schedule, take(schedule), i, 1);
		else
			outbox_schedule_return(schedule, take(schedule));
		allocations_left = -1;
	}
	ok(clean, "without memory nothing changes");
	ok(refused >= 4, "also where a heap would have to grow (%d times)", refused);
	ok(counts_of(schedule).waiting == 1500 && counts_of(schedule).held == 1500, "everything else goes on");

	allocations_left = 0;
	for (int i = 0; i < 1500; i++)
		clean &= take_done(schedule, 0) > 0;
	allocations_left = -1;
	ok(clean && counts_of(schedule).aggregates == 1500, "also shrinking without memory");
	outbox_schedule_destroy(schedule);
}

/* ---------- back-off ---------- */

static void
test_backoff_table(void)
{
	static const struct
	{
		int32_t		attempts;
		int64_t		base;
		int64_t		max;
		double		jitter;
		int64_t		delay;
	}			cases[] = {
		{1, SECOND, 600 * SECOND, 0, SECOND},
		{2, SECOND, 600 * SECOND, 0, 2 * SECOND},
		{10, SECOND, 600 * SECOND, 0, 512 * SECOND},
		{11, SECOND, 600 * SECOND, 0, 600 * SECOND},
		{INT32_MAX, SECOND, 600 * SECOND, 0, 600 * SECOND},
		{1, SECOND, 600 * SECOND, 0.5, SECOND - SECOND / 8},
		{2, 1000, 5000, 0.4, 1800},
		{3, 1000, 4000, 0, 4000},
		{3, 1000, 3999, 0, 3999},
		{1, 1000, 10, 0, 10},
		{0, 1000, 5000, 0, 1000},
		{INT32_MIN, 1000, 5000, 0, 1000},
		{1, 1, 1, 0.999, 1},
		{62, 1, INT64_MAX, 0, INT64_C(1) << 61},
		{63, 1, INT64_MAX, 0, INT64_C(1) << 62},
		{64, 1, INT64_MAX, 0, INT64_MAX},
		{65, 1, INT64_MAX, 0, INT64_MAX},
		{3, INT64_MAX / 2, INT64_MAX, 0, INT64_MAX},
		{1, INT64_MAX, INT64_MAX, 0, INT64_MAX},
		{2, 315360000 * SECOND, INT64_MAX, 0, 630720000 * SECOND},
		{5, 0, 100, 0, 16},
		{5, -7, 100, 0, 16},
		{5, 1000, 0, 0.5, 1},
		{5, 1000, INT64_MIN, 0.5, 1},
		{1, 1000, 5000, -3, 1000},
		{1, 1000, 5000, 7, 750},
		{1, 1000, 5000, NAN, 1000},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		int64_t		delay = outbox_schedule_backoff(cases[i].attempts, cases[i].base, cases[i].max, cases[i].jitter);

		ok(delay == cases[i].delay, "back-off %zu: attempts %d, base %lld, max %lld, jitter %g: %lld", i,
		   cases[i].attempts, (long long) cases[i].base, (long long) cases[i].max, cases[i].jitter,
		   (long long) delay);
	}
}

static void
test_backoff_random(void)
{
	int			wrong = 0;

	random_state = 1;
	for (int run = 0; run < 20000; run++)
	{
		int64_t		base = 1 + (int64_t) ((next_random() >> 1) >> below(63));
		int64_t		max = 1 + (int64_t) ((next_random() >> 2) >> below(62));
		double		jitter = (double) (next_random() >> 11) / (double) (UINT64_C(1) << 53);
		int64_t		previous = 0;
		int64_t		smallest = 0;

		for (int32_t attempts = 1; attempts <= 70; attempts++)
		{
			int64_t		delay = outbox_schedule_backoff(attempts, base, max, jitter);
			int64_t		fully = outbox_schedule_backoff(attempts, base, max, 0);

			/* Up to three quarters are left, rounded down to what a double can tell apart. */
			wrong += delay < 1 || delay > max || delay > fully || delay < previous || delay < smallest;
			wrong += (double) delay < (double) fully * 0.75 - 1 - (double) fully * 1e-15;
			previous = delay;
			smallest = outbox_schedule_backoff(attempts, base, max, 1);
		}
	}
	ok(wrong == 0, "back-off stays within its bounds and doesn't sink (%d wrong)", wrong);
}

int
main(void)
{
	test_order_in_aggregate();
	test_aggregates_are_independent();
	test_return();
	test_urgency();
	test_priority_ages();
	test_queue_limit();
	test_refill_corners();
	test_queue_of_one();
	test_refills_take_turns();
	test_retry();
	test_retry_now();
	test_hold_and_skip();
	test_not_before();
	test_many_waits();
	test_wait_at_start();
	test_redriven();
	test_budget();
	test_oldest();
	test_oldest_due();
	test_no_memory();
	test_backoff_table();
	test_backoff_random();
	return unit_done();
}
