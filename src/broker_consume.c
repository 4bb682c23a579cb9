/*
 * broker_consume.c
 *	  One connection that receives: a thread connects, asks for messages while
 *	  there is room, acknowledges, and tells the server of work in progress. How it
 *	  begins, and how messages come, is in broker_consume_open.c.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "broker_consume_internal.h"

/* A request for messages waits so long at the server; silence for longer means that it is forgotten. */
#define PULL_MS			30000
#define PULL_GRACE_MS	5000
#define FLUSH_MS		500

/* ------------------------------------------------------------ small things */

void
broker_consume_free(BrokerReceived *message)
{
	free(message->reply);
	free(message);
}

static void
free_list(BrokerReceived *message)
{
	while (message != NULL)
	{
		BrokerReceived *next = message->next;

		broker_consume_free(message);
		message = next;
	}
}

void
broker_consume_release(BrokerConsumer *consumer)
{
	if (atomic_fetch_sub(&consumer->holders, 1) > 1)
		return;
	free_list(consumer->unfinished);
	while (consumer->finished != NULL)
	{
		BrokerReceived *next = consumer->finished->next_in_queue;

		broker_consume_free(consumer->finished);
		consumer->finished = next;
	}
	free((char *) consumer->config.durable);
	free((char *) consumer->config.filter);
	pthread_cond_destroy(&consumer->work);
	pthread_mutex_destroy(&consumer->lock);
	if (consumer->settings != NULL)
		broker_settings_release(consumer->settings);
	if (consumer->post != NULL)
		broker_post_release(consumer->post);
	free(consumer);
}

/* Any thread. The first reason is the one that counts. */
void
broker_consume_end(BrokerConsumer *consumer, const char *reason)
{
	pthread_mutex_lock(&consumer->lock);
	if (!consumer->dead && !consumer->stop)
		broker_text(consumer->status.text, "%s", reason);
	consumer->dead = true;
	pthread_cond_signal(&consumer->work);
	pthread_mutex_unlock(&consumer->lock);
}

/* -------------------------------------------------------------- the thread */

/* Asks for as many messages as there is room for. */
static void
pull(BrokerConsumer *consumer, int batch)
{
	char		subject[2 * BROKER_TEXT_SIZE + 64];
	char		request[128];
	natsStatus	status;

	snprintf(subject, sizeof(subject), "$JS.API.CONSUMER.MSG.NEXT.%s.%s", consumer->settings->config.stream, consumer->config.durable);
	snprintf(request, sizeof(request), "{\"batch\":%d,\"expires\":%lld}", batch, (long long) PULL_MS * 1000000);
	status = natsConnection_PublishRequestString(consumer->nc, subject, consumer->inbox, request);
	if (status != NATS_OK)
		broker_consume_end(consumer, broker_nats_error(status));
}

static void
acknowledge(BrokerConsumer *consumer, BrokerReceived *message)
{
	while (message != NULL)
	{
		BrokerReceived *next = message->next_in_queue;

		(void) natsConnection_PublishString(consumer->nc, message->reply, "+ACK");
		broker_consume_free(message);
		message = next;
	}
}

/* Keeps the server from delivering again what is only waiting here. */
static void
tell_progress(BrokerConsumer *consumer)
{
	size_t		size = 1;
	char	   *replies;		/* one behind the other */
	char	   *end;

	pthread_mutex_lock(&consumer->lock);
	for (BrokerReceived *m = consumer->unfinished; m != NULL; m = m->next)
		size += strlen(m->reply) + 1;
	end = replies = malloc(size);
	for (BrokerReceived *m = consumer->unfinished; end != NULL && m != NULL; m = m->next)
		end = stpcpy(end, m->reply) + 1;
	pthread_mutex_unlock(&consumer->lock);
	for (const char *reply = replies; reply != end; reply += strlen(reply) + 1)
		(void) natsConnection_PublishString(consumer->nc, reply, "+WPI");
	free(replies);
}

