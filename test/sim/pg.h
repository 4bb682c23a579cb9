/*
 * pg.h
 *	  What the files share that stand in for PostgreSQL: pg_*.c define the
 *	  functions of the server that src/ calls, with the real headers.
 */
#ifndef SIM_PG_H
#define SIM_PG_H

#include "outbox.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/lock.h"
#include "utils/snapmgr.h"

#include "check.h"
#include "image.h"
#include "pg_process.h"
#include "sim.h"
#include "store.h"

#define SIM_DATABASE 16384
#define SIM_SEQUENCE 100
#define SIM_FIRST_PID 1000

/* PostgreSQL's variables of a process, kept here while another one runs. */
typedef struct PgGlobals
{
	volatile sig_atomic_t interrupt_pending;
	volatile sig_atomic_t reload_pending;
	MemoryContext current_context;
	MemoryContext top_context;
	sigjmp_buf *exception_stack;
	ErrorContextCallback *context_stack;
	XLogRecPtr	last_commit_end;
	uint64		spi_processed;
	SPITupleTable *spi_tuptable;
	int			settings[16];
} PgGlobals;

typedef struct ExitCallback
{
	pg_on_exit_callback function;
	Datum		arg;
} ExitCallback;

#define MAX_EXIT_CALLBACKS 8
#define MAX_LWLOCKS 8

struct PgProcess
{
	PgGlobals	globals;
	MemoryContext transaction_context;
	struct SimContext *contexts;

	bool		in_transaction;
	Xact	   *xact;			/* NULL: no id yet */
	bool		commits_later;	/* synchronous_commit = off */
	bool		commits_now;	/* but not this transaction */
	SnapshotData snapshot;
	bool		has_snapshot;
	View		view;

	LWLock	   *lwlocks[MAX_LWLOCKS];
	int			lwlock_count;
	bool		signals_blocked;
	bool		exiting;
	bool		must_die;
	pqsigfunc	handlers[32];
	ExitCallback before_exit[MAX_EXIT_CALLBACKS];
	int			before_exit_count;
	ExitCallback on_exit[MAX_EXIT_CALLBACKS];
	int			on_exit_count;

	int			error_level;
	int			error_code;
	char		error_text[256];
};

/* pg_process.c */
extern void sim_pg_settings(void);
extern PGPROC *sim_pg_proc(int index);

/* pg_memory.c */
extern void sim_memory_start(PgProcess *pg);
extern void sim_memory_forget(PgProcess *pg);

/* pg_xact.c */
extern Xact *sim_pg_xact(void);	/* the current transaction, with an id */
extern View sim_pg_view(void);	/* for a statement that writes */
extern void sim_pg_abort(void);
extern void sim_pg_prepare(void);
extern void sim_pg_finish_prepared(Xact *xact, bool commit);
extern void sim_wait_for_xact(Xact *xact);
extern void sim_release_lwlocks(void);
extern void sim_release_locks(SimProc *proc);
extern void sim_locks_reset(void);
extern void sim_pg_may_fail(const char *where);

/* The shared memory of outbox. */
extern OutboxDatabase *sim_database(void);	/* NULL: not yet */

#endif							/* SIM_PG_H */
