/*
 * meter.c
 *	  Counts and measures in shared memory, for the views of 35-status.sql.
 *
 * Writers use atomic operations and never wait, so commit callbacks may call
 * outbox_meter_time() and outbox_meter_flow(): they allocate nothing and raise
 * nothing. Readers take no lock but for the errors; what they see of several
 * counters need not be of one moment. Groups are added, never removed, and the
 * caller of outbox_meter_group() and outbox_meter_error() holds status_lock
 * exclusively. Knows nothing of relays or tables.
 */
#include "meter.h"

#include "port/pg_bitutils.h"

/* Where there is no place left. */
#define OTHERS "(others)"

void
outbox_meter_init_counts(OutboxCounts *counts)
{
	for (int i = 0; i < OUTBOX_COUNTERS; i++)
		pg_atomic_init_u64(&counts->counts[i], 0);
	pg_atomic_init_u64(&counts->last_published, 0);
}

/* At server start. */
void
outbox_meter_init(OutboxMeters *meters)
{
	pg_atomic_init_u64(&meters->reset_at, 0);
	pg_atomic_init_u32(&meters->group_count, 0);
	for (int stage = 0; stage < OUTBOX_STAGES; stage++)
	{
		for (int i = 0; i < OUTBOX_BUCKETS; i++)
			pg_atomic_init_u64(&meters->stages[stage].counts[i], 0);
		pg_atomic_init_u64(&meters->stages[stage].sum, 0);
		pg_atomic_init_u64(&meters->stages[stage].max, 0);
	}
	for (int kind = 0; kind < OUTBOX_FLOWS; kind++)
	{
		for (int i = 0; i < OUTBOX_MINUTES; i++)
			pg_atomic_init_u64(&meters->minutes[kind][i], 0);
	}
	for (int i = 0; i < OUTBOX_GROUPS; i++)
		outbox_meter_init_counts(&meters->groups[i].counts);
}

void
outbox_meter_clear_counts(OutboxCounts *counts)
{
	for (int i = 0; i < OUTBOX_COUNTERS; i++)
		pg_atomic_write_u64(&counts->counts[i], 0);
	pg_atomic_write_u64(&counts->last_published, 0);
}

/* All to zero; groups keep their places, which relays remember. The caller holds status_lock, or nobody else is there. */
void
outbox_meter_clear(OutboxMeters *meters)
{
	for (int stage = 0; stage < OUTBOX_STAGES; stage++)
	{
		for (int i = 0; i < OUTBOX_BUCKETS; i++)
			pg_atomic_write_u64(&meters->stages[stage].counts[i], 0);
		pg_atomic_write_u64(&meters->stages[stage].sum, 0);
		pg_atomic_write_u64(&meters->stages[stage].max, 0);
	}
	for (int kind = 0; kind < OUTBOX_FLOWS; kind++)
	{
		for (int i = 0; i < OUTBOX_MINUTES; i++)
			pg_atomic_write_u64(&meters->minutes[kind][i], 0);
	}
	for (int i = 0; i < OUTBOX_GROUPS; i++)
		outbox_meter_clear_counts(&meters->groups[i].counts);
	memset(meters->errors, 0, sizeof(meters->errors));
}

/* ---------------------------------------------------------------- latencies */

static int
bucket_of(uint64 us)
{
	int			power;

	if (us < (1 << OUTBOX_SUB_BITS))
		return (int) us;
	power = pg_leftmost_one_pos64(us);
	return Min(((power - OUTBOX_SUB_BITS + 1) << OUTBOX_SUB_BITS) + (int) (us >> (power - OUTBOX_SUB_BITS) & ((1 << OUTBOX_SUB_BITS) - 1)),
			   OUTBOX_BUCKETS - 1);
}

/* The first microsecond that isn't in this bucket any more. */
int64
outbox_meter_bucket_end(int bucket)
{
	int			power = (bucket >> OUTBOX_SUB_BITS) - 1;
	int			sub = bucket & ((1 << OUTBOX_SUB_BITS) - 1);

	if (power < 0)
		return bucket + 1;
	return (INT64CONST(1) * ((1 << OUTBOX_SUB_BITS) + sub + 1)) << power;
}

