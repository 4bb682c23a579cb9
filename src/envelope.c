/*
 * envelope.c
 *	  What an event looks like to receivers: subject, headers, body.
 *
 * There are three forms. CloudEvents 1.0 in binary mode: an attribute is a
 * header, the body is the payload. In structured mode: one JSON object has the
 * attributes and the payload. Bare: no attributes. The names are those of the
 * CloudEvents NATS protocol binding and of its extensions "sequence",
 * "partitioning" and "distributed tracing"; aggregatetype and aggregateversion
 * are ours.
 *
 * Pure logic, with memory of its own that is kept from one message to the next:
 * for one thread.
 */
#include "envelope.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attributes.h"
#include "buffer.h"
#include "encode.h"
#include "json.h"

/* Ours and the user's (event_check.c allows 100). */
#define MAX_HEADERS 128

/* Collects what goes into the block; strings by their offset, as the buffer moves. */
typedef struct Builder
{
	const OutboxEnvelope *envelope;
	OutboxBuffer strings;
	OutboxBuffer body;			/* in structured mode only */
	OutboxBuffer joined;
	const char *error;			/* NULL: none so far */
	int			count;
	size_t		key[MAX_HEADERS];
	size_t		value[MAX_HEADERS];
	bool		has_ttl;
	size_t		ttl;
	bool		has_schedule;
	size_t		schedule;
	size_t		schedule_subject;
} Builder;

static size_t
add_string(Builder *builder, const char *text)
{
	size_t		offset = builder->strings.length;

	outbox_buffer_put(&builder->strings, text, strlen(text) + 1);
	return offset;
}

/* A header's key; its value is what is added to the strings next. False: there are too many. */
static bool
add_key(Builder *builder, const char *key)
{
	if (builder->count == MAX_HEADERS)
	{
		builder->error = "too many headers";
		return false;
	}
	builder->key[builder->count] = add_string(builder, key);
	builder->value[builder->count++] = builder->strings.length;
	return true;
}

static void
add_header(Builder *builder, const char *key, const char *value)
{
	if (add_key(builder, key))
		(void) add_string(builder, value);
}

/* A header with free text, encoded as an attribute's is. */
static void
add_encoded_header(Builder *builder, const char *key, const char *text)
{
	size_t		size = strlen(text) * 3 + 1;
	char	   *out;

	if (add_key(builder, key) && (out = outbox_buffer_grow(&builder->strings, size)) != NULL)
		builder->strings.length += (size_t) outbox_encode_ce_value(text, out, size) + 1;
}

/* A member of the structured event. */
static void
add_member(Builder *builder, const char *name, const char *value)
{
	outbox_buffer_put(&builder->body, builder->body.length == 0 ? "{" : ",", 1);
	outbox_buffer_put_json(&builder->body, name, strlen(name));
	outbox_buffer_put(&builder->body, ":", 1);
	outbox_buffer_put_json(&builder->body, value, strlen(value));
}

/* A CloudEvents attribute by its header's key, whose value holds nothing that a header must encode. */
static void
add_plain_attribute(Builder *builder, const char *key, const char *value)
{
	if (builder->envelope->mode == OUTBOX_ENVELOPE_BINARY)
		add_header(builder, key, value);
	else if (builder->envelope->mode == OUTBOX_ENVELOPE_STRUCTURED)
		add_member(builder, key + strlen(OUTBOX_ATTRIBUTE_PREFIX), value);
}

/* A CloudEvents attribute with free text. */
static void
add_attribute(Builder *builder, const char *key, const char *text)
{
	if (builder->envelope->mode == OUTBOX_ENVELOPE_BINARY)
		add_encoded_header(builder, key, text);
	else
		add_plain_attribute(builder, key, text);
}

/* The aggregate as one text, type and id. */
static void
add_partition_key(Builder *builder, const OutboxRow *row)
{
	OutboxBuffer *joined = &builder->joined;

	joined->length = 0;
	outbox_buffer_put_text(joined, row->aggregate_type);
	outbox_buffer_put(joined, "/", 1);
	outbox_buffer_put(joined, row->aggregate_id, strlen(row->aggregate_id) + 1);
	if (!joined->no_memory)
		add_attribute(builder, "ce-partitionkey", joined->data);
}

static const char *
content_type(const OutboxRow *row)
{
	if (row->content_type != NULL)
		return row->content_type;
	return row->payload_kind == PAYLOAD_BYTES ? "application/octet-stream" : "application/json";
}

/* A replayed event must not be dropped for its first copy, but for an earlier one of the same replay. */
static void
add_message_id(Builder *builder, const char *id)
{
	char		text[128];

	if (builder->envelope->replay_id == NULL)
	{
		add_header(builder, "Nats-Msg-Id", id);
		return;
	}
	snprintf(text, sizeof(text), "%s:%s", builder->envelope->replay_id, id);
	add_header(builder, "Nats-Msg-Id", text);
}

