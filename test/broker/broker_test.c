/*
 * broker_test.c
 *	  The broker against a real nats-server of its own: what becomes of a message
 *	  when all is well, and when the server or JetStream doesn't want it. What
 *	  happens when things break is in broker_test_faults.c.
 */
#define _GNU_SOURCE

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "broker_test.h"
#include "harness.h"

static Server server;

static void
test_publish(void)
{
	Broker	   *broker = online_broker(&server);
	BrokerStatus status;
	int			taken = 0;

	tally_reset();
	broker_get_status(broker, &status);
	ok(status.text[0] == '\0', "the missing stream is created");
	ok(status.duplicate_window_ms == 120000 && !status.discards_unwanted, "its duplicate window is known");
	ok(status.connects == 1 && status.max_payload == 1048576 &&
	   strstr(status.server, "127.0.0.1") != NULL, "the status names the server and its max_payload");

	while (taken < 3000)
	{
		taken += publish_many(broker, "outbox.a.b", 3000 - taken, 100);
		step(broker, 100);
	}
	ok(wait_quiet(broker, 10000) && tally.count[BROKER_ACKED] == 3000, "3000 messages are acknowledged");
	ok(tally.max_sequence == 3000 && tally.duplicates == 0 && tally.twice == 0,
	   "each has a sequence and an outcome of its own");

	publish(broker, "outbox.a", "the-same-id", NULL, 10);
	broker_flush(broker);
	wait_quiet(broker, 5000);
	ok(tally.duplicates == 0, "a new message id is no duplicate");
	publish(broker, "outbox.a", "the-same-id", NULL, 10);
	broker_flush(broker);
	wait_quiet(broker, 5000);
	ok(tally.duplicates == 1 && tally.count[BROKER_ACKED] == 3002, "the same id is acknowledged as duplicate");

	publish(broker, "outbox.a", NULL, NULL, 0);
	broker_flush(broker);
	wait_quiet(broker, 5000);
	ok(tally.count[BROKER_ACKED] == 3003, "an empty message is fine");
	ok(broker_destroy(broker, 2000), "destroy leaves no thread behind");
}

static void
test_unanswered_subject(void)
{
	Broker	   *broker = online_broker(&server);

	tally_reset();
	publish_many(broker, "elsewhere.a", 3, 10);
	ok(wait_quiet(broker, 2000) && tally.count[BROKER_NO_RESPONDERS] == 3,
	   "no stream listens: %s", tally.last_text);

	tally_reset();
	publish(broker, "outbox.a", NULL, "WRONG", 10);
	broker_flush(broker);
	wait_quiet(broker, 5000);
	ok(tally.count[BROKER_REFUSED] == 1 && tally.last_code == 10060,
	   "wrong expected stream: %d %s", tally.last_code, tally.last_text);
	broker_destroy(broker, 2000);
}

static Broker *
broker_for_stream(const char *stream, const char *subjects, bool create)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();

	config.stream = stream;
	config.stream_subjects = subjects;
	config.stream_create = create;
	broker_configure(broker, &config);
	if (!wait_state(broker, BROKER_ONLINE, 5000))
		ok(false, "online for stream %s", stream);
	return broker;
}

static void
test_stream_limits(void)
{
	Broker	   *broker;
	BrokerStatus status;

	server_api(&server, "$JS.API.STREAM.CREATE.SMALL",
			   "{\"name\":\"SMALL\",\"subjects\":[\"small.>\"],\"storage\":\"file\",\"max_msg_size\":1000}");
	broker = broker_for_stream("SMALL", "small.>", false);
	tally_reset();
	publish_many(broker, "small.a", 1, 2000);
	wait_quiet(broker, 5000);
	ok(tally.count[BROKER_REFUSED] == 1 && tally.last_code == 10054,
	   "over max_msg_size: %d %s", tally.last_code, tally.last_text);
	broker_destroy(broker, 2000);

	server_api(&server, "$JS.API.STREAM.CREATE.FULL",
			   "{\"name\":\"FULL\",\"subjects\":[\"full.>\"],\"storage\":\"file\",\"max_msgs\":2,\"discard\":\"new\"}");
	broker = broker_for_stream("FULL", "full.>", false);
	tally_reset();
	publish_many(broker, "full.a", 5, 10);
	wait_quiet(broker, 5000);
	ok(tally.count[BROKER_REFUSED] == 3 && tally.last_code == 10077,
	   "stream full: %d %s", tally.last_code, tally.last_text);
	broker_destroy(broker, 2000);

	broker = broker_for_stream("FULL", "full.>", false);
	tally_reset();
	publish_many(broker, "outbox.a", 1, 10);
	wait_quiet(broker, 5000);
	ok(tally.count[BROKER_BAD_REPLY] == 1, "an ack of another stream doesn't count: %s", tally.last_text);
	broker_destroy(broker, 2000);

	broker = broker_for_stream("ABSENT", "absent.>", false);
	broker_get_status(broker, &status);
	ok(strstr(status.text, "does not exist") != NULL, "a missing stream is told: %s", status.text);
	broker_destroy(broker, 2000);

	broker = broker_for_stream("OVERLAP", "outbox.a.>", true);
	broker_get_status(broker, &status);
	ok(strstr(status.text, "could not create") != NULL, "a stream that can't be created is told: %s", status.text);
	broker_destroy(broker, 2000);
}

