/*
 * pg_process.h
 *	  What the rest of the simulation wants of PostgreSQL's side.
 */
#ifndef SIM_PG_PROCESS_H
#define SIM_PG_PROCESS_H

#include "sim.h"

extern void sim_pg_start(SimProc *proc);	/* fresh globals */
extern void sim_pg_forget(SimProc *proc);	/* its memory and locks */
extern void sim_pg_switch_to(SimProc *proc);
extern void sim_pg_switch_from(SimProc *proc);

extern void sim_pg_signal(SimProc *proc, int signal);
extern void sim_pg_latch(SimProc *proc);

/* Whether a relay is a member, with all of these slots. */
extern bool sim_pg_is_owner(SimProc *proc, uint64_t slots);

/* Nothing is left in shared memory of what is over. */
extern void sim_pg_check_end(void);

/* A server begins: shared memory is empty. */
extern void sim_pg_server_start(void);

#endif							/* SIM_PG_PROCESS_H */
