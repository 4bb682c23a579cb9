/*
 * session.h
 *	  What sessions have in common, and the operator's.
 */
#ifndef SIM_SESSION_H
#define SIM_SESSION_H

#include "pg.h"

/* actors.c */
extern void sim_attach_shmem(void); /* the first thing of every process */
extern void sim_session_begin(void);
extern void sim_finish_prepared(bool all);

/* operator.c */
extern void sim_operator_main(void);
extern void sim_operator_reset(void);

/* An error ends the transaction, not the process. */
#define SESSION_LOOP_BEGIN \
	sigjmp_buf	local; \
	sim_attach_shmem(); \
	if (sigsetjmp(local, 0) != 0) \
	{ \
		sim_release_lwlocks(); \
		sim_pg_abort(); \
		sim_pass(sim_between(1, 10 * MS)); \
	} \
	PG_exception_stack = &local

#endif							/* SIM_SESSION_H */
