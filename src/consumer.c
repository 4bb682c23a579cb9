/*
 * consumer.c
 *	  The process that serves one subscription: it receives messages, lets the
 *	  handler have them, and acknowledges after the commit.
 *
 * It is a session of the role that the handler runs as, so that whatever the
 * handler leaves behind (settings, temporary tables, deferred triggers) has that
 * role's rights and no more. Only its own few statements run as the superuser.
 *
 * The loop: take what has arrived, handle what can be handled, sleep until the
 * latch, the broker's descriptor or a timer. No transaction is open while it
 * waits for the network. When the connection has ended, everything received is
 * forgotten and comes again behind the position, which is a row of a table and
 * changes in the same transactions as everything else. Exit code 0: it is not
 * wanted; 1: it failed. The launcher starts it again as needed.
 */
#include "consumer.h"

#include <signal.h>

#include "access/xact.h"
#include "common/pg_prng.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "complaint.h"
#include "database.h"
#include "give_way.h"
#include "signals.h"
#include "standing.h"
#include "subscriptions.h"
#include "worker.h"

/* The net under lost wake-ups. */
#define IDLE_MS 5000

/* Time for the connection to end when the process does. */
#define EXIT_GRACE_MS 2500

/* Received and not done, as a multiple of the messages in a transaction. */
#define WINDOW_BATCHES 3
#define MIN_WINDOW 64

static Consumer consumer;
static OutboxComplaint complaint;
static volatile sig_atomic_t terminated = false;
static int64 connect_at = 0;	/* when the next connection is due */
static int	failed_connections = 0;

/* ------------------------------------------------------- the broker's side */

static void
close_connection(int grace_ms)
{
	sigset_t	saved;

	if (consumer.connection == NULL)
		return;
	outbox_signals_block(&saved);
	(void) broker_consume_stop(consumer.connection, grace_ms);
	consumer.connection = NULL;
	outbox_signals_restore(&saved);
}

/* on_proc_exit */
static void
close_for_good(int code, Datum arg)
{
	outbox_worker_skip_exit_handlers(code);
	close_connection(PostmasterIsAlive() ? EXIT_GRACE_MS : 0);
}

static bool
connect_to_broker(const BrokerConsumeConfig *config)
{
	sigset_t	saved;
	BrokerConfig connection = {
		.url = outbox_nats_url,
		.credentials_file = outbox_credentials_file,
		.login_file = outbox_login_file,
		.nkey_seed_file = outbox_nkey_seed_file,
		.tls_ca_file = outbox_tls_ca_file,
		.tls_cert_file = outbox_tls_cert_file,
		.tls_key_file = outbox_tls_key_file,
		.client_name = "outbox consumer",
		.inbox_prefix = outbox_inbox_prefix,
		.stream = consumer.stream,
		.connect_timeout_ms = outbox_connect_timeout,
	};

	outbox_signals_block(&saved);
	consumer.connection = broker_consume_start(&connection, config);
	outbox_signals_restore(&saved);
	return consumer.connection != NULL;
}

static void
get_status(BrokerConsumeStatus *status)
{
	sigset_t	saved;

	outbox_signals_block(&saved);
	broker_consume_get_status(consumer.connection, status);
	outbox_signals_restore(&saved);
}

static BrokerReceived *
take(void)
{
	sigset_t	saved;
	BrokerReceived *received;

	outbox_signals_block(&saved);
	received = broker_consume_take(consumer.connection);
	outbox_signals_restore(&saved);
	return received;
}

/* ------------------------------------------------------------------ status */

/* Shows an error, "" for none. */
void
outbox_consumer_say(Consumer *self, const char *error)
{
	LWLockAcquire(&self->database->status_lock, LW_EXCLUSIVE);
	strlcpy(self->self->last_error, error, sizeof(self->self->last_error));
	LWLockRelease(&self->database->status_lock);
}

