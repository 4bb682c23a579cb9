/*
 * held.c
 *	  An event as the relay holds it in memory: a row of the log with its message.
 */
#include "outbox.h"

#include "commands/dbcommands.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "clock.h"
#include "encode.h"
#include "event.h"
#include "held.h"

/* outbox.cloudevents_source in UTF-8, or what stands for the database. Kept for good: an envelope may be older than a change of the setting. */
static const char *
event_source(void)
{
	static char *source = NULL;
	static char *setting = NULL;

	if (outbox_cloudevents_source[0] != '\0' && GetDatabaseEncoding() == PG_UTF8)
		return outbox_cloudevents_source;
	if (source != NULL && strcmp(setting, outbox_cloudevents_source) == 0)
		return source;
	setting = MemoryContextStrdup(TopMemoryContext, outbox_cloudevents_source);
	if (setting[0] != '\0')
		source = MemoryContextStrdup(TopMemoryContext, outbox_event_utf8(setting));
	else
	{
		char	   *name = get_database_name(MyDatabaseId);
		char		of_database[16 + NAMEDATALEN * 4 * 3];

		outbox_envelope_source(name == NULL ? "" : outbox_event_utf8(name), of_database, sizeof(of_database));
		source = MemoryContextStrdup(TopMemoryContext, of_database);
	}
	return source;
}

/* Of a process that publishes; NULL: who gets the events knows nothing of schedules. */
static char *schedule_prefix = NULL;

/* Events that may wait with the stream do so, under subjects with this prefix. */
void
outbox_held_give_schedules(const char *prefix)
{
	if (schedule_prefix != NULL)
		pfree(schedule_prefix);
	schedule_prefix = MemoryContextStrdup(TopMemoryContext, prefix);
}

/* The settings' part of an envelope; its strings live until a setting changes. Needs a transaction at first. */
void
outbox_held_envelope(OutboxEnvelope *envelope)
{
	*envelope = (OutboxEnvelope) {
		.mode = (OutboxEnvelopeMode) outbox_envelope,
		.stream = outbox_stream,
		.source = event_source(),
		.subject_template = outbox_subject_template,
		.schedule_prefix = schedule_prefix,
	};
}

/* As the envelope wants it, but for the payload. What is converted is palloc'd. */
void
outbox_held_head_to_utf8(OutboxRow *row)
{
	const char **texts[] = {&row->aggregate_type, &row->aggregate_id, &row->event_type, &row->subject, &row->content_type,
							&row->dataschema};

	if (GetDatabaseEncoding() == PG_UTF8)
		return;
	for (int i = 0; i < lengthof(texts); i++)
	{
		if (*texts[i] != NULL)
			*texts[i] = outbox_event_utf8(*texts[i]);
	}
	if (row->headers != NULL)
		row->headers = pstrdup(outbox_event_utf8(row->headers));
}

void
outbox_held_payload_to_utf8(OutboxRow *row)
{
	if (GetDatabaseEncoding() != PG_UTF8 && outbox_envelope == OUTBOX_ENVELOPE_STRUCTURED && row->payload_kind == PAYLOAD_TEXT)
	{
		row->payload = outbox_event_utf8(pnstrdup(row->payload, row->payload_len));
		row->payload_len = strlen(row->payload);
	}
}

/* All of it. */
void
outbox_held_row_to_utf8(OutboxRow *row)
{
	outbox_held_head_to_utf8(row);
	outbox_held_payload_to_utf8(row);
}

/* A text of the event's own, behind it in the block. */
static const char *
keep_text(char **at, const char *text)
{
	char	   *kept = *at;

	*at = stpcpy(kept, text) + 1;
	return kept;
}

/*
 * The event of a row, for the schedule to own. Garbage is left in the current
 * memory context. ERROR when out of memory.
 */
OutboxEvent *
outbox_held_build(OutboxLogRow *log_row)
{
	OutboxRow  *row = &log_row->row;
	OutboxRow	own = *row;
	OutboxEnvelope envelope;
	BrokerMessage message;
	OutboxEvent *event;
	const char *error;
	size_t		size;
	size_t		head = sizeof(OutboxEvent) + 37 + strlen(row->aggregate_type) + strlen(row->aggregate_id) +
		strlen(row->event_type) + 3;
	char	   *at;

	outbox_held_envelope(&envelope);
	outbox_held_row_to_utf8(row);
	event = outbox_envelope_make(&envelope, row, head, &message, &size, &error);
	if (event == NULL)
		ereport(ERROR,
				(errcode(strcmp(error, "out of memory") == 0 ? ERRCODE_OUT_OF_MEMORY : ERRCODE_DATA_CORRUPTED),
				 errmsg("could not build the message of position %lld: %s", (long long) row->position, error)));
	at = (char *) (event + 1);
	event->event_id = at;
	outbox_encode_uuid(row->event_id.data, at);
	at += 37;
	event->aggregate_type = keep_text(&at, own.aggregate_type);
	event->aggregate_id = keep_text(&at, own.aggregate_id);
	event->event_type = keep_text(&at, own.event_type);
	event->message = message;
	event->home = log_row->home;
	event->claim = -1;
	event->agg_hash = log_row->agg_hash;
	event->schedule.position = row->position;
	event->due = log_row->not_before == 0 ? 0 : outbox_clock_at(log_row->not_before);
	event->schedule.not_before = message.schedule == NULL ? event->due : 0;
	event->schedule.created = log_row->created_at;
	event->schedule.priority = log_row->priority;
	event->schedule.bytes = size;
	return event;
}

/* Stands for a row that can't be read: never sent, it becomes a dead letter in its turn. ERROR when out of memory. */
OutboxEvent *
outbox_held_broken(int home, int64 position, uint64 agg_hash, const char *why)
{
	size_t		why_size = strlen(why) + 1;
	OutboxEvent *event = malloc(sizeof(OutboxEvent) + why_size);
	char	   *text = (char *) (event + 1);

	if (event == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("out of memory")));
	memset(event, 0, sizeof(*event));
	memcpy(text, why, why_size);
	event->broken = text;
	event->event_id = "of an unreadable row";
	event->home = home;
	event->claim = -1;
	event->agg_hash = agg_hash;
	event->schedule.position = position;
	event->schedule.bytes = sizeof(OutboxEvent) + why_size;
	return event;
}
