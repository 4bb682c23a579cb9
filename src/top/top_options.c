/*
 * top_options.c
 *	  The arguments of outbox-top, and its help.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "top.h"

static const char help[] =
	"outbox-top shows how the events of a database flow, on one screen that is refreshed.\n"
	"\n"
	"Usage: outbox-top [OPTION]... [DBNAME | CONNINFO]\n"
	"\n"
	"  -d, --dbname NAME       the database, or a connection string of libpq\n"
	"  -h, --host HOST, -p, --port PORT, -U, --username USER\n"
	"  -i, --interval SECONDS  between two looks, such as 0.5; default 2\n"
	"  -n, --count N           end after so many; 0: never\n"
	"  -v, --view NAME         types, streams, subjects, relays, dead, blocked, errors or health\n"
	"  -s, --sort COLUMN       the column of that view by which it is sorted at first, as in its head\n"
	"      --plain             print lines, as when the output is no terminal\n"
	"      --ascii             nothing beyond ASCII\n"
	"      --help, --version\n"
	"\n"
	"On a terminal \"?\" tells the keys. In a pipe it prints one look, or --count of them. The user must be\n"
	"a member of pg_monitor; libpq's environment variables and password file hold.\n"
	"\n"
	"Exit codes: 0 done, 1 wrong arguments, 2 no connection or no extension in the database, 130 interrupted.\n";

enum
{
	OPT_PLAIN = 256,
	OPT_ASCII,
	OPT_HELP,
	OPT_VERSION
};

static const struct option long_options[] = {
	{"dbname", required_argument, NULL, 'd'},
	{"host", required_argument, NULL, 'h'},
	{"port", required_argument, NULL, 'p'},
	{"username", required_argument, NULL, 'U'},
	{"interval", required_argument, NULL, 'i'},
	{"count", required_argument, NULL, 'n'},
	{"view", required_argument, NULL, 'v'},
	{"sort", required_argument, NULL, 's'},
	{"plain", no_argument, NULL, OPT_PLAIN},
	{"ascii", no_argument, NULL, OPT_ASCII},
	{"help", no_argument, NULL, OPT_HELP},
	{"version", no_argument, NULL, OPT_VERSION},
	{NULL, 0, NULL, 0},
};

static bool
read_interval(const char *text, int64_t *ms)
{
	char	   *end;
	double		seconds = strtod(text, &end);

	if (end == text || *end != '\0' || !(seconds >= 0.1 && seconds <= 3600))
		return cli_complain("--interval must be a number of seconds from 0.1 to 3600, not \"%s\"", text);
	*ms = (int64_t) (seconds * 1000);
	return true;
}

static bool
read_view(const char *text, TopViewId *view)
{
	for (int i = 0; i < TOP_VIEWS; i++)
	{
		if (strcmp(text, top_views[i].name) == 0)
		{
			*view = (TopViewId) i;
			return true;
		}
	}
	return cli_complain("there is no view \"%s\": types, streams, subjects, relays, dead, blocked, errors or health", text);
}

static bool
read_sort(const char *text, TopOptions *options)
{
	const TopView *view = &top_views[options->view];

	for (int i = 0; i < top_view_columns(view); i++)
	{
		if (strcasecmp(text, view->columns[i].title) == 0)
		{
			options->sort = i;
			return true;
		}
	}
	return cli_complain("view \"%s\" has no column \"%s\"", view->name, text);
}

static bool
take_option(int option, TopOptions *options, const char **sort)
{
	switch (option)
	{
		case 'd':
			options->dbname = optarg;
			return true;
		case 'h':
			options->host = optarg;
			return true;
		case 'p':
			options->port = optarg;
			return true;
		case 'U':
			options->user = optarg;
			return true;
		case 'i':
			return read_interval(optarg, &options->interval_ms);
		case 'n':
			return cli_read_number("count", optarg, 0, 1000000000, &options->count);
		case 'v':
			return read_view(optarg, &options->view);
		case 's':
			*sort = optarg;
			return true;
		case OPT_PLAIN:
			options->plain = true;
			return true;
		case OPT_ASCII:
			options->ascii = true;
			return true;
		default:
			return cli_complain("wrong arguments");
	}
}

bool
top_parse(int argc, char **argv, TopOptions *options, int *exit_code)
{
	const char *sort = NULL;
	int			option;

	*exit_code = TOP_USAGE;
	*options = (TopOptions) {.interval_ms = 2000, .count = -1, .sort = -1};
	while ((option = getopt_long(argc, argv, "d:h:p:U:i:n:v:s:", long_options, NULL)) != -1)
	{
		if (option == OPT_HELP || option == OPT_VERSION)
		{
			fputs(option == OPT_HELP ? help : "outbox-top " OUTBOX_VERSION "\n", stdout);
			*exit_code = TOP_DONE;
			return false;
		}
		if (!take_option(option, options, &sort))
			return false;
	}
	if (optind < argc && options->dbname == NULL)
		options->dbname = argv[optind++];
	if (optind < argc)
		return cli_complain("there is no argument \"%s\"", argv[optind]);
	return sort == NULL || read_sort(sort, options);
}
