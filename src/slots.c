/*
 * slots.c
 *	  Shares of a database's aggregates: members with leases, and owners of
 *	  slots. See slots.h for the rules.
 *
 * With n members every one is to have floor(64 / n) slots at least, and 64 % n
 * of them one more. Free slots are claimed up to that; owned ones are given
 * back only when another member is short of the former, or the own share is
 * above the latter, so that shares settle after every change and then stay.
 */
#include "slots.h"

#define FREE (-1)

void
outbox_slots_reset(SlotTable *table)
{
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
		table->members[i] = (SlotMember) {0};
	for (int i = 0; i < OUTBOX_SLOTS; i++)
		table->owner[i] = FREE;
	table->generation++;
}

/* ------------------------------------------------------------- memberships */

int64_t
outbox_slots_join(SlotTable *table, int place, int64_t ttl, int64_t now, int64_t epoch_hint)
{
	SlotMember *member = &table->members[place];

	if (member->epoch != 0)
		return 0;
	table->last_epoch = epoch_hint > table->last_epoch ? epoch_hint : table->last_epoch + 1;
	*member = (SlotMember) {.epoch = table->last_epoch, .heartbeat = now, .ttl = ttl};
	table->generation++;
	return member->epoch;
}

bool
outbox_slots_is_member(const SlotTable *table, int place, int64_t epoch)
{
	return epoch != 0 && table->members[place].epoch == epoch;
}

bool
outbox_slots_leave(SlotTable *table, int place, int64_t epoch)
{
	if (!outbox_slots_is_member(table, place, epoch))
		return false;
	outbox_slots_revoke(table, place);
	return true;
}

bool
outbox_slots_renew(SlotTable *table, int place, int64_t epoch, int64_t ttl, int64_t now)
{
	if (!outbox_slots_is_member(table, place, epoch))
		return false;
	table->members[place].heartbeat = now;
	table->members[place].ttl = ttl;
	return true;
}

int
outbox_slots_expired(const SlotTable *table, int from, int64_t now)
{
	for (int i = from; i < OUTBOX_MAX_RELAYS; i++)
	{
		const SlotMember *member = &table->members[i];

		if (member->epoch != 0 && now - member->heartbeat >= member->ttl)
			return i;
	}
	return -1;
}

int64_t
outbox_slots_next_expiry(const SlotTable *table)
{
	int64_t		next = INT64_MAX;

	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		const SlotMember *member = &table->members[i];

		if (member->epoch != 0 && member->heartbeat + member->ttl < next)
			next = member->heartbeat + member->ttl;
	}
	return next;
}

void
outbox_slots_revoke(SlotTable *table, int place)
{
	table->members[place].epoch = 0;
	for (int i = 0; i < OUTBOX_SLOTS; i++)
	{
		if (table->owner[i] == place)
			table->owner[i] = FREE;
	}
	table->generation++;
}

/* ------------------------------------------------------------------ shares */

/* How the slots are spread now. */
typedef struct Spread
{
	int			members;
	int			floor;			/* the least that everyone should have */
	int			rest;			/* so many may have one more */
	int			free;
	int			owned[OUTBOX_MAX_RELAYS];
} Spread;

static void
look(const SlotTable *table, Spread *spread)
{
	*spread = (Spread) {0};
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
		spread->members += table->members[i].epoch != 0;
	for (int i = 0; i < OUTBOX_SLOTS; i++)
	{
		if (table->owner[i] == FREE)
			spread->free++;
		else
			spread->owned[table->owner[i]]++;
	}
	if (spread->members > 0)
	{
		spread->floor = OUTBOX_SLOTS / spread->members;
		spread->rest = OUTBOX_SLOTS % spread->members;
	}
}

/* A member's share: one more than the floor while not enough others have that. */
static int
share(const Spread *spread, int place)
{
	int			above = 0;

	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
		above += i != place && spread->owned[i] > spread->floor;
	return above < spread->rest ? spread->floor + 1 : spread->floor;
}

uint64_t
outbox_slots_mask(const SlotTable *table, int place, int64_t epoch)
{
	uint64_t	mask = 0;

	if (!outbox_slots_is_member(table, place, epoch))
		return 0;
	for (int i = 0; i < OUTBOX_SLOTS; i++)
	{
		if (table->owner[i] == place)
			mask |= UINT64_C(1) << i;
	}
	return mask;
}

int
outbox_slots_claimable(const SlotTable *table, int place, int64_t epoch)
{
	Spread		spread;
	int			wanted;

	if (!outbox_slots_is_member(table, place, epoch))
		return 0;
	look(table, &spread);
	wanted = share(&spread, place) - spread.owned[place];
	if (wanted < 0)
		return 0;
	return wanted < spread.free ? wanted : spread.free;
}

uint64_t
outbox_slots_claim(SlotTable *table, int place, int64_t epoch)
{
	int			wanted = outbox_slots_claimable(table, place, epoch);

	if (wanted > 0)
	{
		table->members[place].watermark = 0;
		table->generation++;
	}
	for (int i = 0; i < OUTBOX_SLOTS && wanted > 0; i++)
	{
		if (table->owner[i] != FREE)
			continue;
		table->owner[i] = (int8_t) place;
		wanted--;
	}
	return outbox_slots_mask(table, place, epoch);
}

uint64_t
outbox_slots_excess(const SlotTable *table, int place, int64_t epoch)
{
	Spread		spread;
	uint64_t	mask = 0;
	int			missing = 0;
	int			surplus;

	if (!outbox_slots_is_member(table, place, epoch))
		return 0;
	look(table, &spread);
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		if (i != place && table->members[i].epoch != 0 && spread.owned[i] < spread.floor)
			missing += spread.floor - spread.owned[i];
	}
	surplus = spread.owned[place] - share(&spread, place);
	/* Nobody is short, but some may have one more than they have. */
	if (spread.owned[place] > spread.floor + 1 && missing < spread.owned[place] - spread.floor - 1)
		missing = spread.owned[place] - spread.floor - 1;
	missing -= spread.free;
	for (int i = OUTBOX_SLOTS - 1; i >= 0 && missing > 0 && surplus > 0; i--)
	{
		if (table->owner[i] != place)
			continue;
		mask |= UINT64_C(1) << i;
		missing--;
		surplus--;
	}
	return mask;
}

void
outbox_slots_release(SlotTable *table, int place, int64_t epoch, uint64_t mask)
{
	mask &= outbox_slots_mask(table, place, epoch);
	if (mask == 0)
		return;
	for (int i = 0; i < OUTBOX_SLOTS; i++)
	{
		if (mask & UINT64_C(1) << i)
			table->owner[i] = FREE;
	}
	table->generation++;
}

/* --------------------------------------------------------------- watermark */

bool
outbox_slots_set_watermark(SlotTable *table, int place, int64_t epoch, int64_t watermark)
{
	if (!outbox_slots_is_member(table, place, epoch))
		return false;
	table->members[place].watermark = watermark;
	return true;
}

int64_t
outbox_slots_watermark(const SlotTable *table)
{
	int64_t		lowest = INT64_MAX;

	for (int i = 0; i < OUTBOX_SLOTS; i++)
	{
		if (table->owner[i] == FREE)
			return 0;
		if (table->members[table->owner[i]].watermark < lowest)
			lowest = table->members[table->owner[i]].watermark;
	}
	return lowest;
}
