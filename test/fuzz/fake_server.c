/*
 * fake_server.c
 *	  Reads what the fake libnats wrote, as a NATS server and a receiver do.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <string.h>

#include "fake_nats.h"
#include "fuzz.h"

#define MAX_WORDS 8

/* Cuts the protocol line at blanks, as the server does. */
static int
cut_line(char *line, char *words[MAX_WORDS])
{
	int			count = 0;
	char	   *rest = line;
	char	   *word;

	while ((word = strsep(&rest, " \t\r\n")) != NULL)
	{
		if (word[0] == '\0')
			continue;
		if (count == MAX_WORDS)
			return MAX_WORDS + 1;
		words[count++] = word;
	}
	return count;
}

static bool
read_size(const char *word, size_t *size)
{
	*size = 0;
	for (; *word != '\0'; word++)
	{
		if (!isdigit((unsigned char) *word))
			return false;
		*size = *size * 10 + (size_t) (*word - '0');
	}
	return true;
}

/* "Key: value" up to an empty line, which is the end of the block. */
static bool
read_headers(char *block, size_t length, FakePublish *publish)
{
	char	   *end = block + length;
	char	   *line = block;

	publish->headers = calloc(length, sizeof(BrokerHeader));
	for (bool first = true;; first = false)
	{
		char	   *line_end = memmem(line, (size_t) (end - line), "\r\n", 2);
		char	   *colon;

		if (line_end == NULL)
			return false;
		*line_end = '\0';
		if (line_end == line)
			return !first && line_end + 2 == end;
		if (first && strcmp(line, "NATS/1.0") != 0)
			return false;
		if (!first)
		{
			colon = strchr(line, ':');
			if (colon == NULL || colon == line || strlen(line) != (size_t) (line_end - line))
				return false;
			*colon = '\0';
			publish->headers[publish->header_count].key = line;
			publish->headers[publish->header_count++].value = colon + 1;
		}
		line = line_end + 2;
	}
}

bool
fake_nats_read(const natsConnection *connection, FakePublish *publish)
{
	FuzzInput	wire = {(const uint8_t *) connection->bytes, connection->length};
	char	   *words[MAX_WORDS];
	char	   *line_end;
	char	   *body;
	size_t		headers_len = 0;
	bool		with_headers;

	memset(publish, 0, sizeof(*publish));
	publish->copy = fuzz_take_bytes(&wire, connection->length);
	line_end = memmem(publish->copy, connection->length, "\r\n", 2);
	if (line_end == NULL)
		return false;
	*line_end = '\0';
	body = line_end + 2;
	publish->line_length = (size_t) (line_end - publish->copy);
	with_headers = publish->copy[0] == 'H';
	if (cut_line(publish->copy, words) != (with_headers ? 5 : 4) ||
		strcmp(words[0], with_headers ? "HPUB" : "PUB") != 0 ||
		!read_size(words[with_headers ? 4 : 3], &publish->total_length) ||
		(with_headers && !read_size(words[3], &headers_len)))
		return false;
	publish->subject = words[1];
	publish->reply = words[2];

	/* body, and nothing behind its end */
	if ((size_t) (publish->copy + connection->length - body) != publish->total_length + 2 ||
		memcmp(body + publish->total_length, "\r\n", 2) != 0)
		return false;
	publish->data = body + headers_len;
	publish->data_len = publish->total_length - headers_len;
	return !with_headers || read_headers(body, headers_len, publish);
}

void
fake_nats_free(FakePublish *publish)
{
	free(publish->headers);
	free(publish->copy);
}
