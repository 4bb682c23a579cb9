/*
 * envelope.h
 *	  An event as the relay holds it in memory: ready to be sent.
 */
#ifndef OUTBOX_ENVELOPE_H
#define OUTBOX_ENVELOPE_H

#include "postgres.h"

#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "broker.h"
#include "schedule.h"

/* One malloc'd block: this, the headers, the strings, the payload. */
typedef struct OutboxEvent
{
	SchedEvent	schedule;		/* first: the scheduler owns and frees the block */
	int			home;			/* in the log, whose ledger twin records it: ring.h */
	int			claim;			/* index in OutboxDatabase.claimed while in flight */
	uint64		agg_hash;		/* of type and id; the schedule's key may be another */
	int			attempts;		/* that counted, so far */
	bool		has_delivery;	/* outbox.delivery has a row of it */
	bool		alone;			/* not in a batch: it was in one that failed */
	int			run;			/* in flight as the first of so many that have one outcome; 0: by itself */
	int64		committed_at;	/* by the relay's clock; 0: not known */
	const char *event_id;		/* these in text, within the block */
	const char *aggregate_type;	/* these three in the server's encoding */
	const char *aggregate_id;
	const char *event_type;
	const char *broken;			/* why the row can't be read; there is no message then */
	BrokerMessage message;
} OutboxEvent;

/* A row of the log, as read. Strings are NUL-terminated, in the server's encoding. */
typedef struct OutboxRow
{
	int			home;
	int64		position;
	uint64		agg_hash;
	pg_uuid_t	event_id;
	TimestampTz occurred_at;
	TimestampTz created_at;
	TimestampTz not_before;		/* 0: none */
	bool		has_version;
	int64		aggregate_version;
	int			priority;
	char		payload_kind;
	const char *aggregate_type;
	const char *aggregate_id;
	const char *event_type;
	const char *subject;		/* NULL: from the template */
	const char *content_type;	/* NULL: from payload_kind */
	const char *dataschema;		/* NULL: none */
	const char *headers;		/* NULL: none; else a JSON object of strings */
	const char *payload;
	int			payload_len;
} OutboxRow;

extern OutboxEvent *outbox_envelope_build(const OutboxRow *row);
extern OutboxEvent *outbox_envelope_broken(int home, int64 position, uint64 agg_hash, const char *why);

#endif							/* OUTBOX_ENVELOPE_H */
