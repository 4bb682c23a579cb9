/*
 * paced.c
 *	  Latency under load: events at a fixed rate, each from the return of its
 *	  commit to the stream's ack.
 *
 * Several sessions enqueue one event per transaction, or --batch events in one
 * statement, at times fixed in advance (event n at start + n / rate), whether or
 * not the one before was quick: a stall shows in all events that it delays. A NATS subscription sees
 * each message, whose reply subject it notes, and the stream's ack, which goes
 * to that subject. All times are of one clock, in this process. The latency
 * may be negative, as the relay doesn't wait for the session to learn of its
 * commit.
 *
 * A session writes the slots of its own events only; the subscription's thread
 * owns "acked" and "replies", and counts under the mutex of "progress". One
 * line of key=value on stdout; exit 1 if an event wasn't acknowledged.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <libpq-fe.h>

#define PROGRAM "paced"
#include "bench.h"

#define SUBJECT_PREFIX "outbox.paced."
#define AGGREGATES 10000
#define GIVE_UP_SECONDS 20
#define MAX_SESSIONS 64

static struct
{
	const char *conninfo;
	const char *url;
	long		rate;
	long		sessions;
	long		count;
	long		warm_up;		/* so many before them aren't counted */
	long		batch;
	long		size;
}			options = {"", "nats://127.0.0.1:4222", 500, 4, 2000, 0, 1, 256};

/* Per event; 0: not yet. */
static int64_t *called;
static int64_t *returned;
static int64_t *acked;
static long total;
static int64_t start_us;

/* Which event's ack comes to a reply subject: open addressing, by the subject's hash. */
static struct
{
	uint64_t	hash;
	long		number;
}		   *replies;
static size_t replies_mask;

static struct
{
	pthread_mutex_t mutex;
	pthread_cond_t all_acked;
	long		acked;
}			progress = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

/* FNV-1a, never 0. */
static uint64_t
hash_of(const char *text)
{
	uint64_t	hash = 0xcbf29ce484222325;

	for (; *text != '\0'; text++)
		hash = (hash ^ (unsigned char) *text) * 0x100000001b3;
	return hash == 0 ? 1 : hash;
}

/* The place of the hash, or the free one where it belongs. */
static size_t
find_reply(uint64_t hash)
{
	size_t		at = hash & replies_mask;

	while (replies[at].hash != 0 && replies[at].hash != hash)
		at = (at + 1) & replies_mask;
	return at;
}

static void
note_reply(const char *reply, long number)
{
	uint64_t	hash = hash_of(reply);
	size_t		at = find_reply(hash);

	if (number < 0 || number >= total)
		fail("read a message", "it is not ours");
	replies[at].hash = hash;
	replies[at].number = number;
}

static void
note_ack(const char *subject, int64_t now)
{
	size_t		at = find_reply(hash_of(subject));

	if (replies[at].hash == 0 || acked[replies[at].number] != 0)
		return;
	acked[replies[at].number] = now;
	pthread_mutex_lock(&progress.mutex);
	if (++progress.acked == total)
		pthread_cond_signal(&progress.all_acked);
	pthread_mutex_unlock(&progress.mutex);
}

/* On the subscription's thread; one subscription, so the message comes before its ack. */
static void
on_message(natsConnection *connection, natsSubscription *sub, natsMsg *msg, void *closure)
{
	int64_t		now = now_us();
	const char *subject = natsMsg_GetSubject(msg);

	(void) connection;
	(void) sub;
	(void) closure;
	if (strncmp(subject, SUBJECT_PREFIX, strlen(SUBJECT_PREFIX)) == 0)
	{
		if (natsMsg_GetReply(msg) != NULL)
			note_reply(natsMsg_GetReply(msg), strtol(natsMsg_GetData(msg), NULL, 10));
	}
	else if (natsMsg_GetDataLength(msg) > 0 && strstr(natsMsg_GetData(msg), "\"seq\"") != NULL)
		note_ack(subject, now);
	natsMsg_Destroy(msg);
}

