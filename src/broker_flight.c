/*
 * broker_flight.c
 *	  The messages in flight: a slot for each, or for a batch of them, from
 *	  broker_publish() taking it to broker_poll() reporting it. Main thread only, and knows no NATS.
 *
 * Slots are listed in publish order, and the time to wait for an answer is the
 * same for all, so the head of the list is the first to time out. A slot's
 * generation changes with every use: an answer that comes after the timeout
 * finds another generation and is dropped.
 */
#include <stdlib.h>
#include <string.h>

#include "broker_internal.h"

#define NO_SLOT (-1)

/* Longer buffers are not kept for the slot's next message. */
#define KEPT_SUBJECT_SIZE 256

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
	flight->waiting = flight->denied = flight->lost = (BrokerSlotList) {NO_SLOT, NO_SLOT};
	/* calloc leaves the table's pages untouched until messages are in flight. */
	flight->slots = calloc(BROKER_MAX_SLOTS, sizeof(BrokerSlot));
	return flight->slots != NULL;
}

void
broker_flight_free(BrokerFlight *flight)
{
	for (int i = 0; i < flight->used; i++)
		free(flight->slots[i].subject);
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

/* FNV-1a: an unequal hash spares a look at the subject. */
static uint64_t
hash_subject(const char *subject)
{
	uint64_t	hash = UINT64_C(14695981039346656037);

	for (; *subject != '\0'; subject++)
		hash = (hash ^ (unsigned char) *subject) * UINT64_C(1099511628211);
	return hash;
}

/* Without memory the slot has no subject, and a denial is seen as a timeout. */
static void
keep_subject(BrokerSlot *slot, const char *subject)
{
	int			size = (int) strlen(subject) + 1;

	if (size > slot->subject_size)
	{
		free(slot->subject);
		slot->subject_size = size < KEPT_SUBJECT_SIZE / 2 ? KEPT_SUBJECT_SIZE / 2 : size;
		slot->subject = malloc((size_t) slot->subject_size);
		if (slot->subject == NULL)
		{
			slot->subject_size = 0;
			return;
		}
	}
	memcpy(slot->subject, subject, (size_t) size);
	slot->subject_hash = hash_subject(subject);
}

static void
forget_subject(BrokerSlot *slot)
{
	if (slot->subject_size <= KEPT_SUBJECT_SIZE)
		return;
	free(slot->subject);
	slot->subject = NULL;
	slot->subject_size = 0;
}

/* The message, or a batch of so many, is on its way: exactly one report will follow. */
void
broker_flight_begin(BrokerFlight *flight, int slot, int count, void *cookie, int64_t sent_us,
					const char *subject)
{
	flight->slots[slot].cookie = cookie;
	flight->slots[slot].sent_us = sent_us;
	flight->slots[slot].count = count;
	flight->slots[slot].waiting = true;
	keep_subject(&flight->slots[slot], subject);
	flight->begun++;
	list_append(flight, &flight->waiting, slot);
	flight->count += count;
	flight->batches += count > 1;
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

/*
 * The slot whose subject begins with the given text, if all that do have the
 * same subject; else NO_SLOT.
 */
static int
find_beginning(const BrokerFlight *flight, const char *beginning, int len)
{
	int			found = NO_SLOT;

	for (int slot = flight->waiting.head; slot != NO_SLOT; slot = flight->slots[slot].next)
	{
		const BrokerSlot *candidate = &flight->slots[slot];

		if (candidate->subject == NULL || strncmp(candidate->subject, beginning, (size_t) len) != 0)
			continue;
		if (found != NO_SLOT && candidate->subject_hash != flight->slots[found].subject_hash)
			return NO_SLOT;
		found = slot;
	}
	return found;
}

/*
 * All messages that wait for an answer to this subject will get none: they are
 * denied. Of a cut subject only the beginning is given; it must be unambiguous.
 * Returns how many they are.
 */
int
broker_flight_deny(BrokerFlight *flight, const char *subject, int len, bool cut)
{
	int			like = cut ? find_beginning(flight, subject, len) : NO_SLOT;
	uint64_t	hash = like != NO_SLOT ? flight->slots[like].subject_hash : hash_subject(subject);
	int			count = 0;
	int			next;

	if (cut && like == NO_SLOT)
		return 0;
	for (int slot = flight->waiting.head; slot != NO_SLOT; slot = next)
	{
		BrokerSlot *candidate = &flight->slots[slot];

		next = candidate->next;
		if (candidate->subject_hash != hash || candidate->subject == NULL ||
			(cut ? strncmp(candidate->subject, subject, (size_t) len) : strcmp(candidate->subject, subject)) != 0)
			continue;
		list_remove(flight, &flight->waiting, slot);
		candidate->waiting = false;
		list_append(flight, &flight->denied, slot);
		count++;
	}
	return count;
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
	outcome->count = flight->slots[slot].count;
	outcome->code = 0;
	outcome->status = 0;
	outcome->round_trip_us = 0;
	flight->slots[slot].waiting = false;
	list_remove(flight, list, slot);
	forget_subject(&flight->slots[slot]);
	broker_flight_give_back(flight, slot);
	flight->count -= outcome->count;
	flight->batches -= outcome->count > 1;
	return flight->slots[slot].sent_us;
}

/* The slot's message, which waits, is reported, but for a text; returns when it was sent. */
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

bool
broker_flight_any_denied(const BrokerFlight *flight)
{
	return flight->denied.head != NO_SLOT;
}

/* Reports the first of the denied messages; there must be one. */
void
broker_flight_report_denied(BrokerFlight *flight, BrokerOutcome *outcome)
{
	int			slot = flight->denied.head;

	/* The subject goes with the report. */
	broker_text(outcome->text, "no permission to publish to subject \"%s\"", flight->slots[slot].subject);
	report(flight, &flight->denied, slot, outcome, BROKER_DENIED);
}
