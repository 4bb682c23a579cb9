/*
 * stream.c
 *	  JetStream: one stream that stores, drops duplicates within its window, and
 *	  refuses what is flawed, or all for a while. Batches it takes as nats-server
 *	  does: it stages their messages, and looks at them when the last has come.
 */
#include "stream.h"
#include "check.h"

#include <string.h>

static int	refuses;			/* see sim_broker_refuse() */

/* Batches that aren't complete. */
#define MAX_STAGED 64
static struct
{
	int64_t		id;				/* 0: free */
	int			count;
	int64_t		positions[SIM_MAX_BATCH];
	int64_t		last_at;
}			staged[MAX_STAGED];

void
sim_stream_reset(void)
{
	refuses = 0;
	memset(staged, 0, sizeof(staged));
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

static void
store(Row *row)
{
	sim_check_stored(row);
	row->stored++;
	row->stored_at = sim_now;
	sim_trace("stream stores position %lld, copy %lld", row->position, row->stored);
}

static bool
is_known(const Row *row)
{
	return row->stored > 0 && sim_now - row->stored_at < plan.dedup_window;
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
	else if (is_known(row))
		answer->duplicate = true;
	else
		store(row);
	return true;
}

/* Where a batch is staged, or a free place; one without messages for ten seconds is forgotten. */
static int
find_staged(int64_t id)
{
	int			found = -1;

	for (int i = 0; i < MAX_STAGED; i++)
	{
		if (staged[i].id != 0 && sim_now - staged[i].last_at > 10 * SECOND)
			staged[i].id = 0;
		if (staged[i].id == id)
			return i;
		if (staged[i].id == 0)
			found = i;
	}
	return found;
}

/* All of it or nothing. */
static void
commit(int64_t *positions, int count, BrokerOutcome *answer)
{
	for (int i = 0; i < count; i++)
	{
		Row		   *row = sim_log_find(positions[i]);

		if (is_known(row))
			*answer = refusal(10201, 400);
		else if (row->flaw == FLAW_TRANSIENT && row->refusals_left > 0)
			*answer = refusal(10999, 400);
		else
			continue;
		return;
	}
	*answer = (BrokerOutcome) {.kind = BROKER_ACKED, .count = count};
	for (int i = 0; i < count; i++)
		store(sim_log_find(positions[i]));
}

/* A message of a batch. False: nothing is said to it. */
static bool
stage(Row *row, const SimMessage *message, BrokerOutcome *answer)
{
	int			place = find_staged(message->batch);
	bool		forbidden = (refuses == 3 || refuses == 6) && message->type[1] == '0';

	if (refuses == 4)
		return false;
	if (refuses != 0 && !forbidden && refuses != 3 && refuses != 6)
		*answer = refuses == 1 ? refusal(10008, 503) : refuses == 2 ? refusal(10077, 503) : refusal(10999, 500);
	else if (forbidden)
		answer->kind = refuses == 3 ? BROKER_NO_RESPONDERS : BROKER_DENIED;
	else if (row->flaw == FLAW_PERMANENT)
		*answer = refusal(10054, 400);
	else if (place < 0 || message->sequence != (staged[place].id == 0 ? 1 : staged[place].count + 1))
	{
		*answer = refusal(10176, 400);
		if (place >= 0)
			staged[place].id = 0;
	}
	else
	{
		staged[place].id = message->batch;
		staged[place].count = message->sequence;
		staged[place].positions[message->sequence - 1] = message->position;
		staged[place].last_at = sim_now;
		if (message->commit)
		{
			staged[place].id = 0;
			commit(staged[place].positions, message->sequence, answer);
		}
	}
	return message->commit;
}

bool
sim_stream_take(const SimMessage *message, BrokerOutcome *answer)
{
	Row		   *row = sim_log_find(message->position);

	if (row == NULL)
		sim_fail("position %lld arrives at the stream, but its transaction never was", (long long) message->position);
	if (message->batch != 0 ? !stage(row, message, answer) : !decide(row, message, answer))
		return false;
	if (!sim_faults || !sim_one_in(plan.lose_ack))
		return true;
	sim_trace("answer to position %lld is lost", message->position);
	answer->kind = BROKER_BAD_REPLY;
	return sim_one_in(2);
}
