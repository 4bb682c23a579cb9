/*
 * broker_internal.h
 *	  What broker.c and its helpers share; nobody else includes it.
 *
 *	  broker.c			the public functions
 *	  broker_attempt.c	a thread that looks after the stream and connects
 *	  broker_denial.c	what the server says of a missing permission
 *	  broker_flight.c	the table of messages in flight
 *	  broker_life.c		when to connect, to whom, and when to leave
 *	  broker_link.c		one open connection, to its end
 *	  broker_message.c	checks a message and hands it to the connection
 *	  broker_nkey.c		the public key of an NKey's seed
 *	  broker_open.c		the beginning of a connection, and the library's callbacks
 *	  broker_options.c	the library's options: credentials, TLS, their files
 *	  broker_outcome.c	what became of each message
 *	  broker_reply.c	what comes back, and whose it is
 *	  broker_pump.c		the thread that drives a TLS connection
 *	  broker_settings.c	the configuration, and the list of servers in it
 *	  broker_text.c		clocks, and texts without secrets
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

/* The library PINGs this often; a server silent for BROKER_STALE_US is given up. Tests are less patient. */
#ifndef BROKER_PING_MS
#define BROKER_PING_MS			10000
#define BROKER_STALE_US			(30 * INT64_C(1000000))
#endif

/*
 * Up to 3.14 the library writes a header's name without a look at it (its natsMsgHeader_encode()), see
 * broker_message.c. Raise it after a look at a newer one; test/broker tells the difference.
 */
#ifndef BROKER_PACKS_HEADERS_UP_TO
#define BROKER_PACKS_HEADERS_UP_TO 0x030EFF
#endif

/* A token is 4 hexadecimal digits of slot and 8 of generation. */
#define BROKER_TOKEN_LEN		12
#define BROKER_MAX_SLOTS		65536
#define BROKER_REPLY_SUBJECT_SIZE 128

/* More servers than this in a list are left out. */
#define BROKER_MAX_SERVERS		32

/* A public NKey: 56 characters. */
#define BROKER_NKEY_SIZE		57

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

/* As JSON strings want them. All NULL: none. */
typedef struct BrokerLogin
{
	char	   *user;			/* with password, or both NULL */
	char	   *password;
	char	   *token;			/* or NULL */
} BrokerLogin;

/* One entry of the list of URLs. */
typedef struct BrokerServer
{
	char	   *url;			/* scheme, host and port: nothing to hide */
	BrokerLogin	login;
} BrokerServer;

/* An immutable copy of a BrokerConfig; no string in config is NULL. */
typedef struct BrokerSettings
{
	atomic_int	holders;
	BrokerConfig config;
	BrokerServer *servers;
	int			server_count;
	const BrokerLogin *first_login; /* for those that have none; may be NULL */
	bool		tls_wanted;		/* by the scheme of any */
} BrokerSettings;

/* What is known of the stream, for BrokerStatus; all zero: nothing. */
typedef struct BrokerStream
{
	int64_t		duplicate_window_ms;
	bool		discards_unwanted;
	bool		takes_batches;
	bool		takes_ttl;
	bool		takes_schedules;
} BrokerStream;

/* One try at connecting (or, connect false, at the stream only), with its own thread. */
typedef struct BrokerAttempt
{
	BrokerPost *post;
	BrokerSettings *settings;
	bool		connect;
	unsigned int first_server;	/* where to begin in the list */
	atomic_int	server_index;	/* where it is ... */
	_Atomic int64_t limit_us;	/* ... and by when it should have left */
	/* guarded by post->lock */
	bool		done;			/* the thread has left: the rest is the main thread's */
	bool		abandoned;		/* the main thread has left: the rest is the thread's */
	/* written by the thread before done */
	struct BrokerLink *link;	/* NULL: not connected, and error says why */
	char		error[BROKER_TEXT_SIZE];
	char		stream_text[BROKER_TEXT_SIZE];	/* trouble with the stream, or "" */
	BrokerStream stream;
} BrokerAttempt;

/*
 * An answer on its way to broker_poll(): the server's message; or without one
 * the pump's word that the library refused the message of that token; or the
 * server's words that publishing to a subject isn't permitted.
 */
typedef struct BrokerReply
{
	natsMsg    *msg;
	char	   *text;			/* malloc'd; only without msg, and NULL when memory ran out */
	bool		denial;			/* text is the server's */
	uint32_t	slot;			/* only without msg and denial */
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
	int			count;			/* messages: more than 1 if it is a batch */
	char	   *subject;		/* of the last message; a buffer that stays with the slot */
	uint64_t	subject_hash;
	int			subject_size;	/* of the buffer */
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
	int			count;			/* messages accepted and not yet reported */
	int			batches;		/* how many of the slots are batches */
	uint64_t	begun;			/* messages accepted so far */
	BrokerSlotList waiting;		/* for their answer, in publish order */
	BrokerSlotList denied;		/* by the server, to be reported */
	BrokerSlotList lost;		/* with their connection, to be reported */
} BrokerFlight;

