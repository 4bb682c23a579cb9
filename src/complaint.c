/*
 * complaint.c
 *	  When the words of a trouble that lasts are worth a line in the log.
 *
 * The same words are said once. Words that change are said again, but at
 * doubling intervals: a peer that fails in two ways by turns would otherwise
 * have a line for each attempt.
 */
#include "complaint.h"

#include <string.h>

void
outbox_complaint_begin(OutboxComplaint *complaint)
{
	*complaint = (OutboxComplaint) {.uttered = false};
}

void
outbox_complaint_failed(OutboxComplaint *complaint)
{
	complaint->failures++;
}

bool
outbox_complaint_is_due(OutboxComplaint *complaint, const char *text, int64_t now, int *failures)
{
	size_t		length = strlen(text);

	if (length >= sizeof(complaint->text))
		length = sizeof(complaint->text) - 1;
	if (complaint->uttered)
	{
		bool		same = strncmp(complaint->text, text, length) == 0 && complaint->text[length] == '\0';

		if (same || now < complaint->not_before)
			return false;
	}
	complaint->pause = complaint->pause == 0 ? OUTBOX_COMPLAINT_PAUSE : complaint->pause * 2;
	if (complaint->pause > OUTBOX_COMPLAINT_MAX_PAUSE)
		complaint->pause = OUTBOX_COMPLAINT_MAX_PAUSE;
	complaint->not_before = now + complaint->pause;
	complaint->uttered = true;
	memcpy(complaint->text, text, length);
	complaint->text[length] = '\0';
	*failures = complaint->failures;
	complaint->failures = 0;
	return true;
}
