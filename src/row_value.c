/*
 * row_value.c
 *	  Values of columns as JSON and as text, in a form that no setting of the
 *	  session changes; and the aggregate id that key columns make.
 *
 * The JSON is that of to_json() under the settings listed below. Common types
 * are written directly, in that same form; the others by their own functions
 * while the settings are in force. The caller brackets a whole row with fix
 * and restore if one of its values depends on them.
 */
#include "row_value.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "common/shortest_dec.h"
#include "mb/pg_wchar.h"
#include "nodes/makefuncs.h"
#include "parser/parse_coerce.h"
#include "utils/builtins.h"
#include "utils/date.h"
#include "utils/datum.h"
#include "utils/datetime.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/guc.h"
#include "utils/json.h"
#include "utils/jsonb.h"
#include "utils/lsyscache.h"
#include "utils/uuid.h"

#include "encode.h"

/* How a type is written. */
enum
{
	FORM_BOOL,
	FORM_INT2,
	FORM_INT4,
	FORM_INT8,
	FORM_FLOAT4,
	FORM_FLOAT8,
	FORM_NUMERIC,
	FORM_TIME,					/* date, timestamp, timestamptz */
	FORM_UUID,
	FORM_STRING,				/* text and its kin */
	FORM_BYTEA,
	FORM_JSON,
	FORM_JSONB,
	FORM_OUTPUT,				/* a string by the output function, which heeds no setting */
	FORM_OTHER /* by to_json() */
};

/* ---------------------------------------------------------------- settings */

static const struct
{
	const char *name;
	const char *value;
} fixed_settings[] = {
	{"DateStyle", "ISO, MDY"},
	{"IntervalStyle", "postgres"},
	{"TimeZone", "UTC"},
	{"extra_float_digits", "1"},
	{"bytea_output", "hex"},
	{"xmloption", "content"},
	{"xmlbinary", "base64"},
	{"quote_all_identifiers", "off"},
	{"lc_monetary", "C"},
	{"lc_numeric", "C"},
	{"lc_time", "C"},
	{"search_path", "pg_catalog, pg_temp"},
};

/*
 * Puts the settings in force that a value may depend on; returns what restore
 * needs. An error in between restores them as well.
 */
int
outbox_settings_fix(void)
{
	int			level = 0;

	for (int i = 0; i < lengthof(fixed_settings); i++)
	{
		const char *name = fixed_settings[i].name;

		if (strcmp(GetConfigOption(name, false, false), fixed_settings[i].value) == 0)
			continue;
		if (level == 0)
			level = NewGUCNestLevel();
		(void) set_config_option(name, fixed_settings[i].value, PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_SAVE, true, 0, false);
	}
	return level;
}

void
outbox_settings_restore(int level)
{
	if (level > 0)
		AtEOXact_GUC(true, level);
}

/* ----------------------------------------------------------------- columns */

/* The number of a column that exists and isn't a system column, else 0. */
int
outbox_value_attnum(TupleDesc desc, const char *name)
{
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);

		if (!att->attisdropped && strcmp(NameStr(att->attname), name) == 0)
			return i + 1;
	}
	return 0;
}

static bool
has_cast_to_json(Oid type)
{
	Oid			function;

	return type >= FirstNormalObjectId &&
		find_coercion_pathway(JSONOID, type, COERCION_EXPLICIT, &function) == COERCION_PATH_FUNC;
}

static char
form_of_type(Oid type)
{
	switch (type)
	{
		case BOOLOID:
			return FORM_BOOL;
		case INT2OID:
			return FORM_INT2;
		case INT4OID:
			return FORM_INT4;
		case INT8OID:
			return FORM_INT8;
		case FLOAT4OID:
			return FORM_FLOAT4;
		case FLOAT8OID:
			return FORM_FLOAT8;
		case NUMERICOID:
			return FORM_NUMERIC;
		case DATEOID:
		case TIMESTAMPOID:
		case TIMESTAMPTZOID:
			return FORM_TIME;
		case UUIDOID:
			return FORM_UUID;
		case TEXTOID:
		case VARCHAROID:
		case BPCHAROID:
			return FORM_STRING;
		case BYTEAOID:
			return FORM_BYTEA;
		case JSONOID:
			return FORM_JSON;
		case JSONBOID:
			return FORM_JSONB;
		case NAMEOID:
		case CHAROID:
		case OIDOID:
		case INETOID:
		case CIDROID:
		case MACADDROID:
		case MACADDR8OID:
		case TIMEOID:
		case TIMETZOID:
		case BITOID:
		case VARBITOID:
		case TSVECTOROID:
			return FORM_OUTPUT;
		default:
			return get_typtype(type) == TYPTYPE_ENUM && !has_cast_to_json(type) ? FORM_OUTPUT : FORM_OTHER;
	}
}

