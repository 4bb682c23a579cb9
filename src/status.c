/*
 * status.c
 *	  What SQL sees of the relays, read from shared memory without touching a
 *	  table.
 */
#include "outbox.h"

#include "commands/dbcommands.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "utils/acl.h"
#include "utils/builtins.h"

#include "database.h"

#define STATUS_COLUMNS 13

PG_FUNCTION_INFO_V1(outbox_status);
PG_FUNCTION_INFO_V1(outbox_in_flight_positions);

static const char *
state_in_words(OutboxRelayState state)
{
	switch (state)
	{
		case OUTBOX_RELAY_STOPPED:
			return "not running";
		case OUTBOX_RELAY_STARTING:
			return "starting";
		case OUTBOX_RELAY_NOT_ARMED:
			return "not armed";
		case OUTBOX_RELAY_OTHER_VERSION:
			return "version mismatch";
		case OUTBOX_RELAY_CONNECTING:
			return "not connected";
		case OUTBOX_RELAY_STREAM_TROUBLE:
			return "stream unavailable";
		case OUTBOX_RELAY_BROKER_TROUBLE:
			return "broker unavailable";
		case OUTBOX_RELAY_PAUSED:
			return "paused";
		case OUTBOX_RELAY_ACTIVE:
			return "active";
	}
	return "unknown";
}

static void
put_text(Datum *values, bool *nulls, int column, const char *text)
{
	nulls[column] = text == NULL || text[0] == '\0';
	if (!nulls[column])
		values[column] = CStringGetTextDatum(text);
}

static Datum
name_datum(const char *name)
{
	return DirectFunctionCall1(namein, CStringGetDatum(name));
}

/* Events known to the relay, and numbers that it has not read up to yet. */
static int64
backlog(OutboxDatabase *database, OutboxPlace *place)
{
	int64		unread = (int64) pg_atomic_read_u64(&database->max_assigned) -
		(int64) pg_atomic_read_u64(&place->read_up_to);

	return (int64) pg_atomic_read_u64(&place->known_pending) + Max(unread, 0);
}

static Datum
age_of(TimestampTz since)
{
	return DirectFunctionCall2(timestamp_mi, TimestampTzGetDatum(GetCurrentTimestamp()), TimestampTzGetDatum(since));
}

/* One relay, or the last one of a database that has none now. */
static void
put_place(ReturnSetInfo *result, OutboxDatabase *database, int number, const char *name)
{
	OutboxPlace *place = &database->places[number];
	Datum		values[STATUS_COLUMNS] = {0};
	bool		nulls[STATUS_COLUMNS] = {false};
	int			pid = pg_atomic_read_u32(&place->pid);
	TimestampTz	oldest = pg_atomic_read_u64(&place->oldest_pending);
	OutboxRelayStatus status;
	int64		epoch;
	int			slots;

	LWLockAcquire(&database->status_lock, LW_SHARED);
	status = place->status;
	LWLockRelease(&database->status_lock);
	LWLockAcquire(&database->slots_lock, LW_SHARED);
	epoch = database->slots.members[number].epoch;
	slots = pg_popcount64(outbox_slots_mask(&database->slots, number, epoch));
	LWLockRelease(&database->slots_lock);

	values[0] = name_datum(name);
	nulls[1] = pid == 0;
	values[1] = Int32GetDatum(pid);
	if (pid == 0)
		put_text(values, nulls, 2, state_in_words(OUTBOX_RELAY_STOPPED));
	else
		put_text(values, nulls, 2, epoch == 0 ? "lease expired" : state_in_words(status.state));
	nulls[3] = status.since == 0;
	values[3] = TimestampTzGetDatum(status.since);
	put_text(values, nulls, 4, status.server);
	put_text(values, nulls, 5, status.stream);
	/* What waits in a database that may not publish, nobody has looked at. */
	nulls[6] = pid != 0 && (status.state == OUTBOX_RELAY_NOT_ARMED || status.state == OUTBOX_RELAY_OTHER_VERSION);
	/* Without slots it reads nothing, and nothing waits for it. */
	values[6] = Int64GetDatum(pid != 0 && slots == 0 ? 0 : backlog(database, place));
	nulls[7] = oldest == 0;
	if (oldest != 0)
		values[7] = age_of(oldest);
	values[8] = Int64GetDatum(pg_atomic_read_u64(&place->in_flight));
	values[9] = Int64GetDatum(pg_atomic_read_u64(&place->published));
	put_text(values, nulls, 10, status.last_error);
	nulls[11] = pid == 0;
	values[11] = Int32GetDatum(number);
	values[12] = Int32GetDatum(slots);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

static void
put_database(ReturnSetInfo *result, OutboxDatabase *database, const char *name)
{
	int			last = 0;
	bool		any = false;

	for (int i = 0; i < OUTBOX_MAX_RELAYS; i++)
	{
		if (pg_atomic_read_u32(&database->places[i].pid) != 0)
		{
			put_place(result, database, i, name);
			any = true;
		}
		else if (database->places[i].status.since > database->places[last].status.since)
			last = i;
	}
	if (!any)
		put_place(result, database, last, name);
}

/* This database has no relay to show: say why. */
static void
put_nothing(ReturnSetInfo *result, const char *state)
{
	Datum		values[STATUS_COLUMNS] = {0};
	bool		nulls[STATUS_COLUMNS];

	memset(nulls, true, sizeof(nulls));
	nulls[0] = false;
	values[0] = name_datum(get_database_name(MyDatabaseId));
	put_text(values, nulls, 2, state);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

Datum
outbox_status(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		own = false;

	InitMaterializedSRF(fcinfo, 0);
	if (outbox_shared == NULL)
	{
		put_nothing(result, "library not preloaded");
		return (Datum) 0;
	}
	for (int i = 0; i < outbox_shared->database_count; i++)
	{
		OutboxDatabase *database = &outbox_shared->databases[i];

		char	   *name = OidIsValid(database->dboid) ? get_database_name(database->dboid) : NULL;

		if (name == NULL)
			continue;			/* free, or just dropped */
		own = own || database->dboid == MyDatabaseId;
		put_database(result, database, name);
	}
	if (!own)
		put_nothing(result, "not running");
	return (Datum) 0;
}

Datum
outbox_in_flight_positions(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxDatabase *database = outbox_shared == NULL ? NULL : outbox_shmem_find(MyDatabaseId);

	InitMaterializedSRF(fcinfo, MAT_SRF_USE_EXPECTED_DESC);
	for (int i = 0; database != NULL && i < OUTBOX_CLAIMS; i++)
	{
		Datum		position = Int64GetDatum(outbox_claim_position(pg_atomic_read_u64(&database->claimed[i])));
		bool		isnull = false;

		if (DatumGetInt64(position) != 0)
			tuplestore_putvalues(result->setResult, result->setDesc, &position, &isnull);
	}
	return (Datum) 0;
}
