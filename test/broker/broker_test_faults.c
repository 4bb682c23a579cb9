/*
 * broker_test_faults.c
 *	  The broker while servers are absent, killed, frozen and mute: every message
 *	  taken gets one outcome, no call of the main thread waits, and it recovers.
 */
#define _GNU_SOURCE

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "broker_test.h"
#include "harness.h"

static Server server;

static void
test_absent(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerStatus status;
	int64_t		begin_us;

	tally_reset();
	config.reconnect_base_ms = config.reconnect_max_ms = 60000;
	broker_configure(broker, &config);
	ok(wait_state(broker, BROKER_OFFLINE, 3000), "no server");
	broker_get_status(broker, &status);
	ok(status.text[0] != '\0' && status.connects == 0, "is told: %s", status.text);
	ok(broker_poll_within(broker) > 20000, "the next try is planned, with jitter");

	server_start(&server);
	begin_us = clock_us();
	broker_configure(broker, &config);
	ok(wait_state(broker, BROKER_ONLINE, 3000) && clock_us() - begin_us < slack(3000000),
	   "the same configuration again means: try now");
	broker_configure(broker, &config);
	broker_get_status(broker, &status);
	ok(status.state == BROKER_ONLINE && status.connects == 1, "and nothing once online");
	ok(works(broker), "it works");
	config.ack_timeout_ms++;
	broker_configure(broker, &config);
	ok(works(broker), "it works after a change of configuration");
	broker_get_status(broker, &status);
	ok(status.connects == 2, "which makes a new connection");
	broker_destroy(broker, 2000);
}

static void
test_killed(void)
{
	Broker	   *broker = online_broker(&server);

	tally_reset();
	server_freeze(&server);
	ok(publish_many(broker, "outbox.k", 500, 100) == 500, "500 in flight");
	server_kill(&server);
	ok(wait_quiet(broker, 4000) && tally.count[BROKER_LOST] == 500, "server killed: each is lost");
	ok(strncmp(tally.last_text, "connection lost", 15) == 0, "with the reason: %s", tally.last_text);
	ok(publish(broker, "outbox.k", NULL, NULL, 1) == BROKER_PUBLISH_OFFLINE, "nothing is taken meanwhile");
	server_start(&server);
	ok(works(broker), "it works again");
	ok(accounts(), "one outcome each");
	broker_destroy(broker, 2000);
}

static void
test_frozen(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerStatus status;
	uint64_t	before;
	int			acked;

	config.ack_timeout_ms = 800;
	broker_configure(broker, &config);
	wait_state(broker, BROKER_ONLINE, 5000);
	tally_reset();
	ok(works(broker), "it works");
	acked = tally.count[BROKER_ACKED];
	server_freeze(&server);
	publish_many(broker, "outbox.f", 300, 100);
	ok(wait_quiet(broker, 4000) && tally.count[BROKER_TIMED_OUT] == 300, "server frozen: each times out");
	before = tally.max_sequence;
	tally.min_sequence = UINT64_MAX;
	publish_many(broker, "outbox.f", 100, 100);
	server_thaw(&server);
	ok(wait_quiet(broker, 4000) && tally.count[BROKER_ACKED] == acked + 100, "thawed: the others count");
	ok(tally.min_sequence > before + 300, "late answers don't count for the messages now in their slots");
	ok(works(broker), "it works again");
	broker_get_status(broker, &status);
	ok(status.connects == 1, "on the same connection");

	ok(tally.longest_call_us < slack(LONGEST_CALL_US), "longest call %lld us, %s",
	   (long long) tally.longest_call_us, tally.longest_call);

	/* More than the socket takes: the connection is given up, with all its bytes. */
	server_freeze(&server);
	publish_many(broker, "outbox.f", 60, 900000);
	ok(wait_state(broker, BROKER_OFFLINE, 6000), "frozen with a full socket: given up");
	wait_quiet(broker, 4000);
	broker_get_status(broker, &status);
	ok(accounts(), "one outcome each, %d timed out, %d lost",
	   tally.count[BROKER_TIMED_OUT] - 300, tally.count[BROKER_LOST]);
	server_thaw(&server);
	ok(works(broker), "it works again");
	ok(tally.longest_call_us < slack(LONGEST_LARGE_CALL_US), "longest call %lld us, %s",
	   (long long) tally.longest_call_us, tally.longest_call);
	broker_destroy(broker, 2000);
}

