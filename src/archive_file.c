/*
 * archive_file.c
 *	  Reads a file of the archive, line by line.
 *
 * The bytes of the file go through a checksum and a decompressor into a buffer
 * of text, which holds one line at least. Nothing of a file is believed: it may
 * be cut off, damaged, or something else. Must know neither PostgreSQL nor NATS.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "archive_file.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define RAW_SIZE (128 * 1024)
#define FIRST_TEXT_SIZE (256 * 1024)

/* More than any event can come to; a file that wants more is damaged, or wants to do damage. */
#define MAX_LINE ((size_t) 1024 * 1024 * 1024)

struct ArchiveReader
{
	int			fd;
	char	   *path;
	int64_t		file_size;
	int64_t		raw_read;
	EVP_MD_CTX *digest;

	ArchiveCompression compression;
	z_stream	gzip;
	ZSTD_DStream *zstd;
	bool		between;		/* the last member, or frame, is complete */
	bool		is_full;		/* there may be more text to be had without more bytes */

	unsigned char raw[RAW_SIZE];
	size_t		raw_at;
	size_t		raw_end;
	bool		raw_eof;

	char	   *text;			/* unread from text_at on; one byte more than text_size is allocated */
	size_t		text_size;
	size_t		text_at;
	size_t		text_end;
	size_t		searched;		/* so much of the unread has no newline */
};

bool
outbox_archive_complain(ArchiveError *error, ArchiveErrorKind kind, int system_error, const char *format, ...)
{
	va_list		arguments;
	size_t		length;

	error->kind = kind;
	error->system_error = system_error;
	va_start(arguments, format);
	vsnprintf(error->text, sizeof(error->text), format, arguments);
	va_end(arguments);
	length = strlen(error->text);
	if (system_error != 0)
		snprintf(error->text + length, sizeof(error->text) - length, ": %s", strerror(system_error));
	return false;
}

static bool
no_memory(ArchiveError *error)
{
	return outbox_archive_complain(error, ARCHIVE_NO_MEMORY, 0, "out of memory");
}

/* -------------------------------------------------------------------- open */

static bool
open_file(ArchiveReader *reader, const char *path, ArchiveError *error)
{
	struct stat	status;

	reader->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (reader->fd < 0)
		return outbox_archive_complain(error, errno == ENOENT ? ARCHIVE_MISSING : ARCHIVE_SYSTEM, errno,
									   "could not open \"%s\"", path);
	if (fstat(reader->fd, &status) != 0)
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, errno, "could not look at \"%s\"", path);
	if (!S_ISREG(status.st_mode))
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "\"%s\" is not a file", path);
	reader->file_size = status.st_size;
	return true;
}

static bool
open_decompressor(ArchiveReader *reader, ArchiveError *error)
{
	reader->digest = EVP_MD_CTX_new();
	if (reader->digest == NULL || EVP_DigestInit_ex(reader->digest, EVP_sha256(), NULL) != 1)
		return no_memory(error);
	if (reader->compression == ARCHIVE_ZSTD)
		return (reader->zstd = ZSTD_createDStream()) != NULL || no_memory(error);
	/* 16: with the header and trailer of gzip */
	return inflateInit2(&reader->gzip, 16 + MAX_WBITS) == Z_OK || no_memory(error);
}

ArchiveReader *
outbox_archive_open(const char *path, ArchiveError *error)
{
	const char *slash = strrchr(path, '/');
	ArchiveReader *reader = calloc(1, sizeof(ArchiveReader));

	if (reader == NULL)
	{
		no_memory(error);
		return NULL;
	}
	reader->fd = -1;
	if (!outbox_archive_parse_name(slash == NULL ? path : slash + 1, NULL, NULL, &reader->compression))
		outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "\"%s\" is not the name of an archive file", path);
	else if ((reader->path = strdup(path)) == NULL || (reader->text = malloc(FIRST_TEXT_SIZE + 1)) == NULL)
		no_memory(error);
	else if (open_file(reader, path, error) && open_decompressor(reader, error))
	{
		reader->text_size = FIRST_TEXT_SIZE;
		return reader;
	}
	outbox_archive_close(reader);
	return NULL;
}

void
outbox_archive_close(ArchiveReader *reader)
{
	if (reader == NULL)
		return;
	if (reader->fd >= 0)
		close(reader->fd);
	if (reader->compression == ARCHIVE_ZSTD)
		ZSTD_freeDStream(reader->zstd);
	else
		inflateEnd(&reader->gzip);
	EVP_MD_CTX_free(reader->digest);
	free(reader->path);
	free(reader->text);
	free(reader);
}

/* -------------------------------------------------------------------- read */

/* Takes the next bytes of the file, and their checksum. */
static bool
read_raw(ArchiveReader *reader, ArchiveError *error)
{
	ssize_t		count;

	do
		count = read(reader->fd, reader->raw, RAW_SIZE);
	while (count < 0 && errno == EINTR);
	if (count < 0)
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, errno, "could not read \"%s\"", reader->path);
	if (EVP_DigestUpdate(reader->digest, reader->raw, (size_t) count) != 1)
		return no_memory(error);
	reader->raw_at = 0;
	reader->raw_end = (size_t) count;
	reader->raw_eof = count == 0;
	reader->raw_read += count;
	return true;
}

