/*
 * broker_attempt.c
 *	  One try at getting online, on a thread of its own because the library's
 *	  connect blocks. At each server in turn, until one lets us in: first an
 *	  ordinary, short-lived connection that checks the stream and creates it if it
 *	  is missing, then the link that will carry the messages.
 *
 * The stream is looked after on its own connection because a synchronous
 * request needs somebody else to drive the socket, and the link's driver would
 * be the one that waits. Trouble with the stream is noted and no reason to stay
 * offline: the user may not be allowed to look at streams, only to publish.
 *
 * The library's own reconnect stays off: it gives up for good when the same
 * authentication error comes twice, it would resend bytes we have already
 * reported as lost, and it would keep files and addresses as they once were. Nor
 * does it get more than one server at a time, for each may have credentials of
 * its own and a reason of its own to refuse us.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker_internal.h"
#include "pause.h"

/*
 * A request that is not permitted is answered by a bare "-ERR" and would wait
 * for its timeout. Closing the connection ends the wait, and the connection
 * still remembers the error.
 */
static void
end_denied_request(natsConnection *nc, natsSubscription *sub, natsStatus status, void *closure)
{
	(void) sub;
	(void) closure;
	if (status == NATS_NOT_PERMITTED)
		natsConnection_Close(nc);
}

static natsConnection *
connect_for_stream(const BrokerSettings *settings, const BrokerServer *server, char *error)
{
	natsOptions *options = broker_options_create(settings, server, error);
	natsConnection *nc = NULL;
	natsStatus	status;

	if (options == NULL)
		return NULL;
	status = natsOptions_SetErrorHandler(options, end_denied_request, NULL);
	if (status == NATS_OK)
		status = natsOptions_SetWriteDeadline(options, settings->config.connect_timeout_ms);
	if (status == NATS_OK)
		status = natsConnection_Connect(&nc, options);
	if (status != NATS_OK)
		broker_options_error(settings, status, error);
	natsOptions_Destroy(options);
	return status == NATS_OK ? nc : NULL;
}

static void
note_stream_trouble(BrokerAttempt *attempt, natsConnection *nc, const char *action,
					natsStatus status, jsErrCode code)
{
	const char *words = broker_nats_error(status);
	const char *denied = NULL;

	if (natsConnection_GetLastError(nc, &denied) == NATS_NOT_PERMITTED && denied != NULL)
		words = denied;
	/* The library makes JSNotEnabledErr of "no responders", too, with words that say little. */
	if (status == NATS_NO_RESPONDERS || code == JSNotEnabledErr)
		broker_text(attempt->stream_text, "could not %s stream \"%s\": JetStream is not available",
					action, attempt->settings->config.stream);
	else if (code != 0)
		broker_text(attempt->stream_text, "could not %s stream \"%s\": %s (%d)", action,
					attempt->settings->config.stream, words, (int) code);
	else
		broker_text(attempt->stream_text, "could not %s stream \"%s\": %s", action,
					attempt->settings->config.stream, words);
}

/*
 * Asks JetStream in its own JSON, because older libraries know nothing of
 * batches and times to live. NULL: no answer; else to be destroyed by the caller.
 */
static natsMsg *
ask(const BrokerConfig *config, natsConnection *nc, const char *what, const char *json)
{
	char		subject[BROKER_TEXT_SIZE + 64];
	natsMsg    *answer = NULL;

	snprintf(subject, sizeof(subject), "$JS.API.STREAM.%s.%s", what, config->stream);
	if (natsConnection_RequestString(&answer, nc, subject, json, config->connect_timeout_ms) != NATS_OK)
		return NULL;
	return answer;
}

/* Whether it has these words. Inside of strings the quotes would be escaped. */
static bool
says(natsMsg *answer, const char *words)
{
	return memmem(natsMsg_GetData(answer), (size_t) natsMsg_GetDataLength(answer), words, strlen(words)) != NULL;
}

/* What newer servers tell of the stream, or nothing. */
static void
note_abilities(BrokerStream *stream, natsMsg *answer)
{
	stream->takes_batches = answer != NULL && says(answer, "\"allow_atomic\":true");
	stream->takes_ttl = answer != NULL && says(answer, "\"allow_msg_ttl\":true");
}

/*
 * Creates a stream that takes batches and times to live, if the server knows
 * them. An older one passes over the wish, or refuses; create_stream() then makes
 * an ordinary one.
 */
