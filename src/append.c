/*
 * append.c
 *	  Adds events to the log, in the order of steps that PROTOCOL asks for: top
 *	  transaction id, all keys of the call, bound, position, row.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "common/hashfn.h"
#include "executor/executor.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "tcop/utility.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/snapmgr.h"

#include "aggregate_lock.h"
#include "backlog.h"
#include "database.h"
#include "encode.h"
#include "event.h"
#include "event_id.h"
#include "feed.h"
#include "guard.h"
#include "log.h"
#include "ring.h"
#include "writer.h"

/* Part of the stored format: agg_hash of rows in the log was made with them. */
#define HASH_SEED_AGGREGATE UINT64CONST(0x6F7574626F782D61)
#define HASH_SEED_EVENT_ID UINT64CONST(0x6F7574626F782D65)

struct OutboxAppend
{
	const OutboxCatalog *catalog;
	OutboxDatabase *database;	/* NULL: not preloaded */
	OutboxOnConflict on_conflict;
	OutboxWriter writer;
};

typedef struct Key
{
	uint64		key;
	int			event;			/* number of one that asks for it */
	bool		is_event_id;
} Key;

/* To tell whom a key belongs to, when somebody waits for it. */
typedef struct KeyContext
{
	const Key  *keys;
	OutboxNameEvent name_event;
	void	   *arg;
} KeyContext;

static uint64
hash_text(const char *text, int len, uint64 seed)
{
	return hash_bytes_extended((const unsigned char *) text, len, seed);
}

static uint64
aggregate_hash(const char *type, int type_len, const char *id, int id_len)
{
	return hash_text(id, id_len, hash_text(type, type_len, HASH_SEED_AGGREGATE));
}

/* The agg_hash of an aggregate. */
uint64
outbox_append_hash(const char *aggregate_type, const char *aggregate_id)
{
	return aggregate_hash(aggregate_type, strlen(aggregate_type), aggregate_id, strlen(aggregate_id));
}

PG_FUNCTION_INFO_V1(outbox_aggregate_hash);

/* outbox.aggregate_hash(aggregate_type text, aggregate_id text) RETURNS bigint */
Datum
outbox_aggregate_hash(PG_FUNCTION_ARGS)
{
	text	   *type = PG_GETARG_TEXT_PP(0);
	text	   *id = PG_GETARG_TEXT_PP(1);

	PG_RETURN_INT64((int64) aggregate_hash(VARDATA_ANY(type), VARSIZE_ANY_EXHDR(type),
										   VARDATA_ANY(id), VARSIZE_ANY_EXHDR(id)));
}

static int
compare_keys(const void *a, const void *b)
{
	uint64		left = ((const Key *) a)->key;
	uint64		right = ((const Key *) b)->key;

	return left < right ? -1 : left > right;
}

static const char *
describe_key(void *arg, int index)
{
	const KeyContext *context = arg;
	const Key  *key = &context->keys[index];
	OutboxEventName name;

	context->name_event(context->arg, key->event, &name);
	if (key->is_event_id)
		return psprintf("event_id \"%s\"", DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(name.event_id))));
	return psprintf("events of aggregate \"%.*s\" of type \"%.*s\"", name.aggregate_id_len, name.aggregate_id,
					name.aggregate_type_len, name.aggregate_type);
}

/*
 * Locks the aggregates of all events, and the event_ids that the caller gave,
 * so that of two transactions with the same event_id the second sees what the
 * first did. Sorted and distinct. Whether any event_id was given.
 */
static bool
lock_keys(int count, OutboxNameEvent name_event, void *arg)
{
	Key		   *keys = palloc_extended(sizeof(Key) * count * 2, MCXT_ALLOC_HUGE);
	uint64	   *values = palloc_extended(sizeof(uint64) * count * 2, MCXT_ALLOC_HUGE);
	KeyContext	context = {keys, name_event, arg};
	int			key_count = 0;
	int			distinct = 0;
	bool		ids = false;

	for (int i = 0; i < count; i++)
	{
		OutboxEventName name;

		name_event(arg, i, &name);
		keys[key_count++] = (Key) {aggregate_hash(name.aggregate_type, name.aggregate_type_len,
												  name.aggregate_id, name.aggregate_id_len),
								   i, false};
		ids |= name.event_id != NULL;
		if (name.event_id != NULL)
			keys[key_count++] = (Key) {hash_bytes_extended(name.event_id->data, UUID_LEN, HASH_SEED_EVENT_ID), i, true};
	}
	if (key_count > 1)
		qsort(keys, key_count, sizeof(Key), compare_keys);
	for (int i = 0; i < key_count; i++)
	{
		if (distinct > 0 && values[distinct - 1] == keys[i].key)
			continue;
		keys[distinct] = keys[i];
		values[distinct++] = keys[i].key;
	}
	outbox_aggregate_lock_acquire(values, distinct, describe_key, &context);
	pfree(values);
	pfree(keys);
	return ids;
}

