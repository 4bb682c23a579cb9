/*
 * envelope.h
 *	  What an event looks like to receivers: a message made of a row of the log.
 *
 * Plain C, shared by the relay, the replayer and the command outbox-replay: no
 * PostgreSQL, no NATS. Strings are UTF-8 and NUL-terminated; a payload of kind t
 * is UTF-8 for the structured mode only, else as it was enqueued.
 */
#ifndef OUTBOX_ENVELOPE_H
#define OUTBOX_ENVELOPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "broker.h"

/* payload_kind: what the caller of enqueue() gave. */
#define PAYLOAD_JSONB 'j'
#define PAYLOAD_TEXT 't'
#define PAYLOAD_BYTES 'x'

typedef struct OutboxUuid
{
	uint8_t		data[16];
} OutboxUuid;

/* A row of the log, or of an archive. */
typedef struct OutboxRow
{
	int64_t		position;
	OutboxUuid	event_id;
	int64_t		occurred_at;	/* microseconds since 1970 */
	int64_t		created_at;		/* the same */
	int64_t		not_before;		/* the same; 0: at once, or no time that a stream could be told */
	bool		has_version;
	int64_t		aggregate_version;
	char		payload_kind;
	const char *aggregate_type;
	const char *aggregate_id;
	const char *event_type;
	const char *subject;		/* NULL: from the template */
	const char *content_type;	/* NULL: from payload_kind */
	const char *dataschema;		/* NULL: none */
	char	   *headers;		/* NULL: none; else a JSON object of strings, which is written into while it is read */
	const char *payload;
	int			payload_len;
} OutboxRow;

/* How an event is packed for receivers: outbox.envelope. */
typedef enum OutboxEnvelopeMode
{
	OUTBOX_ENVELOPE_BINARY,		/* CloudEvents: attributes are headers */
	OUTBOX_ENVELOPE_STRUCTURED,	/* CloudEvents: one JSON object */
	OUTBOX_ENVELOPE_BARE /* the payload and the user's headers */
} OutboxEnvelopeMode;

/* What doesn't come from the row. */
typedef struct OutboxEnvelope
{
	OutboxEnvelopeMode mode;
	const char *stream;			/* Nats-Expected-Stream */
	const char *source;			/* ce-source */
	const char *subject_template;
	const char *schedule_prefix;	/* of the subjects of messages that a stream keeps until their time; NULL: it never does */
	const char *subject_prefix;	/* of a replay: put before the subject, with a dot; NULL: none */
	const char *replay_id;		/* x-replay-batch-id; NULL: this is no replay. A replay's messages have no time to live */
} OutboxEnvelope;

/*
 * A block of malloc'd memory: head bytes for the caller, all zero, then all that
 * the message consists of. *size is the block's. NULL: *error says why.
 */
extern void *outbox_envelope_make(const OutboxEnvelope *envelope, OutboxRow *row, size_t head, BrokerMessage *message,
								  size_t *size, const char **error);

/* The subject of an event, without a prefix; out has OUTBOX_SUBJECT_BUFFER bytes. NULL: too long. */
extern const char *outbox_envelope_subject(const OutboxEnvelope *envelope, const OutboxRow *row, char *out);

/* The mode of a name, as outbox.envelope has it; false: there is none. */
extern bool outbox_envelope_mode(const char *name, OutboxEnvelopeMode *mode);

/* The source of a database's events where none is set: a URI reference with its name. size: 9 bytes and three for each of the name's. */
extern void outbox_envelope_source(const char *database, char *out, size_t size);

#endif							/* OUTBOX_ENVELOPE_H */
