/*
 * broker_open.c
 *	  How a connection to NATS begins: the library's callbacks, the subscription
 *	  for replies, and the proof that replies arrive. From then on it is
 *	  broker_link.c's.
 *
 * The library runs in its event-loop mode: it starts no reader and no flusher
 * thread, a publish is only appended to its buffer, and the link's driver moves
 * the bytes when epoll says so. What still runs on library threads:
 *
 *	 - take_reply(), on the subscription's thread: leaves an acknowledgement in
 *	   replies[] for broker_poll();
 *	 - take_error(), take_lame_duck() and take_closed(), on the library's callback
 *	   thread;
 *	 - take_write(), also on its timer thread, which sends PINGs.
 *
 * Replies come to an asynchronous subscription on a prefix of our own, because
 * natsSubscription_NextMsg() swallows the "no responders" message and with it
 * the knowledge whose it was.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker_internal.h"

/* At least a TLS record, so that a read never leaves a part of one behind. */
#define IO_BUFFER_SIZE 65536

static natsStatus
take_attach(void **user_data, void *loop, natsConnection *nc, natsSock socket)
{
	BrokerLink *link = loop;

	*user_data = link;
	link->nc = nc;
	pthread_mutex_lock(&link->lock);
	link->fd = socket;
	link->closing_fd = -1;
	pthread_mutex_unlock(&link->lock);
	return NATS_OK;
}

/* Called with add false when the library is done with its socket. */
static natsStatus
take_read(void *user_data, bool add)
{
	BrokerLink *link = user_data;

	if (add)
		return NATS_OK;
	pthread_mutex_lock(&link->lock);
	if (link->interest != 0)
		epoll_ctl(link->epoll_fd, EPOLL_CTL_DEL, link->fd, NULL);
	link->closing_fd = link->fd;
	link->fd = -1;
	pthread_mutex_unlock(&link->lock);
	return NATS_OK;
}

/* The library has bytes to write, or has none any more. Its lock is held. */
static natsStatus
take_write(void *user_data, bool add)
{
	BrokerLink *link = user_data;
	bool		by_driver;
	int			wake_fd;

	atomic_store(&link->write_wanted, add);
	pthread_mutex_lock(&link->lock);
	by_driver = pthread_equal(pthread_self(), link->driver);
	wake_fd = link->pumped ? link->pump_fd : link->post->wake_fd;
	pthread_mutex_unlock(&link->lock);
	/* The driver looks by itself before it sleeps; a PING comes from elsewhere. */
	if (add && !by_driver)
		broker_wake(wake_fd);
	return NATS_OK;
}

/*
 * The library is done with the loop. Newer ones leave it to us to close the
 * socket and to let go of the connection; an old one has closed the socket.
 */
static natsStatus
take_detach(void *user_data)
{
	BrokerLink *link = user_data;

	(void) link;
#if NATS_VERSION_NUMBER >= 0x030902
	natsConnection_ProcessCloseEvent(&link->closing_fd);
#endif
#if NATS_VERSION_NUMBER >= 0x030B00
	natsConnection_ProcessDetachedEvent(link->nc);
#endif
	return NATS_OK;
}

/* Runs for every acknowledgement, so it does as little as it can. */
static void
take_reply(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *closure)
{
	BrokerLink *link = closure;
	BrokerReply reply = {.msg = msg, .at_us = broker_now_us()};

	(void) nc;
	(void) sub;
	/* The greeting's token is no hexadecimal number. */
	if (natsMsg_GetSubject(msg)[link->prefix_len] == 'h')
	{
		natsMsg_Destroy(msg);
		broker_link_greeted(link);
		return;
	}
	broker_reply_push(link, &reply);
}

/* The subscription's thread is past its last take_reply(). */
static void
take_complete(void *closure)
{
	broker_link_release(closure);
}

/*
 * The server sent an error that leaves the connection open, perhaps for a
 * moment only. What is no denial is kept as a hint for messages that time out.
 */
static void
take_error(natsConnection *nc, natsSubscription *sub, natsStatus status, void *closure)
{
	BrokerLink *link = closure;

	(void) nc;
	(void) sub;
	if (status == NATS_NOT_PERMITTED)
		broker_denial_take(link, broker_nats_error(status));
	else
		broker_link_complain(link, broker_nats_error(status));
}

/* The server will close its connections soon; broker.c looks for another one. */
static void
take_lame_duck(natsConnection *nc, void *closure)
{
	BrokerLink *link = closure;

	(void) nc;
	atomic_store(&link->leaving, true);
	broker_wake(link->post->wake_fd);
}

