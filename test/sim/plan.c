/*
 * plan.c
 *	  What a run is like, drawn from its seed: settings, load, and which kinds of
 *	  faults happen how often. Most kinds are left out of most runs, so that rare
 *	  meetings of two of them aren't hidden by all the others.
 */
#include "sim.h"
#include "pg_process.h"
#include "store.h"

#include <signal.h>

SimPlan		plan;
bool		sim_faults;

static int
one_of(int count, const int *values)
{
	return values[sim_below(count)];
}

#define ONE_OF(...) \
	one_of((int) (sizeof((int[]) {__VA_ARGS__}) / sizeof(int)), (int[]) {__VA_ARGS__})

/* A rate in some runs, none in the others. */
static int
perhaps(int often, int seldom)
{
	return sim_one_in(2) ? 0 : (int) sim_between(often, seldom);
}

static int64_t
every(int64_t often, int64_t seldom)
{
	return sim_one_in(2) ? 0 : sim_between(often, seldom);
}

void
sim_plan_draw(void)
{
	plan = (SimPlan) {
		.workers = ONE_OF(1, 1, 2, 3),
		.max_in_flight = ONE_OF(1, 2, 8, 32, 128),
		.relay_memory = ONE_OF(4, 16, 64, 1024),
		.lease_ttl = ONE_OF(1000, 2000, 5000),
		.ack_timeout = ONE_OF(200, 1000, 3000),
		.retry_base_delay = ONE_OF(1, 20, 300),
		.retry_max_delay = ONE_OF(300, 2000, 5000),
		.max_attempts = ONE_OF(1, 2, 3, 5),
		.poison_policy = sim_below(3),
		.preserve_order = !sim_one_in(6),
		.feed_size = ONE_OF(1, 2, 4, 16, 1024),
		.writers = 1 + sim_below(4),
		.aggregates = ONE_OF(1, 2, 5, 12),
		.transactions = (int) sim_between(3, 25),
		.max_events = ONE_OF(1, 3, 8),
		.event_size = ONE_OF(200, 1000),
		.think = ONE_OF(2, 50, 1000) * MS,
		.abort = perhaps(3, 10),
		.prepare = perhaps(3, 10),
		.linger = perhaps(4, 12),
		.bulk = perhaps(5, 20),
		.async = perhaps(1, 3),
		.later = perhaps(3, 20),
		.bad_permanent = perhaps(5, 40),
		.bad_transient = perhaps(5, 40),
		.bad_client = perhaps(10, 60),
		.bad_row = sim_one_in(3) ? perhaps(20, 60) : 0,
		.interrupt = ONE_OF(2, 5, 20),
		.preempt = ONE_OF(5, 30, 300),
		.stall = sim_one_in(3) ? perhaps(200, 3000) : 0,
		.error = sim_one_in(4) ? perhaps(100, 2000) : 0,
		.no_memory = sim_one_in(8) ? perhaps(300, 3000) : 0,
		.delay = ONE_OF(100, 1000, 20000),
		.lose_message = sim_one_in(2) ? perhaps(5, 50) : 0,
		.lose_ack = sim_one_in(2) ? perhaps(5, 50) : 0,
		.duplicate = perhaps(5, 50),
		.dedup_window = ONE_OF(0, 2, 120) * SECOND,
		.freeze = every(SECOND, 6 * SECOND),
		.terminate = every(SECOND, 6 * SECOND),
		.crash = every(2 * SECOND, 10 * SECOND),
		.disconnect = every(SECOND / 2, 5 * SECOND),
		.outage = every(2 * SECOND, 10 * SECOND),
		.refusal = every(SECOND, 8 * SECOND),
		.clock_step = sim_one_in(2) ? every(SECOND, 5 * SECOND) : 0,
		.operate = every(SECOND / 4, 3 * SECOND),
		.reload = sim_one_in(2) ? every(SECOND, 6 * SECOND) : 0,
	};
	plan.batches = sim_one_in(2);
	/* The quarter of the budget that may be in flight needs room for an event. */
	if (plan.relay_memory == 4)
		plan.event_size = 200;
}

/* ---------- what happens to the world ---------- */

static SimProc *
some_process(SimRole role)
{
	SimProc    *candidates[SIM_PROCS];
	int			count = 0;

	for (int i = 0; i < SIM_PROCS; i++)
	{
		if (sim_procs[i].alive && sim_procs[i].role == role && sim_procs[i].started)
			candidates[count++] = &sim_procs[i];
	}
	return count == 0 ? NULL : candidates[sim_below(count)];
}

