/*
 * broker_test_access.c
 *	  The broker and who it is: permissions, users, tokens, NKeys, JWTs; wrong,
 *	  replaced, expired.
 */
#define _GNU_SOURCE

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "broker_test.h"
#include "harness.h"
#include "keys.h"

static Server server;

static void
reconfigure(const char *extra)
{
	server_configure(&server, extra);
	server_signal(&server, SIGHUP, "Reloaded server configuration");
}

/* One user of the server, with these permissions. */
static void
start_with_permissions(const char *permissions)
{
	char		text[512];

	snprintf(text, sizeof(text), "authorization { users: ["
			 "{ user: relay, password: secret, permissions: { %s } }, { user: admin, password: admin }] }",
			 permissions);
	if (server.pid != 0)
		reconfigure(text);
	else
	{
		server_configure(&server, text);
		server_start(&server);
	}
}

static BrokerConfig
relay_config(void)
{
	static char url[128];
	BrokerConfig config = base_config(&server);

	snprintf(url, sizeof(url), "nats://relay:secret@127.0.0.1:%d", server.port);
	config.url = url;
	return config;
}

static int
long_subject(char *subject, int len, char last)
{
	int			used = snprintf(subject, (size_t) len + 1, "outbox.denied.");

	memset(subject + used, 'x', (size_t) (len - used));
	subject[len - 1] = last;
	subject[len] = '\0';
	return len;
}

static void
test_denied(void)
{
	BrokerConfig config = relay_config();
	Broker	   *broker = broker_create();
	char		subject[1100];
	char		other[1100];
	int64_t		begin_us;

	start_with_permissions("publish: { allow: [\"outbox.>\", \"$JS.API.>\"], deny: [\"outbox.denied.>\"] }");
	config.ack_timeout_ms = 20000;
	broker_configure(broker, &config);
	tally_reset();
	ok(works(broker), "denied: allowed subjects pass");

	begin_us = clock_us();
	publish_many(broker, "outbox.denied.a", 200, 10);
	publish_many(broker, "outbox.fine", 100, 10);
	publish_many(broker, "outbox.denied.b", 50, 10);
	ok(wait_quiet(broker, 5000) && clock_us() - begin_us < slack(3000000) && tally.count[BROKER_DENIED] == 250 &&
	   tally.count[BROKER_ACKED] == 120, "denied: told at once, between messages that pass");
	ok(strstr(tally.last_text, "permission") != NULL && strstr(tally.last_text, "\"outbox.denied.b\"") != NULL &&
	   tally.last_code == 0, "denied: %s", tally.last_text);

	publish_many(broker, "outbox.denied.\"q\\u\"", 3, 10);
	ok(wait_quiet(broker, 5000) && tally.count[BROKER_DENIED] == 253, "denied: a subject with quotes: %s", tally.last_text);
	long_subject(subject, 1000, 'a');
	publish_many(broker, subject, 3, 10);
	ok(wait_quiet(broker, 5000) && tally.count[BROKER_DENIED] == 256, "denied: a subject whose end the library cuts off");

	/* Each subject its own, as with many aggregates. */
	for (int i = 0; i < 1000; i++)
	{
		snprintf(subject, sizeof(subject), "outbox.denied.aggregate.%d", i);
		publish(broker, subject, NULL, NULL, 10);
	}
	broker_flush(broker);
	ok(wait_quiet(broker, 5000) && tally.count[BROKER_DENIED] == 1256, "denied: 1000 subjects");
	for (int i = 0; i < 1000; i++)
	{
		publish_many(broker, "outbox.denied.again", 1, 10);
		publish_many(broker, "outbox.fine", 1, 10);
		if (i % 10 == 0)
			wait_quiet(broker, 5000);
	}
	ok(wait_quiet(broker, 5000) && tally.count[BROKER_DENIED] == 2256 && works(broker) && accounts(),
	   "denied: 1000 times more");
	ok(tally.longest_call_us < slack(LONGEST_CALL_US), "denied: longest call %lld us, %s",
	   (long long) tally.longest_call_us, tally.longest_call);

	/* What can't be told apart isn't guessed. */
	config.ack_timeout_ms = 500;
	broker_configure(broker, &config);
	works(broker);
	long_subject(subject, 1000, 'a');
	long_subject(other, 1000, 'b');
	publish(broker, subject, NULL, NULL, 10);
	publish(broker, other, NULL, NULL, 10);
	broker_flush(broker);
	ok(wait_quiet(broker, 5000) && tally.count[BROKER_TIMED_OUT] == 2 && strstr(tally.last_text, "ermission") != NULL,
	   "denied: one of two whose ends are cut off times out: %.120s", tally.last_text);
	broker_destroy(broker, 2000);
}