/* The last callback of a connection: no take_error() comes after it. */
static void
take_closed(natsConnection *nc, void *closure)
{
	(void) nc;
	broker_link_release(closure);
}

static BrokerLink *
create_link(BrokerPost *post, BrokerSettings *settings)
{
	BrokerLink *link = calloc(1, sizeof(BrokerLink));

	if (link == NULL)
		return NULL;
	link->post = broker_post_hold(post);
	link->settings = broker_settings_hold(settings);
	atomic_init(&link->holders, 1);
	pthread_mutex_init(&link->lock, NULL);
	pthread_mutex_init(&link->gate, NULL);
	link->driver = pthread_self();
	link->fd = -1;
	link->pump_fd = -1;
	link->greeting_fd = -1;
	return link;
}

static natsStatus
connect_link(BrokerLink *link, natsOptions *options)
{
	natsConnection *nc = NULL;
	natsStatus	status;

	status = natsOptions_SetEventLoop(options, link, take_attach, take_read, take_write, take_detach);
	/* No flusher thread: the driver writes. */
	if (status == NATS_OK)
		status = natsOptions_SetSendAsap(options, true);
	if (status == NATS_OK)
		status = natsOptions_SetIOBufSize(options, IO_BUFFER_SIZE);
	if (status == NATS_OK)
		status = natsOptions_SetPingInterval(options, BROKER_PING_MS);
	if (status == NATS_OK)
		status = natsOptions_SetMaxPingsOut(options, INT_MAX);
	if (status == NATS_OK)
		status = natsOptions_SetErrorHandler(options, take_error, link);
	if (status == NATS_OK)
		status = natsOptions_SetLameDuckModeCB(options, take_lame_duck, link);
	if (status == NATS_OK)
		status = natsOptions_SetClosedCB(options, take_closed, link);
	if (status != NATS_OK)
		return status;

	/* For take_closed(), which runs once for a connection that was made. */
	atomic_fetch_add(&link->holders, 1);
	status = natsConnection_Connect(&nc, options);
	link->nc = nc;
	if (status != NATS_OK)
		atomic_fetch_sub(&link->holders, 1);
	return status;
}

static natsStatus
subscribe_link(BrokerLink *link)
{
	const char *prefix = link->settings->config.inbox_prefix;
	natsInbox  *inbox = NULL;
	char		subject[sizeof(link->reply_subject)];
	natsStatus	status = natsInbox_Create(&inbox);

	if (status != NATS_OK)
		return status;
	/* "_INBOX." and something unique, or that behind a prefix of our own. */
	link->prefix_len = snprintf(link->reply_subject, sizeof(link->reply_subject), "%s%s%s.", prefix,
								prefix[0] != '\0' ? "." : "",
								prefix[0] != '\0' ? inbox + strlen("_INBOX.") : inbox);
	natsInbox_Destroy(inbox);
	if (link->prefix_len + BROKER_TOKEN_LEN >= (int) sizeof(link->reply_subject))
		return NATS_INSUFFICIENT_BUFFER;

	snprintf(subject, sizeof(subject), "%.*s*", link->prefix_len, link->reply_subject);
	/* For take_complete(). */
	atomic_fetch_add(&link->holders, 1);
	status = natsConnection_Subscribe(&link->sub, link->nc, subject, take_reply, link);
	if (status == NATS_OK)
		status = natsSubscription_SetOnCompleteCB(link->sub, take_complete, link);
	if (status != NATS_OK)
	{
		atomic_fetch_sub(&link->holders, 1);
		return status;
	}
	/* A reply dropped by the library would be a message timed out. */
	return natsSubscription_SetPendingLimits(link->sub, -1, -1);
}

/*
 * Waits for the socket or for the greeting, whatever comes first, at most until
 * until_us. The first byte tells a TLS connection from a plain one, which the
 * library doesn't.
 */
