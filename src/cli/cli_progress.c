/*
 * cli_progress.c
 *	  A line on the terminal that says how far a replay is.
 */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cli.h"

#define SHOW_US 200000
#define MAX_BAR 40

bool
cli_has_terminal(void)
{
	return isatty(STDERR_FILENO);
}

/* "[=====>    ]", as much of it as fits beside the rest. */
static void
draw_bar(char *out, int64_t done, int64_t total)
{
	struct winsize size;
	int			width;
	int			filled;

	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
		size.ws_col = 80;
	width = (int) size.ws_col - 58;
	width = width > MAX_BAR ? MAX_BAR : width < 0 ? 0 :
													width;
	filled = (int) (done * width / total);
	*out = '\0';
	if (width < 5)
		return;
	*out++ = '[';
	for (int i = 0; i < width; i++)
		*out++ = i < filled ? '=' : i == filled ? '>' :
												  ' ';
	strcpy(out, "] ");
}

/* Not more often than one can see; total -1: not known; last: at the end. */
void
cli_show_progress(const char *verb, int64_t done, int64_t total, int64_t since_us, bool last)
{
	static int64_t next_us = 0;
	int64_t		now_us = cli_now_us();
	double		seconds = (double) (now_us - since_us) / 1e6;
	double		rate = seconds > 0 ? (double) done / seconds : 0;
	char		bar[MAX_BAR + 8];
	int64_t		left;

	if (!cli_has_terminal() || (now_us < next_us && !last))
		return;
	next_us = now_us + SHOW_US;
	if (total <= 0)
		fprintf(stderr, "\r%s %lld, %.0f/s\033[K", verb, (long long) done, rate);
	else
	{
		draw_bar(bar, done < total ? done : total, total);
		left = rate > 0 && total > done ? (int64_t) ((double) (total - done) / rate) : 0;
		fprintf(stderr, "\r%s %s%3d%% %lld/%lld %.0f/s %02lld:%02lld:%02lld\033[K", verb, bar, (int) (done * 100 / total),
				(long long) done, (long long) total, rate, (long long) left / 3600, (long long) left / 60 % 60, (long long) left % 60);
	}
	if (last)
		fputc('\n', stderr);
	fflush(stderr);
}
