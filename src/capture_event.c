/*
 * capture_event.c
 *	  Makes the events of one change of one row.
 */
#include "capture.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/rel.h"

#include "log.h"

/* Room for one more, zeroed. */
OutboxNewEvent *
outbox_capture_add(OutboxCaptured *out)
{
	if (out->events == NULL)
	{
		out->space = 4;
		out->events = palloc(sizeof(OutboxNewEvent) * out->space);
	}
	else if (out->count == out->space)
	{
		out->space *= 2;
		out->events = repalloc_huge(out->events, sizeof(OutboxNewEvent) * out->space);
	}
	memset(&out->events[out->count], 0, sizeof(OutboxNewEvent));
	return &out->events[out->count++];
}

static void
append_row(StringInfo out, const OutboxCapture *capture, const OutboxRowData *row, bool *odd)
{
	if (row == NULL)
	{
		appendStringInfoString(out, "null");
		return;
	}
	appendStringInfoChar(out, '{');
	for (int i = 0; i < capture->column_count; i++)
	{
		const OutboxCaptureColumn *column = &capture->columns[i];
		int			index = column->value.attnum - 1;

		if (i > 0)
			appendStringInfoChar(out, ',');
		appendStringInfoString(out, column->name);
		if (row->nulls[index])
			appendStringInfoString(out, "null");
		else
			outbox_value_json(out, &column->value, row->values[index], odd);
	}
	appendStringInfoChar(out, '}');
}

/*
 * The payload as JSON: the row's columns in their order, or both rows. One that
 * jsonb can't hold is kept as text, so that outbox.events stays readable.
 */
static void
make_payload(const OutboxCapture *capture, const OutboxRowData *old, const OutboxRowData *new, OutboxNewEvent *event)
{
	StringInfoData body;
	bool		odd = false;

	initStringInfo(&body);
	appendStringInfoSpaces(&body, VARHDRSZ);
	if (capture->old_values)
	{
		appendStringInfoString(&body, "{\"old\":");
		append_row(&body, capture, old, &odd);
		appendStringInfoString(&body, ",\"new\":");
		append_row(&body, capture, new, &odd);
		appendStringInfoChar(&body, '}');
	}
	else
		append_row(&body, capture, new != NULL ? new : old, &odd);

	event->payload = outbox_event_json_bytes(&body);
	if (!odd)
		return;
	/* Text is in the database's encoding, and JSON is UTF-8. */
	event->payload_kind = GetDatabaseEncoding() == PG_UTF8 ? PAYLOAD_TEXT : PAYLOAD_BYTES;
	event->content_type = "application/json";
}

/* A payload from JSON in the database's encoding. */
bytea *
outbox_capture_json(const char *json)
{
	StringInfoData body;

	initStringInfo(&body);
	appendStringInfoSpaces(&body, VARHDRSZ);
	appendStringInfoString(&body, json);
	return outbox_event_json_bytes(&body);
}

static void
push_header(JsonbParseState **state, const char *name, const char *text)
{
	JsonbValue	key = {.type = jbvString};
	JsonbValue	value = {.type = jbvString};

	key.val.string.val = (char *) name;
	key.val.string.len = strlen(name);
	value.val.string.val = (char *) text;
	value.val.string.len = strlen(text);
	pushJsonbValue(state, WJB_KEY, &key);
	pushJsonbValue(state, WJB_VALUE, &value);
}

/* NULL and empty values are left out: a header can't be empty. */
static Jsonb *
make_headers(const OutboxCapture *capture, const OutboxRowData *row)
{
	JsonbParseState *state = NULL;

	if (capture->header_count == 0 && capture->drift == NULL)
		return NULL;
	pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < capture->header_count; i++)
	{
		const OutboxValue *value = &capture->headers[i];
		char	   *text;

		if (value->attnum == 0 || row->nulls[value->attnum - 1])
			continue;
		text = outbox_value_text(value, row->values[value->attnum - 1]);
		if (text[0] != '\0')
			push_header(&state, capture->header_names[i], text);
	}
	if (capture->drift != NULL)
		push_header(&state, "outbox-drift", capture->drift);
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

static void
set_version(const OutboxCapture *capture, const OutboxRowData *row, OutboxNewEvent *event)
{
	const OutboxValue *value = &capture->version;
	Datum		datum;

	if (value->attnum == 0 || row->nulls[value->attnum - 1])
		return;
	datum = row->values[value->attnum - 1];
	event->aggregate_version_given = true;
	event->aggregate_version = value->type == INT2OID ? DatumGetInt16(datum) : value->type == INT4OID ? DatumGetInt32(datum) :
																										DatumGetInt64(datum);
}

static void
set_subject(const OutboxCapture *capture, const OutboxRowData *row, OutboxNewEvent *event)
{
	const OutboxValue *value = &capture->subject;

	if (value->attnum > 0 && !row->nulls[value->attnum - 1])
		event->subject = outbox_value_text(value, row->values[value->attnum - 1]);
}

/*
 * Adds what becomes of one operation on a row: one event, or what the
 * projection makes of it. old is NULL for an insert, new for a delete.
 */
void
outbox_capture_event(const OutboxRule *rule, OutboxOperation operation,
					 const OutboxRowData *old, const OutboxRowData *new, OutboxCaptured *out)
{
	const OutboxCapture *capture = rule->detail;
	const OutboxRowData *row = new != NULL ? new : old;
	OutboxNewEvent event = {.aggregate_type = capture->aggregate_type,
							.event_type = capture->event_types[operation],
							.dataschema = capture->dataschema,
							.payload_kind = PAYLOAD_JSONB};
	int			level;

	event.aggregate_id = outbox_key_text(&rule->key, row);
	level = capture->depends ? outbox_settings_fix() : 0;
	event.headers = make_headers(capture, row);
	set_subject(capture, row, &event);
	set_version(capture, row, &event);
	if (capture->projection == NULL)
		make_payload(capture, old, new, &event);
	outbox_settings_restore(level);

	if (OidIsValid(capture->function))
		outbox_capture_project(rule, operation, old, new, &event, out);
	else
	{
		/* Without its projection, a row's content is nobody's business. */
		if (capture->projection != NULL)
			event.payload = outbox_capture_json("null");
		*outbox_capture_add(out) = event;
	}
}
