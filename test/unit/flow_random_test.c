/*
 * flow_random_test.c
 *	  src/flow.c alone: the window, the circuit, and random outcomes after each
 *	  of which what must always hold is checked.
 */
#include <stdlib.h>

#include "flow.h"
#include "unit.h"

#define NEVER INT64_MAX

static const OutboxBackoff delays = {.base = 100, .max = 1000, .jitter = 0, .ack_timeout = INT64_MAX / 8};

static OutboxFlow
new_flow(int max_window)
{
	OutboxFlow	flow = {0};

	outbox_flow_reset(&flow, max_window);
	return flow;
}

static bool
outcome(OutboxFlow *flow, OutboxErrorClass class, int64_t now)
{
	return outbox_flow_outcome(flow, class, now, &delays);
}

/* ---------- the window ---------- */

static void
test_window(void)
{
	OutboxFlow	flow = new_flow(1000);
	bool		quiet = true;

	ok(flow.window == OUTBOX_MIN_WINDOW, "it begins small");
	for (int i = 0; i < 100; i++)
		quiet = quiet && !outcome(&flow, OUTBOX_ERROR_NONE, 0);
	ok(flow.window == OUTBOX_MIN_WINDOW + 100, "each acknowledgement adds one");
	ok(quiet, "which changes no state");
	ok(outbox_flow_may_send(&flow, flow.window - 1, 0), "so many may be in flight");
	ok(!outbox_flow_may_send(&flow, flow.window, 0), "and no more");
	(void) outcome(&flow, OUTBOX_ERROR_STREAM, 0);
	ok(flow.window == (OUTBOX_MIN_WINDOW + 100) / 2, "a failure of the stream halves it");
	(void) outcome(&flow, OUTBOX_ERROR_UNKNOWN, 0);
	ok(flow.window == (OUTBOX_MIN_WINDOW + 100) / 4, "so does silence");
	(void) outcome(&flow, OUTBOX_ERROR_TRANSIENT, 0);
	(void) outcome(&flow, OUTBOX_ERROR_PERMANENT, 0);
	ok(flow.window == (OUTBOX_MIN_WINDOW + 100) / 4, "an event's own failure doesn't");
	for (int i = 0; i < 20; i++)
		(void) outcome(&flow, OUTBOX_ERROR_STREAM, 0);
	ok(flow.window == OUTBOX_MIN_WINDOW, "never below the least");
	for (int i = 0; i < 3000; i++)
		(void) outcome(&flow, OUTBOX_ERROR_NONE, 0);
	ok(flow.window == 1000, "never above the most");
	outbox_flow_set_max(&flow, 50);
	ok(flow.window == 50 && !outbox_flow_may_send(&flow, 50, 0), "a lower maximum holds at once");
	outbox_flow_set_max(&flow, 60);
	ok(flow.window == 50, "a higher one has to be grown into");
	flow = new_flow(3);
	ok(flow.window == 3, "a maximum below the least");
	(void) outcome(&flow, OUTBOX_ERROR_STREAM, 0);
	ok(flow.window == 3, "is the least then");
	ok(outbox_flow_next_time(&flow) == NEVER, "time alone changes nothing");
}

/* ---------- the circuit ---------- */

static void
test_refusal_opens(void)
{
	OutboxFlow	flow = new_flow(1000);
	int64_t		now = 1000;

	ok(outcome(&flow, OUTBOX_ERROR_BROKER, now), "a refusal that blames the broker opens it");
	ok(flow.open && !outbox_flow_may_send(&flow, 0, now), "nothing is sent at once");
	ok(outbox_flow_next_time(&flow) == now + 100, "the first probe comes after the base delay");
	ok(!outcome(&flow, OUTBOX_ERROR_BROKER, now + 50), "those in flight with the first");
	ok(outbox_flow_next_time(&flow) == now + 100, "don't put it off");
	now = outbox_flow_next_time(&flow);
	ok(outbox_flow_may_send(&flow, 0, now) && !outbox_flow_may_send(&flow, 1, now), "one probe, with nothing else in flight");
	outbox_flow_sent(&flow);
	ok(!outbox_flow_may_send(&flow, 0, now + 10000), "no other one while it is out");
	ok(outbox_flow_next_time(&flow) == NEVER, "however long that takes");
	ok(!outcome(&flow, OUTBOX_ERROR_BROKER, now), "it fails: still open");
	ok(outbox_flow_next_time(&flow) == now + 200, "the pause doubles");
	for (int i = 0; i < 10; i++)
	{
		now = outbox_flow_next_time(&flow);
		outbox_flow_sent(&flow);
		(void) outcome(&flow, OUTBOX_ERROR_UNKNOWN, now);
	}
	ok(outbox_flow_next_time(&flow) == now + 1000, "up to the longest; silence counts as well");
	outbox_flow_sent(&flow);
	ok(outcome(&flow, OUTBOX_ERROR_NONE, now), "an acknowledgement closes it");
	ok(!flow.open && outbox_flow_may_send(&flow, 0, now), "at once");
	(void) outcome(&flow, OUTBOX_ERROR_BROKER, now);
	ok(outbox_flow_next_time(&flow) == now + 100, "the next time it begins anew");
}