static bool
create_with_abilities(BrokerAttempt *attempt, natsConnection *nc)
{
	const BrokerConfig *config = &attempt->settings->config;
	char		json[1024];
	natsMsg    *answer;
	bool		created;

	/* As JSON strings they would need to be written differently. */
	if (strpbrk(config->stream, "\"\\") != NULL || strpbrk(config->stream_subjects, "\"\\") != NULL)
		return false;
	if (snprintf(json, sizeof(json),
				 "{\"name\":\"%s\",\"subjects\":[\"%s\"],\"retention\":\"limits\",\"max_consumers\":-1,"
				 "\"max_msgs\":-1,\"max_bytes\":-1,\"max_age\":0,\"max_msg_size\":-1,\"discard\":\"old\","
				 "\"storage\":\"file\",\"num_replicas\":1,\"duplicate_window\":%lld,\"allow_atomic\":true,\"allow_msg_ttl\":true}",
				 config->stream, config->stream_subjects,
				 (long long) config->duplicate_window_ms * 1000000) >= (int) sizeof(json))
		return false;
	answer = ask(config, nc, "CREATE", json);
	note_abilities(&attempt->stream, answer);
	created = answer != NULL && !says(answer, "\"error\":");
	natsMsg_Destroy(answer);
	return created;
}

static void
create_stream(BrokerAttempt *attempt, natsConnection *nc, jsCtx *js, jsOptions *bounds)
{
	const BrokerConfig *config = &attempt->settings->config;
	jsStreamConfig stream;
	jsErrCode	code = 0;
	natsStatus	status;

	jsStreamConfig_Init(&stream);
	stream.Name = config->stream;
	stream.Subjects = (const char *[]) {config->stream_subjects};
	stream.SubjectsLen = 1;
	stream.Storage = js_FileStorage;
	stream.Duplicates = (int64_t) config->duplicate_window_ms * 1000000;

	status = create_with_abilities(attempt, nc) ? NATS_OK : js_AddStream(NULL, js, &stream, bounds, &code);
	/* In use: somebody else created it a moment ago. */
	if (status == NATS_OK)
		attempt->stream.duplicate_window_ms = config->duplicate_window_ms;
	else if (code != JSStreamNameExistErr)
		note_stream_trouble(attempt, nc, "create", status, code);
}

/* Whether what a schedule is stored under belongs to the stream. */
static bool
has_schedule_subjects(const BrokerConfig *config, const jsStreamConfig *stream)
{
	for (int i = 0; i < stream->SubjectsLen; i++)
	{
		if (outbox_pause_matches(stream->Subjects[i], config->schedule_subjects))
			return true;
	}
	return false;
}

static void
look_after_stream(BrokerAttempt *attempt, natsConnection *nc, jsCtx *js)
{
	const BrokerConfig *config = &attempt->settings->config;
	jsOptions	bounds;
	jsStreamInfo *info = NULL;
	natsMsg    *answer;
	jsErrCode	code = 0;
	natsStatus	status;

	jsOptions_Init(&bounds);
	bounds.Wait = config->connect_timeout_ms;
	status = js_GetStreamInfo(&info, js, config->stream, &bounds, &code);
	if (status == NATS_OK)
	{
		attempt->stream.duplicate_window_ms = info->Config->Duplicates / 1000000;
		attempt->stream.discards_unwanted = info->Config->Retention == js_InterestPolicy;
		answer = ask(config, nc, "INFO", "");
		note_abilities(&attempt->stream, answer);
		attempt->stream.takes_schedules = answer != NULL && says(answer, "\"allow_msg_schedules\":true") &&
			has_schedule_subjects(config, info->Config);
		natsMsg_Destroy(answer);
	}
	else if (code != JSStreamNotFoundErr)
		note_stream_trouble(attempt, nc, "look up", status, code);
	else if (config->stream_create)
		create_stream(attempt, nc, js, &bounds);
	else
		broker_text(attempt->stream_text, "stream \"%s\" does not exist", config->stream);
	jsStreamInfo_Destroy(info);
}

/* False: the server can't be reached or doesn't let us in, and error says why. */
static bool
visit_stream(BrokerAttempt *attempt, const BrokerServer *server)
{
	natsConnection *nc = connect_for_stream(attempt->settings, server, attempt->error);
	jsCtx	   *js = NULL;
	natsStatus	status;

	if (nc == NULL)
		return false;
	status = natsConnection_JetStream(&js, nc, NULL);
	if (status == NATS_OK)
		look_after_stream(attempt, nc, js);
	else
		note_stream_trouble(attempt, nc, "look up", status, 0);
	jsCtx_Destroy(js);
	natsConnection_Destroy(nc);
	return true;
}

static bool
open_link(BrokerAttempt *attempt, const BrokerServer *server)
{
	natsOptions *options = broker_options_create(attempt->settings, server, attempt->error);

	if (options == NULL)
		return false;
	attempt->link = broker_link_open(attempt->post, attempt->settings, options, attempt->error);
	natsOptions_Destroy(options);
	return attempt->link != NULL;
}

/*
 * Why nobody let us in, in the order of the list wherever the attempt began: the
 * same trouble must have the same text every time, and is then logged once.
 */
