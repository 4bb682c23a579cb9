/*
 * stream.c
 *	  JetStream: one stream that stores, drops duplicates within its window, and
 *	  refuses what is flawed, or all for a while.
 */
#include "stream.h"
#include "check.h"

#include <string.h>

static int	refuses;			/* see sim_broker_refuse() */

void
sim_stream_reset(void)
{
	refuses = 0;
}

/*
 * 1: the broker as a whole; 2: the stream; 3: nobody listens to one type's subjects;
 * 4: silence; 5: an unknown failure of the server; 6: one type's subjects are forbidden.
 */
void
sim_broker_refuse(int how)
{
	refuses = how;
	sim_trace("broker refuses in way %lld", how);
}

static BrokerOutcome
refusal(int code, int status)
{
	BrokerOutcome outcome = {.kind = BROKER_REFUSED, .code = code, .status = status};

	strcpy(outcome.text, "simulated");
	return outcome;
}

/* What the stream says to a message. False: nothing. */
static bool
decide(Row *row, const SimMessage *message, BrokerOutcome *answer)
{
	*answer = (BrokerOutcome) {.kind = BROKER_ACKED};
	switch (refuses)
	{
		case 1:
			*answer = refusal(10008, 503);
			return true;
		case 2:
			*answer = refusal(10077, 503);
			return true;
		case 3:
		case 6:
			answer->kind = refuses == 3 ? BROKER_NO_RESPONDERS : BROKER_DENIED;
			if (message->type[1] != '0')
				break;
			return true;
		case 4:
			return false;
		case 5:
			*answer = refusal(10999, 500);
			return true;
	}
	answer->kind = BROKER_ACKED;
	if (row->flaw == FLAW_PERMANENT)
		*answer = refusal(10054, 400);
	else if (row->flaw == FLAW_TRANSIENT && row->refusals_left > 0)
	{
		row->refusals_left--;
		*answer = refusal(10999, 400);
	}
	else if (row->stored > 0 && sim_now - row->stored_at < plan.dedup_window)
		answer->duplicate = true;
	else
	{
		sim_check_stored(row);
		row->stored++;
		row->stored_at = sim_now;
		sim_trace("stream stores position %lld, copy %lld", row->position, row->stored);
	}
	return true;
}

bool
sim_stream_take(const SimMessage *message, BrokerOutcome *answer)
{
	Row		   *row = sim_log_find(message->position);

	if (row == NULL)
		sim_fail("position %lld arrives at the stream, but its transaction never was", (long long) message->position);
	if (!decide(row, message, answer))
		return false;
	if (!sim_faults || !sim_one_in(plan.lose_ack))
		return true;
	sim_trace("answer to position %lld is lost", message->position);
	answer->kind = BROKER_BAD_REPLY;
	return sim_one_in(2);
}
