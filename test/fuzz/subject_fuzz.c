/*
 * subject_fuzz.c
 *	  Subjects given by the application (src/encode.c): those that pass can be
 *	  published to, and are not the server's own; and no others are refused.
 */
#include <string.h>

#include "encode.h"
#include "fuzz.h"
#include "reference.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *subject = fuzz_take_text(&input);
	bool		accepted = outbox_encode_check_subject(subject) == NULL;
	bool		valid;

	/* stricter than the server: no wildcard inside a token either, no other bytes than UTF-8 */
	valid = reference_publishable(subject) && strpbrk(subject, "*>") == NULL && reference_utf8(subject) &&
		strlen(subject) <= OUTBOX_MAX_SUBJECT &&
		subject[0] != '$' && strncmp(subject, "_INBOX", 6) != 0;
	property(accepted == valid);
	free(subject);
	return 0;
}