static void
test_mute_reply(void)
{
	BrokerConfig config = relay_config();
	Broker	   *broker = broker_create();
	BrokerStatus status;

	start_with_permissions("subscribe: { deny: \"_INBOX.>\" }");
	tally_reset();
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "reply subject", 5000), "no replies: not online");
	broker_get_status(broker, &status);
	ok(status.connects == 0 && strstr(status.text, "_INBOX.>") != NULL, "no replies: told as it is: %s", status.text);
	for (int i = 0; i < 3; i++)
	{
		wait_state(broker, BROKER_CONNECTING, 5000);
		wait_state(broker, BROKER_OFFLINE, 5000);
	}
	ok(publish(broker, "outbox.a", NULL, NULL, 10) == BROKER_PUBLISH_OFFLINE, "no replies: nothing is sent");

	config.inbox_prefix = "replies.relay";
	broker_configure(broker, &config);
	ok(works(broker), "no replies: another inbox prefix helps");
	config.inbox_prefix = "replies.*";
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.inbox_prefix", 5000), "inbox prefix: a wildcard is refused");
	config.inbox_prefix = "0123456789.123456789.123456789.123456789.123456789.123456789.1234";
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.inbox_prefix", 5000), "inbox prefix: one that is too long is refused");
	config.inbox_prefix = "0123456789.123456789.123456789.123456789.123456789.123456789.123";
	broker_configure(broker, &config);
	ok(works(broker), "inbox prefix: the longest works");

	/* The permission is lost and found while we are online. */
	config.inbox_prefix = "";
	broker_configure(broker, &config);
	start_with_permissions("");
	ok(works(broker), "no replies: and so does the permission");
	start_with_permissions("subscribe: { deny: \"_INBOX.>\" }");
	ok(wait_text(broker, BROKER_OFFLINE, "reply subject", 5000), "no replies: lost at runtime");
	start_with_permissions("");
	ok(works(broker) && accounts(), "no replies: found again");
	broker_destroy(broker, 2000);
	server_kill(&server);
}

/* A user whose name and password need escapes in a URL, in JSON, or in both. */
static void
test_users(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerStatus status;
	char		url[512];

	server_configure(&server, "authorization { users: ["
					 "{ user: \"re:l@y\", password: \"p@ss,/%41\\\"\\\\:w\" }] }");
	server_start(&server);
	tally_reset();
	snprintf(url, sizeof(url), "nats://re%%3al%%40y:p%%40ss%%2C%%2F%%2541%%22%%5C%%3Aw@127.0.0.1:%d", server.port);
	config.url = url;
	broker_configure(broker, &config);
	ok(works(broker), "users: percent-encoded");
	snprintf(url, sizeof(url), "nats://127.0.0.1:1, nats://re%%3al%%40y:p%%40ss%%2C%%2F%%2541%%22%%5C:w@127.0.0.1:1,127.0.0.1:%d",
			 server.port);
	broker_configure(broker, &config);
	ok(works(broker), "users: a URL without credentials takes the first ones; \":\" may stay as it is");
	snprintf(url, sizeof(url), "nats://re%%3al%%40y:tops3cret%%zz%%2541@127.0.0.1:%d, nats://other:hush@127.0.0.1:1", server.port);
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "uthorization", 5000), "users: a wrong password");
	broker_get_status(broker, &status);
	ok(strstr(status.text, "tops3") == NULL && strstr(status.text, "hush") == NULL && strstr(status.text, "l@y") == NULL,
	   "users: no part of it is told: %s", status.text);

	server_kill(&server);
	server_configure(&server, "authorization { token: \"t%k,n\" }");
	server_start(&server);
	snprintf(url, sizeof(url), "nats://t%%25k%%2Cn@127.0.0.1:%d", server.port);
	broker_configure(broker, &config);
	ok(works(broker), "users: a token");
	snprintf(url, sizeof(url), "nats://t%%k%%2cn@127.0.0.1:%d", server.port);
	broker_configure(broker, &config);
	ok(works(broker), "users: what is no escape stays as it is");
	broker_destroy(broker, 2000);
	server_kill(&server);
}

