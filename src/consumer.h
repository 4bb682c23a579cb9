/*
 * consumer.h
 *	  One consumer: what its parts share.
 *
 * consumer.c owns the process, its loop and its connection to the broker,
 * consumer_apply.c the transactions, consumer_message.c what a handler gets. One
 * process and one thread; nothing here is locked.
 */
#ifndef OUTBOX_CONSUMER_H
#define OUTBOX_CONSUMER_H

#include "outbox.h"

#include "access/tupdesc.h"

#include "broker_consume.h"
#include "consumer_queue.h"

typedef struct Consumer
{
	OutboxDatabase *database;
	OutboxSubscription *self;
	Oid			sequence;		/* tells the extension's lives in this database apart */
	uint32		leave_calls;

	/* Its row; strings in TopMemoryContext. */
	int			id;
	int			revision;
	char	   *name;			/* the inbox's consumer */
	char	   *stream;
	char	   *durable;
	char	   *subject;
	char	   *handler;
	bool		ordered;
	int			max_attempts;
	int			ack_wait_ms;
	int			batch_size;
	Oid			message_type;	/* outbox.message */

	/* The connection, and what came by it. */
	BrokerConsumer *connection; /* NULL: none */
	bool		running;		/* it has got so far as to receive */
	bool		has_position;	/* the table had one when it began */
	int64		stream_created_ns;
	ConsumerQueue queue;
	uint64		careful_up_to;	/* messages up to it may have ended a consumer before: see consumer_apply.c */
	int			singly;			/* so many transactions are of one message each: a larger one couldn't commit */
	int64		retry_at;		/* when what failed as a whole may be tried again */
	uint32		parked_seen;	/* OutboxDatabase.parked_changes, when parked messages were looked at */
	bool		parked_left;	/* there are more of them */
} Consumer;

/* consumer.c */
extern void outbox_consumer_say(Consumer *consumer, const char *error);

/* consumer_apply.c: each a transaction of its own, or several. */

/* Reads the row and the position. False: the subscription is gone, or another one by now. */
extern bool outbox_consumer_load(Consumer *consumer, BrokerConsumeConfig *config);

/* Records where it begins, before anything is handled: the durable consumer may be remade from then on. */
extern void outbox_consumer_record_start(const Consumer *consumer);

/* Reads how often messages behind the position have failed, into the queue's messages as they come. */
extern int	outbox_consumer_attempts(const Consumer *consumer, uint64 sequence);

/* Handles what can be handled now, in one transaction. False: nothing; *next says when to come again. */
extern bool outbox_consumer_apply(Consumer *consumer, int64 now, int64 *next);

/* Handles one parked message that is to be retried. False: there is none. */
extern bool outbox_consumer_retry_parked(Consumer *consumer);

/* consumer_message.c: in the current transaction and memory context. */
extern Datum outbox_consumer_message(const Consumer *consumer, const QueuedMessage *message);
extern const char *outbox_consumer_header(const BrokerReceived *received, const char *key);

#endif							/* OUTBOX_CONSUMER_H */
