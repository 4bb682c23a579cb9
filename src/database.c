/*
 * database.c
 *	  Finds the extension's objects in the current database, and prepares the
 *	  database's slot in shared memory on first use after a start.
 *
 * "Prepares" means: max_assigned is set from the sequence, the state of the
 * log's children from the ring table, and what prepared transactions held before the
 * restart (aggregate keys, positions) is found again by a scan of the log's
 * uncommitted rows. Whoever comes first does it, enqueue or relay; the others
 * wait for a heavyweight lock meanwhile.
 */
#include "database.h"

#include "access/genam.h"
#include "access/subtrans.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "commands/extension.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/snapmgr.h"

#include "aggregate_lock.h"
#include "feed.h"
#include "log.h"
#include "ownership.h"
#include "ring.h"

/* In pg_locks: locktype advisory, objsubid 102. */
#define LOCK_CLASS_PREPARE_DATABASE 102

static OutboxCatalog catalog;
static bool catalog_valid = false;

static void
invalidate(Datum arg, Oid relid)
{
	if (relid == InvalidOid || relid == catalog.sequence || relid == catalog.id_key)
		catalog_valid = false;
}

static Oid
relation_named(Oid schema, const char *format, int child)
{
	char		name[NAMEDATALEN];

	snprintf(name, sizeof(name), format, child);
	return get_relname_relid(name, schema);
}

/*
 * The objects' oids, from a cache that follows DROP and CREATE EXTENSION.
 * Without the extension: NULL, or ERROR unless missing_ok. Needs a transaction.
 */
const OutboxCatalog *
outbox_database_catalog(bool missing_ok)
{
	static bool registered = false;
	Oid			schema;

	if (catalog_valid)
		return &catalog;

	if (!registered)
	{
		CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
		registered = true;
	}

	schema = get_namespace_oid(OUTBOX_SCHEMA, true);
	catalog.sequence = InvalidOid;
	if (OidIsValid(schema) && OidIsValid(get_extension_oid(OUTBOX_EXTENSION, true)))
		catalog.sequence = relation_named(schema, "position", 0);
	if (!OidIsValid(catalog.sequence))
	{
		if (missing_ok)
			return NULL;
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" is not installed in this database", OUTBOX_EXTENSION),
				 errhint("Run CREATE EXTENSION %s. See docs/failures.md, \"Extension not installed\".", OUTBOX_EXTENSION)));
	}
	catalog.id_key = relation_named(schema, "id_key", 0);
	for (int i = 0; i < OUTBOX_CHILDREN; i++)
	{
		catalog.log[i] = relation_named(schema, "log_%d", i);
		catalog.log_position[i] = relation_named(schema, "log_%d_position", i);
		catalog.log_event[i] = relation_named(schema, "log_%d_event", i);
		catalog.log_aggregate[i] = relation_named(schema, "log_%d_aggregate", i);
		catalog.ledger[i] = relation_named(schema, "ledger_%d", i);
		catalog.ledger_bucket[i] = relation_named(schema, "ledger_%d_bucket", i);
	}
	catalog.ring = relation_named(schema, "ring", 0);
	catalog.identity = relation_named(schema, "identity", 0);
	catalog.delivery = relation_named(schema, "delivery", 0);
	catalog.delivery_position = relation_named(schema, "delivery_pkey", 0);
	catalog.delivery_aggregate = relation_named(schema, "delivery_aggregate", 0);
	catalog.generation++;
	catalog_valid = true;
	return &catalog;
}

static const OutboxCatalog *
lock_in_mode(LOCKMODE mode)
{
	const OutboxCatalog *objects = outbox_database_catalog(true);
	Oid			sequence;

	if (objects == NULL)
		return NULL;
	sequence = objects->sequence;
	LockRelationOid(sequence, mode);
	/* Waiting for the lock has told us of what happened meanwhile. */
	objects = outbox_database_catalog(true);
	return objects != NULL && objects->sequence == sequence ? objects : NULL;
}

/*
 * Keeps the extension from being dropped until the end of the transaction,
 * and so its names from meaning the tables of a new one. NULL: it is gone, or
 * going.
 */
