/*
 * broker_options.c
 *	  The library's options for a connection to one server: who we are, and whom
 *	  we trust. Built anew for every connection, so that all files are read again
 *	  and what has been replaced counts at the next attempt.
 *
 * A file's name is as private as its contents; texts name the setting instead.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* strerror_r returning the text */
#endif

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/err.h>

#include "broker_internal.h"

/*
 * False, and error says why, unless the file can be read and, if it is secret,
 * only we can: what PostgreSQL asks of its own key file.
 */
static bool
check_file(const char *path, const char *setting, bool secret, char *error)
{
	struct stat status;
	mode_t		excess = S_IRWXG | S_IRWXO;
	char		reason[128];
	int			fd;

	if (path[0] == '\0')
		return true;
	fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &status) != 0)
	{
		broker_text(error, "could not read %s: %s", setting, strerror_r(errno, reason, sizeof(reason)));
		if (fd >= 0)
			close(fd);
		return false;
	}
	close(fd);
	if (!S_ISREG(status.st_mode))
	{
		broker_text(error, "%s is not a file", setting);
		return false;
	}
	if (status.st_uid == 0)
		excess = S_IWGRP | S_IXGRP | S_IRWXO;
	if (!secret || (status.st_mode & excess) == 0)
		return true;
	broker_text(error, "%s is accessible for group or others: its mode must be 0600, or 0640 if root owns it",
				setting);
	return false;
}

/* What needs no server to be found out. */
static bool
check_settings(const BrokerConfig *config, char *error)
{
	if (config->credentials_file[0] != '\0' && config->nkey_seed_file[0] != '\0')
	{
		broker_text(error, "outbox.credentials_file and outbox.nkey_seed_file exclude each other");
		return false;
	}
	if (config->inbox_prefix[0] != '\0' &&
		(strlen(config->inbox_prefix) > BROKER_MAX_INBOX_PREFIX || !broker_subject_valid(config->inbox_prefix)))
	{
		broker_text(error, "outbox.inbox_prefix is no subject of 1 to %d bytes without wildcards", BROKER_MAX_INBOX_PREFIX);
		return false;
	}
	if ((config->tls_cert_file[0] == '\0') != (config->tls_key_file[0] == '\0'))
	{
		broker_text(error, "outbox.tls_cert_file and outbox.tls_key_file need each other");
		return false;
	}
	return check_file(config->credentials_file, "outbox.credentials_file", true, error) &&
		check_file(config->login_file, "outbox.login_file", true, error) &&
		check_file(config->nkey_seed_file, "outbox.nkey_seed_file", true, error) &&
		check_file(config->tls_ca_file, "outbox.tls_ca_file", false, error) &&
		check_file(config->tls_cert_file, "outbox.tls_cert_file", false, error) &&
		check_file(config->tls_key_file, "outbox.tls_key_file", true, error);
}

/*
 * What the server finds wrong with our certificate comes after the handshake,
 * while the library waits for a PONG, and the library doesn't tell. OpenSSL has
 * it in this thread's queue, which broker_options_create() has emptied.
 */
static const char *
tls_alert(natsStatus status)
{
	unsigned long code = ERR_peek_last_error();

	return status != NATS_SSL_ERROR && ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_reason_error_string(code) : NULL;
}

/*
 * Or even that doesn't come: the server has closed the socket before we wrote to
 * it, and OpenSSL knows no reason for what a socket does.
 */
static bool
tls_silence(const char *words)
{
	return strstr(words, "SSL_write") != NULL && strstr(words, "(null)") != NULL;
}

/*
 * The library's words for a failure of a call by this thread, with names of
 * settings for those of files.
 */
