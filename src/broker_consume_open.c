/*
 * broker_consume_open.c
 *	  How a consumer's connection begins, and what comes by it on the library's
 *	  threads.
 *
 * Order. JetStream delivers in the stream's order, but what was delivered to a
 * connection that has gone comes again only after its ack wait, behind newer
 * messages. So the durable consumer is used as it is only if nothing of it is
 * under way and it stands where its owner does; else it is made anew behind the
 * owner's position, which is always known before the first message is asked for. A delivery number that is missing means that a message got
 * lost on the way: the connection ends.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "broker_consume_internal.h"

/* The description of a consumer that is there only to find out where to begin. */
#define PROBE "outbox: finds out where to begin"

#define MAX_PROBES 5

/* The server's clock is known well enough. */
#define GOOD_PROBE_US 20000

/* ----------------------------------------------------- the library's threads */

/* Copies a message into one piece of memory; the subject, headers and data follow the struct. */
static BrokerReceived *
copy_message(natsMsg *msg)
{
	const char **keys = NULL;
	const char *value;
	int			count = 0;
	size_t		size = sizeof(BrokerReceived) + strlen(natsMsg_GetSubject(msg)) + 1 + (size_t) natsMsg_GetDataLength(msg) + 1;
	BrokerReceived *message = NULL;
	BrokerHeader *headers;
	char	   *at;

	if (natsMsgHeader_Keys(msg, &keys, &count) != NATS_OK)
		count = 0;
	for (int i = 0; i < count; i++)
	{
		if (natsMsgHeader_Get(msg, keys[i], &value) == NATS_OK)
			size += strlen(keys[i]) + strlen(value) + 2;
	}
	message = calloc(1, size + (size_t) count * sizeof(BrokerHeader));
	if (message != NULL)
	{
		headers = (BrokerHeader *) (message + 1);
		at = (char *) (headers + count);
		message->headers = headers;
		for (int i = 0; i < count; i++)
		{
			if (natsMsgHeader_Get(msg, keys[i], &value) != NATS_OK)
				continue;
			headers[message->header_count].key = at;
			at = stpcpy(at, keys[i]) + 1;
			headers[message->header_count++].value = at;
			at = stpcpy(at, value) + 1;
		}
		message->subject = at;
		at = stpcpy(at, natsMsg_GetSubject(msg)) + 1;
		message->data = at;
		message->data_len = natsMsg_GetDataLength(msg);
		memcpy(at, natsMsg_GetData(msg), (size_t) message->data_len);
		message->reply = strdup(natsMsg_GetReply(msg));
	}
	free(keys);
	if (message != NULL && message->reply == NULL)
	{
		free(message);
		return NULL;
	}
	return message;
}

static bool
is_unfinished(const BrokerConsumer *consumer, uint64_t sequence)
{
	for (const BrokerReceived *m = consumer->unfinished; m != NULL; m = m->next)
	{
		if (m->sequence == sequence)
			return true;
	}
	return false;
}

/* A message for the owner. One that it has already is only redelivered: the first copy's answer counts. */
static void
keep(BrokerConsumer *consumer, BrokerReceived *message)
{
	pthread_mutex_lock(&consumer->lock);
	if (consumer->pull_left > 0)
		consumer->pull_left--;
	if (is_unfinished(consumer, message->sequence) || consumer->stop || consumer->dead)
		broker_consume_free(message);
	else
	{
		message->next = consumer->unfinished;
		if (message->next != NULL)
			message->next->previous = message;
		consumer->unfinished = message;
		consumer->unfinished_count++;
		if (consumer->arrived_tail != NULL)
			consumer->arrived_tail->next_in_queue = message;
		else
			consumer->arrived_head = message;
		consumer->arrived_tail = message;
	}
	if (consumer->pull_left == 0)
		pthread_cond_signal(&consumer->work);
	pthread_mutex_unlock(&consumer->lock);
	broker_wake(consumer->post->wake_fd);
}

/* Takes a message apart; false: it is none of the consumer's, or one before it is missing. */
static bool
receive(BrokerConsumer *consumer, natsMsg *msg)
{
	jsMsgMetaData *meta = NULL;
	BrokerReceived *message;
	uint64_t	expected;

	if (natsMsg_GetReply(msg) == NULL || natsMsg_GetMetaData(&meta, msg) != NATS_OK)
		return false;
	pthread_mutex_lock(&consumer->lock);
	expected = consumer->last_delivery + 1;
	consumer->last_delivery = meta->Sequence.Consumer;
	pthread_mutex_unlock(&consumer->lock);
	message = expected == meta->Sequence.Consumer ? copy_message(msg) : NULL;
	if (message != NULL)
	{
		message->sequence = meta->Sequence.Stream;
		message->pending = meta->NumPending;
		message->published_ns = meta->Timestamp;
	}
	jsMsgMetaData_Destroy(meta);
	if (message == NULL)
		return false;
	keep(consumer, message);
	return true;
}

