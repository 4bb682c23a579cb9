/*
 * broker_test_batch.c
 *	  Batches: stored as a whole or not at all, with one outcome. They need a
 *	  nats-server of 2.12 or newer: the one that NEWER_NATS_SERVER in the
 *	  environment names, or else the system's if it is new enough.
 */
#define _GNU_SOURCE

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "broker_test.h"
#include "harness.h"

#define MAX_BATCH 2000

static Server server;
static int	next_id;

/* What a message of a batch is like, where it isn't an ordinary one. */
typedef struct Oddity
{
	int			at;				/* from 0 on */
	const char *subject;		/* NULL: as the others */
	int			size;			/* 0: as the others */
} Oddity;

/* Hands over a batch with ids from first_id on. */
static BrokerPublishResult
publish_batch(Broker *broker, const char *subject, int count, int first_id, Oddity odd)
{
	static char data[2 * 1024 * 1024];
	static char ids[MAX_BATCH][32];
	static BrokerHeader headers[MAX_BATCH];
	static BrokerMessage messages[MAX_BATCH];
	static const BrokerMessage *list[MAX_BATCH];
	BrokerPublishResult result;

	for (int i = 0; i < count; i++)
	{
		snprintf(ids[i], sizeof(ids[i]), "%d-batched-%d", (int) getpid(), first_id + i);
		headers[i] = (BrokerHeader) {"Nats-Msg-Id", ids[i]};
		messages[i] = (BrokerMessage) {.subject = subject, .headers = &headers[i], .header_count = 1, .data = data, .data_len = 100};
		list[i] = &messages[i];
		if (i == odd.at && odd.subject != NULL)
			messages[i].subject = odd.subject;
		if (i == odd.at && odd.size > 0)
			messages[i].data_len = odd.size;
	}
	if (first_id + count > next_id)
		next_id = first_id + count;
	publish_error[0] = '\0';
	result = broker_publish_batch(broker, list, count, &tally.seen[tally.published], publish_error);
	if (result == BROKER_PUBLISH_OK)
		tally.published++;
	broker_flush(broker);
	return result;
}

static const Oddity none = {-1, NULL, 0};

/* Whether a batch of new messages has the only outcome, of this kind and code. */
static bool
ends(Broker *broker, const char *subject, int count, Oddity odd, BrokerOutcomeKind kind, int code)
{
	tally_reset();
	return publish_batch(broker, subject, count, next_id, odd) == BROKER_PUBLISH_OK && wait_quiet(broker, 10000) &&
		outcomes() == 1 && tally.count[kind] == 1 && (kind == BROKER_ACKED || tally.last_code == code) && accounts();
}

/* The sequence that a single message gets. */
static uint64_t
sequence_of_one(Broker *broker)
{
	tally_reset();
	publish(broker, "outbox.one", NULL, NULL, 10);
	broker_flush(broker);
	return wait_quiet(broker, 5000) ? tally.max_sequence : 0;
}

/* Before 2.12 a server passes over the headers and stores each message by itself: that is no batch acknowledged. */
static bool
test_any_server(void)
{
	Broker	   *broker = online_broker(&server);
	BrokerStatus status;

	broker_get_status(broker, &status);
	ok(ends(broker, "outbox.a", 10, none, status.takes_batches ? BROKER_ACKED : BROKER_BAD_REPLY, 0),
	   "a server that %s batches: %s", status.takes_batches ? "takes" : "doesn't take", tally.last_text);
	broker_destroy(broker, 2000);
	return status.takes_batches;
}

static void
test_stored(Broker *broker)
{
	BrokerStatus status;
	int			first = next_id;
	uint64_t	before = sequence_of_one(broker);

	tally_reset();
	ok(publish_batch(broker, "outbox.a", 100, first, none) == BROKER_PUBLISH_OK, "a batch of 100 is taken");
	broker_get_status(broker, &status);
	ok(status.in_flight == 100 && status.batches_in_flight == 1, "each of its messages counts as in flight");
	ok(wait_quiet(broker, 10000) && outcomes() == 1 && tally.count[BROKER_ACKED] == 1 && tally.max_sequence == before + 100,
	   "it has one outcome, with the last one's sequence");
	broker_get_status(broker, &status);
	ok(status.in_flight == 0 && status.batches_in_flight == 0, "and is in flight no longer");
	ok(ends(broker, "outbox.a", 1000, none, BROKER_ACKED, 0) && sequence_of_one(broker) == before + 1101, "1,000 are the most");
	ok(publish_batch(broker, "outbox.a", 1025, next_id, none) == BROKER_PUBLISH_FULL, "max_in_flight counts messages");

	tally_reset();
	for (int i = 0; i < 5; i++)
		publish_batch(broker, "outbox.a", 20, next_id, (Oddity) {7, "outbox.another", 0});
	ok(wait_quiet(broker, 10000) && tally.count[BROKER_ACKED] == 5 && accounts(), "several at once, with other subjects among them");
	before = sequence_of_one(broker);

	tally_reset();
	publish_batch(broker, "outbox.a", 100, first + 50, none);
	ok(wait_quiet(broker, 10000) && tally.count[BROKER_REFUSED] == 1 && tally.last_code == 10201,
	   "ids that the stream has: refused, %s", tally.last_text);
	ok(sequence_of_one(broker) == before + 1, "and nothing is stored");
}

