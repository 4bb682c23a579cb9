/*
 * publisher.c
 *	  Between the schedule and the broker: sends ready heads, takes outcomes.
 *
 * Every call into broker.c is made with all signals blocked, because the
 * library starts threads that would inherit the mask and then run our signal
 * handlers. Inside such a stretch nothing may raise an error.
 */
#include "outbox.h"

#include <signal.h>

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"

#include "encode.h"
#include "relay.h"

/* The window never shrinks below this: acks of the good must get through beside the bad. */
#define MIN_WINDOW 16

/* Time for a connection attempt under way to end when the process does. */
#define EXIT_GRACE_MS 2500

#define OUTCOMES_PER_POLL 256

#define DUPLICATE_WINDOW_MS (2 * 60 * 1000)

static OutboxRelay *exiting_relay = NULL;

static void
block_signals(sigset_t *saved)
{
	sigset_t	all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, saved);
}

static void
restore_signals(const sigset_t *saved)
{
	pthread_sigmask(SIG_SETMASK, saved, NULL);
}

/* on_proc_exit, after shared memory is detached: nothing else needs the library any more. */
static void
close_broker(int code, Datum arg)
{
	sigset_t	saved;

	if (exiting_relay == NULL || exiting_relay->broker == NULL)
		return;
	block_signals(&saved);
	/* A thread left inside the library must not see the process's exit handlers run. */
	if (!broker_destroy(exiting_relay->broker, EXIT_GRACE_MS))
		_exit(code);
	exiting_relay->broker = NULL;
	restore_signals(&saved);
}

/* Makes the broker and starts connecting. */
void
outbox_publisher_start(OutboxRelay *relay)
{
	sigset_t	saved;

	relay->window = MIN_WINDOW;
	relay->free_claims = MemoryContextAlloc(TopMemoryContext, OUTBOX_MAX_CLAIMED * sizeof(int));
	for (int i = 0; i < OUTBOX_MAX_CLAIMED; i++)
	{
		pg_atomic_write_u64(&relay->database->claimed[i], 0);
		relay->free_claims[relay->free_claim_count++] = i;
	}

	exiting_relay = relay;
	on_proc_exit(close_broker, (Datum) 0);
	block_signals(&saved);
	relay->broker = broker_create();
	restore_signals(&saved);
	if (relay->broker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not start the NATS client"),
				 errdetail("Memory, descriptors or threads are exhausted.")));
	outbox_publisher_configure(relay);
}

/* Hands the settings over; after a reload too. */
void
outbox_publisher_configure(OutboxRelay *relay)
{
	char		subjects[OUTBOX_MAX_TEMPLATE + 2];
	sigset_t	saved;
	bool		ok;
	BrokerConfig config = {
		.url = outbox_nats_url,
		.credentials_file = outbox_credentials_file,
		.nkey_seed_file = outbox_nkey_seed_file,
		.tls_ca_file = outbox_tls_ca_file,
		.tls_cert_file = outbox_tls_cert_file,
		.tls_key_file = outbox_tls_key_file,
		.client_name = "outbox relay",
		.inbox_prefix = outbox_inbox_prefix,
		.stream = outbox_stream,
		.stream_subjects = subjects,
		.stream_create = outbox_stream_create,
		.duplicate_window_ms = DUPLICATE_WINDOW_MS,
		.ack_timeout_ms = outbox_ack_timeout,
		.connect_timeout_ms = outbox_connect_timeout,
		.reconnect_base_ms = outbox_retry_base_delay,
		.reconnect_max_ms = outbox_retry_max_delay,
		.max_in_flight = outbox_max_in_flight,
	};

	if (outbox_encode_stream_subjects(outbox_subject_template, subjects, sizeof(subjects)) < 0)
		elog(ERROR, "subject template is too long");
	block_signals(&saved);
	ok = broker_configure(relay->broker, &config);
	restore_signals(&saved);
	if (!ok)
		outbox_relay_out_of_memory();
	relay->window = Min(relay->window, outbox_max_in_flight);
}

/* ------------------------------------------------------------- outcomes */

static void
remember_error(OutboxRelay *relay, const OutboxEvent *event, int code, const char *text)
{
	OutboxRelayStatus *status = &relay->database->status;

	LWLockAcquire(&relay->database->status_lock, LW_EXCLUSIVE);
	snprintf(status->last_error, sizeof(status->last_error), "%s (%d), publishing to \"%s\" in stream \"%s\"",
			 text, code, event->message.subject, outbox_stream);
	LWLockRelease(&relay->database->status_lock);
}

static void
release_claim(OutboxRelay *relay, OutboxEvent *event)
{
	pg_atomic_write_u64(&relay->database->claimed[event->claim], 0);
	relay->free_claims[relay->free_claim_count++] = event->claim;
	event->claim = -1;
}

static void
settle_soon(OutboxRelay *relay, TimestampTz now)
{
	if (relay->settle_at == DT_NOEND)
		relay->settle_at = now + 5 * 1000;
}

