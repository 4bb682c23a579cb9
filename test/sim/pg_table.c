/*
 * pg_table.c
 *	  Tables and indexes: names, scans under a snapshot, rows.
 */
#include "table.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "commands/dbcommands.h"
#include "commands/extension.h"
#include "commands/sequence.h"
#include "executor/executor.h"
#include "funcapi.h"
#include "storage/bufmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/resowner.h"
#include "utils/tuplestore.h"

#include "log.h"

/* ---------- names ---------- */

Oid
get_namespace_oid(const char *nspname, bool missing_ok)
{
	return 2000;
}

Oid
get_extension_oid(const char *extname, bool missing_ok)
{
	return 2001;
}

char *
get_database_name(Oid dbid)
{
	return pstrdup("simulation");
}

Oid
get_relname_relid(const char *relname, Oid relnamespace)
{
	int			child;
	char		rest[32] = "";

	if (strcmp(relname, "position") == 0)
		return SIM_SEQUENCE;
	if (strcmp(relname, "id_key") == 0)
		return OID_ID_KEY;
	if (strcmp(relname, "ring") == 0)
		return OID_RING;
	/* standing.c isn't there to read it */
	if (strcmp(relname, "identity") == 0)
		return InvalidOid;
	if (strcmp(relname, "delivery") == 0)
		return OID_DELIVERY;
	if (strcmp(relname, "delivery_pkey") == 0)
		return OID_DELIVERY_POSITION;
	if (strcmp(relname, "delivery_aggregate") == 0)
		return OID_DELIVERY_AGGREGATE;
	if (sscanf(relname, "log_%d%31s", &child, rest) >= 1)
	{
		if (rest[0] == '\0')
			return OID_LOG + child;
		if (strcmp(rest, "_position") == 0)
			return OID_LOG_POSITION + child;
		return (strcmp(rest, "_event") == 0 ? OID_LOG_EVENT : OID_LOG_AGGREGATE) + child;
	}
	if (sscanf(relname, "ledger_%d%31s", &child, rest) >= 1)
		return child + (rest[0] == '\0' ? OID_LEDGER : OID_LEDGER_BUCKET);
	sim_fail("the simulation knows no relation \"%s\"", relname);
}

void
CacheRegisterRelcacheCallback(RelcacheCallbackFunction func, Datum arg)
{
}

bool		XactReadOnly = false;

bool
RecoveryInProgress(void)
{
	return false;
}

void
PreventCommandIfParallelMode(const char *cmdname)
{
}

int64
nextval_internal(Oid relid, bool check_permissions)
{
	return sim_sequence_next();
}

/* ---------- what src/ refers to and no process here calls ---------- */

SnapshotData SnapshotSelfData;
ResourceOwner CurrentResourceOwner;

Datum
DirectFunctionCall1Coll(PGFunction func, Oid collation, Datum arg1)
{
	sim_fail("a function is called that the simulation hasn't got");
}

Datum
uuid_out(PG_FUNCTION_ARGS)
{
	sim_fail("uuid_out() is called");
}

void
InitMaterializedSRF(FunctionCallInfo fcinfo, bits32 flags)
{
	sim_fail("InitMaterializedSRF() is called");
}

#if PG_VERSION_NUM >= 170000
void
tuplestore_putvalues(Tuplestorestate *state, TupleDesc tdesc, const Datum *values, const bool *isnull)
#else
void
tuplestore_putvalues(Tuplestorestate *state, TupleDesc tdesc, Datum *values, bool *isnull)
#endif
{
	sim_fail("tuplestore_putvalues() is called");
}

/* ---------- relations ---------- */

RelationData *
sim_relation(Oid relid)
{
	static RelationData relations[OID_LAST - OID_LOG];
	static TupleDesc descriptor;
	RelationData *result = &relations[relid - OID_LOG];

	if (relid < OID_LOG || relid >= OID_LAST)
		sim_fail("the simulation knows no relation %u", relid);
	if (descriptor == NULL)
	{
		/* No offset is known in advance, so each column is asked of nocachegetattr(). */
		descriptor = calloc(1, sizeof(TupleDescData) + LOG_COLUMNS * 256);
		descriptor->natts = LOG_COLUMNS;
		for (int i = 0; i < LOG_COLUMNS; i++)
#if PG_VERSION_NUM >= 180000
			TupleDescCompactAttr(descriptor, i)->attcacheoff = -1;
#else
			TupleDescAttr(descriptor, i)->attcacheoff = -1;
#endif
	}
	result->rd_id = relid;
	result->rd_att = descriptor;
	return result;
}

