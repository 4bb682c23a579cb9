/*
 * broker.c
 *	  The client of each relay, and its way to the server: stands in for
 *	  src/broker*.c and keeps their contract, with a network that loses, doubles
 *	  and delays.
 *
 * Messages of one connection arrive in their order, as far as they do; when it
 * breaks, what was on the way last is lost.
 */
#include "sim.h"
#include "check.h"
#include "message.h"
#include "stream.h"
#include "store.h"

#include "broker.h"

#include <stdio.h>
#include <string.h>

typedef struct Connection
{
	bool		open;
	int64_t		last_arrival;
	int64_t		sent;			/* messages so far */
	int64_t		lost_from;		/* from this one on they don't arrive */
} Connection;

typedef enum FlightState
{
	FLIGHT_UNSENT,				/* in the client's buffer */
	FLIGHT_SENT,
	FLIGHT_ANSWERED,
	FLIGHT_LOST
} FlightState;

/* A message that was accepted and not reported yet. */
typedef struct Flight
{
	int64_t		id;				/* 0: free */
	void	   *cookie;
	int			count;			/* messages: more than 1 for a batch */
	SimMessage	messages[SIM_MAX_BATCH];
	FlightState state;
	int64_t		accepted;
	int64_t		deadline;
	BrokerOutcome outcome;
} Flight;

#define MAX_FLIGHTS 256

struct Broker
{
	SimProc    *proc;
	bool		configured;
	BrokerConfig config;
	BrokerState state;
	int64_t		since;
	int64_t		until;			/* OFFLINE: next attempt; CONNECTING: its end */
	int			failures;
	uint64_t	connects;
	bool		takes_schedules;	/* the stream of this connection */
	Connection *connection;
	bool		changed;		/* there is something to tell by broker_poll() */
	Flight		flights[MAX_FLIGHTS];
	int			flight_count;	/* all are below */
	int			in_flight;
	int			batches;
};

/* On its way to the server. */
typedef struct Letter
{
	Connection *connection;
	int64_t		number;			/* in the connection */
	struct Broker *broker;
	int64_t		flight;
	SimMessage	message;
	BrokerOutcome answer;
} Letter;

static struct Broker brokers[SIM_RELAY_IMAGES];
static int64_t last_flight;
static bool server_is_up;

void
sim_broker_start(void)
{
	for (int i = 0; i < SIM_RELAY_IMAGES; i++)
	{
		brokers[i].proc = NULL;
		brokers[i].flight_count = 0;
	}
	last_flight = 0;
	server_is_up = true;
	sim_stream_reset();
}

/* ---------- the network ---------- */

static Flight *
find_flight(struct Broker *broker, int64_t id)
{
	for (int i = 0; i < broker->flight_count; i++)
	{
		if (broker->flights[i].id == id)
			return &broker->flights[i];
	}
	return NULL;
}

/* A timer: the answer reaches the client, if it still listens. */
static void
deliver_answer(void *arg, int64_t number)
{
	Letter	   *letter = arg;
	Flight	   *flight = find_flight(letter->broker, letter->flight);

	(void) number;
	if (!letter->connection->open || flight == NULL || flight->state != FLIGHT_SENT)
		return;
	letter->answer.cookie = flight->cookie;
	flight->outcome = letter->answer;
	flight->state = FLIGHT_ANSWERED;
}

static int64_t
network_delay(void)
{
	return sim_between(20, plan.delay);
}

/* A timer: the message reaches the server. */
static void
deliver(void *arg, int64_t number)
{
	Letter	   *letter = arg;

	(void) number;
	if (!server_is_up || letter->number >= letter->connection->lost_from || (sim_faults && sim_one_in(plan.lose_message)))
	{
		sim_trace("message of position %lld is lost", letter->message.position);
		return;
	}
	letter->answer.count = letter->message.batch != 0 ? letter->message.sequence : 1;
	if (!sim_stream_take(&letter->message, &letter->answer))
		return;
	sim_at(sim_now + network_delay(), deliver_answer, letter, 0);
}

