/*
 * main.c
 *	  outbox-replay: sends published events of an outbox again, from an archive
 *	  or a database, to NATS JetStream. It needs no server of ours but the one it
 *	  reads from.
 *
 * Built of the same plain C as the server's own replay: what makes messages
 * (envelope.c), what sends them (replay_player.c, broker*.c), what reads archives.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../encode.h"
#include "../replay_archive.h"
#include "../replay_clickhouse.h"
#include "cli.h"

#define DEFAULT_TEMPLATE "outbox.{aggregate_type}.{aggregate_id}.{event_type}"

const char	cli_program[] = "outbox-replay";

static CliDatabase *database = NULL;

static void
interrupt(int signal_number)
{
	(void) signal_number;
	cli_interrupted = 1;
}

static bool
go_on(void *arg)
{
	(void) arg;
	return !cli_interrupted;
}

OutboxReplaySource *
cli_open(const CliOptions *options, const OutboxEnvelope *envelope, int64_t behind, char error[OUTBOX_SOURCE_TEXT_SIZE])
{
	if (options->from_archive != NULL)
	{
		OutboxArchiveWish wish = {options->from_archive, options->database, &options->filter, envelope, go_on};

		return outbox_replay_archive_open(&wish, behind, error);
	}
	if (options->from_clickhouse != NULL)
	{
		OutboxClickhouseWish wish = {options->from_clickhouse, options->database, &options->filter, envelope, go_on};

		return outbox_replay_clickhouse_open(&wish, behind, error);
	}
	return cli_database_open(database, &options->filter, envelope, behind, error);
}

/* Columns of a time for people. */
static void
format_time(int64_t unix_us, char *text)
{
	outbox_encode_time(unix_us, text);
}

static void
print_count(const char *name, const OutboxReplayCount *count)
{
	char		first[64] = "";
	char		last[64] = "";

	if (count->events > 0)
	{
		format_time(count->first_time, first);
		format_time(count->last_time, last);
	}
	printf("%-40s %12lld %14lld %19lld %19lld  %-27s  %s\n", name, (long long) count->events, (long long) count->bytes,
		   (long long) count->first_position, (long long) count->last_position, first, last);
}

/* Counts what would be sent. */
static int
survey(const CliOptions *options, const OutboxEnvelope *envelope, OutboxReplaySurvey *result)
{
	char		error[OUTBOX_SOURCE_TEXT_SIZE];
	OutboxReplaySource *source = cli_open(options, envelope, options->behind, error);
	OutboxSourceResult got = OUTBOX_SOURCE_FAILED;
	int64_t		since_us = cli_now_us();
	OutboxRow	row;

	if (source == NULL)
	{
		fprintf(stderr, "outbox-replay: %s\n", error);
		return CLI_SOURCE;
	}
	while (!cli_interrupted && (got = source->next(source, &row)) == OUTBOX_SOURCE_ROW)
	{
		if (!outbox_replay_survey_add(result, &row))
		{
			fprintf(stderr, "outbox-replay: out of memory\n");
			break;
		}
		if (!options->quiet)
			cli_show_progress("counted", result->all.events, -1, since_us, false);
	}
	if (!options->quiet && result->all.events > 0)
		cli_show_progress("counted", result->all.events, -1, since_us, true);
	if (got == OUTBOX_SOURCE_FAILED)
		fprintf(stderr, "outbox-replay: %s\n", source->error);
	source->close(source);
	return cli_interrupted ? CLI_INTERRUPTED : got == OUTBOX_SOURCE_END ? CLI_DONE :
																		  CLI_SOURCE;
}

static int
dry_run(const CliOptions *options, const OutboxEnvelope *envelope)
{
	OutboxReplaySurvey counts = {{0}};
	int			exit_code = survey(options, envelope, &counts);

	if (exit_code == CLI_DONE)
	{
		printf("%-40s %12s %14s %19s %19s  %-27s  %s\n", "event type", "events", "bytes", "first position", "last position", "first", "last");
		for (int i = 0; i < counts.type_count; i++)
			print_count(counts.types[i].event_type, &counts.types[i]);
		print_count("all", &counts.all);
	}
	outbox_replay_survey_free(&counts);
	return exit_code;
}

