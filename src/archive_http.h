/*
 * archive_http.h
 *	  Sends rows to ClickHouse: one INSERT over HTTP, a part at a time.
 */
#ifndef OUTBOX_ARCHIVE_HTTP_H
#define OUTBOX_ARCHIVE_HTTP_H

#include "archive_file.h"

#define ARCHIVE_HTTP_SOCKETS 16

typedef struct ArchiveHttp ArchiveHttp;

typedef enum ArchiveHttpState
{
	ARCHIVE_HTTP_WANTS_MORE,	/* all that was given is on its way */
	ARCHIVE_HTTP_WAITS,			/* for the network, see outbox_archive_http_sockets() */
	ARCHIVE_HTTP_DONE,			/* the server has confirmed it all */
	ARCHIVE_HTTP_FAILED
} ArchiveHttpState;

typedef struct ArchiveHttpSocket
{
	int			socket;
	bool		reading;
	bool		writing;
} ArchiveHttpSocket;

/*
 * Begins an INSERT of these columns into the table of a URL
 * (http[s]://[user[:password]@]host[:port]/[database/]table). NULL: it can't be.
 */
extern ArchiveHttp *outbox_archive_http_open(const char *url, const char *columns, ArchiveError *error);

/* The next rows, which stay where they are until they are on their way; length 0: these were all. */
extern void outbox_archive_http_give(ArchiveHttp *http, const char *rows, size_t length);

/* Does what can be done without waiting. */
extern ArchiveHttpState outbox_archive_http_step(ArchiveHttp *http, ArchiveError *error);

/* What to wait for, at most *timeout milliseconds. Returns the number of sockets. */
extern int outbox_archive_http_sockets(ArchiveHttp *http, ArchiveHttpSocket sockets[ARCHIVE_HTTP_SOCKETS], long *timeout);

/* NULL is allowed. */
extern void outbox_archive_http_close(ArchiveHttp *http);

/* A URL without user and password, for those who may not know them. */
extern void outbox_archive_http_mask(const char *url, char *buffer, size_t size);

#endif /* OUTBOX_ARCHIVE_HTTP_H */
