/*
 * cli_common.c
 *	  What the commands share: complaints about arguments, numbers, the time.
 */
#include "cli_common.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

bool
cli_complain(const char *format, ...)
{
	va_list		arguments;

	fprintf(stderr, "%s: ", cli_program);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, "\nTry \"%s --help\".\n", cli_program);
	return false;
}

bool
cli_read_number(const char *name, const char *text, int64_t min, int64_t max, int64_t *value)
{
	char	   *end;

	errno = 0;
	*value = strtoll(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || *value < min || *value > max)
		return cli_complain("--%s must be a number from %lld to %lld, not \"%s\"", name, (long long) min, (long long) max, text);
	return true;
}

int64_t
cli_now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t) now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
