/*
 * capture_move.c
 *	  An UPDATE that moves a row to another partition, as one update.
 *
 * To row triggers it looks like a DELETE in one partition and an INSERT in
 * another, and UPDATE triggers don't fire. But the old tuple is marked as moved,
 * and the two events are queued one after the other. So a captured partitioned
 * table has one trigger more, for INSERT and DELETE without a condition, whose
 * name lets it fire before the others of its capture:
 *
 *	DELETE, moved	keeps the old row; the capture's DELETE trigger then passes it over
 *	INSERT			with a row kept: this is where it went; the capture's update is
 *					made of both, and its INSERT trigger passes it over
 *
 * A row kept whose INSERT doesn't come was deleted: a BEFORE trigger of the
 * other partition has refused it. That shows when the capture's next trigger
 * fires, or at the end of the transaction.
 *
 * The condition of the update, and of such a delete, is the WHEN of the trigger on the
 * partitioned table, evaluated here because that trigger doesn't fire.
 */
#include "capture.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "executor/executor.h"
#include "nodes/makefuncs.h"
#include "rewrite/rewriteManip.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

PG_FUNCTION_INFO_V1(outbox_capture_cross);

/* A row that left its partition. */
typedef struct Move
{
	const OutboxRule *rule;
	int			depth;			/* of triggers, where it was seen */
	SubTransactionId subid;
	HeapTuple	old;			/* in the layout of the root */
} Move;

/* Of the current transaction, in its memory; the newest last. */
static List *moves = NIL;

/* The row whose INSERT was the end of a move, until the capture's INSERT trigger has seen it. */
static struct
{
	int64		id;				/* 0: none */
	Oid			relid;
	ItemPointerData tid;
} arrived;

static int
trigger_depth(void)
{
	LOCAL_FCINFO(fcinfo, 0);

	InitFunctionCallInfoData(*fcinfo, NULL, 0, InvalidOid, NULL, NULL);
	return DatumGetInt32(pg_trigger_depth(fcinfo));
}

/* --------------------------------------------------------------- conditions */

static TupleTableSlot *
make_slot(const OutboxRule *rule, const OutboxRowData *row)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(rule->desc, &TTSOpsVirtual);

	if (row == NULL)
		return ExecStoreAllNullTuple(slot);
	ExecClearTuple(slot);
	memcpy(slot->tts_values, row->values, sizeof(Datum) * rule->desc->natts);
	memcpy(slot->tts_isnull, row->nulls, sizeof(bool) * rule->desc->natts);
	return ExecStoreVirtualTuple(slot);
}

static bool
evaluate(const OutboxRule *rule, const char *condition, const OutboxRowData *old, const OutboxRowData *new)
{
	EState	   *estate = CreateExecutorState();
	MemoryContext caller = MemoryContextSwitchTo(estate->es_query_cxt);
	ExprContext *context = GetPerTupleExprContext(estate);
	Node	   *node = stringToNode(condition);
	bool		result;

	ChangeVarNodes(node, PRS2_OLD_VARNO, INNER_VAR, 0);
	ChangeVarNodes(node, PRS2_NEW_VARNO, OUTER_VAR, 0);
	context->ecxt_innertuple = make_slot(rule, old);
	context->ecxt_outertuple = make_slot(rule, new);
	result = ExecQual(ExecPrepareQual(make_ands_implicit((Expr *) node), estate), context);
	ExecDropSingleTupleTableSlot(context->ecxt_innertuple);
	ExecDropSingleTupleTableSlot(context->ecxt_outertuple);
	MemoryContextSwitchTo(caller);
	FreeExecutorState(estate);
	return result;
}

/* Whether the capture's trigger for that operation, on the root, would fire. */
static bool
would_fire(const OutboxRule *rule, OutboxOperation operation, const OutboxRowData *old, const OutboxRowData *new)
{
	Relation	root = table_open(rule->root, AccessShareLock);
	char	   *name = psprintf("outbox_capture_%06lld_%s", (long long) rule->id, outbox_capture_operation_name(operation));
	bool		result = false;

	for (int i = 0; root->trigdesc != NULL && i < root->trigdesc->numtriggers; i++)
	{
		const Trigger *trigger = &root->trigdesc->triggers[i];

		if (strcmp(trigger->tgname, name) == 0 && trigger->tgenabled != TRIGGER_DISABLED)
			result = trigger->tgqual == NULL || evaluate(rule, trigger->tgqual, old, new);
	}
	table_close(root, NoLock);
	return result;
}

/* -------------------------------------------------------------------- moves */

/* The row went nowhere. */
static void
end_as_delete(const Move *move)
{
	OutboxRowData old;

	outbox_rule_read_row(move->rule, NULL, move->old, &old);
	if (would_fire(move->rule, OUTBOX_OP_DELETE, &old, NULL))
		outbox_capture_change(move->rule, OUTBOX_OP_DELETE, &old, NULL);
}

