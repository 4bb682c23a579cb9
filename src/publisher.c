/*
 * publisher.c
 *	  Between the schedule and the broker: sends ready heads, or runs of an
 *	  aggregate's events as batches, and takes outcomes.
 *
 * Every call into broker.c is made with all signals blocked, because the
 * library starts threads that would inherit the mask and then run our signal
 * handlers. Inside such a stretch nothing may raise an error.
 */
#include "outbox.h"

#include <signal.h>

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"
#include "utils/memutils.h"

#include "clock.h"
#include "complaint.h"
#include "encode.h"
#include "relay.h"
#include "remedy.h"
#include "signals.h"
#include "worker.h"

/* Time for a connection attempt under way to end when the process does. */
#define EXIT_GRACE_MS 2500

#define DUPLICATE_WINDOW_MS (2 * 60 * 1000)

/* A batch is no larger, as the server holds all of it until it is complete. */
#define MAX_RUN_BYTES (1024 * 1024)

/* What is behind the events' own first tokens in such a subject. */
#define SCHEDULES "schedules."
#define SCHEDULES_SIZE (OUTBOX_MAX_TEMPLATE + 3 + sizeof(SCHEDULES))

static OutboxRelay *exiting_relay = NULL;

/* on_proc_exit, after shared memory is detached: nothing else needs the library any more. */
static void
close_broker(int code, Datum arg)
{
	sigset_t	saved;

	outbox_worker_skip_exit_handlers(code);
	if (exiting_relay == NULL || exiting_relay->broker == NULL)
		return;
	outbox_signals_block(&saved);
	/* When the postmaster is gone, a new one must not find us still here. */
	(void) broker_destroy(exiting_relay->broker, PostmasterIsAlive() ? EXIT_GRACE_MS : 0);
	exiting_relay->broker = NULL;
	outbox_signals_restore(&saved);
}

/* Makes the broker and starts connecting. */
void
outbox_publisher_start(OutboxRelay *relay)
{
	sigset_t	saved;

	outbox_flow_reset(&relay->flow, outbox_max_in_flight);
	exiting_relay = relay;
	on_proc_exit(close_broker, (Datum) 0);
	outbox_signals_block(&saved);
	relay->broker = broker_create();
	outbox_signals_restore(&saved);
	if (relay->broker == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not start the NATS client"),
				 errdetail("Memory, descriptors or threads are exhausted.")));
	outbox_publisher_configure(relay);
}

/* What log_change() has said of the connection's trouble. */
static OutboxComplaint complaint;

/* The subjects of messages that the stream keeps until their time: beside the events', "outbox.schedules.*" with "outbox.>". */
static void
name_schedules(const char *stream_subjects, char *schedules)
{
	size_t		length = strcspn(stream_subjects, ">");

	/* A template that is all literal has no dot at its end. */
	snprintf(schedules, SCHEDULES_SIZE, "%.*s%s" SCHEDULES, (int) length, stream_subjects,
			 stream_subjects[length] == '\0' ? "." : "");
	outbox_held_give_schedules(schedules);
	strcat(schedules, "*");
}

