/*
 * url.c
 *	  What outbox.nats_url and outbox.archive_url may be.
 *
 * Only what tells a list of URLs from a slip of the pen: the scheme, that
 * something follows it, and that nothing in it ends a URL for those who take it
 * apart or hide what is secret in it (broker_settings.c, broker_text.c). The
 * rest is read by the NATS client, whose verdict is in outbox.status(). What goes
 * into a query of ours, the table's name, is letters, digits and underscores. Pure
 * logic; it must know neither PostgreSQL nor NATS.
 */
#include "url.h"

#include <stddef.h>
#include <string.h>

/* Whether length bytes of text are a scheme of ours and something more, without white space. */
static bool
is_server_url(const char *text, size_t length)
{
	static const char *const schemes[] = {"nats://", "tls://"};
	bool		has_scheme = false;

	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
	{
		size_t		scheme_length = strlen(schemes[i]);

		if (length > scheme_length && memcmp(text, schemes[i], scheme_length) == 0)
			has_scheme = true;
	}
	for (size_t i = 0; i < length; i++)
	{
		if ((unsigned char) text[i] <= ' ' || text[i] == 0x7f)
			return false;
	}
	return has_scheme;
}

bool
outbox_url_check_list(const char *list)
{
	for (;;)
	{
		size_t		length;
		size_t		trimmed;

		list += strspn(list, " ");
		length = trimmed = strcspn(list, ",");
		while (trimmed > 0 && list[trimmed - 1] == ' ')
			trimmed--;
		if (!is_server_url(list, trimmed))
			return false;
		if (list[length] == '\0')
			return true;
		list += length + 1;
	}
}

/* One or two names of letters, digits and underscores, separated by a slash. */
static bool
is_table(const char *path)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
	size_t		first = strspn(path, letters);
	size_t		second;

	if (first == 0 || path[first] == '\0')
		return first > 0;
	second = path[first] == '/' ? strspn(path + first + 1, letters) : 0;
	return second > 0 && path[first + 1 + second] == '\0';
}

bool
outbox_url_check_archive(const char *url)
{
	const char *authority = strncmp(url, "http://", 7) == 0 ? url + 7 : strncmp(url, "https://", 8) == 0 ? url + 8 :
																										   NULL;
	const char *slash;
	const char *host = authority;

	if (authority == NULL || (slash = strchr(authority, '/')) == NULL)
		return false;
	for (const char *c = authority; c < slash; c++)
	{
		if ((unsigned char) *c <= ' ' || *c == 0x7f || *c == '?' || *c == '#')
			return false;
		if (*c == '@')
		{
			/* a second one */
			if (host != authority)
				return false;
			host = c + 1;
		}
	}
	return host < slash && *host != ':' && is_table(slash + 1);
}
