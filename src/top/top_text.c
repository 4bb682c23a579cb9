/*
 * top_text.c
 *	  Text for a terminal: what comes from the server made harmless, cut to a
 *	  width, and numbers for people. Width counts columns, not bytes.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

#include "top.h"

bool		top_utf8 = false;

/* Characters that would turn, hide or join what is around them. */
static bool
is_invisible(wchar_t c)
{
	return (c >= 0x200B && c <= 0x200F) || (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF;
}

/*
 * The next character of a text: its bytes, and its width, -1 if it isn't to be
 * shown. A byte that is none counts as one.
 */
static int
next_character(const char *text, int *width)
{
	mbstate_t	state = {0};
	wchar_t		c;
	size_t		len;

	if ((unsigned char) *text < 0x80)
	{
		*width = *text >= ' ' && *text != 0x7f ? 1 : -1;
		return 1;
	}
	len = top_utf8 ? mbrtowc(&c, text, strlen(text), &state) : (size_t) -1;
	if (len == (size_t) -1 || len == (size_t) -2)
	{
		/* a whole character of UTF-8, where it can't be shown */
		*width = -1;
		for (len = 1; ((unsigned char) text[len] & 0xC0) == 0x80; len++)
			;
		return (int) len;
	}
	*width = is_invisible(c) ? -1 : wcwidth(c);
	return (int) len;
}

/* Copies what can be shown; a "?" stands for anything else, a blank for a line's end. */
void
top_clean(const char *in, char *out, size_t size)
{
	size_t		used = 0;
	int			width;
	int			len;

	for (; *in != '\0'; in += len)
	{
		len = next_character(in, &width);
		if (used + (size_t) len + 1 > size)
			break;
		if (width >= 0)
		{
			memcpy(out + used, in, (size_t) len);
			used += (size_t) len;
		}
		else
			out[used++] = *in == '\n' || *in == '\t' ? ' ' : '?';
	}
	out[used] = '\0';
}

/* Of text that is clean but for marks. */
int
top_width(const char *text)
{
	int			total = 0;
	int			width;

	while (*text != '\0')
	{
		int			len = next_character(text, &width);

		if (width > 0)
			total += width;
		text += len;
	}
	return total;
}

/* As much of it as fits, with its marks; cut text ends with a mark of its own. */
void
top_clip(const char *in, char *out, size_t size, int width)
{
	bool		cut = top_width(in) > width;
	int			room = cut ? width - 1 : width;
	size_t		used = 0;
	int			one;

	while (*in != '\0' && used + 8 < size)
	{
		int			len = next_character(in, &one);

		if (one > room)
			break;
		if (one > 0)
			room -= one;
		memcpy(out + used, in, (size_t) len);
		used += (size_t) len;
		in += len;
	}
	if (cut && width > 0)
		used += (size_t) sprintf(out + used, "%s", top_utf8 ? "\xE2\x80\xA6" : "~");
	out[used] = '\0';
}

/* 0 to 99,999 in full; at most seven characters. What is no number is larger than all that. */
void
top_number(double value, char *out, size_t size)
{
	static const char units[] = "kMGTPE";
	int			unit = 0;

	if (value < 1000)
		snprintf(out, size, "%.0f", value);
	else if (value < 99999.5)
		snprintf(out, size, "%d,%03d", (int) (value + 0.5) / 1000, (int) (value + 0.5) % 1000);
	else
	{
		for (value /= 1000; value >= 999.5 && units[unit + 1] != '\0'; unit++)
			value /= 1000;
		snprintf(out, size, value < 9.995 ? "%.2f%c" : value < 99.95 ? "%.1f%c" :
																	   "%.0f%c",
				 value, units[unit]);
	}
}

void
top_rate(double value, char *out, size_t size)
{
	if (value > 0 && value < 9.95)
		snprintf(out, size, "%.1f", value);
	else
		top_number(value, out, size);
}

void
top_bytes(double value, char *out, size_t size)
{
	static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", NULL};
	int			unit = 0;

	while (value >= 999.5 && units[unit + 1] != NULL)
	{
		value /= 1024;
		unit++;
	}
	snprintf(out, size, unit > 0 && value < 9.95 ? "%.1f%s" : "%.0f%s", value, units[unit]);
}

/* Two units at most; six characters. */
void
top_age(double seconds, char *out, size_t size)
{
	long		s = lround(seconds);

	if (seconds < 0.0000995)
		snprintf(out, size, "%.0fus", seconds < 0 ? 0 : seconds * 1e6);
	else if (seconds < 0.00995)
		snprintf(out, size, "%.1fms", seconds * 1e3);
	else if (seconds < 0.9995)
		snprintf(out, size, "%.0fms", seconds * 1e3);
	else if (seconds < 9.95)
		snprintf(out, size, "%.1fs", seconds);
	else if (s < 60)
		snprintf(out, size, "%lds", s);
	else if (s < 3600)
		snprintf(out, size, "%ldm%02lds", s / 60, s % 60);
	else if (s < 86400)
		snprintf(out, size, "%ldh%02ldm", s / 3600, s / 60 % 60);
	else if (s < 100L * 86400)
		snprintf(out, size, "%ldd%02ldh", s / 86400, s / 3600 % 24);
	else
		snprintf(out, size, "%ldd", s / 86400);
}

/* A bar for each value; nothing is a blank, the highest is full. */
void
top_spark(const double *values, int count, char *out, size_t size)
{
	static const char *const blocks[] = {" ", "\xE2\x96\x81", "\xE2\x96\x82", "\xE2\x96\x83", "\xE2\x96\x84", "\xE2\x96\x85", "\xE2\x96\x86", "\xE2\x96\x87", "\xE2\x96\x88"};
	static const char *const plain[] = {" ", ".", ".", ":", "-", "=", "+", "*", "#"};
	double		top = 0;
	size_t		used = 0;

	for (int i = 0; i < count; i++)
		top = values[i] > top ? values[i] : top;
	for (int i = 0; i < count && used + 4 < size; i++)
	{
		int			level = values[i] <= 0 ? 0 : (int) ceil(values[i] * 8 / top);

		used += (size_t) sprintf(out + used, "%s", (top_utf8 ? blocks : plain)[level]);
	}
	out[used] = '\0';
}
