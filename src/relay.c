/*
 * relay.c
 *	  The process that publishes events of one database, alone or beside others.
 *
 * The loop: take outcomes, read what is new, send what is ready, record what
 * was acknowledged, sleep until the latch, the broker's descriptor or a timer.
 * While its share of the aggregates is to change it only takes outcomes and
 * records them, until nothing is in flight (membership.c). No transaction is
 * open while it waits for the network. It ends by exit code 0 when it is not
 * wanted (extension gone, asked to leave) or stood still for too long, by 1
 * otherwise; the launcher starts it again as needed.
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
#include "backlog.h"
#include "clock.h"
#include "feed.h"
#include "give_way.h"
#include "launcher.h"
#include "relay.h"
#include "standing.h"
#include "worker.h"

/* The net under lost wake-ups, and the pace of everything that isn't urgent. */
#define IDLE_MS 5000
#define WATERMARK_US INT64CONST(2000000)

/* Read ahead of the broker by so many windows, not further: it is only memory. */
#define READ_AHEAD 4

static OutboxRelay relay;
static volatile sig_atomic_t terminated = false;
static bool asked = false; /* nothing has failed: start another one at once, if one is wanted */
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

/*
 * This process has no say any more, and must not act on anything it knows. A
 * client's session gets an error and may claim anew; a relay's process ends.
 */
void
outbox_relay_leave(OutboxRelay *leaving, const char *reason)
{
	if (leaving->session)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the lease of this session's aggregates is lost"),
				 errdetail("Another relay may have published what it had claimed: %s.", reason),
				 errhint("Forget what was claimed, and call outbox.claim() again. See docs/failures.md, \"Lease lost\".")));
	asked = true;
	ereport(LOG,
			(errmsg("outbox relay %d leaves: %s", relay.member.place, reason)));
	proc_exit(0);
}

/* All relays of the database shall go, or this one is one too many. */
static bool
must_leave(void)
{
	return pg_atomic_read_u32(&relay.database->leave_calls) != relay.leave_calls ||
		pg_atomic_read_u32(&relay.self->must_leave) != 0;
}

/* before_shmem_exit */
static void
leave(int code, Datum arg)
{
	OutboxPlace *self = relay.self;

	LWLockAcquire(&relay.database->status_lock, LW_EXCLUSIVE);
	self->status.state = OUTBOX_RELAY_STOPPED;
	self->status.since = GetCurrentTimestamp();
	LWLockRelease(&relay.database->status_lock);
	pg_atomic_write_u64(&self->in_flight, 0);
	report(terminated || asked || must_leave() ? OUTBOX_REPORT_ASKED : OUTBOX_REPORT_NONE);
	outbox_ownership_leave(&relay.member);
	pg_atomic_write_u64(&self->late_since, 0);
	/* What it knew is known to those who take over. */
	if (outbox_shmem_has_relays(relay.database))
	{
		pg_atomic_write_u64(&self->known_pending, 0);
		pg_atomic_write_u64(&self->oldest_pending, 0);
	}
	outbox_shmem_wake_launcher();
}

/* SIGTERM, by an administrator or at shutdown: not a failure. */
static void
terminate(SIGNAL_ARGS)
{
	terminated = true;
	die(postgres_signal_arg);
}

/* Becomes a member, while the extension can't be dropped. False: the place is taken, or the time is wrong. */
static bool
join(const OutboxCatalog *catalog, int place)
{
	OutboxDatabase *database = outbox_database_attach(catalog);

	relay.database = database;
	relay.database_name = MemoryContextStrdup(TopMemoryContext, get_database_name(MyDatabaseId));
	relay.self = &database->places[place];
	relay.sequence = catalog->sequence;
	relay.leave_calls = pg_atomic_read_u32(&database->leave_calls);
	/* Called after that look, or before this one. */
	if (outbox_give_way_is_due(database) || pg_atomic_read_u32(&outbox_shared->settings_changes) != relay.settings_changes)
	{
		report(OUTBOX_REPORT_ASKED);
		return false;
	}
	if (!outbox_ownership_join(&relay.member, database, place, MyProcPid))
		return false;
	before_shmem_exit(leave, (Datum) 0);
	relay.careful = pg_atomic_exchange_u32(&database->careful, 0) != 0;
	report(OUTBOX_REPORT_ATTACHED);
	outbox_shmem_wake_launcher(); /* it may wait for that to start more */
	LWLockAcquire(&database->status_lock, LW_EXCLUSIVE);
	relay.self->status.state = OUTBOX_RELAY_STARTING;
	relay.self->status.since = GetCurrentTimestamp();
	LWLockRelease(&database->status_lock);
	return true;
}

