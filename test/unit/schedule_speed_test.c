/*
 * schedule_speed_test.c
 *	  A schedule of a million aggregates, and of a million events. Timings are
 *	  printed, not tested; "make bench" prints those without sanitizers.
 */
#include <time.h>

#include "schedule_fixture.h"

static double
seconds(void)
{
	struct timespec time;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
	return (double) time.tv_sec + (double) time.tv_nsec / 1e9;
}

/* What the calls themselves cost: malloc of an event is the caller's, its free isn't. */
static void
test_million_aggregates(void)
{
	enum
	{
		N = 1000000
	};
	ScheduleLimits limits = {.max_bytes = (size_t) 1 << 40, .max_queue = 100};
	Schedule   *schedule = outbox_schedule_create(&limits);
	SchedEvent **events = malloc(N * sizeof(SchedEvent *));
	double		start;
	double		added;
	double		taken;
	size_t		bytes;
	int64_t		sum = 0;

	for (int i = 0; i < N; i++)
		events[i] = new_event(mix((uint64_t) i), i + 1);
	start = seconds();
	for (int i = 0; i < N; i++)
		outbox_schedule_add(schedule, events[i], i / 50);
	added = seconds();
	bytes = counts_of(schedule).bytes - (size_t) N * 100;
	for (int i = 0; i < N; i++)
		sum += take_done(schedule, N);
	taken = seconds();
	ok(sum == (int64_t) N * (N + 1) / 2 && is_empty(schedule), "a million aggregates with one event each are sent");
	diag("a million aggregates: add %.0f ns, next and done %.0f ns, record %zu bytes",
		 (added - start) * 1e9 / N, (taken - added) * 1e9 / N, bytes / N);

	/* The same with all waiting at once, as after an outage. */
	for (int i = 0; i < N; i++)
		outbox_schedule_wait(schedule, mix((uint64_t) i), i + 1, 0, 1 + (int64_t) (mix((uint64_t) i) % N), 1);
	start = seconds();
	outbox_schedule_end_waits(schedule);
	diag("retry_now of a million waits: %.0f ms", (seconds() - start) * 1e3);
	ok(counts_of(schedule).waiting == 0, "a million waits end");
	outbox_schedule_destroy(schedule);
	free(events);
}

static void
test_hot_aggregates(void)
{
	enum
	{
		N = 1000000, AGGREGATES = 10000, IN_FLIGHT = 4000
	};
	ScheduleLimits limits = {.max_bytes = (size_t) 1 << 40, .max_queue = 1000};
	Schedule   *schedule = outbox_schedule_create(&limits);
	SchedEvent **in_flight = malloc(IN_FLIGHT * sizeof(SchedEvent *));
	double		start;
	double		added;
	int			out = 0;
	int			count = 0;

	start = seconds();
	for (int i = 0; i < N; i++)
		outbox_schedule_add(schedule, new_event(mix((uint64_t) i % AGGREGATES), i + 1), 0);
	added = seconds();
	for (int64_t now = 1; count < N; now++)
	{
		SchedEvent *event = NULL;

		while (out < IN_FLIGHT && (event = outbox_schedule_next(schedule, now)) != NULL)
			in_flight[out++] = event;
		for (; out > 0 && (out > IN_FLIGHT / 2 || event == NULL); count++)
			outbox_schedule_done(schedule, in_flight[--out], now);
	}
	ok(is_empty(schedule), "a million events of %d aggregates are sent", AGGREGATES);
	diag("%d aggregates: add with malloc %.0f ns, next and done %.0f ns", AGGREGATES, (added - start) * 1e9 / N,
		 (seconds() - added) * 1e9 / N);
	outbox_schedule_destroy(schedule);
	free(in_flight);
}

int
main(void)
{
	test_million_aggregates();
	test_hot_aggregates();
	return unit_done();
}
