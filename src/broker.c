/*
 * broker.c
 *	  The broker's public functions: when to connect, what is in flight, and what
 *	  became of it. Everything in struct Broker belongs to the main thread and
 *	  needs no lock; what other threads leave is picked up in broker_poll().
 *
 * The state of the connection:
 *
 *		OFFLINE --(retry_at_us)--> CONNECTING --(attempt done)--> ONLINE
 *		   ^                            |                            |
 *		   +-------(attempt failed)-----+------(connection ended)----+
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "broker_internal.h"

#define NEVER INT64_MAX

/* Attempts that hang in a place without a bound are given up, but not without end. */
#define MAX_HUNG_ATTEMPTS 4

/* The pause before the next try: doubled by every failure, up to a bound. */
typedef struct BackOff
{
	int64_t		pause_us;
	int64_t		next_at_us;		/* NEVER: no try is planned */
} BackOff;

struct Broker
{
	BrokerPost *post;
	int			epoll_fd;		/* what broker_fd() gives out: post->wake_fd and the socket */
	BrokerSettings *settings;	/* NULL until broker_configure() */

	BrokerState state;
	int64_t		since_us;
	uint64_t	connects;
	int64_t		max_payload;
	char		offline_text[BROKER_TEXT_SIZE];
	char		stream_text[BROKER_TEXT_SIZE];

	BrokerLink *link;			/* NULL unless ONLINE */
	int64_t		online_since_us;
	BrokerAttempt *attempt;		/* at most one that is waited for */
	int64_t		attempt_limit_us;	/* when to stop waiting for it */
	BackOff		reconnect;
	BackOff		recheck;		/* of the stream, while ONLINE */
	uint64_t	random;			/* xorshift state, for jitter */

	BrokerFlight flight;
	char		lost_text[BROKER_TEXT_SIZE];

	/* replies taken from the link, those from replies_at on not yet used */
	BrokerReply *replies;
	int			reply_count;
	int			reply_capacity;
	int			replies_at;
	BrokerTrash trash;
};

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

/* ---- the connection's life ---- */

static void
set_state(Broker *broker, BrokerState state)
{
	if (broker->state == state)
		return;
	broker->state = state;
	broker->since_us = broker_wall_us();
}

