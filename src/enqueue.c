/*
 * enqueue.c
 *	  The SQL face of enqueueing: outbox.enqueue, enqueue_text, enqueue_bytes,
 *	  enqueue_many, and INSERT into outbox.events.
 *
 * Each only turns its arguments into OutboxNewEvents; checks and storage are
 * event_check.c's and append.c's.
 */
#include "outbox.h"

#include "access/htup_details.h"
#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "event.h"
#include "log.h"

PG_FUNCTION_INFO_V1(outbox_enqueue);
PG_FUNCTION_INFO_V1(outbox_enqueue_text);
PG_FUNCTION_INFO_V1(outbox_enqueue_bytes);
PG_FUNCTION_INFO_V1(outbox_enqueue_many);
PG_FUNCTION_INFO_V1(outbox_events_insert);
PG_FUNCTION_INFO_V1(outbox_events_refuse);

/* Arguments of the enqueue functions, in order. */
enum
{
	ARG_AGGREGATE_TYPE,
	ARG_AGGREGATE_ID,
	ARG_EVENT_TYPE,
	ARG_PAYLOAD,
	ARG_HEADERS,
	ARG_SUBJECT,
	ARG_EVENT_ID,
	ARG_OCCURRED_AT,
	ARG_PRIORITY,
	ARG_NOT_BEFORE,
	ARG_CONTENT_TYPE,
	ARG_DATASCHEMA,
	ARG_AGGREGATE_VERSION,
	ARG_ON_CONFLICT,
	ARG_EVENT_COUNT = ARG_ON_CONFLICT	/* those that belong to one event */
};

static const char *
optional_text(NullableDatum argument)
{
	return argument.isnull ? NULL : TextDatumGetCString(argument.value);
}

/* Builds and checks one event from values in the order of the arguments. */
static void
make_event(OutboxNewEvent *event, const NullableDatum *args, char payload_kind)
{
	memset(event, 0, sizeof(*event));
	event->aggregate_type = optional_text(args[ARG_AGGREGATE_TYPE]);
	event->aggregate_id = optional_text(args[ARG_AGGREGATE_ID]);
	event->event_type = optional_text(args[ARG_EVENT_TYPE]);
	event->payload_kind = payload_kind;
	if (!args[ARG_PAYLOAD].isnull && payload_kind == PAYLOAD_JSONB)
		event->payload = outbox_event_jsonb_bytes(DatumGetJsonbP(args[ARG_PAYLOAD].value));
	else if (!args[ARG_PAYLOAD].isnull)
		event->payload = DatumGetByteaPP(args[ARG_PAYLOAD].value);
	if (!args[ARG_HEADERS].isnull)
		event->headers = DatumGetJsonbP(args[ARG_HEADERS].value);
	event->subject = optional_text(args[ARG_SUBJECT]);
	event->event_id_given = !args[ARG_EVENT_ID].isnull;
	if (event->event_id_given)
		event->event_id = *DatumGetUUIDP(args[ARG_EVENT_ID].value);
	event->occurred_at_given = !args[ARG_OCCURRED_AT].isnull;
	event->occurred_at = DatumGetTimestampTz(args[ARG_OCCURRED_AT].value);
	event->priority = args[ARG_PRIORITY].isnull ? 0 : DatumGetInt32(args[ARG_PRIORITY].value);
	event->not_before_given = !args[ARG_NOT_BEFORE].isnull;
	event->not_before = DatumGetTimestampTz(args[ARG_NOT_BEFORE].value);
	event->content_type = optional_text(args[ARG_CONTENT_TYPE]);
	event->dataschema = optional_text(args[ARG_DATASCHEMA]);
	event->aggregate_version_given = !args[ARG_AGGREGATE_VERSION].isnull;
	event->aggregate_version = DatumGetInt64(args[ARG_AGGREGATE_VERSION].value);
	outbox_event_check(event);
}

static OutboxOnConflict
parse_on_conflict(NullableDatum argument)
{
	char	   *form;

	if (argument.isnull)
		return OUTBOX_CONFLICT_ERROR;
	form = TextDatumGetCString(argument.value);
	if (strcmp(form, "error") == 0)
		return OUTBOX_CONFLICT_ERROR;
	if (strcmp(form, "return") == 0)
		return OUTBOX_CONFLICT_RETURN;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
			 errmsg("on_conflict must not be \"%s\"", form),
			 errhint("It is 'error' (the default), or 'return' to return the event_id and add nothing when it exists.")));
}

static Datum
enqueue(FunctionCallInfo fcinfo, char payload_kind)
{
	OutboxNewEvent event;
	pg_uuid_t  *result = palloc(sizeof(pg_uuid_t));

	make_event(&event, fcinfo->args, payload_kind);
	outbox_append_events(&event, 1, parse_on_conflict(fcinfo->args[ARG_ON_CONFLICT]));
	*result = event.event_id;
	PG_RETURN_UUID_P(result);
}

Datum
outbox_enqueue(PG_FUNCTION_ARGS)
{
	return enqueue(fcinfo, PAYLOAD_JSONB);
}

