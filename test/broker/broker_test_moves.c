/*
 * broker_test_moves.c
 *	  The broker while servers leave, come back elsewhere, lower their limits or
 *	  fall silent: it finds its way without losing account of a message.
 */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker_test.h"
#include "harness.h"

/* Sanitizers keep what has been freed. */
#ifdef SANITIZED
#define LARGEST_BUFFER_KB 500000
#else
#define LARGEST_BUFFER_KB 60000
#endif

static Server server;
static Server other;

/* What the name "moving.test" stands for, as DNS would say it; and how often it was asked. */
static const char *moving_to;
static int	lookups;

extern int	getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result);

int
getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **result)
{
	int			(*real) (const char *, const char *, const struct addrinfo *, struct addrinfo **);

	*(void **) &real = dlsym(RTLD_NEXT, "getaddrinfo");
	if (node != NULL && strcmp(node, "moving.test") == 0)
	{
		__atomic_add_fetch(&lookups, 1, __ATOMIC_SEQ_CST);
		node = __atomic_load_n(&moving_to, __ATOMIC_SEQ_CST);
	}
	return real(node, service, hints, result);
}

static BrokerConfig
two_urls(void)
{
	static char url[128];
	BrokerConfig config = base_config(&server);

	snprintf(url, sizeof(url), "nats://127.0.0.1:%d,nats://127.0.0.1:%d", server.port, other.port);
	config.url = url;
	return config;
}

static bool
connected_to(const Broker *broker, const Server *wanted)
{
	BrokerStatus status;
	char		port[16];

	broker_get_status(broker, &status);
	snprintf(port, sizeof(port), ":%d", wanted->port);
	return status.state == BROKER_ONLINE && strstr(status.server, port) != NULL;
}

static void
test_several_urls(void)
{
	BrokerConfig config = two_urls();
	Broker	   *broker = broker_create();
	BrokerStatus status;

	tally_reset();
	server_start(&other);
	/* One attempt must do, wherever it begins. */
	config.reconnect_base_ms = config.reconnect_max_ms = 60000;
	for (int i = 0; i < 8; i++)
	{
		config.ack_timeout_ms++;
		broker_configure(broker, &config);
		if (!wait_state(broker, BROKER_ONLINE, 5000) || !connected_to(broker, &other))
			ok(false, "several URLs: the second is alive");
	}
	ok(works(broker), "several URLs: the second is found, wherever it begins");
	config.reconnect_base_ms = config.reconnect_max_ms = 100;
	broker_configure(broker, &config);
	wait_state(broker, BROKER_ONLINE, 5000);
	server_kill(&other);
	ok(wait_text(broker, BROKER_OFFLINE, "; to nats://", 5000), "several URLs: all are dead");
	broker_get_status(broker, &status);
	ok(strstr(status.text, "could not connect to nats://127.0.0.1") == status.text, "several URLs: told: %s", status.text);
	server_start(&server);
	ok(works(broker) && connected_to(broker, &server), "several URLs: one is back");
	server_kill(&server);
	server_start(&other);
	ok(wait_connects(broker, 11, 5000) && works(broker) && accounts(), "several URLs: the other one is back");
	broker_destroy(broker, 2000);
	server_kill(&other);
}

/* Messages go out all the time, and the server goes away in an orderly way. */
static void
test_lame_duck(void)
{
	BrokerConfig config = two_urls();
	Broker	   *broker = broker_create();
	BrokerStatus status;
	int64_t		until_us;

	server_start(&server);
	config.max_in_flight = 100;
	broker_configure(broker, &config);
	tally_reset();
	ok(works(broker) && connected_to(broker, &server), "lame duck: on the first server");
	server_signal(&server, SIGUSR2, "lame duck");
	until_us = clock_us() + 1000000;
	while (clock_us() < until_us)
	{
		publish_many(broker, "outbox.duck", 10, 100);
		step(broker, 20);
	}
	ok(wait_quiet(broker, 5000) && connected_to(broker, &server), "lame duck: without another server it stays");
	server_start(&other);
	until_us = clock_us() + slack(5000000);
	while (!connected_to(broker, &other) && clock_us() < until_us)
	{
		publish_many(broker, "outbox.duck", 10, 100);
		step(broker, 20);
	}
	ok(connected_to(broker, &other), "lame duck: with another one it moves");
	/* nats-server 2.10 and newer end JetStream at once, and say so: what they get isn't stored. */
	ok(works(broker) && accounts() && tally.count[BROKER_ACKED] + tally.count[BROKER_NO_RESPONDERS] == tally.published,
	   "lame duck: all %d messages are acknowledged, or come back", tally.published);
	broker_get_status(broker, &status);
	ok(status.connects == 2, "lame duck: by one new connection");
	ok(tally.longest_call_us < slack(LONGEST_CALL_US), "lame duck: longest call %lld us, %s",
	   (long long) tally.longest_call_us, tally.longest_call);
	server_kill(&server);

	/* It tells, and dies while the next connection waits for its last answers. */
	server_start(&server);
	server_signal(&other, SIGUSR2, "lame duck");
	ok(poll(&(struct pollfd) {.fd = broker_fd(broker), .events = POLLIN}, 1, 5000) == 1, "lame duck: told");
	server_freeze(&other);
	publish_many(broker, "outbox.duck", 20, 100);
	for (int i = 0; i < 50 && publish(broker, "outbox.duck", NULL, NULL, 10) != BROKER_PUBLISH_FULL; i++)
		step(broker, 20);
	ok(publish(broker, "outbox.duck", NULL, NULL, 10) == BROKER_PUBLISH_FULL && connected_to(broker, &other),
	   "lame duck: the last answers are awaited, and nothing more is taken");
	server_kill(&other);
	ok(wait_connects(broker, 3, 5000) && works(broker) && connected_to(broker, &server) && accounts(),
	   "lame duck: dead before its last answers");
	broker_destroy(broker, 2000);
	server_kill(&server);
}

