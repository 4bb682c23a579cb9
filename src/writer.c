/*
 * writer.c
 *	  Inserts rows into our own append-only tables without a plan.
 *
 * Constraints and indexes are kept; privileges are not looked at: who may reach
 * our tables is decided by EXECUTE on the functions that lead here. A table that
 * got triggers or row security is refused, because they would be bypassed.
 *
 * Rows are collected and written together, as COPY does: one WAL record for all
 * that go onto a page.
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "executor/tuptable.h"

#include "compat.h"
#include "writer.h"

/* Rows that are this large together are written. */
#define MAX_BYTES (64 * 1024)

/* Our own are for what others insert, see standing.c. */
static bool
has_triggers(Relation relation)
{
	for (int i = 0; relation->trigdesc != NULL && i < relation->trigdesc->numtriggers; i++)
	{
		const char *name = relation->trigdesc->triggers[i].tgname;

		if (strcmp(name, "outbox_loaded") != 0 && strcmp(name, "outbox_replicated") != 0)
			return true;
	}
	return false;
}

static void
check_plain(Relation relation)
{
	if (has_triggers(relation) || relation->rd_rel->relrowsecurity)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has triggers or row-level security", RelationGetRelationName(relation)),
				 errdetail("Events are inserted directly, so neither would take effect."),
				 errhint("Remove them from the tables of schema \"outbox\".")));
}

/* As ExecOpenIndices() does, but for one. */
static void
open_indexes(OutboxWriter *writer, Oid except)
{
	ResultRelInfo *result = writer->result;
	List	   *indexes = RelationGetIndexList(writer->relation);
	ListCell   *cell;

	result->ri_NumIndices = 0;
	result->ri_IndexRelationDescs = palloc(sizeof(Relation) * (list_length(indexes) + 1));
	result->ri_IndexRelationInfo = palloc(sizeof(IndexInfo *) * (list_length(indexes) + 1));
	foreach(cell, indexes)
	{
		Relation	index;

		if (lfirst_oid(cell) == except)
			continue;
		index = index_open(lfirst_oid(cell), RowExclusiveLock);
		result->ri_IndexRelationDescs[result->ri_NumIndices] = index;
		result->ri_IndexRelationInfo[result->ri_NumIndices++] = BuildIndexInfo(index);
	}
	list_free(indexes);
}

/*
 * Opens a table for inserts in the current transaction; everything is palloc'd in the current context. No row will
 * belong into except_index, a partial one (or InvalidOid): that one is left alone.
 */
void
outbox_writer_open(OutboxWriter *writer, Oid relid, Oid except_index)
{
	writer->relation = table_open(relid, RowExclusiveLock);
	check_plain(writer->relation);
	writer->estate = CreateExecutorState();
	writer->result = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->result, writer->relation, 0, NULL, 0);
	open_indexes(writer, except_index);
	writer->row_count = 0;
	writer->row_bytes = 0;
	writer->slot_count = 0;
}

/* An empty slot; they are made as they are needed and used again after each flush. */
static TupleTableSlot *
next_slot(OutboxWriter *writer)
{
	if (writer->row_count == writer->slot_count)
	{
		MemoryContext caller = MemoryContextSwitchTo(writer->estate->es_query_cxt);

		writer->slots[writer->slot_count++] = table_slot_create(writer->relation, NULL);
		MemoryContextSwitchTo(caller);
	}
	return writer->slots[writer->row_count];
}

/*
 * The table is of another version than this library. What a later one has more
 * stays NULL; what an earlier one lacks must be.
 */
static int
fit_columns(OutboxWriter *writer, TupleTableSlot *slot, const bool *nulls, int count)
{
	int			columns = RelationGetDescr(writer->relation)->natts;

	for (int i = columns; i < count; i++)
	{
		if (!nulls[i])
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" is of an earlier version of outbox than the library", RelationGetRelationName(writer->relation)),
					 errhint("Run ALTER EXTENSION outbox UPDATE.")));
	}
	for (int i = count; i < columns; i++)
		slot->tts_isnull[i] = true;
	return Min(columns, count);
}

/*
 * Takes one row, which is copied; values and nulls have count entries, one for
 * every column. Nobody sees it, this transaction neither, before the flush.
 */
void
outbox_writer_insert(OutboxWriter *writer, const Datum *values, const bool *nulls, int count)
{
	TupleTableSlot *slot = next_slot(writer);
	HeapTuple	tuple;

	if (unlikely(count != RelationGetDescr(writer->relation)->natts))
		count = fit_columns(writer, slot, nulls, count);
	memcpy(slot->tts_values, values, count * sizeof(Datum));
	memcpy(slot->tts_isnull, nulls, count * sizeof(bool));
	ExecStoreVirtualTuple(slot);
	if (writer->relation->rd_att->constr != NULL)
		ExecConstraints(writer->result, slot, writer->estate);
	ExecMaterializeSlot(slot);
	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);
	writer->row_count++;
	writer->row_bytes += tuple->t_len;
	if (writer->row_count == OUTBOX_WRITER_ROWS || writer->row_bytes >= MAX_BYTES)
		outbox_writer_flush(writer);
}

/* Writes the rows taken so far, in their order. */
void
outbox_writer_flush(OutboxWriter *writer)
{
	if (writer->row_count == 1)
		table_tuple_insert(writer->relation, writer->slots[0], GetCurrentCommandId(true), 0, NULL);
	else if (writer->row_count > 1)
		table_multi_insert(writer->relation, writer->slots, writer->row_count, GetCurrentCommandId(true), 0, NULL);
	for (int i = 0; i < writer->row_count; i++)
	{
		outbox_insert_index_tuples(writer->result, writer->slots[i], writer->estate);
		ExecClearTuple(writer->slots[i]);
		ResetPerTupleExprContext(writer->estate);
	}
	writer->row_count = 0;
	writer->row_bytes = 0;
}

/* Flushes, and closes what open opened; the locks are kept to the end of the transaction. */
void
outbox_writer_close(OutboxWriter *writer)
{
	outbox_writer_flush(writer);
	for (int i = 0; i < writer->slot_count; i++)
		ExecDropSingleTupleTableSlot(writer->slots[i]);
	for (int i = 0; i < writer->result->ri_NumIndices; i++)
	{
		outbox_index_insert_cleanup(writer->result->ri_IndexRelationDescs[i], writer->result->ri_IndexRelationInfo[i]);
		index_close(writer->result->ri_IndexRelationDescs[i], NoLock);
	}
	FreeExecutorState(writer->estate);
	table_close(writer->relation, NoLock);
}