static void
set_state(OutboxConsumerState state, const char *server)
{
	OutboxSubscription *self = consumer.self;

	LWLockAcquire(&consumer.database->status_lock, LW_EXCLUSIVE);
	if (self->state != state)
		self->since = GetCurrentTimestamp();
	self->state = state;
	if (server != NULL)
		strlcpy(self->server, server, sizeof(self->server));
	LWLockRelease(&consumer.database->status_lock);
}

/* ------------------------------------------------------------ the connection */

/* Doubled with each failure in a row, less up to a quarter by chance. */
static int64
back_off(int failures)
{
	int64		delay = Min((int64) outbox_retry_base_delay << Min(failures, 20), (int64) outbox_retry_max_delay) * 1000;

	return delay - (int64) (pg_prng_double(&pg_global_prng_state) * (double) delay / 4);
}

static void
start_connection(int64 now)
{
	BrokerConsumeConfig config = {0};

	if (!outbox_consumer_load(&consumer, &config))
	{
		ereport(LOG,
				(errmsg("outbox consumer leaves: its subscription has changed")));
		proc_exit(0);
	}
	config.window = Max(MIN_WINDOW, WINDOW_BATCHES * consumer.batch_size);
	consumer.running = false;
	consumer.has_position = config.has_position;
	if (!connect_to_broker(&config))
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not start the NATS client"),
				 errdetail("Memory, descriptors or threads are exhausted.")));
}

/* The connection has got so far as to receive. */
static void
note_running(const BrokerConsumeStatus *status)
{
	static bool first = true;

	consumer.running = true;
	consumer.stream_created_ns = status->stream_created_ns;
	/* Of this process's own connections it is known that none of their messages has ended it. */
	consumer.careful_up_to = first ? status->tried_up_to : 0;
	first = false;
	consumer_queue_reset(&consumer.queue, status->position);
	if (!consumer.has_position)
		outbox_consumer_record_start(&consumer);
	failed_connections = 0;
	outbox_complaint_begin(&complaint);
	set_state(OUTBOX_CONSUMER_ACTIVE, status->server);
	outbox_consumer_say(&consumer, "");
	if (status->stream_is_new)
		ereport(LOG,
				(errmsg("outbox consumer \"%s\" begins at the beginning of its stream", consumer.name),
				 errdetail("The stream was made anew. What the inbox remembers is not handled again.")));
	if (status->lost_up_to > 0)
		ereport(WARNING,
				(errmsg("outbox consumer \"%s\" may have missed messages", consumer.name),
				 errdetail("The stream has removed its messages up to sequence %llu before they were handled; the consumer was at %llu.",
						   (unsigned long long) status->lost_up_to, (unsigned long long) status->position),
				 errhint("Replay them from where they come from. See docs/failures.md, \"Messages missed\".")));
}

static void
end_connection(const char *reason, int64 now)
{
	int			failures;

	close_connection(0);
	consumer_queue_reset(&consumer.queue, 0);
	pg_atomic_write_u64(&consumer.self->held, 0);
	consumer.running = false;
	connect_at = now + back_off(failed_connections++);
	set_state(OUTBOX_CONSUMER_CONNECTING, NULL);
	outbox_consumer_say(&consumer, reason);
	outbox_complaint_failed(&complaint);
	if (outbox_complaint_is_due(&complaint, reason, now, &failures))
		ereport(LOG,
				(errmsg("outbox consumer \"%s\" is not connected: %s", consumer.name, reason),
				 errhint("The same settings as the relay's count, and it needs the stream. See docs/failures.md, \"Consumer not connected\".")));
}

