/*
 * schedule_model_test.c
 *	  Random runs of a schedule against a model.
 *
 * A small log of events is driven through a schedule by random calls, and
 * everything the schedule says is compared with a model. The model is naive:
 * it keeps arrays, and finds the next head or refill by looking at all
 * aggregates. Three checks don't rely on it but on the log alone: no event is
 * given while a known earlier one of its aggregate isn't settled; none is
 * given twice; and when the run ends every event was sent.
 */
#include "schedule_fixture.h"

#define MAX_EVENTS 120
#define MAX_AGGREGATES 8

typedef struct LogEvent
{
	int			aggregate;
	int64_t		position;
	int64_t		not_before;
	int64_t		given_not_before;	/* that of its copy in the schedule */
	int32_t		attempts;		/* the expected ones, when it is next given */
	int16_t		priority;
	bool		known;			/* the schedule was told of it */
	bool		settled;
	bool		settled_deferred; /* while the schedule counted it as deferred */
	SchedEvent *in_flight;
} LogEvent;

typedef enum ModelState
{
	MODEL_NONE, MODEL_EMPTY, MODEL_READY, MODEL_IN_FLIGHT, MODEL_WAITING
} ModelState;

typedef struct ModelAggregate
{
	ModelState	state;
	int			held[MAX_EVENTS];	/* indexes into the log */
	int			n_held;
	int			n_sent;			/* in flight: so many of the first ones held */
	int64_t		deferred;
	int64_t		deferred_from;
	int64_t		key;			/* ready: urgency; waiting: until */
	bool		retry_wait;
	int32_t		attempts;
} ModelAggregate;

typedef struct Run
{
	Schedule   *schedule;
	ScheduleLimits limits;
	LogEvent	log[MAX_EVENTS];
	int			n_events;
	ModelAggregate model[MAX_AGGREGATES];
	int			n_aggregates;
	int64_t		now;
	uint64_t	seed;
	int			step;
	bool		wrong;
	int64_t		sent;
} Run;

/* The first thing wrong in a run is reported; the run ends there. */
#define expect(run, condition) expect_that(run, condition, #condition, __LINE__)

static void
expect_that(Run *run, bool condition, const char *text, int line)
{
	if (condition || run->wrong)
		return;
	run->wrong = true;
	diag("seed %llu, step %d, line %d: not true: %s", (unsigned long long) run->seed, run->step, line, text);
}

static uint64_t
key_of(int aggregate)
{
	/* Some keys that share their low or their high bits. */
	return aggregate < 3 ? (uint64_t) aggregate << 61 : aggregate < 5 ? (uint64_t) aggregate : mix((uint64_t) aggregate);
}

static int
aggregate_of(const Run *run, uint64_t key)
{
	for (int i = 0; i < run->n_aggregates; i++)
		if (key_of(i) == key)
			return i;
	return -1;
}

static SchedEvent *
build_event(Run *run, int index)
{
	LogEvent   *entry = &run->log[index];
	SchedEvent *event = new_event(key_of(entry->aggregate), entry->position);

	entry->given_not_before = entry->not_before;
	event->not_before = entry->not_before;
	event->priority = entry->priority;
	return event;
}

/* The model's own rules, as schedule.h words them. */

static bool
model_would_defer(const Run *run, const ModelAggregate *aggregate)
{
	return aggregate->deferred > 0 || aggregate->n_held >= run->limits.max_queue;
}

static void
model_count_deferred(Run *run, ModelAggregate *aggregate, int64_t position)
{
	aggregate->deferred++;
	if (position < aggregate->deferred_from)
		aggregate->deferred_from = position;
	(void) run;
}

static int
model_sent(const ModelAggregate *aggregate)
{
	return aggregate->state == MODEL_IN_FLIGHT ? aggregate->n_sent : 0;
}

static void
model_forget(Run *run, ModelAggregate *aggregate, int keep)
{
	for (int i = keep; i < aggregate->n_held; i++)
		model_count_deferred(run, aggregate, run->log[aggregate->held[i]].position);
	if (aggregate->n_held > keep)
		aggregate->n_held = keep;
}

