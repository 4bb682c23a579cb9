/*
 * launcher.c
 *	  Keeps outbox.workers relays at work in every database that has the
 *	  extension, starts its cleaner when one is due, its replayers and consumers.
 *
 * The launcher is connected to no database: it reads pg_database and starts a
 * dynamic worker in each database it doesn't know yet; a relay that finds no
 * extension leaves again, and is not tried there until somebody creates an
 * extension. Relays are never restarted by the postmaster, so that a dropped
 * database can't make one loop. For each of a database's places for relays:
 *
 *	  free --a relay is wanted--> running --it has ended--> free
 *
 * with a pause before the next start if it failed. A relay that lost its
 * membership (it stands still, and its lease has run out) keeps its place until
 * its process has gone, and another place gets the relay that is wanted.
 *
 * It runs only after recovery: a standby gets its relays at promotion.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_database.h"
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

#include "cleaner.h"
#include "give_way.h"
#include "launcher.h"
#include "ownership.h"
#include "replay.h"
#include "subscriptions.h"
#include "worker.h"

#define SCAN_MS 5000
#define RESTART_BASE_US INT64CONST(500000)
#define RESTART_MAX_US INT64CONST(30000000)
/* A relay that ran so long has not failed at its start. */
#define HEALTHY_US INT64CONST(30000000)
/* Relays that are starting, or only looking, at the same time. */
#define MAX_STARTING 2
#define PROBE_US INT64CONST(100000)
#define COMPLAINT_US INT64CONST(60000000)
/* Between the starts of two replayers in a database. */
#define REPLAYER_PAUSE_US INT64CONST(250000)
/* Looking again for a lease that has run out, when its holder couldn't be revoked. */
#define REVOKE_US INT64CONST(250000)

typedef struct Place
{
	BackgroundWorkerHandle *relay; /* NULL: none that this launcher has started */
	int			report;			/* where that relay reports */
	uint32		hint;			/* OutboxShared.database_hint before it was started */
	TimestampTz started;
	TimestampTz not_before;
	int			failures;
} Place;

typedef struct Database
{
	Oid			dboid;
	bool		exists;			/* seen in the last scan, */
	bool		served;			/* and one of those that have relays */
	bool		absent;			/* looked into: no extension */
	Place		places[OUTBOX_SERVER_RELAYS];
	BackgroundWorkerHandle *cleaner;	/* NULL: none is at work that this launcher has started */
	bool		has_replayed;	/* one replayer was started: replays of before this start go on */
	uint32		replays_seen;	/* OutboxDatabase.replay_calls then */
	TimestampTz	no_replayer_before;
	OutboxConsumers consumers;
} Database;

static Database *databases = NULL;
static int database_count = 0;
static int database_space = 0;

/* ------------------------------------------------------------- databases */

static Database *
find_database(Oid dboid)
{
	for (int i = 0; i < database_count; i++)
	{
		if (databases[i].dboid == dboid)
			return &databases[i];
	}
	return NULL;
}

static void
see_database(Oid dboid, bool served)
{
	Database   *database = find_database(dboid);
	OutboxDatabase *shared;

	if (database == NULL && !served)
		return;
	if (database == NULL)
	{
		if (database_count == database_space)
		{
			database_space = Max(16, database_space * 2);
			if (databases == NULL)
				databases = MemoryContextAlloc(TopMemoryContext, database_space * sizeof(Database));
			else
				databases = repalloc(databases, database_space * sizeof(Database));
		}
		database = &databases[database_count++];
		memset(database, 0, sizeof(Database));
		database->dboid = dboid;
	}
	shared = database->served && !served ? outbox_shmem_find(dboid) : NULL;
	if (shared != NULL)
		outbox_give_way_dismiss(shared);
	database->exists = true;
	database->served = served;
}

static bool
has_processes(const Database *database)
{
	if (database->cleaner != NULL || outbox_subscriptions_has_processes(&database->consumers))
		return true;
	for (int i = 0; i < OUTBOX_SERVER_RELAYS; i++)
	{
		if (database->places[i].relay != NULL)
			return true;
	}
	return false;
}

