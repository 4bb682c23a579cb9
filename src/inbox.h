/*
 * inbox.h
 *	  What the library does for the inbox, which is SQL otherwise.
 */
#ifndef OUTBOX_INBOX_H
#define OUTBOX_INBOX_H

#include "postgres.h"

#include "access/xact.h"

#include "retire.h"

/* The cleaner's: removes what consumers need not remember any more, and says when that is due again. */
extern void outbox_inbox_sweep(const OutboxRetention *retention);

extern void outbox_inbox_xact_callback(XactEvent event, void *arg);

#endif /* OUTBOX_INBOX_H */
