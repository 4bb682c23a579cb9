/*
 * envelope.c
 *	  What an event looks like to receivers: subject, CloudEvents 1.0 headers in
 *	  binary mode, the user's headers, the payload.
 *
 * The header names are those of the CloudEvents NATS protocol binding and of
 * its extensions "sequence" and "partitioning"; aggregatetype and
 * aggregateversion are ours. Pure logic, with memory of its own that is kept
 * from one message to the next: for one thread.
 */
#include "envelope.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "json.h"

/* Ours and the user's (event_check.c allows 100). */
#define MAX_HEADERS 128

/* Collects what goes into the block; strings by their offset, as the buffer moves. */
typedef struct Builder
{
	char	   *strings;
	size_t		len;
	size_t		space;
	const char *error;			/* NULL: none so far */
	int			count;
	size_t		key[MAX_HEADERS];
	size_t		value[MAX_HEADERS];
} Builder;

/* Room for size more bytes; NULL: there is an error. */
static char *
reserve(Builder *builder, size_t size)
{
	if (builder->error == NULL && builder->len + size > builder->space)
	{
		size_t		space = (builder->len + size) * 2 + 1024;
		char	   *strings = realloc(builder->strings, space);

		if (strings == NULL)
			builder->error = "out of memory";
		else
		{
			builder->strings = strings;
			builder->space = space;
		}
	}
	return builder->error == NULL ? builder->strings + builder->len : NULL;
}

static size_t
add_string(Builder *builder, const char *text)
{
	size_t		size = strlen(text) + 1;
	size_t		offset = builder->len;
	char	   *out = reserve(builder, size);

	if (out != NULL)
	{
		memcpy(out, text, size);
		builder->len += size;
	}
	return offset;
}

static void
add_header(Builder *builder, const char *key, const char *value)
{
	if (builder->count == MAX_HEADERS)
	{
		builder->error = "too many headers";
		return;
	}
	builder->key[builder->count] = add_string(builder, key);
	builder->value[builder->count] = add_string(builder, value);
	builder->count++;
}

/* A CloudEvents attribute with free text, which is one part, or two with a slash between. */
static void
add_attribute_of(Builder *builder, const char *key, const char *text, const char *second)
{
	size_t		size = strlen(text) * 3 + (second == NULL ? 1 : strlen(second) * 3 + 2);
	char	   *out;
	int			len;

	if (builder->count == MAX_HEADERS)
	{
		builder->error = "too many headers";
		return;
	}
	builder->key[builder->count] = add_string(builder, key);
	builder->value[builder->count] = builder->len;
	out = reserve(builder, size);
	if (out == NULL)
		return;
	len = outbox_encode_ce_value(text, out, size);
	if (second != NULL)
	{
		out[len++] = '/';
		len += outbox_encode_ce_value(second, out + len, size - (size_t) len);
	}
	builder->len += (size_t) len + 1;
	builder->count++;
}

static void
add_attribute(Builder *builder, const char *key, const char *text)
{
	add_attribute_of(builder, key, text, NULL);
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
add_message_id(Builder *builder, const OutboxEnvelope *envelope, const char *id)
{
	char		text[128];

	if (envelope->replay_id == NULL)
	{
		add_header(builder, "Nats-Msg-Id", id);
		return;
	}
	snprintf(text, sizeof(text), "%s:%s", envelope->replay_id, id);
	add_header(builder, "Nats-Msg-Id", text);
}

static void
add_own_headers(Builder *builder, const OutboxEnvelope *envelope, const OutboxRow *row)
{
	char		id[37];
	char		text[64];

	outbox_encode_uuid(row->event_id.data, id);
	add_message_id(builder, envelope, id);
	add_header(builder, "Nats-Expected-Stream", envelope->stream);
	add_header(builder, "ce-specversion", "1.0");
	add_header(builder, "ce-id", id);
	add_attribute(builder, "ce-source", envelope->source);
	add_attribute(builder, "ce-type", row->event_type);
	add_attribute(builder, "ce-subject", row->aggregate_id);
	outbox_encode_time(row->occurred_at, text);
	add_header(builder, "ce-time", text);
	add_attribute(builder, "ce-datacontenttype", content_type(row));
	snprintf(text, sizeof(text), "%019lld", (long long) row->position);
	add_header(builder, "ce-sequence", text);
	add_attribute_of(builder, "ce-partitionkey", row->aggregate_type, row->aggregate_id);
	add_attribute(builder, "ce-aggregatetype", row->aggregate_type);
	if (row->dataschema != NULL)
		add_attribute(builder, "ce-dataschema", row->dataschema);
	if (row->has_version)
	{
		snprintf(text, sizeof(text), "%lld", (long long) row->aggregate_version);
		add_header(builder, "ce-aggregateversion", text);
	}
}

static void
add_replay_headers(Builder *builder, const OutboxEnvelope *envelope, const OutboxRow *row)
{
	char		id[37];

	if (envelope->replay_id == NULL)
		return;
	outbox_encode_uuid(row->event_id.data, id);
	add_header(builder, "x-replay", "true");
	add_header(builder, "x-replay-batch-id", envelope->replay_id);
	add_header(builder, "x-original-event-id", id);
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
			add_header(builder, key, value);
	}
	if (!outbox_json_ended(&json))
		builder->error = "headers are not a JSON object of strings";
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
add_subject(Builder *builder, const OutboxEnvelope *envelope, const OutboxRow *row)
{
	char		buffer[OUTBOX_SUBJECT_BUFFER];
	const char *subject = outbox_envelope_subject(envelope, row, buffer);
	size_t		offset = builder->len;

	if (subject == NULL)
	{
		builder->error = "subject is too long";
		return 0;
	}
	if (envelope->subject_prefix != NULL)
	{
		(void) add_string(builder, envelope->subject_prefix);
		if (builder->error == NULL)
			builder->strings[builder->len - 1] = '.';
	}
	(void) add_string(builder, subject);
	return offset;
}

void *
outbox_envelope_make(const OutboxEnvelope *envelope, OutboxRow *row, size_t head, BrokerMessage *message, size_t *size,
					 const char **error)
{
	static Builder builder;
	size_t		subject;
	size_t		headers_size;
	char	   *block = NULL;
	char	   *strings;
	BrokerHeader *headers;

	builder.len = 0;
	builder.count = 0;
	builder.error = NULL;
	subject = add_subject(&builder, envelope, row);
	add_own_headers(&builder, envelope, row);
	add_replay_headers(&builder, envelope, row);
	add_user_headers(&builder, row);

	/* Head, header array, strings, payload. */
	head = (head + 15) & ~(size_t) 15;
	headers_size = sizeof(BrokerHeader) * (size_t) builder.count;
	*size = head + headers_size + builder.len + (size_t) row->payload_len;
	if (builder.error == NULL && (block = malloc(*size)) == NULL)
		builder.error = "out of memory";
	*error = builder.error;
	if (builder.error != NULL)
		return NULL;
	memset(block, 0, head);
	headers = (BrokerHeader *) (block + head);
	strings = block + head + headers_size;
	memcpy(strings, builder.strings, builder.len);
	for (int i = 0; i < builder.count; i++)
	{
		headers[i].key = strings + builder.key[i];
		headers[i].value = strings + builder.value[i];
	}
	memcpy(strings + builder.len, row->payload, (size_t) row->payload_len);

	message->subject = strings + subject;
	message->headers = headers;
	message->header_count = builder.count;
	message->data = strings + builder.len;
	message->data_len = row->payload_len;
	return block;
}