Datum
outbox_enqueue_text(PG_FUNCTION_ARGS)
{
	return enqueue(fcinfo, PAYLOAD_TEXT);
}

Datum
outbox_enqueue_bytes(PG_FUNCTION_ARGS)
{
	return enqueue(fcinfo, PAYLOAD_BYTES);
}

/* ----------------------------------------------------------- enqueue_many */

typedef struct Column
{
	Datum	   *values;
	bool	   *nulls;
	bool		given;			/* the array wasn't NULL */
	int			count;
} Column;

static const char *const argument_names[ARG_EVENT_COUNT] = {
	"aggregate_type", "aggregate_id", "event_type", "payload", "headers", "subject", "event_id",
	"occurred_at", "priority", "not_before", "content_type", "dataschema", "aggregate_version"};

static void
read_column(Column *column, NullableDatum argument)
{
	static const struct
	{
		Oid			type;
		int			length;
		bool		by_value;
		char		align;
	}			types[] = {
		{TEXTOID, -1, false, TYPALIGN_INT},
		{JSONBOID, -1, false, TYPALIGN_INT},
		{UUIDOID, UUID_LEN, false, TYPALIGN_CHAR},
		{TIMESTAMPTZOID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE},
		{INT4OID, 4, true, TYPALIGN_INT},
		{INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE},
	};
	ArrayType  *array;

	column->given = !argument.isnull;
	column->count = 0;
	if (argument.isnull)
		return;
	array = DatumGetArrayTypeP(argument.value);
	for (int i = 0; i < lengthof(types); i++)
	{
		if (types[i].type == ARR_ELEMTYPE(array))
		{
			deconstruct_array(array, types[i].type, types[i].length, types[i].by_value, types[i].align,
							  &column->values, &column->nulls, &column->count);
			return;
		}
	}
	elog(ERROR, "unexpected array of type %u", ARR_ELEMTYPE(array));
}

/* How many events the arrays describe: the length of all that don't have one element. */
static int
count_events(const Column *columns)
{
	int			count = -1;
	int			first = 0;

	for (int i = 0; i < ARG_EVENT_COUNT; i++)
	{
		if (!columns[i].given && i <= ARG_PAYLOAD)
			ereport(ERROR,
					(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
					 errmsg("%s must not be null", argument_names[i])));
		if (columns[i].count == 1 || !columns[i].given)
			continue;
		if (count == -1)
		{
			count = columns[i].count;
			first = i;
		}
		else if (count != columns[i].count)
			ereport(ERROR,
					(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
					 errmsg("arrays differ in length"),
					 errdetail("\"%s\" has %d elements and \"%s\" has %d.", argument_names[first], count,
							   argument_names[i], columns[i].count),
					 errhint("Give arrays of the same length, or of one element that holds for all events.")));
	}
	return count == -1 ? 1 : count;
}

static NullableDatum
element(const Column *column, int i)
{
	NullableDatum result = {0, true};

	if (column->given)
	{
		i = column->count == 1 ? 0 : i;
		result.value = column->values[i];
		result.isnull = column->nulls[i];
	}
	return result;
}

static void
make_element(const Column *columns, int index, OutboxNewEvent *event)
{
	NullableDatum args[ARG_EVENT_COUNT];

	for (int i = 0; i < ARG_EVENT_COUNT; i++)
		args[i] = element(&columns[i], index);
	make_event(event, args, PAYLOAD_JSONB);
}

/* An OutboxNameEvent of arrays; arg is the columns. */
static void
name_element(void *arg, int index, OutboxEventName *name)
{
	const Column *columns = arg;
	NullableDatum type = element(&columns[ARG_AGGREGATE_TYPE], index);
	NullableDatum id = element(&columns[ARG_AGGREGATE_ID], index);
	NullableDatum event_id = element(&columns[ARG_EVENT_ID], index);
	OutboxNewEvent event;

	/* For its error. */
	if (type.isnull || id.isnull)
	{
		make_element(columns, index, &event);
		pg_unreachable();
	}
	*name = (OutboxEventName) {
		VARDATA_ANY(DatumGetPointer(type.value)), VARSIZE_ANY_EXHDR(DatumGetPointer(type.value)),
		VARDATA_ANY(DatumGetPointer(id.value)), VARSIZE_ANY_EXHDR(DatumGetPointer(id.value)),
		event_id.isnull ? NULL : DatumGetUUIDP(event_id.value)};
}

/* Adds them one after the other, each in the same memory; ids becomes theirs. */
static void
append_many(Column *columns, int count, OutboxOnConflict on_conflict, pg_uuid_t *ids)
{
	OutboxAppend *append = outbox_append_begin(count, name_element, columns, on_conflict);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "outbox event", ALLOCSET_DEFAULT_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);

	for (int i = 0; i < count; i++)
	{
		OutboxNewEvent event;

		CHECK_FOR_INTERRUPTS();
		make_element(columns, i, &event);
		outbox_append_event(append, &event);
		ids[i] = event.event_id;
		MemoryContextReset(context);
	}
	MemoryContextSwitchTo(caller);
	MemoryContextDelete(context);
	outbox_append_end(append);
}

