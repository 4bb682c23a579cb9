/*
 * latency.c
 *	  How long after its commit is an event received, and acknowledged?
 *
 * One session enqueues one event per transaction, one at a time, and a NATS
 * subscription sees the message and then the stream's ack, which goes to the
 * reply subject of that message. Times are of one clock, in this process:
 * "commit" is the statement's round trip (enqueue and commit), "received" and
 * "acked" count from the return of that; they may be negative, as the relay
 * doesn't wait for the session to learn of its commit. "total" is from the
 * call until the ack.
 *
 * The subscription's thread writes what "probe" holds, under its mutex. One
 * line of key=value on stdout; exit 1 if an event didn't arrive.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>
#include <nats/nats.h>

#define PROGRAM "latency"
#include "bench.h"

#define SUBJECT_PREFIX "outbox.latency."
#define AGGREGATES 100
#define GIVE_UP_SECONDS 10

static struct
{
	const char *conninfo;
	const char *url;
	long		count;
	long		warm_up;
	long		size;
}			options = {"", "nats://127.0.0.1:4222", 2000, 200, 256};

/* The one event that is under way. */
static struct
{
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	long		number;
	char		reply[128];
	int64_t		received_us;	/* 0: not yet */
	int64_t		acked_us;
}			probe = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

enum
{
	COMMIT, RECEIVED, ACKED, TOTAL, SERIES
};

static const char *const series_name[SERIES] = {"commit", "received", "acked", "total"};
static int64_t *series[SERIES];

/* On the subscription's thread; one subscription, so the message comes before its ack. */
static void
on_message(natsConnection *connection, natsSubscription *sub, natsMsg *msg, void *closure)
{
	int64_t		now = now_us();
	const char *subject = natsMsg_GetSubject(msg);
	const char *reply = natsMsg_GetReply(msg);

	(void) connection;
	(void) sub;
	(void) closure;
	pthread_mutex_lock(&probe.mutex);
	if (strncmp(subject, SUBJECT_PREFIX, strlen(SUBJECT_PREFIX)) == 0 &&
		strtol(natsMsg_GetData(msg), NULL, 10) == probe.number)
	{
		/* a resend has a reply subject of its own */
		if (probe.received_us == 0)
			probe.received_us = now;
		snprintf(probe.reply, sizeof(probe.reply), "%s", reply == NULL ? "" : reply);
	}
	else if (probe.received_us != 0 && probe.acked_us == 0 && strcmp(subject, probe.reply) == 0 &&
			 strstr(natsMsg_GetData(msg), "\"seq\"") != NULL)
	{
		probe.acked_us = now;
		pthread_cond_signal(&probe.changed);
	}
	pthread_mutex_unlock(&probe.mutex);
	natsMsg_Destroy(msg);
}

static void
wait_for_ack(long number)
{
	struct timespec until;
	int			error = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += GIVE_UP_SECONDS;
	while (probe.acked_us == 0 && error == 0)
		error = pthread_cond_timedwait(&probe.changed, &probe.mutex, &until);
	if (error != 0)
	{
		fprintf(stderr, "latency: event %ld was %s for %d s\n", number,
				probe.received_us == 0 ? "not received" : "not acknowledged", GIVE_UP_SECONDS);
		exit(1);
	}
}

/* Enqueues event "number" and waits for it; keeps its times unless slot is negative. */
static void
measure(PGconn *session, char *payload, long number, long slot)
{
	char		aggregate[24];
	const char *values[] = {aggregate, payload};
	int64_t		start;
	int64_t		returned;
	PGresult   *result;

	snprintf(aggregate, sizeof(aggregate), "%ld", number % AGGREGATES);
	payload[snprintf(payload, (size_t) options.size, "%ld", number)] = ' ';
	pthread_mutex_lock(&probe.mutex);
	probe.number = number;
	probe.received_us = probe.acked_us = 0;
	pthread_mutex_unlock(&probe.mutex);

	start = now_us();
	result = PQexecPrepared(session, "enqueue", 2, values, NULL, NULL, 0);
	returned = now_us();
	if (PQresultStatus(result) != PGRES_TUPLES_OK)
		fail("enqueue", PQerrorMessage(session));
	PQclear(result);

	pthread_mutex_lock(&probe.mutex);
	wait_for_ack(number);
	if (slot >= 0)
	{
		series[COMMIT][slot] = returned - start;
		series[RECEIVED][slot] = probe.received_us - returned;
		series[ACKED][slot] = probe.acked_us - returned;
		series[TOTAL][slot] = probe.acked_us - start;
	}
	pthread_mutex_unlock(&probe.mutex);
}