/* Plans the next try after a failed one. Half of the pause is jitter. */
static void
back_off(Broker *broker, BackOff *back_off)
{
	const BrokerConfig *config = &broker->settings->config;
	int64_t		base_us = (int64_t) config->reconnect_base_ms * 1000;
	int64_t		max_us = (int64_t) config->reconnect_max_ms * 1000;
	int64_t		pause_us;

	broker->random ^= broker->random << 13;
	broker->random ^= broker->random >> 7;
	broker->random ^= broker->random << 17;

	back_off->pause_us = back_off->pause_us == 0 ? base_us : 2 * back_off->pause_us;
	back_off->pause_us = earlier(back_off->pause_us, max_us);
	pause_us = back_off->pause_us / 2;
	pause_us += (int64_t) (broker->random % (uint64_t) (pause_us + 1));
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

/* Starts connecting, or (connect false) only a look at the stream. */
static void
start_attempt(Broker *broker, bool connect)
{
	BackOff    *schedule = connect ? &broker->reconnect : &broker->recheck;

	schedule->next_at_us = NEVER;
	broker->attempt = NULL;
	/* Each attempt holds the post twice, each link once. */
	if (hung_attempts(broker) <= 2 * MAX_HUNG_ATTEMPTS)
		broker->attempt = broker_attempt_start(broker->post, broker->settings, connect);
	if (broker->attempt == NULL)
	{
		if (connect)
			go_offline(broker, "could not start a thread to connect");
		back_off(broker, schedule);
		return;
	}
	broker->attempt_limit_us = broker_now_us() + broker_attempt_limit_us(broker->settings);
	if (connect)
		set_state(broker, BROKER_CONNECTING);
}

static void
abandon_attempt(Broker *broker)
{
	if (broker->attempt != NULL)
		broker_attempt_abandon(broker->attempt);
	broker->attempt = NULL;
}

/* All that waits for an answer will get none. */
static void
lose_waiting(Broker *broker, const char *reason)
{
	broker_flight_lose(&broker->flight);
	broker_text(broker->lost_text, "connection lost before an acknowledgement: %s", reason);
}

static void
discard_replies(Broker *broker)
{
	for (int i = broker->replies_at; i < broker->reply_count; i++)
		broker_reply_free(&broker->replies[i]);
	broker->reply_count = 0;
	broker->replies_at = 0;
}

/* Ends the connection and leaves the state to the caller. */
static void
drop_link(Broker *broker, const char *reason)
{
	if (broker->link == NULL)
		return;
	/* A connection that held for a while, or worked, starts the back-off anew. */
	if (broker_now_us() - broker->online_since_us >
		(int64_t) broker->settings->config.reconnect_max_ms * 1000)
		broker->reconnect.pause_us = 0;
	lose_waiting(broker, reason);
	discard_replies(broker);
	broker_trash_empty(&broker->trash);
	broker_link_drop(broker->link);
	broker->link = NULL;
	broker->stream_text[0] = '\0';
	broker->recheck.next_at_us = NEVER;
	/* A look at the stream must not hold up the next connection. */
	abandon_attempt(broker);
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
	broker->max_payload = link->max_payload;
	set_state(broker, BROKER_ONLINE);
}

static void
note_stream(Broker *broker, const char *stream_text)
{
	memcpy(broker->stream_text, stream_text, BROKER_TEXT_SIZE);
	if (stream_text[0] != '\0')
		back_off(broker, &broker->recheck);
}

/* Looks whether the attempt under way has ended, well or badly or not at all. */
static void
collect_attempt(Broker *broker, int64_t now_us)
{
	BrokerAttempt *attempt = broker->attempt;
	BackOff    *schedule;

	if (attempt == NULL)
		return;
	schedule = attempt->connect ? &broker->reconnect : &broker->recheck;
	if (!broker_attempt_done(attempt))
	{
		if (now_us < broker->attempt_limit_us)
			return;
		if (attempt->connect)
			go_offline(broker, "the attempt to connect hangs, another one will be made");
		abandon_attempt(broker);
		back_off(broker, schedule);
		return;
	}

	broker->attempt = NULL;
	if (attempt->link != NULL)
	{
		go_online(broker, attempt->link);
		attempt->link = NULL;
	}
	else if (attempt->connect)
	{
		go_offline(broker, attempt->error);
		back_off(broker, schedule);
	}
	/* A look at the stream that didn't reach the server says nothing about it. */
	if (broker->state == BROKER_ONLINE)
		note_stream(broker, attempt->error[0] != '\0' ? broker->stream_text : attempt->stream_text);
	broker_attempt_free(attempt);
}

/* Plans a look at the stream: at once for the first suspicion, else by back-off. */
static void
suspect_stream(Broker *broker)
{
	bool		first = broker->recheck.pause_us == 0;

	if (broker->attempt != NULL || broker->recheck.next_at_us != NEVER)
		return;
	back_off(broker, &broker->recheck);
	if (first)
		broker->recheck.next_at_us = broker_now_us();
}

/* Runs what is due: a dead or stuck connection, a retry, a look at the stream. */
static void
run_timers(Broker *broker, int64_t now_us)
{
	BrokerLink *link = broker->link;

	if (link != NULL && atomic_load(&link->dead))
	{
		go_offline(broker, link->reason);
		drop_link(broker, link->reason);
		back_off(broker, &broker->reconnect);
	}
	else if (link != NULL &&
			 broker_link_stuck(link, now_us, (int64_t) broker->settings->config.ack_timeout_ms * 1000))
	{
		go_offline(broker, "the server does not respond");
		drop_link(broker, broker->offline_text);
		back_off(broker, &broker->reconnect);
	}
	if (broker->attempt != NULL)
		return;
	if (broker->link == NULL && now_us >= broker->reconnect.next_at_us)
		start_attempt(broker, true);
	else if (broker->link != NULL && now_us >= broker->recheck.next_at_us)
		start_attempt(broker, false);
}

/* ---- outcomes ---- */

/* Exchanges the used-up replies for the link's new ones. */
static void
fetch_replies(Broker *broker)
{
	BrokerLink *link = broker->link;
	BrokerReply *empty = broker->replies;
	int			empty_capacity = broker->reply_capacity;

	pthread_mutex_lock(&link->gate);
	broker->replies = link->replies;
	broker->reply_count = link->reply_count;
	broker->reply_capacity = link->reply_capacity;
	link->replies = empty;
	link->reply_count = 0;
	link->reply_capacity = empty_capacity;
	pthread_mutex_unlock(&link->gate);
	broker->replies_at = 0;
}

/* Stores the outcome of a reply; false when it came too late for its message. */
static bool
settle_reply(Broker *broker, const BrokerReply *reply, BrokerOutcome *outcome)
{
	uint32_t	slot;
	uint32_t	generation;
	bool		live = broker_reply_token(broker->link, reply, &slot, &generation) &&
		broker_flight_waits(&broker->flight, slot, generation);

	if (live)
	{
		int64_t		sent_us = broker_flight_report(&broker->flight, slot, outcome, BROKER_BAD_REPLY);

		broker_reply_read(broker->link, reply, outcome);
		if (outcome->kind == BROKER_ACKED)
		{
			outcome->round_trip_us = (int) (reply->at_us - sent_us);
			broker->reconnect.pause_us = 0;
			broker->recheck.pause_us = 0;
		}
		else if (outcome->kind == BROKER_NO_RESPONDERS)
			suspect_stream(broker);
	}
	broker_trash_add(&broker->trash, reply->msg);
	free(reply->text);
	return live;
}

static int
report_replies(Broker *broker, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	while (count < max)
	{
		if (broker->replies_at == broker->reply_count)
		{
			if (broker->link == NULL)
				break;
			fetch_replies(broker);
			if (broker->reply_count == 0)
				break;
		}
		if (settle_reply(broker, &broker->replies[broker->replies_at++], &outcomes[count]))
			count++;
	}
	return count;
}

static int
report_lost(Broker *broker, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	while (count < max && broker_flight_any_lost(&broker->flight))
	{
		broker_flight_report_lost(&broker->flight, &outcomes[count]);
		memcpy(outcomes[count].text, broker->lost_text, BROKER_TEXT_SIZE);
		count++;
	}
	return count;
}

/*
 * A publish the server doesn't permit is never answered; the server's complaint
 * comes apart from it, so a complaint since the publish is told along.
 */
static void
describe_timeout(const Broker *broker, int64_t sent_us, BrokerOutcome *outcome)
{
	int			timeout_ms = broker->settings->config.ack_timeout_ms;
	BrokerLink *link = broker->link;
	char		complaint[BROKER_TEXT_SIZE] = "";

	pthread_mutex_lock(&link->lock);
	if (link->server_error_us >= sent_us)
		memcpy(complaint, link->server_error, sizeof(complaint));
	pthread_mutex_unlock(&link->lock);
	if (complaint[0] != '\0')
		broker_text(outcome->text, "no acknowledgement within %d ms; the server reported: %s",
					timeout_ms, complaint);
	else
		broker_text(outcome->text, "no acknowledgement within %d ms", timeout_ms);
}

/* When the next message times out. */
static int64_t
timeout_at_us(const Broker *broker)
{
	int64_t		oldest_us = broker_flight_oldest_us(&broker->flight);

	if (oldest_us == INT64_MAX)
		return NEVER;
	return oldest_us + (int64_t) broker->settings->config.ack_timeout_ms * 1000;
}

static int
report_timeouts(Broker *broker, int64_t now_us, BrokerOutcome *outcomes, int max)
{
	int			count = 0;

	while (count < max && now_us >= timeout_at_us(broker))
	{
		int64_t		sent_us = broker_flight_report_oldest(&broker->flight, &outcomes[count]);

		describe_timeout(broker, sent_us, &outcomes[count]);
		count++;
	}
	return count;
}

/* ---- public functions ---- */

Broker *
broker_create(void)
{
	Broker	   *broker = calloc(1, sizeof(Broker));
	struct epoll_event event = {.events = EPOLLIN};

	if (broker == NULL)
		return NULL;
	broker->state = BROKER_OFFLINE;
	broker->since_us = broker_wall_us();
	broker->random = (uint64_t) broker->since_us ^ (uint64_t) getpid() << 40;
	broker->reconnect.next_at_us = NEVER;
	broker->recheck.next_at_us = NEVER;
	broker->offline_text[0] = '\0';

	broker->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	broker->post = broker_post_create();
	if (broker_flight_create(&broker->flight) && broker->epoll_fd >= 0 && broker->post != NULL &&
		epoll_ctl(broker->epoll_fd, EPOLL_CTL_ADD, broker->post->wake_fd, &event) == 0 &&
		nats_Open(-1) == NATS_OK)
		return broker;

	if (broker->epoll_fd >= 0)
		close(broker->epoll_fd);
	if (broker->post != NULL)
		broker_post_release(broker->post);
	broker_flight_free(&broker->flight);
	free(broker);
	return NULL;
}

bool
broker_configure(Broker *broker, const BrokerConfig *config)
{
	BrokerSettings *settings;

	if (broker->settings != NULL && broker_settings_equal(broker->settings, config))
	{
		if (broker->state == BROKER_OFFLINE)
			start_attempt(broker, true);
		return true;
	}
	settings = broker_settings_create(config);
	if (settings == NULL)
		return false;
	abandon_attempt(broker);
	drop_link(broker, "the configuration changed");
	broker_settings_release(broker->settings);
	broker->settings = settings;
	broker->reconnect.pause_us = 0;
	broker->recheck.pause_us = 0;
	start_attempt(broker, true);
	return true;
}

int
broker_fd(const Broker *broker)
{
	return broker->epoll_fd;
}

/* Moves bytes and empties the eventfd. */
static void
run_events(Broker *broker)
{
	struct epoll_event events[4];
	int			count = epoll_wait(broker->epoll_fd, events, 4, 0);
	uint64_t	wakes;

	for (int i = 0; i < count; i++)
	{
		if (events[i].data.ptr == NULL)
		{
			ssize_t		got = read(broker->post->wake_fd, &wakes, sizeof(wakes));

			(void) got;
		}
		else if (events[i].data.ptr == broker->link)
			broker_link_process(broker->link, events[i].events);
	}
	/* A PING or PONG may wait for its way out without any event. */
	if (broker->link != NULL && atomic_load(&broker->link->write_wanted))
		broker_link_flush(broker->link);
}

int
broker_poll(Broker *broker, BrokerOutcome *outcomes, int max)
{
	int64_t		now_us;
	int			count = 0;

	run_events(broker);
	now_us = broker_now_us();
	collect_attempt(broker, now_us);

	/* Answers first: what has arrived by now is neither lost nor late. */
	count += report_replies(broker, outcomes, max);
	if (count < max)
	{
		run_timers(broker, now_us);
		count += report_lost(broker, outcomes + count, max - count);
		count += report_timeouts(broker, now_us, outcomes + count, max - count);
	}
	if (count == max)
		broker_wake(broker->post->wake_fd);
	return count;
}

int
broker_poll_within(const Broker *broker)
{
	int64_t		at_us = NEVER;
	int64_t		wait_us;

	if (broker->settings == NULL)
		return -1;
	if (broker_flight_any_lost(&broker->flight))
		return 0;
	if (broker->attempt != NULL)
		at_us = broker->attempt_limit_us;
	else if (broker->link == NULL)
		at_us = broker->reconnect.next_at_us;
	else
		at_us = broker->recheck.next_at_us;
	if (broker->link != NULL)
	{
		int64_t		timeout_us = (int64_t) broker->settings->config.ack_timeout_ms * 1000;
		int64_t		writing_since_us = atomic_load(&broker->link->writing_since_us);

		at_us = earlier(at_us, atomic_load(&broker->link->last_read_us) + BROKER_STALE_US);
		if (writing_since_us != 0)
			at_us = earlier(at_us, writing_since_us + timeout_us);
		at_us = earlier(at_us, timeout_at_us(broker));
	}
	if (at_us == NEVER)
		return -1;
	wait_us = at_us - broker_now_us();
	return wait_us <= 0 ? 0 : (int) earlier(wait_us / 1000 + 1, INT32_MAX);
}

BrokerPublishResult
broker_publish(Broker *broker, const BrokerMessage *message, void *cookie,
			   int *error_code, char *error_text)
{
	int64_t		now_us = broker_now_us();
	BrokerPublishResult result;
	int			slot;

	if (broker->link == NULL)
		return BROKER_PUBLISH_OFFLINE;
	if (broker->flight.count >= broker->settings->config.max_in_flight ||
		broker->flight.count >= BROKER_MAX_SLOTS)
		return BROKER_PUBLISH_FULL;

	slot = broker_flight_take(&broker->flight);
	result = broker_message_publish(broker->link, &broker->trash, message, (uint32_t) slot,
									broker->flight.slots[slot].generation, error_text);
	if (result == BROKER_PUBLISH_OK)
		broker_flight_begin(&broker->flight, slot, cookie, now_us);
	else
		broker_flight_give_back(&broker->flight, slot);
	if (result == BROKER_PUBLISH_REFUSED)
		*error_code = 0;
	return result;
}

void
broker_flush(Broker *broker)
{
	if (broker->link != NULL)
		broker_link_flush(broker->link);
}

void
broker_announce(Broker *broker, const char *subject, const void *data, int len)
{
	if (broker->state == BROKER_ONLINE && broker->link != NULL)
		(void) natsConnection_Publish(broker->link->nc, subject, data, len);
}

void
broker_reset(Broker *broker)
{
	if (broker->settings == NULL)
		return;
	/* While CONNECTING the new connection is already on its way. */
	if (broker->state == BROKER_CONNECTING)
		return;
	abandon_attempt(broker);
	drop_link(broker, "the connection was reset");
	start_attempt(broker, true);
}

void
broker_get_status(const Broker *broker, BrokerStatus *status)
{
	memset(status, 0, sizeof(*status));
	status->state = broker->state;
	status->since_us = broker->since_us;
	status->connects = broker->connects;
	status->max_payload = broker->max_payload;
	status->in_flight = broker->flight.count;
	if (broker->state == BROKER_ONLINE)
	{
		memcpy(status->server, broker->link->server, BROKER_TEXT_SIZE);
		memcpy(status->text, broker->stream_text, BROKER_TEXT_SIZE);
	}
	else
		memcpy(status->text, broker->offline_text, BROKER_TEXT_SIZE);
}

bool
broker_destroy(Broker *broker, int grace_ms)
{
	BrokerPost *post = broker->post;
	bool		alone;

	abandon_attempt(broker);
	drop_link(broker, "the broker is being closed");
	alone = broker_post_wait(post, grace_ms);
	close(broker->epoll_fd);
	broker_settings_release(broker->settings);
	free(broker->replies);
	broker_flight_free(&broker->flight);
	free(broker);
	broker_post_release(post);
	return alone;
}
