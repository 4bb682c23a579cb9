/*
 * broker_test_tls.c
 *	  Certificates on both sides: wrong, missing, replaced while the broker lives.
 *	  That a TLS connection works as a plain one does is in broker_test_faults.c.
 */
#define _GNU_SOURCE

#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker_test.h"
#include "harness.h"

/* Handshakes are slow with sanitizers, which find a leak among fewer. */
#ifdef SANITIZED
#define FAILURES 40
#else
#define FAILURES 200
#endif

static Server server;
static char ca_file[128];
static char cert_file[128];
static char key_file[128];

static _Atomic int delay_of_writes_ms;

/* The library finds ours before OpenSSL's. */
extern int	SSL_write(void *connection, const void *data, int size);

int
SSL_write(void *connection, const void *data, int size)
{
	int			(*real) (void *, const void *, int) = dlsym(RTLD_NEXT, "SSL_write");

	usleep((useconds_t) atomic_load(&delay_of_writes_ms) * 1000);
	return real(connection, data, size);
}

static bool
run(const char *format,...)
{
	char	   *command;
	va_list		arguments;
	int			result;

	va_start(arguments, format);
	if (vasprintf(&command, format, arguments) < 0)
		abort();
	va_end(arguments);
	result = system(command);
	free(command);
	return result == 0;
}

/* NAME.pem and NAME.key, self-signed. */
static bool
make_authority(const char *name)
{
	return run("cd %s && openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=%s -keyout %s.key -out %s.pem 2>/dev/null",
			   server.folder, name, name, name);
}

static bool
make_certificate(const char *name, const char *authority)
{
	return run("cd %s && openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=%s -keyout %s.key -out %s.csr 2>/dev/null &&"
			   " echo subjectAltName=IP:127.0.0.1 >%s.ext &&"
			   " openssl x509 -req -in %s.csr -days 2 -CA %s.pem -CAkey %s.key -CAcreateserial -extfile %s.ext -out %s.pem 2>/dev/null &&"
			   " chmod 600 %s.key",
			   server.folder, name, name, name, name, name, authority, authority, name, name, name);
}

/* What an operator's tool does: both files at once replaced by others. */
static void
install(const char *certificate)
{
	if (!run("cd %s && cp -p %s.pem new && mv new client.crt && cp -p %s.key new && mv new client.key",
			 server.folder, certificate, certificate))
		abort();
}

static void
trust(const char *authority)
{
	if (!run("cd %s && cp %s.pem new && mv new ca.crt", server.folder, authority))
		abort();
}

/* The server shows its certificate and wants one that this authority has signed. */
static void
configure_server(const char *certificate, const char *authority)
{
	char		text[1024];

	snprintf(text, sizeof(text), "tls { cert_file: \"%s/%s.pem\", key_file: \"%s/%s.key\", ca_file: \"%s/%s.pem\", verify: true }\n"
			 "authorization { users: [{ user: u, password: p, permissions: { publish: { deny: \"outbox.denied.>\" } } }] }",
			 server.folder, certificate, server.folder, certificate, server.folder, authority);
	server_configure(&server, text);
}

static void
test_replaced(Broker *broker, BrokerConfig *config)
{
	BrokerStatus status;

	ok(works(broker), "certificates: it works with the right one");
	publish_many(broker, "outbox.denied.a", 10, 10);
	ok(wait_quiet(broker, 3000) && tally.count[BROKER_DENIED] == 10, "certificates: and denials are told: %s", tally.last_text);
	install("stranger");
	ok(works(broker), "certificates: replaced: the connection goes on");
	broker_reset(broker);
	/* its words are those of the server's version */
	ok(wait_text(broker, BROKER_OFFLINE, "certificate|lert", 5000), "certificates: one that the server doesn't trust");
	broker_get_status(broker, &status);
	ok(strstr(status.text, "TLS") != NULL || strstr(status.text, "SSL") != NULL, "certificates: is told: %s", status.text);
	/* By TLS 1.3 our side of the handshake is done before the server has looked at our certificate. */
	atomic_store(&delay_of_writes_ms, 100);
	/* The first may have begun before. */
	for (int attempt = 0; attempt < 2; attempt++)
		ok(wait_state(broker, BROKER_CONNECTING, 5000) && wait_state(broker, BROKER_OFFLINE, 5000), "certificates: another attempt");
	broker_get_status(broker, &status);
	/* Newer servers let us read why. */
	ok(has_one_of(status.text, "ended after the handshake, perhaps for want of a client certificate|alert"),
	   "certificates: it has hung up before we write: %s", status.text);
	atomic_store(&delay_of_writes_ms, 0);
	install("renewed");
	ok(works(broker), "certificates: a renewed one");

	/* The server's authority changes, ours first or last. */
	server_kill(&server);
	configure_server("server2", "old");
	server_start(&server);
	ok(wait_text(broker, BROKER_OFFLINE, "certificate", 5000), "authority: the server has another one");
	broker_get_status(broker, &status);
	ok(strstr(status.text, "SSL") != NULL, "authority: is told: %s", status.text);
	trust("new");
	ok(works(broker), "authority: its file replaced");
	config->tls_cert_file = "";
	config->tls_key_file = "";
	broker_configure(broker, config);
	ok(wait_text(broker, BROKER_OFFLINE, "certificate|TLS", 5000), "certificates: none");
	broker_get_status(broker, &status);
	ok(strstr(status.text, "TLS") != NULL || strstr(status.text, "SSL") != NULL, "certificates: is told: %s", status.text);
	ok(accounts(), "certificates: one outcome each");
}

