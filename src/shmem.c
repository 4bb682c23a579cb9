/*
 * shmem.c
 *	  The shared memory of outbox: its size, its start, and who owns which
 *	  database slot.
 *
 * Everything is allocated at server start with a fixed size, because the
 * commit callbacks that use it must not allocate or attach anything. It knows
 * nothing of tables or of NATS.
 */
#include "outbox.h"

#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/shmem.h"

#include "aggregate_lock.h"

OutboxShared *outbox_shared = NULL;

static shmem_request_hook_type previous_request_hook = NULL;
static shmem_startup_hook_type previous_startup_hook = NULL;

static Size
shared_size(void)
{
	Size		size = MAXALIGN(sizeof(OutboxShared));

	size = add_size(size, mul_size(outbox_max_databases, MAXALIGN(sizeof(OutboxDatabase))));
	size = add_size(size, mul_size(OUTBOX_BACKEND_COUNT, sizeof(OutboxBackend)));
	size = add_size(size, mul_size(max_prepared_xacts, sizeof(OutboxPrepared)));
	return MAXALIGN(size);
}

/* shmem_request_hook. */
static void
request(void)
{
	if (previous_request_hook)
		previous_request_hook();
	RequestAddinShmemSpace(shared_size());
	RequestAddinShmemSpace(outbox_aggregate_lock_shmem_size());
#ifdef OUTBOX_TEST_POINTS
	RequestAddinShmemSpace(outbox_test_shmem_size());
#endif
}

static void
init_place(OutboxPlace *place)
{
	pg_atomic_init_u32(&place->pid, 0);
	pg_atomic_init_u32(&place->procno, 0);
	pg_atomic_init_u32(&place->must_leave, 0);
	pg_atomic_init_u64(&place->published, 0);
	pg_atomic_init_u64(&place->known_pending, 0);
	pg_atomic_init_u64(&place->read_up_to, 0);
	pg_atomic_init_u64(&place->in_flight, 0);
	pg_atomic_init_u64(&place->oldest_pending, 0);
	pg_atomic_init_u64(&place->late_since, 0);
	outbox_meter_init_counts(&place->counts);
	pg_atomic_init_u64(&place->open_from, 0);
	pg_atomic_init_u64(&place->flush_seen, 0);
}

static void
init_subscription(OutboxSubscription *subscription)
{
	pg_atomic_init_u32(&subscription->pid, 0);
	pg_atomic_init_u32(&subscription->procno, 0);
	pg_atomic_init_u32(&subscription->must_leave, 0);
	pg_atomic_init_u32(&subscription->asked, 0);
	pg_atomic_init_u64(&subscription->applied, 0);
	pg_atomic_init_u64(&subscription->duplicates, 0);
	pg_atomic_init_u64(&subscription->failures, 0);
	pg_atomic_init_u64(&subscription->parked, 0);
	pg_atomic_init_u64(&subscription->held, 0);
	pg_atomic_init_u64(&subscription->pending, 0);
}

static void
init_database(OutboxDatabase *database, int tranche)
{
	database->dboid = InvalidOid;
	pg_atomic_init_u32(&database->ready_for, 0);
	pg_atomic_init_u32(&database->current_child, 0);
	pg_atomic_init_u32(&database->used_children, 1);
	pg_atomic_init_u32(&database->moves, 0);
	pg_atomic_init_u32(&database->retiring, 0);
	pg_atomic_init_u32(&database->cleaner_pid, 0);
	pg_atomic_init_u64(&database->clean_at, 0);
	pg_atomic_init_u64(&database->clean_from, 0);
	pg_atomic_init_u32(&database->replay_calls, 0);
	for (int i = 0; i < OUTBOX_MAX_REPLAYERS; i++)
	{
		pg_atomic_init_u32(&database->replayers[i].pid, 0);
		pg_atomic_init_u32(&database->replayers[i].procno, 0);
	}
	pg_atomic_init_u32(&database->inbox_used, 0);
	pg_atomic_init_u64(&database->inbox_clean_at, 0);
	for (int i = 0; i < OUTBOX_CHILDREN; i++)
	{
		pg_atomic_init_u32(&database->children[i].life, 0);
		pg_atomic_init_u64(&database->children[i].last, PG_INT64_MAX);
	}
	pg_atomic_init_u64(&database->max_assigned, 0);
	pg_atomic_init_u64(&database->watermark, 0);
	pg_atomic_init_u32(&database->leave_calls, 0);
	SpinLockInit(&database->feed_mutex);
	LWLockInitialize(&database->slots_lock, tranche);
	outbox_slots_reset(&database->slots);
	LWLockInitialize(&database->status_lock, tranche);
	pg_atomic_init_u32(&database->requests, 0);
	pg_atomic_init_u64(&database->flush_calls, 0);
	pg_atomic_init_u32(&database->careful, 0);
	for (int i = 0; i < OUTBOX_ERROR_CLASSES; i++)
		pg_atomic_init_u64(&database->errors[i], 0);
	outbox_meter_init(&database->meters);
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
		init_place(&database->places[i]);
	pg_atomic_init_u32(&database->subscription_changes, 0);
	pg_atomic_init_u32(&database->subscriptions_read, 0);
	pg_atomic_init_u32(&database->parked_changes, 0);
	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
		init_subscription(&database->subscriptions[i]);
	for (int i = 0; i < OUTBOX_CLAIMS; i++)
		pg_atomic_init_u64(&database->claimed[i], 0);
}

