/*
 * consumer_apply.c
 *	  The transactions of a consumer.
 *
 * Several messages go into one transaction, each in a subtransaction with its
 * entry in the inbox. What fails is undone, and the failure recorded in the same
 * transaction; so is the position. Acknowledgements follow the commit.
 *
 * When a transaction can't commit, nobody knows whose fault it is: its messages
 * get one each, and deferred constraints are checked before its end. When a
 * consumer has ended without a word, one of the messages that it had may have
 * killed it: those are handled one by one as well, and that an attempt begins is
 * recorded before it does, so that a message that kills the server every time is
 * parked in the end.
 *
 * The process is a session of the handler's role. Statements of our own run as
 * the superuser, call functions by their full names and see no search_path but
 * pg_catalog.
 */
#include "consumer.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timeout.h"
#include "utils/timestamp.h"

#include "clock.h"
#include "database.h"

/* A transaction takes no more messages after this time. */
#define BATCH_US INT64CONST(250000)

typedef enum Outcome
{
	APPLIED,
	DUPLICATE,
	FAILED,
	PARKED
} Outcome;

typedef struct Handled
{
	QueuedMessage *message;
	Outcome		result;
	bool		counted;		/* FAILED: it used up an attempt */
} Handled;

/* What went wrong, as it is recorded. */
typedef struct Failure
{
	char		code[6];
	char	   *text;
	bool		counted;
} Failure;

/* Attempts that failed, of messages behind the position; read when a connection begins. */
typedef struct Attempts
{
	uint64		sequence;
	int			attempts;
} Attempts;

static Attempts *attempts = NULL;
static int	attempts_count = 0;
static SPIPlanPtr handler_plan = NULL;

/* ------------------------------------------------------------ transactions */

/* False: the extension is gone, or another one by now. */
static bool
begin(const Consumer *consumer)
{
	const OutboxCatalog *catalog;

	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	catalog = outbox_database_lock();
	if (catalog == NULL || catalog->sequence != consumer->sequence)
	{
		AbortCurrentTransaction();
		return false;
	}
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	PushActiveSnapshot(GetTransactionSnapshot());
	return true;
}

static void
commit(void)
{
	PopActiveSnapshot();
	SPI_finish();
	CommitTransactionCommand();
	(void) pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
}

static void
leave_if_gone(bool here)
{
	if (here)
		return;
	ereport(LOG,
			(errmsg("outbox consumer leaves: the extension or its subscription has gone")));
	proc_exit(0);
}

/* --------------------------------------------- statements of our own */

typedef struct Owner
{
	Oid			user;
	int			context;
	int			settings;
} Owner;

static void
become_owner(Owner *saved)
{
	GetUserIdAndSecContext(&saved->user, &saved->context);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, saved->context | SECURITY_LOCAL_USERID_CHANGE | SECURITY_RESTRICTED_OPERATION);
	saved->settings = NewGUCNestLevel();
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	(void) set_config_option("row_security", "off", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
}

static void
become_role(const Owner *saved)
{
	AtEOXact_GUC(false, saved->settings);
	SetUserIdAndSecContext(saved->user, saved->context);
}

/* The plan is made at the first use and kept in *plan. The rows are in SPI_tuptable. */
static void
run_own(SPIPlanPtr *plan, const char *query, int count, Oid *types, Datum *values)
{
	Owner		saved;

	become_owner(&saved);
	if (*plan == NULL)
	{
		*plan = SPI_prepare(query, count, types);
		if (*plan == NULL || SPI_keepplan(*plan) != 0)
			elog(ERROR, "could not prepare \"%s\"", query);
	}
	if (SPI_execute_plan(*plan, values, NULL, false, 0) < 0)
		elog(ERROR, "could not run \"%s\"", query);
	become_role(&saved);
}

static Datum
column(int row, int number, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, isnull);
}

/* A copy in TopMemoryContext. */
static char *
text_column(int number)
{
	bool		isnull;
	char	   *value = TextDatumGetCString(column(0, number, &isnull));

	return MemoryContextStrdup(TopMemoryContext, value);
}

/* True: new for this subscription. */
static bool
accept_event(const Consumer *consumer, Datum event_id)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {TEXTOID, UUIDOID};
	Datum		values[2] = {CStringGetTextDatum(consumer->name), event_id};
	bool		isnull;

	run_own(&plan, "SELECT outbox.inbox_accept($1, $2)", 2, types, values);
	return DatumGetBool(column(0, 1, &isnull));
}

