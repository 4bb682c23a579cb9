/*
 * error_class.h
 *	  What a failure to publish says about the event, the stream or the broker.
 *
 * Pure logic like schedule.h.
 */
#ifndef OUTBOX_ERROR_CLASS_H
#define OUTBOX_ERROR_CLASS_H

#include "broker.h"

/* docs/delivery.md has the same table in words. */
typedef enum OutboxErrorClass
{
	OUTBOX_ERROR_NONE,			/* acknowledged */
	OUTBOX_ERROR_UNKNOWN,		/* no answer that counts: stored or not, nobody knows */
	OUTBOX_ERROR_BROKER,		/* the broker as a whole can't take anything now */
	OUTBOX_ERROR_STREAM,		/* the stream, or this subject, can't take anything now */
	OUTBOX_ERROR_TRANSIENT,		/* this event was refused, perhaps not for ever */
	OUTBOX_ERROR_PERMANENT /* this event can never pass as it is */
} OutboxErrorClass;

#define OUTBOX_ERROR_CLASSES (OUTBOX_ERROR_PERMANENT + 1)

/*
 * The class of an outcome. code is JetStream's err_code (0: the client itself
 * refused the message), status the HTTP-like code beside it (0: none).
 */
extern OutboxErrorClass outbox_error_class(BrokerOutcomeKind kind, int code, int status);

/* For metrics: "unknown", "broker", ... */
extern const char *outbox_error_class_name(OutboxErrorClass class);

/* Who says so, for texts: "JetStream", "NATS client", ... */
extern const char *outbox_error_source(BrokerOutcomeKind kind, int code);

#endif /* OUTBOX_ERROR_CLASS_H */
