/*
 * replay_archive.h
 *	  Events of a replay from the files of an archive.
 *
 * Plain C.
 */
#ifndef OUTBOX_REPLAY_ARCHIVE_H
#define OUTBOX_REPLAY_ARCHIVE_H

#include "replay_filter.h"
#include "replay_source.h"

/* What is wanted of an archive; all of it must live as long as the source. */
typedef struct OutboxArchiveWish
{
	const char *directory;
	const char *database;		/* whose files; NULL: those of the only one there */
	const OutboxReplayFilter *filter;
	const OutboxEnvelope *envelope;
	bool (*go_on)(void *arg);	/* called now and then while a file is checked, its false ends that; may be NULL */
} OutboxArchiveWish;

/* The events that match, behind a position. NULL: error says why not. */
extern OutboxReplaySource *outbox_replay_archive_open(const OutboxArchiveWish *wish, int64_t behind, char error[OUTBOX_SOURCE_TEXT_SIZE]);

/* The database that a directory's files are of, as far as the first one tells; false: there is none that does. */
extern bool outbox_replay_archive_database(const char *directory, char *name, size_t size);

#endif							/* OUTBOX_REPLAY_ARCHIVE_H */
