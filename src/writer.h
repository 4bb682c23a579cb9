/*
 * writer.h
 *	  Inserts rows into our own append-only tables without a plan.
 */
#ifndef OUTBOX_WRITER_H
#define OUTBOX_WRITER_H

#include "nodes/execnodes.h"
#include "utils/rel.h"

/* Rows are written together, that many at most. */
#define OUTBOX_WRITER_ROWS 256

typedef struct OutboxWriter
{
	Relation	relation;
	EState	   *estate;
	ResultRelInfo *result;
	int			row_count;		/* that aren't written yet */
	Size		row_bytes;
	int			slot_count;
	TupleTableSlot *slots[OUTBOX_WRITER_ROWS];
} OutboxWriter;

extern void outbox_writer_open(OutboxWriter *writer, Oid relid, Oid except_index);
extern void outbox_writer_insert(OutboxWriter *writer, const Datum *values, const bool *nulls);
extern void outbox_writer_flush(OutboxWriter *writer);
extern void outbox_writer_close(OutboxWriter *writer);

#endif							/* OUTBOX_WRITER_H */
