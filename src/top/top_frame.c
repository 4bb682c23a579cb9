/*
 * top_frame.c
 *	  What outbox-top shows, as lines with marks for how they look: the figures
 *	  at the top here, what is below them in top_table.c. Knows no terminal: the
 *	  width and height are given.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "top.h"

/* Below this height the lines that one can do without are left out. */
#define SMALL 16

/* Cut to the width; nothing if there is no room for another line. */
void
top_frame_add(TopFrame *frame, const char *text)
{
	if (frame->height > 0 && frame->count >= frame->height)
		return;
	if (frame->count == frame->room)
	{
		int			room = frame->room == 0 ? 64 : frame->room * 2;
		void	   *lines = realloc(frame->lines, (size_t) room * TOP_LINE);

		if (lines == NULL)
			return;
		frame->lines = lines;
		frame->room = room;
	}
	top_clip(text, frame->lines[frame->count], TOP_LINE, frame->width);
	frame->count++;
}

void
top_frame_free(TopFrame *frame)
{
	free(frame->lines);
	*frame = (TopFrame) {0};
}

/* ------------------------------------------------- lines of several figures */

typedef struct Parts
{
	int			width;
	int			used;
	char		text[TOP_LINE];
} Parts;

/* Appends a figure, two blanks behind the one before; what doesn't fit as a whole is left out. */
static void put(Parts *parts, const char *format, ...) __attribute__((format(printf, 2, 3)));

static void
put(Parts *parts, const char *format, ...)
{
	char		text[1024];
	va_list		arguments;
	int			width;
	size_t		len = strlen(parts->text);

	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	width = top_width(text) + (parts->used > 0 ? 2 : 0);
	if (parts->used + width > parts->width || len + strlen(text) + 8 > sizeof(parts->text))
		return;
	snprintf(parts->text + len, sizeof(parts->text) - len, "%s%s" TOP_PLAIN, parts->used > 0 ? "  " : "", text);
	parts->used += width;
}

static void
flush(TopFrame *frame, Parts *parts)
{
	top_frame_add(frame, parts->text);
	*parts = (Parts) {.width = frame->width};
}

static void
add_title(TopFrame *frame, const TopState *state, const TopSnapshot *now)
{
	Parts		parts = {.width = frame->width};
	char		database[256];
	const char *name = top_value(now, TOP_SUMMARY, 0, 0);

	top_clean(name == NULL ? "" : name, database, sizeof(database));
	put(&parts, TOP_BOLD "outbox-top");
	if (state->trouble != NULL)
		put(&parts, TOP_BAD "NO DATA");
	else if (state->paused)
		put(&parts, TOP_WARN "PAUSED");
	put(&parts, TOP_BOLD "%s", database);
	put(&parts, "%s", top_value(now, TOP_SUMMARY, 0, 1));
	if (state->interactive)
		put(&parts, "every %gs", (double) state->interval_ms / 1000);
	if (state->where[0] != '\0')
		put(&parts, "%s", state->where);
	flush(frame, &parts);
}

/* The first reason of outbox.health(), or what is wrong with the connection. */
static void
add_health(TopFrame *frame, const TopState *state, const TopSnapshot *now)
{
	char		line[TOP_LINE];
	char		reason[128];
	char		detail[512];
	char		more[32] = "";
	const char *verdict = top_value(now, TOP_REASONS, 0, 0);
	int			count = PQntuples(now->results[TOP_REASONS]);

	if (state->trouble != NULL)
	{
		snprintf(line, sizeof(line), TOP_BAD "It tries again; the figures are old. %s", state->trouble);
		top_frame_add(frame, line);
		return;
	}
	if (verdict == NULL || strcmp(verdict, "ok") == 0)
	{
		top_frame_add(frame, TOP_GOOD "OK" TOP_PLAIN "  events flow");
		return;
	}
	top_clean(top_value(now, TOP_REASONS, 0, 1) == NULL ? "" : top_value(now, TOP_REASONS, 0, 1), reason, sizeof(reason));
	top_clean(top_value(now, TOP_REASONS, 0, 2) == NULL ? "" : top_value(now, TOP_REASONS, 0, 2), detail, sizeof(detail));
	if (count > 1)
		snprintf(more, sizeof(more), " (and %d more)", count - 1);
	snprintf(line, sizeof(line), "%s%s" TOP_PLAIN "%s  " TOP_BOLD "%s" TOP_PLAIN "  %s", strcmp(verdict, "critical") == 0 ? TOP_BAD : TOP_WARN,
			 strcmp(verdict, "critical") == 0 ? "CRITICAL" : "WARNING", more, reason, detail);
	top_frame_add(frame, line);
}

