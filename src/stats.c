/*
 * stats.c
 *	  What SQL sees of the meters: counters, latencies, throughput by minute,
 *	  and their reset.
 *
 * All of it is of the current database and comes from shared memory, without a
 * lock but a short one for the errors' texts. Without the preloaded library
 * there is nothing to show.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"

PG_FUNCTION_INFO_V1(outbox_library_version);
PG_FUNCTION_INFO_V1(outbox_relay_counters);
PG_FUNCTION_INFO_V1(outbox_group_counters);
PG_FUNCTION_INFO_V1(outbox_code_counters);
PG_FUNCTION_INFO_V1(outbox_latency_figures);
PG_FUNCTION_INFO_V1(outbox_latency_buckets);
PG_FUNCTION_INFO_V1(outbox_minute_counts);
PG_FUNCTION_INFO_V1(outbox_stats_reset_at);
PG_FUNCTION_INFO_V1(outbox_reset_stats);

#define MAX_COLUMNS 12

/* A row that is being made. */
typedef struct Row
{
	Datum		values[MAX_COLUMNS];
	bool		nulls[MAX_COLUMNS];
	int			count;
} Row;

static const char *const stage_names[OUTBOX_STAGES] = {"enqueue to commit", "commit to ack", "ack to settle"};

/* The current database's shared memory; NULL: none. */
static OutboxDatabase *
own_database(void)
{
	return outbox_shared == NULL ? NULL : outbox_shmem_find(MyDatabaseId);
}

/* The same, for a function that returns rows of it by put_row(). */
static OutboxDatabase *
begin_rows(FunctionCallInfo fcinfo)
{
	InitMaterializedSRF(fcinfo, 0);
	return own_database();
}

static void
put(Row *row, Datum value, bool isnull)
{
	row->nulls[row->count] = isnull;
	row->values[row->count++] = value;
}

static void
put_text(Row *row, const char *text)
{
	put(row, CStringGetTextDatum(text), false);
}

static void
put_int64(Row *row, int64 value)
{
	put(row, Int64GetDatum(value), false);
}

static void
put_float(Row *row, double value, bool isnull)
{
	put(row, Float8GetDatum(value), isnull);
}

/* 0 is no time. */
static void
put_time(Row *row, TimestampTz time)
{
	put(row, TimestampTzGetDatum(time), time == 0);
}

static void
put_row(FunctionCallInfo fcinfo, Row *row)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;

	tuplestore_putvalues(result->setResult, result->setDesc, row->values, row->nulls);
}

/* outbox.library_version(): of the loaded library, whatever the extension's. */
Datum
outbox_library_version(PG_FUNCTION_ARGS)
{
	PG_RETURN_TEXT_P(cstring_to_text(OUTBOX_VERSION));
}

/* --------------------------------------------------------------- counters */

/* The counters up to this one, and when an event was published last. */
static void
put_counts(Row *row, OutboxCounts *counts, int last)
{
	for (int i = 0; i <= last; i++)
		put_int64(row, pg_atomic_read_u64(&counts->counts[i]));
	put_time(row, pg_atomic_read_u64(&counts->last_published));
}

