/*
 * error_class_test.c
 *	  src/error_class.c alone: the table of docs/delivery.md once more, and what
 *	  isn't in it.
 */
#include <string.h>

#include "error_class.h"
#include "unit.h"

static void
check_codes(const int *codes, size_t count, OutboxErrorClass expected)
{
	static const int statuses[] = {0, 400, 404, 499, 500, 503};

	for (size_t i = 0; i < count; i++)
	{
		bool		same = true;

		/* a listed code has its class whatever status stands beside it */
		for (size_t j = 0; j < sizeof(statuses) / sizeof(statuses[0]); j++)
			same = same && outbox_error_class(BROKER_REFUSED, codes[i], statuses[j]) == expected;
		ok(same, "%d: %s", codes[i], outbox_error_class_name(expected));
	}
}

#define CHECK_CODES(codes, expected) check_codes(codes, sizeof(codes) / sizeof(codes[0]), expected)

static const int unknown_codes[] = {10158};
static const int broker_codes[] = {10002, 10004, 10005, 10006, 10007, 10008, 10009, 10023, 10028, 10035, 10039, 10041,
	10047, 10076};
static const int stream_codes[] = {10051, 10053, 10059, 10060, 10063, 10077, 10096, 10109, 10118, 10167, 10188, 10190};
static const int permanent_codes[] = {10054, 10070, 10071, 10097, 10111, 10164, 10165, 10166, 10189, 10191};

static bool
is_listed(int code)
{
	for (size_t i = 0; i < sizeof(unknown_codes) / sizeof(int); i++)
	{
		if (unknown_codes[i] == code)
			return true;
	}
	for (size_t i = 0; i < sizeof(broker_codes) / sizeof(int); i++)
	{
		if (broker_codes[i] == code)
			return true;
	}
	for (size_t i = 0; i < sizeof(stream_codes) / sizeof(int); i++)
	{
		if (stream_codes[i] == code)
			return true;
	}
	for (size_t i = 0; i < sizeof(permanent_codes) / sizeof(int); i++)
	{
		if (permanent_codes[i] == code)
			return true;
	}
	return false;
}

/* Every other number: the server's own failure uses up no attempt, all else does. */
static void
test_unlisted(void)
{
	int			wrong = 0;

	for (int code = 1; code < 20000; code++)
	{
		if (is_listed(code))
			continue;
		wrong += outbox_error_class(BROKER_REFUSED, code, 0) != OUTBOX_ERROR_TRANSIENT;
		wrong += outbox_error_class(BROKER_REFUSED, code, 400) != OUTBOX_ERROR_TRANSIENT;
		wrong += outbox_error_class(BROKER_REFUSED, code, 499) != OUTBOX_ERROR_TRANSIENT;
		wrong += outbox_error_class(BROKER_REFUSED, code, 500) != OUTBOX_ERROR_STREAM;
		wrong += outbox_error_class(BROKER_REFUSED, code, 503) != OUTBOX_ERROR_STREAM;
	}
	ok(wrong == 0, "codes that are not listed go by their status");
}

static void
test_kinds(void)
{
	ok(outbox_error_class(BROKER_ACKED, 0, 0) == OUTBOX_ERROR_NONE, "an acknowledgement is no error");
	ok(outbox_error_class(BROKER_ACKED, 10077, 503) == OUTBOX_ERROR_NONE, "whatever stands beside it");
	ok(outbox_error_class(BROKER_REFUSED, 0, 0) == OUTBOX_ERROR_PERMANENT, "the client refused it");
	ok(outbox_error_class(BROKER_NO_RESPONDERS, 0, 0) == OUTBOX_ERROR_STREAM, "no responders");
	ok(outbox_error_class(BROKER_TIMED_OUT, 0, 0) == OUTBOX_ERROR_UNKNOWN, "no answer");
	ok(outbox_error_class(BROKER_LOST, 0, 0) == OUTBOX_ERROR_UNKNOWN, "connection lost");
	ok(outbox_error_class(BROKER_BAD_REPLY, 0, 0) == OUTBOX_ERROR_UNKNOWN, "an answer that is none");
	ok(outbox_error_class((BrokerOutcomeKind) 99, 10054, 400) == OUTBOX_ERROR_UNKNOWN, "a kind that nobody knows");
}

static void
test_texts(void)
{
	ok(strcmp(outbox_error_source(BROKER_REFUSED, 10077), "JetStream") == 0, "who refused: JetStream");
	ok(strcmp(outbox_error_source(BROKER_REFUSED, 0), "NATS client") == 0, "the client");
	ok(strcmp(outbox_error_source(BROKER_NO_RESPONDERS, 0), "NATS server") == 0, "the server");
	ok(strcmp(outbox_error_source(BROKER_TIMED_OUT, 0), "outbox relay") == 0, "the relay");
	for (int class = OUTBOX_ERROR_NONE; class < OUTBOX_ERROR_CLASSES; class++)
	{
		bool		own = outbox_error_class_name(class)[0] != '\0';

		for (int other = OUTBOX_ERROR_NONE; other < class; other++)
			own = own && strcmp(outbox_error_class_name(class), outbox_error_class_name(other)) != 0;
		ok(own, "\"%s\" is a name of its own", outbox_error_class_name(class));
	}
}

int
main(void)
{
	CHECK_CODES(unknown_codes, OUTBOX_ERROR_UNKNOWN);
	CHECK_CODES(broker_codes, OUTBOX_ERROR_BROKER);
	CHECK_CODES(stream_codes, OUTBOX_ERROR_STREAM);
	CHECK_CODES(permanent_codes, OUTBOX_ERROR_PERMANENT);
	test_unlisted();
	test_kinds();
	test_texts();
	return unit_done();
}