/* So many events took so long. A clock that was set back in between counts as no time. */
void
outbox_meter_time(OutboxMeters *meters, OutboxStage stage, int64 us, uint64 times)
{
	OutboxHistogram *histogram = &meters->stages[stage];
	uint64		value = Max(us, 0);
	uint64		max = pg_atomic_read_u64(&histogram->max);

	pg_atomic_fetch_add_u64(&histogram->counts[bucket_of(value)], times);
	pg_atomic_fetch_add_u64(&histogram->sum, value * times);
	while (max < value && !pg_atomic_compare_exchange_u64(&histogram->max, &max, value))
		;
}

/* --------------------------------------------------------------- throughput */

void
outbox_meter_flow(OutboxMeters *meters, OutboxFlowKind kind, TimestampTz now, uint64 count)
{
	uint64		minute = outbox_meter_minute_of(now);
	pg_atomic_uint64 *word = &meters->minutes[kind][minute % OUTBOX_MINUTES];
	uint64		old = pg_atomic_read_u64(word);
	uint64		new;

	if (count == 0)
		return;
	do
	{
		if (old >> OUTBOX_MINUTE_SHIFT == minute)
			new = old + count;
		else
			new = minute << OUTBOX_MINUTE_SHIFT | count;
	} while (!pg_atomic_compare_exchange_u64(word, &old, new));
}

/* The count of a minute, 0 if it has gone out of the ring. */
uint64
outbox_meter_minute(OutboxMeters *meters, OutboxFlowKind kind, int64 minute)
{
	uint64		word = pg_atomic_read_u64(&meters->minutes[kind][minute % OUTBOX_MINUTES]);

	if (word >> OUTBOX_MINUTE_SHIFT != minute)
		return 0;
	return word & ((UINT64CONST(1) << OUTBOX_MINUTE_SHIFT) - 1);
}

/* ------------------------------------------------------------ groups, errors */

static OutboxGroup *
find_group(OutboxMeters *meters, char kind, const char *name)
{
	uint32		count = pg_atomic_read_u32(&meters->group_count);

	for (uint32 i = 0; i < count; i++)
	{
		if (meters->groups[i].kind == kind && strncmp(meters->groups[i].name, name, OUTBOX_GROUP_NAME - 1) == 0)
			return &meters->groups[i];
	}
	return NULL;
}

/*
 * The group of that name, which stays where it is. A name is cut to what there
 * is room for; when all places are taken, what is new counts as "(others)".
 */
OutboxGroup *
outbox_meter_group(OutboxMeters *meters, char kind, const char *name)
{
	OutboxGroup *group = find_group(meters, kind, name);
	uint32		count = pg_atomic_read_u32(&meters->group_count);

	/* The last two are kept for the others of both kinds. */
	if (group == NULL && count >= OUTBOX_GROUPS - 2)
	{
		name = OTHERS;
		group = find_group(meters, kind, name);
	}
	if (group != NULL)
		return group;
	group = &meters->groups[count];
	group->kind = kind;
	strlcpy(group->name, name, sizeof(group->name));
	pg_write_barrier();
	pg_atomic_write_u32(&meters->group_count, count + 1);
	return group;
}

void
outbox_meter_error(OutboxMeters *meters, const char *source, int code, OutboxErrorClass class, const char *text, TimestampTz now)
{
	OutboxErrorCount *entry = meters->errors;
	OutboxErrorCount *last = &meters->errors[OUTBOX_ERROR_CODES - 1];

	while (entry < last && entry->source[0] != '\0' &&
		   !(entry->code == code && entry->class == class && strcmp(entry->source, source) == 0))
		entry++;
	strlcpy(entry->source, entry == last ? OTHERS : source, sizeof(entry->source));
	entry->code = entry == last ? 0 : code;
	entry->class = class;
	entry->count++;
	entry->last_at = now;
	strlcpy(entry->last_error, text, sizeof(entry->last_error));
}
