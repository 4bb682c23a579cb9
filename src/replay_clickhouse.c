/*
 * replay_clickhouse.c
 *	  Events of a replay from the table that outbox.archive_url fills.
 *
 * A page of rows is one query over HTTP, so that no answer is left waiting while
 * events are sent slowly. Rows come by position; one that is there twice, because
 * ClickHouse hasn't merged it yet, is passed over. Must not know PostgreSQL.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "replay_clickhouse.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encode.h"
#include "replay_line.h"

#define PAGE "5000"
/* A page of large events ends earlier. */
#define PAGE_BYTES (32 << 20)

#define CONNECT_TIMEOUT_S 10L
/* A server that sends nothing for so long is given up. */
#define SILENCE_S 60L

typedef struct ClickhouseSource
{
	OutboxReplaySource base;
	OutboxClickhouseWish wish;
	CURL	   *curl;
	CURLU	   *url;
	char	   *user;			/* NULL: none */
	char	   *password;
	char		table[256];		/* "name" or "database.name", checked */
	int64_t		last;			/* position handed out, or passed over */
	char	   *page;
	size_t		page_len;
	size_t		page_size;
	size_t		at;
	bool		cut;			/* the page was ended by us */
	bool		no_memory;
	bool		ended;
	int			rows;			/* of the page, so far */
	OutboxLine	line;
} ClickhouseSource;

/* -------------------------------------------------------------------- the URL */

static bool
is_name(const char *text, size_t len)
{
	return len > 0 && strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") >= len;
}

/* "/table" or "/database/table". */
static bool
read_path(ClickhouseSource *source, const char *path)
{
	const char *second = strchr(path + 1, '/');
	size_t		first_len = second == NULL ? strlen(path + 1) : (size_t) (second - path - 1);

	if (!is_name(path + 1, first_len) || (second != NULL && !is_name(second + 1, strlen(second + 1))))
		return false;
	if (second == NULL)
		return (size_t) snprintf(source->table, sizeof(source->table), "%s", path + 1) < sizeof(source->table);
	return (size_t) snprintf(source->table, sizeof(source->table), "%.*s.%s", (int) first_len, path + 1, second + 1) < sizeof(source->table);
}

