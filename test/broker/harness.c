/*
 * harness.c
 *	  See harness.h.
 */
#define _GNU_SOURCE

#include "harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

Tally		tally;
char		publish_error[BROKER_TEXT_SIZE];

static int	tests_run;
static int	tests_failed;
static uint64_t next_id;
static char own_id[32];

int64_t
clock_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void
die(const char *what)
{
	printf("Bail out! %s\n", what);
	exit(2);
}

void
ok(bool passed, const char *format,...)
{
	va_list		arguments;

	printf("%sok %d - ", passed ? "" : "not ", ++tests_run);
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	fflush(stdout);
	if (!passed)
		tests_failed++;
}

int
done_testing(void)
{
	printf("1..%d\n", tests_run);
	return tests_failed == 0 ? 0 : 1;
}

int
open_descriptors(void)
{
	DIR		   *folder = opendir("/proc/self/fd");
	int			count = 0;

	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count - 3;			/* ".", "..", the folder itself */
}

int
open_threads(void)
{
	DIR		   *folder = opendir("/proc/self/task");
	int			count = 0;

	while (readdir(folder) != NULL)
		count++;
	closedir(folder);
	return count - 2;
}

/* A child may stop itself and go on: who waits for the program sees it end, and nothing else. */
void
go_on_in_child(void)
{
	pid_t		child = fork();
	int			status = 0;

	if (child == 0)
	{
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return;
	}
	waitpid(child, &status, 0);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
}

static int
free_port(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t	size = sizeof(address);
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(fd, (struct sockaddr *) &address, size) != 0 ||
		getsockname(fd, (struct sockaddr *) &address, &size) != 0)
		die("no free port");
	close(fd);
	return ntohs(address.sin_port);
}

void
server_create(Server *server)
{
	server->pid = 0;
	server->host = "127.0.0.1";
	server->port = free_port();
	strcpy(server->folder, "/tmp/broker_test.XXXXXX");
	if (mkdtemp(server->folder) == NULL)
		die("mkdtemp failed");
	server_configure(server, "");
}

/* Writes the configuration file; extra is appended. Takes effect at the next start. */
void
server_configure(Server *server, const char *extra)
{
	char		path[128];
	FILE	   *file;

	snprintf(path, sizeof(path), "%s/nats.conf", server->folder);
	file = fopen(path, "w");
	if (file == NULL)
		die("can't write nats.conf");
	fprintf(file, "host: %s\nport: %d\nlog_file: \"%s/log\"\n"
			"jetstream { store_dir: \"%s/js\" }\n%s\n",
			server->host, server->port, server->folder, server->folder, extra);
	fclose(file);
}

static bool
accepts(const Server *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t) server->port),
	.sin_addr.s_addr = inet_addr(server->host)};
	int			fd = socket(AF_INET, SOCK_STREAM, 0);
	bool		accepted = connect(fd, (struct sockaddr *) &address, sizeof(address)) == 0;

	close(fd);
	return accepted;
}

void
server_start(Server *server)
{
	char		path[128];
	sigset_t	none;

	snprintf(path, sizeof(path), "%s/nats.conf", server->folder);
	sigemptyset(&none);
	server->pid = fork();
	if (server->pid == 0)
	{
		/* Nothing outlives a test program that is killed. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		sigprocmask(SIG_SETMASK, &none, NULL);
		if (server->program != NULL)
			execl(server->program, "nats-server", "-c", path, (char *) NULL);
		execlp("nats-server", "nats-server", "-c", path, (char *) NULL);
		execl("/usr/sbin/nats-server", "nats-server", "-c", path, (char *) NULL);
		_exit(127);
	}
	for (int i = 0; i < 1000; i++)
	{
		if (accepts(server))
			return;
		if (waitpid(server->pid, NULL, WNOHANG) == server->pid)
			die("nats-server did not start");
		usleep(10000);
	}
	die("nats-server does not listen");
}

void
server_kill(Server *server)
{
	if (server->pid == 0)
		return;
	kill(server->pid, SIGKILL);
	waitpid(server->pid, NULL, 0);
	server->pid = 0;
}

/* On return no thread of the server runs any more. */
void
server_freeze(Server *server)
{
	int			status;

	kill(server->pid, SIGSTOP);
	while (waitpid(server->pid, &status, WUNTRACED) == server->pid && !WIFSTOPPED(status))
		;
}

void
server_thaw(Server *server)
{
	kill(server->pid, SIGCONT);
}

static int
count_in_log(const Server *server, const char *wanted)
{
	char		line[1024];
	int			count = 0;
	FILE	   *file;

	snprintf(line, sizeof(line), "%s/log", server->folder);
	file = fopen(line, "r");
	if (file == NULL)
		return 0;
	while (fgets(line, sizeof(line), file) != NULL)
		count += strstr(line, wanted) != NULL;
	fclose(file);
	return count;
}

/* Sends a signal and waits until the server has logged what it makes of it. */
void
server_signal(Server *server, int signal, const char *logged)
{
	int			before = count_in_log(server, logged);

	kill(server->pid, signal);
	for (int i = 0; i < 500; i++)
	{
		if (count_in_log(server, logged) > before)
			return;
		usleep(10000);
	}
	die("nats-server does not take the signal");
}

void
server_remove(Server *server)
{
	char		command[128];

	server_kill(server);
	snprintf(command, sizeof(command), "rm -rf %s", server->folder);
	if (system(command) != 0)
		die("rm failed");
}

/* Reads until the text has come, at most 5 s from the last byte. */
bool
socket_reads(int fd, char *buffer, size_t size, const char *wanted)
{
	size_t		used = 0;
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	while (used + 1 < size && poll(&wait, 1, 5000) == 1)
	{
		ssize_t		got = read(fd, buffer + used, size - 1 - used);

		if (got <= 0)
			return false;
		used += (size_t) got;
		buffer[used] = '\0';
		if (strstr(buffer, wanted) != NULL)
			return true;
	}
	return false;
}

bool
socket_tells(int fd, const char *wanted)
{
	char		buffer[65536];

	return socket_reads(fd, buffer, sizeof(buffer), wanted);
}

static int
server_connect(Server *server)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t) server->port),
	.sin_addr.s_addr = inet_addr(server->host)};
	int			fd = socket(AF_INET, SOCK_STREAM, 0);

	if (connect(fd, (struct sockaddr *) &address, sizeof(address)) != 0 || !socket_tells(fd, "INFO"))
		die("can't connect to nats-server");
	return fd;
}