static void
model_wait(ModelAggregate *aggregate, int64_t until, int32_t attempts, bool retry)
{
	aggregate->state = MODEL_WAITING;
	aggregate->key = until;
	aggregate->attempts = attempts;
	aggregate->retry_wait = retry;
}

static void
model_start_head(Run *run, ModelAggregate *aggregate)
{
	LogEvent   *head = &run->log[aggregate->held[0]];

	if (head->given_not_before > run->now)
	{
		model_forget(run, aggregate, 0);
		model_wait(aggregate, head->given_not_before, head->attempts, false);
		return;
	}
	aggregate->state = MODEL_READY;
	aggregate->key = run->now - head->priority * SECOND;
}

static void
model_defer(Run *run, ModelAggregate *aggregate, int64_t position)
{
	bool		first = position < aggregate->deferred_from;

	if (aggregate->state == MODEL_NONE)
		aggregate->state = MODEL_EMPTY;
	if (aggregate->n_held > 0 && position < run->log[aggregate->held[aggregate->n_held - 1]].position)
	{
		model_forget(run, aggregate, model_sent(aggregate));
		if (aggregate->state == MODEL_READY)
			aggregate->state = MODEL_EMPTY;
	}
	model_count_deferred(run, aggregate, position);
	if (first)
		aggregate->attempts = 0;
	if (first && aggregate->state == MODEL_WAITING)
		aggregate->state = MODEL_EMPTY;
}

static void
model_reread(Run *run, ModelAggregate *aggregate)
{
	if (aggregate->state == MODEL_NONE)
		return;
	model_forget(run, aggregate, model_sent(aggregate));
	if (aggregate->state != MODEL_IN_FLIGHT)
		aggregate->state = MODEL_EMPTY;
}

static void
model_reset(ModelAggregate *aggregate)
{
	memset(aggregate, 0, sizeof(*aggregate));
	aggregate->deferred_from = INT64_MAX;
}

static bool
model_wants_refill(const Run *run, const ModelAggregate *aggregate)
{
	int			low = run->limits.max_queue / 4;
	int			sent = model_sent(aggregate);
	int			counted = aggregate->n_held - (sent > 1 ? sent - 1 : 0);

	return aggregate->deferred > 0 && counted <= low && run->limits.max_queue - aggregate->n_held >= (low > 0 ? low : 1) &&
		aggregate->state != MODEL_WAITING &&
		!(sent > 0 && aggregate->deferred_from < run->log[aggregate->held[aggregate->n_held - 1]].position);
}

/* What the schedule reports must be what the model knows, after every step. */
static void
compare_counts(Run *run)
{
	ScheduleCounts expected = {0};
	ScheduleCounts counts = counts_of(run->schedule);
	bool		ready = false;

	for (int i = 0; i < run->n_aggregates; i++)
	{
		const ModelAggregate *aggregate = &run->model[i];

		expected.held += aggregate->n_held;
		expected.in_flight += model_sent(aggregate);
		expected.deferred += aggregate->deferred;
		expected.aggregates += aggregate->state != MODEL_NONE;
		expected.waiting += aggregate->state == MODEL_WAITING;
		ready |= aggregate->state == MODEL_READY;
		expect(run, outbox_schedule_would_defer(run->schedule, key_of(i)) == model_would_defer(run, aggregate));
	}
	expect(run, counts.held == expected.held);
	expect(run, counts.in_flight == expected.in_flight);
	expect(run, counts.deferred == expected.deferred);
	expect(run, counts.aggregates == expected.aggregates);
	expect(run, counts.waiting == expected.waiting);
	expect(run, counts.bytes >= (size_t) (100 * expected.held) && (counts.bytes > 0) == (expected.aggregates > 0));
	expect(run, outbox_schedule_has_ready(run->schedule) == ready);
	expect(run, outbox_schedule_has_room(run->schedule) == (counts.bytes < run->limits.max_bytes));
}

/* The steps. */

