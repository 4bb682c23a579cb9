/*
 * pause_test.c
 *	  src/pause.c alone: single rules, then all patterns and subjects over a
 *	  small alphabet, against a second implementation that is recursive and slow.
 */
#include <stdlib.h>
#include <string.h>

#include "pause.h"
#include "unit.h"

/* ---------- the second implementation: token by token, by recursion ---------- */

static const char *
behind_token(const char *text)
{
	while (*text != '\0' && *text != '.')
		text++;
	return text;
}

static bool
same_token(const char *a, const char *b)
{
	size_t		length = (size_t) (behind_token(a) - a);

	return length == (size_t) (behind_token(b) - b) && memcmp(a, b, length) == 0;
}

static bool
slow_match(const char *pattern, const char *subject)
{
	const char *pattern_rest = behind_token(pattern);
	const char *subject_rest = behind_token(subject);

	if (strcmp(pattern, ">") == 0)
		return true;
	if (!same_token(pattern, "*") && !same_token(pattern, subject))
		return false;
	if (*pattern_rest == '\0' && *subject_rest == '\0')
		return true;
	return *pattern_rest == '.' && *subject_rest == '.' && slow_match(pattern_rest + 1, subject_rest + 1);
}

/* ---------- brute force ---------- */

/* The number's digits as a text over the alphabet; false: a token would be empty. */
static bool
write_text(int number, const char *alphabet, char *text)
{
	int			base = (int) strlen(alphabet);
	int			used = 0;

	for (; number > 0; number = (number - 1) / base)
		text[used++] = alphabet[(number - 1) % base];
	text[used] = '\0';
	return used > 0 && text[0] != '.' && text[used - 1] != '.' && strstr(text, "..") == NULL;
}

/* All patterns of up to six characters against all subjects of up to six. */
static void
test_all(void)
{
	static char subjects[2000][8];
	int			subject_count = 0;
	int			pattern_count = 0;
	int			wrong = 0;
	int			matches = 0;
	char		pattern[8];

	for (int i = 0; i < 1093; i++)
	{
		if (write_text(i, "ab.", subjects[subject_count]))
			subject_count++;
	}
	for (int i = 0; i < 19531; i++)
	{
		if (!write_text(i, "ab.*>", pattern))
			continue;
		pattern_count++;
		for (int j = 0; j < subject_count; j++)
		{
			bool		expected = slow_match(pattern, subjects[j]);

			matches += expected;
			if (outbox_pause_matches(pattern, subjects[j]) == expected)
				continue;
			if (wrong++ < 5)
				diag("\"%s\" and \"%s\": should be %d", pattern, subjects[j], expected);
		}
	}
	ok(wrong == 0 && matches > 2000, "%d patterns against %d subjects, %d matches", pattern_count, subject_count, matches);
}

/* ---------- single rules ---------- */

/* Allocations of the exact size, so that ASan sees a read behind the NUL. */
static bool
matches(const char *pattern, const char *subject)
{
	char	   *own_pattern = strdup(pattern);
	char	   *own_subject = strdup(subject);
	bool		result = outbox_pause_matches(own_pattern, own_subject);

	free(own_pattern);
	free(own_subject);
	return result;
}

static void
test_rules(void)
{
	static const struct
	{
		const char *pattern;
		const char *subject;
		bool		expected;
	} rules[] = {
		{"a.b", "a.b", true}, {"a.b", "a.c", false}, {"a.b", "a", false}, {"a", "a.b", false}, {"a.b", "a.bb", false},
		{"a.bb", "a.b", false}, {"A", "a", false}, {"*", "a", true}, {"*", "a.b", false}, {"*.*", "a.b", true},
		{"a.*", "a", false}, {"a.*.c", "a.b.c", true}, {"a.*.c", "a.b.d", false}, {"*.b", "a.b", true}, {">", "a", true},
		{">", "a.b.c", true}, {"a.>", "a.b", true}, {"a.>", "a.b.c", true}, {"a.>", "a", false}, {"b.>", "a.b", false},
		{"*.>", "a", false}, {"*.>", "a.b.c", true}, {"a*", "ab", false}, {"a*", "a*", true}, {"a.*b", "a.xb", false},
		{"outbox.order.*.placed", "outbox.order.7.placed", true}, {"outbox.order.*.placed", "outbox.order.7.paid", false},
		{"outbox.order.%2A.placed", "outbox.order.7.placed", false}, {"", "a", false}, {"a", "", false}};

	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		ok(matches(rules[i].pattern, rules[i].subject) == rules[i].expected, "\"%s\" %s \"%s\"", rules[i].pattern,
		   rules[i].expected ? "matches" : "doesn't match", rules[i].subject);
}

static void
test_lists(void)
{
	OutboxPause pauses[3] = {{"order", NULL}, {NULL, "outbox.*.x.>"}, {"stock", "other.>"}};
	OutboxPauseList list = {pauses, 3, false};
	OutboxPauseList none = {NULL, 0, false};
	OutboxPause all[1] = {{NULL, NULL}};
	OutboxPauseList everything = {all, 1, true};

	ok(!outbox_pause_holds(&none, "order", "outbox.order.1.e"), "nothing is paused");
	ok(outbox_pause_holds(&everything, "order", "outbox.order.1.e"), "everything is");
	ok(outbox_pause_holds(&list, "order", "outbox.order.1.e"), "by type");
	ok(!outbox_pause_holds(&list, "orders", "outbox.orders.1.e"), "not a longer type");
	ok(outbox_pause_holds(&list, "cart", "outbox.cart.x.e"), "by subject");
	ok(!outbox_pause_holds(&list, "cart", "outbox.cart.y.e"), "not another subject");
	ok(outbox_pause_holds(&list, "stock", "other.e"), "by both");
	ok(!outbox_pause_holds(&list, "stock", "outbox.stock.1.e"), "not by the type of both alone");
	ok(!outbox_pause_holds(&list, "cart", "other.e"), "nor by its subject alone");
}

int
main(void)
{
	test_rules();
	test_lists();
	test_all();
	return unit_done();
}
