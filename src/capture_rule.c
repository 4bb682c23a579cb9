/*
 * capture_rule.c
 *	  Compiles a row of outbox.capture_settings against its table.
 *
 * Columns are found by name: settings follow renames (capture_ddl.c), so a name
 * that the table doesn't have belongs to a column that was dropped.
 */
#include "capture.h"

#include "catalog/namespace.h"
#include "catalog/pg_type.h"
#include "parser/parse_func.h"
#include "utils/builtins.h"
#include "utils/json.h"
#include "utils/lsyscache.h"
#include "utils/regproc.h"
#include "utils/rel.h"
#include "utils/regproc.h"
#include "utils/syscache.h"
#include "utils/varlena.h"

#include "compat.h"

static const char *const event_columns[OUTBOX_OP_COUNT] = {
	"insert_event", "update_event", "delete_event", "truncate_event"};

static void
note_drift(OutboxCapture *capture, const char *what, const char *name)
{
	const char *drift = psprintf("%s \"%s\" is missing", what, name);

	if (capture->drift == NULL)
		capture->drift = drift;
	else if (strstr(capture->drift, drift) == NULL)
		capture->drift = psprintf("%s, %s", capture->drift, drift);
}

static bool
contains(char **names, int count, const char *name)
{
	for (int i = 0; i < count; i++)
	{
		if (strcmp(names[i], name) == 0)
			return true;
	}
	return false;
}

static const char *
json_name(const char *name)
{
	StringInfoData out;

	initStringInfo(&out);
	escape_json(&out, name);
	appendStringInfoChar(&out, ':');
	return out.data;
}

/* Virtual generated columns (18) have no value in a trigger's row. */
static bool
is_readable(Form_pg_attribute att)
{
	return !att->attisdropped && (att->attgenerated == '\0' || att->attgenerated == ATTRIBUTE_GENERATED_STORED);
}

static void
load_columns(OutboxCapture *capture, TupleDesc desc, const OutboxSettingsRow *settings)
{
	int			only_count;
	int			except_count;
	char	  **only = outbox_rule_texts(settings, "columns", &only_count);
	char	  **except = outbox_rule_texts(settings, "except_columns", &except_count);

	capture->columns = palloc(sizeof(OutboxCaptureColumn) * Max(desc->natts, 1));
	for (int i = 0; i < desc->natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(desc, i);
		const char *name = NameStr(att->attname);
		OutboxCaptureColumn *column = &capture->columns[capture->column_count];

		if (!is_readable(att) || (only != NULL && !contains(only, only_count, name)) ||
			contains(except, except_count, name))
			continue;
		outbox_value_prepare(&column->value, desc, i + 1);
		column->name = json_name(name);
		capture->depends = capture->depends || column->value.depends;
		capture->column_count++;
	}
}

static void
load_changed(OutboxCapture *capture, TupleDesc desc, const OutboxSettingsRow *settings)
{
	int			count;
	char	  **names = outbox_rule_texts(settings, "changed_columns", &count);

	if (names == NULL)
		return;
	capture->changed = palloc(sizeof(int) * Max(count, 1));
	for (int i = 0; i < count; i++)
	{
		int			attnum = outbox_value_attnum(desc, names[i]);

		if (attnum > 0)
			capture->changed[capture->changed_count++] = attnum;
		else
			note_drift(capture, "column", names[i]);
	}
	/* Nothing left to compare: rather every update than none. */
	capture->has_changed = capture->changed_count > 0;
}

static void
load_column(OutboxCapture *capture, OutboxValue *value, TupleDesc desc, const char *name)
{
	outbox_value_prepare(value, desc, name == NULL ? 0 : outbox_value_attnum(desc, name));
	capture->depends = capture->depends || value->depends;
	if (name != NULL && value->attnum == 0)
		note_drift(capture, "column", name);
}

static void
load_headers(OutboxCapture *capture, TupleDesc desc, const OutboxSettingsRow *settings)
{
	int			count;
	char	  **columns = outbox_rule_texts(settings, "header_columns", &count);
	char	  **names = outbox_rule_texts(settings, "header_names", &capture->header_count);

	capture->header_count = Min(count, capture->header_count);
	capture->header_names = (const char **) names;
	capture->headers = palloc(sizeof(OutboxValue) * Max(count, 1));
	for (int i = 0; i < capture->header_count; i++)
		load_column(capture, &capture->headers[i], desc, columns[i]);
}

/* The function takes (text, row, row). */
static void
load_projection(OutboxRule *rule, OutboxCapture *capture, const OutboxSettingsRow *settings)
{
	Oid			row_type = get_rel_type_id(rule->root);
	Oid			arguments[3] = {TEXTOID, row_type, row_type};
	HeapTuple	table;

	capture->projection = outbox_rule_text(settings, "projection");
	if (capture->projection == NULL)
		return;
	rule->calls_function = true;
	capture->function = LookupFuncName(outbox_qualified_names(capture->projection), 3, arguments, true);
	if (!OidIsValid(capture->function))
		note_drift(capture, "function", capture->projection);
	table = SearchSysCache1(RELOID, ObjectIdGetDatum(rule->root));
	if (!HeapTupleIsValid(table))
		elog(ERROR, "cache lookup failed for relation %u", rule->root);
	capture->owner = ((Form_pg_class) GETSTRUCT(table))->relowner;
	ReleaseSysCache(table);
}

static const char *
table_json(Oid root)
{
	StringInfoData out;

	initStringInfo(&out);
	appendStringInfoString(&out, "{\"schema\": ");
	escape_json(&out, get_namespace_name(get_rel_namespace(root)));
	appendStringInfoString(&out, ", \"table\": ");
	escape_json(&out, get_rel_name(root));
	appendStringInfoChar(&out, '}');
	return out.data;
}

/* An OutboxRuleLoad. */
static void
load(OutboxRule *rule, const OutboxSettingsRow *settings)
{
	OutboxCapture *capture = palloc0(sizeof(OutboxCapture));

	rule->detail = capture;
	capture->aggregate_type = outbox_rule_text(settings, "aggregate_type");
	for (int i = 0; i < OUTBOX_OP_COUNT; i++)
		capture->event_types[i] = outbox_rule_text(settings, event_columns[i]);
	capture->table_json = table_json(rule->root);
	capture->old_values = outbox_rule_bool(settings, "old_values");
	capture->unchanged_updates = outbox_rule_bool(settings, "unchanged_updates");
	capture->split_key_changes = outbox_rule_bool(settings, "split_key_changes");
	capture->fail_on_drift = outbox_rule_bool(settings, "fail_on_drift");
	capture->dataschema = outbox_rule_text(settings, "dataschema");
	if (rule->key.missing != NULL)
		note_drift(capture, "key column", rule->key.missing);
	load_columns(capture, rule->desc, settings);
	load_changed(capture, rule->desc, settings);
	load_column(capture, &capture->subject, rule->desc, outbox_rule_text(settings, "subject_column"));
	load_column(capture, &capture->version, rule->desc, outbox_rule_text(settings, "version_column"));
	load_headers(capture, rule->desc, settings);
	load_projection(rule, capture, settings);
}

/* The rule of the trigger that is firing, see outbox_rule_get(). */
const OutboxRule *
outbox_capture_rule(const TriggerData *trigger)
{
	return outbox_rule_get(trigger, "capture_settings", load);
}
