/*
 * archive_write.c
 *	  Writes a file of the archive so that it is complete and on disk, or not there.
 *
 * Text goes through a compressor and a checksum into a file with a temporary
 * name of its own. Once all is on disk, manifest and file are renamed, and the
 * directory is flushed. Must know neither PostgreSQL nor NATS.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "archive_write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#define OUT_SIZE (256 * 1024)
#define PATH_SIZE (4096 + ARCHIVE_NAME_SIZE)

/* So many bytes at a time go to the disk, lest the last flush be a storm that commits wait for. */
#define FLUSH_BYTES (16 * 1024 * 1024)

/* Measured: twice as fast as the default, for an eighth more bytes. */
#define GZIP_LEVEL 2
#define ZSTD_LEVEL 3

#define TEMPORARY ".tmp"
#define LEFT_BEHIND_SECONDS 3600

struct ArchiveWriter
{
	char		directory[PATH_SIZE];
	char		file[PATH_SIZE]; /* temporary names; empty: not there, or not any more */
	char		manifest[PATH_SIZE];
	unsigned int mode;
	int			fd;
	EVP_MD_CTX *digest;

	ArchiveCompression compression;
	z_stream	gzip;
	ZSTD_CStream *zstd;

	int64_t		text_bytes;
	int64_t		file_bytes;
	int64_t		flushed;
	unsigned char out[OUT_SIZE];
};

static bool
failed(ArchiveError *error, const char *what, const char *path)
{
	return outbox_archive_complain(error, ARCHIVE_SYSTEM, errno, "could not %s \"%s\"", what, path);
}

static bool
no_memory(ArchiveError *error)
{
	return outbox_archive_complain(error, ARCHIVE_NO_MEMORY, 0, "out of memory");
}

/* --------------------------------------------------------------- directory */

bool
outbox_archive_check_directory(const char *directory, ArchiveError *error)
{
	struct stat	status;

	if (directory[0] != '/')
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "\"%s\" is not an absolute path", directory);
	if (stat(directory, &status) != 0)
		return failed(error, "look at directory", directory);
	if (!S_ISDIR(status.st_mode))
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, ENOTDIR, "could not use \"%s\"", directory);
	if ((status.st_mode & S_IWOTH) != 0)
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "directory \"%s\" can be written to by everybody, it has mode %04o",
									   directory, (unsigned int) status.st_mode & 07777);
	if (access(directory, R_OK | W_OK | X_OK) != 0)
		return failed(error, "use directory", directory);
	return true;
}

static bool
flush_directory(const char *directory, ArchiveError *error)
{
	int			fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool		good;

	if (fd < 0)
		return failed(error, "open directory", directory);
	/* Some file systems can't, and needn't. */
	good = fsync(fd) == 0 || errno == EINVAL || failed(error, "flush directory", directory);
	close(fd);
	return good;
}

void
outbox_archive_sweep(const char *directory, const char *prefix)
{
	DIR		   *folder = opendir(directory);
	struct dirent *entry;
	size_t		length = strlen(prefix);

	while (folder != NULL && (entry = readdir(folder)) != NULL)
	{
		size_t		name_length = strlen(entry->d_name);
		struct stat	status;

		if (entry->d_name[0] != '.' || strncmp(entry->d_name + 1, prefix, length) != 0 ||
			name_length < strlen(TEMPORARY) || strcmp(entry->d_name + name_length - strlen(TEMPORARY), TEMPORARY) != 0)
			continue;
		if (fstatat(dirfd(folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
			status.st_mtime < time(NULL) - LEFT_BEHIND_SECONDS)
			(void) unlinkat(dirfd(folder), entry->d_name, 0);
	}
	if (folder != NULL)
		closedir(folder);
}

bool
outbox_archive_remove(const char *directory, const char *file, ArchiveError *error)
{
	char		path[PATH_SIZE];
	char		manifest[PATH_SIZE];

	if (snprintf(path, sizeof(path), "%s/%s", directory, file) >= (int) sizeof(path) ||
		!outbox_archive_manifest_path(path, manifest, sizeof(manifest)))
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, ENAMETOOLONG, "could not remove \"%s\"", file);
	if (unlink(path) != 0 && errno != ENOENT)
		return failed(error, "remove", path);
	if (unlink(manifest) != 0 && errno != ENOENT)
		return failed(error, "remove", manifest);
	return flush_directory(directory, error);
}

/* ------------------------------------------------------------------- begin */

/* A file that nobody else has, under a name kept in path. */
static int
create_temporary(ArchiveWriter *writer, const char *prefix, const char *kind, char path[PATH_SIZE], ArchiveError *error)
{
	struct timespec now;
	int			fd;

	clock_gettime(CLOCK_REALTIME, &now);
	if (snprintf(path, PATH_SIZE, "%s/.%s%s-%d-%lld%s", writer->directory, prefix, kind, (int) getpid(),
				 (long long) now.tv_sec * 1000000000 + now.tv_nsec, TEMPORARY) >= PATH_SIZE)
	{
		path[0] = '\0';
		outbox_archive_complain(error, ARCHIVE_SYSTEM, ENAMETOOLONG, "could not create a file in \"%s\"", writer->directory);
		return -1;
	}
	fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, writer->mode);
	if (fd < 0)
	{
		failed(error, "create", path);
		path[0] = '\0';
	}
	return fd;
}

