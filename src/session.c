/*
 * session.c
 *	  A relay outside the server, in any language and for any broker: its
 *	  session is a member of the database like a relay process, with the same
 *	  slots and leases, and reads by the same code; the client does the
 *	  publishing.
 *
 *	  outbox.claim()	heads of its aggregates, which are the session's until
 *	  outbox.settle()	they are published,
 *	  outbox.fail()		or have failed
 *	  outbox.renew()	keeps the lease
 *	  outbox.release()	gives everything back; so does the session's end
 *
 * What they record takes part in the caller's transaction. What follows from it
 * in memory is done at the next call after the commit, because a commit
 * callback must not fail; after an abort everything is read afresh, and what
 * was claimed and not settled is given out again.
 */
#include "session.h"

#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "feed.h"

typedef enum Work
{
	WORK_NONE,					/* memory and tables agree */
	WORK_OPEN,					/* the current transaction has recorded something, or given events out */
	WORK_COMMITTED,				/* what it recorded is to be acted upon */
	WORK_ABORTED /* memory knows more than the tables */
} Work;

/* An event that was given out and is neither settled nor failed. */
typedef struct Given
{
	int64		position;		/* hash key */
	OutboxEvent *event;
} Given;

static OutboxRelay *session = NULL; /* NULL: no member */
static HTAB *given = NULL;
static Work work = WORK_NONE;

/* ------------------------------------------------------------- transactions */

/* Registered once per backend, in _PG_init of a preloaded library. */
void
outbox_session_xact_callback(XactEvent event, void *arg)
{
	if (work != WORK_OPEN)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			work = WORK_COMMITTED;
			break;
		case XACT_EVENT_ABORT:
			work = WORK_ABORTED;
			break;
		case XACT_EVENT_PRE_PREPARE:
			ereport(ERROR,
					(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
					 errmsg("cannot PREPARE a transaction that has claimed or settled outbox events")));
			break;
		default:
			break;
	}
}

/* A part of it is lost: which one, nobody notes. */
void
outbox_session_subxact_callback(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg)
{
	if (event == SUBXACT_EVENT_ABORT_SUB && work == WORK_OPEN)
		work = WORK_ABORTED;
}

/* -------------------------------------------------------------- membership */

static void
forget_given(void)
{
	HASH_SEQ_STATUS all;
	Given	   *entry;

	hash_seq_init(&all, given);
	while ((entry = hash_seq_search(&all)) != NULL)
		(void) hash_search(given, &entry->position, HASH_REMOVE, NULL);
}

/* Also before_shmem_exit: others take over at once. */
static void
leave(int code, Datum arg)
{
	if (session == NULL)
		return;
	outbox_ownership_leave(&session->member);
	LWLockAcquire(&session->database->status_lock, LW_EXCLUSIVE);
	session->self->status.state = OUTBOX_RELAY_STOPPED;
	session->self->status.since = GetCurrentTimestamp();
	LWLockRelease(&session->database->status_lock);
	pg_atomic_write_u64(&session->self->in_flight, 0);
	pg_atomic_write_u64(&session->self->known_pending, 0);
	pg_atomic_write_u64(&session->self->oldest_pending, 0);
	pg_atomic_write_u64(&session->self->late_since, 0);
	outbox_store_unload(session);
	session = NULL;
	work = WORK_NONE;
	forget_given();
}

static void
set_up_memory(OutboxRelay *relay)
{
	static bool	registered = false;
	HASHCTL		info = {.keysize = sizeof(int64), .entrysize = sizeof(Given), .hcxt = TopMemoryContext};

	if (given == NULL)
		given = hash_create("outbox events given out", 256, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	if (!registered)
		before_shmem_exit(leave, (Datum) 0);
	registered = true;
	relay->session = true;
	relay->loop_context = TopMemoryContext;
}

static void
show(const OutboxRelay *relay)
{
	OutboxRelayStatus *status = &relay->self->status;

	LWLockAcquire(&relay->database->status_lock, LW_EXCLUSIVE);
	status->state = OUTBOX_RELAY_ACTIVE;
	status->since = GetCurrentTimestamp();
	strlcpy(status->server, application_name, sizeof(status->server));
	status->stream[0] = '\0';
	status->last_error[0] = '\0';
	LWLockRelease(&relay->database->status_lock);
}

/* Takes a place for relays outside the server. */
static void
join(OutboxDatabase *database, Oid sequence)
{
	static OutboxRelay *memory = NULL;
	bool		joined = false;

	if (memory == NULL)
		memory = MemoryContextAlloc(TopMemoryContext, sizeof(OutboxRelay));
	memset(memory, 0, sizeof(OutboxRelay));
	set_up_memory(memory);
	memory->database = database;
	memory->sequence = sequence;
	memory->leave_calls = pg_atomic_read_u32(&database->leave_calls);
	memory->careful = pg_atomic_exchange_u32(&database->careful, 0) != 0;
	for (int place = OUTBOX_SERVER_RELAYS; place < OUTBOX_MAX_RELAYS && !joined; place++)
	{
		memory->self = &database->places[place];
		joined = outbox_ownership_join(&memory->member, database, place, MyProcPid);
	}
	if (!joined)
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("too many sessions claim outbox events in this database"),
				 errdetail("There are places for %d.", OUTBOX_MAX_RELAYS - OUTBOX_SERVER_RELAYS)));
	session = memory;
	show(session);
	outbox_membership_change(session);
}