/* Makes room for more text behind what is unread. */
static bool
make_room(ArchiveReader *reader, ArchiveError *error)
{
	if (reader->text_at > 0)
	{
		memmove(reader->text, reader->text + reader->text_at, reader->text_end - reader->text_at);
		reader->text_end -= reader->text_at;
		reader->text_at = 0;
	}
	if (reader->text_end == reader->text_size)
	{
		char	   *larger;

		if (reader->text_size >= MAX_LINE)
			return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "\"%s\" has a line that is too long", reader->path);
		larger = realloc(reader->text, reader->text_size * 2 + 1);
		if (larger == NULL)
			return no_memory(error);
		reader->text = larger;
		reader->text_size *= 2;
	}
	return true;
}

static bool
damaged(const ArchiveReader *reader, ArchiveError *error)
{
	return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "\"%s\" is damaged near byte %lld of %lld", reader->path,
								   (long long) (reader->raw_read - (int64_t) (reader->raw_end - reader->raw_at)), (long long) reader->file_size);
}

static bool
decompress_gzip(ArchiveReader *reader, ArchiveError *error)
{
	int			result;

	/* Another member may follow a complete one, as if the files were one behind the other. */
	if (reader->between && reader->raw_at == reader->raw_end)
		return true;
	if (reader->between && inflateReset(&reader->gzip) != Z_OK)
		return damaged(reader, error);
	reader->gzip.next_in = reader->raw + reader->raw_at;
	reader->gzip.avail_in = (uInt) (reader->raw_end - reader->raw_at);
	reader->gzip.next_out = (unsigned char *) reader->text + reader->text_end;
	reader->gzip.avail_out = (uInt) (reader->text_size - reader->text_end);
	result = inflate(&reader->gzip, Z_NO_FLUSH);
	reader->raw_at = reader->raw_end - reader->gzip.avail_in;
	reader->text_end = reader->text_size - reader->gzip.avail_out;
	reader->between = result == Z_STREAM_END;
	if (result == Z_MEM_ERROR)
		return no_memory(error);
	return result == Z_OK || result == Z_STREAM_END || result == Z_BUF_ERROR || damaged(reader, error);
}

static bool
decompress_zstd(ArchiveReader *reader, ArchiveError *error)
{
	ZSTD_inBuffer in = {reader->raw, reader->raw_end, reader->raw_at};
	ZSTD_outBuffer out = {reader->text, reader->text_size, reader->text_end};
	size_t		result;

	if (reader->between && in.pos == in.size)
		return true;
	result = ZSTD_decompressStream(reader->zstd, &out, &in);
	reader->raw_at = in.pos;
	reader->text_end = out.pos;
	if (ZSTD_isError(result))
		return damaged(reader, error);
	reader->between = result == 0;
	return true;
}

/* More text, or the knowledge that there is none. */
static bool
read_text(ArchiveReader *reader, ArchiveError *error)
{
	size_t		before;

	if (!make_room(reader, error))
		return false;
	before = reader->text_end;
	while (reader->text_end == before)
	{
		if (reader->raw_at == reader->raw_end && !reader->is_full && !read_raw(reader, error))
			return false;
		if (reader->raw_eof)
			return reader->between ||
				outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "\"%s\" is cut off at byte %lld", reader->path, (long long) reader->raw_read);
		if (!(reader->compression == ARCHIVE_ZSTD ? decompress_zstd(reader, error) : decompress_gzip(reader, error)))
			return false;
		reader->is_full = reader->text_end == reader->text_size;
	}
	return true;
}

ArchiveRead
outbox_archive_next(ArchiveReader *reader, const char **line, size_t *length, ArchiveError *error)
{
	for (;;)
	{
		size_t		unread = reader->text_end - reader->text_at;
		char	   *begin = reader->text + reader->text_at;
		char	   *newline = memchr(begin + reader->searched, '\n', unread - reader->searched);

		if (newline != NULL)
		{
			*newline = '\0';
			*line = begin;
			*length = (size_t) (newline - begin);
			reader->text_at += *length + 1;
			reader->searched = 0;
			return ARCHIVE_LINE;
		}
		reader->searched = unread;
		if (reader->raw_eof)
		{
			if (unread == 0)
				return ARCHIVE_END;
			outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the last line of \"%s\" is incomplete", reader->path);
			return ARCHIVE_FAILED;
		}
		if (!read_text(reader, error))
			return ARCHIVE_FAILED;
	}
}

void
outbox_archive_progress(const ArchiveReader *reader, int64_t *done, int64_t *total)
{
	*done = reader->raw_read;
	*total = reader->file_size;
}

void
outbox_archive_sha256(ArchiveReader *reader, char sha256[ARCHIVE_SHA256_SIZE])
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned int count = 0;

	sha256[0] = '\0';
	if (EVP_DigestFinal_ex(reader->digest, bytes, &count) != 1)
		return;
	for (unsigned int i = 0; i < count && i * 2 + 2 < ARCHIVE_SHA256_SIZE; i++)
		snprintf(sha256 + i * 2, 3, "%02x", bytes[i]);
}

bool
outbox_archive_line_position(const char *line, size_t length, int64_t *position)
{
	static const char begin[] = "{\"position\":";
	size_t		at = sizeof(begin) - 1;
	int64_t		value = 0;
	size_t		digits;

	if (length < at || memcmp(line, begin, at) != 0)
		return false;
	for (digits = 0; at < length && line[at] >= '0' && line[at] <= '9'; at++, digits++)
	{
		if (value > (INT64_MAX - (line[at] - '0')) / 10)
			return false;
		value = value * 10 + (line[at] - '0');
	}
	if (digits == 0 || at == length || line[at] != ',')
		return false;
	*position = value;
	return true;
}
