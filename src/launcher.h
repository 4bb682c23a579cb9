/*
 * launcher.h
 *	  The process that starts relays where they are needed.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "nodes/nodes.h"

extern void outbox_launcher_register(void);
extern void outbox_launcher_before_utility(Node *statement);
extern PGDLLEXPORT void OutboxLauncherMain(Datum main_arg);

#endif							/* OUTBOX_LAUNCHER_H */
