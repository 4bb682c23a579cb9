/*
 * pg_error.c
 *	  ereport() and its kin. Texts are made only where somebody sees them.
 */
#include "pg.h"

#include "utils/memutils.h"

#include <stdarg.h>
#include <stdio.h>

bool
errstart(int elevel, const char *domain)
{
	PgProcess  *pg = sim_self->pg;

	pg->error_level = elevel;
	pg->error_code = 0;
	pg->error_text[0] = '\0';
	return elevel >= ERROR || (elevel >= LOG && sim_tracing);
}

bool
errstart_cold(int elevel, const char *domain)
{
	return errstart(elevel, domain);
}

void
errfinish(const char *filename, int lineno, const char *funcname)
{
	PgProcess  *pg = sim_self->pg;

	if (pg->error_level < ERROR)
	{
		sim_trace("says: %s", (intptr_t) sim_keep(pg->error_text, sizeof(pg->error_text)));
		return;
	}
	if (pg->signals_blocked)
		sim_fail("an error while signals are blocked: %s", pg->error_text);
	sim_trace("ERROR: %s", (intptr_t) sim_keep(pg->error_text, sizeof(pg->error_text)));
	if (pg->exiting || PG_exception_stack == NULL)
		sim_fail("nobody catches: %s", pg->error_text);
	siglongjmp(*PG_exception_stack, 1);
}

void
pg_re_throw(void)
{
	siglongjmp(*PG_exception_stack, 1);
}

int
errcode(int sqlerrcode)
{
	sim_self->pg->error_code = sqlerrcode;
	return 0;
}

static int
set_text(const char *format, va_list arguments)
{
	PgProcess  *pg = sim_self->pg;

#undef vsnprintf
	vsnprintf(pg->error_text, sizeof(pg->error_text), format, arguments);
	return 0;
}

#define MESSAGE_FUNCTION(name) \
	int name(const char *fmt, ...) \
	{ \
		va_list		arguments; \
		va_start(arguments, fmt); \
		set_text(fmt, arguments); \
		va_end(arguments); \
		return 0; \
	}

MESSAGE_FUNCTION(errmsg)
MESSAGE_FUNCTION(errmsg_internal)

#define DETAIL_FUNCTION(name) \
	int name(const char *fmt, ...) \
	{ \
		return 0; \
	}

DETAIL_FUNCTION(errdetail)
DETAIL_FUNCTION(errhint)
DETAIL_FUNCTION(errcontext_msg)

int
set_errcontext_domain(const char *domain)
{
	return 0;
}

ErrorData *
CopyErrorData(void)
{
	ErrorData  *error = palloc0(sizeof(ErrorData));

	error->sqlerrcode = sim_self->pg->error_code;
	error->message = pstrdup(sim_self->pg->error_text);
	return error;
}

void
FlushErrorState(void)
{
}

/* What is simulated of subtransactions: that a row is read in one. */
void
BeginInternalSubTransaction(const char *name)
{
}

void
ReleaseCurrentSubTransaction(void)
{
}

void
RollbackAndReleaseCurrentSubTransaction(void)
{
}

#if PG_VERSION_NUM >= 160000
void
ExceptionalCondition(const char *conditionName, const char *fileName, int lineNumber)
#else
void		ExceptionalCondition(const char *conditionName, const char *errorType, const char *fileName, int lineNumber);

void
ExceptionalCondition(const char *conditionName, const char *errorType, const char *fileName, int lineNumber)
#endif
{
	sim_fail("assertion failed: %s, %s:%d", conditionName, fileName, lineNumber);
}

void		sim_assert_failed(const char *condition, const char *file, unsigned int line, const char *function);

/* assert() of the schedule */
void
sim_assert_failed(const char *condition, const char *file, unsigned int line, const char *function)
{
	sim_fail("assertion failed: %s, %s:%u", condition, file, line);
}

/* A statement of a relay may fail for reasons of its own: a full disk, say. */
void
sim_pg_may_fail(const char *where)
{
	if (sim_faults && sim_self->role == SIM_RELAY && sim_one_in(plan.error))
		ereport(ERROR,
				(errcode(ERRCODE_DISK_FULL),
				 errmsg("simulated failure of %s", where)));
}
