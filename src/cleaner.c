/*
 * cleaner.c
 *	  The process that rotates the log's children and removes what is old, and
 *	  sweeps the inbox.
 *
 * A background worker that lives for one run: started by the launcher when
 * something is due in a database, or by outbox.purge(). It is none of the
 * relay's business, which must not stand still for a TRUNCATE. A session lock
 * sees to it that there is one per database; what it does is in retire.c, and
 * may be stopped anywhere. It says in shared memory when the next one is due.
 */
#include "cleaner.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "database.h"
#include "give_way.h"
#include "inbox.h"
#include "retire.h"
#include "standing.h"
#include "worker.h"

PG_FUNCTION_INFO_V1(outbox_run_cleaner);

/* In pg_locks: locktype advisory, objsubid 104. */
#define LOCK_CLASS_CLEANER 104

/* So many ranges make up outbox.retention: the child that is about to go, and one to go on with, come to that. */
#define RANGES 6
#define MIN_RANGE_US INT64CONST(10000000)

/* When something is held up. */
#define MIN_RETRY_US INT64CONST(5000000)
#define MAX_RETRY_US INT64CONST(300000000)

/* outbox.purge() waits so long for transactions that hold the range it has just closed. */
#define SEAL_TRIES 20
#define SEAL_PAUSE_MS 50

static OutboxDatabase *my_database;

/* ---------------------------------------------------------------- the run */

static int64
retention_us(void)
{
	return outbox_retention * INT64CONST(1000000);
}

static int64
range_us(void)
{
	return Max(retention_us() / RANGES, MIN_RANGE_US);
}

static bool
seal(const OutboxRetention *retention, int child, bool patiently)
{
	for (int i = 1; !outbox_retire_seal(retention, child); i++)
	{
		if (!patiently || i == SEAL_TRIES)
			return false;
		outbox_worker_pause(SEAL_PAUSE_MS, OUTBOX_WAIT_EVENT("OutboxCleanerSeal"));
	}
	return true;
}

/* One closed child. Returns when to look at it again; PG_INT64_MAX: it has gone. */
static TimestampTz
clean_range(const OutboxRetention *retention, const OutboxRangeRow *range, bool patiently)
{
	TimestampTz later = GetCurrentTimestamp() + Min(Max(retention_us() / 100, MIN_RETRY_US), MAX_RETRY_US);
	TimestampTz newest;

	outbox_worker_check(0);
	if (!range->sealed && !seal(retention, range->child, patiently))
		return later;
	switch (outbox_retire(retention, range->child, &newest))
	{
		case OUTBOX_RETIRED:
			ereport(LOG,
					(errmsg("outbox events of range %lld are removed", (long long) range->generation),
					 errdetail("See outbox.purges.")));
			return PG_INT64_MAX;
		case OUTBOX_RETIRE_TOO_YOUNG:
			return Max(newest + retention_us(), later);
		case OUTBOX_RETIRE_LATER:
			break;
	}
	return later;
}

/*
 * Closes the current range if it is time for that, and goes through the closed
 * ones. Returns when to look again, PG_INT64_MAX: not before there are events.
 * removed: any has gone.
 */
static TimestampTz
pass(const OutboxRetention *retention, bool on_demand, bool *removed)
{
	OutboxRangeRow rows[OUTBOX_CHILDREN];
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next = PG_INT64_MAX;
	bool		idle;
	int			count;

	*removed = false;
	outbox_retire_rotate(retention, now - range_us(), on_demand, &idle);
	if (!outbox_retire_begin(retention))
		return now + MAX_RETRY_US;
	count = outbox_retire_ranges(retention, rows);
	outbox_retire_commit();
	for (int i = 0; i < count; i++)
	{
		TimestampTz again;

		if (!rows[i].closed)
			continue;
		again = clean_range(retention, &rows[i], on_demand);
		*removed |= again == PG_INT64_MAX;
		next = Min(next, again);
	}
	if (!idle)
		next = Min(next, count == 0 ? now + range_us() : Max(rows[count - 1].opened_at + range_us(), now + MIN_RETRY_US));
	else if (next < PG_INT64_MAX)
		next = Min(next, now + range_us());
	return next;
}

/* Everything that can be done now. Says in shared memory when the next cleaner is due. */
static void
clean(const OutboxRetention *retention, bool on_demand)
{
	int64		assigned = pg_atomic_read_u64(&my_database->max_assigned);
	bool		removed;
	TimestampTz next = pass(retention, on_demand, &removed);

	if (removed)
	{
		bool		more;

		/* There may have been no child to go on with before. */
		if (on_demand)
			next = pass(retention, on_demand, &more);
		outbox_retire_sweep(retention);
	}
	pg_atomic_write_u64(&my_database->clean_from, next == PG_INT64_MAX ? assigned + 1 : 0);
	if (outbox_retention < 0)
		next = DT_NOEND;
	else if (next == PG_INT64_MAX)
		next = GetCurrentTimestamp() + range_us();
	pg_atomic_write_u64(&my_database->clean_at, next);
}

