/*
 * subscriptions.h
 *	  Which subscriptions there are, and the processes that serve them.
 */
#ifndef OUTBOX_SUBSCRIPTIONS_H
#define OUTBOX_SUBSCRIPTIONS_H

#include "outbox.h"

#include "access/xact.h"
#include "postmaster/bgworker.h"

/* What a consumer is started for; travels in bgw_extra. */
typedef struct OutboxConsumerOrder
{
	Oid			dboid;
	Oid			role;
	int			place;			/* in OutboxDatabase.subscriptions */
	int			id;
	int			revision;
} OutboxConsumerOrder;

/* A consumer that the launcher has started. */
typedef struct OutboxConsumerProcess
{
	BackgroundWorkerHandle *handle; /* NULL: none */
	TimestampTz started;
	TimestampTz not_before;
	int			failures;
} OutboxConsumerProcess;

/* The launcher's view of a database's consumers; begins as zeros. */
typedef struct OutboxConsumers
{
	BackgroundWorkerHandle *scout;	/* reads the table of subscriptions; NULL: none is at work */
	TimestampTz scout_not_before;
	bool		scouted;		/* somebody was sent */
	OutboxConsumerProcess processes[OUTBOX_SUBSCRIPTIONS];
} OutboxConsumers;

/*
 * The launcher's: starts what is wanted in a database, nothing before
 * not_before. shared may be NULL. Returns when to look again. failed: there was no free place
 * for a background worker.
 */
extern TimestampTz outbox_subscriptions_run(OutboxConsumers *consumers, Oid dboid, OutboxDatabase *shared, TimestampTz now,
											TimestampTz not_before, bool *failed);
extern bool outbox_subscriptions_has_processes(const OutboxConsumers *consumers);

extern void outbox_subscriptions_xact_callback(XactEvent event, void *arg);

extern PGDLLEXPORT void OutboxScoutMain(Datum main_arg);
extern PGDLLEXPORT void OutboxConsumerMain(Datum main_arg);

#endif							/* OUTBOX_SUBSCRIPTIONS_H */
