/*
 * encode_test.c
 *	  src/encode.c alone: what it accepts, what it writes, and that it never
 *	  writes past the end. The Makefile builds it under ASan and UBSan, and
 *	  every buffer here is a malloc of exactly the size under test.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "unit.h"

typedef int (*Encoder) (const char *in, char *out, size_t out_size);

typedef struct Verdict
{
	const char *input;
	const char *phrase;			/* part of the complaint; NULL: accepted */
} Verdict;

static char *
repeat(const char *unit, size_t times)
{
	size_t		length = strlen(unit);
	char	   *text = malloc(length * times + 1);

	for (size_t i = 0; i < times; i++)
		memcpy(text + i * length, unit, length);
	text[length * times] = '\0';
	return text;
}

/* A string of its own exact allocation, so that ASan sees a read behind its NUL. */
static char *
own_copy(const char *text)
{
	return repeat(text, 1);
}

static void
check_text(const char *got, const char *expected, const char *what)
{
	ok(strcmp(got, expected) == 0, "%s: got \"%s\", expected \"%s\"", what, got, expected);
}

static void
check_verdict(const char *name, const char *(*check) (const char *), const char *input, const char *phrase)
{
	char	   *copy = own_copy(input);
	const char *got = check(copy);
	bool		right = phrase == NULL ? got == NULL : got != NULL && strstr(got, phrase) != NULL;

	ok(right, "%s \"%.40s\" (%zu bytes): got \"%s\", expected \"%s\"", name, input, strlen(input),
	   got == NULL ? "(accepted)" : got, phrase == NULL ? "(accepted)" : phrase);
	free(copy);
}

static void
check_verdicts(const char *name, const char *(*check) (const char *), const Verdict *verdicts, size_t count)
{
	for (size_t i = 0; i < count; i++)
		check_verdict(name, check, verdicts[i].input, verdicts[i].phrase);
}

