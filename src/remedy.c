/*
 * remedy.c
 *	  What to do about a relay's trouble with the broker, as a hint.
 *
 * The words are those of broker_text(): ours, the NATS client's, the server's.
 * Nothing is decided by them (error_class.c does that, by codes); a server that
 * says it in another way only gets a more general hint.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* strcasestr */
#endif

#include "remedy.h"

#include <stddef.h>
#include <string.h>

#define SEE(name) " See docs/failures.md, \"" name "\"."

/* The first one whose words occur, which begin with a blank lest a host name have them; the last one has none. */
typedef struct Remedy
{
	const char *words;
	const char *hint;
} Remedy;

static const Remedy connection_remedies[] = {
	{"no answer through the reply subject", "Check that the server works, and is nats-server 2.2 or newer." SEE("No answer from NATS")},
	{"reply subject", "Permit the NATS user to subscribe to it, or set \"outbox.inbox_prefix\" to what it may subscribe to." SEE("Replies not permitted")},
	{" outbox.", "Correct the setting or the file; it is read again at the next attempt." SEE("Connection settings unusable")},
	{" auth", "Check user, password, token, credentials or key: \"outbox.login_file\", \"outbox.credentials_file\", \"outbox.nkey_seed_file\","
			  " or those in \"outbox.nats_url\"." SEE("Login refused")},
	{" TLS", "Check \"outbox.tls_ca_file\", the name in the server's certificate, and the client's certificate." SEE("TLS refused")},
	{" SSL", "Check \"outbox.tls_ca_file\", the name in the server's certificate, and the client's certificate." SEE("TLS refused")},
	{" certificate", "Check \"outbox.tls_ca_file\", the name in the server's certificate, and the client's certificate." SEE("TLS refused")},
	{NULL, "Check that a NATS server listens at \"outbox.nats_url\"; the relay goes on trying." SEE("NATS unreachable")},
};

static const Remedy stream_remedies[] = {
	{"does not exist", "Create it, or set \"outbox.stream_create\" to on; \"outbox.stream\" is its name." SEE("Stream not found")},
	{"JetStream is not", "Start nats-server with JetStream (option -js), and enable it for the account." SEE("JetStream not enabled")},
	{"JetStream not enabled", "Start nats-server with JetStream (option -js), and enable it for the account." SEE("JetStream not enabled")},
	{"permission", "Permit the NATS user to publish to the subjects of the events, and to \"$JS.API.STREAM.INFO.*\"." SEE("Stream not permitted")},
	{"could not create", "Correct what is in the way, or create the stream by yourself." SEE("Stream not created")},
	{NULL, "Check that the stream \"outbox.stream\" exists, takes the events' subjects and has room." SEE("Stream unavailable")},
};

const char *
outbox_remedy(OutboxTrouble trouble, const char *words)
{
	const Remedy *remedy = trouble == OUTBOX_TROUBLE_CONNECTION ? connection_remedies : stream_remedies;

	while (remedy->words != NULL && strcasestr(words, remedy->words) == NULL)
		remedy++;
	return remedy->hint;
}