/* A subscription over a connection of its own, in plain NATS protocol, already in force. */
int
server_subscribe(Server *server, const char *subject)
{
	int			fd = server_connect(server);

	dprintf(fd, "CONNECT {\"verbose\":false,\"headers\":true}\r\nSUB %s 1\r\nPING\r\n", subject);
	if (!socket_tells(fd, "PONG"))
		die("nats-server does not take a subscription");
	return fd;
}

/* Sends one request over a connection of its own, in plain NATS protocol. */
void
server_api(Server *server, const char *subject, const char *payload)
{
	int			fd = server_connect(server);

	dprintf(fd, "CONNECT {\"verbose\":false}\r\nSUB _ANSWER 1\r\nPUB %s _ANSWER %zu\r\n%s\r\n",
			subject, strlen(payload), payload);
	if (!socket_tells(fd, "_response\""))
		die("server_api got no answer");
	close(fd);
}

BrokerConfig
base_config(const Server *server)
{
	static char url[128];
	BrokerConfig config = {0};

	snprintf(url, sizeof(url), "nats://%s:%d", server->host, server->port);
	config.url = url;
	config.client_name = "broker_test";
	config.stream = "OUTBOX";
	config.stream_subjects = "outbox.>";
	config.stream_create = true;
	config.duplicate_window_ms = 120000;
	config.ack_timeout_ms = (int) slack(5000);
	config.connect_timeout_ms = 2000;
	config.reconnect_base_ms = 50;
	config.reconnect_max_ms = 400;
	config.max_in_flight = 1024;
	return config;
}

void
tally_reset(void)
{
	memset(&tally, 0, sizeof(tally));
}

int
outcomes(void)
{
	int			sum = 0;

	for (int kind = 0; kind < BROKER_OUTCOME_KINDS; kind++)
		sum += tally.count[kind];
	return sum;
}

static void
note_call(const char *call, int64_t begin_us)
{
	int64_t		took_us = clock_us() - begin_us;

	if (took_us > tally.longest_call_us)
	{
		tally.longest_call_us = took_us;
		tally.longest_call = call;
	}
}

static void
count_outcome(const BrokerOutcome *outcome)
{
	unsigned char *seen = outcome->cookie;

	if ((*seen)++ != 0)
		tally.twice++;
	tally.count[outcome->kind]++;
	if (outcome->duplicate)
		tally.duplicates++;
	if (outcome->sequence > tally.max_sequence)
		tally.max_sequence = outcome->sequence;
	if (outcome->kind == BROKER_ACKED && outcome->sequence < tally.min_sequence)
		tally.min_sequence = outcome->sequence;
	if (outcome->kind != BROKER_ACKED)
	{
		tally.last_code = outcome->code;
		memcpy(tally.last_text, outcome->text, sizeof(tally.last_text));
	}
}

/* Waits as the relay does, then polls until there is nothing more. */
void
step(Broker *broker, int max_wait_ms)
{
	BrokerOutcome list[64];
	struct pollfd wait = {.fd = broker_fd(broker), .events = POLLIN};
	int			within = broker_poll_within(broker);
	int			count;

	if (within < 0 || within > max_wait_ms)
		within = max_wait_ms;
	poll(&wait, 1, within);
	do
	{
		int64_t		begin_us = clock_us();

		count = broker_poll(broker, list, 64);
		note_call("poll", begin_us);
		for (int i = 0; i < count; i++)
			count_outcome(&list[i]);
	} while (count == 64);
}

static bool
in_state(const Broker *broker, BrokerState state)
{
	BrokerStatus status;

	broker_get_status(broker, &status);
	return status.state == state;
}

