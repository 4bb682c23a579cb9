/*
 * broker_link.c
 *	  One connection to NATS, from the connect that made it to its end. It never
 *	  reconnects; broker.c makes a new one.
 *
 * The library runs in its event-loop mode: it starts no reader and no flusher
 * thread, a publish is only appended to its buffer, and the link's driver moves
 * the bytes when epoll says so. What still runs on library threads:
 *
 *	 - take_reply(), on the subscription's thread: leaves an acknowledgement in
 *	   replies[] for broker_poll();
 *	 - take_error() and take_closed(), on the library's callback thread;
 *	 - take_write(), also on its timer thread, which sends PINGs.
 *
 * The library closes a connection by itself only in the middle of a driver's
 * call: the PING limit, which would close it from the timer thread under the
 * driver's hands, is out of reach, and broker_link_stuck() does that job.
 *
 * Replies come to an asynchronous subscription on a prefix of our own, because
 * natsSubscription_NextMsg() swallows the "no responders" message and with it
 * the knowledge whose it was.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
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
	BrokerReply reply = {.msg = msg, .at_us = broker_now_us()};

	(void) nc;
	(void) sub;
	broker_reply_push(closure, &reply);
}

/* The subscription's thread is past its last take_reply(). */
static void
take_complete(void *closure)
{
	broker_link_release(closure);
}

/*
 * The server sent an error that leaves the connection open. It says nothing of
 * the message it is about, so it is kept as a hint for those that time out.
 */
static void
take_error(natsConnection *nc, natsSubscription *sub, natsStatus status, void *closure)
{
	BrokerLink *link = closure;
	char		text[BROKER_TEXT_SIZE];

	(void) nc;
	(void) sub;
	broker_text(text, "%s", broker_nats_error(status));
	/* Our own greeting: not being allowed to ask about streams is no trouble. */
	if (strstr(text, "$JS.API.") != NULL)
		return;
	pthread_mutex_lock(&link->lock);
	memcpy(link->server_error, text, sizeof(text));
	link->server_error_us = broker_now_us();
	/* Replies that can't reach us concern every message there will be. */
	if (link->prefix_len > 0 && strstr(text, "_INBOX.") != NULL)
		link->server_error_us = INT64_MAX;
	pthread_mutex_unlock(&link->lock);
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
	return link;
}

void
broker_link_release(BrokerLink *link)
{
	BrokerQueued *queued;

	if (atomic_fetch_sub(&link->holders, 1) > 1)
		return;
	while ((queued = link->queue_head) != NULL)
	{
		link->queue_head = queued->next;
		natsMsg_Destroy(queued->msg);
		free(queued);
	}
	for (int i = 0; i < link->reply_count; i++)
		broker_reply_free(&link->replies[i]);
	free(link->replies);
	if (link->pump_fd >= 0)
		close(link->pump_fd);
	pthread_mutex_destroy(&link->lock);
	pthread_mutex_destroy(&link->gate);
	broker_settings_release(link->settings);
	broker_post_release(link->post);
	free(link);
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
	natsInbox  *inbox = NULL;
	char		subject[sizeof(link->reply_subject)];
	natsStatus	status = natsInbox_Create(&inbox);

	if (status != NATS_OK)
		return status;
	link->prefix_len = snprintf(link->reply_subject, sizeof(link->reply_subject), "%s.", inbox);
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
 * Asks the server something and waits for the first bytes: a server that took
 * the connection but is frozen is found out here, and the first byte tells a
 * TLS connection from a plain one, which the library doesn't. The answer itself
 * is left for the driver; nobody waits for its contents.
 */
static natsStatus
await_first_bytes(BrokerLink *link, bool *tls)
{
	const BrokerConfig *config = &link->settings->config;
	struct pollfd wait = {.fd = link->fd, .events = POLLIN};
	char		subject[BROKER_TEXT_SIZE];
	unsigned char first = 0;
	natsStatus	status;

	snprintf(subject, sizeof(subject), "$JS.API.STREAM.INFO.%s", config->stream);
	strcpy(link->reply_subject + link->prefix_len, "hello");
	status = natsConnection_PublishRequest(link->nc, subject, link->reply_subject, NULL, 0);
	if (status != NATS_OK)
		return status;
	natsConnection_ProcessWriteEvent(link->nc);
	if (poll(&wait, 1, config->connect_timeout_ms) != 1)
		return NATS_TIMEOUT;
	if (recv(wait.fd, &first, 1, MSG_PEEK | MSG_DONTWAIT) != 1)
		return NATS_CONNECTION_CLOSED;
	/* Record types of TLS are 20 to 24; NATS's own lines begin with a printable. */
	*tls = first < ' ' && first != '\r' && first != '\n';
	return NATS_OK;
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
		link->max_payload = natsConnection_GetMaxPayload(link->nc);
		if (natsConnection_GetConnectedUrl(link->nc, server, sizeof(server)) == NATS_OK)
			broker_text(link->server, "%s", server);
		status = subscribe_link(link);
	}
	if (status == NATS_OK)
		status = await_first_bytes(link, &tls);
	atomic_store(&link->last_read_us, broker_now_us());
	if (status == NATS_OK && (!tls || broker_pump_start(link)))
		return link;

	if (status == NATS_OK)
		broker_text(error, "could not start a thread");
	else
		broker_text(error, "could not connect to %s: %s", settings->shown_url,
					broker_nats_error(status));
	broker_link_finish(link);
	return NULL;
}