static void
acked(OutboxRelay *relay, OutboxEvent *event, TimestampTz now)
{
	OutboxAcked *entry = &relay->acked[relay->acked_count++];

	entry->position = event->schedule.position;
	entry->child = event->child;
	entry->claim = event->claim;
	entry->had_failed = event->schedule.attempts > 0;
	settle_soon(relay, now);
	relay->window = Min(relay->window + 1, outbox_max_in_flight);
	outbox_schedule_done(relay->schedule, &event->schedule, now);
}

static TimestampTz
retry_time(int attempts, TimestampTz now)
{
	int64		base = outbox_retry_base_delay * INT64CONST(1000);
	int64		max = outbox_retry_max_delay * INT64CONST(1000);

	return now + outbox_schedule_backoff(attempts, base, max, pg_prng_double(&pg_global_prng_state));
}

/* The event itself was refused: an attempt that counts, recorded with its reason. */
static void
refused(OutboxRelay *relay, OutboxEvent *event, int code, const char *text, TimestampTz now)
{
	int			attempts = event->schedule.attempts + 1;
	TimestampTz retry_at = retry_time(attempts, now);

	if (relay->refused_count < OUTBOX_REFUSED_BATCH)
	{
		OutboxRefused *entry = &relay->refused[relay->refused_count++];

		entry->position = event->schedule.position;
		entry->next_attempt_at = retry_at;
		entry->code = code;
		strlcpy(entry->text, text, sizeof(entry->text));
		settle_soon(relay, now);
	}
	release_claim(relay, event);
	outbox_schedule_retry(relay->schedule, &event->schedule, retry_at, attempts);
}

/*
 * No answer, none that counts, or a refusal that isn't about this event. The
 * same id is sent again after a while; no attempt is counted in the database.
 * Fewer go out at a time until acks come again.
 */
static void
unanswered(OutboxRelay *relay, OutboxEvent *event, TimestampTz now)
{
	int			attempts = event->schedule.attempts + 1;

	relay->window = Max(relay->window / 2, Min(MIN_WINDOW, outbox_max_in_flight));
	release_claim(relay, event);
	outbox_schedule_retry(relay->schedule, &event->schedule, retry_time(attempts, now), attempts);
}

/*
 * JetStream error codes that refuse an event for what it is; all others are
 * about the stream or the server, and so about every event alike.
 */
static bool
is_about_event(int code)
{
	switch (code)
	{
		case 10054:				/* larger than the stream's max_msg_size */
		case 10070:				/* expected last message id */
		case 10071:				/* expected last sequence */
		case 10111:				/* rollup not permitted */
			return true;
		default:
			return false;
	}
}

static void
take_outcome(OutboxRelay *relay, const BrokerOutcome *outcome, TimestampTz now)
{
	OutboxEvent *event = outcome->cookie;

	relay->in_flight_bytes -= event->schedule.bytes;
	if (outcome->kind != BROKER_ACKED)
		remember_error(relay, event, outcome->code, outcome->text);
	switch (outcome->kind)
	{
		case BROKER_ACKED:
			acked(relay, event, now);
			break;
		case BROKER_REFUSED:
			if (is_about_event(outcome->code))
				refused(relay, event, outcome->code, outcome->text, now);
			else
				unanswered(relay, event, now);
			break;
		case BROKER_LOST:
			release_claim(relay, event);
			outbox_schedule_return(relay->schedule, &event->schedule);
			break;
		case BROKER_NO_RESPONDERS:
		case BROKER_TIMED_OUT:
		case BROKER_BAD_REPLY:
		case BROKER_DENIED:
			unanswered(relay, event, now);
			break;
	}
}

/* Moves bytes and takes what came back, as long as there is room to keep acks. */
void
outbox_publisher_poll(OutboxRelay *relay)
{
	BrokerOutcome outcomes[OUTCOMES_PER_POLL];
	sigset_t	saved;
	int			count;

	do
	{
		TimestampTz now;

		block_signals(&saved);
		count = broker_poll(relay->broker, outcomes, OUTCOMES_PER_POLL);
		restore_signals(&saved);
		now = GetCurrentTimestamp();
		for (int i = 0; i < count; i++)
			take_outcome(relay, &outcomes[i], now);
	} while (count == OUTCOMES_PER_POLL && relay->acked_count < OUTBOX_SETTLE_BATCH);
}

/* -------------------------------------------------------------- sending */

/* Whether one more event may go out: window, bytes, and a place to note that it is out. */
static bool
may_send(const OutboxRelay *relay, int in_flight)
{
	size_t		budget = (size_t) outbox_relay_memory * 1024 / 4;

	return in_flight < relay->window && relay->free_claim_count > 0 &&
		(in_flight == 0 || relay->in_flight_bytes < budget);
}

/*
 * Hands one head to the broker. Returns false when it didn't go out: it is
 * back in the schedule then, or, if the client refused it (code and text say
 * why), the caller's to deal with after the signal-blocked stretch.
 */
