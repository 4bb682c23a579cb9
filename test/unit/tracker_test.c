/*
 * tracker_test.c
 *	  src/tracker.c alone: single rules, then random calls against a plain
 *	  array. The Makefile wraps malloc and calloc.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tracker.h"
#include "unit.h"

/* Allocations fail with this probability, in 1/256. */
static unsigned failing;

extern void *__real_malloc(size_t size);
extern void *__real_calloc(size_t n, size_t size);
extern void *__wrap_malloc(size_t size);
extern void *__wrap_calloc(size_t n, size_t size);

static bool
allocation_fails(void)
{
	return failing > 0 && next_random() % 256 < failing;
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

/* ---------- single rules ---------- */

static void
test_see_and_settle(void)
{
	Tracker    *tracker = outbox_tracker_create(100);

	ok(outbox_tracker_see(tracker, 100) == TRACKER_KNOWN && outbox_tracker_is_seen(tracker, 100) &&
	   outbox_tracker_settle(tracker, 100) && outbox_tracker_bytes(tracker) < 200,
	   "up to the watermark all is known, at no cost");
	ok(!outbox_tracker_is_seen(tracker, 101) && outbox_tracker_see(tracker, 101) == TRACKER_NEW &&
	   outbox_tracker_see(tracker, 101) == TRACKER_KNOWN && outbox_tracker_is_seen(tracker, 101),
	   "a position above is new once");
	outbox_tracker_unsee(tracker, 101);
	ok(!outbox_tracker_is_seen(tracker, 101) && outbox_tracker_first_unsettled(tracker) == INT64_MAX &&
	   outbox_tracker_see(tracker, 101) == TRACKER_NEW, "and again after unsee");
	ok(outbox_tracker_first_unsettled(tracker) == 101 && outbox_tracker_settle(tracker, 101) &&
	   outbox_tracker_first_unsettled(tracker) == INT64_MAX, "seen it is unsettled, until it is settled");
	outbox_tracker_unsee(tracker, 101);
	ok(outbox_tracker_see(tracker, 101) == TRACKER_KNOWN, "what is settled can't be unseen");
	ok(outbox_tracker_settle(tracker, 500) && outbox_tracker_is_seen(tracker, 500), "settling marks seen");
	ok(outbox_tracker_is_settled(tracker, 500) && outbox_tracker_is_settled(tracker, 100) &&
		   !outbox_tracker_is_settled(tracker, 501) && !outbox_tracker_is_settled(tracker, 99999),
	   "what is settled, or lies below the watermark");
	(void) outbox_tracker_see(tracker, 502);
	ok(!outbox_tracker_is_settled(tracker, 502), "seen is not settled");
	outbox_tracker_settle(tracker, 502);
	outbox_tracker_destroy(tracker);
	outbox_tracker_destroy(NULL);
}

static void
test_first_unsettled_goes_down(void)
{
	Tracker    *tracker = outbox_tracker_create(0);

	outbox_tracker_see(tracker, 50000);
	ok(outbox_tracker_first_unsettled(tracker) == 50000, "the first unsettled position");
	outbox_tracker_see(tracker, 3000);
	ok(outbox_tracker_first_unsettled(tracker) == 3000, "a lower one that comes later counts");
	outbox_tracker_settle(tracker, 50000);
	outbox_tracker_unsee(tracker, 3000);
	ok(outbox_tracker_first_unsettled(tracker) == INT64_MAX, "also when it goes");
	outbox_tracker_see(tracker, 2000);
	ok(outbox_tracker_first_unsettled(tracker) == 2000, "and comes back");
	outbox_tracker_destroy(tracker);
}

static void
test_memory(void)
{
	Tracker    *tracker = outbox_tracker_create(0);
	size_t		full;
	size_t		jumped;
	int64_t		first;
	int64_t		last;

	for (int64_t position = 1; position <= 1024000; position++)
		outbox_tracker_see(tracker, position);
	full = outbox_tracker_bytes(tracker);
	ok(full > 256000 && full < 320000, "a million positions take two bits each (%zu bytes)", full);
	for (int64_t position = 1; position <= 1024000; position++)
		outbox_tracker_settle(tracker, position);
	ok(outbox_tracker_bytes(tracker) < 34000 && outbox_tracker_first_unsettled(tracker) == INT64_MAX,
	   "settled ones nearly nothing (%zu bytes)", outbox_tracker_bytes(tracker));

	/* A sequence that was set far ahead. */
	jumped = outbox_tracker_bytes(tracker);
	ok(outbox_tracker_see(tracker, INT64_C(1) << 60) == TRACKER_NEW &&
	   outbox_tracker_see(tracker, INT64_C(3000000000)) == TRACKER_NEW &&
	   outbox_tracker_bytes(tracker) < jumped + 2000, "a far jump costs one bucket");
	ok(outbox_tracker_first_unsettled(tracker) == INT64_C(3000000000) &&
	   outbox_tracker_unseen(tracker, 1, INT64_MAX, &first, &last) && first == 1024001 && last == INT64_MAX,
	   "and is passed quickly");
	outbox_tracker_trim(tracker, INT64_C(1) << 59);
	ok(outbox_tracker_first_unsettled(tracker) == INT64_C(1) << 60, "also by the watermark");
	for (int64_t i = 1; i <= 20; i++)
		outbox_tracker_trim(tracker, (INT64_C(1) << 59) + i);
	ok(outbox_tracker_bytes(tracker) < 2000, "which gives the memory back (%zu bytes)",
	   outbox_tracker_bytes(tracker));
	outbox_tracker_destroy(tracker);
}

static void
test_settle_range(void)
{
	Tracker    *tracker = outbox_tracker_create(10);

	ok(outbox_tracker_settle_range(tracker, 1, 10 * 1024 - 1) && outbox_tracker_bytes(tracker) < 1300,
	   "whole buckets are settled without bitmaps (%zu bytes)", outbox_tracker_bytes(tracker));
	ok(outbox_tracker_settle_range(tracker, 7, 6) && outbox_tracker_settle_range(tracker, 20000, 20000) &&
	   !outbox_tracker_is_seen(tracker, 19999) && outbox_tracker_is_seen(tracker, 20000) &&
	   !outbox_tracker_is_seen(tracker, 20001), "an empty range, and one of one position");
	ok(outbox_tracker_settle_range(tracker, INT64_MAX - 5, INT64_MAX) &&
	   outbox_tracker_is_seen(tracker, INT64_MAX) && !outbox_tracker_is_seen(tracker, INT64_MAX - 6),
	   "the end of all positions");
	outbox_tracker_destroy(tracker);
}

static void
test_unseen(void)
{
	Tracker    *tracker = outbox_tracker_create(5);
	int64_t		first = -1;
	int64_t		last = -1;

	ok(outbox_tracker_unseen(tracker, 0, 9, &first, &last) && first == 6 && last == 9,
	   "in an empty tracker all above the watermark");
	ok(!outbox_tracker_unseen(tracker, 1, 5, &first, &last) && !outbox_tracker_unseen(tracker, 9, 8, &first, &last),
	   "nothing below it, nor in an empty range");
	outbox_tracker_settle_range(tracker, 1024, 2047);
	ok(outbox_tracker_unseen(tracker, 0, 5000, &first, &last) && first == 6 && last == 1023,
	   "a stretch ends before a bucket that is seen as a whole");
	ok(outbox_tracker_unseen(tracker, 1024, 5000, &first, &last) && first == 2048 && last == 5000,
	   "and starts behind it");
	ok(!outbox_tracker_unseen(tracker, 1024, 2047, &first, &last), "of it alone there is none");
	outbox_tracker_see(tracker, 2048);
	outbox_tracker_see(tracker, 2050);
	ok(outbox_tracker_unseen(tracker, 1500, 5000, &first, &last) && first == 2049 && last == 5000,
	   "single positions that are seen don't split it");
	for (int64_t position = 3072; position < 4096; position++)
		outbox_tracker_see(tracker, position);
	ok(outbox_tracker_unseen(tracker, 2049, 5000, &first, &last) && first == 2049 && last == 3071,
	   "seen as a whole needn't be settled");
	outbox_tracker_destroy(tracker);
}

/* ---------- random calls against an array ---------- */

#define SPAN 6000

typedef struct Model
{
	bool		seen[SPAN];
	bool		settled[SPAN];
	int			watermark;
} Model;

static bool
model_seen(const Model *model, int position)
{
	return position <= model->watermark || model->seen[position];
}

/* Is the bucket of this position seen as a whole? */
static bool
model_bucket_seen(const Model *model, int position)
{
	int			start = position / OUTBOX_BUCKET_SIZE * OUTBOX_BUCKET_SIZE;

	for (int i = start; i < start + OUTBOX_BUCKET_SIZE; i++)
		if (i >= SPAN || !model_seen(model, i))
			return false;
	return true;
}

static bool
same_unseen(const Tracker *tracker, const Model *model, int from, int to)
{
	int64_t		first = -1;
	int64_t		last = -1;
	bool		found = outbox_tracker_unseen(tracker, from, to, &first, &last);
	int			start = from;
	int			end;

	while (start <= to && model_seen(model, start))
		start++;
	if (start > to)
		return !found;
	end = (start / OUTBOX_BUCKET_SIZE + 1) * OUTBOX_BUCKET_SIZE;
	while (end <= to && !model_bucket_seen(model, end))
		end += OUTBOX_BUCKET_SIZE;
	return found && first == start && last == (end <= to ? end - 1 : to);
}

static bool
same_first_unsettled(Tracker *tracker, const Model *model)
{
	for (int i = model->watermark + 1; i < SPAN; i++)
		if (model->seen[i] && !model->settled[i])
			return outbox_tracker_first_unsettled(tracker) == i;
	return outbox_tracker_first_unsettled(tracker) == INT64_MAX;
}

static bool
settle(Tracker *tracker, int first, int last)
{
	return first == last ? outbox_tracker_settle(tracker, first) :
		outbox_tracker_settle_range(tracker, first, last);
}

/* Without memory part of a range may be settled; repeated with memory all of it is. */
static bool
settle_both(Tracker *tracker, Model *model, int first, int last)
{
	unsigned	failing_before = failing;
	bool		settled = settle(tracker, first, last);

	failing = 0;
	if (!settled && (failing_before == 0 || !settle(tracker, first, last)))
		return false;
	failing = failing_before;
	for (int i = first; i <= last; i++)
		if (i > model->watermark)
			model->seen[i] = model->settled[i] = true;
	return true;
}

static bool
random_step(Tracker *tracker, Model *model)
{
	int			position = model->watermark + below(SPAN - model->watermark);
	int			width = below(2) ? below(3000) : below(100);
	int			other = position + width < SPAN ? position + width : SPAN - 1;
	bool		known = model_seen(model, position);
	TrackerSee	see;

	switch (below(12))
	{
		case 0:
		case 1:
			see = outbox_tracker_see(tracker, position);
			if (see == TRACKER_NO_MEMORY)
				return failing > 0 && !known;
			if (position > model->watermark)
				model->seen[position] = true;
			return see == (known ? TRACKER_KNOWN : TRACKER_NEW);
		case 2:
			if (known && position > model->watermark && !model->settled[position])
				model->seen[position] = false;
			outbox_tracker_unsee(tracker, position);
			return !outbox_tracker_is_seen(tracker, position) == !model_seen(model, position);
		case 3:
			return settle_both(tracker, model, position, position);
		case 4:
			return below(4) > 0 || settle_both(tracker, model, position, other);
		case 5:
			/* As the pass does: all in order, some settled at once. */
			for (int i = position; i <= other; i++)
			{
				if (outbox_tracker_see(tracker, i) != TRACKER_NO_MEMORY && i > model->watermark)
					model->seen[i] = true;
				if (below(3) == 0 && !settle_both(tracker, model, i, i))
					return false;
			}
			return true;
		case 6:
			/* The successors of what was seen settle, in order too. */
			for (int i = position; i <= other; i++)
				if (i > model->watermark && model->seen[i] && !settle_both(tracker, model, i, i))
					return false;
			return true;
		case 7:
			if (below(20) == 0)
			{
				int			watermark = model->watermark + below(400);

				outbox_tracker_trim(tracker, watermark < SPAN ? watermark : SPAN - 1);
				outbox_tracker_trim(tracker, model->watermark);
				model->watermark = watermark < SPAN ? watermark : SPAN - 1;
			}
			return outbox_tracker_watermark(tracker) == model->watermark;
		case 8:
		case 9:
			return same_first_unsettled(tracker, model);
		case 10:
			return same_unseen(tracker, model, below(SPAN), other);
		default:
			return outbox_tracker_is_seen(tracker, position) == known;
	}
}

static void
test_random(bool without_memory)
{
	static Model model;
	int			wrong = 0;

	for (int run = 0; run < 400 && wrong < 5; run++)
	{
		Tracker    *tracker;
		int			step = 0;

		random_state = (uint64_t) run;
		memset(&model, 0, sizeof(model));
		model.watermark = below(1500);
		tracker = outbox_tracker_create(model.watermark);
		failing = without_memory ? 100 : 0;
		while (step < 300 && random_step(tracker, &model))
			step++;
		failing = 0;
		if (step < 300)
		{
			diag("run %d went wrong at step %d", run, step);
			wrong++;
		}
		for (int i = 0; i < SPAN && wrong == 0; i++)
			wrong += outbox_tracker_is_seen(tracker, i) != model_seen(&model, i);
		wrong += !same_first_unsettled(tracker, &model);
		outbox_tracker_destroy(tracker);
	}
	ok(wrong == 0, "random calls%s agree with the model", without_memory ? ", with failing allocations," : "");
}

/* ---------- speed ---------- */

static double
seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	return (double) now.tv_sec + (double) now.tv_nsec / 1e9;
}