/* Messages that have arrived get into the queue; what is known already is only acknowledged. */
static void
take_arrived(void)
{
	BrokerReceived *received;

	while ((received = take()) != NULL)
	{
		const char *aggregate = outbox_consumer_header(received, "ce-partitionkey");
		QueuedMessage *message;

		pg_atomic_write_u64(&consumer.self->pending, received->pending);
		if (consumer_queue_knows(&consumer.queue, received->sequence))
		{
			sigset_t	saved;

			outbox_signals_block(&saved);
			broker_consume_finish(consumer.connection, received);
			outbox_signals_restore(&saved);
			continue;
		}
		message = consumer_queue_add(&consumer.queue, received->sequence,
									 consumer.ordered ? consumer_queue_key(aggregate != NULL ? aggregate : received->subject) : 0,
									 received);
		if (message == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_OUT_OF_MEMORY),
					 errmsg("out of memory")));
		message->attempts = outbox_consumer_attempts(&consumer, received->sequence);
	}
	pg_atomic_write_u64(&consumer.self->held, consumer.queue.waiting);
}

/* Looks after the connection, and takes what it has brought. */
static void
look_after_connection(int64 now)
{
	BrokerConsumeStatus status;

	if (consumer.connection == NULL && now >= connect_at)
		start_connection(now);
	if (consumer.connection == NULL)
		return;
	get_status(&status);
	if (!consumer.running && status.state == BROKER_CONSUME_RUNNING)
		note_running(&status);
	if (status.state == BROKER_CONSUME_ENDED)
		end_connection(status.text, now);
	else if (consumer.running)
		take_arrived();
}

/* -------------------------------------------------------------- the process */

/* SIGTERM, by an administrator or at shutdown: not a failure. */
static void
terminate(SIGNAL_ARGS)
{
	terminated = true;
	die(postgres_signal_arg);
}

static bool
must_leave(void)
{
	return pg_atomic_read_u32(&consumer.database->leave_calls) != consumer.leave_calls ||
		pg_atomic_read_u32(&consumer.self->must_leave) != 0;
}

/* before_shmem_exit */
static void
leave(int code, Datum arg)
{
	OutboxSubscription *self = consumer.self;

	set_state(OUTBOX_CONSUMER_STOPPED, "");
	pg_atomic_write_u64(&self->held, 0);
	if (terminated || code == 0 || must_leave())
		pg_atomic_write_u32(&self->asked, 1);
	pg_atomic_write_u32(&self->pid, 0);
	outbox_shmem_wake_launcher();
}

/* Takes the place, unless it is another subscription's by now. */
static bool
take_place(const OutboxConsumerOrder *order)
{
	bool		mine;

	LWLockAcquire(&consumer.database->status_lock, LW_EXCLUSIVE);
	mine = consumer.self->id == order->id && consumer.self->revision == order->revision && consumer.self->wanted &&
		pg_atomic_read_u32(&consumer.self->pid) == 0;
	if (mine)
	{
		pg_atomic_write_u32(&consumer.self->procno, OUTBOX_MY_BACKEND_INDEX);
		pg_write_barrier();
		pg_atomic_write_u32(&consumer.self->pid, MyProcPid);
	}
	LWLockRelease(&consumer.database->status_lock);
	if (mine)
		before_shmem_exit(leave, (Datum) 0);
	return mine;
}

/* If the database may not take messages, the scout says so, and when that changes another one looks. */
static bool
is_forbidden(void)
{
	char		reason[OUTBOX_TEXT_SIZE];

	return outbox_standing(reason) != OUTBOX_STANDING_GOOD;
}

static bool
attach(const OutboxConsumerOrder *order)
{
	const OutboxCatalog *catalog;
	bool		attached = false;

	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog != NULL)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		consumer.database = outbox_database_attach(catalog);
		consumer.self = &consumer.database->subscriptions[order->place];
		consumer.sequence = catalog->sequence;
		consumer.leave_calls = pg_atomic_read_u32(&consumer.database->leave_calls);
		consumer.id = order->id;
		consumer.revision = order->revision;
		attached = !outbox_give_way_is_due(consumer.database) && !is_forbidden() && take_place(order);
		PopActiveSnapshot();
	}
	else
	{
		OutboxDatabase *database = outbox_shmem_find(order->dboid);

		/* The extension is gone. Where it comes back, a scout says what is wanted. */
		if (database != NULL)
		{
			LWLockAcquire(&database->status_lock, LW_EXCLUSIVE);
			database->subscriptions[order->place].wanted = false;
			LWLockRelease(&database->status_lock);
		}
	}
	CommitTransactionCommand();
	return attached;
}