Relation
table_open(Oid relationId, LOCKMODE lockmode)
{
	sim_maybe_pass();
	return sim_relation(relationId);
}

void
table_close(Relation relation, LOCKMODE lockmode)
{
}

Relation
index_open(Oid relationId, LOCKMODE lockmode)
{
	return sim_relation(relationId);
}

void
index_close(Relation relation, LOCKMODE lockmode)
{
}

BlockNumber
RelationGetNumberOfBlocksInFork(Relation relation, ForkNumber forkNum)
{
	return sim_delivery_count();
}

/* ---------- rows ---------- */

static SimTuple *
make_tuple(TransactionId xmin)
{
	SimTuple   *result = palloc0(sizeof(SimTuple));

	result->tuple.t_data = &result->header;
	HeapTupleHeaderSetXmin(&result->header, xmin);
	HeapTupleHeaderSetNatts(&result->header, LOG_COLUMNS);
	return result;
}

HeapTuple
heap_copytuple(HeapTuple tuple)
{
	SimTuple   *copy = palloc(sizeof(SimTuple));

	*copy = *(SimTuple *) tuple;
	copy->tuple.t_data = &copy->header;
	return &copy->tuple;
}

Datum
nocachegetattr(HeapTuple tup, int attnum, TupleDesc tupleDesc)
{
	if (attnum > 4)
		sim_fail("the simulation has no column %d", attnum);
	return ((SimTuple *) tup)->columns[attnum - 1];
}

Datum
getmissingattr(TupleDesc tupleDesc, int attnum, bool *isnull)
{
	sim_fail("a column is missing");
}

Datum
heap_getsysattr(HeapTuple tup, int attnum, TupleDesc tupleDesc, bool *isnull)
{
	sim_fail("a system column");
}

void		heap_datum_check(HeapTupleHeader header, TupleDesc tupleDesc);

void
heap_datum_check(HeapTupleHeader header, TupleDesc tupleDesc)
{
}

SimTuple *
sim_log_tuple(const Row *row)
{
	SimTuple   *result = make_tuple(row->xact->xid);

	result->row = row;
	result->columns[LOG_POSITION - 1] = Int64GetDatum(row->position);
	result->columns[LOG_AGG_HASH - 1] = Int64GetDatum((int64) row->hash);
	return result;
}

/* ---------- index scans ---------- */

void
ScanKeyInit(ScanKey entry, AttrNumber attributeNumber, StrategyNumber strategy, RegProcedure procedure, Datum argument)
{
	entry->sk_attno = attributeNumber;
	entry->sk_strategy = strategy;
	entry->sk_argument = argument;
}

static void
narrow(SimScan *scan, const ScanKeyData *key, int position_column)
{
	int64		value = DatumGetInt64(key->sk_argument);

	if (key->sk_attno != position_column)
	{
		scan->by_aggregate = true;
		scan->hash = (uint64) value;
		return;
	}
	if (key->sk_strategy >= BTEqualStrategyNumber)
		scan->low = Max(scan->low, value + (key->sk_strategy == BTGreaterStrategyNumber));
	if (key->sk_strategy <= BTEqualStrategyNumber)
		scan->high = Min(scan->high, value - (key->sk_strategy == BTLessStrategyNumber));
}

SimScan *
sim_begin_scan(const View *view, const ScanKeyData *keys, int nkeys, int position_column)
{
	SimScan    *scan = palloc0(sizeof(SimScan));

	scan->view = *view;
	scan->high = PG_INT64_MAX;
	scan->direction = ForwardScanDirection;
	for (int i = 0; i < nkeys; i++)
		narrow(scan, &keys[i], position_column);
	return scan;
}