const OutboxCatalog *
outbox_database_lock(void)
{
	return lock_in_mode(AccessShareLock);
}

/*
 * The same for those who write: in the mode of nextval(), before all other locks.
 * Who drops or updates the extension asks for this lock first as well
 * (give_way.c), so they wait for each other and don't deadlock. ERROR without the
 * extension.
 */
const OutboxCatalog *
outbox_database_lock_to_write(void)
{
	const OutboxCatalog *objects;

	while ((objects = lock_in_mode(RowExclusiveLock)) == NULL)
		(void) outbox_database_catalog(false);
	return objects;
}

/*
 * Whatever ALTER DATABASE or ALTER ROLE set as defaults must not reach our
 * few statements. For processes of ours.
 */
void
outbox_database_pin_session(void)
{
	static const char *const settings[][2] = {
		{"role", "none"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"statement_timeout", "0"},
		{"lock_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"search_path", "pg_catalog, pg_temp"},
		{"row_security", "off"},
		{"session_replication_role", "origin"},
		{"synchronous_commit", "off"},
		{"enable_indexscan", "on"},
		{"enable_seqscan", "on"},
		{"enable_hashjoin", "on"},
		{"enable_nestloop", "on"},
		{"max_parallel_workers_per_gather", "0"},
		{"jit", "off"},
	};

	for (int i = 0; i < lengthof(settings); i++)
		SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
}

/* One bigint from a query that returns at most one row; 0 for no row or NULL. */
static int64
query_int64(const char *query)
{
	int64		result = 0;
	bool		isnull;

	if (SPI_execute(query, true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not run \"%s\"", query);
	if (SPI_processed > 0)
	{
		Datum		value = SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull);

		if (!isnull)
			result = DatumGetInt64(value);
	}
	return result;
}

/* Everything at or below it is terminal. Inside SPI_connect. */
int64
outbox_database_watermark(void)
{
	return query_int64("SELECT max(position) FROM outbox.watermark");
}

/* The full id of a 32-bit id that is in progress. */
static FullTransactionId
full_xid(TransactionId xid)
{
	FullTransactionId next = ReadNextFullTransactionId();
	uint32		epoch = EpochFromFullTransactionId(next);

	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

/* Prepared transactions of this database, as a palloc'd array. Inside SPI_connect. */
static TransactionId *
prepared_xids(int *count)
{
	const char *query = "SELECT transaction FROM pg_catalog.pg_prepared_xacts"
						" WHERE database = pg_catalog.current_database()";
	TransactionId *xids;

	if (SPI_execute(query, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read pg_prepared_xacts");
	*count = (int) SPI_processed;
	xids = palloc(sizeof(TransactionId) * (*count + 1));
	for (int i = 0; i < *count; i++)
	{
		bool		isnull;

		xids[i] = DatumGetTransactionId(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
	}
	return xids;
}

/* Restores keys and positions of prepared transactions from one log child's uncommitted rows. */
static void
restore_from_child(OutboxDatabase *database, int child, int64 watermark, const TransactionId *xids, int xid_count)
{
	Relation	log = table_open(catalog.log[child], AccessShareLock);
	Relation	index = index_open(catalog.log_position[child], AccessShareLock);
	SnapshotData dirty;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	InitDirtySnapshot(dirty);
	ScanKeyInit(&key, LOG_POSITION, BTGreaterStrategyNumber, F_INT8GT, Int64GetDatum(watermark));
	scan = systable_beginscan_ordered(log, index, &dirty, 1, &key);
	while ((tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		TransactionId top;
		bool		isnull;

		CHECK_FOR_INTERRUPTS();
		if (!TransactionIdIsValid(dirty.xmin))
			continue;			/* committed */
		top = SubTransGetTopmostTransaction(dirty.xmin);
		for (int i = 0; i < xid_count; i++)
		{
			if (xids[i] != top)
				continue;
			outbox_aggregate_lock_restore(
				(uint64) DatumGetInt64(heap_getattr(tuple, LOG_AGG_HASH, RelationGetDescr(log), &isnull)), full_xid(top));
			outbox_feed_restore_prepared(
				database, full_xid(top),
				DatumGetInt64(heap_getattr(tuple, LOG_POSITION, RelationGetDescr(log), &isnull)));
			break;
		}
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(log, AccessShareLock);
}

/*
 * The work described in the head comment; not anew: the part of it that tables say,
 * in the middle of the slot's life. As superuser, because the caller
 * may lack all rights; so with a search_path that the caller can't choose.
 */
static void
prepare_slot(OutboxDatabase *database, bool anew)
{
	Oid			save_user;
	int			save_context;
	int			guc_level = NewGUCNestLevel();
	TransactionId *xids;
	int			xid_count = 0;
	int64		assigned;

	GetUserIdAndSecContext(&save_user, &save_context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID,
						   save_context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");

	if (query_int64("SELECT seqcache FROM pg_catalog.pg_sequence WHERE seqrelid = 'outbox.position'::pg_catalog.regclass") != 1)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence outbox.position has a cache"),
				 errdetail("Positions drawn ahead would break the order of an aggregate's events."),
				 errhint("Run ALTER SEQUENCE outbox.position CACHE 1.")));
	assigned = query_int64("SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM outbox.position");
	/* Another extension's life may have left a higher value: set, don't raise. */
	if (anew)
		pg_atomic_write_u64(&database->max_assigned, assigned);
	else
		outbox_feed_raise_max_assigned(database, assigned);
	outbox_ring_load(database);

	xids = anew ? prepared_xids(&xid_count) : NULL;
	if (xid_count > 0)
	{
		int64		watermark = outbox_database_watermark();

		for (int child = 0; child < OUTBOX_CHILDREN; child++)
			restore_from_child(database, child, watermark, xids, xid_count);
	}

	SPI_finish();
	AtEOXact_GUC(false, guc_level);
	SetUserIdAndSecContext(save_user, save_context);
}

/* What a restore or outbox.arm() has changed of all that; only those who came first know of the rest. */
static void
refresh(OutboxDatabase *database)
{
	PushActiveSnapshot(GetLatestSnapshot());
	prepare_slot(database, false);
	PopActiveSnapshot();
}

/*
 * This database's slot, ready for use; NULL when the library isn't preloaded.
 * Needs a transaction and an active snapshot.
 */
OutboxDatabase *
outbox_database_attach(const OutboxCatalog *objects)
{
	OutboxDatabase *database;
	LOCKTAG		tag;
	uint32		refreshing = 2;

	if (outbox_shared == NULL)
		return NULL;
	database = outbox_shmem_claim(MyDatabaseId);
	if (pg_atomic_read_u32(&database->ready_for) == objects->sequence && pg_atomic_read_u32(&database->stale) == 0)
	{
		pg_read_barrier();
		return database;
	}

	SET_LOCKTAG_ADVISORY(tag, MyDatabaseId, 0, 0, LOCK_CLASS_PREPARE_DATABASE);
	(void) LockAcquire(&tag, ExclusiveLock, false, false);
	/* Whoever loads more from here on says so again; the others wait until this is done. */
	if (pg_atomic_read_u32(&database->stale) != 0)
	{
		pg_atomic_write_u32(&database->stale, refreshing);
		if (pg_atomic_read_u32(&database->ready_for) == objects->sequence)
			refresh(database);
		(void) pg_atomic_compare_exchange_u32(&database->stale, &refreshing, 0);
	}
	if (pg_atomic_read_u32(&database->ready_for) != objects->sequence)
	{
		prepare_slot(database, true);
		outbox_ownership_reset(database);
		pg_atomic_write_u64(&database->clean_at, 0);
		/* A cleaner finds out. */
		pg_atomic_write_u64(&database->inbox_clean_at, 0);
		pg_atomic_write_u32(&database->inbox_used, 1);
		pg_atomic_write_u32(&database->subscriptions_read, 0);
		pg_write_barrier();
		pg_atomic_write_u32(&database->ready_for, objects->sequence);
	}
	LockRelease(&tag, ExclusiveLock, false);
	return database;
}
