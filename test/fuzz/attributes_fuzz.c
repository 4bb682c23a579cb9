/*
 * attributes_fuzz.c
 *	  src/attributes.c: what it takes for JSON is JSON, by a second, recursive
 *	  reading of RFC 8259; what it takes for a trace context can be a header.
 */
#include <string.h>

#include "attributes.h"
#include "encode.h"
#include "fuzz.h"
#include "reference.h"

static const char *value(const char *at, int depth);

static const char *
blanks(const char *at)
{
	return at == NULL ? NULL : at + strspn(at, " \t\n\r");
}

static const char *
digits(const char *at)
{
	size_t		length = strspn(at, "0123456789");

	return length == 0 ? NULL : at + length;
}

static const char *
number(const char *at)
{
	at += *at == '-';
	at = *at == '0' ? at + 1 : digits(at);
	if (at != NULL && *at == '.')
		at = digits(at + 1);
	if (at != NULL && (*at == 'e' || *at == 'E'))
		at = digits(at + 1 + (at[1] == '+' || at[1] == '-'));
	return at;
}

static const char *
string(const char *at)
{
	if (*at++ != '"')
		return NULL;
	for (; *at != '"'; at++)
	{
		if ((unsigned char) *at < ' ')
			return NULL;
		if (*at != '\\')
			continue;
		at++;
		if (*at == 'u' && strspn(at + 1, "0123456789abcdefABCDEF") >= 4)
			at += 4;
		else if (*at == '\0' || strchr("\"\\/bfnrt", *at) == NULL)
			return NULL;
	}
	return at + 1;
}

/* What stands between the brackets: members or elements with commas between them. */
static const char *
items(const char *at, char end, int depth)
{
	at = blanks(at);
	if (*at == end)
		return at + 1;
	if (depth == OUTBOX_MAX_JSON_DEPTH)
		return NULL;
	for (;;)
	{
		if (end == '}')
		{
			at = blanks(string(blanks(at)));
			if (at == NULL || *at++ != ':')
				return NULL;
		}
		at = value(at, depth + 1);
		if (at == NULL || (*at != ',' && *at != end))
			return NULL;
		if (*at++ == end)
			return at;
	}
}

/* One value and the blanks around it; where it ends, or NULL. */
static const char *
value(const char *at, int depth)
{
	at = blanks(at);
	if (*at == '{' || *at == '[')
		return blanks(items(at + 1, *at == '{' ? '}' : ']', depth));
	if (*at == '"')
		return blanks(string(at));
	if (strncmp(at, "true", 4) == 0 || strncmp(at, "null", 4) == 0)
		return blanks(at + 4);
	if (strncmp(at, "false", 5) == 0)
		return blanks(at + 5);
	return blanks(number(at));
}

/* Whether text, which has no NUL, is one JSON text in UTF-8. */
static bool
is_json(const char *text)
{
	const char *end = value(text, 0);

	return end != NULL && *end == '\0' && reference_utf8(text);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *bytes = fuzz_take_bytes(&input, size);
	char	   *text;

	/* JSON is read by its length; a NUL is never part of it */
	if (memchr(data, '\0', size) != NULL)
		property(!outbox_attribute_valid_json(bytes, size));
	input = (FuzzInput) {data, size};
	text = fuzz_take_text(&input);
	property(outbox_attribute_valid_json(text, strlen(text)) == is_json(text));

	if (outbox_attribute_check_traceparent(text) == NULL)
		property(outbox_encode_check_header_value(text) == NULL && strspn(text + 3, "0123456789abcdef-") >= 52);
	if (outbox_attribute_check_tracestate(text) == NULL)
		property(strpbrk(text, "\r\n") == NULL && reference_utf8(text));
	if (outbox_attribute_check_key(text) == NULL)
		property(outbox_attribute_has_prefix(text) && strlen(text) <= 3 + OUTBOX_MAX_ATTRIBUTE_NAME &&
				 outbox_encode_check_header_key(text + 3) == NULL);
	(void) outbox_attribute_is_json(text);
	free(text);
	free(bytes);
	return 0;
}
