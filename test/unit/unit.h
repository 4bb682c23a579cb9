/*
 * unit.h
 *	  The few lines of TAP that the unit tests need, and reproducible random
 *	  numbers. Each test is one program of one file, so the state can live here.
 */
#ifndef OUTBOX_UNIT_H
#define OUTBOX_UNIT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

static int	unit_planned = -1;
static int	unit_run;
static int	unit_failed;

/* Announces the number of tests; without it unit_done() prints how many ran. */
static inline void
plan(int tests)
{
	unit_planned = tests;
	printf("1..%d\n", tests);
}

__attribute__((format(printf, 1, 2))) static inline void
diag(const char *format, ...)
{
	va_list		arguments;

	printf("# ");
	va_start(arguments, format);
	vprintf(format, arguments);
	va_end(arguments);
	printf("\n");
	fflush(stdout);
}

/* One test point; a failed one also says where it stands. Returns the condition. */
#define ok(condition, ...) unit_ok((condition), __FILE__, __LINE__, __VA_ARGS__)

__attribute__((format(printf, 4, 5))) static inline bool
unit_ok(bool condition, const char *file, int line, const char *format, ...)
{
	va_list		arguments;
	char		name[400];

	va_start(arguments, format);
	vsnprintf(name, sizeof(name), format, arguments);
	va_end(arguments);
	for (char *c = name; *c != '\0'; c++)
		if ((unsigned char) *c < ' ' || *c == 127)
			*c = '?';			/* a line break in a name would not be TAP */
	printf("%s %d - %s\n", condition ? "ok" : "not ok", ++unit_run, name);
	if (!condition)
	{
		unit_failed++;
		diag("failed at %s:%d", file, line);
	}
	fflush(stdout);				/* what was passed stays visible if the next one crashes */
	return condition;
}

/* The program's exit code: 0 if all passed and as many ran as were planned. */
static inline int
unit_done(void)
{
	if (unit_planned < 0)
		plan(unit_run);
	if (unit_planned != unit_run)
		diag("planned %d tests, but ran %d", unit_planned, unit_run);
	if (unit_failed > 0)
		diag("%d of %d failed", unit_failed, unit_run);
	return unit_failed > 0 || unit_planned != unit_run;
}

/* ---------- random numbers ---------- */

static inline uint64_t
mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static uint64_t random_state;

static inline uint64_t
next_random(void)
{
	return mix(random_state++);
}

/* 0 .. n - 1 */
static inline int
below(int n)
{
	return (int) (next_random() % (uint64_t) n);
}

static inline bool
one_in(int n)
{
	return below(n) == 0;
}

#endif							/* OUTBOX_UNIT_H */