/* The server's word on a request: that it has come to its end, or why it can't be served. */
static void
take_status(BrokerConsumer *consumer, const char *status, natsMsg *msg)
{
	const char *description = NULL;
	char		text[BROKER_TEXT_SIZE];

	if (strcmp(status, "100") == 0)
		return;
	if (strcmp(status, "408") == 0 || strcmp(status, "404") == 0)
	{
		pthread_mutex_lock(&consumer->lock);
		consumer->pull_left = 0;
		pthread_cond_signal(&consumer->work);
		pthread_mutex_unlock(&consumer->lock);
		return;
	}
	if (strcmp(status, "503") == 0)
		description = "the consumer is not available";
	else
		(void) natsMsgHeader_Get(msg, "Description", &description);
	broker_text(text, "no messages from the consumer: %s (%s)", description == NULL ? "no reason given" : description, status);
	broker_consume_end(consumer, text);
}

static void
take_message(natsConnection *nc, natsSubscription *sub, natsMsg *msg, void *closure)
{
	BrokerConsumer *consumer = closure;
	const char *status = NULL;

	(void) nc;
	(void) sub;
	if (natsMsg_GetDataLength(msg) == 0 && natsMsgHeader_Get(msg, "Status", &status) == NATS_OK && natsMsg_GetReply(msg) == NULL)
		take_status(consumer, status, msg);
	else if (!receive(consumer, msg))
		broker_consume_end(consumer, "a message got lost on its way, or memory ran out");
	natsMsg_Destroy(msg);
}

static void
take_complete(void *closure)
{
	broker_consume_release(closure);
}

static void
take_error(natsConnection *nc, natsSubscription *sub, natsStatus status, void *closure)
{
	(void) nc;
	(void) sub;
	if (status == NATS_NOT_PERMITTED)
		broker_consume_end(closure, broker_nats_error(status));
}

static void
take_closed(natsConnection *nc, void *closure)
{
	BrokerConsumer *consumer = closure;
	const char *words = NULL;
	bool		current;

	pthread_mutex_lock(&consumer->lock);
	current = consumer->nc == nc;
	pthread_mutex_unlock(&consumer->lock);
	natsConnection_GetLastError(nc, &words);
	/* One that was left behind says nothing of the next one. */
	if (current)
		broker_consume_end(consumer, words == NULL || words[0] == '\0' ? "the connection was closed" : words);
	broker_consume_release(consumer);
}

/* ------------------------------------------------------------ the consumer */

static bool
complain(char *error, const char *action, const char *what, natsStatus status, jsErrCode code)
{
	if (code != 0)
		broker_text(error, "could not %s \"%s\": %s (%d)", action, what, broker_nats_error(status), (int) code);
	else if (status == NATS_NO_RESPONDERS)
		broker_text(error, "could not %s \"%s\": JetStream is not available", action, what);
	else
		broker_text(error, "could not %s \"%s\": %s", action, what, broker_nats_error(status));
	return false;
}

/* What the stream says of the position. */
static bool
look_at_stream(BrokerConsumer *consumer, jsCtx *js, jsOptions *bounds, char *error)
{
	const char *stream = consumer->settings->config.stream;
	BrokerConsumeConfig *config = &consumer->config;
	BrokerConsumeStatus *known = &consumer->status;
	jsStreamInfo *info = NULL;
	jsErrCode	code = 0;
	natsStatus	status = js_GetStreamInfo(&info, js, stream, bounds, &code);

	if (status != NATS_OK)
		return complain(error, "look up stream", stream, status, code);
	pthread_mutex_lock(&consumer->lock);
	known->stream_created_ns = info->Created;
	known->stream_max_age_ms = info->Config->MaxAge / 1000000;
	known->stream_is_new = config->has_position &&
		((config->stream_created_ns != 0 && config->stream_created_ns != info->Created) || config->position > info->State.LastSeq);
	if (known->stream_is_new)
		config->position = 0;
	known->tried_up_to = 0;
	known->lost_up_to = 0;
	consumer->last_in_stream = info->State.LastSeq;
	consumer->last_stored_ns = info->State.LastTime;
	consumer->last_delivery = 0;
	if (config->has_position && !known->stream_is_new && info->State.FirstSeq > config->position + 1)
		known->lost_up_to = info->State.FirstSeq - 1;
	pthread_mutex_unlock(&consumer->lock);
	jsStreamInfo_Destroy(info);
	return true;
}

