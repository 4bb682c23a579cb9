/*
 * consumer_message.c
 *	  Makes an outbox.message of what NATS has delivered. Nothing in a message may
 *	  make that fail, because what can't be handled must at least be parked: text
 *	  that isn't valid here has question marks, a payload that is no JSON is NULL.
 */
#include "consumer.h"

#include "access/htup_details.h"
#include "access/xact.h"
#include "catalog/pg_type.h"
#include "common/md5.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/resowner.h"
#include "utils/timestamp.h"
#include "utils/typcache.h"
#include "utils/uuid.h"

enum
{
	EVENT_ID,
	EVENT_TYPE,
	AGGREGATE_TYPE,
	AGGREGATE_ID,
	AGGREGATE_VERSION,
	PAYLOAD,
	DATA,
	HEADERS,
	SUBJECT,
	STREAM,
	STREAM_SEQUENCE,
	PUBLISHED_AT,
	ATTEMPT,
	COLUMNS
};

/* The value of a header, whatever case its name is written in; NULL: none. */
const char *
outbox_consumer_header(const BrokerReceived *received, const char *key)
{
	for (int i = 0; i < received->header_count; i++)
	{
		if (pg_strcasecmp(received->headers[i].key, key) == 0)
			return received->headers[i].value;
	}
	return NULL;
}

/* A copy that is valid in the database's encoding. */
static char *
safe_text(const char *text)
{
	char	   *copy = pstrdup(text);

	if (GetDatabaseEncoding() == PG_UTF8 && pg_verify_mbstr(PG_UTF8, copy, strlen(copy), true))
		return copy;
	for (char *c = copy; *c != '\0'; c++)
	{
		if (IS_HIGHBIT_SET(*c))
			*c = '?';
	}
	return copy;
}

static int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c = pg_tolower((unsigned char) c);
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A CloudEvents value, whose percent-encoding is undone. */
static char *
decode(const char *value)
{
	char	   *decoded = pstrdup(value);
	char	   *to = decoded;

	for (const char *from = value; *from != '\0'; from++)
	{
		int			high = from[0] == '%' ? hex_value(from[1]) : -1;
		int			low = high >= 0 ? hex_value(from[2]) : -1;

		if (low >= 0 && (high != 0 || low != 0))
		{
			*to++ = (char) (high << 4 | low);
			from += 2;
		}
		else
			*to++ = *from;
	}
	*to = '\0';
	return safe_text(decoded);
}

/* 32 hexadecimal digits, hyphens between them or not. */
static bool
parse_uuid(const char *text, pg_uuid_t *uuid)
{
	int			digits = 0;

	for (; *text != '\0'; text++)
	{
		int			value = hex_value(*text);

		if (*text == '-' && digits > 0)
			continue;
		if (value < 0 || digits == 2 * UUID_LEN)
			return false;
		if (digits % 2 == 0)
			uuid->data[digits / 2] = (unsigned char) (value << 4);
		else
			uuid->data[digits / 2] |= (unsigned char) value;
		digits++;
	}
	return digits == 2 * UUID_LEN;
}

/*
 * What makes a repetition known: ce-id, else Nats-Msg-Id, else its place in the
 * stream. What is no UUID becomes one by MD5, a CloudEvents id together with its source.
 */
static void
identify(const Consumer *consumer, const BrokerReceived *received, pg_uuid_t *uuid)
{
	const char *id = outbox_consumer_header(received, "ce-id");
	const char *source = outbox_consumer_header(received, "ce-source");
	const char *words = NULL;
	char		hex[2 * UUID_LEN + 1];
	char	   *text;

	if (id == NULL || id[0] == '\0')
	{
		source = NULL;
		id = outbox_consumer_header(received, "Nats-Msg-Id");
	}
	if (id != NULL && parse_uuid(id, uuid))
		return;
	if (id != NULL && id[0] != '\0')
		text = psprintf("%s %s", source == NULL ? "" : source, id);
	else
		text = psprintf("%s " INT64_FORMAT " " UINT64_FORMAT, consumer->stream, consumer->stream_created_ns, received->sequence);
	if (!pg_md5_hash(text, strlen(text), hex, &words) || !parse_uuid(hex, uuid))
		elog(ERROR, "could not compute MD5 hash: %s", words == NULL ? "unexpected result" : words);
}

