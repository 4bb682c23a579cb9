/*
 * row_value.h
 *	  Values of columns as JSON and as text, in a form that no setting of the
 *	  session changes; and the aggregate id that key columns make.
 */
#ifndef OUTBOX_ROW_VALUE_H
#define OUTBOX_ROW_VALUE_H

#include "postgres.h"

#include "access/htup.h"
#include "access/tupdesc.h"
#include "fmgr.h"
#include "lib/stringinfo.h"

typedef struct OutboxValue
{
	int			attnum;			/* 0: there is no such column */
	Oid			type;			/* without domains */
	char		form;			/* private */
	bool		depends;		/* on settings: write it between fix and restore */
	FmgrInfo	output;
	FmgrInfo	to_json;
} OutboxValue;

/* The columns that make an aggregate id. */
typedef struct OutboxKey
{
	int			count;
	const char **names;
	OutboxValue *values;
	bool		depends;
	const char *missing;		/* name of a column that isn't there, NULL: all are */
} OutboxKey;

/* A row in the layout of the table that is captured or guarded. */
typedef struct OutboxRowData
{
	HeapTuple	tuple;
	Datum	   *values;
	bool	   *nulls;
} OutboxRowData;

extern int outbox_value_attnum(TupleDesc desc, const char *name);
extern void outbox_value_prepare(OutboxValue *value, TupleDesc desc, int attnum);
extern void outbox_value_json(StringInfo out, const OutboxValue *value, Datum datum, bool *odd);
extern char *outbox_value_text(const OutboxValue *value, Datum datum);
extern bool outbox_value_same(TupleDesc desc, int attnum, const OutboxRowData *one, const OutboxRowData *other);

extern void outbox_key_prepare(OutboxKey *key, TupleDesc desc, char **names, int count);
extern char *outbox_key_text(const OutboxKey *key, const OutboxRowData *row);
extern bool outbox_key_same(const OutboxKey *key, TupleDesc desc, const OutboxRowData *one, const OutboxRowData *other);

extern int outbox_settings_fix(void);
extern void outbox_settings_restore(int level);

#endif /* OUTBOX_ROW_VALUE_H */
