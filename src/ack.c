/*
 * ack.c
 *	  A reader for the few JSON objects JetStream answers a publish with:
 *
 *		{"stream":"OUTBOX","seq":42,"duplicate":true}
 *		{"stream":"OUTBOX","seq":142,"batch":"...","count":100}
 *		{"error":{"code":503,"err_code":10077,"description":"..."},"stream":"OUTBOX","seq":0}
 *
 * The bytes come from outside, and 60,000 times a second, so this is strict
 * JSON read in one pass: no allocation, no recursion, nothing kept but the
 * fields wanted. Whatever is not well-formed to its last byte is
 * ACK_MALFORMED, never half an ack.
 */
#include "ack.h"

#include <string.h>

/* JetStream nests two levels deep; more than this is not from JetStream. */
#define ACK_MAX_DEPTH 16

typedef struct Cursor
{
	const char *at;
	const char *end;
} Cursor;

static void
skip_space(Cursor *cursor)
{
	while (cursor->at < cursor->end &&
		   (*cursor->at == ' ' || *cursor->at == '\t' ||
			*cursor->at == '\n' || *cursor->at == '\r'))
		cursor->at++;
}

/* Takes the character if it comes next, after white space. */
static bool
take(Cursor *cursor, char wanted)
{
	skip_space(cursor);
	if (cursor->at == cursor->end || *cursor->at != wanted)
		return false;
	cursor->at++;
	return true;
}

static bool
take_word(Cursor *cursor, const char *word)
{
	size_t		len = strlen(word);

	if ((size_t) (cursor->end - cursor->at) < len || memcmp(cursor->at, word, len) != 0)
		return false;
	cursor->at += len;
	return true;
}

/* Of a hexadecimal digit; -1: it is none. */
int
ack_hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

/* Reads what follows a backslash; -1 when it is no escape. Non-ASCII becomes '?'. */
static int
take_escape(Cursor *cursor)
{
	static const char from[] = "\"\\/bfnrt";
	static const char to[] = "\"\\/\b\f\n\r\t";
	const char *found;
	int			code = 0;

	if (cursor->at == cursor->end)
		return -1;
	if (*cursor->at != 'u')
	{
		found = memchr(from, *cursor->at, sizeof(from) - 1);
		if (found == NULL)
			return -1;
		cursor->at++;
		return (unsigned char) to[found - from];
	}

	cursor->at++;
	if (cursor->end - cursor->at < 4)
		return -1;
	for (int i = 0; i < 4; i++)
	{
		int			digit = ack_hex_value(*cursor->at++);

		if (digit < 0)
			return -1;
		code = code * 16 + digit;
	}
	return code < 0x80 ? code : '?';
}

/*
 * Reads a string into buffer as printable ASCII, other bytes as '?', because
 * the texts end up in log lines and tables of any encoding. buffer may be NULL
 * (skip). A string that does not fit is cut, and *cut says so if it is asked.
 */
static bool
take_string(Cursor *cursor, char *buffer, size_t size, bool *cut)
{
	size_t		used = 0;

	if (cut != NULL)
		*cut = false;
	if (!take(cursor, '"'))
		return false;
	while (cursor->at < cursor->end)
	{
		int			c = (unsigned char) *cursor->at++;

		if (c == '"')
		{
			if (buffer != NULL)
				buffer[used] = '\0';
			return true;
		}
		if (c < 0x20)
			return false;
		if (c == '\\' && (c = take_escape(cursor)) < 0)
			return false;
		if (buffer == NULL)
			continue;
		if (used + 1 < size)
			buffer[used++] = (c < 0x20 || c > 0x7e) ? '?' : (char) c;
		else if (cut != NULL)
			*cut = true;
	}
	return false;
}

static bool
is_digit(const Cursor *cursor)
{
	return cursor->at < cursor->end && *cursor->at >= '0' && *cursor->at <= '9';
}

/* Whether a whole number comes next; one of several digits has no leading zero. */
static bool
is_whole(const Cursor *cursor)
{
	if (!is_digit(cursor))
		return false;
	return *cursor->at != '0' || cursor->at + 1 == cursor->end || cursor->at[1] < '0' || cursor->at[1] > '9';
}

/* Skips a JSON number of any kind. */
static bool
skip_number(Cursor *cursor)
{
	if (cursor->at < cursor->end && *cursor->at == '-')
		cursor->at++;
	if (!is_whole(cursor))
		return false;
	while (is_digit(cursor))
		cursor->at++;
	if (cursor->at < cursor->end && *cursor->at == '.')
	{
		cursor->at++;
		if (!is_digit(cursor))
			return false;
		while (is_digit(cursor))
			cursor->at++;
	}
	if (cursor->at < cursor->end && (*cursor->at == 'e' || *cursor->at == 'E'))
	{
		cursor->at++;
		if (cursor->at < cursor->end && (*cursor->at == '+' || *cursor->at == '-'))
			cursor->at++;
		if (!is_digit(cursor))
			return false;
		while (is_digit(cursor))
			cursor->at++;
	}
	return true;
}

