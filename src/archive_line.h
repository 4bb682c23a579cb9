/*
 * archive_line.h
 *	  An event as a line of an archive file, and as a row for ClickHouse.
 */
#ifndef OUTBOX_ARCHIVE_LINE_H
#define OUTBOX_ARCHIVE_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "buffer.h"

/* Times are microseconds since 1970. */
#define ARCHIVE_TIME_UNKNOWN INT64_MIN
#define ARCHIVE_TIME_BEGIN (INT64_MIN + 1) /* -infinity */
#define ARCHIVE_TIME_END INT64_MAX /* infinity */

/* Texts are valid UTF-8, but for a payload of kind x. */
typedef struct ArchiveEvent
{
	int64_t		position;
	const uint8_t *event_id;	/* 16 bytes */
	const char *aggregate_type;
	const char *aggregate_id;
	const char *event_type;
	const char *subject;		/* NULL: none was given */
	char		payload_kind;	/* j, t, x */
	const char *payload;
	size_t		payload_length;
	const char *headers;		/* NULL: none; else a JSON object */
	int64_t		occurred_at;
	int64_t		created_at;
	int64_t		published_at;
	int			priority;
	int64_t		not_before;
	const char *content_type;	/* NULL: as these three are left out */
	const char *dataschema;
	const int64_t *aggregate_version;
	const char *state;
	const char *last_error;		/* NULL: there was none */
} ArchiveEvent;

/* Appends a line; docs/archive.md describes it. */
extern void outbox_archive_put_line(OutboxBuffer *buffer, const ArchiveEvent *event);

/* Appends a row in ClickHouse's format TabSeparated, with the columns of ARCHIVE_COLUMNS. */
extern void outbox_archive_put_row(OutboxBuffer *buffer, const ArchiveEvent *event, const char *database, int64_t archived_at);

#define ARCHIVE_COLUMNS "position, event_id, aggregate_type, aggregate_id, event_type, subject, payload_kind, payload, headers,"            \
						" occurred_at, created_at, published_at, priority, not_before, content_type, dataschema, aggregate_version, state," \
						" last_error, database, archived_at"

#endif /* OUTBOX_ARCHIVE_LINE_H */