static void
test_stream_deleted(void)
{
	Broker	   *broker = online_broker(&server);
	int64_t		until_us;
	int			acked = 0;

	tally_reset();
	server_api(&server, "$JS.API.STREAM.DELETE.OUTBOX", "");
	publish_many(broker, "outbox.d", 5, 10);
	ok(wait_quiet(broker, 3000) && tally.count[BROKER_NO_RESPONDERS] == 5, "stream deleted: no responders");
	until_us = clock_us() + slack(5000000);
	while (acked == 0 && clock_us() < until_us)
	{
		publish_many(broker, "outbox.d", 1, 10);
		wait_quiet(broker, 3000);
		acked = tally.count[BROKER_ACKED];
		step(broker, 20);
	}
	ok(acked == 1, "it is created again meanwhile");
	ok(works(broker) && accounts(), "it works");
	broker_destroy(broker, 2000);
}

static void
test_reset(void)
{
	Broker	   *broker = online_broker(&server);

	tally_reset();
	server_freeze(&server);
	publish_many(broker, "outbox.r", 200, 100);
	broker_reset(broker);
	ok(wait_quiet(broker, 1000) && tally.count[BROKER_LOST] == 200, "reset: all in flight are lost at once");
	server_thaw(&server);
	ok(works(broker) && accounts(), "and a new connection works");

	publish_many(broker, "outbox.r", 200, 100);
	broker_reset(broker);
	ok(wait_quiet(broker, 1000) && accounts(), "reset of a healthy connection accounts for all");
	ok(works(broker), "and works again");
	ok(tally.longest_call_us < slack(LONGEST_CALL_US), "longest call %lld us, %s",
	   (long long) tally.longest_call_us, tally.longest_call);

	server_freeze(&server);
	publish_many(broker, "outbox.r", 10, 900000);
	ok(broker_destroy(broker, GRACE_MS), "destroy before a frozen server");
	server_thaw(&server);
}

static int
mute_listener(int *port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t	size = sizeof(address);
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(fd, (struct sockaddr *) &address, size) != 0 || listen(fd, 10) != 0 ||
		getsockname(fd, (struct sockaddr *) &address, &size) != 0)
		return -1;
	*port = ntohs(address.sin_port);
	return fd;
}

static void
test_mute(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	char		url[128];
	int			port = 0;
	int			fd = mute_listener(&port);
	int64_t		begin_us;

	tally_reset();
	snprintf(url, sizeof(url), "nats://127.0.0.1:%d", port);
	config.url = url;
	config.connect_timeout_ms = 600;
	broker_configure(broker, &config);
	ok(wait_state(broker, BROKER_OFFLINE, 3000), "a server that says nothing ends the attempt");
	wait_state(broker, BROKER_CONNECTING, 3000);
	begin_us = clock_us();
	ok(broker_destroy(broker, 3000) && clock_us() - begin_us < slack(1500000), "destroy waits for the attempt");

	config.connect_timeout_ms = 1500;
	broker = broker_create();
	broker_configure(broker, &config);
	begin_us = clock_us();
	ok(!broker_destroy(broker, 100) && clock_us() - begin_us < slack(500000),
	   "but not longer than told, and says so");
	usleep(1800000);			/* the attempt cleans up behind us: for the leak checkers */

	/* The broker leaves a mute server when told another one. */
	broker = broker_create();
	broker_configure(broker, &config);
	snprintf(url, sizeof(url), "nats://127.0.0.1:%d", server.port);
	begin_us = clock_us();
	broker_configure(broker, &config);
	ok(wait_state(broker, BROKER_ONLINE, 3000) && clock_us() - begin_us < slack(1400000),
	   "a new configuration doesn't wait for the old attempt");
	ok(works(broker), "it works");
	broker_destroy(broker, 3000);
	close(fd);
}

/*
 * Up to libnats 3.10 a TLS handshake has no time limit. The broker must not
 * wait for such an attempt, neither to make another one nor to be destroyed.
 */
static void
test_mute_handshake(void)
{
	static const char info[] = "INFO {\"server_id\":\"X\",\"max_payload\":1000,\"tls_required\":true}\r\n";
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerStatus status;
	char		url[128];
	int			port = 0;
	int			listener = mute_listener(&port);
	int			clients[2];
	int64_t		begin_us;
	int			before = open_threads();

	snprintf(url, sizeof(url), "nats://127.0.0.1:%d", port);
	config.url = url;
	config.connect_timeout_ms = 100;
	broker_configure(broker, &config);
	clients[0] = accept(listener, NULL, NULL);
	ok(write(clients[0], info, strlen(info)) > 0 && wait_state(broker, BROKER_OFFLINE, 6000),
	   "a handshake without end is given up");
	broker_get_status(broker, &status);
	ok(status.text[0] != '\0', "with the reason: %s", status.text);
	ok(wait_state(broker, BROKER_CONNECTING, 3000), "and another attempt is made");
	clients[1] = accept(listener, NULL, NULL);
	ok(write(clients[1], info, strlen(info)) > 0, "which hangs, too");
	usleep(50000);
	begin_us = clock_us();
	broker_destroy(broker, 200);
	ok(clock_us() - begin_us < slack(500000), "destroy doesn't wait for it");
	close(clients[0]);
	close(clients[1]);
	close(listener);
	for (int i = 0; i < 500 && open_threads() > before; i++)
		usleep(10000);
	ok(open_threads() <= before, "and the attempts end with their connections");
}

