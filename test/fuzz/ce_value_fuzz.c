/*
 * ce_value_fuzz.c
 *	  The percent encoding of CloudEvents attributes (src/encode.c): what a
 *	  receiver decodes is what was given, and NATS carries it unchanged.
 */
#include <string.h>

#include "encode.h"
#include "fuzz.h"
#include "reference.h"

/* What the CloudEvents bindings leave as it is. */
static bool
plain(unsigned char c)
{
	return c > ' ' && c <= '~' && c != '"' && c != '%';
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *text = fuzz_take_text(&input);
	size_t		most = 3 * strlen(text) + 1;
	char	   *encoded = malloc(most);
	int			length = outbox_encode_ce_value(text, encoded, most);
	char	   *decoded;
	char	   *exact;

	/* envelope.c gives it three bytes for each and one more */
	property(length >= 0 && (size_t) length == strlen(encoded));
	decoded = reference_decode(encoded, (size_t) length, plain);
	property(decoded != NULL && strcmp(decoded, text) == 0);
	if (length > 0 && length <= OUTBOX_MAX_HEADER_VALUE)
		property(outbox_encode_check_header_value(encoded) == NULL);

	/* a buffer of the right size is enough, and one byte less is not half a value */
	exact = malloc((size_t) length + 1);
	property(outbox_encode_ce_value(text, exact, (size_t) length + 1) == length && strcmp(exact, encoded) == 0);
	free(exact);
	if (length > 0)
	{
		exact = malloc((size_t) length);
		property(outbox_encode_ce_value(text, exact, (size_t) length) == -1 && exact[0] == '\0');
		free(exact);
	}
	free(decoded);
	free(encoded);
	free(text);
	return 0;
}
