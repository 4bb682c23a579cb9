/*
 * remedy.h
 *	  What to do about a relay's trouble with the broker, as a hint.
 *
 * Pure logic: neither PostgreSQL nor NATS.
 */
#ifndef OUTBOX_REMEDY_H
#define OUTBOX_REMEDY_H

/* What is wrong: nobody lets us in, or the stream can't be used. */
typedef enum OutboxTrouble
{
	OUTBOX_TROUBLE_CONNECTION,
	OUTBOX_TROUBLE_STREAM,
} OutboxTrouble;

/* One or two sentences and the place in docs/failures.md, chosen by the words of the trouble. Never NULL. */
extern const char *outbox_remedy(OutboxTrouble trouble, const char *words);

#endif /* OUTBOX_REMEDY_H */
