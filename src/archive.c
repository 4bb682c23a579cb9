/*
 * archive.c
 *	  Writes a range of the log out before retention removes it: to a file in
 *	  outbox.archive_directory, and to outbox.archive_url.
 *
 * Called by the cleaner for a range that can go, between its transactions. The
 * plan says which positions stay in the database; all others are terminal, and
 * nobody writes into the child any more, so they can be read and written out at
 * leisure, without a lock or a snapshot that anybody could wait for. What may
 * still happen meanwhile (an event that stays is published, a dead letter is
 * redriven) is noticed under the lock of the TRUNCATE, see retire.c: by the
 * number of rows in the ledger, and by outbox.range_keeps_dead(). Then the range
 * is archived anew, and the new file takes the place of the old one.
 *
 * outbox.archives remembers what is durable, so that it isn't written again
 * after a crash, or while only the lock can't be had. It knows the checksum of a
 * file before the file gets its name: what has the name already and isn't known
 * is somebody else's, and not touched.
 */
#include "archive.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_type.h"
#include "commands/dbcommands.h"
#include "common/file_perm.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "archive_http.h"
#include "archive_write.h"
#include "encode.h"
#include "event.h"
#include "worker.h"

#define MAX_CARRIED 10000

/* A range on its way into one place. */
typedef struct Job
{
	const OutboxRetention *retention;
	OutboxArchived *archived;
	char		kind;			/* as in outbox.archives: f, u */
	const char *destination;
	OutboxArchiveRows rows;
	ArchiveManifest manifest;	/* file is empty if there is none */
	int64		id;				/* of the row in outbox.archives */
} Job;

/* What was in the way of the range, for outbox.archive_troubles; empty: nothing. */
static StringInfoData trouble;

void
outbox_archive_raise(const char *what, const ArchiveError *error)
{
	ereport(ERROR,
			(errcode(error->kind == ARCHIVE_NO_MEMORY ? ERRCODE_OUT_OF_MEMORY : ERRCODE_IO_ERROR),
			 what == NULL ? errmsg("%s", error->text) : errmsg("%s: %s", what, error->text)));
}

/* A transaction of the job; the extension's end ends it. */
static void
begin(const Job *job)
{
	if (!outbox_retire_begin(job->retention))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("extension \"%s\" has gone", OUTBOX_EXTENSION)));
}

/* ----------------------------------------------------------- outbox.archives */

/* What the job comes to. state: w, d. */
static void
note(Job *job, char state)
{
	const ArchiveManifest *m = &job->manifest;
	bool		is_file = m->file[0] != '\0';
	Oid			types[] = {INT8OID, CHAROID, TEXTOID, TEXTOID, INT8OID, INT8OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT8OID, INT8OID, INT8OID, TEXTOID,
				   CHAROID, INT8ARRAYOID, INT8OID};
	Datum		values[] = {Int64GetDatum(job->archived->range), CharGetDatum(job->kind), CStringGetTextDatum(job->destination),
					  CStringGetTextDatum(m->file), Int64GetDatum(job->rows.first_position), Int64GetDatum(job->rows.last_position),
					  TimestampTzGetDatum(job->rows.first_time), TimestampTzGetDatum(job->rows.last_time),
					  Int64GetDatum(job->rows.events), Int64GetDatum(job->rows.text_bytes), Int64GetDatum(m->file_bytes),
					  CStringGetTextDatum(m->sha256), CharGetDatum(state), job->archived->kept, Int64GetDatum(job->archived->ledger_rows)};
	char		nulls[lengthof(types) + 1] = "               ";

	if (!is_file)
		nulls[3] = nulls[10] = nulls[11] = 'n';
	if (job->rows.events == 0)
		nulls[4] = nulls[5] = nulls[6] = nulls[7] = 'n';
	if (SPI_execute_with_args("INSERT INTO outbox.archives (id, range, kind, destination, file, first_position, last_position, first_time, last_time,"
							  " events, text_bytes, file_bytes, sha256, state, kept, ledger_rows)"
							  " SELECT coalesce(max(id), 0) + 1, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15"
							  " FROM outbox.archives RETURNING id",
							  lengthof(types), types, values, nulls, false, 0) != SPI_OK_INSERT_RETURNING)
		elog(ERROR, "could not write to outbox.archives");
	job->id = DatumGetInt64(outbox_retire_result(1, Int64GetDatum(0)));
}