static void
forget_gone_databases(void)
{
	int			kept = 0;

	for (int i = 0; i < database_count; i++)
	{
		databases[i].served = databases[i].served && databases[i].exists;
		if (databases[i].exists || has_processes(&databases[i]))
			databases[kept++] = databases[i];
		else
			outbox_shmem_free(databases[i].dboid);
	}
	database_count = kept;
}

/*
 * Reads pg_database. Served is every database one can connect to, except
 * templates. Of another one that was, the place in shared memory is kept: its
 * sessions go on.
 */
static void
scan_databases(void)
{
	Relation	relation;
	TableScanDesc scan;
	HeapTuple	tuple;

	for (int i = 0; i < database_count; i++)
		databases[i].exists = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	relation = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(relation, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database form = (Form_pg_database) GETSTRUCT(tuple);

		see_database(form->oid, form->datallowconn && !form->datistemplate && form->datconnlimit != DATCONNLIMIT_INVALID_DB);
	}
	table_endscan(scan);
	table_close(relation, AccessShareLock);
	CommitTransactionCommand();
	forget_gone_databases();
}

/* ---------------------------------------------------------------- relays */

static OutboxReport
report_of(const Place *place)
{
	return pg_atomic_read_u32(&outbox_shared->reports[place->report]);
}

/* A relay has ended. */
static void
reap(Database *database, Place *place, TimestampTz now, uint32 hint)
{
	pfree(place->relay);
	place->relay = NULL;
	/* An extension may have been created while it looked. */
	database->absent = report_of(place) == OUTBOX_REPORT_ABSENT && place->hint == hint;
	if (report_of(place) == OUTBOX_REPORT_ASKED || now - place->started > HEALTHY_US)
	{
		place->failures = 0;
		place->not_before = now;
	}
	else
	{
		place->not_before = now + Min(RESTART_BASE_US << Min(place->failures, 10), RESTART_MAX_US);
		place->failures++;
	}
}

/* Takes note of relays that have ended. */
static void
reap_all(TimestampTz now, uint32 hint)
{
	for (int i = 0; i < database_count; i++)
	{
		for (int p = 0; p < OUTBOX_SERVER_RELAYS; p++)
		{
			Place	   *place = &databases[i].places[p];
			pid_t pid;

			if (place->relay != NULL && GetBackgroundWorkerPid(place->relay, &pid) == BGWH_STOPPED)
				reap(&databases[i], place, now, hint);
		}
	}
}

static void
complain(TimestampTz now)
{
	static TimestampTz next = 0;

	if (now < next)
		return;
	next = now + COMPLAINT_US;
	ereport(LOG,
			(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
			 errmsg("could not start an outbox relay, cleaner, consumer or replay: no background worker slot is free"),
			 errhint("Raise \"max_worker_processes\" and restart the server. See docs/failures.md, \"No background worker free\".")));
}

static bool
start_relay(const Database *database, Place *place, TimestampTz now)
{
	static int	next_report = 0;
	BackgroundWorker worker;

	place->hint = pg_atomic_read_u32(&outbox_shared->database_hint);
	next_report = (next_report + 1) % OUTBOX_REPORTS;
	place->report = next_report;
	pg_atomic_write_u32(&outbox_shared->reports[place->report], OUTBOX_REPORT_NONE);

	outbox_worker_prepare(&worker, "OutboxRelayMain", "outbox relay");
	worker.bgw_main_arg = OUTBOX_RELAY_ARG(database->dboid, place - database->places, place->report);
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &place->relay))
	{
		place->relay = NULL;
		return false;
	}
	place->started = now;
	return true;
}

/* A database's relays, as the launcher and shared memory together know them. */
typedef struct Census
{
	OutboxDatabase *shared;		/* NULL: nobody has used the extension there since the start */
	int			members;		/* at work */
	int			healthy;		/* those, and the ones on the way in, or out and not reaped */
	int			last_member;	/* highest place of a member; -1: none */
	int			first_free;		/* lowest place without a process; -1: none */
} Census;

