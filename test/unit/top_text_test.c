/*
 * top_text_test.c
 *	  src/top/top_text.c: numbers as the live screen shows them.
 */
#include <math.h>
#include <string.h>

#include "top/top.h"
#include "unit.h"

static void
check_number(double value, const char *expected)
{
	char		text[16];

	top_number(value, text, sizeof(text));
	ok(strcmp(text, expected) == 0, "%g is shown as \"%s\", not \"%s\"", value, expected, text);
}

int
main(void)
{
	check_number(0, "0");
	check_number(999.4, "999");
	check_number(99999.4, "99,999");
	check_number(99999.5, "100k");
	check_number(999400, "999k");
	check_number(999500, "1.00M");
	check_number(12345678, "12.3M");
	check_number(9e18, "9.00E");
	check_number(INFINITY, "infE");
	check_number(NAN, "nank");
	return unit_done();
}
