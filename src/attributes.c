/*
 * attributes.c
 *	  What CloudEvents and W3C Trace Context allow, and JSON as an event's data.
 *
 * Pure logic over the caller's bytes; it must know neither PostgreSQL nor
 * NATS, allocates nothing, keeps no state and ignores the locale. JSON is
 * only recognised, never changed: numbers keep their digits, strings their
 * escapes.
 */
#include "attributes.h"

#include <string.h>

static bool
is_lower(char c)
{
	return c >= 'a' && c <= 'z';
}

static bool
is_digit(char c)
{
	return c >= '0' && c <= '9';
}

static bool
is_hex(char c)
{
	return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static char
lower(char c)
{
	return c >= 'A' && c <= 'Z' ? (char) (c - 'A' + 'a') : c;
}

/* -------------------------------------------------------------- CloudEvents */

bool
outbox_attribute_has_prefix(const char *key)
{
	return lower(key[0]) == 'c' && lower(key[1]) == 'e' && key[2] == '-';
}

/* Those that CloudEvents defines, and those that the relay sets. */
static bool
is_own_attribute(const char *name)
{
	static const char *const own[] = {
		"specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "data",
		"sequence", "partitionkey", "aggregatetype", "aggregateversion"};

	for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++)
	{
		if (strcmp(name, own[i]) == 0)
			return true;
	}
	return false;
}

const char *
outbox_attribute_check_key(const char *key)
{
	const char *name = key + strlen(OUTBOX_ATTRIBUTE_PREFIX);
	size_t length;

	if (strncmp(key, OUTBOX_ATTRIBUTE_PREFIX, strlen(OUTBOX_ATTRIBUTE_PREFIX)) != 0)
		return "doesn't begin with \"ce-\" in lower case";
	length = strlen(name);
	if (length == 0 || length > OUTBOX_MAX_ATTRIBUTE_NAME)
		return "has no attribute name of 1 to 20 characters behind \"ce-\"";
	for (size_t i = 0; i < length; i++)
	{
		if (!is_lower(name[i]) && !is_digit(name[i]))
			return "contains a character other than lower-case letters and digits behind \"ce-\"";
	}
	if (is_own_attribute(name))
		return "is an attribute that outbox sets itself";
	if (strcmp(name, "traceparent") == 0 || strcmp(name, "tracestate") == 0)
		return "is set from the header of that name without \"ce-\"";
	return NULL;
}

bool
outbox_attribute_is_json(const char *content_type)
{
	size_t		length = strcspn(content_type, "; \t");
	const char *slash = memchr(content_type, '/', length);
	const char *end = content_type + length;

	if (slash == NULL || end - slash < 5)
		return false;
	for (int i = 0; i < 4; i++)
	{
		if (lower(end[i - 4]) != "json"[i])
			return false;
	}
	return end[-5] == '/' || end[-5] == '+';
}

/* ------------------------------------------------------------ trace context */

/* So many lower-case hexadecimal digits; *zero: all of them are 0. */
static bool
hex_field(const char *text, int digits, bool *zero)
{
	*zero = true;
	for (int i = 0; i < digits; i++)
	{
		if (!is_hex(text[i]) || lower(text[i]) != text[i])
			return false;
		*zero = *zero && text[i] == '0';
	}
	return true;
}

/* Printable ASCII without blanks. */
static bool
is_visible(const char *text)
{
	while (*text > ' ' && *text <= '~')
		text++;
	return *text == '\0';
}

