/*
 * rule.c
 *	  What a trigger of outbox.capture() or outbox.guard() is to do, as read from
 *	  the settings and kept in the backend.
 *
 * A trigger's one argument is the id of a row in outbox.capture_settings or
 * outbox.guard_settings. That row is read without a look at privileges: who
 * writes the table needs none on our schema. It is read by a snapshot of its
 * own, as catalogs are, so that a transaction with an old one follows a change
 * of the table, too. A rule is thrown away when the table, or the partition it
 * is for, changes; the SQL functions that change settings recreate a trigger,
 * and so change the table.
 *
 * Rules live in a context each under CacheMemoryContext. One that is replaced
 * may be in use further up in the stack: it goes at the end of the transaction.
 */
#include "rule.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/namespace.h"
#include "catalog/partition.h"
#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "outbox.h"

typedef struct CacheEntry
{
	Oid			trigger;		/* hash key */
	OutboxRule *rule;
} CacheEntry;

static HTAB *cache = NULL;

static void
invalidate(Datum arg, Oid relid)
{
	HASH_SEQ_STATUS all;
	CacheEntry *entry;

	hash_seq_init(&all, cache);
	while ((entry = hash_seq_search(&all)) != NULL)
	{
		if (entry->rule != NULL &&
			(relid == InvalidOid || relid == entry->rule->relid || relid == entry->rule->root))
			entry->rule->valid = false;
	}
}

/* A function or a schema has changed: which one, isn't told. */
static void
invalidate_functions(Datum arg, int cache_id, uint32 hash_value)
{
	HASH_SEQ_STATUS all;
	CacheEntry *entry;

	hash_seq_init(&all, cache);
	while ((entry = hash_seq_search(&all)) != NULL)
	{
		if (entry->rule != NULL && entry->rule->calls_function)
			entry->rule->valid = false;
	}
}

static CacheEntry *
find_entry(Oid trigger)
{
	CacheEntry *entry;
	bool		found;

	if (cache == NULL)
	{
		HASHCTL		info = {.keysize = sizeof(Oid), .entrysize = sizeof(CacheEntry), .hcxt = CacheMemoryContext};

		cache = hash_create("outbox rules", 16, &info, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
		CacheRegisterRelcacheCallback(invalidate, (Datum) 0);
		CacheRegisterSyscacheCallback(PROCOID, invalidate_functions, (Datum) 0);
		CacheRegisterSyscacheCallback(NAMESPACEOID, invalidate_functions, (Datum) 0);
	}
	entry = hash_search(cache, &trigger, HASH_ENTER, &found);
	if (!found)
		entry->rule = NULL;
	return entry;
}

/* ---------------------------------------------------------------- settings */

static Datum
settings_value(const OutboxSettingsRow *settings, const char *column, bool *isnull)
{
	return SPI_getbinval(settings->tuple, settings->desc, SPI_fnumber(settings->desc, column), isnull);
}

/* In the current context; NULL for NULL. */
const char *
outbox_rule_text(const OutboxSettingsRow *settings, const char *column)
{
	bool		isnull;
	Datum		value = settings_value(settings, column, &isnull);

	return isnull ? NULL : TextDatumGetCString(value);
}

bool
outbox_rule_bool(const OutboxSettingsRow *settings, const char *column)
{
	bool		isnull;
	Datum		value = settings_value(settings, column, &isnull);

	return !isnull && DatumGetBool(value);
}

/* Elements that aren't NULL; NULL for NULL, with a count of 0. */
char **
outbox_rule_texts(const OutboxSettingsRow *settings, const char *column, int *count)
{
	bool		isnull;
	Datum		value = settings_value(settings, column, &isnull);
	Datum	   *elements;
	bool	   *nulls;
	int			element_count;
	char	  **texts;

	*count = 0;
	if (isnull)
		return NULL;
	deconstruct_array(DatumGetArrayTypeP(value), TEXTOID, -1, false, TYPALIGN_INT, &elements, &nulls, &element_count);
	texts = palloc(sizeof(char *) * (element_count + 1));
	for (int i = 0; i < element_count; i++)
	{
		if (!nulls[i])
			texts[(*count)++] = TextDatumGetCString(elements[i]);
	}
	return texts;
}

/* Reads a row by its id, into the current context. False: there is none. */
static bool
read_settings(const char *table_name, int64 id, OutboxSettingsRow *row)
{
	Oid			schema = get_namespace_oid(OUTBOX_SCHEMA, false);
	Oid			relid = get_relname_relid(table_name, schema);
	Oid			index = get_relname_relid(psprintf("%s_pkey", table_name), schema);
	Relation	table;
	ScanKeyData	key;
	SysScanDesc	scan;
	HeapTuple	tuple;

	if (!OidIsValid(relid))
		return false;
	table = table_open(relid, AccessShareLock);
	ScanKeyInit(&key, 1, BTEqualStrategyNumber, F_INT8EQ, Int64GetDatum(id));
	scan = systable_beginscan(table, index, OidIsValid(index), NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple))
	{
		row->tuple = heap_copytuple(tuple);
		row->desc = CreateTupleDescCopy(RelationGetDescr(table));
	}
	systable_endscan(scan);
	table_close(table, AccessShareLock);
	return HeapTupleIsValid(tuple);
}

