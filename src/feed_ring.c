/*
 * feed_ring.c
 *	  The ring through which pushed ranges of positions reach a database's
 *	  relays.
 *
 * A push is written once, whatever the number of readers. Each place of a relay
 * has a reader of its own; one that falls a whole ring behind gets the entries
 * that are overwritten as one range that covers them: wider than what was
 * pushed, which costs reading and nothing else. Without readers a push is
 * forgotten: whoever attaches later sees its rows anyway.
 *
 * feed_mutex guards everything here; it is held for a few instructions.
 */
#include "feed.h"

/* A reader is a whole ring behind: what it would read next goes into its overflow range. */
static void
make_room(OutboxDatabase *database, OutboxFeedReader *reader)
{
	const OutboxRange *oldest = &database->feed[reader->tail++ % OUTBOX_FEED_SIZE].range;

	if (!reader->overflow)
		reader->overflow_range = *oldest;
	else
	{
		reader->overflow_range.lo = Min(reader->overflow_range.lo, oldest->lo);
		reader->overflow_range.hi = Max(reader->overflow_range.hi, oldest->hi);
	}
	reader->overflow = true;
}

/* From commit callbacks, so it raises nothing. committed_at 0: not known. */
void
outbox_feed_push(OutboxDatabase *database, const OutboxRange *range, TimestampTz committed_at)
{
#ifdef OUTBOX_TEST_POINTS
	uint32		size = outbox_test_feed_size;
#else
	uint32		size = OUTBOX_FEED_SIZE;
#endif

	SpinLockAcquire(&database->feed_mutex);
	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		OutboxFeedReader *reader = &database->readers[i];

		if (reader->attached && database->feed_head - reader->tail >= size)
			make_room(database, reader);
	}
	database->feed[database->feed_head++ % OUTBOX_FEED_SIZE] = (OutboxFeedEntry) {*range, committed_at};
	SpinLockRelease(&database->feed_mutex);
}

/*
 * The reader of a place gets all pushes from now on. What was pushed before is
 * visible to every snapshot from now on, so attach first, then load.
 */
void
outbox_feed_attach_reader(OutboxDatabase *database, int place)
{
	SpinLockAcquire(&database->feed_mutex);
	database->readers[place] = (OutboxFeedReader) {.attached = true, .tail = database->feed_head};
	SpinLockRelease(&database->feed_mutex);
}

void
outbox_feed_detach_reader(OutboxDatabase *database, int place)
{
	SpinLockAcquire(&database->feed_mutex);
	database->readers[place].attached = false;
	SpinLockRelease(&database->feed_mutex);
}

/*
 * Takes up to max pushed ranges; the overflow range comes after the ring is
 * empty. Fewer than max: all that was pushed before the call is taken.
 */
int
outbox_feed_drain(OutboxDatabase *database, int place, OutboxFeedEntry *entries, int max)
{
	OutboxFeedReader *reader = &database->readers[place];
	int			count = 0;

	SpinLockAcquire(&database->feed_mutex);
	while (reader->attached && count < max && reader->tail != database->feed_head)
		entries[count++] = database->feed[reader->tail++ % OUTBOX_FEED_SIZE];
	if (reader->attached && count < max && reader->overflow)
	{
		entries[count++] = (OutboxFeedEntry) {reader->overflow_range, 0};
		reader->overflow = false;
	}
	SpinLockRelease(&database->feed_mutex);
	return count;
}

/* A hint: pushes go on while it is asked. */
bool
outbox_feed_is_empty(OutboxDatabase *database, int place)
{
	OutboxFeedReader *reader = &database->readers[place];
	bool		empty;

	SpinLockAcquire(&database->feed_mutex);
	empty = !reader->attached || (reader->tail == database->feed_head && !reader->overflow);
	SpinLockRelease(&database->feed_mutex);
	return empty;
}

/* The lowest position in the ring and the overflow range; PG_INT64_MAX: none. */
int64
outbox_feed_lowest_pushed(OutboxDatabase *database, int place)
{
	OutboxFeedReader *reader = &database->readers[place];
	int64		lowest = PG_INT64_MAX;

	SpinLockAcquire(&database->feed_mutex);
	for (uint32 i = reader->tail; reader->attached && i != database->feed_head; i++)
		lowest = Min(lowest, database->feed[i % OUTBOX_FEED_SIZE].range.lo);
	if (reader->attached && reader->overflow)
		lowest = Min(lowest, reader->overflow_range.lo);
	SpinLockRelease(&database->feed_mutex);
	return lowest;
}
