/*
 * envelope.c
 *	  What an event looks like to receivers: subject, headers, body.
 *
 * outbox.envelope chooses one of three. CloudEvents 1.0 in binary mode: an
 * attribute is a header, the body is the payload. In structured mode: one JSON
 * object has the attributes and the payload. Bare: no attributes. The names
 * are those of the CloudEvents NATS protocol binding and of its extensions
 * "sequence", "partitioning" and "distributed tracing"; aggregatetype and
 * aggregateversion are ours.
 */
#include "outbox.h"

#include "commands/dbcommands.h"
#include "common/base64.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "attributes.h"
#include "clock.h"
#include "encode.h"
#include "envelope.h"
#include "event.h"
#include "log.h"

/* Ours and the user's (event_check.c allows 100). */
#define MAX_HEADERS 128

/* Collects what goes into the block; strings by their offset, as the buffer moves. */
typedef struct Builder
{
	StringInfoData strings;
	int			count;
	int			key[MAX_HEADERS];
	int			value[MAX_HEADERS];
	StringInfoData body;		/* in structured mode only */
} Builder;

/* Where in it the texts are that the event names itself. */
typedef struct Texts
{
	int			subject;
	int			aggregate_type;
	int			aggregate_id;
	int			event_type;
} Texts;

static int
add_string(Builder *builder, const char *text)
{
	int			offset = builder->strings.len;

	appendBinaryStringInfo(&builder->strings, text, strlen(text) + 1);
	return offset;
}

static void
add_header(Builder *builder, const char *key, const char *value)
{
	if (builder->count == MAX_HEADERS)
		elog(ERROR, "too many headers");
	builder->key[builder->count] = add_string(builder, key);
	builder->value[builder->count] = add_string(builder, value);
	builder->count++;
}

/* A member of the structured event; its value is in UTF-8. */
static void
add_member(Builder *builder, const char *name, const char *value)
{
	appendStringInfoChar(&builder->body, builder->body.len == 0 ? '{' : ',');
	escape_json(&builder->body, name);
	appendStringInfoChar(&builder->body, ':');
	escape_json(&builder->body, value);
}

/* A CloudEvents attribute by its header's key, whose value holds nothing that a header must encode. */
static void
add_plain_attribute(Builder *builder, const char *key, const char *value)
{
	if (outbox_envelope == OUTBOX_ENVELOPE_BINARY)
		add_header(builder, key, value);
	else if (outbox_envelope == OUTBOX_ENVELOPE_STRUCTURED)
		add_member(builder, key + strlen(OUTBOX_ATTRIBUTE_PREFIX), value);
}

/* A header with free text, encoded as an attribute's is. */
static void
add_encoded_header(Builder *builder, const char *key, const char *text)
{
	size_t		size = strlen(text) * 3 + 1;
	char	   *out = palloc(size);

	(void) outbox_encode_ce_value(text, out, size);
	add_header(builder, key, out);
}

/* A CloudEvents attribute with free text. */
static void
add_attribute(Builder *builder, const char *key, const char *text)
{
	if (outbox_envelope == OUTBOX_ENVELOPE_BINARY)
		add_encoded_header(builder, key, outbox_event_utf8(text));
	else if (outbox_envelope == OUTBOX_ENVELOPE_STRUCTURED)
		add_member(builder, key + strlen(OUTBOX_ATTRIBUTE_PREFIX), outbox_event_utf8(text));
}

/* outbox.cloudevents_source, or "/outbox/" and the database's name as a URI has it. */
static const char *
event_source(void)
{
	static char *from_database = NULL;

	if (outbox_cloudevents_source[0] != '\0')
		return outbox_cloudevents_source;
	if (from_database == NULL)
	{
		char	   *name = get_database_name(MyDatabaseId);
		char		encoded[NAMEDATALEN * 4 * 3];

		(void) outbox_encode_token(name == NULL ? "" : outbox_event_utf8(name), encoded, sizeof(encoded));
		from_database = MemoryContextStrdup(TopMemoryContext, psprintf("/outbox/%s", encoded));
	}
	return from_database;
}

static const char *
content_type(const OutboxRow *row)
{
	if (row->content_type != NULL)
		return row->content_type;
	return row->payload_kind == PAYLOAD_BYTES ? "application/octet-stream" : "application/json";
}

