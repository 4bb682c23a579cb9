/*
 * check.c
 *	  The promises of docs/delivery.md and docs/architecture.md, as far as they
 *	  can be seen from outside of the relay.
 *
 * Knows the truth: what is committed and durable, what reached the stream, what
 * each relay was told. Doesn't look into the relay's memory.
 */
#include "check.h"
#include "pg_process.h"

#include <stdio.h>
#include <string.h>

int64_t		sim_events_published;
char		sim_unsettled[80];

/* The highest committed watermark, see sim_check_watermark(). */
static int64_t promised;

void
sim_check_start(void)
{
	promised = 0;
}

/* ---------- what is known of an event ---------- */

static bool
is_durable(const Xact *xact)
{
	return xact->state == XACT_COMMITTED && xact->lsn <= sim_wal_flushed();
}

/* Whether it ever was, durably, in one of the states. */
static bool
ever_was(const Row *row, const char *states)
{
	const Delivery *delivery = sim_delivery_find(row->position, false, 0);
	const Version *version = delivery == NULL ? NULL : delivery->newest;

	for (; version != NULL; version = version->older)
	{
		if (strchr(states, version->state) != NULL && is_durable(version->xact))
			return true;
	}
	return false;
}

/* Its state in outbox.delivery, as committed; '-': it has no row there. */
static char
state_of(const Row *row)
{
	View		view = sim_view(NULL);
	const Delivery *delivery = sim_delivery_find(row->position, false, 0);
	const Version *version = delivery == NULL ? NULL : sim_delivery_see(delivery, &view);

	return version == NULL ? '-' : version->state;
}

static bool
is_recorded(const Row *row)
{
	View		view = sim_view(NULL);

	if (row->settled == NULL)
		return false;
	return row->settled->state == XACT_COMMITTED || sim_ledger_has(row->position, &view);
}

/* Successors may be sent: the relay itself has its ack, or it is recorded, or lets others by. */
static bool
lets_by(const Row *row)
{
	return (row->acked_by != 0 && row->acked_by == sim_self->incarnation) || is_recorded(row) || ever_was(row, "fx");
}

/* ---------- database ---------- */

static void
check_new_row(const Row *row)
{
	Row		  **rows;
	int			count;
	int			i = sim_log_search_aggregate(row->hash, row->position + 1, &rows, &count);

	if (row->position <= promised)
		sim_fail("position %lld commits below the watermark %lld", (long long) row->position, (long long) promised);
	for (; i < count; i++)
	{
		if (rows[i]->xact->state == XACT_COMMITTED && rows[i]->xact != row->xact)
			sim_fail("position %lld commits after position %lld of its aggregate",
					 (long long) row->position, (long long) rows[i]->position);
	}
}

void
sim_check_commit(Xact *xact)
{
	for (int i = xact->rows > 0 ? sim_log_search(0) : sim_log_count(); i < sim_log_count(); i++)
	{
		if (sim_log_at(i)->xact == xact)
			check_new_row(sim_log_at(i));
	}
	for (int i = sim_watermark.count; i-- > 0;)
	{
		if (sim_watermark.rows[i].xmin == xact && sim_watermark.rows[i].position > promised)
			promised = sim_watermark.rows[i].position;
	}
	/* After a crash nobody owns anything. */
	if (xact->owner_only && xact->owner != NULL && !sim_pg_is_owner(xact->owner, xact->slots))
		sim_fail("a relay records what only the owner of slots %llx may", (unsigned long long) xact->slots);
}

void
sim_check_owner(uint64_t hash, Xact *xact)
{
	if (xact->owner != NULL && xact->owner->role != SIM_RELAY)
		return;
	xact->owner_only = true;
	xact->slots |= UINT64_C(1) << (hash & 63);
}

/* Only what was acknowledged is recorded as published. */
void
sim_check_ledger(const Thing *ledger)
{
	for (int offset = 0; offset <= ledger->hi - ledger->lo; offset++)
	{
		Row		   *row;

		if (ledger->bits != NULL && (ledger->bits[offset / 8] & (1 << offset % 8)) == 0)
			continue;
		row = sim_log_find((ledger->position << 10) + ledger->lo + offset);
		if (row == NULL || row->acked_by == 0)
			sim_fail("position %lld is recorded as published without an ack",
					 (long long) (ledger->position << 10) + ledger->lo + offset);
		if (row->settled == NULL || row->settled->state == XACT_ABORTED)
			row->settled = ledger->xmin;
	}
}

