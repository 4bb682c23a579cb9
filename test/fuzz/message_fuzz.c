/*
 * message_fuzz.c
 *	  Any message whatever, checked or not, given to src/broker_message.c: it is
 *	  refused, or the server reads exactly this one message. No subject, header
 *	  or payload can add a protocol line or a header.
 *
 * Input: two bytes of max_payload, a byte with the number of headers and, in
 * its highest bits, whether there is a time to live and a schedule and whether the stream takes them;
 * these, the subject, keys and values with NULs between, and the payload.
 */
#include <string.h>

#include "fake_nats.h"
#include "fuzz.h"
#include "reference.h"

#define MAX_HEADERS 5
#define MAX_ADDED 3
#define LINE_LIMIT 4096			/* max_control_line of the server */

typedef struct Message
{
	BrokerMessage message;
	BrokerHeader headers[MAX_HEADERS];
	bool		takes_ttl;
	bool		takes_schedules;
} Message;

static void
take_message(FuzzInput *input, Message *message)
{
	int			byte = fuzz_take_byte(input);
	int			count = byte % (MAX_HEADERS + 1);
	size_t		length;

	message->takes_ttl = (byte & 0x80) != 0;
	message->takes_schedules = (byte & 0x20) != 0;
	message->message.ttl = (byte & 0x40) != 0 ? fuzz_take_text(input) : NULL;
	message->message.schedule = (byte & 0x10) != 0 ? fuzz_take_text(input) : NULL;
	message->message.schedule_subject = (byte & 0x10) != 0 ? fuzz_take_text(input) : NULL;
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
	free((char *) message->message.schedule);
	free((char *) message->message.schedule_subject);
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

static const char *
subject_of(const Message *message)
{
	return message->message.schedule != NULL && message->takes_schedules ? message->message.schedule_subject : message->message.subject;
}

/* The headers behind the message's own. */
static int
added_headers(const Message *message, BrokerHeader *added)
{
	bool		scheduled = message->message.schedule != NULL && message->takes_schedules;
	int			count = 0;

	if (scheduled)
	{
		added[count++] = (BrokerHeader) {"Nats-Schedule", message->message.schedule};
		added[count++] = (BrokerHeader) {"Nats-Schedule-Target", message->message.subject};
	}
	if (message->message.ttl != NULL && message->takes_ttl)
		added[count++] = (BrokerHeader) {scheduled ? "Nats-Schedule-TTL" : "Nats-TTL", message->message.ttl};
	return count;
}

static void
check_published(const BrokerLink *link, const Message *fuzzed, int64_t max_payload)
{
	const BrokerMessage *message = &fuzzed->message;
	FakePublish publish;
	BrokerHeader added[MAX_ADDED];
	int			added_count = added_headers(fuzzed, added);

	property(fake_nats_read(link->nc, &publish));
	property(strcmp(publish.subject, subject_of(fuzzed)) == 0);
	property(reference_publishable(publish.subject));
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
	property(publish.header_count == message->header_count + added_count);
	for (int i = 0; i < added_count; i++)
	{
		const BrokerHeader *read = &publish.headers[message->header_count + i];

		property(strcmp(read->key, added[i].key) == 0 && same_value(read->value, added[i].value));
	}
	fake_nats_free(&publish);
}

/* The server would have taken it: the relay must not refuse such a one. */
static bool
sendable(const Message *fuzzed, int64_t max_payload)
{
	const BrokerMessage *message = &fuzzed->message;
	BrokerHeader added[MAX_ADDED];
	int			added_count = added_headers(fuzzed, added);
	size_t		size = (size_t) message->data_len + (message->header_count + added_count > 0 ? 12 : 0);

	for (int i = 0; i < added_count; i++)
		size += strlen(added[i].key) + strlen(added[i].value) + 4;
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
		reference_publishable(subject_of(fuzzed)) && strlen(subject_of(fuzzed)) < LINE_LIMIT - 256 &&
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
	link->takes_schedules = message.takes_schedules;
	memset(text, 0x5a, sizeof(text));
	result = broker_message_publish(link, &trash, &message.message, 1, 2, text);
	property(result == BROKER_PUBLISH_OK || result == BROKER_PUBLISH_REFUSED);
	if (result == BROKER_PUBLISH_OK)
		check_published(link, &message, max_payload);
	else
	{
		property(connection.bytes == NULL);
		property(!sendable(&message, max_payload));
		property(text[0] != '\0' && memchr(text, '\0', sizeof(text)) != NULL);
	}
	broker_trash_empty(&trash);
	fake_nats_link_free(link);
	free(connection.bytes);
	free_message(&message);
	return 0;
}
