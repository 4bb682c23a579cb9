/*
 * event.h
 *	  A new event on its way into the log.
 */
#ifndef OUTBOX_EVENT_H
#define OUTBOX_EVENT_H

#include "postgres.h"

#include "lib/stringinfo.h"
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

	/* Filled in by outbox_append_event(). */
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
extern bytea *outbox_event_json_bytes(StringInfo body);
extern bytea *outbox_event_jsonb_bytes(Jsonb *json);

/* What of an event is locked, before it is made: its aggregate, and an event_id that the caller gave. */
typedef struct OutboxEventName
{
	const char *aggregate_type;	/* not terminated */
	int			aggregate_type_len;
	const char *aggregate_id;
	int			aggregate_id_len;
	const pg_uuid_t *event_id;	/* NULL: not given */
} OutboxEventName;

/* Fills in the name of event number index. */
typedef void (*OutboxNameEvent)(void *arg, int index, OutboxEventName *name);

/* append.c */
typedef struct OutboxAppend OutboxAppend;

extern OutboxAppend *outbox_append_begin(int count, OutboxNameEvent name_event, void *arg, OutboxOnConflict on_conflict);
extern void outbox_append_event(OutboxAppend *append, OutboxNewEvent *event);
extern void outbox_append_end(OutboxAppend *append);
extern void outbox_append_events(OutboxNewEvent *events, int count, OutboxOnConflict on_conflict);
extern uint64 outbox_append_hash(const char *aggregate_type, const char *aggregate_id);

#endif							/* OUTBOX_EVENT_H */
