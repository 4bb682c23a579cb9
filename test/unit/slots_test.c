/*
 * slots_test.c
 *	  src/slots.c alone: single rules, then random operations by members that
 *	  keep, lose and come back with old epochs, checked after each step.
 */
#include <stdlib.h>
#include <string.h>

#include "slots.h"
#include "unit.h"

static int
count(uint64_t mask)
{
	return __builtin_popcountll(mask);
}

static SlotTable *
new_table(void)
{
	SlotTable  *table = calloc(1, sizeof(SlotTable));

	outbox_slots_reset(table);
	return table;
}

/* ---------- single rules ---------- */

static void
test_one_member(void)
{
	SlotTable  *table = new_table();
	int64_t		epoch = outbox_slots_join(table, 0, 100, 1000, 7);
	int64_t		second;

	ok(epoch == 7, "the first epoch is the hint");
	ok(outbox_slots_join(table, 0, 100, 1000, 9) == 0, "a taken place is not given");
	ok(outbox_slots_mask(table, 0, epoch) == 0, "a new member owns nothing");
	ok(outbox_slots_claimable(table, 0, epoch) == OUTBOX_SLOTS, "it may claim all");
	ok(outbox_slots_claim(table, 0, epoch) == UINT64_MAX, "and does");
	ok(outbox_slots_excess(table, 0, epoch) == 0, "nobody else wants any");
	ok(outbox_slots_leave(table, 0, epoch), "it leaves");
	ok(!outbox_slots_leave(table, 0, epoch), "once");
	second = outbox_slots_join(table, 0, 100, 1000, 3);
	ok(second == 8, "epochs rise whatever the hint says");
	ok(outbox_slots_mask(table, 0, second) == 0, "its predecessor's slots are free");
	ok(outbox_slots_mask(table, 0, epoch) == 0 && outbox_slots_claim(table, 0, epoch) == 0, "the old epoch gets none");
	free(table);
}

static void
test_lease(void)
{
	SlotTable  *table = new_table();
	int64_t		first = outbox_slots_join(table, 2, 100, 1000, 1);
	int64_t		other = outbox_slots_join(table, 5, 200, 1000, 1);

	outbox_slots_claim(table, 2, first);
	ok(outbox_slots_next_expiry(table) == 1100, "the next lease to end");
	ok(outbox_slots_expired(table, 0, 1099) == -1, "not a microsecond too early");
	ok(outbox_slots_expired(table, 0, 1100) == 2, "then it is due");
	ok(outbox_slots_renew(table, 2, first, 100, 1100), "it may still renew");
	ok(outbox_slots_expired(table, 0, 1199) == -1, "and is a member again");
	ok(outbox_slots_expired(table, 3, 1200) == 5 && outbox_slots_expired(table, 6, 1200) == -1, "from some place on");
	outbox_slots_revoke(table, 2);
	ok(outbox_slots_expired(table, 0, 5000) == 5, "who is revoked is not due");
	ok(!outbox_slots_renew(table, 2, first, 100, 1101), "nor can it renew");
	ok(!outbox_slots_set_watermark(table, 2, first, 5), "or say anything");
	ok(outbox_slots_claimable(table, 5, other) == OUTBOX_SLOTS, "its slots are free");
	outbox_slots_reset(table);
	ok(!outbox_slots_is_member(table, 5, other), "a reset ends all memberships");
	ok(outbox_slots_join(table, 5, 200, 1000, 1) > other, "and epochs go on");
	ok(outbox_slots_next_expiry(table) == 1200, "a new lease");
	free(table);
}

static void
test_watermark(void)
{
	SlotTable  *table = new_table();
	int64_t		a = outbox_slots_join(table, 0, 100, 0, 1);
	int64_t		b;
	uint64_t	excess;

	ok(outbox_slots_watermark(table) == 0, "no owner, no watermark");
	outbox_slots_claim(table, 0, a);
	ok(outbox_slots_watermark(table) == 0, "none before the owner has spoken");
	ok(outbox_slots_set_watermark(table, 0, a, 50), "it speaks");
	ok(outbox_slots_watermark(table) == 50, "its word counts");

	b = outbox_slots_join(table, 1, 100, 0, 1);
	ok(outbox_slots_set_watermark(table, 1, b, 10) && outbox_slots_watermark(table) == 50, "who owns nothing has no say");
	excess = outbox_slots_excess(table, 0, a);
	ok(count(excess) == 32, "half is too much now");
	outbox_slots_release(table, 0, a, excess);
	ok(outbox_slots_watermark(table) == 0, "none while slots are free");
	outbox_slots_claim(table, 1, b);
	ok(outbox_slots_watermark(table) == 0, "a new owner's old word does not count");
	outbox_slots_set_watermark(table, 1, b, 40);
	ok(outbox_slots_watermark(table) == 40, "the lowest word");
	outbox_slots_release(table, 1, a, UINT64_MAX);
	ok(outbox_slots_watermark(table) == 40, "nobody releases another's slots");
	free(table);
}

