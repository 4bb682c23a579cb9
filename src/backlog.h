/*
 * backlog.h
 *	  How much is pending: what relays say in shared memory, and who asks.
 */
#ifndef OUTBOX_BACKLOG_H
#define OUTBOX_BACKLOG_H

#include "relay.h"

/* Relay side: once in each round, and after a change of slots. */
extern void outbox_backlog_say(OutboxRelay *relay, int64 now);
extern bool outbox_backlog_is_asked(const OutboxRelay *relay);
extern void outbox_backlog_forget(OutboxRelay *relay);

/* Enqueueing side: ERROR when outbox.max_pending is reached. */
extern void outbox_backlog_check(OutboxDatabase *database);

#endif /* OUTBOX_BACKLOG_H */
