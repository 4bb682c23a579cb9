/*
 * fuzz_input.c
 *	  Cuts the fuzzer's input into pieces.
 */
#include <string.h>

#include "fuzz.h"

static void *
allocate(size_t size)
{
	void	   *memory = malloc(size);

	if (memory == NULL)
		abort();
	return memory;
}

uint8_t
fuzz_take_byte(FuzzInput *input)
{
	if (input->left == 0)
		return 0;
	input->left--;
	return *input->at++;
}

/* Without a terminating NUL, and not NULL even if it has no byte. */
char *
fuzz_take_bytes(FuzzInput *input, size_t length)
{
	char	   *bytes;

	if (length > input->left)
		length = input->left;
	bytes = allocate(length);
	if (length > 0)
		memcpy(bytes, input->at, length);
	input->at += length;
	input->left -= length;
	return bytes;
}

char *
fuzz_take_text(FuzzInput *input)
{
	size_t		length = 0;
	char	   *text;

	while (length < input->left && input->at[length] != '\0')
		length++;
	text = allocate(length + 1);
	if (length > 0)
		memcpy(text, input->at, length);
	text[length] = '\0';
	input->at += length;
	input->left -= length;
	(void) fuzz_take_byte(input);
	return text;
}

char *
fuzz_copy(const char *text)
{
	size_t		size = strlen(text) + 1;

	return memcpy(allocate(size), text, size);
}