static void
add_replay_headers(Builder *builder, const char *id)
{
	if (builder->envelope->replay_id == NULL)
		return;
	add_header(builder, "x-replay", "true");
	add_header(builder, "x-replay-batch-id", builder->envelope->replay_id);
	add_header(builder, "x-original-event-id", id);
}

static void
add_attributes(Builder *builder, const OutboxRow *row, const char *id)
{
	char		text[64];

	add_plain_attribute(builder, "ce-specversion", "1.0");
	add_plain_attribute(builder, "ce-id", id);
	add_attribute(builder, "ce-source", builder->envelope->source);
	add_attribute(builder, "ce-type", row->event_type);
	add_attribute(builder, "ce-subject", row->aggregate_id);
	outbox_encode_time(row->occurred_at, text);
	add_plain_attribute(builder, "ce-time", text);
	add_attribute(builder, "ce-datacontenttype", content_type(row));
	snprintf(text, sizeof(text), "%019lld", (long long) row->position);
	add_plain_attribute(builder, "ce-sequence", text);
	add_partition_key(builder, row);
	add_attribute(builder, "ce-aggregatetype", row->aggregate_type);
	if (row->dataschema != NULL)
		add_attribute(builder, "ce-dataschema", row->dataschema);
	if (row->has_version)
	{
		snprintf(text, sizeof(text), "%lld", (long long) row->aggregate_version);
		add_plain_attribute(builder, "ce-aggregateversion", text);
	}
}

static void
add_own_headers(Builder *builder, const OutboxRow *row)
{
	char		id[37];

	outbox_encode_uuid(row->event_id.data, id);
	add_message_id(builder, id);
	add_header(builder, "Nats-Expected-Stream", builder->envelope->stream);
	if (builder->envelope->mode == OUTBOX_ENVELOPE_STRUCTURED)
		add_header(builder, "Content-Type", "application/cloudevents+json");
	if (builder->envelope->mode != OUTBOX_ENVELOPE_BARE)
		add_attributes(builder, row, id);
	add_replay_headers(builder, id);
}

/* No two events have one subject there: the stream has one schedule for each. */
static void
add_schedule(Builder *builder, const OutboxRow *row)
{
	char		text[40];

	builder->has_schedule = true;
	builder->schedule = builder->strings.length;
	outbox_buffer_put_text(&builder->strings, "@at ");
	outbox_encode_time(row->not_before, text);
	(void) add_string(builder, text);
	builder->schedule_subject = builder->strings.length;
	outbox_buffer_put_text(&builder->strings, builder->envelope->schedule_prefix);
	outbox_encode_uuid(row->event_id.data, text);
	(void) add_string(builder, text);
}

/*
 * A header of the user's. "ce-name" is an extension attribute, which in bare
 * mode is a header like all others. The trace context is an attribute as well as
 * a header: receivers look for one or the other. The time to live is up to the
 * stream, and counts from when an event is stored first; so is the schedule.
 */
