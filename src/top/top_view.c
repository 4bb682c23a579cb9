/*
 * top_view.c
 *	  What outbox-top can show in its table: a query and columns for each view,
 *	  and rows made of a snapshot, with rates against the one before, sorted.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "top.h"

const TopView top_views[TOP_VIEWS] = {
	[TOP_TYPES] = {
		.name = "types",
		.title = "Types",
		.query = "SELECT coalesce(t.aggregate_type, b.aggregate_type) AS aggregate_type, coalesce(b.pending, 0) AS waiting, extract(epoch FROM pg_catalog.clock_timestamp() - b.oldest) AS oldest,"
				 " t.published, t.bytes, t.failed, t.dead_letters, extract(epoch FROM pg_catalog.clock_timestamp() - t.last_published) AS last_published"
				 " FROM outbox.stat_aggregate_types t FULL JOIN outbox.report_backlog(500) b ON b.aggregate_type = t.aggregate_type",
		.keys = 1,
		.sort = 3,
		.down = true,
		.drill = TOP_SUBJECTS,
		.columns = {
			{"TYPE", 0, TOP_TEXT, 12, 0},
			{"WAITING", 1, TOP_COUNT, 0, 1},
			{"OLDEST", 2, TOP_AGE, 0, 3},
			{"PUB/S", 3, TOP_RATE, 0, 1},
			{"PUBLISHED", 3, TOP_COUNT, 0, 2},
			{"B/S", 4, TOP_BYTE_RATE, 0, 5},
			{"FAIL/S", 5, TOP_RATE, 0, 4},
			{"FAILED", 5, TOP_COUNT, 0, 5},
			{"DEAD", 6, TOP_COUNT, 0, 2},
			{"LAST", 7, TOP_AGE, 0, 4},
		},
	},
	[TOP_STREAMS] = {
		.name = "streams",
		.title = "Streams",
		.query = "SELECT stream, published, bytes, failed, dead_letters, extract(epoch FROM pg_catalog.clock_timestamp() - last_published) AS last_published FROM outbox.stat_streams",
		.keys = 1,
		.sort = 1,
		.down = true,
		.drill = -1,
		.columns = {
			{"STREAM", 0, TOP_TEXT, 12, 0},
			{"PUB/S", 1, TOP_RATE, 0, 1},
			{"PUBLISHED", 1, TOP_COUNT, 0, 1},
			{"B/S", 2, TOP_BYTE_RATE, 0, 2},
			{"BYTES", 2, TOP_BYTES, 0, 3},
			{"FAIL/S", 3, TOP_RATE, 0, 3},
			{"FAILED", 3, TOP_COUNT, 0, 2},
			{"DEAD", 4, TOP_COUNT, 0, 2},
			{"LAST", 5, TOP_AGE, 0, 2},
		},
	},
	[TOP_SUBJECTS] = {
		.name = "subjects",
		.title = "Subjects",
		.query = "SELECT subject, aggregate_type, pending AS waiting, extract(epoch FROM pg_catalog.clock_timestamp() - oldest) AS oldest, dead_letters, last_error FROM outbox.report_subjects(500, %s)",
		.filtered = true,
		.keys = 2,
		.sort = 1,
		.down = true,
		.drill = TOP_DEAD,
		.columns = {
			{"SUBJECT", 0, TOP_TEXT, 20, 0},
			{"WAITING", 2, TOP_COUNT, 0, 1},
			{"OLDEST", 3, TOP_AGE, 0, 2},
			{"DEAD", 4, TOP_COUNT, 0, 1},
			{"LAST ERROR", 5, TOP_TEXT, 16, 3},
		},
	},
	[TOP_RELAYS] = {
		.name = "relays",
		.title = "Relays",
		.query = "SELECT s.relay, s.pid, s.state, extract(epoch FROM pg_catalog.clock_timestamp() - s.since) AS since, s.backlog, s.in_flight, c.published, c.failed, s.slots, c.connects,"
				 " s.server, s.stream, s.last_error, c.settles, c.batches"
				 " FROM outbox.status() s LEFT JOIN outbox.stat_relays c ON c.relay = s.relay WHERE s.database = pg_catalog.current_database()",
		.keys = 2,
		.sort = 0,
		.down = false,
		.drill = -1,
		.columns = {
			{"RELAY", 0, TOP_COUNT, 0, 0},
			{"STATE", 2, TOP_TEXT, 12, 0},
			{"SINCE", 3, TOP_AGE, 0, 2},
			{"WAITING", 4, TOP_COUNT, 0, 1},
			{"FLYING", 5, TOP_COUNT, 0, 1},
			{"PUB/S", 6, TOP_RATE, 0, 1},
			{"FAIL/S", 7, TOP_RATE, 0, 3},
			{"SLOTS", 8, TOP_COUNT, 0, 4},
			{"CONN", 9, TOP_COUNT, 0, 5},
			{"SERVER", 10, TOP_TEXT, 16, 4},
			{"LAST ERROR", 12, TOP_TEXT, 16, 3},
		},
	},
	[TOP_DEAD] = {
		.name = "dead",
		.title = "Dead",
		.query = "SELECT event_id, extract(epoch FROM pg_catalog.clock_timestamp() - failed_at) AS failed_ago, aggregate_type, aggregate_id, event_type, attempts, error_code, state, last_error, failed_at, created_at"
				 " FROM outbox.report_dead_letters(200, %s)",
		.filtered = true,
		.keys = 1,
		.sort = 0,
		.down = false,
		.drill = -1,
		.columns = {
			{"AGO", 1, TOP_AGE, 0, 0},
			{"TYPE", 2, TOP_TEXT, 8, 0},
			{"ID", 3, TOP_TEXT, 8, 1},
			{"EVENT", 4, TOP_TEXT, 8, 3},
			{"TRIES", 5, TOP_COUNT, 0, 4},
			{"CODE", 6, TOP_COUNT, 0, 3},
			{"STATE", 7, TOP_TEXT, 8, 5},
			{"ERROR", 8, TOP_TEXT, 16, 2},
		},
	},
	[TOP_BLOCKED] = {
		.name = "blocked",
		.title = "Blocked",
		.query = "SELECT aggregate_type, aggregate_id, extract(epoch FROM pg_catalog.clock_timestamp() - since) AS age, depth, attempts, -extract(epoch FROM pg_catalog.clock_timestamp() - next_attempt_at) AS next_attempt_in, reason, error_code, last_error, head_event_id"
				 " FROM outbox.report_blocked(200, %s)",
		.filtered = true,
		.keys = 2,
		.sort = 2,
		.down = true,
		.drill = -1,
		.columns = {
			{"TYPE", 0, TOP_TEXT, 8, 0},
			{"ID", 1, TOP_TEXT, 8, 1},
			{"AGE", 2, TOP_AGE, 0, 0},
			{"DEPTH", 3, TOP_COUNT, 0, 1},
			{"TRIES", 4, TOP_COUNT, 0, 3},
			{"NEXT", 5, TOP_AGE, 0, 4},
			{"STATE", 6, TOP_TEXT, 8, 2},
			{"CODE", 7, TOP_COUNT, 0, 4},
			{"ERROR", 8, TOP_TEXT, 16, 3},
		},
	},
	[TOP_ERRORS] = {
		.name = "errors",
		.title = "Errors",
		.query = "SELECT class, source, code, count, extract(epoch FROM pg_catalog.clock_timestamp() - last_at) AS last, last_error FROM outbox.stat_errors",
		.keys = 3,
		.sort = 3,
		.down = true,
		.drill = -1,
		.columns = {
			{"CLASS", 0, TOP_TEXT, 10, 0},
			{"SOURCE", 1, TOP_TEXT, 9, 3},
			{"CODE", 2, TOP_COUNT, 0, 1},
			{"COUNT", 3, TOP_COUNT, 0, 0},
			{"PER S", 3, TOP_RATE, 0, 2},
			{"LAST", 4, TOP_AGE, 0, 2},
			{"TEXT", 5, TOP_TEXT, 16, 1},
		},
	},
	[TOP_HEALTH] = {
		.name = "health",
		.title = "Health",
		.query = "SELECT verdict, reason, detail, remedy FROM outbox.health()",
		.keys = 3,
		.sort = 0,
		.down = false,
		.drill = -1,
		.columns = {
			{"VERDICT", 0, TOP_TEXT, 8, 0},
			{"REASON", 1, TOP_TEXT, 12, 0},
			{"DETAIL", 2, TOP_TEXT, 20, 1},
			{"REMEDY", 3, TOP_TEXT, 20, 2},
		},
	},
};

int
top_view_columns(const TopView *view)
{
	int			count = 0;

	while (count < TOP_COLUMNS && view->columns[count].title != NULL)
		count++;
	return count;
}

/* Whether two rows of the same view are of the same thing. */
bool
top_same_row(const TopSnapshot *a, int row_a, const TopSnapshot *b, int row_b)
{
	for (int i = 0; i < top_views[a->view].keys; i++)
	{
		const char *x = top_value(a, TOP_ROWS, row_a, i);
		const char *y = top_value(b, TOP_ROWS, row_b, i);

		if ((x == NULL) != (y == NULL) || (x != NULL && strcmp(x, y) != 0))
			return false;
	}
	return true;
}

