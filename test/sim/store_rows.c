/*
 * store_rows.c
 *	  The tables that relays and operators write: versions of rows of
 *	  outbox.delivery, and the rows of the others.
 */
#include "store.h"

#include <stdlib.h>
#include <string.h>

#define MAX_THINGS 16384

/* ---------- deliveries ---------- */

static Delivery **deliveries;
static int	delivery_count;
static int	delivery_space;

int
sim_delivery_count(void)
{
	return delivery_count;
}

Delivery *
sim_delivery_at(int i)
{
	return deliveries[i];
}

Delivery *
sim_delivery_find(int64_t position, bool add, uint64_t hash)
{
	int			i = delivery_count;
	Delivery	delivery = {position, hash, NULL};

	while (i > 0 && deliveries[i - 1]->position >= position)
		i--;
	if (i < delivery_count && deliveries[i]->position == position)
	{
		/* The position may be given to another event after a crash. */
		if (add && sim_delivery_newest(deliveries[i]) == NULL)
			deliveries[i]->hash = hash;
		return deliveries[i];
	}
	if (!add)
		return NULL;
	if (delivery_count == delivery_space)
	{
		delivery_space = delivery_space * 2 + 64;
		deliveries = realloc(deliveries, sizeof(Delivery *) * delivery_space);
	}
	memmove(&deliveries[i + 1], &deliveries[i], sizeof(Delivery *) * (delivery_count - i));
	delivery_count++;
	return deliveries[i] = sim_keep(&delivery, sizeof(delivery));
}

const Version *
sim_delivery_see(const Delivery *delivery, const View *view)
{
	const Version *version = delivery->newest;

	while (version != NULL && !sim_sees(view, version->xact))
		version = version->older;
	return version;
}

const Version *
sim_delivery_newest(Delivery *delivery)
{
	while (delivery->newest != NULL && delivery->newest->xact->state == XACT_ABORTED)
		delivery->newest = delivery->newest->older;
	return delivery->newest;
}

void
sim_delivery_write(Delivery *delivery, Version version)
{
	version.older = delivery->newest;
	delivery->newest = sim_keep(&version, sizeof(version));
}

/* ---------- other tables ---------- */

Table		sim_ledger;
Table		sim_watermark;
Table		sim_request;
Table		sim_pauses;

Thing *
sim_table_add(Table *table, Thing thing)
{
	/* They don't move: a process may wait in the middle of looking at one. */
	if (table->rows == NULL)
		table->rows = malloc(sizeof(Thing) * MAX_THINGS);
	if (table->count == MAX_THINGS)
		sim_fail("a table has more rows than the simulation has room for");
	thing.id = table->count + 1;
	table->rows[table->count] = thing;
	return &table->rows[table->count++];
}

bool
sim_thing_seen(const Thing *thing, const View *view)
{
	return sim_sees(view, thing->xmin) && (thing->xmax == NULL || !sim_sees(view, thing->xmax));
}

bool
sim_ledger_has(int64_t position, const View *view)
{
	for (int i = sim_ledger.count; i-- > 0;)
	{
		const Thing *row = &sim_ledger.rows[i];
		int			offset = (int) (position - (row->position << 10)) - row->lo;

		if (row->position == position >> 10 && offset >= 0 && offset <= row->hi - row->lo &&
			(row->bits == NULL || row->bits[offset / 8] & (1 << offset % 8)) && sim_thing_seen(row, view))
			return true;
	}
	return false;
}

int64_t
sim_watermark_max(const View *view)
{
	int64_t		highest = 0;

	for (int i = 0; i < sim_watermark.count; i++)
	{
		const Thing *row = &sim_watermark.rows[i];

		if (row->position > highest && sim_thing_seen(row, view))
			highest = row->position;
	}
	return highest;
}

void
sim_rows_reset(void)
{
	delivery_count = 0;
	sim_ledger.count = sim_watermark.count = sim_request.count = sim_pauses.count = 0;
}
