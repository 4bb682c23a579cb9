/*
 * give_way.c
 *	  Sends a database's relays away: before a command that wants the database for
 *	  itself alone, because our processes must not be what it stumbles over; and
 *	  after ALTER DATABASE ... SET, because a process reads such settings once, at
 *	  its start.
 */
#include "give_way.h"

#include <signal.h>

#include "catalog/pg_database.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"

/* How long relays stay away, should nobody call them back. */
#define STAY_AWAY_US INT64CONST(10000000)
#define WAIT_FOR_LEAVE_MS 5000

static void
terminate(pg_atomic_uint32 *pid)
{
	pid_t		process = pg_atomic_read_u32(pid);

	if (process != 0)
		(void) kill(process, SIGTERM);
}

/* Asks a database's relays to go, and waits until they have. */
static void
send_relays_away(Oid dboid)
{
	OutboxDatabase *database = outbox_shmem_find(dboid);

	if (database == NULL)
		return;
	LWLockAcquire(&outbox_shared->lock, LW_EXCLUSIVE);
	if (database->dboid == dboid)
		database->no_relay_before = GetCurrentTimestamp() + STAY_AWAY_US;
	LWLockRelease(&outbox_shared->lock);
	pg_atomic_fetch_add_u32(&database->leave_calls, 1);
	outbox_shmem_wake_relays(database);
	outbox_shmem_wake_consumers(database);
	for (int ms = 0; ms < WAIT_FOR_LEAVE_MS && outbox_shmem_has_processes(database); ms += 10)
	{
		CHECK_FOR_INTERRUPTS();
		/* These may be stopped anywhere. */
		terminate(&database->cleaner_pid);
		for (int i = 0; i < OUTBOX_MAX_REPLAYERS; i++)
			terminate(&database->replayers[i].pid);
		for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
			terminate(&database->subscriptions[i].pid);
		pg_usleep(10 * 1000);
	}
}

static const char *
string_option(List *options, const char *name)
{
	ListCell   *cell;

	foreach(cell, options)
	{
		DefElem	   *option = lfirst(cell);

		if (strcmp(option->defname, name) == 0 && option->arg != NULL)
			return defGetString(option);
	}
	return NULL;
}

/*
 * The database that a command wants for itself alone: DROP, RENAME, SET
 * TABLESPACE, CREATE ... TEMPLATE. InvalidOid: none, or the user may not.
 */
static Oid
database_wanted(Node *statement)
{
	const char *name = NULL;
	Oid			dboid;

	if (IsA(statement, DropdbStmt))
		name = ((DropdbStmt *) statement)->dbname;
	else if (IsA(statement, RenameStmt) && ((RenameStmt *) statement)->renameType == OBJECT_DATABASE)
		name = ((RenameStmt *) statement)->subname;
	else if (IsA(statement, AlterDatabaseStmt) &&
			 string_option(((AlterDatabaseStmt *) statement)->options, "tablespace") != NULL)
		name = ((AlterDatabaseStmt *) statement)->dbname;
	else if (IsA(statement, CreatedbStmt))
		name = string_option(((CreatedbStmt *) statement)->options, "template");
	if (name == NULL)
		return InvalidOid;
	dboid = get_database_oid(name, true);
	if (!OidIsValid(dboid) || !outbox_owns_database(dboid, GetUserId()))
		return InvalidOid;
	return dboid;
}

/*
 * Before a utility command. Returns the database whose relays were sent away,
 * for outbox_give_way_after().
 */
Oid
outbox_give_way_before(Node *statement)
{
	Oid			dboid = database_wanted(statement);

	if (!OidIsValid(dboid) || dboid == MyDatabaseId)
		return InvalidOid;
	send_relays_away(dboid);
	return dboid;
}

/* The command has ended: the relays may come back. */
void
outbox_give_way_after(Oid dboid)
{
	OutboxDatabase *database = OidIsValid(dboid) ? outbox_shmem_find(dboid) : NULL;

	if (database == NULL)
		return;
	LWLockAcquire(&outbox_shared->lock, LW_EXCLUSIVE);
	database->no_relay_before = 0;
	LWLockRelease(&outbox_shared->lock);
	outbox_shmem_wake_launcher();
}

/* ---------------------------------------------------------------- settings */

/* The current transaction has changed settings of ours for one_altered, or, if that is invalid, for several. */
static bool any_altered = false;
static Oid	one_altered;

static bool
alters_our_settings(const VariableSetStmt *set)
{
	return set->kind == VAR_RESET_ALL ||
		(set->name != NULL && pg_strncasecmp(set->name, "outbox.", strlen("outbox.")) == 0);
}

/*
 * After a utility command. Its effect is seen by others only at commit, and so
 * is ours.
 */
void
outbox_give_way_note_settings(Node *statement)
{
	AlterDatabaseSetStmt *alter = (AlterDatabaseSetStmt *) statement;
	Oid			dboid;

	if (!IsA(statement, AlterDatabaseSetStmt) || !alters_our_settings(alter->setstmt))
		return;
	dboid = get_database_oid(alter->dbname, true);
	one_altered = !any_altered || one_altered == dboid ? dboid : InvalidOid;
	any_altered = true;
}

/* In a commit callback, so nothing here may fail. */
static void
restart_relays(void)
{
	/* For a relay that has read the old ones and isn't in its place yet. */
	pg_atomic_fetch_add_u32(&outbox_shared->settings_changes, 1);
	LWLockAcquire(&outbox_shared->lock, LW_SHARED);
	for (int i = 0; i < outbox_shared->database_count; i++)
	{
		OutboxDatabase *database = &outbox_shared->databases[i];

		if (!OidIsValid(database->dboid) || (OidIsValid(one_altered) && database->dboid != one_altered))
			continue;
		pg_atomic_fetch_add_u32(&database->leave_calls, 1);
		outbox_shmem_wake_relays(database);
		outbox_shmem_wake_consumers(database);
	}
	LWLockRelease(&outbox_shared->lock);
}

/*
 * Registered once per backend, in _PG_init of a preloaded library. COMMIT
 * PREPARED calls nobody back: relays have what was set so at their next start.
 */
void
outbox_give_way_xact_callback(XactEvent event, void *arg)
{
	if (!any_altered)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			restart_relays();
			any_altered = false;
			break;
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			any_altered = false;
			break;
		default:
			break;
	}
}