static int64_t
earlier(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static void
wait_for_work(BrokerConsumer *consumer, int64_t until_us)
{
	struct timespec until = {.tv_sec = until_us / 1000000, .tv_nsec = (until_us % 1000000) * 1000};

	pthread_cond_timedwait(&consumer->work, &consumer->lock, &until);
}

/* Receives and acknowledges until the connection ends. */
static void
run(BrokerConsumer *consumer)
{
	int64_t		progress_us = (int64_t) consumer->config.ack_wait_ms * 1000 / 3;
	bool		over = false;

	consumer->progress_at_us = broker_now_us() + progress_us;
	while (!over)
	{
		BrokerReceived *finished;
		int			room;
		int64_t		now_us;

		pthread_mutex_lock(&consumer->lock);
		for (;;)
		{
			now_us = broker_now_us();
			if (consumer->pull_left > 0 && now_us >= consumer->pull_until_us)
				consumer->pull_left = 0;
			room = consumer->pull_left > 0 ? 0 : consumer->config.window - consumer->unfinished_count;
			/* Small requests cost as much as large ones. */
			if (room < consumer->config.window / 2)
				room = 0;
			over = consumer->stop || consumer->dead;
			if (over || room > 0 || consumer->finished != NULL || now_us >= consumer->progress_at_us)
				break;
			wait_for_work(consumer, consumer->pull_left > 0 ? earlier(consumer->pull_until_us, consumer->progress_at_us) : consumer->progress_at_us);
		}
		finished = consumer->finished;
		consumer->finished = NULL;
		if (room > 0 && !over)
		{
			consumer->pull_left = room;
			consumer->pull_until_us = now_us + (PULL_MS + PULL_GRACE_MS) * INT64_C(1000);
		}
		pthread_mutex_unlock(&consumer->lock);

		acknowledge(consumer, finished);
		if (room > 0 && !over)
			pull(consumer, room);
		if (now_us >= consumer->progress_at_us)
		{
			tell_progress(consumer);
			consumer->progress_at_us = now_us + progress_us;
		}
	}
}

static bool
is_to_stop(BrokerConsumer *consumer)
{
	bool		stop;

	pthread_mutex_lock(&consumer->lock);
	stop = consumer->stop;
	pthread_mutex_unlock(&consumer->lock);
	return stop;
}

static void
set_running(BrokerConsumer *consumer)
{
	char		server[2 * BROKER_TEXT_SIZE];

	if (natsConnection_GetConnectedUrl(consumer->nc, server, sizeof(server)) != NATS_OK)
		server[0] = '\0';
	pthread_mutex_lock(&consumer->lock);
	consumer->status.state = BROKER_CONSUME_RUNNING;
	broker_text(consumer->status.server, "%s", server);
	pthread_mutex_unlock(&consumer->lock);
	broker_wake(consumer->post->wake_fd);
}

/* Tries one server after the other, and stays with the first that is good. */
static void
try_servers(BrokerConsumer *consumer)
{
	const BrokerSettings *settings = consumer->settings;
	char		error[BROKER_TEXT_SIZE] = "";
	char		text[BROKER_TEXT_SIZE] = "could not connect: outbox.nats_url names no server";

	for (int i = 0; i < settings->server_count && !is_to_stop(consumer); i++)
	{
		if (broker_consume_open(consumer, &settings->servers[i], error))
		{
			set_running(consumer);
			run(consumer);
			if (is_to_stop(consumer))
				(void) natsConnection_FlushTimeout(consumer->nc, FLUSH_MS);
			broker_consume_close(consumer);
			return;
		}
		if (consumer->nc != NULL)
			broker_text(text, "%s", error);
		else
			broker_text(text, "could not connect to %s: %s", settings->servers[i].url, error);
		broker_consume_close(consumer);
		/* Of that connection; the next one begins anew. */
		pthread_mutex_lock(&consumer->lock);
		consumer->dead = false;
		consumer->status.text[0] = '\0';
		pthread_mutex_unlock(&consumer->lock);
	}
	broker_consume_end(consumer, text);
}

static void *
consumer_main(void *argument)
{
	BrokerConsumer *consumer = argument;
	BrokerPost *post = broker_post_hold(consumer->post);

	try_servers(consumer);
	pthread_mutex_lock(&consumer->lock);
	consumer->status.state = BROKER_CONSUME_ENDED;
	pthread_mutex_unlock(&consumer->lock);
	broker_wake(post->wake_fd);
	broker_consume_release(consumer);
	broker_post_release(post);
	return NULL;
}

/* ---------------------------------------------------------------- the owner */

BrokerConsumer *
broker_consume_start(const BrokerConfig *connection, const BrokerConsumeConfig *config)
{
	BrokerConsumer *consumer = calloc(1, sizeof(BrokerConsumer));
	pthread_condattr_t attributes;
	pthread_t	thread;

	if (consumer == NULL)
		return NULL;
	pthread_mutex_init(&consumer->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&consumer->work, &attributes);
	pthread_condattr_destroy(&attributes);
	atomic_init(&consumer->holders, 1);
	consumer->config = *config;
	consumer->start_at_us = broker_now_us() - config->start_age_us;
	consumer->config.durable = strdup(config->durable);
	consumer->config.filter = strdup(config->filter == NULL ? "" : config->filter);
	consumer->post = broker_post_create();
	consumer->settings = broker_settings_create(connection);
	if (consumer->config.durable == NULL || consumer->config.filter == NULL || consumer->post == NULL ||
		consumer->settings == NULL || nats_Open(-1) != NATS_OK)
	{
		broker_consume_release(consumer);
		return NULL;
	}
	atomic_fetch_add(&consumer->holders, 1);
	if (!broker_thread_start(&thread, consumer_main, consumer))
	{
		atomic_fetch_sub(&consumer->holders, 1);
		broker_consume_release(consumer);
		return NULL;
	}
	return consumer;
}

int
broker_consume_fd(const BrokerConsumer *consumer)
{
	return consumer->post->wake_fd;
}

BrokerReceived *
broker_consume_take(BrokerConsumer *consumer)
{
	BrokerReceived *message;
	uint64_t	wakes;
	ssize_t		got;

	got = read(consumer->post->wake_fd, &wakes, sizeof(wakes));
	(void) got;
	pthread_mutex_lock(&consumer->lock);
	message = consumer->arrived_head;
	if (message != NULL)
	{
		consumer->arrived_head = message->next_in_queue;
		if (consumer->arrived_head == NULL)
			consumer->arrived_tail = NULL;
		message->next_in_queue = NULL;
	}
	pthread_mutex_unlock(&consumer->lock);
	return message;
}

void
broker_consume_finish(BrokerConsumer *consumer, BrokerReceived *message)
{
	pthread_mutex_lock(&consumer->lock);
	if (message->previous != NULL)
		message->previous->next = message->next;
	else
		consumer->unfinished = message->next;
	if (message->next != NULL)
		message->next->previous = message->previous;
	consumer->unfinished_count--;
	message->next_in_queue = consumer->finished;
	consumer->finished = message;
	pthread_cond_signal(&consumer->work);
	pthread_mutex_unlock(&consumer->lock);
}

void
broker_consume_get_status(BrokerConsumer *consumer, BrokerConsumeStatus *status)
{
	pthread_mutex_lock(&consumer->lock);
	*status = consumer->status;
	pthread_mutex_unlock(&consumer->lock);
}

bool
broker_consume_stop(BrokerConsumer *consumer, int grace_ms)
{
	BrokerPost *post = broker_post_hold(consumer->post);
	bool		alone;

	pthread_mutex_lock(&consumer->lock);
	consumer->stop = true;
	pthread_cond_signal(&consumer->work);
	pthread_mutex_unlock(&consumer->lock);
	broker_consume_release(consumer);
	/* The consumer holds it while anybody holds the consumer. */
	alone = broker_post_wait(post, grace_ms);
	broker_post_release(post);
	return alone;
}
