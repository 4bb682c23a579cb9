/*
 * pg_sql_requests.c
 *	  The SQL statements by which the relay does what operators have asked for.
 */
#include "sql.h"

#include "log.h"
#include "utils/builtins.h"

void
sim_sql_select_requests(const Datum *values)
{
	uint64		slots = (uint64) DatumGetInt64(values[0]);

	for (int i = 0; i < sim_request.count && SPI_processed < 1000; i++)
	{
		const Thing *row = &sim_request.rows[i];
		ResultRow  *out;

		if ((slots >> (row->hash & 63) & 1) == 0 || !sim_thing_seen(row, &sim_self->pg->view))
			continue;
		out = sim_sql_add_result();
		out->values[0] = Int64GetDatum(row->id);
		out->values[1] = CharGetDatum(row->kind);
		out->values[2] = Int64GetDatum((int64) row->hash);
		out->values[3] = Int64GetDatum(row->position);
		out->values[4] = TimestampTzGetDatum(sim_log_find(row->position)->created);
	}
}

void
sim_sql_delete_requests(const Datum *values)
{
	int			count;
	const Datum *ids = sim_sql_elements(values[0], &count);

	for (int i = 0; i < count; i++)
	{
		Thing	   *row = &sim_request.rows[DatumGetInt64(ids[i]) - 1];

		if (row->xmax != NULL && row->xmax->state != XACT_ABORTED)
		{
			sim_wait_for_xact(row->xmax);
			if (row->xmax->state == XACT_COMMITTED)
				continue;
		}
		row->xmax = sim_pg_xact();
		sim_check_owner(row->hash, row->xmax);
	}
}

void
sim_sql_unpark(const Datum *values)
{
	uint64		hash = (uint64) DatumGetInt64(values[0]);
	View		view = sim_pg_view();

	for (int i = 0; i < sim_delivery_count(); i++)
	{
		Delivery   *delivery = sim_delivery_at(i);
		const Version *version = sim_delivery_see(sim_delivery_at(i), &view);

		if (delivery->hash != hash || version == NULL || version->state != DELIVERY_PARKED)
			continue;
		version = sim_sql_lock_delivery(delivery);
		if (version->state == DELIVERY_PARKED)
			sim_sql_write_delivery(delivery, DELIVERY_RETRY, 0, version->next_at);
	}
}

/* Counts rows, which have no columns: of one position, or an aggregate's parked ones. */
static void
count_seen(bool (*wanted)(const Delivery *delivery, const Version *version, int64 key), int64 key, uint64 limit)
{
	View		view = sim_pg_view();

	for (int i = 0; i < sim_delivery_count() && SPI_processed < limit; i++)
	{
		const Version *version = sim_delivery_see(sim_delivery_at(i), &view);

		if (version != NULL && wanted(sim_delivery_at(i), version, key))
			(void) sim_sql_add_result();
	}
}

/* FOR NO KEY UPDATE SKIP LOCKED: a row is locked by a version that says the same. */
static void
lock_seen(bool (*wanted)(const Delivery *delivery, const Version *version, int64 key), int64 key)
{
	View		view = sim_pg_view();

	for (int i = 0; i < sim_delivery_count(); i++)
	{
		Delivery   *delivery = sim_delivery_at(i);
		const Version *version = sim_delivery_see(sim_delivery_at(i), &view);

		if (version == NULL || !wanted(delivery, version, key))
			continue;
		version = sim_delivery_newest(delivery);
		if ((version->xact->state != XACT_COMMITTED && version->xact != sim_self->pg->xact) || !wanted(delivery, version, key))
			continue;
		sim_sql_write_delivery(delivery, version->state, version->attempts, version->next_at);
		(void) sim_sql_add_result();
	}
}

static bool
is_parked_of(const Delivery *delivery, const Version *version, int64 key)
{
	return delivery->hash == (uint64) key && version->state == DELIVERY_PARKED;
}

static bool
is_position(const Delivery *delivery, const Version *version, int64 key)
{
	return delivery->position == key;
}

void
sim_sql_lock_parked(const Datum *values)
{
	lock_seen(is_parked_of, DatumGetInt64(values[0]));
}

void
sim_sql_count_parked(const Datum *values)
{
	count_seen(is_parked_of, DatumGetInt64(values[0]), PG_UINT64_MAX);
}

void
sim_sql_lock_position(const Datum *values)
{
	lock_seen(is_position, DatumGetInt64(values[0]));
}

void
sim_sql_count_position(const Datum *values)
{
	count_seen(is_position, DatumGetInt64(values[0]), PG_UINT64_MAX);
}

void
sim_sql_select_one_parked(const Datum *values)
{
	count_seen(is_parked_of, DatumGetInt64(values[0]), 1);
}

void
sim_sql_discard(const Datum *values)
{
	const Thing *request = &sim_request.rows[DatumGetInt64(values[0]) - 1];
	View		view = sim_pg_view();
	Delivery   *delivery;
	const Version *version;

	if (!sim_thing_seen(request, &view) || sim_ledger_has(request->position, &view))
		return;
	delivery = sim_delivery_find(request->position, true, request->hash);
	version = sim_sql_lock_delivery(delivery);
	if (version == NULL)
		sim_sql_write_delivery(delivery, DELIVERY_DISCARDED, 0, SIM_NEVER);
	else if (strchr("rbfp", version->state) != NULL)
		sim_sql_write_delivery(delivery, DELIVERY_DISCARDED, version->attempts, SIM_NEVER);
	sim_check_owner(request->hash, sim_pg_xact());
	sim_check_discarded(request->position);
	sim_trace("discards position %lld", request->position);
}
