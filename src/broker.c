/*
 * broker.c
 *	  The broker's public functions. Everything in struct Broker belongs to the
 *	  main thread and needs no lock; what other threads leave is picked up in
 *	  broker_poll().
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "broker_internal.h"

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

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
	broker->reconnect.next_at_us = BROKER_NEVER;
	broker->recheck.next_at_us = BROKER_NEVER;
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
			broker_life_start(broker, true);
		return true;
	}
	settings = broker_settings_create(config);
	if (settings == NULL)
		return false;
	broker_life_abandon(broker);
	broker_life_drop(broker, "the configuration changed");
	broker_settings_release(broker->settings);
	broker->settings = settings;
	broker->begin_with = -1;
	broker->reconnect.pause_us = 0;
	broker->recheck.pause_us = 0;
	broker_life_start(broker, true);
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
	broker_life_collect(broker, now_us);

	/* Answers first: what has arrived by now is neither lost nor late. */
	count += broker_outcome_report_replies(broker, outcomes, max);
	if (count < max)
	{
		broker_life_run(broker, now_us);
		count += broker_outcome_report(broker, now_us, outcomes + count, max - count);
	}
	if (count == max)
		broker_wake(broker->post->wake_fd);
	return count;
}

int
broker_poll_within(const Broker *broker)
{
	int64_t		at_us = BROKER_NEVER;
	int64_t		wait_us;

	if (broker->settings == NULL)
		return -1;
	if (broker_flight_any_lost(&broker->flight) || broker_flight_any_denied(&broker->flight))
		return 0;
	if (broker->attempt != NULL)
		at_us = broker_attempt_limit_us(broker->attempt);
	else
		at_us = earlier(broker->reconnect.next_at_us, broker->recheck.next_at_us);
	if (broker->link != NULL)
	{
		int64_t		timeout_us = (int64_t) broker->settings->config.ack_timeout_ms * 1000;
		int64_t		writing_since_us = atomic_load(&broker->link->writing_since_us);

		at_us = earlier(at_us, atomic_load(&broker->link->last_read_us) + BROKER_STALE_US);
		if (writing_since_us != 0)
			at_us = earlier(at_us, writing_since_us + timeout_us);
		at_us = earlier(at_us, broker_outcome_timeout_us(broker));
	}
	if (at_us == BROKER_NEVER)
		return -1;
	wait_us = at_us - broker_now_us();
	return wait_us <= 0 ? 0 : (int) earlier(wait_us / 1000 + 1, INT32_MAX);
}

/* Whether so many messages would be taken now. */
static BrokerPublishResult
find_room(const Broker *broker, int count)
{
	if (broker->link == NULL)
		return BROKER_PUBLISH_OFFLINE;
	/* The last answers from a server that we leave are awaited. */
	if (broker->successor != NULL)
		return BROKER_PUBLISH_FULL;
	if (broker->flight.count + count > broker->settings->config.max_in_flight ||
		broker->flight.count + count > BROKER_MAX_SLOTS)
		return BROKER_PUBLISH_FULL;
	return BROKER_PUBLISH_OK;
}

BrokerPublishResult
broker_publish(Broker *broker, const BrokerMessage *message, void *cookie,
			   int *error_code, char *error_text)
{
	int64_t		now_us = broker_now_us();
	BrokerPublishResult result = find_room(broker, 1);
	int			slot;

	if (result != BROKER_PUBLISH_OK)
		return result;

	slot = broker_flight_take(&broker->flight);
	result = broker_message_publish(broker->link, &broker->trash, message, (uint32_t) slot,
									broker->flight.slots[slot].generation, error_text);
	if (result == BROKER_PUBLISH_OK)
		broker_flight_begin(&broker->flight, slot, 1, cookie, now_us, broker_message_subject(broker->link, message));
	else
		broker_flight_give_back(&broker->flight, slot);
	if (result == BROKER_PUBLISH_REFUSED)
		*error_code = 0;
	return result;
}

BrokerPublishResult
broker_publish_batch(Broker *broker, const BrokerMessage *const *messages, int count, void *cookie, char *error_text)
{
	int64_t		now_us = broker_now_us();
	BrokerPublishResult result = find_room(broker, count);
	int			slot;

	if (result != BROKER_PUBLISH_OK)
		return result;
	slot = broker_flight_take(&broker->flight);
	result = broker_message_publish_batch(broker->link, &broker->trash, messages, count, (uint32_t) slot,
										  broker->flight.slots[slot].generation, error_text);
	if (result == BROKER_PUBLISH_OK)
		broker_flight_begin(&broker->flight, slot, count, cookie, now_us, broker_message_subject(broker->link, messages[count - 1]));
	else
		broker_flight_give_back(&broker->flight, slot);
	return result;
}

void
broker_announce(Broker *broker, const char *subject, const void *data, int len)
{
	BrokerMessage message = {.subject = subject, .data = data, .data_len = len};

	if (broker->link != NULL)
		broker_message_announce(broker->link, &broker->trash, &message);
}

void
broker_flush(Broker *broker)
{
	if (broker->link != NULL)
		broker_link_flush(broker->link);
}

void
broker_reset(Broker *broker)
{
	if (broker->settings == NULL)
		return;
	/* While CONNECTING the new connection is already on its way. */
	if (broker->state == BROKER_CONNECTING)
		return;
	broker_life_abandon(broker);
	broker_life_drop(broker, "the connection was reset");
	broker_life_start(broker, true);
}

void
broker_get_status(const Broker *broker, BrokerStatus *status)
{
	memset(status, 0, sizeof(*status));
	status->state = broker->state;
	status->since_us = broker->since_us;
	status->connects = broker->connects;
	status->max_payload = broker->link != NULL ? atomic_load(&broker->link->max_payload) : broker->max_payload;
	status->in_flight = broker->flight.count;
	status->batches_in_flight = broker->flight.batches;
	if (broker->state == BROKER_ONLINE && broker->link != NULL)
	{
		memcpy(status->server, broker->link->server, BROKER_TEXT_SIZE);
		memcpy(status->text, broker->stream_text, BROKER_TEXT_SIZE);
		status->duplicate_window_ms = broker->stream.duplicate_window_ms;
		status->discards_unwanted = broker->stream.discards_unwanted;
		status->takes_batches = broker->stream.takes_batches;
		status->takes_ttl = broker->stream.takes_ttl;
		status->takes_schedules = broker->stream.takes_schedules;
	}
	else
		memcpy(status->text, broker->offline_text, BROKER_TEXT_SIZE);
}

bool
broker_destroy(Broker *broker, int grace_ms)
{
	BrokerPost *post = broker->post;
	bool		alone;

	broker_life_abandon(broker);
	broker_life_drop(broker, "the broker is being closed");
	alone = broker_post_wait(post, grace_ms);
	close(broker->epoll_fd);
	broker_settings_release(broker->settings);
	free(broker->replies);
	broker_flight_free(&broker->flight);
	free(broker);
	broker_post_release(post);
	return alone;
}