/* ---------- random operations ---------- */

typedef struct Known
{
	int			place;
	int64_t		epoch;
	bool		valid;
} Known;

/* The test's own idea of who owns what. */
typedef struct Model
{
	SlotTable  *table;
	int64_t		now;
	Known		known[200]; /* memberships of all times */
	int			known_count;
	uint64_t	mask[OUTBOX_MAX_RELAYS]; /* as the calls returned them */
} Model;

static Known *
valid_at(Model *model, int place)
{
	for (int i = 0; i < model->known_count; i++)
	{
		if (model->known[i].valid && model->known[i].place == place)
			return &model->known[i];
	}
	return NULL;
}

static void
join_somewhere(Model *model)
{
	int			place = below(OUTBOX_MAX_RELAYS);
	bool		taken = valid_at(model, place) != NULL;
	int64_t		epoch = outbox_slots_join(model->table, place, 1 + below(1000), model->now, below(50));

	if (taken != (epoch == 0))
		abort();
	if (epoch == 0)
		return;
	for (int i = 0; i < model->known_count; i++)
	{
		if (model->known[i].epoch >= epoch)
			abort();
	}
	if (model->known_count < 200)
	{
		model->known[model->known_count++] = (Known) {place, epoch, true};
		model->mask[place] = 0;
	}
	else
		outbox_slots_leave(model->table, place, epoch);
}

static void
end_membership(Model *model, Known *known)
{
	known->valid = false;
	model->mask[known->place] = 0;
}

/* Whatever a lost epoch tries, nothing happens. */
static void
try_in_vain(Model *model, const Known *known)
{
	SlotTable	before = *model->table;
	SlotTable  *table = model->table;

	if (outbox_slots_renew(table, known->place, known->epoch, 1000, model->now) ||
		outbox_slots_set_watermark(table, known->place, known->epoch, 1) ||
		outbox_slots_claim(table, known->place, known->epoch) != 0 ||
		outbox_slots_excess(table, known->place, known->epoch) != 0 ||
		outbox_slots_mask(table, known->place, known->epoch) != 0 ||
		outbox_slots_claimable(table, known->place, known->epoch) != 0 ||
		outbox_slots_leave(table, known->place, known->epoch))
		abort();
	outbox_slots_release(table, known->place, known->epoch, UINT64_MAX);
	if (memcmp(&before, table, sizeof(before)) != 0)
		abort();
}

static void
revoke_expired(Model *model)
{
	int			place = outbox_slots_expired(model->table, 0, model->now);
	SlotMember *member;

	if (place < 0)
		return;
	member = &model->table->members[place];
	if (model->now < member->heartbeat + member->ttl)
		abort();
	outbox_slots_revoke(model->table, place);
	end_membership(model, valid_at(model, place));
}

static void
claim(Model *model, const Known *known)
{
	int			wanted = outbox_slots_claimable(model->table, known->place, known->epoch);
	uint64_t	mask = outbox_slots_claim(model->table, known->place, known->epoch);

	if (count(mask) - count(model->mask[known->place]) != wanted || (mask & model->mask[known->place]) != model->mask[known->place])
		abort();
	model->mask[known->place] = mask;
}

static void
give_back(Model *model, const Known *known)
{
	uint64_t	excess = outbox_slots_excess(model->table, known->place, known->epoch);

	if ((excess & ~model->mask[known->place]) != 0)
		abort();
	outbox_slots_release(model->table, known->place, known->epoch, excess);
	model->mask[known->place] &= ~excess;
}

static void
step(Model *model)
{
	Known	   *known = model->known_count == 0 ? NULL : &model->known[below(model->known_count)];

	model->now += below(20);
	if (known == NULL || below(10) == 0)
		join_somewhere(model);
	else if (!known->valid)
		try_in_vain(model, known);
	else
	{
		switch (below(12))
		{
			case 0:
				if (!outbox_slots_leave(model->table, known->place, known->epoch))
					abort();
				end_membership(model, known);
				break;
			case 1:
				revoke_expired(model);
				break;
			case 2:
			case 3:
			case 4:
			case 5:
				if (!outbox_slots_renew(model->table, known->place, known->epoch, 1 + below(1000), model->now))
					abort();
				break;
			case 6:
			case 7:
				give_back(model, known);
				break;
			default:
				claim(model, known);
				break;
		}
	}
}

