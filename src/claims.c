/*
 * claims.c
 *	  Notes in shared memory which positions a relay has handed to the broker,
 *	  for outbox.events.publish_state.
 *
 * Each relay uses a part of the database's array and is its only writer, but
 * for the moments in which the number of relays changes, or one that was
 * frozen wakes up: so an entry is taken only if it is free, and freed only if
 * it still holds the position that was put there.
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
		if (!pg_atomic_compare_exchange_u64(&relay->database->claimed[index], &free, (uint64) position))
			continue;
		claims->held++;
		return index;
	}
	return -1;
}

void
outbox_claims_release(OutboxRelay *relay, int index, int64 position)
{
	uint64		expected = (uint64) position;

	(void) pg_atomic_compare_exchange_u64(&relay->database->claimed[index], &expected, 0);
	relay->claims.held--;
}
