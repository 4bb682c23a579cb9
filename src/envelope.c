/*
 * envelope.c
 *	  What an event looks like to receivers: subject, CloudEvents 1.0 headers in
 *	  binary mode, the user's headers, the payload.
 *
 * The header names are those of the CloudEvents NATS protocol binding and of
 * its extensions "sequence" and "partitioning"; aggregatetype and
 * aggregateversion are ours.
 */
#include "outbox.h"

#include "commands/dbcommands.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

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

/* A CloudEvents attribute with free text. */
static void
add_attribute(Builder *builder, const char *key, const char *text)
{
	const char *in = outbox_event_utf8(text);
	size_t		size = strlen(in) * 3 + 1;
	char	   *out = palloc(size);

	(void) outbox_encode_ce_value(in, out, size);
	add_header(builder, key, out);
}

/* outbox.cloudevents_source, or "/outbox/" and the database's name. */
static const char *
event_source(void)
{
	static char *from_database = NULL;

	if (outbox_cloudevents_source[0] != '\0')
		return outbox_cloudevents_source;
	if (from_database == NULL)
	{
		char	   *name = get_database_name(MyDatabaseId);

		from_database = MemoryContextStrdup(TopMemoryContext, psprintf("/outbox/%s", name == NULL ? "" : name));
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
	add_header(builder, "ce-specversion", "1.0");
	add_header(builder, "ce-id", id);
	add_attribute(builder, "ce-source", event_source());
	add_attribute(builder, "ce-type", row->event_type);
	add_attribute(builder, "ce-subject", row->aggregate_id);
	outbox_encode_time(outbox_unix_us(row->occurred_at), text);
	add_header(builder, "ce-time", text);
	add_attribute(builder, "ce-datacontenttype", content_type(row));
	snprintf(text, sizeof(text), "%019lld", (long long) row->position);
	add_header(builder, "ce-sequence", text);
	add_attribute(builder, "ce-partitionkey", psprintf("%s/%s", row->aggregate_type, row->aggregate_id));
	add_attribute(builder, "ce-aggregatetype", row->aggregate_type);
	if (row->dataschema != NULL)
		add_attribute(builder, "ce-dataschema", row->dataschema);
	if (row->has_version)
	{
		snprintf(text, sizeof(text), INT64_FORMAT, row->aggregate_version);
		add_header(builder, "ce-aggregateversion", text);
	}
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
		add_header(builder, outbox_event_utf8(pnstrdup(key.val.string.val, key.val.string.len)),
				   outbox_event_utf8(pnstrdup(value.val.string.val, value.val.string.len)));
	}
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
	texts.subject = add_subject(&builder, row);
	texts.aggregate_type = add_string(&builder, row->aggregate_type);
	texts.aggregate_id = add_string(&builder, row->aggregate_id);
	texts.event_type = add_string(&builder, row->event_type);
	add_own_headers(&builder, row);
	add_user_headers(&builder, row);

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
