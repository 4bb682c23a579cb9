/*
 * give_way.c
 *	  Sends a database's relays, consumers, cleaner and replays away: before a
 *	  command that wants the database for itself alone, or that changes the
 *	  extension, because our processes must not be what it stumbles over; and after
 *	  ALTER DATABASE ... SET, because a process reads such settings once, at its
 *	  start.
 *
 * A process that starts announces itself in shared memory and then asks
 * outbox_give_way_is_due(), or reads leave_calls, then asks, and looks at
 * leave_calls from then on; a command sets no_relay_before, raises leave_calls and
 * then looks who is there. So none slips through.
 */
#include "give_way.h"

#include <signal.h>

#include "catalog/pg_database.h"
#include "catalog/pg_extension.h"
#include "commands/dbcommands.h"
#include "commands/defrem.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lmgr.h"
#include "utils/acl.h"

#include "database.h"

/* How long relays stay away, should nobody call them back. */
#define STAY_AWAY_US INT64CONST(10000000)
#define WAIT_FOR_LEAVE_MS 5000

/* Whether a command wants the database's processes to stay away. For those that start. */
bool
outbox_give_way_is_due(OutboxDatabase *database)
{
	TimestampTz	before;

	LWLockAcquire(&outbox_shared->lock, LW_SHARED);
	before = database->no_relay_before;
	LWLockRelease(&outbox_shared->lock);
	return GetCurrentTimestamp() < before;
}

/* Adds a process to the list, unless it is this one, which may be a handler's. signal: 0, or what it is to get. */
static void
add_process(StringInfo list, const char *name, pg_atomic_uint32 *pid, int signal)
{
	pid_t		process = pg_atomic_read_u32(pid);

	if (process == 0 || process == MyProcPid)
		return;
	if (signal != 0)
		(void) kill(process, signal);
	appendStringInfo(list, "%s%s %d", list->len > 0 ? ", " : "", name, (int) process);
}

/* The processes that are still there. Relays go by themselves, the others may be stopped anywhere. */
static void
tell_processes(OutboxDatabase *database, StringInfo list)
{
	resetStringInfo(list);
	for (int i = 0; i < OUTBOX_SERVER_RELAYS; i++)
		add_process(list, "relay", &database->places[i].pid, 0);
	add_process(list, "cleaner", &database->cleaner_pid, SIGTERM);
	for (int i = 0; i < OUTBOX_MAX_REPLAYERS; i++)
		add_process(list, "replay", &database->replayers[i].pid, SIGTERM);
	for (int i = 0; i < OUTBOX_SUBSCRIPTIONS; i++)
		add_process(list, "consumer", &database->subscriptions[i].pid, SIGTERM);
}

/* Asks a database's processes to go, without waiting for it; lists them. */
static void
dismiss(OutboxDatabase *database, StringInfo list)
{
	pg_atomic_fetch_add_u32(&database->leave_calls, 1);
	outbox_shmem_wake_relays(database);
	tell_processes(database, list);
}

/* The launcher: it isn't served any more. */
void
outbox_give_way_dismiss(OutboxDatabase *database)
{
	StringInfoData list;

	initStringInfo(&list);
	dismiss(database, &list);
	pfree(list.data);
}

/* Asks a database's processes to go, and waits until they have. */
static void
send_away(Oid dboid)
{
	OutboxDatabase *database = outbox_shmem_find(dboid);
	StringInfoData list;

	if (database == NULL)
		return;
	LWLockAcquire(&outbox_shared->lock, LW_EXCLUSIVE);
	if (database->dboid == dboid)
		database->no_relay_before = GetCurrentTimestamp() + STAY_AWAY_US;
	LWLockRelease(&outbox_shared->lock);
	initStringInfo(&list);
	dismiss(database, &list);
	for (int ms = 0; ms < WAIT_FOR_LEAVE_MS && list.len > 0; ms += 10)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(10 * 1000);
		tell_processes(database, &list);
	}
	if (list.len == 0)
		return;
	ereport(WARNING,
			(errmsg("processes of the extension \"%s\" don't leave the database", OUTBOX_EXTENSION),
			 errdetail("Still there, by process number: %s.", list.data),
			 errhint("They may be stopped or stuck. With \"outbox.workers = 0\" no new relay starts.")));
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
 * TABLESPACE, CREATE ... TEMPLATE. InvalidOid: none, or the user may not, or it is
 * this one, which is refused anyway.
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
	if (!OidIsValid(dboid) || dboid == MyDatabaseId || !outbox_owns_database(dboid, GetUserId()))
		return InvalidOid;
	return dboid;
}

static bool
names_us(List *names)
{
	ListCell   *cell;

	foreach(cell, names)
	{
		if (strcmp(strVal(lfirst(cell)), OUTBOX_EXTENSION) == 0)
			return true;
	}
	return false;
}

/*
 * Whether a command drops or updates the extension, and the user may. It locks all
 * of its tables, and a handler may take its time.
 */
static bool
changes_extension(Node *statement)
{
	bool		changes = false;
	Oid			extension;

	/* The schema has the same name. */
	if (IsA(statement, DropStmt))
	{
		DropStmt   *drop = (DropStmt *) statement;

		changes = (drop->removeType == OBJECT_EXTENSION || (drop->removeType == OBJECT_SCHEMA && drop->behavior == DROP_CASCADE)) &&
			names_us(drop->objects);
	}
	else if (IsA(statement, AlterExtensionStmt))
		changes = strcmp(((AlterExtensionStmt *) statement)->extname, OUTBOX_EXTENSION) == 0;
	if (!changes || !IsTransactionState())
		return false;
	extension = get_extension_oid(OUTBOX_EXTENSION, true);
	return OidIsValid(extension) && outbox_owns_extension(extension, GetUserId());
}

/* Before the command locks one of our objects after the other, in an order that isn't that of those who write. */
static void
lock_out_writers(void)
{
	const OutboxCatalog *catalog = outbox_database_catalog(true);

	if (catalog != NULL)
		LockRelationOid(catalog->sequence, AccessExclusiveLock);
}

/*
 * Before a utility command. Returns the database whose processes were sent
 * away, for outbox_give_way_after().
 */
Oid
outbox_give_way_before(Node *statement)
{
	Oid			dboid = changes_extension(statement) ? MyDatabaseId : database_wanted(statement);

	if (OidIsValid(dboid))
		send_away(dboid);
	if (dboid == MyDatabaseId)
		lock_out_writers();
	return dboid;
}

/* The command has ended: they may come back. What it has locked they wait for. */
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

/* It has changed which databases are served. */
static bool others_served = false;

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

	if (IsA(statement, AlterDatabaseStmt))
	{
		List	   *options = ((AlterDatabaseStmt *) statement)->options;

		others_served = others_served || string_option(options, "allow_connections") != NULL || string_option(options, "is_template") != NULL;
	}
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
	if (!any_altered && !others_served)
		return;
	switch (event)
	{
		case XACT_EVENT_COMMIT:
			if (any_altered)
				restart_relays();
			if (others_served)
				outbox_shmem_wake_launcher();
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			any_altered = others_served = false;
			break;
		default:
			break;
	}
}