static void
test_files(Broker *broker, BrokerConfig *config)
{
	config->tls_cert_file = cert_file;
	broker_configure(broker, config);
	ok(wait_text(broker, BROKER_OFFLINE, "need each other", 5000), "files: a certificate without a key");
	config->tls_key_file = key_file;
	chmod(key_file, 0644);
	broker_configure(broker, config);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.tls_key_file is accessible", 5000), "files: a key that others can read");
	unlink(key_file);
	ok(wait_text(broker, BROKER_OFFLINE, "could not read outbox.tls_key_file", 5000), "files: no key");
	run("cp %s %s && chmod 600 %s", cert_file, key_file, key_file);
	ok(wait_text(broker, BROKER_OFFLINE, "outbox.tls_key_file", 5000), "files: a key that is none");
	install("renewed");
	run("cd %s && cp stranger.key client.key", server.folder);
	ok(wait_text(broker, BROKER_OFFLINE, "mismatch", 5000), "files: the key of another certificate");
	unlink(ca_file);
	ok(wait_text(broker, BROKER_OFFLINE, "could not read outbox.tls_ca_file", 5000), "files: no authorities");
	trust("new");
	install("renewed");
	ok(works(broker), "files: all is right again");
}

/* What a handshake leaves behind shows in numbers. */
static void
test_many_failures(BrokerConfig *config, const char *what, const char *wanted)
{
	Broker	   *broker = broker_create();
	BrokerStatus status;
	int			descriptors = 0;
	int			started = 0;
	int			failures = 0;

	config->reconnect_base_ms = config->reconnect_max_ms = 1;
	broker_configure(broker, config);
	for (int i = 0; i < FAILURES; i++)
	{
		if (wait_state(broker, BROKER_CONNECTING, 5000) && wait_state(broker, BROKER_OFFLINE, 5000))
			failures++;
		if (i == FAILURES / 10)
		{
			descriptors = open_descriptors();
			started = open_threads();
		}
	}
	broker_get_status(broker, &status);
	ok(failures == FAILURES && has_one_of(status.text, wanted), "many times %s: %s", what, status.text);
	ok(open_descriptors() <= descriptors + 2, "many times %s: %d descriptors before, %d after", what, descriptors,
	   open_descriptors());
	ok(open_threads() <= started + 1, "many times %s: %d threads before, %d after", what, started, open_threads());
	broker_destroy(broker, 2000);
}

static void
test_plain_server(void)
{
	BrokerConfig config = base_config(&server);
	Broker	   *broker = broker_create();
	char		url[128];

	server_kill(&server);
	server_configure(&server, "");
	server_start(&server);
	snprintf(url, sizeof(url), "tls://127.0.0.1:%d", server.port);
	config.url = url;
	broker_configure(broker, &config);
	ok(wait_text(broker, BROKER_OFFLINE, "ecure", 15000), "tls:// never falls back to plain");
	broker_destroy(broker, 2000);
}

/* The server's certificate, by an authority that we trust, is for 127.0.0.1 only. */
static void
test_host_name(BrokerConfig *config)
{
	Broker	   *broker = broker_create();
	char		url[128];

	trust("old");
	install("renewed");
	server_kill(&server);
	configure_server("server1", "old");
	server_start(&server);
	snprintf(url, sizeof(url), "tls://u:p@localhost:%d", server.port);
	config->url = url;
	broker_configure(broker, config);
	ok(wait_text(broker, BROKER_OFFLINE, "ostname", 15000),
	   "a certificate for another host");
	snprintf(url, sizeof(url), "tls://u:p@127.0.0.1:%d", server.port);
	broker_configure(broker, config);
	ok(wait_state(broker, BROKER_ONLINE, 15000), "the same certificate for the host that the URL names");
	broker_destroy(broker, 2000);
}

void
test_certificates(void)
{
	BrokerConfig config;
	Broker	   *broker = broker_create();
	char		url[128];

	server_create(&server);
	if (!make_authority("old") || !make_authority("new") || !make_certificate("server1", "old") ||
		!make_certificate("server2", "new") || !make_certificate("first", "old") || !make_certificate("renewed", "old") ||
		!make_certificate("stranger", "new"))
	{
		ok(true, "certificates # SKIP no openssl");
		broker_destroy(broker, 0);
		server_remove(&server);
		return;
	}
	snprintf(ca_file, sizeof(ca_file), "%s/ca.crt", server.folder);
	snprintf(cert_file, sizeof(cert_file), "%s/client.crt", server.folder);
	snprintf(key_file, sizeof(key_file), "%s/client.key", server.folder);
	trust("old");
	install("first");
	configure_server("server1", "old");
	server_start(&server);

	/* A nats:// URL, and the server requires TLS. */
	config = base_config(&server);
	snprintf(url, sizeof(url), "nats://u:p@127.0.0.1:%d", server.port);
	config.url = url;
	config.tls_ca_file = ca_file;
	config.tls_cert_file = cert_file;
	config.tls_key_file = key_file;
	tally_reset();
	broker_configure(broker, &config);
	test_replaced(broker, &config);
	test_files(broker, &config);
	broker_destroy(broker, 2000);

	install("stranger");
	test_many_failures(&config, "a certificate that the server refuses", "certificate|alert");
	install("renewed");
	trust("old");
	test_many_failures(&config, "a server that we don't trust", "certificate");
	test_host_name(&config);
	test_plain_server();
	server_remove(&server);
}
