/*
 * actors.c
 *	  Who lives in the server: writers, and the launcher with its relays; the
 *	  operator has operator.c.
 *
 * Each main function runs in a process of its own. The launcher is a short one of
 * ours that does what src/launcher.c does for one database; the code that takes
 * slots from members is the real one.
 */
#include "session.h"

#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/memutils.h"

#include "event.h"
#include "launcher.h"

#include <signal.h>

static bool up;
static int	transactions_left[SIM_BACKEND_IMAGES];

/* ---------- every process ---------- */

void
sim_attach_shmem(void)
{
	shmem_startup_hook = NULL;
	shmem_request_hook = NULL;
	sim_self->image->install_shmem();
	shmem_startup_hook();
}

void
sim_session_begin(void)
{
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

/* ---------- writers ---------- */

/* An event's aggregate, flaw and so on; what append.c needs and what only we know. */
static void
draw_event(OutboxNewEvent *event)
{
	int			aggregate = sim_below(plan.aggregates);
	Row			row = {
		.type = aggregate % 2,
		.priority = sim_one_in(5) ? sim_below(5) - 2 : 0,
		.size = (int) sim_between(1, plan.event_size),
	};

	row.flaw = sim_one_in(plan.bad_permanent) ? FLAW_PERMANENT :
		sim_one_in(plan.bad_transient)		  ? FLAW_TRANSIENT :
		sim_one_in(plan.bad_client)			  ? FLAW_CLIENT :
		sim_one_in(plan.bad_row)			  ? FLAW_ROW :
												FLAW_NONE;
	row.refusals_left = row.flaw == FLAW_TRANSIENT ? 1 + sim_below(2 * plan.max_attempts) : 0;
	row.not_before = sim_one_in(plan.later) ? GetCurrentTimestamp() + sim_between(0, 8 * SECOND) : 0;
	*event = (OutboxNewEvent) {
		.aggregate_type = row.type == 0 ? "t0" : "t1",
		.aggregate_id = psprintf("a%d", aggregate),
		.event_type = "e",
		.payload = (bytea *) sim_keep(&row, sizeof(row)),
		.priority = row.priority,
		.not_before_given = row.not_before != 0,
		.not_before = row.not_before,
	};
}

static void
append_some(int count)
{
	OutboxNewEvent events[16];

	count = Min(count, lengthof(events));
	for (int i = 0; i < count; i++)
		draw_event(&events[i]);
	sim_self->image->append(events, count);
}

void
sim_finish_prepared(bool all)
{
	Xact	   *list[8];
	int			count = sim_xact_list_prepared(list, lengthof(list));

	for (int i = 0; i < count; i++)
	{
		if (!all && !sim_one_in(3))
			continue;
		sim_trace("finishes prepared transaction %lld", list[i]->xid);
		sim_pg_finish_prepared(list[i], !sim_one_in(4));
		/* The hook of src/outbox.c; not everyone who ends one calls it. */
		if (sim_one_in(2))
		{
			sim_session_begin();
			sim_self->image->wake_relays(sim_self->image->attach());
			CommitTransactionCommand();
		}
	}
}

/* Numbers that nobody gets, so that positions spread over the ledger's buckets. */
static void
burn_numbers(void)
{
	OutboxDatabase *database;

	sim_session_begin();
	database = sim_self->image->attach();
	(void) sim_pg_xact();
	for (int i = sim_below(1200); i > 0; i--)
		(void) sim_self->image->next_position(database);
	sim_pg_abort();
}

static void
one_transaction(void)
{
	sim_session_begin();
	sim_self->pg->commits_later = sim_one_in(plan.async);
	for (int left = 1 + sim_below(plan.max_events); left > 0;)
	{
		int			now = 1 + sim_below(left);

		append_some(now);
		left -= now;
		if (left > 0 || sim_one_in(4))
			sim_pass(sim_between(0, 5 * MS));
	}
	if (sim_faults && sim_one_in(plan.linger))
		sim_pass(sim_between(0, 6 * SECOND));
	if (sim_one_in(plan.abort))
		sim_pg_abort();
	else if (sim_one_in(plan.prepare))
		sim_pg_prepare();
	else
		CommitTransactionCommand();
}

static void
writer_main(void)
{
	SESSION_LOOP_BEGIN;
	while (transactions_left[sim_self->number] > 0)
	{
		sim_pass(sim_between(0, plan.think));
		transactions_left[sim_self->number]--;
		if (sim_faults && sim_one_in(plan.bulk))
			burn_numbers();
		one_transaction();
		sim_finish_prepared(false);
	}
}

bool
sim_writers_are_done(void)
{
	for (int i = 0; i < SIM_BACKEND_IMAGES; i++)
	{
		if (transactions_left[i] > 0)
			return false;
	}
	for (int i = 0; i < SIM_PROCS; i++)
	{
		if (sim_procs[i].alive && sim_procs[i].role == SIM_WRITER)
			return false;
	}
	return true;
}

/* ---------- the launcher ---------- */

static void
relay_main(void)
{
	sigjmp_buf	local;

	sim_attach_shmem();
	if (sigsetjmp(local, 0) != 0)
		proc_exit(1);
	PG_exception_stack = &local;
	sim_self->image->relay_main(OUTBOX_RELAY_ARG(SIM_DATABASE, sim_self->place, sim_self->place));
}

static SimProc *
relay_at(int place)
{
	for (int i = 0; i < SIM_RELAY_IMAGES; i++)
	{
		if (sim_procs[i].alive && sim_procs[i].role == SIM_RELAY && sim_procs[i].place == place)
			return &sim_procs[i];
	}
	return NULL;
}

/* Starts relays where there are too few members, and asks one to go where there are too many. */
static void
take_census(OutboxDatabase *database)
{
	int			members = 0;
	int			last = -1;
	int			first_free = -1;

	for (int place = 0; place < OUTBOX_SERVER_RELAYS; place++)
	{
		bool		is_member = database != NULL && database->slots.members[place].epoch != 0;
		bool		has_pid = database != NULL && pg_atomic_read_u32(&database->places[place].pid) != 0;
		bool		has_process = relay_at(place) != NULL;

		if (is_member)
			last = place;
		members += is_member || (has_process && !has_pid);
		if (!has_process && !has_pid && first_free < 0)
			first_free = place;
	}
	if (members < plan.workers && first_free >= 0)
	{
		SimProc    *relay = sim_proc_start(SIM_RELAY, first_free, relay_main, sim_now + sim_between(MS, 30 * MS));

		if (relay != NULL)
			relay->place = first_free;
	}
	else if (members > plan.workers && last >= 0 && pg_atomic_read_u32(&database->places[last].must_leave) == 0)
	{
		pg_atomic_write_u32(&database->places[last].must_leave, 1);
		if (relay_at(last) != NULL)
			sim_pg_latch(relay_at(last));
	}
}

static void
launcher_main(void)
{
	SESSION_LOOP_BEGIN;
	for (;;)
	{
		if (sim_database() != NULL)
			sim_self->image->revoke_expired(sim_database());
		take_census(sim_database());
		sim_pass(sim_between(5 * MS, 300 * MS));
	}
}

/* ---------- the server ---------- */

void
sim_server_start(void)
{
	sim_pg_server_start();
	up = true;
	sim_trace("server starts", 0);
	(void) sim_proc_start(SIM_LAUNCHER, 0, launcher_main, sim_now);
	(void) sim_proc_start(SIM_OPERATOR, 0, sim_operator_main, sim_now + MS);
	for (int i = 0; i < plan.writers; i++)
	{
		if (transactions_left[i] > 0)
			(void) sim_proc_start(SIM_WRITER, i, writer_main, sim_now + sim_between(0, 50 * MS));
	}
}

/* All processes are gone at once; after a crash, with all that wasn't on disk. */
void
sim_server_stop(bool crash)
{
	if (!up)
		return;
	up = false;
	sim_trace(crash ? "server crashes" : "server stops", 0);
	if (!crash)
		sim_wal_flush(sim_wal_insert());
	for (int i = 0; i < SIM_PROCS; i++)
		sim_proc_kill(&sim_procs[i]);
	sim_store_crash();
}

bool
sim_server_is_up(void)
{
	return up;
}

void
sim_actors_reset(void)
{
	up = false;
	sim_operator_reset();
	memset(transactions_left, 0, sizeof(transactions_left));
	for (int i = 0; i < plan.writers; i++)
		transactions_left[i] = plan.transactions;
}
