/*
 * limit.c
 *	  How fast can this machine publish to JetStream at all?
 *
 * The reference that the relay is measured against: libnats' own asynchronous
 * publish with a bounded window and an AckHandler, or one synchronous publish
 * at a time. Messages look like the relay's: a message id each, CloudEvents
 * headers if wanted, 10,000 aggregates. Only positive acks count, from the
 * first publish until the last ack.
 *
 * The main thread publishes, the library's threads call on_ack(); what both
 * touch is in "progress", under its mutex. sent_at[] needs no lock: a slot is
 * written before its message is handed to the library. One line of key=value
 * on stdout; exit 1 if anything was not acked.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nats/nats.h>

#define PROGRAM "limit"
#include "bench.h"

#define AGGREGATES 10000
#define ID_SIZE 37
#define GIVE_UP_SECONDS 30

static struct
{
	const char *url;
	const char *stream;
	long		count;
	long		size;
	long		window;
	long		sync;
	bool		full_headers;
	bool		send_asap;
}			options = {"nats://127.0.0.1:4222", "LIMIT", 200000, 256, 1024, 0, false, false};

static struct
{
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	long		in_flight;
	long		acked;
	long		failed;
	long		wake_at;		/* wake the main thread when so few are in flight; -1: never */
	int64_t		last_ack_us;
	char		first_error[256];
}			progress = {.mutex = PTHREAD_MUTEX_INITIALIZER, .wake_at = -1};

static int64_t *sent_at;
static int64_t *latency;		/* by order of acks, progress.acked of them */
static char *payload;
static unsigned run_id;			/* in every message id: a second run repeats none */

static void *
allocate(size_t count, size_t size)
{
	void	   *memory = calloc(count, size);

	if (memory == NULL)
	{
		fputs("limit: out of memory\n", stderr);
		exit(1);
	}
	return memory;
}

/* The message's number is the tail of its id, so an ack finds its slot without a table. */
static void
write_id(long number, char *id)
{
	snprintf(id, ID_SIZE, "%08x-0000-7000-8000-%012lx", run_id, (unsigned long) number & 0xffffffffffff);
}

static long
read_id(natsMsg *msg)
{
	const char *id = NULL;

	check(natsMsgHeader_Get(msg, "Nats-Msg-Id", &id), "read back a message id");
	return strtol(id + 24, NULL, 16);
}

static void
add_headers(natsMsg *msg, long number, const char *id)
{
	char		sequence[24];
	char		aggregate[24];

	check(natsMsgHeader_Set(msg, "Nats-Msg-Id", id), "set a header");
	if (!options.full_headers)
		return;
	snprintf(sequence, sizeof(sequence), "%ld", number);
	snprintf(aggregate, sizeof(aggregate), "%ld", number % AGGREGATES);
	check(natsMsgHeader_Set(msg, "ce-specversion", "1.0"), "set a header");
	check(natsMsgHeader_Set(msg, "ce-id", id), "set a header");
	check(natsMsgHeader_Set(msg, "ce-source", "/postgresql/app"), "set a header");
	check(natsMsgHeader_Set(msg, "ce-type", "placed"), "set a header");
	check(natsMsgHeader_Set(msg, "ce-subject", aggregate), "set a header");
	check(natsMsgHeader_Set(msg, "ce-time", "2024-10-27T00:30:00.123400Z"), "set a header");
	check(natsMsgHeader_Set(msg, "ce-sequence", sequence), "set a header");
	check(natsMsgHeader_Set(msg, "ce-partitionkey", aggregate), "set a header");
}

static natsMsg *
make_message(long number)
{
	char		subject[64];
	char		id[ID_SIZE];
	natsMsg    *msg = NULL;

	snprintf(subject, sizeof(subject), "outbox.order.%ld.placed", number % AGGREGATES);
	write_id(number, id);
	check(natsMsg_Create(&msg, subject, NULL, payload, (int) options.size), "make a message");
	add_headers(msg, number, id);
	return msg;
}

