/*
 * sim.h
 *	  A world of simulated processes on a simulated clock: what the parts of the
 *	  simulation share that doesn't need PostgreSQL's headers.
 *
 * Everything that happens follows from one seed: the processes are coroutines
 * of one thread, time is a number, and every choice is drawn from one generator.
 * Nothing may depend on addresses, on the real clock, or on what an earlier run
 * has left behind.
 */
#ifndef SIM_H
#define SIM_H

#include <setjmp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MS INT64_C(1000)
#define SECOND INT64_C(1000000)

/* Never. */
#define SIM_NEVER INT64_MAX

/* ---------- chance, time, reports: world.c ---------- */

extern uint64_t sim_random(void);
extern int	sim_below(int n);	/* 0 .. n - 1 */
extern int64_t sim_between(int64_t low, int64_t high);	/* inclusive */
extern bool sim_one_in(int n);	/* false for n <= 0 */

/* The clock that nobody sets, and its distance to the one that an administrator may set. */
extern int64_t sim_now;
extern int64_t sim_wall_offset;
extern int64_t sim_wall_offset_max;	/* so far */

/* A line of the trace; arguments are integers only, given to %lld. */
extern void sim_note(const char *format, int64_t a, int64_t b, int64_t c, int64_t d);
#define sim_trace(format, ...) sim_trace_(format, __VA_ARGS__, 0, 0, 0, 0, 0)
#define sim_trace_(format, a, b, c, d, ...) \
	sim_note(format, (int64_t) (a), (int64_t) (b), (int64_t) (c), (int64_t) (d))

/* A promise is broken: the run ends here. */
extern void sim_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* Something to do later, in no process; forgotten at the end of the run. */
extern void sim_at(int64_t time, void (*action)(void *arg, int64_t number), void *arg, int64_t number);

/* The next thing that happens. False: nothing ever will. */
extern bool sim_step(void);
extern int64_t sim_steps;

extern uint64_t sim_fingerprint(void);	/* of all that has happened in the run */
extern void sim_world_start(uint64_t seed, jmp_buf *failed);

/* ---------- processes: proc.c ---------- */

typedef struct SimImage SimImage;
typedef struct PgProcess PgProcess;

typedef enum SimRole
{
	SIM_RELAY,
	SIM_WRITER,
	SIM_OPERATOR,
	SIM_LAUNCHER
} SimRole;

#define SIM_RELAY_IMAGES 6
#define SIM_BACKEND_IMAGES 6
#define SIM_PROCS (SIM_RELAY_IMAGES + SIM_BACKEND_IMAGES)

typedef struct SimProc
{
	int			index;			/* fixed: its place in sim_procs, its pid less 1000, its PGPROC */
	bool		alive;
	bool		started;
	SimRole		role;
	int64_t		incarnation;	/* never given twice in a run */
	int			place;			/* SIM_RELAY: the place that the launcher gave it */
	int			number;			/* of its kind, for the trace */
	void		(*main)(void);
	const SimImage *image;
	PgProcess  *pg;				/* PostgreSQL's globals in this process */
	void	   *stack;
	jmp_buf		context;
	int64_t		ready_at;		/* goes on then, unless it waits for something */
	bool		(*ready)(void *arg);	/* NULL: doesn't wait */
	void	   *ready_arg;
	int64_t		deadline;		/* of the wait */
	bool		timed_out;
	int64_t		frozen_until;
	int			exit_code;
	uint64_t	blockers;		/* processes that it waits for in a lock: bits of their indexes */
	struct SimAllocation *allocations;
	size_t		allocated;
	int64_t		weight;			/* of the events among them */
	int64_t		loaded_csn;		/* what it knew when it last loaded the ledger */
} SimProc;

extern SimProc sim_procs[SIM_PROCS];
extern SimProc *sim_self;		/* the running one; NULL: the world itself */

extern SimProc *sim_proc_start(SimRole role, int number, void (*main)(void), int64_t ready_at);
extern void sim_proc_exit(int code) __attribute__((noreturn));	/* by itself */
extern void sim_proc_kill(SimProc *proc);	/* by the world */
extern int64_t sim_proc_due(SimProc *proc);	/* when it goes on; SIM_NEVER: waits */
extern void sim_proc_run(SimProc *proc);	/* until it gives way */
extern void sim_proc_reset(void);

