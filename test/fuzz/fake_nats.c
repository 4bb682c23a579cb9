/*
 * fake_nats.c
 *	  libnats without threads and sockets, as far as the targets need it.
 *
 * Like the real one it writes subjects and header keys as they are, and turns
 * line breaks in header values into spaces: a caller who doesn't check them
 * is found out by fake_nats_read().
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "fake_nats.h"
#include "fuzz.h"

#define MAX_HEADERS 16

struct __natsMsg
{
	char	   *subject;
	char	   *reply;
	char	   *data;
	int			data_len;
	int			header_count;
	char	   *keys[MAX_HEADERS];
	char	   *values[MAX_HEADERS];
};

natsStatus
natsMsg_Create(natsMsg **msg, const char *subject, const char *reply, const char *data, int data_len)
{
	FuzzInput	payload = {(const uint8_t *) data, (size_t) data_len};

	*msg = calloc(1, sizeof(natsMsg));
	(*msg)->subject = fuzz_copy(subject);
	(*msg)->reply = fuzz_copy(reply == NULL ? "" : reply);
	(*msg)->data = fuzz_take_bytes(&payload, (size_t) data_len);
	(*msg)->data_len = data_len;
	return NATS_OK;
}

/* Replaces a header with the very same key. */
natsStatus
natsMsgHeader_Set(natsMsg *msg, const char *key, const char *value)
{
	int			i = 0;

	while (i < msg->header_count && strcmp(msg->keys[i], key) != 0)
		i++;
	if (i == MAX_HEADERS)
		return NATS_NO_MEMORY;
	if (i == msg->header_count)
	{
		msg->keys[i] = fuzz_copy(key);
		msg->header_count++;
	}
	else
		free(msg->values[i]);
	msg->values[i] = fuzz_copy(value);
	return NATS_OK;
}

void
natsMsg_Destroy(natsMsg *msg)
{
	if (msg == NULL)
		return;
	for (int i = 0; i < msg->header_count; i++)
	{
		free(msg->keys[i]);
		free(msg->values[i]);
	}
	free(msg->subject);
	free(msg->reply);
	free(msg->data);
	free(msg);
}

const char *
natsMsg_GetSubject(const natsMsg *msg)
{
	return msg->subject;
}

const char *
natsMsg_GetData(const natsMsg *msg)
{
	return msg->data;
}

int
natsMsg_GetDataLength(const natsMsg *msg)
{
	return msg->data_len;
}

/* As in libnats: no data, and a status that begins with 503. */
bool
natsMsg_IsNoResponders(natsMsg *msg)
{
	for (int i = 0; i < msg->header_count; i++)
	{
		if (strcmp(msg->keys[i], "Status") == 0)
			return msg->data_len == 0 && strncmp(msg->values[i], "503", 3) == 0;
	}
	return false;
}

/* One that takes all headers at once. */
uint32_t
nats_GetVersionNumber(void)
{
	return BROKER_PACKS_HEADERS_UP_TO;
}

const char *
nats_GetLastError(natsStatus *status)
{
	*status = NATS_OK;
	return NULL;
}

const char *
natsStatus_GetText(natsStatus status)
{
	return status == NATS_OK ? "OK" : "Error";
}

natsStatus
natsConnection_PublishMsg(natsConnection *connection, natsMsg *msg)
{
	FILE	   *out;
	char	   *headers;
	size_t		headers_len;

	property(connection->bytes == NULL);
	out = open_memstream(&headers, &headers_len);
	fputs("NATS/1.0\r\n", out);
	for (int i = 0; i < msg->header_count; i++)
	{
		fprintf(out, "%s: ", msg->keys[i]);
		for (const char *c = msg->values[i]; *c != '\0'; c++)
			fputc(*c == '\r' || *c == '\n' ? ' ' : *c, out);
		fputs("\r\n", out);
	}
	fputs("\r\n", out);
	fclose(out);

	if (msg->header_count == 0)
		headers_len = 0;
	out = open_memstream(&connection->bytes, &connection->length);
	if (headers_len > 0)
		fprintf(out, "HPUB %s %s %zu %zu\r\n", msg->subject, msg->reply, headers_len,
				headers_len + (size_t) msg->data_len);
	else
		fprintf(out, "PUB %s %s %d\r\n", msg->subject, msg->reply, msg->data_len);
	fwrite(headers, 1, headers_len, out);
	fwrite(msg->data, 1, (size_t) msg->data_len, out);
	fputs("\r\n", out);
	fclose(out);
	free(headers);
	return NATS_OK;
}

/* No target has a pumped link. */
BrokerPublishResult
broker_pump_publish(BrokerLink *link, natsMsg *msg, int64_t bytes, uint32_t slot, uint32_t generation)
{
	(void) link, (void) msg, (void) bytes, (void) slot, (void) generation;
	abort();
}

/* What is published is recorded at once. */
void
broker_link_flush(BrokerLink *link)
{
	(void) link;
}

BrokerLink *
fake_nats_link(natsConnection *connection, BrokerSettings *settings, int64_t max_payload)
{
	BrokerLink *link = calloc(1, sizeof(BrokerLink));

	link->settings = settings;
	link->nc = connection;
	link->max_payload = max_payload;
	strcpy(link->reply_subject, "_INBOX.fuzz.");
	link->prefix_len = (int) strlen(link->reply_subject);
	pthread_mutex_init(&link->gate, NULL);
	return link;
}

void
fake_nats_link_free(BrokerLink *link)
{
	pthread_mutex_destroy(&link->gate);
	free(link->replies);
	free(link);
}