static void
add_own_headers(Builder *builder, const OutboxRow *row)
{
	char		id[37];
	char		text[64];

	outbox_encode_uuid(row->event_id.data, id);
	add_header(builder, "Nats-Msg-Id", id);
	add_header(builder, "Nats-Expected-Stream", outbox_stream);
	if (outbox_envelope == OUTBOX_ENVELOPE_BARE)
		return;
	if (outbox_envelope == OUTBOX_ENVELOPE_STRUCTURED)
		add_header(builder, "Content-Type", "application/cloudevents+json");
	add_plain_attribute(builder, "ce-specversion", "1.0");
	add_plain_attribute(builder, "ce-id", id);
	add_attribute(builder, "ce-source", event_source());
	add_attribute(builder, "ce-type", row->event_type);
	add_attribute(builder, "ce-subject", row->aggregate_id);
	outbox_encode_time(outbox_unix_us(row->occurred_at), text);
	add_plain_attribute(builder, "ce-time", text);
	add_attribute(builder, "ce-datacontenttype", content_type(row));
	snprintf(text, sizeof(text), "%019lld", (long long) row->position);
	add_plain_attribute(builder, "ce-sequence", text);
	add_attribute(builder, "ce-partitionkey", psprintf("%s/%s", row->aggregate_type, row->aggregate_id));
	add_attribute(builder, "ce-aggregatetype", row->aggregate_type);
	if (row->dataschema != NULL)
		add_attribute(builder, "ce-dataschema", row->dataschema);
	if (row->has_version)
	{
		snprintf(text, sizeof(text), INT64_FORMAT, row->aggregate_version);
		add_plain_attribute(builder, "ce-aggregateversion", text);
	}
}

/*
 * A header of the user's, in UTF-8. "ce-name" is an extension attribute, which
 * in bare mode is a header like all others. The trace context is an attribute
 * as well as a header: receivers look for one or the other.
 */
static void
add_user_header(Builder *builder, const char *key, const char *value)
{
	if (outbox_attribute_has_prefix(key))
	{
		if (outbox_envelope == OUTBOX_ENVELOPE_STRUCTURED)
			add_member(builder, key + strlen(OUTBOX_ATTRIBUTE_PREFIX), value);
		else
			add_encoded_header(builder, key, value);
		return;
	}
	add_header(builder, key, value);
	if (outbox_encode_same_header_key(key, "traceparent"))
		add_plain_attribute(builder, "ce-traceparent", value);
	else if (outbox_encode_same_header_key(key, "tracestate"))
		add_attribute(builder, "ce-tracestate", value);
}

/* They were checked when they were enqueued: an object of strings. */
static void
add_user_headers(Builder *builder, const OutboxRow *row)
{
	Jsonb	   *headers;
	JsonbIterator *iterator;
	JsonbValue	key;
	JsonbValue	value;

	if (row->headers == NULL)
		return;
	headers = DatumGetJsonbP(DirectFunctionCall1(jsonb_in, CStringGetDatum(row->headers)));
	iterator = JsonbIteratorInit(&headers->root);
	(void) JsonbIteratorNext(&iterator, &key, true);
	while (JsonbIteratorNext(&iterator, &key, true) == WJB_KEY)
	{
		(void) JsonbIteratorNext(&iterator, &value, true);
		add_user_header(builder, outbox_event_utf8(pnstrdup(key.val.string.val, key.val.string.len)),
						outbox_event_utf8(pnstrdup(value.val.string.val, value.val.string.len)));
	}
}

static void
append_base64(StringInfo out, const char *bytes, int length)
{
	int			size = pg_b64_enc_len(length);
	int			written;

	enlargeStringInfo(out, size);
	written = pg_b64_encode(OUTBOX_BASE64_SOURCE(bytes), length, out->data + out->len, size);
	if (written < 0)
		elog(ERROR, "could not encode the payload");
	out->len += written;
	out->data[out->len] = '\0';
}

/*
 * The data of a structured event, its last member. JSON is embedded byte for
 * byte, if the content type says that it is JSON, and it is; other text becomes
 * a string. Whatever is neither arrives in base64, and so unchanged.
 */
static void
add_data(Builder *builder, const OutboxRow *row)
{
	const char *data = row->payload;
	int			length = row->payload_len;
	bool		is_json = outbox_attribute_is_json(content_type(row));

	/* JSON is in UTF-8 whatever the server's encoding; jsonb was stored so. */
	if (row->payload_kind == PAYLOAD_TEXT)
	{
		data = outbox_event_utf8(pnstrdup(data, length));
		length = strlen(data);
	}
	if (is_json && (row->payload_kind == PAYLOAD_JSONB || outbox_attribute_valid_json(data, length)))
	{
		appendStringInfoString(&builder->body, ",\"data\":");
		appendBinaryStringInfo(&builder->body, data, length);
	}
	else if (!is_json && row->payload_kind != PAYLOAD_BYTES)
	{
		appendStringInfoString(&builder->body, ",\"data\":");
		escape_json(&builder->body, pnstrdup(data, length));
	}
	else
	{
		appendStringInfoString(&builder->body, ",\"data_base64\":\"");
		append_base64(&builder->body, data, length);
		appendStringInfoChar(&builder->body, '"');
	}
	appendStringInfoChar(&builder->body, '}');
}