static void
init_shared(OutboxShared *shared)
{
	char	   *place = (char *) shared + MAXALIGN(sizeof(OutboxShared));

	memset(shared, 0, shared_size());
	shared->tranche = LWLockNewTrancheId();
	LWLockInitialize(&shared->lock, shared->tranche);
	LWLockInitialize(&shared->prepared_lock, shared->tranche);
	shared->database_count = outbox_max_databases;
	shared->backend_count = OUTBOX_BACKEND_COUNT;
	shared->prepared_count = max_prepared_xacts;
	pg_atomic_init_u32(&shared->launcher_pid, 0);
	pg_atomic_init_u32(&shared->launcher_procno, 0);
	pg_atomic_init_u32(&shared->database_hint, 0);
	pg_atomic_init_u32(&shared->settings_changes, 0);
	for (int i = 0; i < OUTBOX_REPORTS; i++)
		pg_atomic_init_u32(&shared->reports[i], OUTBOX_REPORT_NONE);

	shared->databases = (OutboxDatabase *) place;
	place += mul_size(shared->database_count, MAXALIGN(sizeof(OutboxDatabase)));
	shared->backends = (OutboxBackend *) place;
	place += mul_size(shared->backend_count, sizeof(OutboxBackend));
	shared->prepared = (OutboxPrepared *) place;

	for (int i = 0; i < shared->database_count; i++)
		init_database(&shared->databases[i], shared->tranche);
	for (int i = 0; i < shared->backend_count; i++)
		pg_atomic_init_u64(&shared->backends[i].bound, 0);
}

/* shmem_startup_hook; also run by a server that restarts after a crash. */
static void
startup(void)
{
	bool		found;

	if (previous_startup_hook)
		previous_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	outbox_shared = ShmemInitStruct("outbox", shared_size(), &found);
	if (!found)
		init_shared(outbox_shared);
	outbox_aggregate_lock_shmem_init(outbox_shared->tranche);
#ifdef OUTBOX_TEST_POINTS
	outbox_test_shmem_init();
#endif
	LWLockRelease(AddinShmemInitLock);

	LWLockRegisterTranche(outbox_shared->tranche, "outbox");
}

/* From _PG_init, only while shared_preload_libraries are being loaded. */
void
outbox_shmem_install(void)
{
	previous_request_hook = shmem_request_hook;
	shmem_request_hook = request;
	previous_startup_hook = shmem_startup_hook;
	shmem_startup_hook = startup;
}

/* The slot of a database, or NULL. The caller holds OutboxShared.lock in any mode. */
static OutboxDatabase *
find_locked(Oid dboid)
{
	for (int i = 0; i < outbox_shared->database_count; i++)
	{
		if (outbox_shared->databases[i].dboid == dboid)
			return &outbox_shared->databases[i];
	}
	return NULL;
}

/* For what makes no sense without the library preloaded. */
void
outbox_shmem_require(void)
{
	if (outbox_shared == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("the library \"%s\" is not preloaded", OUTBOX_EXTENSION),
				 errhint("Add it to \"shared_preload_libraries\" and restart the server.")));
}

/* The slot of a database, or NULL when it has none. */
OutboxDatabase *
outbox_shmem_find(Oid dboid)
{
	OutboxDatabase *database;

	LWLockAcquire(&outbox_shared->lock, LW_SHARED);
	database = find_locked(dboid);
	LWLockRelease(&outbox_shared->lock);
	return database;
}