static void
freeze(void)
{
	SimProc    *proc = some_process(sim_one_in(4) ? SIM_WRITER : SIM_RELAY);
	int64_t		longest = proc != NULL && proc->role == SIM_WRITER ? 2 * SECOND : 3 * plan.lease_ttl * MS;

	if (proc == NULL)
		return;
	proc->frozen_until = sim_now + sim_between(longest / 20, longest);
	sim_trace("freezes process %lld (role %lld, number %lld) for %lld us", proc->index, proc->role, proc->number, proc->frozen_until - sim_now);
}

static void
terminate(void)
{
	SimProc    *proc = some_process(SIM_RELAY);

	if (proc == NULL)
		return;
	sim_trace("terminates relay %lld", proc->number);
	sim_pg_signal(proc, SIGTERM);
}

static void
start_again(void *arg, int64_t number)
{
	(void) arg;
	(void) number;
	sim_server_start();
}

static void
crash(void)
{
	if (!sim_server_is_up())
		return;
	sim_server_stop(!sim_one_in(4));
	sim_at(sim_now + sim_between(10 * MS, 500 * MS), start_again, NULL, 0);
}

static void
disconnect(void)
{
	SimProc    *proc = some_process(SIM_RELAY);

	if (proc != NULL)
		sim_broker_drop(proc);
}

static void
broker_returns(void *arg, int64_t number)
{
	(void) arg;
	(void) number;
	sim_broker_set_up(true);
}

static void
outage(void)
{
	sim_broker_set_up(false);
	sim_at(sim_now + sim_between(10 * MS, 4 * SECOND), broker_returns, NULL, 0);
}

static void
refusal_ends(void *arg, int64_t number)
{
	(void) arg;
	(void) number;
	sim_broker_refuse(0);
}

static void
refusal(void)
{
	sim_broker_refuse(1 + sim_below(6));
	sim_at(sim_now + sim_between(10 * MS, 4 * SECOND), refusal_ends, NULL, 0);
}

static void
clock_step(void)
{
	sim_wall_offset += sim_between(-15 * SECOND, 15 * SECOND);
	if (sim_wall_offset > sim_wall_offset_max)
		sim_wall_offset_max = sim_wall_offset;
	sim_trace("the wall clock is set to %lld", sim_wall_offset);
}

static void
ask_operator(void)
{
	sim_operator_ask(SIM_ASK_ANYTHING);
}

static void
reload(void)
{
	plan.poison_policy = sim_below(3);
	plan.max_in_flight = ONE_OF(1, 2, 8, 32, 128);
	if (sim_one_in(3))
		plan.workers = 1 + sim_below(3);
	sim_trace("reloads: policy %lld, max_in_flight %lld, workers %lld", plan.poison_policy, plan.max_in_flight, plan.workers);
	for (int i = 0; i < SIM_PROCS; i++)
	{
		if (sim_procs[i].alive && sim_procs[i].started)
			sim_pg_signal(&sim_procs[i], SIGHUP);
	}
}

/* The WAL writer. */
static void
flush_wal(void *arg, int64_t number)
{
	(void) arg;
	/* A crash since then has taken some of it back. */
	sim_wal_flush(number < sim_wal_inserted() ? number : sim_wal_inserted());
	sim_at(sim_now + sim_between(10 * MS, 300 * MS), flush_wal, NULL, sim_wal_insert());
}

typedef struct Kind
{
	const int64_t *rate;
	void		(*happens)(void);
} Kind;

static const Kind kinds[] = {
	{&plan.freeze, freeze},
	{&plan.terminate, terminate},
	{&plan.crash, crash},
	{&plan.disconnect, disconnect},
	{&plan.outage, outage},
	{&plan.refusal, refusal},
	{&plan.clock_step, clock_step},
	{&plan.operate, ask_operator},
	{&plan.reload, reload},
};

static void
happen(void *arg, int64_t number)
{
	const Kind *kind = &kinds[number];

	if (!sim_faults)
		return;
	if (arg != NULL)
		kind->happens();
	sim_at(sim_now + sim_between(*kind->rate / 4, *kind->rate * 2), happen, &plan, number);
}

void
sim_plan_schedule(void)
{
	for (int i = 0; i < (int) (sizeof(kinds) / sizeof(kinds[0])); i++)
	{
		if (*kinds[i].rate > 0)
			happen(NULL, i);
	}
	flush_wal(NULL, 0);
}
