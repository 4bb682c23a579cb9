/*
 * ack_test.c
 *	  The parser of JetStream's replies, mostly with what JetStream would never
 *	  send.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ack.h"

static int	tests_run;
static int	tests_failed;

static void
ok(bool passed, const char *what)
{
	printf("%sok %d - %s\n", passed ? "" : "not ", ++tests_run, what);
	if (!passed)
		tests_failed++;
}

/* Parses a copy of exactly len bytes, so that reading past the end is seen by ASan. */
static AckReply
parse(const char *data, size_t len)
{
	AckReply	reply;
	char	   *copy = malloc(len > 0 ? len : 1);

	memcpy(copy, data, len);
	memset(&reply, 0x5a, sizeof(reply));
	ack_parse(copy, len, &reply);
	free(copy);
	return reply;
}

static AckReply
parse_text(const char *text)
{
	return parse(text, strlen(text));
}

static void
test_positive(void)
{
	AckReply	reply = parse_text("{\"stream\":\"OUTBOX\",\"seq\":42}");

	ok(reply.kind == ACK_POSITIVE && strcmp(reply.stream, "OUTBOX") == 0 && reply.status == 0 &&
	   reply.sequence == 42 && !reply.duplicate, "an ack");
	reply = parse_text("{\"stream\":\"OUTBOX\", \"domain\":\"hub\", \"seq\":1,\"duplicate\": true}");
	ok(reply.kind == ACK_POSITIVE && reply.duplicate, "a duplicate, with a domain");
	reply = parse_text(" \r\n\t{ \"seq\" : 0 , \"stream\" : \"S\" , \"duplicate\" : false } ");
	ok(reply.kind == ACK_POSITIVE && reply.sequence == 0 && !reply.duplicate, "sequence 0, white space");
	reply = parse_text("{\"stream\":\"S\",\"seq\":10,\"x\":[0,-0,0.01,0e00,1e01]}");
	ok(reply.kind == ACK_POSITIVE && reply.sequence == 10, "zeros where JSON has them");
	reply = parse_text("{\"stream\":\"S\",\"seq\":18446744073709551615}");
	ok(reply.kind == ACK_POSITIVE && reply.sequence == UINT64_MAX, "the largest sequence");
	reply = parse_text("{\"new\":{\"a\":[1,-2.5e+3,{\"b\":[]},{}],\"c\":null},\"x\":[],\"stream\":\"S\",\"seq\":7}");
	ok(reply.kind == ACK_POSITIVE && reply.sequence == 7, "unknown members of any kind");
	ok(reply.count == 0, "of one message");
	reply = parse_text("{\"stream\":\"S\",\"seq\":107,\"batch\":\"x\",\"count\":100}");
	ok(reply.kind == ACK_POSITIVE && reply.sequence == 107 && reply.count == 100, "of a batch");
	ok(parse_text("{\"stream\":\"S\",\"seq\":107,\"count\":-1}").kind == ACK_MALFORMED, "a count is a number");
	reply = parse_text("{\"error\":null,\"stream\":\"S\",\"seq\":7}");
	ok(reply.kind == ACK_POSITIVE, "no error is no error");
	reply = parse_text("{\"stream\":\"a\\u0042\\\\\\\"\\/c\\u00e9\\u0000\",\"seq\":7}");
	ok(reply.kind == ACK_POSITIVE && strcmp(reply.stream, "aB\\\"/c??") == 0, "escapes, also those of NUL");
	reply = parse_text("{\"streamstreamstreamstream\":\"X\",\"stream\":\"S\",\"sequence_of_things\":9,\"seq\":7}");
	ok(reply.kind == ACK_POSITIVE && strcmp(reply.stream, "S") == 0 && reply.sequence == 7,
	   "a long name isn't matched by its head");
}