/* Whether what already has the file's name is known: then it may be replaced. An error: it isn't. */
static bool
is_known(const Job *job)
{
	char	   *path = psprintf("%s/%s", job->destination, job->manifest.file);
	ArchiveManifest found;
	ArchiveError error;
	Oid			types[] = {TEXTOID, TEXTOID};
	Datum		values[2];

	if (!outbox_archive_manifest_read(path, &found, &error))
	{
		if (error.kind == ARCHIVE_MISSING)
			return false;
		outbox_archive_raise(NULL, &error);
	}
	values[0] = CStringGetTextDatum(job->manifest.file);
	values[1] = CStringGetTextDatum(found.sha256);
	outbox_retire_run("SELECT true FROM outbox.archives WHERE file = $1 AND sha256 = $2", lengthof(types), types, values);
	if (SPI_processed == 0)
		ereport(ERROR,
				(errcode(ERRCODE_DUPLICATE_FILE),
				 errmsg("\"%s\" exists, and this database did not write it", path),
				 errhint("Perhaps a copy of the database, or another server's, archives into the same directory.")));
	return true;
}

/* Earlier archives of the range in this kind of place: their files, unless they were replaced, and their rows. */
static void
forget_others(const Job *job)
{
	Oid			types[] = {INT8OID, CHAROID, INT8OID};
	Datum		values[] = {Int64GetDatum(job->archived->range), CharGetDatum(job->kind), Int64GetDatum(job->id)};
	List	   *files = NIL;

	begin(job);
	outbox_retire_run("SELECT o.destination, o.file, o.sha256 FROM outbox.archives o JOIN outbox.archives a ON a.id = $3"
					  " WHERE o.range = $1 AND o.kind = $2 AND o.id <> $3 AND o.file IS NOT NULL"
					  " AND (o.destination, o.file) IS DISTINCT FROM (a.destination, a.file)",
					  lengthof(types), types, values);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		for (int column = 1; column <= 3; column++)
			files = lappend(files, SPI_getvalue(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, column));
	}
	for (int i = 0; i < list_length(files); i += 3)
	{
		const char *directory = list_nth(files, i);
		const char *file = list_nth(files, i + 1);
		const char *sha256 = list_nth(files, i + 2);
		ArchiveManifest found;
		ArchiveError error;

		if (outbox_archive_manifest_read(psprintf("%s/%s", directory, file), &found, &error) && strcmp(found.sha256, sha256) == 0 &&
			!outbox_archive_remove(directory, file, &error))
			outbox_archive_raise(NULL, &error);
	}
	outbox_retire_run("DELETE FROM outbox.archives WHERE range = $1 AND kind = $2 AND id <> $3", lengthof(types), types, values);
	outbox_retire_commit();
}

/* -------------------------------------------------------------------- files */

static void
set_time(char *text, TimestampTz time)
{
	outbox_encode_time(outbox_unix_us(time), text);
}

/* All that isn't known from the writing. */
static void
fill_manifest(Job *job)
{
	ArchiveManifest *manifest = &job->manifest;

	manifest->format_version = ARCHIVE_FORMAT_VERSION;
	strlcpy(manifest->database, job->rows.database, sizeof(manifest->database));
	snprintf(manifest->system_identifier, sizeof(manifest->system_identifier), UINT64_FORMAT, GetSystemIdentifier());
	manifest->range = job->archived->range;
	manifest->first_position = job->rows.first_position;
	manifest->last_position = job->rows.last_position;
	manifest->events = job->rows.events;
	set_time(manifest->first_time, job->rows.first_time);
	set_time(manifest->last_time, job->rows.last_time);
	outbox_archive_name(manifest->database, manifest->first_position, manifest->last_position, outbox_archive_compression, manifest->file);
}

/* All rows, to the disk, under a temporary name. False: they have changed. */
static bool
write_rows(Job *job, ArchiveWriter *writer)
{
	ArchiveError error;

	while (outbox_archive_rows_next(&job->rows))
	{
		if (!outbox_archive_write(writer, job->rows.buffer.data, job->rows.buffer.length, &error))
			outbox_archive_raise(NULL, &error);
		OUTBOX_TEST_POINT("archive-writing");
		outbox_worker_check(0);
	}
	if (!job->rows.changed && job->rows.events > 0 && !outbox_archive_finish(writer, &job->manifest, &error))
		outbox_archive_raise(NULL, &error);
	return !job->rows.changed;
}

