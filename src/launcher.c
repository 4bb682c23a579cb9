/*
 * launcher.c
 *	  Starts a relay in every database that has the extension, and again when
 *	  it has died.
 *
 * The launcher is connected to no database: it reads pg_database and starts a
 * dynamic worker in each database it doesn't know yet; a relay that finds no
 * extension leaves again, and is not tried there until somebody creates an
 * extension. Relays are never restarted by the postmaster, so that a dropped
 * database can't make one loop.
 *
 *	  waiting --time--> running --it was asked to leave, or failed--> waiting
 *	                       '--it found no extension--> absent --hint--> waiting
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
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/acl.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "launcher.h"

#define SCAN_MS 5000
#define RESTART_BASE_US INT64CONST(500000)
#define RESTART_MAX_US INT64CONST(30000000)
/* A relay that ran so long has not failed at its start. */
#define HEALTHY_US INT64CONST(30000000)
/* Relays that are starting, or only looking, at the same time. */
#define MAX_STARTING 2
#define PROBE_US INT64CONST(100000)
#define COMPLAINT_US INT64CONST(60000000)
/* How long a relay stays away from a database that is being dropped, moved or copied. */
#define STAY_AWAY_US INT64CONST(10000000)
#define WAIT_FOR_LEAVE_MS 5000

typedef struct Place
{
	Oid			dboid;
	bool		exists;			/* seen in the last scan */
	bool		absent;			/* looked into: no extension */
	uint32		hint;			/* OutboxShared.database_hint before that */
	BackgroundWorkerHandle *relay;	/* NULL: none running */
	int			report;			/* where that relay reports */
	TimestampTz started;
	TimestampTz not_before;
	int			failures;
} Place;

static Place *places = NULL;
static int	place_count = 0;
static int	place_space = 0;

/* ------------------------------------------------------------- databases */

static Place *
find_place(Oid dboid)
{
	for (int i = 0; i < place_count; i++)
	{
		if (places[i].dboid == dboid)
			return &places[i];
	}
	return NULL;
}

static void
see_database(Oid dboid)
{
	Place	   *place = find_place(dboid);

	if (place == NULL)
	{
		if (place_count == place_space)
		{
			place_space = Max(16, place_space * 2);
			if (places == NULL)
				places = MemoryContextAlloc(TopMemoryContext, place_space * sizeof(Place));
			else
				places = repalloc(places, place_space * sizeof(Place));
		}
		place = &places[place_count++];
		memset(place, 0, sizeof(Place));
		place->dboid = dboid;
	}
	place->exists = true;
}

static void
forget_gone_databases(void)
{
	int			kept = 0;

	for (int i = 0; i < place_count; i++)
	{
		if (places[i].exists || places[i].relay != NULL)
			places[kept++] = places[i];
		else
			outbox_shmem_free(places[i].dboid);
	}
	place_count = kept;
}

/* Reads pg_database: every database one can connect to, except templates. */
static void
scan_databases(void)
{
	Relation	relation;
	TableScanDesc scan;
	HeapTuple	tuple;

	for (int i = 0; i < place_count; i++)
		places[i].exists = false;

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	relation = table_open(DatabaseRelationId, AccessShareLock);
	scan = table_beginscan_catalog(relation, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tuple);

		if (database->datallowconn && !database->datistemplate)
			see_database(database->oid);
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

/* Takes note of relays that have ended. */
static void
reap(TimestampTz now, uint32 hint)
{
	for (int i = 0; i < place_count; i++)
	{
		Place	   *place = &places[i];
		pid_t		pid;

		if (place->relay == NULL || GetBackgroundWorkerPid(place->relay, &pid) != BGWH_STOPPED)
			continue;
		pfree(place->relay);
		place->relay = NULL;
		/* An extension may have been created while it looked. */
		place->absent = report_of(place) == OUTBOX_REPORT_ABSENT && place->hint == hint;
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
			 errmsg("could not start an outbox relay: no background worker slot is free"),
			 errhint("Raise \"max_worker_processes\" and restart the server.")));
}

static bool
start_relay(Place *place, TimestampTz now)
{
	static int	next_report = 0;
	BackgroundWorker worker;

	place->hint = pg_atomic_read_u32(&outbox_shared->database_hint);
	next_report = (next_report + 1) % OUTBOX_REPORTS;
	place->report = next_report;
	pg_atomic_write_u32(&outbox_shared->reports[place->report], OUTBOX_REPORT_NONE);

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "outbox", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "OutboxRelayMain", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "outbox relay", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "outbox relay", sizeof(worker.bgw_type));
	worker.bgw_main_arg = OUTBOX_RELAY_ARG(place->dboid, place->report);
	worker.bgw_notify_pid = MyProcPid;
	if (!RegisterDynamicBackgroundWorker(&worker, &place->relay))
	{
		place->relay = NULL;
		return false;
	}
	place->started = now;
	return true;
}

/*
 * No relay may start before this time: the database is being changed, or has
 * a relay that an earlier launcher started.
 */
