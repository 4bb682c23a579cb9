/*
 * stream.h
 *	  What arrives at the stream.
 */
#ifndef SIM_STREAM_H
#define SIM_STREAM_H

#include "sim.h"
#include "message.h"
#include "store.h"

#include "broker.h"

extern void sim_stream_reset(void);

/* A message arrives. False: there is no answer. */
extern bool sim_stream_take(const SimMessage *message, BrokerOutcome *answer);

#endif							/* SIM_STREAM_H */
