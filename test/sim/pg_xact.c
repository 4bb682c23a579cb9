/*
 * pg_xact.c
 *	  Transactions, snapshots and flushes of the WAL, as a process sees them.
 */
#include "pg.h"

#include "access/subtrans.h"
#include "access/xlog.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/memutils.h"

XLogRecPtr	XactLastCommitEnd;

/* ---------- other transactions ---------- */

void
XactLockTableWait(TransactionId xid, Relation rel, ItemPointer ctid, XLTW_Oper oper)
{
	sim_wait_for_xact(sim_xact_find(xid));
}

#if PG_VERSION_NUM >= 180000
bool
ConditionalXactLockTableWait(TransactionId xid, bool logLockFailure)
#else
bool
ConditionalXactLockTableWait(TransactionId xid)
#endif
{
	return !sim_xact_find(xid)->locked;
}

bool
TransactionIdIsInProgress(TransactionId xid)
{
	const Xact *xact = sim_xact_find(xid);

	return xact->state == XACT_RUNNING || xact->state == XACT_PREPARED;
}

TransactionId
SubTransGetTopmostTransaction(TransactionId xid)
{
	return xid;
}

/* PostgreSQL forgets those that were flushed before they became visible. */
XLogRecPtr
TransactionIdGetCommitLSN(TransactionId xid)
{
	return sim_xact_find(xid)->lsn;
}

FullTransactionId
ReadNextFullTransactionId(void)
{
	return FullTransactionIdFromEpochAndXid(0, PG_UINT32_MAX);
}

/* ---------- the WAL ---------- */

void
XLogFlush(XLogRecPtr RecPtr)
{
	if ((int64) RecPtr <= sim_wal_flushed())
		return;
	sim_pass(sim_one_in(20) ? sim_between(MS, 20 * MS) : sim_between(50, 500));
	sim_wal_flush(RecPtr);
	sim_maybe_pass();
}

bool
XLogNeedsFlush(XLogRecPtr RecPtr)
{
	return (int64) RecPtr > sim_wal_flushed();
}

/* ---------- the own transaction ---------- */

Xact *
sim_pg_xact(void)
{
	PgProcess  *pg = sim_self->pg;

	if (!pg->in_transaction)
		sim_fail("something is written outside of transactions");
	if (pg->xact == NULL)
		pg->xact = sim_xact_start(sim_self);
	return pg->xact;
}

FullTransactionId
GetTopFullTransactionId(void)
{
	return FullTransactionIdFromEpochAndXid(0, sim_pg_xact()->xid);
}

FullTransactionId
GetTopFullTransactionIdIfAny(void)
{
	Xact	   *xact = sim_self->pg->xact;

	return xact == NULL ? InvalidFullTransactionId : FullTransactionIdFromEpochAndXid(0, xact->xid);
}

TransactionId
GetTopTransactionId(void)
{
	return sim_pg_xact()->xid;
}

void
SetCurrentStatementStartTimestamp(void)
{
}

void
StartTransactionCommand(void)
{
	PgProcess  *pg = sim_self->pg;

	if (pg->in_transaction)
		sim_fail("a transaction within a transaction");
	sim_maybe_pass();
	pg->in_transaction = true;
	pg->xact = NULL;
	CurrentMemoryContext = pg->transaction_context;
}

Snapshot
GetTransactionSnapshot(void)
{
	PgProcess  *pg = sim_self->pg;

	sim_maybe_pass();
	pg->view = sim_view(NULL);
	return &pg->snapshot;
}

void
PushActiveSnapshot(Snapshot snapshot)
{
	sim_self->pg->has_snapshot = true;
}

void
PopActiveSnapshot(void)
{
	sim_self->pg->has_snapshot = false;
}

Snapshot
GetActiveSnapshot(void)
{
	if (!sim_self->pg->has_snapshot)
		sim_fail("something is read without a snapshot");
	return &sim_self->pg->snapshot;
}

/* Only where a client's session does the publishing. */
Snapshot
GetLatestSnapshot(void)
{
	sim_fail("a relay takes a snapshot like a session");
}

/* READ COMMITTED: each statement that writes takes a snapshot of its own. */
View
sim_pg_view(void)
{
	return sim_view(sim_self->pg->xact);
}

static void
callbacks(XactEvent event)
{
	sim_self->image->feed_callback(event, NULL);
	sim_self->image->operators_callback(event, NULL);
}

static void
end_transaction(void)
{
	PgProcess  *pg = sim_self->pg;

	sim_release_locks(sim_self);
	pg->in_transaction = false;
	pg->has_snapshot = false;
	pg->commits_now = false;
	pg->xact = NULL;
	sim_self->blockers = 0;
	CurrentMemoryContext = TopMemoryContext;
	MemoryContextReset(pg->transaction_context);
}

void
ForceSyncCommit(void)
{
	sim_self->pg->commits_now = true;
}

/* Durable, visible, told to the callbacks, unlocked: in this order, and others act between. */
void
CommitTransactionCommand(void)
{
	PgProcess  *pg = sim_self->pg;
	Xact	   *xact = pg->xact;

	sim_pg_may_fail("COMMIT");
	sim_maybe_pass();
	if (xact != NULL)
	{
		xact->recorded = XACT_COMMITTED;
		xact->lsn = sim_wal_insert();
		if (!pg->commits_later || pg->commits_now)
			XLogFlush(xact->lsn);
		sim_maybe_pass();
		sim_xact_show(xact);
		XactLastCommitEnd = xact->lsn;
		sim_maybe_pass();
	}
	callbacks(XACT_EVENT_COMMIT);
	if (xact != NULL)
	{
		sim_maybe_pass();
		xact->locked = false;
		xact->owner = NULL;
	}
	end_transaction();
}

void
sim_pg_abort(void)
{
	PgProcess  *pg = sim_self->pg;

	if (!pg->in_transaction)
		return;
	sim_release_lwlocks();
	if (pg->xact != NULL)
	{
		sim_xact_abort(pg->xact);
		pg->xact->locked = true;
		pg->xact->owner = sim_self;
	}
	callbacks(XACT_EVENT_ABORT);
	if (pg->xact != NULL)
	{
		pg->xact->locked = false;
		pg->xact->owner = NULL;
	}
	end_transaction();
}

void
AbortCurrentTransaction(void)
{
	sim_pg_abort();
}

void
sim_pg_prepare(void)
{
	Xact	   *xact = sim_pg_xact();

	callbacks(XACT_EVENT_PRE_PREPARE);
	xact->recorded = XACT_PREPARED;
	xact->lsn = sim_wal_insert();
	XLogFlush(xact->lsn);
	sim_maybe_pass();
	xact->state = XACT_PREPARED;
	sim_maybe_pass();
	callbacks(XACT_EVENT_PREPARE);
	xact->owner = NULL;
	end_transaction();
}

/* COMMIT PREPARED or ROLLBACK PREPARED, in some session: nobody is called back. */
void
sim_pg_finish_prepared(Xact *xact, bool commit)
{
	/* Somebody else is at it. */
	if (xact->state != XACT_PREPARED || xact->recorded != XACT_PREPARED)
		return;
	xact->recorded = commit ? XACT_COMMITTED : XACT_ABORTED;
	xact->lsn = sim_wal_insert();
	XLogFlush(xact->lsn);
	if (commit)
		sim_xact_show(xact);
	else
		sim_xact_abort(xact);
	xact->locked = true;
	sim_maybe_pass();
	xact->locked = false;
}
