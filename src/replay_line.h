/*
 * replay_line.h
 *	  An event from a line of the archive: a JSON object, see docs/archive.md.
 *
 * Plain C.
 */
#ifndef OUTBOX_REPLAY_LINE_H
#define OUTBOX_REPLAY_LINE_H

#include "envelope.h"

/* Memory that a row needs beside its line; begin with all zero, free headers at the end. */
typedef struct OutboxLine
{
	char	   *headers;
	size_t		headers_size;
	bool		published;		/* false: a dead letter, or discarded */
} OutboxLine;

/*
 * Takes a line apart, which is spoilt by that; the row points into it. NULL, or
 * what is wrong with it.
 */
extern const char *outbox_replay_line_read(OutboxLine *line, char *text, size_t len, OutboxRow *row);

#endif							/* OUTBOX_REPLAY_LINE_H */