void
sim_broker_set_up(bool up)
{
	server_is_up = up;
	sim_trace("broker is %lld", up);
	for (int i = 0; i < SIM_RELAY_IMAGES && !up; i++)
	{
		if (brokers[i].proc != NULL)
			sim_broker_drop(brokers[i].proc);
	}
}

/* ---------- the connection ---------- */

static void
close_connection(struct Broker *broker)
{
	Connection *connection = broker->connection;

	if (connection == NULL)
		return;
	connection->open = false;
	connection->lost_from = connection->sent - sim_below(4);
	broker->connection = NULL;
}

static void
set_state(struct Broker *broker, BrokerState state, int64_t until)
{
	broker->state = state;
	broker->since = sim_now;
	broker->until = until;
	broker->changed = true;
}

static void
drop(struct Broker *broker)
{
	close_connection(broker);
	for (int i = 0; i < broker->flight_count; i++)
	{
		Flight	   *flight = &broker->flights[i];

		/* What was answered before is known to the client. */
		if (flight->id != 0 && flight->state != FLIGHT_ANSWERED)
			flight->state = FLIGHT_LOST;
	}
	set_state(broker, BROKER_OFFLINE, sim_now);
}

void
sim_broker_drop(SimProc *proc)
{
	struct Broker *broker = &brokers[proc->index];

	if (proc->role == SIM_RELAY && broker->proc == proc && broker->state == BROKER_ONLINE)
	{
		sim_trace("connection of relay %lld breaks", proc->number);
		drop(broker);
	}
}

void
sim_broker_gone(SimProc *proc)
{
	if (proc->role != SIM_RELAY)
		return;
	close_connection(&brokers[proc->index]);
	brokers[proc->index].proc = NULL;
	brokers[proc->index].flight_count = 0;
}

/* What broker_poll() does about the connection. */
static void
look_after(struct Broker *broker)
{
	if (broker->state == BROKER_OFFLINE && sim_now >= broker->until)
		set_state(broker, BROKER_CONNECTING, sim_now + network_delay() + network_delay());
	if (broker->state == BROKER_CONNECTING && sim_now >= broker->until)
	{
		if (server_is_up && !(sim_faults && sim_one_in(20)))
		{
			Connection	connection = {.open = true, .lost_from = SIM_NEVER};

			broker->connection = sim_keep(&connection, sizeof(connection));
			broker->connects++;
			broker->failures = 0;
			set_state(broker, BROKER_ONLINE, SIM_NEVER);
			broker->takes_schedules = sim_one_in(2);
			sim_trace("connected", 0);
		}
		else
		{
			broker->failures += broker->failures < 5;
			set_state(broker, BROKER_OFFLINE, sim_now + ((20 * MS) << broker->failures));
		}
	}
	broker->changed = false;
}

bool
sim_broker_is_readable(SimProc *proc)
{
	const struct Broker *broker = &brokers[proc->index];

	if (broker->proc != proc)
		return false;
	for (int i = 0; i < broker->flight_count; i++)
	{
		if (broker->flights[i].id != 0 && broker->flights[i].state >= FLIGHT_ANSWERED)
			return true;
	}
	return broker->changed;
}

bool
sim_broker_has(SimProc *proc, int64_t position)
{
	const struct Broker *broker = &brokers[proc->index];

	for (int i = 0; broker->proc == proc && i < broker->flight_count; i++)
	{
		const Flight *flight = &broker->flights[i];

		for (int k = 0; flight->id != 0 && k < flight->count; k++)
		{
			if (flight->messages[k].position == position)
				return true;
		}
	}
	return false;
}

/* ---------- broker.h ---------- */

Broker *
broker_create(void)
{
	struct Broker *broker = &brokers[sim_self->index];

	memset(broker, 0, offsetof(struct Broker, flights));
	broker->flight_count = 0;
	broker->in_flight = 0;
	broker->batches = 0;
	broker->proc = sim_self;
	broker->state = BROKER_OFFLINE;
	broker->until = sim_now;
	return broker;
}

