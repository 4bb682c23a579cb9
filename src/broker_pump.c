/*
 * broker_pump.c
 *	  The driver of a TLS connection: a thread, because OpenSSL inside libnats
 *	  waits in poll() without end when it has a part of a record to read or no
 *	  room for the rest of one, and the main thread must never wait for the
 *	  network.
 *
 * The main thread leaves messages in the link's queue and never calls the
 * library with this connection. The pump gives them to the library, moves the
 * bytes, and at the end takes the connection apart. To stop it the main thread
 * shuts the socket down, which ends every wait inside the library.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "broker_internal.h"

/* NULL when the queue is empty, or when the pump is to stop. */
static BrokerQueued *
take_queue(BrokerLink *link, bool *stop)
{
	BrokerQueued *queue = NULL;

	pthread_mutex_lock(&link->lock);
	*stop = link->stop;
	if (!link->stop)
	{
		queue = link->queue_head;
		link->queue_head = NULL;
		link->queue_tail = NULL;
	}
	pthread_mutex_unlock(&link->lock);
	return queue;
}

/*
 * Gives the messages to the library; one it does not take is answered right
 * here. Returns their size.
 */
static int64_t
publish_queue(BrokerLink *link, BrokerQueued *queue)
{
	int64_t		bytes = 0;

	while (queue != NULL)
	{
		BrokerQueued *next = queue->next;
		natsStatus	status = natsConnection_PublishMsg(link->nc, queue->msg);

		/* When it is the connection that is over, all are reported lost anyway. */
		if (status != NATS_OK && status != NATS_CONNECTION_CLOSED)
		{
			BrokerReply reply = {.slot = queue->slot, .generation = queue->generation};

			reply.text = malloc(BROKER_TEXT_SIZE);
			if (reply.text != NULL)
				broker_text(reply.text, "%s", broker_nats_error(status));
			broker_reply_push(link, &reply);
		}
		bytes += queue->bytes;
		natsMsg_Destroy(queue->msg);
		free(queue);
		queue = next;
	}
	return bytes;
}

static void
write_out(BrokerLink *link)
{
	if (!atomic_load(&link->write_wanted))
		return;
	atomic_store(&link->writing_since_us, broker_now_us());
	natsConnection_ProcessWriteEvent(link->nc);
	if (!atomic_load(&link->write_wanted))
		atomic_store(&link->writing_since_us, 0);
}

static void
wait_and_read(BrokerLink *link)
{
	struct pollfd waits[2] = {
		{.fd = link->fd, .events = POLLIN},
		{.fd = link->pump_fd, .events = POLLIN}};
	uint64_t	count;

	if (atomic_load(&link->write_wanted))
		waits[0].events |= POLLOUT;
	if (poll(waits, 2, -1) < 0)
		return;
	if (waits[1].revents != 0 && read(link->pump_fd, &count, sizeof(count)) < 0)
		return;
	if (waits[0].revents & (POLLIN | POLLHUP | POLLERR))
	{
		natsConnection_ProcessReadEvent(link->nc);
		broker_link_note_limits(link);
		atomic_store(&link->last_read_us, broker_now_us());
	}
}

static void *
pump_main(void *argument)
{
	BrokerLink *link = argument;
	bool		stop = false;
	int64_t		bytes;

	/* Waits until broker_pump_start() has written link->driver. */
	pthread_mutex_lock(&link->lock);
	pthread_mutex_unlock(&link->lock);

	while (!atomic_load(&link->dead))
	{
		BrokerQueued *queue = take_queue(link, &stop);

		if (stop)
			break;
		bytes = publish_queue(link, queue);
		write_out(link);
		atomic_fetch_sub(&link->unsent_bytes, bytes);
		broker_link_note_end(link);
		if (!atomic_load(&link->dead))
			wait_and_read(link);
		broker_link_note_end(link);
	}
	broker_wake(link->post->wake_fd);
	broker_link_finish(link);
	return NULL;
}

/* Runs on the attempt's thread, which is the driver until here. */
bool
broker_pump_start(BrokerLink *link)
{
	int			pump_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	bool		started;

	if (pump_fd < 0)
		return false;
	atomic_fetch_add(&link->holders, 1);
	pthread_mutex_lock(&link->lock);
	link->pump_fd = pump_fd;
	started = broker_thread_start(&link->driver, pump_main, link);
	link->pumped = started;
	pthread_mutex_unlock(&link->lock);
	if (!started)
		atomic_fetch_sub(&link->holders, 1);
	return started;
}

/* Main thread. Takes over msg. */
BrokerPublishResult
broker_pump_publish(BrokerLink *link, natsMsg *msg, int64_t bytes,
					uint32_t slot, uint32_t generation)
{
	BrokerQueued *queued = calloc(1, sizeof(BrokerQueued));

	if (queued == NULL)
	{
		natsMsg_Destroy(msg);
		return BROKER_PUBLISH_OFFLINE;
	}
	queued->msg = msg;
	queued->bytes = bytes;
	queued->slot = slot;
	queued->generation = generation;
	pthread_mutex_lock(&link->lock);
	if (link->queue_tail != NULL)
		link->queue_tail->next = queued;
	else
		link->queue_head = queued;
	link->queue_tail = queued;
	pthread_mutex_unlock(&link->lock);
	atomic_fetch_add(&link->unsent_bytes, bytes);
	link->queued = true;
	return BROKER_PUBLISH_OK;
}

/* Main thread. Wakes the pump wherever it waits and leaves the rest to it. */
void
broker_pump_stop(BrokerLink *link)
{
	pthread_mutex_lock(&link->lock);
	link->stop = true;
	if (link->fd >= 0)
		shutdown(link->fd, SHUT_RDWR);
	pthread_mutex_unlock(&link->lock);
	broker_wake(link->pump_fd);
	broker_link_release(link);
}
