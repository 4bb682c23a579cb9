/*
 * feed.h
 *	  How a transaction's positions reach the relay: bounds, runs, the ring.
 */
#ifndef OUTBOX_FEED_H
#define OUTBOX_FEED_H

#include "outbox.h"

#include "access/xact.h"

/* Enqueueing side. */
extern bool outbox_feed_has_enqueued(void);
extern void outbox_feed_announce(OutboxDatabase *database);
extern int64 outbox_feed_next_position(OutboxDatabase *database, Oid sequence);
extern void outbox_feed_raise_max_assigned(OutboxDatabase *database, int64 position);
extern void outbox_feed_extension_changes(bool dropped);
extern void outbox_feed_xact_callback(XactEvent event, void *arg);

/* The ring, feed_ring.c. */
extern void outbox_feed_push(OutboxDatabase *database, const OutboxRange *range, TimestampTz committed_at);
extern void outbox_feed_attach_reader(OutboxDatabase *database, int place);
extern void outbox_feed_detach_reader(OutboxDatabase *database, int place);
extern int outbox_feed_drain(OutboxDatabase *database, int place, OutboxFeedEntry *entries, int max);
extern bool outbox_feed_is_empty(OutboxDatabase *database, int place);
extern int64 outbox_feed_lowest_pushed(OutboxDatabase *database, int place);

/* Relay side. */
extern int64 outbox_feed_lowest_bound(OutboxDatabase *database);
extern bool outbox_feed_collect_prepared(OutboxDatabase *database);
extern int64 outbox_feed_lowest_prepared(OutboxDatabase *database, bool *any);

/* After a restart. */
extern void outbox_feed_restore_prepared(OutboxDatabase *database, FullTransactionId xid, int64 position);

#endif							/* OUTBOX_FEED_H */
