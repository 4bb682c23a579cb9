/*
 * header_fuzz.c
 *	  Headers given by the application: those that src/encode.c lets pass are
 *	  never refused by src/broker_message.c, and every receiver gets them
 *	  exactly as they were given, whatever it trims.
 *
 * Input: keys and values with NULs between.
 */
#include <string.h>
#include <strings.h>

#include "encode.h"
#include "fake_nats.h"
#include "fuzz.h"
#include "reference.h"

#define MAX_HEADERS 6

typedef struct Headers
{
	int			count;
	BrokerHeader header[MAX_HEADERS];
} Headers;

static bool
valid_key(const char *key)
{
	static const char token[] = "!#$%&'*+-.^_`|~0123456789"
								"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
	size_t		length = strlen(key);

	return length > 0 && length <= OUTBOX_MAX_HEADER_KEY && strspn(key, token) == length &&
		(strncasecmp(key, "nats-", 5) != 0 || strcmp(key, "Nats-TTL") == 0 || strcmp(key, "Nats-Schedule") == 0) && strncasecmp(key, "ce-", 3) != 0 && strcasecmp(key, "content-type") != 0;
}

/* Neither empty nor changed by any receiver. */
static bool
valid_value(const char *value)
{
	char	   *trimmed = reference_trim(value);
	bool		valid = value[0] != '\0' && strcmp(trimmed, value) == 0 && reference_utf8(value) &&
		strlen(value) <= OUTBOX_MAX_HEADER_VALUE;

	free(trimmed);
	for (; *value != '\0'; value++)
	{
		if ((unsigned char) *value < 0x20 || *value == 0x7f)
			return false;
	}
	return valid;
}

static bool
has_key(const Headers *headers, const char *key)
{
	bool		found = false;

	for (int i = 0; i < headers->count; i++)
	{
		bool		same = outbox_encode_same_header_key(headers->header[i].key, key);

		property(same == (strcasecmp(headers->header[i].key, key) == 0));
		found |= same;
	}
	return found;
}

/* As event_check.c: takes the header, or not. */
static void
add_header(Headers *headers, char *key, char *value)
{
	bool		key_passes = outbox_encode_check_header_key(key) == NULL;
	bool		value_passes = outbox_encode_check_header_value(value) == NULL;

	property(key_passes == valid_key(key));
	property(value_passes == valid_value(value));
	if (key_passes && value_passes && headers->count < MAX_HEADERS && !has_key(headers, key))
		headers->header[headers->count++] = (BrokerHeader) {key, value};
	else
	{
		free(key);
		free(value);
	}
}

static void
check_received(const natsConnection *connection, const Headers *headers)
{
	FakePublish publish;

	property(fake_nats_read(connection, &publish));
	property(publish.header_count == headers->count);
	for (int i = 0; i < headers->count; i++)
	{
		char	   *value = reference_trim(publish.headers[i].value);

		property(strcmp(publish.headers[i].key, headers->header[i].key) == 0);
		property(strcmp(value, headers->header[i].value) == 0);
		free(value);
	}
	fake_nats_free(&publish);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	Headers		headers = {0};
	natsConnection connection = {0};
	BrokerLink *link = fake_nats_link(&connection, NULL, 0);
	BrokerTrash trash = {0};
	BrokerMessage message = {.subject = "outbox.a", .headers = headers.header, .data = "", .data_len = 0};
	char		text[BROKER_TEXT_SIZE];

	while (input.left > 0)
	{
		char	   *key = fuzz_take_text(&input);
		char	   *value = fuzz_take_text(&input);

		add_header(&headers, key, value);
	}
	message.header_count = headers.count;
	property(broker_message_publish(link, &trash, &message, 0, 0, text) == BROKER_PUBLISH_OK);
	check_received(&connection, &headers);

	broker_trash_empty(&trash);
	fake_nats_link_free(link);
	free(connection.bytes);
	for (int i = 0; i < headers.count; i++)
	{
		free((char *) headers.header[i].key);
		free((char *) headers.header[i].value);
	}
	return 0;
}
