/*
 * session.h
 *	  A relay in a client's session: what claim.c needs of session.c.
 */
#ifndef OUTBOX_SESSION_H
#define OUTBOX_SESSION_H

#include "postgres.h"

#include "access/xact.h"

#include "relay.h"

extern OutboxRelay *outbox_session_ready(bool may_join);
extern void outbox_session_end(void);

/* Events that are with the client. */
extern void outbox_session_give(OutboxEvent *event);
extern OutboxEvent *outbox_session_take_back(int64 position);

extern void outbox_session_xact_callback(XactEvent event, void *arg);
extern void outbox_session_subxact_callback(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg);

#endif							/* OUTBOX_SESSION_H */
