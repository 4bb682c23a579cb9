/*
 * launcher.h
 *	  The process that starts relays where they are wanted.
 */
#ifndef OUTBOX_LAUNCHER_H
#define OUTBOX_LAUNCHER_H

/* A relay's argument: its database, its place there, and where in OutboxShared.reports it reports. */
#define OUTBOX_RELAY_ARG(dboid, place, report) Int64GetDatum((int64) (report) << 40 | (int64) (place) << 32 | (dboid))
#define OUTBOX_RELAY_ARG_DBOID(arg) ((Oid) (DatumGetInt64(arg) & 0xFFFFFFFF))
#define OUTBOX_RELAY_ARG_PLACE(arg) ((int) (DatumGetInt64(arg) >> 32 & 0xFF))
#define OUTBOX_RELAY_ARG_REPORT(arg) ((int) (DatumGetInt64(arg) >> 40))

extern void outbox_launcher_register(void);
extern PGDLLEXPORT void OutboxLauncherMain(Datum main_arg);

#endif							/* OUTBOX_LAUNCHER_H */
