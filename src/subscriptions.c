/*
 * subscriptions.c
 *	  Which subscriptions there are, and who serves them.
 *
 * The launcher is in no database, so it can't read outbox.subscription. A
 * scout does that, a background worker that lives for a moment: once after the
 * server's start, and when the table has changed. What it finds is in shared
 * memory, where the launcher starts a consumer for each that is wanted.
 *
 * A consumer is a session of the role that its handler runs as (consumer.c).
 */
#include "subscriptions.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/snapmgr.h"

#include "database.h"
#include "standing.h"
#include "worker.h"

PG_FUNCTION_INFO_V1(outbox_tell_consumers);
PG_FUNCTION_INFO_V1(outbox_subscription_changed);
PG_FUNCTION_INFO_V1(outbox_subscription_states);

#define LOOK_US INT64CONST(5000000)
#define RESTART_BASE_US INT64CONST(500000)
#define RESTART_MAX_US INT64CONST(30000000)
/* A consumer that ran so long has not failed at its start. */
#define HEALTHY_US INT64CONST(30000000)

#define STATES_COLUMNS 12

/* --------------------------------------------------------------------- SQL */

static bool tells_changes = false;
static bool tells_parked = false;
static bool saw_changes = false; /* by the table's trigger */

/* outbox.tell_consumers(changed boolean) */
Datum
outbox_tell_consumers(PG_FUNCTION_ARGS)
{
	/* Without the library nobody would ever serve it; that must not go unnoticed. */
	outbox_shmem_require();
	(void) outbox_database_attach(outbox_database_catalog(false));
	if (PG_GETARG_BOOL(0))
		tells_changes = true;
	else
		tells_parked = true;
	PG_RETURN_VOID();
}

/* outbox.subscription_changed(), a trigger */
Datum
outbox_subscription_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.subscription_changed() is a trigger function")));
	saw_changes = true;
	return PointerGetDatum(NULL);
}

static void
at_commit(void)
{
	OutboxDatabase *database = outbox_shmem_find(MyDatabaseId);

	if (database == NULL)
		return;
	if (tells_changes || saw_changes)
		pg_atomic_fetch_add_u32(&database->subscription_changes, 1);
	if (tells_parked)
		pg_atomic_fetch_add_u32(&database->parked_changes, 1);
	outbox_shmem_wake_consumers(database);
	outbox_shmem_wake_launcher();
}

/* Registered once per backend, in _PG_init of a preloaded library. */
void
outbox_subscriptions_xact_callback(XactEvent event, void *arg)
{
	if (!tells_changes && !tells_parked && !saw_changes)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			/* COMMIT PREPARED calls nobody back. What a subscription of the server's prepares must pass; arm() tells of it. */
			if (tells_changes || tells_parked)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has changed outbox subscriptions or parked messages"),
						 errhint("Use COMMIT.")));
			break;
		case XACT_EVENT_COMMIT:
			at_commit();
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			tells_changes = tells_parked = saw_changes = false;
			break;
		default:
			break;
	}
}

