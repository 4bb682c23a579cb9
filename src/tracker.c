/*
 * tracker.c
 *	  Which positions above the watermark were seen, and which are settled.
 *
 * Owns an array of buckets sorted by number. Positions are dense, so a bucket
 * nearly always lies at its distance from the first one, new buckets come at
 * the end, and old ones leave at the front; yet a sequence that jumps by a
 * billion costs one entry. A bucket settled as a whole keeps its entry only.
 * Knows nothing of events or tables; one thread, no locks.
 */
#include "tracker.h"

#include <stdlib.h>
#include <string.h>

#define BUCKET_WORDS (OUTBOX_BUCKET_SIZE / 64)
#define MIN_CAPACITY 64

typedef struct Bits
{
	uint64_t	seen[BUCKET_WORDS];
	uint64_t	settled[BUCKET_WORDS];	/* a subset of seen */
	int32_t		n_seen;
	int32_t		n_settled;
} Bits;

typedef struct Bucket
{
	int64_t		number;			/* position >> OUTBOX_BUCKET_SHIFT */
	Bits	   *bits;			/* NULL: all settled */
} Bucket;

struct Tracker
{
	int64_t		watermark;
	int64_t		unsettled_from;	/* no position below is seen and not settled */
	Bucket	   *buckets;		/* the allocated array */
	size_t		capacity;
	size_t		first;			/* index of the first bucket in use */
	size_t		count;
	size_t		n_bits;			/* buckets with bitmaps */
};

static inline int64_t
bucket_number(int64_t position)
{
	return position >> OUTBOX_BUCKET_SHIFT;
}

static inline int64_t
bucket_start(int64_t number)
{
	return number * OUTBOX_BUCKET_SIZE;
}

static inline int
bit_index(int64_t position)
{
	return (int) (position & (OUTBOX_BUCKET_SIZE - 1));
}

static inline Bucket *
bucket_at(const Tracker *tracker, size_t i)
{
	return &tracker->buckets[tracker->first + i];
}

static inline bool
all_seen(const Bucket *bucket)
{
	return bucket->bits == NULL || bucket->bits->n_seen == OUTBOX_BUCKET_SIZE;
}

static inline bool
test_bit(const uint64_t *words, int bit)
{
	return (words[bit / 64] >> (bit % 64)) & 1;
}

/* Sets bits first to last and returns how many were not set before. */
static int
set_bits(uint64_t *words, int first, int last)
{
	int			added = 0;

	for (int word = first / 64; word <= last / 64; word++)
	{
		uint64_t	mask = ~UINT64_C(0);

		if (word == first / 64)
			mask &= ~UINT64_C(0) << (first % 64);
		if (word == last / 64)
			mask &= ~UINT64_C(0) >> (63 - last % 64);
		added += __builtin_popcountll(mask & ~words[word]);
		words[word] |= mask;
	}
	return added;
}

/* ---------- buckets ---------- */

