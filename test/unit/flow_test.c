/*
 * flow_test.c
 *	  src/flow.c alone: the window, and when the circuit opens and closes.
 */
#include "flow.h"
#include "unit.h"

#define SECOND INT64_C(1000000)
#define ACK_TIMEOUT (5 * SECOND)

static const OutboxBackoff delays = {.base = SECOND / 10, .max = 30 * SECOND, .ack_timeout = ACK_TIMEOUT};
static OutboxFlow flow;

static bool
outcome(OutboxErrorClass class, int64_t now)
{
	return outbox_flow_outcome(&flow, class, now, &delays);
}

static void
test_window(void)
{
	outbox_flow_reset(&flow, 100);
	ok(flow.window == OUTBOX_MIN_WINDOW, "begins with the smallest window");
	for (int i = 0; i < 200; i++)
		outcome(OUTBOX_ERROR_NONE, i);
	ok(flow.window == 100, "grows with each ack, up to the largest");
	outcome(OUTBOX_ERROR_STREAM, 200);
	ok(flow.window == 50, "is halved by a failure that isn't the event's");
	outcome(OUTBOX_ERROR_PERMANENT, 200);
	ok(flow.window == 50, "but not by one that is");
	for (int i = 0; i < 10; i++)
		outcome(OUTBOX_ERROR_STREAM, 200);
	ok(flow.window == OUTBOX_MIN_WINDOW && !flow.open, "never below the smallest, and a stream in trouble opens nothing");
	ok(outbox_flow_may_send(&flow, OUTBOX_MIN_WINDOW - 1, 200) && !outbox_flow_may_send(&flow, OUTBOX_MIN_WINDOW, 200),
	   "so many may be in flight");
	outbox_flow_set_max(&flow, 5);
	ok(!outbox_flow_may_send(&flow, 5, 200), "unless fewer are allowed");
}

/* How many may go as a batch at this time, with nothing in flight. */
static int
max_run(int64_t now)
{
	return outbox_flow_max_run(&flow, 0, 0, now);
}

static void
test_batches(void)
{
	int64_t		pause;

	outbox_flow_reset(&flow, 5000);
	ok(max_run(0) == 1, "the smallest window is too small for a batch");
	for (int i = 0; i < OUTBOX_MIN_RUN - OUTBOX_MIN_WINDOW; i++)
		outcome(OUTBOX_ERROR_NONE, 0);
	ok(max_run(0) == OUTBOX_MIN_RUN && outbox_flow_max_run(&flow, 1, 0, 0) == 1, "a batch fits in the window, or there is none");
	for (int i = 0; i < 5000; i++)
		outcome(OUTBOX_ERROR_NONE, 0);
	ok(max_run(0) == OUTBOX_MAX_RUN && outbox_flow_max_run(&flow, 4900, 0, 0) == 100, "not more than the server takes, and than there is room");
	ok(outbox_flow_max_run(&flow, 500, OUTBOX_MAX_BATCHES - 1, 0) > 1 && outbox_flow_max_run(&flow, 500, OUTBOX_MAX_BATCHES, 0) == 1,
	   "and only some at once");

	outbox_flow_batch_outcome(&flow, false, SECOND, &delays);
	pause = delays.base;
	ok(max_run(SECOND + pause - 1) == 1 && max_run(SECOND + pause) > 1, "after one that failed there is none for a while");
	outbox_flow_batch_outcome(&flow, false, 2 * SECOND, &delays);
	ok(max_run(2 * SECOND + pause) == 1 && max_run(2 * SECOND + 2 * pause) > 1, "for longer if the next fails, too");
	outbox_flow_batch_outcome(&flow, true, 3 * SECOND, &delays);
	outbox_flow_batch_outcome(&flow, false, 3 * SECOND, &delays);
	ok(max_run(3 * SECOND + pause) > 1, "one that is stored ends that");
	outcome(OUTBOX_ERROR_BROKER, 4 * SECOND);
	ok(max_run(60 * SECOND) == 1, "while the circuit is open events go one by one");
}

