/*
 * cli_options.c
 *	  The arguments of outbox-replay, and its help.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "../encode.h"
#include "../url.h"
#include "cli.h"

static const char help[] =
	"outbox-replay sends published events of an outbox again to NATS JetStream.\n"
	"\n"
	"Usage: outbox-replay SOURCE [FILTER]... [--to-nats URL --stream NAME] [OPTION]...\n"
	"\n"
	"Where the events are:\n"
	"  --from-archive DIR         files of outbox.archive_directory\n"
	"  --from-database CONNINFO   a database with the extension, as libpq names it\n"
	"  --from-clickhouse URL      http[s]://[user[:password]@]host[:port]/[database/]table\n"
	"  --database NAME            whose events: in ClickHouse, or if an archive has several\n"
	"\n"
	"Which of them (all that is given must match, ranges include both ends):\n"
	"  --topic PATTERN            their subject, with * and > as in NATS\n"
	"  --event-type TYPE, --aggregate-type TYPE, --aggregate-id ID\n"
	"  --from TIME, --to TIME     enqueued then: 2024-10-27T08:30:00+02:00; without an offset it is UTC\n"
	"  --from-position N, --to-position N\n"
	"\n"
	"Where to:\n"
	"  --to-nats URL              nats:// or tls://, with user:password@ or token@ if need be;\n"
	"                             without it, it is a dry run\n"
	"  --stream NAME              the stream whose acknowledgement counts\n"
	"  --subject-prefix PREFIX    put before each subject, with a dot\n"
	"  --create-stream            create it for these subjects if it is missing\n"
	"  --creds FILE, --nkey FILE, --login-file FILE\n"
	"  --tls-ca FILE, --tls-cert FILE, --tls-key FILE\n"
	"  --inbox-prefix PREFIX      of the subjects of acknowledgements\n"
	"\n"
	"How:\n"
	"  --rate N                   so many events in a second at most\n"
	"  --dry-run                  only count them\n"
	"  --batch-id UUID            the replay's id; with that of one before, what it has sent is not stored twice\n"
	"  --behind N                 go on behind this position\n"
	"  --subject-template T       of events without a subject of their own\n"
	"  --cloudevents-source TEXT  ce-source\n"
	"  --envelope MODE            binary, structured or bare\n"
	"  --ack-timeout SECONDS, --connect-timeout SECONDS\n"
	"  --quiet                    print errors only\n"
	"  --help, --version\n"
	"\n"
	"Exit codes: 0 all is sent, 1 wrong arguments, 2 the events can't be read, 3 NATS can't be reached,\n"
	"4 an event was refused, 130 interrupted.\n";

enum
{
	OPT_FROM_ARCHIVE = 256,
	OPT_ENVELOPE,
	OPT_FROM_CLICKHOUSE,
	OPT_FROM_DATABASE,
	OPT_DATABASE,
	OPT_TOPIC,
	OPT_EVENT_TYPE,
	OPT_AGGREGATE_TYPE,
	OPT_AGGREGATE_ID,
	OPT_FROM,
	OPT_TO,
	OPT_FROM_POSITION,
	OPT_TO_POSITION,
	OPT_TO_NATS,
	OPT_STREAM,
	OPT_SUBJECT_PREFIX,
	OPT_CREATE_STREAM,
	OPT_CREDS,
	OPT_NKEY,
	OPT_LOGIN_FILE,
	OPT_TLS_CA,
	OPT_TLS_CERT,
	OPT_TLS_KEY,
	OPT_INBOX_PREFIX,
	OPT_RATE,
	OPT_DRY_RUN,
	OPT_BATCH_ID,
	OPT_BEHIND,
	OPT_TEMPLATE,
	OPT_SOURCE,
	OPT_ACK_TIMEOUT,
	OPT_CONNECT_TIMEOUT,
	OPT_QUIET,
	OPT_HELP,
	OPT_VERSION
};

static const struct option long_options[] = {
	{"from-archive", required_argument, NULL, OPT_FROM_ARCHIVE},
	{"from-clickhouse", required_argument, NULL, OPT_FROM_CLICKHOUSE},
	{"from-database", required_argument, NULL, OPT_FROM_DATABASE},
	{"database", required_argument, NULL, OPT_DATABASE},
	{"topic", required_argument, NULL, OPT_TOPIC},
	{"event-type", required_argument, NULL, OPT_EVENT_TYPE},
	{"aggregate-type", required_argument, NULL, OPT_AGGREGATE_TYPE},
	{"aggregate-id", required_argument, NULL, OPT_AGGREGATE_ID},
	{"from", required_argument, NULL, OPT_FROM},
	{"to", required_argument, NULL, OPT_TO},
	{"from-position", required_argument, NULL, OPT_FROM_POSITION},
	{"to-position", required_argument, NULL, OPT_TO_POSITION},
	{"to-nats", required_argument, NULL, OPT_TO_NATS},
	{"stream", required_argument, NULL, OPT_STREAM},
	{"subject-prefix", required_argument, NULL, OPT_SUBJECT_PREFIX},
	{"create-stream", no_argument, NULL, OPT_CREATE_STREAM},
	{"creds", required_argument, NULL, OPT_CREDS},
	{"nkey", required_argument, NULL, OPT_NKEY},
	{"login-file", required_argument, NULL, OPT_LOGIN_FILE},
	{"tls-ca", required_argument, NULL, OPT_TLS_CA},
	{"tls-cert", required_argument, NULL, OPT_TLS_CERT},
	{"tls-key", required_argument, NULL, OPT_TLS_KEY},
	{"inbox-prefix", required_argument, NULL, OPT_INBOX_PREFIX},
	{"rate", required_argument, NULL, OPT_RATE},
	{"dry-run", no_argument, NULL, OPT_DRY_RUN},
	{"batch-id", required_argument, NULL, OPT_BATCH_ID},
	{"behind", required_argument, NULL, OPT_BEHIND},
	{"subject-template", required_argument, NULL, OPT_TEMPLATE},
	{"cloudevents-source", required_argument, NULL, OPT_SOURCE},
	{"envelope", required_argument, NULL, OPT_ENVELOPE},
	{"ack-timeout", required_argument, NULL, OPT_ACK_TIMEOUT},
	{"connect-timeout", required_argument, NULL, OPT_CONNECT_TIMEOUT},
	{"quiet", no_argument, NULL, OPT_QUIET},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

static bool
read_time(const char *name, const char *text, int64_t *value)
{
	return outbox_replay_parse_time(text, value) ||
		cli_complain("--%s must be a time such as 2024-10-27T08:30:00+02:00, not \"%s\"", name, text);
}

static bool
read_milliseconds(const char *name, const char *text, int *value)
{
	int64_t		seconds;

	if (!cli_read_number(name, text, 1, 3600, &seconds))
		return false;
	*value = (int) seconds * 1000;
	return true;
}

/* One option that has a value to be checked, or none at all. */
static bool
take_checked(int option, CliOptions *options)
{
	OutboxReplayFilter *filter = &options->filter;

	switch (option)
	{
		case OPT_FROM:
			return read_time("from", optarg, &filter->from_time);
		case OPT_TO:
			return read_time("to", optarg, &filter->to_time);
		case OPT_FROM_POSITION:
			return cli_read_number("from-position", optarg, 1, INT64_MAX, &filter->from_position);
		case OPT_TO_POSITION:
			return cli_read_number("to-position", optarg, 1, INT64_MAX, &filter->to_position);
		case OPT_RATE:
			return cli_read_number("rate", optarg, 1, 10000000, &options->rate);
		case OPT_BEHIND:
			return cli_read_number("behind", optarg, 0, INT64_MAX, &options->behind);
		case OPT_ACK_TIMEOUT:
			return read_milliseconds("ack-timeout", optarg, &options->broker.ack_timeout_ms);
		case OPT_CONNECT_TIMEOUT:
			return read_milliseconds("connect-timeout", optarg, &options->broker.connect_timeout_ms);
		case OPT_DRY_RUN:
			options->dry_run = true;
			return true;
		case OPT_QUIET:
			options->quiet = true;
			return true;
		case OPT_CREATE_STREAM:
			options->broker.stream_create = true;
			return true;
		case OPT_BATCH_ID:
			if (strlen(optarg) != 36 || strspn(optarg, "0123456789abcdefABCDEF-") != 36)
				return cli_complain("--batch-id must be a UUID, not \"%s\"", optarg);
			strcpy(options->batch_id, optarg);
			return true;
		default:
			return cli_complain("wrong arguments");
	}
}

