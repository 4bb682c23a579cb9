/*
 * archive_verify.c
 *	  outbox.verify_archive(): whether the archive is what it should be.
 *
 * Three things are compared: the files, their manifests, and outbox.archives.
 * Every file is read to its end. It is looked for where it was written, and then
 * in outbox.archive_directory, as an archive may have been moved.
 */
#include "archive.h"

#include <dirent.h>
#include <unistd.h>

#include "commands/dbcommands.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "event.h"

PG_FUNCTION_INFO_V1(outbox_verify_archive);

enum
{
	COLUMN_RANGE,
	COLUMN_DIRECTORY,
	COLUMN_FILE,
	COLUMN_FIRST_POSITION,
	COLUMN_LAST_POSITION,
	COLUMN_EVENTS,
	COLUMN_PROBLEM,
	COLUMNS
};

/* A row of outbox.archives that names a file. */
typedef struct Listed
{
	int64		range;
	char	   *directory;
	char	   *file;
	int64		first_position;
	int64		last_position;
	int64		events;
	char	   *sha256;
} Listed;

static void
put(ReturnSetInfo *result, const Listed *row, const char *problem)
{
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {false};

	values[COLUMN_RANGE] = Int64GetDatum(row->range);
	nulls[COLUMN_RANGE] = row->range == 0;
	nulls[COLUMN_DIRECTORY] = row->directory == NULL;
	if (row->directory != NULL)
		values[COLUMN_DIRECTORY] = CStringGetTextDatum(row->directory);
	nulls[COLUMN_FILE] = row->file == NULL;
	if (row->file != NULL)
		values[COLUMN_FILE] = CStringGetTextDatum(row->file);
	nulls[COLUMN_FIRST_POSITION] = nulls[COLUMN_LAST_POSITION] = row->first_position == 0;
	values[COLUMN_FIRST_POSITION] = Int64GetDatum(row->first_position);
	values[COLUMN_LAST_POSITION] = Int64GetDatum(row->last_position);
	nulls[COLUMN_EVENTS] = row->events == 0;
	values[COLUMN_EVENTS] = Int64GetDatum(row->events);
	nulls[COLUMN_PROBLEM] = problem == NULL;
	if (problem != NULL)
		values[COLUMN_PROBLEM] = CStringGetTextDatum(problem);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* ------------------------------------------------------------ listed files */

/*
 * Reading stops here when the session is asked to: the error must not leave
 * before the reader is closed.
 */
static bool
may_go_on(void *arg)
{
	return !(InterruptPending && (QueryCancelPending || ProcDiePending));
}

/* Whether the manifest and outbox.archives mean the same file. */
static bool
agrees(const Listed *row, const ArchiveManifest *manifest, ArchiveError *error)
{
	if (strcmp(manifest->file, row->file) != 0)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest is that of another file");
	if (strcmp(manifest->sha256, row->sha256) != 0 || manifest->events != row->events || manifest->range != row->range ||
		manifest->first_position != row->first_position || manifest->last_position != row->last_position)
		return outbox_archive_complain(error, ARCHIVE_DAMAGED, 0, "the manifest is not what outbox.archives knows of the file");
	return true;
}

static bool
exists(const char *path)
{
	return access(path, F_OK) == 0;
}

/* What is wrong with a file; NULL: nothing. Sets row->directory to where it was found. */
static const char *
problem_of(Listed *row)
{
	char	   *path = psprintf("%s/%s", row->directory, row->file);
	ArchiveManifest manifest;
	ArchiveError error;

	if (!exists(path) && outbox_archive_directory[0] != '\0')
	{
		char	   *moved = psprintf("%s/%s", outbox_archive_directory, row->file);

		if (exists(moved))
		{
			row->directory = outbox_archive_directory;
			path = moved;
		}
	}
	if (!exists(path))
		return "the file is missing";
	if (!outbox_archive_manifest_read(path, &manifest, &error))
		return error.kind == ARCHIVE_MISSING ? "the manifest is missing" : pstrdup(error.text);
	if (agrees(row, &manifest, &error) && outbox_archive_verify(path, &manifest, may_go_on, NULL, &error))
		return NULL;
	CHECK_FOR_INTERRUPTS();
	return pstrdup(error.text);
}

/* The files that should be there, with the connection to SPI open. */
static Listed *
read_listed(int *count)
{
	Listed	   *rows;

	if (SPI_execute("SELECT range, directory, file, first_position, last_position, events, sha256 FROM outbox.archive_files"
					" ORDER BY range, archived_at",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not read outbox.archive_files");
	*count = (int) SPI_processed;
	rows = palloc0(sizeof(Listed) * (*count + 1));
	for (int i = 0; i < *count; i++)
	{
		HeapTuple	tuple = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;
		bool		isnull;

		rows[i].range = DatumGetInt64(SPI_getbinval(tuple, desc, 1, &isnull));
		rows[i].directory = SPI_getvalue(tuple, desc, 2);
		rows[i].file = SPI_getvalue(tuple, desc, 3);
		rows[i].first_position = DatumGetInt64(SPI_getbinval(tuple, desc, 4, &isnull));
		rows[i].last_position = DatumGetInt64(SPI_getbinval(tuple, desc, 5, &isnull));
		rows[i].events = DatumGetInt64(SPI_getbinval(tuple, desc, 6, &isnull));
		rows[i].sha256 = SPI_getvalue(tuple, desc, 7);
	}
	return rows;
}

/* --------------------------------------------------------- gaps, strangers */

/* Ranges that are neither in the log nor archived, between those that were. */
static void
put_gaps(ReturnSetInfo *result)
{
	if (SPI_execute("SELECT g, p.first_position, p.last_position FROM (SELECT min(range) AS lo, max(range) AS hi FROM outbox.archives WHERE kind = 'f') a,"
					" LATERAL pg_catalog.generate_series(a.lo, a.hi) g LEFT JOIN outbox.purges p ON p.generation = g"
					" WHERE NOT EXISTS (SELECT FROM outbox.archives o WHERE o.range = g AND o.kind = 'f' AND o.state = 'd')"
					" AND NOT EXISTS (SELECT FROM outbox.ring r WHERE r.generation = g) ORDER BY g",
					true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look for gaps");
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Listed		gap = {0};
		bool		isnull;

		gap.range = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 1, &isnull));
		gap.first_position = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 2, &isnull));
		gap.last_position = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, 3, &isnull));
		put(result, &gap, "a gap: this range was removed without having been archived");
	}
}

