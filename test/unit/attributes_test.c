/*
 * attributes_test.c
 *	  src/attributes.c alone: which names, trace contexts and JSON pass.
 */
#include <stdlib.h>
#include <string.h>

#include "attributes.h"
#include "unit.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

typedef const char *(*Check) (const char *);

/* An allocation of the exact size, so that ASan sees a read behind the NUL. */
static void
check(Check function, const char *what, const char *value, bool expected)
{
	char	   *copy = strdup(value);
	const char *complaint = function(copy);

	ok((complaint == NULL) == expected, "%s \"%.60s\" is %s", what, value, expected ? "accepted" : "refused");
	free(copy);
}

static void
check_json(const char *text, size_t length, bool expected)
{
	char	   *copy = malloc(length == 0 ? 1 : length);

	memcpy(copy, text, length);
	ok(outbox_attribute_valid_json(copy, length) == expected, "JSON %.*s is %s", length > 40 ? 40 : (int) length, text, expected ? "valid" : "not valid");
	free(copy);
}

static void
keys(void)
{
	static const char *const good[] = {"ce-a", "ce-9", "ce-tenant", "ce-subjects", "ce-abcdefghij0123456789"};
	static const char *const bad[] = {
		"ce-", "CE-a", "Ce-a", "ce-A", "ce-a_b", "ce-a-b", "ce-a.b", "ce-\xc3\xa9", "ce- ", "ce-abcdefghij01234567890", "ce-id", "ce-source",
		"ce-type", "ce-subject", "ce-time", "ce-specversion", "ce-datacontenttype", "ce-dataschema", "ce-data", "ce-sequence", "ce-partitionkey",
		"ce-aggregatetype", "ce-aggregateversion", "ce-traceparent", "ce-tracestate"};

	for (size_t i = 0; i < COUNT(good); i++)
		check(outbox_attribute_check_key, "key", good[i], true);
	for (size_t i = 0; i < COUNT(bad); i++)
		check(outbox_attribute_check_key, "key", bad[i], false);
	ok(outbox_attribute_has_prefix("ce-") && outbox_attribute_has_prefix("CE-x") && !outbox_attribute_has_prefix("ce") &&
	   !outbox_attribute_has_prefix("c") && !outbox_attribute_has_prefix("") && !outbox_attribute_has_prefix("cex-"), "the prefix");
}

static void
content_types(void)
{
	static const char *const json[] = {
		"application/json", "APPLICATION/JSON", "application/json; charset=utf-8", "application/json;x", "text/json", "application/vnd.a.b+json",
		"application/cloudevents+Json ;v=1", "a/json"};
	static const char *const other[] = {
		"", "json", "+json", "/json5", "application/jsonl", "application/xjson", "text/plain", "text/plain; x=application/json", "application/json-seq",
		"application/octet-stream", "son", "a/b"};

	for (size_t i = 0; i < COUNT(json); i++)
		ok(outbox_attribute_is_json(json[i]), "\"%s\" is JSON", json[i]);
	for (size_t i = 0; i < COUNT(other); i++)
		ok(!outbox_attribute_is_json(other[i]), "\"%s\" isn't JSON", other[i]);
}

#define TRACE "0af7651916cd43dd8448eb211c80319c"
#define PARENT "b7ad6b7169203331"