/* Registers in shared memory. False: there is nothing to do in this database. */
static bool
attach(int place)
{
	const OutboxCatalog *catalog;
	bool		joined = false;

	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog != NULL)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		joined = join(catalog, place);
		PopActiveSnapshot();
	}
	/* One that is just being replaced is not absent: the launcher tries again. */
	else if (outbox_database_catalog(true) == NULL)
	{
		outbox_shmem_free(MyDatabaseId);
		report(OUTBOX_REPORT_ABSENT);
	}
	CommitTransactionCommand();
	return joined;
}

/* The timer of an idle relay: often enough to keep its lease. */
static int
idle_ms(void)
{
	return Min(IDLE_MS, outbox_lease_ttl / 3);
}

/* ---------------------------------------------------------------- standing */

/* Looks whether there is anything that forbids to publish; reason: what. */
static OutboxStanding
look_at_standing(char *reason)
{
	OutboxStanding standing;

	outbox_store_begin(&relay);
	standing = outbox_standing(reason);
	if (standing == OUTBOX_STANDING_GOOD)
		outbox_standing_renew();
	outbox_store_end(&relay);
	return standing;
}

static void
show_standing(OutboxStanding standing, const char *reason)
{
	OutboxRelayStatus *status = &relay.self->status;

	LWLockAcquire(&relay.database->status_lock, LW_EXCLUSIVE);
	status->state = standing == OUTBOX_STANDING_NOT_ARMED ? OUTBOX_RELAY_NOT_ARMED : OUTBOX_RELAY_OTHER_VERSION;
	status->since = GetCurrentTimestamp();
	status->server[0] = status->stream[0] = '\0';
	strlcpy(status->last_error, reason, sizeof(status->last_error));
	LWLockRelease(&relay.database->status_lock);
	ereport(LOG,
			(errmsg("outbox relay publishes nothing from database \"%s\": %s", relay.database_name, reason),
			 errhint("%s", outbox_standing_hint(standing))));
}

/*
 * Before anything is read and any connection is made: if this database may not
 * publish, waits until whoever changes that sends all relays away.
 */
static void
wait_for_standing(void)
{
	char		reason[OUTBOX_TEXT_SIZE];
	OutboxStanding standing = look_at_standing(reason);

	if (standing == OUTBOX_STANDING_GOOD)
		return;
	show_standing(standing, reason);
	while (!must_leave())
	{
		outbox_membership_renew(&relay);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, idle_ms(), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
	}
	LWLockAcquire(&relay.database->status_lock, LW_EXCLUSIVE);
	relay.self->status.last_error[0] = '\0';
	LWLockRelease(&relay.database->status_lock);
	proc_exit(0);
}

/* Whether reading more serves anything now. */
static bool
should_read(bool woken)
{
	ScheduleCounts counts;

	if (relay.slots == 0)
		return false;
	if (!relay.more_to_read && !woken && outbox_feed_is_empty(relay.database, relay.member.place))
		return false;
	if (!outbox_schedule_has_room(relay.schedule))
		return false;
	outbox_schedule_get_counts(relay.schedule, &counts);
	return counts.held < (int64) READ_AHEAD * outbox_max_in_flight;
}

/*
 * What only a timer brings to light: prepared transactions that ended, numbers
 * that were drawn without a push, relays that stand still, wake-ups that got
 * lost.
 */
static bool
timer_work(int64 now)
{
	static int64 next = 0;
	bool		prepared;

	if (now < next)
		return false;
	next = now + idle_ms() * INT64CONST(1000);

	outbox_ownership_revoke_expired(relay.database);
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
	int64		until = now + idle_ms() * INT64CONST(1000);
	int			limit = outbox_publisher_wait_limit(&relay);

	until = Min(until, relay.settle_at);
	if (!relay.changing)
	{
		until = Min(until, relay.requests_at);
		until = Min(until, outbox_schedule_next_timer(relay.schedule));
		until = Min(until, outbox_flow_next_time(&relay.flow));
		if (outbox_tracker_watermark(relay.tracker) < relay.read_up_to)
			until = Min(until, relay.watermark_at);
	}
	if (until <= now)
		return 0;
	until = (until - now + 999) / 1000;
	return limit >= 0 ? Min(limit, (int) until) : (int) until;
}

