/*
 * outbox.h
 *	  What the PostgreSQL side of outbox shares among its files: settings and
 *	  the structures in shared memory.
 *
 * Locking of the shared structures:
 *	- OutboxShared.lock guards the table of databases (which slot belongs to
 *	  which database). Slots are handed out and taken back under it.
 *	- OutboxDatabase.slots_lock guards its table of slots, and who comes to and
 *	  leaves its places. Never wait for a heavyweight lock under it.
 *	- OutboxDatabase.feed_mutex (a spinlock) guards the ring with its readers
 *	  and nothing else.
 *	- OutboxDatabase.status_lock guards the texts of the status, and who adds to
 *	  the groups and errors of the meters.
 *	- OutboxShared.prepared_lock guards the array of prepared transactions.
 *	- Fields of type pg_atomic_* are written by the process named beside them
 *	  and read by anyone without a lock.
 * Whoever needs several takes them in this order: lock, slots_lock, feed_mutex.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "postgres.h"

#include "access/transam.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "error_class.h"
#include "meter.h"
#include "slots.h"

#define OUTBOX_SCHEMA "outbox"
#define OUTBOX_EXTENSION "outbox"

/* Children of the log and of the ledger, see sql/outbox--*.sql. */
#define OUTBOX_CHILDREN 8

/* Runs of positions that a transaction or a prepared transaction remembers. */
#define OUTBOX_MAX_RUNS 16

/* Pushed ranges that wait for relays, per database. */
#define OUTBOX_FEED_SIZE 1024

/*
 * Events that may be handed to the broker and not yet settled: by all relays
 * of the server together, and by each outside of it.
 */
#define OUTBOX_MAX_CLAIMED 16384
#define OUTBOX_OUTSIDE_CLAIMED 1024
#define OUTBOX_CLAIMS (OUTBOX_MAX_CLAIMED + (OUTBOX_MAX_RELAYS - OUTBOX_SERVER_RELAYS) * OUTBOX_OUTSIDE_CLAIMED)

#define OUTBOX_TEXT_SIZE 256

/* Positions lo..hi, inclusive. */
typedef struct OutboxRange
{
	int64		lo;
	int64		hi;
} OutboxRange;

/* What a transaction has pushed, or many together. */
typedef struct OutboxFeedEntry
{
	OutboxRange range;
	TimestampTz committed_at;	/* 0: not known, or of several */
} OutboxFeedEntry;

typedef enum OutboxRelayState
{
	OUTBOX_RELAY_STOPPED,
	OUTBOX_RELAY_STARTING,
	OUTBOX_RELAY_CONNECTING,	/* no connection to NATS; the text says why */
	OUTBOX_RELAY_STREAM_TROUBLE,	/* connected, but the stream isn't usable */
	OUTBOX_RELAY_BROKER_TROUBLE, /* connected, but nothing is acknowledged: one probe at a time */
	OUTBOX_RELAY_PAUSED,		/* by outbox.pause() */
	OUTBOX_RELAY_ACTIVE
} OutboxRelayState;

/* What outbox.status() shows of a relay; written by it only. */
typedef struct OutboxRelayStatus
{
	OutboxRelayState state;
	TimestampTz since;
	char		server[OUTBOX_TEXT_SIZE];
	char		stream[OUTBOX_TEXT_SIZE];
	char		last_error[OUTBOX_TEXT_SIZE];
} OutboxRelayStatus;

