/*
 * table.h
 *	  Tables of the simulated server and scans over them.
 */
#ifndef SIM_TABLE_H
#define SIM_TABLE_H

#include "pg.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "utils/rel.h"

/* Oids, by name; children of the log and the ledger add their number. */
enum
{
	OID_LOG = 200,
	OID_LOG_POSITION = 210,
	OID_LOG_EVENT = 220,
	OID_LOG_AGGREGATE = 230,
	OID_LEDGER = 240,
	OID_LEDGER_BUCKET = 250,
	OID_DELIVERY = 260,
	OID_DELIVERY_POSITION,
	OID_DELIVERY_AGGREGATE,
	OID_RING,
	OID_ID_KEY,
	OID_LAST
};

/* A HeapTuple whose columns are kept apart. */
typedef struct SimTuple
{
	HeapTupleData tuple;
	HeapTupleHeaderData header;
	const Row  *row;
	Datum		columns[4];
} SimTuple;

typedef struct SimScan
{
	SysScanDescData base;
	bool		by_aggregate;
	uint64		hash;
	int64		low;
	int64		high;
	ScanDirection direction;
	View		view;
	Snapshot	dirty;			/* NULL: goes by view */
	int64		last;			/* position of the last row */
	SimTuple   *tuple;
} SimScan;

extern RelationData *sim_relation(Oid relid);
extern SimTuple *sim_log_tuple(const Row *row);
extern SimScan *sim_begin_scan(const View *view, const ScanKeyData *keys, int nkeys, int position_column);
extern Row *sim_next_row(SimScan *scan);

#endif							/* SIM_TABLE_H */