/* The row in the snapshot before; -1: none, or nothing to be compared with. */
static int
row_before(const TopSnapshot *now, int row, const TopSnapshot *before)
{
	if (before == NULL || before->view != now->view || strcmp(before->filter, now->filter) != 0 || before->at >= now->at)
		return -1;
	for (int i = 0; i < PQntuples(before->results[TOP_ROWS]); i++)
	{
		if (top_same_row(now, row, before, i))
			return i;
	}
	return -1;
}

static void
make_cell(TopCell *cell, const TopColumn *column, const TopSnapshot *now, int row, const TopSnapshot *before, int then)
{
	const char *text = top_value(now, TOP_ROWS, row, column->source);
	bool		is_rate = column->kind == TOP_RATE || column->kind == TOP_BYTE_RATE;

	cell->null = text == NULL || (is_rate && then < 0);
	cell->value = cell->null ? 0 : strtod(text, NULL);
	if (is_rate && !cell->null)
	{
		cell->value = (cell->value - top_double(before, TOP_ROWS, then, column->source)) / (now->at - before->at);
		/* the counters were reset meanwhile */
		cell->null = cell->value < 0;
	}
	if (cell->null)
		strcpy(cell->text, column->kind == TOP_TEXT ? "" : "-");
	else if (column->kind == TOP_TEXT)
		top_clean(text, cell->text, TOP_CELL);
	else if (column->kind == TOP_RATE)
		top_rate(cell->value, cell->text, TOP_CELL);
	else if (column->kind == TOP_COUNT)
		top_number(cell->value, cell->text, TOP_CELL);
	else if (column->kind == TOP_AGE)
		top_age(cell->value < 0 ? 0 : cell->value, cell->text, TOP_CELL);
	else
		top_bytes(cell->value, cell->text, TOP_CELL);
}

