/*
 * broker_message.c
 *	  Checks a message and hands it to the connection. The checks are here
 *	  because the library writes subjects and header names into its protocol as
 *	  they are: a space or line break in one would end the connection, or worse.
 */
#include <string.h>

#include "broker_internal.h"

/* The server's limit for a protocol line, less the verb and the sizes in it. */
#define MAX_SUBJECT_LEN (4096 - 48 - BROKER_REPLY_SUBJECT_SIZE)

static bool
valid_token(const char *token, size_t len)
{
	return len > 0 && !(len == 1 && (token[0] == '*' || token[0] == '>'));
}

/* Tokens of visible characters with dots between them, no wildcard. */
bool
broker_subject_valid(const char *subject)
{
	const char *token = subject;
	const char *c;

	for (c = subject; *c != '\0'; c++)
	{
		if ((unsigned char) *c <= ' ' || *c == 0x7f)
			return false;
		if (*c != '.')
			continue;
		if (!valid_token(token, (size_t) (c - token)))
			return false;
		token = c + 1;
	}
	return valid_token(token, (size_t) (c - token)) && c - subject <= MAX_SUBJECT_LEN;
}

static bool
valid_header_key(const char *key)
{
	const char *c;

	for (c = key; *c != '\0'; c++)
	{
		if (*c <= ' ' || *c > '~' || *c == ':')
			return false;
	}
	return c != key;
}

/* What the server counts against its max_payload. */
static int64_t
wire_size(const BrokerMessage *message)
{
	size_t		size = (size_t) message->data_len;

	if (message->header_count > 0)
		size += strlen("NATS/1.0\r\n\r\n");
	for (int i = 0; i < message->header_count; i++)
		size += strlen(message->headers[i].key) + strlen(message->headers[i].value) + strlen(": \r\n");
	return (int64_t) size;
}

/* False, and error_text says why, if the message can't be sent as it is. */
static bool
check_message(const BrokerLink *link, const BrokerMessage *message, int64_t size, char *error_text)
{
	int64_t		max_payload = atomic_load(&link->max_payload);

	if (!broker_subject_valid(message->subject))
	{
		broker_text(error_text, "\"%.200s\" is no subject one can publish to", message->subject);
		return false;
	}
	for (int i = 0; i < message->header_count; i++)
	{
		if (!valid_header_key(message->headers[i].key))
		{
			broker_text(error_text, "\"%.200s\" is no header name", message->headers[i].key);
			return false;
		}
	}
	if (max_payload > 0 && size > max_payload)
	{
		broker_text(error_text, "%lld bytes with headers are over the server's max_payload of %lld",
					(long long) size, (long long) max_payload);
		return false;
	}
	return true;
}

static natsStatus
make_message(const BrokerMessage *message, const char *reply_subject, natsMsg **msg)
{
	natsStatus	status;

	status = natsMsg_Create(msg, message->subject, reply_subject, message->data, message->data_len);
	for (int i = 0; status == NATS_OK && i < message->header_count; i++)
		status = natsMsgHeader_Set(*msg, message->headers[i].key, message->headers[i].value);
	if (status != NATS_OK)
	{
		natsMsg_Destroy(*msg);
		*msg = NULL;
	}
	return status;
}

/* Main thread. Appends the message to the connection's buffer or the pump's queue. */
BrokerPublishResult
broker_message_publish(BrokerLink *link, BrokerTrash *trash, const BrokerMessage *message,
					   uint32_t slot, uint32_t generation, char *error_text)
{
	int64_t		size = wire_size(message);
	natsMsg    *msg = NULL;
	natsStatus	status;

	if (atomic_load(&link->dead))
		return BROKER_PUBLISH_OFFLINE;
	if (!check_message(link, message, size, error_text))
		return BROKER_PUBLISH_REFUSED;
	/* The library moves all that is left with every partial write. */
	if (atomic_load(&link->unsent_bytes) > BROKER_MAX_UNSENT)
		return BROKER_PUBLISH_FULL;
	broker_token_write(link->reply_subject + link->prefix_len, slot, generation);
	status = make_message(message, link->reply_subject, &msg);
	if (status == NATS_OK && link->pumped)
		return broker_pump_publish(link, msg, size, slot, generation);
	if (status == NATS_OK)
		status = natsConnection_PublishMsg(link->nc, msg);
	broker_trash_add(trash, msg);
	if (status == NATS_OK)
	{
		atomic_fetch_add(&link->unsent_bytes, size);
		return BROKER_PUBLISH_OK;
	}

	if (status == NATS_CONNECTION_CLOSED || status == NATS_NO_MEMORY)
		return BROKER_PUBLISH_OFFLINE;
	broker_text(error_text, "%s", broker_nats_error(status));
	return BROKER_PUBLISH_REFUSED;
}

/* Main thread. Sends without a reply subject, or drops. */
void
broker_message_announce(BrokerLink *link, BrokerTrash *trash, const BrokerMessage *message)
{
	int64_t		size = wire_size(message);
	char		unused[BROKER_TEXT_SIZE];
	natsMsg    *msg = NULL;

	if (atomic_load(&link->dead) || !check_message(link, message, size, unused) ||
		atomic_load(&link->unsent_bytes) > BROKER_MAX_UNSENT ||
		make_message(message, NULL, &msg) != NATS_OK)
		return;
	/* No slot has this number: what the pump may have to tell is nobody's. */
	if (link->pumped)
		broker_pump_publish(link, msg, size, UINT32_MAX, 0);
	else
	{
		if (natsConnection_PublishMsg(link->nc, msg) == NATS_OK)
			atomic_fetch_add(&link->unsent_bytes, size);
		broker_trash_add(trash, msg);
	}
}
