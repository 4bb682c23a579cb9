/*
 * replay_survey.c
 *	  What a replay would send, for its dry run and its total; and the small
 *	  functions that its SQL part calls.
 */
#include "outbox.h"

#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "encode.h"
#include "event.h"
#include "held.h"
#include "pause.h"
#include "replay_filter.h"
#include "replay_job.h"
#include "url.h"
#include "worker.h"

PG_FUNCTION_INFO_V1(outbox_subject_matches);
PG_FUNCTION_INFO_V1(outbox_subject_of);
PG_FUNCTION_INFO_V1(outbox_is_nats_url);
PG_FUNCTION_INFO_V1(outbox_is_clickhouse_url);
PG_FUNCTION_INFO_V1(outbox_replay_survey);

/* outbox.subject_matches(pattern text, subject text) */
Datum
outbox_subject_matches(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_pause_matches(text_to_cstring(PG_GETARG_TEXT_PP(0)), text_to_cstring(PG_GETARG_TEXT_PP(1))));
}

static const char *
utf8_argument(FunctionCallInfo fcinfo, int number)
{
	return outbox_event_utf8(text_to_cstring(PG_GETARG_TEXT_PP(number)));
}

/* outbox.subject_of(aggregate_type, aggregate_id, event_type, subject text); a template's subject is ASCII */
Datum
outbox_subject_of(PG_FUNCTION_ARGS)
{
	char		subject[OUTBOX_SUBJECT_BUFFER];

	if (!PG_ARGISNULL(3))
		PG_RETURN_DATUM(PG_GETARG_DATUM(3));
	if (PG_ARGISNULL(0) || PG_ARGISNULL(1) || PG_ARGISNULL(2) ||
		outbox_encode_subject(outbox_subject_template, utf8_argument(fcinfo, 0), utf8_argument(fcinfo, 1),
							  utf8_argument(fcinfo, 2), subject, sizeof(subject)) < 0)
		PG_RETURN_NULL();
	PG_RETURN_TEXT_P(cstring_to_text(subject));
}

