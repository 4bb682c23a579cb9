/*
 * writer.h
 *	  Inserts rows into our own append-only tables without a plan.
 */
#ifndef OUTBOX_WRITER_H
#define OUTBOX_WRITER_H

#include "nodes/execnodes.h"
#include "utils/rel.h"

typedef struct OutboxWriter
{
	Relation	relation;
	EState	   *estate;
	ResultRelInfo *result;
	TupleTableSlot *slot;
} OutboxWriter;

extern void outbox_writer_open(OutboxWriter *writer, Oid relid);
extern void outbox_writer_insert(OutboxWriter *writer, const Datum *values, const bool *nulls);
extern void outbox_writer_close(OutboxWriter *writer);

#endif							/* OUTBOX_WRITER_H */
