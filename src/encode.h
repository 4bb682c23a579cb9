/*
 * encode.h
 *	  What an event looks like on the wire: subjects, headers, times, ids.
 *
 * Pure logic: no PostgreSQL, no NATS, no allocation; buffers are the
 * caller's. Strings are UTF-8 and NUL-terminated. Checks return NULL when all
 * is well, else a static lower-case phrase that completes the sentence
 * "subject ..." or "header key ..." ("contains a wildcard").
 */
#ifndef OUTBOX_ENCODE_H
#define OUTBOX_ENCODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bounds in bytes, terminating NUL not counted. */
#define OUTBOX_MAX_AGGREGATE_TYPE 255
#define OUTBOX_MAX_AGGREGATE_ID 512
#define OUTBOX_MAX_EVENT_TYPE 255
#define OUTBOX_MAX_SUBJECT 1024		/* given as is */
#define OUTBOX_MAX_TEMPLATE 256
#define OUTBOX_MAX_HEADER_KEY 256
#define OUTBOX_MAX_HEADER_VALUE 65535
#define OUTBOX_MAX_TTL INT64_C(999999999) /* seconds */
/* Enough for any rendered subject. */
#define OUTBOX_SUBJECT_BUFFER (OUTBOX_MAX_TEMPLATE + 3 * 4 * OUTBOX_MAX_AGGREGATE_ID + 1)

/*
 * One subject token: A-Z a-z 0-9 _ - as they are, every other byte as %XX
 * (upper-case hexadecimal). Injective; never yields a separator or wildcard.
 * Returns the length written without NUL, or -1 if out is too small.
 */
extern int	outbox_encode_token(const char *in, char *out, size_t out_size);

/*
 * A subject template: literal tokens and the placeholders {aggregate_type},
 * {aggregate_id}, {event_type}, each at most once and each a whole token by
 * itself, joined by dots; it starts with a literal token (so that a stream can
 * listen to it). Literal tokens: as in a user's subject.
 */
extern const char *outbox_encode_check_template(const char *template);

/* Renders a valid template. Returns the length, or -1 if out is too small. */
extern int	outbox_encode_subject(const char *template, const char *aggregate_type, const char *aggregate_id,
								 const char *event_type, char *out, size_t out_size);

/* The subjects that a stream for this template listens to: leading literal tokens and ">". */
extern int	outbox_encode_stream_subjects(const char *template, char *out, size_t out_size);

/* A subject given by the user: publishable (no wildcards, blanks, control characters, empty tokens, leading "$" or "_INBOX"). */
extern const char *outbox_encode_check_subject(const char *subject);

/* The headers of NATS' own that users may give. */
#define OUTBOX_TTL_HEADER "Nats-TTL"
#define OUTBOX_SCHEDULE_HEADER "Nats-Schedule"

/* A header given by the user. Keys: RFC 9110 tokens, not Nats-* (but those two), ce-*, Content-Type. Values: see docs. */
extern const char *outbox_encode_check_header_key(const char *key);
extern const char *outbox_encode_check_header_value(const char *value);

/* A value of Nats-TTL: "never", seconds, or a duration of hours, minutes, seconds like 1h30m; at least a second, at most some 30 years. */
extern const char *outbox_encode_check_ttl(const char *value);

/* The one value of Nats-Schedule that an event can have; the server's own syntax has others. */
#define OUTBOX_SCHEDULE_VALUE "@not_before"

/* Whether receivers may take two valid header keys for the same: letter case doesn't count. */
extern bool outbox_encode_same_header_key(const char *one, const char *other);

/* A value in a CloudEvents header: space, quote, percent and all outside U+0021..U+007E as %XX. Length or -1. */
extern int	outbox_encode_ce_value(const char *in, char *out, size_t out_size);

/* Microseconds since the Unix epoch as RFC 3339 in UTC, "2024-10-27T00:30:00.123400Z". Buffer of 40. */
extern void outbox_encode_time(int64_t unix_us, char *out);

/* A version 7 UUID (RFC 9562) from a time and 10 random bytes; uuid has 16 bytes. */
extern void outbox_encode_uuid7(int64_t unix_us, const uint8_t *random10, uint8_t *uuid);

/*
 * A version 7 UUID from a time, 28 random bits (of 4 bytes) and a position, which it can be asked for. key makes the
 * ids of one database differ from those of another. Positions from OUTBOX_ID_POSITIONS on aren't found again.
 */
#define OUTBOX_ID_POSITIONS (INT64_C(1) << 46)
extern void outbox_encode_event_id(int64_t unix_us, const uint8_t *random4, int64_t position, uint64_t key, uint8_t *uuid);

/* The position that such an id was made with; of any other UUID, a number that means nothing; 0: of no version 7. */
extern int64_t outbox_encode_id_position(const uint8_t *uuid, uint64_t key);

/* Canonical lower-case text of a UUID, 36 characters and NUL. */
extern void outbox_encode_uuid(const uint8_t *uuid, char *out);

#endif							/* OUTBOX_ENCODE_H */