/* A server with such a handshake must not keep us from the others. */
static void
test_mute_handshake_elsewhere(void)
{
	static const char info[] = "INFO {\"server_id\":\"X\",\"max_payload\":1000,\"tls_required\":true}\r\n";
	BrokerConfig config = base_config(&server);
	char		url[128];
	int			port = 0;
	int			listener = mute_listener(&port);
	int			before = open_threads();
	pid_t		child = fork();
	int64_t		longest_us = 0;

	if (child == 0)
	{
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
		{
			if (write(accept(listener, NULL, NULL), info, strlen(info)) < 0)
				_exit(1);
		}
	}
	close(listener);
	snprintf(url, sizeof(url), "nats://127.0.0.1:%d,nats://127.0.0.1:%d", port, server.port);
	config.url = url;
	config.connect_timeout_ms = 100;
	/* Half of them begin at the mute one. */
	for (int i = 0; i < 6; i++)
	{
		Broker	   *broker = broker_create();
		int64_t		begin_us = clock_us();

		broker_configure(broker, &config);
		wait_state(broker, BROKER_ONLINE, 20000);
		if (clock_us() - begin_us > longest_us)
			longest_us = clock_us() - begin_us;
		broker_destroy(broker, 0);
	}
	ok(longest_us < slack(4500000), "a handshake without end at the first of two servers: online after %lld ms",
	   (long long) longest_us / 1000);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	for (int i = 0; i < 1000 && open_threads() > before; i++)
		usleep(10000);
	ok(open_threads() <= before, "and the attempts end with their connections");
}

/* What was counted once it hasn't changed for half a second: attempts of the tests before may still be ending. */
static int
settled(int (*count) (void))
{
	int			last = count();

	for (int unchanged = 0; unchanged < 10;)
	{
		int			now;

		usleep(50000);
		now = count();
		unchanged = now == last ? unchanged + 1 : 0;
		last = now;
	}
	return last;
}

static void
test_many_connections(void)
{
	Broker	   *broker = online_broker(&server);
	int			descriptors;
	int			started;
	int			failed = 0;

	tally_reset();
	works(broker);
	descriptors = settled(open_descriptors);
	started = settled(open_threads);
	for (int i = 0; i < 200; i++)
	{
		publish_many(broker, "outbox.m", 3, 10);
		broker_reset(broker);
		failed += !wait_state(broker, BROKER_ONLINE, 5000);
	}
	ok(failed == 0 && works(broker) && accounts(), "200 connections, %d lost and %d acknowledged",
	   tally.count[BROKER_LOST], tally.count[BROKER_ACKED]);
	ok(settled(open_descriptors) == descriptors, "%d descriptors before, %d after", descriptors, open_descriptors());
	ok(settled(open_threads) == started, "%d threads before, %d after", started, open_threads());

	/* Every call of create and destroy, too. */
	broker_destroy(broker, 3000);
	for (int i = 0; i < 20; i++)
	{
		broker = online_broker(&server);
		publish_many(broker, "outbox.m", 3, 10);
		failed += !broker_destroy(broker, 3000);
	}
	ok(failed == 0 && settled(open_descriptors) == descriptors - 3, "20 brokers, %d descriptors", open_descriptors());
}

void
test_faults(void)
{
	server_create(&server);
	test_absent();
	test_killed();
	test_frozen();
	test_stream_deleted();
	test_reset();
	test_mute();
	test_mute_handshake();
	test_mute_handshake_elsewhere();
	test_many_connections();
	server_remove(&server);
}