static void
count_relays(const Database *database, Census *census)
{
	*census = (Census) {outbox_shmem_find(database->dboid), 0, 0, -1, -1};
	if (census->shared != NULL)
		LWLockAcquire(&census->shared->slots_lock, LW_SHARED);
	for (int i = 0; i < OUTBOX_SERVER_RELAYS; i++)
	{
		bool		is_member = census->shared != NULL && census->shared->slots.members[i].epoch != 0;
		bool		has_process = census->shared != NULL && pg_atomic_read_u32(&census->shared->places[i].pid) != 0;

		if (is_member)
		{
			census->members++;
			census->last_member = i;
		}
		/* A process without membership is one that stands still. */
		if (is_member || (database->places[i].relay != NULL && !has_process))
			census->healthy++;
		if (database->places[i].relay == NULL && !has_process && census->first_free < 0)
			census->first_free = i;
	}
	if (census->shared != NULL)
		LWLockRelease(&census->shared->slots_lock);
}

/* No relay may start before this time: the database is being changed. */
static TimestampTz
no_relay_before(const Census *census)
{
	TimestampTz	result = 0;

	if (census->shared != NULL)
	{
		LWLockAcquire(&outbox_shared->lock, LW_SHARED);
		result = census->shared->no_relay_before;
		LWLockRelease(&outbox_shared->lock);
	}
	return result;
}

/* More relays than wanted: the last one that isn't on its way yet is to go. */
static void
send_away_one(const Census *census)
{
	OutboxPlace *place = &census->shared->places[census->last_member];

	if (pg_atomic_read_u32(&place->must_leave) != 0)
		return;
	pg_atomic_write_u32(&place->must_leave, 1);
	outbox_shmem_wake_relays(census->shared);
}

static int
count_starting(void)
{
	int			starting = 0;

	for (int i = 0; i < database_count; i++)
	{
		for (int p = 0; p < OUTBOX_SERVER_RELAYS; p++)
		{
			const Place *place = &databases[i].places[p];

			starting += place->relay != NULL && report_of(place) == OUTBOX_REPORT_NONE;
		}
	}
	return starting;
}

/*
 * Starts one relay in a database that has too few, or sends one away. Returns
 * when to look again.
 */
static TimestampTz
adjust(Database *database, TimestampTz now, int *starting)
{
	TimestampTz never = now + SCAN_MS * INT64CONST(1000);
	TimestampTz due;
	Census		census;

	if (database->absent || !database->served)
		return never;
	count_relays(database, &census);
	if (census.members > outbox_workers)
		send_away_one(&census);
	/* The first one finds out whether the extension is there at all. */
	if (census.healthy >= (census.members > 0 ? outbox_workers : Min(outbox_workers, 1)) || census.first_free < 0)
		return never;
	due = Max(database->places[census.first_free].not_before, no_relay_before(&census));
	if (due > now)
		return due;
	if (*starting == MAX_STARTING)
		return now + PROBE_US;
	if (!start_relay(database, &database->places[census.first_free], now))
	{
		complain(now);
		return now + RESTART_BASE_US * 2;
	}
	(*starting)++;
	/* Perhaps more are wanted. */
	return outbox_workers > census.healthy + 1 ? now + PROBE_US : never;
}

/* Starts what is due. Returns when the next start will be due. */
static TimestampTz
adjust_all(TimestampTz now)
{
	TimestampTz next = now + SCAN_MS * INT64CONST(1000);
	int			starting = count_starting();

	for (int i = 0; i < database_count; i++)
		next = Min(next, adjust(&databases[i], now, &starting));
	return next;
}

/* --------------------------------------------------------------- cleaners */

/* The first one after a start isn't urgent. By the server's setting: a database's own is not known here. */
static TimestampTz
first_cleaning(TimestampTz now)
{
	int64		delay = Min(Max(outbox_retention / 6, 5), 300);

	return now + (outbox_retention < 0 ? 300 : delay) * INT64CONST(1000000);
}