/* A bound on time, longer where OUTBOX_TEST_SLACK says that others have the machine. */
int64_t
slack(int64_t time)
{
	const char *factor = getenv("OUTBOX_TEST_SLACK");

	return time * (factor != NULL && atoi(factor) > 1 ? atoi(factor) : 1);
}

bool
wait_state(Broker *broker, BrokerState state, int timeout_ms)
{
	int64_t		until = clock_us() + slack((int64_t) timeout_ms * 1000);

	while (!in_state(broker, state))
	{
		if (clock_us() > until)
			return false;
		step(broker, 100);
	}
	return true;
}

/* Whether one of these, "this|that", is in the text. */
bool
has_one_of(const char *text, const char *wanted)
{
	size_t		length;

	for (; *wanted != '\0'; wanted += length + (wanted[length] == '|'))
	{
		length = strcspn(wanted, "|");
		if (memmem(text, strlen(text), wanted, length) != NULL)
			return true;
	}
	return false;
}

/* Waits for a state with a text, or one of several, in its status: "this|that". */
bool
wait_text(Broker *broker, BrokerState state, const char *wanted, int timeout_ms)
{
	int64_t		until = clock_us() + slack((int64_t) timeout_ms * 1000);
	BrokerStatus status;

	for (;;)
	{
		broker_get_status(broker, &status);
		if (status.state == state && has_one_of(status.text, wanted))
			return true;
		if (clock_us() > until)
		{
			printf("# state %d, text: %s\n", (int) status.state, status.text);
			return false;
		}
		step(broker, 100);
	}
}

/* Waits until it has connected so many times since it was created. */
bool
wait_connects(Broker *broker, uint64_t connects, int timeout_ms)
{
	int64_t		until = clock_us() + slack((int64_t) timeout_ms * 1000);
	BrokerStatus status;

	for (;;)
	{
		broker_get_status(broker, &status);
		if (status.connects >= connects)
			return true;
		if (clock_us() > until)
			return false;
		step(broker, 100);
	}
}

/* Publishes until 20 messages have been acknowledged: the broker works. */
bool
works(Broker *broker)
{
	int			before;

	if (!wait_state(broker, BROKER_ONLINE, 10000) || !wait_quiet(broker, 10000))
		return false;
	before = tally.count[BROKER_ACKED];
	publish_many(broker, "outbox.works", 20, 50);
	if (wait_quiet(broker, 10000) && tally.count[BROKER_ACKED] == before + 20)
		return true;
	printf("# %d of 20 acknowledged, the last other outcome: %s\n", tally.count[BROKER_ACKED] - before, tally.last_text);
	return false;
}

/* Every message had one outcome so far. */
bool
accounts(void)
{
	return outcomes() == tally.published && tally.twice == 0;
}

/* Waits until nothing is in flight. */
bool
wait_quiet(Broker *broker, int timeout_ms)
{
	int64_t		until = clock_us() + slack((int64_t) timeout_ms * 1000);
	BrokerStatus status;

	for (;;)
	{
		broker_get_status(broker, &status);
		if (status.in_flight == 0)
			return true;
		if (clock_us() > until)
			return false;
		step(broker, 100);
	}
}

Broker *
online_broker(const Server *server)
{
	Broker	   *broker = broker_create();
	BrokerConfig config = base_config(server);

	if (broker == NULL || !broker_configure(broker, &config))
		die("no broker");
	if (!wait_state(broker, BROKER_ONLINE, 10000))
		die("the broker does not get online");
	return broker;
}

/* The last id that publish() has made. */
const char *
last_id(void)
{
	return own_id;
}

/* id NULL: a new one. expected_stream NULL: no such header. */
BrokerPublishResult
publish(Broker *broker, const char *subject, const char *id, const char *expected_stream, int size)
{
	static char data[2 * 1024 * 1024];
	BrokerHeader headers[2] = {{"Nats-Msg-Id", id}, {"Nats-Expected-Stream", expected_stream}};
	BrokerMessage message = {.subject = subject, .headers = headers, .data = data, .data_len = size};
	int64_t		begin_us = clock_us();
	BrokerPublishResult result;
	int			code = -1;

	if (id == NULL)
	{
		snprintf(own_id, sizeof(own_id), "%d-%08llu", (int) getpid(), (unsigned long long) ++next_id);
		headers[0].value = own_id;
	}
	message.header_count = expected_stream != NULL ? 2 : 1;
	publish_error[0] = '\0';
	result = broker_publish(broker, &message, &tally.seen[tally.published], &code, publish_error);
	note_call("publish", begin_us);
	if (result == BROKER_PUBLISH_OK)
		tally.published++;
	return result;
}

/* Publishes without waiting and flushes; returns how many were taken. */
int
publish_many(Broker *broker, const char *subject, int count, int size)
{
	int64_t		begin_us;
	int			taken = 0;

	while (taken < count && publish(broker, subject, NULL, NULL, size) == BROKER_PUBLISH_OK)
		taken++;
	begin_us = clock_us();
	broker_flush(broker);
	note_call("flush", begin_us);
	return taken;
}