/* The same from a file, where it isn't percent-encoded. */
static void
test_login_file(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	char		path[128];
	char		url[128];

	server_configure(&server, "authorization { users: ["
					 "{ user: relay, password: \"p@ss:%41\\\"\" }, { user: other, password: other }] }");
	server_start(&server);
	snprintf(path, sizeof(path), "%s/login", server.folder);
	config.login_file = path;
	tally_reset();
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.login_file: No such file", 5000), "login file: none");
	write_file(path, 0600, "\nrelay:relay\n");
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.login_file has no line", 5000), "login file: an empty line");
	write_file(path, 0644, "relay:p@ss:%%41\"\n");
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.login_file is accessible", 5000), "login file: one that others can read");
	chmod(path, 0600);
	ok(works(broker), "login file: user and password");
	write_file(path, 0600, "relay:wrong");
	snprintf(url, sizeof(url), "nats://127.0.0.1:%d,nats://other:other@127.0.0.1:1", server.port);
	config.url = url;
	broker_configure(broker, &config);
	ok(works(broker), "login file: not for who has a login in the URLs");

	server_kill(&server);
	server_configure(&server, "authorization { token: \"t%k,n\" }");
	server_start(&server);
	config.url = base_config(&server).url;
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "uthorization", 5000), "login file: a wrong password");
	write_file(path, 0600, "t%%k,n\r\n");
	ok(works(broker), "login file: a token, taken up by itself");
	broker_destroy(broker, 2000);
	server_kill(&server);
}

static void
test_new_password(void)
{
	BrokerConfig config = relay_config();
	Broker	   *broker = broker_create();
	char		url[128];

	start_with_permissions("");
	tally_reset();
	broker_configure(broker, &config);
	ok(works(broker), "new password: the old one works");
	reconfigure("authorization { users: [{ user: relay, password: changed }] }");
	ok(wait_text(broker, BROKER_OFFLINE, "uthorization", 5000), "new password: kicked");
	/* More often than the library's own reconnect would bear. */
	for (int i = 0; i < 3; i++)
	{
		wait_state(broker, BROKER_CONNECTING, 5000);
		wait_state(broker, BROKER_OFFLINE, 5000);
	}
	snprintf(url, sizeof(url), "nats://relay:changed@127.0.0.1:%d", server.port);
	config.url = url;
	broker_configure(broker, &config);
	ok(works(broker) && accounts(), "new password: the new one works");
	broker_destroy(broker, 2000);
	server_kill(&server);
}

static void
test_nkey(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	BrokerStatus status;
	char		text[256];
	char		path[128];
	Key			first;
	Key			second;

	key_create(&first, 'U');
	key_create(&second, 'U');
	snprintf(text, sizeof(text), "authorization { users: [{ nkey: %s }] }", first.public);
	server_configure(&server, text);
	server_start(&server);
	snprintf(path, sizeof(path), "%s/relay.nk", server.folder);
	config.nkey_seed_file = path;
	tally_reset();
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.nkey_seed_file: No such file", 5000), "nkey: no file");
	broker_get_status(broker, &status);
	ok(strstr(status.text, path) == NULL, "nkey: its name is not told: %s", status.text);
	write_file(path, 0600, "not a seed\nSUAAAAAA\n");
	ok(wait_text(broker, BROKER_OFFLINE, "contains no seed", 5000), "nkey: another file");
	write_file(path, 0600, "# the relay's\n  %s\n", first.seed);
	ok(works(broker), "nkey: the seed works");

	/* Replaced here first, then there. */
	write_file(path, 0600, "%s", second.seed);
	ok(works(broker), "nkey: replaced: the connection goes on");
	snprintf(text, sizeof(text), "authorization { users: [{ nkey: %s }] }", second.public);
	reconfigure(text);
	ok(wait_connects(broker, 2, 5000) && works(broker), "nkey: and the next one has the new seed");
	write_file(path, 0600, "%s\n", first.seed);
	broker_reset(broker);
	ok(wait_text(broker, BROKER_OFFLINE, "uthorization", 5000), "nkey: a wrong seed is told");

	write_file(path, 0644, "%s\n", second.seed);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.nkey_seed_file is accessible", 5000), "nkey: a file that others can read is refused");
	chmod(path, geteuid() == 0 ? 0640 : 0600);
	ok(works(broker), "nkey: one that only its group can is right if root owns it");
	if (geteuid() == 0 && chown(path, 65534, 65534) == 0)
	{
		broker_reset(broker);
		ok(wait_text(broker, BROKER_OFFLINE, "outbox.nkey_seed_file is accessible", 5000), "nkey: and wrong if not");
	}
	config.credentials_file = path;
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "exclude each other", 5000), "nkey: not together with a credentials file");
	broker_destroy(broker, 2000);
	server_kill(&server);
	key_free(&first);
	key_free(&second);
}

