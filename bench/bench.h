/*
 * bench.h
 *	  What the benchmark programs share. The includer defines PROGRAM, its name,
 *	  and the function usage().
 */
#ifndef OUTBOX_BENCH_H
#define OUTBOX_BENCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <nats/nats.h>

static void usage(void);

static int64_t
now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static int
compare_int64(const void *a, const void *b)
{
	int64_t		left = *(const int64_t *) a;
	int64_t		right = *(const int64_t *) b;

	return (left > right) - (left < right);
}

static void
fail(const char *what, const char *why)
{
	fprintf(stderr, "%s: could not %s: %s\n", PROGRAM, what, why);
	exit(1);
}

static void
check(natsStatus status, const char *what)
{
	const char *text;

	if (status == NATS_OK)
		return;
	text = nats_GetLastError(NULL);
	fail(what, text == NULL || text[0] == '\0' ? natsStatus_GetText(status) : text);
}

static long
parse_number(const char *text, long min)
{
	char	   *end;
	long		number = strtol(text, &end, 10);

	if (*text == '\0' || *end != '\0' || number < min)
		usage();
	return number;
}

#endif							/* OUTBOX_BENCH_H */