/* The index of the first bucket with this number or a higher one. */
static size_t
lower_bound(const Tracker *tracker, int64_t number)
{
	size_t		low = 0;
	size_t		high = tracker->count;
	int64_t		distance;

	if (high == 0 || number <= bucket_at(tracker, 0)->number)
		return 0;

	/* Numbers are distinct, so no bucket lies further in than its distance; without holes just there. */
	distance = number - bucket_at(tracker, 0)->number;
	if ((uint64_t) distance < high)
	{
		if (bucket_at(tracker, (size_t) distance)->number == number)
			return (size_t) distance;
		high = (size_t) distance;
	}
	else if (bucket_at(tracker, high - 1)->number < number)
		return high;

	while (low < high)
	{
		size_t		middle = low + (high - low) / 2;

		if (bucket_at(tracker, middle)->number < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static Bucket *
find_bucket(const Tracker *tracker, int64_t number)
{
	size_t		i = lower_bound(tracker, number);

	if (i < tracker->count && bucket_at(tracker, i)->number == number)
		return bucket_at(tracker, i);
	return NULL;
}

/* Moves the buckets to the start of an array of the given capacity; false: no memory. */
static bool
resize(Tracker *tracker, size_t capacity)
{
	Bucket	   *buckets = malloc(capacity * sizeof(Bucket));

	if (buckets == NULL)
		return false;
	if (tracker->count > 0)
		memcpy(buckets, bucket_at(tracker, 0), tracker->count * sizeof(Bucket));
	free(tracker->buckets);
	tracker->buckets = buckets;
	tracker->capacity = capacity;
	tracker->first = 0;
	return true;
}

/* Makes room for one more bucket behind the last. */
static bool
reserve(Tracker *tracker)
{
	if (tracker->first + tracker->count < tracker->capacity)
		return true;

	/* Moving them down pays only when much was trimmed: else it would be done for each new one. */
	if (tracker->first > tracker->capacity / 2)
	{
		memmove(tracker->buckets, bucket_at(tracker, 0), tracker->count * sizeof(Bucket));
		tracker->first = 0;
		return true;
	}
	return resize(tracker, tracker->count < MIN_CAPACITY / 2 ? MIN_CAPACITY : tracker->count * 2);
}

/* In the watermark's bucket the positions up to it count as settled. */
static void
apply_watermark(const Tracker *tracker, Bucket *bucket)
{
	if (bucket->number == bucket_number(tracker->watermark) && bucket->bits != NULL)
	{
		int			last = bit_index(tracker->watermark);

		bucket->bits->n_seen += set_bits(bucket->bits->seen, 0, last);
		bucket->bits->n_settled += set_bits(bucket->bits->settled, 0, last);
	}
}

/*
 * Finds a bucket or adds it: with empty bitmaps, or as settled as a whole.
 * NULL: no memory, nothing changed.
 */
static Bucket *
find_or_add_bucket(Tracker *tracker, int64_t number, bool settled)
{
	size_t		i = lower_bound(tracker, number);
	Bits	   *bits = NULL;
	Bucket	   *bucket;

	if (i < tracker->count && bucket_at(tracker, i)->number == number)
		return bucket_at(tracker, i);

	if (!reserve(tracker))
		return NULL;
	if (!settled)
	{
		bits = calloc(1, sizeof(Bits));
		if (bits == NULL)
			return NULL;
		tracker->n_bits++;
	}
	bucket = bucket_at(tracker, i);
	memmove(bucket + 1, bucket, (tracker->count - i) * sizeof(Bucket));
	bucket->number = number;
	bucket->bits = bits;
	tracker->count++;
	apply_watermark(tracker, bucket);
	return bucket;
}

static void
free_bits(Tracker *tracker, Bucket *bucket)
{
	if (bucket->bits != NULL)
		tracker->n_bits--;
	free(bucket->bits);
	bucket->bits = NULL;
}

/* Settles bits first to last of one bucket; false: no memory. */
static bool
settle_bits(Tracker *tracker, int64_t number, int first, int last)
{
	bool		whole = first == 0 && last == OUTBOX_BUCKET_SIZE - 1;
	Bucket	   *bucket = find_or_add_bucket(tracker, number, whole);

	if (bucket == NULL)
		return false;
	if (bucket->bits == NULL)
		return true;
	bucket->bits->n_seen += set_bits(bucket->bits->seen, first, last);
	bucket->bits->n_settled += set_bits(bucket->bits->settled, first, last);
	if (bucket->bits->n_settled == OUTBOX_BUCKET_SIZE)
		free_bits(tracker, bucket);
	return true;
}

/* ---------- interface ---------- */

Tracker *
outbox_tracker_create(int64_t watermark)
{
	Tracker    *tracker = calloc(1, sizeof(Tracker));

	if (tracker == NULL)
		return NULL;
	tracker->watermark = watermark;
	tracker->unsettled_from = INT64_MAX;
	return tracker;
}

void
outbox_tracker_destroy(Tracker *tracker)
{
	if (tracker == NULL)
		return;
	for (size_t i = 0; i < tracker->count; i++)
		free(bucket_at(tracker, i)->bits);
	free(tracker->buckets);
	free(tracker);
}

TrackerSee
outbox_tracker_see(Tracker *tracker, int64_t position)
{
	int			bit = bit_index(position);
	Bucket	   *bucket;

	if (position <= tracker->watermark)
		return TRACKER_KNOWN;
	bucket = find_or_add_bucket(tracker, bucket_number(position), false);
	if (bucket == NULL)
		return TRACKER_NO_MEMORY;
	if (bucket->bits == NULL || test_bit(bucket->bits->seen, bit))
		return TRACKER_KNOWN;

	bucket->bits->seen[bit / 64] |= UINT64_C(1) << (bit % 64);
	bucket->bits->n_seen++;
	if (position < tracker->unsettled_from)
		tracker->unsettled_from = position;
	return TRACKER_NEW;
}

void
outbox_tracker_unsee(Tracker *tracker, int64_t position)
{
	int			bit = bit_index(position);
	Bucket	   *bucket;

	if (position <= tracker->watermark)
		return;
	bucket = find_bucket(tracker, bucket_number(position));
	if (bucket == NULL || bucket->bits == NULL || !test_bit(bucket->bits->seen, bit) ||
		test_bit(bucket->bits->settled, bit))
		return;
	bucket->bits->seen[bit / 64] &= ~(UINT64_C(1) << (bit % 64));
	bucket->bits->n_seen--;
}

bool
outbox_tracker_is_seen(const Tracker *tracker, int64_t position)
{
	const Bucket *bucket;

	if (position <= tracker->watermark)
		return true;
	bucket = find_bucket(tracker, bucket_number(position));
	return bucket != NULL &&
		(bucket->bits == NULL || test_bit(bucket->bits->seen, bit_index(position)));
}

bool
outbox_tracker_is_settled(const Tracker *tracker, int64_t position)
{
	const Bucket *bucket;

	if (position <= tracker->watermark)
		return true;
	bucket = find_bucket(tracker, bucket_number(position));
	return bucket != NULL &&
		(bucket->bits == NULL || test_bit(bucket->bits->settled, bit_index(position)));
}

bool
outbox_tracker_settle(Tracker *tracker, int64_t position)
{
	int			bit = bit_index(position);

	if (position <= tracker->watermark)
		return true;
	return settle_bits(tracker, bucket_number(position), bit, bit);
}

bool
outbox_tracker_settle_range(Tracker *tracker, int64_t first, int64_t last)
{
	if (first <= tracker->watermark)
		first = tracker->watermark + 1;
	while (first <= last)
	{
		int64_t		number = bucket_number(first);
		int64_t		end = bucket_start(number) + (OUTBOX_BUCKET_SIZE - 1);

		if (end > last)
			end = last;
		if (!settle_bits(tracker, number, bit_index(first), bit_index(end)))
			return false;
		if (end == last)
			break;				/* before end + 1 can overflow */
		first = end + 1;
	}
	return true;
}

/* The first position >= from that isn't seen; may lie far above the last bucket. */
static int64_t
first_unseen(const Tracker *tracker, int64_t from)
{
	for (size_t i = lower_bound(tracker, bucket_number(from)); i < tracker->count; i++)
	{
		const Bucket *bucket = bucket_at(tracker, i);

		if (bucket->number != bucket_number(from))
			break;				/* a hole: nothing of it is seen */
		if (!all_seen(bucket))
		{
			int			word = bit_index(from) / 64;
			uint64_t	unseen = ~bucket->bits->seen[word] & (~UINT64_C(0) << (bit_index(from) % 64));

			while (unseen == 0 && ++word < BUCKET_WORDS)
				unseen = ~bucket->bits->seen[word];
			if (unseen != 0)
				return bucket_start(bucket->number) + word * 64 + __builtin_ctzll(unseen);
		}
		if (bucket->number == bucket_number(INT64_MAX))
			return INT64_MAX;
		from = bucket_start(bucket->number + 1);
	}
	return from;
}

bool
outbox_tracker_unseen(const Tracker *tracker, int64_t from, int64_t to, int64_t *first, int64_t *last)
{
	if (from <= tracker->watermark)
		from = tracker->watermark + 1;
	if (from > to)
		return false;
	*first = first_unseen(tracker, from);
	if (*first > to)
		return false;

	*last = to;
	for (size_t i = lower_bound(tracker, bucket_number(*first) + 1); i < tracker->count; i++)
	{
		const Bucket *bucket = bucket_at(tracker, i);

		if (bucket->number > bucket_number(to))
			break;
		if (all_seen(bucket))
		{
			*last = bucket_start(bucket->number) - 1;
			break;
		}
	}
	return true;
}

/*
 * Continues from where the last call ended: settled positions stay settled, so
 * only outbox_tracker_see() can bring the answer down, and it says so.
 */
int64_t
outbox_tracker_first_unsettled(Tracker *tracker)
{
	int64_t		from = tracker->unsettled_from;

	if (from == INT64_MAX)
		return INT64_MAX;
	for (size_t i = lower_bound(tracker, bucket_number(from)); i < tracker->count; i++)
	{
		const Bucket *bucket = bucket_at(tracker, i);

		if (bucket->bits == NULL || bucket->bits->n_seen == bucket->bits->n_settled)
			continue;
		for (int word = 0; word < BUCKET_WORDS; word++)
		{
			uint64_t	unsettled = bucket->bits->seen[word] & ~bucket->bits->settled[word];

			if (unsettled == 0)
				continue;
			tracker->unsettled_from = bucket_start(bucket->number) + word * 64 + __builtin_ctzll(unsettled);
			return tracker->unsettled_from;
		}
	}
	tracker->unsettled_from = INT64_MAX;
	return INT64_MAX;
}

void
outbox_tracker_trim(Tracker *tracker, int64_t watermark)
{
	Bucket	   *bucket;

	if (watermark <= tracker->watermark)
		return;
	tracker->watermark = watermark;

	while (tracker->count > 0 && bucket_at(tracker, 0)->number < bucket_number(watermark))
	{
		free_bits(tracker, bucket_at(tracker, 0));
		tracker->first++;
		tracker->count--;
	}

	/* The bucket that the watermark lies in goes too once nothing above it is open. */
	bucket = find_bucket(tracker, bucket_number(watermark));
	if (bucket != NULL)
	{
		apply_watermark(tracker, bucket);
		if (bucket->bits != NULL && bucket->bits->n_settled == OUTBOX_BUCKET_SIZE)
			free_bits(tracker, bucket);
	}
	if (tracker->count < tracker->capacity / 8 && tracker->capacity > MIN_CAPACITY)
		(void) resize(tracker, tracker->capacity / 2);	/* keeping the larger one does no harm */
}

int64_t
outbox_tracker_watermark(const Tracker *tracker)
{
	return tracker->watermark;
}

size_t
outbox_tracker_bytes(const Tracker *tracker)
{
	return sizeof(Tracker) + tracker->capacity * sizeof(Bucket) + tracker->n_bits * sizeof(Bits);
}
