/*
 * replay_row.c
 *	  Events from rows of any query whose columns have the right names: those of
 *	  outbox.log, of outbox.events, or of lines of the archive.
 */
#include "outbox.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/uuid.h"

#include "event.h"
#include "held.h"
#include "replay_job.h"

/* Column numbers; 0 or below: there is none. */
struct OutboxRowShape
{
	int			position;
	int			event_id;
	int			aggregate_type;
	int			aggregate_id;
	int			event_type;
	int			payload;
	int			payload_text;
	int			payload_bytes;
	int			payload_kind;
	int			subject;
	int			headers;
	int			occurred_at;
	int			created_at;
	int			content_type;
	int			dataschema;
	int			aggregate_version;
};

static int
column(TupleDesc desc, const char *name, bool required)
{
	int			number = SPI_fnumber(desc, name);

	if (number <= 0 && required)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("the query of a replay has no column \"%s\"", name),
				 errhint("It needs position, event_id, aggregate_type, aggregate_id, event_type, payload, and occurred_at or created_at.")));
	return Max(number, 0);
}

static int
time_column(TupleDesc desc, const char *name)
{
	int			number = column(desc, name, false);

	if (number > 0 && SPI_gettypeid(desc, number) != TIMESTAMPTZOID)
		ereport(ERROR,
				(errcode(ERRCODE_DATATYPE_MISMATCH),
				 errmsg("column \"%s\" of the query of a replay is not a timestamp with time zone", name)));
	return number;
}

/* palloc'd. */
OutboxRowShape *
outbox_row_shape(TupleDesc desc)
{
	OutboxRowShape *shape = palloc0(sizeof(OutboxRowShape));

	shape->position = column(desc, "position", true);
	shape->event_id = column(desc, "event_id", true);
	shape->aggregate_type = column(desc, "aggregate_type", true);
	shape->aggregate_id = column(desc, "aggregate_id", true);
	shape->event_type = column(desc, "event_type", true);
	shape->payload_text = column(desc, "payload_text", false);
	shape->payload_bytes = column(desc, "payload_bytes", false);
	shape->payload = column(desc, "payload", shape->payload_text <= 0 && shape->payload_bytes <= 0);
	shape->payload_kind = column(desc, "payload_kind", false);
	shape->subject = column(desc, "subject", false);
	shape->headers = column(desc, "headers", false);
	shape->occurred_at = time_column(desc, "occurred_at");
	shape->created_at = time_column(desc, "created_at");
	if (shape->occurred_at <= 0 && shape->created_at <= 0)
		(void) column(desc, "occurred_at", true);
	shape->content_type = column(desc, "content_type", false);
	shape->dataschema = column(desc, "dataschema", false);
	shape->aggregate_version = column(desc, "aggregate_version", false);
	return shape;
}

/* NULL: no such column, or null. */
static char *
text_of(HeapTuple tuple, TupleDesc desc, int number)
{
	return number <= 0 ? NULL : SPI_getvalue(tuple, desc, number);
}

static char *
required_text(HeapTuple tuple, TupleDesc desc, int number)
{
	char	   *text = text_of(tuple, desc, number);

	if (text == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("column \"%s\" of the query of a replay is null", SPI_fname(desc, number))));
	return text;
}

static int64
int64_of(HeapTuple tuple, TupleDesc desc, int number)
{
	bool		isnull;

	if (SPI_gettypeid(desc, number) == INT8OID)
	{
		Datum		value = SPI_getbinval(tuple, desc, number, &isnull);

		if (!isnull)
			return DatumGetInt64(value);
	}
	return pg_strtoint64(required_text(tuple, desc, number));
}

static bool
time_of(HeapTuple tuple, TupleDesc desc, int number, int64 *unix_us)
{
	bool		isnull = true;
	Datum		value = number <= 0 ? (Datum) 0 : SPI_getbinval(tuple, desc, number, &isnull);

	if (!isnull)
		*unix_us = outbox_unix_us(DatumGetTimestampTz(value));
	return !isnull;
}

