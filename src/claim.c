/*
 * claim.c
 *	  What a relay outside the server calls: outbox.claim(), settle(), fail(),
 *	  renew() and release(). session.c keeps its membership and memory.
 */
#include "session.h"

#include "catalog/pg_type.h"
#include "funcapi.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"
#include "utils/jsonb.h"

#include "backlog.h"
#include "clock.h"
#include "encode.h"

PG_FUNCTION_INFO_V1(outbox_claim);
PG_FUNCTION_INFO_V1(outbox_settle);
PG_FUNCTION_INFO_V1(outbox_fail);
PG_FUNCTION_INFO_V1(outbox_renew);
PG_FUNCTION_INFO_V1(outbox_release);

/* While it waits for events, claim() looks at lease and requests so often. */
#define LOOK_MS 500

#define WATERMARK_US INT64CONST(2000000)

/* ------------------------------------------------------------------- claim */

static int
in_flight(const OutboxRelay *relay)
{
	ScheduleCounts counts;

	outbox_schedule_get_counts(relay->schedule, &counts);
	return (int) counts.in_flight;
}

/* Server encoding from UTF-8. */
static char *
from_utf8(const char *text)
{
	return pg_any_to_server(text, strlen(text), PG_UTF8);
}

static void
push_string(JsonbParseState **state, JsonbIteratorToken token, const char *text)
{
	JsonbValue	value;
	char	   *converted = from_utf8(text);

	value.type = jbvString;
	value.val.string.val = converted;
	value.val.string.len = strlen(converted);
	(void) pushJsonbValue(state, token, &value);
}

static Datum
headers_of(const OutboxEvent *event)
{
	JsonbParseState *state = NULL;

	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < event->message.header_count; i++)
	{
		push_string(&state, WJB_KEY, event->message.headers[i].key);
		push_string(&state, WJB_VALUE, event->message.headers[i].value);
	}
	if (event->message.ttl != NULL)
	{
		push_string(&state, WJB_KEY, OUTBOX_TTL_HEADER);
		push_string(&state, WJB_VALUE, event->message.ttl);
	}
	return JsonbPGetDatum(JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL)));
}

static void
put_event(ReturnSetInfo *result, const OutboxEvent *event)
{
	Datum		values[9];
	bool		nulls[9] = {false};
	bytea	   *payload = palloc(VARHDRSZ + event->message.data_len);

	SET_VARSIZE(payload, VARHDRSZ + event->message.data_len);
	memcpy(VARDATA(payload), event->message.data, event->message.data_len);
	values[0] = Int64GetDatum(event->schedule.position);
	values[1] = DirectFunctionCall1(uuid_in, CStringGetDatum(event->event_id));
	values[2] = CStringGetTextDatum(event->aggregate_type);
	values[3] = CStringGetTextDatum(event->aggregate_id);
	values[4] = CStringGetTextDatum(event->event_type);
	values[5] = CStringGetTextDatum(from_utf8(event->message.subject));
	values[6] = headers_of(event);
	values[7] = PointerGetDatum(payload);
	values[8] = Int32GetDatum(event->attempts);
	tuplestore_putvalues(result->setResult, result->setDesc, values, nulls);
}

/* Gives out heads that are ready, up to max. */
static int
give(OutboxRelay *relay, ReturnSetInfo *result, int max)
{
	int			count = 0;

	while (count < max && !relay->pauses.all && relay->failure_count < OUTBOX_FAILURE_BATCH)
	{
		OutboxEvent *event = (OutboxEvent *) outbox_schedule_next(relay->schedule, outbox_clock_now());

		if (event == NULL)
			break;
		event->claim = outbox_claims_take(relay, event->schedule.position);
		if (event->claim < 0)
		{
			outbox_schedule_return(relay->schedule, &event->schedule);
			break;
		}
		if (event->broken != NULL)
		{
			outbox_outcome_add_failure(relay, event, 0, psprintf("outbox relay: %s", event->broken), outbox_clock_now())->final = event;
			continue;
		}
		if (outbox_pause_holds(&relay->pauses, event->aggregate_type, event->message.subject))
		{
			outbox_claims_release(relay, event->claim, event->schedule.position);
			outbox_schedule_retry(relay->schedule, &event->schedule, PG_INT64_MAX, event->schedule.failures);
			continue;
		}
		outbox_session_give(event);
		put_event(result, event);
		count++;
	}
	return count;
}