static void
sleep_until(int64_t us)
{
	struct timespec until = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
}

static PGconn *
open_session(void)
{
	PGconn	   *session = PQconnectdb(options.conninfo);
	char		statement[256];
	PGresult   *result;

	if (PQstatus(session) != CONNECTION_OK)
		fail("connect to PostgreSQL", PQerrorMessage(session));
	if (options.batch == 1)
		snprintf(statement, sizeof(statement), "SELECT outbox.enqueue_text('paced', $1, 'probe', $2)");
	else
		snprintf(statement, sizeof(statement),
				 "SELECT count(outbox.enqueue_text('paced', (n %% %d)::text, 'probe', rpad(n::text || ' ', length($2))))"
				 " FROM generate_series($1::bigint, $1::bigint + %ld) n", AGGREGATES, options.batch - 1);
	result = PQprepare(session, "enqueue", statement, 2, NULL);
	if (PQresultStatus(result) != PGRES_COMMAND_OK)
		fail("prepare the statement", PQerrorMessage(session));
	PQclear(result);
	return session;
}

/* A session's thread: its number is where in turn its events are. */
static void *
run_session(void *session)
{
	static pthread_mutex_t numbers = PTHREAD_MUTEX_INITIALIZER;
	static long next_number = 0;
	char		first_value[24];	/* the aggregate, or the first number of a batch */
	char	   *payload = malloc((size_t) options.size + 1);
	const char *values[] = {first_value, payload};
	long		first;

	if (payload == NULL)
		fail("start a session", "out of memory");
	memset(payload, ' ', (size_t) options.size);
	payload[options.size] = '\0';
	pthread_mutex_lock(&numbers);
	first = next_number++;
	pthread_mutex_unlock(&numbers);
	for (long number = first * options.batch; number < total; number += options.sessions * options.batch)
	{
		int64_t		called_us;
		int64_t		returned_us;
		PGresult   *result;

		snprintf(first_value, sizeof(first_value), "%ld", options.batch == 1 ? number % AGGREGATES : number);
		payload[snprintf(payload, (size_t) options.size, "%ld", number)] = ' ';
		sleep_until(start_us + number * 1000000 / options.rate);
		called_us = now_us();
		result = PQexecPrepared(session, "enqueue", 2, values, NULL, NULL, 0);
		returned_us = now_us();
		if (PQresultStatus(result) != PGRES_TUPLES_OK)
			fail("enqueue", PQerrorMessage(session));
		PQclear(result);
		for (long i = number; i < number + options.batch; i++)
		{
			called[i] = called_us;
			returned[i] = returned_us;
		}
	}
	free(payload);
	PQfinish(session);
	return NULL;
}

static void
wait_for_acks(void)
{
	struct timespec until;
	int			error = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += GIVE_UP_SECONDS;
	pthread_mutex_lock(&progress.mutex);
	while (progress.acked < total && error == 0)
		error = pthread_cond_timedwait(&progress.all_acked, &progress.mutex, &until);
	if (progress.acked < total)
	{
		fprintf(stderr, "paced: %ld of %ld events were not acknowledged\n", total - progress.acked, total);
		exit(1);
	}
	pthread_mutex_unlock(&progress.mutex);
}

/* Of the counted events, b - a, as median, 99 % and highest. */
static void
print_series(const char *name, const int64_t *a, const int64_t *b)
{
	long		n = options.count;
	int64_t    *values = calloc((size_t) n, sizeof(int64_t));

	if (values == NULL)
		fail("sort", "out of memory");
	for (long i = 0; i < n; i++)
		values[i] = b[options.warm_up + i] - a[options.warm_up + i];
	qsort(values, (size_t) n, sizeof(int64_t), compare_int64);
	printf(" %s_p50_us=%" PRId64 " %s_p99_us=%" PRId64 " %s_max_us=%" PRId64, name, values[(n - 1) / 2],
		   name, values[(n - 1) * 99 / 100], name, values[n - 1]);
	free(values);
}

