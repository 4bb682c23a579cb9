/*
 * pause.h
 *	  What operators have paused: everything, an aggregate type, or subjects.
 */
#ifndef OUTBOX_PAUSE_H
#define OUTBOX_PAUSE_H

#include <stdbool.h>

/* NULL in both: everything is paused. */
typedef struct OutboxPause
{
	const char *aggregate_type;
	const char *subject;		/* may have wildcards */
} OutboxPause;

typedef struct OutboxPauseList
{
	OutboxPause *pauses;
	int			count;
	bool		all;			/* one of them pauses everything */
} OutboxPauseList;

/* Whether an event of this type and subject is paused. */
extern bool outbox_pause_holds(const OutboxPauseList *list, const char *aggregate_type, const char *subject);

/*
 * Whether a NATS subject matches a pattern: "*" stands for one token, ">" as
 * the last token for one or more.
 */
extern bool outbox_pause_matches(const char *pattern, const char *subject);

#endif /* OUTBOX_PAUSE_H */
