/*
 * url.h
 *	  What outbox.nats_url and outbox.archive_url may be.
 *
 * Pure logic: no PostgreSQL, no NATS, no allocation.
 */
#ifndef OUTBOX_URL_H
#define OUTBOX_URL_H

#include <stdbool.h>

/* URLs of NATS servers, separated by commas; spaces around one don't count, and it has no white space in it. */
extern bool outbox_url_check_list(const char *list);

/* The URL of a ClickHouse table: http[s]://[user[:password]@]host[:port]/[database/]table. */
extern bool outbox_url_check_archive(const char *url);

#endif							/* OUTBOX_URL_H */