static bool
open_compressor(ArchiveWriter *writer, ArchiveError *error)
{
	writer->digest = EVP_MD_CTX_new();
	if (writer->digest == NULL || EVP_DigestInit_ex(writer->digest, EVP_sha256(), NULL) != 1)
		return no_memory(error);
	if (writer->compression == ARCHIVE_GZIP)
		return deflateInit2(&writer->gzip, GZIP_LEVEL, Z_DEFLATED, 16 + MAX_WBITS, 9, Z_DEFAULT_STRATEGY) == Z_OK || no_memory(error);
	writer->zstd = ZSTD_createCStream();
	return (writer->zstd != NULL && !ZSTD_isError(ZSTD_CCtx_setParameter(writer->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL)) &&
			!ZSTD_isError(ZSTD_CCtx_setParameter(writer->zstd, ZSTD_c_checksumFlag, 1))) ||
		no_memory(error);
}

ArchiveWriter *
outbox_archive_create(const char *directory, const char *prefix, ArchiveCompression compression, unsigned int mode, ArchiveError *error)
{
	ArchiveWriter *writer = calloc(1, sizeof(ArchiveWriter));

	if (writer == NULL)
	{
		no_memory(error);
		return NULL;
	}
	writer->compression = compression;
	writer->mode = mode;
	writer->fd = -1;
	if (snprintf(writer->directory, PATH_SIZE, "%s", directory) >= PATH_SIZE)
		outbox_archive_complain(error, ARCHIVE_SYSTEM, ENAMETOOLONG, "could not use directory \"%.100s\"", directory);
	else if (outbox_archive_check_directory(directory, error) &&
			 (writer->fd = create_temporary(writer, prefix, "file", writer->file, error)) >= 0 && open_compressor(writer, error))
		return writer;
	outbox_archive_discard(writer);
	return NULL;
}

/* ------------------------------------------------------------------- write */

static bool
write_all(int fd, const void *bytes, size_t length, const char *path, ArchiveError *error)
{
	while (length > 0)
	{
		ssize_t		count = write(fd, bytes, length);

		if (count < 0 && errno == EINTR)
			continue;
		if (count == 0)
			errno = ENOSPC;
		if (count <= 0)
			return failed(error, "write to", path);
		bytes = (const char *) bytes + count;
		length -= (size_t) count;
	}
	return true;
}

/* What the compressor has put out. */
static bool
write_out(ArchiveWriter *writer, size_t length, ArchiveError *error)
{
	if (EVP_DigestUpdate(writer->digest, writer->out, length) != 1)
		return no_memory(error);
	if (!write_all(writer->fd, writer->out, length, writer->file, error))
		return false;
	writer->file_bytes += (int64_t) length;
	if (writer->file_bytes - writer->flushed >= FLUSH_BYTES)
	{
		writer->flushed = writer->file_bytes;
		if (fdatasync(writer->fd) != 0)
			return failed(error, "flush", writer->file);
	}
	return true;
}

static bool
compress_gzip(ArchiveWriter *writer, const char *text, size_t length, bool last, ArchiveError *error)
{
	z_stream   *gzip = &writer->gzip;
	int			result;

	gzip->next_in = (unsigned char *) text;
	do
	{
		uInt		part = length > 1 << 30 ? 1 << 30 : (uInt) length;

		gzip->avail_in = part;
		gzip->next_out = writer->out;
		gzip->avail_out = OUT_SIZE;
		result = deflate(gzip, last && part == length ? Z_FINISH : Z_NO_FLUSH);
		length -= part - gzip->avail_in;
		if (!write_out(writer, OUT_SIZE - gzip->avail_out, error))
			return false;
	} while (length > 0 || gzip->avail_out == 0);
	return !last || result == Z_STREAM_END || outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "could not compress");
}

