/*
 * top_link.c
 *	  The connection of outbox-top: connects, asks for snapshots, and connects
 *	  again when the server is gone. Nothing here waits: the caller polls the
 *	  socket and calls top_link_work().
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "top.h"

#define RETRY_US 500000
#define CONNECT_US 10000000
#define ANSWER_US 30000000

typedef enum LinkState
{
	LINK_DOWN,					/* until retry_at */
	LINK_CONNECTING,
	LINK_SETUP,					/* asks whether the extension is there */
	LINK_IDLE,
	LINK_BUSY
} LinkState;

struct TopLink
{
	const TopOptions *options;
	LinkState	state;
	PGconn	   *connection;
	PostgresPollingStatusType polling;
	int64_t		until_us;		/* in LINK_DOWN: the next attempt; in others: patience ends */
	TopSnapshot *asked;
	TopSnapshot *ready;
	int			received;
	bool		refused;		/* a statement failed */
	char		error[TOP_ERROR_SIZE];
	char		where[256];
};

static const char setup_query[] =
	"SET client_encoding = 'UTF8'; SET default_transaction_read_only = on; SET statement_timeout = '10s'; SET lock_timeout = '5s'; SET jit = off;"
	"SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'outbox'";

/* In the order of TopResult; the rows of a view follow. */
static const char common_query[] =
	"SELECT pg_catalog.current_database(), pg_catalog.to_char(pg_catalog.clock_timestamp(), 'HH24:MI:SS'),"
	" extract(epoch FROM pg_catalog.clock_timestamp()), s.*, t.dead_letters, t.blocked_aggregates, t.retried"
	" FROM (SELECT sum(backlog), extract(epoch FROM max(oldest_pending_age)), sum(in_flight), count(pid), count(*) FILTER (WHERE state = 'active'),"
	" min(server), min(stream) FROM outbox.status() WHERE database = pg_catalog.current_database()) s, outbox.trouble() t;"
	"SELECT verdict, reason, detail, remedy FROM outbox.health();"
	"SELECT stage, samples, p50_ms / 1000, p95_ms / 1000, p99_ms / 1000, max_ms / 1000 FROM outbox.latency;"
	"SELECT extract(epoch FROM minute)::bigint / 60, enqueued, published, failed FROM outbox.throughput ORDER BY minute DESC LIMIT 121;";

static void
take_error(TopLink *link, const char *message)
{
	char		clean[TOP_ERROR_SIZE];
	char	   *end;

	top_clean(message, clean, sizeof(clean));
	end = clean + strlen(clean);
	while (end > clean && end[-1] == ' ')
		*--end = '\0';
	snprintf(link->error, sizeof(link->error), "%s", clean);
}

/* Would write over the screen; what matters comes as an error as well. */
static void
ignore_notice(void *arg, const char *message)
{
	(void) arg;
	(void) message;
}

/* The connection ends; another attempt follows. */
static void
go_down(TopLink *link, const char *message)
{
	take_error(link, message);
	PQfinish(link->connection);
	link->connection = NULL;
	top_snapshot_free(link->asked);
	link->asked = NULL;
	link->state = LINK_DOWN;
	link->until_us = cli_now_us() + RETRY_US;
}

static void
start_connecting(TopLink *link)
{
	const TopOptions *options = link->options;
	const char *names[] = {"fallback_application_name", "connect_timeout", "dbname", "host", "port", "user", NULL};
	const char *values[] = {cli_program, "10", options->dbname, options->host, options->port, options->user, NULL};

	link->connection = PQconnectStartParams(names, values, 1);
	if (link->connection == NULL || PQstatus(link->connection) == CONNECTION_BAD)
	{
		go_down(link, link->connection == NULL ? "out of memory" : PQerrorMessage(link->connection));
		return;
	}
	link->state = LINK_CONNECTING;
	link->polling = PGRES_POLLING_WRITING;
	link->until_us = cli_now_us() + CONNECT_US;
}