#define CHECK_VERDICTS(check, verdicts) \
	check_verdicts(#check, check, verdicts, sizeof(verdicts) / sizeof(verdicts[0]))

/* length times unit, so one may ask for a limit and for one byte more. */
static void
check_repeated(const char *name, const char *(*check) (const char *), const char *unit, size_t times,
			   const char *phrase)
{
	char	   *text = repeat(unit, times);

	check_verdict(name, check, text, phrase);
	free(text);
}

/* Runs an encoder at every buffer size from 0 to just enough. */
static void
check_every_size(const char *name, Encoder encode, const char *in, const char *expected)
{
	size_t		needed = strlen(expected) + 1;
	int			wrong = 0;

	for (size_t size = 0; size <= needed + 1; size++)
	{
		char	   *out = malloc(size == 0 ? 1 : size);
		int			length;

		out[0] = 'x';
		length = encode(in, out, size);
		if (size >= needed)
			wrong += length != (int) needed - 1 || strcmp(out, expected) != 0;
		else if (size > 0)
			wrong += length != -1 || out[0] != '\0';
		else
			wrong += length != -1 || out[0] != 'x';
		free(out);
	}
	ok(wrong == 0, "%s of \"%.40s\" is \"%.60s\" in every buffer, or fails cleanly (%d wrong)",
	   name, in, expected, wrong);
}

/* The reverse of a percent encoding; false when it isn't one, or not in its only form. */
static bool
decode(const char *in, char *out)
{
	static const char digits[] = "0123456789ABCDEF";

	for (; *in != '\0'; in++)
	{
		if (*in != '%')
		{
			*out++ = *in;
			continue;
		}
		if (in[1] == '\0' || in[2] == '\0' || strchr(digits, in[1]) == NULL || strchr(digits, in[2]) == NULL)
			return false;
		*out++ = (char) ((strchr(digits, in[1]) - digits) << 4 | (strchr(digits, in[2]) - digits));
		in += 2;
	}
	*out = '\0';
	return true;
}

static bool
is_one_token(const char *text)
{
	return text[0] != '\0' &&
		text[strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-%")] == '\0';
}

static void
test_token(void)
{
	static const char *const pairs[][2] = {
		{"1234", "1234"},
		{"Az09_-", "Az09_-"},
		{"a b", "a%20b"},
		{"a\tb", "a%09b"},
		{"a\r\nPUB ev.x 2", "a%0D%0APUB%20ev%2Ex%202"},
		{"*", "%2A"},
		{">", "%3E"},
		{"a.*", "a%2E%2A"},
		{".a", "%2Ea"},
		{"a.", "a%2E"},
		{"a..b", "a%2E%2Eb"},
		{"a.b", "a%2Eb"},
		{"a_b", "a_b"},
		{"a%2Eb", "a%252Eb"},
		{"caf\xc3\xa9", "caf%C3%A9"},
		{"$JS.API.STREAM.DELETE.EV", "%24JS%2EAPI%2ESTREAM%2EDELETE%2EEV"},
		{"\x01\x7f\x80\xff", "%01%7F%80%FF"},
		{"~/+,{}@[`:", "%7E%2F%2B%2C%7B%7D%40%5B%60%3A"},
		{"", ""},
	};
	char	   *long_id = repeat("\xc3\xa9", 150);
	char	   *long_token = repeat("%C3%A9", 150);

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		check_every_size("token", outbox_encode_token, pairs[i][0], pairs[i][1]);
	check_every_size("token", outbox_encode_token, long_id, long_token);
	free(long_id);
	free(long_token);
}

static void
test_token_every_byte(void)
{
	int			wrong = 0;

	for (int c = 1; c < 256; c++)
	{
		char		in[2] = {(char) c, '\0'};
		char		out[4];
		char		back[4];
		int			length = outbox_encode_token(in, out, sizeof(out));

		wrong += length != 1 && length != 3;
		wrong += !is_one_token(out) || !decode(out, back) || strcmp(in, back) != 0;
	}
	ok(wrong == 0, "each of the 255 bytes makes one token and comes back (%d wrong)", wrong);
}

/* A decoder that gives back the input proves that no two inputs share a token. */
static void
test_token_injective(void)
{
	static const char nasty[] = ".%*> _-2E0aA\r\n$\xc3\xa9";
	int			wrong = 0;

	for (int round = 0; round < 200000; round++)
	{
		char		in[33];
		char		out[3 * 32 + 1];
		char		back[3 * 32 + 1];
		size_t		length = 1 + next_random() % 32;

		for (size_t i = 0; i < length; i++)
		{
			if (round % 2 == 0)
				in[i] = (char) (1 + next_random() % 255);
			else
				in[i] = nasty[next_random() % (sizeof(nasty) - 1)];
		}
		in[length] = '\0';
		if (outbox_encode_token(in, out, sizeof(out)) != (int) strlen(out) ||
			!is_one_token(out) || !decode(out, back) || strcmp(in, back) != 0)
			wrong++;
	}
	ok(wrong == 0, "200000 random strings each make one token and come back (%d wrong)", wrong);
}

static void
test_ce_value(void)
{
	static const char *const pairs[][2] = {
		{"M\xc3\xbcller \"50%\" \xe2\x9c\x93", "M%C3%BCller%20%2250%25%22%20%E2%9C%93"},
		{"/orders/\xc3\xa9", "/orders/%C3%A9"},
		{"100%", "100%25"},
		{"%C3%A9", "%25C3%25A9"},
		{"!#$&'()*+,-./:;<=>?@[\\]^_`{|}~", "!#$&'()*+,-./:;<=>?@[\\]^_`{|}~"},
		{" a ", "%20a%20"},
		{"a\r\nX: y", "a%0D%0AX:%20y"},
		{"\x1f\x7f\x80\xff", "%1F%7F%80%FF"},
		{"2024-10-27T00:30:00.123400Z", "2024-10-27T00:30:00.123400Z"},
		{"", ""},
	};
	int			wrong = 0;

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		check_every_size("ce_value", outbox_encode_ce_value, pairs[i][0], pairs[i][1]);

	for (int c = 1; c < 256; c++)
	{
		char		in[2] = {(char) c, '\0'};
		char		out[4];
		char		back[4];
		bool		plain = c >= 0x21 && c <= 0x7e && c != '"' && c != '%';

		wrong += outbox_encode_ce_value(in, out, sizeof(out)) != (plain ? 1 : 3);
		wrong += !decode(out, back) || strcmp(in, back) != 0;
	}
	ok(wrong == 0, "each of the 255 bytes in a CloudEvents value comes back (%d wrong)", wrong);
}

static void
test_check_subject(void)
{
	static const Verdict verdicts[] = {
		{"a", NULL}, {"a.b.c", NULL}, {"ev.caf\xc3\xa9.\xe2\x9c\x93", NULL}, {"a.$JS", NULL}, {"a.b$", NULL},
		{"_inbox.a", NULL}, {"a._INBOX", NULL}, {"INBOX", NULL}, {"_INBO", NULL}, {"a.{x}%2E", NULL},
		{"", "is empty"},
		{"*", "wildcard"}, {">", "wildcard"}, {"a.*", "wildcard"}, {"a.>", "wildcard"}, {"a.b*c", "wildcard"},
		{"a.b>", "wildcard"}, {"a>b.c", "wildcard"},
		{"a b", "blank"}, {" a", "blank"}, {"a ", "blank"}, {"a\tb", "blank"},
		{"a\r\nb", "control"}, {"a\nb", "control"}, {"a\x01", "control"}, {"a\x1f", "control"}, {"a\x7f", "control"},
		{".a", "empty token"}, {"a.", "empty token"}, {"a..b", "empty token"}, {".", "empty token"},
		{"..", "empty token"}, {".$JS", "empty token"},
		{"$JS.API.INFO", "\"$\""}, {"$", "\"$\""}, {"$x.y", "\"$\""},
		{"_INBOX", "_INBOX"}, {"_INBOX.a", "_INBOX"}, {"_INBOXES.a", "_INBOX"},
		{"a\xff", "UTF-8"}, {"caf\xe9.a", "UTF-8"},
	};

	CHECK_VERDICTS(outbox_encode_check_subject, verdicts);
	check_repeated("check_subject", outbox_encode_check_subject, "a", OUTBOX_MAX_SUBJECT, NULL);
	check_repeated("check_subject", outbox_encode_check_subject, "a", OUTBOX_MAX_SUBJECT + 1, "longer than 1024");
}

static void
test_check_template(void)
{
	static const Verdict verdicts[] = {
		{"outbox.{aggregate_type}.{aggregate_id}.{event_type}", NULL}, {"a", NULL}, {"a.b", NULL},
		{"ev.{event_type}", NULL}, {"ev.{event_type}.x.{aggregate_id}.y", NULL}, {"a!%~.b", NULL},
		{"", "is empty"},
		{"{aggregate_type}.x", "starts with a placeholder"}, {"{event_type}", "starts with a placeholder"},
		{"a.{event_type}.{event_type}", "twice"}, {"a.{aggregate_id}.b.{aggregate_id}", "twice"},
		{"a.{aggregate_type}.{aggregate_type}", "twice"},
		{"a.{foo}", "unknown placeholder"}, {"{foo}.a", "unknown placeholder"}, {"a.{}", "unknown placeholder"},
		{"a.{Event_Type}", "unknown placeholder"}, {"a.{event_type }", "unknown placeholder"},
		{"a.x{event_type}", "brace"}, {"a.{event_type}x", "brace"}, {"a.{event_type}{aggregate_id}", "brace"},
		{"a.{event_type", "brace"}, {"a.event_type}", "brace"}, {"a.{{event_type}}", "brace"},
		{"a.{event.type}", "brace"}, {"a.{", "brace"}, {"a.}", "brace"}, {"{.a", "brace"},
		{"a.*", "wildcard"}, {"a.>", "wildcard"}, {"a>.b", "wildcard"},
		{"a b", "blank"}, {"a.\t", "blank"}, {"a\n", "control"}, {"a\x7f", "control"},
		{"a.caf\xc3\xa9", "outside ASCII"}, {"\xff", "outside ASCII"}, {"a\x80", "outside ASCII"},
		{".a", "empty token"}, {"a.", "empty token"}, {"a..{event_type}", "empty token"}, {"a.{event_type}.", "empty token"},
		{"$JS.{event_type}", "\"$\""}, {"_INBOX.{event_type}", "_INBOX"}, {"_INBOXa", "_INBOX"},
		{"a.$x._INBOX", NULL},
	};

	CHECK_VERDICTS(outbox_encode_check_template, verdicts);
	check_repeated("check_template", outbox_encode_check_template, "a", OUTBOX_MAX_TEMPLATE, NULL);
	check_repeated("check_template", outbox_encode_check_template, "a", OUTBOX_MAX_TEMPLATE + 1, "longer than 256");
}

/* Whatever 1 to 12 bytes a template has: if it passes, it renders to a publishable subject. */
static void
test_template_renders_publishable(void)
{
	static const char *const parts[] = {
		"a", ".", "{aggregate_type}", "{aggregate_id}", "{event_type}", "{", "}", "$", "_INBOX", "*", " ", "\xc3\xa9", "a.", ".b"
	};
	int			passed = 0;
	int			wrong = 0;

	for (int round = 0; round < 100000; round++)
	{
		char		template[256] = "";
		char		out[OUTBOX_SUBJECT_BUFFER];
		int			count = 1 + (int) (next_random() % 8);

		for (int i = 0; i < count; i++)
			strcat(template, parts[next_random() % (sizeof(parts) / sizeof(parts[0]))]);
		if (outbox_encode_check_template(template) != NULL)
			continue;
		passed++;
		wrong += outbox_encode_subject(template, "*", "a.>", " \r\n", out, sizeof(out)) <= 0 ||
			outbox_encode_check_subject(out) != NULL;
	}
	ok(passed > 1000 && wrong == 0, "of 100000 random templates %d pass, and %d of them render badly", passed, wrong);
}

static const char *subject_template;

static int
render_hostile(const char *id, char *out, size_t out_size)
{
	return outbox_encode_subject(subject_template, "or.der", id, "placed>", out, out_size);
}

static int
render_stream_subjects(const char *template, char *out, size_t out_size)
{
	return outbox_encode_stream_subjects(template, out, out_size);
}

static void
test_subject(void)
{
	char	   *template = repeat("x", 200);
	char	   *type = repeat("\x01", OUTBOX_MAX_AGGREGATE_TYPE);
	char	   *id = repeat("\xff", OUTBOX_MAX_AGGREGATE_ID);
	char	   *event = repeat(".", OUTBOX_MAX_EVENT_TYPE);
	char	   *out = malloc(OUTBOX_SUBJECT_BUFFER);
	char		full_template[300];

	subject_template = "outbox.{aggregate_type}.{aggregate_id}.{event_type}";
	check_every_size("subject", render_hostile, "7", "outbox.or%2Eder.7.placed%3E");
	check_every_size("subject", render_hostile, "a\r\nPUB x 2", "outbox.or%2Eder.a%0D%0APUB%20x%202.placed%3E");
	subject_template = "ev.{event_type}.by.{aggregate_id}";
	check_every_size("subject", render_hostile, "{event_type}", "ev.placed%3E.by.%7Bevent_type%7D");
	subject_template = "ev.all";
	check_every_size("subject", render_hostile, "7", "ev.all");

	snprintf(full_template, sizeof(full_template), "%s.{aggregate_type}.{aggregate_id}.{event_type}", template);
	ok(outbox_encode_check_template(full_template) == NULL &&
	   outbox_encode_subject(full_template, type, id, event, out, OUTBOX_SUBJECT_BUFFER) ==
	   200 + 3 + 3 * (OUTBOX_MAX_AGGREGATE_TYPE + OUTBOX_MAX_AGGREGATE_ID + OUTBOX_MAX_EVENT_TYPE),
	   "the longest event of the hardest bytes fits OUTBOX_SUBJECT_BUFFER");
	free(template);
	free(type);
	free(id);
	free(event);
	free(out);
}

static void
test_stream_subjects(void)
{
	static const char *const pairs[][2] = {
		{"outbox.{aggregate_type}.{aggregate_id}.{event_type}", "outbox.>"},
		{"a.b", "a.b"},
		{"a", "a"},
		{"a.b.{event_type}.c", "a.b.>"},
		{"a.{aggregate_id}", "a.>"},
	};

	for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
		check_every_size("stream_subjects", render_stream_subjects, pairs[i][0], pairs[i][1]);
}

static void
test_header_key(void)
{
	static const Verdict verdicts[] = {
		{"a", NULL}, {"X-Tenant", NULL}, {"traceparent", NULL}, {"tracestate", NULL}, {"Nats", NULL}, {"natsx", NULL},
		{"ce", NULL}, {"cex", NULL}, {"Content-Type2", NULL}, {"Content-Typ", NULL}, {"my-ce-id", NULL},
		{"!#$%&'*+-.^_`|~09azAZ", NULL},
		{"", "is empty"},
		{"X: Y", "character"}, {"X Y", "character"}, {"X\r\nZ", "character"}, {"X:", "character"}, {"\"", "character"},
		{"(", "character"}, {"a,b", "character"}, {"a/b", "character"}, {"a@", "character"}, {"a[", "character"},
		{"a\\", "character"}, {"{a}", "character"}, {"a;b", "character"}, {"a=b", "character"}, {"a?", "character"},
		{"a<", "character"}, {"\x7f", "character"}, {"\x01", "character"}, {"\t", "character"}, {"\xc3\xa9", "character"},
		{"Nats-Msg-Id", "\"Nats-\""}, {"nats-x", "\"Nats-\""}, {"Nats-TTL", NULL}, {"nats-ttl", "\"Nats-\""}, {"Nats-TTL2", "\"Nats-\""}, {"NATS-", "\"Nats-\""},
		{"ce-id", "\"ce-\""}, {"CE-Id", "\"ce-\""}, {"ce-", "\"ce-\""},
		{"Content-Type", "content type"}, {"content-type", "content type"}, {"CONTENT-TYPE", "content type"},
	};

	CHECK_VERDICTS(outbox_encode_check_header_key, verdicts);
	check_repeated("check_header_key", outbox_encode_check_header_key, "k", OUTBOX_MAX_HEADER_KEY, NULL);
	check_repeated("check_header_key", outbox_encode_check_header_key, "k", OUTBOX_MAX_HEADER_KEY + 1, "longer than 256");
}

static void
test_ttl(void)
{
	static const Verdict verdicts[] = {
		{"never", NULL}, {"1", NULL}, {"3600", NULL}, {"999999999", NULL}, {"1s", NULL}, {"1h", NULL}, {"1h30m", NULL}, {"2h3m4s", NULL},
		{"0h0m1s", NULL}, {"90m", NULL}, {"277777h", NULL}, {"007", NULL},
		{"0", "less than a second"}, {"0s", "less than a second"}, {"0h0m0s", "less than a second"},
		{"277778h", "more than"}, {"999999999h", "more than"}, {"16666667m", "more than"},
		{"", "is no time"}, {"Never", "is no time"}, {"-1", "is no time"}, {"+1", "is no time"}, {"1.5s", "is no time"}, {"1000ms", "is no time"},
		{"1000000000", "is no time"}, {"1d", "is no time"}, {"1 s", "is no time"}, {"s", "is no time"}, {"1h30", "is no time"},
		{"1m1h", "is no time"}, {"1s1s", "is no time"}, {"1s ", "is no time"}, {"1hs", "is no time"}, {"9223372036854775807", "is no time"},
	};

	CHECK_VERDICTS(outbox_encode_check_ttl, verdicts);
}

static void
test_same_header_key(void)
{
	static const char *const keys[] = {"a", "A", "ab", "aB", "a-B", "", "b", "[", "{", "@", "`"};
	int			wrong = 0;

	/* "[" and "{", "@" and "`" differ in the same bit as a letter's cases */
	for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
	{
		for (size_t j = 0; j < sizeof(keys) / sizeof(keys[0]); j++)
		{
			bool		same = i == j || (i < 2 && j < 2) || (i / 2 == 1 && j / 2 == 1);

			wrong += outbox_encode_same_header_key(keys[i], keys[j]) != same;
		}
	}
	ok(wrong == 0, "keys are the same if they differ in letter case only (%d wrong)", wrong);
	ok(outbox_encode_same_header_key("X-Request-ID", "x-request-id"), "a longer key, too");
}

static void
test_header_value(void)
{
	static const Verdict verdicts[] = {
		{"a", NULL}, {"a b", NULL}, {"\xc3\xa9\xe2\x82\xac", NULL}, {"X: y", NULL}, {"\"\"", NULL}, {"%", NULL},
		{"\xf0\x9f\x98\x80", NULL}, {"a\xc2\xa0" "b", NULL}, {"\xe2\x80\x8b", NULL}, {"\xc3\xa0", NULL},
		{"", "is empty"},
		{" ", "starts with white space"}, {"   ", "starts with white space"}, {"  padded  ", "starts with white space"},
		{"a ", "ends with white space"},
		{"a\r\nX: y", "control"}, {"a\nb", "control"}, {"a\rb", "control"}, {"\t", "control"}, {"a\tb", "control"},
		{"\x01", "control"}, {"\x1f", "control"}, {"\x7f", "control"},
		{"\xe9", "UTF-8"}, {"a\xc3", "UTF-8"},
	};

	CHECK_VERDICTS(outbox_encode_check_header_value, verdicts);
	check_repeated("check_header_value", outbox_encode_check_header_value, "v", 60000, NULL);
	check_repeated("check_header_value", outbox_encode_check_header_value, "v", OUTBOX_MAX_HEADER_VALUE, NULL);
	check_repeated("check_header_value", outbox_encode_check_header_value, "v", OUTBOX_MAX_HEADER_VALUE + 1,
				   "longer than 65535");
}

/* Code points that trim() of JavaScript or strip() of Python removes, beyond ASCII. */
static void
test_header_white_space(void)
{
	static const unsigned code_points[] = {
		0x85, 0xa0, 0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004, 0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a,
		0x2028, 0x2029, 0x202f, 0x205f, 0x3000, 0xfeff
	};

	for (size_t i = 0; i < sizeof(code_points) / sizeof(code_points[0]); i++)
	{
		unsigned	c = code_points[i];
		char		blank[4] = {0};
		char		text[16];

		if (c < 0x800)
			snprintf(blank, sizeof(blank), "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
		else
			snprintf(blank, sizeof(blank), "%c%c%c", 0xe0 | c >> 12, 0x80 | (c >> 6 & 0x3f), 0x80 | (c & 0x3f));
		check_verdict("check_header_value", outbox_encode_check_header_value, blank, "starts with white space");
		snprintf(text, sizeof(text), "%sx", blank);
		check_verdict("check_header_value", outbox_encode_check_header_value, text, "starts with white space");
		snprintf(text, sizeof(text), "x%s", blank);
		check_verdict("check_header_value", outbox_encode_check_header_value, text, "ends with white space");
		snprintf(text, sizeof(text), "x%sx", blank);
		check_verdict("check_header_value", outbox_encode_check_header_value, text, NULL);
	}
}

static void
test_utf8(void)
{
	static const Verdict verdicts[] = {
		{"\xc2\x80", NULL}, {"\xdf\xbf", NULL}, {"\xe0\xa0\x80", NULL}, {"\xec\xbf\xbf", NULL}, {"\xed\x9f\xbf", NULL},
		{"\xee\x80\x80", NULL}, {"\xef\xbf\xbf", NULL}, {"\xf0\x90\x80\x80", NULL}, {"\xf3\xbf\xbf\xbf", NULL},
		{"\xf4\x8f\xbf\xbf", NULL},
		{"\x80", "UTF-8"}, {"\xbf", "UTF-8"}, {"\xc0\x80", "UTF-8"}, {"\xc1\xbf", "UTF-8"}, {"\xe0\x9f\xbf", "UTF-8"},
		{"\xed\xa0\x80", "UTF-8"}, {"\xed\xbf\xbf", "UTF-8"}, {"\xf0\x8f\xbf\xbf", "UTF-8"},
		{"\xf4\x90\x80\x80", "UTF-8"}, {"\xf5\x80\x80\x80", "UTF-8"}, {"\xff", "UTF-8"}, {"\xfe", "UTF-8"},
		{"\xc3", "UTF-8"}, {"\xe2\x9c", "UTF-8"}, {"\xe2", "UTF-8"}, {"\xf0\x9f\x98", "UTF-8"}, {"\xf0\x9f", "UTF-8"},
		{"\xe2\x9c\xc0", "UTF-8"}, {"\xf0\x9f\x98\xff", "UTF-8"}, {"\xc3(", "UTF-8"},
		{"\xe2\x28\x93", "UTF-8"}, {"\xe2\x9c(", "UTF-8"}, {"\xf0\x9f\x98(", "UTF-8"},
		{"\xf0\x9f(\x80", "UTF-8"}, {"\xc3\xa9\xa9", "UTF-8"}, {"\xc3\xc3", "UTF-8"},
	};

	CHECK_VERDICTS(outbox_encode_check_header_value, verdicts);
	CHECK_VERDICTS(outbox_encode_check_subject, verdicts);
}

/* Days since 1970-01-01 counted year by year: slow, and nothing like the code under test. */
static int64_t
days_to_year(int year)
{
	int64_t		days = 0;

	for (int y = 1970; y < year; y++)
		days += y % 4 == 0 && (y % 100 != 0 || y % 400 == 0) ? 366 : 365;
	for (int y = 1969; y >= year; y--)
		days -= y % 4 == 0 && (y % 100 != 0 || y % 400 == 0) ? 366 : 365;
	return days;
}

static void
test_time(void)
{
	static const struct
	{
		int64_t		us;
		const char *text;
	}			cases[] = {
		{0, "1970-01-01T00:00:00.000000Z"},
		{INT64_C(1729989000123400), "2024-10-27T00:30:00.123400Z"},
		{INT64_C(1709164800000000), "2024-02-29T00:00:00.000000Z"},
		{INT64_C(1709251199999999), "2024-02-29T23:59:59.999999Z"},
		{INT64_C(951782400000001), "2000-02-29T00:00:00.000001Z"},
		{INT64_C(4107542399999999), "2100-02-28T23:59:59.999999Z"},
		{INT64_C(4107542400000000), "2100-03-01T00:00:00.000000Z"},
		{-1, "1969-12-31T23:59:59.999999Z"},
		{-1000000, "1969-12-31T23:59:59.000000Z"},
		{-1000001, "1969-12-31T23:59:58.999999Z"},
		{INT64_C(-86400000000), "1969-12-31T00:00:00.000000Z"},
		{INT64_C(-62135596800000000), "0001-01-01T00:00:00.000000Z"},
		{INT64_C(-62135596800000001), "0000-12-31T23:59:59.999999Z"},
		{INT64_C(253402300799999999), "9999-12-31T23:59:59.999999Z"},
		{INT64_C(253402300800000000), "10000-01-01T00:00:00.000000Z"},
		{INT64_MAX, "294247-01-10T04:00:54.775807Z"},
		{INT64_MIN, "-290308-12-21T19:59:05.224192Z"},
	};
	char	   *out = malloc(40);

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
	{
		outbox_encode_time(cases[i].us, out);
		check_text(out, cases[i].text, "time");
	}
	free(out);
}

static void
test_time_every_day(void)
{
	static const int years[] = {1, 4, 100, 400, 1582, 1600, 1900, 1969, 1970, 1972, 2000, 2023, 2024, 2100, 9999, 294246};
	static const int month_days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	int			wrong = 0;

	for (size_t i = 0; i < sizeof(years) / sizeof(years[0]); i++)
	{
		int			year = years[i];
		bool		leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
		int64_t		days = days_to_year(year);

		for (int month = 1; month <= 12; month++)
		{
			for (int day = 1; day <= month_days[month - 1] + (month == 2 && leap); day++, days++)
			{
				char		expected[64];
				char		out[40];

				snprintf(expected, sizeof(expected), "%04d-%02d-%02dT12:34:56.000789Z", year, month, day);
				outbox_encode_time((days * 86400 + 45296) * INT64_C(1000000) + 789, out);
				wrong += strcmp(out, expected) != 0;
			}
		}
	}
	ok(wrong == 0, "every day of %zu years from 1 to 294246 has its date (%d wrong)",
	   sizeof(years) / sizeof(years[0]), wrong);
}

static void
test_uuid(void)
{
	static const uint8_t ones[10] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
	static const uint8_t zeros[10] = {0};
	/* RFC 9562, appendix A.6: the version 7 example */
	static const uint8_t example[10] = {0x0c, 0xc3, 0x18, 0xc4, 0xdc, 0x0c, 0x0c, 0x07, 0x39, 0x8f};
	uint8_t    *uuid = malloc(16);
	char	   *text = malloc(37);

	outbox_encode_uuid7(INT64_C(1645557742000) * 1000, example, uuid);
	outbox_encode_uuid(uuid, text);
	check_text(text, "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "uuid of RFC 9562");

	outbox_encode_uuid7(INT64_C(0xffffffffffff) * 1000 + 999, ones, uuid);
	outbox_encode_uuid(uuid, text);
	check_text(text, "ffffffff-ffff-7fff-bfff-ffffffffffff", "uuid of all ones");

	outbox_encode_uuid7(999, zeros, uuid);
	outbox_encode_uuid(uuid, text);
	check_text(text, "00000000-0000-7000-8000-000000000000", "uuid of all zeros");

	outbox_encode_uuid7(-1, zeros, uuid);
	outbox_encode_uuid(uuid, text);
	check_text(text, "ffffffff-ffff-7000-8000-000000000000", "uuid before 1970");
	free(uuid);
	free(text);
}

static void
test_event_id(void)
{
	static const uint8_t random[4] = {0xff, 0xee, 0xdd, 0xcc};
	static const int64_t positions[] = {1, 2, 1000000007, OUTBOX_ID_POSITIONS - 1};
	static const uint64_t keys[] = {0, 1, UINT64_C(0xfffffffffff), UINT64_MAX};
	uint8_t		uuid[16];
	char		text[37];
	int			wrong = 0;

	outbox_encode_event_id(INT64_C(1645557742000) * 1000, random, 5, 0, uuid);
	outbox_encode_uuid(uuid, text);
	check_text(text, "017f22e2-79b0-7fee-b773-000000000005", "an event_id");
	for (int i = 0; i < 16; i++)
	{
		outbox_encode_event_id(1, random, positions[i % 4], keys[i / 4], uuid);
		wrong += outbox_encode_id_position(uuid, keys[i / 4]) != positions[i % 4];
		wrong += uuid[6] != 0x7f || uuid[7] != 0xee || uuid[8] >> 6 != 2;
	}
	ok(wrong == 0, "event_ids tell their position (%d wrong)", wrong);
	outbox_encode_event_id(1, random, OUTBOX_ID_POSITIONS + 3, 7, uuid);
	ok(outbox_encode_id_position(uuid, 7) == 3, "a position that doesn't fit is cut");
	uuid[6] = 0x4f;
	ok(outbox_encode_id_position(uuid, 7) == 0, "a random UUID tells none");
}

static void
test_uuid_order(void)
{
	uint8_t		previous[16] = {0};
	int			wrong = 0;

	for (int64_t ms = INT64_C(1729989000000); ms < INT64_C(1729989010000); ms++)
	{
		uint8_t		random[10];
		uint8_t		uuid[16];

		for (int i = 0; i < 10; i++)
			random[i] = (uint8_t) next_random();
		outbox_encode_uuid7(ms * 1000 + ms % 1000, random, uuid);
		wrong += memcmp(previous, uuid, 16) >= 0;
		wrong += (uuid[6] & 0x0f) != (random[0] & 0x0f) || uuid[7] != random[1];
		wrong += (uuid[8] & 0x3f) != (random[2] & 0x3f) || memcmp(uuid + 9, random + 3, 7) != 0;
		memcpy(previous, uuid, 16);
	}
	ok(wrong == 0, "version 7 ids sort by millisecond and keep 74 random bits (%d wrong)", wrong);
}

int
main(void)
{
	test_token();
	test_token_every_byte();
	test_token_injective();
	test_ce_value();
	test_check_subject();
	test_check_template();
	test_template_renders_publishable();
	test_subject();
	test_stream_subjects();
	test_header_key();
	test_ttl();
	test_same_header_key();
	test_header_value();
	test_header_white_space();
	test_utf8();
	test_time();
	test_time_every_day();
	test_uuid();
	test_event_id();
	test_uuid_order();
	return unit_done();
}