static void
record_position(const Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[3] = {INT4OID, INT8OID, INT8OID};
	Datum		values[3] = {Int32GetDatum(consumer->id), Int64GetDatum(consumer->stream_created_ns),
					   Int64GetDatum((int64) consumer_queue_assumed_floor(&consumer->queue))};

	run_own(&plan, "SELECT outbox.consumer_position($1, $2, $3)", 3, types, values);
}

static void
record_failure(const Consumer *consumer, uint64 sequence, bool counted, const char *text)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[4] = {INT4OID, INT8OID, BOOLOID, TEXTOID};
	Datum		values[4] = {Int32GetDatum(consumer->id), Int64GetDatum((int64) sequence), BoolGetDatum(counted),
					   CStringGetTextDatum(text)};

	run_own(&plan, "SELECT outbox.consumer_failed($1, $2, $3, $4)", 4, types, values);
}

static void
record_recovery(const Consumer *consumer, uint64 sequence)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {INT4OID, INT8OID};
	Datum		values[2] = {Int32GetDatum(consumer->id), Int64GetDatum((int64) sequence)};

	run_own(&plan, "SELECT outbox.consumer_recovered($1, $2)", 2, types, values);
}

static void
park(const Consumer *consumer, Datum message, int count, const Failure *failure)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[6] = {INT4OID, TEXTOID, consumer->message_type, INT4OID, TEXTOID, TEXTOID};
	Datum		values[6] = {Int32GetDatum(consumer->id), CStringGetTextDatum(consumer->name), message, Int32GetDatum(count),
					   CStringGetTextDatum(failure->code), CStringGetTextDatum(failure->text)};

	run_own(&plan, "SELECT outbox.consumer_park($1, $2, $3, $4, $5, $6)", 6, types, values);
}

/*
 * Keeps the subscription's row from being changed until the end of the
 * transaction. False: it is gone, or says something else by now.
 */
static bool
lock_subscription(const Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {INT4OID, INT4OID};
	Datum		values[2] = {Int32GetDatum(consumer->id), Int32GetDatum(consumer->revision)};

	run_own(&plan, "SELECT FROM outbox.subscription s WHERE s.id = $1 AND s.revision = $2 AND NOT s.paused FOR SHARE", 2, types, values);
	return SPI_processed > 0;
}

/* ------------------------------------------------------------- the handler */

static void
prepare_handler(const Consumer *consumer)
{
	char	   *query = psprintf("SELECT %s($1)", consumer->handler);
	Oid			type = consumer->message_type;

	if (handler_plan != NULL)
		return;
	handler_plan = SPI_prepare(query, 1, &type);
	if (handler_plan == NULL || SPI_keepplan(handler_plan) != 0)
		elog(ERROR, "could not prepare \"%s\"", query);
}

/* As the role whose session this is; its statement_timeout counts. */
static void
call_handler(const Consumer *consumer, Datum message)
{
	prepare_handler(consumer);
	pgstat_report_activity(STATE_RUNNING, consumer->handler);
	if (StatementTimeout > 0)
		enable_timeout_after(STATEMENT_TIMEOUT, StatementTimeout);
	if (SPI_execute_plan(handler_plan, &message, NULL, false, 0) < 0)
		elog(ERROR, "could not call handler \"%s\"", consumer->handler);
	if (StatementTimeout > 0)
		disable_timeout(STATEMENT_TIMEOUT, false);
}

/*
 * What isn't the message's own: conflicts with other transactions, a lack of
 * resources, a server that goes down or is read-only. It uses up no attempt.
 */
static bool
is_own_failure(int code)
{
	return ERRCODE_TO_CATEGORY(code) != ERRCODE_TRANSACTION_ROLLBACK &&
		ERRCODE_TO_CATEGORY(code) != ERRCODE_INSUFFICIENT_RESOURCES && code != ERRCODE_LOCK_NOT_AVAILABLE &&
		code != ERRCODE_READ_ONLY_SQL_TRANSACTION && code != ERRCODE_ADMIN_SHUTDOWN;
}

/* Whether the handler exists and its role may call it: else no message is to blame. */
static bool
handler_is_usable(const Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {OIDOID, TEXTOID};
	Datum		values[2] = {ObjectIdGetDatum(GetUserId()), CStringGetTextDatum(consumer->handler)};
	bool		isnull;

	run_own(&plan, "SELECT outbox.handler_is_usable($1, $2)", 2, types, values);
	return DatumGetBool(column(0, 1, &isnull));
}

