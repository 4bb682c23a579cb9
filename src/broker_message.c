/*
 * broker_message.c
 *	  Checks a message and hands it to the connection. The checks are here
 *	  because the library writes subjects and header names into its protocol as
 *	  they are: a space or line break in one would end the connection, or worse.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker_internal.h"

/* The server's limit for a protocol line, less the verb and the sizes in it. */
#define MAX_SUBJECT_LEN (4096 - 48 - BROKER_REPLY_SUBJECT_SIZE)

/* Those for a message's place in a batch, its schedule, and its time to live. */
#define ADDED_HEADERS 6

/* Headers of up to so many bytes are put together on the stack. */
#define PACKED_SIZE 2048

/* While a large batch is handed over, so many messages at a time go out. */
#define BATCH_FLUSH 100

/* JetStream's headers behind the message's own: what depends on the stream and the batch. */
typedef struct AddedHeaders
{
	BrokerHeader list[ADDED_HEADERS];
	int			count;
	char		sequence[16];
} AddedHeaders;

static const AddedHeaders none_added;

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

static size_t
headers_size(const BrokerHeader *headers, int count)
{
	size_t		size = 0;

	for (int i = 0; i < count; i++)
		size += strlen(headers[i].key) + strlen(headers[i].value) + strlen(": \r\n");
	return size;
}

/* What the server counts against its max_payload. */
static int64_t
wire_size(const BrokerMessage *message, const AddedHeaders *added)
{
	size_t		size = (size_t) message->data_len;

	if (message->header_count + added->count > 0)
		size += strlen("NATS/1.0\r\n\r\n");
	size += headers_size(message->headers, message->header_count) + headers_size(added->list, added->count);
	return (int64_t) size;
}

static bool
is_scheduled(const BrokerLink *link, const BrokerMessage *message)
{
	return message->schedule != NULL && link->takes_schedules;
}

/* Where the message goes at first. */
const char *
broker_message_subject(const BrokerLink *link, const BrokerMessage *message)
{
	return is_scheduled(link, message) ? message->schedule_subject : message->subject;
}