/* A place for one relay process. The table of slots knows it by the same number. */
typedef struct OutboxPlace
{
	pg_atomic_uint32 pid;		/* of the process that has it, member or not any more; 0: free */
	pg_atomic_uint32 procno;	/* valid while pid is set */
	pg_atomic_uint32 must_leave; /* this relay shall go: there are more than wanted */
	int			claim_first;	/* its part of claimed[], guarded by slots_lock */
	int			claim_count;

	OutboxRelayStatus status;	/* guarded by status_lock */
	pg_atomic_uint64 published; /* acks recorded since the server started */
	pg_atomic_uint64 known_pending; /* events known to the relay that aren't terminal */
	pg_atomic_uint64 read_up_to;	/* end of the relay's sequential pass */
	pg_atomic_uint64 in_flight; /* handed to the broker, no answer yet */
	pg_atomic_uint64 oldest_pending;	/* TimestampTz of the oldest known pending event, 0: none */
	pg_atomic_uint64 late_since;	/* TimestampTz: an event waits since then, longer than outbox.lag_warning; 0: none does */
	OutboxCounts counts;		/* since the last reset */
	pg_atomic_uint64 open_from;	/* its lowest known position that isn't terminal, PG_INT64_MAX: none */
	pg_atomic_uint64 flush_seen; /* it has read everything committed before this call of flush() */
} OutboxPlace;

/* A relay's view of the ring of pushed ranges. */
typedef struct OutboxFeedReader
{
	bool		attached;
	uint32		tail;			/* next to read */
	bool		overflow;		/* entries were overwritten before it had read them: */
	OutboxRange	overflow_range;	/* they are in here */
} OutboxFeedReader;

/* A child of the log, as enqueue and readers must know it: ring.c. */
typedef struct OutboxChild
{
	pg_atomic_uint32 life;		/* raised each time it is emptied */
	pg_atomic_uint64 last;		/* no position above it is in there; PG_INT64_MAX: unknown yet */
} OutboxChild;

/* Replays of a database that run at the same time. */
#define OUTBOX_MAX_REPLAYERS 4

/* A place for a process that replays. */
typedef struct OutboxReplayer
{
	pg_atomic_uint32 pid;		/* 0: free */
	pg_atomic_uint32 procno;	/* valid while pid is set */
} OutboxReplayer;

/* Subscriptions of a database, at most. */
#define OUTBOX_SUBSCRIPTIONS 32

typedef enum OutboxConsumerState
{
	OUTBOX_CONSUMER_STOPPED,
	OUTBOX_CONSUMER_CONNECTING, /* no connection, or no consumer in the stream; the text says why */
	OUTBOX_CONSUMER_ACTIVE
} OutboxConsumerState;

/* A subscription as the launcher must know it, and what its consumer says of itself: subscriptions.c. */
typedef struct OutboxSubscription
{
	/* guarded by status_lock */
	int			id;				/* of its row; 0: free */
	int			revision;
	Oid			role;			/* whose session its consumer is */
	bool		wanted;			/* a consumer is to be at work */
	OutboxConsumerState state;
	TimestampTz since;
	char		server[OUTBOX_TEXT_SIZE];
	char		last_error[OUTBOX_TEXT_SIZE];

	pg_atomic_uint32 pid;		/* of its consumer; 0: none */
	pg_atomic_uint32 procno;	/* valid while pid is set */
	pg_atomic_uint32 must_leave;	/* that consumer shall go */
	pg_atomic_uint32 asked;		/* the last one went because it was told to */
	/* Since the server started; written by the consumer. */
	pg_atomic_uint64 applied;
	pg_atomic_uint64 duplicates;
	pg_atomic_uint64 failures;
	pg_atomic_uint64 parked;
	/* Now. */
	pg_atomic_uint64 held;
	pg_atomic_uint64 pending;
} OutboxSubscription;