/* All headers, as an object of strings. */
static Datum
headers_datum(const BrokerReceived *received)
{
	JsonbParseState *state = NULL;
	JsonbValue *object;

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < received->header_count; i++)
	{
		JsonbValue	key = {.type = jbvString};
		JsonbValue	value = {.type = jbvString};

		key.val.string.val = safe_text(received->headers[i].key);
		key.val.string.len = strlen(key.val.string.val);
		value.val.string.val = safe_text(received->headers[i].value);
		value.val.string.len = strlen(value.val.string.val);
		(void) pushJsonbValue(&state, WJB_KEY, &key);
		(void) pushJsonbValue(&state, WJB_VALUE, &value);
	}
	object = pushJsonbValue(&state, WJB_END_OBJECT, NULL);
	return JsonbPGetDatum(JsonbValueToJsonb(object));
}

/* Its content type, if it has one, may be JSON. */
static bool
may_be_json(const BrokerReceived *received)
{
	const char *type = outbox_consumer_header(received, "ce-datacontenttype");

	if (type == NULL)
		type = outbox_consumer_header(received, "Content-Type");
	return received->data_len > 0 && (type == NULL || strstr(type, "json") != NULL);
}

/* In a subtransaction, because that is how an error in it is got over. False: it is no JSON. */
static bool
payload_datum(const BrokerReceived *received, Datum *payload)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile bool parsed = false;

	if (!may_be_json(received))
		return false;
	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		char	   *text = pnstrdup(received->data, received->data_len);

		text = pg_any_to_server(text, received->data_len, PG_UTF8);
		*payload = DirectFunctionCall1(jsonb_in, CStringGetDatum(text));
		ReleaseCurrentSubTransaction();
		parsed = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(context);
		/* Whatever it is: what was asked from outside isn't an error here and still pending. */
		FlushErrorState();
		RollbackAndReleaseCurrentSubTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	return parsed;
}

static void
put_decoded(Datum *values, bool *nulls, int column, const char *value)
{
	nulls[column] = value == NULL;
	if (value != NULL)
		values[column] = CStringGetTextDatum(decode(value));
}

static Datum
data_datum(const BrokerReceived *received)
{
	bytea	   *data = palloc(VARHDRSZ + received->data_len);

	SET_VARSIZE(data, VARHDRSZ + received->data_len);
	memcpy(VARDATA(data), received->data, received->data_len);
	return PointerGetDatum(data);
}

/* The composite value that a handler gets. */
Datum
outbox_consumer_message(const Consumer *consumer, const QueuedMessage *message)
{
	const BrokerReceived *received = message->message;
	const char *version = outbox_consumer_header(received, "ce-aggregateversion");
	TupleDesc	desc = lookup_rowtype_tupdesc_copy(consumer->message_type, -1);
	Datum		values[COLUMNS] = {0};
	bool		nulls[COLUMNS] = {false};
	pg_uuid_t  *id = palloc(sizeof(pg_uuid_t));
	char	   *rest = NULL;

	if (desc->natts != COLUMNS)
		elog(ERROR, "type outbox.message is not as the library knows it");
	identify(consumer, received, id);
	values[EVENT_ID] = UUIDPGetDatum(id);
	put_decoded(values, nulls, EVENT_TYPE, outbox_consumer_header(received, "ce-type"));
	put_decoded(values, nulls, AGGREGATE_TYPE, outbox_consumer_header(received, "ce-aggregatetype"));
	put_decoded(values, nulls, AGGREGATE_ID, outbox_consumer_header(received, "ce-subject"));
	values[AGGREGATE_VERSION] = Int64GetDatum(version == NULL ? 0 : strtoll(version, &rest, 10));
	nulls[AGGREGATE_VERSION] = version == NULL || rest == version || *rest != '\0';
	nulls[PAYLOAD] = !payload_datum(received, &values[PAYLOAD]);
	values[DATA] = data_datum(received);
	values[HEADERS] = headers_datum(received);
	values[SUBJECT] = CStringGetTextDatum(safe_text(received->subject));
	values[STREAM] = CStringGetTextDatum(consumer->stream);
	values[STREAM_SEQUENCE] = Int64GetDatum((int64) received->sequence);
	values[PUBLISHED_AT] = TimestampTzGetDatum(received->published_ns / 1000 -
											   (POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY);
	values[ATTEMPT] = Int32GetDatum(message->attempts + 1);
	return heap_copy_tuple_as_datum(heap_form_tuple(desc, values, nulls), desc);
}
