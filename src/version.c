/*
 * version.c
 *	  Which versions of the SQL objects this library works with.
 *
 * The version comes from the control file, by the Makefile. A library is loaded
 * at the server's start, the SQL objects change by ALTER EXTENSION, so for a
 * while the two may differ.
 */
#include "standing.h"

/* Can be found in the file, and is not folded into code: t/152 makes "other versions" of the library. */
#define STAMP "outbox library version "
extern char outbox_version_stamp[];
char outbox_version_stamp[] = STAMP OUTBOX_VERSION;

const char *
outbox_version(void)
{
	return outbox_version_stamp + strlen(STAMP);
}

/* Whether relays and the like work with the SQL objects of a version. A release that changes none of them lists its predecessor here. */
bool
outbox_version_knows(const char *installed)
{
	return strcmp(installed, outbox_version()) == 0;
}

/* Of two versions "1.2.3": -1, 0, 1. */
int
outbox_version_compare(const char *left, const char *right)
{
	while (*left != '\0' || *right != '\0')
	{
		char	   *left_end;
		char	   *right_end;
		unsigned long a = strtoul(left, &left_end, 10);
		unsigned long b = strtoul(right, &right_end, 10);

		if (a != b)
			return a < b ? -1 : 1;
		/* Something that is no number. */
		if (left_end == left || right_end == right)
			return strcmp(left, right);
		left = left_end + (*left_end == '.');
		right = right_end + (*right_end == '.');
	}
	return 0;
}