static void
print_result(void)
{
	int64_t		last = 0;

	for (long i = options.warm_up; i < total; i++)
		if (returned[i] > last)
			last = returned[i];
	printf("events=%ld size=%ld sessions=%ld batch=%ld rate=%.0f", options.count, options.size, options.sessions, options.batch,
		   (double) options.count * 1e6 / (double) (last - (start_us + options.warm_up * 1000000 / options.rate)));
	print_series("commit", called, returned);
	print_series("acked", returned, acked);
	putchar('\n');
}

static natsConnection *
subscribe(void)
{
	natsConnection *connection = NULL;
	natsSubscription *sub = NULL;

	check(natsConnection_ConnectTo(&connection, options.url), "connect to NATS");
	check(natsConnection_Subscribe(&sub, connection, ">", on_message, NULL), "subscribe");
	check(natsSubscription_SetPendingLimits(sub, -1, -1), "subscribe");
	check(natsConnection_Flush(connection), "subscribe");
	return connection;
}

static void
usage(void)
{
	fputs("usage: paced [-d CONNINFO] [-s URL] [--rate N] [--sessions N] [--count N] [--warm-up N]\n"
		  "             [--batch N] [--size BYTES]\n", stderr);
	exit(2);
}

static void
parse_options(int argc, char **argv)
{
	static const struct option table[] = {
		{"dbname", required_argument, NULL, 'd'}, {"server", required_argument, NULL, 's'},
		{"rate", required_argument, NULL, 'r'}, {"sessions", required_argument, NULL, 'n'},
		{"count", required_argument, NULL, 'c'}, {"warm-up", required_argument, NULL, 'w'},
		{"batch", required_argument, NULL, 'b'}, {"size", required_argument, NULL, 'z'}, {NULL, 0, NULL, 0},
	};

	if (getenv("NATS_URL") != NULL)
		options.url = getenv("NATS_URL");
	for (int c; (c = getopt_long(argc, argv, "d:s:", table, NULL)) != -1;)
	{
		switch (c)
		{
			case 'd': options.conninfo = optarg; break;
			case 's': options.url = optarg; break;
			case 'r': options.rate = parse_number(optarg, 1); break;
			case 'n': options.sessions = parse_number(optarg, 1); break;
			case 'c': options.count = parse_number(optarg, 1); break;
			case 'w': options.warm_up = parse_number(optarg, 0); break;
			case 'b': options.batch = parse_number(optarg, 1); break;
			case 'z': options.size = parse_number(optarg, 32); break;
			default: usage();
		}
	}
	if (optind != argc || options.sessions > MAX_SESSIONS || (options.warm_up + options.count) % options.batch != 0)
		usage();
}

int
main(int argc, char **argv)
{
	natsConnection *connection;
	PGconn	   *sessions[MAX_SESSIONS];
	pthread_t	threads[MAX_SESSIONS];

	parse_options(argc, argv);
	total = options.warm_up + options.count;
	for (replies_mask = 1; replies_mask < 2 * (size_t) total; replies_mask *= 2);
	replies = calloc(replies_mask, sizeof(replies[0]));
	replies_mask--;
	called = calloc((size_t) total, sizeof(int64_t));
	returned = calloc((size_t) total, sizeof(int64_t));
	acked = calloc((size_t) total, sizeof(int64_t));
	if (replies == NULL || called == NULL || returned == NULL || acked == NULL)
		fail("start", "out of memory");

	for (long i = 0; i < options.sessions; i++)
		sessions[i] = open_session();
	connection = subscribe();
	start_us = now_us() + 10000;
	for (long i = 0; i < options.sessions; i++)
		if (pthread_create(&threads[i], NULL, run_session, sessions[i]) != 0)
			fail("start a session", "no thread");
	for (long i = 0; i < options.sessions; i++)
		pthread_join(threads[i], NULL);
	wait_for_acks();
	print_result();
	natsConnection_Destroy(connection);
	return 0;
}