static void
run_log(const OutboxCleanerOrder *order, Oid sequence)
{
	TimestampTz now = GetCurrentTimestamp();
	OutboxRetention retention = {my_database, sequence, order->run, order->before, DT_NOBEGIN};

	if (!order->on_demand && outbox_retention < 0)
	{
		pg_atomic_write_u64(&my_database->clean_at, DT_NOEND);
		return;
	}
	if (!order->on_demand)
	{
		retention.before = now - retention_us();
		retention.run = now;
	}
	if (outbox_dead_letter_retention >= 0)
		retention.dead_before = Min(retention.before, now - outbox_dead_letter_retention * INT64CONST(1000000));
	clean(&retention, order->on_demand);
}

static void
run(const OutboxCleanerOrder *order, Oid sequence)
{
	OutboxRetention retention = {my_database, sequence, 0, 0, 0};

	if (order->log)
		run_log(order, sequence);
	if (order->inbox)
		outbox_inbox_sweep(&retention);
}

/* -------------------------------------------------------------- the process */

static void
leave(int code, Datum arg)
{
	pg_atomic_write_u32(&my_database->retiring, 0);
	pg_atomic_write_u32(&my_database->cleaner_pid, 0);
}

/* One at a time. The lock goes with the process. */
static bool
become_the_one(bool wait)
{
	LOCKTAG		tag;

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 0, LOCK_CLASS_CLEANER);
	while (LockAcquire(&tag, ExclusiveLock, true, true) == LOCKACQUIRE_NOT_AVAIL)
	{
		if (!wait)
			return false;
		outbox_worker_pause(SEAL_PAUSE_MS, OUTBOX_WAIT_EVENT("OutboxCleanerSeal"));
	}
	pg_atomic_write_u32(&my_database->cleaner_pid, MyProcPid);
	before_shmem_exit(leave, (Datum) 0);
	return true;
}

/* In a database that may not: nothing is due until that changes. */
static bool
is_forbidden(void)
{
	char		reason[OUTBOX_TEXT_SIZE];

	if (outbox_standing(reason) == OUTBOX_STANDING_GOOD)
		return false;
	pg_atomic_write_u64(&my_database->clean_at, DT_NOEND);
	pg_atomic_write_u64(&my_database->inbox_clean_at, DT_NOEND);
	return true;
}

/* The extension's life in this database; InvalidOid: it isn't there, or nothing may be done. */
static Oid
attach(void)
{
	const OutboxCatalog *catalog;
	Oid			sequence = InvalidOid;

	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog != NULL)
	{
		PushActiveSnapshot(GetTransactionSnapshot());
		sequence = catalog->sequence;
		my_database = outbox_database_attach(catalog);
		if (is_forbidden())
			sequence = InvalidOid;
		PopActiveSnapshot();
	}
	CommitTransactionCommand();
	return sequence;
}

void
OutboxCleanerMain(Datum main_arg)
{
	OutboxCleanerOrder order;
	Oid			sequence;

	pqsignal(SIGINT, SIG_IGN);
	pqsignal(SIGTERM, die);
	outbox_worker_unblock_signals();
	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(main_arg), InvalidOid, 0);
	OUTBOX_TEST_POINT("worker-connected");
	pgstat_report_appname("outbox cleaner");
	outbox_database_pin_session();
	/* Its locks must not outlast a standby that doesn't answer; readers of what it takes away may be there. */
	SetConfigOption("synchronous_commit", "local", PGC_SUSET, PGC_S_OVERRIDE);
	outbox_standing_own_writes();
	sequence = attach();
	if (OidIsValid(sequence) && become_the_one(order.on_demand) && !outbox_give_way_is_due(my_database))
		run(&order, sequence);
	proc_exit(0);
}

BackgroundWorkerHandle *
outbox_cleaner_start(Oid dboid, const OutboxCleanerOrder *order)
{
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;

	outbox_worker_prepare(&worker, "OutboxCleanerMain", "outbox cleaner");
	worker.bgw_main_arg = ObjectIdGetDatum(dboid);
	memcpy(worker.bgw_extra, order, sizeof(*order));
	worker.bgw_notify_pid = MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, &handle) ? handle : NULL;
}

/* --------------------------------------------------------------------- SQL */

/* outbox.run_cleaner(before timestamptz): waits until a cleaner has removed what it can; returns what marks its rows in outbox.purges. */
Datum
outbox_run_cleaner(PG_FUNCTION_ARGS)
{
	OutboxCleanerOrder order = {.log = true, .on_demand = true, .before = PG_GETARG_TIMESTAMPTZ(0)};
	BackgroundWorkerHandle *handle;

	outbox_shmem_require();
	if (!IsUnderPostmaster)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("outbox.purge() needs a background worker, which single-user mode doesn't have")));
	outbox_standing_require();
	if (!pg_strong_random(&order.run, sizeof(order.run)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate a random number")));
	handle = outbox_cleaner_start(MyDatabaseId, &order);
	if (handle == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_RESOURCES),
				 errmsg("no background worker slot is free"),
				 errhint("Try again, or raise \"max_worker_processes\" and restart the server. See docs/failures.md, \"No background worker free\".")));
	PG_TRY();
	{
		if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
			proc_exit(1);
	}
	PG_CATCH();
	{
		TerminateBackgroundWorker(handle);
		PG_RE_THROW();
	}
	PG_END_TRY();
	PG_RETURN_INT64(order.run);
}