typedef struct Order
{
	int			column;
	bool		text;
	bool		down;
} Order;

/* What is unknown comes last, whatever the direction. */
static int
compare_rows(const void *a, const void *b, void *arg)
{
	const Order *order = arg;
	const TopRow *x = a;
	const TopRow *y = b;
	const TopCell *p = &x->cells[order->column];
	const TopCell *q = &y->cells[order->column];
	int			result;

	if (p->null != q->null)
		return p->null ? 1 : -1;
	result = order->text ? strcoll(p->text, q->text) : (p->value > q->value) - (p->value < q->value);
	if (result == 0)
		return (x->source > y->source) - (x->source < y->source);
	return order->down ? -result : result;
}

/* The rows of a snapshot, in order; the caller frees them. NULL: out of memory. */
TopRow *
top_rows(const TopSnapshot *now, const TopSnapshot *before, int sort, bool down, int *count)
{
	const TopView *view = &top_views[now->view];
	int			columns = top_view_columns(view);
	TopRow	   *rows;
	Order		order = {sort, view->columns[sort].kind == TOP_TEXT, down};

	*count = PQntuples(now->results[TOP_ROWS]);
	rows = calloc((size_t) *count + 1, sizeof(TopRow));
	if (rows == NULL)
	{
		*count = 0;
		return NULL;
	}
	for (int i = 0; i < *count; i++)
	{
		int			then = row_before(now, i, before);

		rows[i].source = i;
		for (int j = 0; j < columns; j++)
			make_cell(&rows[i].cells[j], &view->columns[j], now, i, before, then);
	}
	qsort_r(rows, (size_t) *count, sizeof(TopRow), compare_rows, &order);
	return rows;
}

/* Events in a second between two snapshots, from counts by minute, newest first; -1: unknown. */
double
top_flow_rate(const TopSnapshot *now, const TopSnapshot *before, int column)
{
	double		sum = 0;
	double		since;

	if (before == NULL || before->at >= now->at || now->at - before->at > 3600 || PQntuples(before->results[TOP_FLOW]) == 0)
		return -1;
	since = top_double(before, TOP_FLOW, 0, 0);
	/* an event of the last minute can still be counted a moment later */
	for (int i = 0; i < PQntuples(now->results[TOP_FLOW]) && top_double(now, TOP_FLOW, i, 0) >= since - 1; i++)
		sum += top_double(now, TOP_FLOW, i, column);
	for (int i = 0; i < 2 && i < PQntuples(before->results[TOP_FLOW]); i++)
		sum -= top_double(before, TOP_FLOW, i, column);
	return sum < 0 ? -1 : sum / (now->at - before->at);
}