static void
step_append(Run *run)
{
	LogEvent   *entry = &run->log[run->n_events];
	int64_t		last = run->n_events > 0 ? entry[-1].position : 0;

	if (run->n_events == MAX_EVENTS)
		return;
	memset(entry, 0, sizeof(*entry));
	entry->aggregate = one_in(2) ? 0 : below(run->n_aggregates);	/* one is hot */
	entry->position = last + 1 + below(3);
	entry->priority = one_in(3) ? (int16_t) (below(201) - 100) : 0;
	if (one_in(8))
		entry->not_before = one_in(5) ? INT64_MAX : run->now + below(200) * SECOND;
	run->n_events++;
}

/* Tells the schedule of an event it doesn't know: by add, defer or wait. */
static void
tell(Run *run, int index)
{
	LogEvent   *entry = &run->log[index];
	ModelAggregate *aggregate = &run->model[entry->aggregate];
	uint64_t	key = key_of(entry->aggregate);
	bool		defers = model_would_defer(run, aggregate) ||
		(aggregate->n_held > 0 && entry->position < run->log[aggregate->held[aggregate->n_held - 1]].position);
	bool		refused = aggregate->state == MODEL_NONE && one_in(10);
	int			how = one_in(8) ? 2 : defers && one_in(2) ? 1 : one_in(40) ? 1 : 0;
	SchedEvent *event = how == 0 ? build_event(run, index) : NULL;
	int64_t		first = aggregate->deferred_from;
	int64_t		until = run->now + below(30) * SECOND;
	int32_t		attempts = 1 + below(5);
	ScheduleAdd result = SCHEDULE_DEFERRED;

	if (aggregate->n_held > 0 && run->log[aggregate->held[0]].position < first)
		first = run->log[aggregate->held[0]].position;
	allocations_left = refused ? 0 : -1;
	if (how == 0)
		result = outbox_schedule_add(run->schedule, event, run->now);
	else if (how == 1 && !outbox_schedule_defer(run->schedule, key, entry->position, entry->position * 10))
		result = SCHEDULE_NO_MEMORY;
	else if (how == 2 && !outbox_schedule_wait(run->schedule, key, entry->position, 0, until, attempts))
		result = SCHEDULE_NO_MEMORY;
	allocations_left = -1;

	expect(run, (result == SCHEDULE_NO_MEMORY) == refused);
	if (result == SCHEDULE_NO_MEMORY)
	{
		free(event);
		return;
	}
	entry->known = true;
	entry->attempts = 0;
	if (how != 0 || defers)
	{
		expect(run, result == SCHEDULE_DEFERRED);
		model_defer(run, aggregate, entry->position);
		if (how == 2 && entry->position < first && aggregate->state == MODEL_EMPTY)
			model_wait(aggregate, until, attempts, false);
		return;
	}
	aggregate->held[aggregate->n_held++] = index;
	if (aggregate->state == MODEL_NONE)
		model_start_head(run, aggregate);
	expect(run, result == (aggregate->state == MODEL_WAITING ? SCHEDULE_DEFERRED : SCHEDULE_QUEUED));
}

/* The earliest unknown event of a random aggregate that has one. */
static void
step_tell(Run *run)
{
	int			wanted = below(run->n_aggregates);

	for (int i = 0; i < run->n_events; i++)
	{
		if (!run->log[i].known && !run->log[i].settled && run->log[i].aggregate == wanted)
		{
			tell(run, i);
			return;
		}
	}
}

static int
index_of(const Run *run, int64_t position)
{
	for (int i = 0; i < run->n_events; i++)
		if (run->log[i].position == position)
			return i;
	return -1;
}

