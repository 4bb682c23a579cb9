/*
 * event.h
 *	  A new event on its way into the log.
 */
#ifndef OUTBOX_EVENT_H
#define OUTBOX_EVENT_H

#include "postgres.h"

#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

typedef struct OutboxNewEvent
{
	/* Given by the caller; NULL (or a flag) where it may be left out. */
	const char *aggregate_type;
	const char *aggregate_id;
	const char *event_type;
	bytea	   *payload;
	char		payload_kind;	/* PAYLOAD_* of log.h */
	Jsonb	   *headers;
	const char *subject;
	bool		event_id_given;
	pg_uuid_t	event_id;
	bool		occurred_at_given;
	TimestampTz occurred_at;
	bool		not_before_given;
	TimestampTz not_before;
	int			priority;
	const char *content_type;
	const char *dataschema;
	bool		aggregate_version_given;
	int64		aggregate_version;

	/* Filled in by outbox_event_check(). */
	char	   *headers_text;	/* NULL: none */

	/* Filled in by outbox_log_append(). */
	uint64		agg_hash;
	int64		follows;		/* position of the transaction's event before it in its aggregate, 0: none */
	int64		position;		/* 0: the event_id existed, nothing was added */
	TimestampTz created_at;
} OutboxNewEvent;

typedef enum OutboxOnConflict
{
	OUTBOX_CONFLICT_ERROR,
	OUTBOX_CONFLICT_RETURN		/* return the first event's id, add nothing */
} OutboxOnConflict;

#define OUTBOX_MIN_PRIORITY (-100)
#define OUTBOX_MAX_PRIORITY 100

/* Microseconds since 1970 of a timestamp, whose own epoch is 2000. */
static inline int64
outbox_unix_us(TimestampTz t)
{
	return t + (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
}

/* event_check.c */
extern void outbox_event_check(OutboxNewEvent *event);
extern const char *outbox_event_utf8(const char *text);

/* append.c */
extern void outbox_log_append(OutboxNewEvent *events, int count, OutboxOnConflict on_conflict);

#endif							/* OUTBOX_EVENT_H */
