/*
 * pause.c
 *	  Whether an event is paused. Pure logic like schedule.c.
 */
#include "pause.h"

#include <stddef.h>
#include <string.h>

bool
outbox_pause_matches(const char *pattern, const char *subject)
{
	while (*pattern != '\0' && *subject != '\0')
	{
		size_t		want = strcspn(pattern, ".");
		size_t		have = strcspn(subject, ".");

		if (want == 1 && pattern[0] == '>' && pattern[1] == '\0')
			return have > 0;
		if (!(want == 1 && pattern[0] == '*') && (want != have || memcmp(pattern, subject, want) != 0))
			return false;
		pattern += want;
		subject += have;
		/* Both end here, or both go on behind a dot. */
		if (*pattern == '\0' || *subject == '\0')
			break;
		pattern++;
		subject++;
	}
	return *pattern == '\0' && *subject == '\0';
}

bool
outbox_pause_holds(const OutboxPauseList *list, const char *aggregate_type, const char *subject)
{
	for (int i = 0; i < list->count; i++)
	{
		const OutboxPause *pause = &list->pauses[i];

		if ((pause->aggregate_type == NULL || strcmp(pause->aggregate_type, aggregate_type) == 0) &&
			(pause->subject == NULL || outbox_pause_matches(pause->subject, subject)))
			return true;
	}
	return false;
}