#define ACCOUNT_LIMITS "\"subs\":-1,\"data\":-1,\"payload\":-1,\"imports\":-1,\"exports\":-1,\"wildcards\":true,\"conn\":-1,\"leaf\":-1"
#define JETSTREAM_LIMITS "\"mem_storage\":-1,\"disk_storage\":-1,\"streams\":-1,\"consumer\":-1"

/* Expiry of a user and a new file. */
static void
run_with_user(Broker *broker, BrokerConfig *config, const Key *account, const Key *user)
{
	char		path[128];
	char	   *jwt;

	snprintf(path, sizeof(path), "%s/relay.creds", server.folder);
	jwt = jwt_create(account, user, "\"subs\":-1,\"data\":-1,\"payload\":-1,\"type\":\"user\"", time(NULL) + 3);
	write_creds(path, jwt, user);
	free(jwt);
	config->credentials_file = path;
	tally_reset();
	broker_configure(broker, config);
	ok(works(broker), "jwt: it works");
	ok(wait_text(broker, BROKER_OFFLINE, "uth", 6000), "jwt: until it expires");
	for (int i = 0; i < 3; i++)
	{
		wait_state(broker, BROKER_CONNECTING, 5000);
		wait_state(broker, BROKER_OFFLINE, 5000);
	}
	write_file(path, 0600, "no JWT\n");
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.credentials_file", 5000), "jwt: a file without one");

	jwt = jwt_create(account, user, "\"subs\":-1,\"data\":-1,\"payload\":20000,\"type\":\"user\"", 0);
	write_creds(path, jwt, user);
	free(jwt);
	ok(works(broker) && accounts(), "jwt: a new file is enough");
	chmod(path, 0604);
	broker_reset(broker);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.credentials_file is accessible", 5000), "jwt: a file that others can read is refused");
	chmod(path, 0400);
}

/* The server tells an account's own limit to its clients. */
static void
test_account_limit(Broker *broker)
{
	BrokerStatus status;

	ok(works(broker), "account limit: it works");
	broker_get_status(broker, &status);
	ok(status.max_payload == 20000, "account limit: it is known");
	ok(publish(broker, "outbox.large", NULL, NULL, 30000) == BROKER_PUBLISH_REFUSED &&
	   strstr(publish_error, "20000") != NULL, "account limit: %s", publish_error);
	ok(works(broker) && accounts(), "account limit: others pass");
}

static void
test_jwt(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	Key			operator;
	Key			account;
	Key			system_account;
	Key			user;
	char	   *jwts[2];
	char	   *text;

	key_create(&operator, 'O');
	key_create(&account, 'A');
	key_create(&system_account, 'A');
	key_create(&user, 'U');
	jwts[0] = jwt_create(&operator, &account, "\"limits\":{" ACCOUNT_LIMITS "," JETSTREAM_LIMITS "},\"type\":\"account\"", 0);
	jwts[1] = jwt_create(&operator, &system_account, "\"limits\":{" ACCOUNT_LIMITS "},\"type\":\"account\"", 0);
	if (asprintf(&text, "trusted_keys: [%s]\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: { %s: \"%s\", %s: \"%s\" }",
				 operator.public, system_account.public, account.public, jwts[0], system_account.public, jwts[1]) < 0)
		abort();
	server_configure(&server, text);
	server_start(&server);
	run_with_user(broker, &config, &account, &user);
	test_account_limit(broker);
	broker_destroy(broker, 2000);
	server_kill(&server);
	free(text);
	free(jwts[0]);
	free(jwts[1]);
	key_free(&operator);
	key_free(&account);
	key_free(&system_account);
	key_free(&user);
}

void
test_access(void)
{
	server_create(&server);
	test_denied();
	test_mute_reply();
	test_users();
	test_login_file();
	test_new_password();
	test_nkey();
	test_jwt();
	server_remove(&server);
}
