/*
 * archive_http.c
 *	  Sends rows to ClickHouse: one INSERT over HTTP, a part at a time.
 *
 * The only file that knows libcurl. It must not know PostgreSQL: libcurl's
 * threads (it looks names up in one) must never meet its signal handlers, so all
 * signals are blocked around every call that may start one. It never waits; who
 * calls it does, for the sockets that it names.
 *
 * What the server answers is shown in printable ASCII, and without the password.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "archive_http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "signals.h"

#define CONNECT_TIMEOUT_MS 10000L

/* Not a byte in either direction for so long: given up. */
#define SILENCE_SECONDS 120L

#define QUERY_SIZE 2048
#define ANSWER_SIZE 600

struct ArchiveHttp
{
	CURLM	   *multi;
	CURL	   *easy;
	CURLU	   *url;
	struct curl_slist *headers;
	char	   *password;
	char		curl_error[CURL_ERROR_SIZE];

	const char *rows;			/* the part that isn't on its way yet */
	size_t		rows_left;
	bool		rows_end;		/* there will be no other */
	bool		paused;			/* libcurl waits for the next part */

	char		answer[ANSWER_SIZE]; /* the beginning of it */
	size_t		answer_length;
};

/* --------------------------------------------------------------- callbacks */

static size_t
read_rows(char *buffer, size_t size, size_t count, void *arg)
{
	ArchiveHttp *http = arg;
	size_t		length = size * count < http->rows_left ? size * count : http->rows_left;

	if (length == 0)
	{
		http->paused = !http->rows_end;
		return http->rows_end ? 0 : CURL_READFUNC_PAUSE;
	}
	memcpy(buffer, http->rows, length);
	http->rows += length;
	http->rows_left -= length;
	return length;
}

static size_t
take_answer(char *data, size_t size, size_t count, void *arg)
{
	ArchiveHttp *http = arg;

	for (size_t i = 0; i < size * count && http->answer_length + 1 < ANSWER_SIZE; i++)
	{
		bool		printable = data[i] >= ' ' && data[i] <= '~';

		http->answer[http->answer_length++] = data[i] == '\n' ? ' ' : printable ? data[i] :
																				  '?';
	}
	return size * count;
}

/* --------------------------------------------------------------------- URL */

static char *
url_part(const ArchiveHttp *http, CURLUPart part, unsigned int flags)
{
	char	   *text = NULL;

	return curl_url_get(http->url, part, &text, flags) == CURLUE_OK ? text : NULL;
}

/* "/database/table" or "/table" as what stands in a query. */
static bool
table_of_path(const char *path, char *table, size_t size)
{
	size_t		length = 0;

	for (const char *c = path[0] == '/' ? path + 1 : path; *c != '\0' && length + 2 < size; c++)
		table[length++] = *c == '/' ? '.' : *c;
	table[length] = '\0';
	return length > 0;
}

/* Takes user, password and path out of the URL, and puts the query in. */
static bool
prepare_url(ArchiveHttp *http, const char *text, const char *columns)
{
	char		table[600];
	char		query[QUERY_SIZE];
	char	   *path;
	char	   *user;
	bool		good;

	http->url = curl_url();
	if (http->url == NULL || curl_url_set(http->url, CURLUPART_URL, text, 0) != CURLUE_OK)
		return false;
	user = url_part(http, CURLUPART_USER, CURLU_URLDECODE);
	http->password = url_part(http, CURLUPART_PASSWORD, CURLU_URLDECODE);
	path = url_part(http, CURLUPART_PATH, 0);
	good = path != NULL && table_of_path(path, table, sizeof(table)) &&
		snprintf(query, sizeof(query), "query=INSERT INTO %s (%s) FORMAT TabSeparated", table, columns) < (int) sizeof(query) &&
		curl_url_set(http->url, CURLUPART_USER, NULL, 0) == CURLUE_OK && curl_url_set(http->url, CURLUPART_PASSWORD, NULL, 0) == CURLUE_OK &&
		curl_url_set(http->url, CURLUPART_PATH, "/", 0) == CURLUE_OK &&
		curl_url_set(http->url, CURLUPART_QUERY, query, CURLU_URLENCODE | CURLU_APPENDQUERY) == CURLUE_OK;
	if (good && user != NULL)
		good = curl_easy_setopt(http->easy, CURLOPT_USERNAME, user) == CURLE_OK &&
			curl_easy_setopt(http->easy, CURLOPT_PASSWORD, http->password == NULL ? "" : http->password) == CURLE_OK;
	else if (good)
		good = curl_easy_setopt(http->easy, CURLOPT_NETRC, (long) CURL_NETRC_OPTIONAL) == CURLE_OK;
	curl_free(user);
	curl_free(path);
	return good;
}

void
outbox_archive_http_mask(const char *url, char *buffer, size_t size)
{
	const char *host = strstr(url, "://");
	size_t		scheme = host == NULL ? 0 : (size_t) (host + 3 - url);
	size_t		authority = strcspn(url + scheme, "/?#");
	const char *sign = memrchr(url + scheme, '@', authority);

	snprintf(buffer, size, "%.*s%s", (int) scheme, url, sign == NULL ? url + scheme : sign + 1);
}

/* ------------------------------------------------------------------ opening */

