/*
 * broker_bench.c
 *	  What a message costs the client, and how long an acknowledgement takes:
 *	  200,000 messages of 256 bytes with 8 headers through a window of 1024, then
 *	  one at a time. Prints figures, judges nothing.
 */
#define _GNU_SOURCE

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "harness.h"

#ifndef MESSAGES
#define MESSAGES 200000
#endif
#define SINGLES 3000

static int	latencies[MESSAGES];
static int	latency_count;

static int64_t
cpu_us(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * INT64_C(1000000) +
		usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static int
compare(const void *a, const void *b)
{
	return *(const int *) a - *(const int *) b;
}

static int
percentile(int percent)
{
	qsort(latencies, (size_t) latency_count, sizeof(int), compare);
	return latencies[(int64_t) latency_count * percent / 100];
}

static bool
publish_one(Broker *broker, int number)
{
	static char data[256];
	char		id[32];
	BrokerHeader headers[8] = {
		{"Nats-Msg-Id", id}, {"Nats-Expected-Stream", "OUTBOX"},
		{"ce-specversion", "1.0"}, {"ce-id", id}, {"ce-type", "order.created"},
		{"ce-source", "/database/shop"}, {"ce-time", "2026-01-01T00:00:00.000000Z"},
		{"content-type", "application/json"}
	};
	BrokerMessage message = {.subject = "outbox.order.created", .headers = headers,
	.header_count = 8, .data = data, .data_len = sizeof(data)};
	char		error[BROKER_TEXT_SIZE];
	int			code;

	snprintf(id, sizeof(id), "bench-%d", number);
	return broker_publish(broker, &message, NULL, &code, error) == BROKER_PUBLISH_OK;
}

static int
wait_and_collect(Broker *broker)
{
	BrokerOutcome list[256];
	struct pollfd wait = {.fd = broker_fd(broker), .events = POLLIN};
	int			count;

	poll(&wait, 1, 1000);
	count = broker_poll(broker, list, 256);
	for (int i = 0; i < count; i++)
	{
		if (list[i].kind != BROKER_ACKED)
			printf("unexpected outcome: %s\n", list[i].text);
		latencies[latency_count++] = list[i].round_trip_us;
	}
	return count;
}

static void
run_window(Broker *broker)
{
	int64_t		begin = clock_us();
	int64_t		cpu = cpu_us();
	int			sent = 0;
	int			in_flight = 0;

	while (latency_count < MESSAGES)
	{
		while (sent < MESSAGES && in_flight < 1024 && publish_one(broker, sent))
		{
			sent++;
			in_flight++;
		}
		broker_flush(broker);
		in_flight -= wait_and_collect(broker);
	}
	cpu = cpu_us() - cpu;
	begin = clock_us() - begin;
	printf("window 1024: %.0f msgs/s, client CPU %.2f us/msg, ack p50 %d us, p99 %d us\n",
		   MESSAGES * 1e6 / (double) begin, (double) cpu / MESSAGES, percentile(50), percentile(99));
}

static void
run_singles(Broker *broker)
{
	latency_count = 0;
	for (int i = 0; i < SINGLES; i++)
	{
		publish_one(broker, MESSAGES + i);
		broker_flush(broker);
		while (wait_and_collect(broker) == 0)
			;
	}
	printf("one at a time: ack p50 %d us, p99 %d us\n", percentile(50), percentile(99));
}

int
main(void)
{
	Server		server;
	Broker	   *broker;
	sigset_t	all;

	sigfillset(&all);
	sigdelset(&all, SIGINT);
	sigprocmask(SIG_SETMASK, &all, NULL);
	server_create(&server);
	server_start(&server);
	broker = online_broker(&server);
	run_window(broker);
	run_singles(broker);
	broker_destroy(broker, 1000);
	server_remove(&server);
	return 0;
}
