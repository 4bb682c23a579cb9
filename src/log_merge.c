/*
 * log_merge.c
 *	  An index scan over several children of the log at once, in position order.
 *
 * Transactions that had begun before a rotation go on inserting into the child
 * they hold, and what outlives its child is carried over into another one: so
 * neighbouring positions may lie in different children. Mostly there is one scan.
 */
#include "outbox.h"

#include "log_merge.h"

static void
choose(OutboxLogMerge *merge)
{
	merge->at = NULL;
	for (int i = 0; i < merge->count; i++)
	{
		OutboxLogScan *scan = &merge->scans[i];

		if (scan->tuple == NULL)
			continue;
		if (merge->at == NULL ||
			(outbox_log_scan_position(scan) < outbox_log_scan_position(merge->at)) == ScanDirectionIsForward(merge->direction))
			merge->at = scan;
	}
}

void
outbox_log_merge_open(OutboxLogMerge *merge, OutboxDatabase *database, uint32 children, OutboxLogIndex index, ScanKey keys,
					  int key_count, ScanDirection direction)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);

	merge->direction = direction;
	merge->count = 0;
	for (int child = 0; child < OUTBOX_CHILDREN; child++)
	{
		ScanKeyData own_keys[2];

		if ((children & 1U << child) == 0)
			continue;
		/* A scan turns the keys' columns into its index's. */
		memcpy(own_keys, keys, sizeof(ScanKeyData) * key_count);
		outbox_log_scan_open(&merge->scans[merge->count++], outbox_ring_home(database, child),
							 index == OUTBOX_LOG_BY_POSITION ? catalog->log_position[child] : catalog->log_aggregate[child],
							 own_keys, key_count, direction);
	}
	choose(merge);
}

void
outbox_log_merge_next(OutboxLogMerge *merge)
{
	outbox_log_scan_next(merge->at);
	if (merge->count > 1 || merge->at->tuple == NULL)
		choose(merge);
}

void
outbox_log_merge_close(OutboxLogMerge *merge)
{
	for (int i = 0; i < merge->count; i++)
		outbox_log_scan_close(&merge->scans[i]);
	merge->count = 0;
}

int64
outbox_log_merge_position(const OutboxLogMerge *merge)
{
	return merge->at == NULL ? PG_INT64_MAX : outbox_log_scan_position(merge->at);
}