/* One event stays open while ten million behind it pass: the worst case of a blocked aggregate. */
static void
test_speed(void)
{
	enum
	{
		N = 10000000, BEHIND = 5000
	};
	Tracker    *tracker = outbox_tracker_create(0);
	double		start = seconds();
	int64_t		sum = 0;

	outbox_tracker_see(tracker, 1);
	for (int64_t position = 2; position <= N; position++)
	{
		outbox_tracker_see(tracker, position);
		if (position > BEHIND)
			outbox_tracker_settle(tracker, position - BEHIND + 1);
		sum += outbox_tracker_first_unsettled(tracker);
	}
	diag("behind an open position: see, settle, first_unsettled %.0f ns, %zu bytes in the end",
		 (seconds() - start) * 1e9 / N, outbox_tracker_bytes(tracker));
	ok(sum == N - 1, "an open position stays the first unsettled one");

	start = seconds();
	outbox_tracker_settle(tracker, 1);
	ok(outbox_tracker_first_unsettled(tracker) == N - BEHIND + 2, "until it is settled");
	diag("then the next one in %.0f us", (seconds() - start) * 1e6);
	outbox_tracker_destroy(tracker);
}

int
main(void)
{
	test_see_and_settle();
	test_first_unsettled_goes_down();
	test_memory();
	test_settle_range();
	test_unseen();
	test_random(false);
	test_random(true);
	test_speed();
	return unit_done();
}
