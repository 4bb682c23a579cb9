/*
 * broker.h
 *	  The relay's view of NATS JetStream: a connection that looks after itself,
 *	  and one outcome for every message handed to it.
 *
 * broker*.c are the only files that know nats.h, and they must not know
 * postgres.h: plain C11 and pthreads, malloc only, errors as values. Every
 * function here is called from one thread (the relay's main thread) with all
 * signals blocked; whatever the library does on its own threads stays behind
 * this header. No function blocks on the network.
 *
 * The contract: a message accepted by broker_publish(), or a batch of them by
 * broker_publish_batch(), is reported by broker_poll() exactly once, whatever
 * happens: acknowledged, refused, timed out, or lost with its connection.
 */
#ifndef OUTBOX_BROKER_H
#define OUTBOX_BROKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct Broker Broker;

/* How long a text of ours may be, its terminating NUL included. */
#define BROKER_TEXT_SIZE 256

/* How long an inbox prefix may be, without its NUL. */
#define BROKER_MAX_INBOX_PREFIX 64

typedef struct BrokerConfig
{
	const char *url;			/* one or several nats:// or tls:// URLs, comma-separated; user,
								 * password or token in them are percent-encoded */
	const char *login_file;		/* NULL or "": none; with user:password or a token, for URLs without */
	const char *credentials_file;	/* NULL or "": none (a .creds file) */
	const char *nkey_seed_file; /* NULL or "": none; excludes credentials_file */
	const char *tls_ca_file;	/* NULL or "": the system's */
	const char *tls_cert_file;	/* NULL or "": no client certificate */
	const char *tls_key_file;
	const char *client_name;	/* shown by the server in its connection list */
	const char *inbox_prefix;	/* of reply subjects, literal tokens; NULL or "": "_INBOX" */
	const char *stream;			/* every ack must name this stream */
	const char *stream_subjects;	/* subject a created stream listens to, "outbox.>" */
	const char *schedule_subjects;	/* what BrokerMessage.schedule_subject is like, "outbox.schedules.*"; NULL or "": none */
	bool		stream_create;	/* create the stream if it is missing, one that takes batches if
								 * the server knows them */
	int			duplicate_window_ms;	/* of a created stream */
	int			ack_timeout_ms; /* from broker_publish() to BROKER_TIMED_OUT */
	int			max_pause_ms;	/* a message that took longer on its way out isn't sent: the process
								 * stood still. 0: no limit */
	int			connect_timeout_ms; /* bound of one connection attempt */
	int			reconnect_base_ms;	/* first back-off between attempts ... */
	int			reconnect_max_ms;	/* ... doubled up to this, with jitter */
	int			max_in_flight;	/* messages accepted and not yet reported, 1 to 65536 */
} BrokerConfig;

typedef struct BrokerHeader
{
	const char *key;
	const char *value;
} BrokerHeader;

typedef struct BrokerMessage
{
	const char *subject;
	const BrokerHeader *headers;
	int			header_count;
	const char *ttl;			/* Nats-TTL, sent where the stream takes it; NULL: none */
	const char *schedule;		/* Nats-Schedule, where the stream takes it: "@at ..."; NULL: none. The stream has
								 * the message under schedule_subject until then */
	const char *schedule_subject;
	const void *data;
	int			data_len;
} BrokerMessage;

typedef enum BrokerOutcomeKind
{
	BROKER_ACKED,				/* its own positive ack, from the configured stream */
	BROKER_REFUSED,				/* JetStream or the client refused it: code and text */
	BROKER_NO_RESPONDERS,		/* no stream listens to the subject */
	BROKER_TIMED_OUT,			/* no answer within ack_timeout: stored or not, unknown */
	BROKER_LOST,				/* the connection went away first: unknown */
	BROKER_BAD_REPLY,			/* an answer that is no ack of this stream: unknown */
	BROKER_DENIED				/* the user may not publish to the subject: not stored */
} BrokerOutcomeKind;

#define BROKER_OUTCOME_KINDS (BROKER_DENIED + 1)

typedef struct BrokerOutcome
{
	void	   *cookie;			/* as given to broker_publish() */
	BrokerOutcomeKind kind;
	bool		duplicate;		/* ACKED: the stream had this message id already */
	uint64_t	sequence;		/* ACKED: the stream's sequence; of a batch, the last one's */
	int			count;			/* how many messages it is about: more than 1 for a batch */
	int			code;			/* REFUSED: JetStream err_code (10077 ...), else 0 */
	int			status;			/* REFUSED: the HTTP-like code beside it (503 ...), else 0 */
	int			round_trip_us;	/* ACKED: from broker_publish() to the ack */
	char		text[BROKER_TEXT_SIZE];	/* all but ACKED: what happened, in words: printable
										 * ASCII, never a secret */
} BrokerOutcome;

