/*
 * broker_life.c
 *	  When the broker connects, and to whom; main thread only. The state of the
 *	  connection:
 *
 *		OFFLINE --(reconnect)--> CONNECTING --(attempt done)--> ONLINE
 *		   ^                          |                            |
 *		   +------(attempt failed)----+------(connection ended)----+
 *
 * While ONLINE at a server that is about to leave, an attempt looks for another
 * one; its connection takes over between messages.
 */
#include <string.h>

#include "broker_internal.h"

/* Attempts that hang in a place without a bound are given up, but not without end. */
#define MAX_HUNG_ATTEMPTS 4

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void
set_state(Broker *broker, BrokerState state)
{
	if (broker->state == state)
		return;
	broker->state = state;
	broker->since_us = broker_wall_us();
}

static uint64_t
next_random(Broker *broker)
{
	broker->random ^= broker->random << 13;
	broker->random ^= broker->random >> 7;
	broker->random ^= broker->random << 17;
	return broker->random;
}

/* Plans the next try after a failed one. Half of the pause is jitter. */
static void
back_off(Broker *broker, BrokerBackOff *back_off)
{
	const BrokerConfig *config = &broker->settings->config;
	int64_t		base_us = (int64_t) config->reconnect_base_ms * 1000;
	int64_t		max_us = (int64_t) config->reconnect_max_ms * 1000;
	int64_t		pause_us;

	back_off->pause_us = back_off->pause_us == 0 ? base_us : 2 * back_off->pause_us;
	back_off->pause_us = earlier(back_off->pause_us, max_us);
	pause_us = back_off->pause_us / 2;
	pause_us += (int64_t) (next_random(broker) % (uint64_t) (pause_us + 1));
	back_off->next_at_us = broker_now_us() + pause_us;
}

static void
go_offline(Broker *broker, const char *text)
{
	broker_text(broker->offline_text, "%s", text);
	set_state(broker, BROKER_OFFLINE);
}

static int
hung_attempts(const Broker *broker)
{
	int			holders;

	pthread_mutex_lock(&broker->post->lock);
	holders = broker->post->holders;
	pthread_mutex_unlock(&broker->post->lock);
	return holders;
}

/*
 * Where to begin in the list of servers: a look at the stream happens where we
 * are; a server that leaves, or where the last attempt has got stuck, comes last;
 * else chance spreads the load.
 */
static unsigned int
first_server(Broker *broker, bool connect)
{
	if (broker->link != NULL)
		return (unsigned int) broker->link->server_index + (connect ? 1 : 0);
	if (broker->begin_with >= 0)
		return (unsigned int) broker->begin_with;
	return (unsigned int) next_random(broker) >> 1;
}

/* Starts connecting, or (connect false) only a look at the stream. */
void
broker_life_start(Broker *broker, bool connect)
{
	BrokerBackOff *schedule = connect ? &broker->reconnect : &broker->recheck;

	schedule->next_at_us = BROKER_NEVER;
	broker->attempt = NULL;
	/* Each attempt holds the post twice, each link once. */
	if (hung_attempts(broker) <= 2 * MAX_HUNG_ATTEMPTS)
		broker->attempt = broker_attempt_start(broker->post, broker->settings, connect,
											   first_server(broker, connect));
	if (broker->attempt == NULL)
	{
		if (connect && broker->link == NULL)
			go_offline(broker, "could not start a thread to connect");
		back_off(broker, schedule);
		return;
	}
	if (connect && broker->link == NULL)
		set_state(broker, BROKER_CONNECTING);
}

/* Forgets the attempt under way and the connection that was to follow. */
void
broker_life_abandon(Broker *broker)
{
	if (broker->attempt != NULL)
		broker_attempt_abandon(broker->attempt);
	broker->attempt = NULL;
	if (broker->successor != NULL)
		broker_attempt_free(broker->successor);
	broker->successor = NULL;
}

/* All that waits for an answer will get none. */
static void
lose_waiting(Broker *broker, const char *reason)
{
	broker_flight_lose(&broker->flight);
	broker_text(broker->lost_text, "connection lost before an acknowledgement: %s", reason);
}

/* Ends the connection and leaves the state to the caller. */
void
broker_life_drop(Broker *broker, const char *reason)
{
	if (broker->link == NULL)
		return;
	broker->max_payload = atomic_load(&broker->link->max_payload);
	/* A connection that held for a while, or worked, starts the back-off anew. */
	if (broker_now_us() - broker->online_since_us >
		(int64_t) broker->settings->config.reconnect_max_ms * 1000)
		broker->reconnect.pause_us = 0;
	lose_waiting(broker, reason);
	broker_outcome_discard_replies(broker);
	broker_trash_empty(&broker->trash);
	broker_link_drop(broker->link);
	broker->link = NULL;
	broker->stream_text[0] = '\0';
	broker->stream = (BrokerStream) {0};
	broker->recheck.next_at_us = BROKER_NEVER;
	broker->reconnect.next_at_us = BROKER_NEVER;
	/* A look at the stream must not hold up the next connection. */
	if (broker->successor == NULL)
		broker_life_abandon(broker);
}

