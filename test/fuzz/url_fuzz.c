/*
 * url_fuzz.c
 *	  outbox.nats_url: which lists of URLs pass (src/url.c), and what
 *	  src/broker_text.c makes of them: the list for the NATS client is the same
 *	  list, and the one for texts has no credentials in it.
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

/*
 * One URL of the list for the client, and the same as it is shown: all that is
 * left of the last "@" is stars.
 */
static void
check_shown(const char *url, const char *shown)
{
	size_t		scheme = scheme_length(url);
	const char *at = strrchr(url, '@');

	property(scheme > 0 && scheme_length(shown) == scheme);
	if (at == NULL)
		property(strcmp(url, shown) == 0);
	else
	{
		size_t		stars = strspn(shown + scheme, "*");
		size_t		hidden = (size_t) (at - url) - scheme;

		property(stars == (hidden < 3 ? hidden : 3));
		property(strcmp(shown + scheme + stars, at) == 0);
	}
}

static void
check_lists(const char *list, const BrokerSettings *settings)
{
	char	   *given = fuzz_copy(list);
	char	   *urls = fuzz_copy(settings->url);
	char	   *shown = fuzz_copy(settings->shown_url);
	char	   *rest_given = given;
	char	   *rest_urls = urls;
	char	   *rest_shown = shown;
	char	   *url;

	while ((url = strsep(&rest_urls, ",")) != NULL)
	{
		char	   *original = strsep(&rest_given, ",");
		char	   *of_shown = strsep(&rest_shown, ",");

		property(original != NULL && strcmp(trim(&original), url) == 0);
		property(of_shown != NULL);
		check_shown(url, of_shown);
	}
	property(rest_given == NULL && rest_shown == NULL);
	free(shown);
	free(urls);
	free(given);
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
