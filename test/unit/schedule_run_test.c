/*
 * schedule_run_test.c
 *	  The rules of schedule.h for runs: several events in flight with one outcome.
 */
#include "schedule_fixture.h"

static void
test_run(void)
{
	Schedule   *schedule = new_schedule(8);
	SchedEvent *first;
	SchedEvent *second;
	ScheduleRefill refill;

	add_many(schedule, 7, 1, 6);
	add(schedule, 9, 100, 0);
	first = take(schedule);
	second = outbox_schedule_behind(first);
	ok(first->position == 1 && second->position == 2 && outbox_schedule_held(schedule, first) == 6, "what is behind a head can be seen");
	outbox_schedule_take_run(schedule, first, 4);
	ok(counts_of(schedule).in_flight == 4 && take(schedule)->position == 100 && take(schedule) == NULL,
	   "a run is in flight as a whole, and others go on");
	outbox_schedule_done(schedule, first, 0);
	ok(take(schedule) == NULL && counts_of(schedule).in_flight == 4, "its successor waits for all of it");
	outbox_schedule_return(schedule, second);
	first = take(schedule);
	ok(first == second && counts_of(schedule).held == 6 && counts_of(schedule).in_flight == 2, "what is returned goes again, from its first on");

	outbox_schedule_take_run(schedule, first, 3);
	outbox_schedule_retry(schedule, first, 5 * SECOND, 1);
	ok(counts_of(schedule).deferred == 5 && counts_of(schedule).in_flight == 1 && outbox_schedule_next_timer(schedule) == 5 * SECOND,
	   "one that is to be retried is forgotten like a single event");
	ok(outbox_schedule_next_refill(schedule, 5 * SECOND, &refill) && refill.from_position == 2, "and read again from its first");
	refill_range(schedule, &refill, 2, 6, true, 5 * SECOND);
	first = outbox_schedule_next(schedule, 5 * SECOND);
	ok(first->position == 2 && first->failures == 1 && outbox_schedule_behind(first)->failures == 0, "whose failure is remembered");
	outbox_schedule_destroy(schedule);
}

/* While a run is with the broker, what follows it is read. */
static void
test_run_refill(void)
{
	Schedule   *schedule = new_schedule(8);
	SchedEvent *first;
	ScheduleRefill refill;

	add_many(schedule, 7, 1, 20);
	first = take(schedule);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "a full queue isn't refilled");
	outbox_schedule_take_run(schedule, first, 6);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "nor behind a run while there are others");
	outbox_schedule_return(schedule, first);
	outbox_schedule_take_run(schedule, take(schedule), 8);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "nor one that the run fills");
	outbox_schedule_done(schedule, first, 0);
	ok(!outbox_schedule_next_refill(schedule, 0, &refill), "or nearly");
	outbox_schedule_destroy(schedule);

	schedule = new_schedule(8);
	add_many(schedule, 7, 1, 6);
	add_many(schedule, 7, 11, 20);
	first = take(schedule);
	outbox_schedule_done(schedule, first, 0);
	first = take(schedule);
	outbox_schedule_done(schedule, first, 0);
	first = take(schedule);
	outbox_schedule_take_run(schedule, first, 6);
	ok(outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 13 && refill.max_events == 2,
	   "but one with room, for what comes after the run");
	refill_range(schedule, &refill, 13, 14, false, 0);
	outbox_schedule_defer(schedule, 7, 5, 0);
	ok(counts_of(schedule).held == 6 && !outbox_schedule_next_refill(schedule, 0, &refill),
	   "an event that comes in before the last of a run sends back what follows the run, and waits for it");
	outbox_schedule_return(schedule, first);
	ok(counts_of(schedule).held == 0 && outbox_schedule_next_refill(schedule, 0, &refill) && refill.from_position == 3,
	   "a run that is returned then is read again with it");
	outbox_schedule_refill_end(schedule, 7, false, 0);
	outbox_schedule_destroy(schedule);
}

int
main(void)
{
	test_run();
	test_run_refill();
	return unit_done();
}
