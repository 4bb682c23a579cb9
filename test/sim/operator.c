/*
 * operator.c
 *	  Somebody who redrives, discards, pauses and resumes: what the functions of
 *	  the install script do, in a session of their own.
 */
#include "session.h"

static int	asked[8];
static int	asked_count;

void
sim_operator_reset(void)
{
	asked_count = 0;
}

/* Dead letters that one call is about, see outbox.redrive() and outbox.discard(). */
typedef struct Choice
{
	uint64		hash;			/* 0: any */
	int64		position;		/* 0: any */
} Choice;

static Choice
draw_choice(void)
{
	Choice		choice = {0, 0};
	const Row  *row;

	if (sim_log_count() == 0 || sim_one_in(3))
		return choice;
	/* One of the last may be with the broker just now. */
	row = sim_log_at(sim_one_in(2) ? sim_below(sim_log_count()) : sim_log_count() - 1 - sim_below(Min(sim_log_count(), 5)));
	if (sim_one_in(3))
		choice.hash = row->hash;
	else
		choice.position = row->position;
	return choice;
}

static bool
is_dead(const Version *version)
{
	return version != NULL && strchr("fbp", version->state) != NULL;
}

/* FOR UPDATE: the version that counts once nobody else changes the row. */
static const Version *
lock_row(Delivery *delivery)
{
	for (;;)
	{
		const Version *version = sim_delivery_newest(delivery);

		if (version == NULL || version->xact->state == XACT_COMMITTED || version->xact == sim_self->pg->xact)
			return version;
		sim_wait_for_xact(version->xact);
	}
}

static bool
is_named(Choice choice, const Delivery *delivery)
{
	return (choice.hash == 0 || delivery->hash == choice.hash) && (choice.position == 0 || delivery->position == choice.position);
}

/* Rows that an UPDATE of everything named by the choice finds, in order of position; was: their states. */
static int
choose(Choice choice, View view, Delivery **chosen, char *was, int max)
{
	int			count = 0;

	for (int i = 0; i < sim_delivery_count() && count < max; i++)
	{
		Delivery   *delivery = sim_delivery_at(i);
		const Version *version = sim_delivery_see(delivery, &view);

		if (!is_named(choice, delivery) || !is_dead(version))
			continue;
		version = lock_row(delivery);
		if (!is_dead(version))
			continue;
		was[count] = version->state;
		chosen[count++] = delivery;
		sim_delivery_write(delivery, (Version) {version->state, version->attempts, version->next_at, sim_pg_xact(), NULL});
	}
	return count;
}

static void
request(char kind, const Delivery *delivery)
{
	(void) sim_table_add(&sim_request, (Thing) {.xmin = sim_pg_xact(), .kind = kind, .hash = delivery->hash, .position = delivery->position});
}

#define MAX_CHOSEN 512

/* What redrive() has chosen: dead letters, and aggregates that come back as a whole. */
typedef struct Redriven
{
	int64		positions[MAX_CHOSEN];
	int			position_count;
	uint64		parked[MAX_CHOSEN];
	int			parked_count;
} Redriven;

static bool
has_parked(const Redriven *redriven, uint64 hash)
{
	for (int i = 0; i < redriven->parked_count; i++)
	{
		if (redriven->parked[i] == hash)
			return true;
	}
	return false;
}

/* The first statement: looks, and locks nothing. */
static void
look(Choice choice, Redriven *redriven)
{
	View		view = sim_pg_view();

	for (int i = 0; i < sim_delivery_count() && redriven->position_count < MAX_CHOSEN; i++)
	{
		const Delivery *delivery = sim_delivery_at(i);
		const Version *version = sim_delivery_see(delivery, &view);

		if (!is_named(choice, delivery) || !is_dead(version))
			continue;
		redriven->positions[redriven->position_count++] = delivery->position;
		if (version->state == 'p' && !has_parked(redriven, delivery->hash))
			redriven->parked[redriven->parked_count++] = delivery->hash;
	}
}

static bool
is_redriven(const Redriven *redriven, const Delivery *delivery, const Version *version)
{
	if (!is_dead(version))
		return false;
	for (int i = 0; i < redriven->position_count; i++)
	{
		if (redriven->positions[i] == delivery->position)
			return true;
	}
	return version->state == 'p' && has_parked(redriven, delivery->hash);
}

/* The second one: locks these, and what is parked with them by now, in one order. */
static int
lock_redriven(const Redriven *redriven, Delivery **locked)
{
	View		view = sim_pg_view();
	int			count = 0;

	for (int i = 0; i < sim_delivery_count() && count < MAX_CHOSEN; i++)
	{
		Delivery   *delivery = sim_delivery_at(i);
		const Version *version = sim_delivery_see(delivery, &view);

		if (!is_redriven(redriven, delivery, version))
			continue;
		version = lock_row(delivery);
		if (!is_redriven(redriven, delivery, version))
			continue;
		sim_delivery_write(delivery, (Version) {version->state, version->attempts, version->next_at, sim_pg_xact(), NULL});
		locked[count++] = delivery;
	}
	return count;
}

