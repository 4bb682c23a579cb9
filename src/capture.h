/*
 * capture.h
 *	  A rule of outbox.capture(), compiled.
 */
#ifndef OUTBOX_CAPTURE_H
#define OUTBOX_CAPTURE_H

#include "postgres.h"

#include "executor/spi.h"

#include "event.h"
#include "rule.h"

typedef enum OutboxOperation
{
	OUTBOX_OP_INSERT,
	OUTBOX_OP_UPDATE,
	OUTBOX_OP_DELETE,
	OUTBOX_OP_TRUNCATE,
	OUTBOX_OP_COUNT
} OutboxOperation;

/* A column of the payload. */
typedef struct OutboxCaptureColumn
{
	OutboxValue	value;
	const char *name;			/* as JSON, with the colon */
} OutboxCaptureColumn;

typedef struct OutboxCapture
{
	const char *aggregate_type;
	const char *event_types[OUTBOX_OP_COUNT]; /* NULL: no event of that operation */
	const char *table_json;		/* of a truncate event */

	OutboxCaptureColumn *columns; /* that the payload has */
	int			column_count;
	bool		depends;		/* one of the values depends on settings */
	int		   *changed;		/* an update counts only if one of these differs */
	int			changed_count;
	bool		has_changed;
	bool		old_values;
	bool		unchanged_updates;
	bool		split_key_changes;
	bool		fail_on_drift;

	const char *projection;		/* qualified and quoted; NULL: none */
	Oid			function;		/* it, InvalidOid: gone */
	Oid			owner;			/* of the table: it runs with his rights */
	SPIPlanPtr	plan;			/* made when it is first called */

	OutboxValue	subject;
	OutboxValue	version;
	int			header_count;
	const char **header_names;
	OutboxValue *headers;
	const char *dataschema;
	const char *drift;			/* what the table lacks of what was asked for; NULL: nothing */
} OutboxCapture;

/* Events of one row. */
typedef struct OutboxCaptured
{
	int			count;
	int			space;
	OutboxNewEvent *events;
} OutboxCaptured;

/* capture.c */
extern const char *outbox_capture_operation_name(OutboxOperation operation);
extern void outbox_capture_change(const OutboxRule *rule, OutboxOperation operation,
								  const OutboxRowData *old, const OutboxRowData *new);

/* capture_rule.c */
extern const OutboxRule *outbox_capture_rule(const TriggerData *trigger);

/* capture_event.c */
extern void outbox_capture_event(const OutboxRule *rule, OutboxOperation operation,
								 const OutboxRowData *old, const OutboxRowData *new, OutboxCaptured *out);
extern OutboxNewEvent *outbox_capture_add(OutboxCaptured *out);
extern bytea *outbox_capture_json(const char *json);

/* capture_project.c */
extern void outbox_capture_project(const OutboxRule *rule, OutboxOperation operation, const OutboxRowData *old,
								   const OutboxRowData *new, const OutboxNewEvent *model, OutboxCaptured *out);

/* capture_move.c */
extern bool outbox_capture_is_move(const OutboxRule *rule, const TriggerData *trigger);
extern void outbox_capture_flush_moves(void);

#endif /* OUTBOX_CAPTURE_H */