/* Makes a consumer at the position. */
static bool
create_consumer(BrokerConsumer *consumer, jsCtx *js, jsOptions *bounds, char *error)
{
	const BrokerConsumeConfig *config = &consumer->config;
	jsConsumerConfig wanted;
	jsErrCode	code = 0;
	natsStatus	status;

	jsConsumerConfig_Init(&wanted);
	wanted.Durable = config->durable;
	wanted.AckPolicy = js_AckExplicit;
	wanted.AckWait = (int64_t) config->ack_wait_ms * 1000000;
	wanted.MaxAckPending = 2 * config->window;
	if (config->filter[0] != '\0')
		wanted.FilterSubject = config->filter;
	wanted.DeliverPolicy = js_DeliverAll;
	if (config->position > 0)
	{
		wanted.DeliverPolicy = js_DeliverByStartSequence;
		wanted.OptStartSeq = config->position + 1;
	}
	status = js_AddConsumer(NULL, js, consumer->settings->config.stream, &wanted, bounds, &code);
	return status == NATS_OK || complain(error, "create consumer", config->durable, status, code);
}

static bool
is_probe(const jsConsumerInfo *info)
{
	const char *description = info->Config->Description;

	return description != NULL && strcmp(description, PROBE) == 0;
}

/* Whether the consumer that is there is as it would be made, stands at the position, and nothing of it is under way. */
static bool
is_clean(const BrokerConsumer *consumer, const jsConsumerInfo *info)
{
	const BrokerConsumeConfig *config = &consumer->config;
	const jsConsumerConfig *found = info->Config;

	return !is_probe(info) && info->NumAckPending == 0 && found->AckPolicy == js_AckExplicit && found->MaxDeliver <= 0 &&
		found->AckWait == (int64_t) config->ack_wait_ms * 1000000 && found->MaxAckPending == 2 * config->window &&
		strcmp(found->FilterSubject == NULL ? "" : found->FilterSubject, config->filter) == 0 &&
		(!config->has_position || (info->Delivered.Stream == config->position && !consumer->status.stream_is_new));
}

/* ------------------------------------------------------- where to begin */

static bool
delete_consumer(BrokerConsumer *consumer, jsCtx *js, jsOptions *bounds, char *error)
{
	const char *durable = consumer->config.durable;
	jsErrCode	code = 0;
	natsStatus	status = js_DeleteConsumer(js, consumer->settings->config.stream, durable, bounds, &code);

	return status == NATS_OK || code == JSConsumerNotFoundErr || complain(error, "remake consumer", durable, status, code);
}

static void
write_start(char *to, size_t size, int64_t start_ns)
{
	time_t		seconds = (time_t) (start_ns / 1000000000);
	struct tm	utc;
	char		text[20];

	gmtime_r(&seconds, &utc);
	strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(to, size, "\"deliver_policy\":\"by_start_time\",\"opt_start_time\":\"%s.%09dZ\"", text, (int) (start_ns % 1000000000));
}

/*
 * Makes the consumer for a moment, to read from it the server's time, and behind
 * which sequence one begins that takes what was stored since start_ns (0: from now on).
 * In JetStream's own JSON: the library (3.4 to 3.14, nats_EncodeTimeUTC()) writes
 * fractions of a second without their leading zeros, so that .05 s becomes .5 s.
 */
static bool
probe(BrokerConsumer *consumer, jsCtx *js, jsOptions *bounds, int64_t start_ns, int64_t *created_ns, uint64_t *position, char *error)
{
	const char *stream = consumer->settings->config.stream;
	const char *durable = consumer->config.durable;
	char		subject[2 * BROKER_TEXT_SIZE + 64];
	char		start[96] = "\"deliver_policy\":\"new\"";
	char		json[4 * BROKER_TEXT_SIZE];
	natsMsg	   *answer = NULL;
	jsConsumerInfo *info = NULL;
	jsErrCode	code = 0;
	natsStatus	status;

	if (start_ns != 0)
		write_start(start, sizeof(start), start_ns);
	snprintf(subject, sizeof(subject), "$JS.API.CONSUMER.DURABLE.CREATE.%s.%s", stream, durable);
	snprintf(json, sizeof(json),
			 "{\"stream_name\":\"%s\",\"config\":{\"durable_name\":\"%s\",\"description\":\"" PROBE
			 "\",\"ack_policy\":\"explicit\",\"replay_policy\":\"instant\",%s}}",
			 stream, durable, start);
	status = natsConnection_RequestString(&answer, consumer->nc, subject, json, bounds->Wait);
	natsMsg_Destroy(answer);
	if (status == NATS_OK)
		status = js_GetConsumerInfo(&info, js, stream, durable, bounds, &code);
	if (status != NATS_OK)
		return complain(error, "create consumer", durable, status, code);
	*created_ns = info->Created;
	*position = info->Delivered.Stream;
	jsConsumerInfo_Destroy(info);
	return delete_consumer(consumer, js, bounds, error);
}

