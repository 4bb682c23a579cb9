/*
 * url.c
 *	  What outbox.nats_url may be.
 *
 * Only what tells a list of URLs from a slip of the pen: the scheme, and that
 * something follows it. The rest is read by the NATS client, whose verdict is
 * in outbox.status(). Pure logic; it must know neither PostgreSQL nor NATS.
 */
#include "url.h"

#include <string.h>

/* Whether the first length bytes of text are a scheme of ours and at least one byte more. */
static bool
is_server_url(const char *text, size_t length)
{
	static const char *const schemes[] = {"nats://", "tls://"};

	for (size_t i = 0; i < sizeof(schemes) / sizeof(schemes[0]); i++)
	{
		size_t		scheme_length = strlen(schemes[i]);

		if (length > scheme_length && memcmp(text, schemes[i], scheme_length) == 0)
			return true;
	}
	return false;
}

bool
outbox_url_check_list(const char *list)
{
	for (;;)
	{
		size_t		length;

		list += strspn(list, " ");
		length = strcspn(list, ",");
		if (!is_server_url(list, length))
			return false;
		if (list[length] == '\0')
			return true;
		list += length + 1;
	}
}
