/*
 * session.h
 *	  A relay in a client's session.
 */
#ifndef OUTBOX_SESSION_H
#define OUTBOX_SESSION_H

#include "postgres.h"

#include "access/xact.h"

extern void outbox_session_xact_callback(XactEvent event, void *arg);
extern void outbox_session_subxact_callback(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg);

#endif /* OUTBOX_SESSION_H */