static void
step_next(Run *run)
{
	SchedEvent *event = outbox_schedule_next(run->schedule, run->now);
	ModelAggregate *best = NULL;
	LogEvent   *entry;
	int			index;

	for (int i = 0; i < run->n_aggregates; i++)
	{
		ModelAggregate *aggregate = &run->model[i];

		if (aggregate->state == MODEL_READY &&
			(best == NULL || aggregate->key < best->key ||
			 (aggregate->key == best->key && aggregate->held[0] < best->held[0])))
			best = aggregate;
	}
	expect(run, (event == NULL) == (best == NULL));
	if (event == NULL || best == NULL)
		return;

	index = index_of(run, event->position);
	entry = &run->log[index];
	expect(run, index == best->held[0]);
	expect(run, event->failures == entry->attempts);
	expect(run, !entry->settled && entry->in_flight == NULL && entry->given_not_before <= run->now);
	for (int i = 0; i < run->n_events; i++)
	{
		if (run->log[i].aggregate == entry->aggregate)
			expect(run, run->log[i].in_flight == NULL &&
				   (i >= index || !run->log[i].known || run->log[i].settled));
	}
	expect(run, outbox_schedule_held(run->schedule, event) == best->n_held);
	best->state = MODEL_IN_FLIGHT;
	best->n_sent = 1;
	for (int wanted = one_in(2) ? 1 : 1 + below(best->n_held); best->n_sent < wanted; best->n_sent++)
		if (run->log[best->held[best->n_sent]].given_not_before > run->now)
			break;
	if (best->n_sent > 1)
		outbox_schedule_take_run(run->schedule, event, best->n_sent);
	for (int i = 0; i < best->n_sent; i++)
	{
		entry = &run->log[best->held[i]];
		expect(run, event != NULL && event->position == entry->position && entry->in_flight == NULL);
		entry->in_flight = event;
		event = outbox_schedule_behind(event);
	}
}

/* Done: the first event in flight of an aggregate. */
static void
settle_first(Run *run, ModelAggregate *aggregate)
{
	LogEvent   *entry = &run->log[aggregate->held[0]];

	outbox_schedule_done(run->schedule, entry->in_flight, run->now);
	entry->in_flight = NULL;
	entry->settled = true;
	run->sent++;
	memmove(aggregate->held, aggregate->held + 1, sizeof(int) * (size_t) --aggregate->n_held);
	if (--aggregate->n_sent > 0)
		return;
	aggregate->state = MODEL_EMPTY;
	if (aggregate->n_held > 0)
		model_start_head(run, aggregate);
	else if (aggregate->deferred == 0)
		model_reset(aggregate);
}

/* An outcome for the events in flight of a random aggregate: some done, or all taken back. */
static void
step_outcome(Run *run, bool only_done)
{
	int			chosen = -1;
	int			seen = 0;
	int			sent;
	LogEvent   *entry;
	ModelAggregate *aggregate;

	for (int i = 0; i < run->n_aggregates; i++)
		if (run->model[i].state == MODEL_IN_FLIGHT && one_in(++seen))
			chosen = i;
	if (chosen < 0)
		return;
	aggregate = &run->model[chosen];
	entry = &run->log[aggregate->held[0]];
	sent = aggregate->n_sent;

	if (only_done || !one_in(3))
	{
		for (int left = one_in(4) ? 1 + below(sent) : sent; left > 0; left--)
			settle_first(run, aggregate);
		return;
	}
	for (int i = 1; i < sent; i++)
		run->log[aggregate->held[i]].in_flight = NULL;
	if (one_in(2))
	{
		int64_t		until = one_in(10) ? INT64_MAX : run->now + (below(30) - 3) * SECOND;
		bool		still_head = entry->position < aggregate->deferred_from;
		bool		hold = one_in(8);
		bool		postpone = !hold && one_in(3);

		if (hold)
			outbox_schedule_hold(run->schedule, entry->in_flight);
		else if (postpone)
			outbox_schedule_postpone(run->schedule, entry->in_flight, until, entry->attempts + 1);
		else
			outbox_schedule_retry(run->schedule, entry->in_flight, until, entry->attempts + 1);
		aggregate->state = MODEL_EMPTY;
		model_forget(run, aggregate, 0);
		if (still_head && hold)
			model_wait(aggregate, INT64_MAX, 0, false);
		else if (still_head)
			model_wait(aggregate, until, entry->attempts + 1, !postpone);
	}
	else
	{
		bool		still_head = run->log[aggregate->held[sent - 1]].position < aggregate->deferred_from;

		outbox_schedule_return(run->schedule, entry->in_flight);
		aggregate->state = still_head ? MODEL_READY : MODEL_EMPTY;
		if (!still_head)
			model_forget(run, aggregate, 0);
	}
	entry->in_flight = NULL;
}