static TimestampTz
no_relay_before(Oid dboid, TimestampTz now)
{
	OutboxDatabase *database = outbox_shmem_find(dboid);
	TimestampTz result;

	if (database == NULL)
		return 0;
	if (pg_atomic_read_u32(&database->relay_pid) != 0)
		return now + SCAN_MS * INT64CONST(1000);
	LWLockAcquire(&outbox_shared->lock, LW_SHARED);
	result = database->no_relay_before;
	LWLockRelease(&outbox_shared->lock);
	return result;
}

/* Starts what is due. Returns when the next start will be due. */
static TimestampTz
start_due(TimestampTz now)
{
	TimestampTz next = now + SCAN_MS * INT64CONST(1000);
	int			starting = 0;

	for (int i = 0; i < place_count; i++)
		starting += places[i].relay != NULL && report_of(&places[i]) == OUTBOX_REPORT_NONE;
	for (int i = 0; i < place_count; i++)
	{
		Place	   *place = &places[i];
		TimestampTz due;

		if (place->relay != NULL || place->absent || !place->exists)
			continue;
		due = Max(place->not_before, no_relay_before(place->dboid, now));
		if (due > now)
			next = Min(next, due);
		else if (starting == MAX_STARTING)
			next = Min(next, now + PROBE_US);
		else if (start_relay(place, now))
			starting++;
		else
		{
			complain(now);
			next = Min(next, now + RESTART_BASE_US * 2);
		}
	}
	return next;
}

static void
leave(int code, Datum arg)
{
	pg_atomic_write_u32(&outbox_shared->launcher_pid, 0);
}

void
OutboxLauncherMain(Datum main_arg)
{
	uint32		seen_hint = 0;

	pqsignal(SIGINT, SIG_IGN);
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
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

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		scan_databases();
		now = GetCurrentTimestamp();
		reap(now, hint);
		if (hint != seen_hint)
		{
			for (int i = 0; i < place_count; i++)
			{
				places[i].absent = false;
				places[i].failures = 0;
			}
			seen_hint = hint;
		}
		next = start_due(now);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Max(1, (next - GetCurrentTimestamp()) / 1000 + 1), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* From _PG_init of a preloaded library. */
void
outbox_launcher_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "outbox", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "OutboxLauncherMain", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "outbox launcher", sizeof(worker.bgw_name));
	strlcpy(worker.bgw_type, "outbox launcher", sizeof(worker.bgw_type));
	RegisterBackgroundWorker(&worker);
}

/* --------------------------------------------------- commands on databases */

/* Asks a database's relay to go, and waits until it has. */
static void
send_relay_away(Oid dboid)
{
	OutboxDatabase *database = outbox_shmem_find(dboid);

	if (database == NULL)
		return;
	LWLockAcquire(&outbox_shared->lock, LW_EXCLUSIVE);
	if (database->dboid == dboid)
		database->no_relay_before = GetCurrentTimestamp() + STAY_AWAY_US;
	LWLockRelease(&outbox_shared->lock);
	pg_atomic_write_u32(&database->must_leave, 1);
	outbox_shmem_wake_relay(database);
	for (int ms = 0; ms < WAIT_FOR_LEAVE_MS && pg_atomic_read_u32(&database->relay_pid) != 0; ms += 10)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(10 * 1000);
	}
}

static const char *
string_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem    *option = lfirst(cell);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

/*
 * The database that a command wants for itself alone: DROP, RENAME, SET
 * TABLESPACE, CREATE ... TEMPLATE. InvalidOid: none, or the user may not.
 */
static Oid
database_wanted(Node *statement)
{
	const char *name = NULL;
	Oid			dboid;

	if (IsA(statement, DropdbStmt))
		name = ((DropdbStmt *) statement)->dbname;
	else if (IsA(statement, RenameStmt) && ((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
		name = ((RenameStmt *) statement)->subname;
	else if (IsA(statement, AlterDatabaseStmt) &&
			 string_option(((AlterDatabaseStmt *) statement)->options, "tablespace") != NULL)
		name = ((AlterDatabaseStmt *) statement)->dbname;
	else if (IsA(statement, CreatedbStmt))
		name = string_option(((CreatedbStmt *) statement)->options, "template");
	if (name == NULL)
		return InvalidOid;
	dboid = get_database_oid(name, true);
	if (!OidIsValid(dboid) || !outbox_owns_database(dboid, GetUserId()))
		return InvalidOid;
	return dboid;
}

/*
 * From the utility hook: our relay must not be what a command on its database
 * stumbles over. Returns the database whose relay was sent away, for
 * outbox_launcher_after_utility().
 */
Oid
outbox_launcher_before_utility(Node *statement)
{
	Oid			dboid = database_wanted(statement);

	if (!OidIsValid(dboid) || dboid == MyDatabaseId)
		return InvalidOid;
	send_relay_away(dboid);
	return dboid;
}

/* The command has ended: the relay may come back. */
void
outbox_launcher_after_utility(Oid dboid)
{
	OutboxDatabase *database = OidIsValid(dboid) ? outbox_shmem_find(dboid) : NULL;

	if (database == NULL)
		return;
	LWLockAcquire(&outbox_shared->lock, LW_EXCLUSIVE);
	database->no_relay_before = 0;
	LWLockRelease(&outbox_shared->lock);
	outbox_shmem_wake_launcher();
}
