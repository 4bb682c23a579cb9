/*
 * attributes.h
 *	  What CloudEvents and W3C Trace Context allow, and JSON as an event's data.
 *
 * Pure logic like encode.h, and the checks return the same: NULL when all is
 * well, else a static lower-case phrase that completes the sentence "the key
 * ..." or "the value ...".
 */
#ifndef OUTBOX_ATTRIBUTES_H
#define OUTBOX_ATTRIBUTES_H

#include <stdbool.h>
#include <stddef.h>

/* What the header of a CloudEvents attribute begins with. */
#define OUTBOX_ATTRIBUTE_PREFIX "ce-"
#define OUTBOX_MAX_ATTRIBUTE_NAME 20

/* Deeper JSON isn't embedded in a structured event: receivers' parsers have limits of their own. */
#define OUTBOX_MAX_JSON_DEPTH 512

/* Whether a header key begins with "ce-", in whatever case. */
extern bool outbox_attribute_has_prefix(const char *key);

/* The header key of a user's extension attribute: "ce-" and a valid name that isn't one of ours. */
extern const char *outbox_attribute_check_key(const char *key);

/* A W3C Trace Context of version 00, or a later one as far as it is defined. */
extern const char *outbox_attribute_check_traceparent(const char *value);
extern const char *outbox_attribute_check_tracestate(const char *value);

/* Whether a content type says JSON: subtype "json" or "...+json". */
extern bool outbox_attribute_is_json(const char *content_type);

/* Whether these bytes are one JSON text in UTF-8 (RFC 8259), no deeper than OUTBOX_MAX_JSON_DEPTH. */
extern bool outbox_attribute_valid_json(const char *text, size_t length);

#endif /* OUTBOX_ATTRIBUTES_H */
