/*
 * main.c
 *	  Runs seeds and counts.
 *
 * Settings come from the environment: SIM_SECONDS, how long (30); SIM_RUNS, how
 * many at most; SIM_SEED, the first (1); SIM_FAILURES, after how many to stop (5);
 * SIM_TRACE=1, to print all that happens; SIM_QUIET=1, not to print its end either.
 * The seeds of seeds.list, the only argument, are run first, unless SIM_SEED is given.
 *
 * The runs are made in a child process, so that one that crashes, or that never
 * comes to an end, is a failed run like others.
 */
#include "sim.h"
#include "check.h"
#include "store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* No run needs more: of simulated time once all goes well, of steps, of real time. */
#define TIME_TO_SETTLE (180 * SECOND)
#define MAX_STEPS 5000000
#define MAX_REAL_SECONDS 20

#define TWICE_ONE_IN 20

bool		sim_tracing;
bool		sim_print_notes = true;
char		sim_failure[512];

/* ---------- one run ---------- */

static void
run_until(int64_t end)
{
	while (sim_now < end)
	{
		if (!sim_step())
			return;
		if (sim_steps > MAX_STEPS)
			sim_fail("no end: %lld steps", (long long) sim_steps);
	}
}

static void
settle(bool dead_too)
{
	int64_t		end = sim_now + TIME_TO_SETTLE;

	while (!sim_is_settled(dead_too))
	{
		run_until(sim_now + SECOND / 5);
		/* Unless the operator was too busy to hear it. */
		if (sim_one_in(50))
			sim_operator_ask(dead_too ? SIM_ASK_RESUME_ALL : SIM_ASK_REDRIVE_ALL);
		if (sim_now > end)
			sim_fail("%lld seconds without faults don't suffice for %s, %s", (long long) (TIME_TO_SETTLE / SECOND),
					 sim_unsettled, dead_too ? "with dead letters allowed" : "all being redriven");
	}
}

/* From now on nothing fails but the flawed events. */
static void
end_faults(void)
{
	sim_trace("the faults end", 0);
	sim_faults = false;
	sim_broker_set_up(true);
	sim_broker_refuse(0);
	sim_operator_ask(SIM_ASK_RESUME_ALL);
}

static void
mend_events(void)
{
	sim_trace("all events are fine from now on", 0);
	for (int i = 0; i < sim_log_count(); i++)
		sim_log_at(i)->flaw = FLAW_NONE;
	sim_operator_ask(SIM_ASK_REDRIVE_ALL);
}

/* True: all promises were kept. */
static bool
run(uint64_t seed)
{
	jmp_buf		failed;

	sim_world_start(seed, &failed);
	if (_setjmp(failed) != 0)
	{
		sim_proc_reset();
		return false;
	}
	sim_store_reset();
	sim_plan_draw();
	sim_actors_reset();
	sim_check_start();
	sim_broker_start();
	sim_faults = true;
	sim_server_start();
	sim_plan_schedule();
	run_until(sim_now + sim_between(2 * SECOND, 25 * SECOND));
	end_faults();
	settle(true);
	mend_events();
	run_until(sim_now + 2 * SECOND);
	settle(false);
	run_until(sim_now + 15 * SECOND);
	sim_check_end();
	sim_proc_reset();
	return true;
}

/* ---------- many runs ---------- */

/* What the child tells, also if it dies. */
typedef struct Progress
{
	uint64_t	next;			/* seed; or index in the list of known ones */
	uint64_t	current;
	bool		running;
	int			known_done;
	int64_t		passed;
	int64_t		failed;
	int64_t		published;
	int64_t		steps;
} Progress;

static Progress *progress;
static int64_t max_failures;
static uint64_t known_seeds[1000];
static int	known_count;

static int64_t
setting(const char *name, int64_t otherwise)
{
	const char *value = getenv(name);

	return value == NULL || *value == '\0' ? otherwise : strtoll(value, NULL, 10);
}

static void
read_known(const char *path)
{
	FILE	   *file = fopen(path, "r");
	char		line[256];

	while (file != NULL && fgets(line, sizeof(line), file) != NULL && known_count < 1000)
	{
		if (line[0] >= '0' && line[0] <= '9')
			known_seeds[known_count++] = strtoull(line, NULL, 10);
	}
	if (file != NULL)
		fclose(file);
}

static void
tell_failure(const char *why)
{
	printf("not ok - seed %llu: %s\n#   again, with a trace: make -C test/sim check SIM_SEED=%llu SIM_RUNS=1 SIM_TRACE=1\n",
		   (unsigned long long) progress->current, why, (unsigned long long) progress->current);
	progress->failed++;
	progress->running = false;
	fflush(stdout);
}

/* Now and then a seed is run twice: it must lead to the same end, or no seed can repeat a failure. */
static bool
is_repeated(uint64_t seed)
{
	uint64_t	end = sim_fingerprint();

	if (run(seed) && sim_fingerprint() == end)
		return true;
	snprintf(sim_failure, sizeof(sim_failure), "it doesn't end like that a second time");
	return false;
}

static void
run_one(uint64_t seed)
{
	progress->current = seed;
	progress->running = true;
	alarm(MAX_REAL_SECONDS);
	if (run(seed) && (seed % TWICE_ONE_IN != 0 || is_repeated(seed)))
		progress->passed++;
	else
		tell_failure(sim_failure);
	progress->published += sim_events_published;
	progress->steps += sim_steps;
	sim_events_published = 0;
	progress->running = false;
}

static void
run_many(int64_t runs, time_t end)
{
	while (progress->known_done < known_count && progress->failed < max_failures)
		run_one(known_seeds[progress->known_done++]);
	while (progress->passed + progress->failed - known_count < runs && time(NULL) < end && progress->failed < max_failures)
		run_one(progress->next++);
}

int
main(int argc, char **argv)
{
	int64_t		runs = setting("SIM_RUNS", INT64_MAX);
	time_t		end = time(NULL) + setting("SIM_SECONDS", 30);
	bool		over = false;

	sim_tracing = setting("SIM_TRACE", 0) != 0;
	sim_print_notes = setting("SIM_QUIET", 0) == 0;
	max_failures = setting("SIM_FAILURES", 5);
	progress = mmap(NULL, sizeof(Progress), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	progress->next = (uint64_t) setting("SIM_SEED", 1);
	if (getenv("SIM_SEED") == NULL && argc > 1)
		read_known(argv[1]);
	while (!over)
	{
		int			status;
		pid_t		child;

		fflush(stdout);
		child = fork();
		if (child == 0)
		{
			run_many(runs, end);
			fflush(stdout);
			_exit(0);
		}
		over = waitpid(child, &status, 0) != child || WIFEXITED(status);
		if (!over)
			tell_failure(WTERMSIG(status) == SIGALRM ? "it doesn't come to an end" : strsignal(WTERMSIG(status)));
	}
	printf("# %lld events published in %lld steps\n%lld passed, %lld failed\n", (long long) progress->published,
		   (long long) progress->steps, (long long) progress->passed, (long long) progress->failed);
	return progress->failed > 0 || progress->passed == 0;
}
