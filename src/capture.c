/*
 * capture.c
 *	  The triggers of outbox.capture(): from changes of rows to events.
 *
 * They fire AFTER, for each row, and see what was stored. Conditions are the
 * triggers' own WHEN. What an UPDATE across partitions looks like, and what is
 * done about it, is in capture_move.c. The writer needs no rights on our schema: nothing
 * here runs SQL but a projection function, and that with the table owner's.
 */
#include "capture.h"

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"

#include "log.h"

PG_FUNCTION_INFO_V1(outbox_capture_row);
PG_FUNCTION_INFO_V1(outbox_capture_truncate);

static const char *const operation_names[OUTBOX_OP_COUNT] = {"insert", "update", "delete", "truncate"};

const char *
outbox_capture_operation_name(OutboxOperation operation)
{
	return operation_names[operation];
}

/* The table lacks something that was asked for: an error, or a warning for each statement. */
static void
tell_drift(const OutboxRule *rule, const OutboxCapture *capture)
{
	static Oid	told = InvalidOid;
	static TimestampTz told_in = 0;
	const char *message = "table \"%s\" is not what outbox.capture() was told";

	if (capture->fail_on_drift)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg(message, get_rel_name(rule->root)),
				 errdetail("Its %s.", capture->drift),
				 errhint("Call outbox.capture() again with what the table is now.")));
	if (told == rule->root && told_in == GetCurrentStatementStartTimestamp())
		return;
	told = rule->root;
	told_in = GetCurrentStatementStartTimestamp();
	ereport(WARNING,
			(errcode(ERRCODE_UNDEFINED_COLUMN),
			 errmsg(message, get_rel_name(rule->root)),
			 errdetail("Its %s. Events carry the header \"outbox-drift\".", capture->drift),
			 errhint("Call outbox.capture() again with what the table is now.")));
}

static bool
differs(const OutboxRule *rule, const OutboxValue *value, const OutboxRowData *old, const OutboxRowData *new)
{
	return value->attnum > 0 && !outbox_value_same(rule->desc, value->attnum, old, new);
}

/* Whether anything differs that the event tells; of a projection, and without payload, that may be all. */
static bool
tells_something(const OutboxRule *rule, const OutboxCapture *capture, const OutboxRowData *old, const OutboxRowData *new)
{
	if (capture->projection != NULL || capture->column_count == 0)
		return !outbox_rule_same_row(rule, old, new);
	for (int i = 0; i < capture->column_count; i++)
	{
		if (differs(rule, &capture->columns[i].value, old, new))
			return true;
	}
	for (int i = 0; i < capture->header_count; i++)
	{
		if (differs(rule, &capture->headers[i], old, new))
			return true;
	}
	return differs(rule, &capture->subject, old, new) || differs(rule, &capture->version, old, new) ||
		!outbox_key_same(&rule->key, rule->desc, old, new);
}

static bool
is_wanted_update(const OutboxRule *rule, const OutboxCapture *capture, const OutboxRowData *old, const OutboxRowData *new)
{
	if (!capture->has_changed)
		return capture->unchanged_updates || tells_something(rule, capture, old, new);
	for (int i = 0; i < capture->changed_count; i++)
	{
		if (!outbox_value_same(rule->desc, capture->changed[i], old, new))
			return true;
	}
	return false;
}

/*
 * Enqueues the events of a change. An update of the key is the end of one
 * aggregate and the beginning of another, where both are captured.
 */
