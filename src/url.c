/*
 * url.c
 *	  What outbox.nats_url may be.
 *
 * Only what tells a list of URLs from a slip of the pen: the scheme, that
 * something follows it, and that nothing in it ends a URL for those who take it
 * apart or hide what is secret in it (broker_settings.c, broker_text.c). The
 * rest is read by the NATS client, whose verdict is in outbox.status(). Pure
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
