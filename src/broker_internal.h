/*
 * broker_internal.h
 *	  What broker.c and its helpers share; nobody else includes it.
 *
 *	  broker.c			the public functions: policy and timers, outcomes
 *	  broker_attempt.c	a thread that looks after the stream and connects
 *	  broker_flight.c	the table of messages in flight
 *	  broker_link.c		one connection, from its birth to its end
 *	  broker_message.c	checks a message and hands it to the connection
 *	  broker_reply.c	what comes back, and whose it is
 *	  broker_pump.c		the thread that drives a TLS connection
 *	  broker_text.c		settings, clocks, and texts without secrets
 *
 * Threads. Everything in Broker belongs to the main thread. An attempt, a pump
 * and the library's callbacks see only the structs below, each of which says
 * what guards it. Nothing here is freed while a thread may still look at it:
 * every struct that crosses threads counts its holders.
 */
#ifndef OUTBOX_BROKER_INTERNAL_H
#define OUTBOX_BROKER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include <nats/nats.h>

#include "broker.h"

/* The library PINGs this often; a server silent for BROKER_STALE_US is given up. */
#define BROKER_PING_MS			10000
#define BROKER_STALE_US			(30 * INT64_C(1000000))

/* A token is 4 hexadecimal digits of slot and 8 of generation. */
#define BROKER_TOKEN_LEN		12
#define BROKER_MAX_SLOTS		65536
#define BROKER_REPLY_SUBJECT_SIZE 96

/* With more than this waiting for the socket, broker_publish() takes nothing. */
#define BROKER_MAX_UNSENT		(8 << 20)

/*
 * Where all threads wake the main thread, and where it waits for them at the
 * end. holders counts the broker itself, attempts, links. Guarded by lock,
 * which also guards the attempts' shared fields; wake_fd is constant.
 */
typedef struct BrokerPost
{
	pthread_mutex_t lock;
	pthread_cond_t released;	/* holders went down */
	int			holders;
	int			wake_fd;		/* eventfd */
} BrokerPost;

/* An immutable copy of a BrokerConfig; no string in it is NULL. */
typedef struct BrokerSettings
{
	atomic_int	holders;
	BrokerConfig config;
	char	   *url;			/* config.url with a scheme on each, separated by single commas */
	char	   *shown_url;		/* the same without credentials, for texts */
} BrokerSettings;

/* One try at connecting (or, connect false, at the stream only), with its own thread. */
typedef struct BrokerAttempt
{
	BrokerPost *post;
	BrokerSettings *settings;
	bool		connect;
	/* guarded by post->lock */
	bool		done;			/* the thread has left: the rest is the main thread's */
	bool		abandoned;		/* the main thread has left: the rest is the thread's */
	/* written by the thread before done */
	struct BrokerLink *link;	/* NULL: not connected, and error says why */
	char		error[BROKER_TEXT_SIZE];
	char		stream_text[BROKER_TEXT_SIZE];	/* trouble with the stream, or "" */
} BrokerAttempt;

/*
 * An answer on its way to broker_poll(): the server's message, or without one
 * the pump's word that the library refused the message of that token.
 */
typedef struct BrokerReply
{
	natsMsg    *msg;
	char	   *text;			/* malloc'd; only without msg, and NULL when memory ran out */
	uint32_t	slot;			/* only without msg */
	uint32_t	generation;
	int64_t		at_us;
} BrokerReply;

/* Messages to destroy, saved up: see broker_reply.c. */
#define BROKER_TRASH_SIZE		512
#define BROKER_TRASH_BYTES		(1 << 20)
typedef struct BrokerTrash
{
	int			count;
	int64_t		bytes;
	natsMsg    *messages[BROKER_TRASH_SIZE];
} BrokerTrash;

/* One message in flight. */
typedef struct BrokerSlot
{
	void	   *cookie;
	int64_t		sent_us;
	uint32_t	generation;
	int			previous;		/* in its list */
	int			next;			/* in its list, or in the free list */
	bool		waiting;		/* for its answer */
} BrokerSlot;

typedef struct BrokerSlotList
{
	int			head;
	int			tail;
} BrokerSlotList;

typedef struct BrokerFlight
{
	BrokerSlot *slots;			/* BROKER_MAX_SLOTS, touched from the low end up */
	int			used;			/* slots from here on were never used */
	int			free_head;
	int			count;			/* accepted and not yet reported */
	BrokerSlotList waiting;		/* for their answer, in publish order */
	BrokerSlotList lost;		/* with their connection, to be reported */
} BrokerFlight;

/* A message on its way to the pump. */
typedef struct BrokerQueued
{
	struct BrokerQueued *next;
	natsMsg    *msg;
	int64_t		bytes;
	uint32_t	slot;
	uint32_t	generation;
} BrokerQueued;

/*
 * One connection. Its driver, the only thread to call the library with nc, is
 * the attempt's thread first, then the main thread or, with TLS, the pump.
 * Holders: the driver's side, the subscription's thread, the library's
 * connection callbacks, and for a pumped link the main thread.
 */
