/*
 * replay_target.c
 *	  A replay's connection to NATS.
 */
#include "outbox.h"

#include <signal.h>
#include <sys/resource.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/pmsignal.h"

#include "encode.h"
#include "replay_job.h"
#include "replay_player.h"
#include "signals.h"
#include "worker.h"

/* Less priority than the server's other processes, in degrees of nice. */
#define NICER_BY 5

#define EXIT_GRACE_MS 2500
#define DUPLICATE_WINDOW_MS (2 * 60 * 1000)

static Broker *broker = NULL;

/* on_proc_exit */
static void
close_broker(int code, Datum arg)
{
	sigset_t	saved;

	outbox_worker_skip_exit_handlers(code);
	if (broker == NULL)
		return;
	outbox_signals_block(&saved);
	(void) broker_destroy(broker, PostmasterIsAlive() ? EXIT_GRACE_MS : 0);
	broker = NULL;
	outbox_signals_restore(&saved);
}

/*
 * Whoever serves live traffic gets the CPU first, of this thread and of those
 * that the NATS client starts. Only by some degrees: others may wait for a lock
 * that is held here.
 */
static void
give_way_to_others(void)
{
	int			nice;

	errno = 0;
	nice = getpriority(PRIO_PROCESS, 0);
	if (errno == 0)
		(void) setpriority(PRIO_PROCESS, 0, nice + NICER_BY);
}

/* With the settings' credentials only if the server is the settings' own. One for the process, ended with it. */
Broker *
outbox_replay_connect(const OutboxReplayJob *job)
{
	bool		own = job->target_url == NULL;
	char		subjects[OUTBOX_MAX_TEMPLATE + OUTBOX_MAX_SUBJECT + 2] = "";
	int			prefix = 0;
	bool		ok;
	sigset_t	saved;
	BrokerConfig config = {
		.url = own ? outbox_nats_url : job->target_url,
		.credentials_file = own ? outbox_credentials_file : NULL,
		.login_file = own ? outbox_login_file : NULL,
		.nkey_seed_file = own ? outbox_nkey_seed_file : NULL,
		.tls_ca_file = outbox_tls_ca_file,
		.tls_cert_file = own ? outbox_tls_cert_file : NULL,
		.tls_key_file = own ? outbox_tls_key_file : NULL,
		.client_name = "outbox replay",
		.inbox_prefix = outbox_inbox_prefix,
		.stream = job->target_stream == NULL ? outbox_stream : job->target_stream,
		.stream_subjects = subjects,
		.stream_create = outbox_stream_create,
		.duplicate_window_ms = DUPLICATE_WINDOW_MS,
		.ack_timeout_ms = outbox_ack_timeout,
		.connect_timeout_ms = outbox_connect_timeout,
		.reconnect_base_ms = outbox_retry_base_delay,
		.reconnect_max_ms = outbox_retry_max_delay,
		.max_in_flight = OUTBOX_PLAYER_WINDOW,
	};

	if (job->target_prefix != NULL)
		prefix = snprintf(subjects, sizeof(subjects), "%s.", job->target_prefix);
	if (prefix >= (int) sizeof(subjects) ||
		outbox_encode_stream_subjects(outbox_subject_template, subjects + prefix, sizeof(subjects) - prefix) < 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("target_prefix is too long")));
	give_way_to_others();
	on_proc_exit(close_broker, (Datum) 0);
	outbox_signals_block(&saved);
	broker = broker_create();
	ok = broker != NULL && broker_configure(broker, &config);
	outbox_signals_restore(&saved);
	if (!ok)
		ereport(ERROR,
				(errcode(ERRCODE_OUT_OF_MEMORY),
				 errmsg("could not start the NATS client"),
				 errdetail("Memory, descriptors or threads are exhausted.")));
	return broker;
}
