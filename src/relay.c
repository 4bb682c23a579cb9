/*
 * relay.c
 *	  The process that publishes one database's events.
 *
 * The loop: take outcomes, read what is new, send what is ready, record what
 * was acknowledged, sleep until the latch, the broker's descriptor or a timer.
 * No transaction is open while it waits for the network. It ends by exit code
 * 0 when it is not wanted (extension gone, asked to leave), by 1 otherwise;
 * the launcher starts it again as needed.
 */
#include "outbox.h"

#include "access/xact.h"
#include "commands/dbcommands.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "aggregate_lock.h"
#include "clock.h"
#include "feed.h"
#include "launcher.h"
#include "relay.h"

/* In pg_locks: locktype advisory, objsubid 103: the relay of a database. */
#define LOCK_CLASS_RELAY 103

/* The net under lost wake-ups, and the pace of everything that isn't urgent. */
#define IDLE_MS 5000
#define WATERMARK_US INT64CONST(2000000)
#define OLDEST_US INT64CONST(1000000)

/* Read ahead of the broker by so many windows, not further: it is only memory. */
#define READ_AHEAD 4

static OutboxRelay relay;
static volatile sig_atomic_t terminated = false;
static int	report_index;

static void
report(OutboxReport what)
{
	pg_atomic_write_u32(&outbox_shared->reports[report_index], what);
}

/* For what was allocated outside of memory contexts. The process ends, and the launcher starts another. */
void
outbox_relay_out_of_memory(void)
{
	ereport(ERROR,
			(errcode(ERRCODE_OUT_OF_MEMORY),
			 errmsg("out of memory")));
}

/* before_shmem_exit */
static void
leave(int code, Datum arg)
{
	OutboxDatabase *database = relay.database;

	LWLockAcquire(&database->status_lock, LW_EXCLUSIVE);
	database->status.state = OUTBOX_RELAY_STOPPED;
	database->status.since = GetCurrentTimestamp();
	LWLockRelease(&database->status_lock);
	for (int i = 0; i < OUTBOX_MAX_CLAIMED; i++)
		pg_atomic_write_u64(&database->claimed[i], 0);
	pg_atomic_write_u64(&database->in_flight, 0);
	report(terminated || pg_atomic_read_u32(&database->must_leave) ? OUTBOX_REPORT_ASKED : OUTBOX_REPORT_NONE);
	pg_atomic_write_u32(&database->relay_pid, 0);
}

/* SIGTERM, by an administrator or at shutdown: not a failure. */
static void
terminate(SIGNAL_ARGS)
{
	terminated = true;
	die(postgres_signal_arg);
}

/*
 * Whatever ALTER DATABASE or ALTER ROLE set as defaults must not reach our
 * few statements.
 */
static void
pin_session(void)
{
	static const char *const settings[][2] = {
		{"role", "none"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"search_path", "pg_catalog, pg_temp"},
		{"row_security", "off"},
		{"session_replication_role", "origin"},
		{"synchronous_commit", "off"},
		{"enable_indexscan", "on"},
		{"enable_seqscan", "on"},
		{"enable_hashjoin", "on"},
		{"enable_nestloop", "on"},
		{"max_parallel_workers_per_gather", "0"},
		{"jit", "off"},
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/* The one relay of this database holds a lock for as long as its process lives. */
static bool
take_relay_lock(void)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 0, LOCK_CLASS_RELAY);
	return LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
}

/* Registers in shared memory. False: there is nothing to do in this database. */
static bool
attach(void)
{
	const OutboxCatalog *catalog;

	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog == NULL || !take_relay_lock())
	{
		/* One that is just being replaced is not absent: the launcher tries again. */
		if (catalog == NULL && outbox_database_catalog(true) == NULL)
		{
			outbox_shmem_free(MyDatabaseId);
			report(OUTBOX_REPORT_ABSENT);
		}
		CommitTransactionCommand();
		return false;
	}

	PushActiveSnapshot(GetTransactionSnapshot());
	relay.database = outbox_database_attach(catalog);
	relay.database_name = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	relay.started = GetCurrentTimestamp();
	LWLockAcquire(&relay.database->status_lock, LW_EXCLUSIVE);
	relay.database->status.state = OUTBOX_RELAY_STARTING;
	relay.database->status.since = relay.started;
	LWLockRelease(&relay.database->status_lock);
	pg_atomic_write_u32(&relay.database->must_leave, 0);
	relay.careful = pg_atomic_exchange_u32(&relay.database->careful, 0) != 0;
	pg_atomic_write_u32(&relay.database->relay_procno, OUTBOX_MY_BACKEND_INDEX);
	pg_write_barrier();
	pg_atomic_write_u32(&relay.database->relay_pid, MyProcPid);
	before_shmem_exit(leave, (Datum) 0);
	report(OUTBOX_REPORT_ATTACHED);

	outbox_store_load(&relay);
	PopActiveSnapshot();
	CommitTransactionCommand();
	return true;
}

static void
publish_counts(int64 now)
{
	static int64 oldest_at = 0;
	ScheduleCounts counts;
	int64		pending;
	int64		oldest;

	outbox_schedule_get_counts(relay.schedule, &counts);
	pending = counts.held + counts.deferred + relay.acked_count;
	for (int i = 0; i < relay.late.count; i++)
		pending += relay.late.ranges[i].hi - relay.late.ranges[i].lo + 1;
	pg_atomic_write_u64(&relay.database->known_pending, pending);
	if (counts.aggregates == 0)
		pg_atomic_write_u64(&relay.database->oldest_pending, 0);
	else if (now >= oldest_at)
	{
		/* A walk over all aggregates, so not each time. */
		oldest = outbox_schedule_oldest(relay.schedule);
		pg_atomic_write_u64(&relay.database->oldest_pending, oldest == PG_INT64_MAX ? 0 : oldest);
		oldest_at = now + OLDEST_US;
	}
}

