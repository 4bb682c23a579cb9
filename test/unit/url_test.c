/*
 * url_test.c
 *	  src/url.c alone: which lists of URLs pass.
 */
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "url.h"

/* An allocation of the exact size, so that ASan sees a read behind the NUL. */
static void
check(const char *list, bool expected)
{
	char	   *copy = strdup(list);

	ok(outbox_url_check_list(copy) == expected, "\"%s\" is %s", list, expected ? "accepted" : "refused");
	free(copy);
}

int
main(void)
{
	static const char *const good[] = {
		"nats://h", "tls://h", "nats://h:4222", "nats://user:pass@h:4222", "nats://[::1]:4222",
		"nats://a:1,nats://b:2, tls://c:3", "  nats://a", "nats://a,  nats://b", "nats://a ", "nats://a , nats://b  ,tls://c",
		"nats://user:p%20w@h", "nats://h\xc3\xbc"};
	static const char *const bad[] = {
		"", " ", ",", "h:4222", "http://h", "NATS://h", "nats:/h", "nats://", "tls://", "tls:/",
		"nats://a,", ",nats://a", "nats://a, ", "nats://a,,nats://b", "nats://a,b", "nats://,nats://b", "\tnats://a",
		"nats://user:pass word@h", "nats://a nats://b", "nats://user:p\tw@h", "nats://u:p\n@h", "nats://u:p\r@h", "nats://u:p\x01@h", "nats://u:p\x1f@h",
		"nats://u:p\x7f@h", "nats:// ", "nats:// ,nats://b", "nats://a\t", "nats://a,nats://b\n", "nats://a\n,nats://b"};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		check(good[i], true);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		check(bad[i], false);
	return unit_done();
}