/*
 * The server's time at start_at_us, whatever clock it has. That is known but for
 * the time until the server's answer is here, and the earliest possible time is
 * taken: better a message too many than one too few. So a slow answer is asked for again.
 */
static bool
find_start_time(BrokerConsumer *consumer, jsCtx *js, jsOptions *bounds, int64_t *start_ns, char *error)
{
	int64_t		unsure_us = INT64_MAX;

	for (int i = 0; i < MAX_PROBES && unsure_us > GOOD_PROBE_US; i++)
	{
		int64_t		before_us = broker_now_us();
		int64_t		created_ns;
		uint64_t	position;
		int64_t		took_us;

		if (!probe(consumer, js, bounds, 0, &created_ns, &position, error))
			return false;
		took_us = broker_now_us() - before_us;
		if (took_us < unsure_us)
			*start_ns = created_ns - (before_us + took_us - consumer->start_at_us) * 1000;
		if (took_us < unsure_us)
			unsure_us = took_us;
	}
	return true;
}

/* The position of who has none, and isn't to get what the stream had at start_at_us. */
static bool
find_start(BrokerConsumer *consumer, jsCtx *js, jsOptions *bounds, char *error)
{
	int64_t		start_ns = 0;
	int64_t		created_ns;

	/* In most cases nothing was stored since then. */
	if (!find_start_time(consumer, js, bounds, &start_ns, error))
		return false;
	consumer->config.position = consumer->last_in_stream;
	return consumer->last_stored_ns < start_ns || probe(consumer, js, bounds, start_ns, &created_ns, &consumer->config.position, error);
}

/* Where a consumer stands: its acknowledgements tell, unless there was none. */
static uint64_t
position_of(const jsConsumerInfo *info, bool clean)
{
	uint64_t	position = clean ? info->Delivered.Stream : info->AckFloor.Stream;
	uint64_t	start = info->Config->OptStartSeq;

	return start > position ? start - 1 : position;
}

/*
 * Gives the owner's position a value if it has none: the one of the consumer
 * that is there (NULL: none), else where the owner wants to begin.
 */
static bool
see_to_position(BrokerConsumer *consumer, const jsConsumerInfo *info, bool clean, jsCtx *js, jsOptions *bounds, char *error)
{
	BrokerConsumeConfig *config = &consumer->config;

	if (!config->has_position && info != NULL && !is_probe(info))
		config->position = position_of(info, clean);
	else if (!config->has_position && config->start_new)
	{
		/* A probe would be refused while there is another one. */
		if ((info != NULL && !delete_consumer(consumer, js, bounds, error)) || !find_start(consumer, js, bounds, error))
			return false;
	}
	config->has_position = true;
	pthread_mutex_lock(&consumer->lock);
	consumer->status.position = config->position;
	pthread_mutex_unlock(&consumer->lock);
	return true;
}

/* Leaves a consumer that begins behind the position. */
static bool
see_to_consumer(BrokerConsumer *consumer, jsCtx *js, jsOptions *bounds, char *error)
{
	const char *stream = consumer->settings->config.stream;
	const BrokerConsumeConfig *config = &consumer->config;
	jsConsumerInfo *info = NULL;
	jsErrCode	code = 0;
	natsStatus	status;
	bool		clean;
	bool		push;
	bool		known;

	if (!look_at_stream(consumer, js, bounds, error))
		return false;
	status = js_GetConsumerInfo(&info, js, stream, config->durable, bounds, &code);
	if (status == NATS_NOT_FOUND || code == JSConsumerNotFoundErr)
		return see_to_position(consumer, NULL, false, js, bounds, error) && create_consumer(consumer, js, bounds, error);
	if (status != NATS_OK)
		return complain(error, "look up consumer", config->durable, status, code);
	clean = is_clean(consumer, info);
	push = info->Config->DeliverSubject != NULL && info->Config->DeliverSubject[0] != '\0';
	pthread_mutex_lock(&consumer->lock);
	consumer->status.tried_up_to = clean ? 0 : info->Delivered.Stream;
	/* Should a request of an earlier connection still take something, it shows. */
	consumer->last_delivery = clean ? info->Delivered.Consumer : 0;
	pthread_mutex_unlock(&consumer->lock);
	if (push)
		broker_text(error, "consumer \"%s\" is push based", config->durable);
	known = !push && see_to_position(consumer, info, clean, js, bounds, error);
	jsConsumerInfo_Destroy(info);
	if (clean || !known)
		return known;
	return delete_consumer(consumer, js, bounds, error) && create_consumer(consumer, js, bounds, error);
}