bool
broker_configure(Broker *broker, const BrokerConfig *config)
{
	bool		same = broker->configured && config->ack_timeout_ms == broker->config.ack_timeout_ms &&
		config->max_in_flight == broker->config.max_in_flight;

	broker->config = *config;
	if (broker->configured && !same)
		drop(broker);
	broker->configured = true;
	return true;
}

int
broker_fd(const Broker *broker)
{
	return 100 + broker->proc->index;
}

int
broker_poll_within(const Broker *broker)
{
	int64_t		until = broker->until;

	for (int i = 0; i < broker->flight_count; i++)
	{
		if (broker->flights[i].id != 0 && broker->flights[i].deadline < until)
			until = broker->flights[i].deadline;
	}
	if (until == SIM_NEVER)
		return -1;
	return until <= sim_now ? 0 : (int) ((until - sim_now + MS - 1) / MS);
}

static void
report(struct Broker *broker, Flight *flight, BrokerOutcome *outcome)
{
	Row		   *row = sim_log_find(flight->messages[0].position);

	*outcome = flight->outcome;
	if (flight->state != FLIGHT_ANSWERED)
	{
		*outcome = (BrokerOutcome) {.kind = flight->state == FLIGHT_LOST ? BROKER_LOST : BROKER_TIMED_OUT, .cookie = flight->cookie};
		strcpy(outcome->text, "simulated");
	}
	outcome->count = flight->count;
	flight->id = 0;
	broker->in_flight -= flight->count;
	broker->batches -= flight->count > 1;
	sim_trace("outcome of position %lld: kind %lld, code %lld", flight->messages[0].position, outcome->kind, outcome->code);
	for (int i = 0; i < flight->count && outcome->kind == BROKER_ACKED; i++)
		sim_check_acked(sim_log_find(flight->messages[i].position));
	if (flight->count > 1 || outcome->kind == BROKER_ACKED)
		return;
	if (outcome->kind == BROKER_REFUSED && (outcome->code == 10054 || outcome->status == 400))
		sim_check_refusal(row, outcome->code == 10054);
}

int
broker_poll(Broker *broker, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	sim_maybe_pass();
	look_after(broker);
	for (int i = 0; i < broker->flight_count && count < max; i++)
	{
		Flight	   *flight = &broker->flights[i];

		if (flight->id != 0 && (flight->state >= FLIGHT_ANSWERED || flight->deadline <= sim_now))
			report(broker, flight, &outcomes[count++]);
	}
	while (broker->flight_count > 0 && broker->flights[broker->flight_count - 1].id == 0)
		broker->flight_count--;
	return count;
}

static int64_t
bytes_in_flight(const struct Broker *broker)
{
	int64_t		bytes = 0;

	for (int i = 0; i < broker->flight_count; i++)
	{
		for (int k = 0; broker->flights[i].id != 0 && k < broker->flights[i].count; k++)
			bytes += broker->flights[i].messages[k].size;
	}
	return bytes;
}

/* A message, or a batch of them. */
static BrokerPublishResult
publish(Broker *broker, const BrokerMessage *const *messages, int count, void *cookie, char *error_text)
{
	Flight	   *flight;
	int64_t		first = ((const SimMessage *) messages[0]->data)->position;

	sim_maybe_pass();
	if (broker->state != BROKER_ONLINE)
		return BROKER_PUBLISH_OFFLINE;
	if (broker->in_flight + count > broker->config.max_in_flight || broker->flight_count == MAX_FLIGHTS || sim_one_in(300))
		return BROKER_PUBLISH_FULL;
	for (int i = 0; i < count; i++)
	{
		Row		   *row = sim_log_find(((const SimMessage *) messages[i]->data)->position);

		if (row == NULL || row->flaw != FLAW_CLIENT)
			continue;
		strcpy(error_text, "larger than the server's limit");
		if (count == 1)
			sim_check_refusal(row, true);
		return BROKER_PUBLISH_REFUSED;
	}
	flight = &broker->flights[broker->flight_count++];
	*flight = (Flight) {
		.cookie = cookie,
		.state = FLIGHT_UNSENT,
		.accepted = sim_now,
		.deadline = sim_now + broker->config.ack_timeout_ms * MS,
	};
	for (int i = 0; i < count; i++)
	{
		SimMessage *message = &flight->messages[i];

		*message = *(const SimMessage *) messages[i]->data;
		message->batch = count > 1 ? last_flight + 1 : 0;
		message->sequence = i + 1;
		message->commit = i == count - 1;
		sim_check_sent(message->position, first, messages[i]->schedule != NULL && broker->takes_schedules, bytes_in_flight(broker),
					   broker->in_flight);
		sim_trace("sends position %lld in batch %lld", message->position, message->batch);
		flight->count++;
		broker->in_flight++;
	}
	flight->id = ++last_flight;
	broker->batches += count > 1;
	return BROKER_PUBLISH_OK;
}

