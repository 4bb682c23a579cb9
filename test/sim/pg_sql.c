/*
 * pg_sql.c
 *	  The SQL statements of the relay, one function for each; those about
 *	  operators' requests are in pg_sql_requests.c.
 *
 * A statement is known by its beginning and by a checksum of its whole text: who
 * changes one in src/ is told so by the first run, looks whether the function
 * here still does what the new text says, and takes over the new checksum.
 */
#include "sql.h"

#include "log.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

static void
one_int64(int64 value)
{
	sim_sql_add_result()->values[0] = Int64GetDatum(value);
}

Datum *
sim_sql_elements(Datum array, int *count)
{
	Datum	   *values = (Datum *) DatumGetPointer(array);

	*count = (int) values[0];
	return values + 1;
}

/* ---------- rows of outbox.delivery under a lock ---------- */

/* The row as it is once no other transaction is in the middle of changing it. */
const Version *
sim_sql_lock_delivery(Delivery *delivery)
{
	for (;;)
	{
		const Version *version = sim_delivery_newest(delivery);

		if (version == NULL || version->xact->state == XACT_COMMITTED || version->xact == sim_self->pg->xact)
			return version;
		sim_wait_for_xact(version->xact);
	}
}

void
sim_sql_write_delivery(Delivery *delivery, char state, int attempts, int64 next_at)
{
	sim_delivery_write(delivery, (Version) {state, attempts, next_at, sim_pg_xact(), NULL});
}

/* ---------- statements: loading ---------- */

static void
select_ledger(const Datum *values)
{
	sim_self->loaded_csn = sim_self->pg->view.csn;
	for (int i = 0; i < sim_ledger.count; i++)
	{
		const Thing *row = &sim_ledger.rows[i];
		ResultRow  *out;

		if (row->position < DatumGetInt64(values[0]) || !sim_thing_seen(row, &sim_self->pg->view))
			continue;
		out = sim_sql_add_result();
		out->values[0] = Int64GetDatum(row->position);
		out->values[1] = Int16GetDatum(row->lo);
		out->values[2] = Int16GetDatum(row->hi);
		out->nulls[3] = row->bits == NULL;
		if (row->bits != NULL)
		{
			int			size = (row->hi - row->lo + 8) / 8;
			bytea	   *bits = palloc(VARHDRSZ + size);

			SET_VARSIZE(bits, VARHDRSZ + size);
			memcpy(VARDATA(bits), row->bits, size);
			out->values[3] = PointerGetDatum(bits);
		}
	}
}

static const Version *
seen(int i, const View *view)
{
	return sim_delivery_see(sim_delivery_at(i), view);
}

static void
select_terminal(const Datum *values)
{
	for (int i = 0; i < sim_delivery_count(); i++)
	{
		const Version *version = seen(i, &sim_self->pg->view);

		if (version != NULL && strchr("fpx", version->state) != NULL && sim_delivery_at(i)->position > DatumGetInt64(values[0]))
			one_int64(sim_delivery_at(i)->position);
	}
}

static void
select_parked(const Datum *values)
{
	for (int i = 0; i < sim_delivery_count(); i++)
	{
		const Version *version = seen(i, &sim_self->pg->view);

		/* More often than DISTINCT would, which makes no difference to who asks. */
		if (version != NULL && version->state == DELIVERY_PARKED)
			one_int64((int64) sim_delivery_at(i)->hash);
	}
}

static void
select_waiting(const Datum *values)
{
	for (int i = 0; i < sim_delivery_count(); i++)
	{
		const Delivery *delivery = sim_delivery_at(i);
		const Version *version = seen(i, &sim_self->pg->view);
		ResultRow  *out;

		if (version == NULL || (version->state != DELIVERY_RETRY && version->state != DELIVERY_BLOCKING))
			continue;
		out = sim_sql_add_result();
		out->values[0] = Int64GetDatum(delivery->position);
		out->values[1] = Int64GetDatum((int64) delivery->hash);
		out->values[2] = TimestampTzGetDatum(sim_log_find(delivery->position)->created);
		out->values[3] = TimestampTzGetDatum(version->next_at);
		out->nulls[3] = version->next_at == SIM_NEVER;
		out->values[4] = Int32GetDatum(version->attempts);
		out->values[5] = CharGetDatum(version->state);
	}
}

/* ORDER BY aggregate_type, subject; a NULL comes last. */
static int
pause_rank(const Thing *pause)
{
	if (pause->type < 0)
		return INT_MAX;
	return (pause->by_subject ? INT_MAX / 2 : 0) + pause->type;
}

static int
compare_pauses(const void *a, const void *b)
{
	int			left = pause_rank((const Thing *) DatumGetPointer(((const ResultRow *) a)->values[0]));
	int			right = pause_rank((const Thing *) DatumGetPointer(((const ResultRow *) b)->values[0]));

	return left < right ? -1 : left > right;
}

