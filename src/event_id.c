/*
 * event_id.c
 *	  Ids of events that the caller gave none: version 7 UUIDs that tell the event's position.
 *
 * So they need no index of their own, which enqueue() would pay for (docs/performance.md): who has such an id finds the
 * event by its position. The position is multiplied by a number that the database drew when the extension was created, and
 * 28 bits are random: two databases make the same id as seldom as with a UUID of random bits alone.
 *
 * These numbers are the rows of outbox.id_key, which go wherever the events go: into a dump, by logical replication. So a
 * database that has got events of another one has several; it makes ids by any, and takes an id to be made by any of them.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "utils/array.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "encode.h"
#include "event.h"
#include "event_id.h"

#define ID_KEY_KEY 1 /* outbox.id_key's column */

static uint64 *keys = NULL;
static int key_count = 0;

static void
add_key(int *room, uint64 key)
{
	if (key_count == *room)
	{
		*room *= 2;
		keys = repalloc(keys, *room * sizeof(uint64));
	}
	keys[key_count++] = key;
}

/* Whatever the transaction's snapshot is: the ids are of now. */
static void
read_keys(const OutboxCatalog *catalog)
{
	int			room = 8;
	Relation	table = table_open(catalog->id_key, AccessShareLock);
	SysScanDesc	scan = systable_beginscan(table, InvalidOid, false, NULL, 0, NULL);
	HeapTuple	tuple;
	bool		isnull;

	if (keys == NULL)
		keys = MemoryContextAlloc(TopMemoryContext, room * sizeof(uint64));
	else
		keys = repalloc(keys, room * sizeof(uint64));
	key_count = 0;
	while ((tuple = systable_getnext(scan)) != NULL)
		add_key(&room, (uint64) DatumGetInt64(heap_getattr(tuple, ID_KEY_KEY, RelationGetDescr(table), &isnull)));
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	/* Somebody has emptied the table. */
	if (key_count == 0)
		add_key(&room, 0);
}

/* How many there are, at least one. The cache follows the catalog's, which a new row invalidates. */
int
outbox_event_id_key_count(const OutboxCatalog *catalog)
{
	static uint64 generation = 0;

	if (generation != catalog->generation)
	{
		read_keys(catalog);
		generation = catalog->generation;
	}
	return key_count;
}

/* Random bytes are drawn for many ids at once: what a draw costs, 8,000 instructions, hardly depends on its size. */
void
outbox_event_id_make(const OutboxCatalog *catalog, TimestampTz created_at, int64 position, pg_uuid_t *id)
{
	static uint8 pool[128][4];
	static int	left = 0;

	(void) outbox_event_id_key_count(catalog);
	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random event_id")));
		left = lengthof(pool);
	}
	outbox_encode_event_id(outbox_unix_us(created_at), pool[--left], position, keys[0], id->data);
}

/* Where an event is that has this id, if we made it by this key; 0 or any other number if not. */
int64
outbox_event_id_position(const OutboxCatalog *catalog, const pg_uuid_t *id, int key)
{
	Assert(key < outbox_event_id_key_count(catalog));
	return outbox_encode_id_position(id->data, keys[key]);
}

PG_FUNCTION_INFO_V1(outbox_positions_in);

/* outbox.positions_in(event_id uuid) RETURNS bigint[] */
Datum
outbox_positions_in(PG_FUNCTION_ARGS)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	int			count = outbox_event_id_key_count(catalog);
	Datum	   *positions = palloc(count * sizeof(Datum));

	for (int i = 0; i < count; i++)
		positions[i] = Int64GetDatum(outbox_event_id_position(catalog, PG_GETARG_UUID_P(0), i));
	PG_RETURN_ARRAYTYPE_P(construct_array(positions, count, INT8OID, sizeof(int64), true, TYPALIGN_DOUBLE));
}

PG_FUNCTION_INFO_V1(outbox_id_key_changed);

/* outbox.id_key_changed() RETURNS trigger, for each row of outbox.id_key */
Datum
outbox_id_key_changed(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.id_key_changed() is a trigger function")));
	CacheInvalidateRelcache(((TriggerData *) fcinfo->context)->tg_relation);
	return PointerGetDatum(NULL);
}