/* Reads a whole number from 0 to max; anything else is an error. */
static bool
take_unsigned(Cursor *cursor, uint64_t max, uint64_t *value)
{
	uint64_t	sum = 0;

	skip_space(cursor);
	if (!is_whole(cursor))
		return false;
	while (is_digit(cursor))
	{
		uint64_t	digit = (uint64_t) (*cursor->at++ - '0');

		if (sum > (max - digit) / 10)
			return false;
		sum = sum * 10 + digit;
	}
	if (cursor->at < cursor->end && (*cursor->at == '.' || *cursor->at == 'e' || *cursor->at == 'E'))
		return false;
	*value = sum;
	return true;
}

static bool
take_bool(Cursor *cursor, bool *value)
{
	skip_space(cursor);
	if (take_word(cursor, "true"))
		*value = true;
	else if (take_word(cursor, "false"))
		*value = false;
	else
		return false;
	return true;
}

/* Skips a string, number or word: a value that opens no nesting. */
static bool
skip_scalar(Cursor *cursor)
{
	skip_space(cursor);
	if (cursor->at == cursor->end)
		return false;
	if (*cursor->at == '"')
		return take_string(cursor, NULL, 0, NULL);
	return take_word(cursor, "true") || take_word(cursor, "false") ||
		take_word(cursor, "null") || skip_number(cursor);
}

/*
 * Skips one value of any kind. Keeps the open brackets in an array of its own
 * instead of recursing, so hostile nesting costs nothing.
 */
static bool
skip_value(Cursor *cursor)
{
	char		closer[ACK_MAX_DEPTH];
	int			depth = 0;

	for (;;)
	{
		/* Here a value must begin. */
		bool		opened = false;

		if (take(cursor, '{') || take(cursor, '['))
		{
			if (depth == ACK_MAX_DEPTH)
				return false;
			closer[depth++] = cursor->at[-1] == '{' ? '}' : ']';
			opened = true;
		}
		else if (!skip_scalar(cursor))
			return false;

		/* Close what ends here; an opened bracket may close at once. */
		while (depth > 0 && take(cursor, closer[depth - 1]))
		{
			depth--;
			opened = false;
		}
		if (depth == 0)
			return true;
		if (!opened && !take(cursor, ','))
			return false;
		if (closer[depth - 1] == '}' &&
			!(take_string(cursor, NULL, 0, NULL) && take(cursor, ':')))
			return false;
	}
}

/* Calls member() for each member of an object, which must read its value. */
static bool
take_object(Cursor *cursor, AckReply *reply,
			bool (*member)(Cursor *cursor, const char *key, AckReply *reply))
{
	char		key[16];
	bool		cut;

	if (!take(cursor, '{'))
		return false;
	if (take(cursor, '}'))
		return true;
	do
	{
		if (!take_string(cursor, key, sizeof(key), &cut) || !take(cursor, ':'))
			return false;
		/* No name we know is that long; a cut one must not match by its head. */
		if (!member(cursor, cut ? "" : key, reply))
			return false;
	} while (take(cursor, ','));
	return take(cursor, '}');
}

static bool
take_error_member(Cursor *cursor, const char *key, AckReply *reply)
{
	uint64_t	number;

	if (strcmp(key, "err_code") == 0)
	{
		if (!take_unsigned(cursor, INT32_MAX, &number))
			return false;
		reply->error_code = (int) number;
		return true;
	}
	if (strcmp(key, "code") == 0)
	{
		if (!take_unsigned(cursor, INT32_MAX, &number))
			return false;
		reply->status = (int) number;
		return true;
	}
	if (strcmp(key, "description") == 0)
		return take_string(cursor, reply->description, sizeof(reply->description), NULL);
	return skip_value(cursor);
}

/* sequence's presence is kept in kind: POSITIVE needs it, ERROR beats it. */
static bool
take_reply_member(Cursor *cursor, const char *key, AckReply *reply)
{
	bool		cut;

	if (strcmp(key, "stream") == 0)
		return take_string(cursor, reply->stream, sizeof(reply->stream), &cut) && !cut;
	if (strcmp(key, "seq") == 0)
	{
		if (reply->kind == ACK_MALFORMED)
			reply->kind = ACK_POSITIVE;
		return take_unsigned(cursor, UINT64_MAX, &reply->sequence);
	}
	if (strcmp(key, "count") == 0)
		return take_unsigned(cursor, UINT64_MAX, &reply->count);
	if (strcmp(key, "duplicate") == 0)
		return take_bool(cursor, &reply->duplicate);
	if (strcmp(key, "error") == 0)
	{
		skip_space(cursor);
		if (take_word(cursor, "null"))
			return true;
		reply->kind = ACK_ERROR;
		return take_object(cursor, reply, take_error_member);
	}
	return skip_value(cursor);
}

void
ack_parse(const char *data, size_t len, AckReply *reply)
{
	Cursor		cursor = {data, data + len};
	bool		well_formed;

	reply->kind = ACK_MALFORMED;
	reply->duplicate = false;
	reply->sequence = 0;
	reply->count = 0;
	reply->error_code = 0;
	reply->status = 0;
	reply->stream[0] = '\0';
	reply->description[0] = '\0';
	if (data == NULL || len == 0)
		return;

	well_formed = take_object(&cursor, reply, take_reply_member);
	skip_space(&cursor);
	if (!well_formed || cursor.at != cursor.end)
		reply->kind = ACK_MALFORMED;
	else if (reply->kind == ACK_POSITIVE && reply->stream[0] == '\0')
		reply->kind = ACK_MALFORMED;
	/* Old servers give the HTTP-like code only. */
	if (reply->error_code == 0)
		reply->error_code = reply->status;
}