/* One look at what is due. */
static int
claim_once(OutboxRelay *relay, ReturnSetInfo *result, int max)
{
	int			count = 0;

	if (outbox_membership_wants_change(relay))
		relay->changing = true;
	/* Slots change hands when nothing of them is given out. */
	if (relay->changing && in_flight(relay) == 0 && relay->acked_count == 0 && relay->failure_count == 0)
	{
		outbox_membership_change(relay);
		relay->changing = false;
	}
	if (!relay->changing && relay->slots != 0)
	{
		if (relay->request_count == 0 &&
			(pg_atomic_read_u32(&relay->database->requests) != relay->requests_seen || outbox_clock_now() >= relay->requests_at))
		{
			outbox_store_record_requests(relay);
			outbox_store_enact_redriven(relay);
		}
		if (outbox_clock_was_set())
			outbox_schedule_end_waits(relay->schedule);
		outbox_store_refill(relay);
		outbox_store_read(relay);
		count = give(relay, result, max);
		outbox_store_begin(relay);
		outbox_store_record(relay);
		outbox_store_end(relay);
		if (outbox_clock_now() >= relay->watermark_at)
		{
			outbox_store_advance_watermark(relay);
			relay->watermark_at = outbox_clock_now() + WATERMARK_US;
		}
	}
	outbox_backlog_say(relay, outbox_clock_now());
	pg_atomic_write_u64(&relay->self->in_flight, in_flight(relay));
	return count;
}

static void
wait_for_events(OutboxRelay *relay, int64 until)
{
	int64		now = outbox_clock_now();
	int64		next = Min(until, outbox_schedule_next_timer(relay->schedule));
	int64		ms = Min((next - now + 999) / 1000, LOOK_MS);

	if (ms > 0)
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, (long) ms, OUTBOX_WAIT_EVENT("OutboxClaim"));
	ResetLatch(MyLatch);
	CHECK_FOR_INTERRUPTS();
	outbox_membership_renew(relay);
}

static int64
interval_us(Interval *interval, const char *name)
{
	Datum		start = TimestampTzGetDatum(GetCurrentTimestamp());
	TimestampTz	end = DatumGetTimestampTz(DirectFunctionCall2(timestamptz_pl_interval, start, IntervalPGetDatum(interval)));

	if (end < DatumGetTimestampTz(start))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("%s must not be negative", name)));
	return end - DatumGetTimestampTz(start);
}

/* outbox.claim(max_events integer, wait interval) */
Datum
outbox_claim(PG_FUNCTION_ARGS)
{
	int			max = PG_GETARG_INT32(0);
	int64		until = outbox_clock_now() + interval_us(PG_GETARG_INTERVAL_P(1), "wait");
	ReturnSetInfo *result = (ReturnSetInfo *) fcinfo->resultinfo;
	OutboxRelay *relay;

	if (max < 1 || max > OUTBOX_OUTSIDE_CLAIMED)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("max_events must be between 1 and %d", OUTBOX_OUTSIDE_CLAIMED)));
	InitMaterializedSRF(fcinfo, 0);
	relay = outbox_session_ready(true);
	/* A verdict or a discard frees others once this transaction has committed: nothing to wait for. */
	while (claim_once(relay, result, max) == 0 && relay->failure_count == 0 && relay->request_count == 0 &&
		   outbox_clock_now() < until)
		wait_for_events(relay, until);
	return (Datum) 0;
}

/* ------------------------------------------------------------ settle, fail */