static void
select_pauses(const Datum *values)
{
	ResultRow  *first = NULL;

	for (int i = 0; i < sim_pauses.count; i++)
	{
		ResultRow  *row;

		if (!sim_thing_seen(&sim_pauses.rows[i], &sim_self->pg->view))
			continue;
		row = sim_sql_add_result();
		row->values[0] = PointerGetDatum(&sim_pauses.rows[i]);
		first = row - (SPI_processed - 1);
	}
	if (first != NULL)
		qsort(first, SPI_processed, sizeof(ResultRow), compare_pauses);
}

/* ---------- statements: the start of a server ---------- */

static void
select_cache(const Datum *values)
{
	one_int64(1);
}

static void
select_last_position(const Datum *values)
{
	one_int64(sim_sequence_last());
}

static void
select_ring(const Datum *values)
{
}

static void
select_prepared(const Datum *values)
{
	Xact	   *list[64];
	int			count = sim_xact_list_prepared(list, lengthof(list));

	for (int i = 0; i < count; i++)
		sim_sql_add_result()->values[0] = TransactionIdGetDatum(list[i]->xid);
}

static void
select_watermark(const Datum *values)
{
	one_int64(sim_watermark_max(&sim_self->pg->view));
}

/* ---------- statements: records ---------- */

static void
select_first_parked(const Datum *values)
{
	for (int i = 0; i < sim_delivery_count() && SPI_processed == 0; i++)
	{
		const Version *version = seen(i, &sim_self->pg->view);

		if (version != NULL && version->state == DELIVERY_PARKED && sim_delivery_at(i)->hash == (uint64) DatumGetInt64(values[0]))
			one_int64(sim_delivery_at(i)->position);
	}
}

static void
insert_parked(const Datum *values)
{
	int			count;
	const Datum *positions = sim_sql_elements(values[0], &count);

	for (int i = 0; i < count; i++)
	{
		Delivery   *delivery = sim_delivery_find(DatumGetInt64(positions[i]), true, (uint64) DatumGetInt64(values[1]));
		const Version *version;

		version = sim_sql_lock_delivery(delivery);
		if (version != NULL && version->state != DELIVERY_RETRY)
			continue;
		sim_check_parked(sim_log_find(delivery->position));
		sim_sql_write_delivery(delivery, DELIVERY_PARKED, version == NULL ? 0 : version->attempts, SIM_NEVER);
		sim_check_owner(delivery->hash, sim_pg_xact());
		sim_trace("parks position %lld", delivery->position);
	}
}

static void
insert_failures(const Datum *values)
{
	int			count;
	const Datum *positions = sim_sql_elements(values[0], &count);
	const Datum *hashes = sim_sql_elements(values[1], &count);
	const Datum *states = sim_sql_elements(values[2], &count);
	const Datum *attempts = sim_sql_elements(values[3], &count);
	const Datum *next_at = sim_sql_elements(values[4], &count);

	for (int i = 0; i < count; i++)
	{
		Delivery   *delivery = sim_delivery_find(DatumGetInt64(positions[i]), true, (uint64) DatumGetInt64(hashes[i]));
		const Version *version = sim_sql_lock_delivery(delivery);
		char		state = DatumGetChar(states[i]);
		int			total = (version == NULL ? 0 : version->attempts) + DatumGetInt32(attempts[i]);

		if (version != NULL && version->xact == sim_self->pg->xact)
			sim_fail("ON CONFLICT DO UPDATE would change the row of position %lld twice", (long long) delivery->position);
		sim_sql_write_delivery(delivery, state, total, state == DELIVERY_RETRY ? DatumGetTimestampTz(next_at[i]) : SIM_NEVER);
		sim_trace("records failure of position %lld, state %c, attempts %lld", delivery->position, state, total);
		sim_check_failure(sim_log_find(delivery->position), state, DatumGetInt32(attempts[i]) > 0, total);
		sim_check_owner(delivery->hash, sim_pg_xact());
		sim_maybe_pass();
	}
}

static void
close_deliveries(const Datum *values)
{
	View		view = sim_pg_view();
	int			count;
	const Datum *positions = sim_sql_elements(values[0], &count);

	for (int i = 0; i < count; i++)
	{
		Delivery   *delivery = sim_delivery_find(DatumGetInt64(positions[i]), false, 0);
		const Version *version;

		if (delivery == NULL || sim_delivery_see(delivery, &view) == NULL)
			continue;
		version = sim_sql_lock_delivery(delivery);
		sim_sql_write_delivery(delivery, DELIVERY_DONE, version->attempts + 1, SIM_NEVER);
		sim_check_owner(delivery->hash, sim_pg_xact());
	}
}