/* On a thread of the library. The message is ours here. */
static void
on_ack(jsCtx *js, natsMsg *msg, jsPubAck *ack, jsPubAckErr *error, void *closure)
{
	int64_t		now = now_us();
	long		number = read_id(msg);

	(void) js;
	(void) closure;
	pthread_mutex_lock(&progress.mutex);
	progress.in_flight--;
	if (ack != NULL && !ack->Duplicate)
	{
		latency[progress.acked++] = now - sent_at[number];
		progress.last_ack_us = now;
	}
	else if (progress.failed++ == 0)
		snprintf(progress.first_error, sizeof(progress.first_error), "%s",
				 ack != NULL ? "duplicate message id" :
				 error->ErrText != NULL ? error->ErrText : natsStatus_GetText(error->Err));
	if (progress.in_flight <= progress.wake_at)
		pthread_cond_signal(&progress.changed);
	pthread_mutex_unlock(&progress.mutex);
	natsMsg_Destroy(msg);
}

/*
 * With limit or more messages in flight, waits until there are only target:
 * some lower, so that not every ack costs a wake-up. False: no progress for
 * GIVE_UP_SECONDS.
 */
static bool
wait_in_flight(long limit, long target)
{
	bool		ok = true;

	pthread_mutex_lock(&progress.mutex);
	if (progress.in_flight >= limit)
		progress.wake_at = target;
	while (progress.in_flight > progress.wake_at && progress.wake_at >= 0 && ok)
	{
		struct timespec until;

		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += GIVE_UP_SECONDS;
		ok = pthread_cond_timedwait(&progress.changed, &progress.mutex, &until) == 0;
	}
	progress.wake_at = -1;
	pthread_mutex_unlock(&progress.mutex);
	return ok;
}

static void
print_result(const char *mode, long asked, int64_t elapsed_us)
{
	long		n = progress.acked;

	qsort(latency, (size_t) n, sizeof(latency[0]), compare_int64);
	printf("mode=%s events=%ld acked=%ld failed=%ld size=%ld headers=%s window=%ld send_asap=%d seconds=%.3f "
		   "events_per_s=%.0f ack_p50_us=%" PRId64 " ack_p99_us=%" PRId64 " ack_max_us=%" PRId64 " libnats=%s\n",
		   mode, asked, n, progress.failed, options.size, options.full_headers ? "full" : "none",
		   options.sync > 0 ? 1 : options.window, options.send_asap || options.sync > 0, (double) elapsed_us / 1e6,
		   elapsed_us > 0 ? (double) n * 1e6 / (double) elapsed_us : 0,
		   n > 0 ? latency[(n - 1) / 2] : 0, n > 0 ? latency[(n - 1) * 99 / 100] : 0, n > 0 ? latency[n - 1] : 0,
		   nats_GetVersion());
}

static void
run_async(jsCtx *js)
{
	int64_t		start = now_us();

	for (long number = 0; number < options.count; number++)
	{
		natsMsg    *msg = make_message(number);

		if (!wait_in_flight(options.window, options.window * 3 / 4))
			break;
		pthread_mutex_lock(&progress.mutex);
		progress.in_flight++;
		pthread_mutex_unlock(&progress.mutex);
		sent_at[number] = now_us();
		check(js_PublishMsgAsync(js, &msg, NULL), "publish");
	}
	if (!wait_in_flight(1, 0))
		fprintf(stderr, "limit: no ack for %d s, %ld missing\n", GIVE_UP_SECONDS, progress.in_flight);
	print_result("async", options.count, progress.last_ack_us > start ? progress.last_ack_us - start : 0);
}

static void
run_sync(jsCtx *js)
{
	int64_t		start = now_us();

	for (long number = 0; number < options.sync; number++)
	{
		natsMsg    *msg = make_message(number);
		jsPubAck   *ack = NULL;
		int64_t		sent = now_us();

		check(js_PublishMsg(&ack, js, msg, NULL, NULL), "publish");
		latency[progress.acked++] = now_us() - sent;
		jsPubAck_Destroy(ack);
		natsMsg_Destroy(msg);
	}
	print_result("sync", options.sync, now_us() - start);
}