/* Answers one refill as a caller would who reads its aggregate's open events from the log. */
static void
answer_refill(Run *run, const ScheduleRefill *refill)
{
	int			number = aggregate_of(run, refill->aggregate);
	ModelAggregate *aggregate = &run->model[number];
	int			limit = one_in(4) ? below(refill->max_events + 1) : refill->max_events;
	int			added = 0;
	int			found = 0;
	bool		exhausted = true;
	int			last = -1;

	for (int i = 0; i < run->n_events; i++)
	{
		LogEvent   *entry = &run->log[i];

		if (entry->aggregate != number || entry->position < refill->from_position)
			continue;
		if (entry->settled)
		{
			/* A reader may look at it, or not come by it at all. */
			if (!entry->known || one_in(2))
				continue;
			outbox_schedule_refill_skip(run->schedule, entry->position, 0, entry->settled_deferred);
			found += entry->settled_deferred;
			last = i;
			continue;
		}
		if (added == limit)
		{
			exhausted = false;
			break;
		}
		entry->known = true;
		entry->attempts = aggregate->state == MODEL_EMPTY && entry->position == aggregate->deferred_from ?
			aggregate->attempts : 0;
		expect(run, outbox_schedule_refill_add(run->schedule, build_event(run, i)) == SCHEDULE_QUEUED);
		aggregate->held[aggregate->n_held++] = last = i;
		added++;
		found++;
	}
	if (added == limit && one_in(2))
		exhausted = false;		/* a read with LIMIT can't tell */
	outbox_schedule_refill_end(run->schedule, refill->aggregate, exhausted, run->now);

	if (exhausted)
	{
		aggregate->deferred = 0;
		aggregate->deferred_from = INT64_MAX;
	}
	else if (last >= 0)
	{
		aggregate->deferred = aggregate->deferred > found ? aggregate->deferred - found : 1;
		aggregate->deferred_from = run->log[last].position + 1;
	}
	if (exhausted || last >= 0)
		aggregate->attempts = 0;
	if (aggregate->state == MODEL_EMPTY && aggregate->n_held > 0)
		model_start_head(run, aggregate);
	else if (aggregate->state == MODEL_EMPTY && aggregate->deferred == 0)
		model_reset(aggregate);
}

static void
step_refill(Run *run)
{
	ScheduleRefill refill;
	ScheduleCounts counts = counts_of(run->schedule);
	bool		wanted = false;
	bool		given = outbox_schedule_next_refill(run->schedule, run->now, &refill);
	int64_t		timer = INT64_MAX;

	for (int i = 0; i < run->n_aggregates; i++)
	{
		ModelAggregate *aggregate = &run->model[i];

		if (aggregate->state == MODEL_WAITING && aggregate->key <= run->now)
			aggregate->state = MODEL_EMPTY;
		if (aggregate->state == MODEL_WAITING && aggregate->key < timer)
			timer = aggregate->key;
		wanted |= model_wants_refill(run, aggregate);
	}
	expect(run, outbox_schedule_next_timer(run->schedule) == timer);

	/* Without room it may go either way, but never stops while nothing is held. */
	if (counts.bytes < run->limits.max_bytes || counts.held == 0)
		expect(run, given == wanted);
	expect(run, wanted || !given);
	if (given)
	{
		int			number = aggregate_of(run, refill.aggregate);

		expect(run, number >= 0);
		if (number < 0)
			return;
		expect(run, model_wants_refill(run, &run->model[number]));
		expect(run, refill.from_position == run->model[number].deferred_from);
		expect(run, refill.max_events == run->limits.max_queue - run->model[number].n_held);
		if (!run->wrong)
			answer_refill(run, &refill);
	}
}

