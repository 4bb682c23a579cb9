/*
 * ledger_lookup.c
 *	  Since when a position is recorded in the ledger: outbox.settled_at(position)
 *	  for the view outbox.events, and the same for readers in C.
 *
 * The ledger has few rows for many positions, so a bucket of 1,024 positions
 * is read once and kept for the calls that follow, which a scan of the view
 * or of the log makes in position order.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "fmgr.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "database.h"
#include "ledger_lookup.h"
#include "log.h"
#include "tracker.h"

PG_FUNCTION_INFO_V1(outbox_settled_at);

struct OutboxLedgerBucket
{
	bool		valid;
	int64		number;
	uint64		completions;	/* these three tell snapshots apart */
	TransactionId xmax;
	CommandId	curcid;
	TimestampTz settled_at[OUTBOX_BUCKET_SIZE]; /* DT_NOEND: not settled */
};

static bool
is_current(const OutboxLedgerBucket *bucket, int64 number, Snapshot snapshot)
{
	return bucket->valid && bucket->number == number &&
		bucket->completions == snapshot->snapXactCompletionCount &&
		bucket->xmax == snapshot->xmax && bucket->curcid == snapshot->curcid;
}

static void
apply_row(OutboxLedgerBucket *bucket, HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;
	TimestampTz at = DatumGetTimestampTz(heap_getattr(tuple, LEDGER_SETTLED_AT, desc, &isnull));
	int			lo = DatumGetInt16(heap_getattr(tuple, LEDGER_LO, desc, &isnull));
	int			hi = DatumGetInt16(heap_getattr(tuple, LEDGER_HI, desc, &isnull));
	Datum		bits = heap_getattr(tuple, LEDGER_BITS, desc, &isnull);
	const char *bytes = isnull ? NULL : VARDATA_ANY(DatumGetByteaPP(bits));

	for (int n = 0; n <= hi - lo; n++)
	{
		if (bytes == NULL || (bytes[n / 8] & (1 << (n % 8))) != 0)
			bucket->settled_at[lo + n] = Min(bucket->settled_at[lo + n], at);
	}
}

static void
load(OutboxLedgerBucket *bucket, int64 number, Snapshot snapshot)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	ScanKeyData key;

	bucket->valid = false;
	for (int i = 0; i < OUTBOX_BUCKET_SIZE; i++)
		bucket->settled_at[i] = DT_NOEND;

	ScanKeyInit(&key, LEDGER_BUCKET, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(number));
	for (int child = 0; child < OUTBOX_CHILDREN; child++)
	{
		Relation	ledger = table_open(catalog->ledger[child], AccessShareLock);
		Relation	index = index_open(catalog->ledger_bucket[child], AccessShareLock);
		SysScanDesc scan = systable_beginscan_ordered(ledger, index, snapshot, 1, &key);
		HeapTuple	tuple;

		while ((tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
			apply_row(bucket, tuple, RelationGetDescr(ledger));
		systable_endscan_ordered(scan);
		index_close(index, AccessShareLock);
		table_close(ledger, AccessShareLock);
	}

	bucket->number = number;
	bucket->completions = snapshot->snapXactCompletionCount;
	bucket->xmax = snapshot->xmax;
	bucket->curcid = snapshot->curcid;
	bucket->valid = true;
}

OutboxLedgerBucket *
outbox_ledger_bucket_create(MemoryContext context)
{
	OutboxLedgerBucket *bucket = MemoryContextAlloc(context, sizeof(OutboxLedgerBucket));

	bucket->valid = false;
	return bucket;
}

TimestampTz
outbox_ledger_settled_at(OutboxLedgerBucket *bucket, int64 position)
{
	int64		number = position >> OUTBOX_BUCKET_SHIFT;
	Snapshot	snapshot = GetActiveSnapshot();

	if (!is_current(bucket, number, snapshot))
		load(bucket, number, snapshot);
	return bucket->settled_at[position & (OUTBOX_BUCKET_SIZE - 1)];
}

/* outbox.settled_at(position bigint) RETURNS timestamptz, NULL when it isn't settled. The bucket lives as long as the calling expression. */
Datum
outbox_settled_at(PG_FUNCTION_ARGS)
{
	TimestampTz result;

	if (fcinfo->flinfo->fn_extra == NULL)
		fcinfo->flinfo->fn_extra = outbox_ledger_bucket_create(fcinfo->flinfo->fn_mcxt);
	result = outbox_ledger_settled_at(fcinfo->flinfo->fn_extra, PG_GETARG_INT64(0));
	if (result == DT_NOEND)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(result);
}
