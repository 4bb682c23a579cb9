/*
 * top_main.c
 *	  outbox-top: how the events of a database flow, on a terminal, live. It is a
 *	  client that reads views, and needs no more rights than pg_monitor has.
 *
 * One loop waits for keys, the server, signals and the time. Signals are let in
 * while it waits only, so that none is missed and no code is interrupted.
 */
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "top.h"

#define FIRST_WAIT_US 1000000
#define PLAIN_WIDTH 200
#define LEAST_WIDTH 30
#define LEAST_HEIGHT 8

const char	cli_program[] = "outbox-top";

static volatile sig_atomic_t interrupted = 0;
static volatile sig_atomic_t resized = 0;

typedef struct Top
{
	const TopOptions *options;
	TopLink    *link;
	TopState	state;
	TopFrame	frame;
	TopSnapshot *now;
	TopSnapshot *before;
	int64_t		next_us;		/* when to ask again */
	int64_t		taken;			/* snapshots */
	bool		asked_other;	/* the rows wanted are those of another view */
	bool		over;
	sigset_t	while_waiting;
} Top;

static void
handle_signal(int signal_number)
{
	if (signal_number == SIGWINCH)
		resized = 1;
	else
		interrupted = 1;
}

/* Ours before ncurses', which then leaves them alone. */
static void
catch_signals(Top *top)
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGWINCH};
	struct sigaction action = {.sa_handler = handle_signal};
	sigset_t	blocked;

	sigemptyset(&blocked);
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
	{
		sigaction(signals[i], &action, NULL);
		sigaddset(&blocked, signals[i]);
	}
	sigaddset(&blocked, SIGTSTP);
	sigprocmask(SIG_BLOCK, &blocked, &top->while_waiting);
}

