/*
 * broker_denial.c
 *	  What the server says when the user lacks a permission. It names no message,
 *	  only the subject, and comes by the connection's error callback, on a thread
 *	  of the library:
 *
 *		Permissions Violation for Publish to "orders.created"
 *		Permissions Violation for Subscription to "_INBOX.x.*"
 *
 * Servers differ in what they write around the subject and the library cuts the
 * text after 255 bytes, so only three things are read: whether it is about a
 * subscription, the quoted subject, and whether its end is missing.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* strcasestr */
#endif

#include <stdlib.h>
#include <string.h>

#include "broker_internal.h"

/*
 * Takes the subject out of the text, undoing the server's quoting as far as
 * visible ASCII needs it. Returns its length, 0 if there is none. subject has
 * room for BROKER_TEXT_SIZE bytes.
 */
int
broker_denial_subject(const char *text, char *subject, bool *cut)
{
	const char *at = strchr(text, '"');
	int			len = 0;

	*cut = false;
	if (at == NULL)
		return 0;
	for (at++; *at != '\0' && *at != '"' && len < BROKER_TEXT_SIZE - 1; at++)
	{
		if (*at == '\\' && (at[1] == '"' || at[1] == '\\'))
			at++;
		subject[len++] = *at;
	}
	subject[len] = '\0';
	*cut = *at != '"';
	return len;
}

/* Messages would be stored and their acknowledgements could not arrive: nothing must be sent. */
static void
note_mute(BrokerLink *link)
{
	const char *prefix = link->settings->config.inbox_prefix;

	/* Once only: from then on others read the complaint without the lock. */
	pthread_mutex_lock(&link->lock);
	if (!atomic_load(&link->mute))
		broker_text(link->complaint, "no permission to subscribe to the reply subject \"%s.>\"",
					prefix[0] != '\0' ? prefix : "_INBOX");
	atomic_store(&link->mute, true);
	pthread_mutex_unlock(&link->lock);
	broker_link_greeted(link);
	broker_wake(link->post->wake_fd);
}

/* Runs on a thread of the library. */
void
broker_denial_take(BrokerLink *link, const char *text)
{
	const char *quote = strchr(text, '"');
	const char *about = strcasestr(text, "subscri");
	BrokerReply reply = {.denial = true};

	if (about != NULL && (quote == NULL || about < quote))
	{
		note_mute(link);
		return;
	}
	/* Our own greeting: not being allowed to ask about streams is no trouble. */
	if (quote != NULL && strncmp(quote + 1, "$JS.API.", 8) == 0)
	{
		broker_link_greeted(link);
		return;
	}
	reply.text = strdup(text);
	if (reply.text != NULL)
		broker_reply_push(link, &reply);
}
