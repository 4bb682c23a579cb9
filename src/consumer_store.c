/*
 * consumer_store.c
 *	  A consumer's transactions and its own statements.
 *
 * The process is a session of the handler's role. Statements of our own run as
 * the superuser, call functions by their full names and see no search_path but
 * pg_catalog.
 */
#include "consumer_store.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/ipc.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "database.h"

/* Attempts that failed, of messages behind the position; read when a connection begins. */
typedef struct Attempts
{
	uint64		sequence;
	int			attempts;
} Attempts;

static Attempts *attempts = NULL;
static int attempts_count = 0;

/* ------------------------------------------------------------ transactions */

/* False: the extension is gone, or another one by now. */
bool
outbox_consumer_begin(const Consumer *consumer)
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

void
outbox_consumer_commit(void)
{
	PopActiveSnapshot();
	SPI_finish();
	CommitTransactionCommand();
	(void) pgstat_report_stat(true);
	pgstat_report_activity(STATE_IDLE, NULL);
}

void
outbox_consumer_leave_if_gone(bool here)
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
void
outbox_consumer_run_own(SPIPlanPtr *plan, const char *query, int count, Oid *types, Datum *values)
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

Datum
outbox_consumer_column(int row, int number, bool *isnull)
{
	return SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, number, isnull);
}

/* A copy in TopMemoryContext. */
static char *
text_column(int number)
{
	bool		isnull;
	char	   *value = TextDatumGetCString(outbox_consumer_column(0, number, &isnull));

	return MemoryContextStrdup(TopMemoryContext, value);
}

/* True: new for this subscription. */
bool
outbox_consumer_accept(const Consumer *consumer, Datum event_id)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {TEXTOID, UUIDOID};
	Datum		values[2] = {CStringGetTextDatum(consumer->name), event_id};
	bool		isnull;

	outbox_consumer_run_own(&plan, "SELECT outbox.inbox_accept($1, $2)", 2, types, values);
	return DatumGetBool(outbox_consumer_column(0, 1, &isnull));
}

void
outbox_consumer_record_position(const Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[3] = {INT4OID, INT8OID, INT8OID};
	Datum		values[3] = {Int32GetDatum(consumer->id), Int64GetDatum(consumer->stream_created_ns),
					   Int64GetDatum((int64) consumer_queue_assumed_floor(&consumer->queue))};

	outbox_consumer_run_own(&plan, "SELECT outbox.consumer_position($1, $2, $3)", 3, types, values);
}

void
outbox_consumer_record_start(const Consumer *consumer)
{
	outbox_consumer_leave_if_gone(outbox_consumer_begin(consumer) && outbox_consumer_lock(consumer));
	outbox_consumer_record_position(consumer);
	outbox_consumer_commit();
}

void
outbox_consumer_record_failure(const Consumer *consumer, uint64 sequence, bool counted, const char *text)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[4] = {INT4OID, INT8OID, BOOLOID, TEXTOID};
	Datum		values[4] = {Int32GetDatum(consumer->id), Int64GetDatum((int64) sequence), BoolGetDatum(counted),
					   CStringGetTextDatum(text)};

	outbox_consumer_run_own(&plan, "SELECT outbox.consumer_failed($1, $2, $3, $4)", 4, types, values);
}

void
outbox_consumer_record_recovery(const Consumer *consumer, uint64 sequence)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {INT4OID, INT8OID};
	Datum		values[2] = {Int32GetDatum(consumer->id), Int64GetDatum((int64) sequence)};

	outbox_consumer_run_own(&plan, "SELECT outbox.consumer_recovered($1, $2)", 2, types, values);
}

void
outbox_consumer_park(const Consumer *consumer, Datum message, int count, const OutboxConsumerFailure *failure)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[6] = {INT4OID, TEXTOID, consumer->message_type, INT4OID, TEXTOID, TEXTOID};
	Datum		values[6] = {Int32GetDatum(consumer->id), CStringGetTextDatum(consumer->name), message, Int32GetDatum(count),
					   CStringGetTextDatum(failure->code), CStringGetTextDatum(failure->text)};

	outbox_consumer_run_own(&plan, "SELECT outbox.consumer_park($1, $2, $3, $4, $5, $6)", 6, types, values);
}