static void
add_flow(TopFrame *frame, const TopSnapshot *now, const TopSnapshot *before)
{
	static const char *const names[] = {"in", "out", "failed"};
	Parts		parts = {.width = frame->width};
	char		number[32];
	double		backlog = top_double(now, TOP_SUMMARY, 0, 3);

	top_number(backlog, number, sizeof(number));
	put(&parts, "Waiting " TOP_BOLD "%s", number);
	for (int i = 0; i < 3; i++)
	{
		double		rate = top_flow_rate(now, before, i + 1);

		if (rate < 0)
			strcpy(number, "-");
		else
			top_rate(rate, number, sizeof(number));
		put(&parts, "%s "
					"%s%s" TOP_PLAIN "/s",
			names[i], i == 2 && rate > 0 ? TOP_WARN : TOP_BOLD, number);
	}
	if (backlog > 0)
	{
		top_age(top_double(now, TOP_SUMMARY, 0, 4), number, sizeof(number));
		put(&parts, "oldest " TOP_BOLD "%s", number);
	}
	top_number(top_double(now, TOP_SUMMARY, 0, 5), number, sizeof(number));
	put(&parts, "in flight " TOP_BOLD "%s", number);
	flush(frame, &parts);
}

static void
add_trouble(TopFrame *frame, const TopSnapshot *now)
{
	Parts		parts = {.width = frame->width};
	double		dead = top_double(now, TOP_SUMMARY, 0, 10);
	double		blocked = top_double(now, TOP_SUMMARY, 0, 11);
	double		relays = top_double(now, TOP_SUMMARY, 0, 6);
	double		active = top_double(now, TOP_SUMMARY, 0, 7);
	char		number[32];
	char		server[256];

	top_number(dead, number, sizeof(number));
	put(&parts, "Dead letters %s%s", dead > 0 ? TOP_WARN : TOP_BOLD, number);
	top_number(blocked, number, sizeof(number));
	put(&parts, "blocked %s%s", blocked > 0 ? TOP_BAD : TOP_BOLD, number);
	top_number(top_double(now, TOP_SUMMARY, 0, 12), number, sizeof(number));
	put(&parts, "retried " TOP_BOLD "%s", number);
	put(&parts, "relays %s%.0f of %.0f", active < 1 ? TOP_BAD : active < relays ? TOP_WARN :
																				  TOP_BOLD,
		active, relays);
	if (top_value(now, TOP_SUMMARY, 0, 8) != NULL)
	{
		top_clean(top_value(now, TOP_SUMMARY, 0, 8), server, sizeof(server));
		put(&parts, "%s", server);
	}
	if (top_value(now, TOP_SUMMARY, 0, 9) != NULL)
	{
		top_clean(top_value(now, TOP_SUMMARY, 0, 9), server, sizeof(server));
		put(&parts, "stream %s", server);
	}
	flush(frame, &parts);
}

/* One stage of an event's way: the median and what is above it. */
static void
put_stage(Parts *parts, const TopSnapshot *now, const char *stage, const char *name, bool in_full)
{
	char		ages[4][32];

	for (int i = 0; i < PQntuples(now->results[TOP_LATENCY]); i++)
	{
		const char *found = top_value(now, TOP_LATENCY, i, 0);

		if (found == NULL || strcmp(found, stage) != 0 || top_double(now, TOP_LATENCY, i, 1) == 0)
			continue;
		for (int j = 0; j < 4; j++)
			top_age(top_double(now, TOP_LATENCY, i, 2 + j), ages[j], sizeof(ages[j]));
		if (in_full)
			put(parts, "%s p50 " TOP_BOLD "%s" TOP_PLAIN " p95 " TOP_BOLD "%s" TOP_PLAIN " p99 " TOP_BOLD "%s" TOP_PLAIN " max " TOP_BOLD "%s", name,
				ages[0], ages[1], ages[2], ages[3]);
		else
			put(parts, "%s p95 " TOP_BOLD "%s", name, ages[1]);
		return;
	}
	put(parts, "%s -", name);
}

static void
add_latencies(TopFrame *frame, const TopSnapshot *now)
{
	Parts		parts = {.width = frame->width};

	put_stage(&parts, now, "commit to ack", "Commit to ack", true);
	put_stage(&parts, now, "enqueue to commit", "enqueue to commit", false);
	put_stage(&parts, now, "ack to settle", "ack to settle", false);
	flush(frame, &parts);
}

/* A bar a minute, newest at the right; the minute that isn't over is left out. */
static void
add_spark(TopFrame *frame, const TopSnapshot *now)
{
	double		values[120];
	char		bars[512];
	char		line[TOP_LINE];
	double		top = 0;
	char		number[32];
	int			known = PQntuples(now->results[TOP_FLOW]) - 1;
	int			count = frame->width - 30 < 120 ? frame->width - 30 : 120;

	if (count < 10)
		return;
	count = known < count ? known : count;
	for (int i = 0; i < count; i++)
	{
		values[count - 1 - i] = top_double(now, TOP_FLOW, i + 1, 2);
		top = values[count - 1 - i] > top ? values[count - 1 - i] : top;
	}
	top_spark(values, count < 0 ? 0 : count, bars, sizeof(bars));
	top_number(top, number, sizeof(number));
	snprintf(line, sizeof(line), "Published/min, to %-7s " TOP_GOOD "%s" TOP_PLAIN "|", number, bars);
	top_frame_add(frame, line);
}