/* False, and error_text says why, if the message can't be sent as it is. */
static bool
check_message(const BrokerLink *link, const BrokerMessage *message, int64_t size, char *error_text)
{
	int64_t		max_payload = atomic_load(&link->max_payload);
	const char *subject = broker_message_subject(link, message);

	if (!broker_subject_valid(subject) || !broker_subject_valid(message->subject))
	{
		broker_text(error_text, "\"%.200s\" is no subject one can publish to", subject);
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

static const BrokerHeader *
header_at(const BrokerMessage *message, const AddedHeaders *added, int i)
{
	return i < message->header_count ? &message->headers[i] : &added->list[i - message->header_count];
}

static natsStatus
set_one_by_one(natsMsg *msg, const BrokerMessage *message, const AddedHeaders *added)
{
	natsStatus	status = NATS_OK;

	for (int i = 0; status == NATS_OK && i < message->header_count + added->count; i++)
		status = natsMsgHeader_Set(msg, header_at(message, added, i)->key, header_at(message, added, i)->value);
	return status;
}

static char *
append(char *at, const char *text)
{
	size_t		len = strlen(text);

	memcpy(at, text, len);
	return at + len;
}

/* As with the library: a line break in a value is a space. */
static void
join_lines(char *value, const char *end, char line_break)
{
	for (char *c = value; (c = memchr(c, line_break, (size_t) (end - c))) != NULL; c++)
		*c = ' ';
}

static char *
append_header(char *at, const BrokerHeader *header)
{
	char	   *value = append(append(at, header->key), ": ");
	char	   *end = append(value, header->value);

	join_lines(value, end, '\r');
	join_lines(value, end, '\n');
	return append(end, "\r\n");
}

/* size: at least that of all headers. */
static natsStatus
set_at_once(natsMsg *msg, const BrokerMessage *message, const AddedHeaders *added, int64_t size)
{
	int			last = message->header_count + added->count - 1;
	char		local[PACKED_SIZE];
	char	   *block = size <= PACKED_SIZE ? local : malloc((size_t) size);
	char	   *at = block;
	natsStatus	status;

	if (block == NULL)
		return NATS_NO_MEMORY;
	for (int i = 0; i < last; i++)
		at = append_header(at, header_at(message, added, i));
	*append(at, header_at(message, added, last)->key) = '\0';
	status = natsMsgHeader_Set(msg, block, header_at(message, added, last)->value);
	if (block != local)
		free(block);
	return status;
}

/*
 * The headers before the last are a part of the last one's name, which the
 * library writes as it is: so it makes an entry of its table for one of them and
 * not for each. A library that nobody has tried that with gets each by itself.
 */
static natsStatus
set_headers(natsMsg *msg, const BrokerMessage *message, const AddedHeaders *added, int64_t size)
{
	if (message->header_count + added->count == 0)
		return NATS_OK;
	if (nats_GetVersionNumber() > BROKER_PACKS_HEADERS_UP_TO)
		return set_one_by_one(msg, message, added);
	return set_at_once(msg, message, added, size);
}

/* size: as of wire_size(). */
static natsStatus
make_message(const BrokerMessage *message, const char *subject, const AddedHeaders *added, int64_t size, const char *reply_subject,
			 natsMsg **msg)
{
	natsStatus	status;

	status = natsMsg_Create(msg, subject, reply_subject, message->data, message->data_len);
	if (status == NATS_OK)
		status = set_headers(*msg, message, added, size - message->data_len);
	if (status != NATS_OK)
	{
		natsMsg_Destroy(*msg);
		*msg = NULL;
	}
	return status;
}

/* Appends a checked message of that size to the connection's buffer or the pump's queue. */
static BrokerPublishResult
hand_over(BrokerLink *link, BrokerTrash *trash, const BrokerMessage *message, const AddedHeaders *added, int64_t size,
		  const char *reply_subject, uint32_t slot, uint32_t generation, char *error_text)
{
	natsMsg    *msg = NULL;
	natsStatus	status = make_message(message, broker_message_subject(link, message), added, size, reply_subject, &msg);

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

/* A stream that doesn't take them would refuse the message. What is scheduled begins to live at its time. */
static void
begin_added(AddedHeaders *added, const BrokerLink *link, const BrokerMessage *message)
{
	bool		scheduled = is_scheduled(link, message);

	added->count = 0;
	if (scheduled)
	{
		added->list[added->count++] = (BrokerHeader) {"Nats-Schedule", message->schedule};
		added->list[added->count++] = (BrokerHeader) {"Nats-Schedule-Target", message->subject};
	}
	if (message->ttl != NULL && link->takes_ttl)
		added->list[added->count++] = (BrokerHeader) {scheduled ? "Nats-Schedule-TTL" : "Nats-TTL", message->ttl};
}

/* Main thread. */
BrokerPublishResult
broker_message_publish(BrokerLink *link, BrokerTrash *trash, const BrokerMessage *message,
					   uint32_t slot, uint32_t generation, char *error_text)
{
	AddedHeaders added;
	int64_t		size;

	if (atomic_load(&link->dead))
		return BROKER_PUBLISH_OFFLINE;
	begin_added(&added, link, message);
	size = wire_size(message, &added);
	if (!check_message(link, message, size, error_text))
		return BROKER_PUBLISH_REFUSED;
	/* The library moves all that is left with every partial write. */
	if (atomic_load(&link->unsent_bytes) > BROKER_MAX_UNSENT)
		return BROKER_PUBLISH_FULL;
	broker_token_write(link->reply_subject + link->prefix_len, slot, generation);
	return hand_over(link, trash, message, &added, size, link->reply_subject, slot, generation, error_text);
}

/* A batch's id is what makes its reply subject unique: the inbox's own name, and the token. */
static const char *
batch_id(const BrokerLink *link)
{
	const char *id = link->reply_subject + link->prefix_len - 1;

	while (id > link->reply_subject && id[-1] != '.')
		id--;
	return id;
}

static void
add_batch_headers(AddedHeaders *added, const char *id, int sequence, bool last)
{
	snprintf(added->sequence, sizeof(added->sequence), "%d", sequence);
	added->list[added->count++] = (BrokerHeader) {"Nats-Batch-Id", id};
	added->list[added->count++] = (BrokerHeader) {"Nats-Batch-Sequence", added->sequence};
	if (last)
		added->list[added->count++] = (BrokerHeader) {"Nats-Batch-Commit", "1"};
}

/*
 * Main thread. Only the last message has a reply subject: whatever becomes of
 * one before it, the server then refuses the last. If not all get into the
 * buffer, the last doesn't either, and the server forgets the others.
 */
BrokerPublishResult
broker_message_publish_batch(BrokerLink *link, BrokerTrash *trash, const BrokerMessage *const *messages, int count,
							 uint32_t slot, uint32_t generation, char *error_text)
{
	BrokerPublishResult result = BROKER_PUBLISH_OK;
	AddedHeaders added;

	if (atomic_load(&link->dead))
		return BROKER_PUBLISH_OFFLINE;
	broker_token_write(link->reply_subject + link->prefix_len, slot, generation);
	for (int i = 0; i < count; i++)
	{
		begin_added(&added, link, messages[i]);
		add_batch_headers(&added, batch_id(link), i + 1, i == count - 1);
		if (!check_message(link, messages[i], wire_size(messages[i], &added), error_text))
			return BROKER_PUBLISH_REFUSED;
	}
	if (atomic_load(&link->unsent_bytes) > BROKER_MAX_UNSENT)
		return BROKER_PUBLISH_FULL;
	for (int i = 0; i < count && result == BROKER_PUBLISH_OK; i++)
	{
		bool		last = i == count - 1;

		begin_added(&added, link, messages[i]);
		add_batch_headers(&added, batch_id(link), i + 1, last);
		result = hand_over(link, trash, messages[i], &added, wire_size(messages[i], &added),
						   last ? link->reply_subject : NULL, slot, generation, error_text);
		/* The server stages the first while the next are made. */
		if (i % BATCH_FLUSH == BATCH_FLUSH - 1)
			broker_link_flush(link);
	}
	return result;
}

/* Main thread. Sends without a reply subject, or drops. */
void
broker_message_announce(BrokerLink *link, BrokerTrash *trash, const BrokerMessage *message)
{
	int64_t		size = wire_size(message, &none_added);
	char		unused[BROKER_TEXT_SIZE];
	natsMsg    *msg = NULL;

	if (atomic_load(&link->dead) || !check_message(link, message, size, unused) ||
		atomic_load(&link->unsent_bytes) > BROKER_MAX_UNSENT ||
		make_message(message, message->subject, &none_added, size, NULL, &msg) != NATS_OK)
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
