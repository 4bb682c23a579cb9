/*
 * top.h
 *	  What the files of the command outbox-top share. top_link.c talks to the
 *	  server, top_view.c knows what there is to see, top_frame.c makes lines of
 *	  it, which top_screen.c puts on a terminal and top_main.c into a pipe.
 */
#ifndef OUTBOX_TOP_H
#define OUTBOX_TOP_H

#include <libpq-fe.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../cli/cli_common.h"

/* Exit codes; they are in the manual. */
enum
{
	TOP_DONE = 0,
	TOP_USAGE = 1,
	TOP_DATABASE = 2,			/* no connection, or not a database with the extension */
	TOP_INTERRUPTED = 130
};

#define TOP_ERROR_SIZE 512

/* ------------------------------------------------------------------- options */

typedef enum TopViewId
{
	TOP_TYPES,
	TOP_STREAMS,
	TOP_SUBJECTS,
	TOP_RELAYS,
	TOP_DEAD,
	TOP_BLOCKED,
	TOP_ERRORS,
	TOP_HEALTH
} TopViewId;

#define TOP_VIEWS (TOP_HEALTH + 1)

typedef struct TopOptions
{
	const char *dbname;			/* or a connection string; NULL: libpq's default, like the others */
	const char *host;
	const char *port;
	const char *user;
	int64_t		interval_ms;
	int64_t		count;			/* of snapshots, 0: no end; -1: not given */
	bool		plain;
	bool		ascii;
	TopViewId	view;
	int			sort;			/* column of the view, -1: its own */
} TopOptions;

/* top_options.c: false: the command has an exit code already. */
extern bool top_parse(int argc, char **argv, TopOptions *options, int *exit_code);

/* ---------------------------------------------------------------------- text */

/* Bytes within a line that say how what follows looks; text from the server contains none. */
#define TOP_PLAIN "\001"
#define TOP_BOLD "\002"
#define TOP_DIM "\003"
#define TOP_GOOD "\004"
#define TOP_WARN "\005"
#define TOP_BAD "\006"
#define TOP_BAR "\016"			/* the head of a table */
#define TOP_CHOSEN "\017"		/* the row that is chosen */
#define TOP_IS_MARK(c) ((c) > 0 && (c) < 0x20)

/* top_text.c */
extern bool top_utf8;			/* else ASCII only */
extern void top_clean(const char *in, char *out, size_t size);
extern int	top_width(const char *text);
extern void top_clip(const char *in, char *out, size_t size, int width);
extern void top_number(double value, char *out, size_t size);
extern void top_rate(double value, char *out, size_t size);
extern void top_bytes(double value, char *out, size_t size);
extern void top_age(double seconds, char *out, size_t size);
extern void top_spark(const double *values, int count, char *out, size_t size);

/* ---------------------------------------------------------------------- link */

/* What one question to the server yields, in the order of its statements. */
typedef enum TopResult
{
	TOP_SUMMARY,
	TOP_REASONS,
	TOP_LATENCY,
	TOP_FLOW,
	TOP_ROWS
} TopResult;

#define TOP_RESULTS (TOP_ROWS + 1)

typedef struct TopSnapshot
{
	PGresult   *results[TOP_RESULTS];
	TopViewId	view;
	char		filter[256];	/* aggregate type that the rows are of; empty: all */
	double		at;				/* the server's clock, seconds */
} TopSnapshot;

/* top_link.c */
typedef struct TopLink TopLink;
extern TopLink *top_link_open(const TopOptions *options);
extern void top_link_close(TopLink *link);
extern int	top_link_fd(const TopLink *link, short *events);
extern int64_t top_link_until(const TopLink *link);
extern void top_link_work(TopLink *link);
extern bool top_link_idle(const TopLink *link);
extern bool top_link_up(const TopLink *link);
extern void top_link_ask(TopLink *link, TopViewId view, const char *filter);
extern TopSnapshot *top_link_take(TopLink *link);
extern const char *top_link_error(const TopLink *link);
extern const char *top_link_where(const TopLink *link);
extern void top_snapshot_free(TopSnapshot *snapshot);
extern const char *top_value(const TopSnapshot *snapshot, TopResult result, int row, int column);
extern double top_double(const TopSnapshot *snapshot, TopResult result, int row, int column);

