/*
 * replay.c
 *	  The process that sends published events again: one replay, from claim to
 *	  end.
 *
 * A background worker, started by the launcher when somebody has asked for a
 * replay, or when one may have been left behind. It has its own connection to
 * NATS and shares nothing with the relays but what they say of themselves in
 * shared memory: a replay goes slowly while they have much to do. No transaction
 * is open while it waits. It may be stopped anywhere: the row of
 * outbox.replay_job says how far it has come, a second ago at most, and the next
 * process goes on from there.
 */
#include "outbox.h"

#include <signal.h>

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/pmsignal.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "clock.h"
#include "database.h"
#include "encode.h"
#include "event.h"
#include "give_way.h"
#include "held.h"
#include "replay.h"
#include "replay_job.h"
#include "replay_player.h"
#include "signals.h"
#include "worker.h"

/* How often progress is recorded. */
#define TELL_US INT64CONST(1000000)

/* Messages in flight at most beside live traffic: what an event of it may have to wait for at the server. */
#define LIVE_WINDOW 16

/* How often the log is counted on while there is something to send; and how often at first, before that. */
#define COUNT_US INT64CONST(20000)
#define COUNTED_FIRST 10

/* When it isn't known whether a message is stored: pauses between tries, doubled, and how many in a row. */
#define RETRY_BASE_US INT64CONST(200000)
#define MAX_TRIES 10

/* Messages that are made ready before they are sent together, so that signals are blocked and unblocked but once for them; and their bytes. */
#define READY 256
#define READY_BYTES (1024 * 1024)

/* An event that can be sent. */
typedef struct Ready
{
	void	   *block;			/* that the message is in; freed when it is sent */
	BrokerMessage message;
	int64		position;
	int64		created_at;
	uint64		aggregate;
} Ready;

typedef struct Replay
{
	OutboxDatabase *database;
	OutboxReplayer *self;
	uint32		leave_calls;	/* seen at the start */
	uint32		replay_calls;	/* seen last */
	OutboxReplayJob job;
	bool		claimed;		/* a replay is ours, */
	bool		unfinished;		/* and not through */
	OutboxReplaySource *source;
	bool		ended;			/* the source is */
	OutboxEnvelope envelope;
	OutboxPlayer player;
	int64		total;

	Broker	   *broker;
	Ready		ready[READY];	/* to be sent next */
	int			ready_at;
	int			ready_count;

	OutboxReplayWord word;
	int64		tell_at;
	int64		retry_at;
	int			tries;
	int64		tried_at_done;	/* progress then */

	OutboxLiveWatch live;

	OutboxReplaySource *counter; /* counts the events of the log; NULL: total is known */
	int64		counted;
	int64		count_at;
} Replay;

static Replay replay;

/* ----------------------------------------------------------------- progress */

/* The text lives until the next call. */
static void
get_figures(OutboxReplayFigures *figures)
{
	static char	text[2 * BROKER_TEXT_SIZE + 64];
	const OutboxReplayJob *job = &replay.job;
	const OutboxPlayer *player = &replay.player;
	BrokerStatus status = {.state = BROKER_CONNECTING};
	sigset_t	saved;

	outbox_signals_block(&saved);
	if (replay.broker != NULL)
		broker_get_status(replay.broker, &status);
	outbox_signals_restore(&saved);
	text[0] = '\0';
	if (player->trouble != OUTBOX_PLAYER_FINE)
		snprintf(text, sizeof(text), "position %lld: %s", (long long) player->trouble_position, player->text);
	else if (status.state == BROKER_OFFLINE && status.text[0] != '\0')
		snprintf(text, sizeof(text), "not connected: %s", status.text);
	*figures = (OutboxReplayFigures) {
		.total = replay.total,
		.done = job->done + player->done,
		.ahead = outbox_player_ahead(player),
		.repeated = job->repeated + outbox_player_repeated(player, job->ahead),
		.reached = player->reached,
		.time_reached = player->reached_time == 0 ? 0 : player->reached_time - outbox_unix_us(0),
		.error = text[0] == '\0' ? NULL : text,
	};
}

static void
tell(int64 now)
{
	OutboxReplayFigures figures;

	get_figures(&figures);
	replay.word = outbox_replay_tell(&replay.job, &figures);
	replay.tell_at = now + TELL_US;
}

