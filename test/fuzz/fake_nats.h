/*
 * fake_nats.h
 *	  The part of libnats that broker_message.c, broker_reply.c and
 *	  broker_text.c call, without threads and sockets: what would go to the
 *	  server is kept in memory, in the bytes of the NATS protocol.
 */
#ifndef OUTBOX_FAKE_NATS_H
#define OUTBOX_FAKE_NATS_H

#include <stdbool.h>
#include <stddef.h>

#include "broker_internal.h"

/* A connection: what was written to it. */
struct __natsConnection
{
	char	   *bytes;
	size_t		length;
};

/* One HPUB or PUB as a server reads it. Points into its own copy. */
typedef struct FakePublish
{
	char	   *copy;
	char	   *subject;
	char	   *reply;
	BrokerHeader *headers;
	int			header_count;
	char	   *data;
	size_t		data_len;
	size_t		line_length;	/* of the protocol line, without its end */
	size_t		total_length;	/* what counts against max_payload */
} FakePublish;

/* False unless the bytes are one whole publish and nothing else. */
extern bool fake_nats_read(const natsConnection *connection, FakePublish *publish);
extern void fake_nats_free(FakePublish *publish);

/* A link as broker_message.c and broker_reply.c see it; 0: no max_payload. */
extern BrokerLink *fake_nats_link(natsConnection *connection, BrokerSettings *settings, int64_t max_payload);
extern void fake_nats_link_free(BrokerLink *link);

#endif							/* OUTBOX_FAKE_NATS_H */
