/*
 * proc.c
 *	  Processes as coroutines: a stack, a copy of the code under test with static
 *	  variables of its own, and the memory that it allocated.
 */
#include "sim.h"
#include "image.h"
#include "pg_process.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_SIZE (1024 * 1024)

SimProc		sim_procs[SIM_PROCS];
SimProc    *sim_self;

static jmp_buf scheduler;
static ucontext_t entry;
static int64_t incarnations;

/* ---------- memory of the code under test ---------- */

typedef struct SimAllocation
{
	struct SimAllocation *next;
	struct SimAllocation *previous;
	SimProc    *owner;
	size_t		size;
	int64_t		weight;
} SimAllocation;

void *
sim_malloc(size_t size)
{
	SimAllocation *allocation;

	if (sim_self == NULL)
		abort();
	if (sim_faults && sim_self->role == SIM_RELAY && sim_one_in(plan.no_memory))
	{
		sim_trace("no memory for %lld bytes", size);
		return NULL;
	}
	allocation = malloc(sizeof(SimAllocation) + size);
	*allocation = (SimAllocation) {sim_self->allocations, NULL, sim_self, size, 0};
	if (allocation->next != NULL)
		allocation->next->previous = allocation;
	sim_self->allocations = allocation;
	sim_self->allocated += size;
	return allocation + 1;
}

void *
sim_calloc(size_t count, size_t size)
{
	void	   *memory = sim_malloc(count * size);

	if (memory != NULL)
		memset(memory, 0, count * size);
	return memory;
}

void
sim_free(void *memory)
{
	SimAllocation *allocation = (SimAllocation *) memory - 1;

	if (memory == NULL)
		return;
	if (allocation->next != NULL)
		allocation->next->previous = allocation->previous;
	if (allocation->previous != NULL)
		allocation->previous->next = allocation->next;
	else
		allocation->owner->allocations = allocation->next;
	allocation->owner->allocated -= allocation->size;
	allocation->owner->weight -= allocation->weight;
	free(allocation);
}

void
sim_weigh(void *memory, int64_t weight)
{
	((SimAllocation *) memory - 1)->weight = weight;
	sim_self->weight += weight;
}

static void
free_all(SimProc *proc)
{
	while (proc->allocations != NULL)
	{
		SimAllocation *next = proc->allocations->next;

		free(proc->allocations);
		proc->allocations = next;
	}
	proc->allocated = 0;
	proc->weight = 0;
}

/* ---------- life ---------- */

static void
run_main(void)
{
	sim_self->main();
	sim_proc_exit(0);
}

SimProc *
sim_proc_start(SimRole role, int number, void (*main)(void), int64_t ready_at)
{
	int			first = role == SIM_RELAY ? 0 : SIM_RELAY_IMAGES;
	int			last = role == SIM_RELAY ? SIM_RELAY_IMAGES : SIM_PROCS;
	SimProc    *proc = NULL;
	void	   *stack;

	for (int i = first; i < last && proc == NULL; i++)
	{
		if (!sim_procs[i].alive)
			proc = &sim_procs[i];
	}
	if (proc == NULL)
		return NULL;
	stack = proc->stack;
	if (stack == NULL)
		stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	*proc = (SimProc) {
		.index = (int) (proc - sim_procs),
		.alive = true,
		.role = role,
		.incarnation = ++incarnations,
		.number = number,
		.main = main,
		.image = sim_images[proc - sim_procs],
		.pg = proc->pg,
		.stack = stack,
		.ready_at = ready_at,
		.deadline = SIM_NEVER,
	};
	sim_image_reset(proc->index);
	sim_pg_start(proc);
	return proc;
}

/* What both ways to end have in common; memory is given back when nobody stands on the stack. */
static void
bury(SimProc *proc)
{
	proc->alive = false;
	sim_broker_gone(proc);
	sim_pg_forget(proc);
	free_all(proc);
}

void
sim_proc_kill(SimProc *proc)
{
	if (proc->alive)
		bury(proc);
}

void
sim_proc_exit(int code)
{
	sim_self->exit_code = code;
	bury(sim_self);
	_longjmp(scheduler, 1);
}

/* ---------- turns ---------- */

int64_t
sim_proc_due(SimProc *proc)
{
	int64_t		due = proc->ready_at;

	if (proc->ready != NULL)
	{
		if (proc->ready(proc->ready_arg))
		{
			proc->ready = NULL;
			proc->ready_at = due = sim_now + sim_between(0, 40);
		}
		else
			due = proc->deadline;
	}
	return due < proc->frozen_until ? proc->frozen_until : due;
}

void
sim_proc_run(SimProc *proc)
{
	sim_self = proc;
	if (proc->ready != NULL)
	{
		proc->timed_out = true;
		proc->ready = NULL;
	}
	sim_pg_switch_to(proc);
	if (_setjmp(scheduler) == 0)
	{
		if (proc->started)
			_longjmp(proc->context, 1);
		proc->started = true;
		getcontext(&entry);
		entry.uc_stack.ss_sp = proc->stack;
		entry.uc_stack.ss_size = STACK_SIZE;
		entry.uc_link = NULL;
		makecontext(&entry, run_main, 0);
		setcontext(&entry);
	}
	if (sim_self->alive)
		sim_pg_switch_from(sim_self);
	sim_self = NULL;
}

static void
give_way(void)
{
	if (_setjmp(sim_self->context) == 0)
		_longjmp(scheduler, 1);
}

void
sim_pass(int64_t microseconds)
{
	sim_self->ready_at = sim_now + microseconds;
	give_way();
}

void
sim_maybe_pass(void)
{
	if (!sim_one_in(plan.interrupt))
		return;
	if (sim_faults && sim_self->role == SIM_RELAY && sim_one_in(plan.stall))
	{
		int64_t		time = sim_between(plan.lease_ttl * MS / 4, plan.lease_ttl * MS * 3);

		sim_trace("stands still for %lld us", time);
		sim_pass(time);
		return;
	}
	sim_pass(sim_one_in(plan.preempt) ? sim_between(100, 30 * MS) : sim_between(0, 20));
}

void
sim_test_point(const char *name)
{
	(void) name;
	if (sim_one_in(4))
		sim_pass(sim_faults && sim_one_in(8) ? sim_between(MS, 300 * MS) : sim_between(0, 2 * MS));
}

bool
sim_wait(bool (*ready)(void *arg), void *arg, int64_t deadline)
{
	if (ready(arg))
		return true;
	sim_self->ready = ready;
	sim_self->ready_arg = arg;
	sim_self->deadline = deadline;
	sim_self->timed_out = false;
	give_way();
	return !sim_self->timed_out;
}

void
sim_proc_reset(void)
{
	incarnations = 0;
	for (int i = 0; i < SIM_PROCS; i++)
	{
		if (sim_procs[i].alive)
			bury(&sim_procs[i]);
		free_all(&sim_procs[i]);
	}
}
