/*
 * top_table.c
 *	  The lower part of outbox-top: the table of a view, fitted into the width
 *	  there is, or all that is known of one of its rows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "top.h"

#define GAP 2
#define PLAIN_TEXT 60

typedef struct Layout
{
	const TopView *view;
	int			columns;
	int			widths[TOP_COLUMNS];	/* 0: not shown */
} Layout;

static int
total_width(const Layout *layout)
{
	int			total = -GAP;

	for (int i = 0; i < layout->columns; i++)
		total += layout->widths[i] > 0 ? layout->widths[i] + GAP : 0;
	return total;
}

/* Takes from the widest text that is above its least width; false: there is none. */
static bool
shrink_text(Layout *layout, int by)
{
	int			widest = -1;
	int			spare;

	for (int i = 0; i < layout->columns; i++)
	{
		if (layout->view->columns[i].kind == TOP_TEXT && layout->widths[i] > layout->view->columns[i].min_width &&
			(widest < 0 || layout->widths[i] > layout->widths[widest]))
			widest = i;
	}
	if (widest < 0)
		return false;
	spare = layout->widths[widest] - layout->view->columns[widest].min_width;
	/* in steps, so that several long texts share what there is */
	by = by > 4 ? 4 : by;
	layout->widths[widest] -= by < spare ? by : spare;
	return true;
}

static bool
drop_column(Layout *layout)
{
	int			last = -1;

	for (int i = 1; i < layout->columns; i++)
	{
		if (layout->widths[i] > 0 && layout->view->columns[i].rank > 0 &&
			(last < 0 || layout->view->columns[i].rank >= layout->view->columns[last].rank))
			last = i;
	}
	if (last >= 0)
		layout->widths[last] = 0;
	return last >= 0;
}

/* Natural widths; texts give way first, then columns go by their rank. */
static void
fit(Layout *layout, const TopRow *rows, int count, int width)
{
	for (int i = 0; i < layout->columns; i++)
	{
		/* room for the mark of the sort column */
		layout->widths[i] = top_width(layout->view->columns[i].title) + 1;
		for (int j = 0; j < count; j++)
		{
			int			needed = top_width(rows[j].cells[i].text);

			if (needed > layout->widths[i])
				layout->widths[i] = needed;
		}
	}
	while (total_width(layout) > width)
	{
		if (!shrink_text(layout, total_width(layout) - width) && !drop_column(layout))
			break;
	}
}

/* Appends a cell, with a gap to the one before: numbers to the right, text to the left. */
static void
put_cell(char *line, size_t size, const Layout *layout, int column, const char *text)
{
	char		cut[TOP_CELL * 2];
	int			width = layout->widths[column];
	size_t		used = strlen(line);
	int			gap = top_width(line) > 0 ? GAP : 0;
	int			blanks;

	if (width == 0)
		return;
	top_clip(text, cut, sizeof(cut), width);
	blanks = width - top_width(cut);
	if (layout->view->columns[column].kind == TOP_TEXT)
		snprintf(line + used, size - used, "%*s%s%*s", gap, "", cut, blanks, "");
	else
		snprintf(line + used, size - used, "%*s%s", gap + blanks, "", cut);
}

static void
add_head(TopFrame *frame, const TopState *state, const Layout *layout)
{
	char		line[TOP_LINE] = TOP_BAR;

	for (int i = 0; i < layout->columns; i++)
	{
		char		title[64];

		snprintf(title, sizeof(title), "%s%s", layout->view->columns[i].title,
				 i != state->sort[state->view] ? "" : top_utf8 ? state->down[state->view] ? "\xE2\x96\xBC" : "\xE2\x96\xB2" :
					 state->down[state->view]				   ? "v" :
																 "^");
		put_cell(line, sizeof(line), layout, i, title);
	}
	top_frame_add(frame, line);
}

/* What is in trouble is seen at once. NULL: nothing special. */
static const char *
mood_of(const TopView *view, int column, const TopCell *cell)
{
	static const struct
	{
		const char *text;
		const char *mood;
	}			moods[] = {
		{"active", TOP_GOOD}, {"ok", TOP_GOOD}, {"paused", TOP_WARN}, {"starting", TOP_WARN}, {"retrying", TOP_WARN}, {"skipped", TOP_WARN}, {"warning", TOP_WARN}};
	const char *title = view->columns[column].title;

	if ((strcmp(title, "DEAD") == 0 || strcmp(title, "FAIL/S") == 0) && cell->value > 0)
		return TOP_WARN;
	if (strcmp(title, "STATE") != 0 && strcmp(title, "VERDICT") != 0)
		return NULL;
	for (size_t i = 0; i < sizeof(moods) / sizeof(moods[0]); i++)
	{
		if (strcmp(cell->text, moods[i].text) == 0)
			return moods[i].mood;
	}
	return TOP_BAD;
}

