/*
 * sched_table.c
 *	  Finds an aggregate's record by its 64-bit key.
 *
 * Owns the bucket array, not the records. Only creating the table can fail: a
 * table that can't grow works on with longer chains.
 */
#include "sched_private.h"

#include <stdlib.h>

#define MIN_BITS 8

/*
 * The keys are hashes, but those of one relay may share their remainder by
 * the number of slots, so their low bits can't be used as they are.
 */
static inline size_t
bucket_of(uint64_t key, int bits)
{
	return (size_t) ((key * UINT64_C(0x9E3779B97F4A7C15)) >> (64 - bits));
}

static void
rehash(AggregateTable *table, int bits)
{
	Aggregate **buckets = calloc((size_t) 1 << bits, sizeof(Aggregate *));

	if (buckets == NULL)
		return;
	for (size_t i = 0; i < (size_t) 1 << table->bits; i++)
	{
		Aggregate  *aggregate = table->buckets[i];

		while (aggregate != NULL)
		{
			Aggregate  *next = aggregate->next_in_bucket;
			size_t		bucket = bucket_of(aggregate->key, bits);

			aggregate->next_in_bucket = buckets[bucket];
			buckets[bucket] = aggregate;
			aggregate = next;
		}
	}
	free(table->buckets);
	table->buckets = buckets;
	table->bits = bits;
}

bool
outbox_sched_table_init(AggregateTable *table)
{
	table->bits = MIN_BITS;
	table->count = 0;
	table->buckets = calloc((size_t) 1 << MIN_BITS, sizeof(Aggregate *));
	return table->buckets != NULL;
}

void
outbox_sched_table_free(AggregateTable *table)
{
	free(table->buckets);
}

Aggregate *
outbox_sched_table_find(const AggregateTable *table, uint64_t key)
{
	Aggregate  *aggregate = table->buckets[bucket_of(key, table->bits)];

	while (aggregate != NULL && aggregate->key != key)
		aggregate = aggregate->next_in_bucket;
	return aggregate;
}

/* Adds a record whose key isn't in the table. */
void
outbox_sched_table_insert(AggregateTable *table, Aggregate *aggregate)
{
	Aggregate **bucket;

	if (table->count >= (size_t) 1 << table->bits)
		rehash(table, table->bits + 1);
	bucket = &table->buckets[bucket_of(aggregate->key, table->bits)];
	aggregate->next_in_bucket = *bucket;
	*bucket = aggregate;
	table->count++;
}

void
outbox_sched_table_remove(AggregateTable *table, Aggregate *aggregate)
{
	Aggregate **link = &table->buckets[bucket_of(aggregate->key, table->bits)];

	while (*link != aggregate)
		link = &(*link)->next_in_bucket;
	*link = aggregate->next_in_bucket;
	table->count--;

	/* Far from the next growth, so that a steady load doesn't swing between sizes. */
	if (table->bits > MIN_BITS && table->count < ((size_t) 1 << table->bits) / 8)
		rehash(table, table->bits - 1);
}