static void
test_who_closes(void)
{
	static const OutboxErrorClass classes[] = {OUTBOX_ERROR_NONE, OUTBOX_ERROR_STREAM, OUTBOX_ERROR_TRANSIENT,
		OUTBOX_ERROR_PERMANENT};

	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++)
	{
		OutboxFlow	flow = new_flow(1000);

		(void) outcome(&flow, OUTBOX_ERROR_BROKER, 0);
		ok(outcome(&flow, classes[i], 1) && !flow.open, "\"%s\" closes it", outbox_error_class_name(classes[i]));
		ok(!outcome(&flow, classes[i], 2), "... once");
	}
}

static void
test_silence_opens(void)
{
	OutboxFlow	flow = new_flow(1000);
	bool		early = false;

	for (int i = 1; i < OUTBOX_SILENT_LIMIT; i++)
		early = early || outcome(&flow, OUTBOX_ERROR_UNKNOWN, 0);
	ok(!early && !flow.open, "a few messages without an answer don't open it");
	(void) outcome(&flow, OUTBOX_ERROR_PERMANENT, 0);
	for (int i = 1; i < OUTBOX_SILENT_LIMIT; i++)
		early = early || outcome(&flow, OUTBOX_ERROR_UNKNOWN, 0);
	ok(!early && !flow.open, "any answer begins the count anew");
	ok(outcome(&flow, OUTBOX_ERROR_UNKNOWN, 0) && flow.open, "many in a row do");
	outbox_flow_reset(&flow, 1000);
	ok(!flow.open && outbox_flow_may_send(&flow, 0, 0), "a new connection closes it");
	ok(!outcome(&flow, OUTBOX_ERROR_UNKNOWN, 0), "and forgets the count");
}

/* ---------- random outcomes ---------- */

static void
test_random(void)
{
	OutboxFlow	flow = new_flow(200);
	int64_t		now = 1;
	int			in_flight = 0;
	int			wrong = 0;
	int			opened = 0;
	int			closed = 0;

	srand(7);
	for (int step = 0; step < 200000; step++)
	{
		OutboxErrorClass class = (OutboxErrorClass) (rand() % OUTBOX_ERROR_CLASSES);
		bool		was_open = flow.open;
		bool		changed;

		now += rand() % 300;
		/* so that silence and trouble last, now and then */
		if (rand() % 200 < 150 && step / 1000 % 2 == 0)
			class = rand() % 2 == 0 ? OUTBOX_ERROR_UNKNOWN : OUTBOX_ERROR_BROKER;
		for (int i = rand() % 20; i > 0 && outbox_flow_may_send(&flow, in_flight, now); i--)
		{
			wrong += flow.open && in_flight != 0;
			outbox_flow_sent(&flow);
			in_flight++;
		}
		if (in_flight == 0)
		{
			/* never stuck: something may be sent now, or at a known time */
			wrong += !outbox_flow_may_send(&flow, 0, now) &&
				(outbox_flow_next_time(&flow) == NEVER || outbox_flow_next_time(&flow) > now + delays.max);
			continue;
		}
		in_flight--;
		changed = outcome(&flow, class, now);
		wrong += changed != (was_open != flow.open);
		wrong += flow.window < OUTBOX_MIN_WINDOW || flow.window > 200;
		opened += changed && flow.open;
		closed += changed && !flow.open;
	}
	ok(wrong == 0, "what must always hold, holds");
	ok(opened > 100 && closed > 100, "the circuit opened %d times and closed %d times", opened, closed);
}

int
main(void)
{
	test_window();
	test_refusal_opens();
	test_who_closes();
	test_silence_opens();
	test_random();
	return unit_done();
}