static void
test_moved_name(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	Server		elsewhere;
	char		url[128];
	int			before;

	server_create(&elsewhere);
	elsewhere.host = "127.0.0.2";
	elsewhere.port = server.port;
	server_configure(&elsewhere, "");
	server_start(&server);
	__atomic_store_n(&moving_to, "127.0.0.1", __ATOMIC_SEQ_CST);
	snprintf(url, sizeof(url), "nats://moving.test:%d", server.port);
	config.url = url;
	broker_configure(broker, &config);
	tally_reset();
	ok(works(broker), "moved: by its name");
	server_kill(&server);
	wait_state(broker, BROKER_OFFLINE, 5000);
	before = __atomic_load_n(&lookups, __ATOMIC_SEQ_CST);
	for (int i = 0; i < 3; i++)
	{
		wait_state(broker, BROKER_CONNECTING, 5000);
		wait_state(broker, BROKER_OFFLINE, 5000);
	}
	ok(__atomic_load_n(&lookups, __ATOMIC_SEQ_CST) >= before + 3, "moved: each attempt looks the name up");
	server_start(&elsewhere);
	__atomic_store_n(&moving_to, "127.0.0.2", __ATOMIC_SEQ_CST);
	ok(works(broker) && accounts(), "moved: found at the new address");
	broker_destroy(broker, 2000);
	server_remove(&elsewhere);
}

/* The size that the server counts for publish()'s message with an empty body. */
static int
header_size(void)
{
	return (int) (strlen("NATS/1.0\r\n\r\n") + strlen("Nats-Msg-Id: \r\n") + strlen(last_id()));
}

static int
boundary(Broker *broker, int limit)
{
	int			acked = tally.count[BROKER_ACKED];
	int			room;

	publish_many(broker, "outbox.s", 1, 10);
	wait_quiet(broker, 5000);
	room = limit - header_size();
	ok(publish(broker, "outbox.s", NULL, NULL, room + 1) == BROKER_PUBLISH_REFUSED, "max_payload: %s", publish_error);
	publish_many(broker, "outbox.s", 1, room);
	wait_quiet(broker, 5000);
	return tally.count[BROKER_ACKED] - acked;
}

static void
test_max_payload(void)
{
	Broker	   *broker;
	BrokerStatus before;
	BrokerStatus after;
	char		limit[32];

	server_configure(&server, "max_payload: 100000");
	server_start(&server);
	broker = online_broker(&server);
	tally_reset();
	ok(boundary(broker, 100000) == 2, "max_payload: one byte less passes, headers included");
	broker_get_status(broker, &before);
	server_configure(&server, "max_payload: 20000");
	server_signal(&server, SIGHUP, "Reloaded server configuration");
	publish_many(broker, "outbox.s", 1, 50000);
	publish_many(broker, "outbox.s", 3, 500);
	wait_quiet(broker, 5000);
	ok(works(broker), "max_payload: lowered: works again");
	ok(publish(broker, "outbox.s", NULL, NULL, 50000) == BROKER_PUBLISH_REFUSED &&
	   strstr(publish_error, "over the server's max_payload of 20000") != NULL &&
	   strncmp(publish_error, "500", 3) == 0, "max_payload: %s", publish_error);
	ok(boundary(broker, 20000) == 2, "max_payload: the new one to the byte");
	broker_get_status(broker, &after);
	ok(after.connects <= before.connects + 1 && after.max_payload == 20000 && accounts(),
	   "max_payload: %d new connections", (int) (after.connects - before.connects));
	for (int i = 0; i < 20; i++)
	{
		snprintf(limit, sizeof(limit), "max_payload: %d", 20000 - 100 * i);
		server_configure(&server, limit);
		server_signal(&server, SIGHUP, "Reloaded server configuration");
		publish_many(broker, "outbox.s", 1, 19990 - 100 * i);
		wait_quiet(broker, 5000);
	}
	ok(works(broker) && accounts(), "max_payload: lowered again and again");
	broker_destroy(broker, 2000);
	server_kill(&server);
	server_configure(&server, "");
}