/* Never two owners, and the table agrees with what its members were told. */
static bool
agrees(Model *model)
{
	uint64_t	all = 0;

	for (int place = 0; place < OUTBOX_MAX_RELAYS; place++)
	{
		Known	   *known = valid_at(model, place);
		uint64_t	mask = known == NULL ? 0 : outbox_slots_mask(model->table, place, known->epoch);

		if (mask != model->mask[place] || (mask & all) != 0)
			return false;
		all |= mask;
	}
	for (int i = 0; i < OUTBOX_SLOTS; i++)
	{
		if ((model->table->owner[i] == -1) != !(all >> i & 1))
			return false;
	}
	return true;
}

/* Members go on claiming and giving back, in random order: returns the changes it took to come to rest. */
static int
settle(Model *model)
{
	int			changes = 0;

	for (int idle = 0; idle < 2000; idle++)
	{
		Known	   *known = &model->known[below(model->known_count)];
		uint32_t	generation = model->table->generation;

		if (!known->valid)
			continue;
		if (below(2) == 0)
			give_back(model, known);
		else
			claim(model, known);
		if (model->table->generation != generation)
		{
			changes++;
			idle = 0;
		}
		if (changes > 1000)
			break;
	}
	return changes;
}

static bool
is_fair(Model *model, int *members)
{
	uint64_t	all = 0;
	int			low = OUTBOX_SLOTS;
	int			high = 0;

	*members = 0;
	for (int place = 0; place < OUTBOX_MAX_RELAYS; place++)
	{
		if (valid_at(model, place) == NULL)
			continue;
		(*members)++;
		all |= model->mask[place];
		low = count(model->mask[place]) < low ? count(model->mask[place]) : low;
		high = count(model->mask[place]) > high ? count(model->mask[place]) : high;
	}
	return *members == 0 || (all == UINT64_MAX && high - low <= 1);
}

static void
test_random(uint64_t seed)
{
	Model		model = {.table = new_table()};
	bool		agreed = true;
	bool		fair = true;
	int			most = 0;
	int			members = 0;
	int			seen = 0;

	random_state = seed;
	for (int i = 0; i < 2000 && agreed && fair; i++)
	{
		step(&model);
		agreed = agrees(&model);
		if (i % 100 == 99 && model.known_count > 0)
		{
			int			changes = settle(&model);

			most = changes > most ? changes : most;
			fair = is_fair(&model, &members);
			agreed = agreed && agrees(&model);
			seen = members > seen ? members : seen;
		}
	}
	ok(agreed, "seed %d: one owner a slot at most, as the members were told", (int) seed);
	ok(fair && most <= 60, "seed %d: shares of up to %d members settle, all slots owned, after %d changes at most", (int) seed, seen, most);
	free(model.table);
}

/* Every number of members, one after the other and back: how many slots change hands. */
static void
test_growth(void)
{
	Model		model = {.table = new_table()};
	bool		fair = true;
	int			members;

	random_state = 42;
	for (int place = 0; place < OUTBOX_MAX_RELAYS && fair; place++)
	{
		uint64_t	before[OUTBOX_MAX_RELAYS];
		int			moved = 0;

		memcpy(before, model.mask, sizeof(before));
		model.known[place] = (Known) {place, outbox_slots_join(model.table, place, 1, 0, 0), true};
		model.known_count++;
		settle(&model);
		for (int i = 0; i < place; i++)
			moved += count(before[i] & ~model.mask[i]);
		fair = is_fair(&model, &members) && members == place + 1 && moved <= OUTBOX_SLOTS / (place + 1) + 1;
	}
	ok(fair, "each new member takes its share and moves no more than that");
	for (int place = 0; place < OUTBOX_MAX_RELAYS - 1 && fair; place++)
	{
		outbox_slots_leave(model.table, place, model.known[place].epoch);
		end_membership(&model, &model.known[place]);
		settle(&model);
		fair = is_fair(&model, &members) && members == OUTBOX_MAX_RELAYS - 1 - place;
	}
	ok(fair, "and the others take over what leaving ones had");
	free(model.table);
}

int
main(void)
{
	bool		hit[OUTBOX_SLOTS] = {false};
	int			hits = 0;

	test_one_member();
	test_lease();
	test_watermark();
	test_growth();
	for (uint64_t seed = 1; seed <= 40; seed++)
		test_random(seed);
	for (uint64_t hash = UINT64_MAX - 63; hash != 0; hash++)
		hit[outbox_slots_of(hash)] = true;
	for (int i = 0; i < OUTBOX_SLOTS; i++)
		hits += hit[i];
	ok(hits == OUTBOX_SLOTS, "hashes beyond the signed range name slots, too");
	return unit_done();
}