/*
 * Keeps the subscription's row from being changed until the end of the
 * transaction. False: it is gone, or says something else by now.
 */
bool
outbox_consumer_lock(const Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			types[2] = {INT4OID, INT4OID};
	Datum		values[2] = {Int32GetDatum(consumer->id), Int32GetDatum(consumer->revision)};

	outbox_consumer_run_own(&plan, "SELECT FROM outbox.subscription s WHERE s.id = $1 AND s.revision = $2 AND NOT s.paused FOR SHARE", 2, types, values);
	return SPI_processed > 0;
}

/* ------------------------------------------------------------------- loading */

static void
load_attempts(const Consumer *consumer)
{
	static SPIPlanPtr plan = NULL;
	Oid			type = INT4OID;
	Datum		value = Int32GetDatum(consumer->id);
	bool		isnull;

	outbox_consumer_run_own(&plan, "SELECT f.stream_sequence, f.attempts FROM outbox.subscription_failure f WHERE f.subscription = $1", 1, &type, &value);
	if (attempts != NULL)
		pfree(attempts);
	attempts_count = (int) SPI_processed;
	attempts = MemoryContextAlloc(TopMemoryContext, (attempts_count + 1) * sizeof(Attempts));
	for (int i = 0; i < attempts_count; i++)
	{
		attempts[i].sequence = (uint64) DatumGetInt64(outbox_consumer_column(i, 1, &isnull));
		attempts[i].attempts = DatumGetInt32(outbox_consumer_column(i, 2, &isnull));
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
	consumer->ordered = DatumGetBool(outbox_consumer_column(0, 6, &isnull));
	consumer->max_attempts = DatumGetInt32(outbox_consumer_column(0, 7, &isnull));
	consumer->ack_wait_ms = DatumGetInt32(outbox_consumer_column(0, 8, &isnull));
	consumer->batch_size = DatumGetInt32(outbox_consumer_column(0, 9, &isnull));
	consumer->message_type = DatumGetObjectId(outbox_consumer_column(0, 10, &isnull));
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
	if (!outbox_consumer_begin(consumer))
		return false;
	outbox_consumer_run_own(&row_plan, "SELECT s.stream, s.durable, s.subject, s.handler, s.stream || '/' || s.durable, s.ordered, s.max_attempts,"
									   " (pg_catalog.extract('epoch', s.ack_wait) * 1000)::integer, s.batch_size, 'outbox.message'::pg_catalog.regtype::oid,"
									   " (pg_catalog.extract('epoch', pg_catalog.clock_timestamp() - s.from_time) * 1000000)::bigint"
									   " FROM outbox.subscription s WHERE s.id = $1 AND s.revision = $2 AND NOT s.paused",
							2, types, values);
	if (SPI_processed == 0)
	{
		outbox_consumer_commit();
		return false;
	}
	if (consumer->name == NULL)
		read_subscription(consumer);
	config->start_age_us = DatumGetInt64(outbox_consumer_column(0, 11, &isnull));
	config->start_new = !isnull;
	outbox_consumer_run_own(&position_plan, "SELECT p.stream_created_ns, p.stream_sequence FROM outbox.subscription_position p WHERE p.subscription = $1",
							1, types, values);
	config->has_position = SPI_processed > 0;
	if (config->has_position)
	{
		config->stream_created_ns = DatumGetInt64(outbox_consumer_column(0, 1, &isnull));
		config->position = (uint64) DatumGetInt64(outbox_consumer_column(0, 2, &isnull));
	}
	load_attempts(consumer);
	outbox_consumer_commit();
	config->durable = consumer->durable;
	config->filter = consumer->subject;
	config->ack_wait_ms = consumer->ack_wait_ms;
	return true;
}