/* And the third one changes them. */
static int
redrive(Choice choice)
{
	Redriven	redriven = {.position_count = 0};
	Delivery   *locked[MAX_CHOSEN];
	int			count;

	look(choice, &redriven);
	if (redriven.position_count == 0)
		return 0;
	sim_maybe_pass();
	count = lock_redriven(&redriven, locked);
	sim_maybe_pass();
	for (int i = 0; i < count; i++)
	{
		bool		parked = has_parked(&redriven, locked[i]->hash);
		bool		first = true;

		sim_trace("redrives position %lld, was %c", locked[i]->position, sim_delivery_newest(locked[i])->state);
		sim_delivery_write(locked[i], (Version) {'r', 0, GetCurrentTimestamp(), sim_pg_xact(), NULL});
		for (int k = 0; k < i; k++)
			first &= locked[k]->hash != locked[i]->hash;
		if (!parked)
			request('r', locked[i]);
		else if (first)
			request('p', locked[i]);
	}
	return count;
}

static int
discard(Choice choice)
{
	Delivery   *chosen[MAX_CHOSEN];
	char		was[MAX_CHOSEN];
	View		view = sim_pg_view();
	int			count = choose(choice, view, chosen, was, MAX_CHOSEN);
	Delivery	pending = {.position = choice.position};
	const Row  *row = choice.position == 0 ? NULL : sim_log_find(choice.position);

	for (int i = 0; i < count; i++)
	{
		bool		first = true;

		for (int k = 0; k < i; k++)
			first &= chosen[k]->hash != chosen[i]->hash || was[k] != 'p';
		if (was[i] == 'b' || (was[i] == 'p' && first))
			request('x', chosen[i]);
		if (was[i] != 'b')
			sim_delivery_write(chosen[i], (Version) {'x', 0, SIM_NEVER, sim_pg_xact(), NULL});
		sim_trace("discards position %lld, was %c", chosen[i]->position, was[i]);
	}
	if (count == 0 && row != NULL && sim_sees(&view, row->xact))
	{
		Delivery   *delivery = sim_delivery_find(choice.position, false, 0);
		const Version *version = delivery == NULL ? NULL : sim_delivery_see(delivery, &view);

		pending.hash = row->hash;
		if (version == NULL ? !sim_ledger_has(row->position, &view) && row->position > sim_watermark_max(&view) : version->state == 'r')
		{
			request('x', &pending);
			sim_trace("asks to discard pending position %lld", choice.position);
			count++;
		}
	}
	return count;
}

static int
pause_something(void)
{
	Thing		pause = {.xmin = sim_pg_xact(), .type = sim_below(3) - 1, .by_subject = sim_one_in(2)};

	(void) sim_table_add(&sim_pauses, pause);
	sim_trace("pauses type %lld, by subject: %lld", pause.type, pause.by_subject);
	return 1;
}

static int
resume_all(void)
{
	View		view = sim_pg_view();
	int			count = 0;

	for (int i = 0; i < sim_pauses.count; i++)
	{
		if (!sim_thing_seen(&sim_pauses.rows[i], &view))
			continue;
		sim_pauses.rows[i].xmax = sim_pg_xact();
		count++;
	}
	sim_trace("resumes %lld", count);
	return count;
}

static int
operate(int what)
{
	switch (what)
	{
		case SIM_ASK_REDRIVE_ALL:
			return redrive((Choice) {0, 0});
		case SIM_ASK_RESUME_ALL:
			return resume_all();
		default:
			break;
	}
	/* An old wish, from before the faults have ended. */
	if (!sim_faults)
		return resume_all();
	switch (sim_below(6))
	{
		case 0:
		case 1:
			return redrive(draw_choice());
		case 2:
			return discard(draw_choice());
		case 3:
			return pause_something();
		default:
			return resume_all();
	}
}

static bool
is_asked(void *arg)
{
	return asked_count > 0;
}

void
sim_operator_main(void)
{
	SESSION_LOOP_BEGIN;
	for (;;)
	{
		(void) sim_wait(is_asked, NULL, sim_now + SECOND);
		if (!sim_faults)
			sim_finish_prepared(true);
		if (asked_count == 0)
			continue;
		sim_session_begin();
		if (operate(asked[0]) > 0)
			sim_self->image->tell_relays();
		(void) sim_self->image->attach();
		CommitTransactionCommand();
		/* Only now: a crash in between is asked again. */
		memmove(&asked[0], &asked[1], sizeof(asked[0]) * --asked_count);
	}
}

void
sim_operator_ask(int what)
{
	if (asked_count < lengthof(asked))
		asked[asked_count++] = what;
}