/* Whether a row that the index finds by the key has the event_id. */
static bool
finds_event_id(Oid log_oid, Oid index_oid, ScanKey key, const pg_uuid_t *event_id)
{
	Relation	log = table_open(log_oid, NoLock);
	Relation	index = index_open(index_oid, AccessShareLock);
	SnapshotData dirty;
	SysScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	InitDirtySnapshot(dirty);
	scan = systable_beginscan_ordered(log, index, &dirty, 1, key);
	while (!found && (tuple = systable_getnext_ordered(scan, ForwardScanDirection)) != NULL)
	{
		bool isnull;
		Datum		value = heap_getattr(tuple, LOG_EVENT_ID, RelationGetDescr(log), &isnull);

		found = !isnull && memcmp(DatumGetUUIDP(value)->data, event_id->data, UUID_LEN) == 0;
	}
	systable_endscan_ordered(scan);
	index_close(index, AccessShareLock);
	table_close(log, NoLock);
	return found;
}

/* highest: no position above it has been drawn; most ids that others made tell such a one. */
static bool
child_has_event_id(const OutboxCatalog *catalog, int child, const pg_uuid_t *event_id, int64 highest)
{
	ScanKeyData	key;

	ScanKeyInit(&key, LOG_EVENT_ID, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(event_id));
	if (finds_event_id(catalog->log[child], catalog->log_event[child], &key, event_id))
		return true;
	for (int i = 0; i < outbox_event_id_key_count(catalog); i++)
	{
		int64		position = outbox_event_id_position(catalog, event_id, i);

		ScanKeyInit(&key, LOG_POSITION, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(position));
		if (position != 0 && position <= highest && finds_event_id(catalog->log[child], catalog->log_position[child], &key, event_id))
			return true;
	}
	return false;
}

/*
 * Whether an event_id is in the log. Its key is locked, so nobody is in the
 * middle of adding it, and what others have committed counts even for a
 * transaction whose snapshot is older. Nor does it wait for a child that is
 * just being emptied: what stays of that is in another one, perhaps not
 * committed yet, and that is looked into after the locks were tried.
 */
static bool
event_id_exists(const OutboxCatalog *catalog, OutboxDatabase *database, const pg_uuid_t *event_id)
{
	uint32		used = outbox_ring_used(database);
	uint32		locked = 0;
	int64		highest = database == NULL ? PG_INT64_MAX : (int64) pg_atomic_read_u64(&database->max_assigned);
	bool		exists = false;

	for (int child = 0; child < OUTBOX_CHILDREN; child++)
	{
		if ((used & 1U << child) == 0)
			continue;
		if (!ConditionalLockRelationOid(catalog->log[child], AccessShareLock))
		{
			if (outbox_ring_is_retiring(database, child))
				continue;
			LockRelationOid(catalog->log[child], AccessShareLock);
		}
		locked |= 1U << child;
	}
	for (int child = 0; child < OUTBOX_CHILDREN; child++)
	{
		if ((locked & 1U << child) == 0)
			continue;
		exists = exists || child_has_event_id(catalog, child, event_id, highest);
		UnlockRelationOid(catalog->log[child], AccessShareLock);
	}
	return exists;
}

static void
set_text(Datum *values, bool *nulls, int column, const char *text)
{
	nulls[column - 1] = text == NULL;
	if (text != NULL)
		values[column - 1] = CStringGetTextDatum(text);
}

static void
set_optional(Datum *values, bool *nulls, int column, bool given, Datum value)
{
	nulls[column - 1] = !given;
	values[column - 1] = value;
}

static void
insert_row(OutboxWriter *writer, const OutboxNewEvent *event)
{
	Datum		values[LOG_COLUMNS] = {0};
	bool		nulls[LOG_COLUMNS] = {false};

	values[LOG_POSITION - 1] = Int64GetDatum(event->position);
	values[LOG_AGG_HASH - 1] = Int64GetDatum((int64) event->agg_hash);
	values[LOG_EVENT_ID - 1] = UUIDPGetDatum(&event->event_id);
	values[LOG_OCCURRED_AT - 1] = TimestampTzGetDatum(event->occurred_at);
	values[LOG_CREATED_AT - 1] = TimestampTzGetDatum(event->created_at);
	values[LOG_PRIORITY - 1] = Int16GetDatum(event->priority);
	values[LOG_PAYLOAD_KIND - 1] = CharGetDatum(event->payload_kind);
	values[LOG_ID_GIVEN - 1] = BoolGetDatum(event->event_id_given);
	values[LOG_PAYLOAD - 1] = PointerGetDatum(event->payload);
	set_optional(values, nulls, LOG_NOT_BEFORE, event->not_before_given, TimestampTzGetDatum(event->not_before));
	set_optional(values, nulls, LOG_AGGREGATE_VERSION, event->aggregate_version_given,
				 Int64GetDatum(event->aggregate_version));
	set_optional(values, nulls, LOG_FOLLOWS, event->follows != 0, Int64GetDatum(event->follows));
	set_text(values, nulls, LOG_AGGREGATE_TYPE, event->aggregate_type);
	set_text(values, nulls, LOG_AGGREGATE_ID, event->aggregate_id);
	set_text(values, nulls, LOG_EVENT_TYPE, event->event_type);
	set_text(values, nulls, LOG_SUBJECT, event->subject);
	set_text(values, nulls, LOG_CONTENT_TYPE, event->content_type);
	set_text(values, nulls, LOG_DATASCHEMA, event->dataschema);
	set_text(values, nulls, LOG_HEADERS, event->headers_text);
	outbox_writer_insert(writer, values, nulls, LOG_COLUMNS);
}

