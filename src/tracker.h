/*
 * tracker.h
 *	  Which positions above the watermark were seen, and which are settled.
 *
 * Pure logic like schedule.h. Two bits per position in buckets of 1,024
 * positions (the ledger's buckets), so its size depends on the distance from
 * watermark to newest position only; a bucket with all its positions settled
 * keeps no bitmaps.
 */
#ifndef OUTBOX_TRACKER_H
#define OUTBOX_TRACKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OUTBOX_BUCKET_SHIFT 10
#define OUTBOX_BUCKET_SIZE (1 << OUTBOX_BUCKET_SHIFT)

typedef struct Tracker Tracker;

/* Everything at or below watermark counts as seen and settled. NULL: out of memory. */
extern Tracker *outbox_tracker_create(int64_t watermark);
extern void outbox_tracker_destroy(Tracker *tracker);

typedef enum TrackerSee
{
	TRACKER_NEW,				/* now seen */
	TRACKER_KNOWN,				/* was seen, settled, or is at or below the watermark */
	TRACKER_NO_MEMORY			/* unchanged */
} TrackerSee;

extern TrackerSee outbox_tracker_see(Tracker *tracker, int64_t position);

/* Forgets that a position was seen (an event that couldn't be kept); it must not be settled. */
extern void outbox_tracker_unsee(Tracker *tracker, int64_t position);

extern bool outbox_tracker_is_seen(const Tracker *tracker, int64_t position);
extern bool outbox_tracker_is_settled(const Tracker *tracker, int64_t position);

/* The position is terminal and that is recorded. Marks it seen too. False: out of memory. */
extern bool outbox_tracker_settle(Tracker *tracker, int64_t position);

/*
 * Settles first..last, inclusive, as start-up does from the ledger. False: out
 * of memory, with a part from first on settled. Cheapest in ascending order.
 */
extern bool outbox_tracker_settle_range(Tracker *tracker, int64_t first, int64_t last);

/*
 * The next stretch worth reading in [from, to]: *first is the lowest position
 * >= from that isn't seen, *last the end of the stretch: to, or the position
 * before the next bucket that is seen as a whole. False: all of it is seen.
 */
extern bool outbox_tracker_unseen(const Tracker *tracker, int64_t from, int64_t to, int64_t *first, int64_t *last);

/* The lowest position that is seen and not settled; INT64_MAX: none. Fast when called often. */
extern int64_t outbox_tracker_first_unsettled(Tracker *tracker);

/* Raises the watermark: forgets all at or below it. Lower than before: no effect. */
extern void outbox_tracker_trim(Tracker *tracker, int64_t watermark);

extern int64_t outbox_tracker_watermark(const Tracker *tracker);
extern size_t outbox_tracker_bytes(const Tracker *tracker);

#endif							/* OUTBOX_TRACKER_H */
