/*
 * guard.c
 *	  Refuses, at commit, a transaction that changed a guarded table without
 *	  enqueuing an event.
 *
 * Two lists live in the backend, in the order in which things happened: the
 * aggregates of events (always noted: an event may precede the change), and
 * what changed of guarded tables. Each entry has the id of its
 * subtransaction; those grow, so a rollback to a savepoint takes the entries
 * from its id on off the end of both lists. A change that finds its event in
 * the list already needs no entry: what takes the event back takes the change,
 * too. The rest is compared before the commit, after all deferred triggers.
 */
#include "guard.h"

#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "commands/trigger.h"
#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "capture.h"
#include "event.h"
#include "outbox.h"
#include "rule.h"

PG_FUNCTION_INFO_V1(outbox_guard_row);
PG_FUNCTION_INFO_V1(outbox_guard_truncate);

/* How far back a change looks for its event; the commit finds the others. */
#define LOOK_BACK 16

typedef struct Guard
{
	const char *aggregate_type;
	bool		any;			/* an event of any aggregate will do */
	bool		warns;
	int			exempt_count;
	char	  **exempt;
} Guard;

typedef struct EventNote
{
	uint64		agg_hash;
	SubTransactionId subid;
} EventNote;

typedef struct Change
{
	uint64		agg_hash;
	uint64		other_hash;		/* of an update of the key: either will do */
	SubTransactionId subid;
	Oid			root;
	bool		any;
	bool		warns;
	int64		rule_id;
	const char *aggregate_type;	/* of the transaction's memory, as is the id */
	const char *aggregate_id;
} Change;

/* The current transaction's; the arrays live in TopMemoryContext. */
static EventNote *events = NULL;
static int event_count = 0;
static int event_space = 0;
static Change *changes = NULL;
static int change_count = 0;
static int change_space = 0;

/* Larger arrays are given back at the end of the transaction. */
#define KEEP_SPACE 1024

static void
forget(void)
{
	event_count = change_count = 0;
	if (event_space > KEEP_SPACE)
	{
		pfree(events);
		events = NULL;
		event_space = 0;
	}
	if (change_space > KEEP_SPACE)
	{
		pfree(changes);
		changes = NULL;
		change_space = 0;
	}
}

/* ------------------------------------------------------------------- commit */

static int
compare_hashes(const void *a, const void *b)
{
	uint64		left = *(const uint64 *) a;
	uint64		right = *(const uint64 *) b;

	return left < right ? -1 : left > right;
}

static bool
has_event(const Change *change, const uint64 *hashes)
{
	if (event_count == 0)
		return false;
	return change->any ||
		bsearch(&change->agg_hash, hashes, event_count, sizeof(uint64), compare_hashes) != NULL ||
		bsearch(&change->other_hash, hashes, event_count, sizeof(uint64), compare_hashes) != NULL;
}

/* What a change needs, in words; more: further aggregates that lack it. */
static const char *
wanted(const Change *change, int more)
{
	StringInfoData out;

	initStringInfo(&out);
	if (change->any)
		appendStringInfo(&out, "The table is guarded: a change, here of \"%s\", needs an event.", change->aggregate_id);
	else
		appendStringInfo(&out, "The table is guarded: a change needs an event of aggregate \"%s\" of type \"%s\".",
						 change->aggregate_id, change->aggregate_type);
	if (!change->any && more == 1)
		appendStringInfoString(&out, " So does 1 other aggregate.");
	else if (!change->any && more > 1)
		appendStringInfo(&out, " So do %d other aggregates.", more);
	return out.data;
}

static void
complain(const Change *change, int more)
{
	const char *table = get_rel_name(change->root);
	const char *lacks = change->any ? "" : psprintf(" for \"%s\"", change->aggregate_id);

	if (table == NULL)
		return; /* dropped in the same transaction */
	ereport(change->warns ? WARNING : ERROR,
			(errcode(ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION),
			 errmsg("transaction changed table \"%s\" without enqueuing an event%s", table, lacks),
			 errdetail_internal("%s", wanted(change, more)),
			 errhint("Call outbox.enqueue() in the same transaction, or let outbox.capture() make the events.")));
}