static void
warn_not_preloaded(void)
{
	static bool warned = false;

	if (warned)
		return;
	warned = true;
	ereport(WARNING,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("outbox is not in \"shared_preload_libraries\": events are kept, but not published"),
			 errhint("Add \"outbox\" to \"shared_preload_libraries\" and restart the server. See docs/failures.md, \"Library not preloaded\".")));
}

/* As PreventCommandIfReadOnly() says it, and where to go instead. */
static void
refuse_read_only(void)
{
	if (!XactReadOnly)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
			 errmsg("cannot execute %s in a read-only transaction", "outbox.enqueue()"),
			 RecoveryInProgress() ?
				 errhint("This server is a standby: enqueue on the primary. See docs/failures.md, \"Standby\".") :
				 0));
}

/*
 * Begins to add events: of all of them, whatever is to be locked is locked here,
 * in one order. Called with an active snapshot; memory is the caller's context's.
 */
OutboxAppend *
outbox_append_begin(int count, OutboxNameEvent name_event, void *arg, OutboxOnConflict on_conflict)
{
	OutboxAppend *append = palloc(sizeof(OutboxAppend));
	bool		ids;
	int			child;

	refuse_read_only();
	PreventCommandIfParallelMode("outbox.enqueue()");
	append->on_conflict = on_conflict;
	append->catalog = outbox_feed_has_enqueued() ? outbox_database_catalog(false) : outbox_database_lock_to_write();
	append->database = outbox_database_attach(append->catalog);
	if (append->database == NULL)
		warn_not_preloaded();
	outbox_backlog_check(append->database);

	(void) GetTopTransactionId();
	ids = lock_keys(count, name_event, arg);
	if (append->database != NULL)
		outbox_feed_announce(append->database);
	child = outbox_ring_choose(append->database, append->catalog);
	outbox_writer_open(&append->writer, append->catalog->log[child], ids ? InvalidOid : append->catalog->log_event[child]);
	return append;
}

/* Whether the event is in the log already; an error if that isn't to be let pass. */
static bool
is_repeated(OutboxAppend *append, const OutboxNewEvent *event)
{
	/* It may be in this call twice. */
	outbox_writer_flush(&append->writer);
	if (!event_id_exists(append->catalog, append->database, &event->event_id))
		return false;
	if (append->on_conflict != OUTBOX_CONFLICT_RETURN)
		ereport(ERROR,
				(errcode(ERRCODE_UNIQUE_VIOLATION),
				 errmsg("event_id \"%s\" exists already",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&event->event_id)))),
				 errhint("To enqueue an event at most once under an id of yours, pass on_conflict => 'return'.")));
	return true;
}

/*
 * Adds a checked event, one of those that begin was told of, after those added
 * before. Fills in position (0 if the event_id existed and on_conflict lets it
 * pass), event_id and times. What the event points to is copied.
 */
void
outbox_append_event(OutboxAppend *append, OutboxNewEvent *event)
{
	event->position = 0;
	event->created_at = GetCurrentTimestamp();
	if (!event->occurred_at_given)
		event->occurred_at = event->created_at;
	event->agg_hash = outbox_append_hash(event->aggregate_type, event->aggregate_id);
	outbox_guard_note_event(event->agg_hash);
	if (event->event_id_given && is_repeated(append, event))
		return;

	event->position = outbox_feed_next_position(append->database, append->catalog->sequence);
	if (!event->event_id_given)
		outbox_event_id_make(append->catalog, event->created_at, event->position, &event->event_id);
	event->follows = append->database == NULL ? 0 : outbox_aggregate_lock_note_position(event->agg_hash, event->position);
	insert_row(&append->writer, event);
}

/* Writes what isn't written yet. */
void
outbox_append_end(OutboxAppend *append)
{
	outbox_writer_close(&append->writer);
	pfree(append);
}

/* An OutboxNameEvent of an array of events. */
static void
name_of_event(void *arg, int index, OutboxEventName *name)
{
	const OutboxNewEvent *event = (const OutboxNewEvent *) arg + index;

	*name = (OutboxEventName) {
		event->aggregate_type, strlen(event->aggregate_type),
		event->aggregate_id, strlen(event->aggregate_id),
		event->event_id_given ? &event->event_id : NULL};
}

/* All of it, for events that are made and checked already. */
void
outbox_append_events(OutboxNewEvent *events, int count, OutboxOnConflict on_conflict)
{
	OutboxAppend *append = outbox_append_begin(count, name_of_event, events, on_conflict);

	for (int i = 0; i < count; i++)
		outbox_append_event(append, &events[i]);
	outbox_append_end(append);
}
