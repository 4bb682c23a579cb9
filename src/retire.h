/*
 * retire.h
 *	  The steps of retention: rotation, sealing, retirement of a range.
 */
#ifndef OUTBOX_RETIRE_H
#define OUTBOX_RETIRE_H

#include "outbox.h"

typedef struct OutboxRetention
{
	OutboxDatabase *database;
	Oid			sequence;		/* tells the extension's lives in this database apart */
	int64		run;
	TimestampTz before;			/* what was published up to then may go */
	TimestampTz dead_before;	/* what failed up to then; DT_NOBEGIN: nothing of it */
} OutboxRetention;

typedef enum OutboxRetireResult
{
	OUTBOX_RETIRED,
	OUTBOX_RETIRE_LATER,		/* try again: somebody is using it, or something holds it up */
	OUTBOX_RETIRE_TOO_YOUNG
} OutboxRetireResult;

/* A child in use, as outbox.ring has it. */
typedef struct OutboxRangeRow
{
	int			child;
	int64		generation;
	TimestampTz opened_at;
	bool		closed;
	bool		sealed;
} OutboxRangeRow;

/* Transactions of the cleaner, with a snapshot and SPI. False: the extension is gone. */
extern bool outbox_retire_begin(const OutboxRetention *retention);
extern void outbox_retire_commit(void);

/* Inside of one: runs a statement with parameters of these types; the number of rows is in SPI_processed. */
extern void outbox_retire_run(const char *query, int count, Oid *types, Datum *values);

/* The column of its only row; if_null if there is none, or it is NULL. */
extern Datum outbox_retire_result(int column, Datum if_null);

/* Reads outbox.ring, in order of generation, into shared memory as well. Returns the number of rows. */
extern int outbox_retire_ranges(const OutboxRetention *retention, OutboxRangeRow *rows);

/*
 * Opens another child for new events if the current one was opened before
 * opened_before; forced: if that helps to remove something. idle: the current one
 * has no events of its own (afterwards).
 */
extern void outbox_retire_rotate(const OutboxRetention *retention, TimestampTz opened_before, bool forced, bool *idle);

/* Nobody can write into a closed child any more, and its last position is known. False: not yet. */
extern bool outbox_retire_seal(const OutboxRetention *retention, int child);

/* Removes a sealed child's events. newest: when the last one of them was published. */
extern OutboxRetireResult outbox_retire(const OutboxRetention *retention, int child, TimestampTz *newest);

/* Removes what outbox.delivery still says of events that have gone. */
extern void outbox_retire_sweep(const OutboxRetention *retention);

#endif							/* OUTBOX_RETIRE_H */
