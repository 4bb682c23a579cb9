/*
 * json.h
 *	  A reader for flat JSON objects: lines of an archive, an event's headers.
 *
 * Pure logic, no allocation. Strings are decoded in place, in the text itself,
 * which is spoilt by that. Once something isn't as asked for, every further call
 * fails, so that one look at the end is enough: outbox_json_ended().
 */
#ifndef OUTBOX_JSON_H
#define OUTBOX_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct OutboxJson
{
	char	   *at;
	char	   *end;
	bool		first;			/* no member of the object was read yet */
	bool		closed;			/* its end was */
	bool		failed;
} OutboxJson;

/* The byte behind the text is written to. */
extern void outbox_json_begin(OutboxJson *json, char *text, size_t len);

/* The beginning of an object. */
extern bool outbox_json_enter(OutboxJson *json);

/* The key of its next member; false: there is none, or an error. */
extern bool outbox_json_key(OutboxJson *json, char **key);

/* Its value: a string without NUL characters, *len may be NULL. Or another kind of value, as its text. */
extern bool outbox_json_string(OutboxJson *json, char **value, size_t *len);
extern bool outbox_json_null(OutboxJson *json); /* false without an error: it is another value */
extern bool outbox_json_int64(OutboxJson *json, int64_t *value); /* as a number or as a string */
extern bool outbox_json_value(OutboxJson *json, char **value, size_t *len); /* as it stands; not terminated */

/* Whether the object was read to its end, and nothing follows. */
extern bool outbox_json_ended(OutboxJson *json);

#endif /* OUTBOX_JSON_H */