static bool
send_one(OutboxRelay *relay, OutboxEvent *event, BrokerPublishResult *result, int *code, char *text)
{
	event->claim = relay->free_claims[--relay->free_claim_count];
	pg_atomic_write_u64(&relay->database->claimed[event->claim], event->schedule.position);

	*result = broker_publish(relay->broker, &event->message, event, code, text);
	if (*result == BROKER_PUBLISH_OK)
	{
		relay->in_flight_bytes += event->schedule.bytes;
		return true;
	}
	if (*result != BROKER_PUBLISH_REFUSED)
	{
		release_claim(relay, event);
		outbox_schedule_return(relay->schedule, &event->schedule);
	}
	return false;
}

/* Sends ready heads until the window is full or none is left. */
void
outbox_publisher_send(OutboxRelay *relay)
{
	BrokerStatus status;
	BrokerPublishResult result;
	OutboxEvent *event = NULL;
	char		text[BROKER_TEXT_SIZE];
	int			code;
	sigset_t	saved;

	do
	{
		TimestampTz now = GetCurrentTimestamp();

		result = BROKER_PUBLISH_OK;
		block_signals(&saved);
		broker_get_status(relay->broker, &status);
		while (status.state == BROKER_ONLINE && may_send(relay, status.in_flight))
		{
			event = (OutboxEvent *) outbox_schedule_next(relay->schedule, now);
			if (event == NULL || !send_one(relay, event, &result, &code, text))
				break;
			status.in_flight++;
		}
		broker_flush(relay->broker);
		restore_signals(&saved);

		if (result == BROKER_PUBLISH_REFUSED)
		{
			remember_error(relay, event, code, text);
			refused(relay, event, code, text, now);
		}
	} while (result == BROKER_PUBLISH_REFUSED && relay->refused_count < OUTBOX_REFUSED_BATCH);
}

/* Milliseconds that the relay may sleep as far as the broker is concerned; -1: no limit. */
int
outbox_publisher_wait_limit(OutboxRelay *relay)
{
	sigset_t	saved;
	int			result;

	block_signals(&saved);
	result = broker_poll_within(relay->broker);
	restore_signals(&saved);
	return result;
}

/* --------------------------------------------------------------- status */

static OutboxRelayState
relay_state(const BrokerStatus *broker)
{
	if (broker->state != BROKER_ONLINE)
		return OUTBOX_RELAY_CONNECTING;
	return broker->text[0] != '\0' ? OUTBOX_RELAY_STREAM_TROUBLE : OUTBOX_RELAY_ACTIVE;
}

static void
log_change(const BrokerStatus *broker, OutboxRelayState state)
{
	if (state == OUTBOX_RELAY_ACTIVE)
		ereport(LOG,
				(errmsg("outbox relay publishes to stream \"%s\" at %s", outbox_stream, broker->server)));
	else if (state == OUTBOX_RELAY_STREAM_TROUBLE)
		ereport(LOG,
				(errmsg("outbox relay can't use stream \"%s\": %s", outbox_stream, broker->text)));
	else if (broker->text[0] != '\0')
		ereport(LOG,
				(errmsg("outbox relay is not connected to NATS: %s", broker->text)));
}

/* Shows the broker's state in shared memory, and logs it when it changed. */
void
outbox_publisher_report(OutboxRelay *relay)
{
	static BrokerState last_broker_state = BROKER_OFFLINE;
	static char last_text[BROKER_TEXT_SIZE] = "";
	OutboxRelayStatus *status = &relay->database->status;
	BrokerStatus broker;
	OutboxRelayState state;
	sigset_t	saved;

	block_signals(&saved);
	broker_get_status(relay->broker, &broker);
	restore_signals(&saved);
	pg_atomic_write_u64(&relay->database->in_flight, broker.in_flight);

	state = relay_state(&broker);
	if (state == status->state && broker.state == last_broker_state && strcmp(broker.text, last_text) == 0)
		return;
	/* Attempts to connect follow each other: one message for all with the same reason. */
	if (broker.state != BROKER_CONNECTING && (state != status->state || strcmp(broker.text, last_text) != 0))
	{
		log_change(&broker, state);
		strlcpy(last_text, broker.text, sizeof(last_text));
	}
	last_broker_state = broker.state;
	/* What waited for an answer of the broker need not wait any longer. */
	if (state == OUTBOX_RELAY_ACTIVE && status->state != state)
		outbox_schedule_retry_now(relay->schedule, GetCurrentTimestamp());

	LWLockAcquire(&relay->database->status_lock, LW_EXCLUSIVE);
	if (status->state != state)
		status->since = GetCurrentTimestamp();
	status->state = state;
	strlcpy(status->server, broker.server, sizeof(status->server));
	strlcpy(status->stream, outbox_stream, sizeof(status->stream));
	if (state != OUTBOX_RELAY_ACTIVE && broker.text[0] != '\0')
		strlcpy(status->last_error, broker.text, sizeof(status->last_error));
	LWLockRelease(&relay->database->status_lock);
}