/* The current error, taken over; context: where its text shall live. */
static Failure
take_error(MemoryContext context)
{
	Failure		failure;
	ErrorData  *error;

	MemoryContextSwitchTo(context);
	error = CopyErrorData();
	FlushErrorState();
	strlcpy(failure.code, unpack_sql_state(error->sqlerrcode), sizeof(failure.code));
	failure.text = pstrdup(error->message == NULL ? "" : error->message);
	if (error->detail != NULL)
		failure.text = psprintf("%s: %s", failure.text, error->detail);
	if (strlen(failure.text) > 1000)
		failure.text[pg_mbcliplen(failure.text, strlen(failure.text), 1000)] = '\0';
	failure.counted = is_own_failure(error->sqlerrcode);
	return failure;
}

/* The event's id, out of a message. */
static Datum
event_id_of(Datum message)
{
	bool		isnull;

	return GetAttributeByNum(DatumGetHeapTupleHeader(message), 1, &isnull);
}

/*
 * Runs the handler in a subtransaction, if the inbox doesn't know the event.
 * checked: with deferred constraints. FAILED: failure says why.
 */
static Outcome
try_message(const Consumer *consumer, Datum message, bool with_inbox, bool checked, Failure *failure)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile Outcome result = FAILED;
	int			settings = NewGUCNestLevel();

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		if (with_inbox && !accept_event(consumer, event_id_of(message)))
			result = DUPLICATE;
		else
		{
			call_handler(consumer, message);
			if (checked && SPI_execute("SET CONSTRAINTS ALL IMMEDIATE", false, 0) < 0)
				elog(ERROR, "could not check constraints");
			result = APPLIED;
		}
		ReleaseCurrentSubTransaction();
	}
	PG_CATCH();
	{
		disable_timeout(STATEMENT_TIMEOUT, false);
		*failure = take_error(context);
		RollbackAndReleaseCurrentSubTransaction();
		result = FAILED;
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	CurrentResourceOwner = owner;
	/* What the handler has set with SET ends with it. */
	AtEOXact_GUC(false, settings);
	if (result == FAILED && failure->counted && strncmp(failure->code, "42", 2) == 0)
		failure->counted = handler_is_usable(consumer);
	return result;
}

/* One message within the transaction: handled, or its failure recorded. */
static Outcome
handle(Consumer *consumer, QueuedMessage *queued, bool alone, bool counted_before, bool *counted)
{
	Datum		message = outbox_consumer_message(consumer, queued);
	Failure		failure = {0};
	Outcome		result = try_message(consumer, message, true, alone, &failure);

	*counted = false;
	if (result != FAILED)
	{
		if (queued->attempts > 0)
			record_recovery(consumer, queued->sequence);
		return result;
	}
	outbox_consumer_say(consumer, failure.text);
	*counted = failure.counted && !counted_before;
	if (failure.counted && queued->attempts + (*counted ? 1 : 0) >= consumer->max_attempts)
	{
		park(consumer, message, queued->attempts + (*counted ? 1 : 0), &failure);
		ereport(WARNING,
				(errmsg("message %llu of stream \"%s\" can't be handled and is parked", (unsigned long long) queued->sequence, consumer->stream),
				 errdetail("%s", failure.text),
				 errhint("See outbox.parked_messages.")));
		return PARKED;
	}
	record_failure(consumer, queued->sequence, *counted, failure.text);
	return FAILED;
}

/* ----------------------------------------------------------------- a batch */

static int64
retry_delay(int failures)
{
	return Min((int64) outbox_retry_base_delay << Min(Max(failures - 1, 0), 20), (int64) outbox_retry_max_delay) * 1000;
}

/* After the commit: what memory makes of a message. */
static void
settle(Consumer *consumer, const Handled *item, int64 now)
{
	QueuedMessage *queued = item->message;
	pg_atomic_uint64 *const counters[] = {
		&consumer->self->applied, &consumer->self->duplicates, &consumer->self->failures, &consumer->self->parked};
	sigset_t	all;
	sigset_t	saved;

	pg_atomic_fetch_add_u64(counters[item->result], 1);
	if (item->result == FAILED)
	{
		queued->provisional = false;
		queued->attempts += item->counted ? 1 : 0;
		queued->not_before = now + retry_delay(Max(queued->attempts, 1));
		return;
	}
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &saved);
	broker_consume_finish(consumer->connection, queued->message);
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	consumer_queue_done(&consumer->queue, queued);
}