/* Where there is no room for all names, only the chosen one is in full. */
static void
add_tabs(TopFrame *frame, const TopState *state)
{
	char		line[TOP_LINE] = "";
	int			needed = -2;

	for (int i = 0; i < TOP_VIEWS; i++)
		needed += 4 + (int) strlen(top_views[i].title);
	for (int i = 0; i < TOP_VIEWS; i++)
	{
		bool		chosen = (int) state->view == i;
		bool		narrow = needed > frame->width;
		size_t		used = strlen(line);

		snprintf(line + used, sizeof(line) - used, "%s%s%d %.*s%s", i == 0 ? "" : narrow ? " " :
																						   "  ",
				 chosen ? TOP_CHOSEN : "", i + 1,
				 narrow && !chosen ? 4 : 16, top_views[i].title, chosen ? TOP_PLAIN : "");
	}
	top_frame_add(frame, line);
}

static void
add_plain_title(TopFrame *frame, const TopState *state)
{
	char		line[TOP_LINE];

	snprintf(line, sizeof(line), "%s:", top_views[state->view].title);
	top_frame_add(frame, line);
}

static const char *const help_lines[] = {
	TOP_BOLD "Keys",			/* NOLINT(bugprone-suspicious-missing-comma): one line, a mark and its text */
	"1 to 8       types, streams, subjects, relays, dead letters, blocked,",
	"             errors, health",
	"Tab, arrows  the next view, the one before",
	"up, down, PgUp, PgDn, Home, End, j, k   choose a row",
	"Enter        types: its subjects; subjects: its dead letters; else all of a row",
	"Esc          back",
	"< >          sort by the column to the left, to the right",
	"r            the other direction",
	"space        pause",
	"+ -          look less often, more often",
	"Ctrl-L       draw all anew",
	"q            quit",
	"",
	TOP_BOLD "Figures",
	"Waiting      committed and not published yet",
	"in, out      events committed, and published, in a second",
	"Commit to ack, enqueue to commit, ack to settle: see outbox.latency",
	"What waits, by type and subject, is estimated where it is much.",
	"*            in a subject: any aggregate's id",
	"SLOTS        of 64 shares of the aggregates",
	"DEPTH        events behind the failed one, 10,000 at most",
};

static void
add_help(TopFrame *frame, TopState *state)
{
	int			count = (int) (sizeof(help_lines) / sizeof(help_lines[0]));

	for (int i = state->scroll; i < count && frame->count < frame->height - 1; i++)
		top_frame_add(frame, help_lines[i]);
}

static void
add_keys(TopFrame *frame, const TopState *state)
{
	Parts		parts = {.width = frame->width};
	char		filter[256];

	while (frame->count < frame->height - 1)
		top_frame_add(frame, "");
	if (state->filter[0] != '\0')
	{
		char		cut[256];

		top_clean(state->filter, filter, sizeof(filter));
		top_clip(filter, cut, sizeof(cut), 30);
		put(&parts, TOP_WARN "type %s", cut);
	}
	if (state->rows > state->page && !state->help && !state->details)
		put(&parts, TOP_BOLD "row %d of %d", state->chosen + 1, state->rows);
	put(&parts, "q quit");
	put(&parts, "? help");
	if (state->help || state->details || state->filter[0] != '\0')
		put(&parts, "Esc back");
	put(&parts, "space %s", state->paused ? "go on" : "pause");
	if (!state->help && !state->details)
	{
		put(&parts, "< > r sort");
		put(&parts, "Enter more");
		put(&parts, "Tab view");
		put(&parts, "+ - interval");
	}
	flush(frame, &parts);
}

/* All lines. now NULL: nothing has come yet. */
void
top_frame_make(TopFrame *frame, TopState *state, const TopSnapshot *now, const TopSnapshot *before)
{
	bool		small = frame->height > 0 && frame->height < SMALL;

	frame->count = 0;
	if (now == NULL)
	{
		top_frame_add(frame, "connecting ...");
		return;
	}
	add_title(frame, state, now);
	if (state->help)
		add_help(frame, state);
	else
	{
		add_health(frame, state, now);
		add_flow(frame, now, before);
		add_trouble(frame, now);
		if (!small)
		{
			add_latencies(frame, now);
			if (state->interactive)
				add_spark(frame, now);
		}
		if (state->interactive)
			add_tabs(frame, state);
		else
			add_plain_title(frame, state);
		if (now->view != state->view || strcmp(now->filter, state->filter) != 0)
			top_frame_add(frame, TOP_DIM "...");
		else if (state->details)
			top_details_make(frame, state, now);
		else
			top_table_make(frame, state, now, before);
	}
	if (state->interactive)
	{
		/* the last line is for the keys, whatever is above it */
		frame->count = frame->count < frame->height ? frame->count : frame->height - 1;
		add_keys(frame, state);
	}
}
