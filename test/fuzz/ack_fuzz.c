/*
 * ack_fuzz.c
 *	  The parser of JetStream's replies (src/ack.c) against a second one, which
 *	  is written the slow way: by recursion, with memory of its own.
 *
 * The two must agree on every input, in both directions: what is no reply is
 * never taken for one, and what is one is never refused.
 */
#include <string.h>

#include "ack.h"
#include "fuzz.h"

/* A value may nest as deep as that (ACK_MAX_DEPTH of ack.c). */
#define MAX_DEPTH 16

/* What is left of the text; broken is sticky. */
typedef struct Json
{
	const char *at;
	size_t		left;
	bool		broken;
} Json;

static int
next_char(const Json *json)
{
	return json->left == 0 || json->broken ? -1 : (unsigned char) *json->at;
}

static int
take_char(Json *json)
{
	int			c = next_char(json);

	if (c >= 0)
	{
		json->at++;
		json->left--;
	}
	return c;
}

static int
next_after_space(Json *json)
{
	while (next_char(json) == ' ' || next_char(json) == '\t' || next_char(json) == '\n' || next_char(json) == '\r')
		(void) take_char(json);
	return next_char(json);
}

static void
expect(Json *json, char wanted)
{
	(void) next_after_space(json);
	if (take_char(json) != wanted)
		json->broken = true;
}

static int
take_code(Json *json)
{
	char		digits[5] = "";
	int			code;

	for (int i = 0; i < 4; i++)
	{
		int			c = take_char(json);

		if (c < 0 || strchr("0123456789abcdefABCDEF", c) == NULL || c == '\0')
			json->broken = true;
		else
			digits[i] = (char) c;
	}
	code = (int) strtol(digits, NULL, 16);
	return code > 0x7e ? '?' : code;
}

/* The text of a string, '?' for all that isn't printable ASCII; to be freed. */
static char *
take_text(Json *json)
{
	char	   *text = malloc(json->left + 1);
	size_t		used = 0;
	int			c;

	expect(json, '"');
	while (!json->broken && (c = take_char(json)) != '"')
	{
		if (c < 0x20)			/* the end, too */
			json->broken = true;
		if (c == '\\')
		{
			c = take_char(json);
			if (c == 'u')
				c = take_code(json);
			else if (c > 0 && strchr("bfnrt", c) != NULL)
				c = '?';
			else if (c != '"' && c != '\\' && c != '/')
				json->broken = true;
		}
		text[used++] = c < 0x20 || c > 0x7e ? '?' : (char) c;
	}
	text[json->broken ? 0 : used] = '\0';
	return text;
}

static size_t
skip_digits(Json *json)
{
	size_t		count = 0;

	for (; next_char(json) >= '0' && next_char(json) <= '9'; count++)
		(void) take_char(json);
	if (count == 0)
		json->broken = true;
	return count;
}

/* As JSON writes whole numbers: without leading zeros. */
static size_t
skip_whole(Json *json)
{
	bool		zero = next_char(json) == '0';
	size_t		count = skip_digits(json);

	if (zero && count > 1)
		json->broken = true;
	return count;
}

static void
skip_number(Json *json)
{
	if (next_char(json) == '-')
		(void) take_char(json);
	(void) skip_whole(json);
	if (next_char(json) == '.')
	{
		(void) take_char(json);
		(void) skip_digits(json);
	}
	if (next_char(json) == 'e' || next_char(json) == 'E')
	{
		(void) take_char(json);
		if (next_char(json) == '+' || next_char(json) == '-')
			(void) take_char(json);
		(void) skip_digits(json);
	}
}

static bool
take_word(Json *json, const char *word)
{
	size_t		length = strlen(word);

	(void) next_after_space(json);
	if (json->broken || json->left < length || memcmp(json->at, word, length) != 0)
		return false;
	json->at += length;
	json->left -= length;
	return true;
}

static void
skip_value(Json *json, int depth)
{
	int			first = next_after_space(json);

	if (first == '"')
		free(take_text(json));
	else if (first == '{' || first == '[')
	{
		char		closer = first == '{' ? '}' : ']';

		(void) take_char(json);
		if (depth == MAX_DEPTH)
			json->broken = true;
		if (next_after_space(json) != closer)
		{
			for (;;)
			{
				if (first == '{')
				{
					free(take_text(json));
					expect(json, ':');
				}
				skip_value(json, depth + 1);
				if (json->broken || next_after_space(json) != ',')
					break;
				(void) take_char(json);
			}
		}
		expect(json, closer);
	}
	else if (!take_word(json, "true") && !take_word(json, "false") && !take_word(json, "null"))
		skip_number(json);
}

/* A whole number from 0 to max. */
static uint64_t
take_number(Json *json, uint64_t max)
{
	unsigned __int128 value = 0;
	const char *digits;

	(void) next_after_space(json);
	digits = json->at;
	for (size_t count = skip_whole(json); count > 0; count--)
	{
		value = value * 10 + (unsigned) (*digits++ - '0');
		if (value > max)
		{
			json->broken = true;
			value = 0;
		}
	}
	if (next_char(json) == '.' || next_char(json) == 'e' || next_char(json) == 'E')
		json->broken = true;
	return (uint64_t) value;
}

