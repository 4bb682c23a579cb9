/*
 * buffer.c
 *	  A text that grows with malloc, and what is written into one. Pure logic.
 */
#include "buffer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Room for so many bytes more; NULL: no memory, and nothing is appended. */
char *
outbox_buffer_grow(OutboxBuffer *buffer, size_t more)
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

void
outbox_buffer_put(OutboxBuffer *buffer, const char *text, size_t length)
{
	char	   *at = outbox_buffer_grow(buffer, length);

	if (at == NULL)
		return;
	memcpy(at, text, length);
	buffer->length += length;
}

void
outbox_buffer_put_text(OutboxBuffer *buffer, const char *text)
{
	outbox_buffer_put(buffer, text, strlen(text));
}

void
outbox_buffer_put_integer(OutboxBuffer *buffer, int64_t value)
{
	char		text[24];

	snprintf(text, sizeof(text), "%" PRId64, value);
	outbox_buffer_put_text(buffer, text);
}

/*
 * A text in which some bytes are written in another way. escape: what stands for
 * a byte, "" for itself.
 */
void
outbox_buffer_put_escaped(OutboxBuffer *buffer, const char *text, size_t length, const char (*escape)[8])
{
	size_t		from = 0;

	for (size_t i = 0; i < length; i++)
	{
		const char *replacement = escape[(unsigned char) text[i]];

		if (replacement[0] == '\0')
			continue;
		outbox_buffer_put(buffer, text + from, i - from);
		outbox_buffer_put_text(buffer, replacement);
		from = i + 1;
	}
	outbox_buffer_put(buffer, text + from, length - from);
}

#define CONTROL(n) "\\u00" #n

static const char json_escapes[256][8] = {
	CONTROL(00), CONTROL(01), CONTROL(02), CONTROL(03), CONTROL(04), CONTROL(05), CONTROL(06), CONTROL(07),
	"\\b", "\\t", "\\n", CONTROL(0b), "\\f", "\\r", CONTROL(0e), CONTROL(0f),
	CONTROL(10), CONTROL(11), CONTROL(12), CONTROL(13), CONTROL(14), CONTROL(15), CONTROL(16), CONTROL(17),
	CONTROL(18), CONTROL(19), CONTROL(1a), CONTROL(1b), CONTROL(1c), CONTROL(1d), CONTROL(1e), CONTROL(1f),
	['"'] = "\\\"", ['\\'] = "\\\\"};

/* A text as a JSON string. */
void
outbox_buffer_put_json(OutboxBuffer *buffer, const char *text, size_t length)
{
	outbox_buffer_put(buffer, "\"", 1);
	outbox_buffer_put_escaped(buffer, text, length, json_escapes);
	outbox_buffer_put(buffer, "\"", 1);
}

/* Bytes as a JSON string in base64. */
void
outbox_buffer_put_base64(OutboxBuffer *buffer, const char *bytes, size_t length)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *in = (const unsigned char *) bytes;
	size_t		size = (length + 2) / 3 * 4 + 2;
	char	   *out = outbox_buffer_grow(buffer, size);

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
