/* consumer COUNT: adds up the revenue of so many deliveries, each order once, however often its event is delivered. */
#include <libpq-fe.h>
#include <nats/nats.h>
#include <stdio.h>
#include <stdlib.h>

/* One row if the event is new to the consumer. */
#define ACCEPT "SELECT true WHERE outbox.inbox_accept('c', $1)"
#define COUNT "INSERT INTO revenue AS r (consumer, orders, total) VALUES ('c', 1, ($1::jsonb ->> 'total')::numeric)" \
	" ON CONFLICT (consumer) DO UPDATE SET orders = r.orders + 1, total = r.total + excluded.total"

static PGconn *db;

static void
check(natsStatus status)
{
	if (status != NATS_OK)
	{
		nats_PrintLastErrorStack(stderr);
		exit(1);
	}
}

/* Runs a statement with a parameter; how many rows it changed. */
static int
run(const char *statement, const char *parameter)
{
	PGresult   *result = PQexecParams(db, statement, parameter == NULL ? 0 : 1, NULL, &parameter, NULL, NULL, 0);
	int			rows = atoi(PQcmdTuples(result));

	if (PQresultStatus(result) != PGRES_COMMAND_OK && PQresultStatus(result) != PGRES_TUPLES_OK)
	{
		fprintf(stderr, "%s", PQerrorMessage(db));
		exit(1);				/* nothing is committed or acknowledged: the event comes again */
	}
	PQclear(result);
	return rows;
}

/* The mark in the inbox and the effect are one transaction: both, or neither. */
static void
handle(natsMsg *message)
{
	const char *id;
	int			is_new;

	check(natsMsgHeader_Get(message, "ce-id", &id));
	run("BEGIN", NULL);
	is_new = run(ACCEPT, id);
	if (is_new)
		run(COUNT, natsMsg_GetData(message));
	run("COMMIT", NULL);
	check(natsMsg_AckSync(message, NULL, NULL));	/* only after the commit */
	printf("%s %s\n", is_new ? "counted" : "seen before", id);
}

int
main(int argc, char **argv)
{
	natsConnection *nats;
	jsCtx	   *js;
	natsSubscription *events;
	natsMsgList list;

	db = PQconnectdb("");
	check(natsConnection_ConnectTo(&nats, getenv("NATS_URL")));
	check(natsConnection_JetStream(&js, nats, NULL));
	check(js_PullSubscribe(&events, js, "outbox.order.>", "c", NULL, NULL, NULL));
	for (int left = argc > 1 ? atoi(argv[1]) : 1; left > 0; left--)
	{
		check(natsSubscription_Fetch(&list, events, 1, 60000, NULL));
		handle(list.Msgs[0]);
		natsMsgList_Destroy(&list);
	}
	return 0;
}