/* A message on its way to the pump. */
typedef struct BrokerQueued
{
	struct BrokerQueued *next;
	natsMsg    *msg;
	int64_t		queued_us;
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
	_Atomic int64_t max_payload;	/* as the server said last */
	char		server[BROKER_TEXT_SIZE];
	int			server_index;	/* in the list */
	bool		takes_ttl;		/* BrokerStream's; main thread only */
	bool		takes_schedules;

	atomic_bool write_wanted;	/* the library has bytes for the socket */
	atomic_bool dead;			/* the connection is over, reason is written */
	char		reason[BROKER_TEXT_SIZE];
	atomic_bool mute;			/* the server lets no reply come here, and complaint says so */
	atomic_bool leaving;		/* the server is about to close its connections */

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
	char		complaint[BROKER_TEXT_SIZE];	/* last "-ERR" that concerns no message we know of */
	int64_t		complaint_us;	/* 0: none yet */
	bool		greeted;		/* the server has answered us since it knows the subscription */
	int			greeting_fd;	/* eventfd that tells the attempt so, else -1 */
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

#define BROKER_NEVER INT64_MAX

/* The pause before the next try: doubled by every failure, up to a bound. */
typedef struct BrokerBackOff
{
	int64_t		pause_us;
	int64_t		next_at_us;		/* BROKER_NEVER: no try is planned */
} BrokerBackOff;

/* Main thread only. */
struct Broker
{
	BrokerPost *post;
	int			epoll_fd;		/* what broker_fd() gives out: post->wake_fd and the socket */
	BrokerSettings *settings;	/* NULL until broker_configure() */

	BrokerState state;
	int64_t		since_us;
	uint64_t	connects;
	int64_t		max_payload;
	char		offline_text[BROKER_TEXT_SIZE];
	char		stream_text[BROKER_TEXT_SIZE];
	BrokerStream stream;

	BrokerLink *link;			/* NULL unless ONLINE */
	int64_t		online_since_us;
	BrokerAttempt *attempt;		/* at most one that is waited for */
	BrokerAttempt *successor;	/* done: its link follows when no message waits on link */
	int			begin_with;		/* the server to try first; -1: any */
	BrokerBackOff reconnect;
	BrokerBackOff recheck;		/* of the stream, while ONLINE */
	uint64_t	random;			/* xorshift state, for jitter */

	BrokerFlight flight;
	char		lost_text[BROKER_TEXT_SIZE];
	char		denial[BROKER_TEXT_SIZE];	/* the server's last, raw */
	uint64_t	denial_begun;	/* flight.begun at that time */

	/* replies taken from the link, those from replies_at on not yet used */
	BrokerReply *replies;
	int			reply_count;
	int			reply_capacity;
	int			replies_at;
	BrokerTrash trash;
};

/* broker_life.c */
extern void broker_life_start(Broker *broker, bool connect);
extern void broker_life_abandon(Broker *broker);
extern void broker_life_drop(Broker *broker, const char *reason);
extern void broker_life_collect(Broker *broker, int64_t now_us);
extern void broker_life_run(Broker *broker, int64_t now_us);
extern void broker_life_suspect_stream(Broker *broker);

/* broker_outcome.c */
extern int	broker_outcome_report(Broker *broker, int64_t now_us, BrokerOutcome *outcomes, int max);
extern int	broker_outcome_report_replies(Broker *broker, BrokerOutcome *outcomes, int max);
extern void broker_outcome_discard_replies(Broker *broker);
extern int64_t broker_outcome_timeout_us(const Broker *broker);

/* broker_text.c */
extern int64_t broker_now_us(void);
extern int64_t broker_wall_us(void);
extern void broker_text(char *target, const char *format, ...) __attribute__((format(printf, 2, 3)));
extern const char *broker_nats_error(natsStatus status);
extern BrokerPost *broker_post_create(void);
extern BrokerPost *broker_post_hold(BrokerPost *post);
extern void broker_post_release(BrokerPost *post);
extern bool broker_post_wait(BrokerPost *post, int grace_ms);
extern void broker_wake(int event_fd);
extern bool broker_thread_start(pthread_t *thread, void *(*start)(void *), void *argument);

/* broker_settings.c */
extern BrokerSettings *broker_settings_create(const BrokerConfig *config);
extern BrokerSettings *broker_settings_hold(BrokerSettings *settings);
extern void broker_settings_release(BrokerSettings *settings);
extern bool broker_settings_equal(const BrokerSettings *settings, const BrokerConfig *config);

/* broker_nkey.c */
extern bool broker_nkey_public(const char *seed_file, char public[BROKER_NKEY_SIZE], char *error);

/* broker_login.c */
extern bool broker_login_given(const BrokerLogin *login);
extern bool broker_login_parse(BrokerLogin *login, const char *text, size_t len, bool percent_encoded);
extern bool broker_login_read(BrokerLogin *login, const char *path, char *error);
extern void broker_login_wipe(BrokerLogin *login);

/* broker_options.c */
extern natsOptions *broker_options_create(const BrokerSettings *settings, const BrokerServer *server,
										  char *error);
extern void broker_options_error(const BrokerSettings *settings, natsStatus status, char *error);

/* broker_attempt.c */
extern BrokerAttempt *broker_attempt_start(BrokerPost *post, BrokerSettings *settings, bool connect,
										   unsigned int first_server);
extern bool broker_attempt_done(BrokerAttempt *attempt);
extern void broker_attempt_abandon(BrokerAttempt *attempt);
extern void broker_attempt_free(BrokerAttempt *attempt);
extern int64_t broker_attempt_limit_us(const BrokerAttempt *attempt);

/* broker_open.c */
extern BrokerLink *broker_link_open(BrokerPost *post, BrokerSettings *settings,
									natsOptions *options, char *error);

/* broker_link.c */
extern bool broker_link_adopt(BrokerLink *link, int epoll_fd);
extern void broker_link_flush(BrokerLink *link);
extern void broker_link_process(BrokerLink *link, uint32_t events);
extern bool broker_link_stuck(BrokerLink *link, int64_t now_us, int64_t patience_us);
extern void broker_link_drop(BrokerLink *link);
extern void broker_link_release(BrokerLink *link);
extern void broker_link_finish(BrokerLink *link);
extern void broker_link_note_end(BrokerLink *link);
extern void broker_link_note_limits(BrokerLink *link);
extern void broker_link_greeted(BrokerLink *link);
extern void broker_link_complain(BrokerLink *link, const char *words);

/* broker_denial.c */
extern void broker_denial_take(BrokerLink *link, const char *text);
extern int	broker_denial_subject(const char *text, char *subject, bool *cut);

/* broker_message.c */
extern bool broker_subject_valid(const char *subject);
extern const char *broker_message_subject(const BrokerLink *link, const BrokerMessage *message);
extern BrokerPublishResult broker_message_publish(BrokerLink *link, BrokerTrash *trash,
												  const BrokerMessage *message, uint32_t slot,
												  uint32_t generation, char *error_text);
extern BrokerPublishResult broker_message_publish_batch(BrokerLink *link, BrokerTrash *trash,
														const BrokerMessage *const *messages, int count,
														uint32_t slot, uint32_t generation, char *error_text);
extern void broker_message_announce(BrokerLink *link, BrokerTrash *trash, const BrokerMessage *message);

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
extern void broker_flight_begin(BrokerFlight *flight, int slot, int count, void *cookie, int64_t sent_us,
								const char *subject);
extern bool broker_flight_waits(const BrokerFlight *flight, uint32_t slot, uint32_t generation);
extern int64_t broker_flight_oldest_us(const BrokerFlight *flight);
extern void broker_flight_lose(BrokerFlight *flight);
extern int	broker_flight_deny(BrokerFlight *flight, const char *subject, int len, bool cut);
extern int64_t broker_flight_report(BrokerFlight *flight, uint32_t slot, BrokerOutcome *outcome,
									BrokerOutcomeKind kind);
extern int64_t broker_flight_report_oldest(BrokerFlight *flight, BrokerOutcome *outcome);
extern bool broker_flight_any_lost(const BrokerFlight *flight);
extern void broker_flight_report_lost(BrokerFlight *flight, BrokerOutcome *outcome);
extern bool broker_flight_any_denied(const BrokerFlight *flight);
extern void broker_flight_report_denied(BrokerFlight *flight, BrokerOutcome *outcome);

/* broker_pump.c */
extern bool broker_pump_start(BrokerLink *link);
extern BrokerPublishResult broker_pump_publish(BrokerLink *link, natsMsg *msg, int64_t bytes,
											   uint32_t slot, uint32_t generation);
extern void broker_pump_stop(BrokerLink *link);

#endif							/* OUTBOX_BROKER_INTERNAL_H */