/* When the log, and the inbox, of a database are to be cleaned; 0: that isn't known yet. */
static TimestampTz
cleaning_time(pg_atomic_uint64 *at, TimestampTz now)
{
	if (pg_atomic_read_u64(at) == 0)
		pg_atomic_write_u64(at, first_cleaning(now));
	return (TimestampTz) pg_atomic_read_u64(at);
}

/* Starts a cleaner in a database where one is due. Returns when to look again. */
static TimestampTz
clean(Database *database, TimestampTz now)
{
	OutboxCleanerOrder order = {.on_demand = false};
	TimestampTz never = now + SCAN_MS * INT64CONST(1000);
	Census		census = {.shared = outbox_shmem_find(database->dboid)};
	pid_t		pid;
	TimestampTz due;
	TimestampTz	inbox_due;

	if (database->cleaner != NULL && GetBackgroundWorkerPid(database->cleaner, &pid) == BGWH_STOPPED)
	{
		pfree(database->cleaner);
		database->cleaner = NULL;
	}
	if (database->cleaner != NULL || !database->served || census.shared == NULL ||
		pg_atomic_read_u32(&census.shared->ready_for) == 0)
		return never;
	due = cleaning_time(&census.shared->clean_at, now);
	inbox_due = cleaning_time(&census.shared->inbox_clean_at, now);
	if (pg_atomic_read_u64(&census.shared->max_assigned) < pg_atomic_read_u64(&census.shared->clean_from))
		due = never;
	if (pg_atomic_read_u32(&census.shared->inbox_used) == 0)
		inbox_due = never;
	if (Max(Min(due, inbox_due), no_relay_before(&census)) > now)
		return Max(Min(due, inbox_due), no_relay_before(&census));
	/* Should it fail, the next one is due then; it knows better. */
	order.log = due <= now;
	order.inbox = inbox_due <= now;
	if (order.log)
		pg_atomic_write_u64(&census.shared->clean_at, now + RESTART_MAX_US);
	if (order.inbox)
		pg_atomic_write_u64(&census.shared->inbox_clean_at, now + RESTART_MAX_US);
	database->cleaner = outbox_cleaner_start(database->dboid, &order);
	if (database->cleaner == NULL)
		complain(now);
	return never;
}

/* Starts consumers. Returns when to look again. */
static TimestampTz
consume_all(TimestampTz now)
{
	TimestampTz next = now + SCAN_MS * INT64CONST(1000);

	for (int i = 0; i < database_count; i++)
	{
		Database   *database = &databases[i];
		Census		census = {.shared = outbox_shmem_find(database->dboid)};
		bool		failed = false;

		if (!database->served || database->absent)
			continue;
		next = Min(next, outbox_subscriptions_run(&database->consumers, database->dboid, census.shared, now, no_relay_before(&census), &failed));
		if (failed)
			complain(now);
	}
	return next;
}

/* Other settings: what is due is to be found out anew. */
static void
clean_anew(void)
{
	for (int i = 0; i < outbox_shared->database_count; i++)
	{
		pg_atomic_write_u64(&outbox_shared->databases[i].clean_from, 0);
		pg_atomic_write_u64(&outbox_shared->databases[i].clean_at, 1);
	}
}

static TimestampTz
clean_all(TimestampTz now)
{
	TimestampTz next = now + SCAN_MS * INT64CONST(1000);

	for (int i = 0; i < database_count; i++)
		next = Min(next, clean(&databases[i], now));
	return next;
}

/* -------------------------------------------------------------- replayers */

/* Starts a replayer where one may have something to do. Returns when to look again. */
static TimestampTz
replay(Database *database, TimestampTz now)
{
	TimestampTz never = now + SCAN_MS * INT64CONST(1000);
	Census		census = {.shared = outbox_shmem_find(database->dboid)};
	uint32		calls;
	TimestampTz due;

	if (!database->served || census.shared == NULL || pg_atomic_read_u32(&census.shared->ready_for) == 0)
		return never;
	calls = pg_atomic_read_u32(&census.shared->replay_calls);
	if (database->has_replayed && calls == database->replays_seen)
		return never;
	due = Max(database->no_replayer_before, no_relay_before(&census));
	if (due > now)
		return due;
	database->no_replayer_before = now + REPLAYER_PAUSE_US;
	if (!outbox_replay_start(database->dboid))
	{
		complain(now);
		return database->no_replayer_before;
	}
	database->has_replayed = true;
	database->replays_seen = calls;
	return never;
}

