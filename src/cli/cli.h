/*
 * cli.h
 *	  What the files of the command outbox-replay share.
 */
#ifndef OUTBOX_CLI_H
#define OUTBOX_CLI_H

#include "../broker.h"
#include "../replay_filter.h"
#include "../replay_source.h"
#include "cli_common.h"

/* Exit codes; they are in the manual. */
enum
{
	CLI_DONE = 0,
	CLI_USAGE = 1,
	CLI_SOURCE = 2,				/* the events can't be read */
	CLI_TARGET = 3,				/* NATS can't be reached */
	CLI_REFUSED = 4,			/* a message was refused */
	CLI_INTERRUPTED = 130
};

typedef struct CliOptions
{
	/* One of these. */
	const char *from_archive;
	const char *from_clickhouse;
	const char *from_database;

	const char *database;		/* of an archive with several */
	OutboxReplayFilter filter;
	const char *subject_template;	/* NULL: the database's, or the default */
	const char *source;			/* ce-source; NULL: as well */
	const char *envelope;		/* NULL: as well */
	const char *subject_prefix;

	BrokerConfig broker;		/* url NULL: a dry run */
	bool		dry_run;
	bool		quiet;
	int64_t		rate;
	char		batch_id[37];
	int64_t		behind;			/* go on behind this position */
} CliOptions;

/* cli_options.c: false: the command has an exit code already. */
extern bool cli_parse(int argc, char **argv, CliOptions *options, int *exit_code);

/* Opens the source, behind a position; NULL: error says why not. */
extern OutboxReplaySource *cli_open(const CliOptions *options, const OutboxEnvelope *envelope, int64_t behind,
									char error[OUTBOX_SOURCE_TEXT_SIZE]);

/* cli_database.c: the settings of a database that matter; NULL: error says why not. */
typedef struct CliDatabase CliDatabase;
extern CliDatabase *cli_database_connect(const char *conninfo, char error[OUTBOX_SOURCE_TEXT_SIZE]);
extern const char *cli_database_setting(CliDatabase *database, const char *name);
extern OutboxReplaySource *cli_database_open(CliDatabase *database, const OutboxReplayFilter *filter, const OutboxEnvelope *envelope,
											 int64_t behind, char error[OUTBOX_SOURCE_TEXT_SIZE]);

/* cli_play.c: sends the events; returns the exit code. total: -1: not counted. */
extern int	cli_play(const CliOptions *options, const OutboxEnvelope *envelope, int64_t total);
extern volatile int cli_interrupted;

/* cli_progress.c: how far it is, on a terminal. */
extern bool cli_has_terminal(void);
extern void cli_show_progress(const char *verb, int64_t done, int64_t total, int64_t since_us, bool last);

#endif							/* OUTBOX_CLI_H */
