/*
 * jsonb_text.c
 *	  The canonical text of a jsonb value, as jsonb_out() writes it.
 *
 * PostgreSQL's JsonbToCString() looks at each character of a string by itself,
 * which was an eighth of what outbox.enqueue() costs. Here what needs no escape
 * is copied as a whole. sql/payload.sql compares the two.
 */
#include "postgres.h"

#include "jsonb_text.h"

#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/numeric.h"

/* What stands behind a backslash for a character; 0: the character stands for itself; 'u': in hexadecimal digits. */
static const char escapes[256] = {
	['\0'] = 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', ['"'] = '"', ['\\'] = '\\'};

static void
append_string(StringInfo out, const char *text, int len)
{
	int			done = 0;

	appendStringInfoCharMacro(out, '"');
	for (int i = 0; i < len; i++)
	{
		char		escape = escapes[(unsigned char) text[i]];

		if (escape == 0)
			continue;
		appendBinaryStringInfo(out, text + done, i - done);
		done = i + 1;
		if (escape == 'u')
			appendStringInfo(out, "\\u%04x", (unsigned int) (unsigned char) text[i]);
		else
		{
			appendStringInfoCharMacro(out, '\\');
			appendStringInfoCharMacro(out, escape);
		}
	}
	appendBinaryStringInfo(out, text + done, len - done);
	appendStringInfoCharMacro(out, '"');
}

static void
append_scalar(StringInfo out, const JsonbValue *value)
{
	switch (value->type)
	{
		case jbvNull:
			appendBinaryStringInfo(out, "null", 4);
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			appendStringInfoString(out, DatumGetCString(DirectFunctionCall1(numeric_out, NumericGetDatum(value->val.numeric))));
			break;
		case jbvString:
			append_string(out, value->val.string.val, value->val.string.len);
			break;
		default:
			elog(ERROR, "unexpected type of a jsonb value: %d", (int) value->type);
	}
}

/* Appends the text of a jsonb value, in the server's encoding. */
void
outbox_jsonb_text(StringInfo out, Jsonb *json)
{
	JsonbIterator *iterator = JsonbIteratorInit(&json->root);
	JsonbIteratorToken token;
	JsonbValue	value;
	bool		bare = JB_ROOT_IS_SCALAR(json); /* a scalar comes as an array of one */
	bool		comma = false;

	/* The text is rarely longer. */
	enlargeStringInfo(out, VARSIZE(json));
	while ((token = JsonbIteratorNext(&iterator, &value, false)) != WJB_DONE)
	{
		bool		ends = token == WJB_END_ARRAY || token == WJB_END_OBJECT;

		if (comma && !ends)
			appendBinaryStringInfo(out, ", ", 2);
		comma = true;
		if (token == WJB_BEGIN_OBJECT || (token == WJB_BEGIN_ARRAY && !bare))
			appendStringInfoCharMacro(out, token == WJB_BEGIN_OBJECT ? '{' : '[');
		else if (token == WJB_END_OBJECT || (token == WJB_END_ARRAY && !bare))
			appendStringInfoCharMacro(out, token == WJB_END_OBJECT ? '}' : ']');
		else if (token == WJB_KEY)
		{
			append_string(out, value.val.string.val, value.val.string.len);
			appendBinaryStringInfo(out, ": ", 2);
		}
		else if (token == WJB_VALUE || token == WJB_ELEM)
			append_scalar(out, &value);
		if (token == WJB_BEGIN_OBJECT || token == WJB_BEGIN_ARRAY || token == WJB_KEY)
			comma = false;
	}
}