static void
test_refused(Broker *broker)
{
	uint64_t	before = sequence_of_one(broker);

	ok(ends(broker, "outbox.a", 60, (Oddity) {30, "nobody.listens", 0}, BROKER_REFUSED, 10176), "nobody listens to one's subject: %s",
	   tally.last_text);
	ok(ends(broker, "outbox.a", 60, (Oddity) {59, "nobody.listens", 0}, BROKER_NO_RESPONDERS, 0), "or to the last one's: %s",
	   tally.last_text);
	ok(ends(broker, "outbox.a", 60, (Oddity) {30, NULL, 5000}, BROKER_REFUSED, 10176), "one is too large for the stream: %s",
	   tally.last_text);
	ok(ends(broker, "outbox.a", 60, (Oddity) {59, NULL, 5000}, BROKER_REFUSED, 10054), "or the last: %s", tally.last_text);
	ok(ends(broker, "outbox.a", 1001, none, BROKER_REFUSED, 10199), "they are too many: %s", tally.last_text);
	tally_reset();
	ok(publish_batch(broker, "outbox.a", 60, next_id, (Oddity) {30, NULL, 1048570}) == BROKER_PUBLISH_REFUSED,
	   "one is too large for the server: %s", publish_error);
	ok(publish_batch(broker, "outbox.a", 60, next_id, (Oddity) {30, "a..b", 0}) == BROKER_PUBLISH_REFUSED, "or has no subject: %s",
	   publish_error);
	ok(sequence_of_one(broker) == before + 1, "nothing of all that is stored");
	ok(ends(broker, "outbox.a", 60, none, BROKER_ACKED, 0), "and the next is");
}

static void
test_faults_of_server(Broker *broker)
{
	tally_reset();
	server_freeze(&server);
	publish_batch(broker, "outbox.a", 100, next_id, none);
	ok(wait_quiet(broker, 10000) && outcomes() == 1 && tally.count[BROKER_TIMED_OUT] == 1, "a frozen server: %s", tally.last_text);
	server_thaw(&server);
	ok(works(broker), "works after the thaw");

	tally_reset();
	server_freeze(&server);
	publish_batch(broker, "outbox.a", 100, next_id, none);
	server_kill(&server);
	ok(wait_quiet(broker, 10000) && outcomes() == 1 && tally.count[BROKER_LOST] == 1, "a killed one: %s", tally.last_text);
	ok(publish_batch(broker, "outbox.a", 100, next_id, none) == BROKER_PUBLISH_OFFLINE, "offline nothing is taken");
	server_start(&server);
	ok(works(broker) && ends(broker, "outbox.a", 100, none, BROKER_ACKED, 0), "and again when it is back");
}

/* A stream of somebody else's: used as it is. */
static void
test_stream_without(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerStatus status;

	server_api(&server, "$JS.API.STREAM.CREATE.PLAIN", "{\"name\":\"PLAIN\",\"subjects\":[\"plain.>\"],\"storage\":\"file\"}");
	config.stream = "PLAIN";
	ok(broker_configure(broker, &config) && wait_state(broker, BROKER_ONLINE, 10000), "a stream that takes no batches");
	broker_get_status(broker, &status);
	ok(!status.takes_batches, "is known as such");
	ok(ends(broker, "plain.a", 60, none, BROKER_REFUSED, 10174), "one sent all the same: %s", tally.last_text);
	broker_destroy(broker, 2000);
}

void
test_batches(void)
{
	BrokerConfig config;
	Broker	   *broker;
	bool		takes;

	server_create(&server);
	server_start(&server);
	takes = test_any_server();
	if (!takes && getenv("NEWER_NATS_SERVER") != NULL)
	{
		server_remove(&server);
		server.program = getenv("NEWER_NATS_SERVER");
		server_create(&server);
		server_start(&server);
		takes = test_any_server();
	}
	if (!takes)
		printf("# skipped: no nats-server here takes batches (2.12 or newer)\n");
	else
	{
		server_api(&server, "$JS.API.STREAM.UPDATE.OUTBOX",
				   "{\"name\":\"OUTBOX\",\"subjects\":[\"outbox.>\"],\"storage\":\"file\",\"max_msg_size\":4000,"
				   "\"duplicate_window\":120000000000,\"allow_atomic\":true,\"allow_msg_ttl\":true}");
		broker = broker_create();
		config = base_config(&server);
		config.ack_timeout_ms = 2000;
		ok(broker_configure(broker, &config) && wait_state(broker, BROKER_ONLINE, 10000), "online");
		test_stored(broker);
		test_refused(broker);
		test_faults_of_server(broker);
		ok(broker_destroy(broker, 2000), "destroy leaves no thread behind");
		test_stream_without();
	}
	server_remove(&server);
}
