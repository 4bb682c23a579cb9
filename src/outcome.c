/*
 * outcome.c
 *	  What becomes of an event after the broker's answer, or without one.
 *
 * An ack frees the successor at once. A failure is classified by
 * error_class.c: it waits for a retry, which may use up one of the event's
 * attempts; or it is final, and then the event stays in flight until
 * store_settle.c has recorded the verdict. Runs in the relay's main thread,
 * outside of transactions.
 */
#include "outbox.h"

#include "common/pg_prng.h"

#include "clock.h"
#include "error_class.h"
#include "relay.h"

#define SETTLE_DELAY_US 5000

/*
 * Failures that don't count are recorded only so that outbox.events can show
 * them; at most so many in a second, because an outage may bring any number.
 */
#define NOTES_PER_SECOND 256

static void
settle_soon(OutboxRelay *relay, int64 now)
{
	if (relay->settle_at == PG_INT64_MAX)
		relay->settle_at = now + SETTLE_DELAY_US;
}

static OutboxBackoff
backoff(void)
{
	OutboxBackoff result = {
		.base = outbox_retry_base_delay * INT64CONST(1000),
		.max = outbox_retry_max_delay * INT64CONST(1000),
		.jitter = pg_prng_double(&pg_global_prng_state),
		.ack_timeout = outbox_ack_timeout * INT64CONST(1000),
	};

	return result;
}

/* When to try again after so many failures in a row. */
int64
outbox_outcome_retry_time(int failures, int64 now)
{
	OutboxBackoff delays = backoff();

	return now + outbox_schedule_backoff(failures, delays.base, delays.max, delays.jitter);
}

/* Whether the broker's next outcomes would find a place. If not, settle first. */
bool
outbox_outcome_has_room(const OutboxRelay *relay)
{
	return relay->failure_count <= OUTBOX_FAILURE_BATCH - OUTBOX_POLL_BATCH &&
		relay->acked_count < OUTBOX_SETTLE_BATCH;
}

static void
acked(OutboxRelay *relay, OutboxEvent *event, int64 now)
{
	OutboxAcked *entry = &relay->acked[relay->acked_count++];

	entry->position = event->schedule.position;
	entry->home = event->home;
	entry->claim = event->claim;
	entry->has_delivery = event->has_delivery;
	entry->at = now;
	outbox_count_published(relay, event, now);
	settle_soon(relay, now);
	outbox_schedule_done(relay->schedule, &event->schedule, now);
}

/* A place in the list of failures; the caller fills in what is its own. */
OutboxFailure *
outbox_outcome_add_failure(OutboxRelay *relay, const OutboxEvent *event, int code, const char *text, int64 now)
{
	OutboxFailure *entry = &relay->failures[relay->failure_count++];

	entry->position = event->schedule.position;
	entry->agg_hash = event->agg_hash;
	entry->final = NULL;
	entry->counted = true;
	entry->retry_at = PG_INT64_MAX;
	entry->code = code;
	strlcpy(entry->text, text, sizeof(entry->text));
	settle_soon(relay, now);
	return entry;
}

/* Not with the broker any more. An operator may have asked to discard it: that comes before it is sent again. */
static void
take_back(OutboxRelay *relay, const OutboxEvent *event)
{
	outbox_claims_release(relay, event->claim, event->schedule.position);
	if (relay->requests_at != PG_INT64_MAX)
		relay->requests_at = 0;
}

/* The event itself was refused: an attempt that counts, perhaps the last one. */
static void
refused(OutboxRelay *relay, OutboxEvent *event, OutboxErrorClass class, int code, const char *text, int64 now)
{
	OutboxFailure *entry = outbox_outcome_add_failure(relay, event, code, text, now);

	if (class == OUTBOX_ERROR_PERMANENT || event->attempts + 1 >= outbox_max_attempts)
	{
		entry->final = event;
		return;
	}
	entry->retry_at = outbox_outcome_retry_time(event->schedule.failures + 1, now);
	take_back(relay, event);
	outbox_schedule_postpone(relay->schedule, &event->schedule, entry->retry_at, event->schedule.failures + 1);
}

/* Not the event's fault: the same id is sent again after a while. */
static void
put_off(OutboxRelay *relay, OutboxEvent *event, OutboxErrorClass class, int code, const char *text, int64 now)
{
	int64		retry_at = outbox_outcome_retry_time(event->schedule.failures + 1, now);

	if (now - relay->notes_from >= USECS_PER_SEC)
	{
		relay->notes_from = now;
		relay->notes_made = 0;
	}
	if (class == OUTBOX_ERROR_STREAM && relay->notes_made < NOTES_PER_SECOND)
	{
		OutboxFailure *entry = outbox_outcome_add_failure(relay, event, code, text, now);

		entry->counted = false;
		entry->retry_at = retry_at;
		relay->notes_made++;
	}
	take_back(relay, event);
	outbox_schedule_retry(relay->schedule, &event->schedule, retry_at, event->schedule.failures + 1);
}

