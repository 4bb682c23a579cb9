/*
 * rule.h
 *	  What a trigger of outbox.capture() or outbox.guard() is to do, as read from
 *	  the settings and kept in the backend.
 */
#ifndef OUTBOX_RULE_H
#define OUTBOX_RULE_H

#include "postgres.h"

#include "access/tupconvert.h"
#include "commands/trigger.h"

#include "row_value.h"

typedef struct OutboxRule
{
	Oid			trigger;		/* whose rule it is */
	bool		valid;
	int64		id;
	Oid			relid;			/* that the trigger is on: root, or a partition of it */
	Oid			root;			/* the table that was given to capture() or guard() */
	MemoryContext context;		/* of all this */
	TupleDesc	desc;			/* root's */
	TupleConversionMap *map;	/* from relid's layout to root's, NULL: they are the same */
	OutboxKey	key;
	bool		calls_function;	/* looked up by name: set by the loader */
	void	   *detail;			/* the loader's */
} OutboxRule;

/* A row of one of the settings tables, read by column names. */
typedef struct OutboxSettingsRow
{
	TupleDesc	desc;
	HeapTuple	tuple;
} OutboxSettingsRow;

/* Fills in rule->detail, in rule->context. */
typedef void (*OutboxRuleLoad)(OutboxRule *rule, const OutboxSettingsRow *settings);

extern const OutboxRule *outbox_rule_get(const TriggerData *trigger, const char *settings_table, OutboxRuleLoad load);
extern const char *outbox_rule_text(const OutboxSettingsRow *settings, const char *column);
extern bool outbox_rule_bool(const OutboxSettingsRow *settings, const char *column);
extern char **outbox_rule_texts(const OutboxSettingsRow *settings, const char *column, int *count);

extern void outbox_rule_read_row(const OutboxRule *rule, Relation relation, HeapTuple tuple, OutboxRowData *row);
extern bool outbox_rule_same_row(const OutboxRule *rule, const OutboxRowData *one, const OutboxRowData *other);

#endif /* OUTBOX_RULE_H */