static void
put_state(ReturnSetInfo *result, OutboxDatabase *database, OutboxSubscription *subscription)
{
	static const char *const states[] = {"not running", "not connected", "active"};
	Datum		values[STATES_COLUMNS] = {0};
	bool		nulls[STATES_COLUMNS] = {false};
	int			pid = pg_atomic_read_u32(&subscription->pid);

	LWLockAcquire(&database->status_lock, LW_SHARED);
	values[0] = Int32GetDatum(subscription->id);
	values[2] = CStringGetTextDatum(states[pid == 0 ? OUTBOX_CONSUMER_STOPPED : subscription->state]);
	values[3] = TimestampTzGetDatum(subscription->since);
	nulls[3] = subscription->since == 0;
	values[4] = CStringGetTextDatum(subscription->server);
	nulls[4] = subscription->server[0] == '\0';
	values[11] = CStringGetTextDatum(subscription->last_error);
	nulls[11] = subscription->last_error[0] == '\0';
	LWLockRelease(&database->status_lock);
	values[1] = Int32GetDatum(pid);
	nulls[1] = pid == 0;
	values[5] = Int64GetDatum(pg_atomic_read_u64(&subscription->applied));
	values[6] = Int64GetDatum(pg_atomic_read_u64(&subscription->duplicates));
	values[7] = Int64GetDatum(pg_atomic_read_u64(&subscription->failures));
	values[8] = Int64GetDatum(pg_atomic_read_u64(&subscription->parked));
	values[9] = Int64GetDatum(pg_atomic_read_u64(&subscription->held));
	values[10] = Int64GetDatum(pg_atomic_read_u64(&subscription->pending));
	if (DatumGetInt32(values[0]) != 0)
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* outbox.subscription_states() */
Datum
outbox_subscription_states(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxDatabase *database = outbox_shared == NULL ? NULL : outbox_shmem_find(MyDatabaseId);

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; database != NULL && i < OUTBOX_SUBSCRIPTIONS; i++)
		put_state(result, database, &database->subscriptions[i]);
	return (Datum) 0;
}

/* -------------------------------------------------------------- the launcher */

/* Whether the process has ended; then its handle is freed. */
static bool
has_ended(BackgroundWorkerHandle **handle)
{
	pid_t		pid;

	if (*handle == NULL || GetBackgroundWorkerPid(*handle, &pid) != BGWH_STOPPED)
		return false;
	pfree(*handle);
	*handle = NULL;
	return true;
}

bool
outbox_subscriptions_has_processes(const OutboxConsumers *consumers)
{
	if (consumers->scout != NULL)
		return true;
	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
	{
		if (consumers->processes[i].handle != NULL)
			return true;
	}
	return false;
}

/* Sends somebody to read the table, if that is due. */
static TimestampTz
scout(OutboxConsumers *consumers, Oid dboid, OutboxDatabase *shared, TimestampTz now, bool *failed)
{
	bool		ready = shared != NULL && pg_atomic_read_u32(&shared->ready_for) != 0;
	bool		due;
	BackgroundWorker worker;

	(void) has_ended(&consumers->scout);
	/* What no relay has looked at yet may be without the extension. Where there are none, somebody must look. */
	if (ready)
		due = pg_atomic_read_u32(&shared->subscriptions_read) != pg_atomic_read_u32(&shared->subscription_changes) + 1;
	else
		due = outbox_workers == 0 && !consumers->scouted;
	if (consumers->scout != NULL || !due)
		return now + LOOK_US;
	if (now < consumers->scout_not_before)
		return consumers->scout_not_before;
	outbox_worker_prepare(&worker, "OutboxScoutMain", "outbox scout");
	worker.bgw_notify_pid = MyProcPid;
	worker.bgw_main_arg = ObjectIdGetDatum(dboid);
	if (!RegisterDynamicBackgroundWorker(&worker, &consumers->scout))
	{
		consumers->scout = NULL;
		consumers->scout_not_before = now + 2 * RESTART_BASE_US;
		*failed = true;
		return consumers->scout_not_before;
	}
	consumers->scouted = true;
	/* Should it fail. */
	consumers->scout_not_before = ready ? now + 2 * RESTART_BASE_US : now;
	return now + LOOK_US;
}

/* What its end says of when to start it again. */
static void
reap(OutboxConsumerProcess *process, OutboxSubscription *subscription, TimestampTz now)
{
	if (pg_atomic_read_u32(&subscription->asked) != 0 || now - process->started > HEALTHY_US)
	{
		process->failures = 0;
		process->not_before = now;
		return;
	}
	process->not_before = now + Min(RESTART_BASE_US << Min(process->failures, 10), RESTART_MAX_US);
	process->failures++;
}

