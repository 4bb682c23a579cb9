/*
 * event_check.c
 *	  Refuses, at enqueue, what could not be published later.
 *
 * Whatever passes here has a valid subject and valid headers; what remains to
 * go wrong at the broker is its state and its limits.
 */
#include "outbox.h"

#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "attributes.h"
#include "encode.h"
#include "event.h"
#include "jsonb_text.h"

#define MAX_HEADERS 100
#define MAX_CONTENT_TYPE 255
#define MAX_DATASCHEMA 1024

/* What encode.c wants: UTF-8. A copy is made only in databases of another encoding. */
const char *
outbox_event_utf8(const char *text)
{
	return pg_server_to_any(text, strlen(text), PG_UTF8);
}

/* The JSON text in body, behind room for a length word, as a payload in UTF-8. Takes body's memory. */
bytea *
outbox_event_json_bytes(StringInfo body)
{
	bytea	   *bytes = (bytea *) body->data;

	if (GetDatabaseEncoding() != PG_UTF8)
	{
		const char *text = body->data + VARHDRSZ;
		const char *converted = pg_server_to_any(text, body->len - VARHDRSZ, PG_UTF8);

		if (converted != text)
			return DatumGetByteaP(CStringGetTextDatum(converted));
	}
	SET_VARSIZE(bytes, body->len);
	return bytes;
}

/* The canonical text of a jsonb value, which is what receivers get; UTF-8, as JSON is by definition. */
bytea *
outbox_event_jsonb_bytes(Jsonb *json)
{
	StringInfoData body;

	initStringInfo(&body);
	appendStringInfoSpaces(&body, VARHDRSZ);
	outbox_jsonb_text(&body, json);
	return outbox_event_json_bytes(&body);
}

static void
require(const char *value, const char *name)
{
	if (value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("%s must not be null", name)));
	if (value[0] == '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be empty", name)));
}

static void
limit(const char *value, const char *name, size_t max)
{
	size_t		length = strlen(outbox_event_utf8(value));

	if (length > max)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s is too long", name),
				 errdetail("It has %zu bytes; the limit is %zu.", length, max)));
}

static void
check_subject(const char *subject)
{
	const char *complaint = outbox_encode_check_subject(outbox_event_utf8(subject));

	if (complaint != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("subject \"%s\" can't be published to", subject),
				 errdetail("The subject %s.", complaint),
				 errhint("Use dot-separated tokens without blanks and wildcards, or leave the subject out.")));
}

static void
check_content_type(const char *content_type)
{
	const char *complaint = outbox_encode_check_header_value(outbox_event_utf8(content_type));

	limit(content_type, "content_type", MAX_CONTENT_TYPE);
	if (complaint != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("content_type \"%s\" can't be a header value", content_type),
				 errdetail("The value %s.", complaint)));
}

static void
check_occurred_at(TimestampTz occurred_at)
{
	struct pg_tm tm;
	fsec_t		fsec;

	if (TIMESTAMP_NOT_FINITE(occurred_at) ||
		timestamp2tm(occurred_at, NULL, &tm, &fsec, NULL, NULL) != 0 || tm.tm_year < 1 || tm.tm_year > 9999)
		ereport(ERROR,
				(errcode(ERRCODE_DATETIME_VALUE_OUT_OF_RANGE),
				 errmsg("occurred_at is out of range"),
				 errdetail("It is written as an RFC 3339 time, which has years 1 to 9999.")));
}

static void
check_header_key(const char *key)
{
	bool		is_attribute = outbox_attribute_has_prefix(key);
	const char *complaint = is_attribute ? outbox_attribute_check_key(outbox_event_utf8(key)) : outbox_encode_check_header_key(outbox_event_utf8(key));

	if (complaint != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("header key \"%s\" is not allowed", key),
				 errdetail("The key %s.", complaint),
				 is_attribute ? errhint("A CloudEvents extension attribute of your own is named \"ce-\" and 1 to 20 lower-case letters and digits.") : 0));
}

/* One header whose key and value are palloc'd strings. */
static void
check_header(const char *key, const char *value)
{
	const char *complaint;

	check_header_key(key);
	complaint = outbox_encode_check_header_value(outbox_event_utf8(value));
	if (complaint == NULL && strcmp(key, OUTBOX_TTL_HEADER) == 0)
		complaint = outbox_encode_check_ttl(value);
	if (complaint == NULL && strcmp(key, OUTBOX_SCHEDULE_HEADER) == 0 && strcmp(value, OUTBOX_SCHEDULE_VALUE) != 0)
		complaint = "is not \"" OUTBOX_SCHEDULE_VALUE "\"";
	if (complaint == NULL && outbox_encode_same_header_key(key, "traceparent"))
		complaint = outbox_attribute_check_traceparent(value);
	if (complaint == NULL && outbox_encode_same_header_key(key, "tracestate"))
		complaint = outbox_attribute_check_tracestate(value);
	if (complaint != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("value of header \"%s\" is not allowed", key),
				 errdetail("The value %s.", complaint)));
}

static void
append_header(StringInfo out, const char *key, const char *value)
{
	appendStringInfoString(out, out->len == 0 ? "{" : ", ");
	escape_json(out, key);
	appendStringInfoString(out, ": ");
	escape_json(out, value);
}

