/*
 * buffer.h
 *	  A text that grows with malloc, and what is written into one.
 */
#ifndef OUTBOX_BUFFER_H
#define OUTBOX_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Starts as zeros; whoever has it frees data. */
typedef struct OutboxBuffer
{
	char	   *data;
	size_t		length;
	size_t		size;
	bool		no_memory;		/* something is missing in it */
} OutboxBuffer;

extern char *outbox_buffer_grow(OutboxBuffer *buffer, size_t more);
extern void outbox_buffer_put(OutboxBuffer *buffer, const char *text, size_t length);
extern void outbox_buffer_put_text(OutboxBuffer *buffer, const char *text);
extern void outbox_buffer_put_integer(OutboxBuffer *buffer, int64_t value);
extern void outbox_buffer_put_escaped(OutboxBuffer *buffer, const char *text, size_t length, const char (*escape)[8]);
extern void outbox_buffer_put_json(OutboxBuffer *buffer, const char *text, size_t length);
extern void outbox_buffer_put_base64(OutboxBuffer *buffer, const char *bytes, size_t length);

#endif /* OUTBOX_BUFFER_H */