/* outbox.relay_counters(): places that have a relay, or had one that has counted something. */
Datum
outbox_relay_counters(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = begin_rows(fcinfo);

	for (int i = 0; database != NULL && i < OUTBOX_MAX_RELAYS; i++)
	{
		OutboxPlace *place = &database->places[i];
		int			pid = pg_atomic_read_u32(&place->pid);
		bool		any = pid != 0;
		Row			row = {.count = 0};

		for (int c = 0; c < OUTBOX_COUNTERS; c++)
			any = any || pg_atomic_read_u64(&place->counts.counts[c]) != 0;
		if (!any)
			continue;
		put(&row, Int32GetDatum(i), false);
		put(&row, Int32GetDatum(pid), pid == 0);
		put_time(&row, pg_atomic_read_u64(&place->late_since));
		put_counts(&row, &place->counts, OUTBOX_COUNT_CONNECTS);
		put_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* outbox.group_counters(kind "char"): of streams ('s') or aggregate types ('t'). */
Datum
outbox_group_counters(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = begin_rows(fcinfo);
	uint32		count = database == NULL ? 0 : pg_atomic_read_u32(&database->meters.group_count);

	pg_read_barrier();
	for (uint32 i = 0; i < count; i++)
	{
		OutboxGroup *group = &database->meters.groups[i];
		Row			row = {.count = 0};

		if (group->kind != PG_GETARG_CHAR(0))
			continue;
		put_text(&row, group->name);
		put_counts(&row, &group->counts, OUTBOX_COUNT_DEAD);
		put_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* outbox.code_counters(): failed attempts, by who said so and by code. */
Datum
outbox_code_counters(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = begin_rows(fcinfo);
	OutboxErrorCount *errors = palloc(sizeof(OutboxErrorCount) * OUTBOX_ERROR_CODES);

	if (database == NULL)
		return (Datum) 0;
	LWLockAcquire(&database->status_lock, LW_SHARED);
	memcpy(errors, database->meters.errors, sizeof(OutboxErrorCount) * OUTBOX_ERROR_CODES);
	LWLockRelease(&database->status_lock);
	for (int i = 0; i < OUTBOX_ERROR_CODES; i++)
	{
		Row			row = {.count = 0};

		if (errors[i].count == 0)
			continue;
		put_text(&row, outbox_error_class_name(errors[i].class));
		put_text(&row, errors[i].source);
		put(&row, Int32GetDatum(errors[i].code), false);
		put_int64(&row, errors[i].count);
		put_time(&row, errors[i].last_at);
		put_text(&row, errors[i].last_error);
		put_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* -------------------------------------------------------------- latencies */

/* A copy to reckon with; returns the number of samples in it. */
static uint64
copy_counts(OutboxHistogram *histogram, uint64 *counts)
{
	uint64		total = 0;

	for (int i = 0; i < OUTBOX_BUCKETS; i++)
		total += counts[i] = pg_atomic_read_u64(&histogram->counts[i]);
	return total;
}

/* The end of the bucket that this part of all samples lies below, in ms; no more than the longest. */
static double
percentile(const uint64 *counts, uint64 total, double part, int64 max)
{
	uint64		below = 0;

	for (int i = 0; i < OUTBOX_BUCKETS; i++)
	{
		below += counts[i];
		if (below >= total * part)
			return Min(outbox_meter_bucket_end(i), max) / 1000.0;
	}
	return max / 1000.0;
}

/* outbox.latency_figures() */
Datum
outbox_latency_figures(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = begin_rows(fcinfo);
	uint64		counts[OUTBOX_BUCKETS];

	for (int stage = 0; database != NULL && stage < OUTBOX_STAGES; stage++)
	{
		OutboxHistogram *histogram = &database->meters.stages[stage];
		uint64		total = copy_counts(histogram, counts);
		int64		max = pg_atomic_read_u64(&histogram->max);
		Row			row = {.count = 0};

		put_text(&row, stage_names[stage]);
		put_int64(&row, total);
		put_float(&row, total == 0 ? 0 : pg_atomic_read_u64(&histogram->sum) / 1000.0 / total, total == 0);
		put_float(&row, percentile(counts, total, 0.5, max), total == 0);
		put_float(&row, percentile(counts, total, 0.95, max), total == 0);
		put_float(&row, percentile(counts, total, 0.99, max), total == 0);
		put_float(&row, max / 1000.0, total == 0);
		put_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* Powers of two from 2^7 (128) to 2^29 us (9 minutes): where Prometheus' buckets end. */
#define FIRST_POWER 7
#define LAST_POWER 29
#define POWERS (LAST_POWER - FIRST_POWER + 1)

static void
put_array(Row *row, Datum *values, Oid type)
{
	ArrayType  *array = construct_array(values, POWERS, type, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE);

	put(row, PointerGetDatum(array), false);
}

/* outbox.latency_buckets(): the same as cumulative histograms, in seconds. */
Datum
outbox_latency_buckets(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = begin_rows(fcinfo);
	uint64		counts[OUTBOX_BUCKETS];

	for (int stage = 0; database != NULL && stage < OUTBOX_STAGES; stage++)
	{
		OutboxHistogram *histogram = &database->meters.stages[stage];
		uint64		total = copy_counts(histogram, counts);
		Datum		ends[POWERS];
		Datum		below[POWERS];
		uint64		sum = 0;
		int			bucket = 0;
		Row			row = {.count = 0};

		for (int i = 0; i < POWERS; i++)
		{
			int64		end = INT64CONST(1) << (FIRST_POWER + i);

			for (; outbox_meter_bucket_end(bucket) <= end; bucket++)
				sum += counts[bucket];
			ends[i] = Float8GetDatum(end / 1e6);
			below[i] = Int64GetDatum(sum);
		}
		put_text(&row, stage_names[stage]);
		put_array(&row, ends, FLOAT8OID);
		put_array(&row, below, INT8OID);
		put_float(&row, pg_atomic_read_u64(&histogram->sum) / 1e6, false);
		put_int64(&row, total);
		put_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* -------------------------------------------------------------- throughput */

/* outbox.minute_counts(): a row for each minute that is kept, oldest first; the last one isn't over yet. */
Datum
outbox_minute_counts(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = begin_rows(fcinfo);
	TimestampTz	now = GetCurrentTimestamp();
	TimestampTz	minute = now - now % USECS_PER_MINUTE - (OUTBOX_MINUTES - 1) * USECS_PER_MINUTE;

	for (; database != NULL && minute <= now; minute += USECS_PER_MINUTE)
	{
		Row			row = {.count = 0};

		put_time(&row, minute);
		for (int kind = 0; kind < OUTBOX_FLOWS; kind++)
			put_int64(&row, outbox_meter_minute(&database->meters, kind, outbox_meter_minute_of(minute)));
		put_row(fcinfo, &row);
	}
	return (Datum) 0;
}

/* ------------------------------------------------------------------- reset */

/* outbox.stats_reset_at(); NULL: they are as old as the server. */
Datum
outbox_stats_reset_at(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = own_database();
	TimestampTz	at = database == NULL ? 0 : pg_atomic_read_u64(&database->meters.reset_at);

	if (at == 0)
		PG_RETURN_NULL();
	PG_RETURN_TIMESTAMPTZ(at);
}

/* outbox.reset_stats() */
Datum
outbox_reset_stats(PG_FUNCTION_ARGS)
{
	OutboxDatabase *database = own_database();

	if (database == NULL)
		PG_RETURN_VOID();
	LWLockAcquire(&database->status_lock, LW_EXCLUSIVE);
	outbox_meter_clear(&database->meters);
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
		outbox_meter_clear_counts(&database->places[i].counts);
	pg_atomic_write_u64(&database->meters.reset_at, GetCurrentTimestamp());
	LWLockRelease(&database->status_lock);
	PG_RETURN_VOID();
}
