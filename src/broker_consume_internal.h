/*
 * broker_consume_internal.h
 *	  What broker_consume.c and broker_consume_open.c share; nobody else includes it.
 *
 * Everything behind "guarded by lock" is shared among threads; the rest is
 * constant once the thread runs, or the thread's own. Holders are the owner, the
 * thread, the subscription and the library's callbacks; the last one frees.
 */
#ifndef OUTBOX_BROKER_CONSUME_INTERNAL_H
#define OUTBOX_BROKER_CONSUME_INTERNAL_H

#include "broker_consume.h"
#include "broker_internal.h"

struct BrokerConsumer
{
	BrokerPost *post;
	BrokerSettings *settings;
	BrokerConsumeConfig config;
	atomic_int	holders;
	char		inbox[BROKER_REPLY_SUBJECT_SIZE];

	/* the thread's */
	natsSubscription *sub;
	int64_t		start_at_us;	/* of config.start_new */
	uint64_t	last_in_stream;	/* as the connection begins: sequence of the last message, and when it was stored */
	int64_t		last_stored_ns;
	int64_t		progress_at_us;	/* when the server is to be told that we are at work */

	pthread_mutex_t lock;
	pthread_cond_t work;		/* for the thread */
	natsConnection *nc;			/* changed by the thread, under the lock */
	/* guarded by lock */
	bool		stop;
	bool		dead;			/* the connection is of no use any more; status.text says why */
	BrokerConsumeStatus status;
	BrokerReceived *unfinished;	/* all that was received and isn't finished */
	int			unfinished_count;
	BrokerReceived *arrived_head; /* not yet taken */
	BrokerReceived *arrived_tail;
	BrokerReceived *finished;	/* to be acknowledged */
	int			pull_left;		/* messages asked for that haven't come yet */
	int64_t		pull_until_us;
	uint64_t	last_delivery;	/* number of the last one; they are given out without a gap */
};

/* broker_consume.c */
extern void broker_consume_end(BrokerConsumer *consumer, const char *reason);
extern void broker_consume_release(BrokerConsumer *consumer);
extern void broker_consume_free(BrokerReceived *message);

/* broker_consume_open.c */
extern bool broker_consume_open(BrokerConsumer *consumer, const BrokerServer *server, char *error);
extern void broker_consume_close(BrokerConsumer *consumer);

#endif /* OUTBOX_BROKER_CONSUME_INTERNAL_H */
