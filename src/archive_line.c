/*
 * archive_line.c
 *	  An event as a line of an archive file, and as a row for ClickHouse.
 *
 * Pure logic: must know neither PostgreSQL nor ClickHouse's protocol. Both forms
 * keep each byte of the payload: a text as it is, bytes in base64 in the line
 * (where everything is UTF-8), and as they are in the row.
 */
#include "archive_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"

#define TIME_BUFFER 64

/* ------------------------------------------------------------------ buffer */

/* Room for so many bytes more; NULL: no memory, and nothing is appended. */
static char *
grow(ArchiveBuffer *buffer, size_t more)
{
	if (buffer->size - buffer->length < more)
	{
		size_t		size = buffer->size == 0 ? 65536 : buffer->size;
		char	   *larger;

		while (size - buffer->length < more)
			size *= 2;
		larger = realloc(buffer->data, size);
		if (larger == NULL)
		{
			buffer->no_memory = true;
			return NULL;
		}
		buffer->data = larger;
		buffer->size = size;
	}
	return buffer->data + buffer->length;
}

static void
put(ArchiveBuffer *buffer, const char *text, size_t length)
{
	char	   *at = grow(buffer, length);

	if (at == NULL)
		return;
	memcpy(at, text, length);
	buffer->length += length;
}

static void
put_text(ArchiveBuffer *buffer, const char *text)
{
	put(buffer, text, strlen(text));
}

static void
put_integer(ArchiveBuffer *buffer, int64_t value)
{
	char		text[24];

	put(buffer, text, (size_t) snprintf(text, sizeof(text), "%" PRId64, value));
}

/*
 * A text in which some bytes are written in another way. escape: what stands for
 * a byte, "" for itself.
 */
static void
put_escaped(ArchiveBuffer *buffer, const char *text, size_t length, const char (*escape)[8])
{
	size_t		from = 0;

	for (size_t i = 0; i < length; i++)
	{
		const char *replacement = escape[(unsigned char) text[i]];

		if (replacement[0] == '\0')
			continue;
		put(buffer, text + from, i - from);
		put_text(buffer, replacement);
		from = i + 1;
	}
	put(buffer, text + from, length - from);
}

/* Years in four digits, or infinite. */
static const char *
time_text(int64_t time, char *text)
{
	if (time != ARCHIVE_TIME_BEGIN && time != ARCHIVE_TIME_END)
	{
		outbox_encode_time(time, text);
		if (text[0] != '-' && text[4] == '-')
			return text;
	}
	strcpy(text, time < 0 ? "-infinity" : "infinity");
	return text;
}

/* -------------------------------------------------------------------- line */

#define CONTROL(n) "\\u00" #n

static const char json_escapes[256][8] = {
	CONTROL(00), CONTROL(01), CONTROL(02), CONTROL(03), CONTROL(04), CONTROL(05), CONTROL(06), CONTROL(07),
	"\\b", "\\t", "\\n", CONTROL(0b), "\\f", "\\r", CONTROL(0e), CONTROL(0f),
	CONTROL(10), CONTROL(11), CONTROL(12), CONTROL(13), CONTROL(14), CONTROL(15), CONTROL(16), CONTROL(17),
	CONTROL(18), CONTROL(19), CONTROL(1a), CONTROL(1b), CONTROL(1c), CONTROL(1d), CONTROL(1e), CONTROL(1f),
	['"'] = "\\\"", ['\\'] = "\\\\"};

static void
put_json(ArchiveBuffer *buffer, const char *text, size_t length)
{
	put(buffer, "\"", 1);
	put_escaped(buffer, text, length, json_escapes);
	put(buffer, "\"", 1);
}

static void
put_base64(ArchiveBuffer *buffer, const char *bytes, size_t length)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *in = (const unsigned char *) bytes;
	size_t		size = (length + 2) / 3 * 4 + 2;
	char	   *out = grow(buffer, size);

	if (out == NULL)
		return;
	*out++ = '"';
	for (size_t i = 0; i < length; i += 3)
	{
		unsigned int group = (unsigned int) in[i] << 16;

		group |= i + 1 < length ? (unsigned int) in[i + 1] << 8 : 0;
		group |= i + 2 < length ? (unsigned int) in[i + 2] : 0;
		*out++ = digits[group >> 18];
		*out++ = digits[group >> 12 & 63];
		*out++ = i + 1 < length ? digits[group >> 6 & 63] : '=';
		*out++ = i + 2 < length ? digits[group & 63] : '=';
	}
	*out = '"';
	buffer->length += size;
}