static void
insert_watermark(const Datum *values)
{
	int64		position = DatumGetInt64(values[0]);

	for (int i = 0; i < sim_watermark.count; i++)
	{
		Thing	   *row = &sim_watermark.rows[i];

		if (row->position != position || row->xmin->state == XACT_ABORTED)
			continue;
		if (row->xmin->state != XACT_COMMITTED && row->xmin != sim_self->pg->xact)
			sim_wait_for_xact(row->xmin);
		if (row->xmin->state != XACT_ABORTED)
			return;
	}
	sim_check_watermark(position, sim_self->pg->xact);
	(void) sim_table_add(&sim_watermark, (Thing) {.xmin = sim_pg_xact(), .position = position});
	sim_pg_xact()->owner_only = true;
	sim_trace("writes watermark %lld", position);
}

static void
trim_watermark(const Datum *values)
{
}

/* ---------- which statement ---------- */

const SqlStatement sim_sql_statements[] = {
	{"SELECT bucket, lo, hi, bits FROM outbox.ledger", UINT64CONST(0x1B43A59AB382E6F8), select_ledger, false},
	{"SELECT position FROM outbox.delivery WHERE position > $1", UINT64CONST(0xF67972FB958C00C4), select_terminal, false},
	{"SELECT DISTINCT agg_hash FROM outbox.delivery", UINT64CONST(0xCA8F5E47A420197D), select_parked, false},
	{"SELECT d.position, d.agg_hash, l.created_at", UINT64CONST(0x8361CB774CF89848), select_waiting, false},
	{"SELECT aggregate_type, subject FROM outbox.pauses", UINT64CONST(0x24DC172B52539931), select_pauses, false},
	{"SELECT seqcache FROM", UINT64CONST(0xE42C101B5C796DD2), select_cache, false},
	{"SELECT CASE WHEN is_called", UINT64CONST(0x35450E2C41575E20), select_last_position, false},
	{"SELECT child::integer, coalesce(last_position", UINT64CONST(0x8BAAE69213DE0A4D), select_ring, false},
	{"SELECT transaction FROM pg_catalog.pg_prepared_xacts", UINT64CONST(0x96A8755ED6DA26C7), select_prepared, false},
	{"SELECT max(position) FROM outbox.watermark", UINT64CONST(0xD1A4A5071A086560), select_watermark, false},
	{"SELECT q.id, q.kind, q.agg_hash, q.position", UINT64CONST(0x9AEF6A8F7C367EFE), sim_sql_select_requests, false},
	{"DELETE FROM outbox.request", UINT64CONST(0xEDB2B29E5BAC63ED), sim_sql_delete_requests, true},
	{"UPDATE outbox.delivery SET state = 'r'", UINT64CONST(0x926A7C9A747EBBE9), sim_sql_unpark, true},
	{"SELECT FROM outbox.delivery WHERE agg_hash = $1 AND state = 'p' FOR NO KEY UPDATE SKIP LOCKED", UINT64CONST(0xE863B91059171FBB), sim_sql_lock_parked, true},
	{"SELECT FROM outbox.delivery WHERE agg_hash = $1 AND state = 'p' LIMIT 1", UINT64CONST(0x967B016E85ED849A), sim_sql_select_one_parked, false},
	{"SELECT FROM outbox.delivery WHERE agg_hash = $1 AND state = 'p'", UINT64CONST(0xB655B1926BE50992), sim_sql_count_parked, false},
	{"SELECT FROM outbox.delivery WHERE position = $1 FOR NO KEY UPDATE SKIP LOCKED", UINT64CONST(0x6D122600F397C3BF), sim_sql_lock_position, true},
	{"SELECT FROM outbox.delivery WHERE position = $1", UINT64CONST(0xB16971C833AFB4AE), sim_sql_count_position, false},
	{"SELECT position FROM outbox.delivery WHERE agg_hash = $1 AND state = 'p' ORDER BY agg_hash, position LIMIT 1", UINT64CONST(0x497AAEDFC334F1A3), select_first_parked, false},
	{"INSERT INTO outbox.delivery AS d (position, agg_hash, state, attempts, last_code, last_error, failed_at, discarded_at", UINT64CONST(0x48BD72F4B1A9C86), sim_sql_discard, true},
	{"INSERT INTO outbox.delivery AS d (position, agg_hash, state, attempts, last_code, last_error, failed_at)", UINT64CONST(0x1A00A2F1BC444078), insert_parked, true},
	{"INSERT INTO outbox.delivery AS d (position, agg_hash, state, attempts, next_attempt_at", UINT64CONST(0x442CB51E5722B604), insert_failures, true},
	{"UPDATE outbox.delivery SET state = 'd'", UINT64CONST(0x324581A13BEDAAB5), close_deliveries, true},
	{"INSERT INTO outbox.watermark", UINT64CONST(0x4A30EE3C4DD2535A), insert_watermark, true},
	{"DELETE FROM outbox.watermark", UINT64CONST(0x463C412F2472D1CE), trim_watermark, true},
};

const int	sim_sql_statement_count = lengthof(sim_sql_statements);
