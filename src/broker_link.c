/*
 * broker_link.c
 *	  One connection to NATS, from the moment it is open to its end. It never
 *	  reconnects; broker.c makes a new one.
 *
 * The library closes a connection by itself only in the middle of a driver's
 * call: the PING limit, which would close it from the timer thread under the
 * driver's hands, is out of reach, and broker_link_stuck() does that job.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <netinet/in.h>
#include <linux/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker_internal.h"

/* Keeps words of the server that concern no message we know of, as a hint. Any thread. */
void
broker_link_complain(BrokerLink *link, const char *words)
{
	pthread_mutex_lock(&link->lock);
	if (!atomic_load(&link->mute))
	{
		broker_text(link->complaint, "%s", words);
		link->complaint_us = broker_now_us();
	}
	pthread_mutex_unlock(&link->lock);
}

/*
 * The server has dealt with our subscription: the attempt may wait for that.
 * Called on threads of the library.
 */
void
broker_link_greeted(BrokerLink *link)
{
	pthread_mutex_lock(&link->lock);
	link->greeted = true;
	if (link->greeting_fd >= 0)
		broker_wake(link->greeting_fd);
	pthread_mutex_unlock(&link->lock);
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

/* The server tells a changed limit at any time. Driver only. */
void
broker_link_note_limits(BrokerLink *link)
{
	atomic_store(&link->max_payload, natsConnection_GetMaxPayload(link->nc));
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
		broker_link_note_limits(link);
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