static bool
prepare_transfer(ArchiveHttp *http, const char *url, const char *columns)
{
	CURL	   *easy = http->easy;
	struct curl_slist *more;

	/* Its length isn't known before it ends; and no time is spent on asking whether it may come. */
	http->headers = curl_slist_append(NULL, "Transfer-Encoding: chunked");
	more = http->headers == NULL ? NULL : curl_slist_append(http->headers, "Expect:");
	return more != NULL && prepare_url(http, url, columns) &&
		curl_easy_setopt(easy, CURLOPT_CURLU, http->url) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_POST, 1L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_HTTPHEADER, http->headers) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_READFUNCTION, read_rows) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_READDATA, http) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_answer) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_WRITEDATA, http) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, http->curl_error) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_PROXY, "") == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, 256 * 1024L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L) == CURLE_OK &&
		curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME, SILENCE_SECONDS) == CURLE_OK &&
		curl_multi_add_handle(http->multi, easy) == CURLM_OK;
}

ArchiveHttp *
outbox_archive_http_open(const char *url, const char *columns, ArchiveError *error)
{
	ArchiveHttp *http = calloc(1, sizeof(ArchiveHttp));
	sigset_t	before;
	bool		good;

	outbox_signals_block(&before);
	good = http != NULL && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK && (http->multi = curl_multi_init()) != NULL &&
		(http->easy = curl_easy_init()) != NULL && prepare_transfer(http, url, columns);
	outbox_signals_restore(&before);
	if (good)
		return http;
	outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "could not use the URL");
	outbox_archive_http_close(http);
	return NULL;
}

void
outbox_archive_http_close(ArchiveHttp *http)
{
	sigset_t	before;

	if (http == NULL)
		return;
	outbox_signals_block(&before);
	if (http->multi != NULL && http->easy != NULL)
		curl_multi_remove_handle(http->multi, http->easy);
	curl_easy_cleanup(http->easy);
	curl_multi_cleanup(http->multi);
	curl_url_cleanup(http->url);
	curl_slist_free_all(http->headers);
	curl_free(http->password);
	free(http);
	outbox_signals_restore(&before);
}

/* ------------------------------------------------------------------ sending */

void
outbox_archive_http_give(ArchiveHttp *http, const char *rows, size_t length)
{
	http->rows = rows;
	http->rows_left = length;
	http->rows_end = length == 0;
}

/* A server may repeat what it was sent. */
static void
hide_password(const ArchiveHttp *http, char *text)
{
	size_t		length = http->password == NULL ? 0 : strlen(http->password);
	char	   *at = text;

	while (length > 0 && (at = strstr(at, http->password)) != NULL)
		memset(at, '*', length);
}

/* The transfer has ended, in one way or another. */
static ArchiveHttpState
judge(ArchiveHttp *http, CURLcode result, ArchiveError *error)
{
	long		status = 0;

	http->answer[http->answer_length] = '\0';
	hide_password(http, http->answer);
	hide_password(http, http->curl_error);
	(void) curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &status);
	/* An answer that came before all was sent says more than that the connection is closed. */
	if (status != 0 && status != 200)
		outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "the server answers with status %ld: %s", status, http->answer);
	else if (result != CURLE_OK)
		outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "%s", http->curl_error[0] != '\0' ? http->curl_error : curl_easy_strerror(result));
	else if (http->answer_length > 0)
		outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "the server answers an INSERT with: %s", http->answer);
	else if (!http->rows_end || http->rows_left > 0)
		outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "the server answers before it has everything");
	else
		return ARCHIVE_HTTP_DONE;
	return ARCHIVE_HTTP_FAILED;
}

static ArchiveHttpState
step(ArchiveHttp *http, ArchiveError *error)
{
	CURLMsg	   *message;
	int			running;
	int			queued;

	if (http->paused && (http->rows_left > 0 || http->rows_end))
	{
		http->paused = false;
		(void) curl_easy_pause(http->easy, CURLPAUSE_CONT);
	}
	if (curl_multi_perform(http->multi, &running) != CURLM_OK)
	{
		outbox_archive_complain(error, ARCHIVE_SYSTEM, 0, "libcurl fails");
		return ARCHIVE_HTTP_FAILED;
	}
	while ((message = curl_multi_info_read(http->multi, &queued)) != NULL)
	{
		if (message->msg == CURLMSG_DONE)
			return judge(http, message->data.result, error);
	}
	return http->rows_left == 0 && !http->rows_end ? ARCHIVE_HTTP_WANTS_MORE : ARCHIVE_HTTP_WAITS;
}

ArchiveHttpState
outbox_archive_http_step(ArchiveHttp *http, ArchiveError *error)
{
	sigset_t	before;
	ArchiveHttpState state;

	outbox_signals_block(&before);
	state = step(http, error);
	outbox_signals_restore(&before);
	return state;
}

int
outbox_archive_http_sockets(ArchiveHttp *http, ArchiveHttpSocket sockets[ARCHIVE_HTTP_SOCKETS], long *timeout)
{
	fd_set		reading;
	fd_set		writing;
	fd_set		failing;
	int			highest = -1;
	int			count = 0;

	FD_ZERO(&reading);
	FD_ZERO(&writing);
	FD_ZERO(&failing);
	*timeout = -1;
	(void) curl_multi_timeout(http->multi, timeout);
	(void) curl_multi_fdset(http->multi, &reading, &writing, &failing, &highest);
	for (int fd = 0; fd <= highest && count < ARCHIVE_HTTP_SOCKETS; fd++)
	{
		ArchiveHttpSocket socket = {fd, FD_ISSET(fd, &reading) != 0, FD_ISSET(fd, &writing) != 0};

		if (socket.reading || socket.writing)
			sockets[count++] = socket;
	}
	/* libcurl is busy with something that has no socket. */
	if (count == 0 && (*timeout < 0 || *timeout > 100))
		*timeout = 100;
	return count;
}
