/*
 * url_fuzz.c
 *	  outbox.nats_url: which lists of URLs pass (src/url.c), and what
 *	  src/broker_settings.c makes of them: the same servers, with credentials
 *	  apart from the addresses, which are shown.
 */
#define _GNU_SOURCE
#include <string.h>

#include "broker_internal.h"
#include "fuzz.h"
#include "url.h"

/* The length of the scheme that text starts with, or 0. */
static size_t
scheme_length(const char *text)
{
	if (strncmp(text, "nats://", 7) == 0)
		return 7;
	return strncmp(text, "tls://", 6) == 0 ? 6 : 0;
}

/* Takes the spaces at both ends away, in place. */
static char *
trim(char **text)
{
	size_t		length;

	*text += strspn(*text, " ");
	length = strlen(*text);
	while (length > 0 && (*text)[length - 1] == ' ')
		(*text)[--length] = '\0';
	return *text;
}

/* The rule of url.h, once more. */
static bool
valid_list(const char *list)
{
	char	   *copy = fuzz_copy(list);
	char	   *rest = copy;
	char	   *url;
	bool		valid = true;

	while ((url = strsep(&rest, ",")) != NULL)
	{
		size_t		scheme = scheme_length(trim(&url));

		if (scheme == 0 || url[scheme] == '\0')
			valid = false;
		for (; *url != '\0'; url++)
			valid = valid && (unsigned char) *url > ' ' && *url != 0x7f;
	}
	free(copy);
	return valid;
}

/* One entry of the list: nothing to the left of the last "@" is in the address. */
static void
check_server(const char *url, const BrokerServer *server)
{
	size_t		scheme = scheme_length(url);
	const char *at = strrchr(url, '@');
	const char *host = at != NULL ? at + 1 : url + scheme;
	bool		has_credentials = at != NULL && at > url + scheme;
	bool		has_colon = has_credentials && memchr(url + scheme, ':', (size_t) (at - url) - scheme) != NULL;

	property(strncmp(server->url, url, scheme) == 0);
	property(strcmp(server->url + scheme, host) == 0);
	property((server->login.user != NULL) == has_colon && (server->login.password != NULL) == has_colon);
	property((server->login.token != NULL) == (has_credentials && !has_colon));
}

static void
check_lists(const char *list, const BrokerSettings *settings)
{
	char	   *copy = fuzz_copy(list);
	char	   *rest = copy;
	char	   *url;
	int			count = 0;

	while ((url = strsep(&rest, ",")) != NULL && count < BROKER_MAX_SERVERS)
		check_server(trim(&url), &settings->servers[count++]);
	property(settings->server_count == count);
	free(copy);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *list = fuzz_take_text(&input);
	bool		accepted = outbox_url_check_list(list);
	BrokerConfig config = {.url = list};
	BrokerSettings *settings = broker_settings_create(&config);

	property(accepted == valid_list(list));
	property(settings != NULL && broker_settings_equal(settings, &config));
	if (accepted)
		check_lists(list, settings);
	broker_settings_release(settings);
	free(list);
	return 0;
}