/* Starts the consumer of a place if it is wanted and due. Returns when to look again. */
static TimestampTz
start(OutboxConsumerProcess *process, Oid dboid, OutboxDatabase *shared, int place, TimestampTz now, bool *failed)
{
	OutboxSubscription *subscription = &shared->subscriptions[place];
	OutboxConsumerOrder order = {.dboid = dboid, .place = place};
	BackgroundWorker worker;
	bool		wanted;

	if (has_ended(&process->handle))
		reap(process, subscription, now);
	LWLockAcquire(&shared->status_lock, LW_SHARED);
	wanted = subscription->id != 0 && subscription->wanted;
	order.id = subscription->id;
	order.revision = subscription->revision;
	order.role = subscription->role;
	LWLockRelease(&shared->status_lock);
	if (!wanted || process->handle != NULL)
		return now + LOOK_US;
	if (now < process->not_before)
		return process->not_before;
	pg_atomic_write_u32(&subscription->must_leave, 0);
	pg_atomic_write_u32(&subscription->asked, 0);
	outbox_worker_prepare(&worker, "OutboxConsumerMain", "outbox consumer");
	worker.bgw_notify_pid = MyProcPid;
	memcpy(worker.bgw_extra, &order, sizeof(order));
	if (!RegisterDynamicBackgroundWorker(&worker, &process->handle))
	{
		process->handle = NULL;
		process->not_before = now + 2 * RESTART_BASE_US;
		*failed = true;
	}
	process->started = now;
	return now + LOOK_US;
}

TimestampTz
outbox_subscriptions_run(OutboxConsumers *consumers, Oid dboid, OutboxDatabase *shared, TimestampTz now,
						 TimestampTz not_before, bool *failed)
{
	TimestampTz next;

	if (now < not_before)
		return not_before;
	next = scout(consumers, dboid, shared, now, failed);
	for (int i = 0; shared != NULL && i < OUTBOX_SUBSCRIPTIONS; i++)
		next = Min(next, start(&consumers->processes[i], dboid, shared, i, now, failed));
	return next;
}

/* ----------------------------------------------------------------- the scout */

/* A row of the table. */
typedef struct Row
{
	int			id;
	int			revision;
	Oid			role;
	bool		wanted;
	const char *trouble;		/* why it can't be wanted; NULL: nothing of that kind */
} Row;

/* The place of a subscription, taken if it has none; NULL: all are taken. */
static OutboxSubscription *
find_place(OutboxDatabase *database, int id)
{
	OutboxSubscription *free = NULL;

	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
	{
		OutboxSubscription *place = &database->subscriptions[i];

		if (place->id == id)
			return place;
		if (free == NULL && place->id == 0 && pg_atomic_read_u32(&place->pid) == 0)
			free = place;
	}
	if (free == NULL)
		return NULL;
	free->id = id;
	free->revision = 0;
	free->since = 0;
	free->server[0] = free->last_error[0] = '\0';
	pg_atomic_write_u64(&free->applied, 0);
	pg_atomic_write_u64(&free->duplicates, 0);
	pg_atomic_write_u64(&free->failures, 0);
	pg_atomic_write_u64(&free->parked, 0);
	pg_atomic_write_u64(&free->held, 0);
	pg_atomic_write_u64(&free->pending, 0);
	return free;
}

/* Under status_lock. False: no place is left. */
static bool
note_row(OutboxDatabase *database, const Row *row)
{
	OutboxSubscription *place = find_place(database, row->id);

	if (place == NULL)
		return false;
	if (!row->wanted || place->revision != row->revision)
		pg_atomic_write_u32(&place->must_leave, 1);
	place->revision = row->revision;
	place->role = row->role;
	place->wanted = row->wanted;
	if (row->trouble != NULL)
		strlcpy(place->last_error, row->trouble, sizeof(place->last_error));
	return true;
}