static void
sleep_until_something(int64 now, int64 next)
{
	int64		until = Min(now + IDLE_MS * INT64CONST(1000), next);
	int			events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;

	if (consumer.connection == NULL)
		until = Min(until, connect_at);
	if (until <= now)
		return;
	if (consumer.connection != NULL)
		events |= WL_SOCKET_READABLE;
	(void) WaitLatchOrSocket(MyLatch, events, consumer.connection != NULL ? broker_consume_fd(consumer.connection) : PGINVALID_SOCKET,
							 (until - now + 999) / 1000, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

/* What a connection is made by, in one text. */
static char *
connection_settings(void)
{
	return psprintf("%s\n%s\n%s\n%s\n%s\n%s\n%s\n%s", outbox_nats_url, outbox_login_file, outbox_credentials_file,
					outbox_nkey_seed_file, outbox_tls_ca_file, outbox_tls_cert_file, outbox_tls_key_file, outbox_inbox_prefix);
}

static void
reload_settings(void)
{
	char	   *before = connection_settings();

	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	if (consumer.connection != NULL && strcmp(before, connection_settings()) != 0)
		end_connection("the configuration changed", outbox_clock_now());
	/* Who can't connect tries again at once: files may be new. */
	if (consumer.connection == NULL)
		connect_at = 0;
}

/* One round. Returns when the next one is due though nothing happens. */
static int64
work(void)
{
	int64		now = outbox_clock_now();
	int64		next = PG_INT64_MAX;
	uint32		parked = pg_atomic_read_u32(&consumer.database->parked_changes);

	look_after_connection(now);
	if (consumer.running && outbox_consumer_apply(&consumer, now, &next))
		next = now;
	if (consumer.parked_left || parked != consumer.parked_seen)
	{
		consumer.parked_seen = parked;
		consumer.parked_left = consumer.name != NULL && outbox_consumer_retry_parked(&consumer);
		if (consumer.parked_left)
			next = now;
	}
	pg_atomic_write_u64(&consumer.self->held, consumer.queue.waiting);
	return next;
}

void
OutboxConsumerMain(Datum main_arg)
{
	OutboxConsumerOrder order;
	MemoryContext loop_context;

	/* A handler can be cancelled; that is a failure of the message. */
	pqsignal(SIGINT, StatementCancelHandler);
	pqsignal(SIGTERM, terminate);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	outbox_worker_unblock_signals();
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	BackgroundWorkerInitializeConnectionByOid(order.dboid, order.role, 0);
	OUTBOX_TEST_POINT("worker-connected");
	pgstat_report_appname("outbox consumer");
	if (!attach(&order))
		proc_exit(0);
	on_proc_exit(close_for_good, (Datum) 0);
	set_state(OUTBOX_CONSUMER_CONNECTING, "");
	consumer.parked_left = true;

	loop_context = AllocSetContextCreate(TopMemoryContext, "outbox consumer", ALLOCSET_DEFAULT_SIZES);
	for (;;)
	{
		int64		next;

		MemoryContextSwitchTo(loop_context);
		MemoryContextReset(loop_context);
		/* Nothing is under way that could be cancelled. */
		QueryCancelPending = false;
		outbox_worker_check(0);
		if (ConfigReloadPending)
			reload_settings();
		if (must_leave())
			proc_exit(0);
		next = work();
		sleep_until_something(outbox_clock_now(), next);
	}
}
