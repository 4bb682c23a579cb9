/*
 * inbox.c
 *	  What the library does for the inbox, which is SQL otherwise: tells the
 *	  launcher that there is one, and sweeps it.
 *
 * A sweep goes through the table's pages from the first to the last, so many in
 * a transaction, and deletes what is old. No index is kept for that; what it
 * costs to read all pages now and then is less than what each event would pay.
 * It may be stopped anywhere, and the next one begins anew.
 */
#include "inbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"

#include "database.h"
#include "worker.h"

PG_FUNCTION_INFO_V1(outbox_note_inbox);

/* A step of a sweep; with some ten thousand rows to delete it takes a fraction of a second. */
#define SWEEP_PAGES 256
/* The machine is also for others. */
#define SWEEP_PAUSE_MS 10

/* The current transaction has set a retention. */
static bool sweep_at_commit = false;

/* outbox.note_inbox(now boolean) */
Datum
outbox_note_inbox(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database;

	if (outbox_shared == NULL)
		PG_RETURN_VOID();
	database = outbox_database_attach(outbox_database_catalog(false));
	if (pg_atomic_read_u32(&database->inbox_used) == 0)
		pg_atomic_write_u32(&database->inbox_used, 1);
	if (PG_GETARG_BOOL(0))
		sweep_at_commit = true;
	PG_RETURN_VOID();
}

/* Registered once per backend, in _PG_init of a preloaded library. After COMMIT PREPARED the sweep comes when it would have come anyway. */
void
outbox_inbox_xact_callback(XactEvent event, void *arg)
{
	OutboxDatabase *database;

	if (!sweep_at_commit)
		return;
	if (event == XACT_EVENT_COMMIT && (database = outbox_shmem_find(MyDatabaseId)) != NULL)
	{
		pg_atomic_write_u64(&database->inbox_clean_at, 1);
		outbox_shmem_wake_launcher();
	}
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT || event == XACT_EVENT_PREPARE)
		sweep_at_commit = false;
}

/* Runs a query of one row; column 1 or 2 as an integer. */
static int64
number(int column)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, column, &isnull);

	return SPI_gettypeid(SPI_tuptable->tupdesc, column) == INT8OID ? DatumGetInt64(value) : DatumGetInt32(value);
}

/* One step. False: the extension is gone. */
static bool
sweep_pages(const OutboxRetention *retention, int64 first)
{
	Oid			types[2] = {INT8OID, INT4OID};
	Datum		values[2] = {Int64GetDatum(first), Int32GetDatum(SWEEP_PAGES)};

	if (!outbox_retire_begin(retention))
		return false;
	if (SPI_execute_with_args("SELECT outbox.inbox_sweep($1, $2)", 2, types, values, NULL, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not sweep the inbox");
	outbox_retire_commit();
	return true;
}

void
outbox_inbox_sweep(const OutboxRetention *retention)
{
	OutboxDatabase *database = retention->database;
	int64		pages;
	int64		again;

	/* Who accepts something from here on sets it. */
	pg_atomic_write_u32(&database->inbox_used, 0);
	pg_memory_barrier();
	if (!outbox_retire_begin(retention))
		return;
	if (SPI_execute("SELECT pages, again_after FROM outbox.inbox_sweep_plan()", true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not plan a sweep of the inbox");
	pages = number(1);
	again = number(2);
	outbox_retire_commit();
	if (pages > 0)
		pg_atomic_write_u32(&database->inbox_used, 1);

	for (int64 page = 0; page < pages; page += SWEEP_PAGES)
	{
		if (!sweep_pages(retention, page))
			return;
		outbox_worker_pause(SWEEP_PAUSE_MS, PG_WAIT_EXTENSION);
	}
	pg_atomic_write_u64(&database->inbox_clean_at, GetCurrentTimestamp() + again * INT64CONST(1000000));
}