static void
finish(const char *state, const char *error)
{
	OutboxReplayFigures figures;

	get_figures(&figures);
	if (error != NULL)
		figures.error = error;
	if (figures.ahead == 0 && figures.done == replay.job.done)
		figures.ahead = replay.job.ahead, figures.repeated = replay.job.repeated;
	outbox_replay_finish(&replay.job, &figures, state);
	replay.unfinished = false;
	if (figures.error != NULL)
		ereport(LOG,
				(errmsg("outbox replay %s is %s behind position %lld: %s", replay.job.id, state,
						(long long) figures.reached, figures.error),
				 errhint("outbox.replay_resume() lets it go on. See docs/failures.md, \"Replay stopped\".")));
	else
		ereport(LOG,
				(errmsg("outbox replay %s is %s: %lld events", replay.job.id, state, (long long) figures.done)));
}

/* ------------------------------------------------------------------ sending */

/* Makes the message of an event; returns its size. */
static size_t
make_ready(Ready *ready, OutboxRow *row)
{
	const char *error;
	size_t		size;

	ready->position = row->position;
	ready->created_at = row->created_at;
	ready->aggregate = outbox_source_aggregate(row);
	ready->block = outbox_envelope_make(&replay.envelope, row, 0, &ready->message, &size, &error);
	if (ready->block == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_DATA_EXCEPTION),
				 errmsg("could not build the message of position %lld: %s", (long long) row->position, error)));
	return size;
}

/* What the source calls a failure may be the end of this process, which is none. */
static void
check_whether_told_to_end(void)
{
	if (!PostmasterIsAliveInternal())
		proc_exit(1);
	outbox_worker_check(0);
}

static OutboxSourceResult
next_row(OutboxRow *row)
{
	if (outbox_replay_is_outside(&replay.job))
		return outbox_replay_outside_next(replay.source, row);
	return replay.source->next(replay.source, row);
}

/* Gets the next messages ready. */
static void
prepare(void)
{
	OutboxSourceResult got = OUTBOX_SOURCE_ROW;
	size_t		bytes = 0;
	OutboxRow	row;

	replay.ready_at = replay.ready_count = 0;
	while (got == OUTBOX_SOURCE_ROW && replay.ready_count < READY && bytes < READY_BYTES)
	{
		got = next_row(&row);
		if (got == OUTBOX_SOURCE_ROW)
			bytes += make_ready(&replay.ready[replay.ready_count++], &row);
	}
	if (got == OUTBOX_SOURCE_FAILED)
	{
		check_whether_told_to_end();
		ereport(ERROR,
				(errcode(ERRCODE_EXTERNAL_ROUTINE_EXCEPTION),
				 errmsg("%s", replay.source->error)));
	}
	replay.ended = got == OUTBOX_SOURCE_END;
	if (replay.source->rest != NULL)
		replay.source->rest(replay.source);
}

/* Whether all that there is has been sent. */
static bool
all_is_sent(void)
{
	return replay.ended && replay.ready_at == replay.ready_count;
}

/*
 * Sends what is ready, if it may be sent; first gets it ready. Returns
 * microseconds until there is more to do, -1: when something has happened.
 */
static int64
send_events(void)
{
	int64		wait_us = -1;
	bool		sent = true;
	sigset_t	saved;

	if (replay.word != OUTBOX_REPLAY_GO_ON || all_is_sent())
		return -1;
	if (replay.ready_at == replay.ready_count)
		prepare();
	outbox_signals_block(&saved);
	while (sent && replay.ready_at < replay.ready_count)
	{
		Ready	   *ready = &replay.ready[replay.ready_at];

		sent = outbox_player_may_send(&replay.player, ready->aggregate, outbox_clock_now(), &wait_us) &&
			outbox_player_send(&replay.player, &ready->message, ready->position, ready->created_at, ready->aggregate);
		if (sent)
		{
			free(ready->block);
			replay.ready_at++;
		}
	}
	broker_flush(replay.broker);
	outbox_signals_restore(&saved);
	return sent ? 0 : wait_us;
}

/* What was made ready isn't to be sent. */
static void
discard_ready(void)
{
	while (replay.ready_at < replay.ready_count)
		free(replay.ready[replay.ready_at++].block);
}

/* The source from behind the position reached on. */
static void
open_source(void)
{
	if (replay.source != NULL)
		replay.source->close(replay.source);
	replay.source = NULL;
	discard_ready();
	replay.ended = false;
	if (outbox_replay_is_outside(&replay.job))
		replay.source = outbox_replay_outside_open(&replay.job, &replay.envelope, replay.player.reached);
	else if (outbox_replay_is_log(&replay.job))
		replay.source = outbox_replay_log_open(&replay.job, replay.database, &replay.envelope, replay.player.reached);
	else
	{
		int64		count;

		replay.source = outbox_replay_sql_open(&replay.job, replay.player.reached, &count);
		if (replay.total < 0)
			replay.total = replay.job.done + replay.player.done + count;
	}
}

/* ------------------------------------------------------------------ counting */

