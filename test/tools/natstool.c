/*
 * natstool.c
 *	  The tests' view of a NATS server: what is in a stream, and what the
 *	  server does when asked.
 *
 * A client on its own: it shares no code with the extension, so that a fault
 * of the relay can't hide behind the same fault here. One command per run;
 * results on stdout, complaints on stderr. Memory is left to the exit.
 *
 * Tab-separated output writes %, tab, CR and LF of a value as %25, %09, %0D
 * and %0A. Reading a stream with interest retention consumes nothing that a
 * test could still want: such a stream has dropped it before.
 */
#define _GNU_SOURCE
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nats/nats.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

enum
{
	EXIT_REFUSED = 1,			/* no such stream, or the server says no */
	EXIT_USAGE = 2,
	EXIT_NO_SERVER = 3,
	EXIT_TIMEOUT = 4
};

#define MAX_HEADERS 64
#define STEP_MS 100				/* between two looks at whether a silent stream is done */
#define SILENCE_MS 20000		/* then a dump gives up */

typedef struct Pair
{
	const char *key;
	const char *value;
} Pair;

static struct
{
	const char *url;
	const char *user;
	const char *password;
	const char *creds;
	const char *tls_ca;
	bool		json;
	bool		core;
	bool		latency;
	int64_t		count;
	int64_t		timeout_ms;
	const char *reply;			/* NULL: none */
	Pair		headers[MAX_HEADERS];
	int			header_count;

	/* of a stream; INT64_MIN: not given */
	int64_t		max_msg_size;
	int64_t		max_msgs;
	int64_t		max_msgs_per_subject;
	int64_t		max_bytes;
	int64_t		dup_window_ms;
	int64_t		replicas;
	bool		discard_new;
	bool		discard_old;
	bool		discard_new_per_subject;
	bool		memory;
	bool		interest;
	bool		seal;
}			options;

static natsConnection *connection;
static jsCtx *js;

static const char usage_text[] =
"usage: natstool [-s URL] [--user NAME --password TEXT] [--creds FILE] [--tls-ca FILE] COMMAND\n"
"  dump STREAM [SUBJECT] [--json]    every message now in the stream, by sequence\n"
"  info STREAM                       messages, first_seq, last_seq, bytes; exit 1 if missing\n"
"  leader STREAM [OTHERS]            server_name of its leader; exit 1 while there is none,\n"
"                                    or fewer others than that have all its messages\n"
"  create STREAM SUBJECT[,SUBJECT..] [stream options]\n"
"  update STREAM [SUBJECT[,..]] [stream options]    all else stays as it is\n"
"  delete STREAM\n"
"  purge STREAM [SUBJECT]\n"
"  publish SUBJECT PAYLOAD [-H KEY=VALUE].. [--core] [--timeout MS]\n"
"  subscribe SUBJECT [--count N] [--timeout MS] [--latency]\n"
"  respond SUBJECT [--reply TEXT] [--count N] [--timeout MS]    the same, with an answer to each\n"
"stream options: --max-msg-size N  --max-msgs N  --max-bytes N  --discard-new  --discard-old\n"
"  --max-msgs-per-subject N  --discard-new-per-subject  --dup-window MS  --replicas N  --memory  --interest  --seal (update only)\n"
"exit: 0 done, 1 refused or missing, 2 wrong usage, 3 no connection, 4 timed out\n";

static void die(int code, const char *format,...) __attribute__((noreturn, format(printf, 2, 3)));
static void usage(const char *problem, const char *what) __attribute__((noreturn));

