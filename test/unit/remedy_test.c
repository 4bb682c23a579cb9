/*
 * remedy_test.c
 *	  src/remedy.c alone: the words that NATS and we have for each trouble find
 *	  their place in docs/failures.md.
 */
#include <string.h>

#include "remedy.h"
#include "unit.h"

static void
leads_to(OutboxTrouble trouble, const char *words, const char *name)
{
	const char *hint = outbox_remedy(trouble, words);
	const char *at = strstr(hint, "See docs/failures.md, \"");

	ok(at != NULL && strncmp(strchr(at, '"') + 1, name, strlen(name)) == 0 && strcmp(hint + strlen(hint) - 2, "\".") == 0,
	   "%s: %s", words, name);
}

int
main(void)
{
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to nats://h:4222: No server available for connection", "NATS unreachable");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to nats://h:4222: Timeout", "NATS unreachable");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to nats://auth.tls.outbox.example.com:4222: Timeout", "NATS unreachable");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "", "NATS unreachable");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to nats://h:4222: Authorization Violation", "Login refused");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to nats://h:4222: 'User Authentication Expired'", "Login refused");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect: outbox.login_file is accessible for group or others: its mode must be 0600", "Connection settings unusable");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to tls://h: TLS connection ended: unknown ca", "TLS refused");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to tls://h: SSL Error", "TLS refused");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to tls://h: certificate verify failed", "TLS refused");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to nats://h: no permission to subscribe to the reply subject \"_INBOX.>\"", "Replies not permitted");
	leads_to(OUTBOX_TROUBLE_CONNECTION, "could not connect to nats://h: no answer through the reply subject within 2000 ms", "No answer from NATS");
	leads_to(OUTBOX_TROUBLE_STREAM, "stream \"OUTBOX\" does not exist", "Stream not found");
	leads_to(OUTBOX_TROUBLE_STREAM, "could not look up stream \"OUTBOX\": JetStream is not available", "JetStream not enabled");
	leads_to(OUTBOX_TROUBLE_STREAM, "could not look up stream \"OUTBOX\": JetStream not enabled for account (10039)", "JetStream not enabled");
	leads_to(OUTBOX_TROUBLE_STREAM, "could not create stream \"OUTBOX\": Permissions Violation for Publish to \"$JS.API.STREAM.CREATE.OUTBOX\"", "Stream not permitted");
	leads_to(OUTBOX_TROUBLE_STREAM, "could not create stream \"OUTBOX\": subjects overlap with an existing stream (10065)", "Stream not created");
	leads_to(OUTBOX_TROUBLE_STREAM, "could not look up stream \"OUTBOX\": Timeout", "Stream unavailable");
	return unit_done();
}
