/*
 * event_id.c
 *	  Ids of events that the caller gave none: version 7 UUIDs that tell the event's position.
 *
 * So they need no index of their own, which enqueue() would pay for (docs/performance.md): who has such an id finds the
 * event by its position. The position is multiplied by a number that the database drew when the extension was created
 * (outbox.id_key, which goes with a dump), and 28 bits are random: two databases make the same id as seldom as with a
 * UUID of random bits alone.
 */
#include "outbox.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "encode.h"
#include "event.h"
#include "event_id.h"

/* Number of the column last_value in a sequence. */
#define SEQUENCE_LAST_VALUE 1

/* The key of this database; it never changes. */
static uint64
id_key(const OutboxCatalog *catalog)
{
	static Oid	known = InvalidOid;
	static uint64 key;
	Relation	sequence;
	SysScanDesc	scan;
	bool		isnull;

	if (known == catalog->id_key)
		return key;
	sequence = relation_open(catalog->id_key, AccessShareLock);
	scan = systable_beginscan(sequence, InvalidOid, false, SnapshotAny, 0, NULL);
	key = (uint64) DatumGetInt64(heap_getattr(systable_getnext(scan), SEQUENCE_LAST_VALUE, RelationGetDescr(sequence), &isnull));
	systable_endscan(scan);
	relation_close(sequence, AccessShareLock);
	known = catalog->id_key;
	return key;
}

/* Random bytes are drawn for many ids at once: what a draw costs, 8,000 instructions, hardly depends on its size. */
void
outbox_event_id_make(const OutboxCatalog *catalog, TimestampTz created_at, int64 position, pg_uuid_t *id)
{
	static uint8 pool[128][4];
	static int	left = 0;

	if (left == 0)
	{
		if (!pg_strong_random(pool, sizeof(pool)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate a random event_id")));
		left = lengthof(pool);
	}
	outbox_encode_event_id(outbox_unix_us(created_at), pool[--left], position, id_key(catalog), id->data);
}

/* Where an event is that has this id, if we made it; 0 or any other number if not. */
int64
outbox_event_id_position(const OutboxCatalog *catalog, const pg_uuid_t *id)
{
	return outbox_encode_id_position(id->data, id_key(catalog));
}

PG_FUNCTION_INFO_V1(outbox_position_in);

/* outbox.position_in(event_id uuid) RETURNS bigint */
Datum
outbox_position_in(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(outbox_event_id_position(outbox_database_catalog(false), PG_GETARG_UUID_P(0)));
}
