/*
 * pg_process.c
 *	  A PostgreSQL process: its globals, signals, errors, latch, and its end.
 */
#include "pg.h"

#include <signal.h>

#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

/* ---------- globals ---------- */

PGPROC	   *MyProc;
#if PG_VERSION_NUM >= 170000
ProcNumber	MyProcNumber;
#endif
int			MyProcPid;
Latch	   *MyLatch;
Oid			MyDatabaseId = SIM_DATABASE;
volatile sig_atomic_t InterruptPending;
volatile sig_atomic_t ConfigReloadPending;
sigjmp_buf *PG_exception_stack;
ErrorContextCallback *error_context_stack;
int			MaxBackends = SIM_PROCS;
int			max_prepared_xacts = 4;
PROC_HDR   *ProcGlobal;
volatile sig_atomic_t postmaster_possibly_dead;

/* outbox.c's. */
char	   *outbox_nats_url = "nats://simulation";
char	   *outbox_credentials_file = "";
char	   *outbox_login_file = "";
char	   *outbox_nkey_seed_file = "";
char	   *outbox_inbox_prefix = "";
char	   *outbox_tls_ca_file = "";
char	   *outbox_tls_cert_file = "";
char	   *outbox_tls_key_file = "";
char	   *outbox_stream = "OUTBOX";
bool		outbox_stream_create = true;
char	   *outbox_subject_template = "";
char	   *outbox_dead_letter_subject = "outbox.dead";
bool		outbox_preserve_aggregate_order;
int			outbox_max_in_flight;
int			outbox_ack_timeout;
int			outbox_connect_timeout = 2000;
int			outbox_retry_base_delay;
int			outbox_retry_max_delay;
int			outbox_max_attempts;
int			outbox_max_pending;
int			outbox_lag_warning = 2000;
int			outbox_poison_policy;
int			outbox_relay_memory;
int			outbox_workers;
int			outbox_lease_ttl;
int			outbox_max_open_aggregates = 64;
int			outbox_max_databases = 1;
int			outbox_test_feed_size;

static int *const settings[] = {
	&outbox_max_in_flight,
	&outbox_ack_timeout,
	&outbox_retry_base_delay,
	&outbox_retry_max_delay,
	&outbox_max_attempts,
	&outbox_poison_policy,
	&outbox_relay_memory,
	&outbox_workers,
	&outbox_lease_ttl,
};

static PGPROC all_procs[SIM_PROCS];
static PROC_HDR proc_global = {.allProcs = all_procs};
static PgProcess processes[SIM_PROCS];

/* A new process, or one that reads postgresql.conf again, has them from the plan. */
void
sim_pg_settings(void)
{
	outbox_max_in_flight = plan.max_in_flight;
	outbox_ack_timeout = plan.ack_timeout;
	outbox_retry_base_delay = plan.retry_base_delay;
	outbox_retry_max_delay = plan.retry_max_delay;
	outbox_max_attempts = plan.max_attempts;
	outbox_poison_policy = plan.poison_policy;
	outbox_relay_memory = plan.relay_memory;
	outbox_workers = plan.workers;
	outbox_lease_ttl = plan.lease_ttl;
	outbox_preserve_aggregate_order = plan.preserve_order;
	outbox_test_feed_size = plan.feed_size;
}

PGPROC *
sim_pg_proc(int index)
{
	return &all_procs[index];
}

void
sim_pg_start(SimProc *proc)
{
	PgProcess  *pg = &processes[proc->index];

	memset(pg, 0, sizeof(*pg));
	proc->pg = pg;
	ProcGlobal = &proc_global;
	memset(&all_procs[proc->index], 0, sizeof(PGPROC));
#if PG_VERSION_NUM < 170000
	all_procs[proc->index].pgprocno = proc->index;
#endif
	all_procs[proc->index].pid = SIM_FIRST_PID + proc->index;
	sim_memory_start(pg);
	sim_pg_settings();
	for (int i = 0; i < lengthof(settings); i++)
		pg->globals.settings[i] = *settings[i];
}