/* outbox.is_nats_url(list text) */
Datum
outbox_is_nats_url(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_url_check_list(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

/* outbox.is_clickhouse_url(url text) */
Datum
outbox_is_clickhouse_url(PG_FUNCTION_ARGS)
{
	PG_RETURN_BOOL(outbox_url_check_archive(text_to_cstring(PG_GETARG_TEXT_PP(0))));
}

/* The size of the payload as an SQL expression: the first column that isn't null, as in replay_row.c. Leaves the columns in SPI_tuptable. */
static const char *
payload_size(const OutboxReplayJob *job, const char *query)
{
	char	   *probe = psprintf("SELECT * FROM (%s) r LIMIT 0", query);
	const char *columns[] = {"payload", "payload_text", "payload_bytes"};
	StringInfoData size;

	if (strcmp(job->source, "log") == 0)
		return "octet_length(payload)";
	if (SPI_execute(probe, true, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not look at the query of a replay");
	(void) outbox_row_shape(SPI_tuptable->tupdesc);
	initStringInfo(&size);
	appendStringInfoString(&size, "coalesce(NULL");
	for (int i = 0; i < lengthof(columns); i++)
	{
		int			number = SPI_fnumber(SPI_tuptable->tupdesc, columns[i]);

		if (number > 0)
			appendStringInfo(&size, SPI_gettypeid(SPI_tuptable->tupdesc, number) == BYTEAOID ? ", octet_length(%s)" : ", octet_length(%s::text)", columns[i]);
	}
	appendStringInfoChar(&size, ')');
	return size.data;
}

static const char *
time_column(const OutboxReplayJob *job)
{
	if (strcmp(job->source, "log") == 0 || SPI_fnumber(SPI_tuptable->tupdesc, "created_at") > 0)
		return "created_at";
	return "occurred_at";
}

/* Rows of a query, which has the function's columns, become its result. */
static void
return_rows(ReturnSetInfo *result)
{
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		Datum		values[7];
		bool		nulls[7];

		for (int column = 0; column < lengthof(values); column++)
			values[column] = SPI_getbinval(SPI_tuptable->vals[i], SPI_tuptable->tupdesc, column + 1, &nulls[column]);
		tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
	}
}

static char *
query_of(Datum row, Oid type)
{
	if (SPI_execute_with_args("SELECT outbox.replay_query($1)", 1, &type, &row, NULL, false, 0) != SPI_OK_SELECT || SPI_processed != 1)
		elog(ERROR, "could not make the query of a replay");
	return SPI_getvalue(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
}

/* Counted by the database itself. */
static void
survey_by_sql(ReturnSetInfo *result, const OutboxReplayJob *job, const char *query)
{
	const char *size = payload_size(job, query);
	const char *time = time_column(job);
	char	   *survey = psprintf("SELECT event_type::text, count(*), coalesce(sum(%1$s), 0)::bigint, min(position)::bigint, max(position)::bigint,"
							" min(%2$s), max(%2$s) FROM (%3$s) r GROUP BY GROUPING SETS ((), (event_type))"
							" ORDER BY grouping(event_type) DESC, event_type",
							size, time, query);

	if (SPI_execute(survey, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not count the events of a replay");
	return_rows(result);
}

static void
return_count(ReturnSetInfo *result, const OutboxReplayCount *count)
{
	Datum		values[7];
	bool		nulls[7] = {false};

	nulls[0] = count->event_type == NULL;
	if (!nulls[0])
		values[0] = CStringGetTextDatum(pg_any_to_server(count->event_type, strlen(count->event_type), PG_UTF8));
	values[1] = Int64GetDatum(count->events);
	values[2] = Int64GetDatum(count->bytes);
	for (int i = 3; i < lengthof(nulls); i++)
		nulls[i] = count->events == 0;
	values[3] = Int64GetDatum(count->first_position);
	values[4] = Int64GetDatum(count->last_position);
	values[5] = TimestampTzGetDatum(count->first_time - outbox_unix_us(0));
	values[6] = TimestampTzGetDatum(count->last_time - outbox_unix_us(0));
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* Read to its end, and counted. */
static void
survey_outside(ReturnSetInfo *result, const OutboxReplayJob *job)
{
	OutboxReplaySurvey counts = {{0}};
	OutboxEnvelope envelope;
	OutboxReplaySource *source;
	OutboxSourceResult got;
	OutboxRow	row;

	outbox_held_envelope(&envelope);
	source = outbox_replay_outside_open(job, &envelope, 0);
	PG_TRY();
	{
		while ((got = outbox_replay_outside_next(source, &row)) != OUTBOX_SOURCE_END)
		{
			outbox_worker_check(0);
			if (got == OUTBOX_SOURCE_FAILED)
				ereport(ERROR,
						(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
						 errmsg("%s", source->error)));
			if (got == OUTBOX_SOURCE_ROW && !outbox_replay_survey_add(&counts, &row))
				ereport(ERROR,
						(errcode(ERRCODE_OUT_OF_MEMORY),
						 errmsg("out of memory")));
		}
		return_count(result, &counts.all);
		for (int i = 0; i < counts.type_count; i++)
			return_count(result, &counts.types[i]);
	}
	PG_FINALLY();
	{
		source->close(source);
		outbox_replay_survey_free(&counts);
	}
	PG_END_TRY();
}

/* outbox.replay_survey(job outbox.replay_job): a row for all events, then one for each type. What a job names is read with the server's rights. */
Datum
outbox_replay_survey(PG_FUNCTION_ARGS)
{
	HeapTupleHeader row = PG_GETARG_HEAPTUPLEHEADER(0);
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxReplayJob job;

	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("outbox.replay_survey() is a part of outbox.replay(), and for superusers only")));
	InitMaterializedSRF(fcinfo, 0);
	outbox_replay_read_job(row, &job);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (outbox_replay_is_outside(&job))
		survey_outside(result, &job);
	else
		survey_by_sql(result, &job, query_of(HeapTupleHeaderGetDatum(row), HeapTupleHeaderGetTypeId(row)));
	SPI_finish();
	return (Datum) 0;
}