/* Whether reading more serves anything now. */
static bool
should_read(bool woken)
{
	ScheduleCounts counts;

	if (!relay.more_to_read && !woken && outbox_feed_is_empty(relay.database))
		return false;
	if (!outbox_schedule_has_room(relay.schedule))
		return false;
	outbox_schedule_get_counts(relay.schedule, &counts);
	return counts.held < (int64) READ_AHEAD * outbox_max_in_flight;
}

/*
 * What only a timer brings to light: prepared transactions that ended, numbers
 * that were drawn without a push, wake-ups that got lost.
 */
static bool
timer_work(int64 now)
{
	static int64 next = 0;
	bool		prepared;

	if (now < next)
		return false;
	next = now + IDLE_MS * INT64CONST(1000);

	if (relay.keys_left_behind)
		outbox_aggregate_lock_sweep();
	relay.keys_left_behind = false;
	(void) outbox_feed_lowest_prepared(relay.database, &prepared);
	return prepared || (int64) pg_atomic_read_u64(&relay.database->max_assigned) > relay.read_up_to;
}

/* Milliseconds to sleep at most. */
static int
time_to_sleep(int64 now)
{
	int64		until = now + IDLE_MS * INT64CONST(1000);
	int			limit = outbox_publisher_wait_limit(&relay);

	until = Min(until, relay.settle_at);
	until = Min(until, relay.requests_at);
	until = Min(until, outbox_schedule_next_timer(relay.schedule));
	until = Min(until, outbox_flow_next_time(&relay.flow));
	if (outbox_tracker_watermark(relay.tracker) < relay.read_up_to)
		until = Min(until, relay.watermark_at);
	if (until <= now)
		return 0;
	until = (until - now + 999) / 1000;
	return limit >= 0 ? Min(limit, (int) until) : (int) until;
}

/* Sleeps; true if the latch was set. */
static bool
sleep_until_something(WaitEventSet *events)
{
	WaitEvent	event[2];
	int			count;
	bool		woken = false;
	int			timeout = time_to_sleep(outbox_clock_now());

	if (relay.more_to_read && should_read(false))
		timeout = 0;
	count = WaitEventSetWait(events, timeout, event, lengthof(event), PG_WAIT_EXTENSION);
	for (int i = 0; i < count; i++)
	{
		if (event[i].events & WL_LATCH_SET)
		{
			ResetLatch(MyLatch);
			woken = true;
		}
	}
	return woken;
}

static void
reload_settings(void)
{
	ScheduleLimits limits;

	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	limits.max_bytes = (size_t) outbox_relay_memory * 1024 / 2;
	limits.max_queue = OUTBOX_MAX_QUEUE;
	outbox_schedule_set_limits(relay.schedule, &limits);
	outbox_publisher_configure(&relay);
}

/* One round. woken: somebody set the latch. */
static void
work(bool woken)
{
	int64		now = outbox_clock_now();

	outbox_publisher_poll(&relay);
	if (timer_work(now))
		woken = true;
	if (outbox_clock_was_set())
		outbox_schedule_end_waits(relay.schedule);
	if (pg_atomic_read_u32(&relay.database->requests) != relay.requests_seen || now >= relay.requests_at)
		outbox_store_take_requests(&relay);
	outbox_store_refill(&relay);
	if (should_read(woken))
		outbox_store_read(&relay);
	outbox_publisher_send(&relay);

	now = outbox_clock_now();
	if (now >= relay.settle_at || !outbox_outcome_has_room(&relay) || relay.free_claim_count == 0)
		outbox_store_settle(&relay);
	if (now >= relay.watermark_at)
	{
		outbox_store_advance_watermark(&relay);
		relay.watermark_at = now + WATERMARK_US;
	}
	publish_counts(now);
	outbox_publisher_report(&relay);
}

void
OutboxRelayMain(Datum main_arg)
{
	WaitEventSet *events;
	bool		woken = true;

	pqsignal(SIGINT, SIG_IGN);	/* nothing here is worth cancelling */
	pqsignal(SIGTERM, terminate);
	report_index = OUTBOX_RELAY_ARG_REPORT(main_arg);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(OUTBOX_RELAY_ARG_DBOID(main_arg), InvalidOid, 0);
	pgstat_report_appname("outbox relay");
	pin_session();
	if (!attach())
		proc_exit(0);
	outbox_publisher_start(&relay);

	events = CreateWaitEventSet(OUTBOX_WAIT_SET_OWNER, 3);
	AddWaitEventToSet(events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(events, WL_SOCKET_READABLE, broker_fd(relay.broker), NULL, NULL);
	relay.loop_context = AllocSetContextCreate(TopMemoryContext, "outbox relay", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(relay.loop_context);

	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
			reload_settings();
		if (pg_atomic_read_u32(&relay.database->must_leave))
			proc_exit(0);
		work(woken);
		MemoryContextSwitchTo(relay.loop_context);
		MemoryContextReset(relay.loop_context);
		woken = sleep_until_something(events);
	}
}