/* Settings that were given win, then those of the database. False: it can't be asked. */
static bool
make_envelope(CliOptions *options, OutboxEnvelope *envelope)
{
	static char subject_template[OUTBOX_MAX_TEMPLATE + 1] = DEFAULT_TEMPLATE;
	static char	source[3100];
	OutboxEnvelopeMode mode = OUTBOX_ENVELOPE_BINARY;
	char		source_database[1000] = "";
	char		error[OUTBOX_SOURCE_TEXT_SIZE];
	const char *setting;

	if (options->from_database != NULL)
	{
		database = cli_database_connect(options->from_database, error);
		if (database == NULL)
		{
			fprintf(stderr, "outbox-replay: %s\n", error);
			return false;
		}
		if ((setting = cli_database_setting(database, "outbox.subject_template")) != NULL && strlen(setting) <= OUTBOX_MAX_TEMPLATE)
			strcpy(subject_template, setting);
		if ((setting = cli_database_setting(database, "outbox.cloudevents_source")) != NULL)
			snprintf(source, sizeof(source), "%s", setting);
		else if ((setting = cli_database_setting(database, "database")) != NULL)
			snprintf(source_database, sizeof(source_database), "%s", setting);
		if ((setting = cli_database_setting(database, "outbox.envelope")) != NULL)
			(void) outbox_envelope_mode(setting, &mode);
	}
	else if (options->database != NULL)
		snprintf(source_database, sizeof(source_database), "%s", options->database);
	else if (options->from_archive != NULL)
		(void) outbox_replay_archive_database(options->from_archive, source_database, sizeof(source_database));
	if (source[0] == '\0')
		outbox_envelope_source(source_database, source, sizeof(source));
	if (options->envelope != NULL)
		(void) outbox_envelope_mode(options->envelope, &mode);
	*envelope = (OutboxEnvelope) {
		.mode = mode,
		.stream = options->broker.stream,
		.source = options->source != NULL ? options->source : source,
		.subject_template = options->subject_template != NULL ? options->subject_template : subject_template,
		.subject_prefix = options->subject_prefix,
		.replay_id = options->batch_id,
	};
	return true;
}

static int
replay(CliOptions *options, const OutboxEnvelope *envelope)
{
	static char subjects[2048];
	OutboxReplaySurvey counts = {{0}};
	int64_t		total = -1;
	int			prefix = 0;

	if (options->subject_prefix != NULL)
		prefix = snprintf(subjects, sizeof(subjects), "%s.", options->subject_prefix);
	if (prefix >= (int) sizeof(subjects) ||
		outbox_encode_stream_subjects(envelope->subject_template, subjects + prefix, sizeof(subjects) - (size_t) prefix) < 0)
	{
		fprintf(stderr, "outbox-replay: --subject-prefix is too long\n");
		return CLI_USAGE;
	}
	options->broker.stream_subjects = subjects;
	/* A bar needs to know its end. */
	if (!options->quiet && cli_has_terminal())
	{
		int			exit_code = survey(options, envelope, &counts);

		if (exit_code != CLI_DONE)
			return exit_code;
		total = counts.all.events;
		outbox_replay_survey_free(&counts);
	}
	return cli_play(options, envelope, total);
}

int
main(int argc, char **argv)
{
	struct sigaction action = {.sa_handler = interrupt};
	OutboxEnvelope envelope;
	int			exit_code;
	CliOptions	options = {
		.filter = {.from_time = INT64_MIN, .to_time = INT64_MAX, .from_position = 1, .to_position = INT64_MAX},
		.broker = {
			.client_name = "outbox-replay",
			.duplicate_window_ms = 2 * 60 * 1000,
			.ack_timeout_ms = 5000,
			.connect_timeout_ms = 5000,
			.reconnect_base_ms = 100,
			.reconnect_max_ms = 5000,
			.max_in_flight = 1024,
		},
	};

	if (!cli_parse(argc, argv, &options, &exit_code))
		return exit_code;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (!make_envelope(&options, &envelope))
		return CLI_SOURCE;
	exit_code = options.dry_run ? dry_run(&options, &envelope) : replay(&options, &envelope);
	/* Threads of the NATS client may be about to end, and must not see OpenSSL's exit handlers run. */
	(void) fflush(NULL);
	_exit(exit_code);
}