/* Goes on to count the events of the log, for a short time. */
static void
count_on(int64 now)
{
	bool		more = outbox_replay_log_count(replay.counter, &replay.counted);

	replay.count_at = now + COUNT_US;
	if (more)
		return;
	replay.counter->close(replay.counter);
	replay.counter = NULL;
	replay.total = replay.counted;
}

/*
 * The total, for those who watch. Files and other servers are read to their end
 * first, so that damage is found before anything is sent. The log is counted
 * beside the sending, but for its beginning, which may be all.
 */
static void
begin_to_count(void)
{
	if (replay.total >= 0)
		return;
	if (outbox_replay_is_outside(&replay.job))
		replay.total = outbox_replay_count(&replay.job);
	else if (outbox_replay_is_log(&replay.job))
	{
		replay.counter = outbox_replay_log_open(&replay.job, replay.database, &replay.envelope, 0);
		for (int i = 0; i < COUNTED_FIRST && replay.counter != NULL; i++)
			count_on(outbox_clock_now());
	}
}

/* ------------------------------------------------------------------- the run */

/*
 * After trouble, when nothing is in flight any more. A refusal is the end of this
 * run; what may or may not be stored is sent again, after a pause. True: it ends.
 */
static bool
is_over(int64 now)
{
	OutboxPlayer *player = &replay.player;
	BrokerStatus status;
	sigset_t	saved;

	outbox_signals_block(&saved);
	broker_get_status(replay.broker, &status);
	outbox_signals_restore(&saved);
	if (outbox_player_in_flight(player) > 0)
		return false;
	if (replay.word == OUTBOX_REPLAY_CEASE)
	{
		finish("cancelled", NULL);
		return true;
	}
	if (player->trouble == OUTBOX_PLAYER_UNKNOWN)
	{
		replay.tries = player->done > replay.tried_at_done ? 1 : replay.tries + 1;
		replay.tried_at_done = player->done;
		if (replay.tries <= MAX_TRIES)
		{
			tell(now);
			replay.job.ahead += outbox_player_ahead(player);
			outbox_player_rewind(player);
			replay.retry_at = now + (RETRY_BASE_US << (replay.tries - 1));
			open_source();
			return false;
		}
	}
	if (player->trouble != OUTBOX_PLAYER_FINE)
		finish("stopped", NULL);
	else if (status.state == BROKER_ONLINE && status.text[0] != '\0')
		finish("stopped", status.text);
	else if (all_is_sent())
	{
		replay.total = replay.total < 0 ? replay.job.done + player->done : replay.total;
		finish("done", NULL);
	}
	else
		return false;
	return true;
}