void
sim_check_failure(Row *row, char state, bool counted, int attempts)
{
	bool		told = row->refusals > 0 && row->refused_by == sim_self->incarnation;

	if (state != 'r' && !counted)
		sim_fail("position %lld is a dead letter without a refusal of its own", (long long) row->position);
	if (!counted || row->flaw == FLAW_ROW)
		return;
	if (!told)
		sim_fail("position %lld has %d attempts, more than refusals that count", (long long) row->position, attempts);
	row->refusals--;
	if (state != 'r' && !row->refused_for_good && attempts < plan.max_attempts)
		sim_fail("position %lld is a dead letter after %d attempts", (long long) row->position, attempts);
	if (state == 'r' && row->refused_for_good)
		sim_fail("position %lld is refused for good, and yet to be tried again", (long long) row->position);
	if (state == 'r' && attempts >= plan.max_attempts)
		sim_fail("position %lld is to be tried again after %d attempts", (long long) row->position, attempts);
	row->refused_for_good = false;
}

/* By a relay: not what it has handed to the broker, which may be published in the next moment. */
void
sim_check_discarded(int64_t position)
{
	if (sim_broker_has(sim_self, position))
		sim_fail("position %lld is discarded while it is with the broker", (long long) position);
}

/* An operator has asked for something about the aggregate, and its relay hasn't seen to it. */
static bool
is_asked_for(uint64_t hash)
{
	View		view = sim_view(NULL);

	for (int i = 0; i < sim_request.count; i++)
	{
		if (sim_request.rows[i].hash == hash && sim_thing_seen(&sim_request.rows[i], &view))
			return true;
	}
	return false;
}

void
sim_check_parked(Row *row)
{
	Row		  **rows;
	int			count;

	(void) sim_log_search_aggregate(row->hash, 0, &rows, &count);
	if (is_recorded(row))
		sim_fail("position %lld is parked although it is published", (long long) row->position);
	for (int i = 0; i < count; i++)
	{
		/* Or its failure was redriven, and the relay hasn't heard of it yet. */
		if (ever_was(rows[i], "p") && (state_of(rows[i]) == 'p' || is_asked_for(row->hash)))
			return;
	}
	sim_fail("position %lld is parked, but no event of its aggregate has failed", (long long) row->position);
}

void
sim_check_watermark(int64_t watermark, const Xact *own)
{
	(void) own;
	for (int i = 0; i < sim_log_count(); i++)
	{
		const Row  *row = sim_log_at(i);

		if (row->position > watermark)
			return;
		if (row->xact->state != XACT_COMMITTED)
			sim_fail("watermark %lld passes position %lld of an open transaction",
					 (long long) watermark, (long long) row->position);
		if (!is_recorded(row) && strchr("fpx", state_of(row)) == NULL && !ever_was(row, "fpx"))
			sim_fail("watermark %lld passes position %lld, which isn't terminal", (long long) watermark, (long long) row->position);
	}
}

/* ---------- relay and broker ---------- */

/* The budget, but for one event, and for those of one transaction that must come together. */
void
sim_check_built(const Row *row)
{
	int64_t		budget = (int64_t) plan.relay_memory * 1024 / 2;

	if (sim_self->weight > budget + (int64_t) plan.event_size * plan.max_events)
		sim_fail("a relay holds %lld bytes of events and builds position %lld beyond its budget of %lld",
				 (long long) sim_self->weight, (long long) row->position, (long long) budget);
}

void
sim_check_sent(int64_t position, int64_t first, bool scheduled, int64_t in_flight_bytes, int in_flight)
{
	Row		   *row = sim_log_find(position);
	Row		  **rows;
	int			count;

	if (row == NULL || row->xact->state != XACT_COMMITTED)
		sim_fail("position %lld is sent, which isn't committed", (long long) position);
	if (!is_durable(row->xact))
		sim_fail("position %lld is sent before its commit is on disk", (long long) position);
	if (row->not_before > sim_now + sim_wall_offset_max && !scheduled)
		sim_fail("position %lld is sent before its time", (long long) position);
	if (in_flight > 0 && in_flight_bytes >= (int64_t) plan.relay_memory * 1024 / 4)
		sim_fail("position %lld is sent with %lld bytes in flight", (long long) position, (long long) in_flight_bytes);
	if (is_recorded(row) && !ever_was(row, "fpx") &&
		(row->acked_by == sim_self->incarnation || row->settled->csn <= sim_self->loaded_csn))
		sim_fail("position %lld is sent again, although it is recorded as published", (long long) position);
	(void) sim_log_search_aggregate(row->hash, 0, &rows, &count);
	for (int i = 0; plan.preserve_order && i < count && rows[i] != row; i++)
	{
		if (rows[i]->xact->state != XACT_COMMITTED)
			sim_fail("position %lld is sent before position %lld is committed", (long long) position, (long long) rows[i]->position);
		/* What precedes it in its own batch is stored with it; whether nothing is left out there, the stream sees. */
		if (rows[i]->position < first && !lets_by(rows[i]))
			sim_fail("position %lld is sent before its predecessor %lld is terminal",
					 (long long) position, (long long) rows[i]->position);
	}
}