typedef struct Expected
{
	bool		has_sequence;
	bool		has_error;
	AckReply	reply;			/* texts are cut later */
	char	   *stream;
	char	   *description;
} Expected;

static void take_object(Json *json, Expected *expected, bool in_error);

static void
take_member(Json *json, Expected *expected, const char *key)
{
	if (strcmp(key, "stream") == 0)
	{
		free(expected->stream);
		expected->stream = take_text(json);
		if (strlen(expected->stream) >= ACK_STREAM_SIZE)
			json->broken = true;
	}
	else if (strcmp(key, "seq") == 0)
	{
		expected->has_sequence = true;
		expected->reply.sequence = take_number(json, UINT64_MAX);
	}
	else if (strcmp(key, "count") == 0)
		expected->reply.count = take_number(json, UINT64_MAX);
	else if (strcmp(key, "duplicate") == 0)
	{
		expected->reply.duplicate = take_word(json, "true");
		if (!expected->reply.duplicate && !take_word(json, "false"))
			json->broken = true;
	}
	else if (strcmp(key, "error") != 0)
		skip_value(json, 0);
	else if (!take_word(json, "null"))
	{
		expected->has_error = true;
		take_object(json, expected, true);
	}
}

static void
take_error_member(Json *json, Expected *expected, const char *key)
{
	if (strcmp(key, "description") == 0)
	{
		free(expected->description);
		expected->description = take_text(json);
	}
	else if (strcmp(key, "err_code") == 0)
		expected->reply.error_code = (int) take_number(json, INT32_MAX);
	else if (strcmp(key, "code") == 0)
		expected->reply.status = (int) take_number(json, INT32_MAX);
	else
		skip_value(json, 0);
}

static void
take_object(Json *json, Expected *expected, bool in_error)
{
	expect(json, '{');
	if (next_after_space(json) != '}')
	{
		for (;;)
		{
			char	   *key = take_text(json);

			expect(json, ':');
			if (in_error)
				take_error_member(json, expected, key);
			else
				take_member(json, expected, key);
			free(key);
			if (json->broken || next_after_space(json) != ',')
				break;
			(void) take_char(json);
		}
	}
	expect(json, '}');
}

static AckKind
expected_kind(const Json *json, const Expected *expected)
{
	if (json->broken || json->left > 0)
		return ACK_MALFORMED;
	if (expected->has_error)
		return ACK_ERROR;
	return expected->has_sequence && expected->stream[0] != '\0' ? ACK_POSITIVE : ACK_MALFORMED;
}

static void
check(const char *bytes, size_t size)
{
	Json		json = {bytes, size, false};
	Expected	expected = {.stream = fuzz_copy(""), .description = fuzz_copy("")};
	AckReply	reply;

	take_object(&json, &expected, false);
	(void) next_after_space(&json);

	memset(&reply, 0x5a, sizeof(reply));
	ack_parse(bytes, size, &reply);
	property(reply.kind == expected_kind(&json, &expected));
	if (reply.kind == ACK_POSITIVE)
	{
		property(strcmp(reply.stream, expected.stream) == 0);
		property(reply.sequence == expected.reply.sequence);
		property(reply.duplicate == expected.reply.duplicate);
		property(reply.count == expected.reply.count);
	}
	if (reply.kind == ACK_ERROR)
	{
		property(reply.status == expected.reply.status);
		property(reply.error_code == (expected.reply.error_code != 0 ? expected.reply.error_code : expected.reply.status));
		property(memchr(reply.description, '\0', sizeof(reply.description)) != NULL);
		property(strncmp(reply.description, expected.description, sizeof(reply.description) - 1) == 0);
	}
	free(expected.stream);
	free(expected.description);
}

static void
check_inside(const char *before, const char *bytes, size_t size, const char *behind)
{
	size_t		length = strlen(before) + size + strlen(behind);
	char	   *whole = malloc(length);

	memcpy(whole, before, strlen(before));
	memcpy(whole + strlen(before), bytes, size);
	memcpy(whole + strlen(before) + size, behind, strlen(behind));
	check(whole, length);
	free(whole);
}

/*
 * The input is a reply, and a piece of one that is right without it: then every
 * verdict on the piece shows, not only that on a whole reply.
 */
int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *bytes = fuzz_take_bytes(&input, size);

	check(bytes, size);
	check_inside("{\"x\":", bytes, size, ",\"stream\":\"S\",\"seq\":1}");
	check_inside("{\"stream\":\"S\",\"seq\":1,", bytes, size, "}");
	check_inside("{\"error\":{", bytes, size, "}}");
	check_inside("{\"seq\":1,\"stream\":\"", bytes, size, "\"}");
	free(bytes);
	return 0;
}
