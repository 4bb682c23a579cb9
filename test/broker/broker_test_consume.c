/*
 * broker_test_consume.c
 *	  A consumer's connection: messages in the stream's order, acknowledged, and
 *	  from the owner's position on whatever became of earlier connections.
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broker_consume.h"
#include "broker_test.h"
#include "harness.h"

#define WAIT_MS 20000

static Server server;

/*
 * The library looks up a message's subscription under a lock, and uses it after
 * that. It finds these functions before its own: between the two may lie a while.
 */
static _Atomic int delay_behind_lookups_ms;
static _Thread_local bool looked_up;

extern void *natsHash_Get(void *hash, int64_t key);
extern void natsMutex_Unlock(void *mutex);

/* Of the library; found once. */
static void *
real_function(_Atomic(void *) *function, const char *name)
{
	if (atomic_load(function) == NULL)
		atomic_store(function, dlsym(RTLD_NEXT, name));
	return atomic_load(function);
}

void *
natsHash_Get(void *hash, int64_t key)
{
	static _Atomic(void *) real;

	looked_up = true;
	return ((void *(*) (void *, int64_t)) real_function(&real, "natsHash_Get")) (hash, key);
}

void
natsMutex_Unlock(void *mutex)
{
	static _Atomic(void *) real;

	((void (*) (void *)) real_function(&real, "natsMutex_Unlock")) (mutex);
	if (looked_up)
		usleep((useconds_t) atomic_load(&delay_behind_lookups_ms) * 1000);
	looked_up = false;
}

static BrokerConsumer *
start(uint64_t position, int window)
{
	BrokerConfig connection = base_config(&server);
	BrokerConsumeConfig config = {
		.durable = "d", .has_position = true, .position = position, .ack_wait_ms = 30000, .window = window};

	return broker_consume_start(&connection, &config);
}

/* Waits for the state; returns whether it came. */
static bool
wait_for(BrokerConsumer *consumer, BrokerConsumeState state, BrokerConsumeStatus *status)
{
	int64_t		until = clock_us() + WAIT_MS * INT64_C(1000);

	do
	{
		struct pollfd wait = {.fd = broker_consume_fd(consumer), .events = POLLIN};

		broker_consume_get_status(consumer, status);
		if (status->state == state)
			return true;
		(void) poll(&wait, 1, 20);
	} while (clock_us() < until);
	return false;
}

/* The next message, which may take a while; NULL: there is none. */
static BrokerReceived *
next(BrokerConsumer *consumer, int timeout_ms)
{
	int64_t		until = clock_us() + timeout_ms * INT64_C(1000);
	BrokerReceived *message;

	while ((message = broker_consume_take(consumer)) == NULL && clock_us() < until)
	{
		struct pollfd wait = {.fd = broker_consume_fd(consumer), .events = POLLIN};

		(void) poll(&wait, 1, 50);
	}
	return message;
}

/* Takes and acknowledges messages; false: they aren't those of first .. last. */
static bool
work_off(BrokerConsumer *consumer, uint64_t first, uint64_t last)
{
	for (uint64_t sequence = first; sequence <= last; sequence++)
	{
		BrokerReceived *message = next(consumer, WAIT_MS);

		if (message == NULL || message->sequence != sequence)
			return false;
		broker_consume_finish(consumer, message);
	}
	return true;
}

static void
publish_some(int count)
{
	Broker	   *broker = online_broker(&server);

	tally_reset();
	(void) publish_many(broker, "outbox.consume", count, 100);
	(void) wait_quiet(broker, WAIT_MS);
	(void) broker_destroy(broker, GRACE_MS);
}

static void
test_flow(void)
{
	BrokerConsumer *consumer = start(0, 64);
	BrokerConsumeStatus status;
	BrokerReceived *message;

	ok(wait_for(consumer, BROKER_CONSUME_RUNNING, &status) && status.tried_up_to == 0, "consume: running: %s", status.text);
	message = next(consumer, WAIT_MS);
	ok(message != NULL && message->sequence == 1 && strcmp(message->subject, "outbox.consume") == 0 && message->data_len == 100 &&
		   message->header_count >= 1 && message->published_ns > 0 && message->pending > 0,
	   "consume: a message with all that belongs to it");
	broker_consume_finish(consumer, message);
	ok(work_off(consumer, 2, 500), "consume: more than the window, in order");
	ok(next(consumer, 100) == NULL, "consume: no more");
	publish_some(10);
	ok(work_off(consumer, 501, 510), "consume: what comes later");
	ok(broker_consume_stop(consumer, GRACE_MS), "consume: stopped");
	consumer = start(510, 64);
	ok(wait_for(consumer, BROKER_CONSUME_RUNNING, &status) && status.tried_up_to == 0, "consume: everything was acknowledged");
	ok(broker_consume_stop(consumer, GRACE_MS), "consume: stopped again");
}