/* Gives the file its name, once outbox.archives knows of it. */
static void
publish(Job *job, ArchiveWriter *writer)
{
	ArchiveError error;
	bool		replace;

	fill_manifest(job);
	OUTBOX_TEST_POINT("archive-written");
	begin(job);
	replace = is_known(job);
	note(job, 'w');
	outbox_retire_commit();
	OUTBOX_TEST_POINT("archive-noted");
	if (!outbox_archive_publish(writer, &job->manifest, replace, &error))
		outbox_archive_raise(NULL, &error);
	OUTBOX_TEST_POINT("archive-named");
	begin(job);
	outbox_retire_run(psprintf("UPDATE outbox.archives SET state = 'd', archived_at = pg_catalog.clock_timestamp() WHERE id = %lld", (long long) job->id),
					  0, NULL, NULL);
	outbox_retire_commit();
}

/* The file that is being written; what remains of it goes with the process, too. */
static ArchiveWriter *current_writer = NULL;

static void
discard_current(int code, Datum arg)
{
	ArchiveWriter *writer = current_writer;

	current_writer = NULL;
	outbox_archive_discard(writer);
}

static bool
archive_to_file(Job *job)
{
	static bool	registered = false;
	ArchiveWriter *writer;
	ArchiveError error;
	char		prefix[ARCHIVE_NAME_SIZE];
	volatile bool done = false;

	outbox_archive_prefix(job->rows.database, prefix);
	outbox_archive_sweep(job->destination, prefix);
	if (!registered)
		on_proc_exit(discard_current, (Datum) 0);
	registered = true;
	writer = outbox_archive_create(job->destination, prefix, outbox_archive_compression, pg_file_create_mode, &error);
	if (writer == NULL)
		outbox_archive_raise(NULL, &error);
	current_writer = writer;
	PG_TRY();
	{
		done = write_rows(job, writer);
		if (done && job->rows.events > 0)
			publish(job, writer);
	}
	PG_FINALLY();
	{
		discard_current(0, (Datum) 0);
	}
	PG_END_TRY();
	return done;
}

/* --------------------------------------------------------------------- jobs */

/* False: the rows have changed meanwhile. */
static bool
run_job(Job *job)
{
	bool		done = true;

	if (job->kind == 'f')
		done = archive_to_file(job);
	else
	{
		outbox_archive_send(&job->rows);
		done = !job->rows.changed;
	}
	if (done && job->id == 0)
	{
		begin(job);
		note(job, 'd');
		outbox_retire_commit();
	}
	if (done)
		forget_others(job);
	return done;
}

/* What has gone wrong becomes a line of the trouble. */
static void
keep_error(MemoryContext context)
{
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	if (IsTransactionState())
		AbortCurrentTransaction();
	MemoryContextSwitchTo(context);
	appendStringInfo(&trouble, "%s%s%s%s", trouble.len > 0 ? "; " : "", error->message, error->hint == NULL ? "" : ". ",
					 error->hint == NULL ? "" : error->hint);
	FreeErrorData(error);
}

/* Archives the range in one place. False: not now, perhaps with some trouble. */
static bool
try_job(Job *job)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool done = false;

	PG_TRY();
	{
		done = run_job(job);
	}
	PG_CATCH();
	{
		keep_error(context);
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	free(job->rows.buffer.data);
	return done;
}

/* -------------------------------------------------------------------- plan */

/* Reads outbox.archive_plan(). False: the extension has gone. */
static bool
plan(const OutboxRetention *retention, int child, MemoryContext context, OutboxArchived *archived, bool *has_file, bool *has_url,
	 char **database)
{
	Oid			types[] = {INT4OID, TIMESTAMPTZOID, TIMESTAMPTZOID, INT4OID};
	Datum		values[] = {Int32GetDatum(child), TimestampTzGetDatum(retention->before),
					  TimestampTzGetDatum(retention->dead_before), Int32GetDatum(MAX_CARRIED)};
	MemoryContext caller;

	if (!outbox_retire_begin(retention))
		return false;
	outbox_retire_run("SELECT range, ledger_rows, kept, has_file, has_url FROM outbox.archive_plan($1, $2, $3, $4)", lengthof(types), types, values);
	caller = MemoryContextSwitchTo(context);
	archived->range = DatumGetInt64(outbox_retire_result(1, Int64GetDatum(0)));
	archived->ledger_rows = DatumGetInt64(outbox_retire_result(2, Int64GetDatum(0)));
	archived->kept = PointerGetDatum(DatumGetArrayTypePCopy(outbox_retire_result(3, (Datum) 0)));
	archived->kept_count = ArrayGetNItems(ARR_NDIM(DatumGetArrayTypeP(archived->kept)), ARR_DIMS(DatumGetArrayTypeP(archived->kept)));
	*has_file = DatumGetBool(outbox_retire_result(4, BoolGetDatum(false)));
	*has_url = DatumGetBool(outbox_retire_result(5, BoolGetDatum(false)));
	*database = pstrdup(outbox_event_utf8(get_database_name(MyDatabaseId)));
	MemoryContextSwitchTo(caller);
	outbox_retire_commit();
	return true;
}

