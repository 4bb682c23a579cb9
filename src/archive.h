/*
 * archive.h
 *	  Writes a range of the log out before retention removes it.
 */
#ifndef OUTBOX_ARCHIVE_H
#define OUTBOX_ARCHIVE_H

#include "archive_file.h"
#include "archive_line.h"
#include "retire.h"

/* A range whose archive is durable, if one is wanted at all. */
typedef struct OutboxArchived
{
	bool		wanted;
	int64		range;			/* its generation */
	int64		ledger_rows;	/* while its ledger has so many, nothing of it was published since */
	Datum		kept;			/* bigint[]: what isn't in the archive, and stays */
	int			kept_count;
} OutboxArchived;

/*
 * Sees to it that all of a sealed child that doesn't stay is in the archive, if
 * none is wanted. Without a lock or a transaction while it
 * writes and sends. False: it isn't so yet; outbox.ranges() and the log say why.
 * archived: in the current memory context.
 */
extern bool outbox_archive_range(const OutboxRetention *retention, int child, OutboxArchived *archived);

/* archive_rows.c: the rows of a sealed child, without some, in batches. */
typedef struct OutboxArchiveRows
{
	const OutboxRetention *retention;
	int			child;
	const int64 *kept;			/* ascending; passed over */
	int			kept_count;
	bool		as_lines;		/* for a file; else for ClickHouse */
	const char *database;		/* in UTF-8 */
	int64		archived_at;	/* seconds since 1970 */

	int64		position;		/* looked at up to here */
	bool		at_end;
	bool		changed;		/* one of them isn't terminal any more */
	OutboxBuffer buffer;		/* the batch; the caller frees its data */

	int64		events;			/* these of all batches so far */
	int64		first_position;
	int64		last_position;
	int64		text_bytes;
	int64		paused_us;		/* for live traffic */
	TimestampTz	first_time;		/* lowest and highest created_at */
	TimestampTz	last_time;
} OutboxArchiveRows;

/* Reads the next batch, in a transaction of its own. False: there is none. */
extern bool outbox_archive_rows_next(OutboxArchiveRows *rows);

/* archive_send.c */

/* Sends rows to outbox.archive_url; returns when the server has confirmed them all. */
extern void outbox_archive_send(OutboxArchiveRows *rows);

/* Raises what a function in plain C has said. */
extern OUTBOX_NORETURN void outbox_archive_raise(const char *what, const ArchiveError *error);

#endif /* OUTBOX_ARCHIVE_H */