static long
peak_kilobytes(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_maxrss;
}

static void
test_announce(void)
{
	Broker	   *broker;
	BrokerConfig config;
	BrokerStatus status;
	char		url[128];
	long		before;
	int			fd;

	server_start(&server);
	broker = online_broker(&server);
	tally_reset();
	fd = server_subscribe(&server, "announced.>");
	broker_announce(broker, "announced.dead\r\nletter", "no", 2);
	broker_announce(broker, "announced.*", "no", 2);
	broker_announce(broker, "announced.empty", "", 0);
	broker_announce(broker, "announced.event", "first and only", 14);
	broker_flush(broker);
	step(broker, 10);
	ok(socket_tells(fd, "announced.event 1 14\r\nfirst and only"), "announce: it arrives");
	close(fd);
	ok(works(broker) && outcomes() == tally.published, "announce: without an outcome");
	broker_get_status(broker, &status);
	ok(status.connects == 1, "announce: what can't be sent is dropped");
	server_freeze(&server);
	before = peak_kilobytes();
	for (int i = 0; i < 500; i++)
	{
		static char large[500000];

		broker_announce(broker, "announced.large", large, sizeof(large));
	}
	broker_flush(broker);
	ok(publish(broker, "outbox.a", NULL, NULL, 10) == BROKER_PUBLISH_FULL &&
	   peak_kilobytes() - before < LARGEST_BUFFER_KB, "announce: takes no memory without end, %ld kB",
	   peak_kilobytes() - before);
	server_thaw(&server);
	broker_reset(broker);
	ok(works(broker), "announce: works again");
	server_kill(&server);
	wait_state(broker, BROKER_OFFLINE, 5000);
	broker_announce(broker, "announced.event", "lost", 4);
	ok(accounts(), "announce: offline it is dropped");
	broker_destroy(broker, 2000);

	/* Without permission. */
	server_configure(&server, "authorization { users: [{ user: u, password: p, permissions: { publish: { deny: \"announced.>\" } } }] }");
	server_start(&server);
	config = base_config(&server);
	snprintf(url, sizeof(url), "nats://u:p@127.0.0.1:%d", server.port);
	config.url = url;
	broker = broker_create();
	broker_configure(broker, &config);
	wait_state(broker, BROKER_ONLINE, 5000);
	for (int i = 0; i < 10; i++)
		broker_announce(broker, "announced.event", "denied", 6);
	ok(works(broker) && accounts(), "announce: without permission it is dropped");
	broker_destroy(broker, 2000);
	server_kill(&server);
	server_configure(&server, "");
}

/* Nothing is in flight, and the server stops to exist without a word: PINGs find out. */
static void
test_black_hole(void)
{
	Broker	   *broker;
	int64_t		begin_us;

	server_start(&server);
	broker = online_broker(&server);
	tally_reset();
	works(broker);
	begin_us = clock_us();
	ok(!wait_state(broker, BROKER_OFFLINE, (int) ((BROKER_STALE_US / 1000 + 2000) / slack(1))), "black hole: an idle connection stays");
	server_freeze(&server);
	begin_us = clock_us();
	ok(wait_text(broker, BROKER_OFFLINE, "does not respond", 10000), "black hole: a silent server is given up");
	ok(clock_us() - begin_us < BROKER_STALE_US + BROKER_PING_MS * 1000 + 1000000, "black hole: after %lld ms",
	   (long long) (clock_us() - begin_us) / 1000);
	ok(wait_state(broker, BROKER_CONNECTING, 5000) && wait_state(broker, BROKER_OFFLINE, 5000),
	   "black hole: and tried again");
	server_thaw(&server);
	ok(works(broker) && accounts(), "black hole: until it is back");
	ok(tally.longest_call_us < slack(LONGEST_CALL_US), "black hole: longest call %lld us, %s",
	   (long long) tally.longest_call_us, tally.longest_call);
	broker_destroy(broker, 2000);
	server_kill(&server);
}

void
test_moves(void)
{
	server_create(&server);
	server_create(&other);
	test_several_urls();
	test_lame_duck();
	test_moved_name();
	test_max_payload();
	test_announce();
	test_black_hole();
	server_remove(&server);
	server_remove(&other);
}