/* A slot's new owner has no relays yet, and nothing of the old one's must show. */
static void
reset_database(OutboxDatabase *database)
{
	pg_atomic_write_u32(&database->ready_for, 0);
	pg_atomic_write_u64(&database->watermark, 0);
	database->no_relay_before = 0;
	outbox_slots_reset(&database->slots);
	for (int i = 0; i < OUTBOX_ERROR_CLASSES; i++)
		pg_atomic_write_u64(&database->errors[i], 0);
	outbox_meter_clear(&database->meters);
	pg_atomic_write_u64(&database->meters.reset_at, 0);
	pg_atomic_write_u32(&database->meters.group_count, 0);
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		OutboxPlace *place = &database->places[i];

		database->readers[i].attached = false;
		memset(&place->status, 0, sizeof(place->status));
		pg_atomic_write_u64(&place->published, 0);
		pg_atomic_write_u64(&place->known_pending, 0);
		pg_atomic_write_u64(&place->read_up_to, 0);
		pg_atomic_write_u64(&place->oldest_pending, 0);
		pg_atomic_write_u64(&place->late_since, 0);
		outbox_meter_clear_counts(&place->counts);
	}
	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
	{
		database->subscriptions[i].id = 0;
		database->subscriptions[i].wanted = false;
	}
}

/*
 * The slot of a database, taken if it has none. ERROR when all slots belong
 * to others.
 */
OutboxDatabase *
outbox_shmem_claim(Oid dboid)
{
	OutboxDatabase *database = outbox_shmem_find(dboid);

	if (database != NULL)
		return database;

	LWLockAcquire(&outbox_shared->lock, LW_EXCLUSIVE);
	database = find_locked(dboid);
	if (database == NULL && (database = find_locked(InvalidOid)) != NULL)
	{
		reset_database(database);
		database->dboid = dboid;
	}
	LWLockRelease(&outbox_shared->lock);

	if (database == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many databases use the extension \"%s\"", OUTBOX_EXTENSION),
				 errdetail("All %d places are taken.", outbox_shared->database_count),
				 errhint("Raise \"outbox.max_databases\" and restart the server.")));
	return database;
}

/* Gives back the slot of a database that no longer exists; called by the launcher. */
void
outbox_shmem_free(Oid dboid)
{
	OutboxDatabase *database;

	LWLockAcquire(&outbox_shared->lock, LW_EXCLUSIVE);
	database = find_locked(dboid);
	if (database != NULL && !outbox_shmem_has_processes(database))
		database->dboid = InvalidOid;
	LWLockRelease(&outbox_shared->lock);
}

/* Whether any process serves the database, frozen ones included. */
bool
outbox_shmem_has_relays(OutboxDatabase *database)
{
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		if (pg_atomic_read_u32(&database->places[i].pid) != 0)
			return true;
	}
	return false;
}

/* The same, and cleaners, replayers and consumers. */
bool
outbox_shmem_has_processes(OutboxDatabase *database)
{
	for (int i = 0; i < OUTBOX_MAX_REPLAYERS; i++)
	{
		if (pg_atomic_read_u32(&database->replayers[i].pid) != 0)
			return true;
	}
	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
	{
		if (pg_atomic_read_u32(&database->subscriptions[i].pid) != 0)
			return true;
	}
	return outbox_shmem_has_relays(database) || pg_atomic_read_u32(&database->cleaner_pid) != 0;
}

/*
 * Wakes the relays of a database. Safe in commit callbacks: the latch of a
 * process that has gone belongs to another one by now, which is woken for
 * nothing.
 */
void
outbox_shmem_wake_relays(OutboxDatabase *database)
{
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		OutboxPlace *place = &database->places[i];

		if (pg_atomic_read_u32(&place->pid) != 0)
			SetLatch(outbox_proc_latch(pg_atomic_read_u32(&place->procno)));
	}
}

/* There may be a replay to begin or to cancel. Safe in commit callbacks, too. */
void
outbox_shmem_wake_replayers(OutboxDatabase *database)
{
	pg_atomic_fetch_add_u32(&database->replay_calls, 1);
	for (int i = 0; i < OUTBOX_MAX_REPLAYERS; i++)
	{
		if (pg_atomic_read_u32(&database->replayers[i].pid) != 0)
			SetLatch(outbox_proc_latch(pg_atomic_read_u32(&database->replayers[i].procno)));
	}
	outbox_shmem_wake_launcher();
}

/* The same for its consumers. */
void
outbox_shmem_wake_consumers(OutboxDatabase *database)
{
	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
	{
		OutboxSubscription *subscription = &database->subscriptions[i];

		if (pg_atomic_read_u32(&subscription->pid) != 0)
			SetLatch(outbox_proc_latch(pg_atomic_read_u32(&subscription->procno)));
	}
}

void
outbox_shmem_wake_launcher(void)
{
	if (pg_atomic_read_u32(&outbox_shared->launcher_pid) != 0)
		SetLatch(outbox_proc_latch(pg_atomic_read_u32(&outbox_shared->launcher_procno)));
}