static void
test_error(void)
{
	AckReply	reply;

	reply = parse_text("{\"error\":{\"code\":503,\"err_code\":10077,\"description\":\"maximum messages exceeded\"},"
					   "\"stream\":\"OUTBOX\",\"seq\":0}");
	ok(reply.kind == ACK_ERROR && reply.error_code == 10077 && reply.status == 503 &&
	   strcmp(reply.description, "maximum messages exceeded") == 0, "an error beats stream and seq");
	reply = parse_text("{\"stream\":\"OUTBOX\",\"seq\":3,\"error\":{\"err_code\":10060,\"code\":400}}");
	ok(reply.kind == ACK_ERROR && reply.error_code == 10060 && reply.status == 400 && reply.description[0] == '\0',
	   "err_code beats code in any order");
	reply = parse_text("{\"error\":{\"code\":503}}");
	ok(reply.kind == ACK_ERROR && reply.error_code == 503 && reply.status == 503,
	   "code alone, from an old server");
	reply = parse_text("{\"error\":{\"err_code\":10060}}");
	ok(reply.kind == ACK_ERROR && reply.error_code == 10060 && reply.status == 0, "err_code alone");
	reply = parse_text("{\"error\":{}}");
	ok(reply.kind == ACK_ERROR && reply.error_code == 0, "an error without anything");
	reply = parse_text("{\"error\":{\"description\":\"a\\nb\x01\"}}");
	ok(reply.kind == ACK_MALFORMED, "a raw control character in a string");
	reply = parse_text("{\"error\":{\"description\":\"a\\nb\xff\xc3\xa9\x7f\"}}");
	ok(reply.kind == ACK_ERROR && strcmp(reply.description, "a?b????") == 0, "a description becomes printable ASCII");
}

