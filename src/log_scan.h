/*
 * log_scan.h
 *	  Index scans over one child of the log, and events from its rows.
 */
#ifndef OUTBOX_LOG_SCAN_H
#define OUTBOX_LOG_SCAN_H

#include "access/genam.h"
#include "access/skey.h"
#include "utils/rel.h"

#include "held.h"

typedef struct OutboxLogScan
{
	int			home;			/* of its rows, see ring.h */
	ScanDirection direction;
	Relation	log;
	Relation	index;
	SysScanDesc scan;
	HeapTuple	tuple;			/* where the scan stands, NULL at the end */
} OutboxLogScan;

extern void outbox_log_scan_open(OutboxLogScan *scan, int home, Oid index, ScanKey keys, int key_count,
								 ScanDirection direction);
extern void outbox_log_scan_next(OutboxLogScan *scan);
extern void outbox_log_scan_close(OutboxLogScan *scan);

/* Of a row of the scan, be it where the scan stands or a copy. */
extern int64 outbox_log_scan_int64(const OutboxLogScan *scan, HeapTuple tuple, int column, int64 if_null);
extern int64 outbox_log_scan_position(const OutboxLogScan *scan);
extern Datum outbox_log_scan_head(const OutboxLogScan *scan, HeapTuple tuple, OutboxLogRow *row);
extern void outbox_log_scan_payload(OutboxRow *row, Datum payload);
extern void outbox_log_scan_row(const OutboxLogScan *scan, HeapTuple tuple, OutboxLogRow *row);
extern OutboxEvent *outbox_log_scan_event(const OutboxLogScan *scan, HeapTuple tuple, MemoryContext scratch);

#endif							/* OUTBOX_LOG_SCAN_H */