static void
read_uuid(HeapTuple tuple, TupleDesc desc, int number, OutboxUuid *uuid)
{
	bool		isnull;
	Datum		value;

	if (SPI_gettypeid(desc, number) == UUIDOID)
	{
		value = SPI_getbinval(tuple, desc, number, &isnull);
		if (isnull)
			(void) required_text(tuple, desc, number);
	}
	else
		value = DirectFunctionCall1(uuid_in, CStringGetDatum(required_text(tuple, desc, number)));
	memcpy(uuid->data, DatumGetUUIDP(value)->data, sizeof(uuid->data));
}

static void
set_payload(OutboxRow *row, char kind, const void *data, int len)
{
	row->payload_kind = kind;
	row->payload = data;
	row->payload_len = len;
}

/* A payload of type bytea, jsonb, or what has a text. kind 0: by the type. */
static void
read_payload_of(HeapTuple tuple, TupleDesc desc, int number, char kind, OutboxRow *row)
{
	Oid			type = SPI_gettypeid(desc, number);
	bool		isnull;

	if (type == BYTEAOID)
	{
		bytea	   *bytes = DatumGetByteaPP(SPI_getbinval(tuple, desc, number, &isnull));

		set_payload(row, kind == 0 ? PAYLOAD_BYTES : kind, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
	}
	else if (kind == PAYLOAD_BYTES)
	{
		/* As in a line of the archive. */
		bytea	   *bytes = DatumGetByteaPP(DirectFunctionCall2(binary_decode,
														   CStringGetTextDatum(SPI_getvalue(tuple, desc, number)),
														   CStringGetTextDatum("base64")));

		set_payload(row, kind, VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes));
	}
	else
	{
		const char *text = SPI_getvalue(tuple, desc, number);

		if (kind == 0)
			kind = type == JSONBOID ? PAYLOAD_JSONB : PAYLOAD_TEXT;
		if (kind == PAYLOAD_JSONB)
			text = outbox_event_utf8(text);
		set_payload(row, kind, text, strlen(text));
	}
}

static void
read_payload(const OutboxRowShape *shape, HeapTuple tuple, TupleDesc desc, OutboxRow *row)
{
	int			columns[] = {shape->payload, shape->payload_text, shape->payload_bytes};
	char	   *kind = text_of(tuple, desc, shape->payload_kind);

	for (int i = 0; i < lengthof(columns); i++)
	{
		bool		isnull = true;

		if (columns[i] > 0)
			(void) SPI_getbinval(tuple, desc, columns[i], &isnull);
		if (!isnull)
		{
			read_payload_of(tuple, desc, columns[i], kind == NULL ? 0 : kind[0], row);
			return;
		}
	}
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("position %lld has no payload", (long long) row->position)));
}

/* All of it is in the current memory context afterwards, or in the tuple, and in UTF-8. */
void
outbox_row_read(const OutboxRowShape *shape, HeapTuple tuple, TupleDesc desc, OutboxRow *row)
{
	bool		occurred;
	bool		created;

	memset(row, 0, sizeof(*row));
	row->position = int64_of(tuple, desc, shape->position);
	read_uuid(tuple, desc, shape->event_id, &row->event_id);
	row->aggregate_type = required_text(tuple, desc, shape->aggregate_type);
	row->aggregate_id = required_text(tuple, desc, shape->aggregate_id);
	row->event_type = required_text(tuple, desc, shape->event_type);
	row->subject = text_of(tuple, desc, shape->subject);
	row->content_type = text_of(tuple, desc, shape->content_type);
	row->dataschema = text_of(tuple, desc, shape->dataschema);
	row->headers = text_of(tuple, desc, shape->headers);
	occurred = time_of(tuple, desc, shape->occurred_at, &row->occurred_at);
	created = time_of(tuple, desc, shape->created_at, &row->created_at);
	if (!occurred && !created)
		(void) required_text(tuple, desc, Max(shape->occurred_at, shape->created_at));
	if (!occurred)
		row->occurred_at = row->created_at;
	if (!created)
		row->created_at = row->occurred_at;
	if (shape->aggregate_version > 0)
	{
		char	   *version = text_of(tuple, desc, shape->aggregate_version);

		row->has_version = version != NULL;
		row->aggregate_version = version == NULL ? 0 : pg_strtoint64(version);
	}
	read_payload(shape, tuple, desc, row);
	outbox_held_row_to_utf8(row);
}