/* First copies come in the order of commits. */
void
sim_check_stored(Row *row)
{
	Row		  **rows;
	int			count;

	sim_events_published += row->stored == 0;
	(void) sim_log_search_aggregate(row->hash, 0, &rows, &count);
	for (int i = 0; plan.preserve_order && row->stored == 0 && i < count && rows[i] != row; i++)
	{
		if (rows[i]->xact->state == XACT_COMMITTED && rows[i]->stored == 0 && !ever_was(rows[i], "fx"))
			sim_fail("position %lld is stored before position %lld of its aggregate",
					 (long long) row->position, (long long) rows[i]->position);
	}
}

void
sim_check_acked(Row *row)
{
	row->acked_by = sim_self->incarnation;
}

void
sim_check_refusal(Row *row, bool for_good)
{
	/* What another relay was told, and didn't record, is gone with it. */
	if (row->refused_by != sim_self->incarnation)
		row->refusals = 0;
	row->refusals++;
	row->refused_by = sim_self->incarnation;
	row->refused_for_good = for_good;
}

/* ---------- ends ---------- */

static bool
is_empty(const Table *table)
{
	View		view = sim_view(NULL);

	for (int i = 0; i < table->count; i++)
	{
		if (sim_thing_seen(&table->rows[i], &view))
			return false;
	}
	return true;
}

/* Published and recorded, or a dead letter. */
static bool
is_done(const Row *row, bool dead_too)
{
	char		state = state_of(row);

	if (state == 'x' || (dead_too && (state == 'f' || state == 'p' || state == 'b')))
		return true;
	return is_recorded(row) && (state == '-' || state == 'd');
}

bool
sim_is_settled(bool dead_too)
{
	Xact	   *prepared;

	snprintf(sim_unsettled, sizeof(sim_unsettled), "writers, prepared transactions or requests");
	if (!sim_server_is_up() || !sim_writers_are_done() || sim_xact_list_prepared(&prepared, 1) > 0 ||
		!is_empty(&sim_request) || !is_empty(&sim_pauses))
		return false;
	for (int i = 0; i < sim_log_count(); i++)
	{
		const Row  *row = sim_log_at(i);
		Row		  **rows;
		int			count;
		bool		waits = false;

		if (is_done(row, dead_too))
			continue;
		(void) sim_log_search_aggregate(row->hash, 0, &rows, &count);
		for (int k = 0; dead_too && k < count && rows[k] != row; k++)
			waits |= state_of(rows[k]) == 'b';
		if (waits)
			continue;
		snprintf(sim_unsettled, sizeof(sim_unsettled), "position %lld, state %c", (long long) row->position, state_of(row));
		return false;
	}
	return true;
}

/* What must be true when all has been done, and some time has passed. */
void
sim_check_end(void)
{
	View		view = sim_view(NULL);

	for (int i = 0; i < sim_log_count(); i++)
	{
		const Row  *row = sim_log_at(i);

		if (!is_done(row, false))
			sim_fail("position %lld is neither published nor discarded", (long long) row->position);
		if (state_of(row) != 'x' && row->stored == 0)
			sim_fail("position %lld is recorded as published, but isn't in the stream", (long long) row->position);
		for (int k = 0; k < SIM_RELAY_IMAGES; k++)
		{
			if (row->refusals > 0 && sim_procs[k].alive && sim_procs[k].incarnation == row->refused_by)
				sim_fail("%d refusals of position %lld were never recorded", row->refusals, (long long) row->position);
		}
	}
	if (sim_log_count() > 0 && sim_watermark_max(&view) < sim_log_at(sim_log_count() - 1)->position)
		sim_fail("the watermark has stopped at %lld", (long long) sim_watermark_max(&view));
	sim_pg_check_end();
}
