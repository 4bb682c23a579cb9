/*
 * standing.c
 *	  Whether this database's processes may act on the world outside: publish,
 *	  consume, replay, archive and remove.
 *
 * A copy must not: the original does. outbox.identity has a row that says which
 * database of which cluster this is, written by CREATE EXTENSION and by
 * outbox.arm(). The database is armed if that is the only row, and its own:
 *
 *	- a dump carries the row along, so that a restored database has two;
 *	- whatever else fills the log, and doesn't go through enqueue (a restore,
 *	  COPY, a subscription), fires a trigger that adds a row of no database in
 *	  the same transaction, so that no snapshot shows the one without the other;
 *	- a copy by CREATE DATABASE ... TEMPLATE has another oid;
 *	- physical replication and base backups keep oid and cluster: nothing to do;
 *	- pg_upgrade keeps the oid; its new cluster is known by the higher version.
 *
 * The other half is the version of the SQL objects, which the library must know.
 *
 * Processes look at both when they begin, and relays at the row with each
 * snapshot that they read events by. When something may have changed they are
 * all told to leave; the launcher starts new ones, which look again.
 */
#include "standing.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_extension.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "database.h"
#include "writer.h"

PG_FUNCTION_INFO_V1(outbox_not_armed_because);
PG_FUNCTION_INFO_V1(outbox_require_armed);
PG_FUNCTION_INFO_V1(outbox_tell_armed);
PG_FUNCTION_INFO_V1(outbox_log_loaded);

/* The columns of outbox.identity. */
enum
{
	IDENTITY_DATABASE = 1,
	IDENTITY_SYSTEM,
	IDENTITY_MAJOR,
	IDENTITY_ARMED_AT,
	IDENTITY_ARMED_BY,
	IDENTITY_NOTE,
	IDENTITY_COLUMNS = IDENTITY_NOTE
};

static bool own_writes = false;

/* The current transaction */
static bool has_loaded = false; /* has put rows into the log or the ring, other than by enqueue: shared memory is to follow */
static bool has_changed = false;	/* has changed identity or version: all processes are to look */
static bool has_asked = false;	/* and somebody is to be told that, who has asked for it */

/* ---------------------------------------------------------------- identity */

/* What the rows of outbox.identity say together. */
typedef struct Identity
{
	int			own;			/* rows of this database */
	bool		upgraded;		/* one of them is of the cluster that pg_upgrade has replaced */
	Oid			other;			/* a row of another database is there */
	bool		marked;			/* a row of no database is there, */
	char		note[OUTBOX_TEXT_SIZE]; /* which says why */
} Identity;

static int
my_major(void)
{
	return PG_VERSION_NUM / 10000;
}

static void
read_row(Identity *identity, HeapTuple tuple, TupleDesc desc)
{
	bool		isnull;
	Oid			database = DatumGetObjectId(heap_getattr(tuple, IDENTITY_DATABASE, desc, &isnull));
	int64		system = DatumGetInt64(heap_getattr(tuple, IDENTITY_SYSTEM, desc, &isnull));
	int			major = DatumGetInt32(heap_getattr(tuple, IDENTITY_MAJOR, desc, &isnull));
	bool		same_system = system == (int64) GetSystemIdentifier();
	Datum		note = heap_getattr(tuple, IDENTITY_NOTE, desc, &isnull);

	if (!OidIsValid(database))
	{
		identity->marked = true;
		if (!isnull)
			text_to_cstring_buffer(DatumGetTextPP(note), identity->note, sizeof(identity->note));
	}
	else if (database == MyDatabaseId && (same_system || major < my_major()))
	{
		identity->own++;
		identity->upgraded |= !same_system;
	}
	else
		identity->other = database;
}

static void
read_identity(Identity *identity, Snapshot snapshot)
{
	const OutboxCatalog *catalog = outbox_database_catalog(false);
	Relation	relation;
	SysScanDesc	scan;
	HeapTuple	tuple;

	*identity = (Identity) {0};
	/* SQL objects of a version that hasn't got it: the library can't know that one. */
	if (!OidIsValid(catalog->identity))
		return;
	relation = table_open(catalog->identity, AccessShareLock);
	scan = systable_beginscan(relation, InvalidOid, false, snapshot, 0, NULL);
	while ((tuple = systable_getnext(scan)) != NULL)
		read_row(identity, tuple, RelationGetDescr(relation));
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
}