/* One database that has, or had, the extension. */
typedef struct OutboxDatabase
{
	Oid			dboid;			/* InvalidOid: slot free */

	/* Set once per start and per CREATE EXTENSION, see database.c. */
	pg_atomic_uint32 ready_for; /* oid of the position sequence, 0: not ready */
	pg_atomic_uint32 current_child; /* takes new events */
	pg_atomic_uint32 used_children; /* as bits: those that may hold events */
	pg_atomic_uint32 moves;		/* raised when events have changed their child */
	pg_atomic_uint32 retiring;	/* 1 + the child that is just being emptied; 0: none */
	OutboxChild children[OUTBOX_CHILDREN];

	/* Retention: cleaner.c. */
	pg_atomic_uint32 cleaner_pid;	/* 0: none is at work */
	pg_atomic_uint64 clean_at;	/* TimestampTz when the next one is due; 0: not known yet */
	pg_atomic_uint64 clean_from; /* and not before max_assigned has reached this */
	pg_atomic_uint32 inbox_used; /* 0: nothing is in the inbox */
	pg_atomic_uint64 inbox_clean_at; /* TimestampTz when it is to be swept; 0: not known yet */
	pg_atomic_uint64 max_assigned;	/* no position above it was ever assigned, may lag */

	/* Replay: replay.c. Places are taken under slots_lock. */
	pg_atomic_uint32 replay_calls;	/* raised when there may be a replay to begin or to cancel */
	OutboxReplayer replayers[OUTBOX_MAX_REPLAYERS];

	/* Relays and launcher. */
	pg_atomic_uint32 leave_calls; /* raised when all relays shall go: extension or database changes */
	TimestampTz no_relay_before;	/* guarded by OutboxShared.lock */
	LWLock		slots_lock;
	SlotTable	slots;
	pg_atomic_uint64 watermark;	/* highest one known to be in the table */

	slock_t		feed_mutex;
	uint32		feed_head;		/* next to write */
	OutboxFeedEntry feed[OUTBOX_FEED_SIZE];
	OutboxFeedReader readers[OUTBOX_MAX_RELAYS];

	LWLock		status_lock;
	pg_atomic_uint32 requests;	/* raised when operators have asked for something: store_requests.c */
	pg_atomic_uint64 flush_calls; /* calls of outbox.flush() */
	pg_atomic_uint32 careful;	/* the next relay builds each event in a subtransaction: one can't be read */
	pg_atomic_uint64 errors[OUTBOX_ERROR_CLASSES]; /* failures to publish since the server started */
	OutboxMeters meters;
	OutboxPlace	places[OUTBOX_MAX_RELAYS];
	pg_atomic_uint32 subscription_changes;	/* raised when the table of subscriptions has changed */
	pg_atomic_uint32 subscriptions_read; /* 1 + that count when a scout had read it; 0: none has */
	pg_atomic_uint32 parked_changes; /* raised when parked messages are to be retried */
	OutboxSubscription subscriptions[OUTBOX_SUBSCRIPTIONS];
	pg_atomic_uint64 claimed[OUTBOX_CLAIMS]; /* handed to the broker and not settled: outbox_claim_entry(), 0: free */
} OutboxDatabase;

/* An entry of claimed[] says whose it is, so that what a relay leaves behind can be told from the work of the next one. */
#define OUTBOX_CLAIM_PLACE_SHIFT 60

static inline uint64
outbox_claim_entry(int place, int64 position)
{
	return (uint64) place << OUTBOX_CLAIM_PLACE_SHIFT | (uint64) position;
}

static inline int
outbox_claim_place(uint64 claim)
{
	return (int) (claim >> OUTBOX_CLAIM_PLACE_SHIFT);
}

/* 0 of a free entry. */
static inline int64
outbox_claim_position(uint64 claim)
{
	return (int64) (claim & ((UINT64CONST(1) << OUTBOX_CLAIM_PLACE_SHIFT) - 1));
}

/* A backend's promise: it holds no open position below bound. */
typedef struct OutboxBackend
{
	pg_atomic_uint64 bound;		/* 0: none */
	Oid			dboid;			/* written before bound */
} OutboxBackend;

/* The positions of a transaction that is, or was, prepared. */
typedef struct OutboxPrepared
{
	FullTransactionId xid;		/* Invalid: entry free */
	Oid			dboid;
	int			run_count;
	OutboxRange runs[OUTBOX_MAX_RUNS];
} OutboxPrepared;

/* What a relay tells the launcher about itself. */
typedef enum OutboxReport
{
	OUTBOX_REPORT_NONE,			/* didn't get as far as looking; or failed later */
	OUTBOX_REPORT_ABSENT,		/* the database hasn't got the extension */
	OUTBOX_REPORT_ATTACHED,		/* at work */
	OUTBOX_REPORT_ASKED			/* left because it was asked to */
} OutboxReport;

/* More than relays can run at a time. */
#define OUTBOX_REPORTS 2048