static int
count_distinct(uint64 *hashes, int count)
{
	int			distinct = 0;

	qsort(hashes, count, sizeof(uint64), compare_hashes);
	for (int i = 0; i < count; i++)
	{
		if (i == 0 || hashes[i] != hashes[i - 1])
			distinct++;
	}
	return distinct;
}

/* Complains of the rule of changes[first], for all its changes that lack an event, and takes them off the list. */
static void
complain_of_rule(int first, const uint64 *hashes)
{
	Change		change = changes[first];
	uint64	   *missing = palloc_extended(sizeof(uint64) * (change_count - first), MCXT_ALLOC_HUGE);
	int			count = 0;
	int			kept = first;

	for (int i = first; i < change_count; i++)
	{
		if (changes[i].rule_id != change.rule_id)
			changes[kept++] = changes[i];
		else if (!has_event(&changes[i], hashes))
			missing[count++] = changes[i].agg_hash;
	}
	change_count = kept;
	complain(&change, count_distinct(missing, count) - 1);
	pfree(missing);
}

/* May raise an error: the transaction isn't over. */
static void
check(void)
{
	uint64	   *hashes = palloc_extended(sizeof(uint64) * Max(event_count, 1), MCXT_ALLOC_HUGE);
	int			i = 0;

	for (int e = 0; e < event_count; e++)
		hashes[e] = events[e].agg_hash;
	qsort(hashes, event_count, sizeof(uint64), compare_hashes);
	while (i < change_count)
	{
		if (has_event(&changes[i], hashes))
			i++;
		else
			complain_of_rule(i, hashes);
	}
	pfree(hashes);
}

static void
xact_callback(XactEvent event, void *arg)
{
	switch (event)
	{
		case XACT_EVENT_PRE_COMMIT:
		case XACT_EVENT_PRE_PREPARE:
			/* These may still make events; their own callback may come later. */
			outbox_capture_flush_moves();
			if (change_count > 0)
				check();
			break;
		case XACT_EVENT_COMMIT:
		case XACT_EVENT_ABORT:
		case XACT_EVENT_PREPARE:
			forget();
			break;
		default:
			break;
	}
}

static void
subxact_callback(SubXactEvent event, SubTransactionId id, SubTransactionId parent, void *arg)
{
	if (event != SUBXACT_EVENT_ABORT_SUB)
		return;
	while (event_count > 0 && events[event_count - 1].subid >= id)
		event_count--;
	while (change_count > 0 && changes[change_count - 1].subid >= id)
		change_count--;
}

/* In each session by itself, as enqueueing works without the preloaded library, too. */
static void
start(void)
{
	static bool	registered = false;

	if (registered)
		return;
	RegisterXactCallback(xact_callback, NULL);
	RegisterSubXactCallback(subxact_callback, NULL);
	registered = true;
}

/* -------------------------------------------------------------------- notes */

/* Room for one more in an array of TopMemoryContext. */
static void *
make_room(void *array, int count, int *space, Size size)
{
	if (count < *space)
		return array;
	*space = *space == 0 ? 16 : *space * 2;
	return array == NULL ? MemoryContextAlloc(TopMemoryContext, *space * size) : repalloc_huge(array, *space * size);
}

/* The current transaction has enqueued an event of this aggregate. */
void
outbox_guard_note_event(uint64 agg_hash)
{
	SubTransactionId subid = GetCurrentSubTransactionId();

	/* The one before it outlives this one. */
	if (event_count > 0 && events[event_count - 1].agg_hash == agg_hash)
		return;
	start();
	events = make_room(events, event_count, &event_space, sizeof(EventNote));
	events[event_count++] = (EventNote) {agg_hash, subid};
}

static bool
has_recent_event(const Guard *guard, uint64 agg_hash)
{
	if (guard->any)
		return event_count > 0;
	for (int i = event_count - 1; i >= Max(event_count - LOOK_BACK, 0); i--)
	{
		if (events[i].agg_hash == agg_hash)
			return true;
	}
	return false;
}

/* Noted already, at or above this level of savepoints. */
static bool
has_recent_change(const OutboxRule *rule, const Guard *guard, uint64 agg_hash, uint64 other_hash)
{
	for (int i = change_count - 1; i >= Max(change_count - LOOK_BACK, 0); i--)
	{
		if (changes[i].rule_id == rule->id &&
			(guard->any || (changes[i].agg_hash == agg_hash && changes[i].other_hash == other_hash)))
			return true;
	}
	return false;
}

