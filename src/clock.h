/*
 * clock.h
 *	  The relay's clock: microseconds since some start, never set back.
 */
#ifndef OUTBOX_CLOCK_H
#define OUTBOX_CLOCK_H

#include "postgres.h"

#include "utils/timestamp.h"

extern int64 outbox_clock_now(void);
extern int64 outbox_clock_at(TimestampTz when);
extern TimestampTz outbox_clock_timestamp(int64 time);
extern bool outbox_clock_was_set(void);

#endif /* OUTBOX_CLOCK_H */