static void
record(OutboxRelay *relay)
{
	outbox_store_begin(relay);
	outbox_store_record(relay);
	outbox_store_end(relay);
	outbox_backlog_say(relay, outbox_clock_now());
	pg_atomic_write_u64(&relay->self->in_flight, in_flight(relay));
}

/* outbox.settle(positions bigint[]): they are published. Returns how many of them this session had claimed. */
Datum
outbox_settle(PG_FUNCTION_ARGS)
{
	OutboxRelay *relay = outbox_session_ready(false);
	Datum	   *positions;
	bool	   *nulls;
	int			count;
	int			settled = 0;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(0), INT8OID, 8, FLOAT8PASSBYVAL, TYPALIGN_DOUBLE, &positions, &nulls, &count);
	for (int i = 0; i < count; i++)
	{
		OutboxEvent *event = nulls[i] ? NULL : outbox_session_take_back(DatumGetInt64(positions[i]));

		if (event == NULL)
			continue;
		relay->acked[relay->acked_count++] = (OutboxAcked) {
			event->schedule.position, event->home, event->claim, event->has_delivery, outbox_clock_now()};
		outbox_count_published(relay, event, outbox_clock_now());
		outbox_schedule_done(relay->schedule, &event->schedule, outbox_clock_now());
		settled++;
	}
	record(relay);
	PG_RETURN_INT32(settled);
}

/*
 * outbox.fail(position bigint, error text, code integer, permanent boolean,
 * counts boolean): it could not be published. False: it isn't claimed.
 */
Datum
outbox_fail(PG_FUNCTION_ARGS)
{
	OutboxRelay *relay = outbox_session_ready(false);
	OutboxEvent *event;
	OutboxFailure *entry;
	char	   *error = psprintf("outside relay: %s", text_to_cstring(PG_GETARG_TEXT_PP(1)));
	int64		now = outbox_clock_now();

	if (relay->failure_count == OUTBOX_FAILURE_BATCH)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("too many failures in one transaction"),
				 errdetail("There may be %d.", OUTBOX_FAILURE_BATCH),
				 errhint("Commit, and go on.")));
	event = outbox_session_take_back(PG_GETARG_INT64(0));
	if (event == NULL)
		PG_RETURN_BOOL(false);
	error[pg_mbcliplen(error, strlen(error), sizeof(entry->text) - 1)] = '\0';
	entry = outbox_outcome_add_failure(relay, event, PG_GETARG_INT32(2), error, now);
	entry->counted = PG_GETARG_BOOL(4);
	outbox_count_failure(relay, event, PG_GETARG_BOOL(4) ? OUTBOX_ERROR_TRANSIENT : OUTBOX_ERROR_BROKER, "outside relay", entry->code,
						 error);
	if (PG_GETARG_BOOL(3) || (entry->counted && event->attempts + 1 >= outbox_max_attempts))
		entry->final = event;
	else
	{
		int			failures = event->schedule.failures + 1;

		entry->retry_at = outbox_outcome_retry_time(failures, now);
		outbox_claims_release(relay, event->claim, event->schedule.position);
		if (entry->counted)
			outbox_schedule_postpone(relay->schedule, &event->schedule, entry->retry_at, failures);
		else
			outbox_schedule_retry(relay->schedule, &event->schedule, entry->retry_at, failures);
	}
	record(relay);
	PG_RETURN_BOOL(true);
}

/* outbox.renew(): until when the lease lasts. */
Datum
outbox_renew(PG_FUNCTION_ARGS)
{
	(void) outbox_session_ready(false);
	PG_RETURN_TIMESTAMPTZ(GetCurrentTimestamp() + outbox_lease_ttl * INT64CONST(1000));
}

/* outbox.release(): what was claimed and isn't settled goes to others, or to a later claim. */
Datum
outbox_release(PG_FUNCTION_ARGS)
{
	outbox_session_end();
	PG_RETURN_VOID();
}