/* ------------------------------------------------------------------- rules */

static int64
rule_id(const TriggerData *trigger)
{
	if (trigger->tg_trigger->tgnargs != 1)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("trigger \"%s\" was not made by outbox.capture() or outbox.guard()", trigger->tg_trigger->tgname)));
	return DatumGetInt64(DirectFunctionCall1(int8in, CStringGetDatum(trigger->tg_trigger->tgargs[0])));
}

/* The layouts: the table's own, and the partition's if the trigger is on one. */
static void
load_layout(OutboxRule *rule, Relation relation, const OutboxSettingsRow *settings)
{
	Relation	root = table_open(rule->root, AccessShareLock);
	char	  **names;
	int			count;

	rule->desc = CreateTupleDescCopyConstr(RelationGetDescr(root));
	if (rule->relid != rule->root)
		rule->map = convert_tuples_by_name(CreateTupleDescCopyConstr(RelationGetDescr(relation)), rule->desc);
	table_close(root, NoLock);
	names = outbox_rule_texts(settings, "key_columns", &count);
	outbox_key_prepare(&rule->key, rule->desc, names, count);
}

/*
 * Builds the rule in a context of its own. NULL: the trigger is on a table that
 * was a partition of the one with that id, and is no more.
 */
static OutboxRule *
build(const TriggerData *trigger, const char *settings_table, OutboxRuleLoad load)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "outbox rule", ALLOCSET_SMALL_SIZES);
	MemoryContext caller = MemoryContextSwitchTo(context);
	OutboxRule *rule = palloc0(sizeof(OutboxRule));
	OutboxSettingsRow settings;
	bool		isnull;

	rule->trigger = trigger->tg_trigger->tgoid;
	rule->context = context;
	rule->id = rule_id(trigger);
	rule->relid = RelationGetRelid(trigger->tg_relation);
	if (!read_settings(settings_table, rule->id, &settings))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("trigger \"%s\" on \"%s\" has no settings", trigger->tg_trigger->tgname,
						RelationGetRelationName(trigger->tg_relation)),
				 errdetail("outbox.%s has no row " INT64_FORMAT ".", settings_table, rule->id),
				 errhint("Drop the trigger, and call outbox.capture() or outbox.guard() again.")));
	rule->root = DatumGetObjectId(settings_value(&settings, "target", &isnull));
	if (rule->root != rule->relid && !list_member_oid(get_partition_ancestors(rule->relid), rule->root))
	{
		MemoryContextSwitchTo(caller);
		MemoryContextDelete(context);
		return NULL;
	}
	load_layout(rule, trigger->tg_relation, &settings);
	load(rule, &settings);
	MemoryContextSwitchTo(caller);
	return rule;
}

/*
 * The rule of the trigger that is firing; it lives to the end of the
 * transaction at least. NULL: the trigger is left over on a table that is no
 * longer a partition. For functions fired by triggers only.
 */
const OutboxRule *
outbox_rule_get(const TriggerData *trigger, const char *settings_table, OutboxRuleLoad load)
{
	CacheEntry *entry = find_entry(trigger->tg_trigger->tgoid);
	OutboxRule *rule = entry->rule;

	if (rule != NULL && rule->valid && rule->relid == RelationGetRelid(trigger->tg_relation))
		return rule;
	entry->rule = NULL;
	if (rule != NULL)
		MemoryContextSetParent(rule->context, TopTransactionContext);

	rule = build(trigger, settings_table, load);
	if (rule == NULL)
		return NULL;
	/* Building reads catalogs, which may have made room for a rule of a nested call. */
	entry = find_entry(trigger->tg_trigger->tgoid);
	if (entry->rule != NULL)
		MemoryContextSetParent(entry->rule->context, TopTransactionContext);
	rule->valid = true;
	entry->rule = rule;
	MemoryContextSetParent(rule->context, CacheMemoryContext);
	return rule;
}

/* -------------------------------------------------------------------- rows */

/*
 * Takes a tuple of the trigger's relation apart, in the layout of the root;
 * relation NULL: the tuple is in that layout already. Memory is the current context's.
 */
void
outbox_rule_read_row(const OutboxRule *rule, Relation relation, HeapTuple tuple, OutboxRowData *row)
{
	TupleDesc	desc = rule->desc;

	row->tuple = tuple;
	if (relation != NULL && rule->map != NULL)
		row->tuple = execute_attr_map_tuple(tuple, rule->map);
	else if (relation != NULL)
		desc = RelationGetDescr(relation);
	row->values = palloc(sizeof(Datum) * desc->natts);
	row->nulls = palloc(sizeof(bool) * desc->natts);
	heap_deform_tuple(row->tuple, desc, row->values, row->nulls);
}

/* Whether no column differs. */
bool
outbox_rule_same_row(const OutboxRule *rule, const OutboxRowData *one, const OutboxRowData *other)
{
	for (int i = 0; i < rule->desc->natts; i++)
	{
		if (!TupleDescAttr(rule->desc, i)->attisdropped && !outbox_value_same(rule->desc, i + 1, one, other))
			return false;
	}
	return true;
}