/* Records the trouble, and says it in the log: when it is new, and at doubling counts. */
static void
report(const OutboxRetention *retention, int64 range)
{
	Oid			types[] = {INT8OID, TEXTOID};
	Datum		values[] = {Int64GetDatum(range), CStringGetTextDatum(trouble.data)};
	int32		failures;
	bool		is_new;

	if (!outbox_retire_begin(retention))
		return;
	outbox_retire_run("SELECT error FROM outbox.archive_troubles WHERE range = $1 AND error = $2", lengthof(types), types, values);
	is_new = SPI_processed == 0;
	outbox_retire_run("INSERT INTO outbox.archive_troubles AS t (range, error) VALUES ($1, $2)"
					  " ON CONFLICT (range) DO UPDATE SET failures = t.failures + 1, error = $2 RETURNING failures",
					  lengthof(types), types, values);
	failures = DatumGetInt32(outbox_retire_result(1, Int32GetDatum(1)));
	outbox_retire_commit();
	if (is_new || (failures & (failures - 1)) == 0)
		ereport(WARNING,
				(errmsg("outbox range %lld could not be archived: %s", (long long) range, trouble.data),
				 errdetail("It stays in the database, and is tried again. Failures so far: %d.", failures),
				 errhint("Repair what the reason names. See docs/failures.md, \"Range not archived\".")));
}

static void
forget_trouble(const OutboxRetention *retention, int64 range)
{
	if (!outbox_retire_begin(retention))
		return;
	outbox_retire_run(psprintf("DELETE FROM outbox.archive_troubles WHERE range <= %lld AND (range = %lld OR"
							   " range NOT IN (SELECT generation FROM outbox.ring))",
							   (long long) range, (long long) range),
					  0, NULL, NULL);
	outbox_retire_commit();
}

static bool
archive_to(const OutboxRetention *retention, int child, OutboxArchived *archived, const char *database, char kind, const char *destination)
{
	Job			job = {.retention = retention, .archived = archived, .kind = kind, .destination = destination};

	job.rows.retention = retention;
	job.rows.child = child;
	job.rows.kept = (const int64 *) ARR_DATA_PTR(DatumGetArrayTypeP(archived->kept));
	job.rows.kept_count = archived->kept_count;
	job.rows.as_lines = kind == 'f';
	job.rows.database = database;
	job.rows.archived_at = outbox_unix_us(GetCurrentTimestamp()) / 1000000;
	return try_job(&job);
}

bool
outbox_archive_range(const OutboxRetention *retention, int child, OutboxArchived *archived)
{
	static MemoryContext context = NULL;
	MemoryContext caller;
	char		url[1024];
	char	   *database;
	bool		has_file;
	bool		has_url;
	bool		done = true;

	memset(archived, 0, sizeof(*archived));
	archived->wanted = outbox_archive_directory[0] != '\0' || outbox_archive_url[0] != '\0';
	if (!archived->wanted)
		return true;
	if (context == NULL)
		context = AllocSetContextCreate(TopMemoryContext, "outbox archive", ALLOCSET_DEFAULT_SIZES);
	MemoryContextReset(context);
	if (!plan(retention, child, context, archived, &has_file, &has_url, &database))
		return false;
	caller = MemoryContextSwitchTo(context);
	initStringInfo(&trouble);
	outbox_archive_http_mask(outbox_archive_url, url, sizeof(url));
	if (outbox_archive_directory[0] != '\0' && !has_file)
		done = archive_to(retention, child, archived, database, 'f', outbox_archive_directory) && done;
	if (outbox_archive_url[0] != '\0' && !has_url)
		done = archive_to(retention, child, archived, database, 'u', url) && done;
	if (trouble.len > 0)
		report(retention, archived->range);
	else if (done)
		forget_trouble(retention, archived->range);
	MemoryContextSwitchTo(caller);
	OUTBOX_TEST_POINT("archived");
	return done;
}
