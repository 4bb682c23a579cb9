/*
 * test_points.c
 *	  Named places in the code where tests stop a process. Only in builds with
 *	  OUTBOX_TEST_POINTS (make TEST_POINTS=1); the SQL functions are created by
 *	  the tests themselves.
 */
#include "outbox.h"

#ifdef OUTBOX_TEST_POINTS

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/shmem.h"
#include "utils/builtins.h"

#define POINTS 8

/* Without locks: commit callbacks stop here, and tests arm one after another. */
typedef struct TestPoint
{
	char		name[NAMEDATALEN];
	pg_atomic_uint32 armed;
	pg_atomic_uint32 waiting;
} TestPoint;

static TestPoint *points = NULL;

PG_FUNCTION_INFO_V1(outbox_test_arm);
PG_FUNCTION_INFO_V1(outbox_test_release);
PG_FUNCTION_INFO_V1(outbox_test_waiting);

Size
outbox_test_shmem_size(void)
{
	return MAXALIGN(POINTS * sizeof(TestPoint));
}

void
outbox_test_shmem_init(void)
{
	bool		found;

	points = ShmemInitStruct("outbox test points", outbox_test_shmem_size(), &found);
	if (found)
		return;
	for (int i = 0; i < POINTS; i++)
	{
		points[i].name[0] = '\0';
		pg_atomic_init_u32(&points[i].armed, 0);
		pg_atomic_init_u32(&points[i].waiting, 0);
	}
}

static TestPoint *
find_point(const char *name, bool create)
{
	for (int i = 0; points != NULL && i < POINTS; i++)
	{
		if (strcmp(points[i].name, name) == 0)
			return &points[i];
		if (points[i].name[0] == '\0')
		{
			if (!create)
				return NULL;
			strlcpy(points[i].name, name, NAMEDATALEN);
			return &points[i];
		}
	}
	return NULL;
}

/* Stops here while the point is armed. Raises nothing: it is used in commit callbacks. */
void
outbox_test_point(const char *name)
{
	TestPoint  *point = find_point(name, false);

	if (point == NULL || pg_atomic_read_u32(&point->armed) == 0)
		return;
	pg_atomic_fetch_add_u32(&point->waiting, 1);
	while (pg_atomic_read_u32(&point->armed) != 0)
		pg_usleep(1000);
	pg_atomic_fetch_sub_u32(&point->waiting, 1);
}

/* outbox_test_arm(name text): who comes to the point from now on stops there. */
Datum
outbox_test_arm(PG_FUNCTION_ARGS)
{
	TestPoint  *point = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), true);

	if (point == NULL)
		elog(ERROR, "no test points left, or not preloaded");
	pg_atomic_write_u32(&point->armed, 1);
	PG_RETURN_VOID();
}

/* outbox_test_release(name text): lets them go. */
Datum
outbox_test_release(PG_FUNCTION_ARGS)
{
	TestPoint  *point = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);

	if (point != NULL)
		pg_atomic_write_u32(&point->armed, 0);
	PG_RETURN_VOID();
}

/* outbox_test_waiting(name text) RETURNS integer: how many processes stand there. */
Datum
outbox_test_waiting(PG_FUNCTION_ARGS)
{
	TestPoint  *point = find_point(text_to_cstring(PG_GETARG_TEXT_PP(0)), false);

	PG_RETURN_INT32(point == NULL ? 0 : (int32) pg_atomic_read_u32(&point->waiting));
}

#endif
