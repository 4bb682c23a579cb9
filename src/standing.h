/*
 * standing.h
 *	  Whether this database's processes may act on the world outside.
 */
#ifndef OUTBOX_STANDING_H
#define OUTBOX_STANDING_H

#include "outbox.h"

#include "access/xact.h"
#include "nodes/nodes.h"

typedef enum OutboxStanding
{
	OUTBOX_STANDING_GOOD,
	OUTBOX_STANDING_NOT_ARMED,	/* a copy: outbox.arm() */
	OUTBOX_STANDING_OTHER_VERSION /* library and SQL objects don't fit together */
} OutboxStanding;

/*
 * In a transaction with an active snapshot, in the database's processes before
 * they begin. reason: of OUTBOX_TEXT_SIZE, a text for status and log.
 */
extern OutboxStanding outbox_standing(char *reason);

/* What to do about it, for an errhint. */
extern const char *outbox_standing_hint(OutboxStanding standing);

/* An error unless it is good, with the hint. */
extern void outbox_standing_require(void);

/* The half that data can change, by the active snapshot: whoever sees loaded events sees that the database isn't armed. */
extern bool outbox_standing_is_armed(void);

/* After pg_upgrade, the row that says which database this is gets the new cluster. In a transaction that may write. */
extern void outbox_standing_renew(void);

/* This process's own statements on the log are no load: the cleaner. */
extern void outbox_standing_own_writes(void);

/* Around utility commands, and at the end of transactions. */
extern void outbox_standing_note_command(Node *statement);
extern void outbox_standing_xact_callback(XactEvent event, void *arg);

/* version.c */
extern const char *outbox_version(void);
extern bool outbox_version_knows(const char *installed);
extern int outbox_version_compare(const char *left, const char *right);

#endif /* OUTBOX_STANDING_H */