static void
refuse_same_key(char **keys, int count, const char *key)
{
	for (int i = 0; i < count; i++)
	{
		if (outbox_encode_same_header_key(keys[i], key))
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("header key \"%s\" is given twice", key),
					 errdetail("Keys that differ in case only are the same to many receivers.")));
	}
}

static bool
has_key(char **keys, int count, const char *key)
{
	for (int i = 0; i < count; i++)
	{
		if (outbox_encode_same_header_key(keys[i], key))
			return true;
	}
	return false;
}

/* The trace context that the session has set, unless the caller gave one; the settings were checked. */
static void
append_trace_context(StringInfo out, char **keys, int count)
{
	if (outbox_traceparent[0] == '\0' || has_key(keys, count, "traceparent"))
		return;
	append_header(out, "traceparent", outbox_traceparent);
	if (outbox_tracestate[0] != '\0' && !has_key(keys, count, "tracestate"))
		append_header(out, "tracestate", outbox_tracestate);
}

/* Checks every header and returns them as JSON text, NULL when there are none. */
static char *
check_headers(const OutboxNewEvent *event)
{
	Jsonb	   *headers = event->headers;
	StringInfoData out;
	char	   *keys[MAX_HEADERS];
	int			count = 0;

	initStringInfo(&out);
	if (headers != NULL)
	{
		JsonbIterator *iterator = JsonbIteratorInit(&headers->root);
		JsonbValue	item;

		if (JsonbIteratorNext(&iterator, &item, true) != WJB_BEGIN_OBJECT)
			ereport(ERROR,
					(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
					 errmsg("headers must be a JSON object")));
		while (JsonbIteratorNext(&iterator, &item, true) == WJB_KEY)
		{
			char	   *key = pnstrdup(item.val.string.val, item.val.string.len);
			char	   *value;

			(void) JsonbIteratorNext(&iterator, &item, true);
			if (item.type != jbvString)
				ereport(ERROR,
						(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
						 errmsg("value of header \"%s\" is not a string", key),
						 errhint("Quote numbers and booleans; a header can't hold null, an array or an object.")));
			if (count == MAX_HEADERS)
				ereport(ERROR,
						(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
						 errmsg("too many headers"),
						 errdetail("The limit is %d.", MAX_HEADERS)));
			value = pnstrdup(item.val.string.val, item.val.string.len);
			check_header(key, value);
			refuse_same_key(keys, count, key);
			keys[count++] = key;
			append_header(&out, key, value);
		}
	}
	if (!event->not_before_given && has_key(keys, count, OUTBOX_SCHEDULE_HEADER))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("header \"%s\" needs not_before", OUTBOX_SCHEDULE_HEADER),
				 errdetail("It lets the stream keep the event until then.")));
	append_trace_context(&out, keys, count);
	if (out.len == 0)
		return NULL;
	appendStringInfoChar(&out, '}');
	return out.data;
}

static void
check_size(const OutboxNewEvent *event)
{
	Size		payload = VARSIZE_ANY_EXHDR(event->payload);
	Size		headers = event->headers_text == NULL ? 0 : strlen(event->headers_text);

	if (payload + headers > (Size) outbox_max_payload)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("event is too large"),
				 errdetail("Its payload has %zu bytes and its headers %zu; \"outbox.max_payload\" is %d.",
						   payload, headers, outbox_max_payload),
				 errhint("Store the content elsewhere and publish a reference, or raise \"outbox.max_payload\""
						 " and the max_payload of the NATS server. See docs/failures.md, \"Event too large\".")));
}

/* ERROR unless the event can be published; fills in headers_text. */
void
outbox_event_check(OutboxNewEvent *event)
{
	require(event->aggregate_type, "aggregate_type");
	require(event->aggregate_id, "aggregate_id");
	require(event->event_type, "event_type");
	limit(event->aggregate_type, "aggregate_type", OUTBOX_MAX_AGGREGATE_TYPE);
	limit(event->aggregate_id, "aggregate_id", OUTBOX_MAX_AGGREGATE_ID);
	limit(event->event_type, "event_type", OUTBOX_MAX_EVENT_TYPE);
	if (event->payload == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("payload must not be null"),
				 errhint("For the JSON value null write 'null'; for an empty body use outbox.enqueue_bytes with an empty bytea.")));
	if (event->subject != NULL)
		check_subject(event->subject);
	if (event->content_type != NULL)
		check_content_type(event->content_type);
	if (event->dataschema != NULL)
	{
		require(event->dataschema, "dataschema");
		limit(event->dataschema, "dataschema", MAX_DATASCHEMA);
	}
	if (event->occurred_at_given)
		check_occurred_at(event->occurred_at);
	if (event->priority < OUTBOX_MIN_PRIORITY || event->priority > OUTBOX_MAX_PRIORITY)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("priority %d is out of range", event->priority),
				 errdetail("It is between %d and %d; higher goes first.", OUTBOX_MIN_PRIORITY, OUTBOX_MAX_PRIORITY)));
	event->headers_text = check_headers(event);
	check_size(event);
}
