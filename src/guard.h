/*
 * guard.h
 *	  Refuses, at commit, changes of guarded tables without an event.
 */
#ifndef OUTBOX_GUARD_H
#define OUTBOX_GUARD_H

#include "postgres.h"

extern void outbox_guard_note_event(uint64 agg_hash);

#endif /* OUTBOX_GUARD_H */