/* Handles up to max messages in one transaction; returns their number. */
static int
apply(Consumer *consumer, Handled *items, int max, bool counted_before, int64 now)
{
	int64		next;
	int			count = 0;
	QueuedMessage *queued;

	leave_if_gone(begin(consumer) && lock_subscription(consumer));
	while (count < max && (queued = consumer_queue_next(&consumer->queue, now, &next)) != NULL)
	{
		Handled	   *item = &items[count];

		item->message = queued;
		item->result = handle(consumer, queued, max == 1, counted_before, &item->counted);
		count++;
		if (item->result == FAILED)
			queued->not_before = PG_INT64_MAX;	/* not in this transaction again */
		else
			consumer_queue_assume_done(queued);
		if (outbox_clock_now() - now > BATCH_US)
			break;
		CHECK_FOR_INTERRUPTS();
	}
	record_position(consumer);
	OUTBOX_TEST_POINT("consumer-applied");
	commit();
	return count;
}

/* The transaction has failed as a whole. */
static void
note_failed_transaction(Consumer *consumer, int max, QueuedMessage *first, const Failure *failure, int64 now)
{
	ereport(LOG,
			(errmsg("outbox consumer \"%s\" could not commit: %s", consumer->name, failure->text)));
	outbox_consumer_say(consumer, failure->text);
	consumer_queue_forget_assumptions(&consumer->queue);
	for (QueuedMessage *at = consumer->queue.head; at != NULL; at = at->next)
	{
		if (at->not_before == PG_INT64_MAX)
			at->not_before = now;
	}
	if (max > 1)
	{
		consumer->singly = max;
		return;
	}
	leave_if_gone(begin(consumer));
	record_failure(consumer, first->sequence, failure->counted, failure->text);
	commit();
	first->attempts += failure->counted ? 1 : 0;
	first->not_before = now + retry_delay(Max(first->attempts, 1));
}

/* Before an attempt on which the process may end. False: it had enough of them, and is parked. */
static bool
announce_attempt(Consumer *consumer, QueuedMessage *queued, int64 now)
{
	static const char text[] = "a process ended while it handled the message";
	Failure		failure = {"57P02", (char *) text, true};
	Handled		item = {queued, PARKED, false};

	leave_if_gone(begin(consumer) && lock_subscription(consumer));
	if (queued->attempts < consumer->max_attempts)
	{
		record_failure(consumer, queued->sequence, true, text);
		ForceSyncCommit();
		commit();
		queued->attempts++;
		return true;
	}
	park(consumer, outbox_consumer_message(consumer, queued), queued->attempts, &failure);
	consumer_queue_assume_done(queued);
	record_position(consumer);
	commit();
	settle(consumer, &item, now);
	return false;
}

bool
outbox_consumer_apply(Consumer *consumer, int64 now, int64 *next)
{
	QueuedMessage *first = consumer_queue_next(&consumer->queue, now, next);
	MemoryContext context = CurrentMemoryContext;
	bool		careful;
	int			max;
	Handled	   *items;
	volatile int count = -1;
	Failure		failure = {0};

	if (first == NULL)
		return false;
	careful = first->sequence <= consumer->careful_up_to;
	max = careful || consumer->singly > 0 ? 1 : consumer->batch_size;
	if (careful && !announce_attempt(consumer, first, now))
		return true;
	items = MemoryContextAlloc(context, max * sizeof(Handled));
	PG_TRY();
	{
		count = apply(consumer, items, max, careful, now);
	}
	PG_CATCH();
	{
		failure = take_error(context);
		AbortCurrentTransaction();
	}
	PG_END_TRY();
	MemoryContextSwitchTo(context);
	if (count < 0)
		note_failed_transaction(consumer, max, first, &failure, now);
	for (int i = 0; i < count; i++)
		settle(consumer, &items[i], outbox_clock_now());
	if (max == 1 && consumer->singly > 0)
		consumer->singly--;
	return true;
}

/* --------------------------------------------------------- parked messages */

static void
finish_parked(int64 id, Outcome result, const Failure *failure)
{
	static SPIPlanPtr delete_plan = NULL;
	static SPIPlanPtr update_plan = NULL;
	Oid			types[3] = {INT8OID, TEXTOID, TEXTOID};
	Datum		values[3] = {Int64GetDatum(id), (Datum) 0, (Datum) 0};

	if (result == APPLIED)
	{
		run_own(&delete_plan, "DELETE FROM outbox.parked_message WHERE id = $1", 1, types, values);
		return;
	}
	values[1] = CStringGetTextDatum(failure->code);
	values[2] = CStringGetTextDatum(failure->text);
	run_own(&update_plan, "UPDATE outbox.parked_message SET retry = false, attempts = attempts + 1, error_code = $2, last_error = $3"
						  " WHERE id = $1",
			3, types, values);
}

