/*
 * replay_filter.c
 *	  Which events are replayed; and what a replay would send, counted.
 */
#include "replay_filter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "pause.h"

static bool
is_wanted(const char *wanted, const char *text)
{
	return wanted == NULL || strcmp(wanted, text) == 0;
}

bool
outbox_replay_filter_matches(const OutboxReplayFilter *filter, const OutboxEnvelope *envelope, const OutboxRow *row)
{
	char		buffer[OUTBOX_SUBJECT_BUFFER];
	const char *subject;

	if (row->position < filter->from_position || row->position > filter->to_position ||
		row->created_at < filter->from_time || row->created_at > filter->to_time ||
		!is_wanted(filter->event_type, row->event_type) || !is_wanted(filter->aggregate_type, row->aggregate_type) ||
		!is_wanted(filter->aggregate_id, row->aggregate_id))
		return false;
	if (filter->subject == NULL)
		return true;
	subject = outbox_envelope_subject(envelope, row, buffer);
	return subject != NULL && outbox_pause_matches(filter->subject, subject);
}

/* ------------------------------------------------------------------- times */

/* Days from 1970-01-01 to a day of the Gregorian calendar. */
static int64_t
days_of(int year, int month, int day)
{
	int64_t		y = month <= 2 ? year - 1 : year;
	int64_t		era = (y >= 0 ? y : y - 399) / 400;
	int64_t		of_era = y - era * 400;
	int64_t		of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;

	return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

/* Exactly so many digits. */
static bool
take_digits(const char **at, int count, int *value)
{
	*value = 0;
	for (int i = 0; i < count; i++, (*at)++)
	{
		if (**at < '0' || **at > '9')
			return false;
		*value = *value * 10 + **at - '0';
	}
	return true;
}

/* A fraction of a second in microseconds; further digits are cut off. */
static int
take_fraction(const char **at)
{
	int			micros = 0;
	int			scale = 100000;

	if (**at != '.')
		return 0;
	for ((*at)++; **at >= '0' && **at <= '9'; (*at)++, scale /= 10)
		micros += (**at - '0') * scale;
	return micros;
}

/* "Z", "+02", "+02:00", "+0200", or nothing, which is UTC. */
static bool
take_zone(const char **at, int *minutes)
{
	int			sign = **at == '-' ? -1 : 1;
	int			hour;
	int			minute = 0;

	*minutes = 0;
	if (**at == 'Z' || **at == 'z')
	{
		(*at)++;
		return true;
	}
	if (**at != '+' && **at != '-')
		return true;
	(*at)++;
	if (!take_digits(at, 2, &hour))
		return false;
	if (**at == ':')
		(*at)++;
	if (**at != '\0' && !take_digits(at, 2, &minute))
		return false;
	*minutes = sign * (hour * 60 + minute);
	return true;
}

bool
outbox_replay_parse_time(const char *text, int64_t *unix_us)
{
	static const int month_days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
	const char *at = text;
	int			year, month, day, hour = 0, minute = 0, second = 0, micros = 0, zone = 0;

	if (!take_digits(&at, 4, &year) || *at++ != '-' || !take_digits(&at, 2, &month) || *at++ != '-' || !take_digits(&at, 2, &day))
		return false;
	if (*at == 'T' || *at == 't' || *at == ' ')
	{
		at++;
		if (!take_digits(&at, 2, &hour) || *at++ != ':' || !take_digits(&at, 2, &minute))
			return false;
		if (*at == ':')
		{
			at++;
			if (!take_digits(&at, 2, &second))
				return false;
			micros = take_fraction(&at);
		}
		if (!take_zone(&at, &zone))
			return false;
	}
	if (*at != '\0' || month < 1 || month > 12 || day < 1 || day > month_days[month - 1] || hour > 23 || minute > 59 || second > 60)
		return false;
	/* A 29th of February that there isn't would be a 1st of March. */
	if (month == 2 && day == 29 && (year % 4 != 0 || (year % 100 == 0 && year % 400 != 0)))
		return false;
	*unix_us = (((days_of(year, month, day) * 24 + hour) * 60 + minute - zone) * 60 + second) * INT64_C(1000000) + micros;
	return true;
}

/* ---------------------------------------------------------------- counting */

static void
count_row(OutboxReplayCount *count, const OutboxRow *row)
{
	if (count->events == 0)
	{
		count->first_position = row->position;
		count->first_time = count->last_time = row->created_at;
	}
	count->events++;
	count->bytes += row->payload_len;
	count->last_position = row->position;
	if (row->created_at < count->first_time)
		count->first_time = row->created_at;
	if (row->created_at > count->last_time)
		count->last_time = row->created_at;
}

/* Where a type is, or is to be. */
static int
find_type(const OutboxReplaySurvey *survey, const char *event_type)
{
	int			from = 0;
	int			to = survey->type_count;

	while (from < to)
	{
		int			middle = (from + to) / 2;

		if (strcmp(survey->types[middle].event_type, event_type) < 0)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

/* From here on, gcc's analyzer takes names for lost: it forgets what is stored at an index that it doesn't know. */
#ifndef __clang__
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

static bool
add_type(OutboxReplaySurvey *survey, int at, const char *event_type)
{
	char	   *name = strdup(event_type);
	OutboxReplayCount *types = realloc(survey->types, sizeof(*types) * ((size_t) survey->type_count + 1));

	if (types != NULL)
		survey->types = types;
	if (name == NULL || types == NULL)
	{
		free(name);
		return false;
	}
	memmove(&types[at + 1], &types[at], sizeof(*types) * (size_t) (survey->type_count - at));
	types[at] = (OutboxReplayCount) {.event_type = name};
	survey->type_count++;
	return true;
}

bool
outbox_replay_survey_add(OutboxReplaySurvey *survey, const OutboxRow *row)
{
	int			at = find_type(survey, row->event_type);

	if ((at == survey->type_count || strcmp(survey->types[at].event_type, row->event_type) != 0) &&
		!add_type(survey, at, row->event_type))
		return false;
	count_row(&survey->types[at], row);
	count_row(&survey->all, row);
	return true;
}

void
outbox_replay_survey_free(OutboxReplaySurvey *survey)
{
	for (int i = 0; i < survey->type_count; i++)
		free(survey->types[i].event_type);
	free(survey->types);
	memset(survey, 0, sizeof(*survey));
}
