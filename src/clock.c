/*
 * clock.c
 *	  The relay's clock: microseconds since some start, never set back.
 *
 * Waits, timeouts, leases and the turn among ready heads go by CLOCK_BOOTTIME, so that
 * an administrator or NTP who sets the clock neither delays nor hurries them.
 * Only what a user gave as a point in time (not_before, next_attempt_at) is
 * converted, by the distance of the two clocks; when that changes, waits are
 * judged anew.
 */
#include "clock.h"

#include <time.h>

#include "common/int.h"

#ifndef CLOCK_BOOTTIME
#define CLOCK_BOOTTIME CLOCK_MONOTONIC
#endif

/* A smaller step of the system's clock is not worth looking at the waits again. */
#define STEP_US INT64CONST(500000)

static int64 distance = 0; /* timestamp minus time */
static bool distance_known = false;

int64
outbox_clock_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (int64) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* True once after the system's clock was set; the conversions know it from then on. */
bool
outbox_clock_was_set(void)
{
	int64		measured = GetCurrentTimestamp() - outbox_clock_now();
	bool		was_set = distance_known && (measured > distance + STEP_US || measured < distance - STEP_US);

	if (was_set || !distance_known)
		distance = measured;
	distance_known = true;
	return was_set;
}

/* The time on this clock of a timestamp: -infinity is long past, infinity never. */
int64
outbox_clock_at(TimestampTz when)
{
	int64		result;

	if (!distance_known)
		(void) outbox_clock_was_set();
	if (TIMESTAMP_IS_NOBEGIN(when))
		return 0;
	if (TIMESTAMP_IS_NOEND(when) || pg_sub_s64_overflow(when, distance, &result))
		return PG_INT64_MAX;
	return Max(result, 0);
}

/* The reverse, for what users see. */
TimestampTz
outbox_clock_timestamp(int64 time)
{
	TimestampTz	result;

	if (!distance_known)
		(void) outbox_clock_was_set();
	if (time == PG_INT64_MAX || pg_add_s64_overflow(time, distance, &result) || !IS_VALID_TIMESTAMP(result))
		return DT_NOEND;
	return result;
}