static void
note_change(const OutboxRule *rule, const char *id, const char *other_id)
{
	const Guard *guard = rule->detail;
	uint64		agg_hash = outbox_append_hash(guard->aggregate_type, id);
	uint64		other_hash = other_id == NULL ? agg_hash : outbox_append_hash(guard->aggregate_type, other_id);

	if (has_recent_event(guard, agg_hash) || (other_id != NULL && has_recent_event(guard, other_hash)) ||
		has_recent_change(rule, guard, agg_hash, other_hash))
		return;
	start();
	changes = make_room(changes, change_count, &change_space, sizeof(Change));
	changes[change_count] = (Change) {
		.agg_hash = agg_hash,
		.other_hash = other_hash,
		.subid = GetCurrentSubTransactionId(),
		.root = rule->root,
		.any = guard->any || rule->key.missing != NULL,
		.warns = guard->warns,
		.rule_id = rule->id,
		.aggregate_type = MemoryContextStrdup(TopTransactionContext, guard->aggregate_type),
		.aggregate_id = MemoryContextStrdup(TopTransactionContext, id)};
	change_count++;
}

/* ----------------------------------------------------------------- triggers */

/* An OutboxRuleLoad. */
static void
load(OutboxRule *rule, const OutboxSettingsRow *settings)
{
	Guard	   *guard = palloc0(sizeof(Guard));

	rule->detail = guard;
	guard->aggregate_type = outbox_rule_text(settings, "aggregate_type");
	guard->any = outbox_rule_bool(settings, "any_event");
	guard->warns = outbox_rule_bool(settings, "warns");
	guard->exempt = outbox_rule_texts(settings, "exempt_roles", &guard->exempt_count);
}

/* By the current user, as privileges are; a superuser isn't everybody here. */
static bool
is_exempt(const Guard *guard)
{
	if (!outbox_guard)
		return true;
	for (int i = 0; i < guard->exempt_count; i++)
	{
		Oid			role = get_role_oid(guard->exempt[i], true);

		if (OidIsValid(role) && is_member_of_role_nosuper(GetUserId(), role))
			return true;
	}
	return false;
}

/* The rule, or NULL when there is nothing to guard. */
static const OutboxRule *
rule_of(FunctionCallInfo fcinfo, bool for_row)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	const OutboxRule *rule;

	if (!CALLED_AS_TRIGGER(fcinfo) || (TRIGGER_FIRED_FOR_ROW(trigger->tg_event) != 0) != for_row ||
		!TRIGGER_FIRED_AFTER(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function serves the triggers of outbox.guard() only")));
	rule = outbox_rule_get(trigger, "guard_settings", load);
	return rule == NULL || is_exempt(rule->detail) ? NULL : rule;
}

/* AFTER INSERT, UPDATE or DELETE, FOR EACH ROW. */
Datum
outbox_guard_row(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	const OutboxRule *rule = rule_of(fcinfo, true);
	OutboxRowData first;
	OutboxRowData second;

	if (rule == NULL)
		return PointerGetDatum(NULL);
	outbox_rule_read_row(rule, trigger->tg_relation, trigger->tg_trigtuple, &first);
	if (!TRIGGER_FIRED_BY_UPDATE(trigger->tg_event))
	{
		note_change(rule, outbox_key_text(&rule->key, &first), NULL);
		return PointerGetDatum(NULL);
	}
	outbox_rule_read_row(rule, trigger->tg_relation, trigger->tg_newtuple, &second);
	if (!outbox_key_same(&rule->key, rule->desc, &first, &second))
		note_change(rule, outbox_key_text(&rule->key, &second), outbox_key_text(&rule->key, &first));
	else if (!outbox_rule_same_row(rule, &first, &second))
		note_change(rule, outbox_key_text(&rule->key, &second), NULL);
	return PointerGetDatum(NULL);
}

/* AFTER TRUNCATE: an event of the aggregate "*", as a capture makes it, or any. */
Datum
outbox_guard_truncate(PG_FUNCTION_ARGS)
{
	const OutboxRule *rule = rule_of(fcinfo, false);

	if (rule != NULL)
		note_change(rule, "*", NULL);
	return PointerGetDatum(NULL);
}
