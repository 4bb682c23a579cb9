/*
 * archive_send.c
 *	  Sends the rows of a range to ClickHouse, and waits meanwhile for the
 *	  network and for signals alike.
 */
#include "archive.h"

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/latch.h"
#include "utils/memutils.h"

#include "archive_http.h"
#include "worker.h"

#define MAX_WAIT_MS 1000L

/* Until a socket is ready, the latch is set, or libcurl wants to look at its clock. */
static void
wait_for_network(ArchiveHttp *http)
{
	ArchiveHttpSocket sockets[ARCHIVE_HTTP_SOCKETS];
	WaitEventSet *set;
	WaitEvent	event;
	long		timeout;
	int			count = outbox_archive_http_sockets(http, sockets, &timeout);

	set = CreateWaitEventSet(OUTBOX_WAIT_SET_OWNER, ARCHIVE_HTTP_SOCKETS + 2);
	AddWaitEventToSet(set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	for (int i = 0; i < count; i++)
		AddWaitEventToSet(set, (sockets[i].reading ? WL_SOCKET_READABLE : 0) | (sockets[i].writing ? WL_SOCKET_WRITEABLE : 0),
						  sockets[i].socket, NULL, NULL);
	if (WaitEventSetWait(set, timeout < 0 ? MAX_WAIT_MS : Min(timeout, MAX_WAIT_MS), &event, 1, PG_WAIT_EXTENSION) > 0 &&
		event.events == WL_LATCH_SET)
		ResetLatch(MyLatch);
	FreeWaitEventSet(set);
	outbox_worker_check(0);
}

/* Lets the transfer go on until it wants more, or has ended. */
static ArchiveHttpState
go_on(ArchiveHttp *http, ArchiveError *error)
{
	ArchiveHttpState state;

	while ((state = outbox_archive_http_step(http, error)) == ARCHIVE_HTTP_WAITS)
		wait_for_network(http);
	return state;
}

/* The first batch is there. Returns when all is confirmed, or the rows have changed. */
static void
send_batches(ArchiveHttp *http, OutboxArchiveRows *rows, const char *what)
{
	ArchiveError error;
	ArchiveHttpState state;

	do
	{
		outbox_archive_http_give(http, rows->buffer.data, rows->buffer.length);
		state = go_on(http, &error);
		OUTBOX_TEST_POINT("archive-sending");
	} while (state == ARCHIVE_HTTP_WANTS_MORE && outbox_archive_rows_next(rows));
	if (state == ARCHIVE_HTTP_WANTS_MORE && !rows->changed)
	{
		outbox_archive_http_give(http, NULL, 0);
		state = go_on(http, &error);
	}
	if (state == ARCHIVE_HTTP_FAILED)
		outbox_archive_raise(what, &error);
}

void
outbox_archive_send(OutboxArchiveRows *rows)
{
	char		url[1024];
	ArchiveError error;
	ArchiveHttp *http;
	char	   *what;

	if (!outbox_archive_rows_next(rows))
		return;
	outbox_archive_http_mask(outbox_archive_url, url, sizeof(url));
	what = psprintf("could not send to \"%s\"", url);
	http = outbox_archive_http_open(outbox_archive_url, ARCHIVE_COLUMNS, &error);
	if (http == NULL)
		outbox_archive_raise(what, &error);
	PG_TRY();
	{
		send_batches(http, rows, what);
	}
	PG_FINALLY();
	{
		outbox_archive_http_close(http);
	}
	PG_END_TRY();
}