static void
send_query(TopLink *link, const char *query, LinkState state)
{
	if (PQsendQuery(link->connection, query) == 0)
	{
		go_down(link, PQerrorMessage(link->connection));
		return;
	}
	link->state = state;
	link->received = 0;
	link->refused = false;
	link->until_us = cli_now_us() + ANSWER_US;
}

static void
go_on_connecting(TopLink *link)
{
	link->polling = PQconnectPoll(link->connection);
	if (link->polling == PGRES_POLLING_FAILED)
		go_down(link, PQerrorMessage(link->connection));
	else if (link->polling == PGRES_POLLING_OK)
	{
		(void) PQsetnonblocking(link->connection, 1);
		(void) PQsetNoticeProcessor(link->connection, ignore_notice, NULL);
		snprintf(link->where, sizeof(link->where), "%s", PQhost(link->connection) == NULL ? "" : PQhost(link->connection));
		send_query(link, setup_query, LINK_SETUP);
	}
}

/* One of the results of the setup, or of a snapshot. */
static void
take_result(TopLink *link, PGresult *result)
{
	ExecStatusType status = PQresultStatus(result);

	if (status == PGRES_COMMAND_OK)
	{
		PQclear(result);
		return;
	}
	if (status != PGRES_TUPLES_OK)
	{
		take_error(link, PQresultErrorMessage(result));
		link->refused = true;
		PQclear(result);
		return;
	}
	if (link->state == LINK_SETUP)
	{
		char		message[TOP_ERROR_SIZE];

		if (PQntuples(result) == 0)
		{
			snprintf(message, sizeof(message), "database \"%s\" has no extension outbox: CREATE EXTENSION outbox, or name another database",
					 PQdb(link->connection));
			take_error(link, message);
			link->refused = true;
		}
		PQclear(result);
	}
	else if (link->received < TOP_RESULTS)
		link->asked->results[link->received++] = result;
	else
		PQclear(result);
}

/* All results have come. */
static void
finish_query(TopLink *link)
{
	bool		was_setup = link->state == LINK_SETUP;
	char		message[TOP_ERROR_SIZE];

	if (PQstatus(link->connection) != CONNECTION_OK || (was_setup && link->refused))
	{
		snprintf(message, sizeof(message), "%s", link->error[0] != '\0' ? link->error : PQerrorMessage(link->connection));
		go_down(link, message);
		return;
	}
	link->state = LINK_IDLE;
	if (was_setup)
		link->error[0] = '\0';
	else if (link->refused || link->received < TOP_RESULTS)
	{
		top_snapshot_free(link->asked);
		link->asked = NULL;
	}
	else
	{
		link->error[0] = '\0';
		link->asked->at = top_double(link->asked, TOP_SUMMARY, 0, 2);
		top_snapshot_free(link->ready);
		link->ready = link->asked;
		link->asked = NULL;
	}
}

static void
read_answers(TopLink *link)
{
	PGresult   *result;

	(void) PQflush(link->connection);
	if (PQconsumeInput(link->connection) == 0)
	{
		go_down(link, PQerrorMessage(link->connection));
		return;
	}
	while (!PQisBusy(link->connection))
	{
		result = PQgetResult(link->connection);
		if (result == NULL)
		{
			finish_query(link);
			return;
		}
		take_result(link, result);
	}
}

/* Does what can be done now; called whenever the socket is ready or top_link_until() is over. */
void
top_link_work(TopLink *link)
{
	int64_t		now_us = cli_now_us();
	bool		late = now_us >= link->until_us;

	switch (link->state)
	{
		case LINK_DOWN:
			if (late)
				start_connecting(link);
			break;
		case LINK_CONNECTING:
		{
			short events;
			struct pollfd ready = {.fd = top_link_fd(link, &events)};

			ready.events = events;
			if (poll(&ready, 1, 0) > 0)
				go_on_connecting(link);
			else if (late)
				go_down(link, "no connection in time");
			break;
		}
		case LINK_IDLE:
			/* what comes unasked is the connection's end */
			if (PQconsumeInput(link->connection) == 0)
				go_down(link, PQerrorMessage(link->connection));
			break;
		default:
			read_answers(link);
			if (late && (link->state == LINK_BUSY || link->state == LINK_SETUP))
				go_down(link, "the server does not answer");
			break;
	}
}