/* What is in shared memory and not in the table any more. */
static void
forget_others(OutboxDatabase *database, const Row *rows, int count)
{
	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
	{
		OutboxSubscription *place = &database->subscriptions[i];
		bool		found = false;

		for (int r = 0; r < count; r++)
			found = found || rows[r].id == place->id;
		if (found || place->id == 0)
			continue;
		place->id = 0;
		place->wanted = false;
		pg_atomic_write_u32(&place->must_leave, 1);
	}
}

static void
read_row(Row *row, HeapTuple tuple, TupleDesc desc, const char *forbidden)
{
	bool		isnull;
	bool		paused;

	row->id = DatumGetInt32(SPI_getbinval(tuple, desc, 1, &isnull));
	row->revision = DatumGetInt32(SPI_getbinval(tuple, desc, 2, &isnull));
	row->role = DatumGetObjectId(SPI_getbinval(tuple, desc, 3, &isnull));
	if (isnull)
		row->role = InvalidOid;
	paused = DatumGetBool(SPI_getbinval(tuple, desc, 4, &isnull));
	row->wanted = !paused && forbidden == NULL && OidIsValid(row->role);
	row->trouble = NULL;
	if (!OidIsValid(row->role))
		row->trouble = "its role doesn't exist or can't log in";
	else if (forbidden != NULL)
		row->trouble = forbidden;
}

static void
read_table(OutboxDatabase *database)
{
	Row		   *rows;
	int			count;
	int			left_out = 0;
	char		reason[OUTBOX_TEXT_SIZE];
	OutboxStanding standing = outbox_standing(reason);
	const char *forbidden = NULL;

	if (standing == OUTBOX_STANDING_NOT_ARMED)
		forbidden = psprintf("not armed: %s", reason);
	else if (standing == OUTBOX_STANDING_OTHER_VERSION)
		forbidden = psprintf("version mismatch: %s", reason);
	if (SPI_connect() != SPI_OK_CONNECT ||
		SPI_execute("SELECT s.id, s.revision, r.oid, s.paused FROM outbox.subscription s"
					" LEFT JOIN pg_catalog.pg_roles r ON r.rolname = s.run_as AND r.rolcanlogin ORDER BY s.id",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.subscription");
	count = (int) SPI_processed;
	rows = palloc(sizeof(Row) * (count + 1));
	for (int i = 0; i < count; i++)
		read_row(&rows[i], SPI_tuptable->vals[i], SPI_tuptable->tupdesc, forbidden);
	LWLockAcquire(&database->status_lock, LW_EXCLUSIVE);
	forget_others(database, rows, count);
	for (int i = 0; i < count; i++)
		left_out += note_row(database, &rows[i]) ? 0 : 1;
	LWLockRelease(&database->status_lock);
	SPI_finish();
	if (left_out > 0)
		ereport(WARNING,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%d outbox subscriptions are not served", left_out),
				 errdetail("A database has %d at most.", OUTBOX_SUBSCRIPTIONS)));
}

void
OutboxScoutMain(Datum main_arg)
{
	const OutboxCatalog *catalog;

	pqsignal(SIGINT, SIG_IGN);
	pqsignal(SIGTERM, die);
	outbox_worker_unblock_signals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(main_arg), InvalidOid, 0);
	pgstat_report_appname("outbox scout");
	outbox_database_pin_session();

	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog != NULL)
	{
		OutboxDatabase *database;
		uint32		changes;

		PushActiveSnapshot(GetTransactionSnapshot());
		database = outbox_database_attach(catalog);
		changes = pg_atomic_read_u32(&database->subscription_changes);
		pg_memory_barrier();
		PopActiveSnapshot();
		PushActiveSnapshot(GetLatestSnapshot());
		read_table(database);
		PopActiveSnapshot();
		CommitTransactionCommand();
		pg_atomic_write_u32(&database->subscriptions_read, changes + 1);
		outbox_shmem_wake_consumers(database);
		outbox_shmem_wake_launcher();
	}
	else
		AbortCurrentTransaction();
	proc_exit(0);
}
