/*
 * cli_database.c
 *	  Events of a replay from a database that has the extension, as any client
 *	  that may read outbox.events.
 */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#define BATCH 1000
#define BATCH_TEXT "1000"

struct CliDatabase
{
	PGconn	   *connection;
	char		setting[1024];
};

typedef struct DatabaseSource
{
	OutboxReplaySource base;
	CliDatabase *database;
	const OutboxReplayFilter *filter;
	const OutboxEnvelope *envelope;
	int64_t		behind;
	int64_t		last;			/* position that there is to read */
	PGresult   *batch;
	int			at;
	int			count;
	unsigned char *payload;		/* of the row handed out last */
} DatabaseSource;

/* A message of libpq's as one line. */
static void
take_message(const char *what, const char *message, char error[OUTBOX_SOURCE_TEXT_SIZE])
{
	char	   *end;

	snprintf(error, OUTBOX_SOURCE_TEXT_SIZE, "%s: %s", what, message);
	end = error + strlen(error);
	while (end > error && (end[-1] == '\n' || end[-1] == ' '))
		*--end = '\0';
}

CliDatabase *
cli_database_connect(const char *conninfo, char error[OUTBOX_SOURCE_TEXT_SIZE])
{
	CliDatabase *database = calloc(1, sizeof(CliDatabase));
	PGresult   *result;

	if (database == NULL)
	{
		strcpy(error, "out of memory");
		return NULL;
	}
	database->connection = PQconnectdb(conninfo);
	if (PQstatus(database->connection) != CONNECTION_OK)
	{
		take_message("could not connect to the database", PQerrorMessage(database->connection), error);
		PQfinish(database->connection);
		free(database);
		return NULL;
	}
	result = PQexec(database->connection, "SET client_encoding = 'UTF8'; SET default_transaction_read_only = on; SET jit = off; SET application_name = 'outbox-replay'");
	PQclear(result);
	return database;
}

/* Valid until the next call; NULL: there is none. */
const char *
cli_database_setting(CliDatabase *database, const char *name)
{
	PGresult   *result = PQexecParams(database->connection,
									"SELECT CASE WHEN $1 = 'database' THEN current_database()::text ELSE current_setting($1, true) END",
									1, NULL, &name, NULL, NULL, 0);
	bool		found = PQresultStatus(result) == PGRES_TUPLES_OK && !PQgetisnull(result, 0, 0) && PQgetvalue(result, 0, 0)[0] != '\0';

	if (found)
		snprintf(database->setting, sizeof(database->setting), "%s", PQgetvalue(result, 0, 0));
	PQclear(result);
	return found ? database->setting : NULL;
}

/* -------------------------------------------------------------------- events */

#define MICROSECONDS(column) "(extract(epoch FROM " column ") * 1000000)::bigint"

/* Columns as read_row() takes them. A text is wanted byte for byte, so not in the client's encoding. */
static const char read_query[] =
	"SELECT position, event_id, aggregate_type, aggregate_id, event_type, subject,"
	" CASE WHEN payload IS NOT NULL THEN 'j' WHEN payload_text IS NOT NULL THEN 't' ELSE 'x' END,"
	" coalesce(convert_to(payload::text, 'UTF8'), convert_to(payload_text, getdatabaseencoding()), payload_bytes),"
	" headers::text, " MICROSECONDS("occurred_at") ", " MICROSECONDS("created_at") ", content_type, dataschema, aggregate_version"
																				   " FROM outbox.events WHERE position > $1::bigint AND position <= $2::bigint AND publish_state = 'published'"
																				   " AND created_at >= to_timestamp($3::bigint / 1000000) + ($3::bigint % 1000000) * interval '1 microsecond'"
																				   " AND created_at <= to_timestamp($4::bigint / 1000000) + ($4::bigint % 1000000) * interval '1 microsecond'"
																				   " AND ($5::text IS NULL OR event_type = $5) AND ($6::text IS NULL OR aggregate_type = $6) AND ($7::text IS NULL OR aggregate_id = $7)"
																				   " ORDER BY position LIMIT " BATCH_TEXT;

/* Where the range of time is, so that nothing else is read. */
static const char range_query[] =
	"SELECT coalesce(min(p) - 1, 0), coalesce(max(p), 0) FROM (SELECT position AS p FROM outbox.events"
	" WHERE created_at >= to_timestamp($1::bigint / 1000000) + ($1::bigint % 1000000) * interval '1 microsecond'"
	" AND created_at <= to_timestamp($2::bigint / 1000000) + ($2::bigint % 1000000) * interval '1 microsecond' OFFSET 0) r";

/* PostgreSQL's own limits are inside these. */
static int64_t
within_years(int64_t time)
{
	const int64_t limit = INT64_C(200000000000000000);

	return time < -INT64_C(60000000000000000) ? -INT64_C(60000000000000000) : time > limit ? limit :
																							 time;
}

