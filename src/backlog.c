/*
 * backlog.c
 *	  How much is pending: relays say it in shared memory; outbox.max_pending and
 *	  outbox.flush() ask for it.
 *
 * Nothing here touches the log. A relay knows the number of its pending events
 * and the lowest position among them; what it hasn't read yet is counted by
 * position, which is an upper bound.
 */
#include "backlog.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "utils/fmgrprotos.h"
#include "utils/snapmgr.h"

#include "clock.h"
#include "relay.h"

/* A walk over all aggregates, so not in each round. */
#define OLDEST_US INT64CONST(1000000)

/* What waits for longer is late to outbox.health() when outbox.lag_warning is off, as outbox.lag_limit() says. */
#define LAG_LIMIT_US (5 * USECS_PER_MINUTE)

/* flush() looks so often; what it waits for comes in milliseconds. */
#define FLUSH_LOOK_MS 2

PG_FUNCTION_INFO_V1(outbox_flush);

/* --------------------------------------------------------------- relay side */

/* Somebody wants to know what was committed before he asked: read at once. */
bool
outbox_backlog_is_asked(const OutboxRelay *relay)
{
	return pg_atomic_read_u64(&relay->database->flush_calls) != pg_atomic_read_u64(&relay->self->flush_seen);
}

/* The relay loads everything afresh: what it said doesn't hold any more. */
void
outbox_backlog_forget(OutboxRelay *relay)
{
	pg_atomic_write_u64(&relay->self->open_from, 0);
	pg_atomic_write_u64(&relay->self->flush_seen, 0);
}

/*
 * Whether something waits for too long: shown in shared memory, logged once, and
 * once when it is over. A session, or without outbox.lag_warning, shows it only.
 */
static void
watch_lag(OutboxRelay *relay, int64 now, TimestampTz oldest, int64 pending)
{
	OutboxPlace *self = relay->self;
	TimestampTz	since = pg_atomic_read_u64(&self->late_since);
	TimestampTz	time = outbox_clock_timestamp(now);
	int64		limit = outbox_lag_warning < 0 ? LAG_LIMIT_US : outbox_lag_warning * INT64CONST(1000);
	bool		late = oldest != 0 && time - oldest > limit;

	if (late)
	{
		oldest = outbox_schedule_oldest_due(relay->schedule, now, time - now);
		late = oldest != PG_INT64_MAX && time - oldest > limit;
	}
	/* After a change of slots nothing is known until it is read. */
	if (!late && (relay->more_to_read || relay->late.count > 0))
		return;
	pg_atomic_write_u64(&self->late_since, late ? oldest : 0);
	if (late == (since != 0) || relay->session || outbox_lag_warning < 0)
		return;
	if (late)
		ereport(WARNING,
				(errmsg("outbox events wait for longer than \"outbox.lag_warning\""),
				 errdetail("The oldest has waited for %lld s; %lld are pending.", (long long) ((time - oldest) / USECS_PER_SEC),
						   (long long) pending),
				 errhint("outbox.health() says why.")));
	else
		ereport(LOG,
				(errmsg("outbox events are no longer late"),
				 errdetail("The oldest of those that were had waited since %lld s ago.", (long long) ((time - since) / USECS_PER_SEC))));
}

void
outbox_backlog_say(OutboxRelay *relay, int64 now)
{
	OutboxPlace *self = relay->self;
	ScheduleCounts counts;
	int64		pending;
	int64		oldest;

	outbox_schedule_get_counts(relay->schedule, &counts);
	pending = counts.held + counts.deferred + relay->acked_count;
	for (int i = 0; i < relay->late.count; i++)
		pending += relay->late.ranges[i].hi - relay->late.ranges[i].lo + 1;
	pg_atomic_write_u64(&self->known_pending, pending);
	if (counts.aggregates == 0)
	{
		pg_atomic_write_u64(&self->oldest_pending, 0);
		if (pg_atomic_read_u64(&self->late_since) != 0)
			watch_lag(relay, now, 0, pending);
	}
	else if (now >= relay->oldest_at)
	{
		oldest = outbox_schedule_oldest(relay->schedule);
		if (oldest == PG_INT64_MAX)
			oldest = 0;
		pg_atomic_write_u64(&self->oldest_pending, oldest);
		watch_lag(relay, now, oldest, pending);
		relay->oldest_at = now + OLDEST_US;
	}

	/* In this order: whoever sees that a call was seen must see what it led to. */
	pg_atomic_write_u64(&self->open_from, outbox_tracker_first_unsettled(relay->tracker));
	pg_write_barrier();
	if (!relay->more_to_read && relay->late.count == 0)
		pg_atomic_write_u64(&self->flush_seen, relay->flush_read);
}