typedef enum BrokerState
{
	BROKER_OFFLINE,				/* waiting for the next attempt; text says why */
	BROKER_CONNECTING,
	BROKER_ONLINE
} BrokerState;

typedef struct BrokerStatus
{
	BrokerState state;
	int64_t		since_us;		/* CLOCK_REALTIME, when this state began */
	uint64_t	connects;		/* successful connections so far */
	int64_t		max_payload;	/* the server's, headers included; 0 when never connected */
	int			in_flight;		/* messages, those of batches included */
	int			batches_in_flight;
	bool		takes_batches;	/* ONLINE: the stream does */
	bool		takes_ttl;		/* ONLINE: the stream takes a time to live for each message */
	bool		takes_schedules;	/* ONLINE: the stream keeps messages until their time */
	int64_t		duplicate_window_ms;	/* ONLINE: the stream's; 0: unknown */
	bool		discards_unwanted;	/* ONLINE: the stream keeps only what a consumer waits for */
	char		server[BROKER_TEXT_SIZE];	/* URL connected to, without credentials */
	char		text[BROKER_TEXT_SIZE]; /* OFFLINE: last error. ONLINE: trouble with the
										 * stream (missing, not creatable), or "" */
} BrokerStatus;

typedef enum BrokerPublishResult
{
	BROKER_PUBLISH_OK,			/* an outcome will follow */
	BROKER_PUBLISH_FULL,		/* max_in_flight reached, or megabytes wait for the
								 * socket: flush and poll first */
	BROKER_PUBLISH_OFFLINE,		/* not connected: nothing was taken */
	BROKER_PUBLISH_REFUSED		/* can't be sent as it is (over max_payload, bad subject):
								 * code and text are filled in, no outcome follows */
} BrokerPublishResult;

/* Returns NULL when out of memory, descriptors or threads. Connects to nothing yet. */
extern Broker *broker_create(void);

/*
 * Copies the configuration and starts connecting. Called again with other
 * values it drops the connection and makes a new one; with the same values it
 * does nothing, except that an OFFLINE broker tries again at once (so that a
 * reload picks up changed credential files). False: out of memory.
 */
extern bool broker_configure(Broker *broker, const BrokerConfig *config);

/* A descriptor that stays the same for the broker's life and is readable while broker_poll() has work. */
extern int	broker_fd(const Broker *broker);

/*
 * Moves bytes, runs timeouts and the connection's life, and stores up to max
 * outcomes. Returns how many. Call again while it returns max.
 */
extern int	broker_poll(Broker *broker, BrokerOutcome *outcomes, int max);

/* Milliseconds until broker_poll() must run even though broker_fd() stays silent; -1: never. */
extern int	broker_poll_within(const Broker *broker);

/*
 * Hands one message to the connection's buffer; broker_flush() sends it. The
 * message's memory is the caller's again on return. error_text
 * (BROKER_TEXT_SIZE) and error_code are set for BROKER_PUBLISH_REFUSED only.
 */
extern BrokerPublishResult broker_publish(Broker *broker, const BrokerMessage *message, void *cookie,
										  int *error_code, char *error_text);

/*
 * Hands several messages to the connection, to be stored together, in order and
 * next to each other, or not at all. Only for a stream that takes batches: see
 * BrokerStatus. They have one outcome, which says nothing of a single one when
 * it isn't BROKER_ACKED. BROKER_PUBLISH_REFUSED: one of them can't be sent as
 * part of a batch, and error_text says why. Else as broker_publish().
 */
extern BrokerPublishResult broker_publish_batch(Broker *broker, const BrokerMessage *const *messages, int count,
												void *cookie, char *error_text);

/*
 * Publishes without acknowledgement and outcome, for what may get lost: offline,
 * over a limit or without permission it is dropped silently. broker_flush()
 * sends it.
 */
extern void broker_announce(Broker *broker, const char *subject, const void *data, int len);

/* Writes as much of the buffer as the socket takes now; the rest goes out in broker_poll(). */
extern void broker_flush(Broker *broker);

/*
 * Drops the connection with its unsent bytes; what was in flight is reported
 * BROKER_LOST. A new connection is made at once.
 */
extern void broker_reset(Broker *broker);

extern void broker_get_status(const Broker *broker, BrokerStatus *status);

/*
 * Closes the connection and frees everything. Waits at most grace_ms for a
 * connection attempt under way; false: a thread is still inside the library.
 * Either way the caller must leave the process by _exit(): threads that are about
 * to end free what OpenSSL's exit handler frees, too.
 */
extern bool broker_destroy(Broker *broker, int grace_ms);

#endif							/* OUTBOX_BROKER_H */