typedef struct BrokerLink
{
	BrokerPost *post;
	BrokerSettings *settings;
	atomic_int	holders;
	natsConnection *nc;
	natsSubscription *sub;
	char		reply_subject[BROKER_REPLY_SUBJECT_SIZE];	/* prefix "_INBOX.xyz." with room for a token */
	int			prefix_len;
	int64_t		max_payload;
	char		server[BROKER_TEXT_SIZE];

	atomic_bool write_wanted;	/* the library has bytes for the socket */
	atomic_bool dead;			/* the connection is over, reason is written */
	char		reason[BROKER_TEXT_SIZE];

	/* driver only, but the two times are read by the main thread */
	_Atomic int64_t last_read_us;
	_Atomic int64_t writing_since_us;	/* bytes wait for the socket since; 0: none do */
	_Atomic int64_t unsent_bytes;	/* taken from broker_publish() and not yet written, roughly */

	/*
	 * The main thread holds the gate while the library parses what was read:
	 * the subscription's thread then wakes once for all of it, not for each.
	 */
	pthread_mutex_t gate;
	/* guarded by gate */
	BrokerReply *replies;
	int			reply_count;
	int			reply_capacity;

	pthread_mutex_t lock;
	/* guarded by lock, which the library's lock may be held around */
	pthread_t	driver;
	int			fd;				/* the library's socket, -1 once it is closed */
	int			closing_fd;		/* the same, between its last use and its close */
	char		server_error[BROKER_TEXT_SIZE]; /* last "-ERR" of the server */
	int64_t		server_error_us;	/* 0: none yet */
	BrokerQueued *queue_head;	/* pumped links: messages not yet given to the library */
	BrokerQueued *queue_tail;
	bool		stop;			/* pumped links: the main thread wants it gone */

	/* main thread only */
	int			epoll_fd;
	uint32_t	interest;		/* what epoll waits for, 0 before adoption */
	uint64_t	bytes_acked;	/* by the peer's kernel, when last looked */
	bool		queued;			/* pumped links: wake the pump in broker_flush() */

	/* constant once the link is open */
	bool		pumped;			/* TLS: the pump is the driver */
	int			pump_fd;		/* eventfd that wakes the pump, else -1 */
} BrokerLink;

/* broker_text.c */
extern int64_t broker_now_us(void);
extern int64_t broker_wall_us(void);
extern void broker_text(char *target, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern const char *broker_nats_error(natsStatus status);
extern BrokerSettings *broker_settings_create(const BrokerConfig *config);
extern BrokerSettings *broker_settings_hold(BrokerSettings *settings);
extern void broker_settings_release(BrokerSettings *settings);
extern bool broker_settings_equal(const BrokerSettings *settings, const BrokerConfig *config);
extern BrokerPost *broker_post_create(void);
extern BrokerPost *broker_post_hold(BrokerPost *post);
extern void broker_post_release(BrokerPost *post);
extern bool broker_post_wait(BrokerPost *post, int grace_ms);
extern void broker_wake(int event_fd);
extern bool broker_thread_start(pthread_t *thread, void *(*start)(void *), void *argument);

/* broker_attempt.c */
extern BrokerAttempt *broker_attempt_start(BrokerPost *post, BrokerSettings *settings, bool connect);
extern bool broker_attempt_done(BrokerAttempt *attempt);
extern void broker_attempt_abandon(BrokerAttempt *attempt);
extern void broker_attempt_free(BrokerAttempt *attempt);
extern int64_t broker_attempt_limit_us(const BrokerSettings *settings);

/* broker_link.c */
extern BrokerLink *broker_link_open(BrokerPost *post, BrokerSettings *settings,
									natsOptions *options, char *error);
extern bool broker_link_adopt(BrokerLink *link, int epoll_fd);
extern void broker_link_flush(BrokerLink *link);
extern void broker_link_process(BrokerLink *link, uint32_t events);
extern bool broker_link_stuck(BrokerLink *link, int64_t now_us, int64_t patience_us);
extern void broker_link_drop(BrokerLink *link);
extern void broker_link_release(BrokerLink *link);
extern void broker_link_finish(BrokerLink *link);
extern void broker_link_note_end(BrokerLink *link);

/* broker_message.c */
extern BrokerPublishResult broker_message_publish(BrokerLink *link, BrokerTrash *trash,
												  const BrokerMessage *message, uint32_t slot,
												  uint32_t generation, char *error_text);

/* broker_reply.c */
extern void broker_token_write(char *target, uint32_t slot, uint32_t generation);
extern void broker_reply_push(BrokerLink *link, const BrokerReply *reply);
extern void broker_reply_free(const BrokerReply *reply);
extern bool broker_reply_token(const BrokerLink *link, const BrokerReply *reply,
							   uint32_t *slot, uint32_t *generation);
extern void broker_reply_read(const BrokerLink *link, const BrokerReply *reply, BrokerOutcome *outcome);
extern void broker_trash_add(BrokerTrash *trash, natsMsg *msg);
extern void broker_trash_empty(BrokerTrash *trash);

/* broker_flight.c */
extern bool broker_flight_create(BrokerFlight *flight);
extern void broker_flight_free(BrokerFlight *flight);
extern int	broker_flight_take(BrokerFlight *flight);
extern void broker_flight_give_back(BrokerFlight *flight, int slot);
extern void broker_flight_begin(BrokerFlight *flight, int slot, void *cookie, int64_t sent_us);
extern bool broker_flight_waits(const BrokerFlight *flight, uint32_t slot, uint32_t generation);
extern int64_t broker_flight_oldest_us(const BrokerFlight *flight);
extern void broker_flight_lose(BrokerFlight *flight);
extern int64_t broker_flight_report(BrokerFlight *flight, uint32_t slot, BrokerOutcome *outcome,
									BrokerOutcomeKind kind);
extern int64_t broker_flight_report_oldest(BrokerFlight *flight, BrokerOutcome *outcome);
extern bool broker_flight_any_lost(const BrokerFlight *flight);
extern void broker_flight_report_lost(BrokerFlight *flight, BrokerOutcome *outcome);

/* broker_pump.c */
extern bool broker_pump_start(BrokerLink *link);
extern BrokerPublishResult broker_pump_publish(BrokerLink *link, natsMsg *msg, int64_t bytes,
											   uint32_t slot, uint32_t generation);
extern void broker_pump_stop(BrokerLink *link);

#endif							/* OUTBOX_BROKER_INTERNAL_H */