/* Waits for the server, for keys if there are any, for a signal, or until then; -1: no limit. */
static void
wait_for(Top *top, int64_t until_us, bool keys)
{
	struct pollfd ready[2] = {{.fd = -1}, {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN}};
	int64_t		link_until = top_link_until(top->link);
	int64_t		wait_us;
	struct timespec timeout;

	/* until it has answered there is nothing to ask */
	if (!top_link_idle(top->link))
		until_us = -1;
	ready[0].fd = top_link_fd(top->link, &ready[0].events);
	if (link_until >= 0 && (until_us < 0 || link_until < until_us))
		until_us = link_until;
	wait_us = until_us - cli_now_us();
	if (wait_us < 0)
		wait_us = 0;
	timeout = (struct timespec) {.tv_sec = wait_us / 1000000, .tv_nsec = wait_us % 1000000 * 1000};
	if (ppoll(ready, 2, until_us < 0 ? NULL : &timeout, &top->while_waiting) > 0 && (ready[1].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
		interrupted = 1;		/* the terminal is gone */
}

/* Asks when it is time; sees to what has come. Returns whether a snapshot has. */
static bool
advance(Top *top)
{
	TopSnapshot *taken;
	TopState   *state = &top->state;
	int64_t		now_us;

	top_link_work(top->link);
	now_us = cli_now_us();
	if (top_link_idle(top->link) && (top->asked_other || (now_us >= top->next_us && !state->paused)))
	{
		top_link_ask(top->link, state->view, state->filter);
		top->asked_other = false;
		top->next_us = now_us + (top->taken == 0 && state->interval_ms * 1000 > FIRST_WAIT_US ? FIRST_WAIT_US : state->interval_ms * 1000);
		top_link_work(top->link);
	}
	taken = top_link_take(top->link);
	if (taken != NULL)
	{
		/* rates want a distance: a snapshot taken for another view at once doesn't make one */
		if (top->now != NULL && top->now->view != taken->view && taken->at - top->now->at < 0.5)
			top_snapshot_free(top->now);
		else
		{
			top_snapshot_free(top->before);
			top->before = top->now;
		}
		top->now = taken;
		top->taken++;
	}
	state->where = top_link_where(top->link);
	state->trouble = top_link_error(top->link)[0] == '\0' ? NULL : top_link_error(top->link);
	return taken != NULL;
}

/* Waits for the first snapshot. False: there won't be one; it is said why. */
static bool
first_snapshot(Top *top)
{
	while (!advance(top))
	{
		if (top->state.trouble != NULL)
		{
			fprintf(stderr, "outbox-top: %s\n", top->state.trouble);
			if (strstr(top->state.trouble, "permission denied") != NULL)
				fprintf(stderr, "The user must be a member of pg_monitor: GRANT pg_monitor TO ...\n");
			return false;
		}
		wait_for(top, -1, false);
		if (interrupted)
			return false;
	}
	return true;
}

/* ---------------------------------------------------------------------- keys */

/* Another view, of an aggregate type or of all. */
static void
go_to(Top *top, TopViewId view, const char *filter)
{
	TopState   *state = &top->state;
	char		chosen[sizeof(state->filter)];

	/* it may be the one there is */
	snprintf(chosen, sizeof(chosen), "%s", filter);
	state->view = view;
	strcpy(state->filter, chosen);
	state->chosen = state->first = state->scroll = 0;
	state->details = state->help = false;
	top->asked_other = true;
}

/* Column 1 of a subject is its type; that of a type is column 0. */
static void
enter(Top *top)
{
	TopState   *state = &top->state;
	const TopView *view = &top_views[state->view];
	const char *type;

	if (state->help || state->details || top->now->view != state->view || state->chosen_source < 0)
		return;
	type = top_value(top->now, TOP_ROWS, state->chosen_source, state->view == TOP_SUBJECTS ? 1 : 0);
	if (view->drill >= 0 && type != NULL)
		go_to(top, (TopViewId) view->drill, type);
	else if (view->drill < 0)
	{
		/* what is looked at stands still */
		state->details = true;
		state->scroll = 0;
	}
}

static void
go_back(Top *top)
{
	TopState   *state = &top->state;

	if (state->help || state->details)
		state->help = state->details = false;
	else if (state->filter[0] != '\0')
		go_to(top, state->view == TOP_DEAD ? TOP_SUBJECTS : TOP_TYPES, state->view == TOP_DEAD ? state->filter : "");
}

static void
move_by(TopState *state, int rows)
{
	int		   *what = state->help || state->details ? &state->scroll : &state->chosen;

	*what += rows;
	if (*what < 0)
		*what = 0;
}

static void
sort_by(TopState *state, int step)
{
	int			columns = top_view_columns(&top_views[state->view]);

	state->sort[state->view] = (state->sort[state->view] + step + columns) % columns;
	state->down[state->view] = top_views[state->view].columns[state->sort[state->view]].kind != TOP_TEXT;
}

static void
change_interval(Top *top, bool more)
{
	int64_t    *ms = &top->state.interval_ms;

	*ms = more ? *ms * 2 : *ms / 2;
	*ms = *ms < 100 ? 100 : *ms > 3600000 ? 3600000 :
											*ms;
	top->next_us = cli_now_us() + *ms * 1000;
}

static void
handle_motion(Top *top, int key)
{
	TopState   *state = &top->state;

	switch (key)
	{
		case TOP_KEY_UP:
		case 'k':
			move_by(state, -1);
			break;
		case TOP_KEY_DOWN:
		case 'j':
			move_by(state, 1);
			break;
		case TOP_KEY_PAGE_UP:
			move_by(state, -(state->page > 1 ? state->page : 1));
			break;
		case TOP_KEY_PAGE_DOWN:
			move_by(state, state->page > 1 ? state->page : 1);
			break;
		case TOP_KEY_HOME:
			move_by(state, -state->rows);
			break;
		case TOP_KEY_END:
			move_by(state, state->rows);
			break;
		case '\t':
		case TOP_KEY_RIGHT:
			go_to(top, (TopViewId) ((state->view + 1) % TOP_VIEWS), "");
			break;
		case TOP_KEY_LEFT:
			go_to(top, (TopViewId) ((state->view + TOP_VIEWS - 1) % TOP_VIEWS), "");
			break;
		default:
			break;
	}
}

static void
handle_key(Top *top, int key)
{
	TopState   *state = &top->state;

	if (key >= '1' && key < '1' + TOP_VIEWS)
		go_to(top, (TopViewId) (key - '1'), "");
	switch (key)
	{
		case 'q':
		case 'Q':
			top->over = true;
			break;
		case ' ':
			state->paused = !state->paused;
			top->next_us = cli_now_us();
			break;
		case '?':
		case 'h':
			state->help = !state->help;
			state->scroll = 0;
			break;
		case '<':
			sort_by(state, -1);
			break;
		case '>':
			sort_by(state, 1);
			break;
		case 'r':
			state->down[state->view] = !state->down[state->view];
			break;
		case '+':
		case '-':
			change_interval(top, key == '+');
			break;
		case TOP_KEY_ENTER:
			enter(top);
			break;
		case TOP_KEY_BACK:
			go_back(top);
			break;
		case 'L' - '@':
			top_screen_redraw();
			break;
		default:
			handle_motion(top, key);
			break;
	}
}

/* ------------------------------------------------------------------- running */

static void
make_frame(Top *top)
{
	top_screen_size(&top->frame.width, &top->frame.height);
	if (top->frame.width < LEAST_WIDTH || top->frame.height < LEAST_HEIGHT)
	{
		top->frame.count = 0;
		top_frame_add(&top->frame, "too small");
	}
	else
		top_frame_make(&top->frame, &top->state, top->now, top->before);
}

static int
run_screen(Top *top)
{
	int			key;

	top->state.interactive = true;
	if (!first_snapshot(top))
		return interrupted ? TOP_INTERRUPTED : TOP_DATABASE;
	if (!top_screen_open())
	{
		fprintf(stderr, "outbox-top: this terminal (TERM is \"%s\") can't be drawn on: --plain prints lines\n",
				getenv("TERM") == NULL ? "" : getenv("TERM"));
		return TOP_USAGE;
	}
	while (!top->over && !interrupted && (top->options->count <= 0 || top->taken <= top->options->count))
	{
		if (resized)
		{
			resized = 0;
			top_screen_resized();
		}
		make_frame(top);
		top_screen_show(&top->frame);
		wait_for(top, top->state.paused || top->state.details ? -1 : top->next_us, true);
		while ((key = top_screen_key()) != TOP_KEY_NONE)
		{
			handle_key(top, key);
			/* what a key means depends on what the one before has led to */
			make_frame(top);
		}
		/* details are of one row of one snapshot */
		if (!top->state.details)
			(void) advance(top);
		else
			top_link_work(top->link);
	}
	top_screen_close();
	return interrupted ? TOP_INTERRUPTED : TOP_DONE;
}

static void
print_frame(const TopFrame *frame)
{
	for (int i = 0; i < frame->count; i++)
	{
		char		line[TOP_LINE];
		size_t		used = 0;

		for (const char *c = frame->lines[i]; *c != '\0'; c++)
		{
			if (!TOP_IS_MARK(*c))
				line[used++] = *c;
		}
		while (used > 0 && line[used - 1] == ' ')
			used--;
		line[used] = '\0';
		puts(line);
	}
}

/* The first snapshot is not printed: rates need two. */
static int
run_plain(Top *top)
{
	int64_t		wanted = top->options->count < 0 ? 1 : top->options->count;
	bool		complained = false;

	if (!first_snapshot(top))
		return interrupted ? TOP_INTERRUPTED : TOP_DATABASE;
	while (!interrupted && (wanted == 0 || top->taken <= wanted))
	{
		wait_for(top, top->next_us, false);
		if (advance(top))
		{
			top->frame.width = PLAIN_WIDTH;
			top_frame_make(&top->frame, &top->state, top->now, top->before);
			if (top->taken > 2)
				putchar('\n');
			print_frame(&top->frame);
			if (fflush(stdout) != 0)
				return TOP_USAGE;
		}
		if (top->state.trouble != NULL && !complained)
			fprintf(stderr, "outbox-top: %s; tries again\n", top->state.trouble);
		complained = top->state.trouble != NULL;
	}
	return interrupted ? TOP_INTERRUPTED : TOP_DONE;
}

int
main(int argc, char **argv)
{
	TopOptions	options;
	Top			top = {.options = &options};
	int			exit_code;

	if (!top_parse(argc, argv, &options, &exit_code))
		return exit_code;
	setlocale(LC_CTYPE, "");
	setlocale(LC_COLLATE, "");
	top_utf8 = !options.ascii && strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
	for (int i = 0; i < TOP_VIEWS; i++)
	{
		top.state.sort[i] = top_views[i].sort;
		top.state.down[i] = top_views[i].down;
	}
	top.state.view = options.view;
	top.state.interval_ms = options.interval_ms;
	if (options.sort >= 0)
		sort_by(&top.state, options.sort - top.state.sort[options.view]);
	catch_signals(&top);
	top.link = top_link_open(&options);
	if (top.link == NULL)
	{
		fprintf(stderr, "outbox-top: out of memory\n");
		return TOP_DATABASE;
	}
	if (options.plain || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		exit_code = run_plain(&top);
	else
		exit_code = run_screen(&top);
	top_link_close(top.link);
	top_snapshot_free(top.now);
	top_snapshot_free(top.before);
	top_frame_free(&top.frame);
	return exit_code;
}