static bool
is_armed(const Identity *identity)
{
	return identity->own == 1 && !OidIsValid(identity->other) && !identity->marked;
}

/* A subordinate clause. */
static void
say_why(const Identity *identity, char *reason)
{
	if (identity->marked)
		strlcpy(reason, identity->note, OUTBOX_TEXT_SIZE);
	else if (OidIsValid(identity->other) || identity->own > 1)
		strlcpy(reason, "this database is a copy of another one, or was restored from a dump", OUTBOX_TEXT_SIZE);
	else
		strlcpy(reason, "nothing says that it isn't a copy", OUTBOX_TEXT_SIZE);
}

bool
outbox_standing_is_armed(void)
{
	Identity	identity;

	read_identity(&identity, GetActiveSnapshot());
	return is_armed(&identity);
}

void
outbox_standing_renew(void)
{
	Identity	identity;

	read_identity(&identity, GetActiveSnapshot());
	if (!is_armed(&identity) || !identity.upgraded)
		return;
	if (SPI_connect() != SPI_OK_CONNECT || SPI_execute("SELECT outbox.identify()", false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not renew outbox.identity");
	SPI_finish();
}

/* ----------------------------------------------------------------- version */

/* The version of the SQL objects, palloc'd; "" if they are just going. */
static char *
installed_version(void)
{
	Relation	relation = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData	key;
	SysScanDesc	scan;
	HeapTuple	tuple;
	char	   *version = "";

	ScanKeyInit(&key, Anum_pg_extension_extname, BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum(OUTBOX_EXTENSION));
	scan = systable_beginscan(relation, ExtensionNameIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (tuple != NULL)
	{
		bool		isnull;

		version = TextDatumGetCString(heap_getattr(tuple, Anum_pg_extension_extversion, RelationGetDescr(relation), &isnull));
	}
	systable_endscan(scan);
	table_close(relation, AccessShareLock);
	return version;
}

static bool
fits(char *reason)
{
	char	   *installed = installed_version();
	bool		older = outbox_version_compare(installed, outbox_version()) < 0;

	if (outbox_version_knows(installed))
		return true;
	snprintf(reason, OUTBOX_TEXT_SIZE, "the library is of version %s, the SQL objects are of version %s: %s", outbox_version(),
			 installed, older ? "ALTER EXTENSION outbox UPDATE" : "install that version of the library and restart the server");
	return false;
}

/* ------------------------------------------------------------------- check */

OutboxStanding
outbox_standing(char *reason)
{
	Identity	identity;

	reason[0] = '\0';
	if (!fits(reason))
		return OUTBOX_STANDING_OTHER_VERSION;
	read_identity(&identity, GetActiveSnapshot());
	if (is_armed(&identity))
		return OUTBOX_STANDING_GOOD;
	say_why(&identity, reason);
	return OUTBOX_STANDING_NOT_ARMED;
}

const char *
outbox_standing_hint(OutboxStanding standing)
{
	if (standing == OUTBOX_STANDING_NOT_ARMED)
		return "If no other database publishes these events, SELECT outbox.arm() lets this one do so.";
	return "Both must be of the same version, see docs/upgrading.md.";
}

void
outbox_standing_require(void)
{
	char		reason[OUTBOX_TEXT_SIZE];
	OutboxStanding standing = outbox_standing(reason);

	if (standing == OUTBOX_STANDING_GOOD)
		return;
	reason[0] = pg_toupper((unsigned char) reason[0]);
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 standing == OUTBOX_STANDING_NOT_ARMED ? errmsg("outbox is not armed in this database") :
													 errmsg("library and SQL objects of outbox have different versions"),
			 errdetail("%s.", reason),
			 errhint("%s", outbox_standing_hint(standing))));
}

/* --------------------------------------------------------------------- SQL */

/* outbox.not_armed_because() */
Datum
outbox_not_armed_because(PG_FUNCTION_ARGS)
{
	Identity	identity;
	char		reason[OUTBOX_TEXT_SIZE];

	read_identity(&identity, GetActiveSnapshot());
	if (is_armed(&identity))
		PG_RETURN_NULL();
	say_why(&identity, reason);
	PG_RETURN_TEXT_P(cstring_to_text(reason));
}

/* outbox.require_armed() */
Datum
outbox_require_armed(PG_FUNCTION_ARGS)
{
	outbox_standing_require();
	PG_RETURN_VOID();
}

/* outbox.tell_armed() */
Datum
outbox_tell_armed(PG_FUNCTION_ARGS)
{
	has_asked = has_changed = has_loaded = true;
	PG_RETURN_VOID();
}

void
outbox_standing_own_writes(void)
{
	own_writes = true;
}

/* Adds the row of no database, unless there is one. The lock makes outbox.arm() wait for the end of this transaction. */
static void
mark(void)
{
	Oid			relid = outbox_database_catalog(false)->identity;
	Datum		values[IDENTITY_COLUMNS] = {0};
	bool		nulls[IDENTITY_COLUMNS] = {false};
	Relation	relation = table_open(relid, RowExclusiveLock);
	Identity	identity;
	OutboxWriter writer;

	read_identity(&identity, SnapshotSelf);
	if (!identity.marked)
	{
		values[IDENTITY_DATABASE - 1] = ObjectIdGetDatum(InvalidOid);
		values[IDENTITY_SYSTEM - 1] = Int64GetDatum(0);
		values[IDENTITY_MAJOR - 1] = Int32GetDatum(0);
		values[IDENTITY_ARMED_AT - 1] = TimestampTzGetDatum(GetCurrentTimestamp());
		values[IDENTITY_ARMED_BY - 1] = DirectFunctionCall1(namein, CStringGetDatum(GetUserNameFromId(GetSessionUserId(), false)));
		values[IDENTITY_NOTE - 1] = CStringGetTextDatum("events came by a restore, a subscription or COPY");
		outbox_writer_open(&writer, relid, InvalidOid);
		outbox_writer_insert(&writer, values, nulls, IDENTITY_COLUMNS);
		outbox_writer_close(&writer);
		has_changed = true;
	}
	table_close(relation, NoLock);
}

/* outbox.log_loaded(), a trigger */
Datum
outbox_log_loaded(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("outbox.log_loaded() is a trigger function")));
	if (!own_writes)
	{
		mark();
		has_loaded = true;
	}
	PG_RETURN_POINTER(NULL);
}