/* Nothing of what memory knows holds: reads everything afresh. */
static void
start_over(void)
{
	outbox_ownership_clear_claims(session->database, session->member.place);
	forget_given();
	session->acked_count = session->acked_recorded = 0;
	session->failure_count = session->failures_recorded = 0;
	session->request_count = 0;
	session->careful |= pg_atomic_exchange_u32(&session->database->careful, 0) != 0;
	outbox_membership_change(session);
}

/* Lets memory follow what became of the last transaction with work. */
static void
catch_up(void)
{
	switch (work)
	{
		case WORK_COMMITTED:
			outbox_store_enact(session);
			outbox_store_enact_requests(session);
			if (session->watermark_written > 0)
				outbox_ownership_note_watermark(session->database, session->watermark_written);
			break;
		case WORK_ABORTED:
			start_over();
			break;
		default:
			break;
	}
}

static void
check_transaction(void)
{
	outbox_shmem_require();
	if (XactReadOnly || RecoveryInProgress())
		ereport(ERROR,
				(errcode(ERRCODE_READ_ONLY_SQL_TRANSACTION),
				 errmsg("cannot claim outbox events in a read-only transaction")));
	if (IsolationUsesXactSnapshot())
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("outbox events can only be claimed at isolation level READ COMMITTED"),
				 errdetail("Another level keeps one snapshot, which would hide events that are due.")));
	if (outbox_feed_has_enqueued())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot claim outbox events in a transaction that has enqueued some"),
				 errhint("Use transactions of their own for both.")));
}

/* Every function comes through here: a member whose memory is up to date and whose lease has begun anew. */
OutboxRelay *
outbox_session_ready(bool may_join)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	OutboxDatabase *database;

	check_transaction();
	database = outbox_database_attach(catalog);
	/* Sent away, or the extension is another one: so is all it knew. */
	if (session != NULL && (session->sequence != catalog->sequence || session->database != database || pg_atomic_read_u32(&database->leave_calls) != session->leave_calls || !outbox_ownership_is_valid(&session->member)))
	{
		bool		had_events = hash_get_num_entries(given) > 0;

		leave(0, (Datum) 0);
		if (had_events || !may_join)
		{
			OutboxRelay	lost = {.session = true};

			outbox_relay_leave(&lost, "the lease ran out, or relays were sent away");
		}
	}
	if (session == NULL)
	{
		if (!may_join)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("this session has claimed no outbox events"),
					 errhint("Call outbox.claim() first.")));
		join(database, catalog->sequence);
	}
	outbox_membership_renew(session);
	catch_up();
	work = WORK_OPEN;
	return session;
}

/* Gives everything back. Not in a transaction that has claimed or settled something. */
void
outbox_session_end(void)
{
	if (session == NULL)
		return;
	if (work == WORK_OPEN)
		ereport(ERROR,
				(errcode(ERRCODE_ACTIVE_SQL_TRANSACTION),
				 errmsg("cannot release outbox events in a transaction that has claimed or settled some"),
				 errhint("Commit first.")));
	catch_up();
	leave(0, (Datum) 0);
}

/* ------------------------------------------------------- events given out */

void
outbox_session_give(OutboxEvent *event)
{
	Given	   *entry = hash_search(given, &event->schedule.position, HASH_ENTER, NULL);

	entry->event = event;
}

/* The event, no longer given out; NULL: it wasn't. */
OutboxEvent *
outbox_session_take_back(int64 position)
{
	Given	   *entry = hash_search(given, &position, HASH_FIND, NULL);
	OutboxEvent *event;

	if (entry == NULL)
		return NULL;
	event = entry->event;
	(void) hash_search(given, &position, HASH_REMOVE, NULL);
	return event;
}