/* Where the text of an option goes; NULL: it is another kind of option. */
static const char **
text_of(int option, CliOptions *options)
{
	BrokerConfig *broker = &options->broker;

	switch (option)
	{
		case OPT_FROM_ARCHIVE:
			return &options->from_archive;
		case OPT_FROM_CLICKHOUSE:
			return &options->from_clickhouse;
		case OPT_FROM_DATABASE:
			return &options->from_database;
		case OPT_DATABASE:
			return &options->database;
		case OPT_TOPIC:
			return &options->filter.subject;
		case OPT_EVENT_TYPE:
			return &options->filter.event_type;
		case OPT_AGGREGATE_TYPE:
			return &options->filter.aggregate_type;
		case OPT_AGGREGATE_ID:
			return &options->filter.aggregate_id;
		case OPT_TO_NATS:
			return &broker->url;
		case OPT_STREAM:
			return &broker->stream;
		case OPT_SUBJECT_PREFIX:
			return &options->subject_prefix;
		case OPT_CREDS:
			return &broker->credentials_file;
		case OPT_NKEY:
			return &broker->nkey_seed_file;
		case OPT_LOGIN_FILE:
			return &broker->login_file;
		case OPT_TLS_CA:
			return &broker->tls_ca_file;
		case OPT_TLS_CERT:
			return &broker->tls_cert_file;
		case OPT_TLS_KEY:
			return &broker->tls_key_file;
		case OPT_INBOX_PREFIX:
			return &broker->inbox_prefix;
		case OPT_TEMPLATE:
			return &options->subject_template;
		case OPT_SOURCE:
			return &options->source;
		case OPT_ENVELOPE:
			return &options->envelope;
		default:
			return NULL;
	}
}