/* ------------------------------------------------------------ end of things */

/* What shared memory repeats of the tables doesn't hold, and everybody has to look anew. In a commit callback. */
static void
at_commit(void)
{
	OutboxDatabase *database = outbox_shmem_find(MyDatabaseId);

	if (database == NULL)
		return;
	if (has_loaded)
		pg_atomic_write_u32(&database->stale, 1);
	if (!has_changed)
		return;
	pg_atomic_write_u32(&database->inbox_used, 1);
	pg_atomic_write_u64(&database->inbox_clean_at, 0);
	pg_atomic_write_u64(&database->clean_from, 0);
	pg_atomic_write_u64(&database->clean_at, 0);
	pg_write_barrier();
	pg_atomic_fetch_add_u32(&database->subscription_changes, 1);
	pg_atomic_fetch_add_u32(&database->leave_calls, 1);
	outbox_shmem_wake_relays(database);
	outbox_shmem_wake_consumers(database);
	outbox_shmem_wake_replayers(database);
}

/* Registered once per backend, in _PG_init of a preloaded library. */
void
outbox_standing_xact_callback(XactEvent event, void *arg)
{
	if (!has_loaded && !has_changed)
		return;
	switch (event)
	{
		case XACT_EVENT_PRE_PREPARE:
			/* COMMIT PREPARED calls nobody back. What a subscription prepares must pass; relays see it with the events. */
			if (has_asked)
				ereport(ERROR,
						(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
						 errmsg("cannot PREPARE a transaction that has armed, disarmed or updated outbox"),
						 errhint("Use COMMIT.")));
			break;
		case XACT_EVENT_COMMIT:
			at_commit();
			/* FALLTHROUGH */
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			has_loaded = has_changed = has_asked = false;
			break;
		default:
			break;
	}
}

/* After a utility command: ALTER EXTENSION outbox UPDATE. */
void
outbox_standing_note_command(Node *statement)
{
	if (IsA(statement, AlterExtensionStmt) && strcmp(((AlterExtensionStmt *) statement)->extname, OUTBOX_EXTENSION) == 0)
		has_changed = has_asked = true;
}