/* -------------------------------------------------------------- max_pending */

/* Events pending in all relays together, an upper bound; -1: no relay has said anything yet. */
static int64
pending(OutboxDatabase *database)
{
	int64		known = 0;
	int64		read = PG_INT64_MAX;
	int64		last_read = 0;

	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		OutboxPlace *place = &database->places[i];
		int64		read_up_to = pg_atomic_read_u64(&place->read_up_to);

		known += pg_atomic_read_u64(&place->known_pending);
		last_read = Max(last_read, read_up_to);
		if (pg_atomic_read_u32(&place->pid) != 0 && read_up_to > 0)
			read = Min(read, read_up_to);
	}
	/* Without a relay: from where the last one had got to. */
	if (read == PG_INT64_MAX)
		read = last_read;
	if (read == 0)
		return -1;
	return known + Max((int64) pg_atomic_read_u64(&database->max_assigned) - read, 0);
}

/* Called by enqueue, before anything is locked or drawn. */
void
outbox_backlog_check(OutboxDatabase *database)
{
	int64		count;

	if (outbox_max_pending == 0 || database == NULL)
		return;
	count = pending(database);
	if (count >= outbox_max_pending)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many outbox events are pending"),
				 errdetail("%lld events wait to be published; \"outbox.max_pending\" is %d.", (long long) count, outbox_max_pending),
				 errhint("Retry later. outbox.status() shows whether the relay makes progress.")));
}

/* -------------------------------------------------------------------- flush */

/* Whether relays have seen the call, and nothing that they had to find then is still open. */
static bool
is_flushed(OutboxDatabase *database, uint64 call, int64 end)
{
	bool		owned = true;
	bool		flushed = true;

	LWLockAcquire(&database->slots_lock, LW_SHARED);
	for (int slot = 0; slot < OUTBOX_SLOTS && owned; slot++)
		owned = database->slots.owner[slot] >= 0;
	for (int i = 0; i < OUTBOX_MAX_RELAYS && flushed; i++)
	{
		OutboxPlace *place = &database->places[i];

		if (outbox_slots_mask(&database->slots, i, database->slots.members[i].epoch) == 0)
			continue;
		flushed = pg_atomic_read_u64(&place->flush_seen) >= call;
		pg_read_barrier();
		flushed = flushed && (int64) pg_atomic_read_u64(&place->open_from) > end;
	}
	LWLockRelease(&database->slots_lock);
	return owned && flushed;
}

/* Redriven events may lie anywhere: the table knows them. */
static bool
nothing_is_retried(void)
{
	bool		nothing;

	PushActiveSnapshot(GetLatestSnapshot());
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute("SELECT FROM outbox.delivery WHERE state = 'r' LIMIT 1", true, 1) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.delivery");
	nothing = SPI_processed == 0;
	SPI_finish();
	PopActiveSnapshot();
	return nothing;
}

static TimestampTz
deadline(Interval *timeout)
{
	Datum		now = TimestampTzGetDatum(GetCurrentTimestamp());
	TimestampTz	result = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, now, IntervalPGetDatum(timeout)));

	if (result < DatumGetTimestampTz(now))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("timeout must not be negative")));
	return result;
}

/*
 * outbox.flush(timeout interval): waits until everything that was committed
 * before the call is published or a dead letter. False: not within the timeout.
 */
Datum
outbox_flush(PG_FUNCTION_ARGS)
{
	TimestampTz	until = deadline(PG_GETARG_INTERVAL_P(0));
	OutboxDatabase *database = outbox_database_attach(outbox_database_catalog(false));
	uint64		call;
	int64		end;

	outbox_shmem_require();
	end = pg_atomic_read_u64(&database->max_assigned);
	call = pg_atomic_add_fetch_u64(&database->flush_calls, 1);
	outbox_shmem_wake_relays(database);
	for (;;)
	{
		CHECK_FOR_INTERRUPTS();
		if (is_flushed(database, call, end) && nothing_is_retried())
			PG_RETURN_BOOL(true);
		if (GetCurrentTimestamp() >= until)
			PG_RETURN_BOOL(false);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, FLUSH_LOOK_MS, OUTBOX_WAIT_EVENT("OutboxFlush"));
		ResetLatch(MyLatch);
	}
}