static void
wait_for_something(WaitEventSet *events, int64 wait_us)
{
	WaitEvent	event[2];
	sigset_t	saved;
	int64		now = outbox_clock_now();
	int64		until = Max(replay.tell_at, now);
	int			limit;

	outbox_signals_block(&saved);
	limit = broker_poll_within(replay.broker);
	outbox_signals_restore(&saved);
	if (replay.retry_at > now)
		until = Min(until, replay.retry_at);
	else if (wait_us >= 0)
		until = Min(until, now + wait_us);
	/* While live traffic holds it up, it is looked at. */
	if (replay.live.traffic == OUTBOX_LIVE_BUSY)
		until = Min(until, replay.live.look_at);
	if (replay.counter != NULL)
		until = Min(until, replay.count_at);
	until = (until - now + 999) / 1000;
	if (limit >= 0)
		until = Min(until, limit);
	(void) WaitEventSetWait(events, Max(until, 0), event, lengthof(event), PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

static void
run(void)
{
	WaitEventSet *events = CreateWaitEventSet(OUTBOX_WAIT_SET_OWNER, 3);

	AddWaitEventToSet(events, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(events, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	AddWaitEventToSet(events, WL_SOCKET_READABLE, broker_fd(replay.broker), NULL, NULL);
	for (;;)
	{
		int64		now = outbox_clock_now();
		int64		wait_us = -1;
		OutboxLiveTraffic traffic = outbox_live_traffic(&replay.live, replay.database, now);
		sigset_t	saved;
		uint32		calls = pg_atomic_read_u32(&replay.database->replay_calls);

		outbox_worker_check(0);
		/* Another extension, or other settings: the next process will know. */
		if (pg_atomic_read_u32(&replay.database->leave_calls) != replay.leave_calls)
			return;
		outbox_signals_block(&saved);
		replay.player.max_window = traffic == OUTBOX_LIVE_IDLE ? OUTBOX_PLAYER_WINDOW : LIVE_WINDOW;
		replay.player.in_groups = traffic != OUTBOX_LIVE_IDLE;
		outbox_player_poll(&replay.player, now, traffic);
		outbox_signals_restore(&saved);
		if (now >= replay.tell_at || calls != replay.replay_calls)
		{
			replay.replay_calls = calls;
			tell(now);
		}
		if (now >= replay.retry_at)
			wait_us = send_events();
		if (is_over(now))
			return;
		if (replay.counter != NULL && (now >= replay.count_at || (wait_us != 0 && traffic == OUTBOX_LIVE_IDLE)))
		{
			count_on(now);
			wait_us = 0;
		}
		wait_for_something(events, wait_us);
	}
}

/* -------------------------------------------------------------- the process */

/* before_shmem_exit. Another replay may wait for the place, and what isn't finished goes on in another process. */
static void
leave(int code, Datum arg)
{
	pg_atomic_write_u32(&replay.self->pid, 0);
	if (replay.claimed)
		outbox_shmem_wake_replayers(replay.database);
}

/* Takes a place in shared memory; false: there are enough replayers. */
static bool
take_place(void)
{
	OutboxDatabase *database = replay.database;

	LWLockAcquire(&database->slots_lock, LW_EXCLUSIVE);
	for (int i = 0; i < OUTBOX_MAX_REPLAYERS && replay.self == NULL; i++)
	{
		if (pg_atomic_read_u32(&database->replayers[i].pid) != 0)
			continue;
		replay.self = &database->replayers[i];
		pg_atomic_write_u32(&replay.self->procno, OUTBOX_MY_BACKEND_INDEX);
		pg_write_barrier();
		pg_atomic_write_u32(&replay.self->pid, MyProcPid);
	}
	LWLockRelease(&database->slots_lock);
	return replay.self != NULL;
}

/* One replay, if there is one. */
static void
replay_one(void)
{
	OutboxReplayJob *job = &replay.job;
	bool		more;

	replay.leave_calls = pg_atomic_read_u32(&replay.database->leave_calls);
	replay.replay_calls = pg_atomic_read_u32(&replay.database->replay_calls);
	if (!outbox_replay_claim(job, &more))
		return;
	replay.claimed = replay.unfinished = true;
	replay.total = job->total;
	if (more)
		outbox_shmem_wake_replayers(replay.database);
	ereport(LOG,
			(errmsg("outbox replay %s begins behind position %lld", job->id, (long long) job->reached)));
	replay.player.reached = job->reached;
	(void) outbox_live_traffic(&replay.live, replay.database, outbox_clock_now());
	StartTransactionCommand();
	outbox_held_envelope(&replay.envelope);
	CommitTransactionCommand();
	replay.envelope.stream = job->target_stream == NULL ? outbox_stream : job->target_stream;
	replay.envelope.subject_prefix = job->target_prefix;
	replay.envelope.replay_id = job->id;
	begin_to_count();
	replay.broker = outbox_replay_connect(job);
	outbox_player_begin(&replay.player, replay.broker, job->rate, OUTBOX_PLAYER_WINDOW);
	replay.player.reached = job->reached;
	open_source();
	run();
}

/* An error ends the run; the row says so, if that can still be written. */
static void
stop_for_error(void)
{
	MemoryContext memory;
	ErrorData  *error;

	check_whether_told_to_end();
	memory = MemoryContextSwitchTo(TopMemoryContext);
	error = CopyErrorData();
	EmitErrorReport();
	FlushErrorState();
	HOLD_INTERRUPTS();
	AbortOutOfAnyTransaction();
	RESUME_INTERRUPTS();
	MemoryContextSwitchTo(memory);
	if (replay.unfinished)
		finish("stopped", error->message);
}

void
OutboxReplayMain(Datum main_arg)
{
	pqsignal(SIGINT, SIG_IGN);
	pqsignal(SIGTERM, die);
	outbox_worker_unblock_signals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(main_arg), InvalidOid, 0);
	OUTBOX_TEST_POINT("worker-connected");
	pgstat_report_appname("outbox replay");
	outbox_database_pin_session();
	replay.player.reached = 0;
	if (!outbox_replay_attach(&replay.database) || replay.database == NULL || !take_place())
		proc_exit(0);
	before_shmem_exit(leave, (Datum) 0);
	if (outbox_give_way_is_due(replay.database))
	{
		/* Another one shall look afterwards. */
		replay.claimed = true;
		proc_exit(0);
	}
	PG_TRY();
	{
		replay_one();
	}
	PG_CATCH();
	{
		stop_for_error();
	}
	PG_END_TRY();
	proc_exit(0);
}

bool
outbox_replay_start(Oid dboid)
{
	BackgroundWorker worker;

	outbox_worker_prepare(&worker, "OutboxReplayMain", "outbox replay");
	worker.bgw_main_arg = ObjectIdGetDatum(dboid);
	return RegisterDynamicBackgroundWorker(&worker, NULL);
}