static void
test_malformed(void)
{
	static const char *const texts[] = {
		"", " ", "{}", "[]", "null", "42", "\"stream\"", "+OK", "{", "}", "{]", "nul", "{\"stream\"}",
		"{\"stream\":\"S\"}", "{\"seq\":1}", "{\"stream\":\"\",\"seq\":1}", "{\"stream\":1,\"seq\":1}",
		"{\"stream\":null,\"seq\":1}", "{\"stream\":\"S\",\"seq\":\"1\"}", "{\"stream\":\"S\",\"seq\":-1}",
		"{\"stream\":\"S\",\"seq\":1.5}", "{\"stream\":\"S\",\"seq\":1e3}", "{\"stream\":\"S\",\"seq\":}",
		"{\"stream\":\"S\",\"seq\":18446744073709551616}", "{\"stream\":\"S\",\"seq\":99999999999999999999999}",
		"{\"stream\":\"S\",\"seq\":1,\"duplicate\":1}", "{\"stream\":\"S\",\"seq\":1,\"duplicate\":\"true\"}",
		"{\"stream\":\"S\",\"seq\":1,}", "{\"stream\":\"S\" \"seq\":1}", "{\"stream\":\"S\",,\"seq\":1}",
		"{\"stream\":\"S\",\"seq\":1}x", "{\"stream\":\"S\",\"seq\":1}{}", "{\"stream\":\"S\",\"seq\":1",
		"{'stream':'S','seq':1}", "{stream:\"S\",\"seq\":1}", "{\"stream\":\"S\",\"seq\":1,\"x\":[1,]}",
		"{\"stream\":\"S\",\"seq\":1,\"x\":[1 2]}", "{\"stream\":\"S\",\"seq\":1,\"x\":[}",
		"{\"stream\":\"S\",\"seq\":1,\"x\":[1}}", "{\"stream\":\"S\",\"seq\":1,\"x\":{\"a\"}}",
		"{\"stream\":\"S\",\"seq\":1,\"x\":{1:2}}", "{\"stream\":\"S\",\"seq\":1,\"x\":-}",
		"{\"stream\":\"S\",\"seq\":1,\"x\":1.}", "{\"stream\":\"S\",\"seq\":1,\"x\":1e}", "{\"stream\":\"S\",\"seq\":1,\"x\":tru}",
		"{\"stream\":\"S\\\",\"seq\":1}", "{\"stream\":\"S\\x\",\"seq\":1}", "{\"stream\":\"S\\u12\",\"seq\":1}",
		"{\"stream\":\"S\\u12g4\",\"seq\":1}", "{\"stream\":\"S\\", "{\"stream\":\"S\\u", "{\"error\":1}",
		"{\"error\":\"no\"}", "{\"error\":[]}", "{\"error\":{\"code\":-1}}", "{\"error\":{\"err_code\":2147483648}}",
		"{\"stream\":\"S\",\"seq\":007}", "{\"stream\":\"S\",\"seq\":00}", "{\"error\":{\"code\":0503}}",
		"{\"stream\":\"S\",\"seq\":1,\"x\":01}", "{\"stream\":\"S\",\"seq\":1,\"x\":-01.5}", "{\"stream\":\"S\",\"seq\":1,\"x\":00e1}",
		"{\"error\":{\"description\":5}}", "{\"error\":{\"code\":503}", "{\"error\":{\"code\":503}},"
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
	{
		char		what[160];

		snprintf(what, sizeof(what), "malformed: %.120s", texts[i]);
		ok(parse_text(texts[i]).kind == ACK_MALFORMED, what);
	}
}

static void
test_every_prefix(const char *text, const char *what)
{
	bool		right = true;

	for (size_t len = 0; len < strlen(text); len++)
		right = right && parse(text, len).kind == ACK_MALFORMED;
	ok(right, what);
}

static void
test_hostile(void)
{
	static char big[100000];
	AckReply	reply;
	size_t		used;

	test_every_prefix("{\"stream\":\"OUT\\u0041\",\"seq\":42,\"duplicate\":true,\"x\":[{\"y\":-1.5e-7}]}",
					  "no prefix of an ack is an ack");
	test_every_prefix("{\"error\":{\"code\":503,\"err_code\":10077,\"description\":\"no\"},\"stream\":\"S\",\"seq\":0}",
					  "no prefix of an error is an error");

	memset(big, '[', sizeof(big));
	memcpy(big, "{\"x\":", 5);
	ok(parse(big, sizeof(big)).kind == ACK_MALFORMED, "100,000 brackets");
	for (used = 5; used + 5 < sizeof(big); used += 5)
		memcpy(big + used, "{\"a\":", 5);
	ok(parse(big, used).kind == ACK_MALFORMED, "20,000 objects in each other");

	used = (size_t) snprintf(big, sizeof(big), "{\"stream\":\"");
	memset(big + used, 's', 255);
	strcpy(big + used + 255, "\",\"seq\":1}");
	reply = parse_text(big);
	ok(reply.kind == ACK_POSITIVE && strlen(reply.stream) == 255, "the longest stream name");
	memset(big + used, 's', 256);
	strcpy(big + used + 256, "\",\"seq\":1}");
	ok(parse_text(big).kind == ACK_MALFORMED, "a longer one is not cut to one that could match");

	used = (size_t) snprintf(big, sizeof(big), "{\"error\":{\"description\":\"");
	memset(big + used, 'd', 5000);
	strcpy(big + used + 5000, "\"}}");
	reply = parse_text(big);
	ok(reply.kind == ACK_ERROR && strlen(reply.description) == ACK_DESCRIPTION_SIZE - 1, "a long description is cut");

	ok(parse("{\"stream\":\"S\0\",\"seq\":1}", 23).kind == ACK_MALFORMED, "a NUL byte in a string");
	ok(parse("{\"stream\":\"S\",\"seq\":1}\0", 23).kind == ACK_MALFORMED, "a NUL byte behind the end");
	for (size_t i = 0; i < sizeof(big); i++)
		big[i] = (char) (i * 7919 >> 3);
	ok(parse(big, sizeof(big)).kind == ACK_MALFORMED, "binary noise");
}

int
main(void)
{
	test_positive();
	test_error();
	test_malformed();
	test_hostile();
	printf("1..%d\n", tests_run);
	return tests_failed == 0 ? 0 : 1;
}
