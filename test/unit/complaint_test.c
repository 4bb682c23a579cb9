/*
 * complaint_test.c
 *	  src/complaint.c alone: what is logged of a trouble that lasts.
 */
#include <string.h>

#include "complaint.h"
#include "unit.h"

#define SECOND INT64_C(1000000)

static OutboxComplaint complaint;

/* The number of failures that a line would name, or -1: no line. */
static int
say(const char *text, int64_t now)
{
	int			failures;

	return outbox_complaint_is_due(&complaint, text, now, &failures) ? failures : -1;
}

static void
test_same_words(void)
{
	outbox_complaint_begin(&complaint);
	outbox_complaint_failed(&complaint);
	ok(say("a", 0) == 1, "the first is said at once");
	outbox_complaint_failed(&complaint);
	ok(say("a", 1) == -1 && say("a", 3600 * SECOND) == -1, "the same is not said again");
	outbox_complaint_begin(&complaint);
	ok(say("a", 3600 * SECOND) == 0, "in another trouble it is");
	outbox_complaint_begin(&complaint);
	ok(say("", 0) == 0 && say("", 2 * SECOND) == -1, "no words are words, too");
}

/* Two texts by turns, an attempt each 100 ms for two hours. */
static void
test_alternating(void)
{
	int64_t		last = -SECOND;
	int64_t		pause = 0;
	int			lines = 0;
	int			attempts = 0;
	int			named = 0;
	bool		doubling = true;

	outbox_complaint_begin(&complaint);
	for (int64_t now = 0; now < 7200 * SECOND; now += SECOND / 10)
	{
		int			failures;

		attempts++;
		outbox_complaint_failed(&complaint);
		failures = say(attempts % 2 == 0 ? "even" : "odd", now);
		if (failures < 0)
			continue;
		named += failures;
		if (lines++ > 0)
		{
			/* The next attempt may bring the words of the last line. */
			doubling = doubling && now - last >= pause && now - last <= pause + SECOND / 5;
			pause = pause * 2 < 600 * SECOND ? pause * 2 : 600 * SECOND;
		}
		else
			pause = SECOND;
		last = now;
		if (lines == 5)
			ok(now <= 16 * SECOND && now >= 15 * SECOND, "five lines in a quarter of a minute");
	}
	ok(doubling, "at doubling intervals, up to ten minutes");
	ok(lines > 15 && lines < 25, "%d lines of %d attempts", lines, attempts);
	ok(named + complaint.failures == attempts, "each attempt is counted in one line");
}

static void
test_late(void)
{
	outbox_complaint_begin(&complaint);
	ok(say("a", 0) == 0 && say("b", SECOND - 1) == -1, "other words wait");
	ok(say("b", SECOND) == 0, "and are said when the time has come");
	ok(say("b", SECOND * 10) == -1, "once");
}

static void
test_long_text(void)
{
	char		text[2 * OUTBOX_COMPLAINT_SIZE];

	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	outbox_complaint_begin(&complaint);
	ok(say(text, 0) == 0 && say(text, 5 * SECOND) == -1, "a long text is compared by its head");
	text[OUTBOX_COMPLAINT_SIZE - 2] = '\0';
	ok(say(text, 5 * SECOND) == 0, "and differs from a shorter one");
}

int
main(void)
{
	test_same_words();
	test_alternating();
	test_late();
	test_long_text();
	return unit_done();
}
