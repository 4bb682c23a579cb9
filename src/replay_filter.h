/*
 * replay_filter.h
 *	  Which events are replayed; and what a replay would send, counted.
 *
 * Plain C, for sources that no database filters. Texts are UTF-8.
 */
#ifndef OUTBOX_REPLAY_FILTER_H
#define OUTBOX_REPLAY_FILTER_H

#include "envelope.h"

/* All that is given must match; ranges include both ends. */
typedef struct OutboxReplayFilter
{
	const char *subject;		/* a pattern; these four NULL: any */
	const char *event_type;
	const char *aggregate_type;
	const char *aggregate_id;
	int64_t		from_time;		/* of created_at, microseconds since 1970; INT64_MIN, INT64_MAX: no limit */
	int64_t		to_time;
	int64_t		from_position;
	int64_t		to_position;
} OutboxReplayFilter;

extern bool outbox_replay_filter_matches(const OutboxReplayFilter *filter, const OutboxEnvelope *envelope, const OutboxRow *row);

/* "2024-10-27T00:30:00.123400Z", "2024-10-27 00:30:00", "2024-10-27"; with an offset or in UTC. False: it is no time. */
extern bool outbox_replay_parse_time(const char *text, int64_t *unix_us);

/* Events of a type, or of all. */
typedef struct OutboxReplayCount
{
	char	   *event_type;		/* NULL: all */
	int64_t		events;
	int64_t		bytes;
	int64_t		first_position;
	int64_t		last_position;
	int64_t		first_time;
	int64_t		last_time;
} OutboxReplayCount;

typedef struct OutboxReplaySurvey
{
	OutboxReplayCount all;
	OutboxReplayCount *types;	/* sorted by name, malloc'd */
	int			type_count;
} OutboxReplaySurvey;

/* False: out of memory. Begin with all zero. */
extern bool outbox_replay_survey_add(OutboxReplaySurvey *survey, const OutboxRow *row);
extern void outbox_replay_survey_free(OutboxReplaySurvey *survey);

#endif							/* OUTBOX_REPLAY_FILTER_H */
