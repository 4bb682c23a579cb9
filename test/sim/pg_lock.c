/*
 * pg_lock.c
 *	  Locks: lightweight ones, heavyweight ones, those of transactions; with
 *	  deadlocks among the latter two.
 */
#include "pg.h"

/* ---------- lightweight locks ---------- */

#define LW_HELD UINT32_C(0x80000000)

typedef struct LWWish
{
	LWLock	   *lock;
	bool		exclusive;
} LWWish;

static bool
lwlock_is_free(void *arg)
{
	LWWish	   *wish = arg;
	uint32		state = wish->lock->state.value;

	return wish->exclusive ? state == 0 : (state & LW_HELD) == 0;
}

void
LWLockInitialize(LWLock *lock, int tranche_id)
{
	lock->state.value = 0;
}

int
LWLockNewTrancheId(void)
{
	return 100;
}

void
LWLockRegisterTranche(int tranche_id, const char *tranche_name)
{
}

bool
LWLockAcquire(LWLock *lock, LWLockMode mode)
{
	LWWish		wish = {lock, mode == LW_EXCLUSIVE};
	PgProcess  *pg;

	/* The start of the server runs in no process. */
	if (sim_self == NULL)
		return true;
	pg = sim_self->pg;
	for (int i = 0; i < pg->lwlock_count; i++)
	{
		if (pg->lwlocks[i] == lock)
			sim_fail("a process waits for a lock that it holds");
	}
	sim_maybe_pass();
	while (!lwlock_is_free(&wish))
		(void) sim_wait(lwlock_is_free, &wish, SIM_NEVER);
	lock->state.value = wish.exclusive ? LW_HELD : lock->state.value + 1;
	pg->lwlocks[pg->lwlock_count++] = lock;
	return true;
}

void
LWLockRelease(LWLock *lock)
{
	PgProcess  *pg = sim_self == NULL ? NULL : sim_self->pg;

	if (pg == NULL)
		return;
	for (int i = pg->lwlock_count; i-- > 0;)
	{
		if (pg->lwlocks[i] != lock)
			continue;
		pg->lwlocks[i] = pg->lwlocks[--pg->lwlock_count];
		lock->state.value = lock->state.value & LW_HELD ? 0 : lock->state.value - 1;
		return;
	}
	sim_fail("a process gives back a lock that it doesn't hold");
}

void
sim_release_lwlocks(void)
{
	while (sim_self->pg->lwlock_count > 0)
		LWLockRelease(sim_self->pg->lwlocks[sim_self->pg->lwlock_count - 1]);
}

/* A process never gives way with a spinlock. */
int
s_lock(volatile slock_t *lock, const char *file, int line, const char *func)
{
	sim_fail("a spinlock is held at %s:%d", file, line);
}

/* ---------- heavyweight locks ---------- */

typedef struct HeldLock
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	SimProc    *owner;
} HeldLock;

#define MAX_LOCKS 512
static HeldLock locks[MAX_LOCKS];
static int	lock_count;

void
sim_locks_reset(void)
{
	lock_count = 0;
}

/* Processes whose locks conflict. */
static uint64
holders(const LOCKTAG *tag, LOCKMODE mode)
{
	uint64		result = 0;

	for (int i = 0; i < lock_count; i++)
	{
		if (locks[i].owner != sim_self && memcmp(&locks[i].tag, tag, sizeof(LOCKTAG)) == 0 &&
			(mode == ExclusiveLock || locks[i].mode == ExclusiveLock))
			result |= UINT64CONST(1) << locks[i].owner->index;
	}
	return result;
}

/* Whether the running process waits, through others, for itself. */
static bool
is_deadlock(void)
{
	uint64		reached = sim_self->blockers;
	uint64		before;

	do
	{
		before = reached;
		for (int i = 0; i < SIM_PROCS; i++)
		{
			if (reached >> i & 1)
				reached |= sim_procs[i].blockers;
		}
	} while (reached != before);
	return reached >> sim_self->index & 1;
}

/* Asks again and again with pauses: who waits is not in a hurry. */
static void
wait_for_blockers(uint64 (*blockers)(const void *arg), const void *arg)
{
	int64		since = sim_now;

	while ((sim_self->blockers = blockers(arg)) != 0)
	{
		if (sim_now - since > SECOND && is_deadlock())
		{
			sim_self->blockers = 0;
			ereport(ERROR,
					(errcode(ERRCODE_T_R_DEADLOCK_DETECTED),
					 errmsg("deadlock detected")));
		}
		sim_pass(sim_now - since < 10 * MS ? sim_between(10, 500) : sim_between(MS, 20 * MS));
		CHECK_FOR_INTERRUPTS();
	}
}

typedef struct LockWish
{
	const LOCKTAG *tag;
	LOCKMODE	mode;
} LockWish;

static uint64
lock_blockers(const void *arg)
{
	const LockWish *wish = arg;

	return holders(wish->tag, wish->mode);
}

LockAcquireResult
LockAcquire(const LOCKTAG *locktag, LOCKMODE lockmode, bool sessionLock, bool dontWait)
{
	LockWish	wish = {locktag, lockmode};

	sim_maybe_pass();
	if (dontWait && lock_blockers(&wish) != 0)
		return LOCKACQUIRE_NOT_AVAIL;
	wait_for_blockers(lock_blockers, &wish);
	if (lock_count == MAX_LOCKS)
		sim_fail("more locks than the simulation has room for");
	locks[lock_count++] = (HeldLock) {*locktag, lockmode, sim_self};
	return LOCKACQUIRE_OK;
}

bool
LockRelease(const LOCKTAG *locktag, LOCKMODE lockmode, bool sessionLock)
{
	for (int i = 0; i < lock_count; i++)
	{
		if (locks[i].owner == sim_self && locks[i].mode == lockmode && memcmp(&locks[i].tag, locktag, sizeof(LOCKTAG)) == 0)
		{
			locks[i] = locks[--lock_count];
			return true;
		}
	}
	return false;
}

void
sim_release_locks(SimProc *proc)
{
	for (int i = lock_count; i-- > 0;)
	{
		if (locks[i].owner == proc)
			locks[i] = locks[--lock_count];
	}
}

void
LockRelationOid(Oid relid, LOCKMODE lockmode)
{
}

bool
ConditionalLockRelationOid(Oid relid, LOCKMODE lockmode)
{
	return true;
}

void
UnlockRelationOid(Oid relid, LOCKMODE lockmode)
{
}

/* ---------- locks of transactions ---------- */

static uint64
xact_blockers(const void *arg)
{
	const Xact *xact = arg;

	if (!xact->locked)
		return 0;
	/* A prepared one has no process: the last bit stands for it, and can't be in a circle. */
	return UINT64CONST(1) << (xact->owner == NULL ? 63 : xact->owner->index);
}

void
sim_wait_for_xact(Xact *xact)
{
	wait_for_blockers(xact_blockers, xact);
}