static void
add_user_header(Builder *builder, const OutboxRow *row, const char *key, const char *value)
{
	if (outbox_attribute_has_prefix(key))
	{
		if (builder->envelope->mode == OUTBOX_ENVELOPE_STRUCTURED)
			add_member(builder, key + strlen(OUTBOX_ATTRIBUTE_PREFIX), value);
		else
			add_encoded_header(builder, key, value);
		return;
	}
	if (strcmp(key, OUTBOX_TTL_HEADER) == 0)
	{
		builder->has_ttl = builder->envelope->replay_id == NULL;
		builder->ttl = add_string(builder, value);
		return;
	}
	if (strcmp(key, OUTBOX_SCHEDULE_HEADER) == 0)
	{
		if (builder->envelope->schedule_prefix != NULL && row->not_before != 0)
			add_schedule(builder, row);
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
add_user_headers(Builder *builder, OutboxRow *row)
{
	OutboxJson	json;
	char	   *key;
	char	   *value;

	if (row->headers == NULL)
		return;
	outbox_json_begin(&json, row->headers, strlen(row->headers));
	if (outbox_json_enter(&json))
	{
		while (outbox_json_key(&json, &key) && outbox_json_string(&json, &value, NULL))
			add_user_header(builder, row, key, value);
	}
	if (!outbox_json_ended(&json))
		builder->error = "headers are not a JSON object of strings";
}

/*
 * The data of a structured event, its last member. JSON is embedded byte for
 * byte, if the content type says that it is JSON, and it is; other text becomes
 * a string. Whatever is neither arrives in base64, and so unchanged.
 */
static void
add_data(Builder *builder, const OutboxRow *row)
{
	OutboxBuffer *body = &builder->body;
	size_t		length = (size_t) row->payload_len;
	bool		is_json = outbox_attribute_is_json(content_type(row));

	if (is_json && (row->payload_kind == PAYLOAD_JSONB || outbox_attribute_valid_json(row->payload, length)))
	{
		outbox_buffer_put_text(body, ",\"data\":");
		outbox_buffer_put(body, row->payload, length);
	}
	else if (!is_json && row->payload_kind != PAYLOAD_BYTES)
	{
		outbox_buffer_put_text(body, ",\"data\":");
		outbox_buffer_put_json(body, row->payload, length);
	}
	else
	{
		outbox_buffer_put_text(body, ",\"data_base64\":");
		outbox_buffer_put_base64(body, row->payload, length);
	}
	outbox_buffer_put(body, "}", 1);
}

const char *
outbox_envelope_subject(const OutboxEnvelope *envelope, const OutboxRow *row, char *out)
{
	if (row->subject != NULL)
		return row->subject;
	if (outbox_encode_subject(envelope->subject_template, row->aggregate_type, row->aggregate_id, row->event_type, out,
							  OUTBOX_SUBJECT_BUFFER) < 0)
		return NULL;
	return out;
}

static size_t
add_subject(Builder *builder, const OutboxRow *row)
{
	char		buffer[OUTBOX_SUBJECT_BUFFER];
	const char *subject = outbox_envelope_subject(builder->envelope, row, buffer);
	size_t		offset = builder->strings.length;

	if (subject == NULL)
	{
		builder->error = "subject is too long";
		return 0;
	}
	if (builder->envelope->subject_prefix != NULL)
	{
		outbox_buffer_put_text(&builder->strings, builder->envelope->subject_prefix);
		outbox_buffer_put(&builder->strings, ".", 1);
	}
	(void) add_string(builder, subject);
	return offset;
}

bool
outbox_envelope_mode(const char *name, OutboxEnvelopeMode *mode)
{
	static const char *const names[] = {"binary", "structured", "bare"};

	for (int i = 0; i < 3; i++)
	{
		if (strcmp(name, names[i]) != 0)
			continue;
		*mode = (OutboxEnvelopeMode) i;
		return true;
	}
	return false;
}

void
outbox_envelope_source(const char *database, char *out, size_t size)
{
	static const char prefix[] = "/outbox/";

	memcpy(out, prefix, sizeof(prefix));
	(void) outbox_encode_token(database, out + sizeof(prefix) - 1, size - sizeof(prefix) + 1);
}

/* Lays the block out: head, header array, strings, body. NULL: out of memory. */
static char *
assemble(const Builder *builder, size_t head, size_t subject, const char *body, int body_len, BrokerMessage *message, size_t *size)
{
	size_t		headers_size = sizeof(BrokerHeader) * (size_t) builder->count;
	char	   *block;
	char	   *strings;
	BrokerHeader *headers;

	head = (head + 15) & ~(size_t) 15;
	*size = head + headers_size + builder->strings.length + (size_t) body_len;
	block = malloc(*size);
	if (block == NULL)
		return NULL;
	memset(block, 0, head);
	headers = (BrokerHeader *) (block + head);
	strings = block + head + headers_size;
	memcpy(strings, builder->strings.data, builder->strings.length);
	for (int i = 0; i < builder->count; i++)
	{
		headers[i].key = strings + builder->key[i];
		headers[i].value = strings + builder->value[i];
	}
	memcpy(strings + builder->strings.length, body, (size_t) body_len);

	message->subject = strings + subject;
	message->headers = headers;
	message->header_count = builder->count;
	message->ttl = builder->has_ttl ? strings + builder->ttl : NULL;
	message->schedule = builder->has_schedule ? strings + builder->schedule : NULL;
	message->schedule_subject = builder->has_schedule ? strings + builder->schedule_subject : NULL;
	message->data = strings + builder->strings.length;
	message->data_len = body_len;
	return block;
}

static void
empty(OutboxBuffer *buffer)
{
	buffer->length = 0;
	buffer->no_memory = false;
}

void *
outbox_envelope_make(const OutboxEnvelope *envelope, OutboxRow *row, size_t head, BrokerMessage *message, size_t *size,
					 const char **error)
{
	static Builder builder;
	size_t		subject;
	char	   *block = NULL;

	builder.envelope = envelope;
	builder.count = 0;
	builder.has_ttl = false;
	builder.has_schedule = false;
	builder.error = NULL;
	empty(&builder.strings);
	empty(&builder.body);
	empty(&builder.joined);
	subject = add_subject(&builder, row);
	add_own_headers(&builder, row);
	add_user_headers(&builder, row);
	if (envelope->mode == OUTBOX_ENVELOPE_STRUCTURED)
		add_data(&builder, row);

	if (builder.error == NULL && !builder.strings.no_memory && !builder.body.no_memory && !builder.joined.no_memory)
		block = envelope->mode == OUTBOX_ENVELOPE_STRUCTURED ?
			assemble(&builder, head, subject, builder.body.data, (int) builder.body.length, message, size) :
			assemble(&builder, head, subject, row->payload, row->payload_len, message, size);
	*error = builder.error != NULL ? builder.error : block == NULL ? "out of memory" :
																	 NULL;
	return block;
}
