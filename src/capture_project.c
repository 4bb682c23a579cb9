/*
 * capture_project.c
 *	  Calls a capture's projection: a function of the user that makes events of
 *	  a changed row.
 *
 * It is called as f(operation text, old row, new row) and yields jsonb, or rows
 * with columns named as below; no row, or no payload, is no event. It runs with
 * the rights of the table's owner, as foreign keys do: the owner's code never
 * gets the rights of whoever writes, and the writer needs none on what it reads.
 * So the settings, search_path above all, must not be the writer's: they are
 * the fixed ones.
 */
#include "capture.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "log.h"

/* Saved plans outlive everything but this. */
static void
free_plan(void *arg)
{
	OutboxCapture *capture = arg;

	if (capture->plan != NULL)
		(void) SPI_freeplan(capture->plan);
	capture->plan = NULL;
}

/* Inside SPI_connect. */
static void
prepare(const OutboxRule *rule, OutboxCapture *capture)
{
	Oid			row_type = get_rel_type_id(rule->root);
	Oid			arguments[3] = {TEXTOID, row_type, row_type};
	SPIPlanPtr	plan;
	MemoryContextCallback *callback;

	if (capture->plan != NULL)
		return;
	plan = SPI_prepare(psprintf("SELECT p.* FROM %s($1, $2, $3) p", capture->projection), 3, arguments);
	if (plan == NULL || SPI_keepplan(plan) != 0)
		elog(ERROR, "could not prepare a call of %s", capture->projection);
	callback = MemoryContextAlloc(rule->context, sizeof(MemoryContextCallback));
	callback->func = free_plan;
	callback->arg = capture;
	capture->plan = plan;
	MemoryContextRegisterResetCallback(rule->context, callback);
}

static Datum
row_datum(const OutboxRule *rule, const OutboxRowData *row, char *null)
{
	*null = row == NULL ? 'n' : ' ';
	return row == NULL ? (Datum) 0 : HeapTupleGetDatum(heap_form_tuple(rule->desc, row->values, row->nulls));
}

/* One of the result's columns; false: the function has no such column, or it is NULL. */
static bool
result_column(const char *name, Oid type, HeapTuple tuple, TupleDesc desc, const char *function, Datum *value)
{
	int			column = SPI_fnumber(desc, name);
	bool		isnull;

	if (column <= 0)
		return false;
	if (SPI_gettypeid(desc, column) != type)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of what %s returns is of type %s, not %s", name, function,
						format_type_be(SPI_gettypeid(desc, column)), format_type_be(type))));
	*value = SPI_getbinval(tuple, desc, column, &isnull);
	return !isnull;
}

static void
read_text(const char *name, HeapTuple tuple, TupleDesc desc, const char *function, const char **string)
{
	Datum		value;

	if (result_column(name, TEXTOID, tuple, desc, function, &value))
		*string = TextDatumGetCString(value);
}

/* Memory is the current context's, which outlives SPI_finish. */
static void
read_event(const OutboxCapture *capture, HeapTuple tuple, TupleDesc desc, const OutboxNewEvent *model, OutboxCaptured *out)
{
	const char *function = capture->projection;
	OutboxNewEvent *event;
	Datum		value;
	bool		isnull = false;

	if (desc->natts == 1 && SPI_gettypeid(desc, 1) == JSONBOID)
		value = SPI_getbinval(tuple, desc, 1, &isnull);
	else
		isnull = !result_column("payload", JSONBOID, tuple, desc, function, &value);
	if (isnull)
		return;
	event = outbox_capture_add(out);
	*event = *model;
	event->payload = outbox_event_jsonb_bytes(DatumGetJsonbP(value));
	read_text("event_type", tuple, desc, function, &event->event_type);
	read_text("aggregate_type", tuple, desc, function, &event->aggregate_type);
	read_text("aggregate_id", tuple, desc, function, &event->aggregate_id);
	read_text("subject", tuple, desc, function, &event->subject);
	read_text("dataschema", tuple, desc, function, &event->dataschema);
	if (result_column("headers", JSONBOID, tuple, desc, function, &value))
		event->headers = DatumGetJsonbPCopy(value);
	if (result_column("aggregate_version", INT8OID, tuple, desc, function, &value))
	{
		event->aggregate_version_given = true;
		event->aggregate_version = DatumGetInt64(value);
	}
}

static void
call(const OutboxRule *rule, OutboxOperation operation, const OutboxRowData *old, const OutboxRowData *new)
{
	OutboxCapture *capture = rule->detail;
	char		nulls[3] = {' ', ' ', ' '};
	Datum		values[3];
	int			result;

	values[0] = CStringGetTextDatum(outbox_capture_operation_name(operation));
	values[1] = row_datum(rule, old, &nulls[1]);
	values[2] = row_datum(rule, new, &nulls[2]);
	result = SPI_execute_plan(capture->plan, values, nulls, false, 0);
	if (result != SPI_OK_SELECT)
		elog(ERROR, "could not call %s: %s", capture->projection, SPI_result_code_string(result));
}

/* Adds the events that the projection makes of the change; what it leaves open is model's. */
void
outbox_capture_project(const OutboxRule *rule, OutboxOperation operation, const OutboxRowData *old,
					   const OutboxRowData *new, const OutboxNewEvent *model, OutboxCaptured *out)
{
	OutboxCapture *capture = rule->detail;
	MemoryContext caller = CurrentMemoryContext;
	Oid			user;
	int			security;
	int			level = outbox_settings_fix();

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(capture->owner, security | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	prepare(rule, capture);
	call(rule, operation, old, new);
	for (uint64 i = 0; i < SPI_processed; i++)
	{
		MemoryContext spi = MemoryContextSwitchTo(caller);

		read_event(capture, SPI_tuptable->vals[i], SPI_tuptable->tupdesc, model, out);
		MemoryContextSwitchTo(spi);
	}
	SPI_finish();
	SetUserIdAndSecContext(user, security);
	outbox_settings_restore(level);
}