static void
expect_refusal(Broker *broker, const char *subject, int size, const char *what)
{
	BrokerPublishResult result = publish(broker, subject, NULL, NULL, size);

	ok(result == BROKER_PUBLISH_REFUSED && publish_error[0] != '\0', "%s: %.80s", what, publish_error);
}

/* Each is a line of its own, whatever its value; the long one is more than the stack's share. */
static void
test_headers(void)
{
	static const char *const lines[] = {"\r\nEmpty: \r\n", "\r\nSplit: a  Injected: b c\r\n", "\r\nSpaced:   d  \r\n", "\r\nLong: xxx",
	"xxx\r\n", "\r\nLast: e f\r\n"};
	static char long_value[3000];
	static char got[8000];
	Broker	   *broker = online_broker(&server);
	BrokerHeader headers[] = {{"Empty", ""}, {"Split", "a\r\nInjected: b\nc"}, {"Spaced", "  d  "}, {"Long", long_value}, {"Last", "e\nf"}};
	BrokerMessage message = {.subject = "outbox.headers", .headers = headers, .header_count = 5, .data = "data", .data_len = 4};
	char		text[BROKER_TEXT_SIZE];
	int			code;
	int			count = 0;
	int			fd = server_subscribe(&server, "outbox.headers");

	tally_reset();
	memset(long_value, 'x', sizeof(long_value) - 1);
	ok(broker_publish(broker, &message, &tally.seen[0], &code, text) == BROKER_PUBLISH_OK, "headers: handed over");
	ok(wait_quiet(broker, 10000) && tally.count[BROKER_ACKED] == 1, "headers: acknowledged");
	ok(socket_reads(fd, got, sizeof(got), "\r\n\r\ndata\r\n"), "headers: the message comes");
	for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
		ok(strstr(got, lines[i]) != NULL, "headers: line %zu", i + 1);
	for (const char *line = strstr(got, "NATS/1.0"); line != NULL && (line = strstr(line, "\r\n")) != NULL; line += 2)
		count++;
	ok(count == 1 + 5 + 2, "headers: no line more, %d", count);
	close(fd);
	broker_destroy(broker, 2000);
}

static void
test_refused_by_client(void)
{
	static char long_subject[5000];
	Broker	   *broker = online_broker(&server);
	BrokerHeader header = {"Bad\r\nPUB x 0", "v"};
	BrokerMessage message = {.subject = "outbox.a", .headers = &header, .header_count = 1, .data = "", .data_len = 0};
	char		text[BROKER_TEXT_SIZE];
	int			code = -1;
	BrokerStatus status;

	tally_reset();
	memset(long_subject, 'x', sizeof(long_subject) - 1);
	expect_refusal(broker, "outbox.a", 1048576, "over max_payload with its headers");
	expect_refusal(broker, "outbox.a b", 1, "space in subject");
	expect_refusal(broker, "outbox.\r\nPING", 1, "line break in subject");
	expect_refusal(broker, "outbox..a", 1, "empty token");
	expect_refusal(broker, "outbox.", 1, "trailing dot");
	expect_refusal(broker, "", 1, "empty subject");
	expect_refusal(broker, "outbox.*", 1, "wildcard *");
	expect_refusal(broker, "outbox.>", 1, "wildcard >");
	expect_refusal(broker, long_subject, 1, "subject too long for the protocol");
	ok(broker_publish(broker, &message, NULL, &code, text) == BROKER_PUBLISH_REFUSED && code == 0,
	   "line break in header name: %s", text);

	publish_many(broker, "outbox.fine", 5, 1000000);
	ok(wait_quiet(broker, 10000) && tally.count[BROKER_ACKED] == 5, "large messages still pass");
	broker_get_status(broker, &status);
	ok(status.connects == 1 && outcomes() == 5, "no refusal costs the connection or makes an outcome");
	broker_destroy(broker, 2000);
}