/* Ends as deletes what can't find its INSERT any more when a trigger of this capture fires at that depth. */
static void
flush(int64 id, int depth)
{
	List	   *rest = moves;
	ListCell   *cell;

	if (moves == NIL)
		return;
	moves = NIL;
	foreach(cell, rest)
	{
		Move	   *move = lfirst(cell);

		if (move->depth > depth || (move->depth == depth && move->rule->id == id))
			end_as_delete(move);
		else
		{
			MemoryContext caller = MemoryContextSwitchTo(TopTransactionContext);

			moves = lappend(moves, move);
			MemoryContextSwitchTo(caller);
		}
	}
}

/* Before the transaction commits or is prepared. */
void
outbox_capture_flush_moves(void)
{
	if (moves == NIL)
		return;
	PushActiveSnapshot(GetTransactionSnapshot());
	flush(0, -1);
	PopActiveSnapshot();
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			outbox_capture_flush_moves();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			moves = NIL;
			arrived.id = 0;
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg)
{
	ListCell   *cell;

	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	arrived.id = 0;
	/* Subtransactions that began later are parts of it. */
	foreach(cell, moves)
	{
		if (((Move *) lfirst(cell))->subid >= id)
			moves = foreach_delete_current(moves, cell);
	}
}

static void
keep(const OutboxRule *rule, const TriggerData *trigger, int depth)
{
	static bool	registered = false;
	MemoryContext caller = MemoryContextSwitchTo(TopTransactionContext);
	OutboxRowData row;
	Move	   *move = palloc(sizeof(Move));

	/* After the feed's callbacks, and so called before them. */
	if (!registered)
	{
		RegisterXactCallback(xact_callback, NULL);
		RegisterSubXactCallback(subxact_callback, NULL);
		registered = true;
	}
	outbox_rule_read_row(rule, trigger->tg_relation, trigger->tg_trigtuple, &row);
	*move = (Move) {rule, depth, GetCurrentSubTransactionId(), heap_form_tuple(rule->desc, row.values, row.nulls)};
	moves = lappend(moves, move);
	MemoryContextSwitchTo(caller);
}

/* The row that this INSERT is the other half of, or NULL. */
static Move *
take(const OutboxRule *rule, int depth)
{
	ListCell   *cell;

	foreach(cell, moves)
	{
		Move	   *move = lfirst(cell);

		if (move->rule->id == rule->id && move->depth == depth)
		{
			moves = foreach_delete_current(moves, cell);
			return move;
		}
	}
	return NULL;
}

static bool
is_marked(const TriggerData *trigger)
{
	return HeapTupleHeaderIndicatesMovedPartitions(trigger->tg_trigtuple->t_data);
}

static void
arrive(const OutboxRule *rule, const TriggerData *trigger, const Move *move)
{
	OutboxRowData old;
	OutboxRowData new;

	arrived.id = rule->id;
	arrived.relid = rule->relid;
	arrived.tid = trigger->tg_trigtuple->t_self;
	outbox_rule_read_row(rule, NULL, move->old, &old);
	outbox_rule_read_row(rule, trigger->tg_relation, trigger->tg_trigtuple, &new);
	if (would_fire(rule, OUTBOX_OP_UPDATE, &old, &new))
		outbox_capture_change(rule, OUTBOX_OP_UPDATE, &old, &new);
}

/*
 * Whether a capture's INSERT or DELETE trigger sees one half of a move, which
 * is none of its business.
 */
bool
outbox_capture_is_move(const OutboxRule *rule, const TriggerData *trigger)
{
	if (rule->relid == rule->root)
		return false;
	if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		return is_marked(trigger);
	if (TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
	{
		if (moves != NIL)
			flush(rule->id, trigger_depth());
		return false;
	}
	return arrived.id == rule->id && arrived.relid == rule->relid &&
		ItemPointerEquals(&arrived.tid, &trigger->tg_trigtuple->t_self);
}

/* AFTER INSERT OR DELETE, FOR EACH ROW, of a captured partitioned table. */
Datum
outbox_capture_cross(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	const OutboxRule *rule;
	Move	   *move;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_AFTER(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) || TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function serves the triggers of outbox.capture() only")));
	/* Most rows are neither: nothing is looked up for them. */
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ? moves == NIL : moves == NIL && !is_marked(trigger))
	{
		arrived.id = 0;
		return PointerGetDatum(NULL);
	}
	rule = outbox_capture_rule(trigger);
	if (rule == NULL)
		return PointerGetDatum(NULL);
	arrived.id = 0;
	move = TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ? take(rule, trigger_depth()) : NULL;
	flush(rule->id, trigger_depth());
	if (move != NULL)
		arrive(rule, trigger, move);
	else if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event) && is_marked(trigger))
		keep(rule, trigger, trigger_depth());
	return PointerGetDatum(NULL);
}