static void
join_errors(BrokerAttempt *attempt, char (*errors)[BROKER_TEXT_SIZE])
{
	const BrokerSettings *settings = attempt->settings;
	char		joined[BROKER_TEXT_SIZE] = "";
	bool		same = true;

	for (int i = 1; i < settings->server_count; i++)
		same = same && strcmp(errors[i], errors[0]) == 0;
	/* Trouble with the settings is no server's fault. */
	if (same && strncmp(errors[0], "outbox.", 7) == 0)
		broker_text(joined, "could not connect: %s", errors[0]);
	else
	{
		for (int i = 0; i < settings->server_count; i++)
			broker_text(joined, i == 0 ? "could not connect %sto %s: %s" : "%s; to %s: %s",
						joined, settings->servers[i].url, errors[i]);
	}
	memcpy(attempt->error, joined, sizeof(joined));
}

/*
 * How long one server can take when every bound we set is kept: two connects,
 * two requests, the greeting. Longer, and the attempt hangs in a place without a
 * bound (a TLS handshake, a name lookup).
 */
static void
set_limit(BrokerAttempt *attempt)
{
	int64_t		timeout_us = (int64_t) attempt->settings->config.connect_timeout_ms * 1000;

	atomic_store(&attempt->limit_us, broker_now_us() + 5 * timeout_us + 2000000);
}

/* Tries one server after the other; attempt->error is empty if one was good. */
static void
try_servers(BrokerAttempt *attempt)
{
	const BrokerSettings *settings = attempt->settings;
	char		errors[BROKER_MAX_SERVERS][BROKER_TEXT_SIZE];

	if (settings->server_count == 0)
	{
		broker_text(attempt->error, "could not connect: outbox.nats_url names no server");
		return;
	}
	for (int i = 0; i < settings->server_count; i++)
	{
		int			index = (int) ((attempt->first_server + (unsigned int) i) % (unsigned int) settings->server_count);

		atomic_store(&attempt->server_index, index);
		set_limit(attempt);
		attempt->error[0] = '\0';
		attempt->stream_text[0] = '\0';
		attempt->stream = (BrokerStream) {0};
		if (visit_stream(attempt, &settings->servers[index]) &&
			(!attempt->connect || open_link(attempt, &settings->servers[index])))
		{
			if (attempt->link != NULL)
				attempt->link->server_index = index;
			return;
		}
		memcpy(errors[index], attempt->error, BROKER_TEXT_SIZE);
	}
	join_errors(attempt, errors);
}

static void *
attempt_main(void *argument)
{
	BrokerAttempt *attempt = argument;
	BrokerPost *post = broker_post_hold(attempt->post);
	bool		abandoned;

	try_servers(attempt);

	pthread_mutex_lock(&post->lock);
	abandoned = attempt->abandoned;
	attempt->done = true;
	pthread_mutex_unlock(&post->lock);
	if (abandoned)
		broker_attempt_free(attempt);
	else
		broker_wake(post->wake_fd);
	broker_post_release(post);
	return NULL;
}

/*
 * Begins with that server of the list, modulo their number. NULL: out of memory
 * or threads. The caller polls broker_attempt_done().
 */
BrokerAttempt *
broker_attempt_start(BrokerPost *post, BrokerSettings *settings, bool connect,
					 unsigned int first_server)
{
	BrokerAttempt *attempt = calloc(1, sizeof(BrokerAttempt));
	pthread_t	thread;

	if (attempt == NULL)
		return NULL;
	attempt->post = broker_post_hold(post);
	attempt->settings = broker_settings_hold(settings);
	attempt->connect = connect;
	attempt->first_server = first_server;
	set_limit(attempt);
	if (!broker_thread_start(&thread, attempt_main, attempt))
	{
		broker_attempt_free(attempt);
		return NULL;
	}
	return attempt;
}

bool
broker_attempt_done(BrokerAttempt *attempt)
{
	bool		done;

	pthread_mutex_lock(&attempt->post->lock);
	done = attempt->done;
	pthread_mutex_unlock(&attempt->post->lock);
	return done;
}

/* The main thread no longer wants the result; whoever comes last cleans up. */
void
broker_attempt_abandon(BrokerAttempt *attempt)
{
	BrokerPost *post = attempt->post;
	bool		done;

	pthread_mutex_lock(&post->lock);
	done = attempt->done;
	attempt->abandoned = true;
	pthread_mutex_unlock(&post->lock);
	if (done)
		broker_attempt_free(attempt);
}

void
broker_attempt_free(BrokerAttempt *attempt)
{
	if (attempt->link != NULL)
		broker_link_drop(attempt->link);
	broker_settings_release(attempt->settings);
	broker_post_release(attempt->post);
	free(attempt);
}

/* By when the attempt should have got further; later, it hangs. */
int64_t
broker_attempt_limit_us(const BrokerAttempt *attempt)
{
	return atomic_load(&attempt->limit_us);
}
