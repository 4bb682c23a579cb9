/*
 * archive_file.h
 *	  Files of the archive: what is in them, what they are called, reading and
 *	  checking them.
 *
 * Shared by the server and by programs that read an archive without one: plain
 * C, malloc, failures as an ArchiveError. Needs zlib, libzstd and libcrypto.
 * docs/archive.md describes the files.
 */
#ifndef OUTBOX_ARCHIVE_FILE_H
#define OUTBOX_ARCHIVE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARCHIVE_FORMAT "outbox-archive"
#define ARCHIVE_FORMAT_VERSION 1

/* With the NUL; the name of a database takes three characters a byte at most. */
#define ARCHIVE_NAME_SIZE 320
#define ARCHIVE_TIME_SIZE 40
#define ARCHIVE_SHA256_SIZE 65
#define ARCHIVE_ERROR_SIZE 1024

typedef enum ArchiveErrorKind
{
	ARCHIVE_OK,
	ARCHIVE_SYSTEM,				/* the system refused something; system_error says what */
	ARCHIVE_MISSING,			/* there is no such file */
	ARCHIVE_DAMAGED,			/* the file isn't what was written */
	ARCHIVE_NO_MEMORY,
	ARCHIVE_STOPPED /* the caller wanted it so */
} ArchiveErrorKind;

typedef struct ArchiveError
{
	ArchiveErrorKind kind;
	int			system_error;	/* errno; 0: none */
	char		text[ARCHIVE_ERROR_SIZE]; /* a sentence without full stop, in printable ASCII but for file names */
} ArchiveError;

typedef enum ArchiveCompression
{
	ARCHIVE_GZIP,
	ARCHIVE_ZSTD
} ArchiveCompression;

/* What the manifest says of its file. Texts are UTF-8. */
typedef struct ArchiveManifest
{
	int			format_version;
	char		file[ARCHIVE_NAME_SIZE]; /* without directory */
	char		database[ARCHIVE_NAME_SIZE];
	char		system_identifier[ARCHIVE_TIME_SIZE]; /* of the PostgreSQL cluster */
	int64_t		range;			/* the number of the range: one more with each */
	int64_t		first_position;
	int64_t		last_position;
	char		first_time[ARCHIVE_TIME_SIZE]; /* lowest and highest created_at */
	char		last_time[ARCHIVE_TIME_SIZE];
	int64_t		events;			/* lines */
	int64_t		text_bytes;		/* of the lines, with their newlines */
	int64_t		file_bytes;
	char		sha256[ARCHIVE_SHA256_SIZE]; /* of the file, lower-case hex */
} ArchiveManifest;

/* -------------------------------------------------------------- archive_file.c */

typedef struct ArchiveReader ArchiveReader;

typedef enum ArchiveRead
{
	ARCHIVE_LINE,
	ARCHIVE_END,
	ARCHIVE_FAILED
} ArchiveRead;

/* Opens a file, compressed as its name says; NULL: it can't be opened. */
extern ArchiveReader *outbox_archive_open(const char *path, ArchiveError *error);

/* The next line, without its newline; followed by a NUL, and valid until the next call. */
extern ArchiveRead outbox_archive_next(ArchiveReader *reader, const char **line, size_t *length, ArchiveError *error);

/* So far, for a progress bar: bytes read of the file, out of so many. */
extern void outbox_archive_progress(const ArchiveReader *reader, int64_t *done, int64_t *total);

/* Of all bytes of the file, after ARCHIVE_END. */
extern void outbox_archive_sha256(ArchiveReader *reader, char sha256[ARCHIVE_SHA256_SIZE]);

/* NULL is allowed. */
extern void outbox_archive_close(ArchiveReader *reader);

/* The position that a line begins with; false: it begins otherwise. */
extern bool outbox_archive_line_position(const char *line, size_t length, int64_t *position);

/* Sets an error, and returns false. */
extern bool outbox_archive_complain(ArchiveError *error, ArchiveErrorKind kind, int system_error, const char *format, ...)
	__attribute__((format(printf, 4, 5)));

/* ---------------------------------------------------------- archive_manifest.c */

/* "outbox-DATABASE-FIRST-LAST.jsonl.gz" or ".zst"; the database's name encoded as a token of a subject is. */
extern void outbox_archive_name(const char *database, int64_t first_position, int64_t last_position,
								ArchiveCompression compression, char name[ARCHIVE_NAME_SIZE]);

/* What every file of a database begins with, "outbox-DATABASE-". */
extern void outbox_archive_prefix(const char *database, char prefix[ARCHIVE_NAME_SIZE]);

/* Whether a name is that of an archive file, and what it says; the arguments may be NULL. */
extern bool outbox_archive_parse_name(const char *name, int64_t *first_position, int64_t *last_position,
									  ArchiveCompression *compression);

/* The manifest's path or name for that of a file: ".manifest.json" instead of ".jsonl.gz". False: the buffer is too small. */
extern bool outbox_archive_manifest_path(const char *file, char *buffer, size_t size);

/* As it is written: a JSON object, a key on each line, at the end a newline. malloc'd; NULL: no memory. */
extern char *outbox_archive_manifest_text(const ArchiveManifest *manifest);

extern bool outbox_archive_manifest_parse(const char *text, ArchiveManifest *manifest, ArchiveError *error);

/* Reads the manifest that belongs to a file. */
extern bool outbox_archive_manifest_read(const char *file, ArchiveManifest *manifest, ArchiveError *error);

/*
 * Checks a file against its manifest: that all of it can be read, that it has
 * these bytes, and lines in ascending order of position from the first to the
 * last one. Calls go_on (may be NULL) every few hundred lines; its false stops.
 */
extern bool outbox_archive_verify(const char *path, const ArchiveManifest *manifest, bool (*go_on)(void *arg), void *arg,
								  ArchiveError *error);

#endif /* OUTBOX_ARCHIVE_FILE_H */
