/*
 * capture_ddl.c
 *	  The settings of outbox.capture() and outbox.guard(): who may write them, and
 *	  how they follow their tables.
 *
 * capture() and guard() run as their caller, so that a condition can do nothing
 * that the caller can't. Only the settings are written with the rights of the
 * superuser, after a look at who asks.
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_type.h"
#include "commands/event_trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/builtins.h"
#include "utils/guc.h"

#include "outbox.h"

PG_FUNCTION_INFO_V1(outbox_rule_save);
PG_FUNCTION_INFO_V1(outbox_follow_ddl);

/* Runs a query of ours that yields one bigint, as superuser; 0 for NULL. */
static int64
query_as_superuser(const char *query, int count, Oid *types, Datum *values, const char *nulls)
{
	Oid			user;
	int			security;
	int			level = NewGUCNestLevel();
	int64		result = 0;
	bool		isnull = true;

	GetUserIdAndSecContext(&user, &security);
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, security | SECURITY_LOCAL_USERID_CHANGE);
	(void) set_config_option("search_path", "pg_catalog, pg_temp", PGC_USERSET, PGC_S_SESSION,
							 GUC_ACTION_SAVE, true, 0, false);
	if (SPI_connect() != SPI_OK_CONNECT)
		elog(ERROR, "could not connect to SPI");
	if (SPI_execute_with_args(query, count, types, values, nulls, false, 0) != SPI_OK_SELECT)
		elog(ERROR, "could not run \"%s\"", query);
	if (SPI_processed > 0)
		result = DatumGetInt64(SPI_getbinval(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1, &isnull));
	SPI_finish();
	AtEOXact_GUC(false, level);
	SetUserIdAndSecContext(user, security);
	return isnull ? 0 : result;
}

/*
 * outbox.rule_save(kind text, target regclass, name text, settings jsonb)
 * RETURNS bigint: the id; settings NULL: removes it. It asks whether the current
 * user owns the table and may call outbox.<kind>().
 */
Datum
outbox_rule_save(PG_FUNCTION_ARGS)
{
	Oid			types[5] = {OIDOID, TEXTOID, REGCLASSOID, TEXTOID, JSONBOID};
	Datum		values[5] = {ObjectIdGetDatum(GetUserId())};
	char		nulls[5] = {' ', ' ', ' ', ' ', ' '};

	for (int i = 0; i < 4; i++)
	{
		if (PG_ARGISNULL(i))
			nulls[i + 1] = 'n';
		else
			values[i + 1] = PG_GETARG_DATUM(i);
	}
	PG_RETURN_INT64(query_as_superuser("SELECT outbox.rule_save_for($1, $2, $3, $4, $5)", 5, types, values, nulls));
}

static void
rename_column(const RenameStmt *statement)
{
	Oid			relid = RangeVarGetRelid(statement->relation, NoLock, true);
	Oid			types[3] = {OIDOID, TEXTOID, TEXTOID};
	Datum		values[3] = {ObjectIdGetDatum(relid), CStringGetTextDatum(statement->subname),
					   CStringGetTextDatum(statement->newname)};

	if (OidIsValid(relid))
		(void) query_as_superuser("SELECT outbox.rule_rename_column($1, $2, $3)", 3, types, values, NULL);
}

static bool
attaches_partition(const AlterTableStmt *statement)
{
	ListCell   *cell;

	foreach(cell, statement->cmds)
	{
		if (lfirst_node(AlterTableCmd, cell)->subtype == AT_AttachPartition)
			return true;
	}
	return false;
}

/* The event trigger: settings follow a column's new name, TRUNCATE triggers a new partition. */
Datum
outbox_follow_ddl(PG_FUNCTION_ARGS)
{
	EventTriggerData *data = (EventTriggerData *) fcinfo->context;
	Node	   *statement;

	if (!CALLED_AS_EVENT_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_EVENT_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function serves the event trigger outbox_follow_ddl only")));
	statement = data->parsetree;
	if (IsA(statement, RenameStmt) && ((RenameStmt *) statement)->renameType == OBJECT_COLUMN)
		rename_column((RenameStmt *) statement);
	else if ((IsA(statement, CreateStmt) && ((CreateStmt *) statement)->partbound != NULL) ||
			 (IsA(statement, AlterTableStmt) && attaches_partition((AlterTableStmt *) statement)))
		(void) query_as_superuser("SELECT outbox.rule_complete()", 0, NULL, NULL, NULL);
	PG_RETURN_NULL();
}