static bool
is_listed(const Listed *rows, int count, const char *file)
{
	for (int i = 0; i < count; i++)
	{
		if (strcmp(rows[i].file, file) == 0)
			return true;
	}
	return false;
}

static int
compare_names(const ListCell *a, const ListCell *b)
{
	return strcmp(lfirst(a), lfirst(b));
}

/* Files of this database's name in outbox.archive_directory that outbox.archives doesn't know. */
static void
put_strangers(ReturnSetInfo *result, const Listed *rows, int count)
{
	char		prefix[ARCHIVE_NAME_SIZE];
	List	   *files = NIL;
	ListCell   *file;
	DIR		   *folder = outbox_archive_directory[0] == '\0' ? NULL : opendir(outbox_archive_directory);
	struct dirent *entry;

	if (folder == NULL)
		return;
	outbox_archive_prefix(outbox_event_utf8(get_database_name(MyDatabaseId)), prefix);
	while ((entry = readdir(folder)) != NULL)
	{
		if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0 && outbox_archive_parse_name(entry->d_name, NULL, NULL, NULL) &&
			!is_listed(rows, count, entry->d_name))
			files = lappend(files, pstrdup(entry->d_name));
	}
	closedir(folder);
	list_sort(files, compare_names);
	foreach(file, files)
	{
		Listed		row = {.directory = outbox_archive_directory, .file = lfirst(file)};

		(void) outbox_archive_parse_name(row.file, &row.first_position, &row.last_position, NULL);
		put(result, &row, "outbox.archives does not know this file");
	}
}

/* outbox.verify_archive() */
Datum
outbox_verify_archive(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	Listed	   *rows;
	int			count;

	InitMaterializedSRF(fcinfo, 0);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	rows = read_listed(&count);
	for (int i = 0; i < count; i++)
	{
		const char *problem = problem_of(&rows[i]);

		put(result, &rows[i], problem);
		CHECK_FOR_INTERRUPTS();
	}
	put_gaps(result);
	put_strangers(result, rows, count);
	SPI_finish();
	return (Datum) 0;
}