/* Hands the settings over; after a reload too. */
void
outbox_publisher_configure(OutboxRelay *relay)
{
	static char *url = NULL;	/* that the complaint is about */
	char		subjects[OUTBOX_MAX_TEMPLATE + 2];
	char		schedules[SCHEDULES_SIZE];
	sigset_t	saved;
	bool		ok;
	BrokerConfig config = {
		.url = outbox_nats_url,
		.credentials_file = outbox_credentials_file,
		.login_file = outbox_login_file,
		.nkey_seed_file = outbox_nkey_seed_file,
		.tls_ca_file = outbox_tls_ca_file,
		.tls_cert_file = outbox_tls_cert_file,
		.tls_key_file = outbox_tls_key_file,
		.client_name = "outbox relay",
		.inbox_prefix = outbox_inbox_prefix,
		.stream = outbox_stream,
		.stream_subjects = subjects,
		.schedule_subjects = schedules,
		.stream_create = outbox_stream_create,
		.duplicate_window_ms = DUPLICATE_WINDOW_MS,
		.ack_timeout_ms = outbox_ack_timeout,
		.max_pause_ms = outbox_lease_ttl / 2,
		.connect_timeout_ms = outbox_connect_timeout,
		.reconnect_base_ms = outbox_retry_base_delay,
		.reconnect_max_ms = outbox_retry_max_delay,
		.max_in_flight = outbox_max_in_flight,
	};

	if (outbox_encode_stream_subjects(outbox_subject_template, subjects, sizeof(subjects)) < 0)
		elog(ERROR, "subject template is too long");
	name_schedules(subjects, schedules);
	outbox_signals_block(&saved);
	ok = broker_configure(relay->broker, &config);
	outbox_signals_restore(&saved);
	/* Other servers, another trouble. */
	if (url == NULL || strcmp(url, outbox_nats_url) != 0)
	{
		outbox_complaint_begin(&complaint);
		if (url != NULL)
			pfree(url);
		url = MemoryContextStrdup(TopMemoryContext, outbox_nats_url);
	}
	if (!ok)
		outbox_relay_out_of_memory();
	outbox_flow_set_max(&relay->flow, outbox_max_in_flight);
}

/* ------------------------------------------------------------- outcomes */

/* Moves bytes and takes what came back, as long as there is room to keep acks. */
void
outbox_publisher_poll(OutboxRelay *relay)
{
	BrokerOutcome outcomes[OUTBOX_POLL_BATCH];
	sigset_t	saved;
	int			count = OUTBOX_POLL_BATCH;

	while (count == OUTBOX_POLL_BATCH && outbox_outcome_has_room(relay))
	{
		int64		now;

		outbox_signals_block(&saved);
		count = broker_poll(relay->broker, outcomes, OUTBOX_POLL_BATCH);
		outbox_signals_restore(&saved);
		now = outbox_clock_now();
		for (int i = 0; i < count; i++)
			outbox_outcome_take(relay, &outcomes[i], now);
	}
}

/* -------------------------------------------------------------- sending */

/* How many bytes may be in flight. */
static size_t
byte_budget(void)
{
	return (size_t) outbox_relay_memory * 1024 / 4;
}

/* Whether one more event may go out: window, bytes, and a place to note that it is out. */
static bool
may_send(const OutboxRelay *relay, int in_flight, int64 now)
{
	return outbox_flow_may_send(&relay->flow, in_flight, now) && relay->claims.held < relay->claims.count &&
		(in_flight == 0 || relay->in_flight_bytes < byte_budget());
}

/*
 * Hands one head to the broker. Returns false when it didn't go out: it is
 * back in the schedule then, or, if the client refused it (code and text say
 * why), the caller's to deal with after the signal-blocked stretch.
 */
static bool
send_one(OutboxRelay *relay, OutboxEvent *event, BrokerPublishResult *result, int *code, char *text)
{
	event->claim = outbox_claims_take(relay, event->schedule.position);
	if (event->claim < 0)
	{
		*result = BROKER_PUBLISH_FULL;
		outbox_schedule_return(relay->schedule, &event->schedule);
		return false;
	}
	if (event->broken != NULL)
	{
		*result = BROKER_PUBLISH_REFUSED;
		*code = 0;
		strlcpy(text, event->broken, BROKER_TEXT_SIZE);
		return false;
	}
	*result = broker_publish(relay->broker, &event->message, event, code, text);
	if (*result == BROKER_PUBLISH_OK)
	{
		relay->in_flight_bytes += event->schedule.bytes;
		outbox_flow_sent(&relay->flow);
		return true;
	}
	if (*result != BROKER_PUBLISH_REFUSED)
	{
		outbox_claims_release(relay, event->claim, event->schedule.position);
		outbox_schedule_return(relay->schedule, &event->schedule);
	}
	return false;
}

