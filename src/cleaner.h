/*
 * cleaner.h
 *	  The process that rotates the log's children and removes what is old.
 */
#ifndef OUTBOX_CLEANER_H
#define OUTBOX_CLEANER_H

#include "outbox.h"

#include "postmaster/bgworker.h"

/* What a cleaner is started for; travels in bgw_extra. */
typedef struct OutboxCleanerOrder
{
	bool		log;			/* to rotate the log and remove old ranges */
	bool		inbox;			/* to sweep the inbox */
	bool		on_demand;		/* for outbox.purge(): what was published up to before goes */
	TimestampTz before;
	int64		run;			/* marks its rows in outbox.purges */
} OutboxCleanerOrder;

/* NULL: no background worker slot is free. The handle is palloc'd. */
extern BackgroundWorkerHandle *outbox_cleaner_start(Oid dboid, const OutboxCleanerOrder *order);

extern PGDLLEXPORT void OutboxCleanerMain(Datum main_arg);

#endif							/* OUTBOX_CLEANER_H */