static void
test_blamed(void)
{
	int64_t		probe_at;

	outbox_flow_reset(&flow, 100);
	ok(outcome(OUTBOX_ERROR_BROKER, SECOND), "an answer that blames the broker opens");
	probe_at = outbox_flow_next_time(&flow);
	ok(probe_at > SECOND && probe_at <= SECOND + delays.base, "the probe comes after the first delay");
	outcome(OUTBOX_ERROR_BROKER, SECOND + 1);
	ok(outbox_flow_next_time(&flow) == probe_at, "others that were in flight don't put it off");
	ok(!outbox_flow_may_send(&flow, 0, probe_at - 1) && !outbox_flow_may_send(&flow, 1, probe_at), "not earlier, not beside another");
	ok(outbox_flow_may_send(&flow, 0, probe_at), "then it may go");
	outbox_flow_sent(&flow);
	ok(outbox_flow_next_time(&flow) == INT64_MAX, "and nothing else until it is answered");
	ok(!outcome(OUTBOX_ERROR_BROKER, probe_at + 1) && outbox_flow_next_time(&flow) > probe_at + delays.base, "the next waits longer");
	ok(outcome(OUTBOX_ERROR_TRANSIENT, 2 * SECOND) && !flow.open, "any other answer closes");
}

static void
test_many_silent(void)
{
	bool		opened = false;

	outbox_flow_reset(&flow, 100);
	for (int i = 1; i < OUTBOX_SILENT_LIMIT; i++)
		opened = opened || outcome(OUTBOX_ERROR_UNKNOWN, ACK_TIMEOUT);
	ok(!opened, "messages of one moment without an answer: not yet");
	ok(outcome(OUTBOX_ERROR_UNKNOWN, ACK_TIMEOUT), "one more opens");
}

/* A single aggregate: one message at a time, each waits for its timeout. */
static void
test_few_silent(void)
{
	int64_t		now = 1000 * SECOND;

	outbox_flow_reset(&flow, 100);
	outcome(OUTBOX_ERROR_NONE, 0);
	ok(!outcome(OUTBOX_ERROR_UNKNOWN, now) && !outcome(OUTBOX_ERROR_UNKNOWN, now + ACK_TIMEOUT), "two silent ones after an idle time: not yet");
	ok(outcome(OUTBOX_ERROR_UNKNOWN, now + 2 * ACK_TIMEOUT), "silent for three timeouts: open");
	ok(outcome(OUTBOX_ERROR_NONE, now + 3 * ACK_TIMEOUT) && !flow.open, "an ack closes");

	now += 3 * ACK_TIMEOUT;
	outcome(OUTBOX_ERROR_UNKNOWN, now + 1);
	outcome(OUTBOX_ERROR_UNKNOWN, now + ACK_TIMEOUT);
	ok(!outcome(OUTBOX_ERROR_UNKNOWN, now + 3 * ACK_TIMEOUT - 1), "three timeouts count from the last answer, if that was later");
	ok(outcome(OUTBOX_ERROR_UNKNOWN, now + 3 * ACK_TIMEOUT), "... exactly");

	outbox_flow_reset(&flow, 100);
	outcome(OUTBOX_ERROR_UNKNOWN, now);
	outcome(OUTBOX_ERROR_STREAM, now + ACK_TIMEOUT);
	outcome(OUTBOX_ERROR_UNKNOWN, now + 2 * ACK_TIMEOUT);
	outcome(OUTBOX_ERROR_UNKNOWN, now + 3 * ACK_TIMEOUT - 1);
	ok(!outcome(OUTBOX_ERROR_UNKNOWN, now + 4 * ACK_TIMEOUT - 1) && outcome(OUTBOX_ERROR_UNKNOWN, now + 4 * ACK_TIMEOUT),
	   "an answer of any kind begins the time anew");

	outbox_flow_reset(&flow, 100);
	outcome(OUTBOX_ERROR_UNKNOWN, now);
	ok(!outcome(OUTBOX_ERROR_UNKNOWN, now + 100 * ACK_TIMEOUT), "two say too little, however long it takes");
}

int
main(void)
{
	test_window();
	test_batches();
	test_blamed();
	test_many_silent();
	test_few_silent();
	return unit_done();
}