static bool
is_paused(const OutboxRelay *relay, const OutboxEvent *event)
{
	return event->broken == NULL && relay->pauses.count > 0 &&
		outbox_pause_holds(&relay->pauses, event->aggregate_type, event->message.subject);
}

/*
 * The next head that can go. Paused ones wait until the pauses change; what the
 * stream was to keep until its time waits here, if the stream doesn't do that.
 */
static OutboxEvent *
next_event(OutboxRelay *relay, const BrokerStatus *status, int64 now)
{
	OutboxEvent *event;

	while ((event = (OutboxEvent *) outbox_schedule_next(relay->schedule, now)) != NULL)
	{
		if (event->message.schedule != NULL && event->due <= now)
			event->message.schedule = NULL;
		if (is_paused(relay, event))
			outbox_schedule_retry(relay->schedule, &event->schedule, PG_INT64_MAX, event->schedule.failures);
		else if (event->message.schedule != NULL && !status->takes_schedules)
			outbox_schedule_postpone(relay->schedule, &event->schedule, event->due, event->schedule.failures);
		else
			return event;
	}
	return NULL;
}

/* Only what has never failed goes in a batch: a refusal there doesn't say whose it is. */
static bool
fits_run(const OutboxRelay *relay, const OutboxEvent *event, const OutboxEvent *first, int64 now)
{
	return !event->alone && !event->has_delivery && event->attempts == 0 && event->schedule.failures == 0 &&
		event->broken == NULL && event->schedule.not_before <= now && event->message.schedule == NULL &&
		event->schedule.priority == first->schedule.priority && !is_paused(relay, event);
}

/* How many events, from this head on, are to go as one batch; 1: it goes by itself. */
static int
run_length(const OutboxRelay *relay, const OutboxEvent *first, const BrokerStatus *status, int64 now)
{
	int			room = outbox_flow_max_run(&relay->flow, status->in_flight, status->batches_in_flight, now);
	int			places = relay->claims.count - relay->claims.held;
	size_t		bytes_left = Min(byte_budget() - Min(byte_budget(), relay->in_flight_bytes), MAX_RUN_BYTES);
	const OutboxEvent *event = first;
	int			count = 0;

	if (!status->takes_batches || outbox_schedule_held(relay->schedule, &first->schedule) < OUTBOX_MIN_RUN)
		return 1;
	while (event != NULL && count < Min(room, places) && fits_run(relay, event, first, now) && event->schedule.bytes <= bytes_left)
	{
		bytes_left -= event->schedule.bytes;
		count++;
		event = (const OutboxEvent *) outbox_schedule_behind(&event->schedule);
	}
	return count < OUTBOX_MIN_RUN ? 1 : count;
}

/*
 * Hands a run of events to the broker as one batch. If it doesn't go out it is
 * back in the schedule; what the client refuses as part of a batch goes alone.
 */
static bool
send_run(OutboxRelay *relay, OutboxEvent *first, int count, BrokerPublishResult *result)
{
	static const BrokerMessage *messages[OUTBOX_MAX_RUN];
	OutboxEvent *event = first;
	size_t		bytes = 0;
	int			taken;
	char		text[BROKER_TEXT_SIZE];

	for (taken = 0; taken < count; taken++)
	{
		event->claim = outbox_claims_take(relay, event->schedule.position);
		if (event->claim < 0)
			break;
		messages[taken] = &event->message;
		bytes += event->schedule.bytes;
		event = (OutboxEvent *) outbox_schedule_behind(&event->schedule);
	}
	*result = taken < count ? BROKER_PUBLISH_FULL : broker_publish_batch(relay->broker, messages, count, first, text);
	if (*result == BROKER_PUBLISH_OK)
	{
		first->run = count;
		outbox_schedule_take_run(relay->schedule, &first->schedule, count);
		relay->in_flight_bytes += bytes;
		outbox_flow_sent(&relay->flow);
		return true;
	}
	event = first;
	for (int i = 0; i < taken; i++)
	{
		outbox_claims_release(relay, event->claim, event->schedule.position);
		event->alone = *result == BROKER_PUBLISH_REFUSED;
		event = (OutboxEvent *) outbox_schedule_behind(&event->schedule);
	}
	outbox_schedule_return(relay->schedule, &first->schedule);
	return false;
}

