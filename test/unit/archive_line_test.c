/*
 * archive_line_test.c
 *	  Events as lines and as ClickHouse's rows: what is escaped, what is null.
 */
#include <stdlib.h>
#include <string.h>

#include "archive_line.h"
#include "unit.h"

static const uint8_t id[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255};

static ArchiveEvent
plain_event(void)
{
	return (ArchiveEvent) {
		.position = 1, .event_id = id, .aggregate_type = "a", .aggregate_id = "b", .event_type = "c", .payload_kind = 'j', .payload = "{}", .payload_length = 2,
		.occurred_at = 0, .created_at = 1, .published_at = ARCHIVE_TIME_UNKNOWN, .not_before = ARCHIVE_TIME_UNKNOWN, .state = "published"};
}

/* The line, or the row, of an event is this. */
static void
check(const ArchiveEvent *event, bool as_line, const char *expected, const char *name)
{
	OutboxBuffer buffer = {0};

	if (as_line)
		outbox_archive_put_line(&buffer, event);
	else
		outbox_archive_put_row(&buffer, event, "d\t", 7);
	ok(buffer.length == strlen(expected) && memcmp(buffer.data, expected, buffer.length) == 0, "%s", name);
	if (buffer.length != strlen(expected) || memcmp(buffer.data, expected, buffer.length) != 0)
		diag("%.*s", (int) buffer.length, buffer.data);
	free(buffer.data);
}

/* The payload as it stands in the line. */
static void
check_payload(char kind, const char *payload, size_t length, const char *expected)
{
	ArchiveEvent event = plain_event();
	char	   *copy = malloc(length + 1);	/* of the exact size, for ASan */
	char	   *line;

	memcpy(copy, payload, length);
	copy = realloc(copy, length == 0 ? 1 : length);
	event.payload_kind = kind;
	event.payload = copy;
	event.payload_length = length;
	if (asprintf(&line, "{\"position\":1,\"event_id\":\"00010203-0405-0607-0809-0a0b0c0d0eff\",\"aggregate_type\":\"a\",\"aggregate_id\":\"b\",\"event_type\":\"c\","
				 "\"subject\":null,\"payload_kind\":\"%c\",\"payload\":%s,\"headers\":null,\"occurred_at\":\"1970-01-01T00:00:00.000000Z\",\"created_at\":\"1970-01-01T00:00:00.000001Z\","
				 "\"published_at\":null,\"priority\":0,\"not_before\":null,\"content_type\":null,\"dataschema\":null,\"aggregate_version\":null,\"state\":\"published\",\"last_error\":null}\n",
				 kind, expected) < 0)
		abort();
	check(&event, true, line, expected);
	free(line);
	free(copy);
}

int
main(void)
{
	ArchiveEvent event = plain_event();
	int64_t		version = INT64_MIN;
	OutboxBuffer buffer = {0};
	bool		grows = true;

	check_payload('t', "", 0, "\"\"");
	check_payload('t', "\"\\/\b\t\n\f\r\x01\x1f\x7f", 11, "\"\\\"\\\\/\\b\\t\\n\\f\\r\\u0001\\u001f\x7f\"");
	check_payload('j', "\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80", 9, "\"\xc3\xa9\xe2\x80\xa8\xf0\x9f\x98\x80\"");
	check_payload('x', "", 0, "\"\"");
	check_payload('x', "f", 1, "\"Zg==\"");
	check_payload('x', "fo", 2, "\"Zm8=\"");
	check_payload('x', "foo", 3, "\"Zm9v\"");
	check_payload('x', "foob", 4, "\"Zm9vYg==\"");
	check_payload('x', "\0\xff\xfb\n", 4, "\"AP/7Cg==\"");

	event.subject = "s";
	event.headers = "{\"a\": \"b\"}";
	event.occurred_at = INT64_C(-62135596800000000);
	event.created_at = INT64_C(253402300799999999);
	event.published_at = INT64_C(253402300800000000);
	event.not_before = ARCHIVE_TIME_BEGIN;
	event.priority = -100;
	event.content_type = "t\n";
	event.dataschema = "";
	event.aggregate_version = &version;
	event.state = "discarded";
	event.last_error = "\"";
	check(&event, true, "{\"position\":1,\"event_id\":\"00010203-0405-0607-0809-0a0b0c0d0eff\",\"aggregate_type\":\"a\",\"aggregate_id\":\"b\",\"event_type\":\"c\","
		  "\"subject\":\"s\",\"payload_kind\":\"j\",\"payload\":\"{}\",\"headers\":{\"a\": \"b\"},\"occurred_at\":\"0001-01-01T00:00:00.000000Z\",\"created_at\":\"9999-12-31T23:59:59.999999Z\","
		  "\"published_at\":\"infinity\",\"priority\":-100,\"not_before\":\"-infinity\",\"content_type\":\"t\\n\",\"dataschema\":\"\",\"aggregate_version\":-9223372036854775808,"
		  "\"state\":\"discarded\",\"last_error\":\"\\\"\"}\n",
		  "everything, and times at their ends");
	event.payload = "\t\\N\n\r\b\f";
	event.payload_length = 7;
	check(&event, false, "1\t00010203-0405-0607-0809-0a0b0c0d0eff\ta\tb\tc\ts\tj\t\\t\\\\N\\n\\r\\b\\f\t{\"a\": \"b\"}\t0001-01-01T00:00:00.000000Z\t9999-12-31T23:59:59.999999Z\t"
		  "infinity\t-100\t-infinity\tt\\n\t\t-9223372036854775808\tdiscarded\t\"\td\\t\t7\n",
		  "a row with everything");
	event = plain_event();
	event.payload_kind = 'x';
	event.payload = "\0";
	event.payload_length = 1;
	event.aggregate_id = "\\N";
	check(&event, false, "1\t00010203-0405-0607-0809-0a0b0c0d0eff\ta\t\\\\N\tc\t\\N\tx\t\\0\t\\N\t1970-01-01T00:00:00.000000Z\t1970-01-01T00:00:00.000001Z\t\\N\t0\t\\N\t\\N\t\\N\t\\N\tpublished\t\\N\td\\t\t7\n",
		  "a row with next to nothing");

	event = plain_event();
	for (int i = 0; i < 2000; i++)
	{
		size_t		before = buffer.length;

		outbox_archive_put_line(&buffer, &event);
		grows = grows && buffer.length == before + buffer.length / (size_t) (i + 1) && memcmp(buffer.data, buffer.data + before, buffer.length - before) == 0;
	}
	ok(grows && !buffer.no_memory, "2,000 lines in one buffer");
	free(buffer.data);
	return unit_done();
}