static void
go_online(Broker *broker, BrokerLink *link)
{
	if (!broker_link_adopt(link, broker->epoll_fd))
	{
		broker_link_drop(link);
		go_offline(broker, "could not watch the connection");
		back_off(broker, &broker->reconnect);
		return;
	}
	broker->link = link;
	broker->online_since_us = broker_now_us();
	broker->connects++;
	broker->begin_with = -1;
	set_state(broker, BROKER_ONLINE);
}

/* What an attempt has found out about the stream; one that didn't reach the server says nothing. */
static void
note_stream(Broker *broker, const BrokerAttempt *attempt)
{
	if (attempt->error[0] == '\0')
	{
		memcpy(broker->stream_text, attempt->stream_text, BROKER_TEXT_SIZE);
		broker->stream = attempt->stream;
		if (broker->link != NULL)
		{
			broker->link->takes_ttl = broker->stream.takes_ttl;
			broker->link->takes_schedules = broker->stream.takes_schedules;
		}
	}
	if (broker->stream_text[0] != '\0')
		back_off(broker, &broker->recheck);
}

/* Exchanges the connection to a leaving server for the one that is ready. */
static void
follow_successor(Broker *broker)
{
	BrokerAttempt *attempt = broker->successor;

	broker_life_drop(broker, "the server is shutting down");
	broker->successor = NULL;
	go_online(broker, attempt->link);
	attempt->link = NULL;
	if (broker->state == BROKER_ONLINE)
		note_stream(broker, attempt);
	broker_attempt_free(attempt);
}

/* An attempt is over, without a result for us. */
static void
attempt_failed(Broker *broker, const BrokerAttempt *attempt, const char *text)
{
	if (attempt->connect && broker->link == NULL)
		go_offline(broker, text);
	back_off(broker, attempt->connect ? &broker->reconnect : &broker->recheck);
}

/* Looks whether the attempt under way has ended, well or badly or not at all. */
void
broker_life_collect(Broker *broker, int64_t now_us)
{
	BrokerAttempt *attempt = broker->attempt;

	if (attempt == NULL)
		return;
	if (!broker_attempt_done(attempt))
	{
		if (now_us < broker_attempt_limit_us(attempt))
			return;
		broker->begin_with = atomic_load(&attempt->server_index) + 1;
		attempt_failed(broker, attempt, "the attempt to connect hangs, another one will be made");
		broker_life_abandon(broker);
		return;
	}

	broker->attempt = NULL;
	if (attempt->link != NULL && broker->link != NULL)
	{
		broker->successor = attempt;
		return;
	}
	if (attempt->link != NULL)
	{
		go_online(broker, attempt->link);
		attempt->link = NULL;
	}
	else if (attempt->connect)
		attempt_failed(broker, attempt, attempt->error);
	if (broker->state == BROKER_ONLINE)
		note_stream(broker, attempt);
	broker_attempt_free(attempt);
}

/* Plans a look at the stream: at once for the first suspicion, else by back-off. */
void
broker_life_suspect_stream(Broker *broker)
{
	bool		first = broker->recheck.pause_us == 0;

	if (broker->attempt != NULL || broker->recheck.next_at_us != BROKER_NEVER)
		return;
	back_off(broker, &broker->recheck);
	if (first)
		broker->recheck.next_at_us = broker_now_us();
}

/* Why the connection can't go on; NULL: it can. */
static const char *
trouble_with_link(Broker *broker, int64_t now_us)
{
	BrokerLink *link = broker->link;

	if (atomic_load(&link->dead))
		return link->reason;
	/* Its complaint doesn't change any more. */
	if (atomic_load(&link->mute))
		return link->complaint;
	if (broker_link_stuck(link, now_us, (int64_t) broker->settings->config.ack_timeout_ms * 1000))
		return "the server does not respond";
	return NULL;
}

/* Deals with a connection that has ended or is about to. */
static void
check_link(Broker *broker, int64_t now_us)
{
	const char *trouble = trouble_with_link(broker, now_us);

	if (broker->successor != NULL && (trouble != NULL || broker->flight.waiting.head < 0))
		follow_successor(broker);
	else if (trouble != NULL)
	{
		go_offline(broker, trouble);
		broker_life_drop(broker, broker->offline_text);
		back_off(broker, &broker->reconnect);
	}
	else if (atomic_load(&broker->link->leaving) && broker->reconnect.next_at_us == BROKER_NEVER &&
			 broker->attempt == NULL && broker->successor == NULL)
		back_off(broker, &broker->reconnect);
}

/* Runs what is due: a dead or stuck connection, a retry, a look at the stream. */
void
broker_life_run(Broker *broker, int64_t now_us)
{
	if (broker->link != NULL)
		check_link(broker, now_us);
	if (broker->attempt != NULL)
		return;
	if (now_us >= broker->reconnect.next_at_us)
		broker_life_start(broker, true);
	else if (broker->link != NULL && now_us >= broker->recheck.next_at_us)
		broker_life_start(broker, false);
}
