/*
 * flow.h
 *	  How many events may be in flight: a window that shrinks with failures,
 *	  and a circuit that opens when the broker as a whole takes nothing; and how
 *	  many of one aggregate may go together.
 *
 * Pure logic like schedule.h: no clock of its own, no allocation.
 */
#ifndef OUTBOX_FLOW_H
#define OUTBOX_FLOW_H

#include <stdbool.h>
#include <stdint.h>

#include "error_class.h"

/* The window never shrinks below this: acks of the good must get through beside the bad. */
#define OUTBOX_MIN_WINDOW 16

/* So many messages in a row without any answer open the circuit ... */
#define OUTBOX_SILENT_LIMIT 16

/* ... and so many of them, if it was silent for as many times the ack timeout. */
#define OUTBOX_SILENT_TIMEOUTS 3

/*
 * A batch costs the server some milliseconds, whatever its size: fewer events
 * than OUTBOX_MIN_RUN are quicker one by one. The most that a server takes is
 * 1,000, unless it is set otherwise, and 50 batches at once in a stream: all
 * relays of a database together must keep below that.
 */
#ifndef OUTBOX_MIN_RUN
#define OUTBOX_MIN_RUN 64
#define OUTBOX_MAX_RUN 1000
#endif
#define OUTBOX_MAX_BATCHES 6

typedef struct OutboxFlow
{
	int			max_window;
	int			window;			/* messages in flight at most, while the circuit is closed */
	int			silent;			/* unanswered ones since the last answer */
	int64_t		answered_at;	/* the last answer; INT64_MIN: none yet */
	int64_t		silent_since;	/* while silent > 0: something was sent and nothing answered */
	bool		open;			/* one probe at a time, at probe_at */
	int			failures;		/* probes that failed in a row, for the back-off */
	int64_t		probe_at;		/* INT64_MAX: the probe is in flight */
	int			batch_failures; /* in a row */
	int64_t		batch_at;		/* no batch before this time */
} OutboxFlow;

/* Delays of the retries and the time to wait for an answer, microseconds; jitter is a random number in [0, 1). */
typedef struct OutboxBackoff
{
	int64_t		base;
	int64_t		max;
	double		jitter;
	int64_t		ack_timeout;
} OutboxBackoff;

/* At start, and for a new connection: circuit closed, smallest window. */
extern void outbox_flow_reset(OutboxFlow *flow, int max_window);
extern void outbox_flow_set_max(OutboxFlow *flow, int max_window);

/* Takes note of a message's outcome; OUTBOX_ERROR_NONE: an ack. True if the circuit opened or closed with it. */
extern bool outbox_flow_outcome(OutboxFlow *flow, OutboxErrorClass class, int64_t now, const OutboxBackoff *backoff);

/* Whether one more message may be sent, with so many in flight; call outbox_flow_sent() when it was. */
extern bool outbox_flow_may_send(const OutboxFlow *flow, int in_flight, int64_t now);
extern void outbox_flow_sent(OutboxFlow *flow);

/*
 * How many events of one aggregate may be sent as one batch, with so many
 * events and batches in flight; 1: none may. A batch that failed in any way
 * stops batches for a while, for longer each time: whatever doesn't suit the
 * server, what it costs stays small.
 */
extern int	outbox_flow_max_run(const OutboxFlow *flow, int in_flight, int batches, int64_t now);
extern void outbox_flow_batch_outcome(OutboxFlow *flow, bool acked, int64_t now, const OutboxBackoff *backoff);

/* When outbox_flow_may_send() may turn true by time alone; INT64_MAX: not by time. */
extern int64_t outbox_flow_next_time(const OutboxFlow *flow);

#endif /* OUTBOX_FLOW_H */
