/*
 * signals.h
 *	  All signals are blocked around every call into broker.c: a thread that the
 *	  library starts there inherits that, and no handler runs inside of it.
 */
#ifndef OUTBOX_SIGNALS_H
#define OUTBOX_SIGNALS_H

#include <pthread.h>
#include <signal.h>

static inline void
outbox_signals_block(sigset_t *saved)
{
	sigset_t	all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, saved);
}

static inline void
outbox_signals_restore(const sigset_t *saved)
{
	pthread_sigmask(SIG_SETMASK, saved, NULL);
}

#endif /* OUTBOX_SIGNALS_H */