static TimestampTz
replay_all(TimestampTz now)
{
	TimestampTz next = now + SCAN_MS * INT64CONST(1000);

	for (int i = 0; i < database_count; i++)
		next = Min(next, replay(&databases[i], now));
	return next;
}

/* Takes the slots from relays that stand still. Returns when the next lease may run out. */
static TimestampTz
watch_leases(TimestampTz now)
{
	TimestampTz next = now + SCAN_MS * INT64CONST(1000);

	for (int i = 0; i < database_count; i++)
	{
		OutboxDatabase *shared = outbox_shmem_find(databases[i].dboid);
		int64		left;

		if (shared == NULL)
			continue;
		outbox_ownership_revoke_expired(shared);
		left = outbox_ownership_time_to_expiry(shared);
		if (left < SCAN_MS * INT64CONST(1000))
			next = Min(next, now + Max(left, REVOKE_US));
	}
	return next;
}

static void
leave(int code, Datum arg)
{
	pg_atomic_write_u32(&outbox_shared->launcher_pid, 0);
}

/* Somebody has created an extension somewhere. */
static void
look_everywhere(void)
{
	for (int i = 0; i < database_count; i++)
	{
		databases[i].absent = false;
		databases[i].consumers.scouted = false;
		for (int p = 0; p < OUTBOX_SERVER_RELAYS; p++)
			databases[i].places[p].failures = 0;
	}
}

void
OutboxLauncherMain(Datum main_arg)
{
	uint32		seen_hint = 0;
	uint32		seen_settings = pg_atomic_read_u32(&outbox_shared->settings_changes);

	pqsignal(SIGINT, SIG_IGN);
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	outbox_worker_unblock_signals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	pg_atomic_write_u32(&outbox_shared->launcher_procno, OUTBOX_MY_BACKEND_INDEX);
	pg_write_barrier();
	pg_atomic_write_u32(&outbox_shared->launcher_pid, MyProcPid);
	before_shmem_exit(leave, (Datum) 0);

	for (;;)
	{
		uint32		hint = pg_atomic_read_u32(&outbox_shared->database_hint);
		TimestampTz now;
		TimestampTz next;
		TimestampTz	lease;

		outbox_worker_check(1);	/* by code 0 the postmaster would think that none is wanted */
		if (ConfigReloadPending)
		{
			int			retention = outbox_retention;
			int			dead_letter_retention = outbox_dead_letter_retention;

			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
			if (outbox_retention != retention || outbox_dead_letter_retention != dead_letter_retention)
				clean_anew();
		}
		scan_databases();
		now = GetCurrentTimestamp();
		reap_all(now, hint);
		if (hint != seen_hint)
			look_everywhere();
		seen_hint = hint;
		if (pg_atomic_read_u32(&outbox_shared->settings_changes) != seen_settings)
			clean_anew();
		seen_settings = pg_atomic_read_u32(&outbox_shared->settings_changes);
		lease = watch_leases(now);
		next = Min(Min(Min(adjust_all(now), lease), clean_all(now)), Min(replay_all(now), consume_all(now)));
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Max(1, (next - GetCurrentTimestamp()) / 1000 + 1), OUTBOX_WAIT_EVENT("OutboxLauncherMain"));
		ResetLatch(MyLatch);
	}
}

/* From _PG_init of a preloaded library. */
void
outbox_launcher_register(void)
{
	BackgroundWorker worker;

	outbox_worker_prepare(&worker, "OutboxLauncherMain", "outbox launcher");
	worker.bgw_restart_time = 1;
	RegisterBackgroundWorker(&worker);
}
