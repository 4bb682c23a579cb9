/*
 * replay_archive.c
 *	  Events of a replay from the files of an archive.
 *
 * Each file is in order of position, but files may overlap: what outlived its
 * range was archived with a later one, and a range whose removal was interrupted
 * is archived again. So the files that may hold the next position are merged, and
 * an event that is there twice comes once. A file is compared with its manifest
 * before anything of it is handed out.
 */
#include "replay_archive.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "archive_file.h"
#include "replay_line.h"

/* A file of the archive, once it is open with the line where it stands. */
typedef struct File
{
	char	   *path;
	int64_t		first;
	int64_t		last;
	ArchiveReader *reader;		/* NULL: not open yet, or not any more */
	int64_t		position;		/* of the line */
	char	   *text;			/* the line */
	size_t		text_size;
	size_t		length;
} File;

typedef struct ArchiveSource
{
	OutboxReplaySource base;
	OutboxArchiveWish wish;
	File	   *files;			/* by first position */
	int			file_count;
	int			opened;			/* so many of them were opened, and of those ... */
	int			closed;			/* ... so many at the beginning are closed again */
	int64_t		last;			/* handed out, or passed over */
	OutboxLine	line;
} ArchiveSource;

static bool
complain(OutboxReplaySource *source, const char *text)
{
	snprintf(source->error, sizeof(source->error), "%s", text);
	return false;
}

/* ------------------------------------------------------------------- files */

/* Whether what the manifest says of time has nothing to do with what is wanted. */
static bool
is_other_time(const ArchiveSource *source, const ArchiveManifest *manifest)
{
	int64_t		first;
	int64_t		last;

	return outbox_replay_parse_time(manifest->first_time, &first) && outbox_replay_parse_time(manifest->last_time, &last) &&
		(last < source->wish.filter->from_time || first > source->wish.filter->to_time);
}

/* The next line becomes the file's; at the end it is closed. */
static bool
advance(ArchiveSource *source, File *file)
{
	ArchiveError error;
	const char *line;

	switch (outbox_archive_next(file->reader, &line, &file->length, &error))
	{
		case ARCHIVE_FAILED:
			return complain(&source->base, error.text);
		case ARCHIVE_END:
			outbox_archive_close(file->reader);
			file->reader = NULL;
			return true;
		case ARCHIVE_LINE:
			break;
	}
	if (file->length + 1 > file->text_size)
	{
		char	   *larger = realloc(file->text, file->length * 2 + 1);

		if (larger == NULL)
			return complain(&source->base, "out of memory");
		file->text = larger;
		file->text_size = file->length * 2 + 1;
	}
	memcpy(file->text, line, file->length + 1);
	if (!outbox_archive_line_position(line, file->length, &file->position))
	{
		snprintf(source->base.error, sizeof(source->base.error), "a line of archive file \"%s\" doesn't begin with a position", file->path);
		return false;
	}
	return true;
}

/* Opens a file if it has anything for us, after a look whether it is what was written. */
static bool
open_file(ArchiveSource *source, File *file)
{
	ArchiveManifest manifest;
	ArchiveError error;

	if (!outbox_archive_manifest_read(file->path, &manifest, &error))
		return complain(&source->base, error.text);
	if (is_other_time(source, &manifest))
		return true;
	if (!outbox_archive_verify(file->path, &manifest, source->wish.go_on, NULL, &error))
		return complain(&source->base, error.text);
	file->reader = outbox_archive_open(file->path, &error);
	if (file->reader == NULL)
		return complain(&source->base, error.text);
	return advance(source, file);
}

/* The open file with the lowest position, after those are open that may have it. *file NULL: none is left. */
static bool
find_lowest(ArchiveSource *source, File **file)
{
	for (;;)
	{
		File	   *next = source->opened < source->file_count ? &source->files[source->opened] : NULL;

		*file = NULL;
		while (source->closed < source->opened && source->files[source->closed].reader == NULL)
			source->closed++;
		for (int i = source->closed; i < source->opened; i++)
		{
			File	   *open = &source->files[i];

			if (open->reader != NULL && (*file == NULL || open->position < (*file)->position))
				*file = open;
		}
		if (next == NULL || (*file != NULL && next->first > (*file)->position))
			return true;
		source->opened++;
		if (!open_file(source, next))
			return false;
	}
}

/* ------------------------------------------------------------------- events */

static OutboxSourceResult
next(OutboxReplaySource *base, OutboxRow *row)
{
	ArchiveSource *source = (ArchiveSource *) base;
	File	   *file;

	for (;;)
	{
		const char *wrong = NULL;
		bool		wanted;

		if (!find_lowest(source, &file))
			return OUTBOX_SOURCE_FAILED;
		if (file == NULL || file->position > source->wish.filter->to_position)
			return OUTBOX_SOURCE_END;
		wanted = file->position > source->last;
		if (wanted)
		{
			/* The row points into the file's text, so the file goes on at the next call only. */
			source->last = file->position;
			wrong = outbox_replay_line_read(&source->line, file->text, file->length, row);
			wanted = wrong == NULL && source->line.published && outbox_replay_filter_matches(source->wish.filter, source->wish.envelope, row);
		}
		if (wrong != NULL)
		{
			snprintf(base->error, sizeof(base->error), "the line of position %lld in archive file \"%s\" can't be used: %s",
					 (long long) file->position, file->path, wrong);
			return OUTBOX_SOURCE_FAILED;
		}
		if (wanted)
			return OUTBOX_SOURCE_ROW;
		if (!advance(source, file))
			return OUTBOX_SOURCE_FAILED;
	}
}