void
broker_options_error(const BrokerSettings *settings, natsStatus status, char *error)
{
	const char *alert = tls_alert(status);
	const BrokerConfig *config = &settings->config;
	const char *const names[][2] = {
		{config->credentials_file, "outbox.credentials_file"},
		{config->nkey_seed_file, "outbox.nkey_seed_file"},
		{config->tls_ca_file, "outbox.tls_ca_file"},
		{config->tls_cert_file, "outbox.tls_cert_file"},
		{config->tls_key_file, "outbox.tls_key_file"},
	};
	const char *words = broker_nats_error(status);

	if (alert != NULL)
	{
		broker_text(error, "TLS connection ended: %s", alert);
		return;
	}
	if (tls_silence(words))
	{
		broker_text(error, "TLS connection ended after the handshake, perhaps for want of a client certificate that the server trusts");
		return;
	}
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
	{
		const char *path = names[i][0];
		const char *found = path[0] == '\0' ? NULL : strstr(words, path);

		if (found != NULL)
		{
			broker_text(error, "%.*s%s%s", (int) (found - words), words, names[i][1], found + strlen(path));
			return;
		}
	}
	broker_text(error, "%s", words);
}

static natsStatus
set_login(natsOptions *options, const BrokerLogin *login)
{
	if (login->token != NULL)
		return natsOptions_SetToken(options, login->token);
	if (login->user != NULL)
		return natsOptions_SetUserInfo(options, login->user, login->password);
	return NATS_OK;
}

static natsStatus
set_key(natsOptions *options, const BrokerConfig *config, const char *public_key)
{
	if (config->credentials_file[0] != '\0')
		return natsOptions_SetUserCredentialsFromFiles(options, config->credentials_file, NULL);
	if (public_key[0] != '\0')
		return natsOptions_SetNKeyFromSeed(options, public_key, config->nkey_seed_file);
	return NATS_OK;
}

static natsStatus
set_tls(natsOptions *options, const BrokerSettings *settings)
{
	const BrokerConfig *config = &settings->config;
	natsStatus	status = NATS_OK;
	bool		wanted = settings->tls_wanted;

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

static natsStatus
set_options(natsOptions *options, const BrokerSettings *settings, const char *url, const BrokerLogin *login,
			const char *public_key)
{
	const BrokerConfig *config = &settings->config;
	natsStatus	status = natsOptions_SetURL(options, url);

	if (status == NATS_OK && config->client_name[0] != '\0')
		status = natsOptions_SetName(options, config->client_name);
	if (status == NATS_OK)
		status = set_login(options, login);
	if (status == NATS_OK)
		status = set_key(options, config, public_key);
	if (status == NATS_OK)
		status = set_tls(options, settings);
	if (status == NATS_OK && config->inbox_prefix[0] != '\0')
		status = natsOptions_SetCustomInboxPrefix(options, config->inbox_prefix);
	if (status == NATS_OK)
		status = natsOptions_SetTimeout(options, config->connect_timeout_ms);
	if (status == NATS_OK)
		status = natsOptions_SetAllowReconnect(options, false);
	/* Servers a cluster gossips may not be reachable from here. */
	if (status == NATS_OK)
		status = natsOptions_SetIgnoreDiscoveredServers(options, true);
	return status;
}

/* NULL, and error says why, when the settings or their files can't be used. */
natsOptions *
broker_options_create(const BrokerSettings *settings, const BrokerServer *server, char *error)
{
	const BrokerConfig *config = &settings->config;
	natsOptions *options = NULL;
	const BrokerLogin *login = &server->login;
	BrokerLogin	from_file = {0};
	char		public_key[BROKER_NKEY_SIZE] = "";
	natsStatus	status;

	ERR_clear_error();
	if (!check_settings(config, error))
		return NULL;
	if (config->nkey_seed_file[0] != '\0' &&
		!broker_nkey_public(config->nkey_seed_file, public_key, error))
		return NULL;
	if (!broker_login_given(login) && settings->first_login != NULL)
		login = settings->first_login;
	else if (!broker_login_given(login) && config->login_file[0] != '\0')
	{
		if (!broker_login_read(&from_file, config->login_file, error))
			return NULL;
		login = &from_file;
	}
	status = natsOptions_Create(&options);
	if (status == NATS_OK)
		status = set_options(options, settings, server->url, login, public_key);
	broker_login_wipe(&from_file);
	if (status == NATS_OK)
		return options;
	broker_options_error(settings, status, error);
	natsOptions_Destroy(options);
	return NULL;
}