bool
top_link_idle(const TopLink *link)
{
	return link->state == LINK_IDLE;
}

bool
top_link_up(const TopLink *link)
{
	return link->state == LINK_IDLE || link->state == LINK_BUSY;
}

/* Of an idle link only. filter: an aggregate type; empty: none. */
void
top_link_ask(TopLink *link, TopViewId view, const char *filter)
{
	const TopView *wanted = &top_views[view];
	char	   *literal = filter[0] == '\0' ? NULL : PQescapeLiteral(link->connection, filter, strlen(filter));
	size_t		size = sizeof(common_query) + strlen(wanted->query) + (literal == NULL ? 8 : strlen(literal)) + 1;
	char	   *query = malloc(size);

	link->asked = calloc(1, sizeof(TopSnapshot));
	if (query == NULL || link->asked == NULL)
	{
		free(query);
		go_down(link, "out of memory");
		return;
	}
	link->asked->view = view;
	snprintf(link->asked->filter, sizeof(link->asked->filter), "%s", filter);
	memcpy(query, common_query, sizeof(common_query));
	/* the views' queries have at most one "%s" */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	snprintf(query + sizeof(common_query) - 1, size - sizeof(common_query) + 1, wanted->query, literal == NULL ? "NULL" : literal);
#pragma GCC diagnostic pop
	send_query(link, query, LINK_BUSY);
	PQfreemem(literal);
	free(query);
}

/* The snapshot that has come, once; the caller frees it. NULL: none. */
TopSnapshot *
top_link_take(TopLink *link)
{
	TopSnapshot *ready = link->ready;

	link->ready = NULL;
	return ready;
}

/* -1: there is no socket to be polled. */
int
top_link_fd(const TopLink *link, short *events)
{
	*events = POLLIN;
	if (link->connection == NULL)
		return -1;
	if (link->state == LINK_CONNECTING && link->polling == PGRES_POLLING_WRITING)
		*events = POLLOUT;
	else if (link->state == LINK_BUSY || link->state == LINK_SETUP)
		*events = PQflush(link->connection) == 1 ? POLLIN | POLLOUT : POLLIN;
	return PQsocket(link->connection);
}

/* By when top_link_work() is to be called, -1: only when the socket is ready. */
int64_t
top_link_until(const TopLink *link)
{
	return link->state == LINK_IDLE ? -1 : link->until_us;
}

/* What went wrong last; empty: nothing since. */
const char *
top_link_error(const TopLink *link)
{
	return link->error;
}

/* The server's name. */
const char *
top_link_where(const TopLink *link)
{
	return link->where;
}

TopLink *
top_link_open(const TopOptions *options)
{
	TopLink    *link = calloc(1, sizeof(TopLink));

	if (link == NULL)
		return NULL;
	link->options = options;
	start_connecting(link);
	return link;
}

void
top_link_close(TopLink *link)
{
	PQfinish(link->connection);
	top_snapshot_free(link->asked);
	top_snapshot_free(link->ready);
	free(link);
}

void
top_snapshot_free(TopSnapshot *snapshot)
{
	if (snapshot == NULL)
		return;
	for (int i = 0; i < TOP_RESULTS; i++)
		PQclear(snapshot->results[i]);
	free(snapshot);
}

/* NULL for null, and for a row that isn't there. */
const char *
top_value(const TopSnapshot *snapshot, TopResult result, int row, int column)
{
	const PGresult *from = snapshot->results[result];

	if (row >= PQntuples(from) || column >= PQnfields(from) || PQgetisnull(from, row, column))
		return NULL;
	return PQgetvalue(from, row, column);
}

/* 0 for null. */
double
top_double(const TopSnapshot *snapshot, TopResult result, int row, int column)
{
	const char *text = top_value(snapshot, result, row, column);

	return text == NULL ? 0 : strtod(text, NULL);
}