/* version "-" 32 digits of the trace "-" 16 of the parent "-" 2 of flags; later versions may go on after a "-". */
const char *
outbox_attribute_check_traceparent(const char *value)
{
	bool		no_trace;
	bool		no_parent;
	bool		ignored;

	if (!hex_field(value, 2, &ignored) || value[2] != '-' || !hex_field(value + 3, 32, &no_trace) || value[35] != '-' ||
		!hex_field(value + 36, 16, &no_parent) || value[52] != '-' || !hex_field(value + 53, 2, &ignored))
		return "isn't a W3C traceparent: 2, 32, 16 and 2 lower-case hexadecimal digits, joined by \"-\"";
	if (strncmp(value, "ff", 2) == 0)
		return "has the traceparent version \"ff\", which is invalid";
	if (value[55] != '\0' && (strncmp(value, "00", 2) == 0 || value[55] != '-' || !is_visible(value + 55)))
		return "goes on behind the flags of the traceparent";
	if (no_trace || no_parent)
		return "has a trace id or parent id of zeros only";
	return NULL;
}

/* A part of a key of a tracestate member: the first character, then these. */
static bool
is_state_name(const char *name, size_t length, size_t max, bool digit_first)
{
	if (length == 0 || length > max || !(is_lower(name[0]) || (digit_first && is_digit(name[0]))))
		return false;
	for (size_t i = 1; i < length; i++)
	{
		if (!is_lower(name[i]) && !is_digit(name[i]) && strchr("_-*/", name[i]) == NULL)
			return false;
	}
	return true;
}

/* name, or tenant@system */
static bool
is_state_key(const char *key, size_t length)
{
	const char *at = memchr(key, '@', length);

	if (at == NULL)
		return is_state_name(key, length, 256, false);
	return is_state_name(key, (size_t) (at - key), 241, true) &&
		is_state_name(at + 1, length - (size_t) (at - key) - 1, 14, false);
}

static bool
is_state_value(const char *value, size_t length)
{
	if (length == 0 || length > 256 || value[length - 1] == ' ')
		return false;
	for (size_t i = 0; i < length; i++)
	{
		if (value[i] < ' ' || value[i] > '~' || value[i] == ',' || value[i] == '=')
			return false;
	}
	return true;
}

/* Up to 32 members key=value, separated by commas with blanks around them; empty ones don't count. */
const char *
outbox_attribute_check_tracestate(const char *value)
{
	int			members = 0;

	for (;;)
	{
		size_t		length;
		size_t		key;

		value += strspn(value, " \t");
		length = strcspn(value, ",");
		while (length > 0 && (value[length - 1] == ' ' || value[length - 1] == '\t'))
			length--;
		key = strcspn(value, "=,");
		if (length > 0 && (key >= length || !is_state_key(value, key) || !is_state_value(value + key + 1, length - key - 1)))
			return "isn't a W3C tracestate: members \"key=value\", separated by commas";
		if (length > 0 && ++members > 32)
			return "has more than 32 tracestate members";
		value += strcspn(value, ",");
		if (*value++ == '\0')
			return NULL;
	}
}

/* --------------------------------------------------------------------- JSON */

/* What is left of a text, and the open objects and arrays. */
typedef struct Json
{
	const unsigned char *at;
	const unsigned char *end;
	int			depth;
	bool		in_object[OUTBOX_MAX_JSON_DEPTH];
} Json;

static void
skip_blanks(Json *json)
{
	while (json->at < json->end && (*json->at == ' ' || *json->at == '\t' || *json->at == '\n' || *json->at == '\r'))
		json->at++;
}

static bool
take(Json *json, char c)
{
	if (json->at == json->end || *json->at != (unsigned char) c)
		return false;
	json->at++;
	return true;
}

static bool
take_word(Json *json, const char *word)
{
	size_t		length = strlen(word);

	if ((size_t) (json->end - json->at) < length || memcmp(json->at, word, length) != 0)
		return false;
	json->at += length;
	return true;
}

static bool
take_digits(Json *json)
{
	const unsigned char *start = json->at;

	while (json->at < json->end && is_digit((char) *json->at))
		json->at++;
	return json->at > start;
}

static bool
take_number(Json *json)
{
	(void) take(json, '-');
	if (!take(json, '0') && !take_digits(json))
		return false;
	if (take(json, '.') && !take_digits(json))
		return false;
	if (take(json, 'e') || take(json, 'E'))
	{
		if (!take(json, '+'))
			(void) take(json, '-');
		return take_digits(json);
	}
	return true;
}

