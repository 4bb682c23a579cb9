/*
 * launcher.h
 *	  The process that starts relays where they are needed.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "nodes/nodes.h"

extern void outbox_launcher_register(void);
extern Oid	outbox_launcher_before_utility(Node *statement);
extern void outbox_launcher_after_utility(Oid dboid);
extern PGDLLEXPORT void OutboxLauncherMain(Datum main_arg);

#endif							/* OUTBOX_LAUNCHER_H */