static void
die(int code, const char *format,...)
{
	va_list		args;

	fflush(stdout);
	fputs("natstool: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(code);
}

static void
usage(const char *problem, const char *what)
{
	fprintf(stderr, "natstool: %s%s%s\n%s", problem, what == NULL ? "" : ": ", what == NULL ? "" : what, usage_text);
	exit(EXIT_USAGE);
}

/* Ends the program unless all is well; jserr is JetStream's own error number or 0. */
static void
check(natsStatus status, jsErrCode jserr, const char *what, const char *name)
{
	natsStatus	last_status;
	const char *text;
	char		code[32] = "";

	if (status == NATS_OK)
		return;
	text = nats_GetLastError(&last_status);
	if (jserr != 0)
		snprintf(code, sizeof(code), " (err_code %d)", (int) jserr);
	die(status == NATS_TIMEOUT ? EXIT_TIMEOUT : EXIT_REFUSED, "could not %s \"%s\": %s%s%s%s", what, name,
		natsStatus_GetText(status), text == NULL || *text == '\0' ? "" : ": ", text == NULL ? "" : text, code);
}

static int64_t
now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void
open_connection(void)
{
	natsOptions *opts = NULL;
	natsStatus	status = natsOptions_Create(&opts);

	if (status == NATS_OK)
		status = natsOptions_SetURL(opts, options.url);
	if (status == NATS_OK)
		status = natsOptions_SetName(opts, "natstool");
	if (status == NATS_OK)
		status = natsOptions_SetAllowReconnect(opts, false);
	if (status == NATS_OK)
		status = natsOptions_SetSendAsap(opts, true);
	if (status == NATS_OK)
		status = natsOptions_SetMaxPendingMsgs(opts, 10000000);
	/* in a URL, libnats 3.4 takes %21 in a password literally, 3.14 as "!" */
	if (status == NATS_OK && options.user != NULL)
		status = natsOptions_SetUserInfo(opts, options.user, options.password == NULL ? "" : options.password);
	if (status == NATS_OK && options.creds != NULL)
		status = natsOptions_SetUserCredentialsFromFiles(opts, options.creds, NULL);
	if (status == NATS_OK && options.tls_ca != NULL)
		status = natsOptions_SetSecure(opts, true);
	if (status == NATS_OK && options.tls_ca != NULL)
		status = natsOptions_LoadCATrustedCertificates(opts, options.tls_ca);
	if (status == NATS_OK)
		status = natsConnection_Connect(&connection, opts);
	if (status == NATS_OK)
		status = natsConnection_JetStream(&js, connection, NULL);
	natsOptions_Destroy(opts);
	if (status != NATS_OK)
		die(EXIT_NO_SERVER, "could not connect to %s: %s", options.url, natsStatus_GetText(status));
}

static void
print_escaped(const char *text, size_t length)
{
	for (size_t i = 0; i < length; i++)
	{
		char		c = text[i];

		if (c == '%' || c == '\t' || c == '\r' || c == '\n')
			printf("%%%02X", (unsigned char) c);
		else
			putchar_unlocked(c);
	}
}

static void
print_text(const char *text)
{
	print_escaped(text, strlen(text));
}

/* Bytes beyond ASCII go out as they are: UTF-8, if the publisher wrote that. */
static void
print_json_string(const char *text)
{
	putchar_unlocked('"');
	for (; *text != '\0'; text++)
	{
		unsigned char c = (unsigned char) *text;

		if (c == '"' || c == '\\')
			printf("\\%c", c);
		else if (c < 0x20)
			printf("\\u%04x", c);
		else
			putchar_unlocked(c);
	}
	putchar_unlocked('"');
}

static void
print_sha256(natsMsg *msg)
{
	unsigned char digest[SHA256_DIGEST_LENGTH];

	SHA256((const unsigned char *) natsMsg_GetData(msg), (size_t) natsMsg_GetDataLength(msg), digest);
	for (size_t i = 0; i < sizeof(digest); i++)
		printf("%02x", digest[i]);
}

static void
print_base64(natsMsg *msg)
{
	static unsigned char *buffer;
	static size_t buffer_size;
	int			length = natsMsg_GetDataLength(msg);
	size_t		needed = (size_t) length / 3 * 4 + 5;

	if (needed > buffer_size)
	{
		free(buffer);
		buffer_size = 2 * needed;
		buffer = malloc(buffer_size);
		if (buffer == NULL)
			die(EXIT_REFUSED, "out of memory");
	}
	length = EVP_EncodeBlock(buffer, (const unsigned char *) natsMsg_GetData(msg), length);
	fwrite(buffer, 1, (size_t) length, stdout);
}

/* The first value of a header, or "". */
static const char *
get_header(natsMsg *msg, const char *key)
{
	const char *value = NULL;

	return natsMsgHeader_Get(msg, key, &value) == NATS_OK && value != NULL ? value : "";
}

static int
compare_strings(const void *a, const void *b)
{
	return strcmp(*(const char *const *) a, *(const char *const *) b);
}

/* Calls print for every header by key; repeated ones in the order they came in. */
static void
each_header(natsMsg *msg, void (*print) (const char *key, const char **values, int count))
{
	const char **keys = NULL;
	int			key_count = 0;

	if (natsMsgHeader_Keys(msg, &keys, &key_count) != NATS_OK)
		return;
	qsort(keys, (size_t) key_count, sizeof(keys[0]), compare_strings);
	for (int i = 0; i < key_count; i++)
	{
		const char **values = NULL;
		int			count = 0;

		if (natsMsgHeader_Values(msg, keys[i], &values, &count) == NATS_OK)
			print(keys[i], values, count);
		free((void *) values);
	}
	free((void *) keys);
}

static void
print_header(const char *key, const char **values, int count)
{
	for (int i = 0; i < count; i++)
	{
		putchar_unlocked('\t');
		print_text(key);
		putchar_unlocked('=');
		print_text(values[i] == NULL ? "" : values[i]);
	}
}

static bool json_first_header;

static void
print_json_header(const char *key, const char **values, int count)
{
	if (!json_first_header)
		putchar_unlocked(',');
	json_first_header = false;
	print_json_string(key);
	fputs(":[", stdout);
	for (int i = 0; i < count; i++)
	{
		if (i > 0)
			putchar_unlocked(',');
		print_json_string(values[i] == NULL ? "" : values[i]);
	}
	putchar_unlocked(']');
}

static void
print_message(natsMsg *msg, uint64_t sequence)
{
	printf("%" PRIu64 "\t", sequence);
	print_text(natsMsg_GetSubject(msg));
	putchar_unlocked('\t');
	print_text(get_header(msg, "Nats-Msg-Id"));
	putchar_unlocked('\t');
	print_sha256(msg);
	putchar_unlocked('\t');
	print_base64(msg);
	each_header(msg, print_header);
	putchar_unlocked('\n');
}

static void
print_message_json(natsMsg *msg, uint64_t sequence)
{
	printf("{\"seq\":%" PRIu64 ",\"subject\":", sequence);
	print_json_string(natsMsg_GetSubject(msg));
	fputs(",\"msg_id\":", stdout);
	print_json_string(get_header(msg, "Nats-Msg-Id"));
	fputs(",\"sha256\":\"", stdout);
	print_sha256(msg);
	fputs("\",\"payload_base64\":\"", stdout);
	print_base64(msg);
	fputs("\",\"headers\":{", stdout);
	json_first_header = true;
	each_header(msg, print_json_header);
	fputs("}}\n", stdout);
}

static jsStreamInfo *
get_stream_info(const char *stream)
{
	jsStreamInfo *info = NULL;
	jsErrCode	jserr = 0;
	natsStatus	status = js_GetStreamInfo(&info, js, stream, NULL, &jserr);

	if (status == NATS_NOT_FOUND)
		die(EXIT_REFUSED, "stream \"%s\" does not exist", stream);
	check(status, jserr, "get information about stream", stream);
	return info;
}

/* Whether the server has delivered all it has, the last of it being what we saw last. */
static bool
nothing_left(natsSubscription *sub, uint64_t seen, const char *stream)
{
	jsConsumerInfo *info = NULL;
	jsErrCode	jserr = 0;
	bool		done;

	check(natsSubscription_GetConsumerInfo(&info, sub, NULL, &jserr), jserr, "look at a consumer of", stream);
	done = info->NumPending == 0 && (info->Delivered.Consumer == 0 || info->Delivered.Stream <= seen);
	jsConsumerInfo_Destroy(info);
	return done;
}

/* Prints one message unless it came in after the start. Returns false after the last. */
static bool
dump_message(natsMsg *msg, uint64_t last, uint64_t *seen)
{
	jsMsgMetaData *meta = NULL;
	bool		more;

	check(natsMsg_GetMetaData(&meta, msg), 0, "read the metadata of", natsMsg_GetSubject(msg));
	*seen = meta->Sequence.Stream;
	if (*seen > last)
		more = false;
	else
	{
		(options.json ? print_message_json : print_message) (msg, *seen);
		more = *seen < last && meta->NumPending > 0;
	}
	jsMsgMetaData_Destroy(meta);
	return more;
}

/* An ordered consumer pushes everything; what a test publishes meanwhile is left out. */
static int
run_dump(int argc, char **argv)
{
	const char *filter = argc > 1 ? argv[1] : ">";
	jsStreamInfo *info = get_stream_info(argv[0]);
	uint64_t	last = info->State.LastSeq;
	uint64_t	seen = 0;
	int			silent_ms = 0;
	natsSubscription *sub = NULL;
	natsMsg    *msg = NULL;
	jsSubOptions sub_options;
	jsErrCode	jserr = 0;

	if (info->State.Msgs == 0)
		return 0;
	jsSubOptions_Init(&sub_options);
	sub_options.Stream = argv[0];
	sub_options.Ordered = true;
	check(js_SubscribeSync(&sub, js, filter, NULL, &sub_options, &jserr), jserr, "read stream", argv[0]);
	check(natsSubscription_SetPendingLimits(sub, -1, -1), 0, "read stream", argv[0]);

	for (bool more = true; more;)
	{
		natsStatus	status = natsSubscription_NextMsg(&msg, sub, STEP_MS);

		if (status == NATS_TIMEOUT)
		{
			silent_ms += STEP_MS;
			if (silent_ms > SILENCE_MS)
				die(EXIT_TIMEOUT, "stream \"%s\" fell silent after sequence %" PRIu64, argv[0], seen);
			more = !nothing_left(sub, seen, argv[0]);
			continue;
		}
		check(status, 0, "read stream", argv[0]);
		silent_ms = 0;
		more = dump_message(msg, last, &seen);
		natsMsg_Destroy(msg);
	}
	natsSubscription_Destroy(sub);
	return 0;
}

static int
run_info(int argc, char **argv)
{
	jsStreamInfo *info = get_stream_info(argv[0]);

	(void) argc;
	printf("messages=%" PRIu64 " first_seq=%" PRIu64 " last_seq=%" PRIu64 " bytes=%" PRIu64 "\n",
		   info->State.Msgs, info->State.FirstSeq, info->State.LastSeq, info->State.Bytes);
	return 0;
}

static int
run_leader(int argc, char **argv)
{
	jsStreamInfo *info = get_stream_info(argv[0]);
	int			current = 0;

	if (info->Cluster == NULL || info->Cluster->Leader == NULL || info->Cluster->Leader[0] == '\0')
		die(EXIT_REFUSED, "stream \"%s\" has no leader", argv[0]);
	for (int i = 0; i < info->Cluster->ReplicasLen; i++)
		current += info->Cluster->Replicas[i]->Current && !info->Cluster->Replicas[i]->Offline;
	if (argc > 1 && current < atoi(argv[1]))
		die(EXIT_REFUSED, "%d other servers have all of stream \"%s\"", current, argv[0]);
	printf("%s\n", info->Cluster->Leader);
	return 0;
}

static void
set_subjects(jsStreamConfig *config, char *list)
{
	static const char *subjects[MAX_HEADERS];
	int			count = 0;

	for (char *subject = strtok(list, ","); subject != NULL && count < MAX_HEADERS; subject = strtok(NULL, ","))
		subjects[count++] = subject;
	config->Subjects = subjects;
	config->SubjectsLen = count;
}

static void
set_stream_options(jsStreamConfig *config)
{
	if (options.max_msg_size != INT64_MIN)
		config->MaxMsgSize = (int32_t) options.max_msg_size;
	if (options.max_msgs != INT64_MIN)
		config->MaxMsgs = options.max_msgs;
	if (options.max_msgs_per_subject != INT64_MIN)
		config->MaxMsgsPerSubject = options.max_msgs_per_subject;
	if (options.max_bytes != INT64_MIN)
		config->MaxBytes = options.max_bytes;
	if (options.dup_window_ms != INT64_MIN)
		config->Duplicates = options.dup_window_ms * 1000000;
	if (options.replicas != INT64_MIN)
		config->Replicas = options.replicas;
	if (options.discard_new)
		config->Discard = js_DiscardNew;
	if (options.discard_old)
		config->Discard = js_DiscardOld;
	if (options.discard_new_per_subject)
		config->DiscardNewPerSubject = true;
	if (options.memory)
		config->Storage = js_MemoryStorage;
	if (options.interest)
		config->Retention = js_InterestPolicy;
	if (options.seal)
		config->Sealed = true;
}

static int
run_create(int argc, char **argv)
{
	jsStreamConfig config;
	jsErrCode	jserr = 0;

	(void) argc;
	jsStreamConfig_Init(&config);
	config.Name = argv[0];
	set_subjects(&config, argv[1]);
	set_stream_options(&config);
	check(js_AddStream(NULL, js, &config, NULL, &jserr), jserr, "create stream", argv[0]);
	return 0;
}

static int
run_update(int argc, char **argv)
{
	jsStreamConfig config = *get_stream_info(argv[0])->Config;
	jsErrCode	jserr = 0;

	if (argc > 1)
		set_subjects(&config, argv[1]);
	set_stream_options(&config);
	check(js_UpdateStream(NULL, js, &config, NULL, &jserr), jserr, "update stream", argv[0]);
	return 0;
}

static int
run_delete(int argc, char **argv)
{
	jsErrCode	jserr = 0;

	(void) argc;
	check(js_DeleteStream(js, argv[0], NULL, &jserr), jserr, "delete stream", argv[0]);
	return 0;
}

static int
run_purge(int argc, char **argv)
{
	jsOptions	js_options;
	jsErrCode	jserr = 0;

	jsOptions_Init(&js_options);
	if (argc > 1)
		js_options.Stream.Purge.Subject = argv[1];
	check(js_PurgeStream(js, argv[0], &js_options, &jserr), jserr, "purge stream", argv[0]);
	return 0;
}

static int
run_publish(int argc, char **argv)
{
	natsMsg    *msg = NULL;
	jsPubAck   *ack = NULL;
	jsPubOptions pub_options;
	jsErrCode	jserr = 0;

	(void) argc;
	check(natsMsg_Create(&msg, argv[0], NULL, argv[1], (int) strlen(argv[1])), 0, "make a message for", argv[0]);
	for (int i = 0; i < options.header_count; i++)
		check(natsMsgHeader_Add(msg, options.headers[i].key, options.headers[i].value), 0,
			  "add header", options.headers[i].key);
	if (options.core)
	{
		check(natsConnection_PublishMsg(connection, msg), 0, "publish to", argv[0]);
		check(natsConnection_Flush(connection), 0, "publish to", argv[0]);
		return 0;
	}
	jsPubOptions_Init(&pub_options);
	if (options.timeout_ms > 0)
		pub_options.MaxWait = options.timeout_ms;
	check(js_PublishMsg(&ack, js, msg, &pub_options, &jserr), jserr, "publish to", argv[0]);
	printf("stream=%s seq=%" PRIu64 " duplicate=%s\n", ack->Stream, ack->Sequence, ack->Duplicate ? "true" : "false");
	return 0;
}

/* Microseconds since the epoch of an RFC 3339 time in UTC with up to 6 decimals; -1: not such a time. */
static int64_t
parse_time(const char *text)
{
	struct tm	tm = {0};
	const char *rest = strptime(text, "%Y-%m-%dT%H:%M:%S", &tm);
	int64_t		us = 0;

	if (rest == NULL)
		return -1;
	if (*rest == '.')
	{
		int64_t		unit = 100000;

		for (rest++; *rest >= '0' && *rest <= '9'; rest++, unit /= 10)
			us += (*rest - '0') * unit;
	}
	return strcmp(rest, "Z") == 0 ? (int64_t) timegm(&tm) * 1000000 + us : -1;
}

static int
compare_int64(const void *a, const void *b)
{
	int64_t		left = *(const int64_t *) a;
	int64_t		right = *(const int64_t *) b;

	return (left > right) - (left < right);
}

/* Prints the latency since ce-time, or "-", and keeps it for the summary. */
static void
print_latency(natsMsg *msg, int64_t received_us, int64_t **samples, size_t *count)
{
	int64_t		sent_us = parse_time(get_header(msg, "ce-time"));

	if (sent_us < 0)
	{
		fputs("\t-", stdout);
		return;
	}
	if ((*count & (*count - 1)) == 0)
		*samples = realloc(*samples, (*count == 0 ? 1 : *count * 2) * sizeof(int64_t));
	if (*samples == NULL)
		die(EXIT_REFUSED, "out of memory");
	(*samples)[(*count)++] = received_us - sent_us;
	printf("\t%" PRId64, received_us - sent_us);
}

static void
print_arrival(natsMsg *msg, int64_t received_us)
{
	printf("%" PRId64 "\t", received_us);
	print_text(natsMsg_GetSubject(msg));
	putchar_unlocked('\t');
	print_text(get_header(msg, "Nats-Msg-Id"));
	putchar_unlocked('\t');
	print_text(get_header(msg, "ce-id"));
	putchar_unlocked('\t');
	print_text(get_header(msg, "ce-sequence"));
	putchar_unlocked('\t');
	print_escaped(natsMsg_GetData(msg), (size_t) natsMsg_GetDataLength(msg));
}

static void
print_latency_summary(int64_t *samples, size_t count)
{
	if (count == 0)
		return;
	qsort(samples, count, sizeof(samples[0]), compare_int64);
	fprintf(stderr, "latency_count=%zu p50_us=%" PRId64 " p99_us=%" PRId64 " max_us=%" PRId64 "\n", count,
			samples[(count - 1) / 2], samples[(count - 1) * 99 / 100], samples[count - 1]);
}

/* In place of a stream: the answer to one message, if there is a text for it and somebody who waits. */
static void
answer(natsMsg *msg)
{
	const char *reply_subject = natsMsg_GetReply(msg);

	if (options.reply == NULL || reply_subject == NULL)
		return;
	check(natsConnection_Publish(connection, reply_subject, options.reply, (int) strlen(options.reply)), 0, "answer to",
		  reply_subject);
}

/*
 * A plain subscription, so it sees each message at the moment the stream does,
 * and resends too. As "respond" it answers each, or, without a text for that,
 * is a stream that keeps silent.
 */
static int
run_subscribe(int argc, char **argv)
{
	int64_t		end_us = options.timeout_ms > 0 ? now_us() + options.timeout_ms * 1000 : INT64_MAX;
	int64_t		received = 0;
	int64_t    *samples = NULL;
	size_t		sample_count = 0;
	natsSubscription *sub = NULL;
	natsMsg    *msg = NULL;

	(void) argc;
	setvbuf(stdout, NULL, _IOLBF, 0);
	check(natsConnection_SubscribeSync(&sub, connection, argv[0]), 0, "subscribe to", argv[0]);
	check(natsSubscription_SetPendingLimits(sub, -1, -1), 0, "subscribe to", argv[0]);
	check(natsConnection_Flush(connection), 0, "subscribe to", argv[0]);
	fprintf(stderr, "subscribed to %s\n", argv[0]);

	while ((options.count == 0 || received < options.count) && now_us() < end_us)
	{
		natsStatus	status = natsSubscription_NextMsg(&msg, sub, STEP_MS);
		int64_t		received_us = now_us();

		if (status == NATS_TIMEOUT)
			continue;
		check(status, 0, "receive from", argv[0]);
		received++;
		answer(msg);
		print_arrival(msg, received_us);
		if (options.latency)
			print_latency(msg, received_us, &samples, &sample_count);
		putchar_unlocked('\n');
		natsMsg_Destroy(msg);
	}
	print_latency_summary(samples, sample_count);
	if (received < options.count)
		die(EXIT_TIMEOUT, "received %" PRId64 " of %" PRId64 " messages", received, options.count);
	return 0;
}

static int64_t
parse_number(const char *name, const char *text)
{
	char	   *end;
	long long	number = strtoll(text, &end, 10);

	if (*text == '\0' || *end != '\0')
		usage("not a number for an option", name);
	return number;
}

static void
add_header(char *pair)
{
	char	   *equals = strchr(pair, '=');

	if (equals == NULL || options.header_count == MAX_HEADERS)
		usage("-H needs KEY=VALUE, at most 64 times", pair);
	*equals = '\0';
	options.headers[options.header_count++] = (Pair) {pair, equals + 1};
}

static void
parse_options(int argc, char **argv)
{
	enum
	{
		USER = 256, PASSWORD, CREDS, TLS_CA, MAX_MSG_SIZE, MAX_MSGS, MAX_MSGS_PER_SUBJECT, MAX_BYTES, DUP_WINDOW, REPLICAS,
		COUNT, TIMEOUT, REPLY
	};
	static int	flag_json, flag_core, flag_latency, flag_new, flag_old, flag_new_per_subject, flag_memory, flag_interest,
				flag_seal;
	static const struct option table[] = {
		{"server", required_argument, NULL, 's'}, {"user", required_argument, NULL, USER},
		{"password", required_argument, NULL, PASSWORD}, {"creds", required_argument, NULL, CREDS},
		{"tls-ca", required_argument, NULL, TLS_CA}, {"max-msg-size", required_argument, NULL, MAX_MSG_SIZE},
		{"max-msgs", required_argument, NULL, MAX_MSGS},
		{"max-msgs-per-subject", required_argument, NULL, MAX_MSGS_PER_SUBJECT}, {"max-bytes", required_argument, NULL, MAX_BYTES},
		{"dup-window", required_argument, NULL, DUP_WINDOW},
		{"replicas", required_argument, NULL, REPLICAS}, {"count", required_argument, NULL, COUNT},
		{"timeout", required_argument, NULL, TIMEOUT}, {"reply", required_argument, NULL, REPLY}, {"json", no_argument, &flag_json, 1},
		{"core", no_argument, &flag_core, 1}, {"latency", no_argument, &flag_latency, 1},
		{"discard-new", no_argument, &flag_new, 1}, {"discard-old", no_argument, &flag_old, 1},
		{"discard-new-per-subject", no_argument, &flag_new_per_subject, 1},
		{"memory", no_argument, &flag_memory, 1}, {"interest", no_argument, &flag_interest, 1},
		{"seal", no_argument, &flag_seal, 1}, {NULL, 0, NULL, 0},
	};

	for (int c; (c = getopt_long(argc, argv, "s:H:", table, NULL)) != -1;)
	{
		switch (c)
		{
			case 0: break;		/* a flag */
			case 's': options.url = optarg; break;
			case 'H': add_header(optarg); break;
			case USER: options.user = optarg; break;
			case PASSWORD: options.password = optarg; break;
			case CREDS: options.creds = optarg; break;
			case TLS_CA: options.tls_ca = optarg; break;
			case MAX_MSG_SIZE: options.max_msg_size = parse_number("--max-msg-size", optarg); break;
			case MAX_MSGS: options.max_msgs = parse_number("--max-msgs", optarg); break;
			case MAX_MSGS_PER_SUBJECT: options.max_msgs_per_subject = parse_number("--max-msgs-per-subject", optarg); break;
			case MAX_BYTES: options.max_bytes = parse_number("--max-bytes", optarg); break;
			case DUP_WINDOW: options.dup_window_ms = parse_number("--dup-window", optarg); break;
			case REPLICAS: options.replicas = parse_number("--replicas", optarg); break;
			case COUNT: options.count = parse_number("--count", optarg); break;
			case TIMEOUT: options.timeout_ms = parse_number("--timeout", optarg); break;
			case REPLY: options.reply = optarg; break;
			default: usage("wrong option", NULL);
		}
	}
	options.json = flag_json;
	options.core = flag_core;
	options.latency = flag_latency;
	options.discard_new = flag_new;
	options.discard_old = flag_old;
	options.discard_new_per_subject = flag_new_per_subject;
	options.memory = flag_memory;
	options.interest = flag_interest;
	options.seal = flag_seal;
}

int
main(int argc, char **argv)
{
	static const struct
	{
		const char *name;
		int			min_arguments;
		int			max_arguments;
		int			(*run) (int argc, char **argv);
	}			commands[] = {
		{"dump", 1, 2, run_dump}, {"info", 1, 1, run_info}, {"leader", 1, 2, run_leader}, {"create", 2, 2, run_create},
		{"update", 1, 2, run_update}, {"delete", 1, 1, run_delete}, {"purge", 1, 2, run_purge},
		{"publish", 2, 2, run_publish}, {"subscribe", 1, 1, run_subscribe},
		{"respond", 1, 1, run_subscribe},
	};

	options.url = getenv("NATS_URL") != NULL ? getenv("NATS_URL") : "nats://127.0.0.1:4222";
	options.max_msg_size = options.max_msgs = options.max_msgs_per_subject = options.max_bytes =
		options.dup_window_ms = options.replicas = INT64_MIN;
	parse_options(argc, argv);
	if (optind == argc)
		usage("a command is missing", NULL);

	for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
	{
		int			given = argc - optind - 1;

		if (strcmp(argv[optind], commands[i].name) != 0)
			continue;
		if (given < commands[i].min_arguments || given > commands[i].max_arguments)
			usage("wrong number of arguments", argv[optind]);
		open_connection();
		return commands[i].run(given, argv + optind + 1);
	}
	usage("unknown command", argv[optind]);
}