static void
close_source(OutboxReplaySource *base)
{
	ArchiveSource *source = (ArchiveSource *) base;

	for (int i = 0; i < source->file_count; i++)
	{
		outbox_archive_close(source->files[i].reader);
		free(source->files[i].path);
		free(source->files[i].text);
	}
	free(source->files);
	free(source->line.headers);
	free(source);
}

/* ------------------------------------------------------------- the directory */

static int
compare_files(const void *a, const void *b)
{
	const File *left = a;
	const File *right = b;

	if (left->first != right->first)
		return left->first < right->first ? -1 : 1;
	return left->last < right->last ? -1 : left->last > right->last;
}

static bool
add_file(ArchiveSource *source, const char *directory, const char *name, int64_t first, int64_t last)
{
	size_t		size = strlen(directory) + strlen(name) + 2;
	char	   *path = malloc(size);
	File	   *files = realloc(source->files, sizeof(File) * ((size_t) source->file_count + 1));

	if (files != NULL)
		source->files = files;
	if (path == NULL || files == NULL)
	{
		free(path);
		return complain(&source->base, "out of memory");
	}
	snprintf(path, size, "%s/%s", directory, name);
	files[source->file_count++] = (File) {.path = path, .first = first, .last = last};
	return true;
}

/* One of the names in the directory. prefix: of the database's files; while it is "" it becomes that of the first one. */
static bool
take_name(ArchiveSource *source, const char *directory, const char *name, char *prefix, bool given, int64_t behind)
{
	static const size_t tail = 2 * 20 + 1;	/* two positions and what is between them */
	const char *dot = strchr(name, '.');
	size_t		length = dot == NULL ? 0 : (size_t) (dot - name);
	int64_t		first;
	int64_t		last;

	if (!outbox_archive_parse_name(name, &first, &last, NULL))
		return true;
	/* The name of a database has no dots: it is encoded as a token of a subject. */
	length -= tail;
	if (!given && prefix[0] == '\0')
		memcpy(prefix, name, length), prefix[length] = '\0';
	if (strlen(prefix) != length || memcmp(prefix, name, length) != 0)
	{
		if (given)
			return true;
		return complain(&source->base, "the directory has archive files of several databases, and it isn't said of which one they are wanted");
	}
	if (last <= behind || last < source->wish.filter->from_position || first > source->wish.filter->to_position)
		return true;
	return add_file(source, directory, name, first, last);
}

static bool
read_directory(ArchiveSource *source, const char *directory, const char *database, int64_t behind)
{
	char		prefix[ARCHIVE_NAME_SIZE] = "";
	DIR		   *dir = opendir(directory);
	struct dirent *entry;
	bool		ok = true;

	if (dir == NULL)
	{
		snprintf(source->base.error, sizeof(source->base.error), "could not open archive directory \"%s\": %s", directory, strerror(errno));
		return false;
	}
	if (database != NULL)
		outbox_archive_prefix(database, prefix);
	while (ok && (entry = readdir(dir)) != NULL)
		ok = take_name(source, directory, entry->d_name, prefix, database != NULL, behind);
	closedir(dir);
	if (ok && prefix[0] == '\0')
	{
		snprintf(source->base.error, sizeof(source->base.error), "there are no archive files in directory \"%s\"", directory);
		return false;
	}
	if (ok && source->file_count > 0)
		qsort(source->files, (size_t) source->file_count, sizeof(File), compare_files);
	return ok;
}

OutboxReplaySource *
outbox_replay_archive_open(const OutboxArchiveWish *wish, int64_t behind, char error[OUTBOX_SOURCE_TEXT_SIZE])
{
	ArchiveSource *source = calloc(1, sizeof(ArchiveSource));

	if (source == NULL)
	{
		strcpy(error, "out of memory");
		return NULL;
	}
	source->base.next = next;
	source->base.close = close_source;
	source->wish = *wish;
	source->last = behind > wish->filter->from_position - 1 ? behind : wish->filter->from_position - 1;
	if (read_directory(source, wish->directory, wish->database, behind))
		return (OutboxReplaySource *) source;
	memcpy(error, source->base.error, OUTBOX_SOURCE_TEXT_SIZE);
	close_source(&source->base);
	return NULL;
}

bool
outbox_replay_archive_database(const char *directory, char *name, size_t size)
{
	DIR		   *dir = opendir(directory);
	struct dirent *entry;
	ArchiveManifest manifest;
	ArchiveError error;
	char		path[4096];
	bool		found = false;

	while (dir != NULL && !found && (entry = readdir(dir)) != NULL)
	{
		if (!outbox_archive_parse_name(entry->d_name, NULL, NULL, NULL) ||
			(size_t) snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name) >= sizeof(path))
			continue;
		found = outbox_archive_manifest_read(path, &manifest, &error) &&
			(size_t) snprintf(name, size, "%s", manifest.database) < size;
	}
	if (dir != NULL)
		closedir(dir);
	return found;
}