static bool
take_escape(Json *json)
{
	if (json->at == json->end)
		return false;
	if (take(json, 'u'))
	{
		for (int i = 0; i < 4; i++, json->at++)
		{
			if (json->at == json->end || !is_hex((char) *json->at))
				return false;
		}
		return true;
	}
	return *json->at != '\0' && strchr("\"\\/bfnrt", *json->at++) != NULL;
}

/* The rest of a well-formed UTF-8 sequence after its first byte, which isn't ASCII. */
static bool
take_utf8(Json *json, unsigned char first)
{
	int			more = 1 + (first >= 0xe0) + (first >= 0xf0);

	if (first < 0xc2 || first > 0xf4 || json->end - json->at < more)
		return false;
	if ((first == 0xe0 && json->at[0] < 0xa0) || (first == 0xed && json->at[0] > 0x9f) ||
		(first == 0xf0 && json->at[0] < 0x90) || (first == 0xf4 && json->at[0] > 0x8f))
		return false;
	for (; more > 0; more--)
	{
		if ((*json->at++ & 0xc0) != 0x80)
			return false;
	}
	return true;
}

static bool
take_string(Json *json)
{
	if (!take(json, '"'))
		return false;
	while (json->at < json->end)
	{
		unsigned char c = *json->at++;

		if (c == '"')
			return true;
		if (c < ' ' || (c == '\\' && !take_escape(json)) || (c >= 0x80 && !take_utf8(json, c)))
			return false;
	}
	return false;
}

/* "key": of an object; what follows is a value. */
static bool
take_key(Json *json)
{
	skip_blanks(json);
	if (!take_string(json))
		return false;
	skip_blanks(json);
	return take(json, ':');
}

/* After a value: closes what ends here. *more: another value follows. */
static bool
take_ends(Json *json, bool *more)
{
	*more = false;
	while (json->depth > 0)
	{
		bool		in_object = json->in_object[json->depth - 1];

		skip_blanks(json);
		if (take(json, ','))
		{
			*more = true;
			return !in_object || take_key(json);
		}
		if (!take(json, in_object ? '}' : ']'))
			return false;
		json->depth--;
	}
	return true;
}

/* An opening brace or bracket. *empty: it closes at once, and so is a value. */
static bool
take_open(Json *json, bool in_object, bool *empty)
{
	*empty = false;
	skip_blanks(json);
	if (take(json, in_object ? '}' : ']'))
	{
		*empty = true;
		return true;
	}
	if (json->depth == OUTBOX_MAX_JSON_DEPTH)
		return false;
	json->in_object[json->depth++] = in_object;
	return !in_object || take_key(json);
}

static bool
take_scalar(Json *json)
{
	if (json->at == json->end)
		return false;
	switch (*json->at)
	{
		case '"':
			return take_string(json);
		case 't':
			return take_word(json, "true");
		case 'f':
			return take_word(json, "false");
		case 'n':
			return take_word(json, "null");
		default:
			return take_number(json);
	}
}

/* No recursion: the depth of the text must not be that of our stack. */
bool
outbox_attribute_valid_json(const char *text, size_t length)
{
	Json		json;
	bool		more = true;

	json.at = (const unsigned char *) text;
	json.end = json.at + length;
	json.depth = 0;
	while (more)
	{
		bool		is_value = true;

		skip_blanks(&json);
		if (take(&json, '{'))
		{
			if (!take_open(&json, true, &is_value))
				return false;
		}
		else if (take(&json, '['))
		{
			if (!take_open(&json, false, &is_value))
				return false;
		}
		else if (!take_scalar(&json))
			return false;
		if (is_value && !take_ends(&json, &more))
			return false;
	}
	skip_blanks(&json);
	return json.at == json.end;
}
