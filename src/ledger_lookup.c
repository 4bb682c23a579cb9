/*
 * ledger_lookup.c
 *	  outbox.settled_at(position): since when a position is recorded in the
 *	  ledger, for the view outbox.events.
 *
 * The ledger has few rows for many positions, so a bucket of 1,024 positions
 * is read once and kept for the calls that follow, which a scan of the view
 * makes in position order.
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
#include "log.h"
#include "tracker.h"

PG_FUNCTION_INFO_V1(outbox_settled_at);

/* One bucket as one snapshot sees it; lives as long as the calling expression. */
typedef struct Bucket
{
	bool		valid;
	int64		number;
	uint64		completions;	/* these three tell snapshots apart */
	TransactionId xmax;
	CommandId	curcid;
	TimestampTz settled_at[OUTBOX_BUCKET_SIZE]; /* DT_NOEND: not settled */
} Bucket;

static bool
is_current(const Bucket *bucket, int64 number, Snapshot snapshot)
{
	return bucket->valid && bucket->number == number &&
		bucket->completions == snapshot->snapXactCompletionCount &&
		bucket->xmax == snapshot->xmax && bucket->curcid == snapshot->curcid;
}

static void
apply_row(Bucket *bucket, HeapTuple tuple, TupleDesc desc)
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
load(Bucket *bucket, int64 number, Snapshot snapshot)
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

/* outbox.settled_at(position bigint) RETURNS timestamptz, NULL when it isn't settled. */
Datum
outbox_settled_at(PG_FUNCTION_ARGS)
{
	int64		position = PG_GETARG_INT64(0);
	int64		number = position >> OUTBOX_BUCKET_SHIFT;
	Snapshot	snapshot = GetActiveSnapshot();
	Bucket	   *bucket = fcinfo->flinfo->fn_extra;
	TimestampTz result;

	if (bucket == NULL)
	{
		bucket = MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(Bucket));
		bucket->valid = false;
		fcinfo->flinfo->fn_extra = bucket;
	}
	if (!is_current(bucket, number, snapshot))
		load(bucket, number, snapshot);
	result = bucket->settled_at[position & (OUTBOX_BUCKET_SIZE - 1)];
	if (result == DT_NOEND)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(result);
}
