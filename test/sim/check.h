/*
 * check.h
 *	  The promises, looked at whenever something happens that could break one.
 */
#ifndef SIM_CHECK_H
#define SIM_CHECK_H

#include "sim.h"
#include "store.h"

/* Of main.c: how to report. */
extern bool sim_tracing;
extern bool sim_print_notes;
extern char sim_failure[512];

extern void sim_check_start(void);

/* Database. */
extern void sim_check_commit(Xact *xact);	/* it becomes visible now */
extern void sim_check_ledger(const Thing *row);
extern void sim_check_failure(Row *row, char state, bool counted, int max_attempts);	/* a relay records it */
extern void sim_check_parked(Row *row);
extern void sim_check_discarded(int64_t position);
extern void sim_check_watermark(int64_t watermark, const Xact *own);
extern void sim_check_owner(uint64_t hash, Xact *xact);	/* a record for this aggregate that only its owner may make */

/* Relay and broker. */
extern void sim_check_built(const Row *row);
extern void sim_check_sent(int64_t position, int64_t first, bool scheduled, int64_t in_flight_bytes, int in_flight);
extern void sim_check_stored(Row *row);
extern void sim_check_acked(Row *row);
extern void sim_check_refusal(Row *row, bool for_good);	/* given to a relay; counts as an attempt */
extern void sim_check_relay_gone(SimProc *proc);

/* Ends. */
extern bool sim_is_settled(bool dead_too);	/* nothing is left to do; dead_too: but with dead letters */
extern char sim_unsettled[80];	/* what was, if not */
extern void sim_check_end(void);

extern int64_t sim_events_published;

#endif							/* SIM_CHECK_H */