void
sim_pg_forget(SimProc *proc)
{
	sim_release_locks(proc);
	sim_memory_forget(proc->pg);
}

void
sim_pg_switch_to(SimProc *proc)
{
	const PgGlobals *saved = &proc->pg->globals;

	MyProc = &all_procs[proc->index];
#if PG_VERSION_NUM >= 170000
	MyProcNumber = proc->index;
#endif
	MyProcPid = MyProc->pid;
	MyLatch = &MyProc->procLatch;
	InterruptPending = saved->interrupt_pending;
	ConfigReloadPending = saved->reload_pending;
	CurrentMemoryContext = saved->current_context;
	TopMemoryContext = saved->top_context;
	PG_exception_stack = saved->exception_stack;
	error_context_stack = saved->context_stack;
	XactLastCommitEnd = saved->last_commit_end;
	SPI_processed = saved->spi_processed;
	SPI_tuptable = saved->spi_tuptable;
	for (int i = 0; i < lengthof(settings); i++)
		*settings[i] = saved->settings[i];
}

void
sim_pg_switch_from(SimProc *proc)
{
	PgGlobals  *saved = &proc->pg->globals;

	saved->interrupt_pending = InterruptPending;
	saved->reload_pending = ConfigReloadPending;
	saved->current_context = CurrentMemoryContext;
	saved->top_context = TopMemoryContext;
	saved->exception_stack = PG_exception_stack;
	saved->context_stack = error_context_stack;
	saved->last_commit_end = XactLastCommitEnd;
	saved->spi_processed = SPI_processed;
	saved->spi_tuptable = SPI_tuptable;
	for (int i = 0; i < lengthof(settings); i++)
		saved->settings[i] = *settings[i];
}

/* ---------- signals and interrupts ---------- */

void
outbox_test_point(const char *name)
{
	sim_test_point(name);
}

#if PG_VERSION_NUM >= 180000
void
pqsignal(int signo, pqsigfunc func)
{
	sim_self->pg->handlers[signo] = func;
}
#else
pqsigfunc
pqsignal(int signo, pqsigfunc func)
{
	sim_self->pg->handlers[signo] = func;
	return NULL;
}
#endif

void
die(SIGNAL_ARGS)
{
	InterruptPending = true;
	sim_self->pg->must_die = true;
	SetLatch(MyLatch);
}

void
SignalHandlerForConfigReload(SIGNAL_ARGS)
{
	ConfigReloadPending = true;
	SetLatch(MyLatch);
}

/* Delivered at once: between two steps of the process. */
void
sim_pg_signal(SimProc *proc, int signal)
{
	pqsigfunc	handler = proc->pg->handlers[signal];

	if (handler == NULL || handler == SIG_IGN)
		return;
	sim_pg_switch_to(proc);
	sim_self = proc;
	handler(signal);
	sim_self = NULL;
	sim_pg_switch_from(proc);
}

void
ProcessInterrupts(void)
{
	InterruptPending = false;
	if (sim_self->pg->must_die)
	{
		sim_trace("terminated", 0);
		proc_exit(1);
	}
}

/* The test of publisher.c's promise: no error while signals are blocked. */
int			sim_sigmask(int how, const sigset_t *set, sigset_t *old);

int
sim_sigmask(int how, const sigset_t *set, sigset_t *old)
{
	sim_self->pg->signals_blocked = old != NULL;
	return 0;
}

void
BackgroundWorkerInitializeConnectionByOid(Oid dboid, Oid useroid, uint32 flags)
{
	sim_pass(sim_between(100, 3 * MS));
}

void
SetConfigOption(const char *name, const char *value, GucContext context, GucSource source)
{
	if (strcmp(name, "synchronous_commit") == 0)
		sim_self->pg->commits_later = strcmp(value, "off") == 0;
}