static natsConnection *
open_connection(void)
{
	natsOptions *opts = NULL;
	natsConnection *connection = NULL;

	check(natsOptions_Create(&opts), "make options");
	check(natsOptions_SetURL(opts, options.url), "use the URL");
	check(natsOptions_SetAllowReconnect(opts, false), "make options");
	/* one at a time, the flusher's 1 ms would be all there is to measure */
	check(natsOptions_SetSendAsap(opts, options.send_asap || options.sync > 0), "make options");
	check(natsConnection_Connect(&connection, opts), "connect");
	natsOptions_Destroy(opts);
	return connection;
}

static jsCtx *
open_jetstream(natsConnection *connection)
{
	jsCtx	   *js = NULL;
	jsOptions	js_options;

	jsOptions_Init(&js_options);
	/* never reached, so that js_PublishMsgAsync() never stalls */
	js_options.PublishAsync.MaxPending = options.window + 1;
	js_options.PublishAsync.AckHandler = on_ack;
	check(natsConnection_JetStream(&js, connection, &js_options), "use JetStream");
	return js;
}

static void
make_stream(jsCtx *js)
{
	const char *subjects[] = {"outbox.>"};
	jsStreamInfo *info = NULL;
	jsStreamConfig config;
	natsStatus	status = js_GetStreamInfo(&info, js, options.stream, NULL, NULL);

	jsStreamInfo_Destroy(info);
	if (status != NATS_NOT_FOUND)
	{
		check(status, "look for the stream");
		return;
	}
	jsStreamConfig_Init(&config);
	config.Name = options.stream;
	config.Subjects = subjects;
	config.SubjectsLen = 1;
	check(js_AddStream(NULL, js, &config, NULL, NULL), "create the stream");
}

static void
usage(void)
{
	fputs("usage: limit [-s URL] [--stream S] [--count N] [--size BYTES] [--window N] [--headers none|full]\n"
		  "             [--send-asap] [--sync N]\n", stderr);
	exit(2);
}

static void
parse_options(int argc, char **argv)
{
	static const struct option table[] = {
		{"server", required_argument, NULL, 's'}, {"stream", required_argument, NULL, 'S'},
		{"count", required_argument, NULL, 'c'}, {"size", required_argument, NULL, 'z'},
		{"window", required_argument, NULL, 'w'}, {"headers", required_argument, NULL, 'h'},
		{"sync", required_argument, NULL, 'y'}, {"send-asap", no_argument, NULL, 'a'}, {NULL, 0, NULL, 0},
	};

	for (int c; (c = getopt_long(argc, argv, "s:", table, NULL)) != -1;)
	{
		switch (c)
		{
			case 's': options.url = optarg; break;
			case 'S': options.stream = optarg; break;
			case 'c': options.count = parse_number(optarg, 1); break;
			case 'z': options.size = parse_number(optarg, 0); break;
			case 'w': options.window = parse_number(optarg, 1); break;
			case 'y': options.sync = parse_number(optarg, 1); break;
			case 'a': options.send_asap = true; break;
			case 'h':
				if (strcmp(optarg, "full") != 0 && strcmp(optarg, "none") != 0)
					usage();
				options.full_headers = strcmp(optarg, "full") == 0;
				break;
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
	jsCtx	   *js;
	size_t		messages;

	parse_options(argc, argv);
	messages = (size_t) (options.sync > 0 ? options.sync : options.count);
	sent_at = allocate(messages, sizeof(sent_at[0]));
	latency = allocate(messages, sizeof(latency[0]));
	payload = allocate((size_t) options.size + 1, 1);
	memset(payload, 'x', (size_t) options.size);
	run_id = (unsigned) time(NULL) ^ (unsigned) now_us() << 12;
	pthread_cond_init(&progress.changed, NULL);

	connection = open_connection();
	js = open_jetstream(connection);
	make_stream(js);
	if (options.sync > 0)
		run_sync(js);
	else
		run_async(js);
	if (progress.failed > 0)
		fprintf(stderr, "limit: %ld not acked, first: %s\n", progress.failed, progress.first_error);
	jsCtx_Destroy(js);
	natsConnection_Destroy(connection);
	return progress.failed > 0 || progress.in_flight > 0 ? 1 : 0;
}
