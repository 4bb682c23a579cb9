/*
 * give_way.h
 *	  Our processes give way to DROP DATABASE, DROP EXTENSION and the like, and to new
 *	  settings; from the utility hook.
 */
#ifndef OUTBOX_GIVE_WAY_H
#define OUTBOX_GIVE_WAY_H

#include "outbox.h"

#include "access/xact.h"
#include "nodes/nodes.h"

extern void outbox_give_way_dismiss(OutboxDatabase *database);
extern bool outbox_give_way_is_due(OutboxDatabase *database);
extern Oid outbox_give_way_before(Node *statement);
extern void outbox_give_way_after(Oid dboid);
extern void outbox_give_way_note_settings(Node *statement);
extern void outbox_give_way_xact_callback(XactEvent event, void *arg);

#endif /* OUTBOX_GIVE_WAY_H */