static bool
subscribe(BrokerConsumer *consumer, char *error)
{
	const char *prefix = consumer->settings->config.inbox_prefix;
	natsInbox  *inbox = NULL;
	natsStatus	status = natsInbox_Create(&inbox);

	if (status == NATS_OK)
	{
		snprintf(consumer->inbox, sizeof(consumer->inbox), "%s%s%s", prefix, prefix[0] != '\0' ? "." : "",
				 prefix[0] != '\0' ? inbox + strlen("_INBOX.") : inbox);
		natsInbox_Destroy(inbox);
		/* For take_complete(). */
		atomic_fetch_add(&consumer->holders, 1);
		status = natsConnection_Subscribe(&consumer->sub, consumer->nc, consumer->inbox, take_message, consumer);
		if (status == NATS_OK)
			status = natsSubscription_SetOnCompleteCB(consumer->sub, take_complete, consumer);
		if (status != NATS_OK)
			atomic_fetch_sub(&consumer->holders, 1);
	}
	if (status == NATS_OK)
		status = natsSubscription_SetPendingLimits(consumer->sub, -1, -1);
	if (status != NATS_OK)
		broker_text(error, "could not subscribe to the reply subject: %s", broker_nats_error(status));
	return status == NATS_OK;
}

/* --------------------------------------------------------------- connecting */

static void
set_connection(BrokerConsumer *consumer, natsConnection *nc)
{
	pthread_mutex_lock(&consumer->lock);
	consumer->nc = nc;
	pthread_mutex_unlock(&consumer->lock);
}

static bool
connect_to(BrokerConsumer *consumer, const BrokerServer *server, char *error)
{
	natsConnection *nc = NULL;
	natsOptions *options = broker_options_create(consumer->settings, server, error);
	natsStatus	status;

	if (options == NULL)
		return false;
	status = natsOptions_SetErrorHandler(options, take_error, consumer);
	if (status == NATS_OK)
		status = natsOptions_SetClosedCB(options, take_closed, consumer);
	if (status == NATS_OK)
		status = natsOptions_SetPingInterval(options, BROKER_PING_MS);
	if (status == NATS_OK)
		status = natsOptions_SetMaxPingsOut(options, 2);
	if (status == NATS_OK)
		status = natsOptions_SetWriteDeadline(options, consumer->settings->config.connect_timeout_ms);
	if (status == NATS_OK)
	{
		/* For take_closed(), which runs once for a connection that was made. */
		atomic_fetch_add(&consumer->holders, 1);
		status = natsConnection_Connect(&nc, options);
		if (status == NATS_OK)
			set_connection(consumer, nc);
		else
			atomic_fetch_sub(&consumer->holders, 1);
	}
	if (status != NATS_OK)
		broker_options_error(consumer->settings, status, error);
	natsOptions_Destroy(options);
	return status == NATS_OK;
}

/*
 * The connection first, which ends its reading thread: before 3.8 that one may
 * still use a subscription that is destroyed while a message comes in.
 */
void
broker_consume_close(BrokerConsumer *consumer)
{
	natsConnection *nc = consumer->nc;

	set_connection(consumer, NULL);
	natsConnection_Destroy(nc);
	natsSubscription_Destroy(consumer->sub);
	consumer->sub = NULL;
}

/* Everything that comes before the first message. */
bool
broker_consume_open(BrokerConsumer *consumer, const BrokerServer *server, char *error)
{
	jsCtx	   *js = NULL;
	jsOptions	bounds;
	bool		ready;

	if (!connect_to(consumer, server, error))
		return false;
	jsOptions_Init(&bounds);
	bounds.Wait = consumer->settings->config.connect_timeout_ms;
	ready = natsConnection_JetStream(&js, consumer->nc, NULL) == NATS_OK &&
		see_to_consumer(consumer, js, &bounds, error) && subscribe(consumer, error);
	jsCtx_Destroy(js);
	pthread_mutex_lock(&consumer->lock);
	/* What the server had to say of a permission tells more than the timeout that followed. */
	if (!ready && consumer->dead && consumer->status.text[0] != '\0')
		memcpy(error, consumer->status.text, BROKER_TEXT_SIZE);
	pthread_mutex_unlock(&consumer->lock);
	return ready;
}
