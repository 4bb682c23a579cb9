/*
 * archive_write.h
 *	  Writes a file of the archive so that it is complete and on disk, or not there.
 */
#ifndef OUTBOX_ARCHIVE_WRITE_H
#define OUTBOX_ARCHIVE_WRITE_H

#include "archive_file.h"

typedef struct ArchiveWriter ArchiveWriter;

/*
 * Begins a file in a directory, under a temporary name that begins with a dot
 * and the prefix. mode: its permissions. NULL: it can't be.
 */
extern ArchiveWriter *outbox_archive_create(const char *directory, const char *prefix, ArchiveCompression compression, unsigned int mode,
											ArchiveError *error);

/* Whole lines, with their newlines. */
extern bool outbox_archive_write(ArchiveWriter *writer, const char *lines, size_t length, ArchiveError *error);

/* The rest, to the disk; fills in file_bytes, text_bytes and sha256. */
extern bool outbox_archive_finish(ArchiveWriter *writer, ArchiveManifest *manifest, ArchiveError *error);

/*
 * Gives file and manifest their names, durably, the manifest first: where there
 * is a file its manifest is complete. replace: what has these names may go, else
 * that is an error.
 */
extern bool outbox_archive_publish(ArchiveWriter *writer, const ArchiveManifest *manifest, bool replace, ArchiveError *error);

/* Removes what hasn't got its name, and frees. NULL is allowed. */
extern void outbox_archive_discard(ArchiveWriter *writer);

/* Whether files can be put into a directory that nobody else can change. */
extern bool outbox_archive_check_directory(const char *directory, ArchiveError *error);

/* Removes what writers that were killed more than an hour ago have left behind. */
extern void outbox_archive_sweep(const char *directory, const char *prefix);

/* Removes a file and its manifest, durably. */
extern bool outbox_archive_remove(const char *directory, const char *file, ArchiveError *error);

#endif /* OUTBOX_ARCHIVE_WRITE_H */
