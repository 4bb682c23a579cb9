/*
 * consumer_queue_test.c
 *	  src/consumer_queue.c alone: order within an aggregate, the floor, and
 *	  transactions that fail; by hand, and at random against what must hold.
 */
#include <stdlib.h>
#include <string.h>

#include "consumer_queue.h"
#include "unit.h"

static ConsumerQueue queue;

static uint64_t
next_sequence(int64_t now)
{
	int64_t		next;
	QueuedMessage *message = consumer_queue_next(&queue, now, &next);

	return message == NULL ? 0 : message->sequence;
}

static void
test_order(void)
{
	QueuedMessage *a1;
	QueuedMessage *b2;
	QueuedMessage *a3;
	QueuedMessage *a5;
	int64_t		next;

	consumer_queue_reset(&queue, 0);
	a1 = consumer_queue_add(&queue, 1, 7, NULL);
	b2 = consumer_queue_add(&queue, 2, 8, NULL);
	a3 = consumer_queue_add(&queue, 3, 7, NULL);
	a5 = consumer_queue_add(&queue, 5, 7, NULL);
	(void) consumer_queue_add(&queue, 6, 0, NULL);
	ok(next_sequence(0) == 1, "the first comes first");
	a1->not_before = 100;
	ok(next_sequence(0) == 2, "while it waits, another aggregate goes on");
	consumer_queue_done(&queue, b2);
	ok(next_sequence(0) == 6 && queue.floor == 0, "and what belongs to none, but not its own successors, nor the floor");
	consumer_queue_assume_done(consumer_queue_next(&queue, 0, &next));
	ok(consumer_queue_next(&queue, 0, &next) == NULL && next == 100, "it is told when to come again");
	ok(next_sequence(100) == 1, "its time has come");
	consumer_queue_assume_done(a1);
	ok(next_sequence(100) == 3 && consumer_queue_assumed_floor(&queue) == 2, "in a transaction its successor follows");
	consumer_queue_assume_done(a3);
	ok(next_sequence(100) == 5 && consumer_queue_assumed_floor(&queue) == 3, "and the next one");
	consumer_queue_forget_assumptions(&queue);
	ok(next_sequence(100) == 1 && consumer_queue_assumed_floor(&queue) == 0, "the transaction has failed: as before");
	consumer_queue_done(&queue, a1);
	consumer_queue_done(&queue, a3);
	ok(queue.floor == 3 && queue.waiting == 2, "done for good: the floor has passed what was done before");
	ok(consumer_queue_knows(&queue, 2) && consumer_queue_knows(&queue, 5) && !consumer_queue_knows(&queue, 4), "what is known");
	(void) consumer_queue_add(&queue, 4, 7, NULL);
	ok(next_sequence(100) == 4, "one that comes late is still before its successor");
	consumer_queue_done(&queue, a5->ahead);
	ok(next_sequence(100) == 5, "which follows it");
	consumer_queue_reset(&queue, 9);
	ok(queue.head == NULL && queue.waiting == 0 && consumer_queue_knows(&queue, 9) && !consumer_queue_knows(&queue, 10), "reset");
	ok(consumer_queue_key("") != 0 && consumer_queue_key("a/1") != consumer_queue_key("a/2"), "keys");
}

#define MESSAGES 2000
#define KEYS 5
#define HELD 40

/* Random messages, failures and rollbacks: each is done once, in order within its key, and the floor tells the truth. */
static void
test_random(void)
{
	static int	key_of[MESSAGES + 1];
	static bool is_done[MESSAGES + 1];
	static uint64_t last[KEYS + 1];
	uint64_t	arrived = 0;
	int64_t		now = 0;
	int			count = 0;
	bool		ordered = true;
	bool		once = true;
	bool		floor_true = true;

	consumer_queue_reset(&queue, 0);
	while (count < MESSAGES)
	{
		QueuedMessage *batch[8];
		QueuedMessage *message;
		int			size = 0;
		int64_t		next;

		now++;
		while (arrived < MESSAGES && queue.waiting < HELD)
		{
			arrived++;
			key_of[arrived] = below(KEYS + 1);
			(void) consumer_queue_add(&queue, arrived, (uint64_t) key_of[arrived], NULL);
		}
		while (size < 8 && (message = consumer_queue_next(&queue, now, &next)) != NULL)
		{
			if (one_in(4))
				message->not_before = now + 1 + below(20);
			else
			{
				consumer_queue_assume_done(message);
				batch[size++] = message;
			}
		}
		if (one_in(4))
		{
			consumer_queue_forget_assumptions(&queue);
			continue;
		}
		for (int i = 0; i < size; i++)
		{
			uint64_t	sequence = batch[i]->sequence;
			int			key = key_of[sequence];

			once = once && !is_done[sequence];
			is_done[sequence] = true;
			count++;
			ordered = ordered && (key == 0 || sequence > last[key]);
			last[key] = sequence;
		}
		for (int i = 0; i < size; i++)
			consumer_queue_done(&queue, batch[i]);
		for (uint64_t s = 1; s <= queue.floor; s++)
			floor_true = floor_true && is_done[s];
		floor_true = floor_true && (queue.floor == MESSAGES || !is_done[queue.floor + 1]);
	}
	ok(once, "each is done once");
	ok(ordered, "in order within its key");
	ok(floor_true, "the floor is the end of what is done without a gap");
	ok(queue.floor == MESSAGES && queue.head == NULL, "nothing is left");
}

int
main(void)
{
	test_order();
	test_random();
	return unit_done();
}