/* User and password are sent as a header, so that no log has them. */
static bool
read_url(ClickhouseSource *source)
{
	char	   *path = NULL;
	char	   *scheme = NULL;
	bool		ok;

	source->url = curl_url();
	if (source->url == NULL || curl_url_set(source->url, CURLUPART_URL, source->wish.url, 0) != CURLUE_OK)
		return false;
	(void) curl_url_get(source->url, CURLUPART_USER, &source->user, CURLU_URLDECODE);
	(void) curl_url_get(source->url, CURLUPART_PASSWORD, &source->password, CURLU_URLDECODE);
	ok = curl_url_get(source->url, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
		(strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0) &&
		curl_url_get(source->url, CURLUPART_PATH, &path, 0) == CURLUE_OK && read_path(source, path) &&
		curl_url_set(source->url, CURLUPART_USER, NULL, 0) == CURLUE_OK &&
		curl_url_set(source->url, CURLUPART_PASSWORD, NULL, 0) == CURLUE_OK &&
		curl_url_set(source->url, CURLUPART_PATH, "/", 0) == CURLUE_OK;
	curl_free(path);
	curl_free(scheme);
	return ok;
}

/* ------------------------------------------------------------------- a page */

static size_t
take_bytes(char *bytes, size_t size, size_t count, void *arg)
{
	ClickhouseSource *source = arg;
	size_t		len = size * count;

	if (source->page_len + len + 1 > source->page_size)
	{
		size_t		larger_size = (source->page_len + len) * 2 + 65536;
		char	   *larger = realloc(source->page, larger_size);

		if (larger == NULL)
		{
			source->no_memory = true;
			return 0;
		}
		source->page = larger;
		source->page_size = larger_size;
	}
	memcpy(source->page + source->page_len, bytes, len);
	source->page_len += len;
	source->cut = source->page_len > PAGE_BYTES && memrchr(source->page, '\n', source->page_len) != NULL;
	return source->cut ? 0 : len;
}

static int
look_up(void *arg, curl_off_t down_total, curl_off_t down, curl_off_t up_total, curl_off_t up)
{
	ClickhouseSource *source = arg;

	(void) down_total;
	(void) down;
	(void) up_total;
	(void) up;
	return source->wish.go_on != NULL && !source->wish.go_on(NULL);
}

/* A string of ClickHouse's SQL, in quotes. */
static void
put_string(char *out, size_t size, const char *text)
{
	size_t		len = 0;

	out[len++] = '\'';
	for (; *text != '\0' && len + 4 < size; text++)
	{
		if (*text == '\'' || *text == '\\')
			out[len++] = '\\';
		out[len++] = *text;
	}
	out[len++] = '\'';
	out[len] = '\0';
}

/* Times are texts that compare as times do. */
static void
put_times(char *out, size_t size, const OutboxReplayFilter *filter)
{
	char		from[64] = "";
	char		to[64] = "z";

	if (filter->from_time > -INT64_C(62000000000000000))
		outbox_encode_time(filter->from_time, from);
	if (filter->to_time < INT64_C(253402300800000000))
		outbox_encode_time(filter->to_time, to);
	snprintf(out, size, " AND created_at >= '%s' AND created_at <= '%s'", from, to);
}

static void
make_query(const ClickhouseSource *source, char *query, size_t size)
{
	char		database[1024];
	char		times[256];

	put_string(database, sizeof(database), source->wish.database);
	put_times(times, sizeof(times), source->wish.filter);
	snprintf(query, size,
			 "SELECT position, event_id, aggregate_type, aggregate_id, event_type, subject, payload_kind,"
			 " if(payload_kind = 'x', '', payload) AS payload_plain, if(payload_kind = 'x', hex(payload), '') AS payload_hex,"
			 " headers, occurred_at, created_at, content_type, dataschema, aggregate_version, state"
			 " FROM %s WHERE database = %s AND position > %lld AND position <= %lld%s ORDER BY position LIMIT " PAGE " FORMAT JSONEachRow",
			 source->table, database, (long long) source->last, (long long) source->wish.filter->to_position, times);
}

/* What the server has to say of an error, in one line. */
static bool
complain(ClickhouseSource *source, const char *what, const char *text, size_t len)
{
	snprintf(source->base.error, sizeof(source->base.error), "could not read from ClickHouse: %s%.*s", what, (int) (len > 900 ? 900 : len), text);
	for (char *c = source->base.error; *c != '\0'; c++)
	{
		if (*c < ' ' && *c > '\0')
			*c = ' ';
	}
	return false;
}

static bool
fetch_page(ClickhouseSource *source)
{
	CURL	   *curl = source->curl;
	char		query[4096];
	char		reason[CURL_ERROR_SIZE] = "";
	long		status = 0;
	CURLcode	code;

	make_query(source, query, sizeof(query));
	source->page_len = source->at = 0;
	source->rows = 0;
	source->cut = false;
	curl_easy_reset(curl);
	curl_easy_setopt(curl, CURLOPT_CURLU, source->url);
	curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
	curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
	curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, CONNECT_TIMEOUT_S);
	curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, SILENCE_S);
	curl_easy_setopt(curl, CURLOPT_POSTFIELDS, query);
	curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take_bytes);
	curl_easy_setopt(curl, CURLOPT_WRITEDATA, source);
	curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
	curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, look_up);
	curl_easy_setopt(curl, CURLOPT_XFERINFODATA, source);
	if (source->user != NULL)
	{
		curl_easy_setopt(curl, CURLOPT_HTTPAUTH, (long) CURLAUTH_BASIC);
		curl_easy_setopt(curl, CURLOPT_USERNAME, source->user);
		curl_easy_setopt(curl, CURLOPT_PASSWORD, source->password == NULL ? "" : source->password);
	}
	else
		curl_easy_setopt(curl, CURLOPT_NETRC, (long) CURL_NETRC_OPTIONAL);
	code = curl_easy_perform(curl);
	curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
	if (source->no_memory)
		return complain(source, "out of memory", "", 0);
	if (status != 0 && status != 200)
		return complain(source, "", source->page, source->page_len);
	if (code != CURLE_OK && !source->cut)
		return complain(source, reason[0] != '\0' ? reason : curl_easy_strerror(code), "", 0);
	/* A page that was cut ends with its last whole line. */
	while (source->cut && source->page[source->page_len - 1] != '\n')
		source->page_len--;
	return true;
}