static void
test_positions(void)
{
	BrokerConsumer *consumer = start(400, 64);
	BrokerConsumeStatus status;

	ok(work_off(consumer, 401, 410), "consume: behind the position, though more was acknowledged");
	/* Some are received and not finished. */
	ok(next(consumer, WAIT_MS) != NULL, "consume: one more is taken");
	ok(broker_consume_stop(consumer, GRACE_MS), "consume: stopped with messages under way");
	consumer = start(410, 64);
	ok(wait_for(consumer, BROKER_CONSUME_RUNNING, &status) && status.tried_up_to >= 411, "consume: it is known what was under way");
	ok(work_off(consumer, 411, 510), "consume: it comes again at once, in order");
	server_kill(&server);
	ok(wait_for(consumer, BROKER_CONSUME_ENDED, &status) && status.text[0] != '\0', "consume: the server is killed: %s", status.text);
	ok(next(consumer, 100) == NULL, "consume: nothing comes any more");
	ok(broker_consume_stop(consumer, GRACE_MS), "consume: stopped without a server");
	consumer = start(510, 64);
	ok(wait_for(consumer, BROKER_CONSUME_ENDED, &status) && strstr(status.text, "could not connect to nats://") != NULL,
	   "consume: nobody there: %s", status.text);
	(void) broker_consume_stop(consumer, GRACE_MS);
	server_start(&server);
	consumer = start(500, 64);
	ok(work_off(consumer, 501, 510), "consume: the server is back");
	server_freeze(&server);
	ok(wait_for(consumer, BROKER_CONSUME_ENDED, &status), "consume: a server that stands still is given up: %s", status.text);
	server_thaw(&server);
	(void) broker_consume_stop(consumer, GRACE_MS);
	consumer = start(9999, 64);
	ok(work_off(consumer, 1, 3), "consume: behind the end: another stream, from its beginning");
	broker_consume_get_status(consumer, &status);
	ok(status.stream_is_new, "consume: that is told");
	(void) broker_consume_stop(consumer, GRACE_MS);
}

/* Where an owner begins that has no position, and wants what was stored in the last age_us; the stream ends with last. */
static uint64_t
start_new(const char *durable, int64_t age_us, uint64_t last)
{
	BrokerConfig connection = base_config(&server);
	BrokerConsumeConfig config = {.durable = durable, .start_new = true, .start_age_us = age_us, .ack_wait_ms = 30000, .window = 64};
	BrokerConsumer *consumer = broker_consume_start(&connection, &config);
	BrokerConsumeStatus status;
	bool		running = wait_for(consumer, BROKER_CONSUME_RUNNING, &status);
	BrokerReceived *first = running && status.position < last ? next(consumer, WAIT_MS) : NULL;

	if (!running || (first != NULL && first->sequence != status.position + 1))
		status.position = UINT64_MAX;
	(void) broker_consume_stop(consumer, GRACE_MS);
	return status.position;
}

static void
test_start_new(void)
{
	char		name[250 - sizeof("OUTBOX") + 2] = "";
	struct timespec wall;
	int64_t		now = clock_us();

	publish_some(5);
	ok(start_new("n1", clock_us() - now, 515) == 510, "consume: from a moment in the past on");
	ok(start_new("n1", 0, 515) == 510, "consume: the same when nothing was acknowledged and nobody has noted where it began");
	ok(start_new("n2", 0, 515) == 515, "consume: from now on");
	ok(start_new("n2", INT64_C(3600) * 1000000, 515) == 515, "consume: a consumer that is there tells");
	/* A time whose fraction begins with zeros: without them it would be .9 s. */
	clock_gettime(CLOCK_REALTIME, &wall);
	usleep((useconds_t) (1009500 - wall.tv_nsec / 1000) % 1000000);
	now = clock_us();
	publish_some(5);
	ok(start_new("n4", clock_us() - now, 520) == 515, "consume: from a moment in a second's beginning on");
	memset(name, 'n', sizeof(name) - 1);
	ok(start_new(name, INT64_C(3600) * 1000000, 520) == 0, "consume: the same by a name as long as one may be");
	ok(start_new("n3", INT64_C(3600) * 1000000, 520) == 0, "consume: from before the first message on");
}

/* Stopped while the library has found whose a message is, and not yet handed it on. */
static void
test_stops_in_flow(void)
{
	bool		alone = true;

	atomic_store(&delay_behind_lookups_ms, 20);
	for (int i = 0; i < 5; i++)
	{
		BrokerConsumer *consumer = start(0, 64);

		alone = next(consumer, WAIT_MS) != NULL && alone;
		alone = broker_consume_stop(consumer, 2 * GRACE_MS) && alone;
	}
	atomic_store(&delay_behind_lookups_ms, 0);
	ok(alone, "consume: stopped while messages come in");
}

/* Stopped at any moment of its beginning. */
static void
test_stops(void)
{
	int			descriptors = open_descriptors();
	bool		alone = true;

	for (int i = 0; i < 20; i++)
	{
		BrokerConsumer *consumer = start(100, 64);

		usleep((useconds_t) i * 1000);
		alone = broker_consume_stop(consumer, 2 * GRACE_MS) && alone;
	}
	ok(alone, "consume: stopped at any moment");
	/* The library closes its own a moment later. */
	for (int i = 0; i < 200 && open_descriptors() > descriptors; i++)
		usleep(10000);
	ok(open_descriptors() <= descriptors, "consume: no descriptor is left: %d, before %d", open_descriptors(), descriptors);
}

void
test_consume(void)
{
	server_create(&server);
	server_configure(&server, "");
	server_start(&server);
	publish_some(500);
	test_flow();
	test_positions();
	test_start_new();
	test_stops_in_flow();
	test_stops();
	server_remove(&server);
}