/* Looks up how the column is written; memory is the current context's. attnum 0: no column. */
void
outbox_value_prepare(OutboxValue *value, TupleDesc desc, int attnum)
{
	Oid			output;
	bool		is_varlena;
	Node	   *argument;

	memset(value, 0, sizeof(*value));
	value->attnum = attnum;
	if (attnum == 0)
		return;
	value->type = getBaseType(TupleDescAttr(desc, attnum - 1)->atttypid);
	value->form = form_of_type(value->type);
	value->depends = value->form == FORM_OTHER;
	if (value->form != FORM_OUTPUT && value->form != FORM_OTHER && value->form != FORM_NUMERIC)
		return;
	getTypeOutputInfo(value->type, &output, &is_varlena);
	fmgr_info_cxt(output, &value->output, CurrentMemoryContext);
	if (value->form != FORM_OTHER)
		return;
	/* to_json() asks the expression for its argument's type. */
	fmgr_info_cxt(F_TO_JSON, &value->to_json, CurrentMemoryContext);
	argument = (Node *) makeNullConst(value->type, -1, InvalidOid);
	fmgr_info_set_expr((Node *) makeFuncExpr(F_TO_JSON, JSONOID, list_make1(argument), InvalidOid, InvalidOid,
											 COERCE_EXPLICIT_CALL),
					   &value->to_json);
}

/* ------------------------------------------------------------------ values */

/* "NaN" and the infinities are strings in JSON. */
static bool
is_json_number(const char *text)
{
	return (text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1] >= '0' && text[1] <= '9');
}

static char *
bytea_text(Datum datum)
{
	bytea	   *bytes = DatumGetByteaPP(datum);
	Size		length = VARSIZE_ANY_EXHDR(bytes);
	char	   *text = palloc_extended(length * 2 + 3, MCXT_ALLOC_HUGE);

	text[0] = '\\';
	text[1] = 'x';
	text[2 + hex_encode(VARDATA_ANY(bytes), length, text + 2)] = '\0';
	return text;
}

static char *
time_text(Oid type, Datum datum)
{
	char	   *text = palloc(MAXDATELEN + 1);
	const int	utc = 0;

	return JsonEncodeDateTime(text, datum, type, type == TIMESTAMPTZOID ? &utc : NULL);
}

/* A value as text: strings as they are, all else as in JSON, without quotes. */
char *
outbox_value_text(const OutboxValue *value, Datum datum)
{
	char	   *string;

	switch (value->form)
	{
		case FORM_BOOL:
			return pstrdup(DatumGetBool(datum) ? "true" : "false");
		case FORM_INT2:
			string = palloc(MAXINT8LEN + 1);
			pg_itoa(DatumGetInt16(datum), string);
			return string;
		case FORM_INT4:
			string = palloc(MAXINT8LEN + 1);
			pg_ltoa(DatumGetInt32(datum), string);
			return string;
		case FORM_INT8:
			string = palloc(MAXINT8LEN + 1);
			pg_lltoa(DatumGetInt64(datum), string);
			return string;
		case FORM_FLOAT4:
			string = palloc(FLOAT_SHORTEST_DECIMAL_LEN);
			float_to_shortest_decimal_buf(DatumGetFloat4(datum), string);
			return string;
		case FORM_FLOAT8:
			string = palloc(DOUBLE_SHORTEST_DECIMAL_LEN);
			double_to_shortest_decimal_buf(DatumGetFloat8(datum), string);
			return string;
		case FORM_TIME:
			return time_text(value->type, datum);
		case FORM_UUID:
			string = palloc(2 * UUID_LEN + 5);
			outbox_encode_uuid(DatumGetUUIDP(datum)->data, string);
			return string;
		case FORM_STRING:
		case FORM_JSON:
			return TextDatumGetCString(datum);
		case FORM_BYTEA:
			return bytea_text(datum);
		case FORM_JSONB:
		{
			Jsonb	   *json = DatumGetJsonbP(datum);

			return JsonbToCString(NULL, &json->root, VARSIZE(json));
		}
		default:
			return OutputFunctionCall((FmgrInfo *) &value->output, datum);
	}
}

/*
 * Whether JSON may be something that jsonb can't hold: escapes of U+0000 and
 * of half a surrogate pair, and numbers of absurd size. May say so of others.
 */
static bool
is_odd_json(const char *json)
{
	int			digits = 0;

	for (const char *c = json; *c != '\0'; c++)
	{
		if (*c == '\\' && c[1] == 'u' && (strncmp(c + 2, "0000", 4) == 0 || c[2] == 'd' || c[2] == 'D'))
			return true;
		if (digits > 0 && (*c == 'e' || *c == 'E') && strspn(c + 1, "+-0123456789") > 4)
			return true;
		digits = *c >= '0' && *c <= '9' ? digits + 1 : 0;
		if (digits > 10000)
			return true;
	}
	return false;
}

/*
 * Appends a value that isn't NULL as JSON. Sets *odd when it holds what a json
 * value can and a jsonb value can't.
 */