/* Once for each stream. */
static void
warn_of_ttl(void)
{
	static char stream[OUTBOX_TEXT_SIZE] = "";

	if (strcmp(stream, outbox_stream) == 0)
		return;
	strlcpy(stream, outbox_stream, sizeof(stream));
	ereport(WARNING,
			(errcode(ERRCODE_WARNING),
			 errmsg("stream \"%s\" takes no time to live of messages", outbox_stream),
			 errdetail("Events are published without their header \"%s\", and stay as long as the stream keeps any.", OUTBOX_TTL_HEADER),
			 errhint("nats-server 2.11 or newer has it, with \"allow_msg_ttl\" in the stream's configuration. See docs/failures.md, \"No time to live\".")));
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
	bool		without_ttl = false;
	sigset_t	saved;

	if (relay->pauses.all)
		return;
	outbox_membership_check(relay);
	do
	{
		int64		now = outbox_clock_now();

		result = BROKER_PUBLISH_OK;
		outbox_signals_block(&saved);
		broker_get_status(relay->broker, &status);
		while (status.state == BROKER_ONLINE && may_send(relay, status.in_flight, now))
		{
			int			count;

			event = next_event(relay, &status, now);
			if (event == NULL)
				break;
			without_ttl = without_ttl || (event->message.ttl != NULL && !status.takes_ttl);
			count = run_length(relay, event, &status, now);
			if (count > 1)
			{
				if (send_run(relay, event, count, &result))
				{
					status.in_flight += count;
					status.batches_in_flight++;
				}
				else if (result != BROKER_PUBLISH_REFUSED)
					break;
				result = BROKER_PUBLISH_OK;
			}
			else if (send_one(relay, event, &result, &code, text))
				status.in_flight++;
			else
				break;
		}
		broker_flush(relay->broker);
		outbox_signals_restore(&saved);

		if (without_ttl)
			warn_of_ttl();
		if (result == BROKER_PUBLISH_REFUSED)
			outbox_outcome_refused(relay, event, code, text, now);
	} while (result == BROKER_PUBLISH_REFUSED && outbox_outcome_has_room(relay));
}

/* Tells whoever listens to outbox.dead_letter_subject; nobody's answer is waited for. */
void
outbox_publisher_announce(OutboxRelay *relay, const char *text)
{
	sigset_t	saved;

	outbox_signals_block(&saved);
	broker_announce(relay->broker, outbox_dead_letter_subject, text, (int) strlen(text));
	outbox_signals_restore(&saved);
}

/* Lets announcements go out now, not with the next events. */
void
outbox_publisher_flush(OutboxRelay *relay)
{
	sigset_t	saved;

	outbox_signals_block(&saved);
	broker_flush(relay->broker);
	outbox_signals_restore(&saved);
}

/* Milliseconds that the relay may sleep as far as the broker is concerned; -1: no limit. */
int
outbox_publisher_wait_limit(OutboxRelay *relay)
{
	sigset_t	saved;
	int			result;

	outbox_signals_block(&saved);
	result = broker_poll_within(relay->broker);
	outbox_signals_restore(&saved);
	return result;
}

/* --------------------------------------------------------------- status */

static OutboxRelayState
relay_state(const OutboxRelay *relay, const BrokerStatus *broker)
{
	if (broker->state != BROKER_ONLINE)
		return OUTBOX_RELAY_CONNECTING;
	if (broker->text[0] != '\0')
		return OUTBOX_RELAY_STREAM_TROUBLE;
	if (relay->flow.open)
		return OUTBOX_RELAY_BROKER_TROUBLE;
	return relay->pauses.all ? OUTBOX_RELAY_PAUSED : OUTBOX_RELAY_ACTIVE;
}

