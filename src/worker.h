/*
 * worker.h
 *	  What all background workers of the extension have in common.
 */
#ifndef OUTBOX_WORKER_H
#define OUTBOX_WORKER_H

#include "postgres.h"

#include "postmaster/bgworker.h"

extern void outbox_worker_prepare(BackgroundWorker *worker, const char *function, const char *name);
extern void outbox_worker_unblock_signals(void);
extern void outbox_worker_check(int code);
extern void outbox_worker_pause(long ms, uint32 wait_event);
extern void outbox_worker_skip_exit_handlers(int code);

#endif /* OUTBOX_WORKER_H */
