/*
 * message_fuzz.c
 *	  Any message whatever, checked or not, given to src/broker_message.c: it is
 *	  refused, or the server reads exactly this one message. No subject, header
 *	  or payload can add a protocol line or a header.
 *
 * Input: two bytes of max_payload, a byte with the number of headers and, in
 * its highest bits, whether there is a time to live and whether the stream takes it, that,
 * the subject, keys and values with NULs between, and the payload.
 */
#include <string.h>

#include "fake_nats.h"
#include "fuzz.h"
#include "reference.h"

#define MAX_HEADERS 5
#define LINE_LIMIT 4096			/* max_control_line of the server */

typedef struct Message
{
	BrokerMessage message;
	BrokerHeader headers[MAX_HEADERS];
	bool		takes_ttl;
} Message;

static void
take_message(FuzzInput *input, Message *message)
{
	int			byte = fuzz_take_byte(input);
	int			count = byte % (MAX_HEADERS + 1);
	size_t		length;

	message->takes_ttl = (byte & 0x80) != 0;
	message->message.ttl = (byte & 0x40) != 0 ? fuzz_take_text(input) : NULL;
	message->message.subject = fuzz_take_text(input);
	for (int i = 0; i < count; i++)
	{
		message->headers[i].key = fuzz_take_text(input);
		message->headers[i].value = fuzz_take_text(input);
	}
	message->message.headers = message->headers;
	message->message.header_count = count;
	length = input->left;
	message->message.data = fuzz_take_bytes(input, length);
	message->message.data_len = (int) length;
}

static void
free_message(Message *message)
{
	for (int i = 0; i < message->message.header_count; i++)
	{
		free((char *) message->headers[i].key);
		free((char *) message->headers[i].value);
	}
	free((char *) message->message.subject);
	free((char *) message->message.ttl);
	free((void *) message->message.data);
}

/* Whether read is value but for white space around it and line breaks that became spaces. */
static bool
same_value(const char *read, const char *value)
{
	char	   *plain = fuzz_copy(value);
	char	   *one;
	char	   *other;
	bool		same;

	for (char *c = plain; *c != '\0'; c++)
	{
		if (*c == '\r' || *c == '\n')
			*c = ' ';
	}
	one = reference_trim(read);
	other = reference_trim(plain);
	same = strcmp(one, other) == 0;
	free(one);
	free(other);
	free(plain);
	return same;
}

static void
check_published(const BrokerLink *link, const BrokerMessage *message, int64_t max_payload)
{
	FakePublish publish;

	property(fake_nats_read(link->nc, &publish));
	property(strcmp(publish.subject, message->subject) == 0);
	property(reference_publishable(message->subject));
	property(strcmp(publish.reply, link->reply_subject) == 0);
	property(publish.line_length <= LINE_LIMIT);
	property(publish.data_len == (size_t) message->data_len);
	property(memcmp(publish.data, message->data, publish.data_len) == 0);
	property(max_payload == 0 || publish.total_length <= (size_t) max_payload);
	for (int i = 0; i < message->header_count; i++)
	{
		const BrokerHeader *header = &message->headers[i];
		bool		found = false;

		for (int j = 0; j < publish.header_count; j++)
			found |= strcmp(publish.headers[j].key, header->key) == 0 && same_value(publish.headers[j].value, header->value);
		property(found);
	}
	if (message->ttl != NULL && link->takes_ttl)
	{
		const BrokerHeader *last = &publish.headers[publish.header_count - 1];

		property(publish.header_count == message->header_count + 1);
		property(strcmp(last->key, "Nats-TTL") == 0 && same_value(last->value, message->ttl));
	}
	else
		property(publish.header_count == message->header_count);
	fake_nats_free(&publish);
}

/* The server would have taken it: the relay must not refuse such a one. */
static bool
sendable(const BrokerMessage *message, bool takes_ttl, int64_t max_payload)
{
	bool		has_ttl = message->ttl != NULL && takes_ttl;
	size_t		size = (size_t) message->data_len + (message->header_count > 0 || has_ttl ? 12 : 0) +
		(has_ttl ? strlen("Nats-TTL: \r\n") + strlen(message->ttl) : 0);

	for (int i = 0; i < message->header_count; i++)
	{
		const char *key = message->headers[i].key;

		if (key[0] == '\0')
			return false;
		for (const char *c = key; *c != '\0'; c++)
		{
			if (*c <= ' ' || *c > '~' || *c == ':')
				return false;
		}
		size += strlen(key) + strlen(message->headers[i].value) + 4;
	}
	return reference_publishable(message->subject) && strlen(message->subject) < LINE_LIMIT - 256 &&
		(max_payload == 0 || size <= (size_t) max_payload);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	int64_t		max_payload = fuzz_take_byte(&input) * 256;
	natsConnection connection = {0};
	Message		message;
	BrokerLink *link;
	BrokerTrash trash = {0};
	BrokerPublishResult result;
	char		text[BROKER_TEXT_SIZE];

	max_payload += fuzz_take_byte(&input);
	take_message(&input, &message);
	link = fake_nats_link(&connection, NULL, max_payload);
	link->takes_ttl = message.takes_ttl;
	memset(text, 0x5a, sizeof(text));
	result = broker_message_publish(link, &trash, &message.message, 1, 2, text);
	property(result == BROKER_PUBLISH_OK || result == BROKER_PUBLISH_REFUSED);
	if (result == BROKER_PUBLISH_OK)
		check_published(link, &message.message, max_payload);
	else
	{
		property(connection.bytes == NULL);
		property(!sendable(&message.message, message.takes_ttl, max_payload));
		property(text[0] != '\0' && memchr(text, '\0', sizeof(text)) != NULL);
	}
	broker_trash_empty(&trash);
	fake_nats_link_free(link);
	free(connection.bytes);
	free_message(&message);
	return 0;
}