static void
print_result(void)
{
	long		n = options.count;

	printf("events=%ld size=%ld", n, options.size);
	for (int i = 0; i < SERIES; i++)
	{
		qsort(series[i], (size_t) n, sizeof(int64_t), compare_int64);
		printf(" %s_p50_us=%" PRId64 " %s_p99_us=%" PRId64 " %s_max_us=%" PRId64, series_name[i],
			   series[i][(n - 1) / 2], series_name[i], series[i][(n - 1) * 99 / 100], series_name[i],
			   series[i][n - 1]);
	}
	putchar('\n');
}

static PGconn *
open_session(void)
{
	PGconn	   *session = PQconnectdb(options.conninfo);
	PGresult   *result;

	if (PQstatus(session) != CONNECTION_OK)
		fail("connect to PostgreSQL", PQerrorMessage(session));
	result = PQprepare(session, "enqueue", "SELECT outbox.enqueue_text('latency', $1, 'probe', $2)", 2, NULL);
	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		fail("prepare the statement", PQerrorMessage(session));
	PQclear(result);
	return session;
}

static natsConnection *
subscribe(void)
{
	natsConnection *connection = NULL;
	natsSubscription *sub = NULL;

	check(natsConnection_ConnectTo(&connection, options.url), "connect to NATS");
	check(natsConnection_Subscribe(&sub, connection, ">", on_message, NULL), "subscribe");
	check(natsConnection_Flush(connection), "subscribe");
	return connection;
}

static void
usage(void)
{
	fputs("usage: latency [-d CONNINFO] [-s URL] [--count N] [--warm-up N] [--size BYTES]\n", stderr);
	exit(2);
}

static void
parse_options(int argc, char **argv)
{
	static const struct option table[] = {
		{"dbname", required_argument, NULL, 'd'}, {"server", required_argument, NULL, 's'},
		{"count", required_argument, NULL, 'c'}, {"warm-up", required_argument, NULL, 'w'},
		{"size", required_argument, NULL, 'z'}, {NULL, 0, NULL, 0},
	};

	if (getenv("NATS_URL") != NULL)
		options.url = getenv("NATS_URL");
	for (int c; (c = getopt_long(argc, argv, "d:s:", table, NULL)) != -1;)
	{
		switch (c)
		{
			case 'd': options.conninfo = optarg; break;
			case 's': options.url = optarg; break;
			case 'c': options.count = parse_number(optarg, 1); break;
			case 'w': options.warm_up = parse_number(optarg, 0); break;
			case 'z': options.size = parse_number(optarg, 32); break;
			default: usage();
		}
	}
	if (optind != argc)
		usage();
}

int
main(int argc, char **argv)
{
	natsConnection *connection;
	PGconn	   *session;
	char	   *payload;

	parse_options(argc, argv);
	payload = calloc((size_t) options.size + 1, 1);
	for (int i = 0; i < SERIES; i++)
		series[i] = calloc((size_t) options.count, sizeof(int64_t));
	if (payload == NULL || series[TOTAL] == NULL)
		fail("start", "out of memory");
	memset(payload, ' ', (size_t) options.size);

	session = open_session();
	connection = subscribe();
	for (long i = 0; i < options.warm_up + options.count; i++)
		measure(session, payload, i + 1, i - options.warm_up);
	print_result();
	natsConnection_Destroy(connection);
	PQfinish(session);
	return 0;
}