static void
traces(void)
{
	static const char *const good[] = {"00-" TRACE "-" PARENT "-01", "00-" TRACE "-" PARENT "-ff", "cc-" TRACE "-" PARENT "-00", "01-" TRACE "-" PARENT "-01-what-ever"};
	static const char *const bad[] = {
		"", "0", "00", "00-", "00-" TRACE, "00-" TRACE "-" PARENT, "00-" TRACE "-" PARENT "-0", "00-" TRACE "-" PARENT "-01-", "00-" TRACE "-" PARENT "-011",
		"01-" TRACE "-" PARENT "-011", "ff-" TRACE "-" PARENT "-01", "00-00000000000000000000000000000000-" PARENT "-01", "00-" TRACE "-0000000000000000-01",
		"00-0AF7651916CD43DD8448EB211C80319C-" PARENT "-01", "0g-" TRACE "-" PARENT "-01", "00_" TRACE "-" PARENT "-01", " 00-" TRACE "-" PARENT "-01",
		"01-" TRACE "-" PARENT "-01-a b", "01-" TRACE "-" PARENT "-01-\r\n", "01-" TRACE "-" PARENT "-01-\xc3\xa9"};
	static const char *const good_state[] = {
		"", "a=1", "a=1,b=2", " a=1 ,\tb=2\t", "a=1,,b=2,", "a_-*/9=x y!", "1tenant@system=v", "a@b=c", "a=~", "a=1;b"};
	static const char *const bad_state[] = {
		"a", "=1", "a=", "a= ", "A=1", "1a=1", "a b=1", "a=1=2", "a=\xc3\xa9", "a=\x01", "@b=1", "a@=1", "a@1=1", "a@abcdefghijklmno=1", "a=1\r\nX: y"};
	char		long_value[300];
	char		many[33 * 4 + 1] = "";

	for (size_t i = 0; i < COUNT(good); i++)
		check(outbox_attribute_check_traceparent, "traceparent", good[i], true);
	for (size_t i = 0; i < COUNT(bad); i++)
		check(outbox_attribute_check_traceparent, "traceparent", bad[i], false);
	for (size_t i = 0; i < COUNT(good_state); i++)
		check(outbox_attribute_check_tracestate, "tracestate", good_state[i], true);
	for (size_t i = 0; i < COUNT(bad_state); i++)
		check(outbox_attribute_check_tracestate, "tracestate", bad_state[i], false);
	memset(long_value, 'v', sizeof(long_value));
	memcpy(long_value, "a=", 2);
	long_value[2 + 256] = '\0';
	check(outbox_attribute_check_tracestate, "tracestate", long_value, true);
	memcpy(long_value + 2 + 256, "v", 2);
	check(outbox_attribute_check_tracestate, "tracestate", long_value, false);
	for (int i = 0; i < 32; i++)
		strcat(many, "a=1,");
	check(outbox_attribute_check_tracestate, "tracestate", many, true);
	strcat(many, "a=1,");
	check(outbox_attribute_check_tracestate, "tracestate", many, false);
}

static void
json(void)
{
	static const char *const good[] = {
		"null", "true", "false", "0", "-0", "1.50", "1e400", "-1E+2", "1e-2", "12345678901234567890", "\"\"", "\"a\"", "\"\\u00e9\\n\\\\\\\"\\/\"", "[]", "{}", "[ ]", "{ }",
		" [1 , 2]\r\n\t", "[[],{}]", "{\"a\":1,\"a\":{\"b\":[null]}}", "{\"\" : 0 }", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", "\"\x7f\"", "\"\\ud800\""};
	static const char *const bad[] = {
		"", " ", "nul", "nulll", "True", "01", "+1", "1.", ".5", "1e", "-", "--1", "NaN", "'a'", "\"", "\"a", "\"\\\"", "\"\\x\"", "\"\\u12g4\"", "\"\\u123", "\"\t\"", "\"\n\"", "[", "]",
		"[1", "[1,", "[1,]", "[,1]", "[1 2]", "{", "}", "{\"a\"", "{\"a\":", "{\"a\":}", "{\"a\":1,}", "{a:1}", "{1:1}", "{\"a\" 1}", "{\"a\":1 \"b\":2}", "[}", "{]", "{\"a\":1]", "[1}", "1 2", "{}{}",
		"[],", "\xef\xbb\xbf{}", "\"\xc3\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", "\"\xf5\x80\x80\x80\"", "\"\xe2\x82\"", "\xc3\xa9", "/**/1"};
	char		deep[2 * (OUTBOX_MAX_JSON_DEPTH + 2)];

	for (size_t i = 0; i < COUNT(good); i++)
		check_json(good[i], strlen(good[i]), true);
	for (size_t i = 0; i < COUNT(bad); i++)
		check_json(bad[i], strlen(bad[i]), false);
	check_json("\"\0\"", 3, false);
	check_json("1\0", 2, false);
	check_json("[\"\\", 3, false);
	/* every beginning of a valid text is looked at without reading behind it */
	for (size_t length = 0; length < strlen(good[19]); length++)
		check_json(good[19], length, false);
	/* the innermost one of these is empty, and so a value */
	for (int depth = OUTBOX_MAX_JSON_DEPTH; depth <= OUTBOX_MAX_JSON_DEPTH + 2; depth++)
	{
		memset(deep, '[', depth);
		memset(deep + depth, ']', depth);
		check_json(deep, 2 * depth, depth <= OUTBOX_MAX_JSON_DEPTH + 1);
	}
}

int
main(void)
{
	keys();
	content_types();
	traces();
	json();
	return unit_done();
}