int
set_config_option(const char *name, const char *value, GucContext context, GucSource source,
				  GucAction action, bool changeVal, int elevel, bool is_reload)
{
	return 1;
}

int
NewGUCNestLevel(void)
{
	return 1;
}

void
AtEOXact_GUC(bool isCommit, int nestLevel)
{
}

void
ProcessConfigFile(GucContext context)
{
	sim_pg_settings();
}

/* ---------- latches ---------- */

void
SetLatch(Latch *latch)
{
	latch->is_set = true;
}

void
ResetLatch(Latch *latch)
{
	latch->is_set = false;
}

void
sim_pg_latch(SimProc *proc)
{
	SetLatch(&all_procs[proc->index].procLatch);
}

#if PG_VERSION_NUM >= 170000
uint32
WaitEventExtensionNew(const char *name)
{
	return PG_WAIT_EXTENSION;
}

WaitEventSet *
CreateWaitEventSet(ResourceOwner owner, int nevents)
{
	return (WaitEventSet *) MemoryContextAlloc(TopMemoryContext, 1);
}
#else
WaitEventSet *
CreateWaitEventSet(MemoryContext context, int nevents)
{
	return (WaitEventSet *) MemoryContextAlloc(context, 1);
}
#endif

int
AddWaitEventToSet(WaitEventSet *set, uint32 events, pgsocket fd, Latch *latch, void *user_data)
{
	return 0;
}

static bool
is_woken(void *arg)
{
	SimProc    *proc = arg;

	return all_procs[proc->index].procLatch.is_set || (proc->role == SIM_RELAY && sim_broker_is_readable(proc));
}

/* The sleep of a relay. What must be true whenever one sleeps is asked here. */
int
WaitEventSetWait(WaitEventSet *set, long timeout, WaitEvent *occurred_events, int nevents, uint32 wait_event_info)
{
	int			count = 0;

	if (sim_self->pg->in_transaction || sim_self->pg->lwlock_count > 0)
		sim_fail("a relay sleeps with an open transaction or a lock");
	if (timeout == 0)
		sim_pass(sim_between(1, 20));
	else
		(void) sim_wait(is_woken, sim_self, timeout < 0 ? SIM_NEVER : sim_now + timeout * MS);
	if (MyLatch->is_set)
		occurred_events[count++] = (WaitEvent) {.events = WL_LATCH_SET};
	if (sim_broker_is_readable(sim_self))
		occurred_events[count++] = (WaitEvent) {.events = WL_SOCKET_READABLE};
	return count;
}

/* ---------- the end ---------- */

void
before_shmem_exit(pg_on_exit_callback function, Datum arg)
{
	sim_self->pg->before_exit[sim_self->pg->before_exit_count++] = (ExitCallback) {function, arg};
}

void
on_proc_exit(pg_on_exit_callback function, Datum arg)
{
	sim_self->pg->on_exit[sim_self->pg->on_exit_count++] = (ExitCallback) {function, arg};
}

/* In the server's order: our callbacks, then the transaction, then what needs no shared memory. */
void
proc_exit(int code)
{
	PgProcess  *pg = sim_self->pg;

	if (pg->exiting)
		sim_fail("an error while a process ends: %s", pg->error_text);
	if (pg->signals_blocked)
		sim_fail("a process ends while signals are blocked");
	pg->exiting = true;
	sim_release_lwlocks();
	while (pg->before_exit_count > 0)
	{
		ExitCallback *callback = &pg->before_exit[--pg->before_exit_count];

		callback->function(code, callback->arg);
	}
	sim_pg_abort();
	while (pg->on_exit_count > 0)
	{
		ExitCallback *callback = &pg->on_exit[--pg->on_exit_count];

		callback->function(code, callback->arg);
	}
	sim_trace("ends with exit code %lld", code);
	sim_proc_exit(code);
}

void		sim_exit_now(int code);

/* _exit() */
void
sim_exit_now(int code)
{
	sim_proc_exit(code);
}

bool
PostmasterIsAliveInternal(void)
{
	return true;
}
