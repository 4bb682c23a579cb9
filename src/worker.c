/*
 * worker.c
 *	  What all background workers of the extension have in common.
 */
#include "worker.h"

#include <openssl/crypto.h>
#include <unistd.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"

/* A worker with a database connection, of which the postmaster starts one and no other after it. */
void
outbox_worker_prepare(BackgroundWorker *worker, const char *function, const char *name)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "outbox", sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, function, sizeof(worker->bgw_function_name));
	strlcpy(worker->bgw_name, name, sizeof(worker->bgw_name));
	strlcpy(worker->bgw_type, name, sizeof(worker->bgw_type));
}

/*
 * Instead of CHECK_FOR_INTERRUPTS() where nothing is under way: a worker that
 * was told to end does so with this code, without a line in the log. That
 * isn't worth a FATAL: it happens at each shutdown. In a client's session it is
 * the same as that.
 */
void
outbox_worker_check(int code)
{
	if (ProcDiePending && MyBgworkerEntry != NULL)
	{
		ereport(DEBUG1,
				(errmsg_internal("%s ends, as it was told to", MyBgworkerEntry->bgw_type)));
		proc_exit(code);
	}
	CHECK_FOR_INTERRUPTS();
}

/* Sleeps for so long, or until somebody sets the latch. Ends the process when it was told to. */
void
outbox_worker_pause(long ms, uint32 wait_event)
{
	outbox_worker_check(0);
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, wait_event);
	ResetLatch(MyLatch);
}

static emit_log_hook_type next_log_hook = NULL;

/* The same where it is PostgreSQL's own CHECK_FOR_INTERRUPTS() that ends the worker. */
static void
end_quietly(ErrorData *error)
{
	if (error->elevel == FATAL && error->sqlerrcode == ERRCODE_ADMIN_SHUTDOWN)
		error->output_to_server = false;
	if (next_log_hook != NULL)
		next_log_hook(error);
}

/* Signals come from here on, for which the worker has its handlers. */
void
outbox_worker_unblock_signals(void)
{
	next_log_hook = emit_log_hook;
	emit_log_hook = end_quietly;
	BackgroundWorkerUnblockSignals();
}

static int exit_code;

static void
exit_at_once(void)
{
	_exit(exit_code);
}

/*
 * In an on_proc_exit callback of a process that has started the NATS client:
 * PostgreSQL's callbacks go on, exit handlers of libraries don't run. OpenSSL's
 * would free what a thread of the client is just freeing too, while it ends
 * (also one that has called back for the last time), and an abort of one
 * process restarts the whole server.
 *
 * Relays, replays and consumers come here; they register the callback before
 * their first thread exists. PostgreSQL loses nothing: locks, temporary files
 * and statistics are dealt with before on_proc_exit, the callbacks registered
 * earlier (storage, JIT) are still to come, its own exit handler does nothing by
 * now, and standard error has no buffer. A killed postmaster and a FATAL lead
 * here as well; SIGQUIT and PANIC run no handlers anyway.
 */
void
outbox_worker_skip_exit_handlers(int code)
{
	exit_code = code;
	/* The last one to come is the first to run: OpenSSL mustn't come later, in a PostgreSQL without it by a thread that connects. */
	(void) OPENSSL_init_crypto(0, NULL);
	if (atexit(exit_at_once) != 0)
		_exit(code);
}
