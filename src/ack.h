/*
 * ack.h
 *	  Reads JetStream's reply to a publish. Pure: bytes in, struct out.
 */
#ifndef OUTBOX_ACK_H
#define OUTBOX_ACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* JetStream's own limit of a stream name is 255 bytes. */
#define ACK_STREAM_SIZE 256
#define ACK_DESCRIPTION_SIZE 200

typedef enum AckKind
{
	ACK_POSITIVE,				/* stream, sequence, duplicate, count are set */
	ACK_ERROR,					/* error_code, status, description are set */
	ACK_MALFORMED				/* no reply of JetStream to a publish */
} AckKind;

typedef struct AckReply
{
	AckKind		kind;
	bool		duplicate;
	uint64_t	sequence;
	uint64_t	count;			/* of the messages in a batch; 0: it is about one message */
	int			error_code;		/* JetStream's err_code (10077 ...), else its HTTP-like code, else 0 */
	int			status;			/* JetStream's HTTP-like code (503 ...), else 0 */
	char		stream[ACK_STREAM_SIZE];
	char		description[ACK_DESCRIPTION_SIZE];	/* printable ASCII, cut to size */
} AckReply;

/* Fills *reply completely enough to read the fields its kind announces. */
extern void ack_parse(const char *data, size_t len, AckReply *reply);

extern int ack_hex_value(char c);

#endif							/* OUTBOX_ACK_H */