static bool
stands_still(pid_t process)
{
	char		name[64];
	char		state = '?';
	FILE	   *file;

	snprintf(name, sizeof(name), "/proc/%d/stat", (int) process);
	file = fopen(name, "r");
	if (file == NULL || fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
		_exit(1);
	fclose(file);
	return state == 'T';
}

/* A process that lets this one go on, so long after it has stopped as a whole: all threads go on, in any order. */
static pid_t
start_waker(int ms)
{
	pid_t		self = getpid();
	pid_t		waker = fork();

	if (waker != 0)
		return waker;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (!stands_still(self))
		usleep(1000);
	usleep((useconds_t) ms * 1000);
	kill(self, SIGCONT);
	_exit(0);
}

/* A process that stood still sends nothing of what it had left to the pump. */
static void
test_pause(Broker *broker, BrokerConfig *config)
{
	uint64_t	sequence;
	pid_t		waker;

	config->max_pause_ms = 100;
	broker_configure(broker, config);
	tally_reset();
	ok(works(broker), "TLS: a connection with a limit on pauses works");
	sequence = tally.max_sequence;
	tally_reset();
	/* Before, as it takes a while with sanitizers, and a PING wakes the pump: what isn't late is sent then. */
	waker = start_waker(300);
	for (int i = 0; i < 10; i++)
		(void) publish(broker, "outbox.late", NULL, NULL, 10);
	raise(SIGSTOP);
	waitpid(waker, NULL, 0);
	broker_flush(broker);
	ok(wait_quiet(broker, 5000) && tally.count[BROKER_LOST] == 10, "TLS: messages that waited too long are lost with their connection");
	ok(works(broker) && tally.max_sequence == sequence + 20, "TLS: none of them is in the stream");
	config->max_pause_ms = 0;
	broker_configure(broker, config);
	ok(works(broker), "TLS: without a limit again");
}

/* TLS is driven by a thread of its own, so all that matters is told once more. */
void
test_tls(void)
{
	BrokerConfig config;
	Broker	   *broker;
	char		text[512];
	char		url[128];
	char		ca[128];
	uint64_t	sequence;

	server_create(&server);
	snprintf(text, sizeof(text), "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=127.0.0.1"
			 " -addext subjectAltName=IP:127.0.0.1 -keyout %s/key.pem -out %s/cert.pem 2>/dev/null",
			 server.folder, server.folder);
	if (system(text) != 0)
	{
		ok(true, "TLS # SKIP no openssl");
		server_remove(&server);
		return;
	}
	snprintf(text, sizeof(text), "tls { cert_file: \"%s/cert.pem\", key_file: \"%s/key.pem\" }",
			 server.folder, server.folder);
	server_configure(&server, text);
	server_start(&server);

	config = base_config(&server);
	config.ack_timeout_ms = 800;
	broker = broker_create();
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "certificate", 15000), "TLS: an unknown authority is told");

	snprintf(ca, sizeof(ca), "%s/cert.pem", server.folder);
	snprintf(url, sizeof(url), "tls://127.0.0.1:%d", server.port);
	config.tls_ca_file = ca;
	config.url = url;
	broker_configure(broker, &config);
	tally_reset();
	ok(works(broker), "TLS: it works with the authority");
	for (int i = 0; i < 20; i++)
	{
		publish_many(broker, "outbox.t", 200, 1000);
		wait_quiet(broker, 5000);
	}
	ok(tally.count[BROKER_ACKED] == 20 + 4000 && accounts(), "TLS: 4000 messages are acknowledged");
	ok(publish(broker, "outbox.t", NULL, NULL, 1048576) == BROKER_PUBLISH_REFUSED, "TLS: over max_payload");
	sequence = tally.max_sequence;
	broker_announce(broker, "outbox.announced", "x", 1);
	broker_flush(broker);
	ok(works(broker) && tally.max_sequence == sequence + 1 + 20, "TLS: an announcement is sent");
	test_pause(broker, &config);
	publish_many(broker, "elsewhere.t", 3, 10);
	wait_quiet(broker, 5000);
	ok(tally.count[BROKER_NO_RESPONDERS] == 3, "TLS: no responders");

	server_freeze(&server);
	publish_many(broker, "outbox.t", 100, 900000);
	ok(wait_state(broker, BROKER_OFFLINE, 8000), "TLS: frozen with a full socket: given up");
	ok(wait_quiet(broker, 4000) && accounts(), "TLS: one outcome each, %d timed out, %d lost",
	   tally.count[BROKER_TIMED_OUT], tally.count[BROKER_LOST]);
	server_thaw(&server);
	ok(works(broker), "TLS: it works again");
	publish_many(broker, "outbox.t", 100, 100);
	server_kill(&server);
	ok(wait_quiet(broker, 4000) && accounts(), "TLS: server killed: one outcome each");
	server_start(&server);
	ok(works(broker), "TLS: it works again");
	for (int i = 0; i < 20; i++)
	{
		publish_many(broker, "outbox.t", 5, 100);
		broker_reset(broker);
		wait_state(broker, BROKER_ONLINE, 5000);
	}
	ok(works(broker) && accounts(), "TLS: 20 resets, one outcome each");
	ok(tally.longest_call_us < slack(LONGEST_LARGE_CALL_US), "TLS: longest call %lld us, %s",
	   (long long) tally.longest_call_us, tally.longest_call);
	server_freeze(&server);
	publish_many(broker, "outbox.t", 20, 900000);
	ok(broker_destroy(broker, GRACE_MS), "TLS: destroy before a frozen server");
	server_thaw(&server);
	server_remove(&server);
}
