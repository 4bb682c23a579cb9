/*
 * broker_attempt.c
 *	  One try at getting online, on a thread of its own because the library's
 *	  connect blocks: first an ordinary, short-lived connection that checks the
 *	  stream and creates it if it is missing, then the link that will carry the
 *	  messages.
 *
 * The stream is looked after on its own connection because a synchronous
 * request needs somebody else to drive the socket, and the link's driver would
 * be the one that waits. Trouble with the stream is noted and no reason to stay
 * offline: the user may not be allowed to look at streams, only to publish.
 *
 * Options are built anew for every connection, so a renewed certificate or
 * credentials file counts at the next attempt. The library's own reconnect
 * stays off: it gives up for good when the same authentication error comes
 * twice, and it would resend bytes we have already reported as lost.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <stdlib.h>
#include <string.h>

#include "broker_internal.h"

#define MAX_SERVERS 32

static natsStatus
set_servers(natsOptions *options, const char *url)
{
	const char *servers[MAX_SERVERS];
	char	   *list = strdup(url);
	char	   *rest = list;
	char	   *server;
	int			count = 0;
	natsStatus	status;

	if (list == NULL)
		return NATS_NO_MEMORY;
	while (count < MAX_SERVERS && (server = strsep(&rest, ",")) != NULL)
		servers[count++] = server;
	status = natsOptions_SetServers(options, servers, count);
	free(list);
	return status;
}

static natsStatus
set_tls(natsOptions *options, const BrokerSettings *settings)
{
	const BrokerConfig *config = &settings->config;
	natsStatus	status = NATS_OK;
	bool		wanted = strstr(settings->url, "tls://") != NULL;

	if (config->tls_ca_file[0] != '\0')
	{
		wanted = true;
		status = natsOptions_LoadCATrustedCertificates(options, config->tls_ca_file);
	}
	if (status == NATS_OK && config->tls_cert_file[0] != '\0')
	{
		wanted = true;
		status = natsOptions_LoadCertificatesChain(options, config->tls_cert_file,
												   config->tls_key_file);
	}
	if (status == NATS_OK && wanted)
		status = natsOptions_SetSecure(options, true);
	return status;
}

/* NULL and *error when the configuration can't be used. */
static natsOptions *
make_options(const BrokerSettings *settings, char *error)
{
	const BrokerConfig *config = &settings->config;
	natsOptions *options = NULL;
	natsStatus	status = natsOptions_Create(&options);

	if (status == NATS_OK)
		status = set_servers(options, settings->url);
	if (status == NATS_OK && config->client_name[0] != '\0')
		status = natsOptions_SetName(options, config->client_name);
	if (status == NATS_OK && config->credentials_file[0] != '\0')
		status = natsOptions_SetUserCredentialsFromFiles(options, config->credentials_file, NULL);
	if (status == NATS_OK)
		status = set_tls(options, settings);
	if (status == NATS_OK)
		status = natsOptions_SetTimeout(options, config->connect_timeout_ms);
	if (status == NATS_OK)
		status = natsOptions_SetAllowReconnect(options, false);
	/* Servers a cluster gossips may not be reachable from here. */
	if (status == NATS_OK)
		status = natsOptions_SetIgnoreDiscoveredServers(options, true);
	if (status == NATS_OK)
		return options;

	broker_text(error, "could not use the connection settings: %s", broker_nats_error(status));
	natsOptions_Destroy(options);
	return NULL;
}

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
connect_for_stream(const BrokerSettings *settings, char *error)
{
	natsOptions *options = make_options(settings, error);
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
		broker_text(error, "could not connect to %s: %s", settings->shown_url, broker_nats_error(status));
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
	if (code != 0)
		broker_text(attempt->stream_text, "could not %s stream \"%s\": %s (%d)", action,
					attempt->settings->config.stream, words, (int) code);
	else if (status == NATS_NO_RESPONDERS)
		broker_text(attempt->stream_text, "could not %s stream \"%s\": JetStream is not available",
					action, attempt->settings->config.stream);
	else
		broker_text(attempt->stream_text, "could not %s stream \"%s\": %s", action,
					attempt->settings->config.stream, words);
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

	status = js_AddStream(NULL, js, &stream, bounds, &code);
	/* In use: somebody else created it a moment ago. */
	if (status != NATS_OK && code != JSStreamNameExistErr)
		note_stream_trouble(attempt, nc, "create", status, code);
}

static void
look_after_stream(BrokerAttempt *attempt, natsConnection *nc, jsCtx *js)
{
	const BrokerConfig *config = &attempt->settings->config;
	jsOptions	bounds;
	jsStreamInfo *info = NULL;
	jsErrCode	code = 0;
	natsStatus	status;

	jsOptions_Init(&bounds);
	bounds.Wait = config->connect_timeout_ms;
	status = js_GetStreamInfo(&info, js, config->stream, &bounds, &code);
	jsStreamInfo_Destroy(info);
	if (status == NATS_OK)
		return;
	if (code != JSStreamNotFoundErr)
		note_stream_trouble(attempt, nc, "look up", status, code);
	else if (config->stream_create)
		create_stream(attempt, nc, js, &bounds);
	else
		broker_text(attempt->stream_text, "stream \"%s\" does not exist", config->stream);
}

/* False: the server can't be reached or doesn't let us in, and error says why. */
static bool
visit_stream(BrokerAttempt *attempt)
{
	natsConnection *nc = connect_for_stream(attempt->settings, attempt->error);
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

static void
open_link(BrokerAttempt *attempt)
{
	natsOptions *options = make_options(attempt->settings, attempt->error);

	if (options == NULL)
		return;
	attempt->link = broker_link_open(attempt->post, attempt->settings, options, attempt->error);
	natsOptions_Destroy(options);
}

static void *
attempt_main(void *argument)
{
	BrokerAttempt *attempt = argument;
	BrokerPost *post = broker_post_hold(attempt->post);
	bool		abandoned;

	if (visit_stream(attempt) && attempt->connect)
		open_link(attempt);

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

/* NULL: out of memory or threads. The caller polls broker_attempt_done(). */
BrokerAttempt *
broker_attempt_start(BrokerPost *post, BrokerSettings *settings, bool connect)
{
	BrokerAttempt *attempt = calloc(1, sizeof(BrokerAttempt));
	pthread_t	thread;

	if (attempt == NULL)
		return NULL;
	attempt->post = broker_post_hold(post);
	attempt->settings = broker_settings_hold(settings);
	attempt->connect = connect;
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

/*
 * How long an attempt can take when every bound we set is kept: two connects
 * to each server, two requests, the first answer. Longer, and it hangs in a
 * place without a bound (a TLS handshake, a name lookup).
 */
int64_t
broker_attempt_limit_us(const BrokerSettings *settings)
{
	int64_t		steps = 2 + 3;

	for (const char *c = settings->url; *c != '\0'; c++)
		steps += *c == ',' ? 2 : 0;
	return steps * settings->config.connect_timeout_ms * 1000 + 2000000;
}