static void
add_row(TopFrame *frame, const Layout *layout, const TopRow *row, bool chosen)
{
	char		line[TOP_LINE] = "";

	if (chosen)
		strcpy(line, TOP_CHOSEN);
	for (int i = 0; i < layout->columns; i++)
	{
		const char *mood = chosen ? NULL : mood_of(layout->view, i, &row->cells[i]);

		if (mood != NULL)
			strcat(line, mood);
		put_cell(line, sizeof(line) - 8, layout, i, row->cells[i].text);
		if (mood != NULL)
			strcat(line, TOP_PLAIN);
	}
	top_frame_add(frame, line);
}

/* Keeps the chosen row within what is shown. */
static void
scroll(TopState *state, int count, int page)
{
	state->rows = count;
	state->page = page;
	if (state->chosen >= count)
		state->chosen = count - 1;
	if (state->chosen < 0)
		state->chosen = 0;
	if (state->first > state->chosen)
		state->first = state->chosen;
	if (page > 0 && state->first < state->chosen - page + 1)
		state->first = state->chosen - page + 1;
	if (page == 0 || state->first < 0)
		state->first = 0;
}

void
top_table_make(TopFrame *frame, TopState *state, const TopSnapshot *now, const TopSnapshot *before)
{
	Layout		layout = {.view = &top_views[now->view]};
	int			count;
	TopRow	   *rows = top_rows(now, before, state->sort[state->view], state->down[state->view], &count);
	int			page = frame->height == 0 ? count : frame->height - frame->count - 2;

	layout.columns = top_view_columns(layout.view);
	if (!state->interactive)
	{
		/* a pipe has no width: nothing is dropped, but long texts are */
		for (int i = 0; i < count; i++)
		{
			for (int j = 0; j < layout.columns; j++)
			{
				char		cut[TOP_CELL];

				top_clip(rows[i].cells[j].text, cut, sizeof(cut), PLAIN_TEXT);
				strcpy(rows[i].cells[j].text, cut);
			}
		}
	}
	fit(&layout, rows, count, frame->width);
	add_head(frame, state, &layout);
	scroll(state, count, page > 0 ? page : 0);
	for (int i = state->first; i < count && i < state->first + state->page; i++)
		add_row(frame, &layout, &rows[i], state->interactive && i == state->chosen);
	if (count == 0)
		top_frame_add(frame, TOP_DIM "(none)");
	state->chosen_source = count > 0 ? rows[state->chosen].source : -1;
	free(rows);
}

/* "name: text", wrapped between words where that can be. */
static void
add_wrapped(TopFrame *frame, const char *name, const char *text, int *skip)
{
	int			room = frame->width - 16;
	bool		first = true;

	while (first || *text != '\0')
	{
		char		part[TOP_LINE];
		char		line[TOP_LINE + 64];
		char	   *blank;
		size_t		used;

		top_clip(text, part, sizeof(part), room);
		if (top_width(text) > room)
		{
			/* without the mark for what is cut */
			part[strlen(part) - (top_utf8 ? 3 : 1)] = '\0';
			blank = strrchr(part, ' ');
			if (blank != NULL && blank > part)
				blank[1] = '\0';
		}
		used = strlen(part);
		snprintf(line, sizeof(line), TOP_DIM "%-15.15s" TOP_PLAIN " %s", first ? name : "", part);
		if ((*skip)-- <= 0)
			top_frame_add(frame, line);
		if (used == 0)
			break;
		text += used;
		first = false;
	}
}

/* All columns of the chosen row's result. */
void
top_details_make(TopFrame *frame, TopState *state, const TopSnapshot *now)
{
	const PGresult *rows = now->results[TOP_ROWS];
	int			skip = state->scroll;

	if (state->chosen_source < 0 || state->chosen_source >= PQntuples(rows))
	{
		top_frame_add(frame, TOP_DIM "It is gone. Esc leads back.");
		return;
	}
	for (int i = 0; i < PQnfields(rows); i++)
	{
		const char *text = top_value(now, TOP_ROWS, state->chosen_source, i);
		char	   *clean = text == NULL ? NULL : malloc(strlen(text) + 1);

		if (clean != NULL)
			top_clean(text, clean, strlen(text) + 1);
		add_wrapped(frame, PQfname(rows, i), clean == NULL ? "-" : clean, &skip);
		free(clean);
	}
}
