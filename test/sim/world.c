/*
 * world.c
 *	  Chance, time and what is due next; the trace and the end of a run that
 *	  went wrong.
 */
#include "sim.h"
#include "check.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t		sim_now;
int64_t		sim_wall_offset;
int64_t		sim_wall_offset_max;
int64_t		sim_steps;

static uint64_t state;
static jmp_buf *failed_run;

/* ---------- chance ---------- */

uint64_t
sim_random(void)
{
	uint64_t	z = (state += UINT64_C(0x9E3779B97F4A7C15));

	z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
	return z ^ (z >> 31);
}

int
sim_below(int n)
{
	return (int) (sim_random() % (uint64_t) n);
}

int64_t
sim_between(int64_t low, int64_t high)
{
	return low + (int64_t) (sim_random() % (uint64_t) (high - low + 1));
}

bool
sim_one_in(int n)
{
	return n > 0 && sim_below(n) == 0;
}

uint64_t
sim_fingerprint(void)
{
	return state ^ (uint64_t) sim_now ^ (uint64_t) sim_steps << 40;
}

/* ---------- trace ---------- */

typedef struct Note
{
	int64_t		time;
	const char *who;
	int			number;
	const char *format;
	int64_t		values[4];
} Note;

/* The last ones are printed when a run fails. */
#define NOTES 64
static Note notes[NOTES];
static int64_t note_count;

static void
print_note(FILE *out, const Note *note)
{
	fprintf(out, "# %11.6f %s", (double) note->time / SECOND, note->who);
	if (note->number >= 0)
		fprintf(out, " %d", note->number);
	fprintf(out, ": ");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
	fprintf(out, note->format, note->values[0], note->values[1], note->values[2], note->values[3]);
#pragma GCC diagnostic pop
	fputc('\n', out);
}

void
sim_note(const char *format, int64_t a, int64_t b, int64_t c, int64_t d)
{
	static const char *const roles[] = {"relay", "writer", "operator", "launcher"};
	Note	   *note = &notes[note_count++ % NOTES];

	const char *who = sim_self == NULL ? "world" : roles[sim_self->role];
	int			number = sim_self == NULL ? -1 : sim_self->number;

	*note = (Note) {sim_now, who, number, format, {a, b, c, d}};
	if (sim_tracing)
		print_note(stdout, note);
}

void
sim_fail(const char *format, ...)
{
	va_list		arguments;

	va_start(arguments, format);
	vsnprintf(sim_failure, sizeof(sim_failure), format, arguments);
	va_end(arguments);
	if (!sim_tracing && sim_print_notes)
	{
		for (int64_t i = note_count > NOTES ? note_count - NOTES : 0; i < note_count; i++)
			print_note(stdout, &notes[i % NOTES]);
	}
	sim_self = NULL;
	_longjmp(*failed_run, 1);
}

/* ---------- what is due ---------- */

typedef struct Timer
{
	int64_t		time;
	int64_t		order;			/* of those at the same time */
	void		(*action)(void *arg, int64_t number);
	void	   *arg;
	int64_t		number;
} Timer;

static Timer *timers;			/* a heap */
static int	timer_count;
static int	timer_space;
static int64_t timer_order;

static bool
earlier(const Timer *a, const Timer *b)
{
	return a->time != b->time ? a->time < b->time : a->order < b->order;
}

void
sim_at(int64_t time, void (*action)(void *arg, int64_t number), void *arg, int64_t number)
{
	Timer		timer = {time < sim_now ? sim_now : time, timer_order++, action, arg, number};
	int			i = timer_count++;

	if (timer_count > timer_space)
	{
		timer_space = timer_space * 2 + 256;
		timers = realloc(timers, sizeof(Timer) * timer_space);
	}
	for (; i > 0 && earlier(&timer, &timers[(i - 1) / 2]); i = (i - 1) / 2)
		timers[i] = timers[(i - 1) / 2];
	timers[i] = timer;
}

static Timer
pop_timer(void)
{
	Timer		first = timers[0];
	Timer		last = timers[--timer_count];
	int			i = 0;

	for (int child = 1; child < timer_count; i = child, child = 2 * i + 1)
	{
		if (child + 1 < timer_count && earlier(&timers[child + 1], &timers[child]))
			child++;
		if (!earlier(&timers[child], &last))
			break;
		timers[i] = timers[child];
	}
	timers[i] = last;
	return first;
}

bool
sim_step(void)
{
	SimProc    *next = NULL;
	int64_t		due = SIM_NEVER;
	int			equals = 0;

	for (int i = 0; i < SIM_PROCS; i++)
	{
		int64_t		time = sim_procs[i].alive ? sim_proc_due(&sim_procs[i]) : SIM_NEVER;

		/* Of those at the same time any may be first. */
		if (time < due || (time == due && next != NULL && sim_one_in(++equals)))
		{
			if (time < due)
				equals = 1;
			next = &sim_procs[i];
			due = time;
		}
	}
	sim_steps++;
	if (timer_count > 0 && timers[0].time <= due)
	{
		Timer		timer = pop_timer();

		sim_now = timer.time > sim_now ? timer.time : sim_now;
		timer.action(timer.arg, timer.number);
		return true;
	}
	if (next == NULL)
		return false;
	sim_now = due > sim_now ? due : sim_now;
	sim_proc_run(next);
	return true;
}

void
sim_world_start(uint64_t seed, jmp_buf *failed)
{
	failed_run = failed;
	state = seed * UINT64_C(0xD1342543DE82EF95) + 1;
	sim_now = 1000 * SECOND;
	sim_wall_offset = INT64_C(700000000) * SECOND;	/* 2022, in PostgreSQL's time */
	sim_wall_offset_max = sim_wall_offset;
	sim_steps = 0;
	note_count = 0;
	timer_count = 0;
	timer_order = 0;
	sim_self = NULL;
}
