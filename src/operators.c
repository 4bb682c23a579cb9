/*
 * operators.c
 *	  The C side of what operators call from SQL: telling relays of their
 *	  requests, and what only shared memory knows.
 */
#include "outbox.h"

#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "operators.h"

PG_FUNCTION_INFO_V1(outbox_tell_relays);
PG_FUNCTION_INFO_V1(outbox_tell_replayers);
PG_FUNCTION_INFO_V1(outbox_error_counts);

/* The current transaction has written requests or pauses. */
static bool tells_relays = false;

/* It has asked for a replay, or cancelled one. */
static bool tells_replayers = false;

/* outbox.tell_relays(): at commit, relays of this database look at what operators ask for. */
Datum
outbox_tell_relays(PG_FUNCTION_ARGS)
{
	tells_relays = true;
	PG_RETURN_VOID();
}

/* outbox.tell_replayers(): at commit, the launcher and replayers of this database look at what is to be replayed. */
Datum
outbox_tell_replayers(PG_FUNCTION_ARGS)
{
	outbox_shmem_require();
	tells_replayers = true;
	PG_RETURN_VOID();
}

static void
at_commit(void)
{
	OutboxDatabase *database = outbox_shmem_find(MyDatabaseId);

	if (database == NULL)
		return;
	if (tells_relays)
	{
		pg_atomic_fetch_add_u32(&database->requests, 1);
		outbox_shmem_wake_relays(database);
	}
	if (tells_replayers)
		outbox_shmem_wake_replayers(database);
}

/* Registered once per backend, in _PG_init of a preloaded library. */
void
outbox_operators_xact_callback(XactEvent event, void *arg)
{
	if (!tells_relays && !tells_replayers)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			at_commit();
			tells_relays = tells_replayers = false;
			break;
		case XACT_EVENT_ABORT:
			tells_relays = tells_replayers = false;
			break;
		case XACT_EVENT_PRE_PREPARE:
			/* COMMIT PREPARED calls nobody back, so nobody would tell the relays. */
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has redriven, discarded, paused, resumed or replayed outbox events"),
					 errhint("Use COMMIT.")));
			break;
		default:
			break;
	}
}

/* outbox.error_counts(): failures since the server started, by class. */
Datum
outbox_error_counts(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxDatabase *database = outbox_shared == NULL ? NULL : outbox_shmem_find(MyDatabaseId);

	InitMaterializedSRF(fcinfo, 0);
	for (int class = OUTBOX_ERROR_UNKNOWN; class < OUTBOX_ERROR_CLASSES; class ++)
	{
		Datum		values[2];
		bool		nulls[2] = {false};

		values[0] = CStringGetTextDatum(outbox_error_class_name(class));
		values[1] = Int64GetDatum(database == NULL ? 0 : (int64) pg_atomic_read_u64(&database->errors[class]));
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
	return (Datum) 0;
}
