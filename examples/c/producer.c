/* producer ID TOTAL: places an order. The order and its event exist both, or neither. */
#define _GNU_SOURCE				/* asprintf */
#include <libpq-fe.h>
#include <stdio.h>
#include <stdlib.h>

static PGconn *db;

static void
fail(const char *what)
{
	fprintf(stderr, "no order, no event: %s: %s", what, PQerrorMessage(db));
	PQfinish(db);				/* what isn't committed is rolled back */
	exit(1);
}

/* Runs a statement with two parameters; the first column of its first row, if it has one. */
static char *
run(const char *statement, const char *one, const char *two)
{
	const char *values[] = {one, two};
	PGresult   *result = PQexecParams(db, statement, one == NULL ? 0 : 2, NULL, values, NULL, NULL, 0);
	char	   *value = NULL;

	if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
		fail(statement);
	if (PQntuples(result) == 1 && asprintf(&value, "%s", PQgetvalue(result, 0, 0)) < 0)
		fail("out of memory");
	PQclear(result);
	return value;
}

int
main(int argc, char **argv)
{
	char	   *payload;
	char	   *event_id;

	if (argc != 3 || asprintf(&payload, "{\"id\": %s, \"total\": %s}", argv[1], argv[2]) < 0)
		return 2;
	db = PQconnectdb("");		/* PGHOST, PGDATABASE, ... */
	if (PQstatus(db) != CONNECTION_OK)
		fail("connect");
	run("BEGIN", NULL, NULL);
	run("INSERT INTO orders (id, total) VALUES ($1, $2)", argv[1], argv[2]);
	event_id = run("SELECT outbox.enqueue('order', $1, 'order.placed', $2, headers => '{\"ce-producer\": \"c\"}')", argv[1], payload);
	run("COMMIT", NULL, NULL);
	printf("placed order %s with event %s\n", argv[1], event_id);
	free(event_id);
	free(payload);
	PQfinish(db);
	return 0;
}