/* ------------------------------------------------------------------- events */

/* The next line of the page; NULL: its end. */
static char *
next_line(ClickhouseSource *source, size_t *len)
{
	char	   *line = source->page + source->at;
	char	   *end;

	if (source->at >= source->page_len)
		return NULL;
	end = memchr(line, '\n', source->page_len - source->at);
	*len = end == NULL ? source->page_len - source->at : (size_t) (end - line);
	source->at += *len + 1;
	/* There is room for it behind the page. */
	line[*len] = '\0';
	return line;
}

static OutboxSourceResult
next(OutboxReplaySource *base, OutboxRow *row)
{
	ClickhouseSource *source = (ClickhouseSource *) base;
	size_t		len;
	char	   *line;

	for (;;)
	{
		const char *wrong;

		while ((line = source->page == NULL ? NULL : next_line(source, &len)) == NULL)
		{
			if (source->page != NULL && !source->cut && source->rows < atoi(PAGE))
				source->ended = true;
			if (source->ended)
				return OUTBOX_SOURCE_END;
			if (!fetch_page(source))
				return OUTBOX_SOURCE_FAILED;
			if (source->page_len == 0)
				return OUTBOX_SOURCE_END;
		}
		/* A query that fails in its middle ends with a message instead of a row. */
		if (line[0] != '{')
		{
			complain(source, "", line, len);
			return OUTBOX_SOURCE_FAILED;
		}
		source->rows++;
		wrong = outbox_replay_line_read(&source->line, line, len, row);
		if (wrong != NULL)
		{
			complain(source, "a row can't be used: ", wrong, strlen(wrong));
			return OUTBOX_SOURCE_FAILED;
		}
		if (row->position <= source->last)
			continue;
		source->last = row->position;
		if (source->line.published && outbox_replay_filter_matches(source->wish.filter, source->wish.envelope, row))
			return OUTBOX_SOURCE_ROW;
	}
}

static void
free_source(ClickhouseSource *source)
{
	curl_easy_cleanup(source->curl);
	curl_url_cleanup(source->url);
	curl_free(source->user);
	curl_free(source->password);
	free(source->page);
	free(source->line.headers);
	free(source);
}

static void
close_source(OutboxReplaySource *base)
{
	free_source((ClickhouseSource *) base);
}

OutboxReplaySource *
outbox_replay_clickhouse_open(const OutboxClickhouseWish *wish, int64_t behind, char error[OUTBOX_SOURCE_TEXT_SIZE])
{
	ClickhouseSource *source = calloc(1, sizeof(ClickhouseSource));

	if (source == NULL)
	{
		strcpy(error, "out of memory");
		return NULL;
	}
	source->base.next = next;
	source->base.close = close_source;
	source->wish = *wish;
	source->last = behind > wish->filter->from_position - 1 ? behind : wish->filter->from_position - 1;
	source->curl = curl_easy_init();
	if (source->curl != NULL && read_url(source))
		return &source->base;
	strcpy(error, source->curl == NULL ? "out of memory" : "the URL of ClickHouse isn't http[s]://[user[:password]@]host[:port]/[database/]table");
	free_source(source);
	return NULL;
}