static natsStatus
read_some(BrokerLink *link, int64_t until_us, int *first)
{
	struct pollfd waits[2] = {{.fd = link->fd, .events = POLLIN}, {.fd = link->greeting_fd, .events = POLLIN}};
	int64_t		left_us = until_us - broker_now_us();
	unsigned char byte;
	uint64_t	count;

	if (left_us <= 0 || poll(waits, 2, (int) (left_us / 1000) + 1) < 1)
		return NATS_TIMEOUT;
	if (waits[1].revents != 0 && read(link->greeting_fd, &count, sizeof(count)) < 0)
		return NATS_SYS_ERROR;
	if (waits[0].revents == 0)
		return NATS_OK;
	if (*first < 0 && recv(waits[0].fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
		*first = byte;
	natsConnection_ProcessReadEvent(link->nc);
	return natsConnection_IsClosed(link->nc) ? NATS_CONNECTION_CLOSED : NATS_OK;
}

/*
 * Asks the server something and drives the connection until it has answered, or
 * said that we may not ask: the server has dealt with our subscription then,
 * for it answers in order. Nobody waits for the answer's contents.
 */
static natsStatus
await_greeting(BrokerLink *link, bool *tls)
{
	const BrokerConfig *config = &link->settings->config;
	int64_t		until_us = broker_now_us() + (int64_t) config->connect_timeout_ms * 1000;
	char		subject[BROKER_TEXT_SIZE + 64];
	int			first = -1;
	bool		greeted = false;
	natsStatus	status;

	snprintf(subject, sizeof(subject), "$JS.API.STREAM.INFO.%s", config->stream);
	strcpy(link->reply_subject + link->prefix_len, "hello");
	status = natsConnection_PublishRequest(link->nc, subject, link->reply_subject, NULL, 0);
	if (status == NATS_OK)
		natsConnection_ProcessWriteEvent(link->nc);
	while (status == NATS_OK && !greeted)
	{
		status = read_some(link, until_us, &first);
		pthread_mutex_lock(&link->lock);
		greeted = link->greeted;
		pthread_mutex_unlock(&link->lock);
	}
	/* Record types of TLS are 20 to 24; NATS's own lines begin with a printable. */
	*tls = first >= 0 && first < ' ' && first != '\r' && first != '\n';
	return greeted ? NATS_OK : status;
}

/* The eventfd by which an attempt is told of the greeting lives as long as the attempt waits. */
static natsStatus
greet(BrokerLink *link, bool *tls)
{
	int			fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	natsStatus	status;

	if (fd < 0)
		return NATS_SYS_ERROR;
	pthread_mutex_lock(&link->lock);
	link->greeting_fd = fd;
	pthread_mutex_unlock(&link->lock);
	status = subscribe_link(link);
	if (status == NATS_OK)
		status = await_greeting(link, tls);
	pthread_mutex_lock(&link->lock);
	link->greeting_fd = -1;
	pthread_mutex_unlock(&link->lock);
	close(fd);
	return status;
}

/* Writes down why a connection could not be used. */
static void
describe_failure(BrokerLink *link, natsStatus status, char *error)
{
	const char *words = NULL;

	if (atomic_load(&link->mute))
	{
		pthread_mutex_lock(&link->lock);
		broker_text(error, "%s", link->complaint);
		pthread_mutex_unlock(&link->lock);
	}
	else if (status == NATS_TIMEOUT && link->sub != NULL)
		broker_text(error, "no answer through the reply subject within %d ms",
					link->settings->config.connect_timeout_ms);
	else if (status == NATS_CONNECTION_CLOSED && link->nc != NULL)
	{
		natsConnection_GetLastError(link->nc, &words);
		broker_text(error, "%s", words == NULL || words[0] == '\0' ? "the server closed the connection" : words);
	}
	else
		broker_options_error(link->settings, status, error);
}

/* Runs on an attempt's thread. NULL: not connected, and error says why. */
BrokerLink *
broker_link_open(BrokerPost *post, BrokerSettings *settings, natsOptions *options, char *error)
{
	BrokerLink *link = create_link(post, settings);
	char		server[2 * BROKER_TEXT_SIZE];
	natsStatus	status;
	bool		tls = false;

	if (link == NULL)
	{
		broker_text(error, "out of memory");
		return NULL;
	}
	status = connect_link(link, options);
	if (status == NATS_OK)
	{
		broker_link_note_limits(link);
		if (natsConnection_GetConnectedUrl(link->nc, server, sizeof(server)) == NATS_OK)
			broker_text(link->server, "%s", server);
		status = greet(link, &tls);
	}
	atomic_store(&link->last_read_us, broker_now_us());
	if (status == NATS_OK && atomic_load(&link->mute))
		status = NATS_NOT_PERMITTED;
	if (status == NATS_OK && (!tls || broker_pump_start(link)))
		return link;

	if (status == NATS_OK)
		broker_text(error, "could not start a thread");
	else
		describe_failure(link, status, error);
	broker_link_finish(link);
	return NULL;
}
