/*
 * consumer_queue.h
 *	  The messages that a consumer has received, in the stream's order: which one
 *	  may be handled next, and up to where everything is done.
 *
 * Pure logic: no clock of its own, no PostgreSQL, no NATS; malloc only.
 */
#ifndef OUTBOX_CONSUMER_QUEUE_H
#define OUTBOX_CONSUMER_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct QueuedMessage
{
	uint64_t	sequence;
	uint64_t	key;			/* of its aggregate; 0: it waits for none, and none for it */
	int			attempts;		/* that failed */
	int64_t		not_before;		/* of its next attempt */
	void	   *message;		/* the caller's */
	/* the queue's */
	struct QueuedMessage *next;
	struct QueuedMessage *previous;
	struct QueuedMessage *ahead;	/* the one of the same aggregate that comes first; NULL: none is left */
	bool		provisional;	/* done, if the transaction commits */
	bool		done;
} QueuedMessage;

typedef struct ConsumerQueue
{
	QueuedMessage *head;		/* the lowest sequence */
	QueuedMessage *tail;
	uint64_t	floor;			/* everything up to it is done */
	int			waiting;		/* messages that aren't done */
} ConsumerQueue;

/* Forgets all messages; everything up to floor is done. */
extern void consumer_queue_reset(ConsumerQueue *queue, uint64_t floor);

/* Whether the message of that sequence was done before, or is in the queue. */
extern bool consumer_queue_knows(const ConsumerQueue *queue, uint64_t sequence);

/* Adds one that isn't known. NULL: out of memory. */
extern QueuedMessage *consumer_queue_add(ConsumerQueue *queue, uint64_t sequence, uint64_t key, void *message);

/*
 * The first message whose time has come and whose aggregate has none before it
 * that isn't done, be it provisionally. NULL: none; *next says when there will be one,
 * INT64_MAX: not by waiting.
 */
extern QueuedMessage *consumer_queue_next(const ConsumerQueue *queue, int64_t now, int64_t *next);

/* In a transaction that may still fail. */
extern void consumer_queue_assume_done(QueuedMessage *message);
extern void consumer_queue_forget_assumptions(ConsumerQueue *queue);

/* It is done for good; it may be freed by this call. */
extern void consumer_queue_done(ConsumerQueue *queue, QueuedMessage *message);

/* The floor as it will be when all that is provisional is done. */
extern uint64_t consumer_queue_assumed_floor(const ConsumerQueue *queue);

/* A key from bytes, never 0. */
extern uint64_t consumer_queue_key(const char *text);

#endif							/* OUTBOX_CONSUMER_QUEUE_H */
