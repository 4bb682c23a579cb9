/*
 * complaint.h
 *	  When the words of a trouble that lasts are worth a line in the log.
 *
 * Pure logic: no clock of its own, no allocation, no PostgreSQL, no NATS.
 */
#ifndef OUTBOX_COMPLAINT_H
#define OUTBOX_COMPLAINT_H

#include <stdbool.h>
#include <stdint.h>

#define OUTBOX_COMPLAINT_SIZE 256

/* First and longest time between two lines, microseconds. */
#define OUTBOX_COMPLAINT_PAUSE INT64_C(1000000)
#define OUTBOX_COMPLAINT_MAX_PAUSE INT64_C(600000000)

typedef struct OutboxComplaint
{
	bool		uttered;		/* since the trouble began */
	char		text[OUTBOX_COMPLAINT_SIZE];	/* the last one */
	int64_t		pause;
	int64_t		not_before;
	int			failures;		/* since the last one */
} OutboxComplaint;

/* Another trouble, or none any more: what comes next is said at once. */
extern void outbox_complaint_begin(OutboxComplaint *complaint);

/* What is tried has failed once more. */
extern void outbox_complaint_failed(OutboxComplaint *complaint);

/*
 * Whether to log this text now: it differs from the last one logged, and enough
 * time has passed. If so, it is taken for logged, and *failures says how many
 * there were since the last one.
 */
extern bool outbox_complaint_is_due(OutboxComplaint *complaint, const char *text, int64_t now, int *failures);

#endif							/* OUTBOX_COMPLAINT_H */