static void
log_change(const OutboxRelay *relay, const BrokerStatus *broker, OutboxRelayState state, int failures)
{
	switch (state)
	{
		case OUTBOX_RELAY_ACTIVE:
			ereport(LOG,
					(errmsg("outbox relay publishes to stream \"%s\" at %s", outbox_stream, broker->server)));
			break;
		case OUTBOX_RELAY_STREAM_TROUBLE:
			ereport(LOG,
					(errmsg("outbox relay can't use stream \"%s\": %s", outbox_stream, broker->text),
					 errhint("%s", outbox_remedy(OUTBOX_TROUBLE_STREAM, broker->text))));
			break;
		case OUTBOX_RELAY_BROKER_TROUBLE:
			ereport(LOG,
					(errmsg("outbox relay gets no acknowledgements: %s", relay->self->status.last_error),
					 errhint("Check JetStream's storage, limits and leader. See docs/failures.md, \"No acknowledgements\".")));
			break;
		case OUTBOX_RELAY_PAUSED:
			ereport(LOG, (errmsg("outbox relay is paused")));
			break;
		default:
			ereport(LOG,
					(errmsg("outbox relay is not connected to NATS: %s", broker->text),
					 failures > 1 ? errdetail("%d attempts have failed since the last message.", failures) : 0,
					 errhint("%s", outbox_remedy(OUTBOX_TROUBLE_CONNECTION, broker->text))));
	}
}

/* A change of state is logged, and within a state other words for it, at doubling intervals. */
static void
log_news(const OutboxRelay *relay, const BrokerStatus *broker, OutboxRelayState state)
{
	static int64 offline_since = 0;
	int			failures;

	if (state != relay->self->status.state)
		outbox_complaint_begin(&complaint);
	if (broker->state == BROKER_OFFLINE && broker->since_us != offline_since)
	{
		offline_since = broker->since_us;
		outbox_complaint_failed(&complaint);
	}
	/* What an attempt to connect finds is known at its end. */
	if (state == OUTBOX_RELAY_CONNECTING && (broker->state == BROKER_CONNECTING || broker->text[0] == '\0'))
		return;
	if (outbox_complaint_is_due(&complaint, broker->text, outbox_clock_now(), &failures))
		log_change(relay, broker, state, failures);
}

/* Another stream, or this one with other settings, is to be warned of anew. */
static bool
is_news_of_stream(const BrokerStatus *broker, int64 gap)
{
	static char stream[OUTBOX_TEXT_SIZE] = "";
	static int64 window = 0;
	static int64 last_gap = 0;
	static bool discards = false;

	/* Offline or not permitted to look, nothing is known of it. */
	if (broker->duplicate_window_ms == 0 && !broker->discards_unwanted)
		return false;
	if (strcmp(stream, outbox_stream) == 0 && window == broker->duplicate_window_ms && last_gap == gap &&
		discards == broker->discards_unwanted)
		return false;
	strlcpy(stream, outbox_stream, sizeof(stream));
	window = broker->duplicate_window_ms;
	last_gap = gap;
	discards = broker->discards_unwanted;
	return true;
}

/* Says what the stream's own settings make of the promises, once for each relay that sees it so. */
static void
warn_of_stream(const BrokerStatus *broker)
{
	/* So much later than its first copy an event may be sent again. */
	int64		gap = (int64) outbox_ack_timeout + outbox_retry_max_delay;

	if (!is_news_of_stream(broker, gap))
		return;
	if (broker->duplicate_window_ms != 0 && broker->duplicate_window_ms < gap)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("duplicate window of stream \"%s\" is shorter than the time between an event's repetitions", outbox_stream),
				 errdetail("The window is %lld ms; \"outbox.ack_timeout\" and \"outbox.retry_max_delay\" are %lld ms together.",
						   (long long) broker->duplicate_window_ms, (long long) gap),
				 errhint("Make the window longer or the delay shorter, lest the stream store an event twice. See docs/failures.md, \"Duplicate window too short\".")));
	if (broker->discards_unwanted)
		ereport(WARNING,
				(errcode(ERRCODE_WARNING),
				 errmsg("stream \"%s\" discards what nobody waits for", outbox_stream),
				 errdetail("It has interest retention: it acknowledges an event and keeps it only while a consumer wants it."),
				 errhint("Create the consumers first, or make the stream with another retention policy. See docs/failures.md, \"Stream discards\".")));
}