/* --------------------------------------------------------------------- views */

typedef enum TopKind
{
	TOP_TEXT,
	TOP_COUNT,
	TOP_RATE,					/* by which a count rises in a second */
	TOP_BYTES,
	TOP_BYTE_RATE,
	TOP_AGE						/* seconds */
} TopKind;

typedef struct TopColumn
{
	const char *title;
	int			source;			/* column of the result */
	TopKind		kind;
	int			min_width;		/* below it the column goes; text only */
	int			rank;			/* which columns go first when there is no room: the highest */
} TopColumn;

#define TOP_COLUMNS 11
#define TOP_CELL 256

typedef struct TopView
{
	const char *name;
	const char *title;
	const char *query;			/* "%s": the filter as a literal, if filtered */
	bool		filtered;
	int			keys;			/* so many columns of the result tell a row */
	int			sort;			/* column, and direction, at first */
	bool		down;
	int			drill;			/* view that Enter leads to, -1: the row's details */
	TopColumn	columns[TOP_COLUMNS];	/* until one without a title */
} TopView;

typedef struct TopCell
{
	char		text[TOP_CELL];
	double		value;
	bool		null;
} TopCell;

typedef struct TopRow
{
	int			source;			/* row of the result */
	TopCell		cells[TOP_COLUMNS];
} TopRow;

/* top_view.c */
extern const TopView top_views[TOP_VIEWS];
extern int	top_view_columns(const TopView *view);
extern TopRow *top_rows(const TopSnapshot *now, const TopSnapshot *before, int sort, bool down, int *count);
extern bool top_same_row(const TopSnapshot *a, int row_a, const TopSnapshot *b, int row_b);
extern double top_flow_rate(const TopSnapshot *now, const TopSnapshot *before, int column);

/* --------------------------------------------------------------------- frame */

#define TOP_LINE 2048

typedef struct TopFrame
{
	int			width;
	int			height;			/* 0: no end */
	int			count;
	int			room;
	char		(*lines)[TOP_LINE];
} TopFrame;

/* What the user has chosen. */
typedef struct TopState
{
	TopViewId	view;
	int			sort[TOP_VIEWS];
	bool		down[TOP_VIEWS];
	int			chosen;			/* row, in the order shown */
	int			first;			/* row shown first */
	int			scroll;			/* of details and help */
	char		filter[256];
	bool		paused;
	bool		details;
	bool		help;
	int64_t		interval_ms;
	const char *trouble;		/* with the connection; NULL: none */
	const char *where;
	bool		interactive;

	/* Found out while the frame is made. */
	int			rows;
	int			page;			/* rows that have room */
	int			chosen_source;	/* row of the result */
} TopState;

/* top_frame.c */
extern void top_frame_make(TopFrame *frame, TopState *state, const TopSnapshot *now, const TopSnapshot *before);
extern void top_frame_free(TopFrame *frame);
extern void top_frame_add(TopFrame *frame, const char *text);

/* top_table.c */
extern void top_table_make(TopFrame *frame, TopState *state, const TopSnapshot *now, const TopSnapshot *before);
extern void top_details_make(TopFrame *frame, TopState *state, const TopSnapshot *now);

/* -------------------------------------------------------------------- screen */

/* top_screen.c */
extern bool top_screen_open(void);
extern void top_screen_close(void);
extern void top_screen_resized(void);
extern void top_screen_size(int *width, int *height);
extern void top_screen_show(const TopFrame *frame);
extern void top_screen_redraw(void);

typedef enum TopKey
{
	TOP_KEY_NONE = 0,			/* others are their character */
	TOP_KEY_UP = 1000,
	TOP_KEY_DOWN,
	TOP_KEY_LEFT,
	TOP_KEY_RIGHT,
	TOP_KEY_PAGE_UP,
	TOP_KEY_PAGE_DOWN,
	TOP_KEY_HOME,
	TOP_KEY_END,
	TOP_KEY_ENTER,
	TOP_KEY_BACK
} TopKey;

extern int	top_screen_key(void);

#endif							/* OUTBOX_TOP_H */