/* The next row of the log, from the last position on. */
Row *
sim_next_row(SimScan *scan)
{
	bool		forward = scan->direction == ForwardScanDirection;
	int64		from = scan->last == 0 ? scan->low : scan->last + 1;
	int64		to = scan->last == 0 ? scan->high : scan->last - 1;
	Row		  **rows = NULL;
	int			count = sim_log_count();
	int			i;

	if (!forward)
		from = to == PG_INT64_MAX ? to : to + 1;
	i = scan->by_aggregate ? sim_log_search_aggregate(scan->hash, from, &rows, &count) : sim_log_search(from);
	for (i -= !forward; i >= 0 && i < count; i += forward ? 1 : -1)
	{
		Row		   *row = rows != NULL ? rows[i] : sim_log_at(i);

		if (row->position < scan->low || row->position > scan->high)
			return NULL;
		scan->last = row->position;
		if (scan->dirty != NULL)
		{
			if (row->xact->state == XACT_ABORTED)
				continue;
			scan->dirty->xmin = row->xact->state == XACT_COMMITTED ? InvalidTransactionId : row->xact->xid;
			return row;
		}
		if (sim_sees(&scan->view, row->xact))
			return row;
	}
	return NULL;
}

static Delivery *
next_delivery(SimScan *scan, const Version **version)
{
	for (int i = 0; i < sim_delivery_count(); i++)
	{
		Delivery   *delivery = sim_delivery_at(i);

		if (delivery->position < scan->low || delivery->position > scan->high || delivery->position <= scan->last ||
			(scan->by_aggregate && delivery->hash != scan->hash))
			continue;
		scan->last = delivery->position;
		*version = sim_delivery_see(delivery, &scan->view);
		/* The index on aggregates leaves out what is published. */
		if (*version != NULL && !(scan->by_aggregate && (*version)->state == DELIVERY_DONE))
			return delivery;
	}
	return NULL;
}

/* Only where the library isn't preloaded. */
SysScanDesc
systable_beginscan(Relation heapRelation, Oid indexId, bool indexOK, Snapshot snapshot, int nkeys, ScanKey key)
{
	sim_fail("systable_beginscan() is called");
}

HeapTuple
systable_getnext(SysScanDesc sysscan)
{
	sim_fail("systable_getnext() is called");
}

void
systable_endscan(SysScanDesc sysscan)
{
}

SysScanDesc
systable_beginscan_ordered(Relation heapRelation, Relation indexRelation, Snapshot snapshot, int nkeys, ScanKey key)
{
	bool		dirty = snapshot != GetActiveSnapshot();
	SimScan    *scan = sim_begin_scan(&sim_self->pg->view, key, nkeys, DELIVERY_POSITION);

	StaticAssertStmt((int) DELIVERY_POSITION == (int) LOG_POSITION, "one function reads both tables");
	scan->base.heap_rel = heapRelation;
	if (dirty)
		scan->dirty = snapshot;
	return &scan->base;
}

HeapTuple
systable_getnext_ordered(SysScanDesc sysscan, ScanDirection direction)
{
	SimScan    *scan = (SimScan *) sysscan;
	const Version *version;
	const Delivery *delivery;
	const Row  *row;

	if (scan->base.heap_rel->rd_id != OID_DELIVERY)
	{
		row = sim_next_row(scan);
		return row == NULL ? NULL : &sim_log_tuple(row)->tuple;
	}
	delivery = next_delivery(scan, &version);
	if (delivery == NULL)
		return NULL;
	scan->tuple = make_tuple(version->xact->xid);
	scan->tuple->columns[DELIVERY_POSITION - 1] = Int64GetDatum(delivery->position);
	scan->tuple->columns[DELIVERY_AGG_HASH - 1] = Int64GetDatum((int64) delivery->hash);
	scan->tuple->columns[DELIVERY_STATE - 1] = CharGetDatum(version->state);
	scan->tuple->columns[DELIVERY_ATTEMPTS - 1] = Int32GetDatum(version->attempts);
	return &scan->tuple->tuple;
}

void
systable_endscan_ordered(SysScanDesc sysscan)
{
}