/* For pg_stat_activity. */
static void
tell_activity(const BrokerStatus *broker, OutboxRelayState state)
{
	char		text[BROKER_TEXT_SIZE + 2 * OUTBOX_TEXT_SIZE];

	switch (state)
	{
		case OUTBOX_RELAY_ACTIVE:
			snprintf(text, sizeof(text), "outbox relay: publishes to stream \"%s\" at %s", outbox_stream, broker->server);
			break;
		case OUTBOX_RELAY_STREAM_TROUBLE:
			snprintf(text, sizeof(text), "outbox relay: waits for stream \"%s\": %s", outbox_stream, broker->text);
			break;
		case OUTBOX_RELAY_BROKER_TROUBLE:
			snprintf(text, sizeof(text), "outbox relay: gets no acknowledgements from %s, sends one probe at a time", broker->server);
			break;
		case OUTBOX_RELAY_PAUSED:
			snprintf(text, sizeof(text), "outbox relay: paused by outbox.pause()");
			break;
		default:
			snprintf(text, sizeof(text), "outbox relay: connects to NATS%s%s", broker->text[0] != '\0' ? ": " : "", broker->text);
	}
	pgstat_report_activity(STATE_IDLE, text);
}

static void
show_state(OutboxRelay *relay, const BrokerStatus *broker, OutboxRelayState state)
{
	OutboxRelayStatus *status = &relay->self->status;

	LWLockAcquire(&relay->database->status_lock, LW_EXCLUSIVE);
	if (status->state != state)
		status->since = GetCurrentTimestamp();
	status->state = state;
	strlcpy(status->server, broker->server, sizeof(status->server));
	strlcpy(status->stream, outbox_stream, sizeof(status->stream));
	if (state != OUTBOX_RELAY_ACTIVE && broker->text[0] != '\0')
		strlcpy(status->last_error, broker->text, sizeof(status->last_error));
	LWLockRelease(&relay->database->status_lock);
}

/* Shows the broker's state in shared memory, and logs it when it changed. */
void
outbox_publisher_report(OutboxRelay *relay)
{
	static BrokerState shown_state = BROKER_OFFLINE;
	static char shown_text[BROKER_TEXT_SIZE] = "";
	static uint64 connects = 0;
	BrokerStatus broker;
	OutboxRelayState before = relay->self->status.state;
	OutboxRelayState state;
	bool		is_new_connection;
	sigset_t	saved;

	outbox_signals_block(&saved);
	broker_get_status(relay->broker, &broker);
	outbox_signals_restore(&saved);
	pg_atomic_write_u64(&relay->self->in_flight, broker.in_flight);

	state = relay_state(relay, &broker);
	is_new_connection = broker.connects != connects;
	connects = broker.connects;
	if (is_new_connection)
		outbox_meter_count(&relay->self->counts, OUTBOX_COUNT_CONNECTS, 1);
	if (is_new_connection)
		outbox_flow_reset(&relay->flow, outbox_max_in_flight);
	log_news(relay, &broker, state);
	/* From a server in lame duck mode to another one: no other state was seen in between. */
	if (is_new_connection && state == OUTBOX_RELAY_ACTIVE && state == before)
		log_change(relay, &broker, state, 0);
	warn_of_stream(&broker);
	if (state == before && broker.state == shown_state && strcmp(broker.text, shown_text) == 0 && !is_new_connection)
		return;
	shown_state = broker.state;
	strlcpy(shown_text, broker.text, sizeof(shown_text));
	/* What waited for an answer of the broker need not wait any longer. */
	if (state == OUTBOX_RELAY_ACTIVE && before != state)
		outbox_schedule_retry_now(relay->schedule);
	show_state(relay, &broker, state);
	tell_activity(&broker, state);
}
