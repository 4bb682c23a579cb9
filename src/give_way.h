/*
 * give_way.h
 *	  Relays give way to DROP DATABASE and the like, and to new settings; from the
 *	  utility hook.
 */
#ifndef OUTBOX_GIVE_WAY_H
#define OUTBOX_GIVE_WAY_H

#include "outbox.h"

#include "access/xact.h"
#include "nodes/nodes.h"

extern Oid outbox_give_way_before(Node *statement);
extern void outbox_give_way_after(Oid dboid);
extern void outbox_give_way_note_settings(Node *statement);
extern void outbox_give_way_xact_callback(XactEvent event, void *arg);

#endif /* OUTBOX_GIVE_WAY_H */
