/*
 * json.c
 *	  A reader for flat JSON objects: lines of an archive, an event's headers.
 */
#include "json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* How deep a value may nest that is only passed over. */
#define MAX_DEPTH 64

static bool
fail(OutboxJson *json)
{
	json->failed = true;
	return false;
}

static void
skip_space(OutboxJson *json)
{
	while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
		json->at++;
}

static bool
take(OutboxJson *json, char wanted)
{
	skip_space(json);
	if (json->failed || json->at == json->end || *json->at != wanted)
		return false;
	json->at++;
	return true;
}

void
outbox_json_begin(OutboxJson *json, char *text, size_t len)
{
	json->at = text;
	json->end = text + len;
	json->first = true;
	json->closed = false;
	json->failed = false;
}

bool
outbox_json_enter(OutboxJson *json)
{
	return take(json, '{') || fail(json);
}

bool
outbox_json_key(OutboxJson *json, char **key)
{
	if (json->failed || json->closed)
		return false;
	if (take(json, '}'))
	{
		json->closed = true;
		return false;
	}
	if (!json->first && !take(json, ','))
		return fail(json);
	json->first = false;
	return outbox_json_string(json, key, NULL) && (take(json, ':') || fail(json));
}

/* Four hexadecimal digits; -1: they aren't. */
static int
read_hex(const char *at)
{
	int			result = 0;

	for (int i = 0; i < 4; i++)
	{
		char		c = at[i];
		int			digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 :
																						  -1;

		if (digit < 0)
			return -1;
		result = result * 16 + digit;
	}
	return result;
}

static char *
write_utf8(char *out, uint32_t code)
{
	if (code < 0x80)
		*out++ = (char) code;
	else if (code < 0x800)
	{
		*out++ = (char) (0xC0 | code >> 6);
		*out++ = (char) (0x80 | (code & 0x3F));
	}
	else if (code < 0x10000)
	{
		*out++ = (char) (0xE0 | code >> 12);
		*out++ = (char) (0x80 | (code >> 6 & 0x3F));
		*out++ = (char) (0x80 | (code & 0x3F));
	}
	else
	{
		*out++ = (char) (0xF0 | code >> 18);
		*out++ = (char) (0x80 | (code >> 12 & 0x3F));
		*out++ = (char) (0x80 | (code >> 6 & 0x3F));
		*out++ = (char) (0x80 | (code & 0x3F));
	}
	return out;
}

/* What follows "\u", surrogates in pairs. Moves at behind it; NULL: it is none. */
static char *
read_unicode(OutboxJson *json, char *out)
{
	int			code = json->end - json->at < 4 ? -1 : read_hex(json->at);
	int			low;

	/* NUL can't be told from the end, and a low half can't come first. */
	if (code <= 0 || (code >= 0xDC00 && code <= 0xDFFF))
		return NULL;
	json->at += 4;
	if (code < 0xD800 || code > 0xDBFF)
		return write_utf8(out, (uint32_t) code);
	if (json->end - json->at < 6 || json->at[0] != '\\' || json->at[1] != 'u')
		return NULL;
	low = read_hex(json->at + 2);
	if (low < 0xDC00 || low > 0xDFFF)
		return NULL;
	json->at += 6;
	return write_utf8(out, 0x10000 + ((uint32_t) (code - 0xD800) << 10) + (uint32_t) (low - 0xDC00));
}

/* What follows a backslash. */
static char *
read_escape(OutboxJson *json, char *out)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char *found;

	if (json->at == json->end)
		return NULL;
	if (*json->at == 'u')
	{
		json->at++;
		return read_unicode(json, out);
	}
	found = *json->at == '\0' ? NULL : strchr(from, *json->at);
	if (found == NULL)
		return NULL;
	json->at++;
	*out++ = to[found - from];
	return out;
}

bool
outbox_json_string(OutboxJson *json, char **value, size_t *len)
{
	char	   *out;

	if (!take(json, '"'))
		return fail(json);
	*value = out = json->at;
	for (;;)
	{
		size_t		left = (size_t) (json->end - json->at);
		size_t		plain = 0;

		while (plain < left && json->at[plain] != '"' && json->at[plain] != '\\' && (unsigned char) json->at[plain] >= ' ')
			plain++;
		if (out != json->at)
			memmove(out, json->at, plain);
		out += plain;
		json->at += plain;
		if (plain == left)
			return fail(json);
		if (*json->at == '"')
			break;
		if (*json->at++ != '\\' || (out = read_escape(json, out)) == NULL)
			return fail(json);
	}
	json->at++;
	*out = '\0';
	if (len != NULL)
		*len = (size_t) (out - *value);
	return true;
}

bool
outbox_json_null(OutboxJson *json)
{
	skip_space(json);
	if (json->failed || json->end - json->at < 4 || memcmp(json->at, "null", 4) != 0)
		return false;
	json->at += 4;
	return true;
}

bool
outbox_json_int64(OutboxJson *json, int64_t *value)
{
	char		digits[24];
	size_t		len = 0;
	bool		quoted = take(json, '"');
	char	   *end;

	while (json->at + len < json->end && len < sizeof(digits) - 1 && strchr("+-0123456789", json->at[len]) != NULL && json->at[len] != '\0')
		len++;
	memcpy(digits, json->at, len);
	digits[len] = '\0';
	json->at += len;
	errno = 0;
	*value = strtoll(digits, &end, 10);
	if (json->failed || len == 0 || *end != '\0' || errno != 0 || (quoted && !take(json, '"')))
		return fail(json);
	return true;
}

bool
outbox_json_value(OutboxJson *json, char **value, size_t *len)
{
	int			depth = 0;
	bool		in_string = false;

	skip_space(json);
	*value = json->at;
	for (; !json->failed && json->at < json->end; json->at++)
	{
		char		c = *json->at;

		if (in_string)
		{
			if (c == '\\' && json->at + 1 < json->end)
				json->at++;
			else if (c == '"')
				in_string = false;
			continue;
		}
		if (depth == 0 && (c == ',' || c == '}' || c == ']'))
			break;
		if (c == '"')
			in_string = true;
		else if ((c == '{' || c == '[') && ++depth > MAX_DEPTH)
			return fail(json);
		else if (c == '}' || c == ']')
			depth--;
	}
	*len = (size_t) (json->at - *value);
	if (json->failed || in_string || depth != 0 || *len == 0)
		return fail(json);
	return true;
}

bool
outbox_json_ended(OutboxJson *json)
{
	skip_space(json);
	return !json->failed && json->closed && json->at == json->end;
}