static void
put_member(ArchiveBuffer *buffer, const char *key, const char *value)
{
	put_text(buffer, key);
	if (value == NULL)
		put_text(buffer, "null");
	else
		put_json(buffer, value, strlen(value));
}

static void
put_time(ArchiveBuffer *buffer, const char *key, int64_t time)
{
	char		text[TIME_BUFFER];

	put_member(buffer, key, time == ARCHIVE_TIME_UNKNOWN ? NULL : time_text(time, text));
}

void
outbox_archive_put_line(ArchiveBuffer *buffer, const ArchiveEvent *event)
{
	char		id[37];

	outbox_encode_uuid(event->event_id, id);
	put_text(buffer, "{\"position\":");
	put_integer(buffer, event->position);
	put_member(buffer, ",\"event_id\":", id);
	put_member(buffer, ",\"aggregate_type\":", event->aggregate_type);
	put_member(buffer, ",\"aggregate_id\":", event->aggregate_id);
	put_member(buffer, ",\"event_type\":", event->event_type);
	put_member(buffer, ",\"subject\":", event->subject);
	put_member(buffer, ",\"payload_kind\":", (char[2]) {event->payload_kind, '\0'});
	put_text(buffer, ",\"payload\":");
	if (event->payload_kind == 'x')
		put_base64(buffer, event->payload, event->payload_length);
	else
		put_json(buffer, event->payload, event->payload_length);
	put_text(buffer, ",\"headers\":");
	put_text(buffer, event->headers == NULL ? "null" : event->headers);
	put_time(buffer, ",\"occurred_at\":", event->occurred_at);
	put_time(buffer, ",\"created_at\":", event->created_at);
	put_time(buffer, ",\"published_at\":", event->published_at);
	put_text(buffer, ",\"priority\":");
	put_integer(buffer, event->priority);
	put_time(buffer, ",\"not_before\":", event->not_before);
	put_member(buffer, ",\"content_type\":", event->content_type);
	put_member(buffer, ",\"dataschema\":", event->dataschema);
	put_text(buffer, ",\"aggregate_version\":");
	if (event->aggregate_version == NULL)
		put_text(buffer, "null");
	else
		put_integer(buffer, *event->aggregate_version);
	put_member(buffer, ",\"state\":", event->state);
	put_member(buffer, ",\"last_error\":", event->last_error);
	put_text(buffer, "}\n");
}

/* --------------------------------------------------------------------- row */

static const char row_escapes[256][8] = {
	['\0'] = "\\0", ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r", ['\\'] = "\\\\"};

static void
put_field(ArchiveBuffer *buffer, const char *value)
{
	if (value == NULL)
		put_text(buffer, "\\N");
	else
		put_escaped(buffer, value, strlen(value), row_escapes);
	put(buffer, "\t", 1);
}

static void
put_time_field(ArchiveBuffer *buffer, int64_t time)
{
	char		text[TIME_BUFFER];

	put_field(buffer, time == ARCHIVE_TIME_UNKNOWN ? NULL : time_text(time, text));
}

static void
put_integer_field(ArchiveBuffer *buffer, int64_t value)
{
	put_integer(buffer, value);
	put(buffer, "\t", 1);
}

void
outbox_archive_put_row(ArchiveBuffer *buffer, const ArchiveEvent *event, const char *database, int64_t archived_at)
{
	char		id[37];

	outbox_encode_uuid(event->event_id, id);
	put_integer_field(buffer, event->position);
	put_field(buffer, id);
	put_field(buffer, event->aggregate_type);
	put_field(buffer, event->aggregate_id);
	put_field(buffer, event->event_type);
	put_field(buffer, event->subject);
	put_field(buffer, (char[2]) {event->payload_kind, '\0'});
	put_escaped(buffer, event->payload, event->payload_length, row_escapes);
	put(buffer, "\t", 1);
	put_field(buffer, event->headers);
	put_time_field(buffer, event->occurred_at);
	put_time_field(buffer, event->created_at);
	put_time_field(buffer, event->published_at);
	put_integer_field(buffer, event->priority);
	put_time_field(buffer, event->not_before);
	put_field(buffer, event->content_type);
	put_field(buffer, event->dataschema);
	if (event->aggregate_version == NULL)
		put_field(buffer, NULL);
	else
		put_integer_field(buffer, *event->aggregate_version);
	put_field(buffer, event->state);
	put_field(buffer, event->last_error);
	put_field(buffer, database);
	put_integer(buffer, archived_at);
	put(buffer, "\n", 1);
}