static bool
read_batch(DatabaseSource *source)
{
	char		numbers[4][24];
	const char *values[] = {numbers[0], numbers[1], numbers[2], numbers[3], source->filter->event_type,
							source->filter->aggregate_type, source->filter->aggregate_id};

	snprintf(numbers[0], sizeof(numbers[0]), "%lld", (long long) source->behind);
	snprintf(numbers[1], sizeof(numbers[1]), "%lld", (long long) source->last);
	snprintf(numbers[2], sizeof(numbers[2]), "%lld", (long long) within_years(source->filter->from_time));
	snprintf(numbers[3], sizeof(numbers[3]), "%lld", (long long) within_years(source->filter->to_time));
	PQclear(source->batch);
	source->batch = PQexecParams(source->database->connection, read_query, 7, NULL, values, NULL, NULL, 0);
	source->at = 0;
	if (PQresultStatus(source->batch) != PGRES_TUPLES_OK)
	{
		take_message("could not read the events", PQresultErrorMessage(source->batch), source->base.error);
		return false;
	}
	source->count = PQntuples(source->batch);
	if (source->count > 0)
		source->behind = strtoll(PQgetvalue(source->batch, source->count - 1, 0), NULL, 10);
	return true;
}

static char *
value_at(const DatabaseSource *source, int column)
{
	return PQgetvalue(source->batch, source->at, column);
}

/* NULL for null. */
static char *
text_at(const DatabaseSource *source, int column)
{
	return PQgetisnull(source->batch, source->at, column) ? NULL : value_at(source, column);
}

static void
read_uuid(const char *text, OutboxUuid *uuid)
{
	unsigned int byte;
	int			count = 0;

	while (*text != '\0' && count < 16)
	{
		if (*text == '-')
			text++;
		else if (sscanf(text, "%2x", &byte) == 1)
		{
			uuid->data[count++] = (uint8_t) byte;
			text += 2;
		}
		else
			return;
	}
}

static bool
read_row(DatabaseSource *source, OutboxRow *row)
{
	const char *version = text_at(source, 13);
	size_t		len;

	memset(row, 0, sizeof(*row));
	row->position = strtoll(value_at(source, 0), NULL, 10);
	read_uuid(value_at(source, 1), &row->event_id);
	row->aggregate_type = value_at(source, 2);
	row->aggregate_id = value_at(source, 3);
	row->event_type = value_at(source, 4);
	row->subject = text_at(source, 5);
	row->payload_kind = value_at(source, 6)[0];
	PQfreemem(source->payload);
	source->payload = PQunescapeBytea((const unsigned char *) value_at(source, 7), &len);
	row->payload = (const char *) source->payload;
	row->payload_len = (int) len;
	row->headers = text_at(source, 8);
	row->occurred_at = strtoll(value_at(source, 9), NULL, 10);
	row->created_at = strtoll(value_at(source, 10), NULL, 10);
	row->content_type = text_at(source, 11);
	row->dataschema = text_at(source, 12);
	row->has_version = version != NULL;
	row->aggregate_version = version == NULL ? 0 : strtoll(version, NULL, 10);
	source->at++;
	if (source->payload == NULL)
		strcpy(source->base.error, "out of memory");
	return source->payload != NULL;
}

static OutboxSourceResult
next(OutboxReplaySource *base, OutboxRow *row)
{
	DatabaseSource *source = (DatabaseSource *) base;

	do
	{
		if (source->at == source->count)
		{
			if (source->batch != NULL && source->count < BATCH)
				return OUTBOX_SOURCE_END;
			if (!read_batch(source))
				return OUTBOX_SOURCE_FAILED;
			if (source->count == 0)
				return OUTBOX_SOURCE_END;
		}
		if (!read_row(source, row))
			return OUTBOX_SOURCE_FAILED;
	} while (!outbox_replay_filter_matches(source->filter, source->envelope, row));
	return OUTBOX_SOURCE_ROW;
}

static void
free_source(DatabaseSource *source)
{
	PQclear(source->batch);
	PQfreemem(source->payload);
	free(source);
}

static void
close_source(OutboxReplaySource *base)
{
	free_source((DatabaseSource *) base);
}

OutboxReplaySource *
cli_database_open(CliDatabase *database, const OutboxReplayFilter *filter, const OutboxEnvelope *envelope, int64_t behind,
				  char error[OUTBOX_SOURCE_TEXT_SIZE])
{
	DatabaseSource *source = calloc(1, sizeof(DatabaseSource));
	char		numbers[2][24];
	const char *values[] = {numbers[0], numbers[1]};
	PGresult   *result;

	if (source == NULL)
	{
		strcpy(error, "out of memory");
		return NULL;
	}
	source->base.next = next;
	source->base.close = close_source;
	source->database = database;
	source->filter = filter;
	source->envelope = envelope;
	snprintf(numbers[0], sizeof(numbers[0]), "%lld", (long long) within_years(filter->from_time));
	snprintf(numbers[1], sizeof(numbers[1]), "%lld", (long long) within_years(filter->to_time));
	result = PQexecParams(database->connection, range_query, 2, NULL, values, NULL, NULL, 0);
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		take_message("could not read outbox.events", PQresultErrorMessage(result), error);
		PQclear(result);
		free_source(source);
		return NULL;
	}
	source->behind = strtoll(PQgetvalue(result, 0, 0), NULL, 10);
	source->last = strtoll(PQgetvalue(result, 0, 1), NULL, 10);
	PQclear(result);
	if (source->behind < behind)
		source->behind = behind;
	if (source->behind < filter->from_position - 1)
		source->behind = filter->from_position - 1;
	if (source->last > filter->to_position)
		source->last = filter->to_position;
	return (OutboxReplaySource *) source;
}