void
outbox_capture_change(const OutboxRule *rule, OutboxOperation operation,
					  const OutboxRowData *old, const OutboxRowData *new)
{
	const OutboxCapture *capture = rule->detail;
	OutboxCaptured out = {0};

	if (operation == OUTBOX_OP_UPDATE && !is_wanted_update(rule, capture, old, new))
		return;
	if (capture->drift != NULL)
		tell_drift(rule, capture);
	if (operation == OUTBOX_OP_UPDATE && capture->split_key_changes &&
		capture->event_types[OUTBOX_OP_INSERT] != NULL && capture->event_types[OUTBOX_OP_DELETE] != NULL &&
		!outbox_key_same(&rule->key, rule->desc, old, new))
	{
		outbox_capture_event(rule, OUTBOX_OP_DELETE, old, NULL, &out);
		outbox_capture_event(rule, OUTBOX_OP_INSERT, NULL, new, &out);
	}
	else
		outbox_capture_event(rule, operation, old, new, &out);

	for (int i = 0; i < out.count; i++)
		outbox_event_check(&out.events[i]);
	if (out.count > 0)
		outbox_append_events(out.events, out.count, OUTBOX_CONFLICT_ERROR);
}

static TriggerData *
check_trigger(FunctionCallInfo fcinfo, bool for_row)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || (TRIGGER_FIRED_FOR_ROW(trigger->tg_event) != 0) != for_row ||
		(for_row && !TRIGGER_FIRED_AFTER(trigger->tg_event)))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function serves the triggers of outbox.capture() only")));
	return trigger;
}

/* AFTER INSERT, UPDATE or DELETE, FOR EACH ROW. */
Datum
outbox_capture_row(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = check_trigger(fcinfo, true);
	const OutboxRule *rule = outbox_capture_rule(trigger);
	OutboxRowData first;
	OutboxRowData second;

	if (rule == NULL || outbox_capture_is_move(rule, trigger))
		return PointerGetDatum(NULL);
	outbox_rule_read_row(rule, trigger->tg_relation, trigger->tg_trigtuple, &first);
	if (TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		outbox_capture_change(rule, OUTBOX_OP_INSERT, NULL, &first);
	else if (TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		outbox_capture_change(rule, OUTBOX_OP_DELETE, &first, NULL);
	else
	{
		outbox_rule_read_row(rule, trigger->tg_relation, trigger->tg_newtuple, &second);
		outbox_capture_change(rule, OUTBOX_OP_UPDATE, &first, &second);
	}
	return PointerGetDatum(NULL);
}

/* ---------------------------------------------------------------- TRUNCATE */

static void
refuse_truncate(const OutboxRule *rule)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot truncate table \"%s\" because its changes are captured", get_rel_name(rule->root)),
			 errdetail("No event would tell which rows have gone."),
			 errhint("Use DELETE, or call outbox.capture() with on_truncate => 'event' for one event of the whole table.")));
}

/*
 * BEFORE TRUNCATE refuses it, AFTER TRUNCATE makes one event. A partitioned
 * table has the trigger on each partition, too: the first to fire in a command
 * speaks for all.
 */
Datum
outbox_capture_truncate(PG_FUNCTION_ARGS)
{
	static int64 last_id = 0;
	static CommandId last_command = InvalidCommandId;
	static TransactionId last_xid = InvalidTransactionId;
	TriggerData *trigger = check_trigger(fcinfo, false);
	const OutboxRule *rule = outbox_capture_rule(trigger);
	const OutboxCapture *capture;
	OutboxNewEvent event;
	CommandId	command = GetCurrentCommandId(true);
	TransactionId xid = GetCurrentTransactionId();

	if (rule == NULL)
		return PointerGetDatum(NULL);
	capture = rule->detail;
	if (TRIGGER_FIRED_BEFORE(trigger->tg_event))
		refuse_truncate(rule);
	if (last_id == rule->id && last_command == command && last_xid == xid)
		return PointerGetDatum(NULL);

	event = (OutboxNewEvent) {.aggregate_type = capture->aggregate_type,
							  .aggregate_id = "*",
							  .event_type = capture->event_types[OUTBOX_OP_TRUNCATE],
							  .dataschema = capture->dataschema,
							  .payload_kind = PAYLOAD_JSONB,
							  .payload = outbox_capture_json(capture->table_json)};
	outbox_event_check(&event);
	outbox_append_events(&event, 1, OUTBOX_CONFLICT_ERROR);
	last_id = rule->id;
	last_command = command;
	last_xid = xid;
	return PointerGetDatum(NULL);
}
