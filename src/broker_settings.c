/*
 * broker_settings.c
 *	  The immutable copy of the configuration, and what its list of URLs says:
 *	  one server each, with credentials apart from the address.
 *
 * Credentials never stay in an address that the library, a status or a log may
 * show. A URL without credentials takes those of the first URL that has some.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memrchr, asprintf */
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "broker_internal.h"

static const char *
copy_string(const char *string, bool *ok)
{
	char	   *copy = strdup(string == NULL ? "" : string);

	if (copy == NULL)
		*ok = false;
	return copy;
}

/* Takes one URL apart; without a scheme it is nats://. */
static bool
read_url(BrokerServer *server, const char *url, size_t len)
{
	const char *separator = memmem(url, len, "://", 3);
	const char *scheme = separator != NULL ? url : "nats";
	size_t		scheme_len = separator != NULL ? (size_t) (separator - url) : strlen("nats");
	const char *host = separator != NULL ? separator + 3 : url;
	size_t		rest = len - (size_t) (host - url);
	const char *sign = memrchr(host, '@', rest);

	if (sign != NULL)
	{
		if (!broker_login_parse(&server->login, host, (size_t) (sign - host), true))
			return false;
		rest -= (size_t) (sign + 1 - host);
		host = sign + 1;
	}
	return asprintf(&server->url, "%.*s://%.*s", (int) scheme_len, scheme, (int) rest, host) >= 0 ||
		(server->url = NULL) != NULL;
}

/* Entries are separated by commas or blanks. */
static bool
read_servers(BrokerSettings *settings)
{
	const char *url = settings->config.url;
	size_t		len;

	settings->servers = calloc(BROKER_MAX_SERVERS, sizeof(BrokerServer));
	if (settings->servers == NULL)
		return false;
	while (settings->server_count < BROKER_MAX_SERVERS)
	{
		url += strspn(url, ", \t");
		len = strcspn(url, ", \t");
		if (len == 0)
			break;
		if (!read_url(&settings->servers[settings->server_count++], url, len))
			return false;
		if (strncmp(url, "tls://", 6) == 0)
			settings->tls_wanted = true;
		url += len;
	}
	return true;
}

/* Who has no credentials of his own is let in with the first ones given. */
static void
share_credentials(BrokerSettings *settings)
{
	for (int i = 0; i < settings->server_count; i++)
	{
		const BrokerServer *server = &settings->servers[i];

		if (broker_login_given(&server->login))
		{
			settings->first_login = &server->login;
			return;
		}
	}
}

static void
settings_free(BrokerSettings *settings)
{
	BrokerConfig *config = &settings->config;

	free((char *) config->url);
	free((char *) config->login_file);
	free((char *) config->credentials_file);
	free((char *) config->nkey_seed_file);
	free((char *) config->tls_ca_file);
	free((char *) config->tls_cert_file);
	free((char *) config->tls_key_file);
	free((char *) config->client_name);
	free((char *) config->inbox_prefix);
	free((char *) config->stream);
	free((char *) config->stream_subjects);
	free((char *) config->schedule_subjects);
	for (int i = 0; i < settings->server_count; i++)
	{
		free(settings->servers[i].url);
		broker_login_wipe(&settings->servers[i].login);
	}
	free(settings->servers);
	free(settings);
}

BrokerSettings *
broker_settings_create(const BrokerConfig *config)
{
	BrokerSettings *settings = calloc(1, sizeof(BrokerSettings));
	bool		ok = true;

	if (settings == NULL)
		return NULL;
	atomic_init(&settings->holders, 1);
	settings->config = *config;
	settings->config.url = copy_string(config->url, &ok);
	settings->config.login_file = copy_string(config->login_file, &ok);
	settings->config.credentials_file = copy_string(config->credentials_file, &ok);
	settings->config.nkey_seed_file = copy_string(config->nkey_seed_file, &ok);
	settings->config.tls_ca_file = copy_string(config->tls_ca_file, &ok);
	settings->config.tls_cert_file = copy_string(config->tls_cert_file, &ok);
	settings->config.tls_key_file = copy_string(config->tls_key_file, &ok);
	settings->config.client_name = copy_string(config->client_name, &ok);
	settings->config.inbox_prefix = copy_string(config->inbox_prefix, &ok);
	settings->config.stream = copy_string(config->stream, &ok);
	settings->config.stream_subjects = copy_string(config->stream_subjects, &ok);
	settings->config.schedule_subjects = copy_string(config->schedule_subjects, &ok);
	if (!ok || !read_servers(settings))
	{
		settings_free(settings);
		return NULL;
	}
	share_credentials(settings);
	return settings;
}

BrokerSettings *
broker_settings_hold(BrokerSettings *settings)
{
	atomic_fetch_add(&settings->holders, 1);
	return settings;
}

void
broker_settings_release(BrokerSettings *settings)
{
	if (settings != NULL && atomic_fetch_sub(&settings->holders, 1) == 1)
		settings_free(settings);
}

static bool
same_string(const char *copy, const char *given)
{
	return strcmp(copy, given == NULL ? "" : given) == 0;
}

bool
broker_settings_equal(const BrokerSettings *settings, const BrokerConfig *config)
{
	const BrokerConfig *mine = &settings->config;

	return same_string(mine->url, config->url) &&
		same_string(mine->login_file, config->login_file) &&
		same_string(mine->credentials_file, config->credentials_file) &&
		same_string(mine->nkey_seed_file, config->nkey_seed_file) &&
		same_string(mine->tls_ca_file, config->tls_ca_file) &&
		same_string(mine->tls_cert_file, config->tls_cert_file) &&
		same_string(mine->tls_key_file, config->tls_key_file) &&
		same_string(mine->client_name, config->client_name) &&
		same_string(mine->inbox_prefix, config->inbox_prefix) &&
		same_string(mine->stream, config->stream) &&
		same_string(mine->stream_subjects, config->stream_subjects) &&
		same_string(mine->schedule_subjects, config->schedule_subjects) &&
		mine->stream_create == config->stream_create &&
		mine->duplicate_window_ms == config->duplicate_window_ms &&
		mine->ack_timeout_ms == config->ack_timeout_ms &&
		mine->max_pause_ms == config->max_pause_ms &&
		mine->connect_timeout_ms == config->connect_timeout_ms &&
		mine->reconnect_base_ms == config->reconnect_base_ms &&
		mine->reconnect_max_ms == config->reconnect_max_ms &&
		mine->max_in_flight == config->max_in_flight;
}