void
outbox_value_json(StringInfo out, const OutboxValue *value, Datum datum, bool *odd)
{
	char	   *string;

	if (value->form == FORM_OTHER)
		string = TextDatumGetCString(FunctionCall1((FmgrInfo *) &value->to_json, datum));
	else
		string = outbox_value_text(value, datum);

	switch (value->form)
	{
		case FORM_OTHER:
		case FORM_JSON:
			*odd = *odd || is_odd_json(string);
			/* FALLTHROUGH */
		case FORM_BOOL:
		case FORM_INT2:
		case FORM_INT4:
		case FORM_INT8:
		case FORM_JSONB:
			appendStringInfoString(out, string);
			break;
		case FORM_FLOAT4:
		case FORM_FLOAT8:
		case FORM_NUMERIC:
			if (is_json_number(string))
			{
				appendStringInfoString(out, string);
				break;
			}
			/* FALLTHROUGH */
		case FORM_TIME:
		case FORM_UUID:
			appendStringInfoChar(out, '"');
			appendStringInfoString(out, string);
			appendStringInfoChar(out, '"');
			break;
		default:
			escape_json(out, string);
			break;
	}
	pfree(string);
}

/*
 * Whether a column is the same in both rows, byte for byte: 1.0 and 1.00 are
 * different numerics. A value that stayed in its TOAST table isn't fetched.
 */
bool
outbox_value_same(TupleDesc desc, int attnum, const OutboxRowData *one, const OutboxRowData *other)
{
	Form_pg_attribute att = TupleDescAttr(desc, attnum - 1);
	Datum		left = one->values[attnum - 1];
	Datum		right = other->values[attnum - 1];

	if (one->nulls[attnum - 1] || other->nulls[attnum - 1])
		return one->nulls[attnum - 1] && other->nulls[attnum - 1];
	if (att->attbyval)
		return left == right;
	if (att->attlen == -1 &&
		VARSIZE_ANY(DatumGetPointer(left)) == VARSIZE_ANY(DatumGetPointer(right)) &&
		memcmp(DatumGetPointer(left), DatumGetPointer(right), VARSIZE_ANY(DatumGetPointer(left))) == 0)
		return true;
	return datum_image_eq(left, right, att->attbyval, att->attlen);
}

/* -------------------------------------------------------------------- keys */

/* Memory is the current context's. A name that isn't a column's is kept as missing. */
void
outbox_key_prepare(OutboxKey *key, TupleDesc desc, char **names, int count)
{
	memset(key, 0, sizeof(*key));
	key->count = count;
	key->names = palloc(sizeof(char *) * Max(count, 1));
	key->values = palloc(sizeof(OutboxValue) * Max(count, 1));
	for (int i = 0; i < count; i++)
	{
		key->names[i] = pstrdup(names[i]);
		outbox_value_prepare(&key->values[i], desc, outbox_value_attnum(desc, names[i]));
		key->depends = key->depends || key->values[i].depends;
		if (key->values[i].attnum == 0)
			key->missing = key->names[i];
	}
}

static void
append_escaped(StringInfo out, const char *text)
{
	for (; *text != '\0'; text++)
	{
		if (*text == '%')
			appendStringInfoString(out, "%25");
		else if (*text == ':')
			appendStringInfoString(out, "%3A");
		else
			appendStringInfoChar(out, *text);
	}
}

/*
 * The aggregate id of a row. A single column is taken as it is. Several are
 * joined by ":", with ":" and "%" in them escaped. What has no text of its own
 * is %null, %empty (single columns only) or, of a column that was dropped,
 * %missing: an id never gets shorter than its key.
 */
char *
outbox_key_text(const OutboxKey *key, const OutboxRowData *row)
{
	StringInfoData out;
	int			level = key->depends ? outbox_settings_fix() : 0;

	initStringInfo(&out);
	for (int i = 0; i < key->count; i++)
	{
		const OutboxValue *value = &key->values[i];
		char	   *text = NULL;

		if (value->attnum > 0 && !row->nulls[value->attnum - 1])
			text = outbox_value_text(value, row->values[value->attnum - 1]);
		if (i > 0)
			appendStringInfoChar(&out, ':');
		if (value->attnum == 0)
			appendStringInfoString(&out, "%missing");
		else if (text == NULL)
			appendStringInfoString(&out, "%null");
		else if (key->count > 1)
			append_escaped(&out, text);
		else
			appendStringInfoString(&out, text[0] == '\0' ? "%empty" : text);
	}
	outbox_settings_restore(level);
	return out.data;
}

bool
outbox_key_same(const OutboxKey *key, TupleDesc desc, const OutboxRowData *one, const OutboxRowData *other)
{
	for (int i = 0; i < key->count; i++)
	{
		if (key->values[i].attnum > 0 && !outbox_value_same(desc, key->values[i].attnum, one, other))
			return false;
	}
	return true;
}
