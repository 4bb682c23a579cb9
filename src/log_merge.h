/*
 * log_merge.h
 *	  An index scan over several children of the log at once, in position order.
 */
#ifndef OUTBOX_LOG_MERGE_H
#define OUTBOX_LOG_MERGE_H

#include "log_scan.h"
#include "ring.h"

typedef struct OutboxLogMerge
{
	ScanDirection direction;
	int			count;
	OutboxLogScan scans[OUTBOX_CHILDREN];
	OutboxLogScan *at;			/* the scan whose row is next; NULL at the end */
} OutboxLogMerge;

/* The index of each child that is scanned. */
typedef enum OutboxLogIndex
{
	OUTBOX_LOG_BY_POSITION,
	OUTBOX_LOG_BY_AGGREGATE
} OutboxLogIndex;

/* children: as bits, locked. Stands on the first row afterwards. Keys name columns of the log. */
extern void outbox_log_merge_open(OutboxLogMerge *merge, OutboxDatabase *database, uint32 children, OutboxLogIndex index,
								  ScanKey keys, int key_count, ScanDirection direction);
extern void outbox_log_merge_next(OutboxLogMerge *merge);
extern void outbox_log_merge_close(OutboxLogMerge *merge);

/* Where it stands; PG_INT64_MAX at its end. */
extern int64 outbox_log_merge_position(const OutboxLogMerge *merge);

#endif							/* OUTBOX_LOG_MERGE_H */
