/*
 * caller.c
 *	  SQL functions that work with the rights of the extension's owner, and ask
 *	  before whether their caller may have that done.
 *
 * A SECURITY DEFINER function can't tell who has called it: current_user is its
 * owner, and session_user may be a superuser while the session runs a function
 * of somebody else, as an index expression in REINDEX, or a SECURITY DEFINER
 * function. So outbox.x(...) is outbox_for_caller, which knows its caller, and
 * calls outbox.x_for(caller oid, ...) as superuser. Called directly, that one
 * has no rights but those of whoever calls it.
 */
#include "postgres.h"

#include "catalog/pg_authid.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/syscache.h"

PG_FUNCTION_INFO_V1(outbox_for_caller);

/* outbox.x_for() of the function outbox.x(): an oid before the same arguments. */
static Oid
find_function(Oid function)
{
	char	   *name = get_func_name(function);
	char	   *name_for = psprintf("%s_for", name == NULL ? "" : name);
	Oid			types[FUNC_MAX_ARGS] = {OIDOID};
	Oid		   *argument_types;
	int			count;
	Oid			found;

	(void) get_func_signature(function, &argument_types, &count);
	if (count >= FUNC_MAX_ARGS)
		elog(ERROR, "function %u has too many arguments", function);
	memcpy(types + 1, argument_types, (size_t) count * sizeof(Oid));
	found = GetSysCacheOid3(PROCNAMEARGSNSP, Anum_pg_proc_oid, CStringGetDatum(name_for),
							PointerGetDatum(buildoidvector(types, count + 1)),
							ObjectIdGetDatum(get_func_namespace(function)));
	if (!OidIsValid(found))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("function outbox.%s does not exist", name_for),
				 errhint("Library and extension are of different versions: ALTER EXTENSION outbox UPDATE.")));
	return found;
}

/* Sets are returned by outbox.x_for() into what the caller gave for that. */
Datum
outbox_for_caller(PG_FUNCTION_ARGS)
{
	LOCAL_FCINFO(call, FUNC_MAX_ARGS);
	FmgrInfo   *function = fcinfo->flinfo->fn_extra;
	Datum		result;
	Oid			user;
	int			security;

	if (function == NULL)
	{
		function = MemoryContextAlloc(fcinfo->flinfo->fn_mcxt, sizeof(FmgrInfo));
		fmgr_info_cxt(find_function(fcinfo->flinfo->fn_oid), function, fcinfo->flinfo->fn_mcxt);
		fcinfo->flinfo->fn_extra = function;
	}
	GetUserIdAndSecContext(&user, &security);
	InitFunctionCallInfoData(*call, function, (short) (fcinfo->nargs + 1), fcinfo->fncollation, NULL, fcinfo->resultinfo);
	call->args[0].value = ObjectIdGetDatum(user);
	call->args[0].isnull = false;
	memcpy(&call->args[1], fcinfo->args, (size_t) fcinfo->nargs * sizeof(NullableDatum));
	/* An error resets it with the transaction. */
	SetUserIdAndSecContext(BOOTSTRAP_SUPERUSERID, security | SECURITY_LOCAL_USERID_CHANGE);
	result = FunctionCallInvoke(call);
	SetUserIdAndSecContext(user, security);
	fcinfo->isnull = call->isnull;
	return result;
}