/* Somebody else settles a deferred event, redrives a settled one, or ends waits. */
static void
step_operator(Run *run)
{
	int			number = below(run->n_aggregates);
	int			index = run->n_events > 0 ? below(run->n_events) : 0;
	LogEvent   *entry = &run->log[index];
	ModelAggregate *aggregate = &run->model[entry->aggregate];
	bool		held = false;

	for (int i = 0; i < aggregate->n_held; i++)
		held |= aggregate->held[i] == index;
	switch (below(5))
	{
		case 0:
			outbox_schedule_retry_now(run->schedule);
			for (int i = 0; i < run->n_aggregates; i++)
				if (run->model[i].state == MODEL_WAITING && run->model[i].retry_wait)
					run->model[i].state = MODEL_EMPTY;
			break;
		case 1:
			outbox_schedule_reread(run->schedule, key_of(number));
			model_reread(run, &run->model[number]);
			break;
		case 2:
			run->limits.max_queue = 1 + below(12);
			run->limits.max_bytes = (size_t) below(3000);
			outbox_schedule_set_limits(run->schedule, &run->limits);
			break;
		case 3:
			if (run->n_events > 0 && entry->known && !entry->settled && !held)
				entry->settled = entry->settled_deferred = true;
			break;
		case 4:
			if (run->n_events > 0 && entry->settled)
			{
				entry->settled = entry->settled_deferred = false;
				entry->known = false;
				tell(run, index);
			}
			break;
	}
}

/* Calls without new events until all is sent. What waits for ever is woken. */
static void
drain(Run *run)
{
	for (int i = 0; i < run->n_events; i++)
	{
		while (!run->log[i].known && !run->log[i].settled)
			tell(run, i);
		run->log[i].not_before = 0;
	}
	run->limits.max_bytes /= 2;
	outbox_schedule_set_limits(run->schedule, &run->limits);
	for (int left = 4000; left > 0 && !run->wrong; left--)
	{
		ScheduleCounts counts = counts_of(run->schedule);

		if (counts.aggregates == 0)
			break;
		run->step++;
		if (counts.waiting == counts.aggregates)
		{
			for (int i = 0; i < run->n_aggregates && outbox_schedule_next_timer(run->schedule) == INT64_MAX; i++)
			{
				outbox_schedule_reread(run->schedule, key_of(i));
				model_reread(run, &run->model[i]);
			}
			if (outbox_schedule_next_timer(run->schedule) < INT64_MAX)
				run->now = outbox_schedule_next_timer(run->schedule);
		}
		step_refill(run);
		step_next(run);
		step_outcome(run, true);
		compare_counts(run);
	}
	expect(run, is_empty(run->schedule));
	for (int i = 0; i < run->n_events; i++)
		expect(run, run->log[i].settled);
}

/* Returns whether all was as expected. */
static bool
random_run(Run *run, uint64_t seed)
{
	memset(run, 0, sizeof(*run));
	random_state = mix(seed);
	run->seed = seed;
	run->now = SECOND;
	run->n_aggregates = 1 + below(MAX_AGGREGATES);
	run->limits.max_queue = 1 + below(12);
	run->limits.max_bytes = one_in(2) ? 1 << 20 : (size_t) below(3000);
	run->schedule = outbox_schedule_create(&run->limits);
	for (int i = 0; i < run->n_aggregates; i++)
		model_reset(&run->model[i]);

	for (; run->step < 400 && !run->wrong; run->step++)
	{
		switch (below(9))
		{
			case 0:
			case 1:
				step_append(run);
				break;
			case 2:
			case 3:
				step_tell(run);
				break;
			case 4:
			case 5:
				step_next(run);
				break;
			case 6:
				step_outcome(run, false);
				break;
			case 7:
				step_refill(run);
				break;
			case 8:
				if (one_in(4))
					step_operator(run);
				else
					run->now += below(3) * SECOND;
				break;
		}
		compare_counts(run);
	}
	if (!run->wrong)
		drain(run);
	outbox_schedule_destroy(run->schedule);
	return !run->wrong;
}

/* Seeds from the command line are run instead: to repeat what failed. */
static void
test_random_runs(int n_seeds, char **seeds)
{
	static Run	run;
	int			runs = n_seeds > 0 ? n_seeds : 4000;
	int			wrong = 0;
	int64_t		sent = 0;

	for (int i = 0; i < runs && wrong < 5; i++)
	{
		wrong += !random_run(&run, n_seeds > 0 ? strtoull(seeds[i], NULL, 10) : (uint64_t) i + 1);
		sent += run.sent;
	}
	ok(wrong == 0, "%d random runs, in which %lld events were sent, agree with the model", runs, (long long) sent);
}

int
main(int argc, char **argv)
{
	test_random_runs(argc - 1, argv + 1);
	return unit_done();
}
