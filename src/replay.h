/*
 * replay.h
 *	  The process that sends published events again.
 */
#ifndef OUTBOX_REPLAY_H
#define OUTBOX_REPLAY_H

#include "outbox.h"

/* Starts one in a database; it looks what is to be done there. False: no background worker slot is free. */
extern bool outbox_replay_start(Oid dboid);

extern PGDLLEXPORT void OutboxReplayMain(Datum main_arg);

#endif /* OUTBOX_REPLAY_H */
