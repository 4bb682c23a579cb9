/*
 * writer.c
 *	  Inserts rows into our own append-only tables without a plan.
 *
 * It goes through the executor's entry for replicated rows, so constraints
 * and indexes are kept; privileges are not looked at: who may reach our
 * tables is decided by EXECUTE on the functions that lead here. A table that
 * got triggers or row security is refused, because they would be bypassed.
 */
#include "postgres.h"

#include "access/table.h"
#include "access/tableam.h"
#include "executor/executor.h"
#include "executor/tuptable.h"

#include "writer.h"

static void
check_plain(Relation relation)
{
	if (relation->trigdesc != NULL || relation->rd_rel->relrowsecurity)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("table \"%s\" has triggers or row-level security", RelationGetRelationName(relation)),
				 errdetail("Events are inserted directly, so neither would take effect."),
				 errhint("Remove them from the tables of schema \"outbox\".")));
}

/* Opens a table for inserts in the current transaction; everything is palloc'd in the current context. */
void
outbox_writer_open(OutboxWriter *writer, Oid relid)
{
	writer->relation = table_open(relid, RowExclusiveLock);
	check_plain(writer->relation);
	writer->estate = CreateExecutorState();
	writer->result = makeNode(ResultRelInfo);
	InitResultRelInfo(writer->result, writer->relation, 0, NULL, 0);
	ExecOpenIndices(writer->result, false);
	writer->slot = MakeSingleTupleTableSlot(RelationGetDescr(writer->relation),
											table_slot_callbacks(writer->relation));
}

/* One row; values and nulls have an entry for every column. */
void
outbox_writer_insert(OutboxWriter *writer, const Datum *values, const bool *nulls)
{
	int			columns = RelationGetDescr(writer->relation)->natts;

	ExecClearTuple(writer->slot);
	memcpy(writer->slot->tts_values, values, columns * sizeof(Datum));
	memcpy(writer->slot->tts_isnull, nulls, columns * sizeof(bool));
	ExecStoreVirtualTuple(writer->slot);
	ExecSimpleRelationInsert(writer->result, writer->estate, writer->slot);
	ResetPerTupleExprContext(writer->estate);
}

/* Closes what open opened; the table's lock is kept to the end of the transaction. */
void
outbox_writer_close(OutboxWriter *writer)
{
	ExecDropSingleTupleTableSlot(writer->slot);
	ExecCloseIndices(writer->result);
	FreeExecutorState(writer->estate);
	table_close(writer->relation, NoLock);
}
