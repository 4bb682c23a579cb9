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
 */
#include "consumer_store.h"

#include <signal.h>

#include "access/xact.h"
#include "catalog/pg_type.h"
#include "executor/executor.h"
#include "executor/spi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/resowner.h"
#include "utils/timeout.h"

#include "clock.h"
#include "signals.h"

/* A transaction takes no more messages after this time. */
#define BATCH_US INT64CONST(250000)

typedef enum Outcome
{
	APPLIED,
	DUPLICATE,
	FAILED,
	PARKED,
	SCHEDULED					/* no event yet: the stream delivers it in its time */
} Outcome;

typedef struct Handled
{
	QueuedMessage *message;
	Outcome		result;
	bool		counted;		/* FAILED: it used up an attempt */
} Handled;

static SPIPlanPtr handler_plan = NULL;

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

	outbox_consumer_run_own(&plan, "SELECT outbox.handler_is_usable($1, $2)", 2, types, values);
	return DatumGetBool(outbox_consumer_column(0, 1, &isnull));
}

/* The current error, taken over; context: where its text shall live. */
static OutboxConsumerFailure
take_error(MemoryContext context)
{
	OutboxConsumerFailure failure;
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
try_message(const Consumer *consumer, Datum message, bool with_inbox, bool checked, OutboxConsumerFailure *failure)
{
	MemoryContext context = CurrentMemoryContext;
	ResourceOwner owner = CurrentResourceOwner;
	volatile Outcome result = FAILED;
	int			settings = NewGUCNestLevel();

	BeginInternalSubTransaction(NULL);
	MemoryContextSwitchTo(context);
	PG_TRY();
	{
		if (with_inbox && !outbox_consumer_accept(consumer, event_id_of(message)))
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
	Datum		message;
	OutboxConsumerFailure failure = {0};
	Outcome		result;

	*counted = false;
	if (outbox_consumer_header(queued->message, "Nats-Schedule") != NULL)
		return SCHEDULED;
	message = outbox_consumer_message(consumer, queued);
	result = try_message(consumer, message, true, alone, &failure);
	if (result != FAILED)
	{
		if (queued->attempts > 0)
			outbox_consumer_record_recovery(consumer, queued->sequence);
		return result;
	}
	outbox_consumer_say(consumer, failure.text);
	*counted = failure.counted && !counted_before;
	if (failure.counted && queued->attempts + (*counted ? 1 : 0) >= consumer->max_attempts)
	{
		outbox_consumer_park(consumer, message, queued->attempts + (*counted ? 1 : 0), &failure);
		ereport(WARNING,
				(errmsg("message %llu of stream \"%s\" can't be handled and is parked", (unsigned long long) queued->sequence, consumer->stream),
				 errdetail("%s", failure.text),
				 errhint("See outbox.parked_messages. See docs/failures.md, \"Message parked\".")));
		return PARKED;
	}
	outbox_consumer_record_failure(consumer, queued->sequence, *counted, failure.text);
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
	sigset_t	saved;

	if (item->result != SCHEDULED)
		pg_atomic_fetch_add_u64(counters[item->result], 1);
	if (item->result == FAILED)
	{
		queued->provisional = false;
		queued->attempts += item->counted ? 1 : 0;
		queued->not_before = now + retry_delay(Max(queued->attempts, 1));
		return;
	}
	outbox_signals_block(&saved);
	broker_consume_finish(consumer->connection, queued->message);
	outbox_signals_restore(&saved);
	consumer_queue_done(&consumer->queue, queued);
}

/* Handles up to max messages in one transaction; returns their number. */
static int
apply(Consumer *consumer, Handled *items, int max, bool counted_before, int64 now)
{
	int64		next;
	int			count = 0;
	QueuedMessage *queued;

	outbox_consumer_leave_if_gone(outbox_consumer_begin(consumer) && outbox_consumer_lock(consumer));
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
	outbox_consumer_record_position(consumer);
	OUTBOX_TEST_POINT("consumer-applied");
	outbox_consumer_commit();
	return count;
}

/* The transaction has failed as a whole. */
static void
note_failed_transaction(Consumer *consumer, int max, QueuedMessage *first, const OutboxConsumerFailure *failure, int64 now)
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
	outbox_consumer_leave_if_gone(outbox_consumer_begin(consumer));
	outbox_consumer_record_failure(consumer, first->sequence, failure->counted, failure->text);
	outbox_consumer_commit();
	first->attempts += failure->counted ? 1 : 0;
	first->not_before = now + retry_delay(Max(first->attempts, 1));
}

/* Before an attempt on which the process may end. False: it had enough of them, and is parked. */
static bool
announce_attempt(Consumer *consumer, QueuedMessage *queued, int64 now)
{
	static const char text[] = "a process ended while it handled the message";
	OutboxConsumerFailure failure = {"57P02", (char *) text, true};
	Handled		item = {queued, PARKED, false};

	outbox_consumer_leave_if_gone(outbox_consumer_begin(consumer) && outbox_consumer_lock(consumer));
	if (queued->attempts < consumer->max_attempts)
	{
		outbox_consumer_record_failure(consumer, queued->sequence, true, text);
		ForceSyncCommit();
		outbox_consumer_commit();
		queued->attempts++;
		return true;
	}
	outbox_consumer_park(consumer, outbox_consumer_message(consumer, queued), queued->attempts, &failure);
	consumer_queue_assume_done(queued);
	outbox_consumer_record_position(consumer);
	outbox_consumer_commit();
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
	OutboxConsumerFailure failure = {0};

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
finish_parked(int64 id, Outcome result, const OutboxConsumerFailure *failure)
{
	static SPIPlanPtr delete_plan = NULL;
	static SPIPlanPtr update_plan = NULL;
	Oid			types[3] = {INT8OID, TEXTOID, TEXTOID};
	Datum		values[3] = {Int64GetDatum(id), (Datum) 0, (Datum) 0};

	if (result == APPLIED)
	{
		outbox_consumer_run_own(&delete_plan, "DELETE FROM outbox.parked_message WHERE id = $1", 1, types, values);
		return;
	}
	values[1] = CStringGetTextDatum(failure->code);
	values[2] = CStringGetTextDatum(failure->text);
	outbox_consumer_run_own(&update_plan, "UPDATE outbox.parked_message SET retry = false, attempts = attempts + 1, error_code = $2, last_error = $3"
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

	outbox_consumer_leave_if_gone(outbox_consumer_begin(consumer));
	outbox_consumer_run_own(&plan, "SELECT p.id, p.message FROM outbox.parked_message p WHERE p.subscription = $1 AND p.retry ORDER BY p.id LIMIT 1 FOR UPDATE",
							1, &type, &value);
	found = SPI_processed > 0;
	if (found)
	{
		int64		id = DatumGetInt64(outbox_consumer_column(0, 1, &isnull));
		Datum		message = datumCopy(outbox_consumer_column(0, 2, &isnull), false, -1);
		OutboxConsumerFailure failure = {0};
		Outcome		result = try_message(consumer, message, false, true, &failure);

		finish_parked(id, result, &failure);
		pg_atomic_fetch_add_u64(result == APPLIED ? &consumer->self->applied : &consumer->self->failures, 1);
	}
	outbox_consumer_commit();
	return found;
}