/* Tokens without blanks; wildcards only if they may be there, and ">" only at the end. */
static bool
is_subject(const char *text, bool wildcards)
{
	for (;;)
	{
		size_t		len = strcspn(text, ".");

		if (len == 0 || memchr(text, ' ', len) != NULL)
			return false;
		if (!wildcards && (memchr(text, '*', len) != NULL || memchr(text, '>', len) != NULL))
			return false;
		if (memchr(text, '>', len) != NULL && (len > 1 || text[len] != '\0'))
			return false;
		if (len > 1 && memchr(text, '*', len) != NULL)
			return false;
		if (text[len] == '\0')
			return true;
		text += len + 1;
	}
}

static bool
is_stream(const char *name)
{
	for (const char *c = name; *c != '\0'; c++)
	{
		if (*c <= ' ' || *c > '~' || strchr(".*>/\\", *c) != NULL)
			return false;
	}
	return name[0] != '\0' && strlen(name) < BROKER_TEXT_SIZE;
}

/* What makes no sense together. */
static bool
check(const CliOptions *options)
{
	const OutboxReplayFilter *filter = &options->filter;
	OutboxEnvelopeMode mode;
	const char *complaint;

	if ((options->from_archive != NULL) + (options->from_clickhouse != NULL) + (options->from_database != NULL) != 1)
		return cli_complain("exactly one of --from-archive, --from-clickhouse and --from-database is needed");
	if (options->from_clickhouse != NULL && options->database == NULL)
		return cli_complain("--from-clickhouse needs --database: whose events");
	if (filter->from_time > filter->to_time)
		return cli_complain("the time range ends before it begins");
	if (filter->from_position > filter->to_position)
		return cli_complain("the range of positions ends before it begins");
	if (filter->aggregate_id != NULL && filter->aggregate_type == NULL)
		return cli_complain("--aggregate-id needs --aggregate-type: ids are unique within a type only");
	if (filter->subject != NULL && !is_subject(filter->subject, true))
		return cli_complain("--topic \"%s\" is not a valid pattern", filter->subject);
	if (options->subject_prefix != NULL && !is_subject(options->subject_prefix, false))
		return cli_complain("--subject-prefix \"%s\" is not the beginning of a subject", options->subject_prefix);
	if (options->subject_template != NULL && (complaint = outbox_encode_check_template(options->subject_template)) != NULL)
		return cli_complain("--subject-template %s", complaint);
	if (options->envelope != NULL && !outbox_envelope_mode(options->envelope, &mode))
		return cli_complain("--envelope is binary, structured or bare");
	if (options->broker.url == NULL)
		return true;
	if (!outbox_url_check_list(options->broker.url))
		return cli_complain("--to-nats must be a list of NATS URLs, such as nats://nats.example.com:4222");
	if (options->broker.stream == NULL)
		return cli_complain("--to-nats needs --stream");
	if (!is_stream(options->broker.stream))
		return cli_complain("\"%s\" is not the name of a stream", options->broker.stream);
	return true;
}

static void
make_batch_id(char *text)
{
	uint8_t		uuid[16];

	if (getrandom(uuid, sizeof(uuid), 0) != sizeof(uuid))
		memset(uuid, 0, sizeof(uuid));
	uuid[6] = (uint8_t) (uuid[6] % 16 | 0x40);
	uuid[8] = (uint8_t) (uuid[8] % 64 | 0x80);
	outbox_encode_uuid(uuid, text);
}

bool
cli_parse(int argc, char **argv, CliOptions *options, int *exit_code)
{
	int			option;

	*exit_code = CLI_USAGE;
	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
	{
		const char **text = text_of(option, options);

		if (option == OPT_HELP || option == OPT_VERSION)
		{
			fputs(option == OPT_HELP ? help : "outbox-replay " OUTBOX_VERSION "\n", stdout);
			*exit_code = CLI_DONE;
			return false;
		}
		if (text != NULL)
		{
			if (optarg[0] == '\0')
				return cli_complain("an option has no value");
			*text = optarg;
		}
		else if (!take_checked(option, options))
			return false;
	}
	if (optind < argc)
		return cli_complain("there is no argument \"%s\"", argv[optind]);
	if (!check(options))
		return false;
	if (options->batch_id[0] == '\0')
		make_batch_id(options->batch_id);
	if (options->broker.url == NULL)
		options->dry_run = true;
	return true;
}
