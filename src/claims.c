/*
 * claims.c
 *	  Notes in shared memory which positions a relay has handed to the broker,
 *	  for outbox.events.publish_state.
 *
 * Each relay uses a part of the database's array and is its only writer, but
 * for the times in which the number of relays changes, or another one has taken
 * over from one that is frozen: so an entry is taken only if it is free, says
 * whose it is, and is freed only if it still holds what was put there.
 */
#include "relay.h"

/* Takes on the part that the place has now. With nothing handed to the broker. */
void
outbox_claims_reset(OutboxRelay *relay)
{
	LWLockAcquire(&relay->database->slots_lock, LW_SHARED);
	relay->claims.first = relay->self->claim_first;
	relay->claims.count = relay->self->claim_count;
	LWLockRelease(&relay->database->slots_lock);
	relay->claims.next = 0;
	relay->claims.held = 0;
}

/* An index for outbox_claims_release(); -1: no entry is free. */
int
outbox_claims_take(OutboxRelay *relay, int64 position)
{
	OutboxClaims *claims = &relay->claims;

	if (claims->held == claims->count)
		return -1;
	for (int tries = 0; tries < claims->count; tries++)
	{
		int			index = claims->first + claims->next;
		uint64		free = 0;

		claims->next = (claims->next + 1) % claims->count;
		if (!pg_atomic_compare_exchange_u64(&relay->database->claimed[index], &free, outbox_claim_entry(relay->member.place, position)))
			continue;
		claims->held++;
		return index;
	}
	return -1;
}

void
outbox_claims_release(OutboxRelay *relay, int index, int64 position)
{
	uint64		expected = outbox_claim_entry(relay->member.place, position);

	(void) pg_atomic_compare_exchange_u64(&relay->database->claimed[index], &expected, 0);
	relay->claims.held--;
}
