/*
 * reference.h
 *	  The rules of the other side, written a second time: what a NATS server and
 *	  a receiver make of our bytes.
 *
 * Nothing here may call the code under test, or be fast.
 */
#ifndef OUTBOX_REFERENCE_H
#define OUTBOX_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>

/* A subject to publish to: tokens that are not empty and no wildcards, no blank, no control character. */
extern bool reference_publishable(const char *subject);

/* Whether a subscription to pattern gets the subject. */
extern bool reference_matches(const char *pattern, const char *subject);

/*
 * Undoes a percent encoding of the first length bytes, for the caller to free.
 * NULL unless plain() is true for each byte that is written as it is and false
 * for each that is written as %XX: then there is one encoding of a text.
 */
extern char *reference_decode(const char *text, size_t length, bool (*plain) (unsigned char));

/* Whether text is valid UTF-8. */
extern bool reference_utf8(const char *text);

/* text without the white space, of any kind that Unicode knows, around it; to be freed. */
extern char *reference_trim(const char *text);

#endif							/* OUTBOX_REFERENCE_H */