BrokerPublishResult
broker_publish(Broker *broker, const BrokerMessage *message, void *cookie, int *error_code, char *error_text)
{
	*error_code = 0;
	return publish(broker, &message, 1, cookie, error_text);
}

BrokerPublishResult
broker_publish_batch(Broker *broker, const BrokerMessage *const *messages, int count, void *cookie, char *error_text)
{
	if (!plan.batches || count < 2 || count > SIM_MAX_BATCH)
		sim_fail("a batch of %d messages", count);
	return publish(broker, messages, count, cookie, error_text);
}

static void
send_letter(struct Broker *broker, const Flight *flight, const SimMessage *message)
{
	Connection *connection = broker->connection;
	Letter		letter = {connection, connection->sent++, broker, flight->id, *message, {0}};
	int64_t		arrival = sim_now + network_delay();

	if (sim_faults && sim_one_in(50))
		arrival += sim_between(0, 2 * plan.ack_timeout * MS);
	if (arrival < connection->last_arrival)
		arrival = connection->last_arrival;
	connection->last_arrival = arrival;
	sim_at(arrival, deliver, sim_keep(&letter, sizeof(letter)), 0);
	if (sim_faults && sim_one_in(plan.duplicate))
		sim_at(arrival + network_delay(), deliver, sim_keep(&letter, sizeof(letter)), 0);
}

/* The process stood still: what it had accepted isn't sent, and the connection ends. */
static bool
is_stale(const struct Broker *broker, const Flight *flight)
{
	return broker->config.max_pause_ms > 0 && sim_now - flight->accepted > broker->config.max_pause_ms * MS;
}

void
broker_flush(Broker *broker)
{
	for (int i = 0; i < broker->flight_count && broker->state == BROKER_ONLINE; i++)
	{
		Flight	   *flight = &broker->flights[i];

		if (flight->id == 0 || flight->state != FLIGHT_UNSENT)
			continue;
		if (is_stale(broker, flight))
		{
			drop(broker);
			return;
		}
		flight->state = FLIGHT_SENT;
		for (int k = 0; k < flight->count && broker->state == BROKER_ONLINE; k++)
		{
			send_letter(broker, flight, &flight->messages[k]);
			sim_maybe_pass();
		}
	}
}

void
broker_announce(Broker *broker, const char *subject, const void *data, int len)
{
	(void) broker;
	(void) subject;
	(void) data;
	(void) len;
}

void
broker_get_status(const Broker *broker, BrokerStatus *status)
{
	status->state = broker->state;
	status->since_us = broker->since;
	status->connects = broker->connects;
	status->max_payload = 1000000;
	status->in_flight = broker->in_flight;
	status->batches_in_flight = broker->batches;
	status->takes_batches = plan.batches;
	status->takes_schedules = broker->takes_schedules;
	strcpy(status->server, "simulation");
	status->text[0] = '\0';
	if (broker->state == BROKER_OFFLINE)
		strcpy(status->text, "simulated");
}

bool
broker_destroy(Broker *broker, int grace_ms)
{
	(void) grace_ms;
	close_connection(broker);
	return true;
}