static bool
compress_zstd(ArchiveWriter *writer, const char *text, size_t length, bool last, ArchiveError *error)
{
	ZSTD_inBuffer in = {text, length, 0};
	size_t		rest;

	do
	{
		ZSTD_outBuffer out = {writer->out, OUT_SIZE, 0};

		rest = ZSTD_compressStream2(writer->zstd, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
		if (ZSTD_isError(rest))
			return outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "could not compress: %s", ZSTD_getErrorName(rest));
		if (!write_out(writer, out.pos, error))
			return false;
	} while (in.pos < in.size || (last && rest > 0));
	return true;
}

static bool
compress_text(ArchiveWriter *writer, const char *text, size_t length, bool last, ArchiveError *error)
{
	writer->text_bytes += (int64_t) length;
	return writer->compression == ARCHIVE_GZIP ? compress_gzip(writer, text, length, last, error) : compress_zstd(writer, text, length, last, error);
}

bool
outbox_archive_write(ArchiveWriter *writer, const char *lines, size_t length, ArchiveError *error)
{
	return compress_text(writer, lines, length, false, error);
}

/* ------------------------------------------------------------------ finish */

/* The flush tells of what went wrong with earlier writes, and so does close. */
static bool
flush_and_close(int fd, const char *path, ArchiveError *error)
{
	bool		good = fsync(fd) == 0 || failed(error, "flush", path);

	if (close(fd) != 0 && good)
		good = failed(error, "close", path);
	return good;
}

bool
outbox_archive_finish(ArchiveWriter *writer, ArchiveManifest *manifest, ArchiveError *error)
{
	unsigned char bytes[EVP_MAX_MD_SIZE];
	unsigned int count = 0;
	int			fd = writer->fd;

	if (!compress_text(writer, "", 0, true, error))
		return false;
	if (EVP_DigestFinal_ex(writer->digest, bytes, &count) != 1)
		return no_memory(error);
	writer->fd = -1;
	if (!flush_and_close(fd, writer->file, error))
		return false;
	for (unsigned int i = 0; i < count && i * 2 + 2 < ARCHIVE_SHA256_SIZE; i++)
		snprintf(manifest->sha256 + i * 2, 3, "%02x", bytes[i]);
	manifest->file_bytes = writer->file_bytes;
	manifest->text_bytes = writer->text_bytes;
	return true;
}

static bool
write_manifest(ArchiveWriter *writer, const ArchiveManifest *manifest, ArchiveError *error)
{
	char	   *text = outbox_archive_manifest_text(manifest);
	int			fd;
	bool		good;

	if (text == NULL)
		return no_memory(error);
	fd = create_temporary(writer, "", "manifest", writer->manifest, error);
	good = fd >= 0;
	if (good && !write_all(fd, text, strlen(text), writer->manifest, error))
	{
		close(fd);
		good = false;
	}
	else if (good)
		good = flush_and_close(fd, writer->manifest, error);
	free(text);
	return good;
}

/* Takes the temporary name away if it works. */
static bool
give_name(char *temporary, const char *name, bool replace, ArchiveError *error)
{
	struct stat	status;
	int			result = renameat2(AT_FDCWD, temporary, AT_FDCWD, name, replace ? 0 : RENAME_NOREPLACE);

	/* A file system that can't look and rename in one. */
	if (result != 0 && !replace && (errno == EINVAL || errno == ENOSYS))
	{
		if (lstat(name, &status) == 0)
			errno = EEXIST;
		else
			result = rename(temporary, name);
	}
	if (result != 0)
		return failed(error, "make", name);
	temporary[0] = '\0';
	return true;
}

bool
outbox_archive_publish(ArchiveWriter *writer, const ArchiveManifest *manifest, bool replace, ArchiveError *error)
{
	char		file[PATH_SIZE + ARCHIVE_NAME_SIZE];
	char		manifest_file[PATH_SIZE + ARCHIVE_NAME_SIZE];

	snprintf(file, sizeof(file), "%s/%s", writer->directory, manifest->file);
	if (!outbox_archive_manifest_path(file, manifest_file, sizeof(manifest_file)))
		return outbox_archive_complain(error, ARCHIVE_SYSTEM, ENAMETOOLONG, "could not make \"%s\"", file);
	return write_manifest(writer, manifest, error) && give_name(writer->manifest, manifest_file, replace, error) &&
		give_name(writer->file, file, replace, error) && flush_directory(writer->directory, error);
}

void
outbox_archive_discard(ArchiveWriter *writer)
{
	if (writer == NULL)
		return;
	if (writer->fd >= 0)
		close(writer->fd);
	if (writer->file[0] != '\0')
		(void) unlink(writer->file);
	if (writer->manifest[0] != '\0')
		(void) unlink(writer->manifest);
	if (writer->compression == ARCHIVE_GZIP)
		deflateEnd(&writer->gzip);
	ZSTD_freeCStream(writer->zstd);
	EVP_MD_CTX_free(writer->digest);
	free(writer);
}
