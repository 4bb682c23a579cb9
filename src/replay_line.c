/*
 * replay_line.c
 *	  An event from a line of the archive.
 *
 * Keys may come in any order, and unknown ones are passed over. ClickHouse's
 * JSONEachRow is close enough to be read here as well: numbers may be quoted,
 * times have a blank instead of the T, headers are a string.
 */
#include "replay_line.h"

#include <stdlib.h>
#include <string.h>

#include "json.h"
#include "replay_filter.h"

typedef struct Parts
{
	OutboxLine *line;
	OutboxRow  *row;
	bool		has_position;
	bool		has_id;
	bool		has_occurred;
	bool		has_created;
	char	   *hex;			/* of a query of ours to ClickHouse: the payload, if it is bytes */
	size_t		hex_len;
} Parts;

/* Decoded in place. Returns the length, -1: it isn't base64. */
static int
decode_base64(char *text, size_t len)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	static signed char values[256];
	static bool ready = false;
	char	   *out = text;
	uint32_t	bits = 0;
	int			count = 0;

	if (!ready)
	{
		memset(values, -1, sizeof(values));
		for (int i = 0; i < 64; i++)
			values[(unsigned char) digits[i]] = (signed char) i;
		ready = true;
	}
	if (len % 4 != 0)
		return -1;
	for (int padding = 0; padding < 2 && len > 0 && text[len - 1] == '='; padding++)
		len--;
	for (size_t i = 0; i < len; i++)
	{
		signed char value = values[(unsigned char) text[i]];

		if (value < 0)
			return -1;
		bits = bits << 6 | (uint32_t) value;
		count += 6;
		if (count >= 8)
		{
			count -= 8;
			*out++ = (char) (bits >> count & 0xFF);
		}
	}
	return (int) (out - text);
}

static int
hex_digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 :
																				 -1;
}

/* Decoded in place. Returns the length, -1: it isn't hexadecimal. */
static int
decode_hex(char *text, size_t len)
{
	if (len % 2 != 0)
		return -1;
	for (size_t i = 0; i < len; i += 2)
	{
		int			high = hex_digit(text[i]);
		int			low = hex_digit(text[i + 1]);

		if (high < 0 || low < 0)
			return -1;
		text[i / 2] = (char) (high << 4 | low);
	}
	return (int) (len / 2);
}

static bool
parse_uuid(const char *text, OutboxUuid *uuid)
{
	int			nibbles = 0;

	if (strlen(text) != 36)
		return false;
	for (int i = 0; i < 36; i++)
	{
		bool		is_dash = i == 8 || i == 13 || i == 18 || i == 23;
		int			digit = hex_digit(text[i]);

		if (is_dash ? text[i] != '-' : digit < 0)
			return false;
		if (is_dash)
			continue;
		uuid->data[nibbles / 2] = (uint8_t) (nibbles % 2 == 0 ? digit << 4 : uuid->data[nibbles / 2] | digit);
		nibbles++;
	}
	return true;
}

static void
read_time(OutboxJson *json, int64_t *time, bool *found)
{
	char	   *text;

	if (!outbox_json_null(json) && outbox_json_string(json, &text, NULL))
	{
		*found = outbox_replay_parse_time(text, time);
		json->failed |= !*found;
	}
}

/* A text that may be null. */
static void
read_text(OutboxJson *json, const char **text)
{
	char	   *value;

	if (outbox_json_null(json))
		*text = NULL;
	else if (outbox_json_string(json, &value, NULL))
		*text = value;
}

/* An object, or a string that contains one. It is copied, since whoever reads it spoils it. */
static void
read_headers(Parts *parts, OutboxJson *json)
{
	OutboxLine *line = parts->line;
	char	   *value;
	size_t		len;

	if (outbox_json_null(json))
		return;
	if (!outbox_json_value(json, &value, &len))
		return;
	if (value[0] == '"')
	{
		OutboxJson	quoted;

		outbox_json_begin(&quoted, value, len);
		if (!outbox_json_string(&quoted, &value, &len))
			json->failed = true;
		/* The closing quote is decoded away, which nobody needs any more. */
		if (len == 0)
			return;
	}
	if (len + 1 > line->headers_size)
	{
		char	   *larger = realloc(line->headers, len + 1);

		if (larger == NULL)
		{
			json->failed = true;
			return;
		}
		line->headers = larger;
		line->headers_size = len + 1;
	}
	memcpy(line->headers, value, len);
	line->headers[len] = '\0';
	parts->row->headers = line->headers;
}

