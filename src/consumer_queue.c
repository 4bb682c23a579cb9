/*
 * consumer_queue.c
 *	  The messages that a consumer has received, in the stream's order.
 *
 * A queue holds some hundred messages at most, so it is a list, and a look
 * through it is cheap. Messages that are done stay in it as long as one before
 * them isn't: the floor must not pass that one, and a copy that is delivered
 * again must be known.
 */
#include "consumer_queue.h"

#include <stdlib.h>

void
consumer_queue_reset(ConsumerQueue *queue, uint64_t floor)
{
	while (queue->head != NULL)
	{
		QueuedMessage *next = queue->head->next;

		free(queue->head);
		queue->head = next;
	}
	queue->tail = NULL;
	queue->floor = floor;
	queue->waiting = 0;
}

/* The last one that isn't behind the sequence. */
static QueuedMessage *
find(const ConsumerQueue *queue, uint64_t sequence)
{
	QueuedMessage *at = queue->tail;

	while (at != NULL && at->sequence > sequence)
		at = at->previous;
	return at;
}

bool
consumer_queue_knows(const ConsumerQueue *queue, uint64_t sequence)
{
	const QueuedMessage *at = find(queue, sequence);

	return sequence <= queue->floor || (at != NULL && at->sequence == sequence);
}

QueuedMessage *
consumer_queue_add(ConsumerQueue *queue, uint64_t sequence, uint64_t key, void *message)
{
	QueuedMessage *added = calloc(1, sizeof(QueuedMessage));
	QueuedMessage *at = find(queue, sequence);

	if (added == NULL)
		return NULL;
	added->sequence = sequence;
	added->key = key;
	added->message = message;
	added->previous = at;
	added->next = at != NULL ? at->next : queue->head;
	if (added->next != NULL)
		added->next->previous = added;
	else
		queue->tail = added;
	if (at != NULL)
		at->next = added;
	else
		queue->head = added;
	queue->waiting++;
	if (key == 0)
		return added;
	while (at != NULL && (at->done || at->key != key))
		at = at->previous;
	added->ahead = at;
	/* One behind it, should it be there already, waits for it. */
	for (at = added->next; at != NULL && at->key != key; at = at->next)
		;
	if (at != NULL)
		at->ahead = added;
	return added;
}

QueuedMessage *
consumer_queue_next(const ConsumerQueue *queue, int64_t now, int64_t *next)
{
	*next = INT64_MAX;
	for (QueuedMessage *at = queue->head; at != NULL; at = at->next)
	{
		if (at->done || at->provisional || (at->ahead != NULL && !at->ahead->provisional))
			continue;
		if (at->not_before <= now)
			return at;
		if (at->not_before < *next)
			*next = at->not_before;
	}
	return NULL;
}

void
consumer_queue_assume_done(QueuedMessage *message)
{
	message->provisional = true;
}

void
consumer_queue_forget_assumptions(ConsumerQueue *queue)
{
	for (QueuedMessage *at = queue->head; at != NULL; at = at->next)
		at->provisional = false;
}

void
consumer_queue_done(ConsumerQueue *queue, QueuedMessage *message)
{
	message->done = true;
	message->provisional = false;
	message->message = NULL;
	queue->waiting--;
	for (QueuedMessage *at = message->next; at != NULL; at = at->next)
	{
		/* Who waited for it waits for what it waited for, if that isn't done yet. */
		if (at->ahead == message)
			at->ahead = message->ahead;
	}
	while (queue->head != NULL && queue->head->done)
	{
		QueuedMessage *gone = queue->head;

		queue->floor = gone->sequence;
		queue->head = gone->next;
		if (queue->head != NULL)
			queue->head->previous = NULL;
		else
			queue->tail = NULL;
		free(gone);
	}
}

uint64_t
consumer_queue_assumed_floor(const ConsumerQueue *queue)
{
	uint64_t	floor = queue->floor;

	for (const QueuedMessage *at = queue->head; at != NULL && (at->done || at->provisional); at = at->next)
		floor = at->sequence;
	return floor;
}

/* FNV-1a. Two aggregates with one key only wait for each other. */
uint64_t
consumer_queue_key(const char *text)
{
	uint64_t	hash = UINT64_C(14695981039346656037);

	for (; *text != '\0'; text++)
		hash = (hash ^ (unsigned char) *text) * UINT64_C(1099511628211);
	return hash == 0 ? 1 : hash;
}