/* The client, or the relay itself, refused to send the event. It is in flight to the schedule. */
void
outbox_outcome_refused(OutboxRelay *relay, OutboxEvent *event, int code, const char *text, int64 now)
{
	const char *source = event->broken != NULL ? "outbox relay" : outbox_error_source(BROKER_REFUSED, code);
	char		full[OUTBOX_FAILURE_TEXT_SIZE];

	snprintf(full, sizeof(full), "%s: %s", source, text);
	outbox_count_failure(relay, event, OUTBOX_ERROR_PERMANENT, source, code, full);
	refused(relay, event, OUTBOX_ERROR_PERMANENT, code, full, now);
}

/* All of a batch is stored. */
static void
run_acked(OutboxRelay *relay, OutboxEvent *first, int64 now)
{
	OutboxBackoff delays = backoff();
	int			count = first->run;
	OutboxEvent *event = first;

	outbox_flow_batch_outcome(&relay->flow, true, now, &delays);
	outbox_meter_count(&relay->self->counts, OUTBOX_COUNT_BATCHES, 1);
	for (int i = 0; i < count; i++)
	{
		OutboxEvent *behind = (OutboxEvent *) outbox_schedule_behind(&event->schedule);

		relay->in_flight_bytes -= event->schedule.bytes;
		(void) outbox_flow_outcome(&relay->flow, OUTBOX_ERROR_NONE, now, &delays);
		acked(relay, event, now);
		event = behind;
	}
}

/*
 * A batch that isn't acknowledged says nothing of any event in it: they go one
 * by one, and each has an outcome of its own. Without an answer the batch may
 * be stored, and then the stream drops what is sent again. False: the first
 * event is still in flight, and what happened is to be taken as its outcome.
 */
static bool
run_failed(OutboxRelay *relay, OutboxEvent *first, const BrokerOutcome *outcome, int64 now)
{
	OutboxBackoff delays = backoff();
	int			count = first->run;
	OutboxEvent *event = first;

	ereport(DEBUG1,
			(errmsg_internal("a batch of %d events was not acknowledged: %s", count, outcome->text)));
	if (outcome->kind != BROKER_LOST)
		outbox_flow_batch_outcome(&relay->flow, false, now, &delays);
	for (int i = 0; i < count; i++)
	{
		event->alone = true;
		if (event != first)
		{
			relay->in_flight_bytes -= event->schedule.bytes;
			outbox_claims_release(relay, event->claim, event->schedule.position);
		}
		event = (OutboxEvent *) outbox_schedule_behind(&event->schedule);
	}
	first->run = 0;
	/* Silence, or a lost connection, are the same for one event as for many. */
	if (outcome->kind == BROKER_TIMED_OUT || outcome->kind == BROKER_LOST)
		return false;
	relay->in_flight_bytes -= first->schedule.bytes;
	take_back(relay, first);
	outbox_schedule_return(relay->schedule, &first->schedule);
	return true;
}

/* What the broker reports about one message that it had accepted, or about a batch. */
void
outbox_outcome_take(OutboxRelay *relay, const BrokerOutcome *outcome, int64 now)
{
	OutboxEvent *event = outcome->cookie;
	OutboxErrorClass class = outbox_error_class(outcome->kind, outcome->code, outcome->status);
	const char *source = outbox_error_source(outcome->kind, outcome->code);
	OutboxBackoff delays = backoff();
	char		text[OUTBOX_FAILURE_TEXT_SIZE];

	if (event->run > 0 && class == OUTBOX_ERROR_NONE)
	{
		run_acked(relay, event, now);
		return;
	}
	if (event->run > 0 && run_failed(relay, event, outcome, now))
		return;
	relay->in_flight_bytes -= event->schedule.bytes;
	if (class == OUTBOX_ERROR_NONE)
	{
		(void) outbox_flow_outcome(&relay->flow, class, now, &delays);
		acked(relay, event, now);
		return;
	}
	if (outcome->code != 0)
		snprintf(text, sizeof(text), "%s error %d: %s", source, outcome->code, outcome->text);
	else
		snprintf(text, sizeof(text), "%s: %s", source, outcome->text);
	outbox_count_failure(relay, event, class, source, outcome->code, text);
	if (outcome->kind == BROKER_LOST)
	{
		take_back(relay, event);
		outbox_schedule_return(relay->schedule, &event->schedule);
		return;
	}
	(void) outbox_flow_outcome(&relay->flow, class, now, &delays);
	if (class == OUTBOX_ERROR_TRANSIENT || class == OUTBOX_ERROR_PERMANENT)
		refused(relay, event, class, outcome->code, text, now);
	else
		put_off(relay, event, class, outcome->code, text, now);
}