static int
add_subject(Builder *builder, const OutboxRow *row)
{
	char		subject[OUTBOX_SUBJECT_BUFFER];

	if (row->subject != NULL)
		return add_string(builder, outbox_event_utf8(row->subject));
	if (outbox_encode_subject(outbox_subject_template, outbox_event_utf8(row->aggregate_type), outbox_event_utf8(row->aggregate_id),
							  outbox_event_utf8(row->event_type), subject, sizeof(subject)) < 0)
		elog(ERROR, "subject of position " INT64_FORMAT " is too long", row->position);
	return add_string(builder, subject);
}

/* Lays the block out: struct, header array, strings, payload. NULL: out of memory. */
static OutboxEvent *
assemble(const Builder *builder, const Texts *texts, const char *payload, int payload_len)
{
	Size		headers_size = sizeof(BrokerHeader) * builder->count;
	Size		size = sizeof(OutboxEvent) + headers_size + builder->strings.len + payload_len;
	OutboxEvent *event = malloc(size);
	BrokerHeader *headers;
	char	   *strings;

	if (event == NULL)
		return NULL;
	memset(event, 0, sizeof(*event));
	headers = (BrokerHeader *) (event + 1);
	strings = (char *) headers + headers_size;
	memcpy(strings, builder->strings.data, builder->strings.len);
	for (int i = 0; i < builder->count; i++)
	{
		headers[i].key = strings + builder->key[i];
		headers[i].value = strings + builder->value[i];
	}
	memcpy(strings + builder->strings.len, payload, payload_len);

	event->event_id = headers[0].value;
	event->aggregate_type = strings + texts->aggregate_type;
	event->aggregate_id = strings + texts->aggregate_id;
	event->event_type = strings + texts->event_type;
	event->message.subject = strings + texts->subject;
	event->message.headers = headers;
	event->message.header_count = builder->count;
	event->message.data = strings + builder->strings.len;
	event->message.data_len = payload_len;
	event->schedule.bytes = size;
	return event;
}

/*
 * The event of a row, for the schedule to own. Garbage is left in the current
 * memory context. ERROR when out of memory.
 */
OutboxEvent *
outbox_envelope_build(const OutboxRow *row)
{
	Builder		builder;
	OutboxEvent *event;
	Texts		texts;

	builder.count = 0;
	initStringInfo(&builder.strings);
	if (outbox_envelope == OUTBOX_ENVELOPE_STRUCTURED)
		initStringInfo(&builder.body);
	texts.subject = add_subject(&builder, row);
	texts.aggregate_type = add_string(&builder, row->aggregate_type);
	texts.aggregate_id = add_string(&builder, row->aggregate_id);
	texts.event_type = add_string(&builder, row->event_type);
	add_own_headers(&builder, row);
	add_user_headers(&builder, row);

	if (outbox_envelope == OUTBOX_ENVELOPE_STRUCTURED)
	{
		add_data(&builder, row);
		event = assemble(&builder, &texts, builder.body.data, builder.body.len);
	}
	else
		event = assemble(&builder, &texts, row->payload, row->payload_len);
	if (event == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	event->home = row->home;
	event->claim = -1;
	event->agg_hash = row->agg_hash;
	event->schedule.position = row->position;
	event->schedule.not_before = row->not_before == 0 ? 0 : outbox_clock_at(row->not_before);
	event->schedule.created = row->created_at;
	event->schedule.priority = row->priority;
	return event;
}

/* Stands for a row that can't be read: never sent, it becomes a dead letter in its turn. ERROR when out of memory. */
OutboxEvent *
outbox_envelope_broken(int home, int64 position, uint64 agg_hash, const char *why)
{
	size_t		why_size = strlen(why) + 1;
	OutboxEvent *event = malloc(sizeof(OutboxEvent) + why_size);
	char	   *text = (char *) (event + 1);

	if (event == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	memset(event, 0, sizeof(*event));
	memcpy(text, why, why_size);
	event->broken = text;
	event->event_id = "of an unreadable row";
	event->home = home;
	event->claim = -1;
	event->agg_hash = agg_hash;
	event->schedule.position = position;
	event->schedule.bytes = sizeof(OutboxEvent) + why_size;
	return event;
}
