/*
 * flow.c
 *	  How many events may be in flight, and how many may go together.
 *
 * While the circuit is closed: each ack widens the window by one, each failure
 * that isn't the event's own halves it. It opens when an answer blames the
 * broker as a whole, when many messages in a row get no answer at all, or a few
 * for a long time; then one probe is sent at a time, with growing pauses, until
 * something is answered in another way. A stream or subject in trouble doesn't
 * open it: that must not stop the others.
 */
#include "flow.h"

#include "schedule.h"

static inline int
smaller(int a, int b)
{
	return a < b ? a : b;
}

void
outbox_flow_reset(OutboxFlow *flow, int max_window)
{
	flow->max_window = max_window;
	flow->window = smaller(OUTBOX_MIN_WINDOW, max_window);
	flow->silent = 0;
	flow->answered_at = INT64_MIN;
	flow->silent_since = 0;
	flow->open = false;
	flow->failures = 0;
	flow->probe_at = INT64_MAX;
	flow->batch_failures = 0;
	flow->batch_at = INT64_MIN;
}

void
outbox_flow_set_max(OutboxFlow *flow, int max_window)
{
	flow->max_window = max_window;
	flow->window = smaller(flow->window, max_window);
}

static void
halve(OutboxFlow *flow)
{
	int			least = smaller(OUTBOX_MIN_WINDOW, flow->max_window);

	flow->window /= 2;
	if (flow->window < least)
		flow->window = least;
}

/* A failure that blames the broker. Those that were in flight with the first one don't prolong the pause. */
static bool
trouble(OutboxFlow *flow, int64_t now, const OutboxBackoff *backoff)
{
	bool		opened = !flow->open;

	if (flow->open && flow->probe_at != INT64_MAX)
		return false;
	flow->open = true;
	flow->failures++;
	flow->probe_at = now + outbox_schedule_backoff(flow->failures, backoff->base, backoff->max, backoff->jitter);
	return opened;
}

/* No answer. Whether that has been so often enough, or for long enough, to blame the broker. */
static bool
too_silent(OutboxFlow *flow, int64_t now, int64_t ack_timeout)
{
	/* This one has waited for so long; an idle time before it says nothing. */
	if (flow->silent++ == 0)
		flow->silent_since = flow->answered_at > now - ack_timeout ? flow->answered_at : now - ack_timeout;
	return flow->silent >= OUTBOX_SILENT_LIMIT ||
		(flow->silent >= OUTBOX_SILENT_TIMEOUTS && now - flow->silent_since >= OUTBOX_SILENT_TIMEOUTS * ack_timeout);
}

/* An answer: the broker is at work. */
static bool
close_circuit(OutboxFlow *flow, int64_t now)
{
	bool		was_open = flow->open;

	flow->answered_at = now;
	flow->silent = 0;
	flow->open = false;
	flow->failures = 0;
	return was_open;
}

/*
 * Silence may be about a few subjects only, where somebody else listens: others
 * must not wait for long behind those, and each silent probe takes its time anyway.
 */
static OutboxBackoff
after_silence(const OutboxBackoff *backoff)
{
	OutboxBackoff result = *backoff;

	if (result.max > backoff->ack_timeout)
		result.max = backoff->ack_timeout;
	return result;
}

bool
outbox_flow_outcome(OutboxFlow *flow, OutboxErrorClass class, int64_t now, const OutboxBackoff *backoff)
{
	OutboxBackoff silence = after_silence(backoff);

	switch (class)
	{
		case OUTBOX_ERROR_NONE:
			flow->window = smaller(flow->window + 1, flow->max_window);
			return close_circuit(flow, now);
		case OUTBOX_ERROR_TRANSIENT:
		case OUTBOX_ERROR_PERMANENT:
			return close_circuit(flow, now);
		case OUTBOX_ERROR_STREAM:
			halve(flow);
			return close_circuit(flow, now);
		case OUTBOX_ERROR_BROKER:
			halve(flow);
			return trouble(flow, now, backoff);
		case OUTBOX_ERROR_UNKNOWN:
			halve(flow);
			/* An unanswered probe has failed, too, whatever opened the circuit. */
			return (too_silent(flow, now, backoff->ack_timeout) || flow->open) && trouble(flow, now, &silence);
	}
	return false;
}

bool
outbox_flow_may_send(const OutboxFlow *flow, int in_flight, int64_t now)
{
	if (flow->open)
		return in_flight == 0 && now >= flow->probe_at;
	return in_flight < flow->window;
}

void
outbox_flow_sent(OutboxFlow *flow)
{
	if (flow->open)
		flow->probe_at = INT64_MAX;
}

int
outbox_flow_max_run(const OutboxFlow *flow, int in_flight, int batches, int64_t now)
{
	int			room = smaller(flow->window - in_flight, OUTBOX_MAX_RUN);

	/* A probe is one event. */
	if (flow->open || batches >= OUTBOX_MAX_BATCHES || now < flow->batch_at || room < OUTBOX_MIN_RUN)
		return 1;
	return room;
}

void
outbox_flow_batch_outcome(OutboxFlow *flow, bool acked, int64_t now, const OutboxBackoff *backoff)
{
	if (acked)
	{
		flow->batch_failures = 0;
		return;
	}
	flow->batch_failures++;
	flow->batch_at = now + outbox_schedule_backoff(flow->batch_failures, backoff->base, backoff->max, backoff->jitter);
}

int64_t
outbox_flow_next_time(const OutboxFlow *flow)
{
	return flow->open ? flow->probe_at : INT64_MAX;
}
