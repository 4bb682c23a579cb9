/*
 * broker_consume.h
 *	  A consumer's view of NATS JetStream: one connection from its beginning to
 *	  its end, the messages of one durable pull consumer in the stream's order,
 *	  and their acknowledgements.
 *
 * As broker.h: plain C, no postgres.h; called from one thread, with all signals
 * blocked; nothing here blocks on the network, a thread behind this header does.
 * When the connection ends, for whatever reason, its owner forgets what was
 * received and starts another one: everything behind the position comes again.
 */
#ifndef OUTBOX_BROKER_CONSUME_H
#define OUTBOX_BROKER_CONSUME_H

#include "broker.h"

typedef struct BrokerConsumer BrokerConsumer;

typedef struct BrokerConsumeConfig
{
	const char *durable;
	const char *filter;			/* NULL or "": all of the stream's subjects */
	bool		has_position;
	uint64_t	position;		/* the owner is done with everything up to this sequence ... */
	int64_t		stream_created_ns;	/* ... of the stream that was created then; 0: unknown */
	/* Without a position, and without a consumer in the stream that has one: */
	bool		start_new;		/* only what was stored since ... */
	int64_t		start_age_us;	/* ... so long ago, when broker_consume_start() is called */
	int			ack_wait_ms;
	int			window;			/* messages received and not finished, at most */
} BrokerConsumeConfig;

typedef struct BrokerReceived
{
	uint64_t	sequence;		/* in the stream */
	uint64_t	pending;		/* how many the server had behind it */
	int64_t		published_ns;	/* since 1970 */
	const char *subject;
	const BrokerHeader *headers;
	int			header_count;
	const void *data;
	int			data_len;
	/* broker_consume.c's */
	char	   *reply;
	struct BrokerReceived *next;
	struct BrokerReceived *previous;
	struct BrokerReceived *next_in_queue;
} BrokerReceived;

typedef enum BrokerConsumeState
{
	BROKER_CONSUME_STARTING,
	BROKER_CONSUME_RUNNING,
	BROKER_CONSUME_ENDED		/* text says why */
} BrokerConsumeState;

typedef struct BrokerConsumeStatus
{
	BrokerConsumeState state;
	char		server[BROKER_TEXT_SIZE];
	char		text[BROKER_TEXT_SIZE];
	/* RUNNING: */
	int64_t		stream_created_ns;
	int64_t		stream_max_age_ms;	/* 0: unlimited */
	uint64_t	position;		/* where it begins: behind this sequence */
	uint64_t	tried_up_to;	/* earlier connections may have received messages up to it */
	uint64_t	lost_up_to;		/* the stream has removed messages behind the position, up to it; 0: none */
	bool		stream_is_new;	/* not the one of the position: from its beginning */
} BrokerConsumeStatus;

/* NULL: out of memory, descriptors or threads. Both configurations are copied. */
extern BrokerConsumer *broker_consume_start(const BrokerConfig *connection, const BrokerConsumeConfig *config);

/* A descriptor that is readable when there may be news; broker_consume_take() makes it silent. */
extern int	broker_consume_fd(const BrokerConsumer *consumer);

/* The next message, which stays valid until broker_consume_finish(); NULL: none now. */
extern BrokerReceived *broker_consume_take(BrokerConsumer *consumer);

/* Acknowledges the message (soon), and frees it. */
extern void broker_consume_finish(BrokerConsumer *consumer, BrokerReceived *message);

extern void broker_consume_get_status(BrokerConsumer *consumer, BrokerConsumeStatus *status);

/*
 * Sends the acknowledgements that are due, closes, and frees everything, also
 * what was taken and not finished. Waits at most grace_ms; false: a thread is still
 * inside the library, see broker_destroy().
 */
extern bool broker_consume_stop(BrokerConsumer *consumer, int grace_ms);

#endif							/* OUTBOX_BROKER_CONSUME_H */
