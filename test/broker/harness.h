/*
 * harness.h
 *	  A private nats-server, a broker driven to a goal, and TAP output, for the
 *	  tests and the benchmark of the broker.
 */
#ifndef BROKER_HARNESS_H
#define BROKER_HARNESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "broker.h"

/* A server of our own: its folder, port and configuration outlive its process. */
typedef struct Server
{
	const char *program;		/* NULL: nats-server, wherever it is */
	pid_t		pid;			/* 0: not running */
	int			port;
	const char *host;			/* 127.0.0.1, unless set between create and configure */
	char		folder[64];
} Server;

/* What came out of the broker, counted; every cookie is the address of one of these bytes. */
#define MAX_MESSAGES 300000
typedef struct Tally
{
	int			count[BROKER_OUTCOME_KINDS];		/* by BrokerOutcomeKind */
	int			duplicates;
	int			twice;			/* outcomes for a cookie that had one already */
	int			last_code;
	uint64_t	max_sequence;
	uint64_t	min_sequence;	/* of acknowledgements; a test sets it first */
	char		last_text[BROKER_TEXT_SIZE];
	int64_t		longest_call_us;	/* of broker_publish(), _flush(), _poll() */
	const char *longest_call;
	unsigned char seen[MAX_MESSAGES];
	int			published;
} Tally;

extern Tally tally;

/* server */
extern void server_create(Server *server);
extern void server_configure(Server *server, const char *extra);
extern void server_start(Server *server);
extern void server_kill(Server *server);
extern void server_freeze(Server *server);
extern void server_thaw(Server *server);
extern void server_signal(Server *server, int signal, const char *logged);
extern void server_remove(Server *server);
extern int	server_subscribe(Server *server, const char *subject);
extern bool socket_reads(int fd, char *buffer, size_t size, const char *wanted);
extern bool socket_tells(int fd, const char *wanted);
extern void server_api(Server *server, const char *subject, const char *payload);

/* broker */
extern BrokerConfig base_config(const Server *server);
extern Broker *online_broker(const Server *server);
extern void step(Broker *broker, int max_wait_ms);
extern int64_t slack(int64_t time);
extern bool wait_state(Broker *broker, BrokerState state, int timeout_ms);
extern bool has_one_of(const char *text, const char *wanted);
extern bool wait_text(Broker *broker, BrokerState state, const char *wanted, int timeout_ms);
extern bool wait_connects(Broker *broker, uint64_t connects, int timeout_ms);
extern bool works(Broker *broker);
extern bool accounts(void);
extern bool wait_quiet(Broker *broker, int timeout_ms);
extern int	outcomes(void);
extern void tally_reset(void);
extern BrokerPublishResult publish(Broker *broker, const char *subject, const char *id,
								   const char *expected_stream, int size);
extern const char *last_id(void);
extern int	publish_many(Broker *broker, const char *subject, int count, int size);
extern char publish_error[BROKER_TEXT_SIZE];

/* process and TAP */
extern int64_t clock_us(void);
extern int	open_descriptors(void);
extern int	open_threads(void);
extern void go_on_in_child(void);
extern void ok(bool passed, const char *format,...) __attribute__((format(printf, 2, 3)));
extern int	done_testing(void);

#endif							/* BROKER_HARNESS_H */
