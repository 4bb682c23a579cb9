/*
 * count.c
 *	  The relay's side of the meters: what became of each event is counted for
 *	  the relay, the stream and the aggregate type, in shared memory.
 *
 * The place of a group is looked for once and then remembered, so that an
 * acknowledgement costs a short hash and some atomic additions.
 */
#include "outbox.h"

#include "clock.h"
#include "relay.h"

/* Groups that this process has met, by a hash of their kind and name. */
#define KNOWN_GROUPS 256

static struct
{
	uint64		hash;
	OutboxGroup *group;			/* NULL: none yet */
} known[KNOWN_GROUPS];

/* The relay loads everything afresh, perhaps in another life of the extension, whose groups are others. */
void
outbox_count_forget(void)
{
	memset(known, 0, sizeof(known));
}

/* FNV-1a. With its 64 bits, no two names in use are taken for the same. */
static uint64
hash_of(char kind, const char *name)
{
	uint64		hash = (UINT64CONST(14695981039346656037) ^ (uint8) kind) * UINT64CONST(1099511628211);

	for (; *name != '\0'; name++)
		hash = (hash ^ (uint8) *name) * UINT64CONST(1099511628211);
	return hash;
}

static OutboxCounts *
counts_of(OutboxRelay *relay, char kind, const char *name)
{
	uint64		hash = hash_of(kind, name);
	int			place = hash % KNOWN_GROUPS;

	if (known[place].group == NULL || known[place].hash != hash)
	{
		LWLockAcquire(&relay->database->status_lock, LW_EXCLUSIVE);
		known[place].group = outbox_meter_group(&relay->database->meters, kind, name);
		LWLockRelease(&relay->database->status_lock);
		known[place].hash = hash;
	}
	return &known[place].group->counts;
}

/* Where an event counts: its relay, stream and aggregate type. Returns how many those are. */
static int
find_counts(OutboxRelay *relay, const OutboxEvent *event, OutboxCounts **all)
{
	int			count = 0;

	all[count++] = &relay->self->counts;
	/* The client of a session knows its streams itself. */
	if (!relay->session)
		all[count++] = counts_of(relay, 's', outbox_stream);
	if (event->aggregate_type != NULL)
		all[count++] = counts_of(relay, 't', event->aggregate_type);
	return count;
}

/* An event was acknowledged. */
void
outbox_count_published(OutboxRelay *relay, const OutboxEvent *event, int64 now)
{
	OutboxCounts *all[3];
	int			count = find_counts(relay, event, all);
	TimestampTz	when = outbox_clock_timestamp(now);

	for (int i = 0; i < count; i++)
	{
		outbox_meter_count(all[i], OUTBOX_COUNT_PUBLISHED, 1);
		outbox_meter_count(all[i], OUTBOX_COUNT_BYTES, event->broken == NULL ? event->message.data_len : 0);
		pg_atomic_write_u64(&all[i]->last_published, when);
	}
	if (event->committed_at != 0)
		outbox_meter_time(&relay->database->meters, OUTBOX_STAGE_ACK, now - event->committed_at, 1);
}

static void
count_one(OutboxRelay *relay, const OutboxEvent *event, OutboxCounter counter)
{
	OutboxCounts *all[3];
	int			count = find_counts(relay, event, all);

	for (int i = 0; i < count; i++)
		outbox_meter_count(all[i], counter, 1);
}

/* An attempt failed: counted, and the relay's last error. source: who says so. */
void
outbox_count_failure(OutboxRelay *relay, const OutboxEvent *event, OutboxErrorClass class, const char *source, int code,
					 const char *text)
{
	OutboxRelayStatus *status = &relay->self->status;
	TimestampTz	now = GetCurrentTimestamp();

	count_one(relay, event, OUTBOX_COUNT_FAILED);
	outbox_meter_flow(&relay->database->meters, OUTBOX_FLOW_FAILED, now, 1);
	pg_atomic_fetch_add_u64(&relay->database->errors[class], 1);
	LWLockAcquire(&relay->database->status_lock, LW_EXCLUSIVE);
	outbox_meter_error(&relay->database->meters, source, code, class, text, now);
	if (event->broken != NULL || relay->session)
		snprintf(status->last_error, sizeof(status->last_error), "%s", text);
	else
		snprintf(status->last_error, sizeof(status->last_error), "%s, publishing to \"%s\" in stream \"%s\"", text,
				 event->message.subject, outbox_stream);
	LWLockRelease(&relay->database->status_lock);
}

/* A verdict is on disk. */
void
outbox_count_dead(OutboxRelay *relay, const OutboxEvent *event)
{
	count_one(relay, event, OUTBOX_COUNT_DEAD);
}

/* What was acknowledged is on record now. Those that were taken together were so long on the way. */
void
outbox_count_settled(OutboxRelay *relay)
{
	int64		now = outbox_clock_now();
	OutboxMeters *meters = &relay->database->meters;
	const OutboxAcked *acked = relay->acked;

	for (int first = 0, next; first < relay->acked_recorded; first = next)
	{
		next = first + 1;
		while (next < relay->acked_recorded && acked[next].at == acked[first].at)
			next++;
		outbox_meter_time(meters, OUTBOX_STAGE_SETTLE, now - acked[first].at, next - first);
	}
	if (relay->acked_recorded + relay->failures_recorded == 0)
		return;
	outbox_meter_count(&relay->self->counts, OUTBOX_COUNT_SETTLES, 1);
	outbox_meter_flow(meters, OUTBOX_FLOW_PUBLISHED, outbox_clock_timestamp(now), relay->acked_recorded);
}
