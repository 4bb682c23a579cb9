/*
 * reference.c
 *	  The rules of the other side, written a second time.
 */
#include "reference.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static bool
is_token(const char *token, size_t length)
{
	if (length == 0)
		return false;
	return length > 1 || (token[0] != '*' && token[0] != '>');
}

bool
reference_publishable(const char *subject)
{
	for (;;)
	{
		size_t		length = 0;

		while (subject[length] != '\0' && subject[length] != '.')
		{
			unsigned char c = (unsigned char) subject[length++];

			if (c <= 0x20 || c == 0x7f)
				return false;
		}
		if (!is_token(subject, length))
			return false;
		if (subject[length] == '\0')
			return true;
		subject += length + 1;
	}
}

bool
reference_matches(const char *pattern, const char *subject)
{
	for (;;)
	{
		size_t		wanted = strcspn(pattern, ".");
		size_t		length = strcspn(subject, ".");

		if (strcmp(pattern, ">") == 0)
			return length > 0;
		if (!(wanted == 1 && pattern[0] == '*') &&
			(wanted != length || memcmp(pattern, subject, length) != 0))
			return false;
		if (pattern[wanted] == '\0' || subject[length] == '\0')
			return pattern[wanted] == subject[length];
		pattern += wanted + 1;
		subject += length + 1;
	}
}

static int
upper_hex(char c)
{
	static const char digits[] = "0123456789ABCDEF";
	const char *found = c == '\0' ? NULL : strchr(digits, c);

	return found == NULL ? -1 : (int) (found - digits);
}

char *
reference_decode(const char *text, size_t length, bool (*plain) (unsigned char))
{
	char	   *decoded = malloc(length + 1);
	size_t		used = 0;
	size_t		at = 0;

	while (at < length)
	{
		unsigned char c = (unsigned char) text[at];
		bool		escaped = c == '%';

		if (escaped)
		{
			if (length - at < 3 || upper_hex(text[at + 1]) < 0 || upper_hex(text[at + 2]) < 0)
				break;
			c = (unsigned char) (upper_hex(text[at + 1]) * 16 + upper_hex(text[at + 2]));
		}
		if (plain(c) == escaped || c == '\0')
			break;
		decoded[used++] = (char) c;
		at += escaped ? 3 : 1;
	}
	if (at < length)
	{
		free(decoded);
		return NULL;
	}
	decoded[used] = '\0';
	return decoded;
}

/* By the first byte; 0 for one that begins nothing. */
static size_t
sequence_length(unsigned char first)
{
	if (first < 0x80)
		return 1;
	if (first >> 5 == 6)
		return 2;
	if (first >> 4 == 14)
		return 3;
	return first >> 3 == 30 ? 4 : 0;
}

/*
 * The code point at text, and how many bytes it takes; 0 if there is none.
 * Decodes first and then asks whether that was the shortest form.
 */
static size_t
take_code_point(const char *text, uint32_t *code_point)
{
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	unsigned char first = (unsigned char) text[0];
	size_t		length = sequence_length(first);

	if (length == 0)
		return 0;
	*code_point = length == 1 ? first : first & (0x7fu >> length);
	for (size_t i = 1; i < length; i++)
	{
		unsigned char next = (unsigned char) text[i];

		if (next >> 6 != 2)
			return 0;
		*code_point = *code_point << 6 | (next & 0x3f);
	}
	if (*code_point < smallest[length] || *code_point > 0x10ffff || *code_point >> 11 == 27)
		return 0;
	return length;
}

bool
reference_utf8(const char *text)
{
	while (*text != '\0')
	{
		uint32_t	code_point;
		size_t		length = take_code_point(text, &code_point);

		if (length == 0)
			return false;
		text += length;
	}
	return true;
}

/* White_Space of Unicode, and the byte order mark, which JavaScript's trim() removes, too. */
static bool
is_white_space(uint32_t c)
{
	return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
		(c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
		c == 0x205f || c == 0x3000 || c == 0xfeff;
}

char *
reference_trim(const char *text)
{
	const char *begin = text;
	const char *end = text;
	char	   *trimmed;

	for (const char *at = text; *at != '\0';)
	{
		uint32_t	code_point = 0;
		size_t		length = take_code_point(at, &code_point);
		bool		white = length > 0 && is_white_space(code_point);

		at += length > 0 ? length : 1;
		if (!white)
			end = at;
		else if (end == text)
			begin = at;
	}
	if (end < begin)
		end = begin;
	trimmed = malloc((size_t) (end - begin) + 1);
	memcpy(trimmed, begin, (size_t) (end - begin));
	trimmed[end - begin] = '\0';
	return trimmed;
}
