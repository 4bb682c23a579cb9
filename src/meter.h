/*
 * meter.h
 *	  What is counted and measured in shared memory: latencies, throughput by
 *	  minute, counters per relay, stream and aggregate type, errors by code.
 */
#ifndef OUTBOX_METER_H
#define OUTBOX_METER_H

#include "postgres.h"

#include "port/atomics.h"
#include "utils/timestamp.h"

#include "error_class.h"

/* The stages of an event's way that are timed. */
typedef enum OutboxStage
{
	OUTBOX_STAGE_COMMIT,		/* a transaction's first enqueue to its commit */
	OUTBOX_STAGE_ACK,			/* commit to the stream's acknowledgement */
	OUTBOX_STAGE_SETTLE /* acknowledgement to its record in the ledger */
} OutboxStage;

#define OUTBOX_STAGES (OUTBOX_STAGE_SETTLE + 1)

/*
 * Log-linear: below 8 us a bucket for each microsecond, above 8 for each power
 * of two, so that a bucket is at most an eighth wide of what it counts. The last
 * one begins after five days.
 */
#define OUTBOX_SUB_BITS 3
#define OUTBOX_BUCKETS 296

typedef struct OutboxHistogram
{
	pg_atomic_uint64 counts[OUTBOX_BUCKETS];
	pg_atomic_uint64 sum;		/* microseconds */
	pg_atomic_uint64 max;
} OutboxHistogram;

/* What is counted by minute, for the last hours. */
typedef enum OutboxFlowKind
{
	OUTBOX_FLOW_ENQUEUED,		/* and committed; without prepared transactions */
	OUTBOX_FLOW_PUBLISHED,
	OUTBOX_FLOW_FAILED /* attempts */
} OutboxFlowKind;

#define OUTBOX_FLOWS (OUTBOX_FLOW_FAILED + 1)
#define OUTBOX_MINUTES 360

/* Each word is a minute's number and a count: one atomic step changes both. */
#define OUTBOX_MINUTE_SHIFT 40

/* Counters of a relay, a stream, or an aggregate type. */
typedef enum OutboxCounter
{
	OUTBOX_COUNT_PUBLISHED,
	OUTBOX_COUNT_BYTES,			/* of the payloads that were published */
	OUTBOX_COUNT_FAILED,		/* attempts: refused, unanswered, lost */
	OUTBOX_COUNT_DEAD,			/* dead letters */
	OUTBOX_COUNT_SETTLES,		/* transactions that recorded outcomes; of relays only */
	OUTBOX_COUNT_BATCHES,		/* acknowledged batches; of relays only */
	OUTBOX_COUNT_CONNECTS /* connections made; of relays only */
} OutboxCounter;

#define OUTBOX_COUNTERS (OUTBOX_COUNT_CONNECTS + 1)

typedef struct OutboxCounts
{
	pg_atomic_uint64 counts[OUTBOX_COUNTERS];
	pg_atomic_uint64 last_published; /* TimestampTz, 0: never */
} OutboxCounts;

/* A stream ('s') or an aggregate type ('t'). Taken under status_lock; kind and name never change afterwards. */
#define OUTBOX_GROUPS 128
#define OUTBOX_GROUP_NAME 128

typedef struct OutboxGroup
{
	char		kind;
	char		name[OUTBOX_GROUP_NAME];
	OutboxCounts counts;
} OutboxGroup;

/* The last one stands for all errors that have no place of their own. Guarded by status_lock. */
#define OUTBOX_ERROR_CODES 48

typedef struct OutboxErrorCount
{
	char		source[16];		/* empty: unused */
	int			code;
	OutboxErrorClass class;
	uint64		count;
	TimestampTz	last_at;
	char		last_error[256];
} OutboxErrorCount;

typedef struct OutboxMeters
{
	pg_atomic_uint64 reset_at;	/* TimestampTz; 0: since the server started */
	OutboxHistogram stages[OUTBOX_STAGES];
	pg_atomic_uint64 minutes[OUTBOX_FLOWS][OUTBOX_MINUTES];
	pg_atomic_uint32 group_count; /* groups in use, raised after they are filled in */
	OutboxGroup	groups[OUTBOX_GROUPS];
	OutboxErrorCount errors[OUTBOX_ERROR_CODES];
} OutboxMeters;

extern void outbox_meter_init(OutboxMeters *meters);
extern void outbox_meter_clear(OutboxMeters *meters);
extern void outbox_meter_init_counts(OutboxCounts *counts);
extern void outbox_meter_clear_counts(OutboxCounts *counts);
extern void outbox_meter_time(OutboxMeters *meters, OutboxStage stage, int64 us, uint64 times);
extern void outbox_meter_flow(OutboxMeters *meters, OutboxFlowKind kind, TimestampTz now, uint64 count);
extern uint64 outbox_meter_minute(OutboxMeters *meters, OutboxFlowKind kind, int64 minute);
extern OutboxGroup *outbox_meter_group(OutboxMeters *meters, char kind, const char *name);
extern void outbox_meter_error(OutboxMeters *meters, const char *source, int code, OutboxErrorClass class, const char *text,
							   TimestampTz now);
extern int64 outbox_meter_bucket_end(int bucket);

static inline void
outbox_meter_count(OutboxCounts *counts, OutboxCounter counter, uint64 count)
{
	pg_atomic_fetch_add_u64(&counts->counts[counter], count);
}

/* The number of a minute; it fits what a word has for it. */
static inline int64
outbox_meter_minute_of(TimestampTz when)
{
	return when / USECS_PER_MINUTE & ((INT64CONST(1) << (64 - OUTBOX_MINUTE_SHIFT)) - 1);
}

#endif /* OUTBOX_METER_H */
