/*
 * url_test.c
 *	  src/url.c alone: which lists of URLs pass, and which of a ClickHouse table.
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

static void
check_archive(const char *url, bool expected)
{
	char	   *copy = strdup(url);

	ok(outbox_url_check_archive(copy) == expected, "archive \"%s\" is %s", url, expected ? "accepted" : "refused");
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

	static const char *const good_archive[] = {
		"http://h/t", "https://h:8443/d/t", "http://u@h/t", "http://u:p@h:1/d_1/T9", "http://u:p%40%2F@[::1]:8123/t"};
	static const char *const bad_archive[] = {
		"", "http", "http://", "http://h", "http://h/", "http:///t", "http://@/t", "http://u:p@/t", "http://:8123/t", "ftp://h/t", "HTTP://h/t", "nats://h/t",
		"http://h/t/", "http://h//t", "http://h/d/t/x", "http://h/d.t", "http://h/t?x=y", "http://h/t#x", "http://h?x/t", "http://h#x/t", "http://h/t;drop",
		"http://h/t ", "http://h h/t", "http://u:p w@h/t", "http://u:p\tw@h/t", "http://u:p@q@h/t", "http://u:p\x7f@h/t", "http://h/\xc3\xa9"};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
		check(good[i], true);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		check(bad[i], false);
	for (size_t i = 0; i < sizeof(good_archive) / sizeof(good_archive[0]); i++)
		check_archive(good_archive[i], true);
	for (size_t i = 0; i < sizeof(bad_archive) / sizeof(bad_archive[0]); i++)
		check_archive(bad_archive[i], false);
	return unit_done();
}
