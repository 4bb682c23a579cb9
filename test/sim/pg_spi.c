/*
 * pg_spi.c
 *	  SPI: finds the function of pg_sql.c that stands for a statement, and gives
 *	  its results. Beside it, small functions of the server that fit nowhere else.
 */
#include "sql.h"

#include <time.h>

#include "fmgr.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

uint64		SPI_processed;
SPITupleTable *SPI_tuptable;

/* ---------- results ---------- */

static ResultRow *result;
static int	result_space;

static void
begin_result(void)
{
	SPI_tuptable = palloc0(sizeof(SPITupleTable));
	SPI_processed = 0;
	result = NULL;
	result_space = 0;
}

ResultRow *
sim_sql_add_result(void)
{
	if ((int) SPI_processed == result_space)
	{
		ResultRow  *larger;

		result_space = result_space * 2 + 16;
		larger = palloc0(sizeof(ResultRow) * result_space);
		if (result != NULL)
			memcpy(larger, result, sizeof(ResultRow) * SPI_processed);
		result = larger;
	}
	return &result[SPI_processed++];
}

static void
end_result(void)
{
	SPI_tuptable->vals = palloc(sizeof(HeapTuple) * (SPI_processed + 1));
	for (uint64 i = 0; i < SPI_processed; i++)
		SPI_tuptable->vals[i] = (HeapTuple) &result[i];
}

/* ---------- statements ---------- */

static uint64
checksum_of(const char *text)
{
	uint64		sum = UINT64CONST(0xCBF29CE484222325);

	for (; *text != '\0'; text++)
		sum = (sum ^ (uint8) *text) * UINT64CONST(0x100000001B3);
	return sum;
}

static const SqlStatement *
find(const char *query)
{
	uint64		checksum = checksum_of(query);

	for (int i = 0; i < sim_sql_statement_count; i++)
	{
		if (sim_sql_statements[i].checksum == checksum)
			return &sim_sql_statements[i];
	}
	for (int i = 0; i < sim_sql_statement_count; i++)
	{
		if (strncmp(query, sim_sql_statements[i].start, strlen(sim_sql_statements[i].start)) == 0)
			sim_fail("statement \"%s...\" has changed: its checksum is 0x%llX; see the head of test/sim/pg_sql.c",
					 sim_sql_statements[i].start, (unsigned long long) checksum);
	}
	sim_fail("the simulation doesn't know \"%s\", with checksum 0x%llX; see the head of test/sim/pg_sql.c",
			 query, (unsigned long long) checksum);
}

static int
run(const char *query, const Datum *values)
{
	const SqlStatement *statement = find(query);

	if (sim_self->pg->signals_blocked)
		sim_fail("SQL while signals are blocked");
	sim_pg_may_fail("a statement");
	sim_maybe_pass();
	if (statement->writes)
		(void) sim_pg_xact();
	begin_result();
	statement->run(values);
	end_result();
	return strncmp(query, "SELECT", 6) == 0 ? SPI_OK_SELECT : SPI_OK_UPDATE;
}

int
SPI_execute(const char *src, bool read_only, long tcount)
{
	return run(src, NULL);
}

int
SPI_execute_with_args(const char *src, int nargs, Oid *argtypes, Datum *Values, const char *Nulls, bool read_only, long tcount)
{
	return run(src, Values);
}

/* A cursor gives all rows at once, and then none. */
Portal
SPI_cursor_open_with_args(const char *name, const char *src, int nargs, Oid *argtypes, Datum *Values, const char *Nulls,
						  bool read_only, int cursorOptions)
{
	int		   *fetches = palloc0(sizeof(int));

	(void) run(src, Values);
	return (Portal) fetches;
}

void
SPI_cursor_fetch(Portal portal, bool forward, long count)
{
	int		   *fetches = (int *) portal;

	sim_maybe_pass();
	if ((*fetches)++ > 0)
		SPI_processed = 0;
}

void
SPI_cursor_close(Portal portal)
{
}

int
SPI_connect(void)
{
	return SPI_OK_CONNECT;
}

int
SPI_finish(void)
{
	return SPI_OK_FINISH;
}

void
SPI_freetuptable(SPITupleTable *tuptable)
{
}

Datum
SPI_getbinval(HeapTuple row, TupleDesc rowdesc, int colnumber, bool *isnull)
{
	const ResultRow *values = (const ResultRow *) row;

	*isnull = values->nulls[colnumber - 1];
	return values->values[colnumber - 1];
}

/* Only rows of outbox.pauses are asked for texts. */
char *
SPI_getvalue(HeapTuple row, TupleDesc rowdesc, int colnumber)
{
	const Thing *pause = (const Thing *) DatumGetPointer(((const ResultRow *) row)->values[0]);

	if (pause->type < 0 || pause->by_subject != (colnumber == 2))
		return NULL;
	return psprintf(pause->by_subject ? "outbox.t%d.>" : "t%d", pause->type);
}

/* ---------- the rest ---------- */

/* Of outbox.flush(), which nobody calls here. */
int
WaitLatch(Latch *latch, int wakeEvents, long timeout, uint32 wait_event_info)
{
	sim_fail("somebody waits for a latch alone");
}

Datum
timestamptz_pl_interval(PG_FUNCTION_ARGS)
{
	sim_fail("somebody adds an interval");
}

Datum
DirectFunctionCall2Coll(PGFunction func, Oid collation, Datum arg1, Datum arg2)
{
	sim_fail("somebody calls a function of SQL");
}

void
GetUserIdAndSecContext(Oid *userid, int *sec_context)
{
	*userid = 10;
	*sec_context = 0;
}

void
SetUserIdAndSecContext(Oid userid, int sec_context)
{
}

long
pgstat_report_stat(bool force)
{
	if (sim_self->pg->in_transaction)
		sim_fail("statistics are reported within a transaction");
	return 0;
}

void		pgstat_report_appname(const char *appname);

void
pgstat_report_appname(const char *appname)
{
}

void
pgstat_report_activity(BackendState state, const char *cmd_str)
{
}

TimestampTz
GetCurrentTimestamp(void)
{
	return sim_now + sim_wall_offset;
}

int			sim_clock_gettime(int clock, struct timespec *now);

int
sim_clock_gettime(int clock, struct timespec *now)
{
	now->tv_sec = sim_now / SECOND;
	now->tv_nsec = sim_now % SECOND * 1000;
	return 0;
}
