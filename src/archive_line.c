/*
 * archive_line.c
 *	  An event as a line of an archive file, and as a row for ClickHouse.
 *
 * Pure logic: must know neither PostgreSQL nor ClickHouse's protocol. Both forms
 * keep each byte of the payload: a text as it is, bytes in base64 in the line
 * (where everything is UTF-8), and as they are in the row.
 */
#include "archive_line.h"

#include <string.h>

#include "encode.h"

#define TIME_BUFFER 64

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

static void
put_member(OutboxBuffer *buffer, const char *key, const char *value)
{
	outbox_buffer_put_text(buffer, key);
	if (value == NULL)
		outbox_buffer_put_text(buffer, "null");
	else
		outbox_buffer_put_json(buffer, value, strlen(value));
}

static void
put_time(OutboxBuffer *buffer, const char *key, int64_t time)
{
	char		text[TIME_BUFFER];

	put_member(buffer, key, time == ARCHIVE_TIME_UNKNOWN ? NULL : time_text(time, text));
}

void
outbox_archive_put_line(OutboxBuffer *buffer, const ArchiveEvent *event)
{
	char		id[37];

	outbox_encode_uuid(event->event_id, id);
	outbox_buffer_put_text(buffer, "{\"position\":");
	outbox_buffer_put_integer(buffer, event->position);
	put_member(buffer, ",\"event_id\":", id);
	put_member(buffer, ",\"aggregate_type\":", event->aggregate_type);
	put_member(buffer, ",\"aggregate_id\":", event->aggregate_id);
	put_member(buffer, ",\"event_type\":", event->event_type);
	put_member(buffer, ",\"subject\":", event->subject);
	put_member(buffer, ",\"payload_kind\":", (char[2]) {event->payload_kind, '\0'});
	outbox_buffer_put_text(buffer, ",\"payload\":");
	if (event->payload_kind == 'x')
		outbox_buffer_put_base64(buffer, event->payload, event->payload_length);
	else
		outbox_buffer_put_json(buffer, event->payload, event->payload_length);
	outbox_buffer_put_text(buffer, ",\"headers\":");
	outbox_buffer_put_text(buffer, event->headers == NULL ? "null" : event->headers);
	put_time(buffer, ",\"occurred_at\":", event->occurred_at);
	put_time(buffer, ",\"created_at\":", event->created_at);
	put_time(buffer, ",\"published_at\":", event->published_at);
	outbox_buffer_put_text(buffer, ",\"priority\":");
	outbox_buffer_put_integer(buffer, event->priority);
	put_time(buffer, ",\"not_before\":", event->not_before);
	put_member(buffer, ",\"content_type\":", event->content_type);
	put_member(buffer, ",\"dataschema\":", event->dataschema);
	outbox_buffer_put_text(buffer, ",\"aggregate_version\":");
	if (event->aggregate_version == NULL)
		outbox_buffer_put_text(buffer, "null");
	else
		outbox_buffer_put_integer(buffer, *event->aggregate_version);
	put_member(buffer, ",\"state\":", event->state);
	put_member(buffer, ",\"last_error\":", event->last_error);
	outbox_buffer_put_text(buffer, "}\n");
}

/* --------------------------------------------------------------------- row */

static const char row_escapes[256][8] = {
	['\0'] = "\\0", ['\b'] = "\\b", ['\t'] = "\\t", ['\n'] = "\\n", ['\f'] = "\\f", ['\r'] = "\\r", ['\\'] = "\\\\"};

static void
put_field(OutboxBuffer *buffer, const char *value)
{
	if (value == NULL)
		outbox_buffer_put_text(buffer, "\\N");
	else
		outbox_buffer_put_escaped(buffer, value, strlen(value), row_escapes);
	outbox_buffer_put(buffer, "\t", 1);
}

static void
put_time_field(OutboxBuffer *buffer, int64_t time)
{
	char		text[TIME_BUFFER];

	put_field(buffer, time == ARCHIVE_TIME_UNKNOWN ? NULL : time_text(time, text));
}

static void
put_integer_field(OutboxBuffer *buffer, int64_t value)
{
	outbox_buffer_put_integer(buffer, value);
	outbox_buffer_put(buffer, "\t", 1);
}

void
outbox_archive_put_row(OutboxBuffer *buffer, const ArchiveEvent *event, const char *database, int64_t archived_at)
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
	outbox_buffer_put_escaped(buffer, event->payload, event->payload_length, row_escapes);
	outbox_buffer_put(buffer, "\t", 1);
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
	outbox_buffer_put_integer(buffer, archived_at);
	outbox_buffer_put(buffer, "\n", 1);
}