/* For the running process: time passes, others may act. */
extern void sim_pass(int64_t microseconds);
extern void sim_maybe_pass(void);	/* where a process may be interrupted */
extern void sim_test_point(const char *name);	/* where it is worth it */

/* Waits until ready() says so; false: the deadline came first. */
extern bool sim_wait(bool (*ready)(void *arg), void *arg, int64_t deadline);

/* malloc() and free() of the code under test; all is freed with its process. */
extern void *sim_malloc(size_t size);
extern void *sim_calloc(size_t count, size_t size);
extern void sim_free(void *memory);
extern void sim_weigh(void *memory, int64_t weight);	/* counts as so many bytes in SimProc.weight */

/* ---------- what a run is like: plan.c ---------- */

typedef struct SimPlan
{
	/* Settings, in the units of the GUCs. */
	int			workers;
	int			max_in_flight;
	bool		batches;		/* the stream takes them */
	int			relay_memory;	/* kB, smaller than the GUC allows */
	int			lease_ttl;
	int			ack_timeout;
	int			retry_base_delay;
	int			retry_max_delay;
	int			max_attempts;
	int			poison_policy;
	bool		preserve_order;
	int			feed_size;

	/* Load. */
	int			writers;
	int			aggregates;
	int			transactions;	/* of each writer */
	int			max_events;		/* of a transaction */
	int			event_size;		/* bytes, up to */
	int64_t		think;			/* between transactions, up to */
	int			abort;			/* one in so many transactions, as all below; 0: never */
	int			prepare;
	int			linger;			/* stays open for a long time */
	int			bulk;			/* draws a thousand numbers for nothing */
	int			async;			/* commits without a flush */
	int			later;			/* not_before in the future */
	int			bad_permanent;	/* one in so many events */
	int			bad_transient;
	int			bad_client;
	int			bad_row;

	/* Processes. */
	int			interrupt;		/* one in so many places where one may be interrupted */
	int			preempt;		/* and one in so many of those for long */
	int			stall;			/* and one in so many of those of a relay for longer than its lease */
	int			error;			/* one in so many statements of a relay fails */
	int			no_memory;		/* one in so many allocations of a relay fails */

	/* Broker. */
	int64_t		delay;			/* of a message or answer, up to */
	int			lose_message;
	int			lose_ack;
	int			duplicate;
	int64_t		dedup_window;

	/* How often something happens to the world, one after so much time; 0: never. */
	int64_t		freeze;
	int64_t		terminate;
	int64_t		crash;
	int64_t		disconnect;
	int64_t		outage;
	int64_t		refusal;		/* the stream or the broker refuses all for a while */
	int64_t		clock_step;
	int64_t		operate;
	int64_t		reload;
} SimPlan;

extern SimPlan plan;
extern bool sim_faults;			/* false: from now on all goes well */

extern void sim_plan_draw(void);
extern void sim_plan_schedule(void);	/* begins what the plan says about the world */

/* ---------- actors.c ---------- */

extern void sim_actors_reset(void);
extern void sim_server_start(void);
extern void sim_server_stop(bool crash);
extern bool sim_server_is_up(void);
extern bool sim_writers_are_done(void);
extern void sim_operator_ask(int what);	/* one of the following */
enum
{
	SIM_ASK_ANYTHING,
	SIM_ASK_REDRIVE_ALL,
	SIM_ASK_RESUME_ALL
};

/* ---------- broker.c ---------- */

extern void sim_broker_start(void);
extern void sim_broker_drop(SimProc *proc);	/* its connection breaks */
extern void sim_broker_gone(SimProc *proc); /* the process is no more */
extern void sim_broker_set_up(bool up);
extern void sim_broker_refuse(int how);	/* 0: all is well */
extern bool sim_broker_is_readable(SimProc *proc);
extern bool sim_broker_has(SimProc *proc, int64_t position);	/* sent by it, and not reported to it */

#endif							/* SIM_H */