static void
read_version(OutboxJson *json, OutboxRow *row)
{
	if (!outbox_json_null(json))
		row->has_version = outbox_json_int64(json, &row->aggregate_version);
}

static void
read_member(Parts *parts, OutboxJson *json, const char *key)
{
	OutboxRow  *row = parts->row;
	char	   *value;
	size_t		len;

	if (strcmp(key, "position") == 0)
		parts->has_position = outbox_json_int64(json, &row->position);
	else if (strcmp(key, "event_id") == 0)
		parts->has_id = outbox_json_string(json, &value, NULL) && parse_uuid(value, &row->event_id);
	else if (strcmp(key, "aggregate_type") == 0)
		read_text(json, &row->aggregate_type);
	else if (strcmp(key, "aggregate_id") == 0)
		read_text(json, &row->aggregate_id);
	else if (strcmp(key, "event_type") == 0)
		read_text(json, &row->event_type);
	else if (strcmp(key, "subject") == 0)
		read_text(json, &row->subject);
	else if (strcmp(key, "content_type") == 0)
		read_text(json, &row->content_type);
	else if (strcmp(key, "dataschema") == 0)
		read_text(json, &row->dataschema);
	else if (strcmp(key, "payload_kind") == 0 && outbox_json_string(json, &value, NULL))
		row->payload_kind = value[0];
	else if ((strcmp(key, "payload") == 0 || strcmp(key, "payload_plain") == 0) && outbox_json_string(json, &value, &len))
	{
		row->payload = value;
		row->payload_len = (int) len;
	}
	else if (strcmp(key, "payload_hex") == 0 && outbox_json_string(json, &value, &len))
	{
		parts->hex = value;
		parts->hex_len = len;
	}
	else if (strcmp(key, "headers") == 0)
		read_headers(parts, json);
	else if (strcmp(key, "occurred_at") == 0)
		read_time(json, &row->occurred_at, &parts->has_occurred);
	else if (strcmp(key, "created_at") == 0)
		read_time(json, &row->created_at, &parts->has_created);
	else if (strcmp(key, "aggregate_version") == 0)
		read_version(json, row);
	else if (strcmp(key, "state") == 0 && outbox_json_string(json, &value, NULL))
		parts->line->published = strcmp(value, "published") == 0;
	else if (!json->failed)
		(void) outbox_json_value(json, &value, &len);
}

const char *
outbox_replay_line_read(OutboxLine *line, char *text, size_t len, OutboxRow *row)
{
	Parts		parts = {.line = line, .row = row};
	OutboxJson	json;
	char	   *key;

	memset(row, 0, sizeof(*row));
	line->published = true;
	outbox_json_begin(&json, text, len);
	if (outbox_json_enter(&json))
	{
		while (outbox_json_key(&json, &key))
			read_member(&parts, &json, key);
	}
	if (!outbox_json_ended(&json))
		return "it is not a JSON object as the archive has them";
	if (!parts.has_position || !parts.has_id || !parts.has_occurred || row->aggregate_type == NULL ||
		row->aggregate_id == NULL || row->event_type == NULL || row->payload == NULL)
		return "it lacks what an event consists of";
	if (!parts.has_created)
		row->created_at = row->occurred_at;
	if (row->payload_kind == PAYLOAD_BYTES && parts.hex != NULL)
	{
		row->payload = parts.hex;
		row->payload_len = decode_hex(parts.hex, parts.hex_len);
		if (row->payload_len < 0)
			return "its payload is not hexadecimal";
	}
	else if (row->payload_kind == PAYLOAD_BYTES && (row->payload_len = decode_base64((char *) row->payload, (size_t) row->payload_len)) < 0)
		return "its payload is not base64";
	return NULL;
}