typedef struct OutboxShared
{
	LWLock		lock;
	LWLock		prepared_lock;
	int			tranche;
	int			database_count; /* slots, from outbox.max_databases */
	int			backend_count;
	int			prepared_count;
	pg_atomic_uint32 launcher_procno;	/* valid while launcher_pid is set */
	pg_atomic_uint32 launcher_pid;
	pg_atomic_uint32 reports[OUTBOX_REPORTS];	/* OutboxReport, written by relays */
	pg_atomic_uint32 database_hint; /* raised when some database may have gained the extension */
	pg_atomic_uint32 settings_changes;	/* raised when ALTER DATABASE has changed some database's settings of ours */
	OutboxDatabase *databases;
	OutboxBackend *backends;
	OutboxPrepared *prepared;
} OutboxShared;

/* shmem.c; NULL when the library isn't in shared_preload_libraries. */
extern OutboxShared *outbox_shared;
extern void outbox_shmem_install(void);
extern void outbox_shmem_require(void);
extern OutboxDatabase *outbox_shmem_find(Oid dboid);
extern OutboxDatabase *outbox_shmem_claim(Oid dboid);
extern void outbox_shmem_free(Oid dboid);
extern bool outbox_shmem_has_relays(OutboxDatabase *database);
extern bool outbox_shmem_has_processes(OutboxDatabase *database);
extern void outbox_shmem_wake_relays(OutboxDatabase *database);
extern void outbox_shmem_wake_consumers(OutboxDatabase *database);
extern void outbox_shmem_wake_launcher(void);
extern void outbox_shmem_wake_replayers(OutboxDatabase *database);

/* What a failed event means to its successors: outbox.poison_policy. */
typedef enum OutboxPoisonPolicy
{
	OUTBOX_POISON_SKIP,			/* they go on */
	OUTBOX_POISON_BLOCK,		/* they wait for an operator */
	OUTBOX_POISON_PARK /* they become dead letters, too */
} OutboxPoisonPolicy;

/* Settings, outbox.c; each is described where it is defined. */
extern char *outbox_nats_url;
extern char *outbox_credentials_file;
extern char *outbox_login_file;
extern char *outbox_nkey_seed_file;
extern char *outbox_inbox_prefix;
extern char *outbox_tls_ca_file;
extern char *outbox_tls_cert_file;
extern char *outbox_tls_key_file;
extern char *outbox_stream;
extern bool outbox_stream_create;
extern char *outbox_subject_template;
extern int	outbox_envelope;
extern char *outbox_cloudevents_source;
extern char *outbox_traceparent;
extern char *outbox_tracestate;
extern bool outbox_guard;
extern int	outbox_max_in_flight;
extern int	outbox_ack_timeout;
extern int	outbox_connect_timeout;
extern int	outbox_retry_base_delay;
extern int	outbox_retry_max_delay;
extern int outbox_max_attempts;
extern int	outbox_max_pending;
extern int	outbox_lag_warning;
extern int outbox_poison_policy;
extern bool outbox_preserve_aggregate_order;
extern char *outbox_dead_letter_subject;
extern int outbox_retention;
extern int outbox_dead_letter_retention;
extern char *outbox_archive_directory;
extern char *outbox_archive_url;
extern int	outbox_archive_compression;
extern int	outbox_relay_memory;
extern int outbox_workers;
extern int outbox_lease_ttl;
extern int	outbox_max_payload;
extern int	outbox_max_open_aggregates;
extern int	outbox_max_databases;
#ifdef OUTBOX_TEST_POINTS
extern int	outbox_test_feed_size;
#endif

/*
 * Named places where tests stop a process (PROTOCOL: pause points). Nothing
 * in a normal build.
 */
#ifdef OUTBOX_TEST_POINTS
extern Size outbox_test_shmem_size(void);
extern void outbox_test_shmem_init(void);
extern void outbox_test_point(const char *name);
#define OUTBOX_TEST_POINT(name) outbox_test_point(name)
#else
#define OUTBOX_TEST_POINT(name) ((void) 0)
#endif

#endif							/* OUTBOX_H */
