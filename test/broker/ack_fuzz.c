/*
 * ack_fuzz.c
 *	  libFuzzer entry for the parser of JetStream's replies. Besides memory errors
 *	  it looks for a reply that breaks what ack.h promises.
 */
#define _POSIX_C_SOURCE 200809L

#include <stdlib.h>
#include <string.h>

#include "ack.h"

extern int	LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check_text(const char *text, size_t size)
{
	size_t		len = strnlen(text, size);

	if (len == size)
		abort();
	for (size_t i = 0; i < len; i++)
	{
		if (text[i] < 0x20 || text[i] > 0x7e)
			abort();
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	AckReply	reply;

	memset(&reply, 0x5a, sizeof(reply));
	ack_parse((const char *) data, size, &reply);
	if (reply.kind == ACK_MALFORMED)
		return 0;
	check_text(reply.stream, sizeof(reply.stream));
	check_text(reply.description, sizeof(reply.description));
	if (reply.kind == ACK_POSITIVE && reply.stream[0] == '\0')
		abort();
	if (reply.error_code < 0 || reply.status < 0)
		abort();
	return 0;
}
