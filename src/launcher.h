/*
 * launcher.h
 *	  The process that starts relays where they are needed.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

#include "nodes/nodes.h"

/* A relay's argument: its database, and where in OutboxShared.reports it reports. */
#define OUTBOX_RELAY_ARG(dboid, report) Int64GetDatum((int64) (report) << 32 | (dboid))
#define OUTBOX_RELAY_ARG_DBOID(arg) ((Oid) (DatumGetInt64(arg) & 0xFFFFFFFF))
#define OUTBOX_RELAY_ARG_REPORT(arg) ((int) (DatumGetInt64(arg) >> 32))

extern void outbox_launcher_register(void);
extern Oid	outbox_launcher_before_utility(Node *statement);
extern void outbox_launcher_after_utility(Oid dboid);
extern PGDLLEXPORT void OutboxLauncherMain(Datum main_arg);

#endif							/* OUTBOX_LAUNCHER_H */