bool
outbox_consumer_retry_parked(Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			type = INT4OID;
	Datum		value = Int32GetDatum(consumer->id);
	bool		isnull;
	bool		found;

	leave_if_gone(begin(consumer));
	run_own(&plan, "SELECT p.id, p.message FROM outbox.parked_message p WHERE p.subscription = $1 AND p.retry ORDER BY p.id LIMIT 1 FOR UPDATE",
			1, &type, &value);
	found = SPI_processed > 0;
	if (found)
	{
		int64		id = DatumGetInt64(column(0, 1, &isnull));
		Datum		message = datumCopy(column(0, 2, &isnull), false, -1);
		Failure		failure = {0};
		Outcome		result = try_message(consumer, message, false, true, &failure);

		finish_parked(id, result, &failure);
		pg_atomic_fetch_add_u64(result == APPLIED ? &consumer->self->applied : &consumer->self->failures, 1);
	}
	commit();
	return found;
}

/* ------------------------------------------------------------------- loading */

static void
load_attempts(const Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			type = INT4OID;
	Datum		value = Int32GetDatum(consumer->id);
	bool		isnull;

	run_own(&plan, "SELECT f.stream_sequence, f.attempts FROM outbox.subscription_failure f WHERE f.subscription = $1", 1, &type, &value);
	if (attempts != NULL)
		pfree(attempts);
	attempts_count = (int) SPI_processed;
	attempts = MemoryContextAlloc(TopMemoryContext, (attempts_count + 1) * sizeof(Attempts));
	for (int i = 0; i < attempts_count; i++)
	{
		attempts[i].sequence = (uint64) DatumGetInt64(column(i, 1, &isnull));
		attempts[i].attempts = DatumGetInt32(column(i, 2, &isnull));
	}
}

int
outbox_consumer_attempts(const Consumer *consumer, uint64 sequence)
{
	for (int i = 0; i < attempts_count; i++)
	{
		if (attempts[i].sequence == sequence)
			return attempts[i].attempts;
	}
	return 0;
}

/* The session's own choice of speed must not cost what was acknowledged. */
static void
want_durable_commits(void)
{
	if (synchronous_commit == SYNCHRONOUS_COMMIT_OFF)
		SetConfigOption("synchronous_commit", "local", PGC_USERSET, PGC_S_SESSION);
}

static void
read_subscription(Consumer *consumer)
{
	bool		isnull;

	consumer->stream = text_column(1);
	consumer->durable = text_column(2);
	consumer->subject = text_column(3);
	consumer->handler = text_column(4);
	consumer->name = text_column(5);
	consumer->from_now = DatumGetBool(column(0, 6, &isnull));
	consumer->ordered = DatumGetBool(column(0, 7, &isnull));
	consumer->max_attempts = DatumGetInt32(column(0, 8, &isnull));
	consumer->ack_wait_ms = DatumGetInt32(column(0, 9, &isnull));
	consumer->batch_size = DatumGetInt32(column(0, 10, &isnull));
	consumer->message_type = DatumGetObjectId(column(0, 11, &isnull));
}

bool
outbox_consumer_load(Consumer *consumer, BrokerConsumeConfig *config)
{
	static SPIPlanPtr row_plan = NULL;
	static SPIPlanPtr position_plan = NULL;
	Oid			types[2] = {INT4OID, INT4OID};
	Datum		values[2] = {Int32GetDatum(consumer->id), Int32GetDatum(consumer->revision)};
	bool		isnull;

	want_durable_commits();
	if (!begin(consumer))
		return false;
	run_own(&row_plan, "SELECT s.stream, s.durable, s.subject, s.handler, s.stream || '/' || s.durable, s.from_now, s.ordered, s.max_attempts,"
					   " (pg_catalog.extract('epoch', s.ack_wait) * 1000)::integer, s.batch_size, 'outbox.message'::pg_catalog.regtype::oid"
					   " FROM outbox.subscription s WHERE s.id = $1 AND s.revision = $2 AND NOT s.paused",
			2, types, values);
	if (SPI_processed == 0)
	{
		commit();
		return false;
	}
	if (consumer->name == NULL)
		read_subscription(consumer);
	run_own(&position_plan, "SELECT p.stream_created_ns, p.stream_sequence FROM outbox.subscription_position p WHERE p.subscription = $1",
			1, types, values);
	config->has_position = SPI_processed > 0;
	if (config->has_position)
	{
		config->stream_created_ns = DatumGetInt64(column(0, 1, &isnull));
		config->position = (uint64) DatumGetInt64(column(0, 2, &isnull));
	}
	load_attempts(consumer);
	commit();
	config->durable = consumer->durable;
	config->filter = consumer->subject;
	config->start_new = consumer->from_now;
	config->ack_wait_ms = consumer->ack_wait_ms;
	return true;
}