/* The main thread becomes the driver, unless the pump is. */
bool
broker_link_adopt(BrokerLink *link, int epoll_fd)
{
	struct epoll_event event = {.events = EPOLLIN};
	bool		added = false;

	if (link->pumped)
		return true;
	pthread_mutex_lock(&link->lock);
	link->driver = pthread_self();
	if (link->fd >= 0)
	{
		event.data.ptr = link;
		link->epoll_fd = epoll_fd;
		added = epoll_ctl(epoll_fd, EPOLL_CTL_ADD, link->fd, &event) == 0;
		if (added)
			link->interest = event.events;
	}
	pthread_mutex_unlock(&link->lock);
	return added;
}

/* Writes down how the connection ended, if it has. Driver only. */
void
broker_link_note_end(BrokerLink *link)
{
	const char *words = NULL;

	if (atomic_load(&link->dead) || !natsConnection_IsClosed(link->nc))
		return;
	natsConnection_GetLastError(link->nc, &words);
	broker_text(link->reason, "%s", words == NULL || words[0] == '\0' ? "closed" : words);
	atomic_store(&link->dead, true);
}

/* Lets epoll wait for a writable socket only while bytes are left over. */
static void
update_interest(BrokerLink *link)
{
	bool		wanted = atomic_load(&link->write_wanted);
	struct epoll_event event = {.events = EPOLLIN | (wanted ? EPOLLOUT : 0)};

	if (!wanted)
	{
		atomic_store(&link->writing_since_us, 0);
		atomic_store(&link->unsent_bytes, 0);
	}
	else if (atomic_load(&link->writing_since_us) == 0)
		atomic_store(&link->writing_since_us, broker_now_us());
	if (link->interest == event.events || link->fd < 0)
		return;
	event.data.ptr = link;
	if (epoll_ctl(link->epoll_fd, EPOLL_CTL_MOD, link->fd, &event) == 0)
		link->interest = event.events;
}

/* Main thread. Writes what the socket takes; the library has no idle writes to fear. */
void
broker_link_flush(BrokerLink *link)
{
	if (link->pumped)
	{
		if (link->queued)
			broker_wake(link->pump_fd);
		link->queued = false;
		return;
	}
	if (atomic_load(&link->dead))
		return;
	/* With an empty buffer the library would take the write of 0 bytes for the end. */
	if (atomic_load(&link->write_wanted))
		natsConnection_ProcessWriteEvent(link->nc);
	update_interest(link);
	broker_link_note_end(link);
}

/* Main thread. Handles what epoll reported for the socket. */
void
broker_link_process(BrokerLink *link, uint32_t events)
{
	if (link->pumped || atomic_load(&link->dead))
		return;
	if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
	{
		atomic_store(&link->last_read_us, broker_now_us());
		pthread_mutex_lock(&link->gate);
		natsConnection_ProcessReadEvent(link->nc);
		pthread_mutex_unlock(&link->gate);
	}
	broker_link_flush(link);
}

/* Whether the peer's kernel has confirmed bytes since the last look. */
static bool
bytes_moved(BrokerLink *link)
{
	struct tcp_info info = {0};
	socklen_t	size = sizeof(info);
	bool		moved = false;

	pthread_mutex_lock(&link->lock);
	if (link->fd >= 0 && getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0)
	{
		moved = info.tcpi_bytes_acked != link->bytes_acked;
		link->bytes_acked = info.tcpi_bytes_acked;
	}
	pthread_mutex_unlock(&link->lock);
	return moved;
}

/*
 * Main thread. True when the peer must be taken for gone: it answers no PING,
 * or its side of the socket has been full for patience_us. The second bounds
 * our memory: what has timed out stays in the buffer as long as the link lives.
 */
bool
broker_link_stuck(BrokerLink *link, int64_t now_us, int64_t patience_us)
{
	int64_t		writing_since = atomic_load(&link->writing_since_us);

	if (now_us - atomic_load(&link->last_read_us) > BROKER_STALE_US)
		return true;
	if (writing_since == 0 || now_us - writing_since <= patience_us)
		return false;
	if (!bytes_moved(link))
		return true;
	atomic_store(&link->writing_since_us, now_us);
	return false;
}

/*
 * Driver only: takes the library's connection apart and the driver's hold with
 * it. natsConnection_Destroy() would first flush and wait for a PONG nobody
 * reads; on a socket already shut down the next write or read fails instead,
 * and the library closes the connection by itself.
 */
void
broker_link_finish(BrokerLink *link)
{
	if (link->nc != NULL)
	{
		pthread_mutex_lock(&link->lock);
		if (link->fd >= 0)
			shutdown(link->fd, SHUT_RDWR);
		pthread_mutex_unlock(&link->lock);
		for (int i = 0; i < 1000 && !natsConnection_IsClosed(link->nc); i++)
		{
			if (natsConnection_Buffered(link->nc) > 0)
				natsConnection_ProcessWriteEvent(link->nc);
			else
				natsConnection_ProcessReadEvent(link->nc);
		}
	}
	natsSubscription_Destroy(link->sub);
	natsConnection_Destroy(link->nc);
	broker_link_release(link);
}

/* The main thread, or an attempt nobody waits for, is done with the link. */
void
broker_link_drop(BrokerLink *link)
{
	if (link->pumped)
		broker_pump_stop(link);
	else
		broker_link_finish(link);
}