Datum
outbox_enqueue_many(PG_FUNCTION_ARGS)
{
	Column		columns[ARG_EVENT_COUNT];
	OutboxOnConflict on_conflict = parse_on_conflict(fcinfo->args[ARG_ON_CONFLICT]);
	pg_uuid_t  *ids;
	Datum	   *result;
	int			count;

	for (int i = 0; i < ARG_EVENT_COUNT; i++)
		read_column(&columns[i], fcinfo->args[i]);
	count = count_events(columns);

	ids = palloc_extended(sizeof(pg_uuid_t) * Max(count, 1), MCXT_ALLOC_HUGE);
	result = palloc_extended(sizeof(Datum) * Max(count, 1), MCXT_ALLOC_HUGE);
	if (count > 0)
		append_many(columns, count, on_conflict, ids);
	for (int i = 0; i < count; i++)
		result[i] = UUIDPGetDatum(&ids[i]);
	PG_RETURN_ARRAYTYPE_P(construct_array(result, count, UUIDOID, UUID_LEN, false, TYPALIGN_CHAR));
}

/* --------------------------------------------------- INSERT INTO events */

/* The view's column behind each argument; the payload has three. */
static NullableDatum
view_column(TriggerData *trigger, const char *name)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	NullableDatum result;

	result.value = SPI_getbinval(trigger->tg_trigtuple, desc, SPI_fnumber(desc, name), &result.isnull);
	return result;
}

static char
choose_payload(TriggerData *trigger, NullableDatum *payload)
{
	static const struct
	{
		const char *column;
		char		kind;
	}			choices[] = {{"payload", PAYLOAD_JSONB}, {"payload_text", PAYLOAD_TEXT}, {"payload_bytes", PAYLOAD_BYTES}};
	char		kind = PAYLOAD_JSONB;
	int			given = 0;

	payload->isnull = true;
	for (int i = 0; i < lengthof(choices); i++)
	{
		NullableDatum value = view_column(trigger, choices[i].column);

		if (value.isnull)
			continue;
		*payload = value;
		kind = choices[i].kind;
		given++;
	}
	if (given > 1)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("an event has one payload"),
				 errhint("Set one of payload (jsonb), payload_text and payload_bytes.")));
	return kind;
}

/* What RETURNING shows: the row given, completed. */
static HeapTuple
completed_row(TriggerData *trigger, const OutboxNewEvent *event)
{
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	const char *names[] = {
		"position", "event_id", "occurred_at", "created_at", "priority", "publish_state", "attempts", "agg_hash",
		"headers", "published_at", "next_attempt_at", "last_error"};
	Datum		values[lengthof(names)] = {
		Int64GetDatum(event->position), UUIDPGetDatum(&event->event_id), TimestampTzGetDatum(event->occurred_at),
		TimestampTzGetDatum(event->created_at), Int32GetDatum(event->priority), CStringGetTextDatum("pending"),
		Int32GetDatum(0), Int64GetDatum((int64) event->agg_hash)};
	bool		nulls[lengthof(names)] = {false};
	int			columns[lengthof(names)];

	nulls[8] = event->headers_text == NULL;
	if (event->headers_text != NULL)
		values[8] = DirectFunctionCall1(jsonb_in, CStringGetDatum(event->headers_text));
	nulls[9] = nulls[10] = nulls[11] = true;

	for (int i = 0; i < lengthof(names); i++)
		columns[i] = SPI_fnumber(desc, names[i]);
	return heap_modify_tuple_by_cols(trigger->tg_trigtuple, desc, lengthof(names), columns, values, nulls);
}

/* Anything but the trigger of our view would hand us rows of another shape. */
static void
check_trigger(FunctionCallInfo fcinfo)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) || !TRIGGER_FIRED_INSTEAD(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event) ||
		RelationGetRelid(trigger->tg_relation) != get_relname_relid("events", get_namespace_oid(OUTBOX_SCHEMA, false)))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function serves as an INSTEAD OF trigger of the view outbox.events only")));
}

Datum
outbox_events_insert(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	NullableDatum args[ARG_EVENT_COUNT];
	OutboxNewEvent event;
	char		kind;

	check_trigger(fcinfo);
	for (int i = 0; i < ARG_EVENT_COUNT; i++)
	{
		if (i != ARG_PAYLOAD)
			args[i] = view_column(trigger, argument_names[i]);
	}
	kind = choose_payload(trigger, &args[ARG_PAYLOAD]);
	make_event(&event, args, kind);
	outbox_append_events(&event, 1, OUTBOX_CONFLICT_ERROR);
	PG_RETURN_POINTER(completed_row(trigger, &event));
}

Datum
outbox_events_refuse(PG_FUNCTION_ARGS)
{
	check_trigger(fcinfo);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("an event can't be changed or deleted once it is enqueued"),
			 errhint("Enqueue a further event that corrects it.")));
}
