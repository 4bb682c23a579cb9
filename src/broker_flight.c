/*
 * broker_flight.c
 *	  The messages in flight: a slot for each, from broker_publish() taking it to
 *	  broker_poll() reporting it. Main thread only, and knows no NATS.
 *
 * Slots are listed in publish order, and the time to wait for an answer is the
 * same for all, so the head of the list is the first to time out. A slot's
 * generation changes with every use: an answer that comes after the timeout
 * finds another generation and is dropped.
 */
#include <stdlib.h>

#include "broker_internal.h"

#define NO_SLOT (-1)

static void
list_append(BrokerFlight *flight, BrokerSlotList *list, int slot)
{
	flight->slots[slot].previous = list->tail;
	flight->slots[slot].next = NO_SLOT;
	if (list->tail != NO_SLOT)
		flight->slots[list->tail].next = slot;
	else
		list->head = slot;
	list->tail = slot;
}

static void
list_remove(BrokerFlight *flight, BrokerSlotList *list, int slot)
{
	BrokerSlot *gone = &flight->slots[slot];

	if (gone->previous != NO_SLOT)
		flight->slots[gone->previous].next = gone->next;
	else
		list->head = gone->next;
	if (gone->next != NO_SLOT)
		flight->slots[gone->next].previous = gone->previous;
	else
		list->tail = gone->previous;
}

bool
broker_flight_create(BrokerFlight *flight)
{
	flight->free_head = NO_SLOT;
	flight->waiting = flight->lost = (BrokerSlotList) {NO_SLOT, NO_SLOT};
	/* calloc leaves the table's pages untouched until messages are in flight. */
	flight->slots = calloc(BROKER_MAX_SLOTS, sizeof(BrokerSlot));
	return flight->slots != NULL;
}

void
broker_flight_free(BrokerFlight *flight)
{
	free(flight->slots);
}

/* A slot for a message about to be sent; there must be one, see flight->count. */
int
broker_flight_take(BrokerFlight *flight)
{
	int			slot = flight->free_head;

	if (slot != NO_SLOT)
		flight->free_head = flight->slots[slot].next;
	else
		slot = flight->used++;
	flight->slots[slot].generation++;
	return slot;
}

/* Back with a slot: its message was not sent, or has been reported. */
void
broker_flight_give_back(BrokerFlight *flight, int slot)
{
	flight->slots[slot].next = flight->free_head;
	flight->free_head = slot;
}

/* The message is on its way: exactly one report will follow. */
void
broker_flight_begin(BrokerFlight *flight, int slot, void *cookie, int64_t sent_us)
{
	flight->slots[slot].cookie = cookie;
	flight->slots[slot].sent_us = sent_us;
	flight->slots[slot].waiting = true;
	list_append(flight, &flight->waiting, slot);
	flight->count++;
}

/* Whether an answer with this token is for a message that still waits. */
bool
broker_flight_waits(const BrokerFlight *flight, uint32_t slot, uint32_t generation)
{
	return slot < (uint32_t) flight->used && flight->slots[slot].waiting &&
		flight->slots[slot].generation == generation;
}

/* When the message that has waited longest was sent; INT64_MAX if none waits. */
int64_t
broker_flight_oldest_us(const BrokerFlight *flight)
{
	return flight->waiting.head == NO_SLOT ? INT64_MAX : flight->slots[flight->waiting.head].sent_us;
}

/* The messages that wait will get no answer any more. */
void
broker_flight_lose(BrokerFlight *flight)
{
	int			slot;

	while ((slot = flight->waiting.head) != NO_SLOT)
	{
		list_remove(flight, &flight->waiting, slot);
		flight->slots[slot].waiting = false;
		list_append(flight, &flight->lost, slot);
	}
}

static int64_t
report(BrokerFlight *flight, BrokerSlotList *list, int slot, BrokerOutcome *outcome,
	   BrokerOutcomeKind kind)
{
	outcome->cookie = flight->slots[slot].cookie;
	outcome->kind = kind;
	outcome->duplicate = false;
	outcome->sequence = 0;
	outcome->code = 0;
	outcome->round_trip_us = 0;
	outcome->text[0] = '\0';
	flight->slots[slot].waiting = false;
	list_remove(flight, list, slot);
	broker_flight_give_back(flight, slot);
	flight->count--;
	return flight->slots[slot].sent_us;
}

/* The slot's message, which waits, is reported; returns when it was sent. */
int64_t
broker_flight_report(BrokerFlight *flight, uint32_t slot, BrokerOutcome *outcome,
					 BrokerOutcomeKind kind)
{
	return report(flight, &flight->waiting, (int) slot, outcome, kind);
}

/* Reports the message that has waited longest as timed out; returns when it was sent. */
int64_t
broker_flight_report_oldest(BrokerFlight *flight, BrokerOutcome *outcome)
{
	return report(flight, &flight->waiting, flight->waiting.head, outcome, BROKER_TIMED_OUT);
}

bool
broker_flight_any_lost(const BrokerFlight *flight)
{
	return flight->lost.head != NO_SLOT;
}

/* Reports the first of the lost messages; there must be one. */
void
broker_flight_report_lost(BrokerFlight *flight, BrokerOutcome *outcome)
{
	report(flight, &flight->lost, flight->lost.head, outcome, BROKER_LOST);
}