/* What pg_stat_activity shows while it sleeps. */
static uint32
wait_event(void)
{
	if (pg_atomic_read_u64(&relay.self->in_flight) > 0)
		return OUTBOX_WAIT_EVENT("OutboxRelayAck");
	if (relay.self->status.state != OUTBOX_RELAY_ACTIVE && relay.self->status.state != OUTBOX_RELAY_PAUSED)
		return OUTBOX_WAIT_EVENT("OutboxRelayBroker");
	return OUTBOX_WAIT_EVENT("OutboxRelayIdle");
}

/* Sleeps; true if the latch was set. */
static bool
sleep_until_something(WaitEventSet *events)
{
	WaitEvent	event[2];
	int			count;
	bool		woken = false;
	int			timeout = time_to_sleep(outbox_clock_now());

	if (relay.more_to_read && !relay.changing && should_read(false))
		timeout = 0;
	count = WaitEventSetWait(events, timeout, event, lengthof(event), wait_event());
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
	int			workers = outbox_workers;

	ConfigReloadPending = false;
	ProcessConfigFile(PGC_SIGHUP);
	/* Another number of relays, another part of what they share. */
	relay.reload_wanted |= outbox_workers != workers;
	/* Other keys in the schedule. */
	relay.reload_wanted |= outbox_preserve_aggregate_order != relay.preserve_order;
	limits.max_bytes = (size_t) outbox_relay_memory * 1024 / 2;
	limits.max_queue = OUTBOX_MAX_QUEUE;
	outbox_schedule_set_limits(relay.schedule, &limits);
	outbox_publisher_configure(&relay);
}

static void
settle_due(int64 now)
{
	if (now >= relay.settle_at || !outbox_outcome_has_room(&relay) || relay.claims.held == relay.claims.count)
		outbox_store_settle(&relay);
}

/* A round on the way to a change of slots. True: it is done. */
static bool
drain(void)
{
	ScheduleCounts counts;

	outbox_publisher_poll(&relay);
	settle_due(outbox_clock_now());
	outbox_schedule_get_counts(relay.schedule, &counts);
	if (counts.in_flight == 0)
	{
		outbox_store_settle(&relay);
		outbox_membership_change(&relay);
		relay.changing = false;
	}
	outbox_backlog_say(&relay, outbox_clock_now());
	outbox_publisher_report(&relay);
	return !relay.changing;
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
	woken |= outbox_backlog_is_asked(&relay);
	if (should_read(woken))
		outbox_store_read(&relay);
	outbox_publisher_send(&relay);

	now = outbox_clock_now();
	settle_due(now);
	if (now >= relay.watermark_at)
	{
		outbox_store_advance_watermark(&relay);
		relay.watermark_at = now + WATERMARK_US;
	}
	outbox_backlog_say(&relay, now);
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
	outbox_worker_unblock_signals();
	relay.settings_changes = pg_atomic_read_u32(&outbox_shared->settings_changes);
	pg_memory_barrier();
	BackgroundWorkerInitializeConnectionByOid(OUTBOX_RELAY_ARG_DBOID(main_arg), InvalidOid, 0);
	OUTBOX_TEST_POINT("settings-read");
	pgstat_report_appname("outbox relay");
	outbox_database_pin_session();
	if (!attach(OUTBOX_RELAY_ARG_PLACE(main_arg)))
		proc_exit(0);
	wait_for_standing();
	outbox_membership_change(&relay);
	outbox_publisher_start(&relay);

	events = CreateWaitEventSet(OUTBOX_WAIT_SET_OWNER, 3);
	AddWaitEventToSet(events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(events, WL_SOCKET_READABLE, broker_fd(relay.broker), NULL, NULL);
	relay.loop_context = AllocSetContextCreate(TopMemoryContext, "outbox relay", ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(relay.loop_context);

	for (;;)
	{
		outbox_worker_check(0);
		outbox_membership_check(&relay);
		if (ConfigReloadPending)
			reload_settings();
		if (must_leave())
			proc_exit(0);
		relay.changing = relay.changing || outbox_membership_wants_change(&relay);
		if (relay.changing)
			woken = drain();
		if (!relay.changing)
			work(woken);
		MemoryContextSwitchTo(relay.loop_context);
		MemoryContextReset(relay.loop_context);
		woken = sleep_until_something(events);
	}
}