static void
test_window(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerOutcome outcome;
	struct pollfd wait;
	int			seen = 0;

	ok(publish(broker, "outbox.a", NULL, NULL, 1) == BROKER_PUBLISH_OFFLINE, "offline before configure");
	ok(broker_poll_within(broker) == -1, "nothing to wait for before configure");
	config.max_in_flight = 7;
	broker_configure(broker, &config);
	wait_state(broker, BROKER_ONLINE, 5000);
	tally_reset();
	ok(publish_many(broker, "outbox.a", 100, 10) == 7, "max_in_flight messages are taken");
	ok(publish(broker, "outbox.a", NULL, NULL, 1) == BROKER_PUBLISH_FULL, "then it is full");

	/* One outcome at a time: the descriptor must stay readable for the rest. */
	wait.fd = broker_fd(broker);
	wait.events = POLLIN;
	while (seen < 7 && poll(&wait, 1, 2000) == 1)
		seen += broker_poll(broker, &outcome, 1);
	ok(seen == 7, "outcomes fetched one by one keep the descriptor readable");
	ok(publish_many(broker, "outbox.a", 100, 10) == 7, "and there is room again");
	ok(broker_destroy(broker, 2000), "destroy with messages in flight");
}

static void
test_permissions(void)
{
	BrokerConfig config;
	Broker	   *broker;
	BrokerStatus status;
	char		url[128];
	int64_t		begin_us = clock_us();

	server_kill(&server);
	server_configure(&server,
					 "authorization { users: [{ user: \"relay\", password: \"hush-hush\","
					 " permissions: { publish: [\"outbox.allowed.>\"], subscribe: [\"_INBOX.>\"] } }] }");
	server_start(&server);
	config = base_config(&server);
	snprintf(url, sizeof(url), "nats://relay:hush-hush@127.0.0.1:%d", server.port);
	config.url = url;
	config.ack_timeout_ms = 700;
	broker = broker_create();
	broker_configure(broker, &config);
	ok(wait_state(broker, BROKER_ONLINE, 1900) && clock_us() - begin_us < slack(1900000),
	   "no right to look at the stream doesn't hinder or delay");
	broker_get_status(broker, &status);
	ok(strstr(status.text, "ermission") != NULL, "but is told: %s", status.text);
	ok(strstr(status.server, "hush") == NULL && strstr(status.server, "127.0.0.1") != NULL,
	   "the server's name has no password: %s", status.server);

	tally_reset();
	publish_many(broker, "outbox.allowed.a", 5, 10);
	ok(wait_quiet(broker, 3000) && tally.count[BROKER_ACKED] == 5, "allowed subjects pass");
	publish_many(broker, "outbox.denied.a", 2, 10);
	ok(wait_quiet(broker, 3000) && tally.count[BROKER_DENIED] == 2, "denied ones are told");
	ok(strstr(tally.last_text, "outbox.denied.a") != NULL, "the reason: %s", tally.last_text);
	publish_many(broker, "outbox.allowed.a", 5, 10);
	ok(wait_quiet(broker, 3000) && tally.count[BROKER_ACKED] == 10, "and others still pass");
	broker_destroy(broker, 2000);
}

static void
test_password(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerStatus status;
	char		url[128];

	snprintf(url, sizeof(url), "relay:open-sesame@127.0.0.1:%d", server.port);
	config.url = url;
	broker_configure(broker, &config);
	ok(wait_state(broker, BROKER_OFFLINE, 3000), "a wrong password");
	broker_get_status(broker, &status);
	ok(strstr(status.text, "open-sesame") == NULL && strstr(status.text, "uthorization") != NULL,
	   "is told without telling it: %s", status.text);

	/* More failures than the library's own reconnect would survive. */
	for (int i = 0; i < 4; i++)
	{
		wait_state(broker, BROKER_CONNECTING, 3000);
		wait_state(broker, BROKER_OFFLINE, 3000);
	}
	server_kill(&server);
	server_configure(&server, "authorization { user: relay, password: \"open-sesame\" }");
	server_start(&server);
	ok(wait_state(broker, BROKER_ONLINE, 5000), "and forgiven once the server agrees");
	broker_destroy(broker, 2000);
	server_kill(&server);
	server_configure(&server, "");
}

static bool
wanted(const char *part, int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
	{
		if (strcmp(argv[i], part) == 0)
			return true;
	}
	return argc < 2;
}

static void
test_basics(void)
{
	server_create(&server);
	server_start(&server);
	test_publish();
	test_unanswered_subject();
	test_stream_limits();
	test_headers();
	test_refused_by_client();
	test_window();
	test_permissions();
	test_password();
	server_remove(&server);
}

/* Arguments: the parts to run, all by default. */
int
main(int argc, char **argv)
{
	static const struct
	{
		const char *name;
		void		(*run) (void);
	}			parts[] = {
		{"basics", test_basics}, {"access", test_access}, {"moves", test_moves},
		{"batches", test_batches}, {"consume", test_consume}, {"faults", test_faults}, {"tls", test_tls}, {"certificates", test_certificates}
	};
	sigset_t	all;

	go_on_in_child();
	sigfillset(&all);
	sigdelset(&all, SIGINT);
	sigdelset(&all, SIGTERM);
	sigprocmask(SIG_SETMASK, &all, NULL);

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
	{
		if (wanted(parts[i].name, argc, argv))
			parts[i].run();
	}
	return done_testing();
}
