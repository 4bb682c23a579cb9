/*
 * replay_line_test.c
 *	  src/replay_line.c, json.c and replay_filter.c: lines of the archive, times,
 *	  and what matches.
 */
#include <stdlib.h>
#include <string.h>

#include "replay_filter.h"
#include "replay_line.h"
#include "unit.h"

#define ID "\"event_id\":\"01234567-89ab-cdef-0123-456789abcdef\""
#define NAMES "\"aggregate_type\":\"t\",\"aggregate_id\":\"i\",\"event_type\":\"e\",\"occurred_at\":\"2024-02-29T23:59:59.000001Z\""

static OutboxLine line;
static OutboxRow row;

/* An allocation of the exact size, so that ASan sees what goes behind it. */
static const char *
read_line(const char *text, char **copy)
{
	free(*copy);
	*copy = strdup(text);
	return outbox_replay_line_read(&line, *copy, strlen(*copy), &row);
}

static void
check_payload(const char *json, const char *expected, int len)
{
	static char *copy = NULL;
	char		text[2048];
	const char *wrong;

	snprintf(text, sizeof(text), "{\"position\":7," ID "," NAMES ",%s}", json);
	wrong = read_line(text, &copy);
	if (expected == NULL)
		ok(wrong != NULL, "%s is refused", json);
	else
		ok(wrong == NULL && row.payload_len == len && memcmp(row.payload, expected, (size_t) len) == 0, "%s: %s", json, wrong == NULL ? "read" : wrong);
}

static void
check_time(const char *text, int64_t expected)
{
	int64_t		time = 0;
	bool		valid = outbox_replay_parse_time(text, &time);

	ok(expected == INT64_MIN ? !valid : valid && time == expected, "time \"%s\"", text);
}

static void
test_lines(void)
{
	static char *copy = NULL;

	check_payload("\"payload_kind\":\"t\",\"payload\":\"a\\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00\"", "a\"\\/\b\f\n\r\t\xc3\xa9\xf0\x9f\x98\x80", 15);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"\"", "", 0);
	check_payload("\"payload_kind\":\"x\",\"payload\":\"AP8KDSI=\"", "\0\xff\n\r\"", 5);
	check_payload("\"payload_kind\":\"x\",\"payload\":\"\"", "", 0);
	check_payload("\"payload_kind\":\"x\",\"payload\":\"AP8\"", NULL, 0);
	check_payload("\"payload_kind\":\"x\",\"payload\":\"A*8=\"", NULL, 0);
	check_payload("\"payload_kind\":\"x\",\"payload_plain\":\"\",\"payload_hex\":\"00FF0a\"", "\0\xff\n", 3);
	check_payload("\"payload_kind\":\"x\",\"payload_plain\":\"\",\"payload_hex\":\"00F\"", NULL, 0);
	check_payload("\"payload_kind\":\"x\",\"payload_plain\":\"\",\"payload_hex\":\"0g\"", NULL, 0);
	check_payload("\"payload_kind\":\"x\",\"payload_plain\":\"\",\"payload_hex\":\"-0\"", NULL, 0);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"\\u0000\"", NULL, 0);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"\\ud83d\"", NULL, 0);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"\\ude00\"", NULL, 0);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"a\n\"", NULL, 0);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"a", NULL, 0);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"a\\", NULL, 0);
	check_payload("\"payload_kind\":\"t\",\"payload\":\"a\",\"other\":{\"a\":[1,\"}\\\"\"]}", "a", 1);
	check_payload("\"payload_kind\":\"t\"", NULL, 0);
	ok(read_line("", &copy) != NULL && read_line("{", &copy) != NULL && read_line("{}", &copy) != NULL && read_line("[]", &copy) != NULL, "no events");
	ok(read_line("{\"position\":\"9007199254740993\"," ID "," NAMES ",\"payload_kind\":\"j\",\"payload\":\"1\",\"headers\":{\"a\":\"}\"},\"aggregate_version\":\"-5\",\"state\":\"failed\"} ", &copy) == NULL &&
		   row.position == INT64_C(9007199254740993) && strcmp(row.headers, "{\"a\":\"}\"}") == 0 && row.has_version && row.aggregate_version == -5 && !line.published,
	   "quoted numbers, headers, a dead letter");
	ok(read_line("{\"position\":1," ID "," NAMES ",\"payload_kind\":\"j\",\"payload\":\"1\",\"headers\":\"{\\\"a\\\":\\\"b\\\"}\",\"subject\":null}", &copy) == NULL &&
		   strcmp(row.headers, "{\"a\":\"b\"}") == 0 && row.subject == NULL && row.event_id.data[15] == 0xef && row.created_at == row.occurred_at,
	   "headers as a string");
	ok(read_line("{\"position\":1.5," ID "," NAMES ",\"payload_kind\":\"j\",\"payload\":\"1\"}", &copy) != NULL, "half a position");
	ok(read_line("{\"position\":1,\"event_id\":\"0123456789abcdef0123456789abcdef\"," NAMES ",\"payload_kind\":\"j\",\"payload\":\"1\"}", &copy) != NULL, "an id without dashes");
	free(copy);
	free(line.headers);
}

static void
test_filter(void)
{
	const OutboxEnvelope envelope = {.subject_template = "o.{aggregate_type}.{event_type}"};
	OutboxReplayFilter filter = {.from_time = 10, .to_time = 20, .from_position = 5, .to_position = 6, .subject = "o.*.e"};
	OutboxRow	event = {.position = 5, .created_at = 10, .aggregate_type = "t", .aggregate_id = "i", .event_type = "e"};

	ok(outbox_replay_filter_matches(&filter, &envelope, &event), "both ends of a range are in it");
	event.position = 6, event.created_at = 20;
	ok(outbox_replay_filter_matches(&filter, &envelope, &event), "the other ones, too");
	event.created_at = 21;
	ok(!outbox_replay_filter_matches(&filter, &envelope, &event), "what is later isn't");
	event.created_at = 20, event.subject = "o.x.y";
	ok(!outbox_replay_filter_matches(&filter, &envelope, &event), "an event's own subject counts");
}

int
main(void)
{
	test_lines();
	check_time("1970-01-01", 0);
	check_time("2000-02-29T00:00:00Z", INT64_C(951782400000000));
	check_time("2024-10-27 02:30:00.1234569+02:00", INT64_C(1729989000123456));
	check_time("2024-10-27T00:30:00+0000", INT64_C(1729989000000000));
	check_time("1969-12-31T23:59:59.999999Z", -1);
	check_time("0001-01-02T03:04:05.000006Z", INT64_C(-62135499354999994));
	check_time("2023-02-29", INT64_MIN);
	check_time("1900-02-29", INT64_MIN);
	check_time("2024-13-01", INT64_MIN);
	check_time("2024-10-27T24:00:00Z", INT64_MIN);
	check_time("2024-10-27x", INT64_MIN);
	check_time("yesterday", INT64_MIN);
	check_time("", INT64_MIN);
	test_filter();
	return unit_done();
}
