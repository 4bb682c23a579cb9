/*
 * top_screen.c
 *	  The terminal, by ncurses: draws frames, reads keys, and leaves it as it was
 *	  however the program ends.
 */
#include <curses.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>

/* macros of term.h that are names of ours */
#undef lines
#undef columns

#include "top.h"

enum
{
	PAIR_GOOD = 1,
	PAIR_WARN,
	PAIR_BAD
};

static struct termios as_it_was;
static char goodbye[256];
static bool is_open = false;
static bool colours = false;

/* After a crash: only what a signal handler may call. */
static void
crash(int signal_number)
{
	tcsetattr(STDIN_FILENO, TCSANOW, &as_it_was);
	if (write(STDOUT_FILENO, goodbye, strlen(goodbye)) < 0)
		_exit(128 + signal_number);
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

/* What sets the terminal right, as text, because a handler can't ask for it. */
static void
prepare_goodbye(void)
{
	static char *const names[] = {"sgr0", "rmkx", "cnorm", "rmcup"};
	static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};

	goodbye[0] = '\0';
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
	{
		const char *text = tigetstr(names[i]);

		if (text != NULL && text != (char *) -1 && strlen(goodbye) + strlen(text) < sizeof(goodbye))
			strcat(goodbye, text);
	}
	for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
		signal(crashes[i], crash);
}

/* False: this kind of terminal can't be drawn on. */
bool
top_screen_open(void)
{
	if (tcgetattr(STDIN_FILENO, &as_it_was) != 0 || newterm(NULL, stdout, stdin) == NULL)
		return false;
	is_open = true;
	if (tigetstr("cup") == NULL)
	{
		top_screen_close();
		return false;
	}
	atexit(top_screen_close);
	prepare_goodbye();
	cbreak();
	noecho();
	nonl();
	nodelay(stdscr, TRUE);
	keypad(stdscr, TRUE);
	set_escdelay(50);
	curs_set(0);
	colours = has_colors() && getenv("NO_COLOR") == NULL && start_color() == OK && use_default_colors() == OK;
	if (colours)
	{
		init_pair(PAIR_GOOD, COLOR_GREEN, -1);
		init_pair(PAIR_WARN, COLOR_YELLOW, -1);
		init_pair(PAIR_BAD, COLOR_RED, -1);
	}
	return true;
}

void
top_screen_close(void)
{
	if (is_open)
		endwin();
	is_open = false;
}

void
top_screen_size(int *width, int *height)
{
	getmaxyx(stdscr, *height, *width);
}

/* To be called after SIGWINCH, outside of its handler. */
void
top_screen_resized(void)
{
	struct winsize size;

	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 0 && size.ws_col > 0)
		resizeterm(size.ws_row, size.ws_col);
}

/* The next refresh draws everything. */
void
top_screen_redraw(void)
{
	clearok(curscr, TRUE);
}

static attr_t
look_of(char mark)
{
	if (mark == TOP_BOLD[0])
		return A_BOLD;
	if (mark == TOP_DIM[0])
		return A_DIM;
	if (mark == TOP_GOOD[0])
		return colours ? COLOR_PAIR(PAIR_GOOD) : A_NORMAL;
	if (mark == TOP_WARN[0])
		return A_BOLD | (colours ? COLOR_PAIR(PAIR_WARN) : A_NORMAL);
	if (mark == TOP_BAD[0])
		return A_BOLD | (colours ? COLOR_PAIR(PAIR_BAD) : A_REVERSE);
	if (mark == TOP_BAR[0] || mark == TOP_CHOSEN[0])
		return A_REVERSE;
	return A_NORMAL;
}

static void
show_line(int y, const char *line, int width)
{
	char		mark = TOP_PLAIN[0];

	move(y, 0);
	attrset(A_NORMAL);
	while (*line != '\0')
	{
		const char *end = line;

		if (TOP_IS_MARK(*line))
		{
			mark = *line++;
			attrset(look_of(mark));
			continue;
		}
		while (*end != '\0' && !TOP_IS_MARK(*end))
			end++;
		addnstr(line, (int) (end - line));
		line = end;
	}
	/* a bar goes to the edge */
	if (mark == TOP_BAR[0] || mark == TOP_CHOSEN[0])
	{
		for (int x = getcurx(stdscr); x < width && getcury(stdscr) == y; x++)
			addch(' ');
	}
	attrset(A_NORMAL);
}

void
top_screen_show(const TopFrame *frame)
{
	erase();
	for (int i = 0; i < frame->count; i++)
		show_line(i, frame->lines[i], frame->width);
	refresh();
}

/* A key that was pressed; TOP_KEY_NONE: none. */
int
top_screen_key(void)
{
	int			key = getch();

	switch (key)
	{
		case ERR:
		case KEY_RESIZE:
			return TOP_KEY_NONE;
		case KEY_UP:
			return TOP_KEY_UP;
		case KEY_DOWN:
			return TOP_KEY_DOWN;
		case KEY_LEFT:
			return TOP_KEY_LEFT;
		case KEY_RIGHT:
			return TOP_KEY_RIGHT;
		case KEY_PPAGE:
			return TOP_KEY_PAGE_UP;
		case KEY_NPAGE:
			return TOP_KEY_PAGE_DOWN;
		case KEY_HOME:
			return TOP_KEY_HOME;
		case KEY_END:
			return TOP_KEY_END;
		case KEY_ENTER:
		case '\r':
		case '\n':
			return TOP_KEY_ENTER;
		case 27:
		case KEY_BACKSPACE:
		case 127:
		case '\b':
			return TOP_KEY_BACK;
		default:
			return key;
	}
}
